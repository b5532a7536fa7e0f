"""Benchmarks that need a peer in torch or sherpa-onnx."""
