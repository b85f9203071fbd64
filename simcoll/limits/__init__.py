"""Bounds on what input may cost, before it costs it: memory, and the size and shape of files."""
