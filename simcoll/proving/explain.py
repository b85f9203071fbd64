"""Counter-examples in words, for the author of a schedule whose proof failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NoReturn, TypeVar

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.schedule import (
    OP_NAMES,
    REDUCE,
    SYNC,
    Schedule,
    Step,
    fault,
    lowered,
    transfer_text,
)
from simcoll.core.step import by_chunk
from simcoll.errors import ScheduleError, listed
from simcoll.proving.minimal import Cell, Move, Trail, history, trail
from simcoll.proving.odd_rank import odd_rank

Item = TypeVar("Item", int, tuple[int, int])

__all__ = [
    "compare_contributions",
    "leaves_below",
    "refuse",
    "refuse_empty",
    "size_mismatch",
    "wrong_outputs",
]


def leaves_below(node: int, operands: Callable[[int], Iterable[int]]) -> Counter[int]:
    """Number of occurrences of each leaf in an expression.

    Operands have lower numbers than their result, and leaves have none.
    """
    times = Counter({node: 1} if node >= 0 else {})
    leaf_counts: Counter[int] = Counter()
    while times:
        top = max(times)
        often, below = times.pop(top), tuple(operands(top))
        for operand in below:
            times[operand] += often
        if not below:
            leaf_counts[top] = often
    return leaf_counts


def compare_contributions(
    expected: Sequence[Item], actual: Counter[Item], words: Callable[[list[Item]], str]
) -> list[str]:
    """The contributions expected and found, with those that are missing, unwanted, or counted too
    often.
    """
    times = Counter(expected)
    often = "counted more than once" if set(times.values()) <= {1} else "counted too often"
    kinds = {
        "missing": [key for key, count in times.items() if actual[key] < count],
        "not wanted": sorted(key for key in actual if key not in times),
        often: [key for key, count in times.items() if actual[key] > count],
    }
    ends = [
        f"  expected: {words(list(expected))}",
        f"  found:    {words(sorted(actual)) or 'nothing'}",
    ]
    return ends + [f"  {label}: {words(items)}" for label, items in kinds.items() if items]


def refuse(
    schedule: Schedule, number: int, step: Step, row: int, reason: str, *, at_source: bool = False
) -> NoReturn:
    """Refuse a transfer; ``{}`` in the reason stands for the chunk at its destination, or
    ``at_source``.
    """
    rank, chunk = (int(column[row]) for column in step.ends[0 if at_source else 1])
    complaint, transfer = (
        reason.replace("{}", _list(schedule, [(rank, chunk)])),
        transfer_text(schedule.layout, step, row),
    )
    raise fault(
        number,
        step,
        row,
        f"{schedule}: step {number}: {complaint}\n  in {transfer}",
        at_source=at_source,
    )


def refuse_empty(schedule: Schedule, number: int, step: Step, row: int, *, reads: bool) -> NoReturn:
    """Refuse a transfer that reads, or reduces into, a chunk that was never written."""
    later = _first_write(schedule, *(int(column[row]) for column in step.ends[0 if reads else 1]))
    verb = "reads" if reads else "reduces into"
    if odd := odd_rank(schedule):
        later += f"\n  {odd}"
    refuse(
        schedule,
        number,
        step,
        row,
        f"{verb} {{}}, which holds nothing yet: {later}",
        at_source=reads,
    )


def _first_write(schedule: Schedule, rank: int, chunk: int) -> str:
    """The step in which a chunk that is read too early gets a value, if any."""
    for number, unresolved in enumerate(schedule.steps()):
        step = schedule.layout.one_address(unresolved)
        data = (step.op != REDUCE) & (step.op != SYNC)
        hit = (
            data
            & (step.dst_rank == rank)
            & (step.dst_chunk <= chunk)
            & (chunk < step.dst_chunk + step.count)
        )
        if hit.any():
            row = int(np.flatnonzero(hit)[0])
            return (
                f"it is first written in step {number}, by "
                f"{transfer_text(schedule.layout, step, row)}"
            )
    return "no transfer copies anything there"


def size_mismatch(schedule: Schedule, number: int, step: Step, row: int) -> NoReturn:
    """Refuse a transfer between chunks whose sizes may differ, with its contributions and those
    that its destination must hold.
    """
    layout, single_row = schedule.layout, slice(row, row + 1)
    cells = step.rows(single_row).ends
    ends = [f"piece {layout.piece(*cell)[0]} of block {layout.block(*cell)[0]}" for cell in cells]
    reason = (
        f"joins chunks of different sizes: {ends[0]} and {ends[1]} "
        "(blocks may have different sizes, pieces of a block differ by one element)"
    )
    expected, actual = (
        _contributions_at(schedule, *cells[1]),
        _held_before(schedule, number, step, row),
    )
    unpaired = (
        schedule.collective.kind == "send_recv"
        and not schedule.collective.has_output(cells[1][0])[0]
    )
    if expected or unpaired:
        nothing = f"nothing, because rank {step.dst_rank[row]} is not the destination of a pair"
        reason += f"\n  expected: {_list(schedule, expected) or nothing}"
    if (expected or unpaired) and actual is not None:
        reason += f"\n  found:    {_list(schedule, sorted(actual)) or 'nothing'}"
    refuse(schedule, number, step, row, reason)


def _contributions_at(schedule: Schedule, rank: Ints, chunk: Ints) -> list[Cell]:
    """Contributions that a stored chunk must hold at the end; none if it is not an output."""
    layout = schedule.layout
    outputs = np.arange(layout.output_base, layout.scratch_base)
    matches = outputs[layout.canonical(np.broadcast_to(rank, outputs.shape), outputs) == chunk]
    return (
        _contributions(schedule, int(rank[0]), int(matches[0]))
        if len(matches) and schedule.collective.has_output(rank)[0]
        else []
    )


def _held_before(schedule: Schedule, number: int, step: Step, row: int) -> Counter[Cell] | None:
    """Contributions that a transfer's source holds before its step; None if finding them would take
    too long.
    """
    rank, chunk = int(step.src_rank[row]), int(step.src_chunk[row])
    if (
        sum(int(earlier.count.sum()) for earlier in islice(schedule.steps(), number))
        > MAX_EXPLAINED
    ):
        return None
    past = history(replace(schedule, source=lambda: islice(schedule.steps(), number)), rank, chunk)
    return None if past is None else past[1]


def _contributions(schedule: Schedule, rank: int, chunk: int) -> list[Cell]:
    layout, definition = schedule.layout, schedule.collective.definition
    if definition is not None:  # of several inputs that hold a contribution, the first is named
        slot, piece = divmod(chunk - layout.output_base, layout.chunks)
        holders = [definition.holders(number)[0] for number in definition.requirement(rank, slot)]
        return [(owner, int(layout.input(place, piece))) for owner, place in holders]
    source, piece = (
        int(column[0]) for column in schedule.layout.wanted(np.array([rank]), np.array([chunk]))
    )
    return [(origin, piece) for origin in (range(schedule.nranks) if source < 0 else [source])]


def _list(schedule: Schedule, items: list[Cell]) -> str:
    return listed([f"rank {rank} {schedule.layout.name(chunk)}" for rank, chunk in items], 6)


def wrong_order(schedule: Schedule, ranks: Ints, chunks: Ints) -> NoReturn:
    """Report output chunks that hold the right contributions, added in another order than listed
    by the definition.
    """
    rank, chunk = int(ranks[0]), int(chunks[0])
    listed_cells = _list(schedule, _contributions(schedule, rank, chunk))
    lines = [
        (
            f"{schedule}: rank {rank} {schedule.layout.name(chunk)} is added in another order than "
            f"its definition lists (wrong output chunks in all: {len(ranks)})"
        ),
        f"  expected: from left to right, {listed_cells}",
    ]
    past = history(schedule, rank, chunk)
    if past is not None:
        lines.append(f"  how it came about ({len(past[0])} transfers):")
        lines += _story(schedule, past[0], -1, [])
    raise ScheduleError("\n".join(lines), rank=rank, chunk=chunk)


MAX_EXPLAINED = 50_000_000
MAX_LINES = 12


def wrong_outputs(schedule: Schedule, ranks: Ints, chunks: Ints) -> NoReturn:
    """Report output chunks with wrong contributions, with the counter-example of the one whose
    fault takes the fewest steps.
    """
    n = schedule.nranks
    last = np.full(n * schedule.layout.size, -1, np.int64)
    lane = np.zeros_like(last)
    total = steps = 0
    for number, step in lowered(schedule):
        units = by_chunk(step)
        rows = units.dst_rank + units.dst_chunk * n
        last[rows], lane[rows] = number, units.channel
        total, steps = total + len(units), number + 1
    stored = schedule.layout.canonical(ranks, chunks) * n + ranks
    writers = last[stored]
    chosen = int(np.lexsort((chunks, ranks, np.where(writers < 0, steps, writers)))[0])
    rank, chunk, writer = int(ranks[chosen]), int(chunks[chosen]), int(writers[chosen])
    name = f"rank {rank} {schedule.layout.name(chunk)}"
    wrong = f"{len(ranks)} wrong output chunk{'s' if len(ranks) != 1 else ''} in all"
    expected = _contributions(schedule, rank, chunk)
    lines = [f"{schedule}: {name} is wrong at the end ({wrong})"]
    if odd := odd_rank(schedule):
        lines.append(f"  {odd}")
    shows = (
        f"  last written in step {writer}; the counter-example is steps 0..{writer} of "
        f"0..{steps - 1}"
    )
    if writer < steps - 1:
        shows += ", because no later step writes it"
    past = None if total > MAX_EXPLAINED else history(schedule, rank, chunk)
    if past is None:
        lines += [
            f"  expected: {_list(schedule, expected)}",
            shows if writer >= 0 else "  never written",
        ]
        lines.append(f"  (too large to explain: {total:,} transfers)")
    else:
        moves, actual = past
        times = Counter(expected)
        missing = [cell for cell, count in times.items() if actual[cell] < count][:1]
        journey = trail(schedule, missing[0]) if missing else Trail(None, None)
        fault, reason = _fault(schedule, moves, expected, missing, journey)
        if fault >= 0:
            lines += [
                f"  =>  {_describe(schedule, moves[fault], expected)}",
                f"          which {reason}",
            ]
        if missing:
            mark = "    " if fault >= 0 else "  =>"
            lines.append(f"{mark}  {_list(schedule, missing)} {_fate(schedule, journey)}")
        lines += compare_contributions(expected, actual, partial(_list, schedule))
        lines.append(shows if writer >= 0 else "  never written")
        if moves:
            lines.append(f"  how {name} came about ({len(moves)} of the {total} transfers):")
            lines += _story(schedule, moves, fault, expected)
    text = "\n".join(lines)
    if writer >= 0:
        raise ScheduleError(
            text, step=writer, rank=rank, channel=int(lane[stored[chosen]]), chunk=chunk
        )
    # An expected contribution stopped somewhere else.
    lost = next((contribution for contribution in expected if contribution[0] != rank), expected[0])
    stop = trail(schedule, lost).last
    channel = stop.channel if stop else 0 if schedule.nchannels == 1 else None
    raise ScheduleError(
        text, step=stop.step if stop else None, rank=rank, channel=channel, chunk=chunk
    )


def _fate(schedule: Schedule, journey: Trail) -> str:
    """The end of a missing contribution's trail."""
    if journey.last is None:
        return "is read by no transfer"
    last = f"gets as far as {_list(schedule, [journey.last.dst])}, in step {journey.last.step}"
    return (
        last
        if journey.overwritten is None
        else f"{last}; step {journey.overwritten} overwrites it there"
    )


def _fault(
    schedule: Schedule, moves: list[Move], expected: list[Cell], missing: list[Cell], journey: Trail
) -> tuple[int, str]:
    """The first wrong transfer and its fault; -1 if there is none."""
    times = Counter(expected)
    for position, move in enumerate(moves):
        again = [cell for cell in move.duplicates if move.contents[cell] > times[cell]]
        if again:
            return position, f"counts {_list(schedule, again)} again"
        extra = sorted(cell for cell in move.contents if cell not in times)
        if extra:
            return position, f"brings {_list(schedule, extra)}, which is not wanted"
        if journey.last and (move.dst, move.step) == (journey.last.dst, journey.overwritten):
            return position, f"overwrites {_list(schedule, missing)}"
    return -1, ""


def _describe(schedule: Schedule, move: Move, expected: list[Cell]) -> str:
    """A transfer in words, with the resulting contributions."""
    ends = " -> ".join(_list(schedule, [cell]) for cell in (move.src, move.dst))
    how = f"({OP_NAMES[move.op]}, channel {move.channel})"
    return f"step {move.step}: {ends} {how}: now {_holds(schedule, move.contents, expected)}"


def _story(schedule: Schedule, moves: list[Move], fault: int, expected: list[Cell]) -> list[str]:
    """The transfers up to the first wrong one, or up to the last, each with the resulting
    contributions.
    """
    end = len(moves) if fault < 0 else fault + 1
    begin = max(0, end - MAX_LINES)
    lines = [f"      ... {begin} before"] if begin else []
    lines += [f"      {_describe(schedule, move, expected)}" for move in moves[begin:end]]
    return [*lines, f"      ... {len(moves) - end} after"] if end < len(moves) else lines


def _holds(schedule: Schedule, contents: Counter[Cell], expected: list[Cell]) -> str:
    """Contributions in few words; only the ranks, if all are of the expected chunk."""
    if not contents:
        return "nothing"
    if {chunk for _, chunk in contents} <= {chunk for _, chunk in expected[:1]}:
        ranks = [
            f"{rank}" + (f" ({times} times)" if times > 1 else "")
            for (rank, _), times in sorted(contents.items())
        ]
        return f"rank {listed(ranks)}"
    return _list(schedule, sorted(contents))
