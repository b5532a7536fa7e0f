"""``idiolect device``: what a device knows of its user, and a round: agree, correct, learn, check in, forget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial, update_wrapper
from inspect import Parameter, Signature, signature
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.checks import read_utf8
from device_sdk.commands.output import AsJson, Output, deliver
from device_sdk.commands.secrets import keep_from_process_list
from device_sdk.commands.state import KEY_VARIABLE, BundlePath, KeyFile, State, open_device
from device_sdk.consent import STREAMS, Consent
from device_sdk.errors import ConfigurationError
from device_sdk.transcripts import transcript, transcripts

if TYPE_CHECKING:
    from device_sdk.checkin.session import CheckInReport
    from device_sdk.learning import LearningReport
    from device_sdk.personalization.vocabulary import VocabularyEntry

app = typer.Typer(
    help="Live with a device: its user agrees, corrects, lets it learn and check in, and sees what it knows.\n\n"
    "`idiolect transcribe FILE --state FOLDER` hears what it learns from. The state is sealed with a key: --key-file "
    f"names its file, {KEY_VARIABLE} holds it, or the first use makes one in your configuration folder. Audio is never "
    "kept.",
    no_args_is_help=True,
    add_completion=False,
)

Streams = Annotated[list[str] | None, typer.Argument(metavar="STREAM...", help=f"Of {', '.join(STREAMS)}.")]


Opening = Callable[..., Any]
"""Opens the device: see :func:`open_device`."""
Said = tuple[Mapping[str, Any], Iterable[str]]
"""What a command has to say: as JSON, and as lines."""


def _command(function: Callable[..., Said]) -> None:
    """Makes a command of a function of (opens the device, its state's folder, options of its own): with the options
    that all have, and what it returns is printed, as JSON where that is asked for."""

    def run(
        state: State,
        key_file: KeyFile = None,
        bundle: BundlePath = None,
        as_json: AsJson = False,
        output: Output = None,
        **own: Any,
    ) -> None:
        document, lines = function(partial(open_device, state, key_file, bundle), state, **own)
        if not deliver(document, as_json, output):
            for line in lines:
                print(line)

    first, *common, _ = signature(run, eval_str=True).parameters.values()
    own = list(signature(function, eval_str=True).parameters.values())[2:]
    options = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in (first, *own, *common)]
    update_wrapper(run, function).__signature__ = Signature(options)  # type: ignore[attr-defined]
    app.command()(run)


@_command
def status(opened: Opening, state: Path) -> Said:
    """Show what is remembered, what was learned, what the user agreed to, and what reports have cost of privacy."""
    from device_sdk.privacy.spending import stated

    with opened() as device:
        learned, remembered, spent = device.learned(), device.remembered(), device.spent()
    lines = list(learned.describe())
    for each in remembered:
        fate = "corrected" if each.feedback else "heard"
        lines.append(f"{each.utterance_id}  {fate}, on the disk for {_duration(each.seconds_left)} at most")
    lines += [f"spent on {stream}: epsilon {stated(epsilon)}" for stream, epsilon in spent.items()]
    return {"learned": asdict(learned), "remembered": [asdict(each) for each in remembered], "spent": spent}, lines


@_command
def agree(opened: Opening, state: Path, streams: Streams = None) -> Said:
    """Agree to streams. What is sent, marginals, deltas and words, begins here: nothing heard or learned before."""
    with opened(new=True) as device:
        device.agree(*streams or ())
        return _agreed(device.consent)


@_command
def withdraw(opened: Opening, state: Path, streams: Streams = None) -> Said:
    """Agree to streams no longer: they stop, and what waits to be sent of them is deleted."""
    with opened() as device:
        device.withdraw(*streams or ())
        return _agreed(device.consent)


def _agreed(consent: Consent) -> Said:
    streams = asdict(consent)
    return streams, [f"{'yes' if agreed else 'no ':3}  {stream}" for stream, agreed in streams.items()]


@_command
def correct(
    opened: Opening,
    state: Path,
    utterance: Annotated[str, typer.Argument(help="As `transcribe --state` and `device status` show it.")],
    text: Annotated[str, typer.Argument(help="The words that were said.")],
) -> Said:
    """Say what was really said in an utterance, for `device learn` to learn from."""
    from device_sdk.feedback import Corrected

    with opened() as device:
        device.feedback(utterance, Corrected(text))
    hint = f"{utterance}: corrected; idiolect device learn --state {quote(str(state))} learns from it"
    return {"utterance_id": utterance}, [hint]


def _entry(given: str) -> VocabularyEntry:
    """Of a phrase with its spellings."""
    from device_sdk.personalization.vocabulary import VocabularyEntry

    phrase, *spellings = given.split("|")
    transcript(phrase, f"--add {given!r}", ConfigurationError)
    return VocabularyEntry(phrase, transcripts(spellings, f"--add {given!r}", ConfigurationError))


@_command
def vocabulary(
    opened: Opening,
    state: Path,
    add: Annotated[list[str] | None, typer.Option(help="Listen for PHRASE, or PHRASE|SPELLING|...")] = None,
    contacts: Annotated[Path | None, typer.Option(help="Listen for the names in a vCard file.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="Listen for a phrase no longer.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take the last correction back.")] = False,
) -> Said:
    """Show the names and words that the device listens for by itself; add some, remove some, or undo."""
    from device_sdk.personalization.vocabulary import contact_entries, read_contacts

    # All that is asked for is done, or nothing of it.
    entries = [_entry(each) for each in add or ()]
    card = None if contacts is None else read_utf8(contacts, ConfigurationError, "--contacts")
    if card is not None:
        read_contacts(card)
    for each in remove or ():
        transcript(each, "--remove", ConfigurationError)
    with opened(new=bool(add or contacts)) as device:
        known = device.vocabulary
        names = [] if card is None else contact_entries(card, device.base.tokenizer.letters)
        if entries or names:
            known.add_all([*entries, *names])
        lines = [f"{each}: not there" for each in remove or () if not known.remove(each)]
        if undo:
            lines.append(f"taken back: {', '.join(known.undo()) or 'nothing'}")
        listed = known.list()
    lines += [
        f"{each.phrase}  {each.kind or each.source}, confirmed {each.count} times"
        + (f", also heard as {', '.join(each.spellings)}" if each.spellings else "")
        for each in listed
    ]
    return {"entries": [asdict(each) for each in listed]}, lines or ["nothing yet"]


@_command
def learn(
    opened: Opening,
    state: Path,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after so long.", show_default="when all is learned")
    ] = None,
) -> Said:
    """Take local steps on what was corrected, and on what nobody corrected within a minute; nothing of it stays on the
    disk, and it can be corrected no more."""
    with opened() as device:
        report = device.learn(seconds)
    return asdict(report), _learning(report)


@_command
def check_in(
    opened: Opening,
    state: Path,
    url: Annotated[str, typer.Argument(help="The server's address.")],
    token: Annotated[
        str | None, typer.Option(envvar="IDIOLECT_ENROLMENT_TOKEN", help="Lets a new device in; needed once.")
    ] = None,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Speak to other machines without TLS: for closed networks.")
    ] = False,
) -> Said:
    """Send what is due, as far as the user agreed and the device's own bounds allow, and fetch what is newer."""
    keep_from_process_list({"--token": ("IDIOLECT_ENROLMENT_TOKEN", token)})
    with opened(plain_http=plain_http) as device:
        report, consent = device.check_in(url, token), device.consent
    return asdict(report), _checked_in(report, consent, state)


@_command
def forget(
    opened: Opening, state: Path, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False
) -> Said:
    """Erase everything that was learned, and the device's name at its servers."""
    with opened() as device:
        if not yes:
            typer.confirm(f"{state}: erase all that this device has learned?", abort=True)
        device.forget()
    return {"forgotten": str(state)}, [f"{state}: all is erased, but for what reports have cost of privacy"]


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
