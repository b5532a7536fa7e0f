"""What may become a word of the public list."""

import re

_WORD = re.compile(r"[^\W\d_](?:[^\W_]|['’.-]){0,62}")


def is_word(text: str) -> bool:
    """Whether it may become a word of the list: a letter first, no spaces, no longer than 63."""
    return _WORD.fullmatch(text) is not None
