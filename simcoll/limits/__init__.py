"""Limits on the cost of input, checked in advance: memory, and the size and shape of files."""
