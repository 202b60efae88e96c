"""Measuring: speed of passes and decoding, memory bandwidth, a peer; node times; perplexity."""
