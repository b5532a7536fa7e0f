"""Choosing a bundle's combination weights on development data. Nothing here loads torch."""
