"""Gradients that are of phones as well, where a bundle has a CTC head and the graph of its gradients.

A user corrects few words, and each is spelled in pieces that few others have; the phones that it is made of are those
of all words, so what is learned of them is the voice (not in the papers). F: frames; M: mel bins; T: encoder frames; J:
joiner size; N: hypotheses; L: places of a text, its phones with a blank before, between and after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.bundle import Bundle
from device_sdk.runtimes.ctc import CtcHead
from device_sdk.runtimes.onnxruntime import open_session, run
from device_sdk.runtimes.protocol import Gradients, Training, check_parameter

Float = NDArray[np.float32]

FILE = "training.ctc.onnx"
WEIGHT = 0.3
"""Of a text's phones, beside its pieces."""


class PhoneTraining(Training):
    """A session whose steps are on sum_i weights_i (NLL_i + WEIGHT * CTC_i) + cost_scale * E[M], CTC_i being of the
    phones of hypothesis i over all alignments (Graves et al. 2006), where weights_i is above 0. Likelihoods are the
    session's own."""

    def __init__(self, session: Training, bundle: Bundle, threads: int = 1) -> None:
        """bundle: whose head speaks beside ``session``. Raises :class:`BundleError` for a damaged file."""
        self.architecture, self.trainable = session.architecture, session.trainable
        self._beneath, self._decode, self._phones = session, bundle.tokenizer.decode, CtcHead(bundle, threads).phones
        graph, self._source = bundle.file(FILE).read_bytes(), str(bundle.file(FILE))
        self._session = open_session(graph, self._source, architecture=bundle.architecture, threads=threads, arena=True)
        known = bundle.architecture.parameter_shapes() | bundle.architecture.constant_shapes()
        self._shapes = {each.name: known[each.name] for each in self._session.get_inputs() if each.name in known}

    def too_large(self, features: Float, hypotheses: Sequence[Sequence[int]]) -> str | None:
        return self._beneath.too_large(features, hypotheses)

    def _gradients(self, parameters: Mapping[str, Float], feeds: dict[str, NDArray[np.generic]]) -> Gradients:
        given = {name: check_parameter(parameters, name, shape) for name, shape in self._shapes.items()}
        frames = len(feeds["pull"])
        said = zip(feeds["tokens"], feeds["lengths"], feeds["weights"], strict=True)
        weighed = [
            (self._phones(self._decode(tokens[:length])), weight) for tokens, length, weight in said if weight > 0
        ]
        weighed = [(phones, weight) for phones, weight in weighed if 0 < room(phones) <= frames]
        if weighed:
            symbols, ends = places([phones for phones, _ in weighed])
            weights = np.array([WEIGHT * weight for _, weight in weighed], np.float32)
            heard = {"features": feeds["features"], "symbols": symbols, "ends": ends, "weights": weights}
            _, pull = run(self._session, given | heard, self._source)
            feeds = feeds | {"pull": pull}
        return self._beneath._gradients(parameters, feeds)


def room(phones: Sequence[int]) -> int:
    """Frames that a text takes at least: one for each phone, and a blank where one comes twice."""
    return len(phones) + sum(one == other for one, other in pairwise(phones))


def places(texts: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(symbols [N, L], padded with blanks, ends [N, L], 1 where a text may end) of N texts' phones, none empty."""
    symbols = np.zeros((len(texts), 2 * max(map(len, texts)) + 1), np.int64)
    ends = np.zeros(symbols.shape)
    for row, phones in enumerate(texts):
        symbols[row, 1 : 2 * len(phones) : 2] = phones
        ends[row, 2 * len(phones) - 1 : 2 * len(phones) + 1] = 1.0
    return symbols, ends
