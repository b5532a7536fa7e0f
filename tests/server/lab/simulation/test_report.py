from __future__ import annotations

import io
import math
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from server.lab.commands.simulate import differences, table
from server.lab.simulation.outcomes import CONDITIONS, Outcome, Run, Traffic, against_frozen, figures
from server.lab.simulation.report import render
from server.lab.simulation.run import load, traffic

ERRORS = {"frozen": 4, "marginals": 3, "learning": 3, "both": 2, "supervised": 1}


class Wellformed(HTMLParser):
    """Fails on a tag that is closed without having been opened, or never closed."""

    VOID = frozenset({"meta", "line", "rect", "circle", "polyline", "polygon"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open and self.open.pop() == tag


def runs_of(seeds: int, slots: bool) -> list[Run]:
    runs = []
    for seed in range(seeds):
        for condition in CONDITIONS:
            outcomes = tuple(
                Outcome(
                    voice,
                    round_,
                    ERRORS[condition.name],
                    8,
                    ERRORS[condition.name] if slots else 0,
                    5 * slots,
                    2.0,
                    0.1,
                )
                for round_ in (0, 1, -1)
                for voice in (("held",) if round_ < 0 else ("<ann>", "bob"))
            )
            moved = tuple(Traffic("bob", round_, 1_500, 30_000) for round_ in (0, 1)) if condition.reports else ()
            runs.append(Run(condition.name, seed, outcomes, moved, {}, 10**8, 1.0))
    return runs


def document_of(runs: list[Run], seeds: int, epsilon: Any) -> dict[str, Any]:
    entry = {
        "epsilon": epsilon,
        "delta": 1e-6,
        "per_round": [epsilon, epsilon],
        "adjacency": "user",
        "sampling": "none",
        "trust_model": "x",
    }
    return {
        "conditions": figures(runs, 2),
        "against_frozen": against_frozen(runs, 2),
        "rounds": 2,
        "seeds": seeds,
        "seed_values": list(range(seeds)),
        "data": "made",
        "epsilon": {"marginals": entry, "deltas": {**entry, "epsilon": "Infinity", "per_round": ["Infinity"]}},
        "bytes": {condition.name: traffic(runs, condition.name) for condition in CONDITIONS},
        "device": {condition.name: load(runs, condition.name) for condition in CONDITIONS},
        "voices": {"base": [], "devices": ["<ann>", "bob"], "heldout": ["held"]},
        "settings": {"bundle": "small & good"},
    }


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize("epsilon", [2.0, math.inf])
def test_every_kind_of_simulation_has_a_page(seeds: int, slots: bool, epsilon: float) -> None:
    runs = runs_of(seeds, slots)
    page = render(document_of(runs, seeds, epsilon), runs)
    reader = Wellformed()
    reader.feed(page)
    assert not reader.open
    assert ("Slot error" in page) is slots and "Word error" in page
    assert "&lt;ann&gt;" in page and "<ann>" not in page
    assert "excludes zero" in page and "<b>-25.0</b> <small>-25.0 to -25.0</small>" in page
    assert ("±" in page) is (seeds > 1)
    assert "∞" in page
    assert ("2 at δ 1e-06" in page) is math.isfinite(epsilon)
    assert ("Epsilon of marginals" in page) is math.isfinite(epsilon)


def test_the_table_leaves_out_what_the_data_does_not_label() -> None:
    with_slots, without = (table(document_of(runs_of(1, slots), 1, 2.0)) for slots in (True, False))
    assert len(with_slots.columns) == 7 and len(without.columns) == 4
    assert with_slots.row_count == len(CONDITIONS)


def test_differences_from_frozen_stand_in_a_table_of_their_own() -> None:
    slots, words = (differences(document_of(runs_of(1, slots), 1, 2.0)) for slots in (True, False))
    assert slots.row_count == 2 * (len(CONDITIONS) - 1) and words.row_count == len(CONDITIONS) - 1
    for width in (80, 200):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(slots)
        shown = console.export_text()
        assert "-40.0*" in shown and "[-40.0, -40.0]" in shown and "…" not in shown
