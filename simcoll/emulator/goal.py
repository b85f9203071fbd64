"""Conversion of GOAL programs to emulator programs: messages become sends, computations work of one
rank.
"""

from __future__ import annotations

import numpy as np

from simcoll.core.order import lowest_first
from simcoll.core.protocol import IDEAL, Protocol
from simcoll.emulator.programs import Compute, Program, Send
from simcoll.errors import ConfigError
from simcoll.formats.goal.language import CALC, Goal

__all__ = ["goal_program"]

FS_PER_NS = 10**6


def goal_program(goal: Goal, *, protocol: Protocol = IDEAL, unit_fs: int = FS_PER_NS) -> Program:
    r"""Convert a GOAL program to a program that :func:`simcoll.emulate` takes.

    A rank sends its messages one after the other, and does the computations of each cpu one after
    the other, in the order of the file where ``requires`` allows it; it receives messages in any
    order.

    Parameters
    ----------
    goal
        From :func:`simcoll.formats.parse_goal`. The file does not describe data, so no schedule of
        it is proved.
    protocol
        Costs of the messages.
    unit_fs
        Femtoseconds per unit of computation; by convention a nanosecond.

    Raises
    ------
    ScheduleError
        When messages do not match, or operations wait for each other in a cycle.
    ConfigError
        For ``irequires``, and for receives from any rank or with any tag.

    Examples
    --------
    >>> import simcoll
    >>> from simcoll.formats import parse_goal
    >>> from simcoll.topology import crossbar
    >>> goal = parse_goal(
    ...     "num_ranks 2 \n rank 0 { \n send 1000b to 1 \n } \n rank 1 { \n recv 1000b from 0 \n }"
    ... )
    >>> simcoll.emulate(goal_program(goal), crossbar(2, "1 GB/s", "5 us")).time_us
    6.0
    """
    goal.check()
    if goal.at_start.any():
        dependency = int(np.flatnonzero(goal.at_start)[0])
        raise ConfigError(
            f"{goal.where(int(goal.later[dependency]))} irequires "
            f"{goal.where(int(goal.earlier[dependency]))}: operations of a program "
            "begin when others are done, not when they have begun"
        )
    sends, recvs = goal.messages()
    # A send and its receive become one operation, with the number of the send.
    operation_of = np.arange(len(goal.kind))
    operation_of[recvs] = sends
    predecessors: dict[int, set[int]] = {
        int(vertex): set()
        for vertex in np.flatnonzero(operation_of == np.arange(len(operation_of)))
    }
    for later, earlier in zip(
        operation_of[goal.later].tolist(), operation_of[goal.earlier].tolist(), strict=True
    ):
        predecessors[later].add(earlier)
    target = dict(zip(sends.tolist(), recvs.tolist(), strict=True))
    number: dict[int, int] = {}
    operations: list[Compute | Send] = []
    rank = goal.rank.tolist()
    for vertex in lowest_first(predecessors):
        number[vertex] = len(operations)
        earlier_operations = tuple(
            sorted(number[predecessor] for predecessor in predecessors[vertex])
        )
        if goal.kind[vertex] == CALC:
            duration = int(goal.size[vertex]) * unit_fs
            operations.append(
                Compute(
                    [rank[vertex]],
                    duration,
                    stream=f"cpu {goal.cpu[vertex]}",
                    after=earlier_operations,
                )
            )
        else:
            pair = (rank[vertex], rank[target[vertex]])
            if pair[0] == pair[1]:
                raise ConfigError(
                    f"{goal.where(vertex)} sends to its own rank, which no link carries"
                )
            stream = f"from {pair[0]} nic {goal.nic[vertex]}"
            operations.append(
                Send(
                    [pair],
                    int(goal.size[vertex]),
                    stream=stream,
                    after=earlier_operations,
                    protocol=protocol,
                )
            )
    return Program(goal.nranks, operations)
