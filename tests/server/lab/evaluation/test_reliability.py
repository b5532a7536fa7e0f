"""Calibration figures against sums by hand and in the long run, and the chart as a document."""

import json
import math
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.lab.evaluation.reliability import Reliability, reliability_chart

PAIRS = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


def of(*pairs: tuple[float, bool]) -> Reliability:
    found = Reliability.of(pairs)
    assert found is not None
    return found


def test_figures_by_hand() -> None:
    found = of((0.95, True), (0.95, False), (0.2, False), (1.0, True))
    assert found.ece == pytest.approx((3 * abs(2.9 / 3 - 2 / 3) + 0.2) / 4)
    assert [(each.low, each.count, each.accuracy) for each in found.bins()] == [(0.2, 1, 0.0), (0.9, 3, 2 / 3)]
    entropy = -(math.log(0.95) + math.log(0.05) + math.log(0.8) + math.log(1 - 1e-6)) / 4
    assert found.nce == pytest.approx(1 - entropy / math.log(2))
    assert found.ece_equal_mass == pytest.approx((2 * abs(0.95 - 0.5) + 0.2 + 0.0) / 4)
    figures = json.loads(json.dumps(found.as_json()))
    assert (figures["count"], figures["accuracy"]) == (4, 0.5)
    assert Reliability.of([]) is None and of((0.5, True), (1.0, True)).nce is None and of((0.0, False)).ece == 0


@given(PAIRS)
def test_bins_part_the_confidences(pairs: list[tuple[float, bool]]) -> None:
    found = of(*pairs)
    for bins in (found.bins(), found.equal_bins()):
        assert sum(each.count for each in bins) == len(pairs) and len(bins) <= 10
        assert all(each.low - 1e-9 <= each.confidence <= each.high + 1e-9 for each in bins)
        assert sum(each.count * each.accuracy for each in bins) == pytest.approx(sum(right for _, right in pairs))
    assert 0 <= found.ece <= 1 and 0 <= found.ece_equal_mass <= 1
    overall = abs(float(np.mean([p for p, _ in pairs])) - float(np.mean([right for _, right in pairs])))
    assert min(found.ece, found.ece_equal_mass) >= overall - 1e-9


def test_honest_confidences_have_no_error_in_the_long_run_and_bold_ones_have() -> None:
    generator = np.random.default_rng(0)
    p = generator.uniform(0, 1, 40_000)
    right = generator.uniform(0, 1, p.size) < p
    honest = Reliability(p, right.astype(np.float64))
    assert honest.ece < 0.01 and honest.ece_equal_mass < 0.01
    bold = Reliability(np.where(p > 0.5, 0.99, 0.01), right.astype(np.float64))
    assert bold.ece > 0.2 and honest.nce is not None and bold.nce is not None and honest.nce > 0.2 > bold.nce


def test_the_chart_is_a_document_with_a_dot_a_bin() -> None:
    curves = {"barista:/some/where/data": of((0.95, True), (0.35, False)), "a & b": of((0.5, True))}
    root = ElementTree.fromstring(reliability_chart(curves, "model <1>"))
    assert sum(element.tag.endswith("circle") for element in root.iter()) == 10 + 3
    said = "".join(root.itertext())
    assert "model <1>: share right" in said and "data, ECE 20.0 %" in said and "/some" not in said
