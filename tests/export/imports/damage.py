"""Damaged folders: each number is one way to be wrong. Run as a module it imports numbers from its first argument on
and prints a line for each, so that who watches knows where it ended."""

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from device_sdk.errors import IdiolectError
from export.imports.importer import import_sherpa
from tests.device_sdk.damage import harm

FILES = ("encoder.onnx", "decoder.onnx", "joiner.onnx", "tokens.txt")


def splice(folder: Path, draw: random.Random) -> None:
    """Bytes changed, missing or added: anywhere, or where the structure is, not the weights."""
    path = folder / draw.choice(FILES)
    content, head = path.read_bytes(), draw.choice((4_000, 1 << 40))
    path.write_bytes(harm.damaged(content[:head], np.random.default_rng(draw.getrandbits(64))) + content[head:])


def missing(folder: Path, draw: random.Random) -> None:
    (folder / draw.choice(FILES)).unlink()


def swapped(folder: Path, draw: random.Random) -> None:
    one, other = draw.sample(FILES, 2)
    content = (folder / one).read_bytes()
    (folder / one).write_bytes((folder / other).read_bytes())
    (folder / other).write_bytes(content)


def tokens(folder: Path, draw: random.Random) -> None:
    path = folder / "tokens.txt"
    lines = path.read_text("utf-8").splitlines()
    at = draw.randrange(len(lines))
    wrong = ("", "a", "a -1", "a 99999999999", "\u2581 0", "<blk> 5", f"{lines[at]} 7", "a 1e3", "b \u0663")
    lines[at] = draw.choice(wrong)
    path.write_text("\n".join(lines), "utf-8")


def metadata(folder: Path, draw: random.Random) -> None:
    path, model = _opened(folder, draw, FILES[:2])
    entry = draw.choice(model.metadata_props)
    entry.value = draw.choice(
        ("", "-1", "0", "1", "999999999999", "1,2", "nan", "zipformer", "conformer", "lstm", "\u0663")
    )
    onnx.save(model, path)


def rewired(folder: Path, draw: random.Random) -> None:
    """A node reads or is something else."""
    path, model = _opened(folder, draw, FILES[:3])
    node = draw.choice(model.graph.node)
    match draw.randrange(5):
        case 0 if node.input:
            node.input[draw.randrange(len(node.input))] = draw.choice(model.graph.node).output[0]
        case 1:
            node.op_type = draw.choice(("Loop", "Scan", "If", "MatMul", "Conv", "Expand", "Reshape", "NoSuchOperator"))
        case 2:
            node.domain = draw.choice(("my.ops", "com.microsoft", "ai.onnx.ml"))
        case 3:
            del node.attribute[:]
        case _:
            model.graph.node.remove(node)
    onnx.save(model, path)


def tensor(folder: Path, draw: random.Random) -> None:
    """A weight of another shape, type, place or value."""
    path, model = _opened(folder, draw, FILES[:3])
    chosen = draw.choice(model.graph.initializer)
    value = numpy_helper.to_array(chosen)
    match draw.randrange(6):
        case 0:
            del chosen.dims[:]
            chosen.dims.extend([1 << 40, 1 << 20])
        case 1:
            chosen.data_location = TensorProto.EXTERNAL
            for key, text in (
                ("location", draw.choice(("../../../etc/passwd", "/etc/passwd", "weights"))),
                ("length", "8"),
            ):
                chosen.external_data.add(key=key, value=text)
        case 2:
            chosen.CopyFrom(numpy_helper.from_array(value.astype(np.float64), chosen.name))
        case 3 if value.size > 1 and value.dtype == np.float32:
            value = value.copy()
            value.flat[draw.randrange(value.size)] = draw.choice((np.nan, np.inf, 1e30))
            chosen.CopyFrom(numpy_helper.from_array(value, chosen.name))
        case 4:
            chosen.CopyFrom(numpy_helper.from_array(np.zeros((3, 5), np.float32), chosen.name))
        case _:
            chosen.data_type = draw.choice((0, 2, 9, 10, 17, 99))
    path.write_bytes(model.SerializeToString())  # saved without onnx's checks


def giant(folder: Path, draw: random.Random) -> None:
    """What asks for more memory than there is, or for ever more."""
    path, model = _opened(folder, draw, FILES[:3])
    size = numpy_helper.from_array(np.array([draw.choice((1 << 34, 1 << 44, -1)), 1 << 10], np.int64), "giant.size")
    model.graph.initializer.append(size)
    output = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = [f"{name}.small" if name == output else name for name in node.output]
    model.graph.node.append(helper.make_node("ConstantOfShape", ["giant.size"], ["giant"]))
    model.graph.node.append(helper.make_node("ReduceSum", ["giant"], ["giant.sum"]))
    model.graph.node.append(helper.make_node("Add", [f"{output}.small", "giant.sum"], [output]))
    onnx.save(model, path)


def edges(folder: Path, draw: random.Random) -> None:
    """Inputs and outputs that are not those of the layout."""
    path, model = _opened(folder, draw, FILES[:3])
    side = draw.choice((model.graph.input, model.graph.output))
    match draw.randrange(4):
        case 0:
            del side[draw.randrange(len(side))]
        case 1:
            one, other = (draw.randrange(len(side)) for _ in range(2))
            side[one].name, side[other].name = side[other].name, side[one].name
        case 2:
            side[draw.randrange(len(side))].type.tensor_type.elem_type = draw.choice((0, 6, 7, 9, 16))
        case _:
            for each in side[draw.randrange(len(side))].type.tensor_type.shape.dim:
                each.dim_value = draw.choice((0, -1, 1, 7, 1 << 40))
    onnx.save(model, path)


def _opened(folder: Path, draw: random.Random, files: tuple[str, ...]) -> tuple[Path, onnx.ModelProto]:
    path = folder / draw.choice(files)
    return path, onnx.load(path)


WAYS: tuple[Callable[[Path, random.Random], None], ...] = (
    splice, splice, splice, missing, swapped, tokens, metadata, rewired, tensor, giant, edges,
)  # fmt: skip


def damaged(source: Path, number: int, folder: Path) -> Path:
    """A copy of ``source`` with damage ``number``."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    draw = random.Random(number)
    try:
        WAYS[number % len(WAYS)](folder, draw)
    except IndexError:  # nothing there to damage
        splice(folder, draw)
    return folder


def main(sources: list[str], first: int, last: int) -> None:
    for number in range(first, last):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(sources[number // len(WAYS) % len(sources)])
            print(json.dumps({"begun": number}), flush=True)
            try:
                import_sherpa(damaged(source, number, Path(folder)))
                outcome = "imported"
            except IdiolectError as error:
                outcome = str(error).replace(folder, "FOLDER")
            print(json.dumps({"number": number, "outcome": outcome}), flush=True)


if __name__ == "__main__":
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    main(sys.argv[3:], int(sys.argv[1]), int(sys.argv[2]))
