"""The guard: whether what was learned serves worse than what it was learned from, and what to fall back on.

Three comparisons of costs in [0, 1], each between two models on the same utterance, none of which had a step on it yet:

- served: the local model, as it served, against the published one, by feedback that says what was right.
- drift: where no feedback does, the local model against the proven one, by the word errors that the proven one expects.
- withheld: the local model against itself as it was last checked, on utterances that are never learned from, by either.

The proven model is the last one that served so many confirmed utterances in a row with nothing said against it; until
there is one, the published. It is what drift goes back to, and the first step back where feedback finds harm.

A difference of costs bets against "no worse than tolerated": capital starts at 1, and where the mean difference is at
most the tolerance its expectation never grows, so capital of 1/a has a probability of at most a (Ville's inequality).
The first two run on for ever and never fall below 1: then a false alarm comes once in 1/a utterances at most, on the
average (an e-detector of the CUSUM kind: Shin, Ramdas and Rinaldo 2023). None of it is in the papers."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from device_sdk.bundle import Bundle
from device_sdk.checks import check_interval, check_intervals, reading
from device_sdk.decoding import DecodingSettings
from device_sdk.feedback.distance import word_error_rate
from device_sdk.feedback.signals import Accepted, Alternate, Corrected, CostFunction, Rating, Semantics, Single, parts
from device_sdk.feedback.signals import prices as prices_of
from device_sdk.learning.candidates import Heard
from device_sdk.learning.learner import Student
from device_sdk.learning.memory import Example
from device_sdk.learning.objectives import posterior
from device_sdk.learning.step import Arrays, Course
from device_sdk.learning.teacher import Hearing, Opener, Teacher, heard_of


@dataclass(frozen=True, slots=True)
class Reading:
    """One utterance as the local and as the published model read it. tokens, published_tokens: pieces in the best
    hypothesis of each. likelier: the published model's log-probability of the local hypothesis, less its own's."""

    tokens: int
    published_tokens: int
    likelier: float


@dataclass(frozen=True, slots=True)
class DivergenceSettings:
    """window: utterances looked at together. length: as long as the published model's, or as short, hypotheses may be
    in all, as a ratio. likelihood: how much less likely the published model may find them, nats a piece."""

    window: int = 24
    length: float = 0.8
    likelihood: float = 0.1

    def __post_init__(self) -> None:
        for name, interval in (("window", "[1, inf)"), ("length", "(0, 1)"), ("likelihood", "[0, inf)")):
            check_intervals("divergence", self, interval, name)


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """watch: False turns the guard off. withhold: one utterance of so many is never learned from; 0 withholds none.
    capacity: withheld at a time, at most. interval: utterances learned from between two checks of what is withheld, and
    confirmed ones in a row that prove a model. tolerance: rise of the mean cost by feedback that is let pass; drift:
    the same by what the proven model expects. bet: share of the capital that goes on each utterance. doubt: one false
    alarm in 1 / doubt utterances, at most; withheld_doubt: in 1 / withheld_doubt checks. divergence: of the device's
    own labels (:func:`divergence`)."""

    watch: bool = True
    withhold: int = 10
    capacity: int = 12
    interval: int = 8
    tolerance: float = 0.05
    drift: float = 0.2
    bet: float = 0.75
    doubt: float = 0.01
    withheld_doubt: float = 0.1
    divergence: DivergenceSettings = field(default_factory=DivergenceSettings)

    def __post_init__(self) -> None:
        check_intervals("guard", self, "[0, inf)", "withhold")
        check_intervals("guard", self, "[1, inf)", "capacity", "interval")
        check_intervals("guard", self, "[0, 1]", "tolerance", "drift")
        check_intervals("guard", self, "(0, 1)", "doubt", "withheld_doubt")
        # nobody may lose more than there is
        check_interval("guard.bet", self.bet, f"(0, {1.0 / (1.0 + max(self.tolerance, self.drift)):.6g})")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Cost of one model less that of another on one utterance, in [-1, 1]. feedback: by the user's; drift: by what the
    proven model expects, where feedback does not say what was right. None where there is no such standard."""

    feedback: float | None = None
    drift: float | None = None


@dataclass(frozen=True, slots=True)
class Watch:
    """What the guard remembers from run to run, none of it content. served, drift: capital of the bets that the local
    model is worse than the published one, and than the proven one. confirmed: utterances in a row of which feedback
    said what was right, and nothing against the model. rollbacks: how many there were."""

    served: float = 1.0
    drift: float = 1.0
    confirmed: int = 0
    rollbacks: int = 0


def compare(
    example: Example,
    local: Heard,
    other: Heard,
    proven: Heard,
    costs: Callable[[Example, Sequence[str]], Sequence[float] | None],
) -> Comparison:
    """Expected cost over the n-best (Rao et al. 2023, eq. 1) of ``local`` less that of ``other``. costs: of texts [N]
    by the example's feedback, in [0, 1]; None where it does not say what was right. Then the ``proven`` model's
    expected errors."""
    if not (local.texts and other.texts and proven.texts):
        return Comparison()

    def expected(heard: Heard, prices: Sequence[float]) -> float:
        return float(posterior(heard.scores) @ np.minimum(prices, 1.0))

    own, others = costs(example, local.texts), costs(example, other.texts)
    if own is not None and others is not None:
        return Comparison(feedback=expected(local, own) - expected(other, others))

    def unlikely(heard: Heard) -> float:
        errors = [[word_error_rate(truth, text) for truth in proven.texts] for text in heard.texts]
        return expected(heard, (np.minimum(errors, 1.0) @ posterior(proven.scores)).tolist())

    return Comparison(drift=unlikely(local) - unlikely(other))


def capital(differences: Sequence[float], tolerance: float, bet: float) -> float:
    """What a bet against "the mean difference is at most ``tolerance``" has made of 1."""
    return math.prod(1.0 + bet * (difference - tolerance) for difference in differences)


def watch_one(watch: Watch, seen: Comparison, settings: GuardSettings) -> Watch:
    """After one more utterance, which the local model has served and not learned from."""
    served, drift, confirmed = watch.served, watch.drift, watch.confirmed
    if seen.feedback is not None:
        served = max(1.0, served) * capital([seen.feedback], settings.tolerance, settings.bet)
        confirmed = confirmed + 1 if served <= 1.0 else 0
    if seen.drift is not None:
        drift = max(1.0, drift) * capital([seen.drift], settings.drift, settings.bet)
    return replace(watch, served=min(served, 1e12), drift=min(drift, 1e12), confirmed=confirmed)


def harm(watch: Watch, settings: GuardSettings) -> str | None:
    """Why the local model must go, None while there is no reason."""
    if watch.served >= 1.0 / settings.doubt:
        return "by the feedback, it serves worse than the published model"
    if watch.drift >= 1.0 / settings.doubt:
        return "it has left what that model thinks likely, and no feedback says why"
    return None


def harm_withheld(seen: Sequence[Comparison], settings: GuardSettings) -> str | None:
    """Why the steps since the last check must go, by what was never learned from."""
    for name, tolerance, differences in (
        ("feedback", settings.tolerance, [each.feedback for each in seen if each.feedback is not None]),
        ("proven model", settings.drift, [each.drift for each in seen if each.drift is not None]),
    ):
        # Two bets share the doubt.
        if capital(differences, tolerance, settings.bet) >= 2.0 / settings.withheld_doubt:
            return f"{len(differences)} withheld utterances are served worse than before, by the {name}"
    return None


def divergence(readings: Sequence[Reading], settings: DivergenceSettings = DivergenceSettings()) -> str | None:
    """Why the last ``window`` readings look like divergence, or None; None too while there are fewer. Labels that a
    model makes for itself grow shorter and stranger where the teacher follows the student at once (Rao et al. 2023,
    table 5), while loss and gradient only fall. The published model shows it: it finds the labels less likely than what
    it recognizes itself, while they lose words (or gain them, in loops). Neither alone means harm: a model that learns
    its user well says what the published one did not expect, at its length. A likelihood that is not finite counts as
    one that was left."""
    recent = readings[-settings.window :]
    published = sum(reading.published_tokens for reading in recent)
    if len(recent) < settings.window or not published:
        return None
    ratio = sum(reading.tokens for reading in recent) / published
    likelier = sum(reading.likelier for reading in recent) / published
    if settings.length <= ratio <= 1.0 / settings.length or likelier >= -settings.likelihood:
        return None
    return (
        f"labels drift: over {len(recent)} utterances that no feedback confirmed, {ratio:.2f} times as many pieces as "
        f"that model hears, which finds them {-likelier:.2f} nats a piece less likely"
    )


def to_bytes(watch: Watch) -> bytes:
    """JSON, for the store."""
    return json.dumps(asdict(watch)).encode()


def from_bytes(content: bytes | None) -> Watch:
    """What was stored; a fresh one where nothing was. StateError: unreadable."""
    if content is None:
        return Watch()
    with reading("settings/guard"):
        fields = json.loads(content)
        counts = int(fields["confirmed"]), int(fields["rollbacks"])
        watch = Watch(float(fields["served"]), float(fields["drift"]), *counts)
        if not (math.isfinite(watch.served + watch.drift) and min(watch.served, watch.drift, *counts) >= 0):
            raise ValueError
        return watch


_PUBLISHED = "the published model"
_PROVEN = "the model that feedback has proven"

_Fallen = tuple[Student, str]
"""What to fall back on, and why."""


class Judge:
    """Owns the sessions that compare a base with what is learned on it, and which student is proven. One a base."""

    def __init__(
        self,
        base: Bundle,
        decoding: DecodingSettings,
        open_transducer: Opener,
        settings: GuardSettings,
        withheld: Callable[[], tuple[Example, ...]],
        watch: Watch,
        cost_function: CostFunction | None = None,
    ) -> None:
        """withheld: utterances in memory that no step is taken on. watch: as it was stored."""
        self.watch = watch
        self.proven: Student | None = None
        self._settings, self._withheld, self._cost_function = settings, withheld, cost_function
        self._weights: Arrays = {name: base.weights[name] for name in base.architecture.parameter_shapes()}
        self._published, self._trusted, self._local = (Teacher(base, decoding, open_transducer) for _ in range(3))
        self._serving: Student | None = None
        self._checked_last: Student | None = None
        self._learned_from = 0
        self._readings: deque[Reading] = deque(maxlen=settings.divergence.window)

    def begin(self, serving: Student, proven: Student | None) -> None:
        """Before learning. serving: the student that served what it will learn from. proven: as stored, if any."""
        self._serving, self.proven = serving, proven
        if self._checked_last is not None and self._checked_last.start is not serving.start:
            self._checked_last = None  # deltas start anew since, and going back before that would tell of it

    def worse(self, student: Student, example: Example | None) -> _Fallen | None:
        """What to fall back on and why, or None: see :func:`device_sdk.learning.loop.learn`. An example is one that the
        student has served and is about to learn from; with None, the withheld may be due for a check."""
        if not self._settings.watch:
            return None
        if self._checked_last is None:
            self._checked_last = student
        if example is None:
            return self._checked(student)
        self._learned_from += 1
        if _is_published(student):
            return None
        local = heard_of(example.nbest)
        if self._costs(example, local.texts) is None:
            return self._unconfirmed(student, example, local)
        published = self._published.hear(self._weights, example)[0]
        self.watch = watch_one(self.watch, compare(example, local, published, published, self._costs), self._settings)
        if (why := harm(self.watch, self._settings)) is not None:
            proven, self.proven = self.proven, None  # it has not proven good enough
            return self._fall_back(student, proven, why)
        if self.watch.confirmed >= self._settings.interval:
            self.watch = replace(self.watch, confirmed=0)
            self.proven = None if self._serving is None or _is_published(self._serving) else self._serving
        return None

    def _unconfirmed(self, student: Student, example: Example, local: Heard) -> _Fallen | None:
        """What no feedback confirmed is no evidence against the proven model, but may be against what came of it."""
        heard, score = self._standard(example)
        self.watch = watch_one(self.watch, compare(example, local, heard, heard, self._costs), self._settings)
        said, own = local.tokens[int(np.argmax(local.scores))], heard.tokens[0]
        likelier, usual = score([said, own]).tolist()
        self._readings.append(Reading(len(said), len(own), likelier - usual))
        why = harm(self.watch, self._settings) or divergence(tuple(self._readings), self._settings.divergence)
        return None if why is None else self._fall_back(student, self.proven, why)

    def _checked(self, student: Student) -> _Fallen | None:
        """Every so many utterances: the student against the last that passed this, on what neither learned from."""
        last, withheld = self._checked_last, self._withheld()
        if self._learned_from < self._settings.interval or last is None or not withheld:
            return None
        self._learned_from = 0
        models = last.weights, student.weights
        before, after = ([self._local.hear(weights, each)[0] for each in withheld] for weights in models)
        seen = [
            compare(example, new, old, self._standard(example)[0], self._costs)
            for example, new, old in zip(withheld, after, before, strict=True)
        ]
        if (why := harm_withheld(seen, self._settings)) is not None:
            return self._fall_back(student, last, why, "the model of the last check")
        self._checked_last = student
        return None

    def _fall_back(self, student: Student, target: Student | None, why: str, name: str = _PROVEN) -> _Fallen:
        """The weights of the target, the published ones where there is none or the student has them already; its
        teacher beside them unless that is the server's. A counter of steps never goes back."""
        if target is None or target.weights is student.weights or _is_published(target):
            target, name = replace(student, weights=self._weights, utterances=0, start=None), _PUBLISHED
            self.proven = None
        why = f"back to {name}: {why}"
        self.watch = Watch(rollbacks=self.watch.rollbacks + 1)
        self._checked_last, self._learned_from = None, 0
        self._readings.clear()
        teacher = target.weights if student.teacher_version is None else student.teacher
        left = replace(student, weights=target.weights, teacher=teacher, course=Course(), factors={})
        return replace(left, utterances=target.utterances, start=target.start), why

    def _standard(self, example: Example) -> Hearing:
        """What the proven model hears, the published one where there is none; and a scorer of other hypotheses."""
        if self.proven is None:
            return self._published.hear(self._weights, example)
        return self._trusted.hear(self.proven.weights, example)

    def _costs(self, example: Example, texts: Sequence[str]) -> Sequence[float] | None:
        if example.signal is None or not any(map(_says_what_was_right, parts(example.signal))):
            return None
        found: Sequence[float] = prices_of(example.signal, texts, example.nbest[0].text, self._cost_function).tolist()
        return found


def _says_what_was_right(signal: Single) -> bool:
    """The others say that what was served was wrong: other guesses would gain by it."""
    if isinstance(signal, Rating):
        return signal.value > 0.5
    return isinstance(signal, Accepted | Alternate | Corrected | Semantics)


def _is_published(student: Student) -> bool:
    return student.steps == 0 and student.start is None
