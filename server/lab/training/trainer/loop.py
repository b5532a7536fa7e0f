"""The one training loop: any task, any sampler, with exact resume."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, cast

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from device_sdk.errors import DataError, LearningError
from server.lab.training.data import Example
from server.lab.training.greedy import word_errors
from server.lab.training.trainer.checkpoints import load_checkpoint, load_tensors, save_checkpoint, save_tensors
from server.lab.training.trainer.logs import Observer, append_log
from server.lab.training.trainer.settings import Settings
from server.lab.training.trainer.task import B, Sampler, Task

CPU = torch.device("cpu")


@dataclass(slots=True)
class Position:
    """Where a run stands; what a checkpoint keeps besides tensors. steps, seconds: of training so far. epoch, group:
    which epoch, and how many groups of batches of its plan are done. begin: share of the budget used at the epoch's
    begin; sampler, task: their states, the sampler's at that time. sums: of this epoch's losses, their counts and its
    gradients' norms. watched: seconds at the last watching. best: lowest word error of development speech, and at which
    step; record: the last line of the log."""

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
    """A run of a task: its optimizer, averaged weights, position and files. Writes ``checkpoint.safetensors``,
    ``best-STEP.safetensors`` (averaged weights of the lowest word error on development speech) and ``log.jsonl`` to
    ``out``. A process that is killed and started again goes on from the checkpoint to bit-identical weights on a CPU,
    where the budget is in steps. until: a time of ``time.monotonic()`` at which the run is left after a step, to go on
    later. watched: utterances to report word errors on, by source, never trained on; those whose source ends with
    ``.development`` choose between steps. observers: told of every step. keep: called at every watching, with the
    averaged weights in the task's module."""

    def __init__(
        self,
        task: Task[B],
        sampler: Sampler[B],
        settings: Settings,
        out: Path,
        *,
        watched: Sequence[Example] = (),
        device: torch.device = CPU,
        observers: Iterable[Observer] = (),
        keep: Callable[[Position], None] | None = None,
        until: float = math.inf,
    ) -> None:
        self.task, self.sampler, self.settings, self.out = task, sampler, settings, out
        self.watched, self.device, self.observers, self.keep = list(watched), device, tuple(observers), keep
        self.at, self.until = Position(), until
        task.module.to(device)
        self.optimizer = settings.optimizer(task.module)
        self.schedule = settings.schedule(self.optimizer, lambda: self.progress)
        self.average = settings.averaged(task.module)
        torch.manual_seed(settings.seed * 100_003)
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
        the chosen averaged weights in the task's module; where the time was over before, how far it came, with a
        checkpoint to go on from. Raises LearningError when a gradient is no longer a number."""
        self.restore()
        while self.progress < 1.0:
            self.epoch()
            if self.progress < 1.0 and time.monotonic() >= self.until:
                return {"finished": False, **self._summary()}
        self.choose()
        return self.at.record

    def restore(self) -> None:
        """Go on where the checkpoint ends, if there is one."""
        if not self.checkpoint.exists():
            return
        state = load_checkpoint(self.checkpoint, self.task.module, self.optimizer, self.schedule, self.average)
        try:
            self.at = Position(**state)
        except TypeError as error:
            raise DataError(f"{self.checkpoint}: of another version ({error}); choose another folder") from error
        self.sampler.restore(self.at.sampler)
        self.task.restore(self.at.task)

    def save(self) -> None:
        """Write a checkpoint, and delete the weights that none names any more."""
        self.at.task = self.task.state()
        module, state = self.task.module, asdict(self.at)
        save_checkpoint(self.checkpoint, module, self.optimizer, self.schedule, self.average, state)
        for path in self.out.glob("best-*.safetensors"):
            if self.at.best is None or path != self._best(self.at.best):
                path.unlink()

    def epoch(self) -> None:
        """One pass over a plan, or what is left of it, then a line in the log and a checkpoint; a checkpoint alone
        where the time is over before."""
        at, settings = self.at, self.settings
        at.sampler = self.sampler.state()
        if at.group == 0:
            at.begin, at.sums = self.progress, {}
        begun = time.monotonic()
        plan = self.sampler.plan(at.epoch, at.begin)[at.group :]
        self.task.module.train()
        for batch in self._loaded(plan):
            at.group += 1
            if batch is not None:
                begun = self.step(batch, begun)
            if self.progress >= 1.0 or self.sampler.ends(self.progress):
                break
            if batch is not None and settings.watch_steps and at.steps % settings.watch_steps == 0:
                self.watch()
                line = {"steps": at.steps, "progress": round(self.progress, 4), "wer": at.record.get("wer", {})}
                append_log(self.out / "log.jsonl", line)
                begun = time.monotonic()
            over = batch is not None and time.monotonic() >= self.until
            due = batch is not None and settings.checkpoint_steps and at.steps % settings.checkpoint_steps == 0
            if over or due:
                self.save()
            if over:
                return
        at.epoch, at.group = at.epoch + 1, 0
        at.sampler = self.sampler.state()
        at.record = self._summary()
        if self.progress >= 1.0 or at.seconds - at.watched >= 60.0 * settings.watch_minutes:
            self.watch()
        append_log(self.out / "log.jsonl", at.record)
        self.save()

    def step(self, batch: B, begun: float) -> float:
        """One step on a batch. begun: when the time that the step took began. Returns when it ended."""
        at, settings = self.at, self.settings
        if self.task.advance(self.progress):
            self.average = settings.averaged(self.task.module)
        rate = float(max(self.schedule.get_last_lr()))
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=settings.bfloat16):
            loss = self.task.loss(batch.to(self.device), self.progress)
        torch.autograd.backward(loss.total)
        sums = {"count": loss.count, **{f"loss/{name}": value for name, value in loss.parts.items()}}
        sums["norm"] = self._update(sums["count"])
        spent = time.monotonic() - begun
        at.steps += 1
        at.seconds += spent
        self.schedule.step()
        self._tell(sums, rate, spent)
        return time.monotonic()

    def _update(self, count: float) -> float:
        """Divide the summed gradient by what was counted, clip it and take the step. Returns its norm before that."""
        gradients = [value.grad for value in self.task.module.parameters() if value.grad is not None]
        torch._foreach_div_(gradients, max(count, 1e-9))
        norm = float(nn.utils.clip_grad_norm_(self.task.module.parameters(), self.settings.clip))
        if not np.isfinite(norm):
            what = f"step {self.at.steps}: the gradient is not a number"
            raise LearningError(f"{what}; start with a lower peak learning rate")
        self.optimizer.step()
        self.average.update_parameters(self.task.module)
        return norm

    def _tell(self, sums: Mapping[str, float], rate: float, spent: float) -> None:
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
        """Count word errors with the averaged weights, and keep those if they are the best so far."""
        at = self.at
        at.watched = at.seconds
        if not self.watched:
            return
        with self._averaged():
            at.record["wer"] = self.errors()
            if self.keep is not None:
                self.keep(at)
        for observe in self.observers:
            observe(at.steps, self.progress, {f"wer/{name}": rate for name, rate in at.record["wer"].items()})
        rates = [rate for source, rate in at.record["wer"].items() if source.endswith(".development")]
        score = sum(rates) / len(rates) if rates else None
        if score is not None and (at.best is None or score < at.best["wer"]):
            at.best = {"wer": score, "steps": at.steps}
            save_tensors(self._best(at.best), self.average.module.state_dict())

    def errors(self, ending: str = "") -> dict[str, float]:
        """Word error rates by source, of sources with an ending, with the weights in the module as they are."""
        chosen = [example for example in self.watched if example.source.endswith(ending)]
        return {source: round(rate, 4) for source, rate in word_errors(chosen, self.task.decode).items()}

    def choose(self) -> None:
        """Put the averaged weights of the lowest word error on development speech into the module; the last ones
        where there is no such speech. The module is in evaluation mode then."""
        chosen = self.average.module.state_dict()
        if self.at.best is not None:
            chosen, _ = load_tensors(self._best(self.at.best))
            self.at.record["best"] = self.at.best
        self.task.module.load_state_dict(chosen)
        self.task.module.eval()

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The task's module is the averaged one, in evaluation mode, without gradients."""
        module, self.task.module = self.task.module, self.average.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.task.module = module

    def _best(self, best: Mapping[str, float]) -> Path:
        """Named by the step, so that a checkpoint from before it still finds its own."""
        return self.out / f"best-{int(best['steps']):08d}.safetensors"

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

    def _loaded(self, plan: Sequence[Sequence[int]]) -> Iterator[B | None]:
        """Every batch, None where it cannot be used; for a GPU other processes load those to come."""
        load = partial(self.sampler.load, self.at.epoch)
        if self.device.type == "cpu":
            yield from map(load, plan)
        else:
            chosen = cast("Dataset[Sequence[int]]", plan)  # a sequence is all that is asked of it
            yield from DataLoader(chosen, batch_size=None, num_workers=_LOADERS, collate_fn=load)


_LOADERS = 4
