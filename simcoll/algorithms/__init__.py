"""Collective algorithms: each yields the steps of a schedule. One family a file; what serves what is in :data:`ALGORITHMS`.

An algorithm knows its collective and rank count, never sizes or protocols; few are made for one topology, which they are given.
"""

from simcoll.algorithms.registry import ALGORITHMS, Algorithm, find_algorithm, schedule

__all__ = ["ALGORITHMS", "Algorithm", "find_algorithm", "schedule"]
