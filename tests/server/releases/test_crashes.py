"""A process that ends at any boundary of a round, and the one that goes on, publish the same, noise included."""

from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from sqlalchemy import select

from server.privacy.noise import KEY_BYTES
from server.rounds import release_keys as keeping
from server.service import Service
from server.storage.schema import release_keys
from tests.server.parties import settings
from tests.server.releases.rounds import Killed, Published, Steps, go_on, killed, noise_of, open_copy, published

EVERY = 10
"""The quick test looks at one boundary in so many; the slow one at all."""


def uncut(folder: Path, place: Path, round_id: str) -> tuple[Published, int]:
    service = open_copy(folder, place)
    steps = Steps(service)
    go_on(service, round_id)
    boundaries = steps.passed
    found = published(service, round_id)
    service.close()
    return found, boundaries


@pytest.mark.parametrize("every", [EVERY, pytest.param(1, marks=pytest.mark.slow)], ids=["part", "whole"])
def test_a_crash_anywhere_and_a_resume_publish_the_same(tmp_path: Path, closed, monkeypatch, every: int) -> None:
    """With one key for every run, so that those which were cut before it was stored can be compared as well."""
    monkeypatch.setattr(keeping, "new_key", lambda: bytes(range(KEY_BYTES)))
    folder, round_id = closed
    expected, boundaries = uncut(folder, tmp_path / "uncut", round_id)
    assert expected.state == "published" and boundaries > 100
    assert np.count_nonzero(noise_of(expected)) > 30, "the noise that is compared is there"
    for limit in range(0, boundaries, every):
        assert killed(open_copy(folder, tmp_path / "cut"), round_id, limit) == limit + 1
        # The second process ends, too, somewhere else; the third one goes on to the end.
        killed(Service(settings(tmp_path / "cut", tick_seconds=1e9)), round_id, (7 * limit) % boundaries)
        last = Service(settings(tmp_path / "cut", tick_seconds=1e9))
        go_on(last, round_id)
        found = published(last, round_id)
        last.close()
        assert found == expected, f"cut at boundary {limit}"


def test_a_stored_key_draws_the_same_noise_again(tmp_path: Path, closed: tuple[Path, str], monkeypatch) -> None:
    """Of a round that was killed as soon as its key was stored, one that nobody chose: two resumes of one key agree,
    and no two keys do."""
    folder, round_id = closed
    place = tmp_path / "with-key"
    service = open_copy(folder, place)
    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr("server.rounds.advance.release_marginals", Mock(side_effect=Killed))
        go_on(service, round_id)
    with service.database.read() as connection:
        (stored,) = connection.execute(select(release_keys.c.key)).scalars().all()
    service.close()
    assert len(stored) == KEY_BYTES
    first, _ = uncut(place, tmp_path / "first", round_id)
    second, _ = uncut(place, tmp_path / "second", round_id)
    assert first == second
    third = open_copy(place, tmp_path / "third")
    with third.database.write() as connection:
        connection.exec_driver_sql("DROP TRIGGER release_keys_no_delete")
        connection.exec_driver_sql("DELETE FROM release_keys")
    go_on(third, round_id)
    other = published(third, round_id)
    third.close()
    assert not np.array_equal(noise_of(first), noise_of(other))
