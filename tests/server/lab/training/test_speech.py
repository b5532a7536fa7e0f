import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from device_sdk.errors import ConfigurationError
from server.lab.corpora import grammar
from server.lab.corpora.acoustics import STRONG, Ranges
from server.lab.corpora.voices import Voice
from server.lab.training import speech
from server.lab.training.recordings import SPOKEN, Recording
from server.lab.training.speech import Mixture, ShardMaker, make_shard, sentence
from tests.forks import is_running
from tests.server.parties import until
from tests.signals import tone

pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")


REAL = (
    Recording(tone(1.0, 0.6), "a large mocha", "v1", "barista"),
    Recording(tone(0.3), "one", "jackson", "fsdd"),
    Recording(tone(0.3), "two", "jackson", "fsdd"),
)


def test_a_shard_is_a_function_of_seed_and_index_with_the_shares_of_its_mixture() -> None:
    mixture = Mixture(recordings=REAL, sentences=("hello there",))
    one, again, other = (make_shard(mixture, 1, index, 10) for index in (1, 1, 2))
    for a, b in zip(one, again, strict=True):
        assert (a.text, a.source) == (b.text, b.source)
        np.testing.assert_array_equal(a.features, b.features)
    assert [e.text for e in one] != [e.text for e in other]
    sources = [example.source for example in make_shard(Mixture(recordings=REAL, recorded=0.5), 3, 1, 20)]
    assert (sources.count("made"), sources.count("barista"), sources.count("fsdd")) == (10, 6, 4)


def test_small_sets_are_not_drowned_and_nothing_comes_twice_before_all_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech, "augment", lambda waveform, *scene: waveform)
    sizes = {"large": 81, "small": 9}
    phrases = [Recording(tone(0.3), f"clip {index}", "v", source) for source, n in sizes.items() for index in range(n)]
    shard = make_shard(Mixture(recordings=tuple(phrases), recorded=1.0), 1, 1, 200)
    texts = {source: [example.text for example in shard if example.source == source] for source in sizes}
    assert 35 <= len(texts["small"]) <= 65, "a root of 9 to one of 81: a quarter"
    assert {len(set(of)) for of in texts.values()} == {9, 81}
    assert all(len(set(texts["small"][i : i + 9])) == 9 for i in range(0, 27, 9))


def test_made_sentences_are_of_the_base_split() -> None:
    generator = np.random.default_rng(0)
    mixture = Mixture(sentences=("hello there",), sentences_share=0.3)
    drawn = [sentence(mixture, generator) for _ in range(300)]
    assert 50 < drawn.count("hello there") < 130
    assert all(grammar.split_of(text) == "base" for text in drawn if text != "hello there")


def test_a_share_of_a_shard_is_quiet_and_speakers_may_be_waited_for() -> None:
    nobody = [example for example in make_shard(Mixture(quiet=0.5), 4, 1, 20) if example.text == ""]
    assert len(nobody) == 10 and {example.source for example in nobody} == {"made"}
    assert all(40 <= len(example.features) <= 542 and np.isfinite(example.features).all() for example in nobody)
    usual, waiting = (make_shard(Mixture(waiting=share), 4, 1, 12) for share in (0.0, 1.0))
    assert sum(len(e.features) for e in waiting) > 1.3 * sum(len(e.features) for e in usual)


@pytest.mark.parametrize("index", [0, 1])
def test_a_mixture_may_name_its_voices(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    voices = (Voice("en-us", "Alex"), Voice("en-gb", "f1"))
    heard: list[str] = []

    def listen(text: str, voice: Voice) -> np.ndarray:
        heard.append(voice.name)
        return tone(0.4)

    monkeypatch.setattr(speech, "speak", listen)
    make_shard(Mixture(voices=voices, sentences=("hello there",)), 1, index, 12)
    assert set(heard) == {voice.name for voice in voices}


def test_shard_0_is_easy() -> None:
    examples = make_shard(Mixture(recordings=REAL, quiet=0.5), 1, 0, 40)
    assert all(1 <= len(example.text.split()) <= 3 for example in examples), "nothing is quiet"
    assert {example.source for example in examples} == {"made", "fsdd"}


def test_what_a_machine_spoke_is_heard_in_the_rooms_of_made_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: dict[str, set[Ranges]] = {}

    def listen(waveform: np.ndarray, generator: np.random.Generator, scenes: Ranges, noises: object) -> np.ndarray:
        heard.setdefault("people" if waveform[0] == 0.0 else "machine", set()).add(scenes)
        return waveform

    monkeypatch.setattr(speech, "augment", listen)
    machine = Recording(tone(1.0)[40:], "a flat white", "v", SPOKEN)
    make_shard(Mixture(recordings=(REAL[0], machine), recorded=1.0), 1, 1, 40)
    assert heard == {"people": {speech.REAL}, "machine": {STRONG}}


def test_shares_above_one_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="add up to more than 1"):
        Mixture(intents={"digits": 0.9}, sentences_share=0.2)


def test_most_strings_of_words_are_numbers_of_speakers_whose_digits_are_known() -> None:
    """Each source is heard as much, however many speakers it has; a speaker of two digits says no numbers."""
    few = [Recording(tone(0.1), word, "few", "commands") for word in ("go", "stop", "left", "six", "seven")]
    many = [
        Recording(tone(0.1), word, f"{source}-{number}", source)
        for source, speakers in (("commands", 9), ("fsdd", 1))
        for number in range(speakers)
        for word in ("go", "one", "two", "three", "four")
    ]
    shard = make_shard(Mixture(recordings=(*few, *many), recorded=1.0), 1, 1, 300)
    strings = [example for example in shard if " " in example.text]
    numbers = [example for example in strings if set(example.text.split()) <= {"one", "two", "three", "four"}]
    assert 150 <= len(strings) <= 210 and 0.6 < len(numbers) / len(strings) < 0.9
    assert 0.35 < [example.source for example in numbers].count("fsdd") / len(numbers) < 0.65


@pytest.mark.parametrize("processes", [1, 2])
def test_the_maker_gives_the_shards_of_a_window_and_forgets_older_ones(tmp_path: Path, monkeypatch, processes) -> None:
    monkeypatch.setattr(speech, "AHEAD", 0)
    with ShardMaker(tmp_path, Mixture(), 5, 3, processes) as maker:
        windows = [[example.text for example in maker.window(first, first + 1)] for first in (1, 2)]
    one, two, three = ([example.text for example in make_shard(Mixture(), 5, index, 3)] for index in (1, 2, 3))
    assert windows == [one + two, two + three]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["shard-00002.safetensors", "shard-00003.safetensors"]


def test_a_killed_run_leaves_no_process_behind(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from server.lab.training.speech import Mixture, ShardMaker\n"
        "with ShardMaker(Path(sys.argv[1]), Mixture(), 1, 2) as maker:\n"
        "    maker.window(0, 0)\n"
        "    print(*maker._pool._processes, flush=True)\n"
        "    time.sleep(600)\n"
    )
    root = Path(__file__).parents[4]
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        assert is_running(child)
        process.kill()
    until(lambda: not is_running(child), 60)
