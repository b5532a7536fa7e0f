"""What a base RNN-T is trained by: the network, a CTC head that only training uses, and the losses of each phase.

B: batch; F: feature frames; M: mel bins; T: stacked frames; H: encoder size; V: pieces."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from device_sdk.bundle.architecture import BLANK, Architecture
from export.losses.rnnt import rnnt_loss
from export.networks.rnnt import RNNT
from export.networks.stateless import StatelessShape, StatelessTransducer
from server.lab.training.data import Batch, collate
from server.lab.training.greedy import ctc_greedy


class Learner(nn.Module):
    """The network, a CTC head of the joint's form, and one for ``phones`` (0: none) on the layer below the last: what
    sounds alike is written in many ways, and a layer that need not know how hears it in less speech."""

    def __init__(self, network: RNNT | StatelessTransducer, phones: int = 0) -> None:
        super().__init__()
        self.network, a = network, network.architecture
        self.ctc_hidden = nn.Linear(a.encoder_size, a.joiner_size)
        self.ctc_output = nn.Linear(a.joiner_size, a.pieces)
        nn.init.xavier_uniform_(self.ctc_hidden.weight)
        nn.init.xavier_uniform_(self.ctc_output.weight)
        self.phone_output = nn.Linear(a.encoder_size, phones) if phones else None

    def flat_loss(self, hidden: Tensor, batch: Batch, letters: Tensor) -> tuple[Tensor, float]:
        """Cross-entropy, summed over the frames that have a guess, against tokens spread over the utterance in
        proportion to their ``letters`` [V]; and how many frames have one."""
        targets = flat_targets(batch, letters).to(hidden.device)
        scores = self.ctc_log_probs(hidden).transpose(1, 2).contiguous()
        return nn.functional.nll_loss(scores, targets, reduction="sum"), float((targets >= 0).sum())

    def ctc_loss(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Negative log-likelihood of the encoder's output [B, T, H], summed over utterances."""
        return ctc_loss(self.ctc_log_probs(hidden), batch.tokens, batch)

    def phone_loss(self, hidden: Tensor, batch: Batch) -> Tensor:
        """CTC of the phones, from the output [B, T, H] of the layer that hears them, summed over utterances."""
        assert self.phone_output is not None
        return ctc_loss(self.phone_output(hidden).float().log_softmax(-1), batch.labels, batch)

    def ctc_log_probs(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.ctc_output(torch.tanh(self.ctc_hidden(hidden)))
        return scores.float().log_softmax(-1)

    @torch.no_grad()
    def ctc_decoded(self, features: Sequence[NDArray[np.floating]]) -> list[list[int]]:
        """Token ids of each utterance [F, M] by the CTC head's best path."""
        network = self.network
        batch = collate([(f.astype(np.float32), []) for f in features], network.architecture.subsampling_factor)
        batch = batch.to(network.mean.device)
        return ctc_greedy(self.ctc_log_probs(network.hidden(network.stack(batch.features))), batch.frames)

    def rnnt_loss(self, hidden: Tensor, batch: Batch, dtype: torch.dtype, pruning: float) -> Tensor:
        """Negative log-likelihood, summed over utterances."""
        network = self.network
        losses = rnnt_loss(
            network.joiner_encoder(hidden).float(),
            network.predict(batch.tokens).float(),
            network.joiner_output.weight,
            network.joiner_output.bias,
            batch.tokens,
            batch.frames,
            batch.lengths,
            dtype=dtype,
            pruning=pruning,
        )
        return losses.sum().float()

    @torch.no_grad()
    def begin_transducer(self) -> None:
        """Start the joint from the CTC head; the prediction network begins with little to say."""
        network = self.network
        network.joiner_encoder.load_state_dict(self.ctc_hidden.state_dict())
        network.joiner_output.load_state_dict(self.ctc_output.state_dict())
        network.joiner_predictor.weight.mul_(0.3)


def ctc_loss(scores: Tensor, labels: Tensor, batch: Batch) -> Tensor:
    """Negative log-likelihood of labels [B, U], 0 where there is none, summed over utterances. scores: [B, T, V]
    log-probabilities."""
    lengths, by_time = (labels != BLANK).sum(1), scores.transpose(0, 1)
    return nn.functional.ctc_loss(by_time, labels, batch.frames, lengths, BLANK, "sum", zero_infinity=True)


def flat_targets(batch: Batch, letters: Tensor, delay: int = 2, edge: int = 3) -> Tensor:
    """A guess of the token at each stacked frame, [B, T] int64: a flat start. Tokens share the speech in proportion to
    their letters; ``edge`` frames at both ends are taken as silence (blank at the beginning), and everything comes
    ``delay`` frames late, since the encoder hears no future. -100: no guess."""
    batch = batch.to(torch.device("cpu"))
    targets = torch.full((batch.features.shape[0], int(batch.frames.max())), -100)
    for row, (frames, length) in enumerate(zip(batch.frames.tolist(), batch.lengths.tolist(), strict=True)):
        tokens = batch.tokens[row, :length]
        share, speech = letters[tokens].cumsum(0), max(1, frames - 2 * edge)
        position = (torch.arange(speech) + 0.5) / speech * share[-1]
        guess = tokens[torch.searchsorted(share, position).clamp(max=length - 1)]
        begin = min(edge + delay, frames)
        end = min(begin + speech, frames)
        targets[row, :edge] = BLANK
        targets[row, begin:end] = guess[: end - begin]
    return targets


def new_network(architecture: Architecture | StatelessShape, dropout: float) -> RNNT | StatelessTransducer:
    """A transducer to train from scratch."""
    if isinstance(architecture, StatelessShape):
        return StatelessTransducer(architecture, dropout)
    network = RNNT(architecture, dropout)
    begin_lstm(network.encoder)
    begin_lstm(network.predictor)
    nn.init.xavier_uniform_(network.joiner_encoder.weight)
    nn.init.xavier_uniform_(network.joiner_predictor.weight)
    return network


def begin_lstm(lstm: nn.LSTM) -> None:
    """Orthogonal recurrence, Xavier inputs and open forget gates: gradients reach far from the first step on."""
    size = lstm.hidden_size
    for name, value in lstm.named_parameters():
        with torch.no_grad():
            for gate in value.view(4, size, *value.shape[1:]):
                if "weight_ih" in name:
                    nn.init.xavier_uniform_(gate)
                elif "weight_hh" in name:
                    nn.init.orthogonal_(gate)
                else:
                    gate.zero_()
            if "bias_ih" in name:
                value[size : 2 * size] = 1.0
