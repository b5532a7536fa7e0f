"""A fleet of real devices against a real server, utterance by utterance: predict first, then learn."""

from server.lab.simulation.fleet import SimulationSettings
from server.lab.simulation.population import Shape
from server.lab.simulation.report import render
from server.lab.simulation.run import simulate

__all__ = ["Shape", "SimulationSettings", "render", "simulate"]
