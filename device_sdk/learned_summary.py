"""What a device knows of its user, for the user to read."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from device_sdk.consent import Consent
from device_sdk.learning.memory import Recent
from device_sdk.model_state import ModelState
from device_sdk.state import records

_STREAM = {
    "counting": "counting words",
    "learning": "learning from use",
    "keeping": "keeping corrections for a day",
    "marginals": "sending word counts",
    "deltas": "sending model changes",
    "words": "naming new words",
}


@dataclass(frozen=True, slots=True)
class LearnedSummary:
    """What the device has learned, for its user to read; never what was said. utterances: whose words are counted;
    words: the most frequent with their counts; unlisted: how many distinct words it counts of no public list. expected:
    how many it listens for, since the user confirmed them and says them more than others do. steps: taken since the
    model ``model_version`` came; rollbacks: how often what they made was taken back. remembered: utterances in memory
    just now; kept: how many of them are on the disk too, with their text. marginal_reports, delta_reports,
    word_reports: sent so far, the last of new words; waiting: not sent yet. pending: the words that the next report of
    counts would be drawn from, with their weights, before noise."""

    utterances: int
    words: tuple[tuple[str, float], ...]
    unlisted: int
    expected: int
    steps: int
    model_version: str
    marginals_version: int
    marginal_reports: int
    delta_reports: int
    rollbacks: int
    remembered: int
    waiting: int
    consent: Consent
    word_reports: int
    kept: int
    pending: tuple[tuple[str, float], ...] = ()

    def describe(self) -> tuple[str, ...]:
        """The same in plain sentences."""
        often = ", ".join(f"{word} ({count:.0f})" for word, count in self.words) or "none yet"
        agreed = ", ".join(what for stream, what in _STREAM.items() if getattr(self.consent, stream)) or "nothing"
        refused = ", ".join(what for stream, what in _STREAM.items() if not getattr(self.consent, stream)) or "nothing"
        named = " but for a few that you gave in corrections" if self.consent.words or self.word_reports else ""
        kept, else_sent = "never on its disk", "never audio or text"
        if self.kept:
            kept = f"and of {_number(self.kept, 'utterance')} text and features are on its disk until it learned from "
            kept += "them, a day at most, never audio"
        if self.word_reports:
            else_sent = f"and named new words in {_number(self.word_reports, 'report')}, never audio or sentences"
        sentences = [
            f"This device has counted the words of {_number(self.utterances, 'utterance')}; it hears most: {often}.",
            f"{_number(self.unlisted, 'further word')} of no public list: counted here, and never sent{named}.",
            f"It listens for {_number(self.expected, 'word')} that you confirmed and say more than others do.",
            f"It has taken {_number(self.steps, 'learning step')} since model {self.model_version} came.",
        ]
        if self.rollbacks:
            sentences.append(f"What it learned was taken back {_number(self.rollbacks, 'time')}, since it did harm.")
        return (
            *sentences,
            f"The sound of {_number(self.remembered, 'utterance')} is in its memory for a while, {kept}.",
            f"It has sent {_number(self.marginal_reports, 'bounded word count')} and "
            f"{_number(self.delta_reports, 'bounded model change')}, {else_sent}; {self.waiting} wait.",
            f"You agree to {agreed}, and not to {refused}.",
            "All of this can be erased at once.",
        )

    def __str__(self) -> str:
        return " ".join(self.describe())


def summarize(model_state: ModelState, recent: Recent, expected: int) -> LearnedSummary:
    """What a device has learned. expected: words that it expects. Called under the store's guard."""
    store, cache, words = model_state.store, model_state.cache, model_state.base.words
    counts = cache.counts
    top = [word for word in np.argsort(-counts, kind="stable")[:11].tolist() if word and counts[word] > 0][:10]
    return LearnedSummary(
        utterances=cache.utterances,
        words=tuple((words[word], float(counts[word])) for word in top),
        unlisted=len(cache.unlisted),
        expected=expected,
        steps=model_state.student.steps,
        model_version=model_state.base.version,
        marginals_version=model_state.marginals_version,
        marginal_reports=int(records.read_number(store, "marginals_sent")),
        delta_reports=int(records.read_number(store, "deltas_sent")),
        rollbacks=model_state.watch.rollbacks,
        remembered=sum(each.sound for each in recent.contents()),
        waiting=len(store.names("outbox")),
        consent=model_state.consent,
        word_reports=int(records.read_number(store, "words_sent")),
        kept=len(recent.kept()),
        pending=tuple((words[word], float(cache.pending[word])) for word in _heaviest(cache.pending)),
    )


def _heaviest(weights: NDArray[np.floating]) -> list[int]:
    """Every listed word with a weight, the heaviest first."""
    order: list[int] = np.argsort(-weights, kind="stable").tolist()
    return [word for word in order[: int(np.count_nonzero(weights))] if word]


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
