"""Teaching a recognizer from transcribed speech, and counting its word errors."""

from collections.abc import Sequence
from pathlib import Path

import sentencepiece
import torch

from examples.ramesh_2023.encoders import fresh
from examples.ramesh_2023.recipes import Sizes
from examples.ramesh_2023.speech import Speech
from examples.runner import Errors
from export.networks.cpc import CPC, ContextRNNT, begin_encoder
from server.lab.training.augmentation import Augmentation, mask
from server.lab.training.clips import ClipSampler
from server.lab.training.data import Example
from server.lab.training.greedy import count_errors
from server.lab.training.pieces import train_pieces
from server.lab.training.rnnt.learner import begin_lstm
from server.lab.training.rnnt.task import Phases, RnntTask
from server.lab.training.trainer import Budget, Settings, Trainer


def teach(pretrained: CPC | None, speech: Speech, sizes: Sizes, seed: int, folder: Path) -> RnntTask:
    """A recognizer after its training on the speech's transcribed clips, from a pre-trained encoder or from scratch.
    Both begin from the same weights but for the encoder, with the same batches and masks."""
    plan = sizes.teaching
    share = plan.scratch_share if pretrained is None else plan.pretrained_share
    tokenizer = sentencepiece.SentencePieceProcessor(model_proto=_pieces(speech, plan.pieces, folder))
    untrained = fresh(sizes, speech.taught, seed)
    torch.manual_seed(seed)
    network = ContextRNNT(
        sizes.shape,
        predictor_layers=plan.predictor_layers,
        predictor_size=plan.predictor_size,
        embedding_size=plan.embedding_size,
        joiner_size=plan.joiner_size,
        pieces=plan.pieces,
        dropout=plan.dropout,
    )
    begin_lstm(network.predictor)
    task = RnntTask(network, tokenizer, Phases() if plan.ctc else Phases(0.0, 0.0, 0.0))
    begin_encoder(network, pretrained or untrained)
    mean = network.mean.numpy().copy()
    masks = Augmentation(time_masks=2, time_width=20, bin_masks=2, bin_width=sizes.shape.bins // 20)
    sampler = ClipSampler(
        speech.taught,
        tokenizer.encode,
        subsampling=sizes.shape.stack,
        seconds=sizes.seconds,
        most=plan.batch,
        seed=seed,
        change=lambda features, generator: mask(features, mean, masks, generator),
    )
    settings = Settings(
        Budget(steps=plan.steps),
        plan.rate,
        max(1, plan.steps // 20),
        seed=seed,
        average=0.99,
        bfloat16=torch.cuda.is_available(),
        shares=dict.fromkeys(("network.features.", "network.encoder."), share),
    )
    Trainer(task, sampler, settings, folder).run()
    return task


def word_errors(task: RnntTask, examples: Sequence[Example]) -> Errors:
    """By greedy decoding."""
    wrong, said = zip(*count_errors(examples, task.decode), strict=True)
    return Errors(list(wrong), list(said), [example.source for example in examples])


def _pieces(speech: Speech, size: int, folder: Path) -> bytes:
    """Subwords of what is taught, made once for a language."""
    path = folder.parent / f"pieces-{speech.language}-{size}.model"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(train_pieces((speech.taught[i].text for i in range(len(speech.taught.frames))), size))
    return path.read_bytes()
