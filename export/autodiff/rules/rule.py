"""The form of a rule."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from export.autodiff.tape import Tape
from export.graphs.builder import Value

Attributes = Mapping[str, Any]
Rule = Callable[[Tape, onnx.NodeProto, Sequence[Value | None], Attributes], None]
"""(tape, node, cotangents of its outputs, its attributes)"""
Forward = Callable[[Tape, onnx.NodeProto, Attributes], None]
