"""``idiolect corpora``: manifests of speech corpora, and how much the speakers of one differ."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.commands.output import AsJson, Output, deliver, print_table, write_file
from server.lab.commands.shared import needing_extra

if TYPE_CHECKING:
    from server.lab.corpora import Corpus, Utterance
    from server.lab.corpora.heterogeneity import Heterogeneity

__all__ = ["app"]

app = typer.Typer(help="Look at corpora of speech.", no_args_is_help=True, add_completion=False)

Sources = Annotated[list[str], typer.Argument(metavar="KIND:PATH...", help="Corpora, such as made:devices.")]
Most = Annotated[int | None, typer.Option("--limit", min=1, help="At most this many utterances of a speaker.")]


@app.callback()
def _group() -> None:
    """Look at corpora of speech."""


@app.command()
def report(
    sources: Sources,
    limit: Most = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the clustering, and of made speech.")] = 0,
    as_json: AsJson = False,
    output: Output = None,
    plot: Annotated[Path | None, typer.Option(help="Write an SVG of permutation entropies by speaker.")] = None,
) -> None:
    """Compare how heterogeneous the speakers of corpora are as clients of a federation (Gao et al. 2022, section 4)."""
    from rich.progress import track

    from server.lab.corpora import open_corpus
    from server.lab.corpora.heterogeneity import compare, measure

    found = []
    for source in sources:
        corpus = open_corpus(source, seed)
        chosen = list(_chosen(corpus, limit))
        hidden = as_json or not sys.stderr.isatty()
        found.append(
            compare(source, [measure(one) for one in track(chosen, source, disable=hidden, transient=True)], seed)
        )
    if plot is not None:
        write_file(plot, _strip_plot(found), folders=True)
    if not deliver({"corpora": [one.as_json() for one in found]}, as_json, output, folders=True):
        _print(found)


@app.command()
def manifest(
    source: Annotated[str, typer.Argument(metavar="KIND:PATH", help="A corpus, such as librispeech:PATH@dev-clean.")],
    to: Annotated[Path, typer.Argument(help="File to write: cuts.jsonl.gz, with audio beside it for made speech.")],
) -> None:
    """Write a corpus as a lhotse manifest. Public corpora are referred to; others are recorded beside the manifest."""
    from server.lab.corpora import PUBLIC, open_corpus, public_cuts

    with needing_extra():
        from server.lab.corpora import recipes
    if source.partition(":")[0] in PUBLIC:
        cuts = public_cuts(source)
    else:
        cuts = recipes.record_corpus(open_corpus(source), to.parent / f"{to.name.split('.')[0]}-audio")
    to.parent.mkdir(parents=True, exist_ok=True)
    cuts.to_file(to)
    typer.echo(f"{to}: {len(cuts)} utterances of {len({cut.supervisions[0].speaker for cut in cuts})} speakers")


def _chosen(corpus: Corpus, limit: int | None) -> Iterator[Utterance]:
    seen: dict[str, int] = {}
    for utterance in corpus.utterances:
        seen[utterance.speaker] = seen.get(utterance.speaker, 0) + 1
        if limit is None or seen[utterance.speaker] <= limit:
            yield utterance


def _print(found: Sequence[Heterogeneity]) -> None:
    from rich.console import Console
    from rich.table import Table

    from server.lab.corpora.heterogeneity import MEASURES, PUBLISHED

    table = Table(title="Heterogeneity: deviation between speakers / within speakers, kurtosis of speakers' means")
    table.add_column("measure")
    for one in found:
        table.add_column(f"{one.name}\n{one.clients} speakers, {one.recordings} recordings", justify="right")
    for name in PUBLISHED:
        table.add_column(f"{name}\n(Gao et al. 2022)", justify="right")
    for measure, title in MEASURES.items():
        own = [one.spreads[measure] for one in found]
        printed = [PUBLISHED[name][measure] for name in PUBLISHED]
        table.add_row(
            title,
            *(f"{_figure(s.between)} / {_figure(s.within)}, {_figure(s.kurtosis)}" for s in own),
            *(f"{between} / {within}" for between, within in printed),
        )
    table.add_row("clustering purity", *(_figure(one.purity) for one in found), "0.77", "0.62")
    print_table(Console(), table)
    typer.echo(
        "Loudness has other units in the paper, and purity other embeddings: compare our columns with each other."
    )


def _figure(value: float) -> Any:
    return f"{value:.3g}" if math.isfinite(value) else "-"


def _strip_plot(found: Sequence[Heterogeneity]) -> str:
    from server.web.dashboard.plots import standalone, strips

    groups = [(one.name, one.spreads["permutation_entropy"].means) for one in found]
    return standalone(strips(groups, "permutation entropy, mean of a speaker", "speaker"), {"speaker": "#2563eb"})
