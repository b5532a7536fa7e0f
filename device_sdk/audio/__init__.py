"""Waveforms: checked, resampled at the door, read from files."""

from device_sdk.audio.files import AUDIO_SUFFIXES, SAMPLE_AUDIO, Audio, given_audio, list_audio, read_audio
from device_sdk.audio.waveform import SAMPLE_RATE, Resampler, check_sample_rate, check_waveform

__all__ = [
    "AUDIO_SUFFIXES",
    "SAMPLE_AUDIO",
    "SAMPLE_RATE",
    "Audio",
    "Resampler",
    "check_sample_rate",
    "check_waveform",
    "given_audio",
    "list_audio",
    "read_audio",
]
