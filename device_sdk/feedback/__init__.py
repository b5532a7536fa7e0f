"""From what an app saw its user do to the cost of every hypothesis (Rao et al. 2023, section 2.3)."""

from device_sdk.feedback.noise import noisy_cost
from device_sdk.feedback.repetition import RepetitionSettings, is_repetition
from device_sdk.feedback.signals import (
    Accepted,
    Alternate,
    Cancelled,
    Corrected,
    CostFunction,
    Rating,
    Repeated,
    Semantics,
    Signal,
    Together,
    combined,
    costs,
)
from device_sdk.feedback.slots import CostMode, Slot, SlotLexicon, read_slots, semantic_cost, slot_cost, slot_errors

__all__ = [
    "Accepted",
    "Alternate",
    "Cancelled",
    "Corrected",
    "CostFunction",
    "CostMode",
    "Rating",
    "Repeated",
    "RepetitionSettings",
    "Semantics",
    "Signal",
    "Slot",
    "SlotLexicon",
    "Together",
    "combined",
    "costs",
    "is_repetition",
    "noisy_cost",
    "read_slots",
    "semantic_cost",
    "slot_cost",
    "slot_errors",
]
