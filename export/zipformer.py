"""A Zipformer transducer in the layout that sherpa-onnx's ``zipformer2`` models have, so that unmodified sherpa-onnx
decodes it and ``idiolect import`` makes a bundle of it.

N: batch; T: feature frames of a chunk and its look-ahead; S: encoder frames of a chunk; J: joiner size; V: pieces."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from export.imports.folder import write_tokens
from export.networks.stateless import CONTEXT, StatelessTransducer
from export.networks.zipformer import LOOK_AHEAD, state_names

OPSET = 17


class _Encoder(nn.Module):
    def __init__(self, network: StatelessTransducer) -> None:
        super().__init__()
        self.encoder, self.project = network.encoder, network.joiner_encoder

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        encoded, following = self.encoder.stream(x, states)
        return self.project(encoded), *following


class _Decoder(nn.Module):
    def __init__(self, network: StatelessTransducer) -> None:
        super().__init__()
        self.network = network

    def forward(self, y: Tensor) -> Tensor:
        return self.network.joiner_predictor(self.network.said(y)).squeeze(1)


class _Joiner(nn.Module):
    def __init__(self, network: StatelessTransducer) -> None:
        super().__init__()
        self.output = network.joiner_output

    def forward(self, encoder_out: Tensor, decoder_out: Tensor) -> Tensor:
        return self.output(torch.tanh(encoder_out + decoder_out))


def export_zipformer(network: StatelessTransducer, pieces: Sequence[str], folder: str | Path) -> Path:
    """Write ``encoder.onnx``, ``decoder.onnx``, ``joiner.onnx`` and ``tokens.txt``. Returns the folder. pieces: of the
    tokenizer, by id. The encoder takes x [N, T, M] with T = chunk + 13, and the states of
    :func:`~export.networks.zipformer.state_names`; it gives encoder_out [N, S, J] and the next ones."""
    folder, shape = Path(folder), network.architecture.encoder
    folder.mkdir(parents=True, exist_ok=True)
    network = network.eval()
    names, frames = state_names(shape), 2 * shape.chunk
    chunk = (torch.randn(1, frames + LOOK_AHEAD, shape.mel_bins), *network.encoder.start())
    sides = dict.fromkeys(("encoder_out", "decoder_out"), torch.randn(1, network.architecture.joiner_size))
    following = ["encoder_out", *(f"new_{name}" for name in names)]
    context = {"y": torch.zeros(1, CONTEXT, dtype=torch.int64)}
    known = {"context_size": str(CONTEXT), "vocab_size": str(network.architecture.pieces)}
    width = {"joiner_dim": str(network.architecture.joiner_size)}
    given = dict(zip(("x", *names), chunk, strict=True))
    _export(_Encoder(network), given, following, folder / "encoder.onnx", _metadata(network))
    _export(_Decoder(network), context, ["decoder_out"], folder / "decoder.onnx", known)
    _export(_Joiner(network), sides, ["logit"], folder / "joiner.onnx", width)
    write_tokens(folder / "tokens.txt", pieces)
    return folder


def _metadata(network: StatelessTransducer) -> dict[str, str]:
    """What sherpa-onnx reads from the encoder."""
    shape = network.architecture.encoder
    lists = {
        "num_encoder_layers": [stack.layers for stack in shape.stacks],
        "encoder_dims": [stack.size for stack in shape.stacks],
        "cnn_module_kernels": [stack.kernel for stack in shape.stacks],
        "left_context_len": [shape.left // stack.downsampling for stack in shape.stacks],
        "query_head_dims": [stack.query for stack in shape.stacks],
        "value_head_dims": [stack.value for stack in shape.stacks],
        "num_heads": [stack.heads for stack in shape.stacks],
    }
    plain = {"model_type": "zipformer2", "version": "1", "model_author": "idiolect", "comment": "streaming zipformer"}
    plain |= {"decode_chunk_len": str(2 * shape.chunk), "T": str(2 * shape.chunk + LOOK_AHEAD)}
    return plain | {name: ",".join(map(str, values)) for name, values in lists.items()}


def _export(
    module: nn.Module,
    given: Mapping[str, Tensor],
    outputs: Sequence[str],
    path: Path,
    metadata: Mapping[str, str],
) -> None:
    """given: an example of each input, by name. Batches of any size go in."""
    # Caches of the attention have their frames first.
    batch = {name: {int("cached" in name and "conv" not in name): "N"} for name in (*given, *outputs)}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the tracer: sizes become constants, which are those of a chunk
        torch.onnx.export(
            module.eval(),
            tuple(given.values()),
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=list(given),
            output_names=list(outputs),
            dynamic_axes=batch,
        )
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
