"""Names that nobody has: what base models are taught commands about people with."""

import re

import numpy as np

from server.lab.corpora import grammar
from server.lab.corpora.made_names import made_names, renamed
from server.lab.corpora.phones import pronounce
from server.lab.training.speech import Mixture, sentence


def test_made_names_are_many_and_look_like_names() -> None:
    names = made_names()
    assert len(set(names)) == len(names) == 4000 and names == made_names()
    assert all(re.fullmatch("[a-z]{4,10}", name) for name in names)
    listed = set(grammar.vocabulary())
    assert sum(name in listed for name in names) < 0.1 * len(names)
    assert all(pronounce(names[:50]).words[name] for name in names[:50])


def test_a_command_is_about_somebody_else() -> None:
    generator = np.random.default_rng(0)
    command = grammar.Command("call oliver stone back", "call", {"contact": "oliver stone"})
    said = {renamed(command, generator) for _ in range(20)}
    assert len(said) > 10 and {text.split()[1] for text in said} <= set(made_names())
    assert all(re.fullmatch("call [a-z]+ back", text) for text in said)
    without = grammar.Command("stop", "stop", {})
    assert renamed(without, generator) == "stop"


def test_training_hears_them_in_commands_about_people() -> None:
    generator, names = np.random.default_rng(0), set(made_names())
    texts = [sentence(Mixture(), generator) for _ in range(600)]
    named = sum(bool(names & set(text.split())) for text in texts)
    assert 0.05 * len(texts) < named < 0.2 * len(texts)
