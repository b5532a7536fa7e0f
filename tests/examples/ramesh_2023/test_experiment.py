"""Ramesh et al. 2023 from end to end, at a size that learns nothing but goes through everything; and its script."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import ConfigurationError, DataError
from examples.ramesh_2023.encoders import fresh, silo_rounds, some_silos, together
from examples.ramesh_2023.experiment import Outcome, run
from examples.ramesh_2023.recipes import SMALL, Federation, Row, Sizes, Teaching, read_row, read_rows
from examples.ramesh_2023.speech import corpora_speech, made_speech
from examples.ramesh_2023.tables import summary
from examples.runner import Errors, digest, keep
from export.networks.cpc import ContextShape, Contrast
from server.aggregation.optimizers import apply, init
from server.lab.training.clips import HeldClips
from server.lab.training.data import Example
from server.lab.training.spectra import BINS
from server.plans.round import OptimizerSettings
from tests.examples.scripts import run_script
from tests.server.lab.corpora.test_recipes import librilight, librispeech, mls

pytest.importorskip("espeakng_loader")

TINY = Sizes(
    *("tiny", ContextShape(256, 3, 1, 12, 1, 16), Contrast(2, 4), 4, 3, 0.4, 20, 20, 3, 4, 1e-3),
    Federation(rounds=4, batch=2, rate=1e-3, passes=3),
    Teaching(4, 1e-3, 4, 24, 1, 8, 8, 12),
)
ROWS = (
    Row("2", "no pre-training", "none"),
    Row("2", "central", "central"),
    Row("2", "federated 48", "federated", 3, published={"test-other": 16.34}),
    Row("2", "federated 70, part", "federated", 5, whole=False),
    Row("2", "federated 48, one pass", "federated", 3, passes=1),
    Row("3", "direct, central", "central"),
    Row("3", "continued, federated 48", "federated", 3, continued=True),
)


def done(work: Path) -> list[Outcome]:
    return run(TINY, (1, 2), lambda language: made_speech(TINY, language, work / "speech"), work, ROWS, lambda *_: None)


def test_every_row_runs_at_every_seed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    found = done(tmp_path)
    assert [(one.seed, one.table, one.row) for one in found] == [
        (n, row.table, row.name) for n in (1, 2) for row in ROWS
    ]
    for name, errors in (each for one in found for each in one.errors.items()):
        assert name in ("clean", "other") and all(1 <= words <= 4 for words in errors.words)
        assert len(errors.wrong) == len(errors.words) == len(errors.speakers) == 20
    about = {one.row: one.about for one in found if one.seed == 1}
    assert about["no pre-training"] == {} and about["central"] == {"steps": 3, "utterances": 12}
    assert (about["federated 48"]["rounds"], about["federated 48"]["utterances"]) == (4, 12)
    assert about["federated 70, part"]["utterances"] == 6, "two whole silos"
    once = about["federated 48, one pass"]
    assert once["rounds"] < 4 and once["passes"] <= 1.0
    assert about["continued, federated 48"]["continued"]["rounds"] == 2
    monkeypatch.setattr("examples.ramesh_2023.experiment.teach", None)
    assert done(tmp_path) == found, "what is finished is not done again"


@pytest.mark.parametrize(
    ("central", "federated", "lower", "near"),
    [([1] * 10, [1] * 10, True, True), ([1] * 10, [2] * 10, False, False), ([2] * 10, [1] * 10, True, True)],
)
def test_findings_follow_from_errors(central: list[int], federated: list[int], lower: bool, near: bool) -> None:
    """Against two errors an utterance without pre-training."""
    errors = {"no pre-training": [2] * 10, "central": central, "federated 48": federated}
    speakers = [f"s{index // 2}" for index in range(10)]
    given = [
        Outcome("2", row, seed, {"clean": Errors(own, [4] * 10, speakers)}, {})
        for seed in (1, 2, 3)
        for row, own in errors.items()
    ]
    document = summary(given, ROWS, SMALL)
    held = {one["finding"]: one["holds"] for one in document["findings"]}
    assert held["table 2: federated 48 against no pre-training"] == lower
    assert held["table 2: federated 48 against central"] == near
    row = next(row for row in document["tables"]["2"] if row["name"] == "federated 48")
    assert row["sets"]["clean"]["mean"] == federated[0] / 4 and row["sets"]["clean"]["std"] == 0.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('table = "2"\nname = "x"\nway = "federated"', "cohort: found 0"),
        ('table = "4"\nname = "x"\nway = "none"', "'4'"),
        ('table = "2"\nname = "x"\nway = "central"\npasses = 1', "passes: found 1"),
        ('table = "2"\nname = "x"\nway = "none"\ncolour = 1', "colour"),
        ("table =", "not a row"),
    ],
)
def test_a_row_that_cannot_be_is_named(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "row.toml"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=f"(?s)row.toml.*{message}"):
        read_row(path)


def test_tables_json_and_chart(tmp_path: Path) -> None:
    """Of a work folder in which every row is done, better where there was more speech to pre-train on."""
    folder = tmp_path / "work" / digest(SMALL) / "rows"
    generator = np.random.default_rng(0)
    speakers = [f"s{number // 3}" for number in range(60)]
    for seed, row in product((1, 2, 3), read_rows()):
        chance = 0.5 if row.way == "none" else 0.4 if row.whole else 0.45
        wrong = {name: generator.binomial(4, chance, 60).tolist() for name in ("clean", "other")}
        errors = {name: Errors(own, [4] * 60, speakers) for name, own in wrong.items()}
        outcome = Outcome(row.table, row.name, seed, errors, {})
        keep(folder, (row.table, row.name, seed), row, Outcome, lambda outcome=outcome: outcome)
    output, plot = tmp_path / "o" / "x.json", tmp_path / "o" / "rows.svg"
    result = run_script("ramesh_2023", "--work", tmp_path / "work", "--output", output, "--plots", plot.parent)
    assert result.exit_code == 0, result.exception
    for shown in ("Table 2", "Table 3", "federated 70, part", "continued, central", "18.42", "32.6", "holds: table 2"):
        assert shown in result.stdout
    document = json.loads(output.read_text())
    assert {table: len(rows) for table, rows in document["tables"].items()} == {"2": 11, "3": 7}
    assert [len(row["sets"]["clean"]["by_seed"]) for row in document["tables"]["2"]] == [3] * 11
    assert [len(row["published"]) for rows in document["tables"].values() for row in rows] == [
        *(0 if "one pass" in row["name"] else 4 for row in document["tables"]["2"]),
        *[2] * 7,
    ]
    assert document["tables"]["2"][0]["published"]["test-other"] == 18.42 and plot.read_text().startswith("<svg")
    assert "federated 48" in str(run_script("ramesh_2023", "--rows", "teleport").exception)


OWNERS = st.lists(st.integers(1, 9), min_size=2, max_size=12)


@given(OWNERS, st.integers(1, 4), st.integers(1, 40), st.integers(1, 3), st.integers(0, 3))
def test_a_pass_takes_every_clip_once_and_in_the_order_of_time(owners, batch, rounds, passes: int, seed: int) -> None:
    cohort = 1 + seed % len(owners)
    plan = silo_rounds(owners, cohort, batch, rounds, passes, seed)
    assert 1 <= len(plan) <= rounds and plan == silo_rounds(owners, cohort, batch, rounds, passes, seed)
    silo = np.repeat(np.arange(len(owners)), owners)
    seen = np.zeros(sum(owners), int)
    for clients in plan:
        assert len(clients) == cohort
        assert len({silo[own[0]] for own in clients}) == cohort, "a silo once a round"
        for own in clients:
            assert 1 <= len(own) <= batch and own == list(range(own[0], own[-1] + 1))
            assert len(set(silo[own])) == 1, "one speaker"
            first = int(np.flatnonzero(silo == silo[own[0]])[0])
            before = seen[first : own[0]]
            assert (before > seen[own[0]]).all(), "nothing is skipped"
            seen[own] += 1
    assert seen.max() <= passes


@given(OWNERS, st.floats(0.05, 1.0), st.integers(0, 9))
def test_a_part_is_whole_silos(owners: list[int], share: float, seed: int) -> None:
    clips = HeldClips(
        [
            Example(np.full((1, 2), number, np.float16), "", str(silo))
            for silo, own in enumerate(owners)
            for number in range(own)
        ]
    )
    part, kept = some_silos(clips, owners, share, seed)
    assert len(kept) == max(1, round(share * len(owners))) and len(part.frames) == sum(kept)
    said = [part[index] for index in range(sum(kept))]
    silos = list(dict.fromkeys(clip.source for clip in said))
    assert [owners[int(silo)] for silo in silos] == list(kept)
    assert [int(clip.features[0, 0]) for clip in said] == [place for own in kept for place in range(own)]


def test_there_are_as_many_silos_as_clients() -> None:
    with pytest.raises(ConfigurationError, match="3 silos"):
        silo_rounds([1, 1, 1], 4, 1, 1, 1, 0)


def test_a_round_is_one_adam_step_on_the_mean_gradient_of_its_utterances() -> None:
    """FedSGD weighted by utterances, against one step by torch."""
    sizes = Sizes(
        *("test", ContextShape(6, 3, 1, 8, 1, 10), Contrast(1, 2), 3, 2, 0.5, 0, 0, 1, 1, 1e-3),
        Federation(1, 2, 1e-2, 1),
        Teaching(1, 1e-3, 1, 8, 1, 4, 4, 4),
    )
    generator = np.random.default_rng(0)
    # Clips of two stacked frames: the one negative there can be is the same in every draw.
    clips = HeldClips([Example(generator.standard_normal((6, 6)).astype(np.float32), "", "") for _ in range(5)])
    network, reference = fresh(sizes, clips, 3), fresh(sizes, clips, 3)
    _, about = together(network, clips, (2, 2, 1), sizes, 3, seed=1)
    assert about["rounds"] == 1 and about["passes"] == 1.0
    losses, _ = reference.losses(torch.from_numpy(np.stack([clip.features for clip in clips])), torch.full((5,), 2))
    base = {name: value.detach().numpy() for name, value in reference.named_parameters()}
    gradients = torch.autograd.grad(losses.mean(), list(reference.parameters()))
    minus = {name: -gradient.numpy() for name, gradient in zip(base, gradients, strict=True)}
    settings = OptimizerSettings(kind="adam", learning_rate=1e-2, second_momentum=0.98, epsilon=1e-8)
    expected, _ = apply(settings, init(settings, {name: value.shape for name, value in base.items()}), base, minus)
    for name, parameter in network.named_parameters():
        moved = np.abs(minus[name]) > 1e-4  # where the sign of a gradient is not a matter of rounding
        assert moved.any() or not minus[name].any()
        np.testing.assert_allclose(parameter.detach().numpy()[moved], expected[name][moved], rtol=1e-3, atol=1e-5)


PARTS = ("train-clean-100", "train-clean-360", "train-other-500", "dev-clean", "dev-other", "test-clean", "test-other")


def test_the_paper_s_corpora_in_english(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="librilight"):
        corpora_speech(tmp_path, "en")
    librilight(tmp_path / "librilight", "large")
    for number, part in enumerate(PARTS):
        librispeech(tmp_path / "LibriSpeech", part, 100 * number + 1)
    speech = corpora_speech(tmp_path, "en")
    assert speech.owners == (4, 2) and len(speech.silos.frames) == 6, "silos by speaker: 100, then 7"
    assert len(speech.taught.frames) == 9 and set(speech.tests) == set(PARTS[3:])
    clip = speech.taught[0]
    assert clip.text == "it's a tone of" and clip.features.shape[1] == BINS
    assert speech.silos[0].text == "" and abs(speech.silos[0].features.shape[0] - speech.silos.frames[0]) <= 3
    assert {example.source for example in speech.tests["dev-clean"]} == {"301", "308"}


def test_the_paper_s_corpora_in_french(tmp_path: Path) -> None:
    mls(tmp_path / "mls", ("train", "dev", "test"), tuple(range(1, 31)))
    speech = corpora_speech(tmp_path, "fr")
    taught = {speech.taught[index].source for index in range(len(speech.taught.frames))}
    silos = {speech.silos[index].source for index in range(len(speech.silos.frames))}
    assert not taught & silos and len(taught | silos) == 30
    assert 1 <= len(taught) <= 14, "about a fifth of the speakers"
    assert speech.owners == (3,) * len(silos)
    assert set(speech.tests) == {"dev", "test"} and len(speech.tests["dev"]) == 90
