"""Proofs and counter-examples: chunk contents, races, deadlock, order of reductions.

Reads schedules, plans and per-rank programs; independent of time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.lazy import lazy_attributes

if TYPE_CHECKING:
    from simcoll.core.proof import LEVELS, Proof
    from simcoll.proving import explain as explain
    from simcoll.proving.block_schedule import device_schedule
    from simcoll.proving.data import verify
    from simcoll.proving.device_proof import DeviceProof, verify_device_program
    from simcoll.proving.lowering import check_lowering, lower
    from simcoll.proving.program_proof import ProgramProof, verify_program
    from simcoll.proving.scheduling import program_schedule

__all__ = [
    "LEVELS",
    "DeviceProof",
    "ProgramProof",
    "Proof",
    "check_lowering",
    "device_schedule",
    "lower",
    "program_schedule",
    "verify",
    "verify_device_program",
    "verify_program",
]

__getattr__, __dir__ = lazy_attributes(
    "simcoll.proving",
    {
        "": ["explain"],
        "simcoll.core.proof": ["LEVELS", "Proof"],
        "simcoll.proving.data": ["verify"],
        "simcoll.proving.device_proof": ["DeviceProof", "verify_device_program"],
        "simcoll.proving.block_schedule": ["device_schedule"],
        "simcoll.proving.lowering": ["check_lowering", "lower"],
        "simcoll.proving.program_proof": ["ProgramProof", "verify_program"],
        "simcoll.proving.scheduling": ["program_schedule"],
    },
)
