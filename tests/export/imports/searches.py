"""Modified beam search as sherpa-onnx does it for each of its families, spelled out.

T: encoder frames; J: joiner size; V: pieces, blank 0. A hypothesis is the tuple of its tokens."""

from collections import defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from device_sdk.runtimes.protocol import States, Transducer

Float = NDArray[np.float32]
Tokens = tuple[int, ...]
_SYMBOLS = 10  # of one frame
_START = 2  # blanks before the first token, which count for its length


def _stepper(transducer: Transducer, width: int) -> Callable[[Tokens, Float], list[tuple[int, float]]]:
    """(hypothesis, frame [J]) -> the ``width`` likeliest symbols that come next, each with its log-probability."""
    known: dict[Tokens, tuple[Float, States]] = {}

    def predicted(tokens: Tokens) -> tuple[Float, States]:
        if tokens not in known:
            last, state = (tokens[-1], predicted(tokens[:-1])[1]) if tokens else (0, None)
            known[tokens] = transducer.predict(np.array([last]), state)
        return known[tokens]

    def steps(tokens: Tokens, frame: Float) -> list[tuple[int, float]]:
        scores = transducer.join(frame[None], predicted(tokens)[0])[0]
        return [(int(symbol), float(scores[symbol])) for symbol in np.argsort(scores)[-width:]]

    return steps


def zipformer_search(transducer: Transducer, encoded: Float, width: int = 4) -> Tokens:
    """One symbol a frame, blank or token: the ``width`` likeliest steps of all hypotheses, of which those to equal
    tokens then add up. The best by log-probability for each token wins. encoded: [T, J]."""
    steps, beam = _stepper(transducer, width), dict[Tokens, float]({(): 0.0})
    for frame in encoded:
        ways = [
            (before + step, (*tokens, symbol) if symbol else tokens)
            for tokens, before in beam.items()
            for symbol, step in steps(tokens, frame)
        ]
        beam = _summed(sorted(ways, reverse=True)[:width])
    return max(beam, key=lambda tokens: beam[tokens] / (_START + len(tokens)))


def nemo_search(transducer: Transducer, encoded: Float, chunk: int, width: int = 4) -> Tokens:
    """Tokens stay on their frame, blank leaves it; those furthest behind go on, and of ways to equal tokens on the same
    frame the likeliest alone counts. Only at the end of each ``chunk`` of frames do they add up. encoded: [T, J]."""
    steps, beam = _stepper(transducer, width), dict[Tokens, float]({(): 0.0})
    for start in range(0, len(encoded), chunk):
        frames = encoded[start : start + chunk]
        ways = {(tokens, 0, 0): reached for tokens, reached in beam.items()}  # frame, and how many tokens on it
        while (behind := min(frame for _, frame, _ in ways)) < len(frames):
            after = defaultdict[tuple[Tokens, int, int], float](lambda: -np.inf)
            for (tokens, frame, said), before in ways.items():
                following = [((tokens, frame, said), before)]
                if frame == behind and said == _SYMBOLS:
                    following = [((tokens, frame + 1, 0), before)]
                elif frame == behind:
                    following = [
                        (((*tokens, symbol), frame, said + 1) if symbol else (tokens, frame + 1, 0), before + step)
                        for symbol, step in steps(tokens, frames[frame])
                    ]
                for way, reached in following:
                    after[way] = max(after[way], reached)
            ways = dict(sorted(after.items(), key=lambda way: -way[1])[:width])
        beam = _summed([(reached, tokens) for (tokens, _, _), reached in ways.items()])
    return max(beam, key=beam.__getitem__)


def _summed(ways: list[tuple[float, Tokens]]) -> dict[Tokens, float]:
    """Log-probabilities of equal tokens add up."""
    found = defaultdict[Tokens, float](lambda: -np.inf)
    for reached, tokens in ways:
        found[tokens] = float(np.logaddexp(found[tokens], reached))
    return found
