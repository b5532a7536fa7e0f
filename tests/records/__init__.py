"""Records of what two checkouts do, compared to the last bit: that a rearrangement of files has changed nothing."""
