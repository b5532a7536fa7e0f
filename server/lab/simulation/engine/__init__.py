"""Federated cohorts without devices or HTTP: the live server's aggregation over clients that are simulated in bulk.

A round is a pure function over a state that can be written down: :func:`server.lab.simulation.engine.rounds.apply`.
Clients that take one step share one big batch, several steps go with stacked weights or client by client
(:mod:`server.lab.simulation.engine.workers`). Weighted sums, server optimizers, clipping bounds and the ledger's
composition are those of rounds with real devices."""
