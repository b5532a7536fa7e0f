"""A run of RNN-T training: its network, speech, trainer, and the files that it leaves."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
from numpy.typing import NDArray

from device_sdk.bundle import weights as weight_files
from export.networks.stateless import StatelessTransducer
from export.zipformer import export_zipformer
from server.lab.corpora.made_names import english_words, made_names
from server.lab.corpora.phones import pronounce
from server.lab.training.data import Example, moments
from server.lab.training.rnnt.learner import new_network
from server.lab.training.rnnt.recipe import Recipe
from server.lab.training.rnnt.shards import ShardSampler
from server.lab.training.rnnt.task import RnntTask
from server.lab.training.speech import Mixture, ShardMaker
from server.lab.training.trainer import Trainer, append_log, progress_bar, write_atomically

CPU = torch.device("cpu")


def train_rnnt(
    recipe: Recipe,
    mixture: Mixture,
    pieces: bytes,
    out: Path,
    watched: Sequence[Example] = (),
    details: Mapping[str, Any] | None = None,
    *,
    begin: Mapping[str, NDArray[np.floating]] | None = None,
    device: torch.device = CPU,
    show: bool = True,
    until: float = math.inf,
) -> dict[str, Any]:
    """Train, or go on from the checkpoint in ``out``. Returns the last line of the log; where ``until``, a time of
    ``time.monotonic()``, comes first, how far it came, with ``finished`` false.

    pieces: the tokenizer's model. begin: parameters and constants of a trained network with these pieces to go on from,
    by RNN-T at once, the recipe's earlier phases left out. watched: utterances to report word errors on, by source,
    which are not trained on; those whose source ends with ``.development`` choose the weights that are exported.
    details: what ``training.json`` should also say. device: to train on. show: a progress bar. Writes
    weights.safetensors, tokenizer.model, training.json, log.jsonl and checkpoint.safetensors to ``out``; of a Zipformer
    also the folder ``sherpa``, in sherpa-onnx's layout. Raises LearningError when a gradient is no longer a number."""
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    network = new_network(recipe.architecture, recipe.dropout)
    pronunciations = pronounce(mixture.words().union(made_names(), english_words())) if recipe.phones else None
    phones = 0 if pronunciations is None else len(pronunciations.symbols)
    task = RnntTask(network, tokenizer, recipe.phases, begun=begin is not None, phones=phones)
    if begin is not None:
        network.from_parameters(begin)
    write_atomically(out / "tokenizer.model", pieces)
    result = _Result(task, out, {**(details or {}), "recipe": asdict(recipe)})
    with ExitStack() as stack:
        torch.set_flush_denormal(True)  # denormal numbers slow training down
        stack.callback(torch.set_flush_denormal, False)
        maker = stack.enter_context(ShardMaker(out / "speech", mixture, recipe.seed, recipe.shard, recipe.makers))
        if begin is None and not (out / "checkpoint.safetensors").exists():
            mean, scale = moments(maker.window(0, 1))
            network.mean.copy_(torch.from_numpy(mean))
            network.scale.copy_(torch.from_numpy(scale))
        trainer = Trainer(
            task,
            ShardSampler(recipe, maker, tokenizer, network, begun=task.begun, labels=pronunciations),
            recipe.settings,
            out,
            watched=watched,
            device=device,
            observers=[stack.enter_context(progress_bar(show))],
            keep=lambda at: result.export(at.record),
            until=until,
        )
        record = trainer.run()
        return finish(trainer, result) if trainer.progress >= 1.0 else record


@dataclass(frozen=True, slots=True)
class _Result:
    """The files that a run leaves: weights and what they are."""

    task: RnntTask
    out: Path
    details: dict[str, Any]

    def export(self, record: Mapping[str, Any]) -> None:
        weights = weight_files.halved(self.task.weights())
        write_atomically(self.out / "weights.safetensors", weight_files.serialize(weights))
        described = {**self.details, "result": dict(record)}
        write_atomically(self.out / "training.json", json.dumps(described, indent=2).encode())


def finish(trainer: Trainer[Any], result: _Result) -> dict[str, Any]:
    """Round to float16, count word errors and export what the trainer has chosen. Returns the log's last line."""
    task = result.task
    half = {name: value.astype(np.float16) for name, value in task.weights().items()}
    task.module.network.from_parameters({name: value.astype(np.float32) for name, value in half.items()})
    record = {"finished": True, **trainer.at.record}
    if trainer.watched:
        record["wer"] = trainer.errors()
    append_log(result.out / "log.jsonl", record)
    result.export(record)
    if isinstance(network := task.module.network, StatelessTransducer):
        pieces = [task.tokenizer.id_to_piece(piece) for piece in range(task.tokenizer.get_piece_size())]
        export_zipformer(network, ["<blk>", *pieces[1:]], result.out / "sherpa")
    return record
