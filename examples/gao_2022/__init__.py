"""Gao et al. 2022 in miniature: many speakers of two languages, unlike in voice, place and zeal, and how to weigh
them."""
