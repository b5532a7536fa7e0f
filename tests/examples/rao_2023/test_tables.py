"""What the document says, on rows whose errors are known."""

from typing import Any

import pytest
from rich.console import Console

from examples.rao_2023.experiment import INITIAL
from examples.rao_2023.tables import chart, findings, table

AT_ONCE = "EMA 0, every 1"
GOOD = {
    INITIAL: (0.30, 0.20),
    "supervised oracle": (0.17, 0.24),
    "teacher not updated": (0.25, 0.22),
    "teacher EMA": (0.19, 0.26),
    "EMA + slots": (0.18, 0.26),
    "binary only, noise 0": (0.28, 0.21),
    "binary only, noise 0.4": (0.29, 0.21),
    AT_ONCE: (0.22, 0.30),
    "EMA + rehearsal": (0.20, 0.22),
}


def interval(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.005, "high": mean + 0.005}


def document(rates: dict[str, tuple[float, float]]) -> dict[str, Any]:
    rows = {}
    for name, (new, old) in rates.items():
        entry: dict[str, Any] = {"diverged": {}, "curve": [], "seconds": 1.0}
        for test, rate in (("requests", new), ("delta", new), ("general", old)):
            change = rate - (rates[INITIAL][0] if test != "general" else rates[INITIAL][1])
            against = {} if name == INITIAL else {INITIAL: dict.fromkeys(("absolute", "relative"), interval(change))}
            if name.startswith("EMA"):
                against["teacher EMA"] = {"absolute": interval(rate - rates["teacher EMA"][0])}
            entry[test] = {"mean": rate, "by_seed": {"1": rate}, "std": None, "against": against}
        rows[name] = entry
    return {"seeds": [1], "rows": rows, "scale": {"at_once": AT_ONCE, "weight": 2.0}}


def test_all_findings_hold_on_what_the_paper_found() -> None:
    found = list(findings(document(GOOD)))
    assert len(found) == 9
    assert all(each["holds"] for each in found), found


@pytest.mark.parametrize(
    ("name", "rates", "failing"),
    [
        (INITIAL, (0.40, 0.20), "initial word error"),
        ("teacher EMA", (0.21, 0.26), "relative cut"),
        ("supervised oracle", (0.15, 0.24), "above the supervised"),
        ("teacher not updated", (0.22, 0.22), "without teacher updates"),
        ("EMA + slots", (0.195, 0.26), "minus EMA"),
        ("binary only, noise 0", (0.30, 0.2), "noise 0:"),
        ("binary only, noise 0.4", (0.298, 0.2), "noise 0.4"),
        (AT_ONCE, (0.193, 0.26), "the student itself"),
        ("EMA + rehearsal", (0.2, 0.24), "with rehearsal"),
        ("teacher EMA", (0.19, 0.20), "with rehearsal"),  # nothing is lost without it, either
    ],
)
def test_each_finding_can_fail(name: str, rates: tuple[float, float], failing: str) -> None:
    found = list(findings(document({**GOOD, name: rates})))
    assert any(failing in each["finding"] and not each["holds"] for each in found), found


def test_the_tables_show_every_row() -> None:
    shown = document({**GOOD, "EMA 0, every 1": (0.6, 0.7)})
    shown["rows"]["EMA 0, every 1"]["diverged"] = {"1": 7}
    console = Console(record=True, width=200)
    console.print(table(shown))
    text = console.export_text()
    assert all(name in text for name in GOOD) and "diverged in 1" in text and "19.0" in text
    assert chart(shown).count("<rect") >= 3 * len(shown["rows"])
