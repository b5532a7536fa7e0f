"""What is trained on: utterances in shards, batches, public corpora, and who of a federation holds what."""

from server.lab.training.data.examples import (
    Batch,
    Example,
    alignable,
    batches,
    collate,
    moments,
    read_shard,
    write_shard,
)

__all__ = ["Batch", "Example", "alignable", "batches", "collate", "moments", "read_shard", "write_shard"]
