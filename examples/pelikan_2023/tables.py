"""The document, its table beside the paper's, which of its findings hold here, and a chart."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table

from device_sdk.privacy.spending import stated
from examples import runner
from examples.pelikan_2023.experiment import Row
from examples.pelikan_2023.imbalance import LEAST, LOST, Depth, energy_shares
from examples.pelikan_2023.recipe import Recipe

CLEAN, UNNOISED = "no noise, dim", "no noise, global"
RECOVERED = 0.8
_LEVEL = re.compile(r"(\w+) noise, (global|uniform|dim)")


def summary(
    recipes: Sequence[Recipe], rows: Sequence[Row], gate: Mapping[str, Any] | None = None, depths: Sequence[Depth] = ()
) -> dict[str, Any]:
    """Everything as JSON: every row under every seed, its mean and spread, and the findings; what the entry test said,
    and imbalance by depth."""
    entries = [
        {
            "recipe": recipe.model_dump(mode="json"),
            "error": runner.rates({row.seed: row.error for row in own}),
            "clients": runner.rates({row.seed: row.clients["error"] for row in own}),
            "epsilon": own[0].privacy["epsilon"],
            "diverged": {str(row.seed): row.diverged for row in own if row.diverged is not None},
            "seeds": [asdict(row) for row in own],
        }
        for recipe in recipes
        if (own := [row for row in rows if row.name == recipe.name])
    ]
    document: dict[str, Any] = {"seeds": sorted({row.seed for row in rows}), "rows": entries}
    document |= {"entry": gate, "depths": [asdict(depth) for depth in depths]}
    document["findings"] = findings(document)
    return document


def findings(document: Mapping[str, Any]) -> dict[str, Any]:
    """What of the paper holds: the share of the loss by noise that per-layer clipping wins back at the noise where
    global clipping loses most, of means and under each seed; and ``levels``, at every noise: that share, what global
    clipping loses, and word errors with ``dim`` minus those with ``global``, each with its interval over seeds. Empty
    where rows that it needs have not run; without rows by layer, only what global clipping loses."""
    errors = {row["recipe"]["name"]: row["error"] for row in document["rows"]}
    levels: dict[str, dict[str, Any]] = {}
    for name, rates in errors.items():
        if (match := _LEVEL.fullmatch(name)) and match[1] != "no":
            levels.setdefault(match[1], {})[match[2]] = rates
    lost = {
        level: {"lost": runner.seed_difference(errors[UNNOISED], rates["global"])}
        for level, rates in levels.items()
        if "global" in rates and UNNOISED in errors
    }
    whole = {level: rates for level, rates in levels.items() if {"global", "dim"} <= set(rates)}
    if CLEAN not in errors or not whole:
        return {"levels": lost} if lost else {}
    clean, worst = errors[CLEAN], max(whole, key=lambda level: float(whole[level]["global"]["mean"]))
    result: dict[str, Any] = {"noise": worst}
    for kind in ("uniform", "dim"):
        if kind in whole[worst]:
            parts = clean, whole[worst]["global"], whole[worst][kind]
            triples = list(zip(*(rates["by_seed"].values() for rates in parts), strict=False))
            share = _recovered(*np.mean(triples, axis=0))
            each = [_recovered(*triple) for triple in triples]
            result[kind] = {"recovered": share, "per_seed": each, "holds": (share or 0.0) >= RECOVERED}
    result["ordered"] = {level: rates["dim"]["mean"] <= rates["global"]["mean"] for level, rates in whole.items()}
    result["levels"] = lost | {
        level: {
            "recovered": _recovered(*(each["mean"] for each in (clean, rates["global"], rates["dim"]))),
            "lost": runner.seed_difference(clean, rates["global"]),
            "dim minus global": runner.seed_difference(rates["global"], rates["dim"]),
        }
        for level, rates in whole.items()
    }
    return result


def table(document: Mapping[str, Any]) -> Table:
    """Word errors in percent, beside the paper's."""

    def name(row: Mapping[str, Any]) -> str:
        return row["recipe"]["name"] + (f" (diverged in {len(row['diverged'])})" if row["diverged"] else "")

    def epsilon(row: Mapping[str, Any]) -> str:
        return stated(row["epsilon"])

    seeds = len(document["seeds"])
    title = f"Word errors in %, {seeds} seed{'s' if seeds > 1 else ''}: made digits here, Common Voice in the paper"
    columns = {
        "row": name,
        "table": lambda row: row["recipe"]["table"],
        "test": lambda row: runner.percent(row["error"]),
        "clients' own": lambda row: runner.percent(row["clients"]),
        "epsilon": epsilon,
        "paper, test": lambda row: "" if row["recipe"]["paper"] is None else f"{row['recipe']['paper']:.1f}",
    }
    caption = "the noise of a round's mean over the clipping bound is the paper's: 0.016, 0.048, 0.16"
    return runner.table(title, document["rows"], columns, caption)


def depth_table(document: Mapping[str, Any]) -> Table:
    """How far LayerNorm's values exceed attention's in what clients send, by depth of the network."""
    columns: dict[str, Any] = {
        "layers": lambda depth: str(depth["layers"]),
        "parameters": lambda depth: f"{depth['values']:,}",
        "LayerNorm / attention": lambda depth: f"{depth['imbalance']:.1f}",
        "squared norm": lambda depth: _shares(depth["shares"]),
        "seed model": lambda depth: f"{100 * depth['error']:.1f}",
    }
    title = "Root mean square of the values that clients send, by depth"
    return runner.table(title, document["depths"], columns, f"expected: {LEAST:g} at least")


def remarks(document: Mapping[str, Any]) -> Iterator[str]:
    """The findings in words, and the parameters whose deltas are largest (the paper's figure 5)."""
    found, gate = document["findings"], document.get("entry")
    if gate is not None:
        lost = f"{_points(gate['lost'])} points"
        verdict = "passed" if gate["passes"] else "not passed, so rows that clip by layer are left out"
        yield (
            f"entry test {verdict}: LayerNorm's values are {gate['imbalance']:.1f} times attention's (expected "
            f"{LEAST:g}), and clipping as a whole loses {lost} at middle noise (expected {100 * LOST:g})"
        )
    if not found:
        yield "findings: rows without noise, with global and with dim clipping have not all run"
    for kind, printed in (("uniform", "82 %"), ("dim", "89 %")):
        if kind in found:
            share = found[kind]["recovered"]
            shown = "nothing was lost" if share is None else f"{100 * share:.0f} % of the loss is won back"
            verdict = "" if kind == "uniform" else " (holds)" if found[kind]["holds"] else " (80 % is missed)"
            where = f"{found['noise']} noise, where global clipping loses most"
            yield f"{where}: by {kind} {shown}{verdict}; paper: {printed}"
    for level, each in found.get("levels", {}).items():
        instead = each.get("dim minus global")
        change = "" if instead is None else f"; dim instead of it changes that by {_points(instead)}"
        yield f"{level} noise: global clipping loses {_points(each['lost'])} points{change}"
    for row in document["rows"]:
        layers = row["seeds"][0]["layers"]
        if row["recipe"]["name"] == UNNOISED and layers:
            order = sorted(layers, key=lambda name: -layers[name])
            yield "largest deltas: " + ", ".join(f"{name} {layers[name]:.2f}" for name in order[:4])
            yield "smallest: " + ", ".join(f"{name} {layers[name]:.2f}" for name in order[-4:])
            yield f"squared norm of deltas: {_shares(energy_shares(layers))}"


def chart(document: Mapping[str, Any]) -> str:
    """Word errors by noise and clipping."""
    groups: dict[str, dict[str, float | None]] = {}
    for row in document["rows"]:
        if match := _LEVEL.fullmatch(row["recipe"]["name"]):
            groups.setdefault(f"{match[1]} noise", {})[match[2]] = row["error"]["mean"]
    return runner.chart(groups.items())


def _shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in shares.items())


def _recovered(clean: float, whole: float, layered: float) -> float | None:
    lost = whole - clean
    return float((whole - layered) / lost) if lost > 0 else None


def _points(difference: Mapping[str, Any]) -> str:
    mean, *bounds = (f"{100 * difference[end]:+.1f}" for end in ("mean", "low", "high") if end in difference)
    return f"{mean} ({bounds[0]} to {bounds[1]})" if bounds else mean
