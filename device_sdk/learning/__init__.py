"""Local gradient steps from weak feedback (paper 001): losses, teacher, SGD and deltas in numpy, gradients from the
bundle's training graph."""
