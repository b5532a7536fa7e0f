"""Speech recognition that learns its user, for apps to embed. Importing it is cheap: every name is loaded when used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from device_sdk.audio import SAMPLE_AUDIO as SAMPLE_AUDIO
    from device_sdk.audio import read_audio as read_audio
    from device_sdk.bundle import Bundle as Bundle
    from device_sdk.checkin.client import Client as Client
    from device_sdk.checkin.session import CheckInReport as CheckInReport
    from device_sdk.consent import Consent as Consent
    from device_sdk.decoding import DecodingSettings as DecodingSettings
    from device_sdk.decoding import Endpointing as Endpointing
    from device_sdk.decoding import EndpointRule as EndpointRule
    from device_sdk.decoding import Hotword as Hotword
    from device_sdk.decoding import Hotwords as Hotwords
    from device_sdk.decoding import RecognitionSession as RecognitionSession
    from device_sdk.decoding import Recognizer as Recognizer
    from device_sdk.device import Device as Device
    from device_sdk.errors import AudioError as AudioError
    from device_sdk.errors import BundleError as BundleError
    from device_sdk.errors import CheckInError as CheckInError
    from device_sdk.errors import ConfigurationError as ConfigurationError
    from device_sdk.errors import DataError as DataError
    from device_sdk.errors import FeedbackError as FeedbackError
    from device_sdk.errors import IdiolectError as IdiolectError
    from device_sdk.errors import LearningError as LearningError
    from device_sdk.errors import MissingExtraError as MissingExtraError
    from device_sdk.errors import Postponed as Postponed
    from device_sdk.errors import PrivacyError as PrivacyError
    from device_sdk.errors import ProtocolError as ProtocolError
    from device_sdk.errors import SessionError as SessionError
    from device_sdk.errors import StateError as StateError
    from device_sdk.feedback import Accepted as Accepted
    from device_sdk.feedback import Alternate as Alternate
    from device_sdk.feedback import Cancelled as Cancelled
    from device_sdk.feedback import Corrected as Corrected
    from device_sdk.feedback import Rating as Rating
    from device_sdk.feedback import Repeated as Repeated
    from device_sdk.feedback import RepetitionSettings as RepetitionSettings
    from device_sdk.feedback import Semantics as Semantics
    from device_sdk.feedback import SlotLexicon as SlotLexicon
    from device_sdk.feedback import read_slots as read_slots
    from device_sdk.hypothesis import Hypothesis as Hypothesis
    from device_sdk.hypothesis import Partial as Partial
    from device_sdk.hypothesis import Result as Result
    from device_sdk.hypothesis import Scores as Scores
    from device_sdk.hypothesis import Word as Word
    from device_sdk.learned_summary import LearnedSummary as LearnedSummary
    from device_sdk.learning import GuardSettings as GuardSettings
    from device_sdk.learning import LearningReport as LearningReport
    from device_sdk.learning import LearningSettings as LearningSettings
    from device_sdk.learning import Transcribed as Transcribed
    from device_sdk.personalization.vocabulary import VocabularyEntry as VocabularyEntry
    from device_sdk.policy import CarefulPolicy as CarefulPolicy
    from device_sdk.policy import Conditions as Conditions
    from device_sdk.privacy.bounds import OfferBounds as OfferBounds
    from device_sdk.profiles import Profiles as Profiles
    from device_sdk.settings import DeviceSettings as DeviceSettings
    from device_sdk.vocabulary import Vocabulary as Vocabulary

_HOMES = {
    "audio": "SAMPLE_AUDIO read_audio",
    "bundle": "Bundle",
    "checkin.client": "Client",
    "checkin.session": "CheckInReport",
    "consent": "Consent",
    "decoding": "DecodingSettings Endpointing EndpointRule Hotword Hotwords RecognitionSession Recognizer",
    "device": "Device",
    "errors": "AudioError BundleError CheckInError ConfigurationError DataError FeedbackError IdiolectError "
    "LearningError MissingExtraError Postponed PrivacyError ProtocolError SessionError StateError",
    "feedback": "Accepted Alternate Cancelled Corrected Rating Repeated RepetitionSettings Semantics SlotLexicon "
    "read_slots",
    "hypothesis": "Hypothesis Partial Result Scores Word",
    "learned_summary": "LearnedSummary",
    "learning": "GuardSettings LearningReport LearningSettings Transcribed",
    "personalization.vocabulary": "VocabularyEntry",
    "policy": "CarefulPolicy Conditions",
    "privacy.bounds": "OfferBounds",
    "profiles": "Profiles",
    "settings": "DeviceSettings",
    "vocabulary": "Vocabulary",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("idiolect")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
