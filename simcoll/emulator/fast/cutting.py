"""The record of a fast-engine run that events ended early."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simcoll.arrays import Ints
from simcoll.emulator.digest import TraceHash
from simcoll.emulator.fast.state import (
    ARRIVED,
    CUT,
    DELIVERED,
    FINISHED,
    FLOW,
    LATE,
    NEXT_NUMBER,
    NOW,
    POST,
    STOP,
    SWITCHED,
)
from simcoll.emulator.steps.roles import LAUNCHES, MOVES
from simcoll.emulator.steps.timed import Timed
from simcoll.errors import InternalError

if TYPE_CHECKING:
    from simcoll.emulator.fast.driver import StepMachine


__all__ = ["Remains", "remains"]


class WaitingMessage(NamedTuple):
    """A message that waits for links that are down."""

    number: int
    src: int
    dst: int
    links: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Remains:
    """A run that ended early.

    Attributes
    ----------
    aborted, time_fs
        Whether flows had waited too long, and the time of that; otherwise the completion time of
        the last message.
    numbers, done_fs
        Completed messages of unfinished steps, and their completion times.
    messages, delivered_bytes, dropped_bytes
        Number of completed messages, their payload, and the payload of all others.
    trace_hash
        Trace hash of the completed messages.
    waiting
        Messages that were waiting for a link that was down.
    """

    aborted: bool
    time_fs: int
    numbers: Ints
    done_fs: Ints
    messages: int
    delivered_bytes: int
    dropped_bytes: int
    trace_hash: str
    waiting: tuple[WaitingMessage, ...]


def remains(machine: StepMachine) -> Remains:
    """Close the accounts of a machine that stopped before its end.

    Raises
    ------
    InternalError
        When the bytes on links are not those of the flows that have ended.
    """
    s = machine.state
    aborted = int(s.reg[STOP]) == CUT
    # Slots of unfinished steps, and the numbers of their messages.
    blocks = [
        (block, step)
        for block, step in enumerate(machine.contents)
        if step is not None and s.block_left[block]
    ]
    slots, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    on_wire, last = 0, machine.time_fs
    for block, step in blocks:
        block_slots = int(s.block_base[block]) + np.arange(len(step))
        ended = np.isin(s.phase[block_slots], (POST, ARRIVED, FINISHED, LATE)) & (
            s.delay_fs[block_slots] >= 0
        )
        on_wire += int(s.wire[block_slots][~ended].sum())
        if step.role in {MOVES, LAUNCHES}:
            last = max([last, *s.done_fs[block_slots[s.phase[block_slots] == FINISHED]].tolist()])
        if step.role == MOVES:
            slots.append(block_slots)
            numbers.append(int(s.block_first_number[block]) + np.arange(len(step)))
    slot, number = np.concatenate(slots), np.concatenate(numbers)
    if machine.loaded_wire - on_wire != s.reg[DELIVERED]:
        raise InternalError(
            f"links delivered {s.reg[DELIVERED]} bytes; flows that have ended had "
            f"{machine.loaded_wire - on_wire}"
        )
    complete = s.phase[slot] == FINISHED
    trace = TraceHash(s.sums.tolist())
    trace.add(
        [
            number[complete],
            *(
                column[slot[complete]]
                for column in (s.src, s.dst, s.size, s.start_fs, s.end_fs, s.done_fs)
            ),
        ]
    )
    open_bytes, unloaded = int(s.size[slot[~complete]].sum()), list(_steps_ahead(machine))
    return Remains(
        aborted,
        int(s.reg[NOW]) if aborted else last,
        number[complete],
        s.done_fs[slot[complete]],
        int(s.reg[NEXT_NUMBER]) - int((~complete).sum()),
        sum(machine.bytes_by_op) - open_bytes,
        open_bytes + sum(times * sum(step.bytes_by_op) for step, times in unloaded),
        trace.hexdigest(),
        tuple(
            _waiting(machine, dict(zip(slot.tolist(), number.tolist(), strict=True)), late=aborted)
        ),
    )


def _steps_ahead(machine: StepMachine) -> Iterator[tuple[Timed, int]]:
    """Steps that no lane has reached, and their repetitions."""
    if machine.rest_of_run is not None:
        yield machine.rest_of_run
    yield from machine.steps


def _waiting(
    machine: StepMachine, number: dict[int, int], *, late: bool
) -> Iterator[WaitingMessage]:
    """Messages whose flows wait: all, or only those that have waited too long."""
    s = machine.state
    waits = (s.phase == FLOW) & (s.rate == 0) & (not late or s.finish_fs <= s.reg[NOW])
    for leader in np.flatnonzero(waits).tolist():
        slot = leader
        hops = slice(int(s.entry[slot]), int(s.entry[slot]) + int(s.hops[slot]))
        links = tuple(link for link in s.link[hops].tolist() if not s.capacity[link])
        while slot >= 0:  # with all parts of a switch operation
            yield WaitingMessage(number[slot], int(s.src[slot]), int(s.dst[slot]), links)
            slot = int(s.partner[slot]) if s.rule[slot] == SWITCHED else -1
