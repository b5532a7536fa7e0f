"""Fast marginal adaptation: equations 1 to 5 of Liu & Peng 2020 as pure functions.

n: words on the list, with the bucket of unlisted words at 0; S: hypotheses. Counts and distributions are float64 [n];
scores are natural logarithms (nats). Functions raise ValueError, naming the argument, for values outside its domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def gaussian_kernel(rank: ArrayLike, sigma: float) -> Array:
    """Weight of the hypothesis at a rank of the n-best list (Liu & Peng 2020, eq. 3).

        K(s) = exp(-(rank(s) - 1)^2 / (2 sigma^2))

    rank: 1 for the best hypothesis, any shape. sigma > 0: near 0 only the 1-best counts, for infinity all count alike.
    """
    ranks = np.asarray(rank, dtype=np.float64)
    if not sigma > 0:
        raise ValueError(f"sigma: found {sigma!r}, expected more than 0")
    if ranks.size and not ranks.min() >= 1:
        raise ValueError(f"rank: found {ranks.min()!r}, expected 1 or more (1 is the best hypothesis)")
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.exp(-0.5 * np.square((ranks - 1) / sigma)), dtype=np.float64)


def nbest_kernel(size: int, sigma: float) -> Array:
    """What each entry of an n-best list counts, best first -> [size]: the kernel of its rank; the first counts 1."""
    return gaussian_kernel(np.arange(1, size + 1), sigma)


def weighted_counts(hypotheses: Sequence[Sequence[int]], sigma: float, size: int) -> Array:
    """Word counts over one utterance's n-best list (Liu & Peng 2020, the sum of eq. 4) -> [n].

        sum over s of K(s) c_s(w)

    hypotheses: word ids of each hypothesis, best first. size: n."""
    counts = np.zeros(size)
    for weight, words in zip(nbest_kernel(len(hypotheses), sigma).tolist(), hypotheses, strict=True):
        if weight > 0 and len(words):
            ids = np.asarray(words, dtype=np.int64)
            if ids.min() < 0 or ids.max() >= size:
                raise ValueError(f"hypotheses: found word id {ids.min()}..{ids.max()}, expected 0..{size - 1}")
            counts += weight * np.bincount(ids, minlength=size)
    return counts


def pseudo_count(counts: Array) -> float:
    """c_i: all the weighted counts together (Liu & Peng 2020, eq. 5); the client's weight in eq. 6."""
    return float(_counts(counts).sum())


def surprise(counts: Array, background: Array) -> Array:
    """How much more the words were said than the background expects -> [n], nats.

        c(w) log(q(w) / u(w)), q = c / sum of c

    The sum is what adapting to q can save (the divergence of q from u, times all counts); "the" has none of it, however
    often it is said. 0 for what was not said. background: positive."""
    found = _counts(counts)
    surprises, said = np.zeros_like(found), np.flatnonzero(found)
    if said.size:
        own = found[said]
        surprises[said] = own * (np.log(own) - np.log(background[said]) - np.log(own.sum()))
    return surprises


def personal_unigram(counts: Array, background: Array, smoothing: float) -> Array:
    """A user's word distribution (Liu & Peng 2020, eq. 4) -> [n], sums to 1, positive where the background is.

    The paper leaves the smoothing open; here ``smoothing`` pseudo-words drawn from the background u are added (a
    Dirichlet prior), so a user who has said nothing yet has exactly u:

        q(w) = (counts(w) + smoothing * u(w)) / (c + smoothing)"""
    found = _counts(counts)
    u = unigram(background, "background")
    _same(found, u, "counts", "background")
    if not smoothing >= 0:
        raise ValueError(f"smoothing: found {smoothing!r}, expected 0 or more")
    total = found.sum() + smoothing
    return np.asarray((found + smoothing * u) / total if total else u.copy(), dtype=np.float64)


def interpolated_marginal(
    background: Array, global_: Array | None, personal: Array | None, alpha: float, beta: float
) -> Array:
    """The marginal a user's language model is adapted to (Liu & Peng 2020, eq. 2) -> [n], sums to 1.

        g(w) = (1 - alpha - beta) u(w) + alpha q_global(w) + beta q_personal(w)

    None for a distribution that does not exist yet (no round published, nothing said): u takes its place."""
    if not (alpha >= 0 and beta >= 0 and alpha + beta <= 1):
        raise ValueError(f"alpha, beta: found {alpha!r}, {beta!r}; expected 0 or more and a sum of at most 1 (eq. 2)")
    u = unigram(background, "background")
    marginal: Array | None = None
    for given, share, name in ((global_, alpha, "global_"), (personal, beta, "personal")):
        if given is not None:
            q = unigram(given, name)
            _same(q, u, name, "background")
            marginal = share * q if marginal is None else marginal + share * q
    rest = 1 - (0 if global_ is None else alpha) - (0 if personal is None else beta)
    return u.copy() if marginal is None else np.asarray(rest * u + marginal, dtype=np.float64)


def reliability(heard: Array, said: Array, pseudo: float) -> Array:
    """How often each word is said for each time that a recognizer hears it -> [n].

        r(w) = (said(w) + pseudo) / (heard(w) + pseudo)

    heard: weighted counts over the n-best lists of speech whose words are known, scaled here to as many as were said;
    said: counts of those words. By it heard counts stand for what was said: without it a user is adapted to what the
    recognizer likes to hear. pseudo: above 0; a word that was neither said nor heard has 1."""
    words, known = _counts(heard), _counts(said)
    _same(words, known, "heard", "said")
    if not pseudo > 0:
        raise ValueError(f"pseudo: found {pseudo!r}, expected more than 0")
    # Shares of what was heard: a quotient of sums overflows where hardly anything was.
    expected = known.sum() * (words / words.sum()) if words.any() else words
    return np.asarray((known + pseudo) / (expected + pseudo), np.float64)


def confirmed_share(confirmed: float, evidence: float) -> float:
    """How far a user's confirmed words stand for all that the user says: from 0, where there are none, towards 1.

        r = c / (c + evidence)

    confirmed: how many there are, c. evidence > 0: as many are half of the whole way. By r the words that were only
    heard give way to the confirmed ones:

        q(w) = r c(w) / c + (1 - r) q_heard(w)

    That q is eq. 4 once more (``personal_unigram``), with q_heard in the background's place."""
    if not (confirmed >= 0 and evidence > 0):
        raise ValueError(f"confirmed, evidence: found {confirmed!r}, {evidence!r}; expected 0 or more, and more than 0")
    return confirmed / (confirmed + evidence)


def grown_strength(marginal: float, language_model: float, share: float) -> float:
    """lambda of eq. 1 of a user of whom more and more is known: from what the device was tuned with to where log(g / u)
    counts as much as the acoustic score does.

        lambda = marginal + share max(0, 1 / language_model - marginal)

    marginal: lambda of those who confirmed nothing. language_model: weight of the language models, and so of what is
    added to them. share: how much is known, 0 to 1 (``confirmed_share``). Where either weight is 0, lambda stays as
    it is. Not in the paper, which tunes it for all alike."""
    if not (marginal and language_model):
        return marginal
    return marginal + share * max(0.0, 1 / language_model - marginal)


Mixture = tuple[tuple[float, Array], ...]
"""Shares, and counts or distributions [n], whose sum is a distribution. It is added up for the words that occur: few of
those there are."""


def mixed(mixture: Mixture, words: NDArray[np.int64]) -> Array:
    """The mixture's probability of each word [w]. words: ids [w]."""
    return np.asarray(sum(share * each.take(words) for share, each in mixture), np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Counts of words [n], whose sum is known: to add them up takes a fifth of what adapting a list does."""

    values: Array
    total: float


def refreshed_marginal(
    heard: Counts,
    background: Array,
    global_: Array | None,
    alpha: float,
    beta: float,
    smoothing: float,
    confirmed: Counts,
    share: float,
) -> Mixture:
    """``interpolated_marginal`` of ``personal_unigram``, and of this for the confirmed words, for values that were
    checked before. A device does this after every utterance. heard, confirmed: [n]. share: ``confirmed_share``, r. No
    argument is checked."""
    total, of_heard = heard.total + smoothing, beta * (1 - share)
    rest = 1 - beta - (0 if global_ is None else alpha)
    parts = [(rest + of_heard * (smoothing / total if total else 1.0), background)]
    if total:
        parts.append((of_heard / total, heard.values))
    if global_ is not None:
        parts.append((alpha, global_))
    if share:
        parts.append((beta * share / confirmed.total, confirmed.values))
    return tuple(parts)


def adaptation(marginal: Array, background: Array, strength: float) -> Array:
    """log of eq. 1's factor for each word (Liu & Peng 2020, unnormalized) -> [n], nats.

        lambda * log(g(w) / u(w))

    0 for the bucket of unlisted words: it is many words, of which a user's are others than the background's. strength:
    lambda >= 0; 0 gives zeros (no adaptation). The background must be positive everywhere; a word with g(w) = 0 gets
    minus infinity unless lambda is 0."""
    if not strength >= 0:
        raise ValueError(f"strength (lambda): found {strength!r}, expected 0 or more")
    g, u = unigram(marginal, "marginal"), unigram(background, "background")
    _same(g, u, "marginal", "background")
    if not u.min() > 0:
        raise ValueError(f"background: word {int(u.argmin())} has probability 0, expected every word above 0")
    if strength == 0:
        return np.zeros_like(u)
    with np.errstate(divide="ignore"):
        factors: Array = strength * np.log(g / u)
    factors[0] = 0.0
    return factors


@dataclass(frozen=True, slots=True, eq=False)
class PersonalMarginal:
    """What a device adapts its language models to. mixture: g of eq. 2; background: u [n], positive; strength: lambda
    of eq. 1. Checked before."""

    mixture: Mixture
    background: Array
    strength: float

    def scores(self, sentences: Sequence[Sequence[int]]) -> Array:
        """What the adaptation adds to log p(words) of any language model: eq. 1 without 1/Z(h), of N hypotheses -> [N].
        sentences: word ids, 0 for unlisted ones. By the ``adaptation`` of the words that occur."""
        words = np.fromiter(chain.from_iterable(sentences), np.int64)
        if not (words.size and self.strength):
            return np.zeros(len(sentences))
        with np.errstate(divide="ignore"):
            factors = self.strength * np.log(mixed(self.mixture, words) / self.background.take(words))
        factors[words == 0] = 0.0
        values = iter(factors.tolist())
        return np.array([sum(islice(values, len(sentence)), 0.0) for sentence in sentences])


def unigram(values: ArrayLike, name: str = "unigram") -> Array:
    """Check that an array is a distribution over words -> float64 [n]; ValueError names it otherwise."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name}: found shape {array.shape}, expected [n] with n at least 1")
    if array.min() >= 0 and abs(array.sum() - 1) <= 1e-6:  # neither holds with a value that is not finite
        return array
    if not np.isfinite(array).all() or array.min() < 0:
        raise ValueError(f"{name}: found values that are negative or not finite, expected probabilities")
    raise ValueError(f"{name}: sums to {array.sum():.9g}, expected 1")


def _counts(values: ArrayLike) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or (array.size and not (array.min() >= 0 and np.isfinite(array.sum()))):
        raise ValueError("counts: expected finite, non-negative values of shape [n]")
    return array


def _same(array: Array, other: Array, name: str, other_name: str) -> None:
    if array.shape != other.shape:
        raise ValueError(f"{name}: found {array.shape[0]} words, expected {other.shape[0]} as in {other_name}")


def posteriors(scores: Array, scale: float) -> Array:
    """Softmax of ``scale * scores`` [N]: the share of each entry of a list."""
    powers = np.exp(scale * (scores - scores.max()))
    shares: Array = powers / powers.sum()
    return shares
