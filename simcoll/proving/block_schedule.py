"""Conversion of a program of thread blocks to a schedule that gives every cell the same values."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from simcoll.core.device_program import EACH, SWITCH, DeviceOp, DeviceProgram, Region
from simcoll.core.layout import Layout
from simcoll.core.schedule import COPY, MULTICAST, REDUCE, SWITCH_REDUCE, Schedule, transfers
from simcoll.errors import ConfigError
from simcoll.proving.device_order import device_order
from simcoll.proving.device_proof import verify_device_program

__all__ = ["device_schedule"]

Row = tuple[int, int, int, int, int, int, int]  # the columns of a step


def device_schedule(program: DeviceProgram, *, trust_relaxed: bool = False) -> Schedule:
    """Convert a program of thread blocks to a schedule, to bind, emulate and run.

    Every load and store between ranks becomes a transfer on the channel of its thread block. Block
    sizes must be multiples of its cells.

    Raises
    ------
    ScheduleError
        As :func:`~simcoll.proving.verify_device_program`.
    ConfigError
        When its collective is unknown.
    """
    if program.collective is None:
        raise ConfigError(f"{program}: no collective is known, so it is not a schedule")
    verify_device_program(program, trust_relaxed=trust_relaxed)
    steps = _Steps(program)
    for rank, block, position in device_order(program).played:
        steps.operation(program.blocks[rank][block][position], rank, block)
    slots = -(-(max(steps.free) - sum(program.buffers[:2])) // program.cells)
    layout = Layout(program.collective, program.cells, np.zeros(slots, np.int64))
    transfer_steps = tuple(
        transfers(*columns[:4], count=columns[4], op=columns[5], channel=columns[6])
        for level in sorted(steps.rows)
        for columns in [np.array(steps.rows[level], np.int64).T]
    )
    channels = max((len(blocks) for blocks in program.blocks), default=1)
    return Schedule(
        program.name, layout, partial(iter, transfer_steps), max(channels, 1), divisible=True
    )


@dataclass(slots=True)
class _Steps:
    """Transfers by step: each in the first step after its sources were written and its destination
    was read.
    """

    program: DeviceProgram
    rows: dict[int, list[Row]] = field(default_factory=dict)
    # Last step that reads each cell.
    last_read: dict[tuple[int, int], int] = field(default_factory=dict)
    last_write: dict[tuple[int, int], int] = field(default_factory=dict)
    # First step after the last meeting of each thread block.
    floor: dict[tuple[int, int], int] = field(default_factory=dict)
    last: dict[tuple[int, int], int] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = [self.program.size] * self.program.nranks

    def operation(self, operation: DeviceOp, rank: int, block: int) -> None:
        """Add the transfers of one operation."""
        key = rank, block
        if operation.fence or operation.barrier is not None:
            self.floor[key] = self.last.get(key, -1) + 1
        if operation.how == EACH:
            for source, target in zip(operation.reads, operation.writes, strict=True):
                self.move([(source, target)], COPY, key)
        elif operation.how == SWITCH:
            local = next(target for target in operation.writes if target.rank == rank)
            self.move([(source, local) for source in operation.reads], SWITCH_REDUCE, key)
            self.move([(local, target) for target in operation.writes], MULTICAST, key)
        elif operation.how:
            self._fold(operation, rank, key)

    def _fold(self, operation: DeviceOp, rank: int, key: tuple[int, int]) -> None:
        base, *operands = operation.reads
        local = [target for target in operation.writes if target.rank == rank]
        if operation.name in {"gstore", "gstorepkt"}:
            self.move([(base, target) for target in operation.writes], MULTICAST, key)
            return
        # The sum accumulates at its destination, unless an operand lies there or the result does
        # not stay on this rank.
        total = local[0] if local else base
        if operands and total != base and (not local or total in operands):
            total = Region(rank, self.free[rank], base.count)
            self.free[rank] += base.count
        if total != base:
            self.move([(base, total)], COPY, key)
        for operand in operands:
            self.move([(operand, total)], REDUCE, key)
        for target in operation.writes:
            if target != total:
                self.move([(total, target)], COPY, key)

    def move(self, pairs: list[tuple[Region, Region]], op: int, key: tuple[int, int]) -> None:
        """Add the transfers of one step."""
        cells = [
            ((source.rank, source.cell + k), (target.rank, target.cell + k))
            for source, target in pairs
            for k in range(source.count)
        ]
        level = self.floor.get(key, 0)
        for source_cell, target_cell in cells:
            level = max(
                level,
                self.last_write.get(source_cell, -1) + 1,
                self.last_write.get(target_cell, -1) + 1,
                self.last_read.get(target_cell, -1) + 1,
            )
        for source_cell, target_cell in cells:
            self.last_read[source_cell] = max(self.last_read.get(source_cell, -1), level)
            self.last_write[target_cell] = level
        self.last[key] = max(self.last.get(key, -1), level)
        # A switch serves one cell at a time.
        single = op in {MULTICAST, SWITCH_REDUCE}
        for source, target in pairs:
            pieces = [(k, 1) for k in range(source.count)] if single else [(0, source.count)]
            for k, count in pieces:
                row = (
                    source.rank,
                    source.cell + k,
                    target.rank,
                    target.cell + k,
                    count,
                    op,
                    key[1],
                )
                self.rows.setdefault(level, []).append(row)
