"""The model card: data first (``card.json``), prose made from it (``MODEL_CARD.md``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["card_bytes", "render"]

_FIRST = ("description", "data", "voices", "licences", "command", "seed", "figures", "limits")


def card_bytes(card: Mapping[str, Any], sort: bool = False) -> bytes:
    """JSON of a card, its fields in the order they have: prose made from the file again is the same."""
    return (json.dumps(card, indent=2, sort_keys=sort, ensure_ascii=False) + "\n").encode()


def render(name: str, version: str, card: Mapping[str, Any]) -> str:
    """Markdown of a card: a heading for each field, lists and tables below it; known fields come first.

    card: JSON values by field; usual are description, data, voices, licences, command, seed, figures, limits.
    """
    order = [key for key in _FIRST if key in card] + sorted(key for key in card if key not in _FIRST)
    lines = [f"# {name} {version}", ""]
    for key in order:
        lines += [f"## {_title(key)}", "", *_lines(card[key]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _title(key: str) -> str:
    return key.replace("_", " ").capitalize()


def _lines(value: Any, indent: int = 0) -> list[str]:
    if isinstance(value, Mapping) and value and indent == 0 and all(_is_plain(entry) for entry in value.values()):
        return ["| | |", "|---|---|", *(f"| {_title(str(key))} | {_plain(entry)} |" for key, entry in value.items())]
    lines: list[str] = []
    pad = "  " * indent
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if _is_plain(entry):
                lines.append(f"{pad}- {_title(str(key))}: {_plain(entry)}")
            else:
                lines += [f"{pad}- {_title(str(key))}:", *_lines(entry, indent + 1)]
        return lines
    if isinstance(value, list | tuple):
        if all(_is_plain(entry) for entry in value) and indent:
            return [f"{pad}- {', '.join(_plain(entry) for entry in value)}"] if value else [f"{pad}- none"]
        for entry in value:
            lines += [f"{pad}- {_plain(entry)}"] if _is_plain(entry) else _lines(entry, indent + 1)
        return lines
    return [_plain(value)]


def _is_plain(value: Any) -> bool:
    return not isinstance(value, Mapping | list | tuple)


def _plain(value: Any) -> str:
    if value is None:
        return "not measured"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
