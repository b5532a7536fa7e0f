"""Names that nobody has, and any words: what base models are taught commands about people and things with."""

import re

import numpy as np

from server.lab.corpora import grammar
from server.lab.corpora.made_names import english_words, made_names, renamed
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


def test_a_command_is_about_any_thing() -> None:
    generator, words = np.random.default_rng(0), set(english_words())
    slots = {"item": "dish soap", "list": "shopping list"}
    command = grammar.Command("put dish soap on my shopping list", "shopping", slots)
    said = {renamed(command, generator) for _ in range(20)}
    assert len(said) == 20 and all(grammar.split_of(text) == "base" for text in said)
    found = [re.fullmatch("put ([a-z' ]+) on my ([a-z']+) list", text) for text in said]
    assert all(each and words.issuperset([*each[1].split(), each[2]]) for each in found)
    assert {len(each[1].split()) for each in found if each} == {1, 2}


def test_no_word_is_one_that_base_training_never_hears() -> None:
    """Words of hidden values stay hidden, unless another value holds them."""
    words, commands = set(english_words()), grammar.COMMANDS
    heard, unheard = set[str](), set[str]()
    for kind, values in commands.values.items():
        for value in values:
            hidden = kind in commands.open and grammar.split_of(value) != "base"
            (unheard if hidden else heard).update(value.split())
    assert 15_000 < len(words) < 20_000 and len(words & heard) > 200
    assert len(unheard - heard) > 50 and not words & (unheard - heard)


def test_training_hears_them_in_commands_about_people() -> None:
    generator, names = np.random.default_rng(0), set(made_names())
    texts = [sentence(Mixture(), generator) for _ in range(600)]
    named = sum(bool(names & set(text.split())) for text in texts)
    assert 0.05 * len(texts) < named < 0.2 * len(texts)
