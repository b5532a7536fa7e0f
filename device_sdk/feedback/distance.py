"""How far one sequence is from another, in insertions, deletions and substitutions."""

from collections.abc import Sequence


def edit_distance(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Levenshtein distance of two sequences (of words, or of characters when given strings)."""
    row = list(range(len(hypothesis) + 1))
    for i, left in enumerate(reference, 1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(hypothesis, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]


def word_error_rate(reference: str, hypothesis: str) -> float:
    """Word errors over reference words, unbounded above; an empty reference counts as one word."""
    words = reference.split()
    return edit_distance(words, hypothesis.split()) / max(len(words), 1)


def similarity(left: str, right: str) -> float:
    """1 for equal strings, 0 where no character can be kept: 1 - distance / longer length."""
    longer = max(len(left), len(right))
    return 1.0 - edit_distance(left, right) / longer if longer else 1.0
