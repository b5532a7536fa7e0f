"""Marginal personalization measured on meetings (Liu & Peng 2020): every meeting is a client that talks in the order of
time.

First pass, second pass and rounds are the devices' and the server's own; HTTP, disks and keys are the fleet's business.
"""
