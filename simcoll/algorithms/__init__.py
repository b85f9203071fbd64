"""Collective algorithms, one family per file; :data:`ALGORITHMS` lists the collectives that each
one serves.

An algorithm depends on its collective and rank count, never on sizes or protocols; a few are built
for one given topology.
"""

from simcoll.algorithms.registry import ALGORITHMS, Algorithm, find_algorithm, schedule

__all__ = ["ALGORITHMS", "Algorithm", "find_algorithm", "schedule"]
