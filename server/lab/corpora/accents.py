"""Accents that training hears in place of those of real regions, so that these stay unheard.

A voice with sounds of its own says English in espeak's English vowels, some in place of others. That is not how accents
differ most: West Midlands English in British vowels is heard as well as British English. A foreigner says English in
the vowels and the rhythm of another language of espeak's."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from server.lab.corpora.voices import Voice

SOUNDS: Mapping[str, tuple[str, ...]] = {
    "I": ("i", "@", "E"), "E": ("I", "a", "eI"), "a": ("E", "A:", "a#"), "0": ("A:", "O:", "V"),
    "O2": ("A:", "O:", "V"), "A:": ("a", "O:", "0"), "V": ("U", "a", "0"), "U": ("u:", "V"), "u:": ("U", "i:"),
    "i:": ("I", "eI"), "O:": ("oU", "0", "A:"), "eI": ("E", "aI", "i@"), "aI": ("OI", "A:", "eI"),
    "oU": ("O:", "aU", "u:"), "aU": ("u:", "a", "oU"), "OI": ("aI",), "3:": ("E", "@", "A:"), "3": ("@", "a", "V"),
    "o@": ("O:", "oU", "0"), "O@": ("O:", "oU", "0"), "e@": ("E", "3:", "eI"), "i@": ("i:", "e@"),
    "A@": ("A:", "a", "O:"), "@": ("V", "I", "a"), "T": ("t", "f", "s"), "D": ("d", "v", "z"), "N": ("n",),
    "h": ("",), "w": ("v",), "v": ("w", "b"), "z": ("s",), "dZ": ("tS", "j"), "tS": ("S",), "S": ("s",),
    "t#": ("t", "d"), "r": ("w", "l"), "r-": ("r",), "b": ("p",), "g": ("k",),
}  # fmt: skip
"""What some people say in place of a sound of espeak's; "" stands for nothing."""

MOTHER_TONGUES: Mapping[str, str] = {
    "af": "E I O W & A: e@ @U aI eI OI oI aU e: O: 3:", "cs": "E O i: e: a: o: u: aI eI aU oU",
    "cy": "E I V O U i: u: e: o: A: aI aU OI", "da": "V 3 I E & A O 0 W Y aI",
    "de": "3 E I I: U O i: u: aU aI E: e: o: W oU", "el": "E O U aI eI aU oI",
    "es": "E O U aU aI eI oI", "fi": "I U &", "fr": "E W oU u: I O V",
    "ga": "i: I e: a# E O U 0 o: A: u: i@ aI aU eI", "hi": "V @2 i: I e: E E: a: o: O: O U u: aI aU",
    "hr": "E O U I i: e: a: o: u: aI eI aU oU @2 a#", "hu": "E A i: e: a: o: u:", "id": "E O U aI eI aU OI oI",
    "it": "E O U I aU aI eI oI", "lt": "E O U I i: e: a: o: u: aI eI aU oU", "nl": "I E O O: A EI e: o: a: eU",
    "pl": "a# E O", "pt": "E O U I & aU aI eI oI OI", "ro": "E O U aI eI aU oI oU",
    "sv": "i: I e: E E: W & A: O o: U u:", "sw": "", "ta": "V @2 i: I e: E a: o: O: O U u: aI aU",
    "tr": "E O U I aI eI aU oI",
}  # fmt: skip
"""Languages of espeak's, and vowels that each has besides @ a e i o u."""

_FOREIGN: Mapping[str, tuple[str, ...]] = {
    "i:": ("i:", "i"), "i": ("i",), "I": ("I", "i"), "I2": ("I", "i", "@"), "I#": ("I", "i", "@"), "E": ("E", "e"),
    "eI": ("eI", "e:", "EI", "e"), "e@": ("E:", "e@", "E|r", "e|r"), "a": ("&", "a", "E"), "aa": ("A:", "a:", "a"),
    "A:": ("A:", "a:", "A", "a"), "A@": ("A:|r", "a:|r", "a|r"), "a#": ("a#", "V", "a"), "V": ("V", "A", "a"),
    "@": ("@", "a", "e"), "@2": ("@2", "@", "a"), "@5": ("@", "u"), "@L": ("@|l", "e|l"), "3": ("3", "@|r", "e|r", "a"),
    "3:": ("3:", "W", "E|r", "o|r"), "0": ("0", "O", "o"), "O2": ("0", "O", "o"), "O:": ("O:", "o:", "O", "o"),
    "O@": ("O:|r", "O|r", "o|r"), "o@": ("O:|r", "O|r", "o|r"), "oU": ("oU", "@U", "o:", "o"), "U": ("U", "u"),
    "u:": ("u:", "u"), "U@": ("U|r", "u|r"), "aI": ("aI", "a|i"), "aU": ("aU", "a|u"), "OI": ("OI", "oI", "o|i"),
    "i@": ("i@", "i|@", "i|e"), "i@3": ("i|@|r", "i|e|r"), "aI@": ("aI|@", "a|i|e"), "aI3": ("aI|@|r", "a|i|e|r"),
    "t2": ("t",),
}  # fmt: skip
"""What a foreigner may say for each vowel of English, the nearest first; the consonants are in every language."""

_ALWAYS = frozenset(("@", "a", "e", "i", "o", "u", "r", "l", "t"))
_NEAREST = 0.6
"""How often a foreigner says the nearest sound of the mother tongue, instead of any near one."""


def draw_sounds(generator: np.random.Generator) -> tuple[tuple[str, str], ...]:
    """An accent that nobody has: up to half of the sounds of English said as one of their neighbours."""
    share = generator.uniform(0.05, 0.5)
    return tuple(
        (sound, others[generator.integers(len(others))])
        for sound, others in SOUNDS.items()
        if generator.random() < share
    )


def draw_rhythm(generator: np.random.Generator) -> tuple[int, ...]:
    """A rhythm that nobody has: from all syllables about as long to stressed ones twice as long."""
    return tuple(int(generator.uniform(low, high)) for low, high in ((110, 210), (110, 200), (150, 240), (190, 310)))


def foreign(voice: Voice, generator: np.random.Generator) -> Voice:
    """The voice of someone with a foreign mother tongue, who says the vowels of English as it has them."""
    tongues = sorted(MOTHER_TONGUES)
    tongue = tongues[generator.integers(len(tongues))]
    has, sounds = {*MOTHER_TONGUES[tongue].split(), *_ALWAYS}, []
    for sound, near in _FOREIGN.items():
        known = [each for each in near if has.issuperset(each.split("|"))]
        nearest = generator.random() < _NEAREST
        sounds.append((sound, known[0] if nearest else known[generator.integers(len(known))]))
    return replace(voice, tongue=tongue, sounds=tuple(sounds))
