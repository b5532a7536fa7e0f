"""Secure aggregation: devices mask their vectors so that only the sum over a roster can be read.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (2017): keys, shares, masked
inputs, a consistency check with signatures, unmasking. It holds against a server that reads everything it is sent and
shows different devices different things, together with fewer than 2 t - n of n devices, for threshold t; not against a
server that makes up devices, since it is the server who says which identity keys belong to devices."""
