"""Programs of thread blocks that read and write each other's memory: what MSCCL++ execution plans say.

Unlike in a :class:`~simcoll.core.rank_program.RankProgram`, nothing is sent: a thread block loads and stores in any rank's memory, and all
order comes from signals, semaphores, barriers and packets. Memory is addressed by *cell*: a chunk, or a part of one where thread blocks
share it. A rank has the cells of its input, then its output, then scratch, then packets, which carry their own flag.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simcoll.core.collective import Collective
from simcoll.core.layout import Layout

__all__ = ["EACH", "FOLD", "SWITCH", "DeviceOp", "DeviceProgram", "Region"]

EACH, FOLD, SWITCH = "each", "fold", "switch"
"""What an operation writes: each region that it reads to the region at the same place; the reduction of all, in order, to every one; the
reduction in the order of a switch, to every one."""


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive cells of a rank's memory, aliases resolved."""

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
        As in the file.
    how
        :data:`EACH`, :data:`FOLD` or :data:`SWITCH`; empty for operations without data.
    reads, writes
        What it reads, in the order of the reduction, and what it writes.
    fence
        All threads of the block meet: it follows all before it and comes before all after it.
    signals, waits
        One-way counters that it raises and waits for: ``(from rank, to rank, number)``; thread i of the block handles the i-th.
    relaxed
        Its signals and waits order what is executed, not what is visible.
    acquires, releases
        Semaphores of its rank.
    barrier
        Barrier of its rank, which is a fence too, and the number of blocks that meet there; None for others.
    proxies
        A proxy moves the data, or raises the counters, some time later. What it does for one counter it does in order; here are the
        counters whose proxies move data.
    proxied
        Its signals are raised by proxies.
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
        For each rank its thread blocks, for each its operations in order.
    buffers
        Cells of input, output, scratch and packets of every rank.
    collective
        What it implements; None when that is not known.
    cells
        Cells per block of the collective.
    pieces
        Cells of a chunk.
    in_place
        Output and input share memory.
    protocol
        ``Simple`` or ``LL``.
    semaphores
        Initial value of each semaphore of every rank.
    min_bytes, max_bytes
        Sizes that it is meant for.
    """

    name: str
    blocks: tuple[tuple[tuple[DeviceOp, ...], ...], ...]
    buffers: tuple[int, int, int, int]
    collective: Collective | None
    cells: int
    pieces: int = 1
    in_place: bool = False
    protocol: str = "Simple"
    semaphores: tuple[tuple[int, ...], ...] = ()
    min_bytes: int = 0
    max_bytes: int = 2**64 - 1

    @property
    def nranks(self) -> int:
        """World size."""
        return len(self.blocks)

    @property
    def layout(self) -> Layout | None:
        """Cell addresses of the collective; None when that is not known."""
        return None if self.collective is None else Layout(self.collective, self.cells)

    @property
    def size(self) -> int:
        """Cells of a rank's memory."""
        return sum(self.buffers)

    @property
    def packets(self) -> int:
        """First cell of the packets."""
        return sum(self.buffers[:3])

    def operations(self) -> Iterator[tuple[int, int, int, DeviceOp]]:
        """``(rank, block, position, operation)`` of all."""
        for rank, blocks in enumerate(self.blocks):
            for block, operations in enumerate(blocks):
                for position, operation in enumerate(operations):
                    yield rank, block, position, operation

    def place(self, region: Region) -> str:
        """A region in a person's words: ``rank 1 input[2..3]``."""
        base = 0
        for name, size in zip(("input", "output", "scratch", "packet"), self.buffers, strict=True):
            if region.cell < base + size or name == "packet":
                first, last = (
                    cell // self.pieces for cell in (region.cell - base, region.cell - base + region.count - 1)
                )
                return f"rank {region.rank} {name}[{first}{f'..{last}' * (last > first)}]"
            base += size
        return ""

    def __str__(self) -> str:
        what = f"{self.collective}" if self.collective else f"custom n={self.nranks}"
        return f"{self.name} {what}"
