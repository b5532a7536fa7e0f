"""A fleet of real devices against a real server, utterance by utterance: predict first, then learn."""

from server.lab.simulation.population import Shape
from server.lab.simulation.report import render
from server.lab.simulation.run import Watch, simulate
from server.lab.simulation.settings import FleetSettings, SimulationSettings

__all__ = ["FleetSettings", "Shape", "SimulationSettings", "Watch", "render", "simulate"]
