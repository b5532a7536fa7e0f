"""Sizes that cannot be are refused by name, whatever the network."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from device_sdk.errors import ConfigurationError
from export.networks.alphabet import Alphabet
from export.networks.cpc import ContextShape, Contrast
from export.networks.ctc_transformer import CTCTransformerShape
from export.networks.language_model_shape import LanguageModelShape


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Contrast(steps=0), "at least 1"),
        (lambda: Contrast(candidates=1), "at least 2"),
        (lambda: Contrast(temperature=0.0), "above 0"),
        (lambda: ContextShape(context_layers=0), "context_layers"),
        (lambda: CTCTransformerShape(size=30, heads=4), "multiple of heads"),
        (lambda: CTCTransformerShape(kernel=4), "odd"),
        (lambda: CTCTransformerShape(norm="before"), "'pre' or 'post'"),  # type: ignore[arg-type]
        (lambda: CTCTransformerShape(dropout=1.0), "below 1"),
        (lambda: CTCTransformerShape(layers=0), "1 or more"),
        (lambda: LanguageModelShape(words=0), "language model"),
        (lambda: LanguageModelShape(words=5, size=10, heads=4), "language model"),
        (lambda: LanguageModelShape(words=5, positions=1), "language model"),
        (lambda: LanguageModelShape(words=5, dropout=1.0), "language model"),
        (lambda: Alphabet("aa "), "distinct"),
    ],
)
def test_sizes_that_cannot_be_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
