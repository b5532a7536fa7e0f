"""The rows beside the paper's, which of its findings hold here, and a chart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table

from server.lab.simulation.dictation.experiment import Row
from server.lab.simulation.dictation.recipes import Recipe
from server.lab.statistics import mean_interval
from server.web.dashboard.plots import Bar, bars, standalone

__all__ = ["chart", "energy_shares", "findings", "remarks", "summary", "table"]

CLEAN = "no noise, dim"
RECOVERED = 0.8
_LEVEL = re.compile(r"(\w+) noise, (global|uniform|dim)")
_COLOURS = {"global": "#9ca3af", "uniform": "#60a5fa", "dim": "#1d4ed8"}


def summary(recipes: Sequence[Recipe], rows: Sequence[Row]) -> dict[str, Any]:
    """Everything as JSON: every row under every seed, its mean and spread, and the findings."""
    lines = []
    for recipe in recipes:
        own = [row for row in rows if row.name == recipe.name]
        if not own:
            continue
        errors = [row.error for row in own]
        lines.append(
            {
                "recipe": recipe.model_dump(mode="json"),
                "paper": recipe.paper,
                "error": {"mean": float(np.mean(errors)), "std": _deviation(errors), "per_seed": errors},
                "clients": {"mean": float(np.mean([row.clients["error"] for row in own]))},
                "epsilon": own[0].privacy["epsilon"],
                "diverged": {str(row.seed): row.diverged for row in own if row.diverged is not None},
                "rows": [asdict(row) for row in own],
            }
        )
    document: dict[str, Any] = {"seeds": sorted({row.seed for row in rows}), "lines": lines}
    document["findings"] = findings(document)
    return document


def findings(document: Mapping[str, Any]) -> dict[str, Any]:
    """What of the paper holds: the share of the loss by noise that per-layer clipping wins back at the noise where
    global clipping loses most, of means and under each seed; and ``levels``, at every noise: that share, what global
    clipping loses, and word errors with ``dim`` minus those with ``global``, each with its interval over seeds.

    Empty where rows that it needs have not run.
    """
    errors = {line["recipe"]["name"]: line["error"]["per_seed"] for line in document["lines"]}
    levels: dict[str, dict[str, list[float]]] = {}
    for name, values in errors.items():
        if (match := _LEVEL.fullmatch(name)) and match[1] != "no":
            levels.setdefault(match[1], {})[match[2]] = values
    whole = {level: found for level, found in levels.items() if {"global", "dim"} <= set(found)}
    if CLEAN not in errors or not whole:
        return {}
    worst = max(whole, key=lambda level: float(np.mean(whole[level]["global"])))
    result: dict[str, Any] = {"noise": worst}
    for kind in ("uniform", "dim"):
        if kind not in whole[worst]:
            continue
        triples = list(zip(errors[CLEAN], whole[worst]["global"], whole[worst][kind], strict=False))
        means = np.mean(triples, axis=0)
        result[kind] = {
            "recovered": _recovered(*means),
            "per_seed": [_recovered(*triple) for triple in triples],
            "holds": bool((_recovered(*means) or 0.0) >= RECOVERED),
        }
    result["ordered"] = {
        level: bool(np.mean(found["dim"]) <= np.mean(found["global"])) for level, found in whole.items()
    }
    result["levels"] = {
        level: {
            "recovered": _recovered(*(float(np.mean(v)) for v in (errors[CLEAN], found["global"], found["dim"]))),
            "lost": _differences(found["global"], errors[CLEAN]),
            "dim minus global": _differences(found["dim"], found["global"]),
        }
        for level, found in whole.items()
    }
    return result


def table(document: Mapping[str, Any]) -> Table:
    """Word errors in percent, beside the paper's."""
    seeds = len(document["seeds"])
    result = Table(
        title=f"Word errors in %, {seeds} seed{'s' if seeds > 1 else ''}: made digits here, Common Voice in the paper"
    )
    for column in ("table", "row", "test", "clients' own", "epsilon", "paper, test"):
        result.add_column(column, justify="left" if column == "row" else "right")
    for line in document["lines"]:
        spread = f" ± {100 * line['error']['std']:.1f}" if seeds > 1 else ""
        epsilon = line["epsilon"]
        result.add_row(
            line["recipe"]["table"],
            line["recipe"]["name"] + (f" (diverged in {len(line['diverged'])})" if line["diverged"] else ""),
            f"{100 * line['error']['mean']:.1f}{spread}",
            f"{100 * line['clients']['mean']:.1f}",
            "∞" if isinstance(epsilon, str) else f"{epsilon:.2g}",
            "" if line["paper"] is None else f"{line['paper']:.1f}",
        )
    return result


def remarks(document: Mapping[str, Any]) -> Iterator[str]:
    """The findings in words, and the parameters whose deltas are largest (the paper's figure 5)."""
    found = document["findings"]
    if not found:
        yield "findings: rows without noise, with global and with dim clipping have not all run"
    for kind in ("uniform", "dim"):
        if kind in found:
            share = found[kind]["recovered"]
            shown = "nothing was lost" if share is None else f"{100 * share:.0f} % of the loss is won back"
            verdict = "" if kind == "uniform" else " (holds)" if found[kind]["holds"] else " (80 % is missed)"
            yield f"{found['noise']} noise, where global clipping loses most: by {kind} {shown}{verdict}; paper: " + (
                "82 %" if kind == "uniform" else "89 %"
            )
    for level, each in found.get("levels", {}).items():
        lost, change = _shown(each["lost"]), _shown(each["dim minus global"])
        yield f"{level} noise: global clipping loses {lost} points; dim instead of it changes that by {change}"
    for line in document["lines"]:
        layers = line["rows"][0]["layers"]
        if line["recipe"]["name"] == "no noise, global" and layers:
            order = sorted(layers, key=lambda name: -layers[name])
            yield "largest deltas: " + ", ".join(f"{name} {layers[name]:.2f}" for name in order[:4])
            yield "smallest: " + ", ".join(f"{name} {layers[name]:.2f}" for name in order[-4:])
            shares = [f"{kind} {100 * share:.0f} %" for kind, share in energy_shares(layers).items()]
            yield f"squared norm of deltas: {', '.join(shares)}"


def energy_shares(layers: Mapping[str, float]) -> dict[str, float]:
    """How much of the squared norm of deltas each kind of parameter has, most first; per-layer clipping takes from the
    kinds whose share is larger than that of their values. layers: norms by parameter name."""
    found: dict[str, float] = {}
    for name, norm in layers.items():
        kind = _kind(name)
        found[kind] = found.get(kind, 0.0) + norm**2
    whole = sum(found.values())
    return {kind: found[kind] / whole for kind in sorted(found, key=lambda kind: -found[kind])} if whole else {}


def chart(document: Mapping[str, Any]) -> str:
    """Word errors by noise and clipping, as an SVG file."""
    groups: dict[str, list[Bar]] = {}
    for line in document["lines"]:
        match = re.fullmatch(r"(\w+ noise), (global|uniform|dim)", line["recipe"]["name"])
        if match:
            groups.setdefault(match[1], []).append(Bar(match[2], match[2], line["error"]["mean"]))
    return standalone(bars(list(groups.items()), "word error", percent=True), _COLOURS)


def _kind(name: str) -> str:
    parts = name.split(".")
    if any(part.endswith("norm") for part in parts):
        return "LayerNorm"
    if parts[0] in ("convolution", "output"):
        return parts[0]
    return "perceptron" if {"inner", "outer"} & set(parts) else "attention"


def _recovered(clean: float, whole: float, layered: float) -> float | None:
    lost = whole - clean
    return float((whole - layered) / lost) if lost > 0 else None


def _differences(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    """first minus second, seed by seed."""
    found = [one - other for one, other in zip(first, second, strict=False)]
    interval = mean_interval(found)
    return {"mean": float(np.mean(found))} | ({} if interval is None else interval.as_json())


def _shown(difference: Mapping[str, Any]) -> str:
    shown = f"{100 * difference['mean']:+.1f}"
    if "low" in difference:
        shown += f" ({100 * difference['low']:+.1f} to {100 * difference['high']:+.1f})"
    return shown


def _deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
