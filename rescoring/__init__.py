"""N-best rescoring in numpy: fast marginal adaptation and the combination of neural and n-gram scores (Liu & Peng
2020)."""
