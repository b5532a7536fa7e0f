"""Several users of one device, who never learn of each other."""

from dataclasses import replace
from pathlib import Path

import pytest

from device_sdk import Bundle, Conditions, ConfigurationError, Profiles, Rating, StateError, Transcribed
from device_sdk.learning.settings import RehearsalSettings
from tests.device_sdk.devices import KEY, personal, quick, tell
from tests.signals import noise

SETTINGS = quick(cost_weight=0.0)


@pytest.fixture
def profiles(tmp_path: Path, tiny_bundle: Bundle):
    with Profiles(tmp_path, KEY, tiny_bundle, SETTINGS) as opened:
        yield opened


def test_users_share_nothing(profiles: Profiles, tmp_path: Path, tiny_bundle: Bundle) -> None:
    ana, ben = profiles["ana"], profiles["ben"]
    ana.agree("marginals")
    tell(ana)
    ana.learn()
    assert (ana.learned().utterances, ana.student.steps) == (1, 1)
    assert (ben.learned().utterances, ben.student.steps, ben.consent.marginals) == (0, 0, False)
    assert profiles["ana"] is ana, "who was here before is here at once"
    assert personal(ana) > 0 == personal(ben)
    with pytest.raises(StateError, match="in use"), Profiles(tmp_path, KEY, tiny_bundle, SETTINGS) as second:
        second["ana"].learned()


def test_profiles_are_there_again_and_tell_no_name_without_the_key(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Profiles(tmp_path, KEY, tiny_bundle, SETTINGS) as profiles:
        for name in ("zoë", "ana"):
            profiles[name].recognize(noise(9600, 1), 16_000)
        assert profiles.names() == ("ana", "zoë")
    with Profiles(tmp_path, KEY, tiny_bundle, SETTINGS) as profiles:
        assert profiles["ana"].learned().utterances == 1 and profiles.names() == ("ana", "zoë")
    for path in tmp_path.rglob("*"):
        assert "ana" not in path.name
        assert not path.is_file() or "zoë".encode() not in path.read_bytes()
    with Profiles(tmp_path, bytes(32), tiny_bundle, SETTINGS) as strangers, pytest.raises(StateError):
        strangers.names()


def test_every_profile_has_a_key_of_its_own(profiles: Profiles) -> None:
    ana, ben = profiles._place("ana"), profiles._place("ben")
    assert profiles._place("ana") == ana and len({KEY, *ana, *ben}) == 5


def test_one_user_is_forgotten_and_the_others_stay(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Profiles(tmp_path, KEY, tiny_bundle, SETTINGS) as profiles:
        for name in ("ana", "ben", "zoë"):
            profiles[name].recognize(noise(9600, 1), 16_000)
        profiles.forget("ana")
        assert profiles.names() == ("ben", "zoë") and profiles["ana"].learned().utterances == 0
        profiles.forget("ana")
    with Profiles(tmp_path, KEY, tiny_bundle, SETTINGS) as profiles:
        profiles.forget("zoë")  # without opening it first
        profiles.forget("nobody")
        assert profiles.names() == ("ben",)
        assert profiles["ben"].learned().utterances == len(list((tmp_path / "profiles").iterdir())) == 1


def test_what_the_app_brings_is_every_users(tmp_path: Path, tiny_bundle: Bundle) -> None:
    """Costs, conditions, policy and rehearsal reach each device."""
    learning = replace(SETTINGS.learning, cost_weight=1.0, rehearsal=RehearsalSettings(every=1))
    asked: list[str] = []

    def answer(what: str, found: object) -> object:
        asked.append(what)
        return found

    host = {
        "cost_function": lambda signal, texts, served: answer("costs", [float(text == served) for text in texts]),
        "conditions": lambda: answer("conditions", Conditions(battery=0.5)),
        "policy": lambda work, found: answer(f"{work} at {found.battery}", None),
        "rehearsal": [Transcribed(noise(9600, 7), "turn on the light")],
    }
    with Profiles(tmp_path, KEY, tiny_bundle, replace(SETTINGS, learning=learning), **host) as profiles:
        for name in ("ana", "ben"):
            asked.clear()
            tell(profiles[name], 1, Rating(0.5))
            assert profiles[name].learn().rehearsed == 1 and {"costs", "conditions", "learn at 0.5"} == set(asked)
    with pytest.raises(TypeError, match=r"found argument 'rehearsals', expected \['conditions',"):
        Profiles(tmp_path, KEY, tiny_bundle, rehearsals=[])  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["", "  ", "n" * 201, None])
def test_what_is_no_name_is_refused(profiles: Profiles, name: str) -> None:
    with pytest.raises(ConfigurationError, match="profile: expected a name"):
        _ = profiles[name]
