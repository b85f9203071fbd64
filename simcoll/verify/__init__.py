"""Proofs and counter-examples: what a schedule leaves in every chunk, races, deadlock, order of reductions.

Reads schedules, plans and per-rank programs; knows nothing of time.
"""

from simcoll.verify.data import LEVELS, Proof, verify

__all__ = ["LEVELS", "Proof", "verify"]
