"""Write plans as GOAL: messages and local work of each rank, in the order that the proof
requires.
"""

from __future__ import annotations

import numpy as np

from simcoll.binding import bind
from simcoll.core.plan import Plan
from simcoll.core.rank_program import NAMES, OPS
from simcoll.core.schedule import MULTICAST, OP_NAMES, Schedule
from simcoll.core.transit import refuse_transits
from simcoll.errors import ConfigError, InternalError
from simcoll.formats.goal.binary import goal_binary, parse_goal_binary
from simcoll.formats.goal.language import CALC, RECV, SEND, Goal, goal_text, parse_goal
from simcoll.proving.lowering import lowering

__all__ = ["bind_bytes", "dump_goal", "dump_goal_binary", "goal_of"]

FS_PER_NS = 10**6


def goal_of(plan: Plan) -> Goal:
    """Convert a plan to GOAL, with reductions and copies as computations in nanoseconds.

    The tag of a message is its channel. A message without data, as in a barrier, has 1 byte, GOAL's
    minimum. Local work that takes no time under the plan's protocol is a ``calc 0``, which
    preserves the order.

    Raises
    ------
    ConfigError
        For switch operations, as GOAL has only messages between two ranks, and for paths and wire
        formats.
    """
    refuse_transits(plan.schedule, plan.schedule.transits, "GOAL cannot hold")
    for step in plan.steps():
        strange = np.flatnonzero(step.op >= MULTICAST)
        if len(strange):
            raise ConfigError(
                f"GOAL cannot hold {plan.schedule}: step {step.step} has an operation "
                f"{OP_NAMES[step.op[strange[0]]]!r} of a switch; "
                "it has messages between two ranks"
            )
    lowered = lowering(plan)
    code, count = lowered.code, len(lowered.code.op)
    rows = [(step.size_bytes, step.channel) for step in plan.steps()]
    size, tag = (
        np.concatenate([row[index] for row in rows] or [np.zeros(0, np.int64)]) for index in (0, 1)
    )
    size, tag = size[lowered.transfer], tag[lowered.transfer]
    traits = {
        trait: np.array([getattr(OPS[name], trait) for name in NAMES])[code.op]
        for trait in ("sends", "receives", "reads", "writes", "updates")
    }
    sends, receives = traits["sends"], traits["receives"]
    reduces = (receives & traits["reads"]) | traits["updates"]
    copies = traits["writes"] & traits["reads"]
    cost = np.where(
        reduces,
        plan.protocol.reduce_as_per_byte,
        np.where(copies, plan.protocol.copy_as_per_byte, 0),
    )
    nanoseconds = np.array(
        [round(int(c) * int(s) / 1000 / FS_PER_NS) for c, s in zip(cost, size, strict=True)],
        np.int64,
    )
    message = sends | receives
    # What arrived is reduced by an operation of its own.
    extra = receives & (nanoseconds > 0)
    first_of = np.arange(count) + np.cumsum(extra) - extra
    last = first_of + extra
    total = count + int(extra.sum())
    values = np.zeros((6, total), np.int64)  # kind, peer, size, tag, cpu, nic
    values[0] = CALC
    values[0, first_of] = np.where(sends, SEND, np.where(receives, RECV, CALC))
    values[1, first_of[message]] = np.where(sends, code.send_to, code.recv_from)[message]
    values[2, first_of] = np.where(message, np.maximum(size, 1), nanoseconds)
    values[3, first_of[message]] = tag[message]
    values[2, last[extra]] = nanoseconds[extra]
    lane = np.repeat(np.arange(len(code.rank)), np.diff(code.start))
    follows = np.flatnonzero(np.diff(lane) == 0) + 1
    orders = np.stack(
        [
            np.concatenate([first_of[follows], first_of[code.waiter], last[extra]]),
            np.concatenate([last[follows - 1], last[code.awaited], first_of[extra]]),
        ]
    )
    later, earlier = np.unique(orders, axis=1)
    rank_of = code.rank[lane] if count else np.zeros(0, np.int64)
    start = np.searchsorted(np.repeat(rank_of, 1 + extra), np.arange(plan.nranks + 1))
    columns = dict(zip(("peer", "size", "tag", "cpu", "nic"), values[1:], strict=True))
    at_start = np.zeros(len(later), np.bool_)
    return Goal(
        start, values[0].astype(np.int8), later=later, earlier=earlier, at_start=at_start, **columns
    )


def bind_bytes(schedule: Schedule, size: int, dtype: str) -> Plan:
    """Bind a schedule to a size in bytes, as nccl-tests counts them.

    Raises
    ------
    ConfigError
        When the size is not a whole number of elements in each block.
    """
    collective = schedule.collective
    slots = max(collective.input_slots, collective.output_slots, 1)
    plan = bind(schedule, 0, dtype)
    count, remainder = divmod(size, slots * plan.dtype.itemsize)
    if remainder:
        raise ConfigError(
            f"size {size} is not {slots} block(s) of whole elements of {plan.dtype.itemsize} "
            f"bytes, as {collective.kind} needs"
        )
    return bind(schedule, count, dtype)


def dump_goal(schedule: Schedule, *, size: int = 1 << 20, dtype: str = "float32") -> bytes:
    """Write a schedule as GOAL text for a size; it is read back before it is returned.

    Parameters
    ----------
    schedule
        Any schedule without operations of switches.
    size
        Bytes of the larger of a rank's input and output, as in nccl-tests.
    dtype
        Element type.

    Raises
    ------
    ScheduleError
        When the schedule is wrong.
    ConfigError
        As :func:`goal_of`, and for sizes that are not a whole number of elements.

    Examples
    --------
    >>> import simcoll
    >>> tree = simcoll.schedule("broadcast", "tree", nranks=2)
    >>> print(dump_goal(tree, size=4).decode().splitlines()[0])
    // tree(channels=1, pieces=1) broadcast n=2 root=0, 4 bytes
    """
    plan = bind_bytes(schedule, size, dtype)
    goal = goal_of(plan)
    text = goal_text(goal, (f"{schedule}, {size} bytes",))
    if goal_binary(parse_goal(text)) != goal_binary(goal):
        raise InternalError(f"{schedule}: its GOAL text reads back as something else")
    goal.check()
    return text


def dump_goal_binary(schedule: Schedule, *, size: int = 1 << 20, dtype: str = "float32") -> bytes:
    """GOAL binary of a schedule; as :func:`dump_goal`."""
    goal = goal_of(bind_bytes(schedule, size, dtype))
    content = goal_binary(goal)
    if goal_binary(parse_goal_binary(content)) != content:
        raise InternalError(f"{schedule}: its GOAL binary reads back as something else")
    goal.check()
    return content
