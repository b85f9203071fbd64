"""Some chunks of a schedule followed on every rank, transfer by transfer: the data part of a proof by symmetry.

Plain lists of numbers, not arrays: of a step only a few transfers touch the chosen chunks, and numpy would spend longer on calling
than on computing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from simcoll.core.hashing import token_at
from simcoll.core.schedule import REDUCE, Repeat, Step
from simcoll.core.step import spread
from simcoll.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from simcoll.core.schedule import Schedule

    Ints = NDArray[np.int64]
    Moves = tuple[list[int], list[int], list[bool]]

__all__ = ["follow"]

MASK = 2**64 - 1


def _mix(z: int) -> int:
    """:func:`simcoll.core.hashing.mix` of one word."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def follow(schedule: Schedule, chunks: Ints, image_ranks: Callable[[Ints, Ints], Ints]) -> str:
    """Follow some chunks on every rank; no transfer connects them to others.

    Beside the contributions and the expression tree of every chunk, the tree of its image under a symmetry is followed, which
    shows whether all chunks have the same one; ``image_ranks(rank, chunk)`` gives the ranks of the images.

    Returns
    -------
    str
        The level of the reduction order, one of :data:`simcoll.core.proof.LEVELS`; empty where nothing is reduced.

    Raises
    ------
    ScheduleError
        Naming step, rank and chunk, when a chunk is wrong.
    """
    layout, collective, n = schedule.layout, schedule.collective, schedule.nranks
    width, place = len(chunks), np.full(layout.size, -1, np.int64)
    place[chunks] = np.arange(width)
    inputs = chunks[chunks < layout.output_base]
    rank, chunk = np.repeat(np.arange(n), len(inputs)), np.tile(inputs, n)
    home = rank * width + place[layout.canonical(rank, chunk)]
    memory = np.zeros((3, n * width), np.uint64)
    memory[:, home] = (
        token_at(rank * layout.output_base + chunk, 1), token_at(rank, 2), token_at(image_ranks(rank, chunk), 2),
    )  # fmt: skip
    held, tree, image = (row.tolist() for row in memory)

    def fail(number: int, row: int, reason: str) -> ScheduleError:
        at, where = divmod(row, width)
        address = int(chunks[where])
        message = f"{schedule}: step {number}: rank {at} {layout.name(address)} {reason}"
        return ScheduleError(message, step=number, rank=at, chunk=address)

    number = 0
    for number, (sources, targets, reduces) in _moves(schedule, place, width):
        if len(set(targets)) != len(targets):
            raise fail(
                number,
                max(targets, key=targets.count),
                "is written by several transfers; only the full proof handles that",
            )
        values = [(held[row], tree[row], image[row]) for row in sources]  # all reads come before the first write
        for source, target, reduce, (value, made, other) in zip(sources, targets, reduces, values, strict=True):
            if not made:
                raise fail(number, source, "is read but holds nothing yet")
            if reduce:
                if not tree[target]:
                    raise fail(number, target, "is reduced into but holds nothing yet")
                value, made, other = (  # noqa: PLW2901
                    (held[target] + value) & MASK, _mix((tree[target] + made) & MASK), _mix((image[target] + other) & MASK),
                )  # fmt: skip
            held[target], tree[target], image[target] = value, made, other
    outputs = chunks[(chunks >= layout.output_base) & (chunks < layout.scratch_base)]
    rank, chunk = np.repeat(np.arange(n), len(outputs)), np.tile(outputs, n)
    slot, piece = np.divmod(chunk - layout.output_base, layout.chunks)
    origin, source_slot = collective.source(rank, slot)
    wanted = layout.input(source_slot, piece)
    at = rank * width + place[layout.canonical(rank, chunk)]
    found, made, other = (np.array(row, np.uint64)[at] for row in (held, tree, image))
    wrong = np.flatnonzero((found != _expected(schedule, origin, wanted)) | (made == 0))
    if len(wrong):
        raise fail(number, int(at[wrong[0]]), "does not hold the right contributions at the end")
    reduced = origin < 0
    return _order(wanted[reduced], made[reduced], other[reduced]) if reduced.any() else ""


def _expected(schedule: Schedule, source: Ints, wanted: Ints) -> NDArray[np.uint64]:
    """Sum of the contributions that each output must hold."""
    per_rank, everyone = schedule.layout.output_base, np.arange(schedule.nranks)
    sums = {
        c: token_at(everyone * per_rank + c, 1).sum(dtype=np.uint64) for c in np.unique(wanted[source < 0]).tolist()
    }
    one = token_at(np.maximum(source, 0) * per_rank + wanted, 1)
    return np.array(
        [sums[c] if s < 0 else word for c, s, word in zip(wanted.tolist(), source.tolist(), one, strict=True)],
        np.uint64,
    )


def _order(chunk: Ints, tree: NDArray[np.uint64], image: NDArray[np.uint64]) -> str:
    first = dict(zip(chunk[::-1].tolist(), tree[::-1].tolist(), strict=True))
    if any(first[c] != t for c, t in zip(chunk.tolist(), tree.tolist(), strict=True)):
        return "any"
    alike = (tree == tree[0]).all() and (image == tree[0]).all()
    return "position-independent" if alike else "run-consistent"


def _moves(schedule: Schedule, place: Ints, width: int) -> Iterator[tuple[int, Moves]]:
    """Transfers between followed chunks, by step, as rows ``rank * width + place``."""
    number = 0
    for block in schedule.blocks():
        if isinstance(block, Repeat):
            yield from _turns(schedule, block, number, place, width)
            number += block.count * len(block.steps)
        else:
            chosen = _chosen(schedule.layout.one_address(block), place)
            if len(chosen[0]):
                yield number, _rows(schedule, number, chosen, place, width)
            number += 1


def _chosen(step: Step, place: Ints) -> tuple[Ints, Ints, Ints, Ints, NDArray[np.int8]]:
    """Source rank and chunk, destination rank and chunk, and op of single followed chunks."""
    if (step.count == 1).all():
        row = np.flatnonzero(place[step.src_chunk] >= 0)
        offset = np.zeros_like(row)
    else:
        before = np.concatenate([[0], np.cumsum(place >= 0)])
        there = np.flatnonzero(place >= 0)
        first = before[step.src_chunk]
        count = before[step.src_chunk + step.count] - first
        row, within = spread(count)
        offset = there[first[row] + within] - step.src_chunk[row]
    return (
        step.src_rank[row],
        step.src_chunk[row] + offset,
        step.dst_rank[row],
        step.dst_chunk[row] + offset,
        step.op[row],
    )


def _rows(
    schedule: Schedule, number: int, chosen: tuple[Ints, Ints, Ints, Ints, NDArray[np.int8]], place: Ints, width: int
) -> Moves:
    src_rank, src_chunk, dst_rank, dst_chunk, op = chosen
    _check_writable(schedule, number, dst_rank, dst_chunk)
    sources, targets = src_rank * width + place[src_chunk], dst_rank * width + place[dst_chunk]
    return sources.tolist(), targets.tolist(), (op == REDUCE).tolist()


def _check_writable(schedule: Schedule, number: int, rank: Ints, chunk: Ints) -> None:
    locked = np.flatnonzero(~schedule.layout.writable(rank, chunk))
    if len(locked):
        at, address = int(rank[locked[0]]), int(chunk[locked[0]])
        where = f"rank {at} {schedule.layout.name(address)}"
        raise ScheduleError(
            f"{schedule}: step {number}: writes to {where}, which is read-only", step=number, rank=at, chunk=address
        )


def _turns(schedule: Schedule, block: Repeat, first: int, place: Ints, width: int) -> Iterator[tuple[int, Moves]]:
    """Transfers of a repeat between followed chunks; the turns of each transfer solve one congruence."""
    chunks, base, modulus = np.flatnonzero(place >= 0), block.base, block.modulus
    # Chunk c is touched in turn t by the transfer at place p when p + t * stride = c modulo the window: one linear congruence for
    # each pair, so that the turns are computed and not searched. Its solutions come every ``period`` turns, if there are any.
    common = int(np.gcd(block.stride % modulus, modulus)) if block.stride % modulus else modulus
    period = modulus // common
    inverse = pow(block.stride % modulus // common, -1, period) if period > 1 else 0
    found: list[Ints] = []
    for inner, step in enumerate(block.steps):
        at = (step.src_chunk - base) % modulus
        window = step.src_chunk - at
        for chunk in chunks.tolist():
            target = (chunk - base) % modulus
            row = np.flatnonzero((window == chunk - target) & ((target - at) % common == 0))
            turn = (target - at[row]) // common * inverse % period
            while (turn < block.count).any():
                row, turn = row[turn < block.count], turn[turn < block.count]
                other = step.dst_chunk[row] - at[row] + target
                rows = (turn * len(block.steps) + inner, step.src_rank[row] * width + place[chunk],
                        step.dst_rank[row] * width + place[other], step.op[row] == REDUCE)  # fmt: skip
                found.append(np.stack(rows))
                _check_writable(schedule, first + inner, step.dst_rank[row], other)
                turn = turn + period
    if not found:
        return
    when, sources, targets, reduces = (column[order] for column, order in _by_time(np.concatenate(found, axis=1)))
    cuts = np.flatnonzero(np.diff(when)) + 1
    edges = [0, *cuts.tolist(), len(when)]
    columns = sources.tolist(), targets.tolist(), (reduces == 1).tolist()
    for begin, end in pairwise(edges):
        yield first + int(when[begin]), (columns[0][begin:end], columns[1][begin:end], columns[2][begin:end])


def _by_time(columns: NDArray[np.int64]) -> Iterator[tuple[Ints, Ints]]:
    order = np.argsort(columns[0], kind="stable")
    yield from ((column, order) for column in columns)
