"""Measuring: throughput of passes and decoding, memory bandwidth, and a peer beside them."""
