"""Transducers of other projects as bundles: reading a folder of sherpa-onnx's layout without trusting a byte of it."""
