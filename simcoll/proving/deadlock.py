"""Deadlock of per-rank programs: whether all lanes end with FIFOs of a given depth, and who blocks whom if not.

A program is a network of sequential processes that choose nothing: an instruction that can run stays able to run
until it does. So one order decides for all orders: if one gets stuck, all do, in the same place.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from simcoll.errors import ScheduleError

if TYPE_CHECKING:
    from simcoll.core.program import Wiring

__all__ = ["Play", "deadlock", "depth_text", "play"]

SHOWN = 64


@dataclass(frozen=True, slots=True, eq=False)
class Play:
    """One legal order of a program at some FIFO depth.

    Attributes
    ----------
    depth
        FIFO depth: 0 rendezvous, None unbounded.
    order
        ``(lane, position)`` of every instruction that could run. At depth 0 the instructions that a message joins
        follow each other.
    reached
        Position at which every lane stopped.
    complete
        Every lane came to its end.
    """

    depth: int | None
    order: list[tuple[int, int]]
    reached: list[int]
    complete: bool


def depth_text(depth: int | None) -> str:
    """A FIFO depth in words."""
    return "unbounded FIFOs" if depth is None else f"FIFO depth {depth}" + (" (rendezvous)" if depth == 0 else "")


class _Machine:
    """State of a play."""

    def __init__(self, wiring: Wiring, depth: int | None) -> None:
        self.wiring = wiring
        self.depth = depth
        self.at = [0] * len(wiring.code)
        self.sent = [0] * len(wiring.connections)
        self.taken = [0] * len(wiring.connections)
        self.watchers: list[list[int]] = [[] for _ in wiring.code]

    def missing(self, lane: int) -> tuple[int, int] | None:
        """The first ``(lane, position)`` that the lane's next instruction still waits for."""
        first = self.wiring.first[self.wiring.ranks[lane]]
        for other, position in self.wiring.code[lane][self.at[lane]].waits:
            if self.at[first + other] <= position:
                return first + other, position
        return None

    def free(self, lane: int) -> bool:
        """Whether the lane's next instruction waits for nothing but messages; if not, it is woken when that is done."""
        if self.at[lane] >= len(self.wiring.code[lane]):
            return False
        missing = self.missing(lane)
        if missing is not None:
            self.watchers[missing[0]].append(lane)
        return missing is None

    def ends(self, lane: int) -> tuple[int, int]:
        """Connections that the next instruction receives from and sends to; -1 for none."""
        position = self.at[lane]
        if position >= len(self.wiring.code[lane]):
            return -1, -1
        return self.wiring.incoming[lane][position], self.wiring.outgoing[lane][position]

    def full(self, connection: int) -> bool:
        """Whether a bounded FIFO takes no more messages."""
        return self.depth is not None and self.sent[connection] - self.taken[connection] >= self.depth

    def ready(self, lane: int) -> list[int]:
        """Lanes whose next instructions can run now, together: the lane, or at depth 0 the chain of its messages."""
        if self.depth == 0:
            return self.chain(lane)
        if not self.free(lane):
            return []
        incoming, outgoing = self.ends(lane)
        if incoming >= 0 and self.sent[incoming] == self.taken[incoming]:
            return []
        return [] if outgoing >= 0 and self.full(outgoing) else [lane]

    def chain(self, lane: int) -> list[int]:
        """From the plain send at its start to the plain receive at its end; empty unless all of it is ready."""
        connections, visited = self.wiring.connections, 0
        while (incoming := self.ends(lane)[0]) >= 0:
            lane = connections[incoming].sender
            visited += 1
            if self.ends(lane)[1] != incoming or visited > len(self.at):
                return []
        result = [lane]
        while (outgoing := self.ends(lane)[1]) >= 0:
            lane = connections[outgoing].receiver
            if self.ends(lane)[0] != outgoing:
                return []
            result.append(lane)
        # Every lane is asked, so that each that waits is woken.
        waiting = [member for member in result if not self.free(member)]
        return [] if waiting else result

    def advance(self, lane: int) -> list[int]:
        """Run the next instruction; whom that may let go on."""
        incoming, outgoing = self.ends(lane)
        self.at[lane] += 1
        woken, self.watchers[lane] = self.watchers[lane], []
        if incoming >= 0:
            self.taken[incoming] += 1
            woken.append(self.wiring.connections[incoming].sender)
        if outgoing >= 0:
            self.sent[outgoing] += 1
            woken.append(self.wiring.connections[outgoing].receiver)
        return woken


def _machine_at_end(wiring: Wiring, depth: int | None) -> tuple[_Machine, list[tuple[int, int]]]:
    machine = _Machine(wiring, depth)
    order: list[tuple[int, int]] = []
    todo = deque(range(len(wiring.code)))
    while todo:
        lane = todo.popleft()
        while chain := machine.ready(lane):
            for member in chain:
                order.append((member, machine.at[member]))
                todo.extend(machine.advance(member))
            todo.extend(member for member in chain if member != lane)
    return machine, order


def play(wiring: Wiring, depth: int | None) -> Play:
    """Run a program as far as it goes."""
    machine, order = _machine_at_end(wiring, depth)
    complete = all(at == len(code) for at, code in zip(machine.at, wiring.code, strict=True))
    return Play(depth, order, machine.at, complete)


def _blocked_on(machine: _Machine, lane: int) -> tuple[int, str]:
    """Which lane a stuck lane waits for, and for what, in words."""
    wiring = machine.wiring

    def of(other: int) -> str:
        end = machine.at[other] >= len(wiring.code[other])
        rank = wiring.ranks[other]
        state = "has ended" if end else f"is at step {machine.at[other]}"
        return f"rank {rank} lane {other - wiring.first[rank]}, which {state}"

    missing = machine.missing(lane)
    if missing is not None:
        return missing[0], f"waits for step {missing[1]} of {of(missing[0])}"
    incoming, outgoing = machine.ends(lane)
    if incoming >= 0:
        sender = wiring.connections[incoming].sender
        arrived = machine.sent[incoming] > machine.taken[incoming]
        if not arrived and (machine.depth or machine.ends(sender)[1] != incoming):
            return sender, f"waits for a message from {of(sender)}"
        if machine.depth == 0 and outgoing < 0:
            return sender, f"waits for a message from {of(sender)} and cannot go on"
    if outgoing >= 0:
        receiver = wiring.connections[outgoing].receiver
        ahead = machine.sent[outgoing] - machine.taken[outgoing]
        full = f"the FIFO is full with {ahead} messages, " if machine.depth else ""
        return receiver, f"{full}waits for {of(receiver)}, to receive"
    return lane, "cannot run"


def deadlock(wiring: Wiring, depth: int | None, *, because: str = "") -> NoReturn:
    """Say who is stuck at a FIFO depth, and in which circle.

    Raises
    ------
    ScheduleError
        Always.
    """
    machine, _ = _machine_at_end(wiring, depth)
    stuck = [lane for lane, at in enumerate(machine.at) if at < len(wiring.code[lane])]
    trail: list[int] = [stuck[0]]
    while (following := _blocked_on(machine, trail[-1])[0]) not in trail:
        trail.append(following)
    circle = trail[trail.index(following) :]
    lines = [
        f"{wiring.program}: deadlock at {depth_text(depth)}{because}: {len(stuck)} lanes are blocked",
        "  in a circle:",
    ]
    shown = circle + [lane for lane in stuck if lane not in circle]
    for number, lane in enumerate(shown[:SHOWN]):
        if number == len(circle):
            lines.append("  and behind it:")
        at = machine.at[lane]
        what = wiring.where(lane, at) if at < len(wiring.code[lane]) else "a lane that has ended"
        lines.append(f"  {what} {_blocked_on(machine, lane)[1]}")
    if len(shown) > SHOWN:
        lines.append(f"  and {len(shown) - SHOWN} more")
    lane = circle[0]
    channel = next((c.channel for c in wiring.connections if lane in (c.sender, c.receiver)), None)
    raise ScheduleError("\n".join(lines), step=machine.at[lane], rank=wiring.ranks[lane], channel=channel)
