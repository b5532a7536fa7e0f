"""Streaming recognition: samples in, partials and an n-best list out."""

from device_sdk.decoding.endpoint import Endpointing, EndpointRule
from device_sdk.decoding.hotwords import Hotword, Hotwords
from device_sdk.decoding.recognizer import Recognizer, Rescore
from device_sdk.decoding.session import RecognitionSession
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
