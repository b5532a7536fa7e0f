from __future__ import annotations

import pytest

from device_sdk.feedback.signals import (
    Accepted,
    Alternate,
    Cancelled,
    Corrected,
    Rating,
    Repeated,
    Semantics,
    Signal,
    Together,
)
from device_sdk.feedback.slots import SlotLexicon, slot_cost
from device_sdk.personalization.cache import confirmed_texts

LEXICON = SlotLexicon({"drink": ("mocha", "latte"), "size": ("small", "large")})
NBEST = ("get me a large latte", "get me a small mocha", "give me a small mocha", "get me a mocha")


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        (Accepted(), None),
        (Cancelled(), ()),
        (Repeated(("a large latte",)), ()),
        (Rating(0.4), ()),
        (Rating(0.5), None),
        (Alternate("a small mocha"), None),
        (Corrected("a Small mocha"), ("a small mocha",)),
        (Together((Accepted(), Alternate("a small mocha"))), None),
        (
            Together((Cancelled(), Corrected("a small mocha"), Semantics({"drink": "latte"}, LEXICON))),
            ("a small mocha",),
        ),
        (Together((Repeated(), Semantics({"drink": "latte", "size": "large"}, LEXICON))), NBEST[:1]),
        (Semantics({"drink": "mocha", "size": "small"}, LEXICON), NBEST[1:3]),
    ],
)
def test_what_counts_after_feedback(signal: Signal, expected: tuple[str, ...] | None) -> None:
    assert confirmed_texts(NBEST, signal) == expected


def test_a_missed_value_is_put_in() -> None:
    slots = {"drink": "mocha", "size": "large"}
    found = confirmed_texts(NBEST, Semantics(slots, LEXICON))
    assert found is not None
    assert len(found) == 1
    assert slot_cost(found[0], slots, LEXICON) == 0


def test_without_entries_nothing_changes() -> None:
    assert confirmed_texts((), Corrected("mocha")) is None


def test_where_nothing_can_be_repaired_the_nearest_entries_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from device_sdk.personalization import cache

    monkeypatch.setattr(cache, "repair", lambda *_, **__: ())
    signal = Semantics({"drink": "latte", "size": "small"}, LEXICON)
    assert confirmed_texts(("a large mocha", "a small mocha", "a large latte"), signal) == (
        "a small mocha",
        "a large latte",
    )
