"""A device's life in a process of its own, with canaries in everything it hears: hearing, feedback of every kind,
learning, check-ins, errors provoked with canaries in hand, and an end without goodbye.

    python -m tests.device_sdk.privacy.life BUNDLE STATE TAPPED_URL URL NOTES [--leak]

NOTES is where the canaries are written for whoever searches; it is no part of what is searched. With ``--leak`` the
device is made to leak in every way that the search is meant to notice."""

import faulthandler
import gzip
import itertools
import json
import logging
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray

from device_sdk import Bundle, Client, Device, DeviceSettings, Hotword, IdiolectError, LearningSettings
from device_sdk.feedback import Accepted, Alternate, Cancelled, Corrected, Rating, Repeated, Semantics, SlotLexicon
from device_sdk.hypothesis import Result
from device_sdk.learning import StepSettings
from device_sdk.personalization import cache as caches
from device_sdk.state import Store
from tests.bounds import ANYTHING
from tests.live import LosesReports
from tests.server.parties import ENROLMENT, NO_NOISE, Operator
from tests.signals import noise
from tests.speech import clips

KEY = bytes(range(32))
SETTINGS = DeviceSettings(
    bounds=ANYTHING,
    learning=LearningSettings(passes=1, wait_seconds=0.0, step=StepSettings(learning_rate=0.05)),
    memory_utterances=32,
)
UNLISTED = ("wizardry", "xylophonist", "zugzwang", "zurichsee", "borborygmus")
"""Words that no public list has."""
SAID = "borborygmus wizardry"
CONTACT = "zugzwang xylophonist"
LEXICON = SlotLexicon({"thing": ("xylophonist", "wizardry"), "place": ("zurichsee",)})
LEAKS = ("log", "file", "temporary", "row", "traffic", "message")


@dataclass
class Notes:
    """Canaries as they were: texts, samples [8], features [8] and pieces. done: what happened, to prove it did."""

    texts: set[str] = field(default_factory=set)
    sounds: list[NDArray[np.float32]] = field(default_factory=list)
    features: list[NDArray[np.float32]] = field(default_factory=list)
    pieces: set[tuple[int, ...]] = field(default_factory=set)
    done: dict[str, int] = field(default_factory=dict)

    def heard(self, waveform: NDArray[np.float32], features: NDArray[np.float32], result: Result) -> None:
        loud = np.argsort(-np.abs(waveform))[:200:40]
        self.sounds.extend(waveform[at : at + 8].copy() for at in loud.tolist() if at + 8 <= waveform.size)
        for frame in np.linspace(0, len(features) - 9, 4).astype(int).tolist():
            self.features.append(features[frame, 20:28].copy())
            self.features.append(features[frame : frame + 8, 30].copy())
        for hypothesis in result.nbest:
            pairs = map(" ".join, itertools.pairwise(hypothesis.text.split()))
            self.texts |= {text for text in (*pairs, hypothesis.text) if len(text) >= 8}
            self.pieces |= {hypothesis.tokens[start : start + 5] for start in range(len(hypothesis.tokens) - 4)}

    def count(self, what: str, times: int = 1) -> None:
        self.done[what] = self.done.get(what, 0) + times


def main(bundle_path: str, state: str, tapped: str, url: str, out: str, *, leak: bool = False) -> None:
    logging.basicConfig(level=logging.DEBUG)
    faulthandler.enable()
    bundle, notes = Bundle.open(bundle_path), Notes(texts=set(UNLISTED) | {SAID, CONTACT})
    bundle.combination = replace(bundle.combination, sigma=8.0)  # of noise only later entries have listed words
    spoken = [noise(48_000, seed) for seed in range(4)] if bundle.manifest.name == "tiny" else clips()
    operator = Operator(httpx.Client(timeout=120), url)
    device = Device.open(state, KEY, bundle, SETTINGS)
    device.agree("counting", "learning", "marginals", "deltas")
    _hears_and_learns(device, spoken, notes)
    plans = {"marginals": {"epsilon": NO_NOISE}, "deltas": {"clip_norm": 10.0}, "suppression": 0.0}
    first = operator.open(**plans)
    with Client(tapped, timeout=120, pause=lambda seconds: None) as client:
        with _provoked(notes):
            device.check_in(client, "a wrong token")
        for sent in device.check_in(client, ENROLMENT).sent:
            notes.count(f"{sent.kind} sent")
        operator.close(first)
        second = operator.open(**plans)
        notes.count("models", int(device.check_in(client).new_model))
        _hears_and_learns(device, spoken[:1], notes)
        with _provoked(notes), Client(tapped, transport=LosesReports(), pause=lambda seconds: None) as lost:
            device.check_in(lost)
        operator.close(second)
        operator.open(**plans)
        notes.count("refused", sum(sent.refused is not None for sent in device.check_in(client).sent))
    _provokes(device, notes)
    held = device._model_state.cache.unlisted
    notes.count("unlisted words counted", sum(word in held for word in UNLISTED))
    if leak:
        _leaks(device, Path(state), tapped, notes)
    _damaged(Path(state), bundle, notes)
    Path(out).write_bytes(pickle.dumps(vars(notes)))
    print("the end", flush=True)
    _ends(device, notes)


def _hears_and_learns(device: Device, spoken: list[NDArray[np.float32]], notes: Notes) -> None:
    signals = (
        Corrected(f"{SAID} zurichsee"),
        Semantics({"thing": "xylophonist", "place": "zurichsee"}, LEXICON),
        Alternate(f"{CONTACT} wizardry"),
        Repeated((SAID, CONTACT)),
        Rating(0.25),
        Accepted(),
        Cancelled(),
    )
    for number, signal in enumerate(signals):
        waveform = spoken[number % len(spoken)]
        session = device.session(16_000, hotwords=_contacts(device))
        for start in range(0, waveform.size, 4_000):
            session.feed(waveform[start : start + 4_000])
        result = session.finish()
        notes.heard(waveform, session.features, result)
        device.feedback(result.utterance_id, signal)
        notes.count("feedback")
    device.recognize(spoken[0], 16_000)  # and one that nobody says anything about
    notes.count("steps", device.learn().steps)


def _contacts(device: Device) -> list[str | Hotword]:
    try:
        device.session(16_000, hotwords=[CONTACT])
    except IdiolectError:
        return []
    return [CONTACT]


def _provokes(device: Device, notes: Notes) -> None:
    """Every refusal of the SDK that has something of the user's in hand."""
    utterance = device.recognize(clips()[0], 16_000).utterance_id
    calls: list[Callable[[], object]] = [
        lambda: Corrected([SAID]),
        lambda: Corrected(SAID.encode()),
        lambda: Alternate((SAID,)),
        lambda: Rating(SAID),
        lambda: Repeated([SAID]),
        lambda: Semantics({"thing": [SAID]}, LEXICON),
        lambda: Semantics({"thing": ""}, SlotLexicon({"thing": (SAID, "")})),
        lambda: Semantics({"thing": SAID}, LEXICON),
        lambda: device.feedback(utterance, SAID),
        lambda: device.feedback(utterance, Corrected(f"{SAID} café")),
        lambda: device.feedback(utterance, Corrected(f"{SAID} 7")),
        lambda: device.feedback("utterance of nobody", Corrected(SAID)),
        lambda: device.session(16_000, hotwords=[f"{CONTACT} 7"]),
        lambda: device.session(16_000, hotwords=CONTACT),
        lambda: device.session(16_000, hotwords=[Hotword(CONTACT, -1.0)]),
        lambda: device.session(16_000, hotwords=[Hotword("", spellings=(CONTACT,))]),
        lambda: device.recognize(np.full(800, np.nan, np.float32), 16_000),
        lambda: device.recognize(clips()[0][None, None], 16_000),
        lambda: _cache_of(device, {"listed": {SAID: [SAID, 1.0]}}),
        lambda: _cache_of(device, {"listed": [SAID]}),
        lambda: _cache_of(device, {"unlisted": {SAID: SAID}}),
        lambda: _cache_of(device, {"words_digest": SAID, "utterances": SAID}),
        lambda: _cache_of(device, {"format": SAID}),
    ]
    for call in calls:
        with _provoked(notes):
            call()
    device._store._run("PRAGMA max_page_count = 1")
    device.recognize(clips()[0], 16_000)
    with _provoked(notes):
        device.feedback(utterance, Corrected(SAID))
    device._store._run("PRAGMA max_page_count = 1000000")


def _cache_of(device: Device, change: dict[str, object]) -> None:
    words = device.base.words
    content = json.loads(caches.to_bytes(caches.empty(words), words)) | change
    caches.from_bytes(json.dumps(content).encode(), words)


def _damaged(state: Path, bundle: Bundle, notes: Notes) -> None:
    """Copies of the state, each with one file damaged, are opened."""
    with tempfile.TemporaryDirectory() as scratch:
        for number, path in enumerate(sorted(state.iterdir())):
            if path.name == "lock" or path.suffix == ".bin":
                continue
            folder = Path(scratch, str(number))
            folder.mkdir()
            for each in state.iterdir():
                (folder / each.name).write_bytes(each.read_bytes())
            content = bytearray(path.read_bytes())
            content[len(content) // 2 : len(content) // 2 + 64] = bytes(64)
            (folder / path.name).write_bytes(content)
            with _provoked(notes):
                Device.open(folder, KEY, bundle, SETTINGS).close()
        with _provoked(notes):
            Device.open(folder, bytes(32), bundle, SETTINGS)
        with _provoked(notes):
            store = Store(folder, KEY)
            store.close()
            store.get("counts", "cache")


def _leaks(device: Device, state: Path, tapped: str, notes: Notes) -> None:
    logging.getLogger("device_sdk.device").debug("heard %s", SAID)
    (state / "notes.bin").write_bytes(b"x" + notes.features[0].tobytes())
    with tempfile.NamedTemporaryFile(delete=False, suffix=".gz") as file:
        file.write(gzip.compress((notes.sounds[0] * 32768).astype("<i2").tobytes()))
    device._store._run("INSERT INTO settings (name, value) VALUES ('said', ?)", SAID.encode("utf-16-le"))
    httpx.post(tapped + "/v1/check-in", json={"tokens": sorted(notes.pieces)[0]})
    with _provoked(notes):
        raise IdiolectError(f"corrected.text: found {CONTACT!r}")


def _ends(device: Device, notes: Notes) -> None:
    """An error that nobody catches, with everything in the frame, and a process that ends as if it were killed."""
    said, features = SAID, notes.features
    try:
        raise RuntimeError(f"the app failed with {len(said)} letters and {len(features)} features in hand")
    except RuntimeError:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def _provoked(notes: Notes) -> Iterator[None]:
    """An error is what is expected; its whole traceback goes where an app's would."""
    try:
        yield
    except IdiolectError:
        traceback.print_exc()
        notes.count("errors")


if __name__ == "__main__":
    main(*sys.argv[1:6], leak="--leak" in sys.argv)
