"""Runs damaged inputs in a process of their own, so that a crash or a hang is one failed case and not the end."""

import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ADDRESS_SPACE = 6 << 30  # bytes; damage that asks for more is refused by the system, not served
MEMORY = Path("/dev/shm")  # where there is one: every case writes a state folder, and waits for a disk that is one
PATIENCE = 30.0  # s; how long one case may take before it counts as hung
OPENING = 120.0  # s; to import and lay the ground


@dataclass(frozen=True, slots=True)
class Ending:
    """How one case ended. good: in a named error or a valid result. how: that, or what was wrong."""

    case: int
    kind: str
    good: bool
    how: str


def drive(bundle: Path, cases: Sequence[int], seed: int, patience: float = PATIENCE) -> list[Ending]:
    """Runs the cases in order, in a child that is started again after each crash and each hang."""
    from tests.device_sdk.damage.cases import kind_of

    endings: list[Ending] = []
    left = list(cases)
    with tempfile.TemporaryDirectory(prefix="idiolect-damage-", dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        while left:
            lost = _batch(bundle, left, seed, Path(scratch), patience, endings)
            left = list(cases)[len(endings) :]
            if lost is not None:
                endings.append(Ending(left[0], kind_of(left[0]), False, lost))
                left = left[1:]
    return endings


def _batch(bundle: Path, cases: list[int], seed: int, scratch: Path, patience: float, endings: list) -> str | None:
    """Runs cases until they are done (None) or the child is lost (what happened to it)."""
    words = [sys.executable, "-m", "tests.device_sdk.damage.driver", bundle, scratch, str(seed), json.dumps(cases)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said, env=environment) as child,
    ):
        waiting, done, wait = b"", 0, OPENING
        try:
            while done < len(cases):
                if not select.select([child.stdout], [], [], wait)[0]:
                    return f"hung for {wait:g} s"
                read = os.read(child.stdout.fileno(), 1 << 16)
                if not read:
                    break
                *whole, waiting = (waiting + read).split(b"\n")
                for line in whole:
                    if line != b"ready":
                        endings.append(Ending(**json.loads(line)))
                        done += 1
                wait = patience
            if done == len(cases):
                return None
            code = child.wait(patience)
            said.seek(0)
            last = said.read()[-2000:].decode(errors="replace")
            return f"crashed with {signal.Signals(-code).name if code < 0 else code}: {last}"
        finally:
            child.kill()


def _child(bundle: Path, cases: list[int], seed: int, scratch: Path) -> None:
    faulthandler.enable()
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever libraries print
    from tests.device_sdk.damage.cases import Ground, kind_of, run

    ground = Ground.lay(bundle, scratch / "case")
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers.write(b"ready\n")
    for case in cases:
        try:
            good, how = True, run(ground, seed, case)
        except Exception as error:
            place = [frame for frame in traceback.extract_tb(error.__traceback__) if "damage" not in frame.filename]
            where = f" at {place[-1].filename}:{place[-1].lineno}" if place else ""
            good, how = False, f"{type(error).__name__}: {str(error)[:300]}{where}"
        answers.write(json.dumps({"case": case, "kind": kind_of(case), "good": good, "how": how}).encode() + b"\n")


if __name__ == "__main__":
    _child(Path(sys.argv[1]), json.loads(sys.argv[4]), int(sys.argv[3]), Path(sys.argv[2]))
