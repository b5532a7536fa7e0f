"""What marginals could give at most on recordings, whatever a device counts: a bound to read before tuning any.

    python examples/liu_2020/yardsticks.py --data barista:PATH --seeds 3

Every utterance is recognized once; its list is put in order again with the frequencies of words that only the truth
knows: of what this user said so far, everybody else, or this user even later. Lambda (eq. 1) and the pseudo-words
beside the counts (eq. 4) suit a row best on the very utterances it is measured on, so no device can have more.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.errors import DataError
from device_sdk.feedback import SlotLexicon
from device_sdk.hypothesis import Hypothesis
from device_sdk.personalization.rescorer import Rescorer
from examples import runner
from rescoring.marginals import adaptation, personal_scores, personal_unigram
from rescoring.words import WordList
from server.lab.corpora import Utterance
from server.lab.simulation.outcomes import Outcome, counts, rate, score
from server.lab.simulation.population import Population, Shape, gather_all
from server.lab.simulation.progress import progress
from server.lab.statistics import in_percent, paired_bootstrap

FROZEN, BEST_ENTRY = "frozen", "best entry of each list"
STRENGTHS = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5)
PSEUDO_WORDS = (2.0, 20.0, 100.0)

Counts = NDArray[np.float64]
Tell = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Said:
    """One utterance of a device's user. hypotheses: best first by the second pass, without marginals."""

    seed: int
    voice: str
    round: int
    recording: Utterance
    hypotheses: tuple[Hypothesis, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """What the truth tells about one utterance. past: words that its user said before it, [n]; own: all that the user
    says, later, too; others: everybody else's."""

    past: Counts
    own: Counts
    others: Counts


Row = Callable[[Known], tuple[Counts, Counts | None]]
"""(the user's counts, those that stand behind them in place of the background)."""

ROWS: dict[str, Row] = {
    "words the user said before": lambda known: (known.past, None),
    "words of everybody else": lambda known: (known.others, None),
    "both": lambda known: (known.past, known.others),
    "words the user says, later ones too": lambda known: (known.own, None),
}


def heard_lists(bundle: Bundle, populations: dict[int, Population], tell: Tell) -> list[Said]:
    """The devices' utterances in order, each recognized once whatever the seeds; tell(done, all)."""
    recognizer, rescorer = Recognizer(bundle, DecodingSettings()), Rescorer(bundle)
    lists: dict[str, tuple[Hypothesis, ...]] = {}
    said = [
        (seed, voice.name, number, recording)
        for seed, population in populations.items()
        for voice in population.devices
        for number, recordings in enumerate(voice.rounds)
        for recording in recordings
    ]
    found = []
    for done, (seed, voice, number, recording) in enumerate(said):
        if recording.id not in lists:
            lists[recording.id] = rescorer.rescore(recognizer.recognize(recording.load(), 16_000).nbest)
        found.append(Said(seed, voice, number, recording, lists[recording.id]))
        tell(done + 1, len(said))
    return found


def yardsticks(
    said: Sequence[Said], words: WordList, background: Counts, lexicon: SlotLexicon | None
) -> dict[str, Any]:
    """{"rows": [...]}: slot and word error of every row, and its difference in slot error from the frozen model with
    the 95 % interval (bootstrap over voices). background: u of eq. 1, [n]. Raises DataError where utterances have no
    transcripts or no slots."""
    if lexicon is None or any(each.recording.text is None or each.recording.slots is None for each in said):
        raise DataError("yardsticks: found utterances without words or slots, expected recordings that have both")
    known = _known(said, words)

    def outcome(each: Said, text: str) -> Outcome:
        return score(each.recording, text, lexicon, each.voice, each.round)

    def scored(texts: Sequence[str]) -> list[Outcome]:
        return [outcome(each, text) for each, text in zip(said, texts, strict=True)]

    def best_entry(each: Said) -> str:
        texts = (hypothesis.text for hypothesis in each.hypotheses)
        return min(texts, key=lambda text: outcome(each, text).slot_errors, default="")

    frozen = scored([each.hypotheses[0].text if each.hypotheses else "" for each in said])
    rows = [_row(FROZEN, frozen, frozen, said)]
    for name, row in ROWS.items():
        cells = []
        for pseudo in PSEUDO_WORDS:
            marginals = [_marginal(*row(each), background, pseudo) for each in known]
            for strength in STRENGTHS:
                factors = [adaptation(marginal, background, strength) for marginal in marginals]
                texts = [_first(each, own, words) for each, own in zip(said, factors, strict=True)]
                cells.append((scored(texts), {"lambda": strength, "pseudo_words": pseudo}))
        outcomes, chosen = min(cells, key=lambda cell: rate(cell[0], "slot_error") or 0.0)
        rows.append(_row(name, outcomes, frozen, said) | chosen)
    rows.append(_row(BEST_ENTRY, scored([best_entry(each) for each in said]), frozen, said))
    voices = len({each.voice for each in said})
    return {"rows": rows, "utterances": len(said), "voices": voices, "seeds": sorted({each.seed for each in said})}


def _known(said: Sequence[Said], words: WordList) -> list[Known]:
    own: dict[tuple[int, str], Counts] = {}
    everybody: dict[int, Counts] = {}
    before: list[Counts] = []
    for each in said:
        so_far = own.setdefault((each.seed, each.voice), np.zeros(len(words)))
        before.append(so_far.copy())
        added = np.bincount(words.ids(each.recording.text or ""), minlength=len(words))
        so_far += added
        of_all = everybody.setdefault(each.seed, np.zeros(len(words)))
        of_all += added
    return [
        Known(past, own[each.seed, each.voice], everybody[each.seed] - own[each.seed, each.voice])
        for each, past in zip(said, before, strict=True)
    ]


def _marginal(own: Counts, behind: Counts | None, background: Counts, pseudo: float) -> Counts:
    base = background if behind is None else personal_unigram(behind, background, PSEUDO_WORDS[0])
    return personal_unigram(own, base, pseudo)


def _first(each: Said, factors: Counts, words: WordList) -> str:
    """What is served: the first of the best hypotheses."""
    if not each.hypotheses:
        return ""
    personal = personal_scores([words.ids(hypothesis.text) for hypothesis in each.hypotheses], factors)
    totals = [hypothesis.score + own for hypothesis, own in zip(each.hypotheses, personal, strict=True)]
    return each.hypotheses[int(np.argmax(totals))].text


def _row(name: str, outcomes: Sequence[Outcome], frozen: Sequence[Outcome], said: Sequence[Said]) -> dict[str, Any]:
    def errors(of: Sequence[Outcome]) -> list[int]:
        return [counts(outcome, "slot_error")[0] for outcome in of]

    slots = [outcome.slots for outcome in frozen]
    difference = paired_bootstrap(errors(frozen), errors(outcomes), slots, [each.voice for each in said])
    return {
        "name": name,
        "slot_error": rate(outcomes, "slot_error"),
        "wer": rate(outcomes, "wer"),
        "difference": difference.absolute.as_json(),
    }


def main(
    data: Annotated[str, typer.Option(help="Recordings with words and slots: barista:PATH, folder:PATH.")],
    bundle: Annotated[str | None, typer.Option(help="Bundle; the packaged one by default.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="As in `idiolect simulate`.")] = 3,
    seeds: Annotated[int, typer.Option(min=1, help="How many orders of what is said.")] = 3,
    json_: runner.AsJson = False,
    output: runner.Output = None,
) -> None:
    """Print slot and word errors of rows that know what no device can, beside the frozen model's."""
    opened = Bundle.open(bundle)
    voices = opened.manifest.training.get("voices", {})
    with tempfile.TemporaryDirectory(prefix="idiolect-yardsticks-") as folder, progress() as tell:
        populations = gather_all(data, range(1, seeds + 1), Shape(rounds=rounds), voices, Path(folder), tell)
        said = heard_lists(opened, populations, lambda done, total: tell("recognized", done, total))
        lexicon = next(iter(populations.values())).lexicon
    document = yardsticks(said, opened.words, opened.background, lexicon)
    title = f"{document['voices']} voices, {len(document['seeds'])} orders, errors in %"
    columns = {
        "frequencies of": lambda row: row["name"],
        "slots": lambda row: f"{100 * row['slot_error']:.1f}",
        "words": lambda row: f"{100 * row['wer']:.1f}",
        "slots against frozen, points (95 %)": lambda row: "{} ({} to {})".format(*in_percent(row["difference"])),
        "lambda": lambda row: str(row.get("lambda", "")),
    }
    runner.present(document, [runner.table(title, document["rows"], columns)], {}, json_, output, None, ())


if __name__ == "__main__":
    typer.run(main)
