"""What a plan is when every rank does its own part: a per-rank program, checked for races like any other.

A step of a plan on a channel of a rank is a group: its messages and local operations run at the same time, and the
next step starts when all are done. So each end of a connection gets a lane, each local operation of a step too, and
the first instruction of a lane in a step waits for all lanes of that channel in the step before. Nothing else orders
them, as nothing else does where plans run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from simcoll.core.plan import Plan
from simcoll.core.program import Instruction, Lane, Program, wire
from simcoll.core.schedule import REDUCE, SWITCH_REDUCE, SYNC, lowered
from simcoll.errors import expect
from simcoll.proving.program import check_ordered, verify_program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simcoll.core.plan import PlanStep
    from simcoll.proving.program import ProgramProof

__all__ = ["check_lowering", "lower"]

Spot = tuple[int, int]  # (lane of a rank, position)


@dataclass(slots=True)
class _Group:
    """A channel of a rank: the last instructions of its last step, and those of the step that is being written."""

    before: tuple[Spot, ...] = ()
    now: dict[int, int] = field(default_factory=dict)
    staged: list[Spot] = field(default_factory=list)
    locals: int = 0

    def next_step(self) -> None:
        """The step is written."""
        if self.now:
            self.before = tuple(self.now.items())
        self.now, self.staged, self.locals = {}, [], 0


class _Rank:
    """The lanes of one rank while they are written."""

    def __init__(self, channels: int) -> None:
        self.lanes: dict[tuple[int, str, int], int] = {}
        self.code: list[list[Instruction]] = []
        self.groups = [_Group() for _ in range(channels)]
        self.stages = 0

    def add(self, channel: int, role: str, peer: int, instruction: Instruction, waits: list[Spot]) -> Spot:
        """Append to the lane of (channel, role, peer)."""
        lane = self.lanes.setdefault((channel, role, peer), len(self.code))
        if lane == len(self.code):
            self.code.append([])
        group, position = self.groups[channel], len(self.code[lane])
        needed = [*(group.before if lane not in group.now else ()), *waits]
        # What comes earlier in its own lane is done anyway.
        spots = tuple(sorted({spot for spot in needed if spot[0] != lane}))
        self.code[lane].append(replace(instruction, waits=spots))
        group.now[lane] = position
        return lane, position


@dataclass(frozen=True, slots=True)
class _Row:
    """A transfer of a step."""

    number: int
    src: int
    src_chunk: int
    dst: int
    dst_chunk: int
    count: int
    op: int
    channel: int
    staged: bool


def _rows(first: int, step: PlanStep) -> list[_Row]:
    columns = (
        step.src_rank,
        step.src_chunk,
        step.dst_rank,
        step.dst_chunk,
        step.count,
        step.op,
        step.channel,
        step.staged,
    )
    return [_Row(number, *row) for number, row in enumerate(zip(*(c.tolist() for c in columns), strict=True), first)]


class _Writer:
    """Writes the program of a plan, step by step."""

    def __init__(self, plan: Plan) -> None:
        self.size = plan.schedule.layout.size
        self.waits = plan.waits
        self.awaited = frozenset(earlier for each in plan.waits.values() for earlier in each)
        self.ranks = [_Rank(plan.nchannels) for _ in range(plan.nranks)]
        self.switched: dict[
            tuple[int, int], Spot
        ] = {}  # (rank, chunk) -> the last operand of a switch reduction that was added there
        self.spots: dict[tuple[int, int], list[Spot]] = {}  # (transfer, rank) -> its instructions there

    def step(self, first: int, step: PlanStep) -> None:
        """Add one step: first the copies of what it overwrites, then everything at once."""
        self.switched.clear()
        rows = _rows(first, step)
        # Inside a step a transfer may wait for one with a higher number (a write for the reads of another channel).
        rows = _by_waits(rows, self.waits)
        source = {row.number: self._stage(row) if row.staged else row.src_chunk for row in rows}
        for row in rows:
            self._transfer(row, source[row.number])
        for rank in self.ranks:
            for group in rank.groups:
                group.next_step()

    def _stage(self, row: _Row) -> int:
        """Copy the source aside, in the lane that will read it; the first chunk of the copy."""
        rank = self.ranks[row.src]
        group, at = rank.groups[row.channel], self.size + rank.stages
        rank.stages += row.count
        role, peer = ("stage", len(group.staged)) if row.src == row.dst else ("send", row.dst)
        spot = rank.add(
            row.channel, role, peer, Instruction("copy", row.src_chunk, at, row.count), self._earlier(row, row.src)
        )
        group.staged.append(spot)
        return at

    def _earlier(self, row: _Row, at: int) -> list[Spot]:
        """Instructions of a rank that a transfer must wait for."""
        return [spot for earlier in self.waits.get(row.number, ()) for spot in self.spots.get((earlier, at), ())]

    def _transfer(self, row: _Row, source: int) -> None:
        src, dst = self.ranks[row.src], self.ranks[row.dst]
        count = 0 if row.op == SYNC else row.count
        writer = [*self._earlier(row, row.dst), *dst.groups[row.channel].staged]
        reduces = row.op == REDUCE
        if row.op == SWITCH_REDUCE:
            # The switch writes once; here its operands come one after the other, the first as a copy.
            before = self.switched.get((row.dst, row.dst_chunk))
            reduces, writer = before is not None, [*writer, *([before] if before else [])]
        if row.src == row.dst:
            group = dst.groups[row.channel]
            group.locals += 1
            op = "nop" if row.op == SYNC else "reduce" if reduces else "copy"
            spot = dst.add(row.channel, "local", group.locals, Instruction(op, source, row.dst_chunk, count), writer)
            self._note(row, row.dst, spot)
            return
        sent = Instruction("send", source, -1, count, send_to=row.dst)
        self._note(row, row.src, src.add(row.channel, "send", row.dst, sent, self._earlier(row, row.src)))
        taken = Instruction(
            "recv_reduce_copy" if reduces else "recv",
            row.dst_chunk if reduces else -1,
            row.dst_chunk,
            count,
            recv_from=row.src,
        )
        self._note(row, row.dst, dst.add(row.channel, "recv", row.src, taken, writer))

    def _note(self, row: _Row, rank: int, spot: Spot) -> None:
        if row.op == SWITCH_REDUCE and rank == row.dst:
            self.switched[row.dst, row.dst_chunk] = spot
        if row.number in self.awaited:
            self.spots.setdefault((row.number, rank), []).append(spot)


def _by_waits(rows: list[_Row], waits: Mapping[int, tuple[int, ...]]) -> list[_Row]:
    """The transfers of a step, those that others of it wait for first."""
    inside = {row.number: row for row in rows}
    needed = {number: [earlier for earlier in waits.get(number, ()) if earlier in inside] for number in inside}
    if not any(needed.values()):
        return rows
    return [inside[number] for number in TopologicalSorter(needed).static_order()]


def lower(plan: Plan) -> Program:
    """The per-rank program of a plan.

    Parameters
    ----------
    plan
        Any plan.

    Returns
    -------
    Program
        A lane for each end of each connection and for each local operation that runs beside others. Sources that
        their own step overwrites are copied aside first, to scratch after that of the schedule; the waits of the plan
        are explicit.

    Examples
    --------
    >>> import simcoll
    >>> program = lower(simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), 6))
    >>> [instruction.op for lane in program.lanes[0] for instruction in lane.instructions]
    ['copy', 'send', 'send', 'recv', 'recv']
    """
    expect(plan, Plan, "lower takes a plan, made by bind(schedule, count)")
    writer, first = _Writer(plan), 0
    for step in plan.steps():
        writer.step(first, step)
        first += len(step)
    layout = plan.schedule.layout
    inputs, outputs = layout.output_base, layout.scratch_base - layout.output_base
    staging = max(rank.stages for rank in writer.ranks)
    lanes = tuple(
        tuple(Lane(channel, tuple(rank.code[number])) for (channel, _, _), number in rank.lanes.items())
        for rank in writer.ranks
    )
    scratch = layout.size - layout.scratch_base + staging
    return Program(
        plan.schedule.title, plan.nranks, lanes, (inputs, outputs, scratch),
        plan.collective, layout.chunks, plan.collective.in_place,
    )  # fmt: skip


def check_lowering(plan: Plan) -> ProgramProof:
    """Check that the waits, staging and channels of a plan order everything that must be ordered, whatever the timing.

    Its data is followed too, unless the sizes are so small that the plan leaves out empty chunks.

    Raises
    ------
    ScheduleError
        With both accesses of a race, or as :func:`~simcoll.proving.verify_program`.
    """
    program = lower(plan)
    planned = sum(len(step) for step in plan.steps())
    if planned == sum(len(step) for _, step in lowered(plan.schedule)):
        proof = verify_program(program)
        # A switch reduces in an order of its own, which only the proof of the schedule knows.
        return proof if plan.proof is None else replace(proof, order=plan.proof.order)
    return check_ordered(wire(program))[0]
