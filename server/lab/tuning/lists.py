"""N-best lists of development data, with every score part and every error count, ready to be combined in any way.

U: utterances; N: entries of the longest n-best list."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import ConfigurationError, DataError
from device_sdk.feedback.signals import Semantics
from device_sdk.feedback.slots import SlotLexicon
from device_sdk.hypothesis import Result
from device_sdk.personalization.cache import confirmed_texts
from rescoring.combination import CombinationWeights, LanguageModel, combine
from rescoring.words import WordList
from server.lab.corpora.acoustics import change_speed
from server.lab.corpora.utterance import Corpus, Utterance, Waveform
from server.lab.evaluation.scores import word_errors

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One utterance: its speaker, its n-best texts, their acoustic scores with what the search adds (nats), and the
    reference. confirmed: the texts that a device counts once it was told the slots; None where there are no slot
    labels. source: whose speakers share a server. ctc: what the CTC head says of each text, nats; empty where there is
    none."""

    speaker: str
    texts: tuple[str, ...]
    acoustic: tuple[float, ...]
    reference: str
    confirmed: tuple[str, ...] | None = None
    source: str = ""
    ctc: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class DevelopmentLists:
    """Lists of U utterances as padded arrays [U, N]; a padded entry has acoustic -inf and zeros elsewhere. speakers,
    texts, ids, confirmed: of each utterance; ids: word ids of each hypothesis. ctc: of the CTC head, nats, 0 where
    there is none. neural, ngram: log p of the language models, nats, or None. words, unlisted: counts. errors: word
    errors. references: [U] words of each reference."""

    speakers: tuple[str, ...]
    texts: tuple[tuple[str, ...], ...]
    ids: tuple[tuple[tuple[int, ...], ...], ...]
    confirmed: tuple[tuple[str, ...] | None, ...]
    acoustic: Array
    ctc: Array
    neural: Array | None
    ngram: Array | None
    words: Array
    unlisted: Array
    errors: NDArray[np.int64]
    references: NDArray[np.int64]
    sources: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def totals(self, weights: CombinationWeights) -> Array:
        """Combined scores [U, N] without adaptation."""
        return self._combined(weights, slice(None), 0.0)

    def adapted(self, index: int, weights: CombinationWeights, personal: Array) -> Array:
        """Combined scores [n-best] of one utterance with its adaptation scores [n-best]."""
        return self._combined(weights, (index, slice(len(self.texts[index]))), personal)

    def _combined(self, weights: CombinationWeights, place: Any, personal: Array | float) -> Array:
        total = combine(
            weights,
            acoustic=self.acoustic[place],
            ctc=self.ctc[place],
            words=self.words[place],
            unlisted=self.unlisted[place],
            neural=None if self.neural is None else self.neural[place],
            ngram=None if self.ngram is None else self.ngram[place],
            personal=personal,
        )
        return np.asarray(total, dtype=np.float64)

    def rate(self, errors: NDArray[np.int64]) -> float:
        """Word error rate of all, in which every source counts the same, however much of it there is. errors: [U]."""
        names, place = np.unique(self.sources, return_inverse=True)
        wrong, said = (np.bincount(place, counts, len(names)) for counts in (errors, self.references))
        return float((wrong[said > 0] / said[said > 0]).mean())

    def word_error(self, weights: CombinationWeights) -> float:
        """Rate of the best entries under these weights, without adaptation."""
        return self.rate(self.errors[np.arange(len(self)), self.totals(weights).argmax(axis=1)])

    @property
    def first_pass_error(self) -> float:
        return self.rate(self.errors[:, 0])

    @property
    def oracle_error(self) -> float:
        """Rate if the best entry of every list were chosen."""
        masked = np.where(np.isfinite(self.acoustic), self.errors, np.iinfo(np.int64).max)
        return self.rate(masked.min(axis=1))


def at_speeds(corpus: Corpus, factors: Sequence[float]) -> Corpus:
    """Every speaker's utterances, in order, at each speed: one speaker a factor, pitch and formants moved with it.
    Weights chosen only on the voices a model was trained on would trust it too much. A factor beyond the range of the
    training's own changes makes those voices strange to it. Raises ConfigurationError for no factor or an extreme
    one."""
    if not factors or not all(0.5 <= factor <= 2.0 for factor in factors):
        raise ConfigurationError(f"speeds: found {list(factors)}, expected one or more factors from 0.5 to 2")

    def changed(utterance: Utterance, factor: float) -> Utterance:
        if factor == 1.0:
            return utterance
        name = f"x{factor:g}"
        new = {"id": f"{utterance.id}-{name}", "speaker": f"{utterance.speaker}-{name}"}
        return replace(utterance, **new, audio=lambda: change_speed(utterance.load(), factor))  # type: ignore[arg-type]

    utterances = tuple(changed(utterance, factor) for factor in factors for utterance in corpus.utterances)
    return replace(corpus, utterances=utterances)


def gather(
    utterances: Iterable[Utterance],
    recognize: Callable[[Waveform], Result],
    lexicon: SlotLexicon | None = None,
    source: str = "",
) -> list[ListEntry]:
    """The n-best lists of utterances, in order; those without sure words are left out. lexicon: to read slots with."""
    found = []
    for utterance in utterances:
        if utterance.sure_text is not None:
            nbest = recognize(utterance.load()).nbest
            texts = tuple(hypothesis.text for hypothesis in nbest)
            confirmed = None
            if utterance.slots is not None and lexicon is not None:
                confirmed = confirmed_texts(texts, Semantics(utterance.slots, lexicon))
            acoustic = tuple(hypothesis.scores.acoustic + hypothesis.scores.pieces for hypothesis in nbest)
            ctc = tuple(hypothesis.scores.ctc for hypothesis in nbest)
            found.append(ListEntry(utterance.speaker, texts, acoustic, utterance.sure_text, confirmed, source, ctc))
    return found


def stack(
    entries: Sequence[ListEntry], words: WordList, neural: LanguageModel | None, ngram: LanguageModel | None
) -> DevelopmentLists:
    """Score every hypothesis once by every model, count its errors, and pad. Raises DataError where nothing is left."""
    if not entries or not sum(len(made.reference.split()) for made in entries):
        raise DataError("development data: no utterance whose words are known for sure; give other --data")
    ids = tuple(tuple(tuple(words.ids(text)) for text in made.texts) for made in entries)
    shape = (len(entries), max(len(made.texts) for made in entries))

    def padded(rows: Iterable[Iterable[float]], fill: float = 0.0) -> Array:
        table = np.full(shape, fill)
        for row, values in zip(table, rows, strict=True):
            given = list(values)
            row[: len(given)] = given
        return table

    def scores(model: LanguageModel | None) -> Array | None:
        return None if model is None else padded([float(part.sum()) for part in model(rows)] for rows in ids)

    return DevelopmentLists(
        speakers=tuple(made.speaker for made in entries),
        texts=tuple(made.texts for made in entries),
        ids=ids,
        confirmed=tuple(made.confirmed for made in entries),
        acoustic=padded((made.acoustic for made in entries), -np.inf),
        ctc=padded(made.ctc for made in entries),
        neural=scores(neural),
        ngram=scores(ngram),
        words=padded([len(sentence) for sentence in rows] for rows in ids),
        unlisted=padded([sentence.count(0) for sentence in rows] for rows in ids),
        errors=padded([word_errors(made.reference, text) for text in made.texts] for made in entries).astype(np.int64),
        references=np.array([len(made.reference.split()) for made in entries]),
        sources=tuple(made.source for made in entries),
    )
