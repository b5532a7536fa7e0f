"""Sizes and parameter names of the second pass' language model; torch is not needed to know them."""

from dataclasses import dataclass

from device_sdk.checks import check_intervals
from device_sdk.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class LanguageModelShape:
    """Sizes of the model. The paper's: size 256, feed_forward 1024, blocks 3, heads 4, dropout 0.1. words: n, the word
    list's length; the vocabulary is n + 1, with the sentence boundary last. size: D of an embedding. positions: words
    of context at most. dropout: in training only. frequent: how many of the list's first words, <unk> among them, have
    an embedding of their own; all others are told apart from <unk> by their share of it alone (None: all have)."""

    words: int
    size: int = 96
    feed_forward: int = 384
    blocks: int = 2
    heads: int = 4
    positions: int = 64
    dropout: float = 0.1
    frequent: int | None = None

    def __post_init__(self) -> None:
        check_intervals("language_model", self, "[1, inf)", "words", "size", "feed_forward", "blocks", "heads")
        check_intervals("language_model", self, "[2, inf)", "positions")
        check_intervals("language_model", self, "[0, 1)", "dropout")
        if self.frequent is not None and not 1 <= self.frequent <= self.words:
            found = f"language_model.frequent: found {self.frequent}"
            raise ConfigurationError(f"{found}, expected 1 to {self.words}, the words of the list")
        if self.size % self.heads:
            found = f"language_model.size: found {self.size}"
            raise ConfigurationError(f"{found}, expected a multiple of heads, {self.heads}")

    @property
    def rows(self) -> int:
        """Words with an embedding of their own; the boundary's embedding is the one after them."""
        return self.words if self.frequent is None else self.frequent

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter by name; matrices are [outputs, inputs]."""
        size, inner = self.size, self.feed_forward
        shapes: dict[str, tuple[int, ...]] = {"embedding": (self.rows + 1, size), "positions": (self.positions, size)}
        shapes |= {"shares": (self.words + 1,)} if self.rows < self.words else {}
        matrices = {"projections": (3 * size, size), "attention_output": (size, size)}
        matrices |= {"inner": (inner, size), "outer": (size, inner)}
        for block in range(self.blocks):
            for name, (rows, columns) in matrices.items():
                shapes[f"blocks.{block}.{name}.weight"] = (rows, columns)
                shapes[f"blocks.{block}.{name}.bias"] = (rows,)
            for name in ("attention_norm", "feed_forward_norm"):
                shapes |= {f"blocks.{block}.{name}.weight": (size,), f"blocks.{block}.{name}.bias": (size,)}
        return {**shapes, "norm.weight": (size,), "norm.bias": (size,), "bias": (self.rows + 1,)}
