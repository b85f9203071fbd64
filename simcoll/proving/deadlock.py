"""Deadlock of per-rank programs: whether all lanes finish with FIFOs of a given depth; if not, what
blocks each lane.

A program is a network of sequential processes without choices: an instruction that can run stays
able to run until it does. So one order decides for all: if one order gets stuck, all do, in the
same place. The predecessors of an instruction are known in advance (the previous one in its lane,
the ones it waits for, the send of its message, the receive that frees a place in the FIFO), so
playing a program is a walk through a graph, level by level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.core.step import distinct, spread
from simcoll.errors import ScheduleError

if TYPE_CHECKING:
    from simcoll.core.wiring import Wiring


__all__ = ["Play", "deadlock", "depth_text", "levels", "local_order", "play"]

SHOWN = 64


@dataclass(frozen=True, slots=True, eq=False)
class Play:
    """One legal order of a program at some FIFO depth.

    Attributes
    ----------
    depth
        FIFO depth: 0 rendezvous, None unbounded.
    order
        Every instruction that could run. At depth 0 the instructions joined by a message are
        adjacent.
    level
        Length of the longest chain of instructions before each of these; ascending.
    reached
        Position at which every lane stopped.
    complete
        Every lane reached its end.
    """

    depth: int | None
    order: Ints
    level: Ints
    reached: Ints
    complete: bool

    def when(self) -> Ints:
        """Position of every instruction in the order of a complete play."""
        return np.argsort(self.order)


def depth_text(depth: int | None) -> str:
    """A FIFO depth in words."""
    return (
        "unbounded FIFOs"
        if depth is None
        else f"FIFO depth {depth}" + (" (rendezvous)" if depth == 0 else "")
    )


def local_order(wiring: Wiring) -> tuple[Ints, Ints]:
    """Pairs of instructions of one rank that run in order: neighbours in a lane, and explicit
    waits.
    """
    later = np.flatnonzero(wiring.position > 0)
    return np.concatenate([later - 1, wiring.code.awaited]), np.concatenate(
        [later, wiring.code.waiter]
    )


def _chains(wiring: Wiring) -> tuple[Ints, Ints, Ints]:
    """Chains of instructions that messages join at depth 0: first of each chain, position in it,
    and instructions in cycles.
    """
    everyone = np.arange(len(wiring.lane))
    head = np.where(
        wiring.incoming >= 0, wiring.sends[wiring.incoming] if len(wiring.sends) else -1, everyone
    )
    place = (head != everyone).astype(np.int64)
    for _ in range(len(everyone).bit_length()):  # each pass doubles the distance followed back
        if np.array_equal(head[head], head):
            break
        place, head = place + place[head], head[head]
    return head, place, np.flatnonzero(wiring.incoming[head] >= 0)


def levels(count: int, earlier: Ints, later: Ints) -> tuple[Ints, Ints]:
    """Sort numbers below ``count`` into levels after their predecessors; those on or behind cycles
    are left out.
    """
    pending = np.bincount(later, minlength=count)
    later = later[np.argsort(earlier, kind="stable")]
    end = np.cumsum(np.bincount(earlier, minlength=count))
    start = np.concatenate([[0], end[:-1]])
    ready, levels = np.flatnonzero(pending == 0), []
    while len(ready):
        levels.append(ready)
        row, offset = spread(end[ready] - start[ready])
        following = later[start[ready][row] + offset]
        np.subtract.at(pending, following, 1)
        ready = distinct(following[pending[following] == 0])
    sizes = [len(level) for level in levels]
    return np.concatenate([np.zeros(0, np.int64), *levels]), np.repeat(
        np.arange(len(levels)), sizes
    )


def play(wiring: Wiring, depth: int | None) -> Play:
    """Run a program until it ends or gets stuck."""
    count = len(wiring.lane)
    earlier, later = local_order(wiring)
    if depth == 0:
        chain, place, circle = _chains(wiring)
        order, level = levels(
            count, np.concatenate([chain[earlier], circle]), np.concatenate([chain[later], circle])
        )
        when = np.full(count, -1)
        when[order] = np.arange(len(order))
        order = np.lexsort((place, when[chain]))[np.count_nonzero(when[chain] < 0) :]
        level = level[when[chain[order]]]
    else:
        edges = [(wiring.sends, wiring.recvs)]
        if depth is not None and depth <= len(wiring.sends):  # no FIFO is deeper than all messages
            late = np.flatnonzero(wiring.ordinal >= depth)
            edges.append((wiring.recvs[late - depth], wiring.sends[late]))
        order, level = levels(
            count,
            *(np.concatenate(columns) for columns in zip((earlier, later), *edges, strict=True)),
        )
    reached = np.bincount(wiring.lane[order], minlength=len(wiring.code.rank))
    return Play(depth, order, level, reached, len(order) == count)


@dataclass(frozen=True, slots=True, eq=False)
class _Stuck:
    """A stuck play, with the instructions that ran."""

    wiring: Wiring
    run: Play
    ran: NDArray[np.bool_]

    def following(self, lane: int) -> int:
        """The next instruction of a lane; -1 at its end."""
        start, end = self.wiring.code.start[lane : lane + 2].tolist()
        number = start + int(self.run.reached[lane])
        return number if number < end else -1

    def blocked_on(self, lane: int) -> tuple[int, str]:
        """The lane that a stuck lane waits for, and the event in words."""
        wiring, number, depth = self.wiring, self.following(lane), self.run.depth

        def of(neighbour: int) -> str:
            rank = int(wiring.code.rank[neighbour])
            state = (
                "has ended"
                if self.following(neighbour) < 0
                else f"is at step {self.run.reached[neighbour]}"
            )
            return f"rank {rank} lane {neighbour - wiring.first_lane[rank]}, which {state}"

        if number < 0:
            return lane, "cannot run"
        awaited = wiring.code.awaited[wiring.code.waiter == number]
        missing = awaited[~self.ran[awaited]]
        if len(missing):
            awaited_lane = int(wiring.lane[missing.min()])
            return (
                awaited_lane,
                f"waits for step {wiring.position[missing.min()]} of {of(awaited_lane)}",
            )
        incoming, outgoing = int(wiring.incoming[number]), int(wiring.outgoing[number])
        if incoming >= 0:
            send = int(wiring.sends[incoming])
            sender = int(wiring.lane[send])
            if not self.ran[send] and (depth or self.following(sender) != send):
                return sender, f"waits for a message from {of(sender)}"
            if depth == 0 and outgoing < 0:
                return sender, f"waits for a message from {of(sender)} and cannot go on"
        if outgoing >= 0:
            receiver = int(wiring.lane[wiring.recvs[outgoing]])
            on_connection = wiring.connection == wiring.connection[outgoing]
            sent = np.count_nonzero(self.ran[wiring.sends[on_connection]])
            ahead = sent - np.count_nonzero(self.ran[wiring.recvs[on_connection]])
            full = f"the FIFO is full with {ahead} messages, " if depth else ""
            return receiver, f"{full}waits for {of(receiver)}, to receive"
        return lane, "cannot run"


def deadlock(wiring: Wiring, depth: int | None, *, because: str = "") -> NoReturn:
    """Report the lanes that are stuck at a FIFO depth, and the cycle among them.

    Raises
    ------
    ScheduleError
        Always.
    """
    run = play(wiring, depth)
    stuck_at = _Stuck(wiring, run, np.isin(np.arange(len(wiring.lane)), run.order))
    stuck = [lane for lane in range(len(wiring.code.rank)) if stuck_at.following(lane) >= 0]
    trail: list[int] = [stuck[0]]
    while (following := stuck_at.blocked_on(trail[-1])[0]) not in trail:
        trail.append(following)
    circle = trail[trail.index(following) :]
    lines = [
        (
            f"{wiring.program}: deadlock at {depth_text(depth)}{because}: {len(stuck)} lanes are "
            "blocked"
        ),
        "  in a cycle:",
    ]
    lanes = circle + [lane for lane in stuck if lane not in circle]
    for number, lane in enumerate(lanes[:SHOWN]):
        if number == len(circle):
            lines.append("  blocked behind it:")
        instruction = stuck_at.following(lane)
        subject = wiring.where(instruction) if instruction >= 0 else "a lane that has ended"
        lines.append(f"  {subject} {stuck_at.blocked_on(lane)[1]}")
    if len(lanes) > SHOWN:
        lines.append(f"  and {len(lanes) - SHOWN} more")
    lane = circle[0]
    channel = next((c.channel for c in wiring.connections if lane in (c.sender, c.receiver)), None)
    raise ScheduleError(
        "\n".join(lines),
        step=int(run.reached[lane]),
        rank=int(wiring.code.rank[lane]),
        channel=channel,
    )
