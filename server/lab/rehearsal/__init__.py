"""Pseudo-devices: transcribed speech on the server that takes part in rounds, so that a model keeps what it was trained
on (Rao et al. 2023, section 3). Nothing here loads torch."""

from server.lab.rehearsal.draws import draw
from server.lab.rehearsal.pseudo_devices import PseudoDevices

__all__ = ["PseudoDevices", "draw"]
