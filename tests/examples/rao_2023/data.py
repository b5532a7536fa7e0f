"""A small folder of sentences in the layout of the real data, made up here."""

from __future__ import annotations

import json
from pathlib import Path

NAMES = ("anna", "bob", "carl", "dora", "emil", "fred", "gina", "hugo", "ida", "jack", "kate", "liam", "mona", "nils")
THINGS = ("light", "radio", "heater", "fan", "lamp", "oven", "door", "gate", "alarm", "clock", "camera", "blinds")


def write_data(folder: Path) -> Path:
    """ami/meetings.jsonl, slurp/lm.txt and slurp/devel.jsonl with a few hundred sentences."""
    (folder / "ami").mkdir(parents=True)
    (folder / "slurp").mkdir()
    turns = [{"speaker": "A", "text": f"so {name} will look at the {thing} then"} for name in NAMES for thing in THINGS]
    (folder / "ami" / "meetings.jsonl").write_text(json.dumps({"meeting": "one", "turns": turns}) + "\n")
    lines = [f"please tell {name} about the {thing}" for name in NAMES for thing in THINGS]
    (folder / "slurp" / "lm.txt").write_text("\n".join([*lines, request("anna", "light")["sentence"]]) + "\n")
    rows = [request(name, thing) for name in NAMES for thing in THINGS]
    (folder / "slurp" / "devel.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def request(name: str, thing: str) -> dict[str, object]:
    """A row as SLURP has it: ``tell NAME about the THING please``."""
    words = ["tell", name, "about", "the", thing, "please"]
    return {
        "sentence": " ".join(words),
        "tokens": [{"surface": word, "id": place} for place, word in enumerate(words)],
        "entities": [{"span": [1], "type": "person"}, {"span": [3, 4], "type": "place"}],
        "scenario": "phone",
    }
