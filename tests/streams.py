"""``python -m tests.streams --json``: orders of voices that no model was trained on, cut to their speech, one after the
other in one stream and in a file of half an hour, against the same recordings one at a time. Exit status 1 when a line
does not hold. ``IDIOLECT_DATA`` names the folder that holds ``barista``."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Annotated

import jiwer
import numpy as np
import soundfile
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from device_sdk import Bundle, Recognizer, Result
from device_sdk.audio import SAMPLE_RATE, read_audio
from device_sdk.personalization.rescorer import Rescorer
from server.lab.corpora.roles import role_of

Float = NDArray[np.float32]
PAUSES = {0.5: 6.0, 0.8: 3.0, 1.2: 3.0, 2.0: 3.0}
"""Seconds, and how many points of word error they may cost."""
DELETIONS = 2.0
ROOM = 1e-3  # root mean square of the noise in a pause: -60 dBFS
FILE_SECONDS = 1800.0


@dataclass(frozen=True)
class Order:
    """text: what was said in ``recording``, [S]; waveform: the part of it that is speech."""

    text: str
    recording: Float
    waveform: Float


@dataclass(frozen=True)
class Row:
    """One way of hearing. word_errors, deletions: percent; orders: how many; met: how many of them overlap a result;
    results: how many there were."""

    name: str
    orders: int
    met: int
    results: int
    word_errors: float
    deletions: float
    holds: bool = True


def read_orders(folder: Path) -> list[Order]:
    """Every order of a voice that no model was trained on, without those whose transcript is in doubt."""
    rows = [json.loads(line) for line in (folder / "barista.jsonl").read_text("utf-8").splitlines()]
    found = []
    for row in rows:
        if row["suspicious"] or role_of("barista", row["voice_group"]) not in ("devices", "heldout"):
            continue
        (path,) = (folder / "audio").glob(f"{row['id']}.*")
        begin, end = (round(row[name] * SAMPLE_RATE) for name in ("speech_start", "speech_end"))
        recording = read_audio(path)
        found.append(Order(row["text"], recording, recording[begin:end]))
    return found


def in_one_stream(orders: Sequence[Order], pauses: Iterator[float]) -> tuple[Float, list[tuple[float, float]]]:
    """The orders with room noise between them, and when each of them is spoken."""
    generator = np.random.default_rng(7)
    parts: list[Float] = []
    spans: list[tuple[float, float]] = []
    samples = 0
    for order in orders:
        room = (ROOM * generator.standard_normal(round(next(pauses) * SAMPLE_RATE))).astype(np.float32)
        spans.append(((samples + room.size) / SAMPLE_RATE, (samples + room.size + order.waveform.size) / SAMPLE_RATE))
        samples += room.size + order.waveform.size
        parts += [room, order.waveform]
    return np.concatenate(parts), spans


def judged(name: str, orders: Sequence[Order], heard: Sequence[str], met: int, pause=None, alone=None) -> Row:
    """heard: texts of the results; met: orders in one of them; pause, alone: what word errors may be beyond these."""
    found = jiwer.process_words([" ".join(order.text for order in orders)], [" ".join(heard)])
    deletions = found.deletions / (found.hits + found.substitutions + found.deletions)
    row = Row(name, len(orders), met, len(heard), 100.0 * found.wer, 100.0 * deletions)
    if pause is None or alone is None:
        return row
    close = row.word_errors <= alone.word_errors + PAUSES[pause] and row.deletions <= alone.deletions + DELETIONS
    return replace(row, holds=met == len(orders) and close)


def count_met(spans: Sequence[tuple[float, float]], results: Sequence[tuple[float, float]]) -> int:
    """Spans that overlap a result: both are (begin, end) in seconds."""
    return sum(any(begin < until and since < end for since, until in results) for begin, end in spans)


def streamed(recognizer: Recognizer, orders: Sequence[Order], pause: float, alone: Row) -> Row:
    waveform, spans = in_one_stream(orders, cycle([pause]))
    chunks = (waveform[at : at + 1_600] for at in range(0, waveform.size, 1_600))
    results = [event for event in recognizer.session(SAMPLE_RATE).segments(chunks) if isinstance(event, Result)]
    met = count_met(spans, [(result.offset, result.offset + result.seconds) for result in results])
    return judged(f"pauses of {pause} s", orders, [result.text for result in results], met, pause, alone)


def in_a_file(orders: Sequence[Order], alone: Row, seconds: float = FILE_SECONDS) -> Row:
    """``idiolect transcribe`` of a file of so many seconds, with pauses of 0.5 to 2 s."""
    every, chosen, total = cycle(orders), [], 0.0
    lengths = cycle(PAUSES)
    while total < seconds:
        chosen.append(next(every))
        total += chosen[-1].waveform.size / SAMPLE_RATE + next(lengths)
    waveform, spans = in_one_stream(chosen, cycle(PAUSES))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "orders.flac"
        soundfile.write(path, waveform, SAMPLE_RATE)
        command = [sys.executable, "-m", "device_sdk.cli", "transcribe", str(path), "--json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    (entry,) = json.loads(done.stdout)["files"]
    met = count_met(spans, [(each["offset"], each["offset"] + each["seconds"]) for each in entry["utterances"]])
    row = judged(f"a file of {entry['seconds'] / 60:.0f} minutes", chosen, [entry["text"]], met, min(PAUSES), alone)
    return replace(row, results=len(entry["utterances"]))


def main(json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    folder = os.environ.get("IDIOLECT_DATA")
    if not folder:
        raise typer.BadParameter("set IDIOLECT_DATA to the folder that holds barista")
    bundle, orders = Bundle.open(), read_orders(Path(folder) / "barista")
    recognizer = Recognizer(bundle, rescore=Rescorer(bundle).rescore)
    heard = [recognizer.recognize(order.recording, SAMPLE_RATE).text for order in orders]
    alone = judged("one at a time", orders, heard, sum(map(bool, heard)))
    rows = [alone, *(streamed(recognizer, orders, pause, alone) for pause in PAUSES), in_a_file(orders, alone)]
    holds = all(row.holds for row in rows)
    if json_:
        print(json.dumps({"rows": [asdict(row) for row in rows], "holds": holds}, indent=2))
    else:
        table = Table(*("heard", "orders", "in a result", "results", "word errors", "deletions", "holds"))
        for row in rows:
            shares = (f"{row.word_errors:.1f} %", f"{row.deletions:.1f} %", "yes" if row.holds else "NO")
            table.add_row(row.name, str(row.orders), str(row.met), str(row.results), *shares)
        Console().print(table)
    raise typer.Exit(not holds)


if __name__ == "__main__":
    typer.run(main)
