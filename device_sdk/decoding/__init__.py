"""Streaming recognition: samples in, partials and an n-best list out."""

# ruff: noqa: E402  (where modules are found is decided before any is)

from pathlib import Path

from device_sdk.compilation import SEARCH, compiled_folder

_compiled = compiled_folder(Path(__file__).parent, SEARCH)
if _compiled is not None:
    __path__.insert(0, str(_compiled))

from device_sdk.decoding.endpoint import Endpointing, EndpointRule
from device_sdk.decoding.hotwords import Hotword, Hotwords
from device_sdk.decoding.model import Rescore
from device_sdk.decoding.session import RecognitionSession, Recognizer
from device_sdk.decoding.settings import DecodingSettings

__all__ = [
    "DecodingSettings",
    "EndpointRule",
    "Endpointing",
    "Hotword",
    "Hotwords",
    "RecognitionSession",
    "Recognizer",
    "Rescore",
]
