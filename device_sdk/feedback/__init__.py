"""From what an app saw its user do to the cost of every hypothesis (paper 001, section 2.3)."""

from device_sdk.feedback.signals import Accepted, Cancelled, Corrected, CostFunction, Semantics, Signal, costs
from device_sdk.feedback.slots import CostMode, Slot, SlotLexicon, read_slots, semantic_cost, slot_cost, slot_errors

__all__ = [
    "Accepted",
    "Cancelled",
    "Corrected",
    "CostFunction",
    "CostMode",
    "Semantics",
    "Signal",
    "Slot",
    "SlotLexicon",
    "costs",
    "read_slots",
    "semantic_cost",
    "slot_cost",
    "slot_errors",
]
