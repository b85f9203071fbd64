"""Proof of programs of thread blocks: termination, no races, and the right contributions in every
output cell.

Two accesses to a cell race if one of them writes and neither order is certain: a read or write
after a write needs an order that carries data, a write after a read one of execution. The caller
takes part: it fills the inputs before a rank begins, and when a rank has ended it reads the outputs
and may refill the inputs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from simcoll.core.device_program import EACH, SWITCH, DeviceOp, DeviceProgram, Region
from simcoll.core.layout import Layout
from simcoll.core.proof import LEVELS
from simcoll.core.vocabulary import OrderLevel
from simcoll.errors import ScheduleError, expect, listed
from simcoll.proving.device_order import Access, Order, device_order, where
from simcoll.proving.explain import compare_contributions, leaves_below

__all__ = ["DeviceProof", "verify_device_program"]


@dataclass(frozen=True, slots=True)
class DeviceProof:
    """The result of a proof of a program of thread blocks.

    Attributes
    ----------
    data
        Every output cell was shown to hold the right contributions. False if the collective is
        unknown.
    order
        One of ``LEVELS``; empty if nothing is reduced.
    operations, blocks, signals
        Their numbers.
    trusted
        Relaxed signals were assumed to carry data, which the memory model does not guarantee.
    """

    data: bool
    order: OrderLevel
    operations: int
    blocks: int
    signals: int
    trusted: bool

    def __str__(self) -> str:
        verdict = (
            "proved (full, exact, every order)"
            if self.data
            else "no post-condition: only deadlock and races were checked"
        )
        order = f", reduction order {self.order}" if self.order else ""
        trusted = "; unproved where relaxed signals must carry data" if self.trusted else ""
        return (
            f"{verdict}: {self.operations:,} operations in {self.blocks:,} thread blocks, "
            f"{self.signals:,} signals{order}{trusted}"
        )


def verify_device_program(program: DeviceProgram, *, trust_relaxed: bool = False) -> DeviceProof:
    """Prove that a program of thread blocks implements its collective in every legal order.

    Parameters
    ----------
    program
        From :func:`simcoll.formats.load_mscclpp_plan`.
    trust_relaxed
        Assume that relaxed signals carry data. The memory model does not guarantee it, and the
        proof says so.

    Raises
    ------
    ScheduleError
        For a deadlock, a race (with both accesses), a read of memory that holds nothing, or a wrong
        output.
    ConfigError
        As :func:`~simcoll.proving.device_order.device_order`.
    """
    expect(
        program,
        DeviceProgram,
        "verify_device_program takes a program, made by load_mscclpp_plan(file)",
    )
    order = device_order(program)
    accesses = _cells(program, order)
    relaxed = any(operation.relaxed for *_, operation in program.operations())
    trusted = trust_relaxed and relaxed
    for cell, touching in accesses.items():
        _check_cell(program, order, cell, touching, trusted=trusted)
    values = _CellExpressions(program)
    for rank, block, position in order.played:
        values.do(program.blocks[rank][block][position], rank, block, position)
    layout = program.layout
    level = "" if layout is None else _check_outputs(values, layout)
    signals = sum(len(operation.signals) for *_, operation in program.operations())
    return DeviceProof(
        layout is not None,
        level,
        len(order.played),
        sum(map(len, program.blocks)),
        signals,
        trusted,
    )


def _cells(program: DeviceProgram, order: Order) -> dict[tuple[int, int], list[Access]]:
    """The accesses to each cell, including those of the caller before and after."""
    scratch = sum(program.buffers[:2])
    by_cell: dict[tuple[int, int], list[Access]] = {}
    for access in order.accesses:
        rank, number = cell = access.cell
        if cell not in by_cell:
            filling = Access(
                order.begin[rank],
                cell,
                writes=True,
                label="the caller, which fills the buffers before that rank begins",
            )
            handover = Access(
                order.end[rank],
                cell,
                writes=True,
                label="the caller, which owns the buffers again when that rank has ended",
            )
            # Packets carry a flag of this run; scratch belongs to the plan, but the previous run
            # may still be using it.
            by_cell[cell] = (
                []
                if number >= program.packets
                else [filling]
                if number >= scratch
                else [filling, handover]
            )
        by_cell[cell].append(access)
    return by_cell


def _check_cell(
    program: DeviceProgram,
    order: Order,
    cell: tuple[int, int],
    touching: list[Access],
    *,
    trusted: bool,
) -> None:
    """Refuse two racing accesses to a cell."""
    packet = cell[1] >= program.packets
    visible = order.executed if trusted else order.data
    writers = [access for access in touching if access.writes]
    if packet and len(writers) > 1:
        _race(
            program,
            cell,
            writers[0],
            writers[1],
            "a reader cannot tell the packets of two writes from each other",
        )
    if packet:
        return  # a reader waits for the flag
    for write in writers:
        for access in touching:
            if access.event == write.event:
                continue
            if access.writes:
                fine = (
                    visible[access.event] >> write.event & 1
                    or visible[write.event] >> access.event & 1
                )
                # The caller fills inputs and then starts the kernel: a rank that has begun has its
                # inputs.
                fine = fine or _began(order, write, access) or _began(order, access, write)
            else:
                fine = (
                    visible[access.event] >> write.event & 1
                    or order.executed[write.event] >> access.event & 1
                )
                fine = fine or _began(order, write, access)
            if not fine:
                executes_in_order = (
                    order.executed[access.event] >> write.event & 1
                    or order.executed[write.event] >> access.event & 1
                )
                why = (
                    "only relaxed signals lie between them, which order execution but not "
                    "visibility"
                    if executes_in_order
                    else "nothing orders them"
                )
                _race(program, cell, write, access, why)


def _began(order: Order, earlier: Access, later: Access) -> bool:
    return earlier.event in order.begin and bool(order.executed[later.event] >> earlier.event & 1)


def _race(
    program: DeviceProgram, cell: tuple[int, int], a: Access, b: Access, why: str
) -> NoReturn:
    rank, number = cell
    name = program.place(Region(rank, number, 1))
    verbs = ["writes" if access.writes else "reads" for access in (a, b)]
    lines = [
        f"{program}: race on {name}: {why}",
        *(f"  {verb} it: {access.label}" for verb, access in zip(verbs, (a, b), strict=True)),
    ]
    raise ScheduleError("\n".join(lines), rank=rank, chunk=number // program.pieces)


class _CellExpressions:
    """The contents of every cell as expressions: a leaf is ``(rank, input cell)``, a node reduces
    two others.
    """

    def __init__(self, program: DeviceProgram) -> None:
        self.program = program
        self.nodes: list[
            tuple[int, ...]
        ] = []  # a leaf (rank, cell), or a node (left, right, 0 or 1: by a switch)
        self.known: dict[tuple[int, ...], int] = {}
        self.shapes: list[
            int
        ] = []  # of each expression: the number of its reductions, with leaves named by rank
        self.shape_numbers: dict[tuple[int, ...], int] = {}
        self.switched: list[bool] = []  # of each expression: whether a switch reduced part of it
        self.held: dict[tuple[int, int], int] = {}
        layout, inputs = program.layout, program.buffers[0]
        for rank in range(program.nranks):
            has_input = layout is None or bool(layout.collective.has_input([rank])[0])
            for cell in range(inputs if has_input else 0):
                stored = (
                    cell
                    if layout is None
                    else int(layout.canonical(np.array(rank), np.array(cell)))
                )
                if layout is None and program.in_place:
                    stored = cell + inputs
                self.held[rank, stored] = self.node((rank, cell))

    def node(self, key: tuple[int, ...]) -> int:
        """The number of an expression."""
        if key not in self.known:
            self.known[key] = len(self.nodes)
            self.nodes.append(key)
            operands = self.operands(self.known[key])
            # A leaf is its rank, a reduction the sorted shapes of its two operands: of one and of
            # two numbers.
            shape = tuple(sorted(self.shapes[operand] for operand in operands)) or key[:1]
            self.shapes.append(self.shape_numbers.setdefault(shape, len(self.shape_numbers)))
            self.switched.append(
                any(self.switched[operand] for operand in operands) or key[2:] == (1,)
            )
        return self.known[key]

    def operands(self, node: int) -> tuple[int, ...]:
        """The operands of a node; none for a leaf."""
        key = self.nodes[node]
        return key[:2] if len(key) == 3 else ()

    def do(self, operation: DeviceOp, rank: int, block: int, position: int) -> None:
        """Play one operation."""
        if not operation.how:
            return
        place = rank, block, position
        sources = [
            [self._read(region.rank, cell, place) for cell in region.cells]
            for region in operation.reads
        ]
        if operation.how == EACH:
            results = sources
        else:
            total = sources[0]
            for source in sources[1:]:
                switched = operation.how == SWITCH
                total = [
                    self.node((*sorted(pair), int(switched)))
                    for pair in zip(total, source, strict=True)
                ]
            results = [total] * len(operation.writes)
        for region, values in zip(operation.writes, results, strict=True):
            for cell, value in zip(region.cells, values, strict=True):
                self._check_name(region.rank, cell, place)
                self.held[region.rank, cell] = value

    def _check_name(self, rank: int, cell: int, place: tuple[int, int, int]) -> None:
        """Refuse an address whose memory has another one in place: what is stored there would not
        be found under the other.
        """
        layout = self.program.layout
        if layout is None:
            alias = self.program.in_place and cell < self.program.buffers[0]
        else:
            alias = (
                cell < layout.scratch_base
                and int(layout.canonical(np.array(rank), np.array(cell))) != cell
            )
        if alias:
            name = self.program.place(Region(rank, cell, 1))
            raise ScheduleError(
                f"{self.program}: {where(self.program, *place)} writes {name}, which in place is "
                "part of the larger buffer "
                "and must be addressed there",
                rank=rank,
            )

    def _read(self, rank: int, cell: int, place: tuple[int, int, int]) -> int:
        if (rank, cell) not in self.held:
            name = self.program.place(Region(rank, cell, 1))
            raise ScheduleError(
                f"{self.program}: {where(self.program, *place)} reads {name}, which holds nothing "
                "yet",
                rank=rank,
            )
        return self.held[rank, cell]


def _check_outputs(values: _CellExpressions, layout: Layout) -> OrderLevel:
    """Compare every output that the caller sees; return the reduction order."""
    program, collective = values.program, layout.collective
    trees: dict[int, set[int]] = {}
    shapes: set[int] = set()
    unordered = False
    for rank in range(program.nranks):
        if not collective.has_output([rank])[0]:
            continue
        for output in range(layout.output_base, layout.scratch_base):
            source, leaf = (
                int(column[0]) for column in layout.wanted(np.array([rank]), np.array([output]))
            )
            cell = int(layout.canonical(np.array([rank]), np.array([output]))[0])
            node = values.held.get((rank, cell), -1)
            origins = range(program.nranks) if source < 0 else (source,)
            expected = [values.known[origin, leaf] for origin in origins]
            actual = leaves_below(node, values.operands)
            if actual != Counter(expected):
                _wrong_output(values, Region(rank, cell, 1), expected, actual)
            if source < 0:
                trees.setdefault(leaf, set()).add(node)
                unordered |= values.switched[node]
                shapes.add(values.shapes[node])
    if not trees:
        return ""
    if any(len(expressions) > 1 for expressions in trees.values()):
        return LEVELS[0]
    return LEVELS[1] if unordered else LEVELS[3] if len(shapes) == 1 else LEVELS[2]


def _wrong_output(
    values: _CellExpressions, region: Region, expected: list[int], actual: Counter[int]
) -> NoReturn:
    program = values.program

    def names(leaves: list[int]) -> str:
        return listed(
            [
                program.place(Region(values.nodes[leaf][0], values.nodes[leaf][1], 1))
                for leaf in leaves
            ],
            6,
        )

    lines = [
        f"{program}: {program.place(region)} is wrong at the end",
        *compare_contributions(expected, actual, names),
    ]
    raise ScheduleError("\n".join(lines), rank=region.rank, chunk=region.cell // program.pieces)
