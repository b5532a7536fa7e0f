"""What is trained on: utterances in shards, batches, public corpora, and who of a federation holds what."""

from server.lab.training.data.batches import Batch, batches, collate, stream
from server.lab.training.data.examples import Example, moments, read_shard, write_shard

__all__ = ["Batch", "Example", "batches", "collate", "moments", "read_shard", "stream", "write_shard"]
