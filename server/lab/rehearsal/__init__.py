"""Transcribed speech on the server that takes part in rounds. Nothing here loads torch."""

from server.lab.rehearsal.pseudo_devices import PseudoDevices, draw

__all__ = ["PseudoDevices", "draw"]
