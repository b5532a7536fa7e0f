"""A decoder that looks where it looked before: location-aware attention and a GRU (Gao et al. 2022, section 5.1), in
torch.

B: utterances; T: encoder frames; E: encoder size; S: decoder size; A: attention size; V: tokens, where 0 is both the
beginning and the end of a text; U: tokens of a text. Attention as in Chorowski et al. (2015), equations 6 to 9.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["BOUNDARY", "AttentionDecoder", "State"]

BOUNDARY = 0

State = tuple[Tensor, Tensor, Tensor]
"""hidden: [1, B, S]; context: [B, A]; attention: [B, T], what was looked at in the step before."""


class LocationAttention(nn.Module):
    """e_t = v . tanh(W s + V h_t + U f_t + b), with f the previous attention convolved along time."""

    def __init__(self, encoder_size: int, decoder_size: int, size: int, channels: int, kernel: int) -> None:
        super().__init__()
        self.keys = nn.Linear(encoder_size, size)
        self.query = nn.Linear(decoder_size, size, bias=False)
        self.convolution = nn.Conv1d(1, channels, kernel, padding=kernel // 2, bias=False)
        self.location = nn.Linear(channels, size, bias=False)
        self.energy = nn.Linear(size, 1, bias=False)
        self.context = nn.Linear(encoder_size, size)

    def forward(
        self, encoded: Tensor, keys: Tensor, heard: Tensor, query: Tensor, before: Tensor
    ) -> tuple[Tensor, Tensor]:
        """encoded: [B, T, E]; keys: [B, T, A], of ``self.keys``; heard: [B, T] bool; query: [B, S]; before: [B, T].
        -> (context [B, A], attention [B, T], which sums to 1)."""
        location = self.location(self.convolution(before[:, None]).transpose(1, 2))
        scores = self.energy(torch.tanh(self.query(query)[:, None] + keys + location))[..., 0]
        attention = scores.masked_fill(~heard, -1e9).softmax(-1)
        return self.context((attention[:, None] @ encoded)[:, 0]), attention


class AttentionDecoder(nn.Module):
    """A GRU layer over the token before and the context before; the tokens' scores see its state and the context."""

    def __init__(
        self,
        tokens: int,
        encoder_size: int,
        embedding_size: int,
        size: int,
        attention_size: int,
        channels: int,
        kernel: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, embedding_size)
        self.gru = nn.GRU(embedding_size + attention_size, size, batch_first=True)
        self.attention = LocationAttention(encoder_size, size, attention_size, channels, kernel)
        self.output = nn.Linear(size + attention_size, tokens)
        self.dropout = nn.Dropout(dropout)

    def begin(self, heard: Tensor) -> State:
        """The state before the first token: all frames alike, nothing seen. heard: [B, T] bool."""
        batch = heard.shape[0]
        size, context = self.gru.hidden_size, self.attention.context.out_features
        shares = heard.to(self.output.weight.dtype)
        zeros = shares.new_zeros
        return zeros(1, batch, size), zeros(batch, context), shares / shares.sum(1, keepdim=True)

    def step(self, tokens: Tensor, encoded: Tensor, keys: Tensor, heard: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens: [B] int64, the last ones. -> (log-probabilities [B, V], nats, of the next ones, the next state)."""
        hidden, context, attention = state
        inputs = torch.cat([self.dropout(self.embedding(tokens)), context], -1)
        output, hidden = self.gru(inputs[:, None], hidden)
        context, attention = self.attention(encoded, keys, heard, output[:, 0], attention)
        scores = self.output(self.dropout(torch.cat([output[:, 0], context], -1)))
        return scores.float().log_softmax(-1), (hidden, context, attention)

    def forward(self, encoded: Tensor, heard: Tensor, tokens: Tensor) -> Tensor:
        """Teacher forcing. encoded: [B, T, E]; heard: [B, T] bool; tokens: [B, U] int64. -> [B, U + 1, V], nats."""
        keys, state = self.attention.keys(encoded), self.begin(heard)
        result = []
        for column in nn.functional.pad(tokens, (1, 0), value=BOUNDARY).unbind(1):
            scores, state = self.step(column, encoded, keys, heard, state)
            result.append(scores)
        return torch.stack(result, 1)

    @torch.no_grad()
    def greedy(self, encoded: Tensor, heard: Tensor, most: int) -> list[list[int]]:
        """The likeliest next token at each step, up to the end of the text or ``most`` tokens."""
        keys, state = self.attention.keys(encoded), self.begin(heard)
        last = torch.full((encoded.shape[0],), BOUNDARY, device=encoded.device)
        going = torch.ones_like(last, dtype=torch.bool)
        result: list[list[int]] = [[] for _ in range(encoded.shape[0])]
        for _ in range(most):
            scores, state = self.step(last, encoded, keys, heard, state)
            last = scores.argmax(-1)
            going &= last != BOUNDARY
            if not bool(going.any()):
                break
            for row in going.nonzero()[:, 0].tolist():
                result[row].append(int(last[row]))
        return result
