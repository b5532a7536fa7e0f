"""From a waveform to log-mel frames, and what a device's channel adds to them."""

from device_sdk.features.channel import ChannelSettings
from device_sdk.features.logmel import FeatureSettings, Remainder, flush, frames, logmel

__all__ = ["ChannelSettings", "FeatureSettings", "Remainder", "flush", "frames", "logmel"]
