"""What the experiments with cohorts of made voices share: clients that speak, the network they teach, central training.

R: examples; F: feature frames (10 ms); M: mel bins; U: characters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from device_sdk.features.logmel import logmel
from export.networks.ctc_transformer import Alphabet, CTCTransformer, CTCTransformerShape
from server.lab.corpora.made import Person, say
from server.lab.corpora.readers import DIGITS as ENGLISH
from server.lab.simulation.engine.population import Arrays, Drawing, Task, Tensors, join, load
from server.lab.simulation.engine.rounds import parameters
from server.lab.simulation.engine.tasks import ClientScore, SpeechCTC, evaluate
from server.lab.training.augmentation import Augmentation, mask
from server.lab.training.data import Example, moments, read_shard, write_shard

MASKS = Augmentation(time_masks=2, time_width=12, bin_masks=1, bin_width=3)
DIGITS = {
    "en": ENGLISH,
    "fr": ("zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf"),
    "it": ("zero", "uno", "due", "tre", "quattro", "cinque", "sei", "sette", "otto", "nove"),
}
_CENTRAL = 0x5E


class Spoken:
    """A population of voices, for the cohort engine. masks: SpecAugment, drawn afresh at every use. held: what each
    voice holds back."""

    def __init__(
        self,
        voices: Sequence[Sequence[Example]],
        alphabet: Alphabet,
        masks: Augmentation | None = None,
        held: Sequence[Sequence[Example]] = (),
    ) -> None:
        self.voices, self.masks = voices, masks
        self.held = Spoken(held, alphabet) if held else None
        self.tokens = [[torch.tensor(alphabet.encode(example.text)) for example in voice] for voice in voices]
        self.mean = moments(example for voice in voices for example in voice)[0] if masks else None

    def __len__(self) -> int:
        return len(self.voices)

    def examples(self, client: int) -> int:
        return len(self.voices[client])

    def batch(self, client: int, chosen: Sequence[int], drawing: Drawing) -> Tensors:
        """(features [R, F, M] float32, frames [R], tokens [R, U], lengths [R]), padded with zeros."""
        features = [self.voices[client][place].features.astype(np.float32) for place in chosen]
        if self.masks is not None and self.mean is not None:
            generator = drawing()
            features = [mask(values, self.mean, self.masks, generator) for values in features]
        tokens = [self.tokens[client][place] for place in chosen]
        return (
            pad_sequence([torch.from_numpy(values) for values in features], batch_first=True),
            torch.tensor([len(values) for values in features]),
            pad_sequence(tokens, batch_first=True),
            torch.tensor([len(values) for values in tokens]),
        )

    def held_back(self, client: int) -> Tensors | None:
        """As a batch, without masks."""
        if self.held is None or not (count := self.held.examples(client)):
            return None
        return self.held.batch(client, range(count), lambda: np.random.default_rng(0))


def sentence(text: str, person: Person, seed: tuple[int, ...], bins: int) -> Example:
    """A sentence as its speaker's microphone hears it. bins: M, means of as many of the 64 mel bins each."""
    features: NDArray[np.float32] = logmel(say(text, person, seed))
    return Example(features.reshape(len(features), bins, -1).mean(2).astype(np.float16), text, person.name)


def digit_string(generator: np.random.Generator, language: str, longest: int) -> str:
    """One to ``longest`` digits after one another, each drawn alike."""
    size = int(generator.integers(1, longest + 1))
    return " ".join(DIGITS[language][digit] for digit in generator.integers(10, size=size))


def keep_speech(path: Path, make: Callable[[], Sequence[Example]]) -> list[Example]:
    """The examples in a shard, which is written first where there is none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_shard(path, make())
    return read_shard(path)


def network(shape: CTCTransformerShape, alphabet: Alphabet, seed: int) -> SpeechCTC:
    """A CTC transformer with the initial weights of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SpeechCTC(CTCTransformer(shape), alphabet)


def scores(task: SpeechCTC, weights: Arrays, voices: Sequence[Sequence[Example]]) -> list[ClientScore]:
    """Every voice's score on all that it says."""
    tensors = {name: torch.from_numpy(values) for name, values in weights.items()}
    return evaluate(task, tensors, Spoken(voices, task.alphabet), range(len(voices)))


@dataclass(frozen=True, slots=True)
class Central:
    """Training in one place, by Adam in one cycle up to ``peak`` and down to nothing. batch: examples of a step.
    clip_norm: of its gradient."""

    steps: int = 2500
    batch: int = 16
    peak: float = 2e-3
    clip_norm: float = 5.0


def train_centrally(
    task: Task,
    speech: Spoken,
    plan: Central,
    seed: int,
    weights: Arrays | None = None,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> Arrays:
    """The network's weights after all steps on the first voice's examples, a function of the arguments. weights: to
    begin with, the network's own by default. tell: called with (steps done, of how many)."""
    learner = task.network
    if weights is not None:
        load(learner, weights)
    optimizer = torch.optim.Adam(learner.parameters(), plan.peak, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, plan.peak, max(2, plan.steps), pct_start=0.1)
    generator, count = np.random.default_rng([seed, _CENTRAL]), speech.examples(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for step in range(plan.steps):
            chosen = generator.choice(count, min(plan.batch, count), replace=False).tolist()
            batch, shares = join([speech.batch(0, chosen, lambda: generator)])
            optimizer.zero_grad()
            loss = (task.losses(learner, batch) * shares.flatten()).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(learner.parameters(), plan.clip_norm)
            optimizer.step()
            schedule.step()
            tell(step + 1, plan.steps)
    return parameters(task)
