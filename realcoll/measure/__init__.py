"""Measure collectives and links, and report them."""
