from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.errors import ConfigurationError, DataError
from server.lab.corpora.grammar import split_of
from server.lab.simulation.fleet import SimulationSettings
from server.lab.simulation.population import Participant, Shape, gather
from tests.server.lab.test_read_roles import write_voices

SMALL = Shape(rounds=2, devices=2, each=2, heldout=1, heldout_each=2)


def texts(voices: tuple[Participant, ...]) -> list[str]:
    return [str(said.text) for voice in voices for round_ in voice.rounds for said in round_]


def test_made_voices_and_sentences_belong_to_their_split_and_follow_from_the_seed(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    first, again, other = (
        gather("made", seed, SMALL, {}, tmp_path / str(n), lambda *done: seen.append(done))
        for n, seed in enumerate((5, 5, 6))
    )
    assert [len(voice.rounds) for voice in first.devices] == [2, 2] and seen[9] == seen[-1] == (10, 10)
    assert all(split_of(text) == "devices" for text in texts(first.devices))
    assert all(split_of(text) == "heldout" for text in texts(first.heldout))
    waveform = first.devices[0].rounds[0][0].load()
    assert waveform.dtype == np.float32 and waveform.size > 8_000
    assert texts(first.devices) == texts(again.devices) != texts(other.devices)
    pairs = zip(first.devices[0].rounds[0], again.devices[0].rounds[0], strict=True)
    assert all(np.array_equal(a.load(), b.load()) for a, b in pairs)


def test_habits_are_chosen(tmp_path: Path) -> None:
    """With all of them people say some commands again; with none, nobody has any of their own."""
    shape = Shape(rounds=1, devices=2, each=100, heldout=1, heldout_each=1)
    said = {
        habit: texts(gather("made", 3, shape, {}, tmp_path / str(habit), habit=habit).devices)
        for habit in (0.0, 0.5, 1.0)
    }
    again = {habit: len(every) - len(set(every)) for habit, every in said.items()}
    assert again[0.0] < again[0.5] < again[1.0]
    assert len({tuple(every) for every in said.values()}) == 3


@pytest.mark.parametrize(
    ("how", "message"),
    [({"habit": 1.5}, r"habit.*1\.5"), ({"habit": 0.5, "source": "barista:x"}, "only made people's")],
)
def test_habits_that_make_no_sense_are_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SimulationSettings(**how)


def test_real_voices_are_split_as_the_card_says(tmp_path: Path) -> None:
    source = write_voices(tmp_path / "data", {f"v{number}": 5 for number in range(8)})
    card = {"barista": {"base": ["v0"], "development": ["v1"], "devices": ["v2", "v3"], "heldout": ["v4"]}}
    population = gather(source, 1, Shape(rounds=3), card, tmp_path / "speech")
    devices, heldout = ({voice.name for voice in voices} for voices in (population.devices, population.heldout))
    assert {"v2", "v3"} <= devices and "v4" in heldout and not devices & heldout
    assert devices | heldout == {f"v{number}" for number in range(2, 8)}
    ids = sorted(said.id for round_ in population.devices[0].rounds for said in round_)
    assert len(ids) == len(set(ids)) == 5  # every utterance once, however the rounds divide it


def test_unknown_voices_are_split_the_same_way_every_time_and_two_are_enough(tmp_path: Path) -> None:
    source = write_voices(tmp_path / "data", {f"new{number}": 1 for number in range(30)})
    found = [gather(source, seed, Shape(rounds=1), {}, tmp_path / str(seed)).devices for seed in (1, 2)]
    first, second = ({voice.name for voice in devices} for devices in found)
    assert first == second and 10 < len(first) < 28
    population = gather(write_voices(tmp_path / "two", {"v0": 3, "v1": 3}), 1, Shape(), {}, tmp_path / "speech")
    assert len(population.devices) == len(population.heldout) == 1


@pytest.mark.parametrize("groups", [{"v0": 3}, {"v0": 3, "v1": 3}])
def test_a_source_with_nobody_to_hold_out_is_refused(groups: dict[str, int], tmp_path: Path) -> None:
    source = write_voices(tmp_path / "data", groups)
    with pytest.raises(DataError, match="not in base training"):
        gather(source, 1, Shape(), {"barista": {"base": ["v1"]}}, tmp_path / "speech")
