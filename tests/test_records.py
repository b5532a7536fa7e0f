"""The comparison of :mod:`tests.records`: what differs is found, and named by its place."""

from __future__ import annotations

from typing import Any

import pytest

from tests.records.__main__ import compare, first_difference


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        ({"a": [1, {"b": 0.1}]}, {"a": [1, {"b": 0.1}]}, None),
        (float("nan"), float("nan"), None),
        ({"a": [1, {"b": 0.1}]}, {"a": [1, {"b": 0.1 + 2**-56}]}, "/a/1/b: 0.1 and 0.10000000000000002"),
        ([0.0], [-0.0], "/0: 0.0 and -0.0"),
        ([1], [1.0], "/0: 1 and 1.0"),
        ([1], [True], "/0: 1 and True"),
        ([1, 2], [1], ": 2 and 1 entries"),
        ({"a": 1}, {"a": 1, "b": None}, "/b: '(absent)' and None"),
        ({"a": 1}, {}, "/a: 1 and '(absent)'"),
        ("one\ntwo", "one\n three", ", line 2: 'two' and ' three'"),
        ("one", "one\n", ": 'one' and 'one\\n'"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ": in the order ['a', 'b'] and ['b', 'a']"),
    ],
)
def test_the_first_difference_is_named(before: Any, after: Any, difference: str | None) -> None:
    assert first_difference(before, after) == difference


def test_a_record_that_one_side_lacks_differs() -> None:
    rows = compare({"pages": {"a": "x"}}, {"pages": {"a": "x"}, "lists": {}})
    assert [(row["record"], row["difference"] is None) for row in rows] == [("pages", True), ("lists", False)]
    assert rows[0]["before"] == rows[0]["after"] != rows[1]["before"]
