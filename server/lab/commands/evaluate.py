"""Measures a bundle on data: word error, slot error, oracle word error of its n-best lists, calibration, speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from device_sdk.commands.output import AsJson, Output, deliver, print_table
from device_sdk.errors import ConfigurationError
from server.lab.commands.shared import progress_bar

if TYPE_CHECKING:
    from rich.table import Table

    from device_sdk.bundle import Bundle
    from device_sdk.runtimes.onnxruntime import Precision
    from server.lab.corpora import Corpus
    from server.lab.corpora.roles import Role, RoleOf
    from server.lab.evaluation.scores import Evaluation

WIDE = 20


def command(
    bundle: Annotated[str, typer.Argument(help="Folder or zip of a bundle, or 'default' for the packaged one.")],
    data: Annotated[
        list[str],
        typer.Option(help="KIND:PATH, such as librispeech:PATH or folder:PATH, or made:heldout; several times."),
    ],
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many utterances of each source.")] = None,
    beam: Annotated[int, typer.Option(min=1, help="Width of the beam.")] = 8,
    nbest: Annotated[int | None, typer.Option(min=1, help="Length of the n-best lists. Default: the beam.")] = None,
    rescore: Annotated[bool, typer.Option(help="Rescore with the bundle's language models.")] = True,
    greedy: Annotated[bool, typer.Option("--greedy", help="Greedy decoding: a beam of 1, without rescoring.")] = False,
    compare: Annotated[
        bool,
        typer.Option("--compare", help=f"Greedy, beam, beam and rescoring, beam {WIDE} and rescoring in one table."),
    ] = False,
    precision: Annotated[str, typer.Option(help="Of the recognizer's products: float32, int8 or auto.")] = "float32",
    speakers: Annotated[bool, typer.Option("--speakers", help="Figures of each speaker, too.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this speaker's utterances; may be given several times.")
    ] = None,
    voices: Annotated[
        list[str] | None,
        typer.Option(
            help="Voices of this part of the split: base, development, devices, heldout; several times. Default: those "
            "that the bundle was neither trained on nor chosen by."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides fsdd's strings and made speech.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw the reliability of word confidences to this .svg.")] = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Measure a bundle on data: word error, slot error, oracle word error of its n-best lists, calibration, speed.

    Calibration is of the best hypothesis' words: expected calibration error (ECE, 10 bins of equal width; the JSON has
    10 of equal mass, too) and normalized cross entropy (NCE; above 0 is better than knowing only the accuracy)."""
    from rich.console import Console

    from device_sdk.bundle import Bundle
    from device_sdk.checks import check_choice
    from device_sdk.runtimes.onnxruntime import PRECISION_CHOICES
    from server.lab.corpora.roles import ROLES, UNHEARD, card_voices, scoring

    for option, file in (("--output", output), ("--plot", plot)):
        if file is not None and not file.parent.is_dir():
            raise ConfigurationError(f"{option} {file}: the folder {file.parent} does not exist; make it first")
    if plot is not None and plot.suffix.lower() != ".svg":
        raise ConfigurationError(f"--plot {plot}: found {plot.suffix or 'no suffix'!r}, expected a name ending in .svg")
    if compare and (greedy or not rescore or speakers):
        raise ConfigurationError("--compare: goes with neither --greedy, --no-rescore nor --speakers; leave them out")
    unknown = sorted(set(voices or ()) - set(ROLES))
    if unknown:
        raise ConfigurationError(f"--voices {unknown[0]}: expected one of {', '.join(ROLES)}")
    check_choice("--precision", precision, PRECISION_CHOICES)
    loaded = Bundle.open(None if bundle == "default" else bundle)
    role, roles = scoring(card_voices(loaded)), cast("Sequence[Role]", voices or UNHEARD)
    selected = [_selected(source, roles, role, only, limit, seed) for source in data]
    if any(not of.keys() <= set(UNHEARD) for _, of in selected):
        typer.echo("these figures are also of voices that bundles are trained on or chosen by", err=True)
    title, nbest = f"{loaded.manifest.name} {loaded.version}", nbest or beam
    if compare:
        wide, chosen = max(WIDE, beam), f"beam {beam} rescored"
        systems = {"greedy": (1, 1, False), f"beam {beam}": (beam, nbest, False), chosen: (beam, nbest, True)}
        systems |= {f"beam {wide} rescored": (wide, wide, True)}
    else:
        chosen, systems = "chosen", {"chosen": (1, 1, False) if greedy else (beam, nbest, rescore)}
    found = {
        corpus.name: {name: _measure(loaded, name, corpus, precision, *how) for name, how in systems.items()}
        for corpus, _ in selected
    }
    evaluations = {name: by_system[chosen] for name, by_system in found.items()}
    if compare:
        rows: dict[str, Any] = {name: {"systems": _compared(by_system)} for name, by_system in found.items()}
        tables = [_table(f"{title}, {name}", by_system, by_system["greedy"]) for name, by_system in found.items()]
    else:
        rows, listed = {}, cast("dict[str, Evaluation]", {})
        for name, evaluation in evaluations.items():
            parts = evaluation.of_speakers() if speakers else {}
            rows[name] = evaluation.as_json()
            if speakers:
                rows[name]["speakers"] = {who: part.as_json() for who, part in parts.items()}
            listed |= {name: evaluation, **{f"  {who}": part for who, part in parts.items()}}
        tables = [_table(title, listed)]
    for corpus, roles_of in selected:
        rows[corpus.name]["roles"] = roles_of
    if plot is not None:
        _draw(plot, f"{title}: words", evaluations)
    if not deliver(next(iter(rows.values())) if len(rows) == 1 else {"data": rows}, as_json, output):
        for table in tables:
            print_table(Console(), table)


def _selected(
    source: str, roles: Sequence[Role], role: RoleOf, only: list[str] | None, limit: int | None, seed: int
) -> tuple[Corpus, dict[Role, int]]:
    """What is measured of a source, and how many utterances of each role that is; says what is left out."""
    from server.lab.corpora import kind_of, open_corpus
    from server.lab.corpora.roles import ROLES

    corpus = open_corpus(source, ROLES, role=role, seed=seed)
    corpus = corpus.of_speakers(*only) if only else corpus
    chosen = corpus.only(lambda utterance: role(kind_of(source), utterance.speaker) in roles)
    if not chosen.utterances:
        raise ConfigurationError(
            f"--data {source}: no utterance by voices for {', '.join(roles)}; see --voices, --only"
        )
    if left := len(corpus) - len(chosen):
        typer.echo(f"{source}: {left} of {len(corpus)} utterances left out, by voices for other ends", err=True)
    chosen = chosen.first(limit)
    found = Counter(role(kind_of(source), utterance.speaker) for utterance in chosen.utterances)
    return chosen, {each: found[each] for each in ROLES if found[each]}


def _measure(
    bundle: Bundle, name: str, corpus: Corpus, precision: str, beam: int, nbest: int, rescored: bool
) -> Evaluation:
    """One way of decoding. nbest: length of its lists, and the deepest oracle error of it."""
    from device_sdk.decoding import Recognizer
    from device_sdk.decoding.settings import DecodingSettings
    from device_sdk.personalization.rescorer import Rescorer
    from server.lab.evaluation.scores import ORACLE_DEPTHS, evaluate

    second_pass = Rescorer(bundle).rescore if rescored else None
    settings = DecodingSettings(beam=beam, nbest=nbest)
    recognizer = Recognizer(bundle, settings, second_pass, precision=cast("Precision", precision))
    recognize = partial(recognizer.recognize, sample_rate=16_000)
    with progress_bar() as bar:
        task = bar.add_task(f"{corpus.name} {name}", total=len(corpus))
        return evaluate(
            recognize, corpus, lambda _: bar.advance(task), sorted({*ORACLE_DEPTHS, max(nbest, *ORACLE_DEPTHS)})
        )


def _compared(by_system: Mapping[str, Evaluation]) -> dict[str, Any]:
    """Figures of each system, with its differences to the first one."""
    from server.lab.evaluation.scores import differences

    first = next(iter(by_system.values()))
    rows = {name: evaluation.as_json() for name, evaluation in by_system.items()}
    for name, evaluation in by_system.items():
        if evaluation is not first:
            found = {"wer": differences(first, evaluation), "slot_error": differences(first, evaluation, "slots")}
            rows[name]["against_greedy"] = {kind: each and each.as_json() for kind, each in found.items()}
    return rows


def _draw(plot: Path, title: str, evaluations: Mapping[str, Evaluation]) -> None:
    from server.lab.evaluation.reliability import reliability_chart

    curves = {name: words for name, evaluation in evaluations.items() if (words := evaluation.words()) is not None}
    if not curves:
        raise ConfigurationError(f"--plot {plot}: no recognized word can be checked; give --data whose words are known")
    plot.write_text(reliability_chart(curves, title), encoding="utf-8")


def _table(title: str, rows: Mapping[str, Evaluation], first: Evaluation | None = None) -> Table:
    """One row an evaluation. first: what the others are compared with, with the 95 % interval of the difference."""
    from rich.table import Table

    from server.lab.evaluation.scores import differences
    from server.lab.statistics import in_percent

    depths = sorted({depth for evaluation in rows.values() for depth in evaluation.depths})[1:]
    caption = None if first is None else "against greedy: points of word error, 95 % of the paired bootstrap"
    table = Table(title=f"{title}: errors in %", caption=caption)
    table.add_column("data" if first is None else "decoding", min_width=14)
    oracles = [f"{'oracle ' if place == 0 else ''}{depth}" for place, depth in enumerate(depths)]
    comparison = () if first is None else ("against greedy",)
    for heading in ("WER", *comparison, "slots", *oracles, "ECE", "NCE", "RTF", "count"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, evaluation in rows.items():
        words, speed = evaluation.words(), evaluation.real_time_factor
        found = None if first is None or evaluation is first else differences(first, evaluation)
        change = r"{} \[{}, {}]".format(*in_percent(found.absolute.as_json())) if found else "-"
        known = [evaluation.oracle_wer(depth) if depth in evaluation.depths else None for depth in depths]
        table.add_row(
            name,
            _percent(evaluation.wer),
            *(change for _ in comparison),
            *map(_percent, (evaluation.slot_error, *known, None if words is None else words.ece)),
            "-" if words is None or words.nce is None else f"{words.nce:.2f}",
            "-" if speed is None else f"{speed:.3f}",
            str(len(evaluation.scores)),
        )
    return table


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f}"
