from collections.abc import Callable

import numpy as np
import pytest
import torch

from device_sdk.bundle.architecture import Architecture
from device_sdk.errors import BundleError, ConfigurationError
from export.networks.cpc import ContextShape, Contrast
from export.networks.ctc_transformer import Alphabet, CTCTransformerShape
from export.networks.language_model_shape import LanguageModelShape
from export.networks.rnnt import RNNT

SHAPE = Architecture(2, 12, 2, 10, 7, 9, 16)


def network(seed: int = 0) -> RNNT:
    torch.manual_seed(seed)
    made = RNNT(SHAPE)
    made.mean.uniform_(-1, 1)
    made.scale.uniform_(0.5, 2)
    return made


def test_parameters_survive_the_way_there_and_back() -> None:
    source, target = network(1).double(), network(2)
    parameters, shapes = source.to_parameters(), SHAPE.constant_shapes() | SHAPE.parameter_shapes()
    assert {name: (value.shape, value.dtype) for name, value in parameters.items()} == {
        name: (shape, np.float32) for name, shape in shapes.items()
    }
    target.from_parameters(parameters)
    for name, value in target.to_parameters().items():
        np.testing.assert_allclose(value, parameters[name], rtol=1e-6, atol=1e-7)
    features, tokens = torch.randn(2, 14, 64), torch.randint(1, 16, (2, 3))
    one, other = ((made.encode(features), made.predict(tokens)) for made in (source.float(), target))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("joiner.output.bias"), "joiner.output.bias is missing"),
        (lambda p: p.update({"encoder.1.R": np.zeros((3, 3))}), r"encoder.1.R has shape \(3, 3\), expected \(48, 12\)"),
    ],
)
def test_wrong_parameters_are_refused_by_name(change: object, message: str) -> None:
    parameters = network().to_parameters()
    change(parameters)  # type: ignore[operator]
    with pytest.raises(BundleError, match=message):
        network().from_parameters(parameters)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Contrast(steps=0), "contrast.steps"),
        (lambda: Contrast(candidates=1), "contrast.candidates"),
        (lambda: Contrast(temperature=0.0), "contrast.temperature"),
        (lambda: ContextShape(context_layers=0), "context_layers"),
        (lambda: CTCTransformerShape(size=30, heads=4), "multiple of"),
        (lambda: CTCTransformerShape(kernel=4), "odd"),
        (lambda: CTCTransformerShape(norm="before"), "norm: found 'before'"),  # type: ignore[arg-type]
        (lambda: CTCTransformerShape(dropout=1.0), "dropout: found 1.0"),
        (lambda: CTCTransformerShape(layers=0), "layers: found 0"),
        (lambda: LanguageModelShape(words=0), "language_model"),
        (lambda: LanguageModelShape(words=5, size=10, heads=4), "language_model"),
        (lambda: LanguageModelShape(words=5, positions=1), "language_model"),
        (lambda: LanguageModelShape(words=5, dropout=1.0), "language_model"),
        (lambda: LanguageModelShape(words=5, frequent=6), "language_model.frequent"),
        (lambda: Alphabet("aa "), "distinct"),
    ],
)
def test_sizes_that_cannot_be_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
