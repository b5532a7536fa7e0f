"""``python -m tests.confirmed_rounds --json``: made voices say ordinary commands and one new name, and confirm it all.

Every round is a command never said before and a call of somebody whose name the model cannot know; the user accepts
what was heard right and corrects the rest, and the device learns. Before and after, it hears the same sayings of other
commands that it knows, and in the end the name. Exit status 1 when a line does not hold. About a minute a voice."""

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Annotated

import numpy as np
import typer

from device_sdk import Accepted, Bundle, Corrected, Device
from server.lab.corpora import SAMPLE_RATE, Waveform
from server.lab.corpora.grammar import sample
from server.lab.corpora.voices import MAINSTREAM_ACCENTS, VARIANTS, Voice, speak

VOICES, ROUNDS, OTHERS, CALLS = 5, 32, 33, 5
NAMES = {"saoirse": "seersha", "niamh": "neev", "joaquin": "wakeen", "siobhan": "shivawn", "xochitl": "sochee"}
"""A name -> how to write it for the synthesizer to say it."""
LOST_AT_MOST = 1


@dataclass(frozen=True, slots=True)
class Lived:
    """What became of one voice. rolled_back: reports of it; before, after: of ``OTHERS`` commands heard right, chosen
    for being heard right in another saying (by the same they could only fall); learned: rounds in which the name was
    heard right; name_heard: of ``CALLS`` after the last round."""

    voice: str
    name: str
    rolled_back: tuple[str, ...]
    before: int
    after: int
    learned: int
    name_heard: int

    @property
    def holds(self) -> bool:
        return not self.rolled_back and self.before - self.after <= LOST_AT_MOST and 2 * self.name_heard > CALLS


Spoken = tuple[str, Waveform]
"""What is said, and how it sounds."""


def voices(seed: int) -> Iterator[Voice]:
    """Voices that nothing was trained on, plainly spoken, in the order they are drawn."""
    generator = np.random.default_rng([seed, 0])
    for index in generator.permutation(len(VARIANTS["devices"])):
        yield Voice(MAINSTREAM_ACCENTS[generator.integers(len(MAINSTREAM_ACCENTS))], VARIANTS["devices"][index])


def live(voice: Voice, name: str, seed: int, bundle: Bundle) -> Lived | None:
    """None where fewer than half of its commands are heard right to begin with, which is another trouble."""
    generator = np.random.default_rng([seed, *voice.name.encode()])
    commands, calls = _commands(voice, generator), _calls(voice, name, generator)
    with tempfile.TemporaryDirectory() as folder, Device.open(folder, bytes(32), bundle) as device:
        device.withdraw("counting", "learning")
        known = [spoken[0] for spoken in islice(commands, 2 * OTHERS) if _right(device, spoken)][:OTHERS]
        if len(known) < OTHERS:
            return None
        others = [_say(text, text, voice, generator) for text in known]
        before = sum(_right(device, spoken) for spoken in others)
        device.agree("counting", "learning")
        rolled_back, learned = [], 0
        for _ in range(ROUNDS):
            for text, waveform in (next(commands), next(calls)):
                result = device.recognize(waveform, SAMPLE_RATE)
                right = result.text == text
                device.feedback(result, Accepted() if right else Corrected(text))
            learned += right
            if (why := device.learn().rolled_back) is not None:
                rolled_back.append(why)
        device.withdraw("counting", "learning")
        after = sum(_right(device, spoken) for spoken in others)
        name_heard = sum(_right(device, next(calls)) for _ in range(CALLS))
    return Lived(voice.name, name, tuple(rolled_back), before, after, learned, name_heard)


def _right(device: Device, spoken: Spoken) -> bool:
    return device.recognize(spoken[1], SAMPLE_RATE).text == spoken[0]


def _commands(voice: Voice, generator: np.random.Generator) -> Iterator[Spoken]:
    said: set[str] = set()
    while True:
        if (text := sample(generator, "devices").text) not in said:
            said.add(text)
            yield _say(text, text, voice, generator)


def _calls(voice: Voice, name: str, generator: np.random.Generator) -> Iterator[Spoken]:
    while True:
        yield _say(f"call {name}", f"call {NAMES[name]}", voice, generator)


def _say(text: str, sound: str, voice: Voice, generator: np.random.Generator) -> Spoken:
    """Nobody says anything twice quite alike."""
    pitch, rate = voice.pitch + int(generator.integers(-4, 5)), voice.rate + int(generator.integers(-10, 11))
    return text, speak(sound, replace(voice, pitch=pitch, rate=rate))


def main(
    seed: Annotated[int, typer.Option(help="Draws the voices and what they say.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    bundle, candidates, names, lives = Bundle.open(), voices(seed), list(NAMES), list[Lived]()
    while len(lives) < VOICES and (voice := next(candidates, None)) is not None:
        lived = live(voice, names[len(lives)], seed, bundle)
        if lived is None:
            print(f"{voice.name}: hears too little of it, left out", file=sys.stderr, flush=True)
            continue
        lives.append(lived)
        found = {**asdict(lived), "holds": lived.holds}
        print(json.dumps(found) if as_json else ", ".join(f"{key} {each}" for key, each in found.items()), flush=True)
    raise typer.Exit(len(lives) < VOICES or not all(lived.holds for lived in lives))


if __name__ == "__main__":
    typer.run(main)
