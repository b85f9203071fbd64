"""Order between transfers of different channels that touch the same chunk.

Within a channel the order of the steps covers every hazard. Where two channels touch the same chunk, the later transfer has to wait:
a read for the last write (read after write), a write for the last write and for every read since (write after write, write after
read). Inside a step all reads come first, so a write there waits for the reads of other channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Array, Ints, Shorts
from simcoll.core.layout import Layout
from simcoll.core.schedule import REDUCE, SYNC, Schedule, Step, fault, lowered, transfer_text
from simcoll.core.step import distinct, joined, spread

Steps: TypeAlias = Callable[[], Iterable[tuple[int, Step]]]

__all__ = ["by_transfer", "check_orderable", "derive_waits", "hazards", "overwritten", "wait_pairs"]

MOST = 2**20
"""Number of accesses to chunks that are handled together, and of chunks of which there is a table."""
KEPT_ROWS = 2**21
"""Up to this number, transfers are kept between passes, at 29 bytes each: every group of ranks takes a pass."""
BLOCK_ROWS = 2**17
"""Number of transfers of consecutive steps that are handled together."""


class _Block(NamedTuple):
    """Transfers of consecutive steps: first chunk read and written, over all ranks, number of chunks, channel, and operation.

    ``lengths`` are the numbers of transfers of the steps. A message without data has no chunks.
    """

    read: Ints
    written: Ints
    chunks: Ints
    channel: Shorts
    op: NDArray[np.int8]
    lengths: list[int]


Blocks: TypeAlias = Callable[[], Iterable[_Block]]


class _Transfers(NamedTuple):
    """Columns of all transfers; ``step`` counts the steps."""

    channel: Shorts
    op: NDArray[np.int8]
    step: Shorts


class _Accesses(NamedTuple):
    """Reads or writes in order: the transfer, and the cell, which is a chunk or a run of chunks with equal accesses."""

    cell: Shorts
    transfer: Array


class _Versions(NamedTuple):
    """Versions of cells: that which each read finds, and those that each write replaces and makes.

    Cells begin with a version of their own number. The writes of a step to one cell (a fold) make one version.
    """

    read: Shorts
    replaced: Shorts
    made: Shorts


def _blocks(steps: Steps, size: int) -> Iterator[_Block]:
    """The steps in blocks."""
    some: list[Step] = []
    rows = 0
    for _, step in steps():
        if some and rows + len(step) > BLOCK_ROWS:
            yield _block(some, size)
            some, rows = [], 0
        some.append(step)
        rows += len(step)
    if some:
        yield _block(some, size)


def _block(some: list[Step], size: int) -> _Block:
    one = joined(some)
    data = one.op != SYNC  # a message without data may name any chunk
    read, written = ((rank * size + chunk) * data for rank, chunk in one.ends)
    return _Block(
        read, written, one.count * data, one.channel.astype(np.int32), one.op.astype(np.int8), [*map(len, some)]
    )


def _accesses(blocks: Blocks, low: int, high: int, kind: Any) -> tuple[_Accesses, _Accesses, int]:
    """Reads and writes of the chunks ``low .. high - 1``, and the number of cells.

    A reduction's read of its destination is left out: the write stands for it, except in a fold. ``kind`` has room for all numbers.
    """
    first, none = 0, np.zeros(0, kind)
    ends: tuple[list[tuple[Array, Array, Array]], ...] = [(none, none, none)], [(none, none, none)]
    for block in blocks():
        for begin, ranges in zip((block.read, block.written), ends, strict=True):
            here = np.flatnonzero((begin >= low) & (begin < high))
            start = begin[here] - low
            end = start + block.chunks[here]
            ranges.append((start.astype(kind), end.astype(kind), (first + here).astype(kind)))
        first += len(block.chunks)
    (*read, reader), (*written, writer) = (map(np.concatenate, zip(*ranges, strict=True)) for ranges in ends)
    cells, count = _cells([*read, *written], high - low)
    return _spread(cells[0], cells[1], reader), _spread(cells[2], cells[3], writer), count


def _spread(begin: Shorts, end: Shorts, transfer: Array) -> _Accesses:
    """The accesses of transfers to ranges of cells: every number of each range, with its transfer."""
    length = end - begin
    ahead = np.cumsum(length, dtype=np.int32) - length
    cell = np.repeat(begin - ahead, length)
    cell += np.arange(len(cell), dtype=np.int32)
    return _Accesses(cell, np.repeat(transfer, length))


def _cells(edges: list[Array], chunks: int) -> tuple[list[Shorts], int]:
    """The cells at the edges of all ranges of chunks, and the number of cells.

    No transfer begins or ends between two edges, so the chunks there have the same accesses and form one cell.
    """
    if chunks > MOST:
        cuts = distinct(*edges)
        return [np.searchsorted(cuts, edge).astype(np.int32) for edge in edges], len(cuts)
    cut = np.zeros(chunks + 1, np.bool_)
    for edge in edges:
        cut[edge] = True
    cell = np.cumsum(cut, dtype=np.int32)
    return [cell[edge] for edge in edges], int(cell[-1]) + 1


def _versions(reads: _Accesses, writes: _Accesses, cells: int, starts: Ints) -> _Versions:
    """Follow the versions of all cells through the steps, which begin with the transfers ``starts``."""
    now = np.arange(cells, dtype=np.int32)
    names = np.arange(cells, cells + len(writes.cell), dtype=np.int32)
    read, replaced, made = (np.empty(len(of.cell), np.int32) for of in (reads, writes, writes))
    cuts = [pairwise(np.searchsorted(of.transfer, starts).tolist()) for of in (reads, writes)]
    for (a, b), (c, d) in zip(*cuts, strict=True):
        cell = writes.cell[c:d]
        read[a:b] = now[reads.cell[a:b]]
        replaced[c:d] = now[cell]
        now[cell] = names[c:d]
        made[c:d] = now[cell]
    return _Versions(read, replaced, made)


def hazards(cell: Ints, write: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Pairs (later, earlier) of accesses that must stay in order.

    Each access is paired with the last write before it, and each write also with the reads since. Accesses come sorted by cell, and
    within a cell in the order in which they happen.
    """
    at = np.arange(len(cell))
    begin = np.maximum.accumulate(np.where(np.diff(cell, prepend=-1) != 0, at, 0))
    written = np.concatenate([[-1], np.maximum.accumulate(np.where(write, at, -1))])[:-1]
    after = np.flatnonzero(written >= begin)
    writes = np.flatnonzero(write)
    since = np.maximum(written + 1, begin)[writes]
    row, offset = spread(writes - since)
    return np.concatenate([after, writes[row]]), np.concatenate([written[after], since[row] + offset])


def _groups(blocks: Blocks, nranks: int, size: int) -> list[int]:
    """Bounds of the chunks of groups of consecutive ranks, each with few enough accesses to be handled together."""
    total = np.zeros(nranks, np.int64)
    for block in blocks():
        for begin in (block.read, block.written):
            total += np.bincount(begin // max(size, 1), block.chunks, nranks).astype(np.int64)
    group = np.cumsum(total) // MOST
    return [each * size for each in (0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), nranks)]


def _with_overwriters(waits: Ints, swaps: Ints, count: int) -> Ints:
    """Let a transfer that overwrites the source of another in its step and channel inherit the other's waits.

    The reader sets its source aside when its waits are done; only then may the source change. A wait of transfer a for b is encoded as
    ``a * count + b``, and a swap of reader a and writer b likewise.
    """
    readers, writers = swaps // count, swaps % count
    while len(swaps):
        low, high = np.searchsorted(waits, readers * count), np.searchsorted(waits, (readers + 1) * count)
        row, offset = spread(high - low)
        writer, wait = writers[row], waits[low[row] + offset] % count
        more = distinct(waits, (writer * count + wait)[writer != wait])
        if len(more) == len(waits):
            break
        waits = more
    return waits


def _kept(steps: Steps, size: int) -> Blocks:
    """The steps in blocks, which are kept if they are few."""
    kept: list[_Block] = []
    rows = 0
    for block in _blocks(steps, size):
        rows += len(block.chunks)
        if rows > KEPT_ROWS:
            return partial(_blocks, steps, size)
        kept.append(block)
    return partial(iter, kept)


def derive_waits(steps: Steps, nranks: int, size: int) -> dict[int, tuple[int, ...]]:
    """For each transfer, the transfers of other channels that it must wait for: :func:`wait_pairs` as a dictionary."""
    return by_transfer(*wait_pairs(steps, nranks, size))


def by_transfer(later: Array, earlier: Array) -> dict[int, tuple[int, ...]]:
    """Pairs, in order of ``later``, as a dictionary without empty entries."""
    begin, each = np.flatnonzero(np.diff(later, prepend=-1)), earlier.tolist()
    edges = [*begin.tolist(), len(later)]
    return {a: tuple(each[b:c]) for a, (b, c) in zip(later[begin].tolist(), pairwise(edges), strict=True)}


def wait_pairs(steps: Steps, nranks: int, size: int) -> tuple[Array, Array]:
    """Pairs of transfers of different channels, the first of which must wait for the second.

    Parameters
    ----------
    steps
        Yields numbered steps afresh at each call, with in-place aliases resolved, such as ``plan.transfers``.
    nranks, size
        Number of ranks, and of chunks per rank (``layout.size``).

    Returns
    -------
    tuple
        Running numbers of the waiting transfers, in order, and of the transfers that they wait for.
    """
    waits, swaps, count = _encoded(_kept(steps, size), nranks, size)
    waits = _with_overwriters(waits, swaps, count)
    kind = np.int32 if count < 2**31 else np.int64  # there may be millions, and they are kept
    return (waits // count).astype(kind), (waits % count).astype(kind)


def _encoded(blocks: Blocks, nranks: int, size: int) -> tuple[Ints, Ints, int]:
    """The pairs of :func:`_tied` for all transfers, as :func:`_with_overwriters` takes them."""
    none = np.zeros(0, np.int64)
    columns = [(none, none, none), *((block.channel, block.op, np.array(block.lengths)) for block in blocks())]
    channel, op, lengths = (np.concatenate(column) for column in zip(*columns, strict=True))
    step = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    of = _Transfers(channel.astype(np.int32), op.astype(np.int8), step)
    count, starts = max(len(channel), 1), np.append(0, np.cumsum(lengths))
    found, beside = [none], [none]
    for low, high in pairwise(_groups(blocks, nranks, size)):
        kind = np.int32 if max(count, high - low) < 2**31 else np.int64
        reads, writes, cells = _accesses(blocks, low, high, kind)
        across, inside = _tied(reads, writes, _versions(reads, writes, cells, starts), cells, of)
        for pairs, (first, second) in ((found, across), (beside, inside)):
            pairs.append(first.astype(np.int64) * count + second)
    return distinct(*found), distinct(*beside), count


def _tied(
    reads: _Accesses, writes: _Accesses, versions: _Versions, cells: int, of: _Transfers
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Pairs (later, earlier) of different channels that must stay in order, and pairs (reader, writer) of one step and channel."""
    read, replaced, made = versions
    reader, writer = reads.transfer, writes.transfer
    order = size = begin = np.zeros(0, np.int32)
    folds = bool((made != np.arange(cells, cells + len(made))).any())
    if folds:
        order = np.argsort(made, kind="stable").astype(np.int32)
        size = np.bincount(made - cells, minlength=len(made)).astype(np.int32)
        begin = np.cumsum(size, dtype=np.int32) - size
        also = of.op[writer] == REDUCE  # each reads what others of its fold overwrite
        read, reader = np.append(read, replaced[also]), np.append(reader, writer[also])

    def makers(version: Shorts, owner: Array) -> tuple[Array, Array]:
        """Pairs of an owner of a version and a transfer that made it."""
        rows = np.flatnonzero(version >= cells)
        write, owner = version[rows] - cells, owner[rows]
        if not folds:
            return owner, writer[write]
        place, owner = _spread(begin[write], begin[write] + size[write], owner)
        return owner, writer[order[place]]

    after, before = makers(np.append(read, replaced), np.append(reader, writer))
    across = of.channel[after] != of.channel[before]
    later, earlier = after[across], before[across]
    following = np.full(cells + len(made), -1, np.int32)
    following[replaced] = made
    before, after = makers(following[read], reader)
    across = of.channel[after] != of.channel[before]
    later, earlier = np.append(later, after[across]), np.append(earlier, before[across])
    before, after = before[~across], after[~across]
    inside = (of.step[after] == of.step[before]) & (after != before)
    return (later, earlier), (before[inside], after[inside])


def overwritten(layout: Layout, step: Step) -> NDArray[np.bool_]:
    """Mask of the transfers that read a chunk which a transfer of the same step writes."""
    data = step.op != SYNC
    start = step.dst_rank * layout.size + step.dst_chunk
    order = np.argsort(start, kind="stable")
    if not data.all():
        order = order[data[order]]
    first = start[order]
    end = np.maximum.accumulate(first + step.count[order])
    read = step.src_rank * layout.size + step.src_chunk
    # Of the writes that start before the end of a read, the last to end reaches into the read if any does.
    place = np.searchsorted(first, read + step.count) - 1
    if len(first) == 0:
        return np.zeros(len(step), np.bool_)
    reached: NDArray[np.bool_] = (place >= 0) & (end[place] > read) & data
    return reached


def check_orderable(schedule: Schedule) -> None:
    """Refuse channels that exchange chunks in a cycle inside one step, which no order in time can do.

    Raises
    ------
    ScheduleError
        Names the step and one of the transfers.
    """
    # A transfer waits inside its step only for one whose source it overwrites; most schedules have no such transfer.
    exchanging = (
        (step.channel != step.channel[:1]).any() and overwritten(schedule.layout, step).any()
        for _, step in lowered(schedule)
    )
    if not any(exchanging):
        return
    waits, first = derive_waits(lambda: lowered(schedule), schedule.nranks, schedule.layout.size), 0
    for number, step in lowered(schedule):
        inside = {n: [w for w in waits.get(n, ()) if w >= first] for n in range(first, first + len(step))}
        try:
            TopologicalSorter(inside).prepare()
        except CycleError as error:
            rows = sorted({transfer - first for transfer in error.args[1]})
            ends = ", ".join(transfer_text(schedule.layout, step, row) for row in rows[:4])
            message = (
                f"transfers of different channels overwrite what each other read: {ends}. Use one channel or two steps."
            )
            raise fault(number, step, rows[0], f"{schedule}: step {number}: {message}") from None
        first += len(step)
