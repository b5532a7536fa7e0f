"""From what an app saw its user do to the cost of every hypothesis (Rao et al. 2023, section 2.3)."""

from device_sdk.feedback.repetition import RepetitionSettings
from device_sdk.feedback.signals import (
    Accepted,
    Alternate,
    Cancelled,
    Corrected,
    Rating,
    Repeated,
    Semantics,
    Signal,
    Together,
    combined,
    costs,
)
from device_sdk.feedback.slots import SlotLexicon, read_slots

__all__ = [
    "Accepted",
    "Alternate",
    "Cancelled",
    "Corrected",
    "Rating",
    "Repeated",
    "RepetitionSettings",
    "Semantics",
    "Signal",
    "SlotLexicon",
    "Together",
    "combined",
    "costs",
    "read_slots",
]
