"""What processes full of devices send to a server, and how its answers are counted."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from device_sdk.secure_aggregation.participant import Participant, advertise, answer
from device_sdk.wire.messages import FIXED_POINT, CheckedIn, Receipt
from device_sdk.wire.secure_aggregation import AggregationTask
from server.lab.load.devices import SECONDS, Device, Line, Target, device_of

SENDERS, THREADS = 2, 4
"""Processes that devices are in, and how many of each process' devices send at a time."""
REPEATS = 0.03
"""How often a report whose receipt came is followed by one that was received long ago."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Of what was sent: answers as they should be, what was answered instead and how often, seconds of each answer,
    and the seconds of all of it together."""

    answered: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    waits: tuple[float, ...] = ()
    seconds: float = 0.0

    def plus(self, other: Tally) -> Tally:
        """Of two that were sent at the same time."""
        seconds = max(self.seconds, other.seconds)
        return Tally(self.answered + other.answered, self.problems + other.problems, self.waits + other.waits, seconds)


class Crowd:
    """Owns processes, each with its share of a fleet's devices."""

    def __init__(self, signing: int) -> None:
        self._pool = ProcessPoolExecutor(SENDERS, mp_context=get_context("spawn"))
        self.shares = [range(signing * each // SENDERS, signing * (each + 1) // SENDERS) for each in range(SENDERS)]

    def begin(self, work: Callable[..., Tally], target: Target, *more: Any) -> list[Future[Tally]]:
        """``work(target, numbers of devices, *more)`` in every process -> what gives their tallies."""
        return [self.begin_one(number, work, target, *more) for number in range(SENDERS)]

    def begin_one(self, number: int, work: Callable[..., Tally], target: Target, *more: Any) -> Future[Tally]:
        """In one of the processes, with its share."""
        return self._pool.submit(work, target, self.shares[number], *more)

    def run(self, work: Callable[..., Tally], target: Target, *more: Any) -> Tally:
        """The same, all of it together."""
        return total(self.begin(work, target, *more))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


def total(running: Iterable[Future[Tally]]) -> Tally:
    """Raises what a process raised."""
    return reduce(Tally.plus, [each.result() for each in running], Tally())


class _Sender:
    """Owns the line of one thread and what it counts."""

    def __init__(self, target: Target) -> None:
        self.target, self.line = target, Line(target.url)
        self.answered, self.problems, self.waits = 0, Counter[str](), list[float]()

    def sent(self, device: Device, path: str, body: bytes, round_id: str | None = None) -> bytes | None:
        """The content of an answer that is as it should be."""
        return self._counted(path, lambda: self.line.send(device, path, body, round_id))

    def got(self, path: str) -> bytes | None:
        return self._counted(path, lambda: self.line.get(path))

    def _counted(self, path: str, exchange: Callable[[], tuple[int, bytes]]) -> bytes | None:
        begun = time.monotonic()
        try:
            status, content = exchange()
        except ConnectionError as error:
            self.problems[f"{path}: {error}"] += 1
            return None
        self.waits.append(time.monotonic() - begun)
        if status != 200:
            self.problems[f"{status} {content[:200]!r}"] += 1
            return None
        self.answered += 1
        return content


def _together(target: Target, works: Sequence[Callable[[_Sender], None]]) -> Tally:
    """Each in a thread. Raises the first error of any."""
    senders, errors = [_Sender(target) for _ in works], list[BaseException]()

    def run(work: Callable[[_Sender], None], sender: _Sender) -> None:
        try:
            work(sender)
        except BaseException as error:
            errors.append(error)
        finally:
            sender.line.close()

    begun = time.monotonic()
    threads = [threading.Thread(target=run, args=each) for each in zip(works, senders, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    seconds = time.monotonic() - begun
    return reduce(Tally.plus, (Tally(s.answered, s.problems, tuple(s.waits), seconds) for s in senders), Tally())


def _until(target: Target, seconds: float, numbers: Iterable[int], send: Callable[[_Sender, int], object]) -> Tally:
    """``send`` for one number after the other, in threads, until the time is over or there are none left."""
    left, lock, deadline = iter(numbers), threading.Lock(), time.monotonic() + seconds

    def work(sender: _Sender) -> None:
        while time.monotonic() < deadline:
            with lock:
                number = next(left, None)
            if number is None:
                return
            send(sender, number)

    return _together(target, [work] * THREADS)


def check_ins(target: Target, numbers: range, seconds: float) -> Tally:
    """Of these devices in turn."""

    def send(sender: _Sender, number: int) -> None:
        device = device_of(target.secret, number)
        sender.sent(device, "/v1/check-in", target.check_in(device))

    return _until(target, seconds, cycle(numbers), send)


def reports(target: Target, numbers: range, seconds: float, round_id: str) -> Tally:
    """Of counts, one of each device."""

    def send(sender: _Sender, number: int) -> None:
        device = device_of(target.secret, number)
        sender.sent(device, f"/v1/rounds/{round_id}/marginals", target.report(device, round_id), round_id)

    return _until(target, seconds, numbers, send)


def downloads(target: Target, numbers: range, seconds: float, path: str) -> Tally:
    """Of the same file, again and again."""
    return _until(target, seconds, cycle(numbers), lambda sender, _: sender.got(path))


def stages(target: Target, numbers: range, round_id: str, members: int, minimum: int) -> Tally:
    """A round of secure aggregation, of ``members`` devices in each process, from their keys to their shares."""

    def work(own: Sequence[int], sender: _Sender) -> None:
        waiting: dict[int, tuple[Device, Participant]] = {}
        for number in own:
            device = device_of(target.secret, number)
            participant = advertise(
                *(device.key, device.id, round_id), subject=target.words_digest, words=target.words, minimum=minimum
            )
            waiting[number] = device, participant
            sender.sent(device, f"{path}/keys", participant.advertised.body, round_id)
        deadline = time.monotonic() + SECONDS
        while waiting:
            if time.monotonic() > deadline:
                raise TimeoutError(f"round {round_id}: {len(waiting)} devices still wait for their group")
            for number, (device, participant) in list(waiting.items()):
                content = sender.sent(device, path, b"", round_id)
                task = None if content is None else AggregationTask.model_validate_json(content)
                if task is None or task.stage in ("done", "dropped", "abandoned"):
                    del waiting[number]
                    if task is None or task.stage != "done":
                        sender.problems["a sum without this device"] += 1
                    continue
                participant, message = answer(participant, device.key, task, partial(_one_count, target, number))
                waiting[number] = device, participant
                if message is not None:
                    sender.sent(device, f"{path}/{task.stage}", message.body, round_id)

    path, some = f"/v1/rounds/{round_id}/aggregation", numbers[:members]
    return _together(target, [partial(work, some[each::THREADS]) for each in range(THREADS)])


def _one_count(target: Target, number: int) -> NDArray[np.int64]:
    """A device's vector, without noise, so that the sum tells who is in it."""
    vector = np.zeros(target.words, np.int64)
    vector[target.word_of(number)] = FIXED_POINT
    return vector


def series(target: Target, numbers: range, rounds: int, each: int, journal: Path, stop: Path) -> Tally:
    """``each`` reports to every one of so many rounds that open one after another, by other devices each time, through
    whatever happens to the server. A report is sent until its receipt comes, then a line in ``journal`` says whose it
    was; now and then an old one follows. Ends before its time, after a whole round, once there is a file ``stop``."""
    turn, dice, old = cycle(numbers), random.Random(numbers.start), deque[tuple[Device, str, bytes]](maxlen=200)
    tally, begun, last = Tally(), time.monotonic(), ""
    with journal.open("a", encoding="utf-8") as lines:
        for _ in range(rounds):
            own = [device_of(target.secret, next(turn)) for _ in range(each)]
            last = _next_round(target, own[0], last, stop)
            if not last:
                break
            bodies = [(device, last, target.report(device, last)) for device in own]
            repeated = [dice.choice(old) for _ in own if old and dice.random() < REPEATS]
            tally = tally.plus(_reported(target, bodies, lines, duplicates=False))
            tally = tally.plus(_reported(target, repeated, None, duplicates=True))
            old.extend(bodies[:20])
    return Tally(tally.answered, tally.problems, tally.waits, time.monotonic() - begun)


def _reported(target: Target, sent: Sequence[tuple[Device, str, bytes]], lines: Any, *, duplicates: bool) -> Tally:
    """Each until it is answered. duplicates: they were all received before."""
    lock = threading.Lock()

    def send(sender: _Sender, place: int) -> None:
        device, round_id, body = sent[place]
        begun = time.monotonic()
        status, content = sender.line.insist(device, f"/v1/rounds/{round_id}/marginals", body, round_id)
        sender.waits.append(time.monotonic() - begun)
        if status != 200:
            sender.problems[f"{status} {content[:200]!r}"] += 1
            return
        if duplicates and not Receipt.model_validate_json(content).duplicate:
            sender.problems["received twice"] += 1
        sender.answered += not duplicates
        if lines is not None:
            with lock:
                print(round_id, device.number, file=lines, flush=True)

    return _until(target, SECONDS * len(sent), range(len(sent)), send)


def _next_round(target: Target, device: Device, last: str, stop: Path) -> str:
    """The id of the round after ``last``, once the server offers it; empty once there is a file ``stop``. Raises
    TimeoutError where none comes."""
    line, deadline = Line(target.url), time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline:
            if stop.exists():
                return ""
            status, content = line.insist(device, "/v1/check-in", target.check_in(device))
            offer = CheckedIn.model_validate_json(content).round if status == 200 else None
            if offer is not None and offer.round_id != last:
                return offer.round_id
            time.sleep(0.02)
    finally:
        line.close()
    raise TimeoutError(f"no round opened within {SECONDS:.0f} s of {last or 'the first check-in'}")


def acknowledged(journals: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """(round, device's number) of every receipt."""
    for journal in journals:
        for line in journal.read_text("utf-8").splitlines():
            round_id, number = line.split()
            yield round_id, int(number)
