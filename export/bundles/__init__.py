"""Bundle writing: graphs, weights, words and cards in one checked folder or zip."""

from __future__ import annotations

from export.bundles.runs import architecture_of, bundle_run, refresh, rewrite
from export.bundles.writer import render, write_bundle

__all__ = ["architecture_of", "bundle_run", "render", "refresh", "rewrite", "write_bundle"]
