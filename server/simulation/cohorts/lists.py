"""n-best lists of whole cohorts: a beam search over all utterances at once.

Frame by frame, with at most one token a frame (30 ms), merging the alignments of equal prefixes: what a device's own
search does, batched over utterances in torch. A test compares the two.

B: utterances; K: beam; T: stacked frames; V: pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.bundle.architecture import BLANK
from export.networks.rnnt import RNNT
from server.training.data import collate

__all__ = ["NBest", "nbest"]

NBest = tuple[tuple[tuple[int, ...], float], ...]
"""(tokens, log-probability in nats) of one utterance, best first, no tokens twice."""

_NEVER = -1e30
_PRIME = 1_000_003


@torch.no_grad()
def nbest(
    network: RNNT, features: Sequence[NDArray[np.floating]], beam: int = 4, threshold: float = 6.0
) -> list[NBest]:
    """The lists of B utterances [F, M] raw log-mel.

    threshold: nats; a hypothesis is extended as long as the result is no further below the utterance's best.
    """
    batch = collate([(f.astype(np.float32), ()) for f in features], network.architecture.subsampling_factor)
    encoded = network.encode(batch.features).float()
    search = _Search(network, encoded.shape[0], beam, int(batch.frames.max()))
    for frame in range(encoded.shape[1]):
        search.advance(encoded[:, frame], batch.frames > frame, threshold)
    return search.lists()


class _Search:
    """The hypotheses of all utterances. score: [B, K]; tokens: [B, K, longest]; lengths, codes (a hash): [B, K]."""

    def __init__(self, network: RNNT, size: int, beam: int, longest: int) -> None:
        self.network, self.size, self.beam = network, size, beam
        self.score = torch.full((size, beam), _NEVER, dtype=torch.float64)
        self.score[:, 0] = 0.0
        self.tokens = torch.zeros((size, beam, longest), dtype=torch.int64)
        self.lengths = torch.zeros((size, beam), dtype=torch.int64)
        self.codes = torch.zeros((size, beam), dtype=torch.int64)
        output, (h, c) = network.predictor(network.embedding(torch.full((1, 1), BLANK)))
        self.predicted = network.joiner_predictor(output)[:, 0].expand(size, beam, -1).clone()
        self.h = h[:, :, None].expand(-1, size, beam, -1).clone()
        self.c = c[:, :, None].expand(-1, size, beam, -1).clone()

    def advance(self, encoded: Tensor, alive: Tensor, threshold: float) -> None:
        """One frame. encoded: [B, J]; alive: [B], whether the utterance has this frame."""
        scored = self.network.join(encoded[:, None], self.predicted).double() + self.score[:, :, None]
        stayed = torch.where(alive[:, None], scored[:, :, BLANK], self.score)
        scored[:, :, BLANK] = _NEVER
        best, place = scored.flatten(1).topk(self.beam)
        grown = alive[:, None] & (best > stayed.max(1, keepdim=True).values - threshold)
        if not bool(grown.any()):
            self.score = stayed
            return
        row, column = grown.nonzero(as_tuple=True)
        parent = (place // scored.shape[2])[row, column]
        token = (place % scored.shape[2])[row, column]
        held = (self.h[:, row, parent].contiguous(), self.c[:, row, parent].contiguous())
        output, (h, c) = self.network.predictor(self.network.embedding(token[:, None]), held)
        predicted = self.network.joiner_predictor(output)[:, 0]
        left = self.network.join(encoded[row], predicted)[:, BLANK].double()

        moved = torch.full((self.size, self.beam), _NEVER, dtype=torch.float64)
        moved[row, column] = best[row, column] + left
        codes = torch.zeros_like(self.codes)
        codes[row, column] = self.codes[row, parent] * _PRIME + token + 1
        score = torch.cat([stayed, moved], 1)
        both = torch.cat([self.codes, codes], 1)
        same = (both[:, None] == both[:, :, None]) & (score > _NEVER / 2)[:, None] & (score > _NEVER / 2)[:, :, None]
        merged = torch.where(same, score[:, None], torch.full_like(score, _NEVER)[:, None]).logsumexp(2)
        first = ~(same & torch.ones_like(same).tril(-1)).any(2)
        score = torch.where(same.any(2) & first, merged, torch.full_like(score, _NEVER))

        longest = self.lengths.clamp(max=self.tokens.shape[2] - 1)
        tokens = self.tokens.clone()
        tokens[row, column] = self.tokens[row, parent]
        tokens[row, column, longest[row, parent]] = token
        lengths = self.lengths.clone()
        lengths[row, column] = self.lengths[row, parent] + 1
        others = (torch.zeros_like(self.predicted), torch.zeros_like(self.h), torch.zeros_like(self.c))
        others[0][row, column] = predicted
        others[1][:, row, column], others[2][:, row, column] = h, c
        self.score, kept = score.topk(self.beam)
        line = torch.arange(self.size)[:, None]
        self.codes = both[line, kept]
        self.tokens = torch.cat([self.tokens, tokens], 1)[line, kept]
        self.lengths = torch.cat([self.lengths, lengths], 1)[line, kept]
        self.predicted = torch.cat([self.predicted, others[0]], 1)[line, kept]
        self.h = torch.cat([self.h, others[1]], 2)[:, line, kept]
        self.c = torch.cat([self.c, others[2]], 2)[:, line, kept]

    def lists(self) -> list[NBest]:
        found = []
        for scores, tokens, lengths in zip(
            self.score.tolist(), self.tokens.tolist(), self.lengths.tolist(), strict=True
        ):
            entries: dict[tuple[int, ...], float] = {}
            for score, row, length in zip(scores, tokens, lengths, strict=True):
                if score > _NEVER / 2:
                    entries.setdefault(tuple(row[:length]), score)
            found.append(tuple(entries.items()))
        return found
