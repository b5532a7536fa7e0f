"""Arguments and stored values that are not what is expected, refused by name."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from numbers import Integral, Real
from pathlib import Path

from device_sdk.errors import ConfigurationError, DataError, StateError

NUMBER, WHOLE = Real, Integral
"""What counts as a number, and as a whole one: numpy's too."""


def read_utf8(path: Path, kind: type[ConfigurationError | DataError], option: str = "") -> str:
    """The text of a file in UTF-8. Raises ``kind``, which names the file and the line, and an ``option`` that gave it:
    it cannot be read, or is something else."""
    named = f"{option}: {path}" if option else str(path)
    try:
        content = path.read_bytes()
        return content.decode()
    except OSError as error:
        raise kind(f"{named}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        line, found = content[: error.start].count(b"\n") + 1, content[error.start]
        raise kind(
            f"{named}, line {line}: found the byte {found:#x}, expected text in UTF-8; save it as that"
        ) from error


def check_type(name: str, value: object, kinds: type | tuple[type, ...], expected: str) -> None:
    """ConfigurationError: ``value``, which messages call ``name``, is of none of these types. True is no number."""
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ConfigurationError(f"{name}: found {type(value).__name__}, expected {expected}")


def check_interval(name: str, value: float, interval: str) -> None:
    """ConfigurationError: ``value`` is no finite number in ``interval``, such as "[0, 1)" or "(0, inf)"."""
    low, high = map(float, interval[1:-1].split(","))
    above = low < value or (interval[0] == "[" and value == low)
    below = value < high or (interval[-1] == "]" and value == high)
    if not (math.isfinite(value) and above and below):
        raise ConfigurationError(f"{name}: found {value}, expected a number in {interval}")


def check_intervals(place: str, settings: object, interval: str, *names: str) -> None:
    """ConfigurationError, which names the place and the setting: one of these is not in ``interval``."""
    for name in names:
        check_interval(f"{place}.{name}", getattr(settings, name), interval)


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """ConfigurationError: ``value`` is none of these."""
    if value not in choices:
        raise ConfigurationError(f"{name}: found {value!r}, expected one of {', '.join(map(repr, choices))}")


@contextmanager
def reading(place: str) -> Iterator[None]:
    """StateError, which names the place: the stored value read inside is damaged. It quotes nothing of it."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        found = f"{place}: the value cannot be read ({type(error).__name__})"
        raise StateError(f"{found}; delete the state folder to start afresh") from None


def is_this_machine(host: str) -> bool:
    """Whether a host name or address is reached from this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
