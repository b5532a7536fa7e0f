"""Settings of rounds: what files say and what is refused; what devices may send under them, what it costs."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from device_sdk.errors import ConfigurationError
from device_sdk.wire.messages import FIXED_POINT, MarginalPlan
from server.plans.round import PRESETS, RoundSettings
from server.plans.round_file import read_round
from server.registry.marginals import find_marginals, read_counts, read_probabilities
from tests.server.parties import HEADERS, NO_NOISE, WORDS, Operator, Party, refusal

MASKED = "[deltas]\ntrust = 'distributed'\nminimum_survivors = 2\n"
ALIKE = "weighting = 'uniform'\nminimum = 2"


def read(folder: Path, text: str) -> RoundSettings:
    (folder / "round.toml").write_text(text)
    return read_round(folder / "round.toml")


def test_streams_are_those_whose_tables_stand_in_the_file(tmp_path: Path) -> None:
    assert read(tmp_path, "") == RoundSettings() and read(tmp_path, "goal = 7").streams == ("marginals",)
    assert read(tmp_path, "[deltas]").streams == ("deltas",)
    both = read(tmp_path, "[marginals]\nepsilon = 2\n[deltas]\nkind = 'gradient'\nbatch_size = 4")
    assert both.marginals == MarginalPlan(epsilon=2.0)
    assert both.deltas is not None and (both.deltas.kind, both.deltas.batch_size) == ("gradient", 4)


def test_a_preset_is_where_a_file_starts(tmp_path: Path) -> None:
    assert read(tmp_path, "preset = 'rao-2023'") == PRESETS["rao-2023"]
    changed = read(tmp_path, "preset = 'rao-2023'\nrounds = 7\n[deltas]\nbatch_size = 4\n[optimizer]\nepsilon = 1e-3")
    assert changed.deltas is not None and (changed.deltas.kind, changed.deltas.batch_size) == ("gradient", 4)
    assert (changed.optimizer.kind, changed.optimizer.epsilon) == ("adam", 1e-3)
    assert (changed.rounds, changed.goal, changed.streams) == (7, 400, ("deltas",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("goal = ", "found Invalid value .*expected a TOML file"),
        ("preset = 'ramesh-2023'", "preset: found 'ramesh-2023', expected one of rao-2023"),
        ("gaol = 4", "gaol: found an unknown field, expected one of marginals, .*goal"),
        ("[deltas]\nclip = 4", "deltas.clip: found an unknown field, expected one of .*clip_norm"),
        ("[deltas]\n[optimizer.schedule]\nrate = 4", "optimizer.schedule.rate: found .*warmup"),
        ("[marginals]\nepsilon = -1", "marginals.epsilon: found -1, expected greater than 0"),
        ("[deltas]\nkind = 'mean'", "deltas.kind: found 'mean', expected 'difference' or 'gradient'"),
        ("marginals = 3", "marginals: found 3, expected "),
        ("[sampling]\namplified = true", "sampling: rate: found none; amplified"),
        *(
            (f"{before}\n{MASKED}{after}", message)
            for before, after, message in (
                ("", "", "minimum: found 1, expected at least minimum_survivors = 2"),
                ("minimum = 2", "", "averaging, weighting: found 'mean', 'utterances'; deltas in sums count alike"),
                (f"{ALIKE}\nnoise_multiplier = 1", "", "noise_multiplier: found the server's noise"),
                (ALIKE, "noise_stddev = 1", "goal: with noise the denominator must be fixed"),
                (ALIKE, "noise_stddev = 1e-4", "noise_stddev: found 0.0001, a share of variance 1 squared"),
                (
                    ALIKE,
                    "[groups]\nsize = 9\n[marginals]\ntrust = 'distributed'\nmechanism = 'discrete_gaussian'",
                    "deltas.trust: found 'distributed' beside marginals",
                ),
                (ALIKE, "encoding = 'int8'", "deltas: encoding, measure: found int8, none"),
            )
        ),
    ],
)
def test_what_cannot_be_is_refused_by_file_and_field(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"round\.toml: {message}"):
        read(tmp_path, text)


def test_a_round_of_masked_deltas(tmp_path: Path) -> None:
    found = read(tmp_path, f"{ALIKE}\ngoal = 10\n{MASKED}noise_stddev = 0.5")
    assert (found.aggregated, found.noisy, found.denominator(None)) == ("deltas", True, 10.0)
    assert found.aggregated_plan == found.deltas and found.marginals is None


@pytest.mark.parametrize(
    ("text", "field", "needed"),
    [
        ("smoothing = 100.0\n[deltas]", "smoothing", "a table marginals"),
        ("[marginals]\nmode = 'paper'\nmax_words = 5", "marginals.max_words", "mode 'bounded'"),
        ("[marginals]\ndelta = 1e-9", "marginals.delta", "mechanism 'discrete_gaussian'"),
        ("[groups]\nsize = 9", "groups", "trust 'distributed'"),
        ("[deltas]\nminimum_survivors = 1", "deltas.minimum_survivors", "deltas.trust 'distributed'"),
        (f"{ALIKE}\n{MASKED}encoding = 'float32'", "deltas.encoding", "deltas.trust 'central'"),
        ("[deltas]\nbits = 12", "deltas.bits", "deltas.trust 'distributed'"),
        ("averaging = 'cosine'\nweighting = 'uniform'", "averaging", "a table deltas"),
        ("[optimizer]\nkind = 'adam'", "optimizer", "a table deltas"),
        ("noise_multiplier = 0.0", "noise_multiplier", "a table deltas"),
        ("weighting = 'uniform'\nweight_limit = 9\n[deltas]", "weight_limit", "weighting 'utterances'"),
        ("trimmed = 0.2\n[deltas]", "trimmed", "averaging 'cosine'"),
        ("[deltas]\nbatch_size = 16", "deltas.batch_size", "kind 'gradient'"),
        ("[deltas]\nscale_per = 'row'", "deltas.scale_per", "encoding 'int8'"),
        ("[deltas]\n[optimizer]\nepsilon = 1e-3", "optimizer.epsilon", "a kind other than 'sgd'"),
        ("[deltas]\n[optimizer]\nkind = 'adam'\nweight_decay = 0.1", "optimizer.weight_decay", "kind 'lamb'"),
        ("[deltas]\n[optimizer.schedule]\nstart = 9", "optimizer.schedule.start", "a decay below 1"),
        ("[deltas]\n[teacher]\ndecay = 1.0\ninterval = 3", "teacher.interval", "a decay below 1"),
        ("[deltas]\nkind = 'gradient'\n[rehearsal]\nlearning_rate = 1", "rehearsal.learning_rate", "deltas.kind"),
        ("[sampling]\nrate = 0.5\nover_selection = 1.0", "sampling.over_selection", "no sampling.rate"),
    ],
)
def test_what_would_have_no_effect_is_refused(tmp_path: Path, text: str, field: str, needed: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{re.escape(field)}: found .*no effect; expected {needed}"):
        read(tmp_path, text)


def released(operator: Operator, version: int) -> Any:
    with operator.http.app.state.service.database.read() as connection:
        row = find_marginals(connection, version)
        return read_counts(row), read_probabilities(row), row.variance


def test_mode_paper_releases_all_counts_so_far(operator: Operator, devices: Callable[[int], list[Party]]) -> None:
    """Each release takes the place of the one before, and its noise does not add up."""
    plan = {"mode": "paper", "epsilon": 50.0}
    first, second = devices(2)
    round_id = operator.open(marginals=plan, smoothing=1.0)
    offer = first.check_in().json()["round"]["marginals"]
    assert (offer["mode"], offer["epsilon"]) == ("paper", 50.0)
    assert first.send_counts(round_id, dict.fromkeys(range(1, 30), 1000 * FIXED_POINT)).status_code == 200
    assert second.send_counts(round_id, {1: 500 * FIXED_POINT}).status_code == 200
    assert operator.close(round_id)["releases"]["marginals"]["mechanism"]["mode"] == "paper"
    counts, probabilities, variance = released(operator, 1)
    assert counts[1] / FIXED_POINT == pytest.approx(1500, abs=2)
    assert probabilities[1] == pytest.approx(1500 / 29_500, rel=1e-2)
    assert variance == pytest.approx(2 / 50.0**2, rel=1e-2)
    round_id = operator.open(marginals=plan, smoothing=1.0)
    assert first.send_counts(round_id, {1: 2000 * FIXED_POINT}).status_code == 200
    operator.close(round_id)
    counts, _, variance = released(operator, 2)
    assert counts[1] / FIXED_POINT == pytest.approx(2000, abs=2) and abs(counts[2]) / FIXED_POINT < 2
    assert variance == pytest.approx(2 / 50.0**2, rel=1e-2)
    line = operator.get("privacy")["streams"]["marginals"]
    assert (line["epsilon"], line["utterance_epsilon"], line["count_epsilon"]) == ("Infinity", "Infinity", 100.0)


def test_gaussian_rounds_add_up(operator: Operator, device: Party) -> None:
    plan = {"mechanism": "discrete_gaussian", "epsilon": 400.0}
    for number in (1, 2):
        round_id = operator.open(marginals=plan)
        assert device.check_in().json()["round"]["marginals"]["mechanism"] == "discrete_gaussian"
        assert device.send_counts(round_id, {3: FIXED_POINT}).status_code == 200
        mechanism = operator.close(round_id)["releases"]["marginals"]["mechanism"]
        assert (mechanism["name"], mechanism["delta"]) == ("discrete_gaussian", 1e-6)
        counts, _, variance = released(operator, number)
        assert variance == pytest.approx(number * mechanism["scale"] ** 2)
        assert counts[3] / FIXED_POINT == pytest.approx(number, abs=6 * variance**0.5)
    assert 400 < operator.get("privacy")["streams"]["marginals"]["epsilon"] < 800


@pytest.mark.parametrize(
    ("plan", "counts", "words"),
    [
        ({"epsilon": NO_NOISE}, {1: FIXED_POINT + 1}, "expected 1 to 256 units"),
        ({"mode": "paper"}, {1: -5}, "expected 1 to"),
        ({"mode": "paper"}, {WORDS: 5}, "outside the word list"),
        ({"mode": "paper"}, {1: 1 << 41}, "expected 1 to"),
    ],
)
def test_counts_outside_their_plan_are_refused(operator: Operator, device: Party, plan, counts, words: str) -> None:
    answer = device.send_counts(operator.open(marginals=plan), counts)
    assert refusal(answer) == (422, "bad_counts") and words in answer.json()["detail"]


def test_shares_of_noise_are_not_taken_in_the_clear(operator: Operator, device: Party) -> None:
    answer = device.send_counts(operator.open(marginals=DISTRIBUTED | {"minimum_survivors": 3}, minimum=3), {1: 5})
    assert answer.status_code in (409, 422), answer.text
    assert "secure aggregation" in answer.json()["detail"]


DISTRIBUTED = {"trust": "distributed", "mechanism": "discrete_gaussian"}


@pytest.mark.parametrize(
    ("marginals", "minimum", "words"),
    [
        ({"trust": "distributed"}, 1, "mechanism: found discrete_laplace"),
        ({"mode": "paper", "trust": "local"}, 1, "mode 'paper' has central"),
        ({"minimum_survivors": 4}, 4, "only trust 'distributed' has shares"),
        (DISTRIBUTED | {"minimum_survivors": 4}, 3, "minimum: found 3"),
        ({"mechanism": "discrete_gaussian", "delta": 0.0}, 1, "delta"),
    ],
)
def test_impossible_plans_are_named(operator: Operator, marginals: dict[str, Any], minimum: int, words: str) -> None:
    settings = {"marginals": marginals, "minimum": minimum}
    answer = operator.http.post(operator.url + "rounds", json={"settings": settings}, headers=HEADERS)
    assert answer.status_code == 422 and words in answer.text
