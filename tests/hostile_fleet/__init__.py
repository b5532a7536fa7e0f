"""Hostile devices beside honest ones, with a server that is killed, backed up and restored: ``python -m
tests.hostile_fleet --minutes 20``."""
