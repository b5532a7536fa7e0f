"""Subwords: a SentencePiece model whose piece 0 is the transducer's blank."""

from __future__ import annotations

from collections.abc import Sequence

from device_sdk.errors import BundleError

__all__ = ["Tokenizer"]

WORD_START = "\u2581"


class Tokenizer:
    """Text to pieces and back. Text is lower-case words of ``[a-z']``; piece 0 (unknown) is blank, without text.

    letters: every character that the pieces can spell, but for the boundary of words.
    """

    def __init__(self, model: bytes, source: str = "tokenizer.model") -> None:
        """model: bytes of a SentencePiece model. Raises :class:`BundleError` where it is damaged."""
        from sentencepiece import SentencePieceProcessor

        processor = SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise BundleError(f"{source}: not a SentencePiece model ({error})") from error
        if processor.unk_id() != 0:
            raise BundleError(f"{source}: unk_id is {processor.unk_id()}, expected 0 (the blank)")
        self._processor = processor
        try:
            self._pieces: tuple[str, ...] = tuple(processor.id_to_piece(piece) for piece in range(len(processor)))
        except UnicodeDecodeError as error:
            raise BundleError(f"{source}: a piece is no text ({error}); take the bundle again") from error
        self.letters = frozenset("".join(self._pieces[1:])) - {WORD_START}
        self._starts = tuple(piece.startswith(WORD_START) for piece in self._pieces)

    @property
    def size(self) -> int:
        """Pieces, with blank."""
        return len(self._pieces)

    def piece(self, token: int) -> str:
        return self._pieces[token]

    def encode(self, text: str) -> list[int]:
        """Pieces of ``text``; characters that the model never saw are left out (0 is blank, never a label)."""
        return [token for token in self._processor.encode(text) if token != 0]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of pieces; blanks are ignored."""
        joined = "".join(self._pieces[token] for token in tokens if token != 0)
        return " ".join(joined.replace(WORD_START, " ").split())

    def starts_word(self, token: int) -> bool:
        return self._starts[token]
