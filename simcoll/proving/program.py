"""Proof of per-rank programs: matched messages, no deadlock, no race, the right contributions in every output chunk.

A program without races gives the same data in every legal order, so one order is played. Every value is a node of an
expression graph (an input, or the reduction of two nodes), from which the exact multiset of contributions and the
order of each reduction are read.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from simcoll.core.hashing import mix, tokens
from simcoll.core.program import OPS, Program, place, wire
from simcoll.core.proof import LEVELS
from simcoll.core.schedule import Layout
from simcoll.errors import ConfigError, ScheduleError, expect
from simcoll.proving.deadlock import deadlock, depth_text, play
from simcoll.proving.races import check_races

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simcoll.core.program import Instruction, Wiring
    from simcoll.proving.deadlock import Play

__all__ = ["DEPTHS", "ProgramProof", "check_ordered", "verify_program"]

DEPTHS: tuple[int | None, ...] = (0, 1, 2, 8, None)


@dataclass(frozen=True, slots=True)
class ProgramProof:
    """What was proved of a per-rank program.

    Attributes
    ----------
    data
        Every output chunk was shown to hold the right contributions. False where no collective is known, so that only
        matching, deadlock and races were checked.
    order
        One of ``LEVELS``; empty where nothing is reduced.
    steps, messages, lanes
        How much was followed.
    least_depth
        Least FIFO depth, of those tried, that all lanes come to their end with; None: only unbounded FIFOs.
    depth
        FIFO depth of the program's protocol; None: unbounded.
    depth_used
        Most messages that can be in flight on a connection, with this FIFO depth.
    protocol
        Name of the protocol.
    """

    data: bool
    order: str
    steps: int
    messages: int
    lanes: int
    least_depth: int | None
    depth: int | None
    depth_used: int
    protocol: str

    def __str__(self) -> str:
        what = (
            "proved (full, exact, every order)"
            if self.data
            else "no post-condition: only matching, deadlock and races were checked"
        )
        order = f", reduction order {self.order}" if self.order else ""
        needed = depth_text(self.least_depth)
        offered = f"{self.protocol or 'its protocol'} has {'no limit' if self.depth is None else self.depth}"
        return (
            f"{what}: {self.messages:,} messages in {self.steps:,} steps of {self.lanes:,} lanes{order}; "
            f"needs {needed}, uses at most {self.depth_used}, {offered}"
        )


def verify_program(program: Program, *, depths: Sequence[int | None] = DEPTHS) -> ProgramProof:
    """Prove that a per-rank program implements its collective in every legal order.

    Parameters
    ----------
    program
        An imported or lowered program. Without a collective only matching, deadlock and races are checked.
    depths
        FIFO depths to try, None for unbounded. The depth of the program's own protocol is tried in any case.

    Returns
    -------
    ProgramProof

    Raises
    ------
    ScheduleError
        For a message without its other end, a deadlock at the FIFO depth of the protocol (with everyone who is
        blocked), a race (with both accesses), a read of memory that holds nothing, a write to a read-only input, or a
        wrong output.
    ConfigError
        For a FIFO depth that is no depth.
    """
    expect(program, Program, "verify_program takes a program, made by load_msccl_xml(file) or lower(plan)")
    for depth in depths:
        if depth is not None and (type(depth) is not int or depth < 0):
            raise ConfigError(f"FIFO depth {depth!r}: expected a whole number from 0, or None for unbounded")
    wiring = wire(program)
    proof, run = check_ordered(wiring, depths)
    memory = _play_data(wiring, run)
    if program.collective is None or program.collective.kind == "barrier":
        return proof
    return replace(proof, data=True, order=_check_outputs(memory, Layout(program.collective, program.chunks)))


def check_ordered(wiring: Wiring, depths: Sequence[int | None] = DEPTHS) -> tuple[ProgramProof, Play]:
    """Deadlock and races of a program; the proof of that, and a complete play.

    Raises
    ------
    ScheduleError
        As :func:`verify_program`.
    """
    program = wiring.program
    own = play(wiring, program.fifo_depth)
    if not own.complete:
        protocol = f" ({program.protocol})" if program.protocol else ""
        deadlock(wiring, program.fifo_depth, because=f"{protocol}; {_enough(wiring)}")
    tried = sorted(depth for depth in {*depths, program.fifo_depth} if depth is not None)
    least = next((depth for depth in tried if play(wiring, depth).complete), None)
    used = check_races(wiring, own.order)
    if program.fifo_depth is not None:
        used = min(used, max(program.fifo_depth, 1))
    messages = sum(len(connection.sends) for connection in wiring.connections)
    return ProgramProof(
        False, "", program.steps, messages, len(wiring.code), least, program.fifo_depth, used, program.protocol
    ), own


def _enough(wiring: Wiring) -> str:
    """The least FIFO depth that a program runs with, in words."""
    if not play(wiring, None).complete:
        return "no FIFO is deep enough"
    low, high = 0, max([len(connection.sends) for connection in wiring.connections], default=0)
    while low < high:
        middle = (low + high) // 2
        if play(wiring, middle).complete:
            high = middle
        else:
            low = middle + 1
    return f"depth {low} is enough"


class _Values:
    """Expression graph: leaves are input chunks, every other node is the reduction of two."""

    def __init__(self, tree: list[int]) -> None:
        self.leaves = len(tree)
        self.tree = tree
        self.operands: list[tuple[int, int]] = []
        self._sums: dict[int, Counter[int]] = {}

    def reduced(self, left: list[int], right: list[int]) -> list[int]:
        """The nodes of left (op) right, one by one."""
        both = np.array([[self.tree[node] for node in nodes] for nodes in (left, right)], np.uint64)
        first = len(self.tree)
        self.tree.extend(mix(both[0] + both[1]).tolist())
        self.operands.extend(zip(left, right, strict=True))
        return list(range(first, len(self.tree)))

    def contributions(self, node: int) -> Counter[int]:
        """How often every leaf is in a node."""
        todo = [node]
        while todo:
            at = todo[-1]
            if at in self._sums:
                todo.pop()
            elif at < self.leaves:
                self._sums[at] = Counter({at: 1})
            else:
                left, right = self.operands[at - self.leaves]
                open_ = [operand for operand in (left, right) if operand not in self._sums]
                if open_:
                    todo.extend(open_)
                else:
                    self._sums[at] = Counter(self._sums[left])
                    self._sums[at].update(self._sums[right])
        return self._sums[node]


def _inputs(program: Program, rank: int) -> tuple[list[int], list[bool], bool]:
    """Where a rank's input chunks lie, whether they may be written, and whether the rank has an input at all."""
    count = program.buffers[0]
    chunks = np.arange(count, dtype=np.int64)
    layout = program.layout
    if layout is None:
        base = count if program.in_place else 0
        return list(range(base, base + count)), [program.in_place] * count, True
    at = np.full(count, rank, np.int64)
    stored = layout.canonical(at, chunks)
    return stored.tolist(), layout.writable(at, stored).tolist(), bool(layout.collective.has_input(at[:1]).all())


class _Memory:
    """Every rank's chunks during a play: the node that each holds, and who wrote it."""

    def __init__(self, wiring: Wiring) -> None:
        program = wiring.program
        n, inputs = program.nranks, program.buffers[0]
        self.wiring = wiring
        self.held: dict[tuple[int, int], int] = {}
        self.writer: dict[tuple[int, int], tuple[int, int]] = {}
        self.values = _Values(np.repeat(tokens(n, 2), inputs).tolist())
        self.read_only: set[tuple[int, int]] = set()
        for rank in range(n):
            stored, writable, given = _inputs(program, rank)
            self.read_only.update((rank, chunk) for chunk, free in zip(stored, writable, strict=True) if not free)
            if given:
                self.held.update(((rank, chunk), rank * inputs + leaf) for leaf, chunk in enumerate(stored))

    def read(self, lane: int, position: int, first: int, count: int) -> list[int]:
        """Nodes of some chunks; refuses those that hold nothing."""
        rank = self.wiring.ranks[lane]
        nodes = [self.held.get((rank, chunk), -1) for chunk in range(first, first + count)]
        if -1 in nodes:
            chunk = first + nodes.index(-1)
            _fail(
                self.wiring,
                lane,
                position,
                chunk,
                f"reads {place(self.wiring.program, chunk)} of rank {rank}, which holds nothing yet",
            )
        return nodes

    def write(self, lane: int, position: int, first: int, nodes: list[int]) -> None:
        """Put nodes into chunks; refuses inputs that are not also outputs."""
        rank = self.wiring.ranks[lane]
        for chunk, node in enumerate(nodes, first):
            cell = (rank, chunk)
            if cell in self.read_only:
                _fail(
                    self.wiring,
                    lane,
                    position,
                    chunk,
                    f"overwrites {place(self.wiring.program, chunk)} of rank {rank}: inputs are read-only",
                )
            self.held[cell] = node
            self.writer[cell] = (lane, position)


def _fail(wiring: Wiring, lane: int, position: int, chunk: int, reason: str) -> NoReturn:
    raise ScheduleError(
        f"{wiring.program}: {reason}\n  in {wiring.where(lane, position)}",
        step=position,
        rank=wiring.ranks[lane],
        chunk=chunk,
    )


def _play_data(wiring: Wiring, run: Play) -> _Memory:
    """Play the data of a program."""
    memory = _Memory(wiring)
    flying: list[deque[list[int]]] = [deque() for _ in wiring.connections]
    for lane, position in run.order:
        instruction = wiring.code[lane][position]
        incoming, outgoing = wiring.incoming[lane][position], wiring.outgoing[lane][position]
        arrived = flying[incoming].popleft() if incoming >= 0 else []
        value = _execute(memory, lane, position, instruction, arrived)
        if outgoing >= 0:
            flying[outgoing].append(value)
    return memory


def _execute(memory: _Memory, lane: int, position: int, instruction: Instruction, arrived: list[int]) -> list[int]:
    """Do one instruction; the value that it sends or writes."""
    op, count = OPS[instruction.op], instruction.count
    value = arrived
    if op.reads:
        own = memory.read(lane, position, instruction.src, count)
        other = memory.read(lane, position, instruction.dst, count) if op.updates else arrived
        value = memory.values.reduced(own, other) if op.receives or op.updates else own
    if op.writes:
        memory.write(lane, position, instruction.dst, value)
    return value


def _check_outputs(memory: _Memory, layout: Layout) -> str:
    """Compare every output that the caller sees. Returns the order of reductions."""
    collective = layout.collective
    n, inputs = collective.nranks, memory.wiring.program.buffers[0]
    ranks = np.flatnonzero(collective.has_output(np.arange(n))).astype(np.int64)
    slots = np.repeat(np.arange(collective.output_slots, dtype=np.int64), layout.chunks)
    piece = np.tile(np.arange(layout.chunks, dtype=np.int64), collective.output_slots * len(ranks))
    rank, slot = np.repeat(ranks, len(slots)), np.tile(slots, len(ranks))
    source, source_slot = collective.source(rank, slot)
    leaf, output = layout.input(source_slot, piece), layout.output(slot, piece)
    stored = layout.canonical(rank, output)
    trees: dict[int, list[int]] = {}
    columns = zip(rank.tolist(), stored.tolist(), source.tolist(), leaf.tolist(), strict=True)
    faults = []
    for at, chunk, origin, wanted in columns:
        node = memory.held.get((at, chunk), -1)
        expected = Counter(r * inputs + wanted for r in (range(n) if origin < 0 else (origin,)))
        if node < 0 or memory.values.contributions(node) != expected:
            faults.append((at, chunk, expected))
        elif origin < 0:
            trees.setdefault(wanted, []).append(memory.values.tree[node])
    if faults:
        _wrong_output(memory, *faults[0], len(faults))
    return _level(trees)


def _level(trees: dict[int, list[int]]) -> str:
    """Level of the reduction order, from the expression trees of each chunk on all ranks; none is unordered."""
    if not trees:
        return ""
    if any(tree != ranks[0] for ranks in trees.values() for tree in ranks):
        return LEVELS[0]
    return LEVELS[2] if len({ranks[0] for ranks in trees.values()}) > 1 else LEVELS[3]


def _wrong_output(memory: _Memory, rank: int, chunk: int, expected: Counter[int], faults: int) -> NoReturn:
    wiring = memory.wiring
    inputs = wiring.program.buffers[0]
    node = memory.held.get((rank, chunk), -1)
    found = memory.values.contributions(node) if node >= 0 else Counter[int]()

    def names(leaves: list[int]) -> str:
        shown = [f"rank {leaf // inputs} input[{leaf % inputs}]" for leaf in leaves[:6]]
        return ", ".join(shown) + (f" and {len(leaves) - 6} more" if len(leaves) > 6 else "")

    where = place(wiring.program, chunk)
    lines = [
        f"{wiring.program}: rank {rank} {where} is wrong at the end (wrong output chunks in all: {faults})",
        f"  expected: {names(sorted(expected))}",
        f"  found:    {names(sorted(found)) or 'nothing'}",
    ]
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    twice = sorted(leaf for leaf in expected if found[leaf] > 1)
    for label, leaves in (("missing", missing), ("not wanted", extra), ("counted more than once", twice)):
        if leaves:
            lines.append(f"  {label}: {names(leaves)}")
    writer = memory.writer.get((rank, chunk))
    lines.append(f"  last written by {wiring.where(*writer)}" if writer else "  never written")
    raise ScheduleError("\n".join(lines), step=writer[1] if writer else None, rank=rank, chunk=chunk)
