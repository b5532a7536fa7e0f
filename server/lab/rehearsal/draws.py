"""Who rehearses what: a function of seed and round number, so a round that is resumed draws the same again."""

from __future__ import annotations

import numpy as np

from device_sdk.errors import ConfigurationError

__all__ = ["draw"]


def draw(utterances: int, shares: int, size: int, number: int, seed: int) -> list[list[int]]:
    """Indices of the utterances of each pseudo-device in a round: ``shares`` lists of ``size``.

    utterances: how many there are. number: of the round, from 1. Rounds go through the utterances in random order, all
    of them before any comes again, in another order then.
    """
    if min(utterances, shares, size, number) < 1:
        raise ConfigurationError(
            f"rehearsal: found {utterances} utterances, {shares} shares of {size}, round {number}; expected 1 or more"
        )
    first = (number - 1) * shares * size
    orders: dict[int, list[int]] = {}
    chosen: list[int] = []
    for position in range(first, first + shares * size):
        turn, place = divmod(position, utterances)
        if turn not in orders:
            orders[turn] = np.random.default_rng((seed, turn)).permutation(utterances).tolist()
        chosen.append(orders[turn][place])
    return [chosen[start : start + size] for start in range(0, len(chosen), size)]
