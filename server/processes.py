"""Several processes that serve one address: started, watched, started again when one dies, and stopped together.

The process that watches has claimed the state and listens; the others inherit its socket, each with an interpreter of
its own, and the system hands every connection to one of them. They end when it does, however it does: their standard
input ends then. Which of them moves rounds on is settled between themselves (:mod:`server.storage.lock`)."""

import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from device_sdk.errors import ConfigurationError, StateError
from server.logs import fields

log = logging.getLogger("idiolect.server")

START_SECONDS = 180.0
STOP_SECONDS = 20.0
LOOK_SECONDS = 0.1
SHORT_LIVED = 10.0
"""A process that lived for fewer seconds is started again only after a pause, which grows to ``LONGEST_PAUSE``."""
LONGEST_PAUSE = 30.0
SHARED_KEY = "IDIOLECT_SHARED_KEY"
"""In the environment of a server's processes: what :func:`shared_key` tells."""


@dataclass(slots=True)
class _Member:
    """One process. ready: the file that it writes once it answers. due: when it is to be started again."""

    number: int
    ready: Path
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    pause: float = 0.0
    due: float = 0.0


def shared_key() -> str:
    """256 random bits that the processes of one server share until it ends, and nobody else knows."""
    return os.environ.get(SHARED_KEY) or secrets.token_hex(32)


def watch(command: Sequence[str], count: int, listener: socket.socket, told: Callable[[list[int]], None]) -> None:
    """Run ``count`` processes of ``command`` on the listening socket until SIGTERM or SIGINT. Each is given ``--socket
    FD`` and a ``--ready-file`` of its own. told: called with their ids whenever all of them answer, once at the start
    and again when one was started anew. Raises StateError where one does not come up at the start, and
    ConfigurationError on systems whose processes cannot share a socket."""
    if sys.platform == "win32":
        raise ConfigurationError("processes: found more than 1, which cannot share a socket on this system; expected 1")
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    with tempfile.TemporaryDirectory(prefix="idiolect-processes-") as folder:
        members = [_Member(number, Path(folder) / f"{number}.json") for number in range(count)]
        # Counters of all processes are added up from files there, those of processes that died too.
        environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": folder, SHARED_KEY: shared_key()}
        try:
            for member in members:
                _start(member, command, listener, environment)
            _await(members, stopping)
            known: list[int] = []
            while not stopping.wait(LOOK_SECONDS):
                for member in members:
                    _look_after(member, command, listener, environment)
                ready = (member.ready for member in members if member.ready.exists())
                answering = [int(json.loads(file.read_text())["pid"]) for file in ready]
                if len(answering) == count and answering != known:
                    known = answering
                    told(known)
        finally:
            _stop(members)
            for number, handler in before.items():
                signal.signal(number, handler)


def end_with_parent(end: Callable[[], None]) -> None:
    """Call ``end`` from a thread when whoever holds the other end of standard input is gone."""

    def wait() -> None:
        while os.read(0, 64):
            pass
        end()

    threading.Thread(target=wait, name="idiolect-parent", daemon=True).start()


def _start(member: _Member, command: Sequence[str], listener: socket.socket, environment: dict[str, str]) -> None:
    member.ready.unlink(missing_ok=True)
    words = [*command, "--socket", str(listener.fileno()), "--ready-file", str(member.ready)]
    member.process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], env=environment)
    member.started = time.monotonic()


def _await(members: Sequence[_Member], stopping: threading.Event) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not all(member.ready.exists() for member in members):
        if stopping.wait(LOOK_SECONDS):
            return
        for member in members:
            if member.process is not None and (code := member.process.poll()) is not None:
                raise StateError(f"process {member.number + 1}: ended with {code} before it served; its log says why")
        if time.monotonic() > deadline:
            raise StateError(f"processes: not all of {len(members)} served within {START_SECONDS:.0f} s")


def _look_after(member: _Member, command: Sequence[str], listener: socket.socket, environment: dict[str, str]) -> None:
    now = time.monotonic()
    if member.process is not None:
        if (code := member.process.poll()) is None:
            return
        short = now - member.started < SHORT_LIVED
        member.pause = min(LONGEST_PAUSE, max(1.0, 2 * member.pause)) if short else 0.0
        member.due = now + member.pause
        told = fields(process=member.number + 1, code=code, pause=member.pause)
        log.error("a process ended by itself; starting another", extra=told)
        _close(member)
    if now >= member.due:
        _start(member, command, listener, environment)


def _stop(members: Sequence[_Member]) -> None:
    """End them, first kindly: what they are answering is answered."""
    running = [(member, member.process) for member in members if member.process is not None]
    for _, process in running:
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for member, process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _close(member)


def _close(member: _Member) -> None:
    if member.process is not None and member.process.stdin is not None:
        member.process.stdin.close()
    member.process = None
    member.ready.unlink(missing_ok=True)
