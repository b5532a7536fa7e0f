"""What memory holds, for how long, and what it says of what is gone."""

import numpy as np
import pytest

from device_sdk import Accepted, FeedbackError
from device_sdk.learning.memory import Bounds, Example, Recent

FRAMES = np.zeros((1, 100), np.float32)


class Clock:
    """Seconds of a memory, and of the day."""

    def __init__(self, capacity: int, seconds: float, bounds: Bounds = Bounds()) -> None:
        self.now = 0.0
        self.recent = Recent(capacity, seconds, lambda: self.now, lambda: 5_000.0 + self.now, bounds)

    def add(self, name: str, sound: np.ndarray = FRAMES, *, marked: bool = True, on_disk: bool = False) -> None:
        self.recent.add(Example(name, sound, (), None))
        if marked:
            self.recent.mark(name, Accepted())
        if on_disk:
            self.recent.keep(name)

    def names(self) -> str:
        return "".join(each.utterance_id for each in self.recent.contents())


def test_it_is_bounded_in_number_and_time() -> None:
    clock = Clock(2, 10.0)
    for name in "abc":
        clock.add(name, marked=name == "c")
        clock.now += 1.0
    assert clock.names() == "bc"
    with pytest.raises(FeedbackError, match="'a'"):
        clock.recent.mark("a", Accepted())
    taken = [clock.recent.take(wait_seconds) for wait_seconds in (60, 60, 1.5)]
    assert [each and each.utterance_id for each in taken] == ["c", None, "b"]
    clock.add("d")
    clock.now += 10.5
    assert len(clock.recent) == 0


def test_what_was_learned_from_stays_to_be_replayed() -> None:
    clock = Clock(2, 10.0)
    for name in "abc":
        clock.add(name)
        taken = clock.recent.take(0)
        assert taken is not None
        clock.recent.keep_learned(taken, 2)
        clock.now += 4.0
    assert "".join(each.utterance_id for each in clock.recent.learned()) == clock.names() == "bc"
    assert all(each.learned and each.sound for each in clock.recent.contents()) and len(clock.recent) == 0
    clock.now += 4.0
    assert clock.names() == "c"
    clock.recent.drop_features()
    assert clock.recent.learned() == ()


def test_what_is_on_the_disk_has_bounds_of_its_own_and_what_is_lost_is_counted() -> None:
    clock = Clock(2, 60.0, Bounds(3, 4 * 400))
    recent = clock.recent
    for name in "abc":
        clock.add(name, on_disk=True)
    clock.add("d")
    clock.add("e", marked=False)
    assert clock.names() == "abcde", "each kind in its own bound"
    clock.add("f")
    assert (recent.lost(), recent.gone()) == (1, ()), "d was confirmed, and pushed out by f"
    clock.add("g", on_disk=True)
    assert (recent.lost(), recent.gone(), recent.lost(), recent.gone()) == (1, ("a",), 0, ())
    clock.add("h", np.zeros((3, 100), np.float32), on_disk=True)
    assert recent.gone() == ("b", "c"), "too many bytes"
    recent.lost()
    clock.now += 61
    assert recent.lost() == 1, "f, after a minute; nobody had said anything about e"
    assert clock.names() == "gh"
    clock.now += 86_400
    assert (clock.names(), recent.gone(), recent.lost()) == ("", ("g", "h"), 2)


def test_an_hour_bounds_what_nobody_confirmed_and_it_makes_room_first() -> None:
    clock = Clock(9, 60.0, Bounds(2, 10_000))
    for name in ("confirmed", "heard", "later"):
        clock.add(name, marked=name == "confirmed", on_disk=True)
    assert clock.recent.gone() == ("heard",)
    clock.now += 61
    assert (clock.recent.gone(), clock.recent.kept(), clock.recent.lost()) == (("later",), ("confirmed",), 0)
