"""The word-level Transformer language model of the second pass (Liu & Peng 2020, section 3.2), in torch."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.networks.language_model_shape import LanguageModelShape


class Block(nn.Module):
    """A causal, pre-norm Transformer block."""

    def __init__(self, size: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.attention_norm = nn.LayerNorm(size)
        self.projections = nn.Linear(size, 3 * size)
        self.attention_output = nn.Linear(size, size)
        self.feed_forward_norm = nn.LayerNorm(size)
        self.inner = nn.Linear(size, feed_forward)
        self.outer = nn.Linear(feed_forward, size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        values = values + self.attend(self.attention_norm(values))
        inner = functional.gelu(self.inner(self.feed_forward_norm(values)))
        result: Tensor = values + self.dropout(self.outer(inner))
        return result

    def attend(self, values: Tensor, heard: Tensor | None = None) -> Tensor:
        """heard: [B, 1, 1, T] bool, what to attend to; ``None`` is what came before."""
        batch, length, size = values.shape
        heads = self.projections(values).view(batch, length, 3, self.heads, size // self.heads).permute(2, 0, 3, 1, 4)
        rate = self.rate if self.training else 0.0
        attended = functional.scaled_dot_product_attention(
            heads[0], heads[1], heads[2], heard, dropout_p=rate, is_causal=heard is None
        )
        return self.dropout(self.attention_output(attended.transpose(1, 2).reshape(batch, length, size)))


class LanguageModel(nn.Module):
    """Causal Transformer with learned positions and one matrix for input embeddings and output (tied). B: sentences; L:
    words of the longest, at most ``shape.positions``; n: words on the list; r: ``shape.rows``. ``shares``: [n + 1], log
    of the share that a word has of those with its embedding; 0 where it has it to itself."""

    shares: Tensor

    def __init__(self, shape: LanguageModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.rows + 1, shape.size) * shape.size**-0.5)
        self.positions = nn.Parameter(torch.randn(shape.positions, shape.size) * 0.1)
        self.blocks = nn.ModuleList(
            Block(shape.size, shape.heads, shape.feed_forward, shape.dropout) for _ in range(shape.blocks)
        )
        self.norm = nn.LayerNorm(shape.size)
        self.bias = nn.Parameter(torch.zeros(shape.rows + 1))
        if shape.rows < shape.words:
            self.register_buffer("shares", torch.zeros(shape.words + 1))
        self.dropout = nn.Dropout(shape.dropout)

    def distributions(self, words: Tensor) -> Tensor:
        """words: int64 [B, L], starting with the boundary id n. -> log p(next row) [B, L, r + 1], nats."""
        scaled = functional.embedding(self.rows(words), self.embedding) * self.shape.size**0.5
        values = self.dropout(scaled + self.positions[: words.shape[1]])
        for block in self.blocks:
            values = block(values)
        return functional.log_softmax(functional.linear(self.norm(values), self.embedding, self.bias), dim=-1)

    def forward(self, words: Tensor, targets: Tensor) -> Tensor:
        """words, targets: int64 [B, L], target l is the word after word l. -> log p(targets) [B, L], nats."""
        chosen = self.distributions(words).gather(-1, self.rows(targets).unsqueeze(-1)).squeeze(-1)
        return chosen + self.shares[targets] if self.shape.rows < self.shape.words else chosen

    def rows(self, words: Tensor) -> Tensor:
        """Ids of words to rows of the embedding."""
        rows, boundary = self.shape.rows, self.shape.words
        return torch.where(words < rows, words, torch.where(words == boundary, rows, 0))
