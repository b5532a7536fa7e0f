"""From a waveform to log-mel frames."""

from device_sdk.features.logmel import FeatureSettings, Remainder, flush, frames, logmel

__all__ = ["FeatureSettings", "Remainder", "flush", "frames", "logmel"]
