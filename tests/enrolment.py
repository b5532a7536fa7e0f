"""``python -m tests.enrolment --json``: what reading aloud gains on what people say later.

People whom no training heard: readers with 60 recordings or more read the first 30, people ordering coffee the first
six; a third of these is kept aside to measure with. What each says afterwards is heard by the device as it was and as
it came out of the reading; nothing more is learned. Exit status 1 when a line does not hold. ``--keep FOLDER`` goes on
from what is done there."""

import os
import pickle
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from device_sdk import Bundle, Device
from device_sdk.commands.output import AsJson, deliver
from device_sdk.enrolment import EnrolmentReport
from device_sdk.feedback.distance import edit_distance
from server.lab.commands.shared import progress_bar
from server.lab.corpora import SAMPLE_RATE, Utterance, open_corpus
from server.lab.corpora.roles import UNHEARD, card_voices, scoring
from tests.subsets import interval

READ = {"librispeech": 30, "barista": 6}
LEAST = {"librispeech": 60, "barista": 9}
LATER = 30
Found = tuple[EnrolmentReport, tuple[int, int], tuple[int, int]]
"""(report of the reading; errors and words afterwards, as it was and as it is)."""


def _people(bundle: Bundle, data: Path) -> list[tuple[str, str, list[Utterance]]]:
    found = []
    for kind, least in LEAST.items():
        corpus = open_corpus(f"{kind}:{data / kind}", UNHEARD, role=scoring(card_voices(bundle)))
        for name in corpus.speakers:
            own = [each for each in corpus.of_speakers(name).utterances if each.sure_text]
            if len(own) >= least:
                found.append((kind, name, own))
    return found


def _errors(device: Device, later: list[Utterance]) -> tuple[int, int]:
    errors = words = 0
    for said in later:
        spoken = (said.sure_text or "").split()
        errors += edit_distance(spoken, device.recognize(said.load(), SAMPLE_RATE).text.split())
        words += len(spoken)
    return errors, words


def _one(bundle: Bundle, kind: str, own: list[Utterance]) -> Found:
    read, later = own[: READ[kind]], own[READ[kind] : READ[kind] + LATER]
    with TemporaryDirectory() as folder:
        with Device.open(f"{folder}/frozen", bytes(32), bundle) as device:
            before = _errors(device, later)
        with Device.open(f"{folder}/read", bytes(32), bundle) as device:
            reading = device.enrolment([each.sure_text or "" for each in read], len(read))
            while reading.phrase is not None:
                reading.read(read[reading.count].load(), SAMPLE_RATE)
            report = reading.finish()
            return report, before, _errors(device, later)


def main(
    bundle: Annotated[Path | None, typer.Option(help="Folder or zip of a bundle; the packaged one if none.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Folder of what is done so far.")] = None,
    as_json: AsJson = False,
) -> None:
    opened, found = Bundle.open(bundle), dict[tuple[str, str], Found]()
    with TemporaryDirectory() as temporary, progress_bar() as bar:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for kind, name, own in bar.track(_people(opened, Path(os.environ["IDIOLECT_DATA"])), description="people"):
            path = folder / f"{kind}-{name}.pickle"
            if not path.exists():
                path.with_suffix(".part").write_bytes(pickle.dumps(_one(opened, kind, own)))
                path.with_suffix(".part").replace(path)
            found[kind, name] = pickle.loads(path.read_bytes())
    pooled = {
        kind: _pooled([each for key, each in found.items() if kind in (key[0], "all")]) for kind in (*READ, "all")
    }
    helped = [each for each in found.values() if each[0].kept]
    back = _pooled([each for each in found.values() if not each[0].kept])
    lines = [
        {"name": "points of later word error, pooled, interval below 0", "found": pooled["all"]["points"],
         "holds": pooled["all"]["high"] < 0},
        {"name": "points of those whose reading was taken back, at most +0.3", "found": back["points"],
         "holds": back["points"] <= 0.3},
    ]  # fmt: skip
    people = [
        {"kind": kind, "person": name, **asdict(report), "later_before": list(before), "later_after": list(after)}
        for (kind, name), (report, before, after) in found.items()
    ]
    if not deliver({"pooled": pooled, "helped": len(helped), "people": people, "lines": lines}, as_json, None):
        table = Table("people", "before", "after", "points", "interval", title="later word error after reading aloud")
        for kind, row in pooled.items():
            rates = (f"{row[name]:.1f}" for name in ("before", "after"))
            table.add_row(kind, *rates, f"{row['points']:+.2f}", f"{row['low']:+.2f} to {row['high']:+.2f}")
        Console().print(table)
        for line in lines:
            print(f"{line['name']}: {line['found']:.2f}{'' if line['holds'] else ', misses'}")
    raise typer.Exit(not all(line["holds"] for line in lines))


def _pooled(found: list[Found]) -> dict[str, Any]:
    before, after = [each[1] for each in found], [each[2] for each in found]
    mean, low, high = interval(before, [after])
    rates = [100 * float(np.sum([e for e, _ in side]) / np.sum([w for _, w in side])) for side in (before, after)]
    return {"people": len(found), "before": rates[0], "after": rates[1], "points": mean, "low": low, "high": high}


if __name__ == "__main__":
    typer.run(main)
