"""Settings of rounds in TOML files: what they say, and what is refused by file and field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from device_sdk.errors import ConfigurationError
from device_sdk.wire.messages import MarginalPlan
from server.plans.round import PRESETS, RoundSettings
from server.plans.round_file import read_round


def read(folder: Path, text: str) -> RoundSettings:
    (folder / "round.toml").write_text(text)
    return read_round(folder / "round.toml")


def test_streams_are_those_whose_tables_stand_in_the_file(tmp_path: Path) -> None:
    assert read(tmp_path, "") == RoundSettings()
    assert read(tmp_path, "goal = 7").streams == ("marginals",)
    assert read(tmp_path, "[deltas]").streams == ("deltas",)
    both = read(tmp_path, "[marginals]\nepsilon = 2\n[deltas]\nkind = 'gradient'\nbatch_size = 4")
    assert both.marginals == MarginalPlan(epsilon=2.0)
    assert both.deltas is not None and (both.deltas.kind, both.deltas.batch_size) == ("gradient", 4)


def test_a_preset_is_where_a_file_starts(tmp_path: Path) -> None:
    assert read(tmp_path, "preset = 'rao-2023'") == PRESETS["rao-2023"]
    changed = read(tmp_path, "preset = 'rao-2023'\nrounds = 7\n[deltas]\nbatch_size = 4\n[optimizer]\nepsilon = 1e-3")
    assert changed.deltas is not None and (changed.deltas.kind, changed.deltas.batch_size) == ("gradient", 4)
    assert (changed.optimizer.kind, changed.optimizer.epsilon) == ("adam", 1e-3)
    assert (changed.rounds, changed.goal, changed.streams) == (7, 400, ("deltas",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("goal = ", "found Invalid value .*expected a TOML file"),
        ("preset = 'ramesh-2023'", "preset: found 'ramesh-2023', expected one of rao-2023"),
        ("gaol = 4", "gaol: found an unknown field, expected one of marginals, .*goal"),
        ("[deltas]\nclip = 4", "deltas.clip: found an unknown field, expected one of .*clip_norm"),
        ("[deltas]\n[optimizer.schedule]\nrate = 4", "optimizer.schedule.rate: found .*warmup"),
        ("[marginals]\nepsilon = -1", "marginals.epsilon: found -1, expected greater than 0"),
        ("[deltas]\nkind = 'mean'", "deltas.kind: found 'mean', expected 'difference' or 'gradient'"),
        ("marginals = 3", "marginals: found 3, expected "),
        ("goal = 3\nminimum = 4", "goal: found 3, expected at least minimum = 4"),
        ("[sampling]\namplified = true", "sampling: rate: found none; amplified"),
        ("[teacher]\ndecay = 0.9", "teacher: found a plan without one for deltas"),
        ("noise_multiplier = 1", "noise_multiplier: found noise without a plan for deltas"),
    ],
)
def test_what_cannot_be_is_refused_by_file_and_field(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"round\.toml: {message}"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "field", "needed"),
    [
        ("smoothing = 100.0\n[deltas]", "smoothing", "a table marginals"),
        ("[marginals]\nmode = 'paper'\nmax_words = 5", "marginals.max_words", "mode 'bounded'"),
        ("[marginals]\ndelta = 1e-9", "marginals.delta", "mechanism 'discrete_gaussian'"),
        ("[groups]\nsize = 9", "groups", "marginals.trust 'distributed'"),
        ("averaging = 'cosine'\nweighting = 'uniform'", "averaging", "a table deltas"),
        ("[optimizer]\nkind = 'adam'", "optimizer", "a table deltas"),
        ("noise_multiplier = 0.0", "noise_multiplier", "a table deltas"),
        ("weighting = 'uniform'\nweight_limit = 9\n[deltas]", "weight_limit", "weighting 'utterances'"),
        ("trimmed = 0.2\n[deltas]", "trimmed", "averaging 'cosine'"),
        ("[deltas]\nbatch_size = 16", "deltas.batch_size", "kind 'gradient'"),
        ("[deltas]\nscale_per = 'row'", "deltas.scale_per", "encoding 'int8'"),
        ("[deltas]\n[optimizer]\nepsilon = 1e-3", "optimizer.epsilon", "a kind other than 'sgd'"),
        ("[deltas]\n[optimizer]\nkind = 'adam'\nweight_decay = 0.1", "optimizer.weight_decay", "kind 'lamb'"),
        ("[deltas]\n[optimizer.schedule]\nstart = 9", "optimizer.schedule.start", "a decay below 1"),
        ("[deltas]\n[teacher]\ndecay = 1.0\ninterval = 3", "teacher.interval", "a decay below 1"),
        ("[deltas]\nkind = 'gradient'\n[rehearsal]\nlearning_rate = 1", "rehearsal.learning_rate", "deltas.kind"),
        ("[sampling]\nrate = 0.5\nover_selection = 1.0", "sampling.over_selection", "no sampling.rate"),
    ],
)
def test_what_would_have_no_effect_is_refused(tmp_path: Path, text: str, field: str, needed: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{re.escape(field)}: found .*no effect; expected {needed}"):
        read(tmp_path, text)
