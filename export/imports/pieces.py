"""The pieces of a ``tokens.txt`` as a SentencePiece model, in the order that bundles have them: blank first."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from device_sdk.errors import BundleError

BLANKS = ("<blk>", "<blank>", "<eps>")
WORD_START = "\u2581"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_SPECIAL = re.compile(r"<[^>]+>|\[[^\]]+\]|#\d+")

formats: Any = sentencepiece_model_pb2  # made by protobuf, which no type checker reads
Piece = formats.ModelProto.SentencePiece


def blank_of(tokens: Sequence[str], source: str) -> int:
    """The id of blank, which is the first or the last. Raises :class:`BundleError` for any other place."""
    found = [index for index, token in enumerate(tokens) if token in BLANKS]
    if len(found) != 1 or found[0] not in (0, len(tokens) - 1):
        raise BundleError(f"{source}: blank is token {found}; expected one of {BLANKS}, as the first or the last token")
    return found[0]


def piece_model(tokens: Sequence[str], source: str) -> bytes:
    """A SentencePiece model of these pieces, blank first: text is cut into the fewest of them. Where the pieces have no
    boundary of words (``▁``), as those of Chinese, none is added. Bytes (``<0xE4>``) spell what no piece does; other
    pieces in brackets mean no text. Raises :class:`BundleError` for pieces that come twice."""
    twice = [token for token, count in Counter(tokens).items() if count > 1][:4]
    if twice:
        raise BundleError(f"{source}: pieces {twice} come twice; expected each once")
    model = formats.ModelProto()
    bounded = any(WORD_START in token for token in tokens)
    for index, token in enumerate(tokens):
        kind = Piece.NORMAL
        if index == 0:
            kind = Piece.UNKNOWN
        elif _BYTE.fullmatch(token):
            kind = Piece.BYTE
        elif _SPECIAL.fullmatch(token):
            kind = Piece.CONTROL
        model.pieces.append(Piece(piece=token, score=-1.0 if kind == Piece.NORMAL else 0.0, type=kind))
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type = formats.TrainerSpec.UNIGRAM
    trainer.vocab_size, trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = len(tokens), 0, -1, -1, -1
    trainer.unk_piece = tokens[0]
    trainer.byte_fallback = sum(bool(_BYTE.fullmatch(token)) for token in tokens) == 256
    normalizer.name, normalizer.add_dummy_prefix = "identity", bounded
    normalizer.remove_extra_whitespaces = normalizer.escape_whitespaces = True
    serialized: bytes = model.SerializeToString(deterministic=True)
    return serialized
