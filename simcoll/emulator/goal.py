"""Conversion of GOAL programs to emulator programs: messages become sends, computations work of one rank."""

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

    A rank sends its messages one after the other, and does the computations of each cpu one after the other, in the order of the file
    where ``requires`` allows it; it receives messages in any order.

    Parameters
    ----------
    goal
        From :func:`simcoll.formats.parse_goal`. The file does not describe data, so no schedule of it is proved.
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
    >>> goal = parse_goal("num_ranks 2 \n rank 0 { \n send 1000b to 1 \n } \n rank 1 { \n recv 1000b from 0 \n }")
    >>> simcoll.emulate(goal_program(goal), crossbar(2, "1 GB/s", "5 us")).time_us
    6.0
    """
    goal.check()
    if goal.at_start.any():
        at = int(np.flatnonzero(goal.at_start)[0])
        raise ConfigError(
            f"{goal.where(int(goal.later[at]))} irequires {goal.where(int(goal.earlier[at]))}: operations of a program "
            "begin when others are done, not when they have begun"
        )
    sends, recvs = goal.messages()
    # A send and its receive become one operation, with the number of the send.
    known = np.arange(len(goal.kind))
    known[recvs] = sends
    before: dict[int, set[int]] = {int(each): set() for each in np.flatnonzero(known == np.arange(len(known)))}
    for later, earlier in zip(known[goal.later].tolist(), known[goal.earlier].tolist(), strict=True):
        before[later].add(earlier)
    target = dict(zip(sends.tolist(), recvs.tolist(), strict=True))
    number: dict[int, int] = {}
    made: list[Compute | Send] = []
    rank = goal.rank.tolist()
    for each in lowest_first(before):
        number[each] = len(made)
        after = tuple(sorted(number[other] for other in before[each]))
        if goal.kind[each] == CALC:
            duration = int(goal.size[each]) * unit_fs
            made.append(Compute([rank[each]], duration, stream=f"cpu {goal.cpu[each]}", after=after))
        else:
            pair = (rank[each], rank[target[each]])
            if pair[0] == pair[1]:
                raise ConfigError(f"{goal.where(each)} sends to its own rank, which no link carries")
            stream = f"from {pair[0]} nic {goal.nic[each]}"
            made.append(Send([pair], int(goal.size[each]), stream=stream, after=after, protocol=protocol))
    return Program(goal.nranks, made)
