"""From cached n-best lists to the document: choices on development meetings, then every row on test meetings, once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from examples.liu_2020.cache import Cached
from examples.liu_2020.extensions import Extended, extend
from examples.liu_2020.rows import Plan, extension_rows, paper_rows, private_rows, run
from examples.liu_2020.tables import judged, summary
from examples.liu_2020.tuning import Grid, tuned_baseline, tuned_marginals
from rescoring.combination import CombinationWeights
from server.lab.simulation.progress import Tell

__all__ = ["measure"]


def measure(cached: Cached, tell: Tell, rounds: int = 10, repeats: int = 3, grid: Grid | None = None) -> dict[str, Any]:
    """Tune on development meetings, then every row on test meetings, once. Returns the document with its findings."""
    grid = grid or Grid()
    development, shipped = cached.development, cached.shipped
    plain = tuned_baseline(development, grid, partial(tell, "weights of the second pass"))
    tuned = tuned_marginals(development, shipped, _paper(plain), grid, rounds, partial(tell, "lambda"))
    extended = extend(development, shipped, tuned, rounds, tell)
    plan = Plan(shipped, tuned, rounds, repeats, extended.methods)
    settings = [*paper_rows(plan), *private_rows(plan), *extension_rows(plan)]
    document = summary(cached, run(cached.test, plan, settings, tell), rounds)
    document["weights"] = tuned.to_mapping()
    document["extensions"] = _described(extended)
    document["findings"] = judged(document)
    return document


def _paper(weights: CombinationWeights) -> CombinationWeights:
    """The paper's alpha, beta and sigma, and a personal part that is renewed once a round."""
    return replace(weights, alpha=0.5, beta=0.25, sigma=5.0, refresh="round")


def _described(extended: Extended) -> dict[str, Any]:
    return {
        "kept": list(extended.kept),
        "development_errors": dict(extended.errors),
        "weights": {name: how.weights.to_mapping() for name, how in extended.methods.items()},
    }
