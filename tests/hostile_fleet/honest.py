"""Honest devices: the SDK itself, told words by feedback and checking in as an app's timer would.

Every device owns a word, says it ``WEIGHT`` times, far above the least noise that devices can be asked for, and says it
again only when the server has answered for it. So in every release a word's count is ``WEIGHT`` where its owner was
told that its report counts, and 0 elsewhere: more is counting twice, less is loss. Where it was told neither, its
counts being off its books for good, one and none are both right."""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from device_sdk import Bundle, CheckInError, Client, Corrected, Device, DeviceSettings
from device_sdk.checkin.identity import load
from tests.server.parties import ENROLMENT

WEIGHT = 16

EVERY = 2.0
"""Seconds between two check-ins of a device."""
KEY = bytes(range(32))


@dataclass
class Honest:
    """One device. word: its own. said: how often it was said; holding: whether the last time waits for a report.
    counted: the rounds in which it was told that a report of its word counts; unsure: those of which nobody can tell.
    refused: what it was told else, with how often; failures: what check-ins ended with. successes: when one went
    through, in seconds of time.monotonic."""

    device: Device
    word: str
    due: float = 0.0
    said: int = 0
    holding: bool = False
    counted: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    begun: float = field(default_factory=time.monotonic)
    successes: list[float] = field(default_factory=list)

    def name(self, url: str) -> str:
        """What the server calls it."""
        identity = load(self.device._model_state.store, url)
        return (identity.device_id if identity else None) or ""

    @property
    def idle(self) -> bool:
        """Whether nothing waits: not on the books, not in the outbox, not in a group."""
        store, cache = self.device._model_state.store, self.device._model_state.cache
        return not (cache.pending.any() or store.names("outbox") or store.names("aggregation"))

    def say(self) -> None:
        noise = np.random.default_rng(self.said).normal(0.0, 0.05, 4_800).astype(np.float32)
        self.device.feedback(self.device.recognize(noise, 16_000), Corrected(" ".join([self.word] * WEIGHT)))
        self.said += 1
        self.holding = True

    def check_in(self, client: Client) -> None:
        try:
            done = self.device.check_in(client, ENROLMENT).sent
            self.successes.append(time.monotonic())
        except CheckInError as error:
            self.failures[_shorten(str(error))] += 1
            done = error.sent
        for place, sent in enumerate(done, 1):
            if sent.refused is not None:
                self.refused[_shorten(sent.refused)] += 1
                again = any(each.kind == "marginals" and each.refused is None for each in done[place:])
                if self.holding and not again and not self.device._model_state.cache.pending.any():
                    self.unsure.append(sent.round_id)
                    self.holding = False
            elif sent.kind == "marginals" and self.holding:  # else it took part with nothing to report
                self.counted.append(sent.round_id)
                self.holding = False


def _shorten(message: str) -> str:
    return message.partition(": ")[2][:90] or message[:90]


class HonestFleet:
    """Owns the devices and the threads that let them check in, each as often as it is its turn."""

    def __init__(self, folder: Path, bundle: Bundle, url: str, settings: DeviceSettings, threads: int = 4) -> None:
        self.folder, self.bundle, self.url, self.settings = folder, bundle, url, settings
        self.members: list[Honest] = []
        self.speaking = True
        self._next = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, name=f"honest-{number}") for number in range(threads)]
        self.errors: list[BaseException] = []

    def grow(self, count: int) -> None:
        """So many more devices. The first word of the list is for all unlisted ones, and nobody's own."""
        for _ in range(count):
            number = len(self.members) + 1
            device = Device.open(self.folder / f"{number:03d}", KEY, self.bundle, self.settings)
            device.agree("counting", "marginals")
            with self._next:
                self.members.append(Honest(device, self.bundle.words.words[number]))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def quiet(self, seconds: float) -> bool:
        """Nobody says anything more. Returns whether all that was said is answered for within so many seconds."""
        self.speaking, deadline = False, time.monotonic() + seconds
        while not (done := all(each.idle for each in self.members)) and time.monotonic() < deadline and not self.errors:
            time.sleep(0.5)
        return done and not self.errors

    def close(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        for each in self.members:
            each.device.close()

    def _run(self) -> None:
        with Client(self.url, timeout=10, attempts=1) as client:
            while not self._stopping.is_set():
                with self._next:
                    member = min(self.members, key=lambda each: each.due)
                    ready = member.due <= time.monotonic()
                    if ready:
                        member.due = float("inf")  # nobody else takes it before it is given back
                if not ready:
                    time.sleep(0.02)
                    continue
                try:
                    if self.speaking and member.idle:
                        member.say()
                    member.check_in(client)
                except BaseException as error:  # the judge names it
                    self.errors.append(error)
                    return
                member.due = time.monotonic() + EVERY
