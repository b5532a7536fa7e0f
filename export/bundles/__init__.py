"""Bundle writing: graphs, weights, words and cards in one checked folder or zip."""

from __future__ import annotations

from export.bundles.card import render
from export.bundles.writer import write_bundle

__all__ = ["render", "write_bundle"]
