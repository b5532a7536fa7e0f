"""n-best lists of whole cohorts: a beam search over all utterances at once.

Frame by frame, with at most a few tokens a frame, merging the alignments of equal prefixes: what a device's own
search does, batched over utterances in torch. A test compares the two.

B: utterances; K: beam; T: stacked frames; V: pieces; H: width of the prediction network; J: of the joint."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from device_sdk.bundle.architecture import BLANK
from export.networks.rnnt import RNNT
from server.lab.training.data import collate

NBest = tuple[tuple[tuple[int, ...], float], ...]
"""(tokens, log-probability in nats) of one utterance, best first, no tokens twice."""

_NEVER = -1e30
_PRIME = 1_000_003


@torch.no_grad()
def nbest(
    network: RNNT,
    features: Sequence[NDArray[np.floating]],
    beam: int = 4,
    threshold: float = 4.0,
    most_per_frame: int = 2,
) -> list[NBest]:
    """The lists of B utterances [F, M] raw log-mel. threshold: nats; a hypothesis is extended as long as the result is
    no further below the utterance's best. most_per_frame: tokens that one frame may emit."""
    batch = collate([(f.astype(np.float32), ()) for f in features], network.architecture.subsampling_factor)
    encoded = network.encode(batch.features).float()
    held = _begin(network, encoded.shape[0], beam, max(1, most_per_frame * int(batch.frames.max())))
    for frame in range(encoded.shape[1]):
        held = _advance(network, held, encoded[:, frame], batch.frames > frame, threshold, most_per_frame)
    return _lists(held)


@dataclass(frozen=True, slots=True)
class _Hypotheses:
    """score: float64 [B, K], nats; codes: int64 [B, K], a hash of the tokens; lengths: int64 [B, K]; tokens: int64
    [B, K, longest]; predicted: [B, K, J]; h, c: [layers, B, K, H], the prediction network after them."""

    score: Tensor
    codes: Tensor
    lengths: Tensor
    tokens: Tensor
    predicted: Tensor
    h: Tensor
    c: Tensor


def _begin(network: RNNT, size: int, beam: int, longest: int) -> _Hypotheses:
    score, none = torch.full((size, beam), _NEVER, dtype=torch.float64), torch.zeros((size, beam), dtype=torch.int64)
    score[:, 0] = 0.0
    output, state = network.predictor(network.embedding(torch.full((1, 1), BLANK)))
    h, c = (part[:, :, None].expand(-1, size, beam, -1) for part in state)
    tokens, predicted = none[:, :, None].expand(-1, -1, longest), network.joiner_predictor(output)[:, 0]
    return _Hypotheses(score, none, none, tokens, predicted.expand(size, beam, -1), h, c)


def _advance(
    network: RNNT, held: _Hypotheses, encoded: Tensor, alive: Tensor, threshold: float, most_per_frame: int
) -> _Hypotheses:
    """One frame: after none, one, ... of its tokens a hypothesis stays, by a blank. encoded: [B, J]; alive: [B],
    whether the utterance has this frame."""
    scored = network.join(encoded[:, None], held.predicted).double() + held.score[:, :, None]
    stayed = [replace(held, score=torch.where(alive[:, None], scored[:, :, BLANK], held.score))]
    best_stayed = stayed[0].score.max(1, keepdim=True).values
    frontier = held
    for _ in range(most_per_frame):
        scored[:, :, BLANK] = _NEVER
        best, place = scored.flatten(1).topk(held.score.shape[1])
        row, column = (alive[:, None] & (best > best_stayed - threshold)).nonzero(as_tuple=True)
        if not row.numel():
            break
        parent, token = (part[row, column] for part in (place // scored.shape[2], place % scored.shape[2]))
        frontier = _extend(network, frontier, row, column, parent, token)
        score = torch.full_like(held.score, _NEVER)
        scored = torch.full_like(scored, _NEVER)
        scored[row, column] = (
            network.join(encoded[row], frontier.predicted[row, column]).double() + best[row, column, None]
        )
        score[row, column] = scored[row, column, BLANK]
        stayed.append(replace(frontier, score=score))
        best_stayed = torch.maximum(best_stayed, score.max(1, keepdim=True).values)
    return stayed[0] if len(stayed) == 1 else _merge(stayed)


def _extend(
    network: RNNT, held: _Hypotheses, row: Tensor, column: Tensor, parent: Tensor, token: Tensor
) -> _Hypotheses:
    """The hypotheses (row, parent), each with one more token, at (row, column); what is elsewhere means nothing."""
    given = network.embedding(token)
    after_h, after_c = _step(network.predictor, given, held.h[:, row, parent], held.c[:, row, parent])
    codes, lengths, tokens = torch.zeros_like(held.codes), torch.zeros_like(held.lengths), held.tokens.clone()
    codes[row, column] = held.codes[row, parent] * _PRIME + token + 1
    longest = held.lengths[row, parent].clamp(max=held.tokens.shape[2] - 1)
    tokens[row, column] = held.tokens[row, parent]
    tokens[row, column, longest] = token
    lengths[row, column] = longest + 1
    predicted = torch.zeros(held.predicted.shape, dtype=held.predicted.dtype)
    h, c = torch.zeros(held.h.shape, dtype=held.h.dtype), torch.zeros(held.c.shape, dtype=held.c.dtype)
    predicted[row, column] = network.joiner_predictor(after_h[-1])
    h[:, row, column], c[:, row, column] = after_h, after_c
    return _Hypotheses(held.score, codes, lengths, tokens, predicted, h, c)


def _step(lstm: nn.LSTM, given: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """(h, c) [layers, N, H] after one more input [N, E]. Torch's own LSTM repacks its weights at every call, which for
    a single step is most of the time."""
    after_h, after_c = [given], []
    for layer, weights in enumerate(lstm.all_weights):
        output, cell = torch.lstm_cell(after_h[-1], (h[layer], c[layer]), *weights)
        after_h.append(output)
        after_c.append(cell)
    return torch.stack(after_h[1:]), torch.stack(after_c)


def _merge(parts: Sequence[_Hypotheses]) -> _Hypotheses:
    """The K best of several sets of hypotheses, the probabilities of equal tokens added."""
    score, codes = torch.cat([part.score for part in parts], 1), torch.cat([part.codes for part in parts], 1)
    real = score > _NEVER / 2
    same = (codes[:, None] == codes[:, :, None]) & real[:, None] & real[:, :, None]
    first = real & ~same.tril(-1).any(2)
    total = torch.where(same, score[:, None], torch.full_like(score, _NEVER)[:, None]).logsumexp(2)
    score, kept = torch.where(first, total, torch.full_like(score, _NEVER)).topk(parts[0].score.shape[1])
    line = torch.arange(score.shape[0])[:, None]
    lengths, tokens, predicted = (
        torch.cat([getattr(part, name) for part in parts], 1)[line, kept] for name in ("lengths", "tokens", "predicted")
    )
    h, c = (torch.cat([getattr(part, name) for part in parts], 2)[:, line, kept] for name in ("h", "c"))
    return _Hypotheses(score, codes[line, kept], lengths, tokens, predicted, h, c)


def _lists(held: _Hypotheses) -> list[NBest]:
    found = []
    for scores, tokens, lengths in zip(held.score.tolist(), held.tokens.tolist(), held.lengths.tolist(), strict=True):
        entries: dict[tuple[int, ...], float] = {}
        for score, row, length in zip(scores, tokens, lengths, strict=True):
            if score > _NEVER / 2:
                entries.setdefault(tuple(row[:length]), score)
        found.append(tuple(entries.items()))
    return found
