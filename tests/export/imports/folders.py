"""Folders of sherpa-onnx's layout with drawn weights that speak."""

from dataclasses import replace
from pathlib import Path

import torch

from export.networks.stateless import PRESETS, StatelessTransducer
from export.zipformer import export_zipformer

LETTERS = "abcdefghijklmnopqrstuvwxyz'"
PIECES = ("<blk>", "<sos/eos>", "<unk>", *(f"\u2581{each}" for each in LETTERS), *LETTERS, "\u2581th", "ing", "er")
SENTENCES = "turn the light off\nturn the light on\nset a timer\nwhat is the weather\nset the light\n" * 3


def drawn_network(preset: str = "zipformer-tiny", seed: int = 0, pieces: int = len(PIECES)) -> StatelessTransducer:
    """A network with weights as drawn, but larger: its scores are peaked, and it says several pieces a second."""
    torch.manual_seed(seed)
    shape = replace(PRESETS[preset], pieces=pieces, joiner_size=64, embedding_size=64)
    network = StatelessTransducer(shape).eval()
    with torch.no_grad():
        network.joiner_output.weight *= 30.0
        network.joiner_encoder.weight *= 4.0
        network.embedding.weight *= 4.0
        network.joiner_output.bias[0] += 30.0
    return network


def zipformer_folder(folder: Path, preset: str = "zipformer-tiny", seed: int = 0) -> Path:
    """Of a Zipformer, with its sentences in ``text.txt``."""
    export_zipformer(drawn_network(preset, seed), PIECES, folder)
    (folder / "text.txt").write_text(SENTENCES, "utf-8")
    return folder
