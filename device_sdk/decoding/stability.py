"""How much of a text the rest of its audio can hardly change: what hypotheses share."""

from __future__ import annotations

from collections.abc import Sequence

from device_sdk.decoding.alignments import Alignments
from device_sdk.decoding.prefixes import Prefix

__all__ = ["descends", "shared_prefix"]


def descends(prefix: Prefix, ancestor: Prefix) -> bool:
    """Whether a prefix is the other one, or begins with it."""
    depth = ancestor.depth
    node: Prefix | None = prefix
    while node is not None and node.depth > depth:
        node = node.parent
    return node is ancestor


def shared_prefix(prefixes: Sequence[Prefix], alignments: Sequence[Alignments], threshold: float) -> Prefix:
    """The longest prefix of all hypotheses, best first, that may still be extended. threshold: nats below the best."""
    shared = prefixes[0]
    least = alignments[0].score + shared.bonus - threshold
    for at in range(1, len(prefixes)):
        other = prefixes[at]
        if alignments[at].score + other.bonus < least:
            continue
        while other is not shared:
            if other.depth >= shared.depth and other.parent is not None:
                other = other.parent
            elif shared.parent is not None:
                shared = shared.parent
    return shared
