"""What is made from text before training starts: the subword pieces and the public word list."""

import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import sentencepiece

from device_sdk.errors import ConfigurationError, DataError
from server.lab.corpora.text import read_text, written_out
from server.lab.corpora.utterance import clean


def read_sentences(path: Path, english: bool = True) -> list[str]:
    """The distinct sentences of a source (:mod:`server.lab.corpora.text`) in the one form of speech, in order. English
    figures are written out; of other languages, sentences with figures are left out."""
    lines = read_text(path)
    spoken = (
        map(written_out, lines) if english else (clean(line, False) for line in lines if not re.search(r"\d", line))
    )
    sentences = dict.fromkeys(spoken)
    sentences.pop("", None)
    if not sentences:
        letters = "the letters a-z" if english else "letters"
        raise DataError(f"{path}: found no sentence of {letters}; expected one a line")
    return list(sentences)


def train_pieces(sentences: Iterable[str], size: int) -> bytes:
    """A SentencePiece unigram model with ``size`` pieces; piece 0 stands for unknown and for blank."""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=size,
            model_type="unigram",
            character_coverage=1.0,
            normalization_rule_name="identity",
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            byte_fallback=False,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ConfigurationError(f"pieces: {size} pieces cannot be made from this text: {error}") from error
    return model.getvalue()


def word_list(vocabulary: Iterable[str], sentences: Sequence[str] = (), least: int = 3) -> list[str]:
    """``<unk>``, then the vocabulary and every word seen ``least`` times in the sentences, sorted."""
    counts = Counter(word for sentence in sentences for word in sentence.split())
    return ["<unk>", *sorted(set(vocabulary) | {word for word, count in counts.items() if count >= least})]
