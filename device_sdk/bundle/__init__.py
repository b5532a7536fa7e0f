"""Bundles: everything a recognizer needs, checked before anything is used."""

from device_sdk.bundle.architecture import PRESETS, Architecture
from device_sdk.bundle.bundle import Bundle, Tokenizer
from device_sdk.bundle.manifest import Manifest

__all__ = ["PRESETS", "Architecture", "Bundle", "Manifest", "Tokenizer"]
