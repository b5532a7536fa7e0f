"""A new model goes to a share of the devices first, and to all of them once it has done no harm there."""
