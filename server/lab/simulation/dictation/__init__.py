"""Paper 004 in miniature: a CTC transformer that learns made voices in federated rounds, with differential privacy."""
