"""The best choices for a library on a machine, and what they gain.

The files of choices are in ``simcoll.formats.tuners``.
"""
