"""One loaded model: what every session of it shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from device_sdk.bundle import Bundle
from device_sdk.bundle.bundle import Tokenizer
from device_sdk.bundle.streaming import StreamingArchitecture
from device_sdk.checks import check_type
from device_sdk.decoding.contextual_biasing import Guide, Ngram
from device_sdk.decoding.hotwords import Hotwords
from device_sdk.decoding.settings import DecodingSettings
from device_sdk.decoding.stream import frame_seconds
from device_sdk.hypothesis import Hypothesis
from device_sdk.runtimes.ctc import FILE as CTC_FILE
from device_sdk.runtimes.ctc import CtcHead
from device_sdk.runtimes.onnxruntime import Precision
from device_sdk.runtimes.protocol import Transducer
from device_sdk.runtimes.streaming import open_transducer

Rescore = Callable[[Sequence[Hypothesis]], Sequence[Hypothesis]]
"""A second pass: the distinct hypotheses of an utterance, best first, to the same ones in a better order."""


class Model:
    """Owns the sessions of a transducer's graphs. Its attributes are never changed after it is built."""

    def __init__(
        self,
        bundle: Bundle | str | Path,
        settings: DecodingSettings = DecodingSettings(),
        rescore: Rescore | None = None,
        *,
        transducer: Transducer | None = None,
        threads: int = 1,
        precision: Precision = "float32",
    ) -> None:
        """bundle: or its path. rescore: applied to the n-best list at the end of each utterance; None keeps the first
        pass. transducer: runs the bundle's graphs; by default onnxruntime with so many threads and products of this
        precision: int8 is quicker, a little less exact, and needs int8 graphs; auto takes it where it can."""
        bundle = self.bundle = Bundle.given(bundle)
        check_type("settings", settings, DecodingSettings, "DecodingSettings")
        if isinstance(bundle.architecture, StreamingArchitecture):
            settings = replace(settings, symbols_per_frame=bundle.architecture.symbols_per_frame)
        self.settings, self.rescore = settings, rescore
        self.features, self.tokenizer = bundle.features, bundle.tokenizer
        self.transducer: Transducer = open_transducer(bundle, threads, precision) if transducer is None else transducer
        self.frame_seconds = frame_seconds(self.transducer, self.features)
        self._ngram = search_ngram(bundle, settings)
        self.ctc = CtcHead(bundle, threads) if rescore is not None and bundle.has(CTC_FILE) else None

    @property
    def model_version(self) -> str:
        """Version of the bundle that it recognizes with."""
        return self.bundle.version

    def guide(self, hotwords: Hotwords | None) -> Guide | None:
        """What a search follows besides the transducer; None for nothing."""
        return search_guide(hotwords, self.tokenizer, self._ngram)


def search_ngram(bundle: Bundle, settings: DecodingSettings) -> Ngram | None:
    """The n-gram over pieces that a search with these settings follows, with its weight; None for none."""
    weights = bundle.combination
    if not weights.search_ngram or bundle.piece_ngram is None or settings.beam == 1 or settings.search != "sum":
        return None
    return Ngram(bundle.piece_ngram, weights.search_ngram, weights.search_bonus)


def search_guide(hotwords: Hotwords | None, tokenizer: Tokenizer, ngram: Ngram | None) -> Guide | None:
    """What follows both, or one of them; None for nothing."""
    if hotwords is not None and hotwords.phrases:
        return hotwords.guide(tokenizer, ngram)
    return None if ngram is None else Guide(None, ngram)
