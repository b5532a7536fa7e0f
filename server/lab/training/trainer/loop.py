"""The one training loop: any task, any sampler, one process or many, with exact resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor, nn

from device_sdk.errors import DataError, LearningError
from server.lab.training.data import Example
from server.lab.training.greedy import word_errors
from server.lab.training.trainer.averages import Average
from server.lab.training.trainer.checkpoints import load_checkpoint, load_tensors, save_checkpoint, save_tensors
from server.lab.training.trainer.logs import Observer, append_log
from server.lab.training.trainer.processes import ALONE, Processes, unsynchronized
from server.lab.training.trainer.settings import Settings
from server.lab.training.trainer.task import B, Sampler, Task

__all__ = ["Position", "Trainer"]


@dataclass(slots=True)
class Position:
    """Where a run stands; what a checkpoint keeps besides tensors.

    steps, seconds: of training so far. epoch, group: which epoch, and how many groups of batches of its plan are done.
    begin: share of the budget used at the epoch's begin; sampler, task: their states, the sampler's at that time.
    sums: of this epoch's losses, their counts and its gradients' norms. watched: seconds at the last watching.
    best: lowest word error of development speech, and at which step; record: the last line of the log.
    """

    steps: int = 0
    seconds: float = 0.0
    epoch: int = 0
    group: int = 0
    begin: float = 0.0
    sampler: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    watched: float = 0.0
    best: dict[str, float] | None = None
    record: dict[str, Any] = field(default_factory=dict)


class Trainer(Generic[B]):
    """A run of a task: its optimizer, averaged weights, position and files.

    Every process has one, built alike; the first writes ``checkpoint.safetensors``, ``best-STEP.safetensors`` (averaged
    weights of the lowest word error on development speech) and ``log.jsonl`` to ``out``. A process that is killed
    and started again goes on from the checkpoint to bit-identical weights on a CPU, where the budget is in steps.

    watched: utterances to report word errors on, by source, never trained on; those whose source ends with
    ``.development`` choose between steps. observers: told of every step of this process. keep: called by the first
    process at every watching, with the averaged weights in the task's module.
    """

    def __init__(
        self,
        task: Task[B],
        sampler: Sampler[B],
        settings: Settings,
        out: Path,
        *,
        watched: Sequence[Example] = (),
        processes: Processes = ALONE,
        observers: Iterable[Observer] = (),
        keep: Callable[[Position], None] | None = None,
    ) -> None:
        self.task, self.sampler, self.settings, self.out = task, sampler, settings, out
        self.watched, self.processes, self.observers, self.keep = list(watched), processes, tuple(observers), keep
        task.module.to(processes.device)
        self.optimizer = settings.optimizer(task.module)
        self.forward = processes.parallel(_Forward(task))  # which also gives all processes the same weights
        self.average = Average(task.module, settings.average)
        self.at = Position()
        torch.manual_seed(settings.seed * 100_003 + processes.rank)
        out.mkdir(parents=True, exist_ok=True)

    @property
    def progress(self) -> float:
        """Share of the budget used, 0 to 1."""
        return self.settings.budget.progress(self.at.steps, self.at.seconds)

    @property
    def checkpoint(self) -> Path:
        return self.out / "checkpoint.safetensors"

    def run(self) -> dict[str, Any]:
        """Train to the end of the budget, from the checkpoint where there is one. Returns the log's last record, with
        the chosen averaged weights in the task's module. Raises LearningError when a gradient is no longer a number.
        """
        self.restore()
        while self.progress < 1.0:
            self.epoch()
        self.choose()
        return self.at.record

    def restore(self) -> None:
        """Go on where the checkpoint ends, if there is one."""
        if not self.checkpoint.exists():
            return
        state, generators = load_checkpoint(self.checkpoint, self.task.module, self.optimizer, self.average)
        try:
            self.at = Position(**state)
        except TypeError as error:
            raise DataError(f"{self.checkpoint}: of another version ({error}); choose another folder") from error
        self.sampler.restore(self.at.sampler)
        self.task.restore(self.at.task)
        if (own := generators.get(f"cpu.{self.processes.rank}")) is not None:
            torch.set_rng_state(own)
        if (own := generators.get(f"cuda.{self.processes.rank}")) is not None and self.processes.device.type == "cuda":
            torch.cuda.set_rng_state(own, self.processes.device)

    def save(self) -> None:
        """Write a checkpoint; all processes take part."""
        states = {"cpu": torch.get_rng_state()}
        if self.processes.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.processes.device)
        generators = {
            f"{name}.{rank}": each
            for name, state in states.items()
            for rank, each in enumerate(self.processes.gather(state))
        }
        self.at.task = self.task.state()
        if not self.processes.first:
            return
        save_checkpoint(self.checkpoint, self.task.module, self.optimizer, self.average, asdict(self.at), generators)
        for path in self.out.glob("best-*.safetensors"):  # which no checkpoint names any more
            if self.at.best is None or path != self._best(self.at.best):
                path.unlink()

    def epoch(self) -> None:
        """One pass over a plan, or what is left of it, then a line in the log and a checkpoint."""
        at, settings = self.at, self.settings
        at.sampler = self.sampler.state()
        if at.group == 0:
            at.begin, at.sums = self.progress, {}
        plan = self.sampler.plan(at.epoch, at.begin)
        size = settings.accumulate
        groups = [plan[start : start + size] for start in range(0, len(plan), size)][at.group :]
        self.task.module.train()
        begun = time.monotonic()
        for batches in self._loaded(groups):
            at.group += 1
            if batches:
                begun = self.step(batches, begun)
            if self.progress >= 1.0 or self.sampler.ends(self.progress):
                break
            if batches and settings.watch_steps and at.steps % settings.watch_steps == 0:
                self.watch()
                self._log({"steps": at.steps, "progress": round(self.progress, 4), "wer": at.record.get("wer", {})})
                begun = time.monotonic()
            if batches and settings.checkpoint_steps and at.steps % settings.checkpoint_steps == 0:
                self.save()
        at.epoch, at.group = at.epoch + 1, 0
        at.sampler = self.sampler.state()
        at.record = self._summary()
        if self.progress >= 1.0 or at.seconds - at.watched >= 60.0 * settings.watch_minutes:
            self.watch()
        self._log(at.record)
        self.save()

    def step(self, batches: Sequence[tuple[B, float]], begun: float) -> float:
        """One step on this process' parts of some batches, each with its weight (0 for a part that only stands in).
        begun: when the time that the step took began. Returns when it ended."""
        at, settings, processes = self.at, self.settings, self.processes
        if self.task.advance(self.progress):
            self.average = Average(self.task.module, settings.average)
        rate = settings.schedule.rate(self.progress, at.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        self.optimizer.zero_grad(set_to_none=True)
        device = processes.device
        sums: dict[str, float] = {"count": 0.0}
        for index, (batch, weight) in enumerate(batches):
            last = index == len(batches) - 1
            with nullcontext() if last else unsynchronized(self.forward):
                with torch.autocast(device.type, torch.bfloat16, enabled=settings.bfloat16):
                    total, count, parts = self.forward(batch.to(device), self.progress)
                (total if weight == 1.0 else weight * total).backward()
            for name, value in {"count": count, **{f"loss/{name}": part for name, part in parts.items()}}.items():
                sums[name] = sums.get(name, 0.0) + weight * value
        names = sorted(sums)
        spent = time.monotonic() - begun if processes.first else 0.0
        *values, spent = processes.sum([*(sums[name] for name in names), spent])
        sums = dict(zip(names, values, strict=True))
        sums["norm"] = self._update(sums["count"] / processes.count)
        at.steps += 1
        at.seconds += spent
        self._told(sums, rate, spent)
        return time.monotonic()

    def _update(self, count: float) -> float:
        """Divide the summed gradient by what was counted, clip it and take the step. Returns its norm before that."""
        gradients = [value.grad for value in self.task.module.parameters() if value.grad is not None]
        torch._foreach_div_(gradients, max(count, 1e-9))
        norm = float(nn.utils.clip_grad_norm_(self.task.module.parameters(), self.settings.clip))
        if not np.isfinite(norm):
            raise LearningError(
                f"step {self.at.steps}: the gradient is not a number; start with a lower peak learning rate"
            )
        self.optimizer.step()
        self.average.update(self.task.module)
        return norm

    def _told(self, sums: Mapping[str, float], rate: float, spent: float) -> None:
        """Add a step to the epoch's sums and tell the observers of it."""
        counts = {name.replace("loss/", "count/"): sums["count"] for name in sums if name.startswith("loss/")}
        for name, value in {**sums, **counts, "steps": 1.0}.items():
            self.at.sums[name] = self.at.sums.get(name, 0.0) + value
        if self.observers:
            count = max(sums["count"], 1e-9)
            figures = {name: value / count for name, value in sums.items() if name.startswith("loss/")}
            figures |= {"gradient": sums["norm"], "learning_rate": rate, "seconds": spent}
            for observe in self.observers:
                observe(self.at.steps, self.progress, figures)

    def watch(self) -> None:
        """Count word errors with the averaged weights, keep those if they are the best so far; all processes wait."""
        at = self.at
        at.watched = at.seconds
        if self.processes.first and self.watched:
            with self.average.applied(self.task.module):
                at.record["wer"] = self.errors()
                if self.keep is not None:
                    self.keep(at)
            for observe in self.observers:
                observe(at.steps, self.progress, {f"wer/{name}": rate for name, rate in at.record["wer"].items()})
            score = self._score()
            if score is not None and (at.best is None or score < at.best["wer"]):
                at.best = {"wer": score, "steps": at.steps}
                save_tensors(self._best(at.best), self.average.values)
        self.processes.wait()

    def errors(self, ending: str = "") -> dict[str, float]:
        """Word error rates by source, of sources with an ending, with the weights in the module as they are."""
        chosen = [example for example in self.watched if example.source.endswith(ending)]
        return {source: round(rate, 4) for source, rate in word_errors(chosen, self.task.decode).items()}

    def choose(self) -> None:
        """Put the averaged weights of the lowest word error on development speech into the module; the last ones
        where there is no such speech. The module is in evaluation mode then."""
        if self.processes.first and self.at.best is not None:
            tensors, _ = load_tensors(self._best(self.at.best))
            with torch.no_grad():
                for name, value in self.average.values.items():
                    value.copy_(tensors[name])
            self.at.record["best"] = self.at.best
        self.average.copy_to(self.task.module)
        self.task.module.eval()

    def _best(self, best: Mapping[str, float]) -> Path:
        """Named by the step, so that a checkpoint from before it still finds its own."""
        return self.out / f"best-{int(best['steps']):08d}.safetensors"

    def _score(self) -> float | None:
        rates = [rate for source, rate in self.at.record.get("wer", {}).items() if source.endswith(".development")]
        return sum(rates) / len(rates) if rates else None

    def _summary(self) -> dict[str, Any]:
        at = self.at
        losses = {name.removeprefix("loss/"): value for name, value in at.sums.items() if name.startswith("loss/")}
        means = {name: value / max(at.sums[f"count/{name}"], 1e-9) for name, value in sorted(losses.items())}
        return {
            "epoch": at.epoch,
            "steps": at.steps,
            "minutes": round(at.seconds / 60, 2),
            "progress": round(self.progress, 4),
            **self.task.state(),
            **{name: round(value, 4) for name, value in means.items()},
            "gradient": round(at.sums.get("norm", 0.0) / max(at.sums.get("steps", 0.0), 1.0), 3),
        }

    def _log(self, record: Mapping[str, Any]) -> None:
        if self.processes.first:
            append_log(self.out / "log.jsonl", record)

    def _loaded(self, groups: Iterable[Sequence[Sequence[int]]]) -> Iterator[list[tuple[B, float]]]:
        """This process' part of every group; on a GPU one group is loaded while the one before it is trained on."""
        if self.processes.device.type == "cpu":
            yield from map(self._load, groups)
            return
        with ThreadPoolExecutor(1) as pool:
            waiting = None
            for group in groups:
                coming = pool.submit(self._load, group)
                if waiting is not None:
                    yield waiting.result()
                waiting = coming
            if waiting is not None:
                yield waiting.result()

    def _load(self, group: Sequence[Sequence[int]]) -> list[tuple[B, float]]:
        """Where a process has no usable utterance of a batch, one of the others' stands in with weight 0, so that all
        take part in every step; a batch that nobody can use is left out by all."""
        loaded: list[tuple[B, float]] = []
        for chosen in group:
            own = self.processes.share(chosen)
            batch, weight = self.sampler.load(self.at.epoch, own) if own else None, 1.0
            if batch is None and self.processes.count > 1:
                others = (self.sampler.load(self.at.epoch, [number]) for number in chosen)
                batch, weight = next((each for each in others if each is not None), None), 0.0
            if batch is not None:
                loaded.append((batch, weight))
        return loaded


class _Forward(nn.Module):
    """A task's loss as a module's call, which is what processes can share."""

    def __init__(self, task: Task[Any]) -> None:
        super().__init__()
        self.module, self.task = task.module, task

    def forward(self, batch: Any, progress: float) -> tuple[Tensor, float, Mapping[str, float]]:
        loss = self.task.loss(batch, progress)
        return loss.total, loss.count, loss.parts
