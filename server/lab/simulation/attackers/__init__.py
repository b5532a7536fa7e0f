"""Devices that mean harm: real ones among the fleet, whose deltas are changed on their way to the server."""

from server.lab.simulation.attackers.attacks import ATTACKS, Attack, AttackKind, attackers, poisoned

__all__ = ["ATTACKS", "Attack", "AttackKind", "attackers", "poisoned"]
