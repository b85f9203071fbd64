"""Collective algorithms, one family a file; :data:`ALGORITHMS` lists which serves which collective.

An algorithm knows its collective and rank count, never sizes or protocols; few are made for one topology, which they are given.
"""

from simcoll.algorithms.registry import ALGORITHMS, Algorithm, find_algorithm, schedule

__all__ = ["ALGORITHMS", "Algorithm", "find_algorithm", "schedule"]
