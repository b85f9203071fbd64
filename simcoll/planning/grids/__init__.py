"""Grids of independent points: evaluated on many cores, appended to a file, resumed, and compared.

What a point means is not known here.
"""
