"""The comparison of :mod:`tests.records`: what differs is found, and named by its place."""

from typing import Any

import pytest

from tests.records.__main__ import compare


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ({"a": [1, {"b": 0.1}]}, {"a": [1, {"b": 0.1}]}, None),
        (float("nan"), float("nan"), None),
        ({"a": [1, {"b": 0.1}]}, {"a": [1, {"b": 0.1 + 2**-56}]}, "/a/1/b"),
        *(([0.0], [-0.0], "/0"), ([1], [1.0], "/0"), ([1], [True], "/0"), ([1, 2], [1], "/1")),
        ({"a": 1}, {"a": 1, "b": None}, "/b"),
        ({"a": 1}, {}, "/a"),
        ("one\ntwo", "one\n three", "/1"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "/a"),
    ],
)
def test_the_first_difference_is_named(before: Any, after: Any, place: str | None) -> None:
    (row,) = compare({"page": before}, {"page": after})
    assert row["record"] == "page"
    assert (row["difference"] is None) if place is None else place in [side[0] for side in row["difference"] if side]


def test_a_record_that_one_side_lacks_differs() -> None:
    rows = compare({"pages": {"a": "x"}}, {"pages": {"a": "x"}, "lists": {}})
    assert [(row["record"], row["difference"] is None) for row in rows] == [("pages", True), ("lists", False)]
