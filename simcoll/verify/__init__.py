"""Proofs and counter-examples: what a schedule leaves in every chunk, races, deadlock, order of reductions.

Reads schedules, plans and per-rank programs; knows nothing of time.
"""

from simcoll.verify.data import verify
from simcoll.verify.lowering import check_lowering, lower
from simcoll.verify.program import ProgramProof, verify_program
from simcoll.verify.proof import LEVELS, Proof
from simcoll.verify.scheduling import program_schedule

__all__ = ["LEVELS", "ProgramProof", "Proof", "check_lowering", "lower", "program_schedule", "verify", "verify_program"]
