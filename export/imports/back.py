"""An imported Zipformer in sherpa-onnx's layout again, with the weights that its bundle has by now."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper

from device_sdk.bundle import Bundle
from device_sdk.bundle.streaming import StatelessPredictor, StreamingArchitecture
from device_sdk.bundle.weights import unpack
from device_sdk.errors import BundleError
from export.graphs.streaming import predictor as predictor_graph
from export.imports.folder import write_tokens

FLOAT = TensorProto.FLOAT


def write_sherpa(bundle: Bundle, folder: str | Path) -> Path:
    """``encoder.onnx``, ``decoder.onnx``, ``joiner.onnx`` and ``tokens.txt``, which unmodified sherpa-onnx loads.
    Inputs and outputs stand in the order that it wants, under the bundle's names. Returns the folder. Raises
    :class:`BundleError` for a bundle that was not imported from a zipformer2."""
    sizes, about = bundle.architecture, bundle.manifest.training
    if not isinstance(sizes, StreamingArchitecture) or about.get("imported") != "zipformer2":
        raise BundleError(f"{bundle.path}: was not imported from a zipformer2, so it cannot be written as one")
    assert isinstance(sizes.predictor, StatelessPredictor)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    encoder = with_weights(bundle, bundle.file("encoder.onnx").read_bytes())
    decoder = with_weights(bundle, predictor_graph(sizes))
    context = {"context_size": str(sizes.predictor.context), "vocab_size": str(sizes.pieces)}
    for name, model, metadata in (
        ("encoder", encoder, about["metadata"]),
        ("decoder", decoder, context),
        ("joiner", _joiner(bundle, sizes), {"joiner_dim": str(sizes.joiner_size)}),
    ):
        del model.metadata_props[:]
        helper.set_model_props(model, dict(metadata))
        onnx.save(model, folder / f"{name}.onnx")
    write_tokens(folder / "tokens.txt", map(bundle.tokenizer.piece, range(sizes.pieces)))
    return folder


def with_weights(bundle: Bundle, graph: bytes) -> onnx.ModelProto:
    """A graph of a bundle with the bundle's weights inside."""
    model, packed = onnx.load_model_from_string(graph), bundle.packed
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            place = {entry.key: int(entry.value) for entry in tensor.external_data if entry.key != "location"}
            values = packed[place["offset"] : place["offset"] + place["length"]]
            tensor.CopyFrom(TensorProto(name=tensor.name, data_type=FLOAT, dims=tensor.dims, raw_data=values))
    return model


def _joiner(bundle: Bundle, sizes: StreamingArchitecture) -> onnx.ModelProto:
    """encoder_out, decoder_out [N, J] to logit [N, V]."""
    weights = unpack(sizes, bundle.packed)
    names = ("joiner.output.weight", "joiner.output.bias")
    nodes = [
        helper.make_node("Add", ["encoder_out", "decoder_out"], ["mixed"]),
        helper.make_node(sizes.activation.capitalize(), ["mixed"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", *names], ["logit"], transB=1),
    ]
    sides = [helper.make_tensor_value_info(name, FLOAT, ["N", sizes.joiner_size]) for name in nodes[0].input]
    scores = [helper.make_tensor_value_info("logit", FLOAT, ["N", sizes.pieces])]
    held = [numpy_helper.from_array(weights[name].copy(), name) for name in names]
    graph = helper.make_graph(nodes, "joiner", sides, scores, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
