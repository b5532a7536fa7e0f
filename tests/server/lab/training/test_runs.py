import pytest

from server.lab.training.runs import portable


@pytest.mark.parametrize(
    ("folder", "given", "expected"),
    [
        ("/data/", "train --text /data/lm.txt", "train --text $IDIOLECT_DATA/lm.txt"),
        ("/data", "barista:/data/barista", "barista:$IDIOLECT_DATA/barista"),
        ("", "barista:/data/barista", "barista:/data/barista"),
    ],
)
def test_published_commands_name_the_data_folder_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, folder: str, given: str, expected: str
) -> None:
    monkeypatch.setenv("IDIOLECT_DATA", folder)
    assert portable(given) == expected
