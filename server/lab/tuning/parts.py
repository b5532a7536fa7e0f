"""Which part of a model to federate: what each part's mean delta gains on voices that nobody learned from, and what
noise leaves of that.

Clients are people. Each takes local steps on transcripts of its own, on the parameters of one part; its delta is
clipped to the median norm C. Deltas are computed once. Their mean a, of norm ``alignment`` C, gets noise whose norm is
a given multiple of its own, the *loss of signal* (:mod:`server.privacy.calibration`), as a cohort of any size would
have it: a larger cohort has the same mean, but for who is in it, and less noise (the extrapolation of Pelikan et al.
2023). Gain is how far the mean loss of held-out transcripts falls, in nats a token.

d: values of a part; K: clients."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.errors import DataError
from device_sdk.features import logmel
from device_sdk.learning.delta import difference, secret_gaussian
from device_sdk.learning.settings import StepSettings
from device_sdk.learning.step import Course, global_norm, precondition, scales, sgd
from device_sdk.privacy.clipping import clip
from device_sdk.privacy.spending import stated
from device_sdk.runtimes.training import TrainingSession
from device_sdk.wire.delta_codec import parts
from device_sdk.wire.messages import Part
from server.lab.corpora import Corpus
from server.lab.corpora.utterance import Utterance
from server.lab.kept import read_row, write_row
from server.lab.statistics import mean_interval
from server.plots import Line, lines, standalone
from server.privacy.calibration import Wish, quick_noise, smallest_population

Arrays = Mapping[str, NDArray[np.float32]]
Float = NDArray[np.float32]
Lesson = tuple[Float, tuple[int, ...]]
"""(features [F, M], tokens [U])."""

PARTS: tuple[Part, ...] = ("whole", "adapters", "output", "norms")
LOSSES = (1.0, 3.0, 10.0, 30.0, 100.0)
"""Of signal, at which gains are measured."""
RATES = (2.0, 4.0, 8.0, 16.0)
"""Steps of the server, of which the best on further sentences of the clients is taken: a mean is shorter than what it
is the mean of."""
LARGE = 10_000
"""Devices of the cohort that is looked at by itself."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """clients, held_out: people on either side; each: sentences of a client to learn from; said: of one on the other
    side. step: of the local steps."""

    clients: int = 14
    held_out: int = 8
    each: int = 12
    said: int = 3
    step: StepSettings = field(default_factory=StepSettings)


@dataclass(frozen=True, slots=True)
class Measured:
    """One part under one seed. values: d; clip_norm: C; alignment: norm of the mean over C; rate: the server's. before:
    loss of held-out transcripts, nats a token; gain: without noise; noised: with each of ``LOSSES``. large_loss, large:
    loss of signal and gain of a cohort of ``LARGE`` devices, drawn from the clients, at ``Aim``."""

    part: str
    seed: int
    values: int
    clip_norm: float
    alignment: float
    rate: float
    before: float
    gain: float
    noised: tuple[float, ...]
    large_loss: float
    large: float


@dataclass(frozen=True, slots=True)
class Aim:
    """What a user is promised: epsilon at delta after ``rounds`` rounds of a ``share`` of the population."""

    epsilon: float = 8.0
    delta: float = 1e-7
    rounds: int = 100
    share: float = 0.01

    def wish(self, population: int, values: int, alignment: float, epsilon: float | None = None) -> Wish:
        target = self.epsilon if epsilon is None else epsilon
        return Wish(population, self.rounds, target, self.delta, values, alignment=min(1.0, alignment))


def measure(bundle: Bundle, corpus: Corpus, part: Part, seed: int, sizes: Sizes, aim: Aim) -> Measured:
    """seed: who is on which side, which sentences they say, and who is in the large cohort. Noise has none. Raises
    DataError where there are too few people, or none of their sentences can be written in the bundle's pieces."""
    generator = np.random.default_rng([seed, 0x9A])
    clients, others = split(bundle, corpus, sizes, generator)
    session = TrainingSession(bundle)
    base = dict(bundle.weights)
    shapes = parts(bundle.architecture.parameter_shapes(), part)
    deltas = [_learned(session, bundle, base, shapes, lessons, sizes.step) for lessons, _ in clients]
    clip_norm = float(np.median([global_norm(delta) for delta in deltas]))
    clipped = [clip(delta, clip_norm, "global")[0] for delta in deltas]
    alike = np.full(len(clipped), 1 / len(clipped))
    mean = _weighted(clipped, alike)
    heard = [lesson for lessons in others for lesson in lessons]
    further = [lesson for _, lessons in clients for lesson in lessons]
    at = {rate: _loss(session, _moved(base, mean, rate), further) for rate in RATES}
    rate = min(at, key=at.__getitem__)
    before = _loss(session, base, heard)
    values, length = sum(array.size for array in mean.values()), global_norm(mean)

    def gain(step: Arrays) -> float:
        return before - _loss(session, _moved(base, step, rate), heard)

    plain, noised = gain(mean), tuple(gain(_noised(mean, lost * length)) for lost in LOSSES)
    drawn = generator.multinomial(LARGE, alike)
    large = _weighted(clipped, drawn / LARGE)
    wish = aim.wish(round(LARGE / aim.share), values, global_norm(large) / clip_norm)
    noise = quick_noise(wish, LARGE) or math.inf
    large_loss = wish.loss(LARGE, noise)
    found = gain(_noised(large, large_loss * global_norm(large)))
    alignment = length / clip_norm
    return Measured(part, seed, values, clip_norm, alignment, rate, before, plain, noised, large_loss, found)


def split(
    bundle: Bundle, corpus: Corpus, sizes: Sizes, generator: np.random.Generator
) -> tuple[list[tuple[list[Lesson], list[Lesson]]], list[list[Lesson]]]:
    """(of each client what it learns from and one sentence more, what each of the others says)."""
    speakers = [name for name in corpus.speakers if len(corpus.of_speakers(name).utterances) > sizes.each]
    order = [speakers[place] for place in generator.permutation(len(speakers))]
    wanted = sizes.clients + sizes.held_out
    if len(order) < wanted:
        found = f"{corpus.name}: found {len(order)} people with more than {sizes.each} sentences"
        raise DataError(f"{found}, expected {wanted}; give another corpus, or a smaller --share")

    def lessons(name: str, count: int) -> list[Lesson]:
        own = corpus.of_speakers(name).utterances
        drawn = (own[place] for place in generator.permutation(len(own)))
        return _first((lesson for said in drawn if (lesson := _lesson(bundle, said)) is not None), count)

    clients = []
    for name in order[: sizes.clients]:
        own = lessons(name, sizes.each + 1)
        if len(own) < 2:
            raise DataError(f"{corpus.name}: found no sentence of {name} that the bundle's pieces can write")
        clients.append((own[:-1], own[-1:]))
    return clients, [lessons(name, sizes.said) for name in order[sizes.clients : wanted]]


def _first(lessons: Iterable[Lesson], count: int) -> list[Lesson]:
    return [lesson for lesson, _ in zip(lessons, range(count), strict=False)]


def _lesson(bundle: Bundle, said: Utterance) -> Lesson | None:
    tokens = tuple(bundle.tokenizer.encode(said.sure_text or ""))
    if not tokens or 0 in tokens:
        return None
    features = logmel(np.asarray(said.load(), np.float32), bundle.features)
    return (features, tokens) if len(features) >= bundle.architecture.subsampling_factor else None


def _learned(
    session: TrainingSession,
    bundle: Bundle,
    base: Arrays,
    shapes: Iterable[str],
    lessons: Sequence[Lesson],
    step: StepSettings,
) -> dict[str, Float]:
    """A client's delta of the parameters named, after a step on each of its sentences."""
    names = tuple(shapes)
    factors = None if bundle.second_moments is None else scales(bundle.second_moments, step.damping)
    local: Arrays = dict(base)
    course = Course()
    for features, tokens in lessons:
        found = session.run(local, features, (tokens,), np.ones(1, np.float32))
        gradients = {name: found.gradients[name] for name in names}
        if factors is not None:
            gradients = precondition(gradients, {name: factors[name] for name in names})
        local, course, _ = sgd(local, gradients, float(found.negative_log_likelihoods[0]), course, step)
    return difference({name: local[name] for name in names}, {name: base[name] for name in names})


def _loss(session: TrainingSession, weights: Arrays, lessons: Sequence[Lesson]) -> float:
    """Nats a token. What is no number is infinite."""
    total = tokens = 0.0
    for features, written in lessons:
        found = session.run(weights, features, (written,), np.ones(1, np.float32))
        total += float(found.negative_log_likelihoods[0])
        tokens += len(written)
    return total / tokens if math.isfinite(total) else math.inf


def _weighted(arrays: Sequence[Arrays], weights: NDArray[np.float64]) -> dict[str, Float]:
    pairs = list(zip(arrays, weights, strict=True))
    return {
        name: np.sum([float(weight) * each[name].astype(np.float64) for each, weight in pairs], axis=0).astype(
            np.float32
        )
        for name in arrays[0]
    }


def _noised(mean: Arrays, norm: float) -> dict[str, Float]:
    """With Gaussian noise of that expected norm over all of it, from the system's generator."""
    deviation = norm / math.sqrt(sum(array.size for array in mean.values()))
    return {
        name: (array + deviation * secret_gaussian(array.size).reshape(array.shape)).astype(np.float32)
        for name, array in mean.items()
    }


def _moved(base: Arrays, step: Arrays, rate: float) -> dict[str, Float]:
    return {name: array + np.float32(rate) * step[name] if name in step else array for name, array in base.items()}


def kept(row: Measured, loss: float) -> float:
    """The share of the gain without noise that is left at a loss of signal, between those measured by straight lines
    over its logarithm; all of it at a tenth of the least."""
    at = np.log([LOSSES[0] / 10, *LOSSES])
    shares = np.minimum.accumulate([1.0, *(gain / row.gain for gain in row.noised)])
    return float(np.interp(math.log(max(loss, 1e-12)), at, shares))


def bearable(row: Measured, share: float) -> float:
    """The largest loss of signal at which that share of the gain is kept; the largest measured, where all keep it."""
    low, high = LOSSES[0] / 10, LOSSES[-1]
    if kept(row, high) >= share:
        return high
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if kept(row, middle) >= share else (low, middle)
    return low


def population(row: Measured, share: float, aim: Aim) -> int | None:
    """The fewest users with whom that share of the gain is kept; None where the part gains nothing."""
    if row.gain <= 0:
        return None
    wish = aim.wish(10**9, row.values, row.alignment)
    return smallest_population(wish, aim.share, bearable(row, share))


def curve(rows: Sequence[Measured], aim: Aim, users: int, epsilons: Sequence[float]) -> list[list[float]]:
    """Gain of each row at each epsilon, nats a token, with so many users."""
    found = []
    for row in rows:
        cohort = max(1, round(aim.share * users))
        gains = []
        for epsilon in epsilons:
            wish = aim.wish(users, row.values, row.alignment, epsilon)
            noise = quick_noise(wish, cohort)
            gains.append(row.gain * kept(row, wish.loss(cohort, noise)) if noise is not None and row.gain > 0 else 0.0)
        found.append(gains)
    return found


@dataclass(frozen=True, slots=True)
class _Kept:
    """of: what the row was measured of."""

    of: str
    row: Measured


def kept_row(
    folder: Path | None, bundle: Bundle, corpus: Corpus, part: Part, seed: int, sizes: Sizes, aim: Aim
) -> Measured:
    """The row of these arguments in ``folder``, measured first where there is none. Raises DataError, naming the file,
    for one that is damaged or of others."""
    if folder is None:
        return measure(bundle, corpus, part, seed, sizes, aim)
    path, of = folder / f"{part}-{seed}.json", json.dumps([bundle.version, corpus.name, asdict(sizes), asdict(aim)])
    if not path.exists():
        write_row(path, _Kept(of, measure(bundle, corpus, part, seed, sizes, aim)))
    found = read_row(path, _Kept)
    if found.of != of:
        raise DataError(f"{path}: found a row of {found.of}, expected one of {of}; give another --folder")
    return found.row


EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def summary(rows: Sequence[Measured], aim: Aim, users: int) -> dict[str, Any]:
    """Of each part, with means and 95 % intervals over seeds; populations by their logarithms. ``bounded``: all of the
    noise that was tried keeps that share, so fewer users may be enough."""
    found = []
    for part in dict.fromkeys(row.part for row in rows):
        own = [row for row in rows if row.part == part]
        found.append(
            {
                "part": part,
                "values": own[0].values,
                "before": float(np.mean([row.before for row in own])),
                **{name: _interval([getattr(row, name) for row in own]) for name in ("gain", "alignment", "clip_norm")},
                **{f"population_{round(100 * each)}": _populations(own, each, aim) for each in (0.5, 0.8)},
                "kept": None
                if min(row.gain for row in own) <= 0
                else {f"{loss:g}": _interval([kept(row, loss) for row in own]) for loss in LOSSES},
                "curve": curve(own, aim, users, EPSILONS),
                "large": {
                    "devices": LARGE,
                    "loss_of_signal": float(np.mean([row.large_loss for row in own])),
                    "gain": _interval([row.large for row in own]),
                    "expected": _interval([row.gain * kept(row, row.large_loss) for row in own]),
                },
                "seeds": [asdict(row) for row in own],
            }
        )
    return {"aim": asdict(aim), "users": users, "epsilons": EPSILONS, "losses": LOSSES, "parts": found}


def _populations(rows: Sequence[Measured], share: float, aim: Aim) -> dict[str, Any] | None:
    known = [population(row, share, aim) for row in rows]
    if any(each is None for each in known):
        return None
    found = {name: value if value is None else math.exp(value) for name, value in _interval(np.log(known)).items()}  # type: ignore[arg-type]
    return {**found, "bounded": any(bearable(row, share) == LOSSES[-1] for row in rows)}


def _interval(values: Any) -> dict[str, float | None]:
    interval = mean_interval(values)
    ends = {"low": None, "high": None} if interval is None else {"low": interval.low, "high": interval.high}
    return {"mean": float(np.mean(values)), **ends}


def chart(rows: Sequence[Measured], aim: Aim, users: int) -> str:
    """Mean gain of every part over a user's epsilon, an SVG of its own."""
    series = []
    for place, part in enumerate(dict.fromkeys(row.part for row in rows)):
        gains = np.maximum(curve([row for row in rows if row.part == part], aim, users, EPSILONS), 0.0)
        series.append(Line(part, f"c{place}", gains.mean(0).tolist(), (gains.std(0) / len(gains) ** 0.5).tolist()))
    what = f"gain, nats a token, {users:,} users"
    drawn = lines(series, [stated(epsilon) for epsilon in EPSILONS], what)
    return standalone(drawn, {f"c{place}": colour for place, colour in enumerate(COLOURS)})


COLOURS = ("#2563eb", "#d97706", "#16a34a", "#9333ea")
