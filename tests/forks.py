"""Processes forked from one that has imported what servers and their commands need, which is most of a start.

What runs in them is a function of a module; each opens its state afresh, as every process does."""

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from tests.server.databases import template

ROOT = Path(__file__).parents[1]
IMPORTED = ("device_sdk.cli", "server.app", "server.commands.backup", "server.commands.serve")


class Forked:
    """Owns a process that calls ``module:function`` with words of text. folder: where it runs. environment: its
    variables, this process' where it is None. What it prints is appended to ``out`` and ``err``."""

    def __init__(self, function: str, *words: str, out: Path, err=None, folder: Path = ROOT, environment=None) -> None:
        variables = dict(os.environ if environment is None else environment)
        request = {"call": function, "words": words, "out": str(out), "err": str(err or out)}
        self.pid = int(_origin().answer(request | {"folder": str(folder), "variables": variables}))
        self._code: int | None = None

    def poll(self) -> int | None:
        """How it ended, as of a ``subprocess.Popen``; None while it runs."""
        if self._code is None:
            self._code = _origin().answer({"ended": self.pid})
        return self._code

    def wait(self, seconds: float = 60.0) -> int:
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline, f"process {self.pid} did not end in {seconds} s"
            time.sleep(0.005)
        return code

    def send(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()


def is_running(number: int) -> bool:
    """Whether there is a process of that number that has not ended."""
    with suppress(OSError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2][0] != "Z"
    return False


class ServerProcess:
    """Owns a process that runs ``program`` (``module:function``) with the folder and further words, and is killed and
    started again, as by a supervisor; ``url`` changes then. What it prints is in ``folder``'s ``server.log``."""

    def __init__(self, folder: Path, program: str, *words: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.log, self.url = folder, folder / "server.log", ""
        self._words = (program, str(folder), *words)
        self.running: Forked | None = None

    def spawn(self) -> Forked:
        """Start, and do not wait."""
        (self.folder / "ready.json").unlink(missing_ok=True)
        self.running = Forked(*self._words, out=self.log)
        return self.running

    def start(self, attempts: int = 5) -> None:
        """Start and wait until it serves. A database server may take a moment to see that the one before is gone."""
        for attempt in range(1, attempts + 1):
            try:
                process, ready, deadline = self.spawn(), self.folder / "ready.json", time.monotonic() + 300.0
                while not ready.exists():
                    assert process.poll() is None, self.log.read_text()[-4000:]
                    assert time.monotonic() < deadline, "the server did not start"
                    time.sleep(0.01)
                self.url = str(json.loads(ready.read_text())["url"])
                return
            except AssertionError:
                if attempt == attempts:
                    raise
                time.sleep(0.2)

    def kill(self) -> None:
        assert self.stop(signal.SIGKILL) == -signal.SIGKILL

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.running.send(number)
        return self.running.wait()

    def end(self) -> None:
        """Whatever state it is in."""
        if self.running is not None:
            self.running.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def idiolect(*words: str | Path, folder: Path = ROOT, environment=None) -> subprocess.CompletedProcess[str]:
    """The command-line program in a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place) / "out", Path(place) / "err"
        where: dict[str, Any] = {"out": out, "err": err, "folder": folder, "environment": environment}
        process = Forked(f"{__name__}:program", *map(str, words), **where)
        return subprocess.CompletedProcess(words, process.wait(120), out.read_text("utf-8"), err.read_text("utf-8"))


def program(*words: str) -> None:
    from device_sdk.cli import main

    sys.argv = ["idiolect", *words]
    raise SystemExit(main())


class _Origin:
    """Owns the process that all others are forked from."""

    def __init__(self) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen([sys.executable, "-m", "tests.forks"], cwd=ROOT, env=environment, **pipes)
        atexit.register(self._process.communicate)  # it ends with its input, and so do those that it forked

    def answer(self, request: dict[str, Any]) -> Any:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@cache
def _origin() -> _Origin:
    return _Origin()


def _fork() -> None:
    """What the process that all others are forked from does until its input ends."""
    running: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "ended" in request:
            pid, status = os.waitpid(request["ended"], os.WNOHANG)
            running.discard(pid)
            print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _become(request)
        running.add(pid)
        print(pid, flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _become(request: dict[str, Any]) -> None:
    code = 1
    try:
        files = [os.open(os.devnull, os.O_RDONLY)]
        files += [os.open(request[each], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for each in ("out", "err")]
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(request["variables"])
        os.chdir(request["folder"])
        module, _, function = request["call"].partition(":")
        getattr(import_module(module), function)(*request["words"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for each in IMPORTED:
        import_module(each)
    template()
    _fork()
