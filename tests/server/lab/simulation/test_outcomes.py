"""Figures of records whose errors are known, and the page and tables that show them."""

import io
import json
import math
import re
import statistics
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from device_sdk.feedback.slots import SlotLexicon
from server.lab.commands.simulate import differences, table
from server.lab.corpora import Utterance
from server.lab.simulation import Shape, SimulationSettings, outcomes, render
from server.lab.simulation.outcomes import CONDITIONS, Outcome, Run, Traffic, figures, rate, score, spread
from server.lab.simulation.population import Participant, Population
from server.lab.simulation.progress import Shown
from server.lab.simulation.run import document_of, epsilon

LEXICON = SlotLexicon({"room": ("kitchen", "living room"), "action": ("on", "off")})
ERRORS = {"frozen": 4, "marginals": 3, "learning": 3, "both": 2, "supervised": 1}
SAID, SLOTS = "light on in the kitchen", {"room": "kitchen", "action": "on"}


def outcome(voice: str = "a", round_: int = 0, words: Any = (0, 0), slots: Any = (0, 0)) -> Outcome:
    return Outcome(voice, round_, *words, *slots, 2.0, 0.1)


def run(condition: str, heard: Any = (), spent: dict[str, Any] | None = None, seed: int = 1, moved: Any = ()) -> Run:
    return Run(condition, seed, tuple(heard), tuple(moved), spent or {}, 10**8)


@pytest.mark.parametrize(
    ("said", "slots", "sure", "heard", "words", "found"),
    [
        (SAID, SLOTS, True, SAID, (0, 5), (0, 2)),
        (SAID, SLOTS, True, "light in the chicken", (2, 5), (2, 2)),
        ("light on", {"action": "on"}, True, "light on kitchen", (1, 2), (1, 1)),
        ("light on", {"action": "on"}, False, "off", (0, 0), (1, 1)),  # unsure text: only slots count
        ("light on", None, True, "", (2, 2), (0, 0)),
        (None, {"action": "on"}, True, "on", (0, 0), (0, 1)),
    ],
)
def test_score(said: Any, slots: Any, sure: bool, heard: str, words: tuple[int, int], found: tuple[int, int]) -> None:
    recording = Utterance("a", "a", said, slots, sure, lambda: np.zeros(1, np.float32))
    result = score(recording, heard, LEXICON, "a", 0)
    assert (result.word_errors, result.words) == words and (result.slot_errors, result.slots) == found
    unlabelled = score(recording, heard, None, "a", 0)
    assert unlabelled.slots == 0 and rate([unlabelled], "slot_error") is None


@given(st.lists(st.floats(0, 5), min_size=1, max_size=6))
def test_spread(values: list[float]) -> None:
    found = spread(values)
    assert found["mean"] == pytest.approx(statistics.fmean(values))
    assert found["std"] == pytest.approx(statistics.stdev(values) if len(values) > 1 else 0.0)
    assert found["per_seed"] == values
    assert spread([None, None]) == {"mean": None, "std": None, "per_seed": [None, None]}


def test_figures_keep_rounds_seeds_and_held_out_voices_apart() -> None:
    runs = [
        run(condition.name, [outcome(words=(4, 4)), outcome("a", 1, (seed, 4)), outcome("h", -1, (1, 4))], seed=seed)
        for condition in CONDITIONS
        for seed in (2, 1)  # the order in which workers finish must not matter
    ]
    found = figures(runs, 2)["both"]
    expected = {"all": [5 / 8, 6 / 8], "later": [1 / 4, 2 / 4], "last": [1 / 4, 2 / 4], "heldout": [1 / 4, 1 / 4]}
    assert {part: each["per_seed"] for part, each in found["wer"].items()} == expected
    assert found["slot_error"]["all"]["mean"] is None


def test_conditions_are_paired_with_frozen() -> None:
    def found(frozen: list[Outcome], both: list[Outcome], part: str = "all", kind: str = "slot_error") -> Any:
        runs = [run("frozen", frozen), *(run(condition.name, both) for condition in CONDITIONS[1:])]
        return outcomes.against_frozen(runs, 2)["both"][kind][part]

    generator = np.random.default_rng(1)
    frozen = [outcome(f"v{n % 10}", n % 2, slots=(int(generator.integers(1, 5)), 4)) for n in range(60)]
    both = [replace(entry, slot_errors=entry.slot_errors - 1) for entry in frozen]
    everything, last = found(frozen, both), found(frozen, both, "last")
    assert everything["groups"] == 10 and last["groups"] == 5
    assert everything["absolute"]["mean"] == pytest.approx(-0.25)
    assert everything["absolute"]["low"] == pytest.approx(-0.25) and everything["absolute"]["excludes_zero"]
    assert found(frozen, both, "heldout") is None and found(frozen, both, kind="wer") is None
    for none in ([outcome("a", slots=(0, 4)), outcome("b", slots=(0, 4))], [outcome("a", slots=(2, 4))]):
        assert found(none, none) is None


def test_the_largest_epsilon_of_any_seed_is_stated() -> None:
    spent = [{"deltas": {"epsilon": value, "adjacency": "user", "per_round": [value]}} for value in (3.0, math.inf)]
    found = epsilon([run("both", [], spent[0]), run("both", [], spent[1], 2), run("learning", [], spent[1])])
    assert found == {"deltas": {"epsilon": "Infinity", "adjacency": "user", "per_round": ["Infinity"]}}
    json.dumps(found, allow_nan=False)


def document(seeds: int, slots: bool, spent: float = 2.0) -> tuple[dict[str, Any], list[Run]]:
    """A document of rounds with known errors, and what it is made of."""
    entry = {"delta": 1e-6, "adjacency": "user", "sampling": "none", "trust_model": "x"}
    ledger = {
        "marginals": {**entry, "epsilon": spent, "per_round": [spent] * 2},
        "deltas": {**entry, "epsilon": math.inf, "per_round": [math.inf]},
    }
    runs = []
    for seed in range(seeds):
        for condition in CONDITIONS:
            wrong = ERRORS[condition.name]
            heard = [
                outcome(voice, round_, (wrong, 8), (wrong * slots, 5 * slots))
                for round_, voices in ((0, ("<ann>", "bob")), (1, ("<ann>", "bob")), (-1, ("held",)))
                for voice in voices
            ]
            moved = [Traffic(round_, 1_500, 30_000) for round_ in (0, 1)] if condition.reports else []
            runs.append(run(condition.name, heard, ledger, seed, moved))
    people = [tuple(Participant(name, ()) for name in names) for names in (("<ann>", "bob"), ("held",))]
    settings = SimulationSettings(seeds=tuple(range(seeds)), shape=Shape(rounds=2))
    return document_of(settings, "small & good", {1: Population(*people, None, ())}, runs), runs


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize("spent", [2.0, math.inf])
def test_every_kind_of_simulation_has_a_page(seeds: int, slots: bool, spent: float) -> None:
    page = render(*document(seeds, slots, spent))
    ElementTree.fromstring(re.sub("(<meta[^>]*)>", r"\1/>", page.removeprefix("<!doctype html>")))
    assert ("Slot error" in page) is slots and "Word error" in page
    assert "&lt;ann&gt;" in page and "<ann>" not in page and "small &amp; good" in page
    assert "excludes zero" in page and "<b>-25.0</b> <small>-25.0 to -25.0</small>" in page
    assert "sends 1.5 kB and receives 30.0 kB a round" in page and ("±" in page) is (seeds > 1)
    assert not any(outside in page for outside in ("http://", "https://", "src=", "<script", "@import", "<link"))
    assert "none (infinite)" in page and "∞" not in page and ("2 at δ 1e-06" in page) is math.isfinite(spent)
    assert ("Epsilon of marginals" in page) is math.isfinite(spent)


def test_tables_leave_out_what_the_data_does_not_label() -> None:
    with_slots, without = (document(1, slots)[0] for slots in (True, False))
    assert [len(table(each).columns) for each in (with_slots, without)] == [7, 4]
    assert table(with_slots).row_count == len(CONDITIONS)
    slots, words = (differences(each) for each in (with_slots, without))
    assert slots.row_count == 2 * words.row_count == 2 * (len(CONDITIONS) - 1)
    for width in (80, 200):
        shown = printed(slots, width)
        assert "-40.0*" in shown and "[-40.0, -40.0]" in shown and "…" not in shown


def printed(rows: Table, width: int) -> str:
    page = io.StringIO()
    Console(file=page, width=width).print(rows)
    return page.getvalue()


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (80, ["│ teacher │ 19.2 (-35: -42 to -28) │", "│ initial │                   29.4 │"]),
        (31, ["│ teacher │              19.2 │", "│         │ (-35: -42 to -28) │", "│ initial │              29.4 │"]),
    ],
)
def test_nothing_of_a_cell_is_cut(width: int, expected: list[str]) -> None:
    rows = Table()
    rows.add_column("row")
    rows.add_column("requests", justify="right")
    rows.add_row("teacher", Shown("19.2", "(-35: -42 to -28)"))
    rows.add_row("initial", Shown("29.4"))
    assert [line for line in printed(rows, width).splitlines() if line.startswith("│")] == expected
