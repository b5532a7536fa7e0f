"""A small folder of sentences in the layout of the real data, made up here."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

NAMES = ("anna", "bob", "carl", "dora", "emil", "fred", "gina", "hugo", "ida", "jack", "kate", "liam", "mona", "nils")
THINGS = ("light", "radio", "heater", "fan", "lamp", "oven", "door", "gate", "alarm", "clock", "camera", "blinds")


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Several threads of torch on busy cores wait for one another; the networks here are tiny."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ami/meetings.jsonl, slurp/lm.txt and slurp/devel.jsonl with a few hundred sentences."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "ami").mkdir()
    (folder / "slurp").mkdir()
    pairs = [(name, thing) for name in NAMES for thing in THINGS]
    turns = [{"speaker": "A", "text": f"so {name} will look at the {thing} then"} for name, thing in pairs]
    (folder / "ami" / "meetings.jsonl").write_text(json.dumps({"meeting": "one", "turns": turns}) + "\n")
    lines = [f"please tell {name} about the {thing}" for name, thing in pairs]
    (folder / "slurp" / "lm.txt").write_text("\n".join([*lines, request("anna", "light")["sentence"]]) + "\n")
    rows = [json.dumps(request(name, thing)) + "\n" for name, thing in pairs]
    (folder / "slurp" / "devel.jsonl").write_text("".join(rows))
    return folder


def request(name: str, thing: str) -> dict[str, Any]:
    """A row as SLURP has it: ``tell NAME about the THING please``."""
    words = ["tell", name, "about", "the", thing, "please"]
    return {
        "sentence": " ".join(words),
        "tokens": [{"surface": word, "id": place} for place, word in enumerate(words)],
        "entities": [{"span": [1], "type": "person"}, {"span": [3, 4], "type": "place"}],
        "scenario": "phone",
    }
