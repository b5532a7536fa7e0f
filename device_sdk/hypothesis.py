"""What a recognizer returns: partials while audio arrives, an n-best list at the end, each score in parts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Scores:
    """Where a hypothesis' score came from. Every part is a natural logarithm (nats), before any weighting.

    acoustic: log p(tokens | audio) of the transducer, all merged alignments that the beam kept. ngram: log p(words
    </s>) of the n-gram; 0.0 where it has no share, or is not there. neural: the same of the neural LM; both with the
    letters of unlisted words, where the bundle's combination weighs these. personal: sum over words of lambda *
    log(g(w) / u(w)), the marginal adaptation (Liu & Peng 2020, eq. 1), and whatever else of the user's own speech the
    combination weighs. hotword: boost of completed hotwords. pieces: what the first pass adds by the n-gram over pieces
    and for each piece, weighted already, as hotwords are. ctc: log p(tokens | audio) of the CTC head; 0.0 where the
    bundle holds none."""

    acoustic: float
    ngram: float = 0.0
    neural: float = 0.0
    personal: float = 0.0
    hotword: float = 0.0
    pieces: float = 0.0
    ctc: float = 0.0


@dataclass(frozen=True, slots=True)
class Word:
    """One word. start, end: seconds of the audio. confidence: probability that it is right; 0 before the end."""

    text: str
    start: float
    end: float
    confidence: float = 0.0


def in_time(texts: Sequence[str], start: float, end: float) -> list[Word]:
    """Words that share a time (s) by their letters."""
    found, share = list[Word](), (end - start) / sum(map(len, texts))
    for text in texts:
        found.append(Word(text, start, start + share * len(text)))
        start = found[-1].end
    return found


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One entry of an n-best list. tokens: sentence pieces, without blank, as they were decoded. Where a hotword was
    heard by another spelling, they are of that spelling, while ``text`` and ``words`` hold the phrase: learning keeps
    to how the phrase is heard. score: what the list is sorted by (nats): the parts of ``scores`` under the bundle's
    combination weights. confidence: probability that every word is right and none is missing, in [0, 1]; 0 before the
    end."""

    tokens: tuple[int, ...]
    text: str
    words: tuple[Word, ...]
    scores: Scores
    score: float
    confidence: float = 0.0


@dataclass(frozen=True, slots=True)
class Partial:
    """What is known while audio still arrives. text: best hypothesis so far. stable: the prefix of it that every
    hypothesis still in play shares; every later partial of the utterance begins with it. seconds: audio consumed so
    far. endpoint: whether a rule found the utterance over, now or at an earlier moment of it; rule: its name, see
    :class:`~device_sdk.decoding.Endpointing`."""

    text: str
    stable: str
    seconds: float
    endpoint: bool = False
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The end of an utterance: its n-best list, best first, never empty. utterance_id: names the utterance when
    feedback about it comes later. seconds: length of the audio. offset: seconds of audio that the session heard before
    this utterance; in the stream, a word began at ``offset + word.start``. probability: with which the first hypothesis
    was put first; 1 for the best one, less where it was sampled."""

    utterance_id: str
    nbest: tuple[Hypothesis, ...]
    seconds: float
    offset: float = 0.0
    probability: float = 1.0

    @property
    def text(self) -> str:
        """Of the first hypothesis."""
        return self.nbest[0].text


def in_stream(result: Result) -> list[Word]:
    """The words of the best hypothesis, in the time of the whole stream."""
    offset = result.offset
    return [replace(each, start=each.start + offset, end=each.end + offset) for each in result.nbest[0].words]
