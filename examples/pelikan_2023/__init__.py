"""Pelikan et al. 2023 in miniature: a CTC transformer that learns made voices in federated rounds, with differential
privacy."""
