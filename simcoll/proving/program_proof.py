"""Proof of per-rank programs: matched messages, no deadlock, no race, and the right contributions
in every output chunk.

A program without races yields the same data in every legal order, so only one order is played:
level by level, since instructions of one level have no chunk in common. Every value is a node of an
expression graph (an input, or the reduction of two nodes), from which the exact multiset of
contributions and the order of each reduction follow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.definition import Definition
from simcoll.core.proof import LEVELS
from simcoll.core.rank_program import RankProgram, place
from simcoll.core.schedule import Layout
from simcoll.core.step import distinct, first_alike, spread
from simcoll.core.vocabulary import OrderLevel
from simcoll.core.wiring import Wiring, op_where, wire
from simcoll.errors import ConfigError, ScheduleError, expect, listed
from simcoll.proving.deadlock import Play, deadlock, depth_text, play
from simcoll.proving.explain import compare_contributions, leaves_below
from simcoll.proving.kernel import MOST_LEAVES
from simcoll.proving.races import check_races, most_in_flight

__all__ = ["DEPTHS", "ProgramProof", "check_data", "check_order", "verify_program"]

DEPTHS: tuple[int | None, ...] = (0, 1, 2, 8, None)


@dataclass(frozen=True, slots=True)
class ProgramProof:
    """The result of a proof of a per-rank program.

    Attributes
    ----------
    data
        Every output chunk was shown to hold the right contributions. False if the collective is
        unknown, so that only matching, deadlock and races were checked.
    order
        One of ``LEVELS``; empty if nothing is reduced.
    steps, messages, lanes
        Their numbers.
    least_depth
        Least FIFO depth, among those tried, at which all lanes finish; None: only with unbounded
        FIFOs.
    depth
        FIFO depth of the program's protocol; None: unbounded.
    depth_used
        Most messages that can be in flight on a connection with this FIFO depth; None if not
        counted.
    protocol
        Name of the protocol.
    """

    data: bool
    order: OrderLevel
    steps: int
    messages: int
    lanes: int
    least_depth: int | None
    depth: int | None
    depth_used: int | None
    protocol: str

    def __str__(self) -> str:
        verdict = (
            "proved (full, exact, every order)"
            if self.data
            else "no post-condition: only matching, deadlock and races were checked"
        )
        order = f", reduction order {self.order}" if self.order else ""
        needed = depth_text(self.least_depth)
        offered = (
            f"{self.protocol or 'its protocol'} has "
            f"{'no limit' if self.depth is None else self.depth}"
        )
        used = "" if self.depth_used is None else f"uses at most {self.depth_used}, "
        return (
            f"{verdict}: {self.messages:,} messages in {self.steps:,} steps of {self.lanes:,} "
            f"lanes{order}; "
            f"needs {needed}, {used}{offered}"
        )


def verify_program(program: RankProgram, *, depths: Sequence[int | None] = DEPTHS) -> ProgramProof:
    """Prove that a per-rank program implements its collective in every legal order.

    Parameters
    ----------
    program
        An imported or lowered program. Without a collective only matching, deadlock and races are
        checked.
    depths
        FIFO depths to try, None for unbounded. The depth of the program's own protocol is always
        tried.

    Returns
    -------
    ProgramProof

    Raises
    ------
    ScheduleError
        For a message without its other end, a deadlock at the FIFO depth of the protocol (with all
        blocked lanes), a race (with both accesses), a read of memory that holds nothing, a write to
        a read-only input, or a wrong output.
    ConfigError
        For an invalid FIFO depth.
    """
    expect(
        program,
        RankProgram,
        "verify_program takes a program, made by load_msccl_xml(file) or lower(plan)",
    )
    for depth in depths:
        if depth is not None and (type(depth) is not int or depth < 0):
            raise ConfigError(
                f"FIFO depth {depth!r}: expected a whole number from 0, or None for unbounded"
            )
    wiring = wire(program)
    proof, run = check_order(wiring, depths)
    used = most_in_flight(wiring, run)
    if program.fifo_depth is not None:
        used = min(used, max(program.fifo_depth, 1))
    return check_data(wiring, run, replace(proof, depth_used=used))


def check_order(wiring: Wiring, depths: Sequence[int | None] = DEPTHS) -> tuple[ProgramProof, Play]:
    """Check deadlock and races; return the proof so far, and a complete play with unbounded FIFOs.

    Raises
    ------
    ScheduleError
        As :func:`verify_program`.
    """
    program = wiring.program
    own_depth = wiring.program.fifo_depth
    # A program that runs at some depth runs at every greater depth, so the least one decides.
    tried = sorted(depth for depth in {*depths, own_depth} if depth is not None)
    least_depth = next((depth for depth in tried if play(wiring, depth).complete), None)
    run = play(wiring, None)
    if not (
        run.complete if own_depth is None else least_depth is not None and least_depth <= own_depth
    ):
        protocol = f" ({program.protocol})" if program.protocol else ""
        deadlock(wiring, own_depth, because=f"{protocol}; {_enough(wiring)}")
    check_races(wiring, run)
    messages = len(wiring.sends)
    lanes = len(wiring.code.rank)
    return ProgramProof(
        False, "", program.steps, messages, lanes, least_depth, own_depth, None, program.protocol
    ), run


def _enough(wiring: Wiring) -> str:
    """The least FIFO depth at which a program runs, in words."""
    if not play(wiring, None).complete:
        return "no FIFO is deep enough"
    depths = range(int(wiring.ordinal.max(initial=-1)) + 1)
    return (
        f"depth {bisect_left(depths, True, key=lambda depth: play(wiring, depth).complete)} is "
        "enough"
    )


class _Expressions:
    """Expression graph: leaves are input chunks, every other node is the reduction of two nodes.

    Parameters
    ----------
    ranks
        The rank of every leaf.
    nodes
        Number of reductions to come.
    """

    def __init__(self, ranks: Ints, nodes: int) -> None:
        self.leaves = self.count = len(ranks)
        self.ranks = ranks
        self.operands = np.zeros((2, nodes), np.int64)
        self.size = np.ones(len(ranks) + nodes, np.int64)  # leaves below each node, saturated
        self.depth = np.zeros(len(ranks) + nodes, np.int64)

    def reduce(self, a: Ints, b: Ints) -> Ints:
        """The nodes of a (op) b, element by element."""
        result = np.arange(self.count, self.count + len(a))
        self.count += len(a)
        self.operands[:, result - self.leaves] = a, b
        self.size[result] = np.minimum(self.size[a] + self.size[b], MOST_LEAVES)
        self.depth[result] = np.maximum(self.depth[a], self.depth[b]) + 1
        return result

    def expressions(self) -> Ints:
        """A number for the expression below each node: equal ones, up to the order of two operands,
        have equal numbers.

        Equal expressions have equal depths, so comparing the pairs of operands of one depth
        decides, from the leaves up.
        """
        number = np.append(self.ranks, np.zeros(self.count - self.leaves, np.int64))
        inner = self.leaves + np.argsort(self.depth[self.leaves : self.count], kind="stable")
        following = int(self.ranks.max(initial=-1)) + 1
        for nodes in np.split(inner, np.flatnonzero(np.diff(self.depth[inner])) + 1):
            pairs = np.sort(number[self.operands[:, nodes - self.leaves]], axis=0)
            _, kind = np.unique(pairs, axis=1, return_inverse=True)
            number[nodes] = following + kind.reshape(-1)
            following += int(kind.max(initial=-1)) + 1
        return number

    def leaves_of(self, nodes: Ints) -> tuple[Ints, Ints]:
        """All leaves of some nodes with repetition: the node and the leaf."""
        parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        root = np.arange(len(nodes))
        while len(nodes):
            leaf = nodes < self.leaves
            parts.append((root[leaf], nodes[leaf]))
            root = np.tile(root[~leaf], 2)
            inner = nodes[~leaf] - self.leaves
            nodes = self.operands[:, inner].reshape(-1)
        whose, leaves = (np.concatenate(column) for column in zip(*parts, strict=True))
        return whose, leaves

    def below(self, node: int) -> list[int]:
        """The operands of a node; none for a leaf."""
        return [] if node < self.leaves else self.operands[:, node - self.leaves].tolist()


class _ProgramMemory:
    """Every rank's chunks during a play: the node that each holds (-1: none), and the instruction
    that wrote it.
    """

    def __init__(self, wiring: Wiring) -> None:
        program = wiring.program
        code = wiring.code
        n = program.nranks
        inputs = program.buffers[0]
        self.chunks = sum(program.buffers)
        self.wiring = wiring
        self.held = np.full(n * self.chunks, -1)
        self.writer = np.full(n * self.chunks, -1)
        self.read_only = np.zeros(n * self.chunks, np.bool_)
        reduces = op_where(code, "reads") & (op_where(code, "receives") | op_where(code, "updates"))
        origins = np.repeat(np.arange(n), inputs)
        layout = program.layout
        if layout is not None and layout.collective.definition is not None:
            origins = layout.contribution(origins, np.tile(np.arange(inputs), n))[0]
        self.values = _Expressions(origins, int(code.count[reduces].sum()))
        rank, chunk = (
            cells.reshape(-1)
            for cells in np.meshgrid(np.arange(n), np.arange(inputs), indexing="ij")
        )
        if layout is None:
            if program.in_place and program.buffers[1] < inputs:
                raise ScheduleError(
                    f"{program}: in place, the output holds the input, but has "
                    f"{program.buffers[1]} chunks for {inputs}"
                )
            stored = chunk + inputs * program.in_place
            has_input = np.ones(len(chunk), np.bool_)
            writable = np.full(len(chunk), program.in_place)
        else:
            stored = layout.canonical(rank, chunk)
            has_input = layout.collective.has_input(rank)
            if layout.collective.definition is not None:
                has_input = layout.contribution(rank, chunk)[0] >= 0
            writable = layout.writable(rank, stored)
        cell = rank * self.chunks + stored
        self.read_only[cell[~writable]] = True
        leaf = np.flatnonzero(has_input)
        self.held[cell[has_input]] = leaf if layout is None else _first_leaf(layout, leaf)
        self.alias = np.zeros(n * self.chunks, np.bool_)  # the memory of another address
        if layout is None:
            self.alias[rank * self.chunks + chunk] = program.in_place
        else:
            rank, chunk = (
                cells.reshape(-1)
                for cells in np.meshgrid(
                    np.arange(n), np.arange(layout.scratch_base), indexing="ij"
                )
            )
            self.alias[rank * self.chunks + chunk] = layout.canonical(rank, chunk) != chunk

    def fail(self, number: int, cell: int, reason: str) -> NoReturn:
        """Refuse an instruction's access."""
        rank, chunk = divmod(cell, self.chunks)
        name = f"{place(self.wiring.program, chunk)} of rank {rank}"
        raise self.wiring.fault(
            number, f"{reason.format(name)}\n  in {self.wiring.where(number)}", chunk=chunk
        )

    def _check_names(self, number: Ints, cell: Ints) -> None:
        """Refuse addresses whose memory has another one in place: what is stored there would not be
        found under the other.
        """
        alias = np.flatnonzero(self.alias[cell])
        if len(alias):
            reason = (
                "names {}, which in place is part of the larger buffer and must be addressed there"
            )
            self.fail(int(number[alias[0]]), int(cell[alias[0]]), reason)

    def read(self, number: Ints, cell: Ints) -> Ints:
        """Nodes held by some chunks; refuses empty chunks."""
        self._check_names(number, cell)
        nodes = self.held[cell]
        empty = np.flatnonzero(nodes < 0)
        if len(empty):
            self.fail(
                int(number[empty[0]]), int(cell[empty[0]]), "reads {}, which holds nothing yet"
            )
        return nodes

    def write(self, number: Ints, cell: Ints, nodes: Ints) -> None:
        """Store nodes in chunks; refuses inputs that are not also outputs."""
        self._check_names(number, cell)
        locked = np.flatnonzero(self.read_only[cell])
        if len(locked):
            self.fail(
                int(number[locked[0]]), int(cell[locked[0]]), "overwrites {}: inputs are read-only"
            )
        self.held[cell], self.writer[cell] = nodes, number


def _play_data(wiring: Wiring, run: Play) -> _ProgramMemory:
    """Play the data of a program, one level at a time."""
    memory = _ProgramMemory(wiring)
    code = wiring.code
    receives = op_where(code, "receives")
    sends = op_where(code, "sends")
    reads = op_where(code, "reads")
    writes = op_where(code, "writes")
    updates = op_where(code, "updates")
    payload = np.full(int(code.count[sends].sum()), -1)
    begin = np.zeros(len(code.op), np.int64)  # position of the data that an instruction sends
    begin[sends] = np.cumsum(code.count[sends]) - code.count[sends]
    for numbers in np.split(run.order, np.flatnonzero(np.diff(run.level)) + 1):
        row, offset = spread(code.count[numbers])
        number = numbers[row]
        base = code.rank[wiring.lane[number]] * memory.chunks + offset
        value = np.full(len(number), -1)
        receivers = np.flatnonzero(receives[number])
        sender = wiring.sends[wiring.incoming[number[receivers]]]
        value[receivers] = payload[begin[sender] + offset[receivers]]
        readers = np.flatnonzero(reads[number])
        node = memory.read(number[readers], (base + code.src[number])[readers])
        updaters = np.flatnonzero(updates[number])
        value[updaters] = memory.read(number[updaters], (base + code.dst[number])[updaters])
        combined = value[readers] >= 0
        value[readers[~combined]] = node[~combined]
        value[readers[combined]] = memory.values.reduce(node[combined], value[readers[combined]])
        writers = np.flatnonzero(writes[number])
        memory.write(number[writers], (base + code.dst[number])[writers], value[writers])
        senders = np.flatnonzero(sends[number])
        payload[begin[number[senders]] + offset[senders]] = value[senders]
    return memory


def check_data(wiring: Wiring, run: Play, proof: ProgramProof) -> ProgramProof:
    """Play the data of a program without races; return the proof with the result.

    Raises
    ------
    ScheduleError
        For a read of memory that holds nothing, a write to a read-only input, or a wrong output.
    """
    program = wiring.program
    memory = _play_data(wiring, run)
    if program.collective is None or program.collective.kind == "barrier":
        return proof
    return replace(
        proof, data=True, order=_check_outputs(memory, Layout(program.collective, program.chunks))
    )


def _check_outputs(memory: _ProgramMemory, layout: Layout) -> OrderLevel:
    """Compare every output that the caller sees; return the order of reductions."""
    collective = layout.collective
    if collective.definition is not None:
        return _check_definition(memory, layout, collective.definition)
    values = memory.values
    n = collective.nranks
    inputs = memory.wiring.program.buffers[0]
    ranks = np.flatnonzero(collective.has_output(np.arange(n))).astype(np.int64)
    outputs = np.arange(layout.output_base, layout.scratch_base)
    rank = np.repeat(ranks, len(outputs))
    output = np.tile(outputs, len(ranks))
    source, leaf = layout.wanted(rank, output)
    cell = rank * memory.chunks + layout.canonical(rank, output)
    node = memory.held[cell]
    reduced = source < 0
    right = node == np.where(reduced, -2, source * inputs + leaf)
    # In a reduction every leaf is the same chunk on another rank. Many ranks hold the same node,
    # which is checked only once.
    likely = np.flatnonzero(reduced & (node >= 0) & (values.size[node] == n))
    pairs, pair = np.unique(node[likely] * inputs + leaf[likely], return_inverse=True)
    whose, leaves = values.leaves_of(pairs // max(inputs, 1))
    fitting = leaves % max(inputs, 1) == (pairs % max(inputs, 1))[whose]
    hits = distinct(whose[fitting] * n * inputs + leaves[fitting]) // max(n * inputs, 1)
    right[likely] = (np.bincount(hits, minlength=len(pairs)) == n)[pair]
    wrong = np.flatnonzero(~right)
    if len(wrong):
        row = int(wrong[0])
        origins = range(n) if reduced[row] else (int(source[row]),)
        _wrong_output(
            memory, int(cell[row]), [r * inputs + int(leaf[row]) for r in origins], len(wrong)
        )
    return _level(leaf[reduced], values.expressions()[node[reduced]])


def _first_leaf(layout: Layout, leaf: Ints) -> Ints:
    """The leaf that stands for each input chunk: of chunks with one contribution, the first."""
    if layout.collective.definition is None:
        return leaf
    origin, piece = layout.contribution(*np.divmod(leaf, layout.output_base))
    return leaf[first_alike(origin, piece)]


def _check_definition(memory: _ProgramMemory, layout: Layout, definition: Definition) -> OrderLevel:
    """Compare every output of a custom collective; return the order of reductions."""
    values, inputs = memory.values, layout.output_base
    leaf_of = {
        number: rank * inputs + slot * layout.chunks
        for number in range(definition.contributions)
        for rank, slot in definition.holders(number)[:1]
    }
    wrong: list[tuple[int, list[int]]] = []
    sums: list[int] = []
    nodes: list[int] = []
    for rank, output in np.argwhere(definition.sums >= 0).tolist():
        summands = definition.requirement(rank, output)
        for piece in range(layout.chunks):
            cell = rank * memory.chunks + inputs + output * layout.chunks + piece
            node, leaves = int(memory.held[cell]), [leaf_of[number] + piece for number in summands]
            if not _holds(values, node, leaves, listed=definition.order == "listed"):
                wrong.append((cell, leaves))
            elif len(summands) > 1:
                sums.append(int(definition.sums[rank, output]) * layout.chunks + piece)
                nodes.append(node)
    if wrong:
        _wrong_output(memory, *wrong[0], len(wrong))
    order = _level(
        np.array(sums, np.int64),
        values.expressions()[np.array(nodes, np.int64)],
        np.array(sums, np.int64) // layout.chunks,
    )
    if (
        order
        and definition.order in LEVELS
        and LEVELS.index(order) < LEVELS.index(definition.order)
    ):
        raise ScheduleError(
            f"{memory.wiring.program}: its order of reductions is {order!r}; the definition "
            f"requires at least {definition.order!r}"
        )
    return order


def _holds(values: _Expressions, node: int, leaves: list[int], *, listed: bool) -> bool:
    """Whether a node is the sum of some leaves, if ``listed`` in this order from left to right."""
    if node < 0 or values.size[node] != len(leaves):
        return False
    if not listed:
        return leaves_below(node, values.below) == Counter(leaves)
    for leaf in reversed(leaves[1:]):
        operands = values.below(node)
        if leaf not in operands:
            return False
        node = operands[1 - operands.index(leaf)]
    return node == leaves[0]


def _level(chunk: Ints, tree: Ints, group: Ints | None = None) -> OrderLevel:
    """Level of the reduction order, from the expression of each chunk on all ranks; a rank without
    one has no order.

    ``group``: the sum that each is a chunk of, if that is not the same for all.
    """
    if not len(chunk):
        return ""
    if (tree != tree[first_alike(chunk)]).any():
        return LEVELS[0]
    leader = np.zeros(len(tree), np.int64) if group is None else first_alike(group)
    return LEVELS[3] if (tree == tree[leader]).all() else LEVELS[2]


def _wrong_output(memory: _ProgramMemory, cell: int, expected: list[int], faults: int) -> NoReturn:
    wiring = memory.wiring
    rank, chunk = divmod(cell, memory.chunks)
    inputs = wiring.program.buffers[0]
    node = int(memory.held[cell])
    writer = int(memory.writer[cell])
    actual = leaves_below(node, memory.values.below)

    def names(leaves: list[int]) -> str:
        return listed([f"rank {leaf // inputs} input[{leaf % inputs}]" for leaf in leaves], 6)

    location = place(wiring.program, chunk)
    lines = [
        (
            f"{wiring.program}: rank {rank} {location} is wrong at the end (wrong output chunks in "
            f"all: {faults})"
        ),
        *compare_contributions(expected, actual, names),
        f"  last written by {wiring.where(writer)}" if writer >= 0 else "  never written",
    ]
    step = int(wiring.position[writer]) if writer >= 0 else None
    raise ScheduleError("\n".join(lines), step=step, rank=rank, chunk=chunk)
