"""``idiolect device``: what a device knows of its user, and a round: agree, correct, learn, check in, forget."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.commands.output import AsJson, Output, deliver
from device_sdk.commands.secrets import keep_from_process_list
from device_sdk.commands.state import KEY_VARIABLE, BundlePath, KeyFile, State, open_device
from device_sdk.consent import STREAMS, Consent

if TYPE_CHECKING:
    from device_sdk.checkin.session import CheckInReport
    from device_sdk.learning import LearningReport

__all__ = ["app"]

app = typer.Typer(
    help="Live with a device: its user agrees, corrects, lets it learn and check in, and sees what it knows.\n\n"
    "`idiolect transcribe FILE --state FOLDER` hears what it learns from. The state is sealed with a key: --key-file "
    f"names its file, {KEY_VARIABLE} holds it, or the first use makes one in your configuration folder. Audio is never "
    "kept.",
    no_args_is_help=True,
    add_completion=False,
)

Streams = Annotated[list[str] | None, typer.Argument(metavar="STREAM...", help=f"Of {', '.join(STREAMS)}.")]


@app.command()
def status(
    state: State, key_file: KeyFile = None, bundle: BundlePath = None, as_json: AsJson = False, output: Output = None
) -> None:
    """Show what is remembered, what was learned, what the user agreed to, and what reports have cost of privacy."""
    with open_device(state, key_file, bundle) as device:
        learned, remembered, spent = device.learned(), device.remembered(), device.spent()
    report = {"learned": asdict(learned), "remembered": [asdict(each) for each in remembered], "spent": spent}
    if deliver(_json(report), as_json, output):
        return
    for sentence in learned.describe():
        print(sentence)
    for each in remembered:
        fate = "corrected" if each.feedback else "heard"
        print(f"{each.utterance_id}  {fate}, on the disk for {_duration(each.seconds_left)} at most")
    for stream, epsilon in spent.items():
        print(f"spent on {stream}: epsilon {epsilon:.3g}")


@app.command()
def agree(
    state: State,
    streams: Streams = None,
    key_file: KeyFile = None,
    bundle: BundlePath = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Agree to streams. What is sent, marginals, deltas and words, begins here: nothing heard or learned before."""
    with open_device(state, key_file, bundle, new=True) as device:
        device.agree(*streams or ())
        _say_consent(device.consent, as_json, output)


@app.command()
def withdraw(
    state: State,
    streams: Streams = None,
    key_file: KeyFile = None,
    bundle: BundlePath = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Agree to streams no longer: they stop, and what waits to be sent of them is deleted."""
    with open_device(state, key_file, bundle) as device:
        device.withdraw(*streams or ())
        _say_consent(device.consent, as_json, output)


@app.command()
def correct(
    utterance: Annotated[str, typer.Argument(help="As `transcribe --state` and `device status` show it.")],
    text: Annotated[str, typer.Argument(help="The words that were said.")],
    state: State,
    key_file: KeyFile = None,
    bundle: BundlePath = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Say what was really said in an utterance, for `device learn` to learn from."""
    from device_sdk.feedback import Corrected

    with open_device(state, key_file, bundle) as device:
        device.feedback(utterance, Corrected(text))
    if not deliver({"utterance_id": utterance}, as_json, output):
        print(f"{utterance}: corrected; idiolect device learn --state {quote(str(state))} learns from it")


@app.command()
def learn(
    state: State,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after so long.", show_default="when all is learned")
    ] = None,
    key_file: KeyFile = None,
    bundle: BundlePath = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Take local steps on what was corrected; each utterance is used once, and gone."""
    with open_device(state, key_file, bundle) as device:
        report = device.learn(seconds)
    if not deliver(_json(asdict(report)), as_json, output):
        for line in _learning(report):
            print(line)


@app.command("check-in")
def check_in(
    url: Annotated[str, typer.Argument(help="The server's address.")],
    state: State,
    token: Annotated[
        str | None, typer.Option(envvar="IDIOLECT_ENROLMENT_TOKEN", help="Lets a new device in; needed once.")
    ] = None,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Speak to other machines without TLS: for closed networks.")
    ] = False,
    key_file: KeyFile = None,
    bundle: BundlePath = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Send what is due, as far as the user agreed and the device's own bounds allow, and fetch what is newer."""
    keep_from_process_list({"--token": ("IDIOLECT_ENROLMENT_TOKEN", token)})
    with open_device(state, key_file, bundle, plain_http=plain_http) as device:
        report, consent = device.check_in(url, token), device.consent
    if not deliver(_json(asdict(report)), as_json, output):
        for line in _checked_in(report, consent, state):
            print(line)


@app.command()
def forget(
    state: State,
    key_file: KeyFile = None,
    bundle: BundlePath = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Erase everything that was learned, and the device's name at its servers."""
    with open_device(state, key_file, bundle) as device:
        if not yes:
            typer.confirm(f"{state}: erase all that this device has learned?", abort=True)
        device.forget()
    if not deliver({"forgotten": str(state)}, as_json, output):
        print(f"{state}: all is erased, but for what reports have cost of privacy")


def _say_consent(consent: Consent, as_json: bool, output: Path | None) -> None:
    streams = asdict(consent)
    if not deliver(streams, as_json, output):
        for stream, agreed in streams.items():
            print(f"{'yes' if agreed else 'no ':3}  {stream}")


def _learning(report: LearningReport) -> Iterable[str]:
    from device_sdk.learning.memory import utterances

    steps = f"{report.steps} step{'' if report.steps == 1 else 's'}"
    yield f"{steps} on {utterances(report.utterances)} in {report.seconds:.1f} s: {report.stopped}"
    if not math.isnan(report.loss):
        yield f"loss before a step {report.loss:.3g}"
    for why, count in report.skipped.items():
        yield f"{utterances(count)} not learned from: {why}"
    if report.lost:
        yield f"{utterances(report.lost)} with feedback lost before: too old, or too many"


def _checked_in(report: CheckInReport, consent: Consent, state: Path) -> Iterable[str]:
    yield f"round {report.round_id}" if report.round_id else "no round is open"
    for sent in report.sent:
        outcome = sent.refused or ("was there already" if sent.duplicate else "taken")
        yield f"sent {sent.kind}, {sent.size:,} bytes, report {sent.report_id}: {outcome}"
    for why in report.left_out:
        yield f"left out: {why}"
    for why in report.updates_refused:
        yield f"not installed: {why}"
    if not (consent.marginals or consent.deltas or consent.words):
        place = quote(str(state))
        yield f"nothing is sent before its user agrees: idiolect device agree marginals deltas --state {place}"
    yield f"model {report.model_version}{' (new)' if report.new_model else ''}"
    yield f"marginals {report.marginals_version}{' (new)' if report.new_marginals else ''}"
    yield f"wanted back in {_duration(report.due_in_seconds)}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _json(value: Any) -> Any:
    """As JSON has it: nothing for what is no number, a word for infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity"
    if isinstance(value, dict):
        return {name: _json(each) for name, each in value.items()}
    return [_json(each) for each in value] if isinstance(value, list | tuple) else value
