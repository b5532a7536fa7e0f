from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.feedback.slots import SlotLexicon
from server.lab.simulation.outcomes import CONDITIONS, Outcome, Run, figures, rate, score, spread
from server.lab.simulation.population import Recording

LEXICON = SlotLexicon({"room": ("kitchen", "living room"), "action": ("on", "off")})


def recording(text: str | None, slots: dict[str, str] | None, sure: bool = True) -> Recording:
    return Recording("a", text, slots, sure, "none", 1.5)


def outcome(
    voice: str = "a", round_: int = 0, words: tuple[int, int] = (0, 0), slots: tuple[int, int] = (0, 0)
) -> Outcome:
    return Outcome(voice, round_, words[0], words[1], slots[0], slots[1], 1.0, 0.1)


@pytest.mark.parametrize(
    ("said", "slots", "sure", "heard", "words", "found"),
    [
        (
            "light on in the kitchen",
            {"room": "kitchen", "action": "on"},
            True,
            "light on in the kitchen",
            (0, 5),
            (0, 2),
        ),
        ("light on in the kitchen", {"room": "kitchen", "action": "on"}, True, "light in the chicken", (2, 5), (2, 2)),
        ("light on", {"action": "on"}, True, "light on kitchen", (1, 2), (1, 1)),
        ("light on", {"action": "on"}, False, "off", (0, 0), (1, 1)),  # unsure text: only slots count
        ("light on", None, True, "", (2, 2), (0, 0)),
        (None, {"action": "on"}, True, "on", (0, 0), (0, 1)),
    ],
)
def test_score(
    said: str | None,
    slots: dict[str, str] | None,
    sure: bool,
    heard: str,
    words: tuple[int, int],
    found: tuple[int, int],
) -> None:
    result = score(recording(said, slots, sure), heard, LEXICON, voice="a", round_=0, recognize_seconds=0.1)
    assert (result.word_errors, result.words) == words
    assert (result.slot_errors, result.slots) == found
    assert result.seconds == 1.5 and not result.held_out


def test_a_corpus_without_slot_labels_has_no_slot_error() -> None:
    result = score(recording("one two", None), "one", None, voice="a", round_=0, recognize_seconds=0.1)
    assert result.slots == 0 and rate([result], "slot_error") is None and rate([result], "wer") == 0.5


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=20))
def test_rates_are_micro_averages(pairs: list[tuple[int, int]]) -> None:
    outcomes = [outcome(words=pair) for pair in pairs]
    expected = sum(errors for errors, _ in pairs) / sum(words for _, words in pairs)
    assert rate(outcomes, "wer") == pytest.approx(expected)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=6))
def test_spread(values: list[float]) -> None:
    found = spread(values)
    assert found["mean"] == pytest.approx(statistics.fmean(values))
    assert found["std"] == pytest.approx(statistics.stdev(values) if len(values) > 1 else 0.0)
    assert found["per_seed"] == values


def test_spread_without_labels() -> None:
    assert spread([None, None]) == {"mean": None, "std": None, "per_seed": [None, None]}


def test_figures_keep_rounds_seeds_and_held_out_voices_apart() -> None:
    runs = [
        Run(
            condition.name,
            seed,
            (
                outcome(round_=0, words=(4, 4)),
                outcome(round_=1, words=(seed, 4)),
                outcome("h", -1, words=(1, 4)),
            ),
            (),
            {},
            0,
            0.0,
        )
        for condition in CONDITIONS
        for seed in (2, 1)  # the order in which workers finish must not matter
    ]
    wer = figures(runs, 2)["both"]["wer"]
    assert wer["all"]["per_seed"] == [5 / 8, 6 / 8]
    assert wer["last"]["per_seed"] == [1 / 4, 2 / 4]
    assert wer["heldout"]["per_seed"] == [1 / 4, 1 / 4]
    assert figures(runs, 2)["both"]["slot_error"]["all"]["mean"] is None
