"""A round's settings as a TOML file: the fields of :class:`server.plans.round.RoundSettings`, tables for its plans."""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from device_sdk.errors import ConfigurationError
from server.plans.round import PRESETS, STREAMS, RoundSettings

Document = dict[str, Any]

_EFFECTIVE: tuple[tuple[tuple[str, ...], str, Callable[[Any], Any]], ...] = (
    (("smoothing", "suppression"), "a table marginals", lambda s: s.marginals),
    (("marginals.max_words", "marginals.max_weight"), "mode 'bounded'", lambda s: s.marginals.mode == "bounded"),
    (("marginals.delta",), "mechanism 'discrete_gaussian'", lambda s: s.marginals.mechanism == "discrete_gaussian"),
    (("groups",), "trust 'distributed'", lambda s: s.aggregated),
    (("marginals.minimum_survivors",), "marginals.trust 'distributed'", lambda s: s.aggregated == "marginals"),
    (("deltas.encoding", "deltas.measure"), "deltas.trust 'central'", lambda s: s.deltas.trust == "central"),
    (("deltas.minimum_survivors", "deltas.bits"), "deltas.trust 'distributed'", lambda s: s.aggregated == "deltas"),
    (("weighting", "weight_limit", "averaging", "trimmed", "optimizer"), "a table deltas", lambda s: s.deltas),
    (("noise_multiplier",), "a table deltas", lambda s: s.deltas),
    (("weight_limit",), "weighting 'utterances'", lambda s: s.weighting == "utterances"),
    (("trimmed",), "averaging 'cosine'", lambda s: s.averaging != "mean"),
    (("deltas.batch_size",), "kind 'gradient'", lambda s: s.deltas.kind == "gradient"),
    (("deltas.scale_per",), "encoding 'int8'", lambda s: s.deltas.encoding == "int8"),
    (
        ("optimizer.momentum", "optimizer.second_momentum", "optimizer.epsilon"),
        "a kind other than 'sgd'",
        lambda s: s.optimizer.kind != "sgd",
    ),
    (("optimizer.weight_decay",), "kind 'lamb'", lambda s: s.optimizer.kind == "lamb"),
    (
        tuple(f"optimizer.schedule.{name}" for name in ("start", "transition", "least")),
        "a decay below 1",
        lambda s: s.optimizer.schedule.decay < 1,
    ),
    (("teacher.interval",), "a decay below 1", lambda s: s.teacher.decay < 1),
    (("rehearsal.learning_rate",), "deltas.kind 'difference'", lambda s: s.deltas.kind == "difference"),
    (("sampling.over_selection",), "no sampling.rate", lambda s: s.sampling.rate is None),
)
"""Fields, what they have an effect beside, and whether :class:`RoundSettings` have that."""


def read_round(path: Path) -> RoundSettings:
    """The settings in a file. A stream is collected where its table stands in the file, marginals where none does;
    ``preset`` names settings to start from. Raises ConfigurationError, naming file and field: what is no TOML, an
    unknown field, a value that is impossible or would have no effect."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: found {error}, expected a TOML file with a round's settings") from error
    if "no_privacy" in document:
        found = f"{path}: no_privacy: found it in a file"
        raise ConfigurationError(f"{found}; expected it where the round is opened, as --no-privacy")
    preset = document.pop("preset", None)
    if preset is not None and preset not in PRESETS:
        raise ConfigurationError(f"{path}: preset: found {preset!r}, expected one of {', '.join(sorted(PRESETS))}")
    start = PRESETS[preset].model_dump(mode="json", exclude_unset=True) if preset is not None else {}
    if set(STREAMS) & document.keys():
        start = dict.fromkeys(STREAMS) | start
    try:
        settings = RoundSettings.model_validate(merge_tables(start, document))
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {_problem(error)}") from error
    for field, value in _fields(document):
        for names, needed, effective in _EFFECTIVE:
            if field in names and not effective(settings):
                shown = "a table" if isinstance(value, dict) else repr(value)
                raise ConfigurationError(f"{path}: {field}: found {shown}, which has no effect; expected {needed}")
    return settings


def merge_tables(start: Mapping[str, Any], document: Mapping[str, Any]) -> Document:
    """``start`` with what the document says in its place, table by table."""
    merged = dict(start)
    for name, value in document.items():
        below = merged.get(name)
        merged[name] = merge_tables(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _fields(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every table and value with its dotted name."""
    for name, value in document.items():
        yield prefix + name, value
        if isinstance(value, dict):
            yield from _fields(value, f"{prefix}{name}.")


def _problem(error: ValidationError) -> str:
    """The first thing wrong: field, found, expected."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "value_error":  # these name field and value themselves
        return f"{field}: {first['msg']}".removeprefix(": ").replace("Value error, ", "")
    if first["type"] == "extra_forbidden":
        names = ", ".join(_model(first["loc"][:-1]).model_fields)
        return f"{field}: found an unknown field, expected one of {names}"
    return f"{field}: found {first['input']!r}, expected {first['msg'].removeprefix('Input should be ')}"


def _model(location: tuple[str | int, ...]) -> type[BaseModel]:
    """What holds the fields of the table at ``location``."""
    model: type[BaseModel] = RoundSettings
    for name in location:
        annotation = model.model_fields[str(name)].annotation
        model = next(kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type))
    return model
