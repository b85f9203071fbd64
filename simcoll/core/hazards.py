"""Order between transfers of different channels that touch the same chunk.

Within a channel the order of the steps covers every hazard. Where two channels touch the same
chunk, the later transfer has to wait: a read for the last write (read after write), a write for the
last write and for every read since (write after write, write after read). Inside a step all reads
come first, so a write there waits for the reads of other channels.
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

__all__ = [
    "by_transfer",
    "check_orderable",
    "derive_waits",
    "hazards",
    "overwritten_sources",
    "wait_pairs",
]

MOST = 2**20
"""Number of accesses to chunks that are handled together, and of chunks of which there is a
table.
"""
KEPT_ROWS = 2**24
"""Up to this number, transfers are kept between passes, at 17 bytes each as a rule: every group of
ranks takes a pass, and to generate the steps again takes longer than all the rest.
"""
BLOCK_ROWS = 2**17
"""Number of transfers of consecutive steps that are handled together."""


class _TransferBlock(NamedTuple):
    """Transfers of consecutive steps: first chunk of source and target, over all ranks, number of
    chunks, channel, and operation.

    ``lengths`` are the numbers of transfers of the steps. A message without data has no chunks.
    """

    source: Array
    target: Array
    chunks: Array
    channel: Shorts
    op: NDArray[np.int8]
    lengths: list[int]


Blocks: TypeAlias = Callable[[], Iterable[_TransferBlock]]


class _Transfers(NamedTuple):
    """Columns of all transfers; ``step`` counts the steps."""

    channel: Shorts
    op: NDArray[np.int8]
    step: Shorts


class _Accesses(NamedTuple):
    """Reads or writes in order: the transfer, and the cell, which is a chunk or a run of chunks
    with equal accesses.
    """

    cell: Shorts
    transfer: Array


class _Versions(NamedTuple):
    """Versions of cells: that which each read observes, and those that each write replaces and
    creates.

    Cells begin with a version of their own number. The writes of a step to one cell (a fold) make
    one version.
    """

    observed: Shorts
    replaced: Shorts
    created: Shorts


def _blocks(steps: Steps, nranks: int, size: int) -> Iterator[_TransferBlock]:
    """The steps in blocks."""
    kind = np.int32 if nranks * size < 2**31 else np.int64
    some: list[Step] = []
    rows = 0
    for _, step in steps():
        if some and rows + len(step) > BLOCK_ROWS:
            yield _block(some, size, kind)
            some, rows = [], 0
        some.append(step)
        rows += len(step)
    if some:
        yield _block(some, size, kind)


def _block(steps: list[Step], size: int, kind: Any) -> _TransferBlock:
    """A block of steps; ``kind`` has room for all chunks of all ranks."""
    step = joined(steps)
    data = step.op != SYNC  # a message without data may name any chunk
    source, target = (((rank * size + chunk) * data).astype(kind) for rank, chunk in step.ends)
    return _TransferBlock(
        source,
        target,
        (step.count * data).astype(kind),
        step.channel.astype(np.int32),
        step.op.astype(np.int8),
        [*map(len, steps)],
    )


def _accesses(blocks: Blocks, low: int, high: int, kind: Any) -> tuple[_Accesses, _Accesses, int]:
    """Reads and writes of the chunks ``low .. high - 1``, and the number of cells.

    A reduction's read of its destination is left out: the write stands for it, except in a fold.
    ``kind`` has room for all numbers.
    """
    base = 0
    none = np.zeros(0, kind)
    ends: tuple[list[tuple[Array, Array, Array]], ...] = [(none, none, none)], [(none, none, none)]
    for block in blocks():
        for begin, ranges in zip((block.source, block.target), ends, strict=True):
            rows = np.flatnonzero((begin >= low) & (begin < high))
            start = begin[rows] - low
            end = start + block.chunks[rows]
            ranges.append((start.astype(kind), end.astype(kind), (base + rows).astype(kind)))
        base += len(block.chunks)
    (*read_edges, reader), (*write_edges, writer) = (
        map(np.concatenate, zip(*ranges, strict=True)) for ranges in ends
    )
    cells, count = _cells([*read_edges, *write_edges], high - low)
    return _spread(cells[0], cells[1], reader), _spread(cells[2], cells[3], writer), count


def _spread(begin: Shorts, end: Shorts, transfer: Array) -> _Accesses:
    """The accesses of transfers to ranges of cells: every number of each range, with its
    transfer.
    """
    length = end - begin
    ahead = np.cumsum(length, dtype=np.int32) - length
    cell = np.repeat(begin - ahead, length)
    cell += np.arange(len(cell), dtype=np.int32)
    return _Accesses(cell, np.repeat(transfer, length))


def _cells(edges: list[Array], chunks: int) -> tuple[list[Shorts], int]:
    """The cells at the edges of all ranges of chunks, and the number of cells.

    No transfer begins or ends between two edges, so the chunks there have the same accesses and
    form one cell.
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
    """Follow the versions of all cells through the steps, which begin with the transfers
    ``starts``.
    """
    version = np.arange(cells, dtype=np.int32)
    names = np.arange(cells, cells + len(writes.cell), dtype=np.int32)
    observed, replaced, created = (
        np.empty(len(of.cell), np.int32) for of in (reads, writes, writes)
    )
    cuts = [pairwise(np.searchsorted(of.transfer, starts).tolist()) for of in (reads, writes)]
    for (a, b), (c, d) in zip(*cuts, strict=True):
        cell = writes.cell[c:d]
        observed[a:b] = version[reads.cell[a:b]]
        replaced[c:d] = version[cell]
        version[cell] = names[c:d]
        created[c:d] = version[cell]
    return _Versions(observed, replaced, created)


def hazards(cell: Ints, write: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Pairs (later, earlier) of accesses that must stay in order.

    Each access is paired with the last write before it, and each write also with the reads since.
    Accesses come sorted by cell, and within a cell in the order in which they happen.
    """
    position = np.arange(len(cell))
    begin = np.maximum.accumulate(np.where(np.diff(cell, prepend=-1) != 0, position, 0))
    last_write = np.concatenate([[-1], np.maximum.accumulate(np.where(write, position, -1))])[:-1]
    followers = np.flatnonzero(last_write >= begin)
    writes = np.flatnonzero(write)
    since = np.maximum(last_write + 1, begin)[writes]
    row, offset = spread(writes - since)
    return np.concatenate([followers, writes[row]]), np.concatenate(
        [last_write[followers], since[row] + offset]
    )


def _groups(blocks: Blocks, nranks: int, size: int) -> list[int]:
    """Bounds of the chunks of groups of consecutive ranks, each with few enough accesses to be
    handled together.
    """
    total = np.zeros(nranks, np.int64)
    for block in blocks():
        for begin in (block.source, block.target):
            total += np.bincount(begin // max(size, 1), block.chunks, nranks).astype(np.int64)
    group = np.cumsum(total) // MOST
    return [bound * size for bound in (0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), nranks)]


def _with_overwriters(waits: Ints, swaps: Ints, count: int) -> Ints:
    """Let a transfer that overwrites the source of another in its step and channel inherit the
    other's waits.

    The reader sets its source aside when its waits are done; only then may the source change. A
    wait of transfer a for b is encoded as ``a * count + b``, and a swap of reader a and writer b
    likewise.
    """
    readers = swaps // count
    writers = swaps % count
    while len(swaps):
        low = np.searchsorted(waits, readers * count)
        high = np.searchsorted(waits, (readers + 1) * count)
        row, offset = spread(high - low)
        writer = writers[row]
        wait = waits[low[row] + offset] % count
        extended = distinct(waits, (writer * count + wait)[writer != wait])
        if len(extended) == len(waits):
            break
        waits = extended
    return waits


def _block_source(steps: Steps, nranks: int, size: int) -> Blocks:
    """The steps in blocks, which are kept if they are few."""
    blocks: list[_TransferBlock] = []
    rows = 0
    for block in _blocks(steps, nranks, size):
        rows += len(block.chunks)
        if rows > KEPT_ROWS:
            return partial(_blocks, steps, nranks, size)
        blocks.append(block)
    return partial(iter, blocks)


def derive_waits(steps: Steps, nranks: int, size: int) -> dict[int, tuple[int, ...]]:
    """For each transfer, the transfers of other channels that it must wait for: :func:`wait_pairs`
    as a dictionary.
    """
    return by_transfer(*wait_pairs(steps, nranks, size))


def by_transfer(later: Array, earlier: Array) -> dict[int, tuple[int, ...]]:
    """Pairs, in order of ``later``, as a dictionary without empty entries."""
    begin = np.flatnonzero(np.diff(later, prepend=-1))
    awaited = earlier.tolist()
    edges = [*begin.tolist(), len(later)]
    return {
        a: tuple(awaited[b:c])
        for a, (b, c) in zip(later[begin].tolist(), pairwise(edges), strict=True)
    }


def wait_pairs(steps: Steps, nranks: int, size: int) -> tuple[Array, Array]:
    """Pairs of transfers of different channels, the first of which must wait for the second.

    Parameters
    ----------
    steps
        Yields numbered steps afresh at each call, with in-place aliases resolved, such as
        ``plan.transfers``.
    nranks, size
        Number of ranks, and of chunks per rank (``layout.size``).

    Returns
    -------
    tuple
        Running numbers of the waiting transfers, in order, and of the transfers that they wait for.
    """
    waits, swaps, count = _encode(_block_source(steps, nranks, size), nranks, size)
    waits = _with_overwriters(waits, swaps, count)
    kind = np.int32 if count < 2**31 else np.int64  # there may be millions, and they are kept
    return (waits // count).astype(kind), (waits % count).astype(kind)


def _encode(blocks: Blocks, nranks: int, size: int) -> tuple[Ints, Ints, int]:
    """The pairs of :func:`_ordered_pairs` for all transfers, as :func:`_with_overwriters` takes
    them.
    """
    none = np.zeros(0, np.int64)
    columns = [
        (none, none, none),
        *((block.channel, block.op, np.array(block.lengths)) for block in blocks()),
    ]
    channel, op, lengths = (np.concatenate(column) for column in zip(*columns, strict=True))
    step = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    of = _Transfers(channel.astype(np.int32), op.astype(np.int8), step)
    count = max(len(channel), 1)
    starts = np.append(0, np.cumsum(lengths))
    waits, swaps = [none], [none]
    for low, high in pairwise(_groups(blocks, nranks, size)):
        kind = np.int32 if max(count, high - low) < 2**31 else np.int64
        reads, writes, cells = _accesses(blocks, low, high, kind)
        across, overwriting = _ordered_pairs(
            reads, writes, _versions(reads, writes, cells, starts), cells, of
        )
        for codes, (major, minor) in ((waits, across), (swaps, overwriting)):
            codes.append(major.astype(np.int64) * count + minor)
    return distinct(*waits), distinct(*swaps), count


def _ordered_pairs(
    reads: _Accesses, writes: _Accesses, versions: _Versions, cells: int, of: _Transfers
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Pairs (later, earlier) of different channels that must stay in order, and pairs (reader,
    writer) of one step and channel.
    """
    observed, replaced, created = versions
    reader = reads.transfer
    writer = writes.transfer
    order = size = begin = np.zeros(0, np.int32)
    folds = bool((created != np.arange(cells, cells + len(created))).any())
    if folds:
        order = np.argsort(created, kind="stable").astype(np.int32)
        size = np.bincount(created - cells, minlength=len(created)).astype(np.int32)
        begin = np.cumsum(size, dtype=np.int32) - size
        operand = of.op[writer] == REDUCE  # each reads what others of its fold overwrite
        observed = np.append(observed, replaced[operand])
        reader = np.append(reader, writer[operand])

    def makers(version: Shorts, owner: Array) -> tuple[Array, Array]:
        """Pairs of an owner of a version and a transfer that made it."""
        rows = np.flatnonzero(version >= cells)
        write = version[rows] - cells
        owner = owner[rows]
        if not folds:
            return owner, writer[write]
        place, owner = _spread(begin[write], begin[write] + size[write], owner)
        return owner, writer[order[place]]

    # A read waits for the writer of the version that it observes, a write for that of the version
    # that it replaces.
    accessor, maker = makers(np.append(observed, replaced), np.append(reader, writer))
    across = of.channel[accessor] != of.channel[maker]
    later, earlier = accessor[across], maker[across]
    # The writer of the next version waits for the readers of this one.
    following = np.full(cells + len(created), -1, np.int32)
    following[replaced] = created
    reader, overwriter = makers(following[observed], reader)
    across = of.channel[overwriter] != of.channel[reader]
    later = np.append(later, overwriter[across])
    earlier = np.append(earlier, reader[across])
    reader, overwriter = reader[~across], overwriter[~across]
    same_step = (of.step[overwriter] == of.step[reader]) & (overwriter != reader)
    return (later, earlier), (reader[same_step], overwriter[same_step])


def overwritten_sources(layout: Layout, step: Step) -> NDArray[np.bool_]:
    """Mask of the transfers that read a chunk which a transfer of the same step writes."""
    data = step.op != SYNC
    start = step.dst_rank * layout.size + step.dst_chunk
    order = np.argsort(start, kind="stable")
    if not data.all():
        order = order[data[order]]
    write_start = start[order]
    write_end = np.maximum.accumulate(write_start + step.count[order])
    read_start = step.src_rank * layout.size + step.src_chunk
    # Of the writes that start before the end of a read, the last to end reaches into the read if
    # any does.
    place = np.searchsorted(write_start, read_start + step.count) - 1
    if len(write_start) == 0:
        return np.zeros(len(step), np.bool_)
    reached: NDArray[np.bool_] = (place >= 0) & (write_end[place] > read_start) & data
    return reached


def overwrites_across(layout: Layout, step: Step) -> bool:
    """Whether a transfer reads a chunk that a transfer of another channel writes in the same
    step.
    """
    data = step.op != SYNC
    write_start = step.dst_rank * layout.size + step.dst_chunk
    order = np.flatnonzero(data)[np.argsort(write_start[data], kind="stable")]
    if not len(order):
        return False
    # What is written is apart, or one fold of one channel.
    write_start, channel = write_start[order], step.channel[order]
    write_end = np.maximum.accumulate(write_start + step.count[order])
    changes = np.cumsum(np.append(False, channel[1:] != channel[:-1]))
    read_start = (step.src_rank * layout.size + step.src_chunk)[data]
    lowest = np.searchsorted(write_end, read_start, side="right")
    highest = np.searchsorted(write_start, read_start + step.count[data]) - 1
    overwritten = np.flatnonzero(lowest <= highest)
    lowest, highest = lowest[overwritten], highest[overwritten]
    crosses = channel[lowest] != step.channel[data][overwritten]
    return bool((crosses | (changes[lowest] != changes[highest])).any())


def check_orderable(schedule: Schedule) -> None:
    """Refuse channels that exchange chunks in a cycle inside one step, which no order in time can
    do.

    Raises
    ------
    ScheduleError
        Names the step and one of the transfers.
    """
    # A transfer waits inside its step only for one of another channel whose source it overwrites;
    # most schedules have no such transfer.
    exchanging = (
        (step.channel != step.channel[:1]).any() and overwrites_across(schedule.layout, step)
        for _, step in lowered(schedule)
    )
    if not any(exchanging):
        return
    later, earlier = wait_pairs(lambda: lowered(schedule), schedule.nranks, schedule.layout.size)
    base = 0
    for number, step in lowered(schedule):
        begin, end = np.searchsorted(later, (base, base + len(step)))
        in_step = begin + np.flatnonzero(earlier[begin:end] >= base)
        step_waits: dict[int, list[int]] = {}
        for transfer, awaited in zip(
            later[in_step].tolist(), earlier[in_step].tolist(), strict=True
        ):
            step_waits.setdefault(transfer, []).append(awaited)
        try:
            TopologicalSorter(step_waits).prepare()
        except CycleError as error:
            rows = sorted({transfer - base for transfer in error.args[1]})
            ends = ", ".join(transfer_text(schedule.layout, step, row) for row in rows[:4])
            message = (
                f"transfers of different channels overwrite what each other read: {ends}. "
                "Use one channel or two steps."
            )
            raise fault(number, step, rows[0], f"{schedule}: step {number}: {message}") from None
        base += len(step)
