"""What a simulation measures: one record an utterance, one a check-in, and how they become figures."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from device_sdk.feedback.distance import edit_distance
from device_sdk.feedback.slots import SlotLexicon, slot_cost
from server.lab.corpora import Utterance
from server.lab.statistics import paired_bootstrap


@dataclass(frozen=True, slots=True)
class Condition:
    """What a device may do between two utterances. marginals: it rescores with its own and the global marginals, and
    reports noised counts. learning: it takes gradient steps and reports a bounded, noised delta. supervised: the steps
    are told the true transcript; the yardstick, never what a product could do."""

    name: str
    marginals: bool = False
    learning: bool = False
    supervised: bool = False

    @property
    def reports(self) -> bool:
        """Whether a device has anything to say to the server."""
        return self.marginals or self.learning


CONDITIONS: tuple[Condition, ...] = (
    Condition("frozen"),
    Condition("marginals", marginals=True),
    Condition("learning", learning=True),
    Condition("both", marginals=True, learning=True),
    Condition("supervised", marginals=True, learning=True, supervised=True),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One utterance, decoded before anything was learned from it. round: 0 for the first; -1 for a held-out voice,
    which is decoded once, at the end. words, slots: how many the truth has; 0 where the data has no such label, and
    then the errors are 0 too. recognize_seconds, learn_seconds: time on the device; seconds: length of the audio."""

    voice: str
    round: int
    word_errors: int
    words: int
    slot_errors: int
    slots: int
    seconds: float
    recognize_seconds: float
    learn_seconds: float = 0.0

    @property
    def held_out(self) -> bool:
        return self.round < 0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one device's check-ins around one round, bodies and headers that our messages fill."""

    round: int
    up: int
    down: int


@dataclass(frozen=True, slots=True)
class Run:
    """One condition under one seed. epsilon: the server's ledger, one entry a stream. memory_bytes: peak, resident."""

    condition: str
    seed: int
    outcomes: tuple[Outcome, ...]
    traffic: tuple[Traffic, ...]
    epsilon: dict[str, dict[str, Any]]
    memory_bytes: int


Kind = Literal["wer", "slot_error"]
KINDS: tuple[Kind, ...] = ("wer", "slot_error")


def score(
    utterance: Utterance,
    text: str,
    lexicon: SlotLexicon | None,
    voice: str,
    round_: int,
    seconds: float = 0.0,
    recognize_seconds: float = 0.0,
) -> Outcome:
    """Errors of a recognized text against an utterance's labels; words count only where the data is sure of them."""
    truth = (utterance.sure_text or "").split()
    wrong = edit_distance(truth, text.split()) if truth else 0
    missed = slots = 0
    if lexicon is not None and utterance.slots is not None:
        missed, slots = slot_cost(text, utterance.slots, lexicon), len(utterance.slots)
    return Outcome(voice, round_, wrong, len(truth), missed, slots, seconds, recognize_seconds)


def counts(outcome: Outcome, kind: Kind) -> tuple[int, int]:
    """(errors, references) of an outcome."""
    return (outcome.word_errors, outcome.words) if kind == "wer" else (outcome.slot_errors, outcome.slots)


def rate(outcomes: Iterable[Outcome], kind: Kind) -> float | None:
    """Errors over references, micro-averaged; None where nothing has such a label."""
    pairs = [counts(outcome, kind) for outcome in outcomes]
    references = sum(total for _, total in pairs)
    return sum(wrong for wrong, _ in pairs) / references if references else None


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """{"mean", "std", "per_seed"}: std is the sample's, 0 for one seed; None where the data has no such label."""
    known = [value for value in values if value is not None]
    return {
        "mean": statistics.fmean(known) if known else None,
        "std": (statistics.stdev(known) if len(known) > 1 else 0.0) if known else None,
        "per_seed": list(values),
    }


def figures(runs: Sequence[Run], rounds: int) -> dict[str, dict[str, dict[str, Any]]]:
    """condition -> "wer" | "slot_error" -> "all" | "later" | "last" | "heldout" -> mean, std and values per seed."""

    def of(condition: str, kind: Kind, keep: Callable[[Outcome], bool]) -> dict[str, Any]:
        own = sorted((run for run in runs if run.condition == condition), key=lambda run: run.seed)
        return spread([rate(filter(keep, run.outcomes), kind) for run in own])

    return _tables(_names(runs), rounds, of)


def against_frozen(runs: Sequence[Run], rounds: int) -> dict[str, dict[str, dict[str, Any]]]:
    """condition -> "wer" | "slot_error" -> "all" | "later" | "last" | "heldout" -> its difference from frozen, as
    JSON of :class:`server.lab.statistics.Difference`, with a 95 % interval. Paired by utterance, voices resampled; all
    seeds' utterances of one voice stay together. None where there is only one voice, or frozen makes no error."""

    def of(condition: str, kind: Kind, keep: Callable[[Outcome], bool]) -> dict[str, Any] | None:
        before, after = (
            [outcome for run in runs if run.condition == name for outcome in run.outcomes if keep(outcome)]
            for name in (CONDITIONS[0].name, condition)
        )
        errors, references = ([counts(outcome, kind)[column] for outcome in before] for column in (0, 1))
        voices = [outcome.voice for outcome in before]
        if len(set(voices)) < 2 or not sum(errors):
            return None
        return paired_bootstrap(errors, [counts(outcome, kind)[0] for outcome in after], references, voices).as_json()

    return _tables(_names(runs)[1:], rounds, of)


def _names(runs: Sequence[Run]) -> list[str]:
    """Of the conditions that ran, in order."""
    ran = {run.condition for run in runs}
    return [condition.name for condition in CONDITIONS if condition.name in ran]


def _tables(conditions: Sequence[str], rounds: int, of: Callable[..., Any]) -> dict[str, dict[str, dict[str, Any]]]:
    parts: dict[str, Callable[[Outcome], bool]] = {
        "all": lambda outcome: not outcome.held_out,
        "later": lambda outcome: outcome.round > 0,
        "last": lambda outcome: outcome.round == rounds - 1,
        "heldout": lambda outcome: outcome.held_out,
    }
    return {
        condition: {kind: {part: of(condition, kind, keep) for part, keep in parts.items()} for kind in KINDS}
        for condition in conditions
    }
