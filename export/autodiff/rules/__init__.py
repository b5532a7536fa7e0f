"""A rule an operator: given the cotangents of a node's outputs, it adds to those of its inputs.

    y = f(x):   x' += y' df/dx

Written per operator kind: y' [as y] comes in, None for an output that nothing depends on."""

from collections.abc import Mapping

from export.autodiff.rules import convolution, elementwise, normalization, products, recurrent, reductions, shapes
from export.autodiff.rules.rule import Forward, Rule

RULES: Mapping[str, Rule] = {
    **elementwise.RULES,
    **reductions.RULES,
    **normalization.RULES,
    **shapes.RULES,
    **products.RULES,
    **convolution.RULES,
    **recurrent.RULES,
}
FORWARD: Mapping[str, Forward] = recurrent.FORWARD
"""Nodes that are written anew where they are differentiated, since what they keep to themselves is needed backwards."""
