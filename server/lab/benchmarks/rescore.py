"""The second pass of a 20-best list of 12 words by the packaged bundle, one thread, and the noise of a release.

What adapting adds is timed where it falls, after the neural model: a user's marginal made anew, as after every
utterance, its factors, and each hypothesis' personal score. Peers: the same Transformer with the same weights in torch,
and kenlm itself. Noise is what the server draws for one release of 50,000 counts. Time is the processor's, which other
work on the machine changes less than the clock's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, product
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from device_sdk.benchmarks import Figure, alternate
from device_sdk.bundle import Bundle
from device_sdk.hypothesis import Hypothesis, Scores
from device_sdk.personalization import cache as caches
from device_sdk.personalization.cache import MarginalCache
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.runtimes.language_model import FILE, load_ngram
from device_sdk.wire.messages import MarginalPlan
from rescoring.combination import CombinationWeights
from rescoring.words import WordList
from server.privacy.noise import add_noise

if TYPE_CHECKING:
    from export.networks.language_model import LanguageModel

LENGTH, ENTRIES, RUNS, COUNTS = 12, 20, 200, 50_000
SHARE, WHOLE, RELEASE = 2.0, 30.0, 1.0  # % of the neural model's time; ms; s
CHOICES = (
    ("i would like", "can i have"),
    ("a small", "a large", "a medium"),
    ("latte", "mocha", "coffee"),
    ("with some milk", "with brown sugar"),
    ("and a bit of", "and lots of"),
)


def benchmark() -> list[Figure]:
    """The second pass, what adapting adds to it, each language model beside its peer, and the noise of a release."""
    bundle = Bundle.open()
    rescorer, hypotheses = Rescorer(bundle), nbest(bundle.words)
    sentences = [bundle.words.ids(hypothesis.text) for hypothesis in hypotheses]
    cache = _spoken(bundle, hypotheses, rescorer.weights)
    if rescorer.neural is None:
        return noise()

    def adapted() -> Any:
        """A second pass after an utterance: the marginal of the cache as it is now, then the list."""
        marginal = caches.personal_marginal(cache, bundle.words, bundle.background, None, rescorer.weights)
        return rescorer.rescore(hypotheses, marginal)

    ways: dict[str, Callable[[], Any]] = {"adapted": adapted}
    ways["neural"] = lambda: rescorer.neural and rescorer.neural(sentences)
    ngram = load_ngram(bundle)
    if ngram is not None:
        model, texts = ngram, [hypothesis.text for hypothesis in hypotheses]
        ways["n-gram"] = lambda: model(sentences)
        ways["kenlm"] = lambda: [model._model.score(text) for text in texts]
    if (in_torch := _in_torch(bundle, sentences)) is not None:
        ways["torch"] = in_torch
    ms = {name: 1e3 * seconds for name, seconds in alternate(ways, RUNS).items()}
    clock = 1e3 * alternate({"adapted": adapted}, RUNS, 0, perf_counter)["adapted"]
    added = 1e5 * _added(bundle, rescorer, hypotheses, cache) / ms["neural"]
    what = f"{ENTRIES}-best of {LENGTH} words, {bundle.manifest.name} bundle"
    figures = [
        Figure(f"second pass, {what}", "ms of CPU", ms["adapted"], target=WHOLE, lower_is_better=True),
        Figure("second pass by the clock", "ms", clock, target=WHOLE, lower_is_better=True),
        Figure("what adapting adds", "% of neural rescoring", added, target=SHARE, lower_is_better=True),
    ]
    peer = ("torch", ms["torch"]) if "torch" in ms else (None, None)
    figures.append(Figure("neural language model", "ms of CPU", ms["neural"], *peer))
    if "kenlm" in ms:
        figures.append(Figure("n-gram", "ms of CPU", ms["n-gram"], "kenlm alone", ms["kenlm"]))
    return figures + noise()


def nbest(words: WordList) -> list[Hypothesis]:
    """``ENTRIES`` sentences of ``LENGTH`` words that differ in a few of them, as those of an n-best list do; two of
    them hold a word that no list has."""
    texts = [" ".join(parts) + " sugar" for parts in islice(product(*CHOICES), ENTRIES)]
    padded = [" ".join([*text.split(), *["please"] * LENGTH][:LENGTH]) for text in texts]
    padded[-2:] = [text.replace("sugar", "quixotry", 1) for text in padded[-2:]]
    assert all(len(text.split()) == LENGTH for text in padded) and "quixotry" not in words
    return [
        Hypothesis((1,), text, (), Scores(acoustic=-0.3 * place), -0.3 * place) for place, text in enumerate(padded)
    ]


def noise() -> list[Figure]:
    """What the server's noise of one release takes, in s; numpy's float noise, which leaks, is beside it."""
    counts, generator = np.zeros(COUNTS, np.int64), np.random.default_rng()
    figures = []
    for mechanism in ("discrete_laplace", "discrete_gaussian"):
        plan = MarginalPlan.model_validate({"epsilon": 2.0, "mechanism": mechanism})
        seconds = alternate({"noise": partial(add_noise, counts, plan)}, 3, 0)["noise"]
        what = f"noising {COUNTS:,} counts, {mechanism.replace('_', ' ')}"
        figures.append(Figure(what, "s of CPU", seconds, target=RELEASE, lower_is_better=True))
    unsafe = alternate({"numpy": lambda: generator.laplace(scale=10.0, size=COUNTS)}, 1, 0)["numpy"]
    figures.append(Figure(f"noising {COUNTS:,} counts", "s of CPU", figures[0].ours, "numpy's float noise", unsafe))
    return figures


def _spoken(bundle: Bundle, hypotheses: Sequence[Hypothesis], weights: CombinationWeights) -> MarginalCache:
    """The cache of a user who has said a hundred such sentences, and confirmed a thousand words of any list."""
    cache = caches.empty(bundle.words)
    for start in range(100):
        said = [hypotheses[(start + place) % len(hypotheses)].text for place in range(8)]
        cache = caches.update(cache, caches.count_words(said, bundle.words, weights))
    return replace(cache, confirmed=dict.fromkeys(islice(bundle.words.words, 1, 1001), 1.0))


def _added(bundle: Bundle, rescorer: Rescorer, hypotheses: Sequence[Hypothesis], cache: MarginalCache) -> float:
    """Seconds of CPU of all that a second pass with adaptation does beyond one without; the median. What was confirmed
    changes with feedback alone, so it is known from before."""
    confirmed = caches.confirmed_counts(cache, bundle.words)
    sentences = [rescorer.words.ids(hypothesis.text) for hypothesis in hypotheses]
    taken = []
    for _ in range(RUNS):
        if rescorer.neural is not None:
            rescorer.neural(sentences)  # leaves the processor's caches as it does in a second pass
        process_time()  # what reading the clock costs after all that is no part of adapting
        begin = process_time()
        marginal = caches.personal_marginal(cache, bundle.words, bundle.background, None, rescorer.weights, confirmed)
        marginal.scores(sentences)
        taken.append(process_time() - begin)
    return median(taken)


def _in_torch(bundle: Bundle, sentences: list[list[int]]) -> Callable[[], Any] | None:
    """The bundle's language model in torch eager, one thread; None where torch is not installed."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    torch.set_num_threads(1)
    model, boundary = _loaded(bundle), bundle.words.boundary
    words = torch.tensor([[boundary, *sentence] for sentence in sentences])
    targets = torch.tensor([[*sentence, boundary] for sentence in sentences])

    def score() -> Any:
        with torch.inference_mode():
            return model(words, targets).numpy()

    return score


def _loaded(bundle: Bundle) -> LanguageModel:
    import onnx
    import torch
    from onnx import numpy_helper

    from export.networks.language_model import LanguageModel
    from export.networks.language_model_shape import LanguageModelShape

    graph = onnx.load_model_from_string(bundle.file(FILE).read_bytes()).graph
    held = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    integers = [name.removesuffix(".int8") for name in held if name.endswith(".int8")]
    held |= {name: held[f"{name}.int8"] * held[f"{name}.scale"] for name in integers}
    inner, size = held["blocks.0.inner.weight"].shape
    blocks = sum(name.endswith(".inner.weight") for name in held)
    heads = next(int(array[2]) for array in held.values() if array.shape == (4,) and array[:2].tolist() == [0, 3])
    sizes = {"size": size, "feed_forward": inner, "blocks": blocks, "heads": heads}
    shape = LanguageModelShape(
        len(bundle.words), **sizes, positions=len(held["positions"]), frequent=len(held["embedding"]) - 1
    )
    model = LanguageModel(shape)
    for name, value in model.state_dict().items():
        value.copy_(torch.from_numpy(np.array(held[name])))
    return model.eval()
