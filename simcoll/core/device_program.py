"""Programs of thread blocks that access each other's memory, as in MSCCL++ execution plans.

Unlike in a :class:`~simcoll.core.rank_program.RankProgram`, nothing is sent: a thread block loads
from and stores to the memory of any rank, and only signals, semaphores, barriers and packets order
these accesses. Memory is addressed by *cell*: a chunk, or a part of one where thread blocks share
it. A rank's cells are those of its input, output, scratch and packets, in this order; packets carry
flags.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simcoll.core.collective import Collective
from simcoll.core.layout import Layout
from simcoll.core.vocabulary import NcclProtocol

__all__ = ["EACH", "FOLD", "SWITCH", "DeviceOp", "DeviceProgram", "Region"]

EACH, FOLD, SWITCH = "each", "fold", "switch"
"""What an operation writes. ``EACH``: a copy of each region that it reads. ``FOLD``: the reduction
of all of them, in order, to every destination. ``SWITCH``: the same in the order of a switch.
"""


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive cells of a rank's memory, with aliases resolved."""

    rank: int
    cell: int
    count: int

    @property
    def cells(self) -> range:
        """Their numbers."""
        return range(self.cell, self.cell + self.count)


@dataclass(frozen=True, slots=True)
class DeviceOp:
    """One operation of a thread block.

    Attributes
    ----------
    name
        The operation's name in the file.
    how
        :data:`EACH`, :data:`FOLD` or :data:`SWITCH`; empty for an operation without data.
    reads, writes
        Regions read, in the order of the reduction, and regions written.
    fence
        All threads of the block meet: the operation follows all before it and precedes all after
        it.
    signals, waits
        One-way counters that the operation raises and waits for: ``(from rank, to rank, number)``;
        thread i of the block handles the i-th.
    relaxed
        The signals and waits order execution, not visibility.
    acquires, releases
        Semaphores of the same rank.
    barrier
        Barrier of the same rank (also a fence) and the number of blocks that meet there; None for
        other operations.
    proxies
        Counters whose proxies move data. A proxy moves data or raises counters at some later time;
        its actions for one counter are in order.
    proxied
        The signals are raised by proxies.
    """

    name: str
    how: str = ""
    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()
    fence: bool = False
    signals: tuple[tuple[int, int, int], ...] = ()
    waits: tuple[tuple[int, int, int], ...] = ()
    relaxed: bool = False
    acquires: tuple[int, ...] = ()
    releases: tuple[int, ...] = ()
    barrier: tuple[int, int] | None = None
    proxies: tuple[tuple[int, int, int], ...] = ()
    proxied: bool = False


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """The thread blocks of every rank.

    Attributes
    ----------
    name
        Shown in messages.
    blocks
        For each rank its thread blocks, and for each of these its operations in order.
    buffers
        Number of cells of input, output, scratch and packets on every rank.
    collective
        The collective that the program implements; None if unknown.
    cells
        Cells per block of the collective.
    pieces
        Cells per chunk.
    in_place
        Output and input share memory.
    protocol
        ``Simple`` or ``LL``.
    semaphores
        Initial value of each semaphore of every rank.
    min_bytes, max_bytes
        Range of sizes that the program is meant for.
    """

    name: str
    blocks: tuple[tuple[tuple[DeviceOp, ...], ...], ...]
    buffers: tuple[int, int, int, int]
    collective: Collective | None
    cells: int
    pieces: int = 1
    in_place: bool = False
    protocol: NcclProtocol = "Simple"
    semaphores: tuple[tuple[int, ...], ...] = ()
    min_bytes: int = 0
    max_bytes: int = 2**64 - 1

    @property
    def nranks(self) -> int:
        """World size."""
        return len(self.blocks)

    @property
    def layout(self) -> Layout | None:
        """Cell addresses of the collective; None if the collective is unknown."""
        return None if self.collective is None else Layout(self.collective, self.cells)

    @property
    def size(self) -> int:
        """Number of cells of a rank's memory."""
        return sum(self.buffers)

    @property
    def packets(self) -> int:
        """First cell of the packets."""
        return sum(self.buffers[:3])

    def operations(self) -> Iterator[tuple[int, int, int, DeviceOp]]:
        """Every operation, as ``(rank, block, position, operation)``."""
        for rank, blocks in enumerate(self.blocks):
            for block, operations in enumerate(blocks):
                for position, operation in enumerate(operations):
                    yield rank, block, position, operation

    def place(self, region: Region) -> str:
        """A region in words: ``rank 1 input[2..3]``."""
        base = 0
        for name, size in zip(("input", "output", "scratch", "packet"), self.buffers, strict=True):
            if region.cell < base + size or name == "packet":
                first_chunk, last_chunk = (
                    cell // self.pieces
                    for cell in (region.cell - base, region.cell - base + region.count - 1)
                )
                return (
                    f"rank {region.rank} "
                    f"{name}[{first_chunk}{f'..{last_chunk}' * (last_chunk > first_chunk)}]"
                )
            base += size
        return ""

    def __str__(self) -> str:
        subject = f"{self.collective}" if self.collective else f"custom n={self.nranks}"
        return f"{self.name} {subject}"
