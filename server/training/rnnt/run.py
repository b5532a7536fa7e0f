"""The recipe for a base RNN-T: a flat start, the encoder by CTC, then the whole network by RNN-T with CTC as a helper.

RNN-T and CTC alike leave a small network on a plateau for a thousand steps and more, where it says only blank. Half a
minute of guessed frame labels on single words (the flat start of older recognisers) leaves it at once: measured on one
core, CTC on those words stood at 4.7 nats a token after 600 steps without, at 2.2 after 750 steps of which 400 were the
flat start. The CTC head has the joint's own form, so the RNN-T begins as the CTC model it grew from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
from numpy.typing import NDArray
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from safetensors.numpy import save
from torch import Tensor, nn

from device_sdk.bundle.architecture import BLANK, PRESETS, Architecture
from device_sdk.errors import ConfigurationError, DataError, LearningError
from server.training.augmentation import Augmentation, augment
from server.training.data import Batch, Example, collate, moments, stream
from server.training.greedy import ctc_greedy, greedy, word_errors
from server.training.learner import Learner
from server.training.speech import Mixture, ShardMaker
from server.training.trainer import (
    Average,
    Budget,
    append_log,
    learning_rate,
    load_checkpoint,
    save_checkpoint,
    write_atomically,
)

__all__ = ["Recipe", "train_rnnt"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides a run, besides the speech.

    flat_share, easy_share, ctc_share: shares of the budget at which the flat start on a few clear words, CTC on the
    same words, and CTC on whole utterances end. helper: weight of CTC beside the RNN-T loss (both per token).
    made_augmented, real_augmented: share of the made and of the real utterances whose features are changed at every
    use, by made_change and real_change; it rises to this over augment_share of the budget. Real recordings are few and
    come back often, so they are changed more.
    shard: utterances in a shard; window: shards in an epoch (the newest is fresh). warmup: steps.
    frames: most feature frames in a batch, padding included; batch: most utterances. clip: largest gradient norm.
    average: decay of the averaged weights. pruning: see :func:`export.losses.rnnt.rnnt_loss`.
    """

    preset: str = "small"
    seed: int = 1
    budget: Budget = field(default_factory=lambda: Budget(minutes=60.0))
    flat_share: float = 0.008
    easy_share: float = 0.016
    ctc_share: float = 0.22
    augment_share: float = 0.25
    made_augmented: float = 0.3
    real_augmented: float = 0.95
    helper: float = 0.2
    shard: int = 1200
    window: int = 5
    batch: int = 32
    frames: int = 14_000
    peak: float = 2e-3
    warmup: int = 200
    weight_decay: float = 1e-3
    clip: float = 2.0
    dropout: float = 0.1
    average: float = 0.999
    pruning: float = 1e-4
    threads: int = 2
    bfloat16: bool = True
    snapshot_minutes: float = 5.0
    made_change: Augmentation = field(default_factory=Augmentation)
    real_change: Augmentation = field(
        default_factory=lambda: Augmentation(
            tract=0.2, tempo=0.25, channel=1.0, noise=0.6, time_masks=3, time_width=22, bin_masks=2, bin_width=12
        )
    )

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ConfigurationError(f"preset: found {self.preset!r}, expected one of {', '.join(PRESETS)}")
        if not 0.0 <= self.flat_share <= self.easy_share <= self.ctc_share < 1.0:
            raise ConfigurationError(
                f"flat_share, easy_share, ctc_share: found {self.flat_share}, {self.easy_share}, {self.ctc_share}; "
                "expected 0 <= flat_share <= easy_share <= ctc_share < 1"
            )

    @property
    def architecture(self) -> Architecture:
        return PRESETS[self.preset]


def train_rnnt(
    recipe: Recipe,
    mixture: Mixture,
    pieces: bytes,
    out: Path,
    watched: Sequence[Example] = (),
    details: Mapping[str, Any] | None = None,
    *,
    speech: Path | None = None,
    snapshots: Path | None = None,
    begin: Mapping[str, NDArray[np.floating]] | None = None,
    show: bool = True,
) -> dict[str, Any]:
    """Train, or go on from the checkpoint in ``out``. Returns the last line of the log.

    pieces: the tokenizer's model. begin: parameters and constants of a trained network of the same pieces, to go on
    from by RNN-T at once; the recipe's earlier phases are left out. watched: utterances to report word errors on, by
    source; they are not trained on. details: what ``training.json`` should also say. snapshots: receives copies of the
    weights on the way. Writes weights.safetensors, tokenizer.model, training.json, log.jsonl and checkpoint.safetensors
    to ``out``.
    Raises LearningError when the loss is no longer a number.
    """
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    if tokenizer.get_piece_size() != recipe.architecture.pieces:
        raise DataError(
            f"tokenizer: {tokenizer.get_piece_size()} pieces, expected {recipe.architecture.pieces} for {recipe.preset}"
        )
    write_atomically(out / "tokenizer.model", pieces)
    run = _Run(recipe, out, tokenizer, list(watched), dict(details or {}), snapshots, begin)
    folder = speech or out / "speech"
    with _without_denormals(), ShardMaker(folder, mixture, recipe.seed, recipe.shard) as maker, _progress(show) as bar:
        task = bar.add_task("training", total=1.0)
        run.restore(maker)
        while run.progress < 1.0:
            run.epoch(maker, lambda text: bar.update(task, completed=run.progress, description=text))
        return run.finish()


@contextmanager
def _without_denormals() -> Iterator[None]:
    """Denormal numbers are flushed to zero while training runs, which is faster, and not a moment longer."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _progress(show: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        disable=not show,
    )


class _Run:
    """The state of one run."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        tokenizer: sentencepiece.SentencePieceProcessor,
        watched: list[Example],
        details: dict[str, Any],
        snapshots: Path | None,
        begin: Mapping[str, NDArray[np.floating]] | None,
    ) -> None:
        self.recipe, self.out, self.tokenizer = recipe, out, tokenizer
        self.watched, self.details, self.snapshots = watched, details, snapshots
        self.learner = Learner(recipe.architecture, recipe.dropout)
        if begin is not None:
            self.learner.network.from_parameters(begin)
        self.optimizer = torch.optim.AdamW(
            self.learner.parameters(), recipe.peak, betas=(0.9, 0.98), weight_decay=recipe.weight_decay, fused=True
        )
        self.average = Average(self.learner, recipe.average)
        letters = [len(tokenizer.id_to_piece(index).strip("\u2581")) for index in range(recipe.architecture.pieces)]
        self.letters = torch.tensor(letters, dtype=torch.float32).clamp(min=1.0)
        self.steps, self.epochs, self.passes, self.seconds = 0, 0, 0, 0.0
        self.begun = self.transducer = begin is not None
        self.last_snapshot = 0.0
        self.shyness = 0.0  # by how much the exported blank bias is lowered, nats
        self.record: dict[str, Any] = {}

    @property
    def progress(self) -> float:
        return self.recipe.budget.progress(self.steps, self.seconds)

    @property
    def checkpoint(self) -> Path:
        return self.out / "checkpoint.safetensors"

    def restore(self, maker: ShardMaker) -> None:
        """Go on where the checkpoint ends, or set the features' constants from the first shard."""
        if self.checkpoint.exists():
            state = load_checkpoint(self.checkpoint, self.learner, self.optimizer, self.average)
            self.steps, self.epochs, self.seconds = state["steps"], state["epochs"], state["seconds"]
            self.passes = state["passes"]
            self.transducer, self.last_snapshot = state["transducer"], state["last_snapshot"]
            self.record = state["record"]
            return
        if self.begun:
            return
        mean, scale = moments(maker.window(0, 1))
        self.learner.network.mean.copy_(torch.from_numpy(mean))
        self.learner.network.scale.copy_(torch.from_numpy(scale))

    def epoch(self, maker: ShardMaker, tell: Callable[[str], None]) -> None:
        """One pass over the window of shards, then a checkpoint and a line in the log."""
        recipe = self.recipe
        generator = np.random.default_rng([recipe.seed, self.epochs])
        torch.manual_seed(recipe.seed * 100_003 + self.epochs)
        easy = not self.begun and self.progress < recipe.easy_share
        if easy:
            examples = maker.window(0, 0)
        else:
            self.passes += 1
            examples = maker.window(max(1, self.passes - recipe.window + 1), self.passes)
        mean = self.learner.network.mean.numpy()
        totals, count, norms = {"flat": 0.0, "ctc": 0.0, "rnnt": 0.0}, 0, 0.0
        seen = 0
        begun = time.monotonic()
        self.learner.train()
        strength = 0.0 if easy else min(1.0, self.progress / max(1e-9, recipe.augment_share))

        def change(example: Example, rng: np.random.Generator) -> NDArray[np.float32]:
            features = example.features.astype(np.float32)
            made = example.source == "made"
            if rng.random() >= strength * (recipe.made_augmented if made else recipe.real_augmented):
                return features
            return augment(features, mean, recipe.made_change if made else recipe.real_change, rng)

        for batch in stream(
            examples,
            self.tokenizer.encode,
            change,
            generator,
            subsampling=recipe.architecture.subsampling_factor,
            budget=recipe.frames,
            most=recipe.batch,
        ):
            losses, norm = self.step(batch)
            for name, value in losses.items():
                totals[name] += value
            norms += norm
            count += 1
            seen += batch.features.shape[0]
            now = time.monotonic()
            self.seconds += now - begun
            begun = now
            tell(f"epoch {self.epochs} " + " ".join(f"{name} {value:.3f}" for name, value in losses.items() if value))
            if self.progress >= 1.0 or (easy and self.progress >= recipe.easy_share):
                break
        self.epochs += 1
        means = {name: round(value / max(1, count), 4) for name, value in totals.items()}
        self.record = {
            "epoch": self.epochs,
            "steps": self.steps,
            "minutes": round(self.seconds / 60, 2),
            "progress": round(self.progress, 4),
            "phase": "easy" if easy else "rnnt" if self.transducer else "ctc",
            **means,
            "gradient": round(norms / max(1, count), 3),
            "utterances": seen,
        }
        if self.watched and self._due():
            self.last_snapshot = self.seconds
            self.record["wer"] = self.errors(self.watched)
            self.export(self.snapshots)
        append_log(self.out / "log.jsonl", self.record)
        state = {
            "steps": self.steps,
            "epochs": self.epochs,
            "passes": self.passes,
            "seconds": self.seconds,
            "transducer": self.transducer,
            "last_snapshot": self.last_snapshot,
            "record": self.record,
        }
        save_checkpoint(self.checkpoint, self.learner, self.optimizer, self.average, state)

    def step(self, batch: Batch) -> tuple[dict[str, float], float]:
        """One step on one batch. Returns the losses per token and the gradient's norm before clipping."""
        recipe, learner = self.recipe, self.learner
        if not self.transducer and self.progress >= recipe.ctc_share:
            learner.begin_transducer()
            self.average = Average(learner, recipe.average)
            self.transducer = True
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.progress, self.steps, recipe.peak, recipe.warmup)
        dtype = torch.bfloat16 if recipe.bfloat16 else torch.float32
        losses: dict[str, Tensor] = {}
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
            hidden = learner.network.hidden(learner.network.stack(batch.features))
            if not self.begun and self.progress < recipe.flat_share:
                losses["flat"] = total = learner.flat_loss(hidden, batch, self.letters)
            elif not self.transducer:
                losses["ctc"] = total = learner.ctc_loss(hidden, batch)
            else:
                losses["rnnt"] = total = learner.rnnt_loss(hidden, batch, dtype, recipe.pruning)
                if recipe.helper:
                    losses["ctc"] = learner.ctc_loss(hidden, batch)
                    total = total + recipe.helper * losses["ctc"]
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(learner.parameters(), recipe.clip))
        if not np.isfinite(norm):
            raise LearningError(
                f"step {self.steps}: the gradient is not a number; start with a lower peak learning rate"
            )
        self.optimizer.step()
        self.average.update(learner)
        self.steps += 1
        return {name: float(value.detach()) for name, value in losses.items()}, norm

    def _due(self) -> bool:
        return self.progress >= 1.0 or self.seconds - self.last_snapshot >= 60.0 * self.recipe.snapshot_minutes

    @torch.no_grad()
    def averaged(self) -> Learner:
        """The averaged weights, ready to decode with."""
        copy = Learner(self.recipe.architecture, 0.0)
        copy.load_state_dict(self.learner.state_dict())
        self.average.copy_to(copy)
        copy.network.joiner_output.bias[BLANK] -= self.shyness
        return copy.eval()

    @torch.no_grad()
    def calibrate(self) -> None:
        """Lower the blank's bias by what makes fewest word errors on the development utterances, if there are any.

        Trained through noise and masks, a small transducer is shy: most of its errors are words left out.
        """
        development = [example for example in self.watched if example.source.endswith(".development")]
        if development and self.transducer:
            tried = {}
            for shyness in (0.0, 0.5, 1.0, 1.5, 2.0):
                self.shyness = shyness
                rates = self.errors(development).values()
                tried[shyness] = sum(rates) / len(rates)
            self.shyness = min(tried, key=lambda shyness: tried[shyness])

    def errors(self, examples: Sequence[Example]) -> dict[str, float]:
        """Word error rates of the averaged weights on some utterances, by greedy decoding."""
        learner = self.averaged()

        def decode(features: Sequence[NDArray[np.floating]]) -> list[str]:
            found = greedy(learner.network, features) if self.transducer else _ctc_decode(learner, features)
            return [self.tokenizer.decode(tokens) for tokens in found]

        return {source: round(rate, 4) for source, rate in word_errors(examples, decode).items()}

    def export(self, snapshots: Path | None) -> None:
        """Write the averaged weights to the run's folder and, numbered, to ``snapshots``."""
        learner = self.averaged()
        if not self.transducer:
            learner.begin_transducer()
        weights = save(learner.network.to_parameters())
        described = json.dumps(self.description(), indent=2).encode()
        targets = [self.out] if snapshots is None else [self.out, snapshots / f"epoch-{self.epochs:04d}"]
        for folder in targets:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / "weights.safetensors", weights)
            write_atomically(folder / "training.json", described)
            if folder != self.out:
                write_atomically(folder / "tokenizer.model", (self.out / "tokenizer.model").read_bytes())
        if snapshots is not None:
            append_log(snapshots / "log.jsonl", {**self.record, "snapshot": str(targets[1])})

    def description(self) -> dict[str, Any]:
        return {**self.details, "recipe": asdict(self.recipe), "result": self.record}

    def finish(self) -> dict[str, Any]:
        self.calibrate()
        self.record["blank_lowered_by"] = self.shyness
        if self.watched:
            self.record["wer"] = self.errors(self.watched)
        append_log(self.out / "log.jsonl", {"finished": True, **self.record})
        self.export(None)
        return self.record


@torch.no_grad()
def _ctc_decode(learner: Learner, features: Sequence[NDArray[np.floating]]) -> list[list[int]]:
    batch = collate([(f.astype(np.float32), []) for f in features], learner.network.architecture.subsampling_factor)
    hidden = learner.network.hidden(learner.network.stack(batch.features))
    return ctc_greedy(learner.ctc_log_probs(hidden), batch.frames)
