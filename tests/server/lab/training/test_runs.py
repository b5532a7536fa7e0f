from pathlib import Path

import numpy as np
import pytest
import soundfile

from device_sdk.errors import DataError
from server.lab.training.runs import home_noises, portable
from tests.signals import noise


@pytest.mark.parametrize(
    ("folder", "given", "expected"),
    [
        ("/data/", "train --text /data/lm.txt", "train --text $IDIOLECT_DATA/lm.txt"),
        ("/data", "barista:/data/barista", "barista:$IDIOLECT_DATA/barista"),
        ("", "barista:/data/barista", "barista:/data/barista"),
    ],
)
def test_published_commands_name_the_data_folder_by_its_variable(monkeypatch, folder, given, expected: str) -> None:
    monkeypatch.setenv("IDIOLECT_DATA", folder)
    assert portable(given) == expected


def test_the_last_third_of_a_noise_is_kept_for_checking(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no recording of noise"):
        home_noises(tmp_path)
    recorded = noise(9_000, 1)
    soundfile.write(tmp_path / "tap.flac", recorded, 16_000)
    (tmp_path / "README.txt").write_text("recorded at home")
    (found,) = home_noises(tmp_path)
    np.testing.assert_allclose(found, recorded[:6_000], atol=1e-3)
