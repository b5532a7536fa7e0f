"""A fleet of real devices against a real server, utterance by utterance: predict first, then learn."""

from server.simulation.population import Shape
from server.simulation.report import render
from server.simulation.run import Watch, simulate
from server.simulation.settings import FleetSettings, SimulationSettings

__all__ = ["FleetSettings", "Shape", "SimulationSettings", "Watch", "render", "simulate"]
