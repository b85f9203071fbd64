"""Memory needs of exact data, checked before anything is allocated."""

from __future__ import annotations

from simcoll.arrays import Ints
from simcoll.core.memory_limits import check_room
from simcoll.core.plan import INPUT, Plan

__all__ = ["check_exact", "exact_bytes"]

GENERATED_WHOLE, GENERATED_REAL = 24, 48
"""Temporary bytes per element while one rank's data is generated
(:func:`simcoll.core.reference.exact_inputs`).
"""


def check_exact(needed_bytes: int) -> None:
    """Refuse exact data that does not fit in memory, with a ConfigError that states both sizes."""
    check_room(
        needed_bytes,
        "moving exact data",
        "data='none' gives only the time, a smaller count needs less",
    )


def exact_bytes(plan: Plan, *, inputs_exist: bool = False) -> int:
    """Peak memory for moving and checking data.

    The inputs are generated first, unless ``inputs_exist``. Then they move through the buffers of
    all ranks, with copies of the data in flight. Finally the outputs are compared with the expected
    ones.
    """
    inputs, outputs = plan.visible_elements().T
    stored = plan.buffer_elements()
    used_as_given = 0 if plan.collective.in_place else _total(stored[:, INPUT])
    buffers = _total(stored) - used_as_given
    if plan.reduction.factor is not None:
        buffers += _total(inputs)  # each input is scaled first
    in_flight = buffers + (used_as_given if plan.protocol.fifo_depth else 0)
    moving = (buffers + in_flight) * plan.dtype.itemsize
    if inputs_exist:
        return moving
    generating = (GENERATED_WHOLE if plan.dtype.kind in "iub" else GENERATED_REAL) * int(
        inputs.max(initial=0)
    )
    checking = (buffers + _total(outputs)) * plan.dtype.itemsize + (plan.dtype.itemsize + 1) * int(
        outputs.max(initial=0)
    )
    return _total(inputs) * plan.dtype.itemsize + max(generating, moving, checking)


def _total(counts: Ints) -> int:
    """The exact sum, which may exceed 64 bits."""
    return sum(counts.reshape(-1).tolist())
