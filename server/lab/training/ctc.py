"""Training of the CTC head of the second pass, over the frozen encoder of a bundle (Graves et al. 2006)."""

from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
from numpy.typing import NDArray
from torch import nn

from device_sdk.bundle import Bundle
from device_sdk.runtimes.ctc import FILE
from export.graphs.ctc import ctc_graph
from export.networks.ctc import CtcHead
from export.networks.rnnt import RNNT
from server.lab.corpora.made_names import english_words, made_names
from server.lab.corpora.phones import pronounce
from server.lab.training.data import Batch
from server.lab.training.pronunciation import spelling_rules
from server.lab.training.rnnt import Recipe
from server.lab.training.rnnt.learner import ctc_loss
from server.lab.training.rnnt.shards import ShardSampler
from server.lab.training.speech import Mixture, ShardMaker
from server.lab.training.trainer import Loss, Task, Trainer, progress_bar, write_atomically


class _Heard(nn.Module):
    """A head and the encoder that it listens to, which stays as it is."""

    def __init__(self, network: RNNT, head: CtcHead) -> None:
        super().__init__()
        self.network, self.head = network.requires_grad_(False), head


class CtcTask(Task[Batch]):
    """CTC of phones. The encoder hears without dropout."""

    module: _Heard

    def __init__(self, network: RNNT, head: CtcHead) -> None:
        self.module = _Heard(network, head)

    def loss(self, batch: Batch, progress: float) -> Loss:
        network = self.module.network.eval()
        with torch.no_grad():
            encoded = network.encode(batch.features)
        total = ctc_loss(self.module.head(encoded, batch.frames), batch.labels, batch)
        count = float((batch.labels != 0).sum())
        return Loss(total, max(1.0, count), {"ctc": float(total.detach())})

    def weights(self) -> dict[str, NDArray[np.float32]]:
        return self.module.head.to_parameters()


def train_ctc(bundle: Bundle, recipe: Recipe, mixture: Mixture, out: Path, *, show: bool = True) -> dict[str, Any]:
    """Train a head for a bundle's encoder, or go on from the checkpoint in ``out``; writes OUT/ctc.onnx. Returns the
    log's last record. recipe: budget, changes of the speech and rates; its phases and network are not looked at. show:
    a progress bar. Raises BundleError for a bundle that brings an encoder of its own, LearningError when a gradient is
    no longer a number."""
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    architecture = bundle.lstm
    network = RNNT(architecture).from_parameters(bundle.weights)
    words = mixture.words().union(made_names(), english_words())
    pronunciation = spelling_rules(pronounce(words))
    task = CtcTask(network, CtcHead(architecture.joiner_size, 1 + len(pronunciation.symbols)))
    pieces = sentencepiece.SentencePieceProcessor(model_proto=bundle.file("tokenizer.model").read_bytes())
    with (
        ShardMaker(out / "speech", mixture, recipe.seed, recipe.shard, recipe.makers) as maker,
        progress_bar(show) as observer,
    ):
        sampler = ShardSampler(recipe, maker, pieces, network, begun=True, labels=pronunciation)
        trainer = Trainer(task, sampler, recipe.settings, out, observers=[observer])
        record = trainer.run()
    write_atomically(out / FILE, ctc_graph(task.weights(), architecture, pronunciation))
    return record
