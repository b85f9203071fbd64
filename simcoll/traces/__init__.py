"""Traces of other tools as workloads and back: Chakra, with the system files of ASTRA-sim.

Their encoding is in ``simcoll.formats.chakra``.
"""
