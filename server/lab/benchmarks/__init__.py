"""Benchmarks that need corpora with transcripts."""
