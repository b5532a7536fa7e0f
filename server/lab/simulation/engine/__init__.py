"""Federated cohorts without devices or HTTP: the live server's aggregation over clients that are simulated in bulk.

A round is a pure function over a state that can be written down: :func:`server.lab.simulation.engine.rounds.apply`.
Clients that take one step share one big batch (:mod:`ghost`), several steps go with stacked weights (:mod:`grouped`) or
client by client (:mod:`loop`). Weighted sums, robust means, server optimizers, clipping bounds and the ledger's
composition are those of rounds with real devices.
"""
