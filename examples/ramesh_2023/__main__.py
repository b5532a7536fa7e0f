"""Tables 2 and 3 of Ramesh et al. 2023: encoders pre-trained without text, by a federation or centrally, then taught.

python -m examples.ramesh_2023 --work runs/ramesh_2023"""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from examples import runner
from examples.ramesh_2023.experiment import run
from examples.ramesh_2023.recipes import FULL, SMALL, read_row, read_rows
from examples.ramesh_2023.speech import corpora_speech, made_speech
from examples.ramesh_2023.tables import chart, remarks, summary, tables
from server.lab.simulation.progress import progress


def main(
    work: runner.Work = Path("runs/ramesh_2023"),
    full: runner.Full = False,
    data: runner.Data = Path(),
    table: Annotated[list[str] | None, typer.Option("--table", help="Only this table: 2 or 3.")] = None,
    rows: runner.Only = None,
    recipe: Annotated[list[Path] | None, typer.Option(help="A row of your own, TOML, to run as well.")] = None,
    seeds: runner.Seeds = 3,
    json_: runner.AsJson = False,
    output: runner.Output = None,
    plots: runner.Plots = None,
) -> None:
    """Run the rows of tables 2 and 3 of Ramesh et al. 2023 and say which of its findings hold here."""
    sizes = FULL if full else SMALL
    known = [*read_rows(), *(read_row(path) for path in recipe or ())]
    names = {f"{one.name} ({one.table})": one for one in known if not table or one.table in table}
    chosen = runner.choose(names, rows)
    speech = partial(corpora_speech, data) if full else partial(made_speech, sizes, folder=work / "speech")
    with progress() as tell:
        document = summary(run(sizes, range(1, seeds + 1), speech, work, chosen, tell), chosen, sizes)
    runner.present(document, tables(document), {"rows": chart(document)}, json_, output, plots, remarks(document))


if __name__ == "__main__":
    runner.start(main)
