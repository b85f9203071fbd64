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

from simcoll.arrays import Array, Ints
from simcoll.core.layout import Layout
from simcoll.core.schedule import REDUCE, SYNC, Schedule, Step, fault, lowered, transfer_text
from simcoll.core.step import distinct, joined, spread

Steps: TypeAlias = Callable[[], Iterable[tuple[int, Step]]]

__all__ = ["by_transfer", "check_orderable", "derive_waits", "hazards", "overwritten", "wait_pairs"]

MOST = 2**20
"""Number of accesses sorted at a time."""
LONG = 4
"""With more chunks than this per transfer, runs of chunks with equal accesses become one cell."""
KEPT_ROWS = 2**21
"""Up to this number, transfers are kept between passes, at some 68 bytes each: every group of ranks takes a pass."""
BLOCK_ROWS = 2**17
"""Number of transfers of consecutive steps that are handled together."""


class _Accesses(NamedTuple):
    """Reads and writes by cell (a chunk or a run of chunks), in step order; within a step, reads first."""

    cell: Ints
    transfer: Ints
    writes: NDArray[np.bool_]


class _Block(NamedTuple):
    """Consecutive steps as one; for each transfer its step's number and length, and the number of transfers before that step."""

    step: Step
    number: Ints
    length: Ints
    before: Ints


Blocks: TypeAlias = Callable[[], Iterable[_Block]]


def _blocks(steps: Steps) -> Iterator[_Block]:
    """The steps in blocks."""
    some: list[tuple[int, Step]] = []
    rows = 0
    for each in steps():
        if some and rows + len(each[1]) > BLOCK_ROWS:
            yield _block(some)
            some, rows = [], 0
        some.append(each)
        rows += len(each[1])
    if some:
        yield _block(some)


def _block(some: list[tuple[int, Step]]) -> _Block:
    length = np.array([len(step) for _, step in some], np.int32)
    columns = (np.array([number for number, _ in some], np.int32), length, np.cumsum(length, dtype=np.int32) - length)
    return _Block(joined([step for _, step in some]), *(np.repeat(column, length) for column in columns))


def _accesses(blocks: Blocks, size: int, low: int, high: int) -> _Accesses:
    """The accesses to the memory of ranks ``low .. high - 1``."""
    first = 0
    none = np.zeros(0, np.int64)
    found: list[tuple[Ints, ...]] = [(none, none, none, none)]
    for step, _, length, before in blocks():
        place = (
            3 * first + 2 * before + np.arange(len(step))
        )  # of its first access, where a step has three times its transfers
        for rank, chunk, done, write in (
            (step.src_rank, step.src_chunk, step.op != SYNC, 0),
            (step.dst_rank, step.dst_chunk, step.op == REDUCE, 0),
            (step.dst_rank, step.dst_chunk, step.op != SYNC, 1),
        ):
            here = np.flatnonzero(done & (rank >= low) & (rank < high))
            begin = (rank[here] - low) * size + chunk[here]
            found.append((begin, begin + step.count[here], 2 * (first + here) + write, place[here]))
            place += length
        first += len(step)
    begin, end, access, place = [np.concatenate(column) for column in zip(*found, strict=True)]
    order = np.argsort(place, kind="stable")
    begin, end, access = begin[order], end[order], access[order]
    bits = len(begin).bit_length()
    if (end - begin).sum() > LONG * len(begin) or int(end.max(initial=0)) >> 62 - bits:
        # No transfer begins or ends between two cuts, so the chunks there have the same accesses and form one cell.
        cuts = distinct(begin, end)
        begin, end = np.searchsorted(cuts, begin), np.searchsorted(cuts, end)
    count = end - begin
    ahead = begin - np.cumsum(count) + count
    key = np.repeat((ahead << bits) + np.arange(len(begin)), count)
    key += np.arange(len(key)) << bits
    key.sort(kind="stable")  # much faster than an argsort of the cells
    cell, row = key >> bits, key & (1 << bits) - 1
    access = access[row]
    return _Accesses(cell, access >> 1, access & 1 == 1)


def hazards(cell: Ints, write: NDArray[np.bool_], step: Ints | None = None) -> tuple[Ints, Ints]:
    """Pairs (later, earlier) of accesses that must stay in order.

    Each access is paired with the last write before it, and each write also with the reads since. Accesses come sorted by cell, and
    within a cell in the order in which they happen. Writes of one ``step`` (a fold) count as one.
    """
    at = np.arange(len(cell))
    new = np.diff(cell, prepend=-1) != 0
    begin = np.maximum.accumulate(np.where(new, at, 0))
    first = at
    if step is not None:
        new |= (np.diff(step, prepend=-1) != 0) | ~write | np.concatenate([[True], ~write])[: len(at)]
        first = np.maximum.accumulate(np.where(new, at, 0))
    written = np.concatenate([[-1], np.maximum.accumulate(np.where(write, at, -1))])
    written = written[:-1] if step is None else written[first]
    after = np.flatnonzero(written >= begin)
    last = written[after]
    each: Any = slice(None)
    back: Ints | int = 0
    if step is not None:
        each, back = spread(last - first[last] + 1)
    writes = np.flatnonzero(write)
    since = np.maximum(written + 1, begin)[writes]
    row, offset = spread(first[writes] - since)
    return np.concatenate([after[each], writes[row]]), np.concatenate([last[each] - back, since[row] + offset])


def _rank_groups(blocks: Blocks, nranks: int) -> list[int]:
    """Bounds of groups of consecutive ranks, each with few enough accesses to be sorted together."""
    total = np.zeros(nranks, np.int64)
    for block in blocks():
        step = block.step
        for rank in (step.src_rank, step.dst_rank, step.dst_rank):
            total += np.bincount(rank, step.count, nranks).astype(np.int64)
    group = np.cumsum(total) // MOST
    return [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), nranks]


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


def _kept(steps: Steps) -> Blocks:
    """The steps in blocks, which are kept if they are few."""
    kept: list[_Block] = []
    rows = 0
    for block in _blocks(steps):
        rows += len(block.step)
        if rows > KEPT_ROWS:
            return partial(_blocks, steps)
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
    blocks, none = _kept(steps), np.zeros(0, np.int64)
    columns = [
        (none, none),
        *((block.step.channel.astype(np.int32), block.number) for block in blocks()),
    ]
    channel, number = (np.concatenate(column) for column in zip(*columns, strict=True))
    count = max(len(channel), 1)
    found, beside = [none], [none]
    for low, high in pairwise(_rank_groups(blocks, nranks)):
        across, inside = _tied(_accesses(blocks, size, low, high), channel, number)
        found.append(across[0] * count + across[1])
        beside.append(inside[0] * count + inside[1])
    waits = _with_overwriters(distinct(*found), distinct(*beside), count)
    kind = np.int32 if count < 2**31 else np.int64  # there may be millions, and they are kept
    return (waits // count).astype(kind), (waits % count).astype(kind)


def _tied(of: _Accesses, channel: Array, number: Array) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """Pairs (later, earlier) of different channels that must stay in order, and pairs (reader, writer) of one step and channel."""
    again = np.flatnonzero((np.diff(of.cell) == 0) & of.writes[1:] & of.writes[:-1])
    folds = (number[of.transfer[again]] == number[of.transfer[again + 1]]).any()
    after, before = hazards(of.cell, of.writes, number[of.transfer] if folds else None)
    later, earlier = of.transfer[after], of.transfer[before]
    across = channel[later] != channel[earlier]
    inside = ~across & (number[later] == number[earlier]) & of.writes[after] & ~of.writes[before] & (later != earlier)
    return (later[across], earlier[across]), (earlier[inside], later[inside])


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
