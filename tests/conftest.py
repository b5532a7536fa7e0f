"""Fixtures that every part's tests share."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

from device_sdk.bundle import Bundle
from tests.tiny import write_tiny_bundle

# How long an example takes says nothing where cores are shared.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


def pytest_make_parametrize_id(val: object) -> str | None:
    """A case's bytes are named by how many they are: workers must agree on every name, and bytes may hold the time."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of the ``tiny`` preset with random weights that emit tokens. Read-only; shared by the whole run."""
    return Bundle.open(write_tiny_bundle(tmp_path_factory.mktemp("bundles") / "tiny"))


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A server that a test starts in this process sets up the root's log; the next test's output is without it."""
    root = logging.getLogger()
    before = [type(handler) for handler in root.handlers], root.level
    yield
    if root.level != before[1]:
        root.setLevel(before[1])
    root.handlers[:] = [
        handler
        for handler in root.handlers
        if type(handler) in before[0] or not type(handler).__module__.startswith("server")
    ]
