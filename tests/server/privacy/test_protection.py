"""Rounds that protect nobody open where that is stated, and whatever shows their epsilon says *none*."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from device_sdk.privacy.spending import LARGEST_STATED, stated
from server.commands import privacy, rounds
from server.plans.round import RoundSettings
from server.privacy.charges import charge_for
from server.privacy.composition import Spent, compose
from server.privacy.protection import series_epsilon
from server.service import Service
from server.storage import schema
from tests.server.conftest import Run
from tests.server.parties import HEADERS, OPERATOR, UNPROTECTED, Operator, Party, refusal, serving

ROOT = Path(__file__).parents[3]
NOISED: dict[str, Any] = {"marginals": None, "deltas": {}, "weighting": "uniform", "goal": 4, "noise_multiplier": 1.0}
SERIES = [NOISED | {"rounds": count} for count in (1, 60, 400)]
SERIES += [{"marginals": {"epsilon": 8.0}, "rounds": count} for count in (5, 30)]
SERIES += [
    {"marginals": {"epsilon": 2.0}, "rounds": 9, "sampling": {"kind": "poisson", "rate": 0.1, "amplified": True}}
]


@pytest.mark.parametrize("plan", SERIES)
def test_a_series_opens_by_what_the_ledger_will_say(http: Any, device: Party, plan: dict[str, Any]) -> None:
    settings = RoundSettings.model_validate(plan)
    (stream,) = settings.streams
    epsilon = compose(Spent({charge_for(stream, settings): settings.rounds}), 1e-6)[0]
    assert (series_epsilon(stream, settings, 1e-6) > LARGEST_STATED) is (epsilon > LARGEST_STATED)
    answer = http.post("/v1/operator/rounds", json={"settings": plan}, headers=HEADERS)
    if epsilon <= LARGEST_STATED:
        assert answer.status_code == 201
        return
    assert refusal(answer) == (422, "no_privacy") and answer.json()["field"] == stream
    assert f"epsilon {stated(epsilon)}" in answer.json()["detail"]
    said = {"settings": plan | {"no_privacy": True}}
    assert http.post("/v1/operator/rounds", json=said, headers=HEADERS).status_code == 201


def test_what_a_cap_bounds_is_bounded(tmp_path: Path) -> None:
    plan = {"settings": {"marginals": {"epsilon": 8.0}, "rounds": 100}}
    with serving(tmp_path, marginals_cap=20.0) as http:
        assert http.post("/v1/operator/rounds", json=plan, headers=HEADERS).status_code == 201
        deltas = {"settings": {"marginals": {"epsilon": 1.0}, "deltas": {}}}
        answer = http.post("/v1/operator/rounds", json=deltas, headers=HEADERS)
        assert refusal(answer) == (422, "no_privacy") and answer.json()["field"] == "deltas"


def test_a_planned_round_is_looked_at_again_when_it_opens(http: Any, operator: Operator) -> None:
    """Caps change with the server's options, and rounds were planned by servers that did not ask."""
    planned = operator.post("rounds", json={"open": False, "settings": {"marginals": {"epsilon": 1.0}}})["id"]
    before = RoundSettings.model_validate({"deltas": {}}).model_dump(mode="json", exclude={"no_privacy"})
    service: Service = http.app.state.service
    with service.database.write() as connection:
        connection.execute(update(schema.rounds).where(schema.rounds.c.id == planned).values(settings=before))
    answer = http.post(f"/v1/operator/rounds/{planned}/open", headers=HEADERS)
    assert refusal(answer) == (422, "no_privacy")
    assert operator.get(f"rounds/{planned}")["state"] == "planned"


def test_a_series_that_was_stated_goes_on_to_its_end(operator: Operator, device: Party) -> None:
    first = operator.open(goal=1, rounds=2)
    assert device.send_counts(first, {1: 1}).status_code == 200
    operator.close(first)
    (second,) = operator.get("status")["rounds"]
    assert second["id"] != first and second["settings"]["no_privacy"] is True


HUGE = re.compile(r"(?<![\w.])(inf|infinite|Infinity|∞|\d[\d.]*e\+\d+|[1-9][\d,]*\d{2}(\.\d+)?)(?!\w)")
"""100 and more."""


def test_everything_that_shows_such_an_epsilon_says_none(http: Any, run: Run, tmp_path: Path) -> None:
    """Pages, commands and metrics after rounds of all streams; what stands behind the word epsilon."""
    operator, party = Operator(http), Party(http).enrol()
    plan = UNPROTECTED | {"deltas": {}, "words": {"epsilon": 300.0}}
    ended = operator.open(**plan)
    party.send_counts(ended, {1: 256})
    party.send_delta(ended)
    party.send_words(ended, "cortado")
    operator.close(ended)
    noised = {"marginals": None, "deltas": {"noise_stddev": 0.01}, "weighting": "uniform", "goal": 3}
    operator.open(**noised)
    http.post("/dashboard/sign-in", data={"token": OPERATOR})
    shown = {page: http.get(f"/dashboard{page}").text for page in ("", "/privacy", "/rounds", f"/rounds/{ended}")}
    shown |= {"ledger": run(privacy.app, "ledger", "--devices"), "show": run(rounds.app, "show", ended)}
    shown |= {"open": run(rounds.app, "show"), "metrics": http.get("/metrics", headers=HEADERS).text}
    file = tmp_path / "round.toml"
    file.write_text("rounds = 100\n[marginals]\nepsilon = 1e8\n[deltas]\n")
    shown["plan"] = run(rounds.app, "plan", str(file))
    found = 0
    for name, text in shown.items():
        words = re.sub(r"<[^>]*>", "\n", text)
        for match in re.finditer(r"(?i)epsilon[^\n]*(?:\n[\s│]*[^\n]*){0,3}", words):
            told = re.sub(r"none \([^)]*\)", "NONE", match.group())
            found += "NONE" in told
            first = told.partition("NONE")[0] if "NONE" in told else told
            near = re.split(r"(?i)\bat delta\b|cap|rounds|devices|\n\s*\n", first)[0]
            assert not HUGE.search(near), (name, match.group())
    assert found >= 12, found
    assert "Opened without privacy" in shown[f"/rounds/{ended}"]


WRITTEN = {
    "server/commands/serve.py",  # an option's help
    "examples/liu_2020/rows.py",  # names of rows: 8 at most, and of one count
}
"""Files whose formatted epsilons are none that may be beyond all bounds."""


def test_no_epsilon_is_formatted_but_by_the_function_that_says_none() -> None:
    """In every f-string of what ships, and of the examples."""
    wrong: list[str] = []
    for folder in ("device_sdk", "server", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if place in WRITTEN:
                continue
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
                    source = ast.unparse(node.value)
                    if re.search(r"epsilon", source) and "stated(" not in source:
                        wrong.append(f"{place}:{node.lineno}: {source}")
    assert not wrong, "\n".join(wrong)


def test_no_page_formats_an_epsilon_otherwise() -> None:
    wrong = []
    for path in sorted((ROOT / "server").rglob("*.html")):
        for expression in re.findall(r"\{\{(.*?)\}\}", path.read_text("utf-8")):
            if "epsilon" in expression and not re.search(r"\|\s*epsilon", expression):
                wrong.append(f"{path.relative_to(ROOT)}: {expression}")
    assert not wrong, wrong


def test_json_keeps_numbers(http: Any, run: Run) -> None:
    operator, party = Operator(http), Party(http).enrol()
    round_id = operator.open()
    party.send_counts(round_id, {1: 256})
    operator.close(round_id)
    line = json.loads(run(privacy.app, "ledger", "--json"))["streams"]["marginals"]
    assert line["epsilon"] > 1e7
