"""What passes between a device and its server: bounded counts, bounded deltas, a few new words, new models. Never audio
or transcripts."""

from device_sdk.checkin.client import Client
from device_sdk.checkin.exchange import CheckInReport, Sent
from device_sdk.checkin.refusals import Refused

__all__ = ["CheckInReport", "Client", "Refused", "Sent"]
