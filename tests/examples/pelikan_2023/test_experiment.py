"""The experiment of Pelikan et al. 2023 at a size a test can afford: its rows, its recipes and what it concludes."""

import json
from pathlib import Path
from typing import Any

import pytest

from device_sdk.errors import ConfigurationError
from examples import runner
from examples.pelikan_2023.__main__ import RECIPES
from examples.pelikan_2023.experiment import Experiment, Scale
from examples.pelikan_2023.recipe import BASE, Recipe, read_recipe, read_recipes
from examples.pelikan_2023.speech import SpokenScale, dictate, shuffle
from examples.pelikan_2023.tables import chart, energy_shares, findings, remarks, summary, table
from export.networks.ctc_transformer import CTCTransformerShape
from server.lab.simulation.engine.settings import Privacy
from tests.examples.scripts import run_script

pytest.importorskip("espeakng_loader")

SHAPE = CTCTransformerShape(mel_bins=16, size=8, feed_forward=8, layers=1, heads=1, dropout=0.0, layer_drop=0.0)
SCALE = Scale(SpokenScale(clients=4, server=2, tested=2, each=2, digits=2), SHAPE, steps=2, batch=2)
ENGINE = BASE.model_copy(update={"rounds": 2, "cohort": 3})


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dictation")


def test_rows(work: Path) -> None:
    noisy = ENGINE.model_copy(update={"privacy": Privacy(clip_norm=0.5, clipping="dim", noise_multiplier=0.5)})
    recipes = [
        Recipe(name="seed model alone", table="2", begin="only", paper=61.2),
        Recipe(name="no noise, dim", table="2", engine=ENGINE),
        Recipe(name="low noise, global", table="2", engine=noisy, iid=True, masks=False),
        Recipe(name="post", table="7", engine=ENGINE, begin="scratch", norm="post"),
    ]
    experiment = Experiment(work, SCALE)
    rows = [experiment.row(recipe, 1) for recipe in recipes]
    assert [len(row.losses) for row in rows] == [0, 2, 2, 2]
    assert all(row.error > 0 and set(row.clients) >= {"error", "worst_tenth"} for row in rows)
    assert rows[1].privacy["epsilon"] == "Infinity" and rows[2].privacy["epsilon"] > 0
    assert rows[1].layers["output.weight"] > 0
    assert Experiment(work, SCALE).row(recipes[2], 1) == rows[2]  # as it was kept
    document = json.loads(json.dumps(summary(recipes, rows)))
    assert document["rows"][0]["recipe"]["paper"] == 61.2 and document["findings"] == {}
    assert table(document).row_count == 4 and "have not all run" in next(iter(remarks(document)))


def test_a_row_that_diverges_is_a_row(work: Path) -> None:
    optimizer = BASE.optimizer.model_copy(update={"kind": "sgd", "learning_rate": 1e6})
    recipe = Recipe(name="sgd", table="9", begin="scratch", engine=ENGINE.model_copy(update={"optimizer": optimizer}))
    row = Experiment(work, SCALE).row(recipe, 1)
    assert row.diverged == 2 and len(row.losses) == 1 and row.error > 0
    document = summary([recipe], [row, Experiment(work, SCALE).row(recipe, 2)])
    assert document["rows"][0]["diverged"] == {"1": 2, "2": 2}
    assert "sgd (diverged in 2)" in list(table(document).columns[0].cells)


def test_speech_is_split_by_speaker_and_repeats_itself(work: Path) -> None:
    speech, again = (dictate(SCALE.spoken, 1, work / name) for name in ("one", "other"))
    mixed = shuffle(speech.clients, 1)
    parts = (speech.clients, again.clients, mixed)
    one, other, third = ([example.text for voice in part for example in voice] for part in parts)
    assert one == other and sorted(one) == sorted(third)
    assert [len(part) for part in (mixed, speech.clients, speech.server, speech.tested)] == [4, 4, 2, 2]
    assert all(mixed)


def test_recipes() -> None:
    """All that ship can be read; a row says only what differs."""
    found = {recipe.name: recipe for recipe in read_recipes(RECIPES)}
    assert len(found) == len(list(RECIPES.glob("*.toml"))) >= 20
    privacy = found["middle noise, dim"].engine.privacy
    assert privacy is not None and privacy.clipping == "dim" and privacy.noise_multiplier > 0
    assert found["no clipping"].engine == BASE and found["three steps, FedProx"].engine.local.proximal > 0
    same = {r.engine.model_copy(update={"privacy": None}).digest() for n, r in found.items() if "noise" in n}
    assert len(same) == 1  # rows of table 2 differ in privacy only


@pytest.mark.parametrize("content", ["name = 1", "x", 'name = "a"\ntable = "2"\n[engine]\ncohort = 0', "colour = 1"])
def test_broken_recipes_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.toml").write_text(content)
    with pytest.raises(ConfigurationError, match=r"a\.toml"):
        read_recipe(tmp_path / "a.toml")
    with pytest.raises(ConfigurationError, match="one a row"):
        read_recipes(tmp_path / "none")


def _document(errors: dict[str, list[float]]) -> dict[str, Any]:
    rates = {name: runner.rates(dict(enumerate(each, 1))) for name, each in errors.items()}
    return {"seeds": [1, 2], "rows": [{"recipe": {"name": name}, "error": rate} for name, rate in rates.items()]}


def test_what_is_won_back() -> None:
    """The paper's own figures: of 31.1 - 19.1 lost, 31.1 - 20.4 come back."""
    errors = {"no noise, dim": 19.1, "no noise, global": 18.9, "low noise, global": 26.7, "low noise, dim": 19.3}
    errors |= {"middle noise, global": 31.1, "middle noise, uniform": 21.2, "middle noise, dim": 20.4}
    paper = {name: [error] * 2 for name, error in (errors | {"high noise, dim": 23.7}).items()}
    document = _document(paper)
    found = findings(document)
    assert found["noise"] == "middle"
    assert found["dim"]["recovered"] == pytest.approx(0.8917, abs=1e-3) and found["dim"]["holds"]
    assert found["uniform"]["recovered"] == pytest.approx(0.825, abs=1e-3)
    assert found["ordered"] == {"low": True, "middle": True}
    assert found["levels"]["low"]["recovered"] == pytest.approx(7.4 / 7.6)
    assert found["levels"]["middle"]["dim minus global"]["mean"] == pytest.approx(-10.7)
    assert sum("dim instead of it" in line for line in remarks({"findings": found, "rows": []})) == 2
    missed = findings(_document(paper | {"middle noise, dim": [30.0, 20.4]}))
    assert not missed["dim"]["holds"] and missed["dim"]["per_seed"][0] < 0.1
    assert findings(_document(paper | {"no noise, dim": [40.0, 40.0]}))["dim"]["recovered"] is None
    assert chart(document).startswith("<svg")


def test_energy_by_kind_of_parameter() -> None:
    names = ("convolution.weight", "layers.0.attention_norm.bias", "layers.1.attention_output.weight")
    names += ("layers.1.outer.bias", "norm.weight", "output.weight")
    layers = dict(zip(names, (4.0, 1.0, 1.0, 1.0, 1.0, 2.0), strict=True))
    parts = {"convolution": 16, "output": 4, "LayerNorm": 2, "attention": 1, "perceptron": 1}
    assert energy_shares(layers) == {kind: pytest.approx(part / 24) for kind, part in parts.items()}
    assert list(energy_shares(layers))[:3] == ["convolution", "output", "LayerNorm"]
    assert energy_shares({"output.weight": 0.0}) == {}


def test_the_script(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.pelikan_2023.__main__.Scale", lambda: SCALE)
    recipe = work / "recipe.toml"
    recipe.write_text('name = "no noise, dim"\ntable = "2"\n[engine]\nrounds = 2\ncohort = 3\n')
    words = "--work", work, "--seeds", 2, "--recipe", recipe, "--plots", work / "plots"
    shown = run_script("pelikan_2023", *words)
    assert shown.exit_code == 0, shown.exception
    assert "no noise, dim" in shown.stdout and "2 seeds" in shown.stdout and (work / "plots" / "noise.svg").exists()
    document = json.loads(run_script("pelikan_2023", *words, "--json").stdout)
    assert [len(row["losses"]) for row in document["rows"][0]["seeds"]] == [2, 2]
