"""Speech recognition that learns its user, for apps to embed. Importing it is cheap: every name is loaded when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from device_sdk.audio import SAMPLE_AUDIO, read_audio
    from device_sdk.bundle import Bundle
    from device_sdk.checkin.client import Client
    from device_sdk.checkin.session import CheckInReport
    from device_sdk.consent import Consent
    from device_sdk.decoding import (
        DecodingSettings,
        Endpointing,
        EndpointRule,
        Hotword,
        Hotwords,
        RecognitionSession,
        Recognizer,
    )
    from device_sdk.device import Device
    from device_sdk.errors import (
        AudioError,
        BundleError,
        CheckInError,
        ConfigurationError,
        DataError,
        FeedbackError,
        IdiolectError,
        LearningError,
        MissingExtraError,
        Postponed,
        PrivacyError,
        ProtocolError,
        SessionError,
        StateError,
    )
    from device_sdk.features import ChannelSettings
    from device_sdk.feedback import (
        Accepted,
        Alternate,
        Cancelled,
        Corrected,
        Rating,
        Repeated,
        RepetitionSettings,
        Semantics,
        SlotLexicon,
        read_slots,
    )
    from device_sdk.hypothesis import Hypothesis, Partial, Result, Scores, Word
    from device_sdk.learned_summary import LearnedSummary
    from device_sdk.learning import GuardSettings, LearningReport, LearningSettings, Transcribed
    from device_sdk.policy import CarefulPolicy, Conditions
    from device_sdk.privacy.bounds import OfferBounds
    from device_sdk.profiles import Profiles
    from device_sdk.settings import DeviceSettings

__all__ = [
    "SAMPLE_AUDIO",
    "Accepted",
    "Alternate",
    "AudioError",
    "Bundle",
    "BundleError",
    "Cancelled",
    "CarefulPolicy",
    "ChannelSettings",
    "CheckInError",
    "CheckInReport",
    "Client",
    "Conditions",
    "ConfigurationError",
    "Consent",
    "Corrected",
    "DataError",
    "DecodingSettings",
    "Device",
    "DeviceSettings",
    "EndpointRule",
    "Endpointing",
    "FeedbackError",
    "GuardSettings",
    "Hotword",
    "Hotwords",
    "Hypothesis",
    "IdiolectError",
    "LearnedSummary",
    "LearningError",
    "LearningReport",
    "LearningSettings",
    "MissingExtraError",
    "OfferBounds",
    "Partial",
    "Postponed",
    "PrivacyError",
    "Profiles",
    "ProtocolError",
    "Rating",
    "RecognitionSession",
    "Recognizer",
    "Repeated",
    "RepetitionSettings",
    "Result",
    "Scores",
    "Semantics",
    "SessionError",
    "SlotLexicon",
    "StateError",
    "Transcribed",
    "Word",
    "read_audio",
    "read_slots",
]

_HOMES = {
    "audio": ("SAMPLE_AUDIO", "read_audio"),
    "bundle": ("Bundle",),
    "checkin.client": ("Client",),
    "checkin.session": ("CheckInReport",),
    "decoding": (
        "DecodingSettings",
        "EndpointRule",
        "Endpointing",
        "Hotword",
        "Hotwords",
        "RecognitionSession",
        "Recognizer",
    ),
    "device": ("Device",),
    "features": ("ChannelSettings",),
    "feedback": (
        "Accepted",
        "Alternate",
        "Cancelled",
        "Corrected",
        "Rating",
        "Repeated",
        "RepetitionSettings",
        "Semantics",
        "SlotLexicon",
        "read_slots",
    ),
    "hypothesis": ("Hypothesis", "Partial", "Result", "Scores", "Word"),
    "learned_summary": ("LearnedSummary",),
    "settings": ("DeviceSettings",),
    "learning": ("GuardSettings", "LearningReport", "LearningSettings", "Transcribed"),
    "consent": ("Consent",),
    "policy": ("CarefulPolicy", "Conditions"),
    "privacy.bounds": ("OfferBounds",),
    "profiles": ("Profiles",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("idiolect")
    home = _HOME.get(name, "errors" if name in __all__ else None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
