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
from simcoll.core.schedule import OP_NAMES, REDUCE, SYNC, Schedule, Step, fault, lowered, transfer_text
from simcoll.core.step import expanded
from simcoll.errors import ScheduleError, listed
from simcoll.proving.minimal import Cell, Move, Trail, history, trail

Item = TypeVar("Item", int, tuple[int, int])

__all__ = ["compared", "leaves_below", "refuse", "size_mismatch", "undefined", "wrong_outputs"]


def leaves_below(node: int, operands: Callable[[int], Iterable[int]]) -> Counter[int]:
    """Number of occurrences of each leaf in an expression.

    Operands have lower numbers than their result, and leaves have none.
    """
    times = Counter({node: 1} if node >= 0 else {})
    found: Counter[int] = Counter()
    while times:
        at = max(times)
        often, below = times.pop(at), tuple(operands(at))
        for operand in below:
            times[operand] += often
        if not below:
            found[at] = often
    return found


def compared(wanted: Sequence[Item], found: Counter[Item], words: Callable[[list[Item]], str]) -> list[str]:
    """The contributions expected and found, with those that are missing, unwanted, or counted more than once."""
    known = frozenset(wanted)
    kinds = {
        "missing": [item for item in wanted if not found[item]],
        "not wanted": sorted(item for item in found if item not in known),
        "counted more than once": [item for item in wanted if found[item] > 1],
    }
    ends = [f"  expected: {words(list(wanted))}", f"  found:    {words(sorted(found)) or 'nothing'}"]
    return ends + [f"  {label}: {words(items)}" for label, items in kinds.items() if items]


def refuse(schedule: Schedule, number: int, step: Step, row: int, reason: str, *, at_source: bool = False) -> NoReturn:
    """Refuse a transfer; ``{}`` in the reason stands for the chunk at its destination, or ``at_source``."""
    rank, chunk = (int(column[row]) for column in step.ends[0 if at_source else 1])
    shown, transfer = reason.replace("{}", _list(schedule, [(rank, chunk)])), transfer_text(schedule.layout, step, row)
    raise fault(number, step, row, f"{schedule}: step {number}: {shown}\n  in {transfer}", at_source=at_source)


def undefined(schedule: Schedule, number: int, step: Step, row: int, *, reads: bool) -> NoReturn:
    """Refuse a transfer that reads, or reduces into, a chunk that was never written."""
    later = _first_write(schedule, *(int(column[row]) for column in step.ends[0 if reads else 1]))
    verb = "reads" if reads else "reduces into"
    refuse(schedule, number, step, row, f"{verb} {{}}, which holds nothing yet: {later}", at_source=reads)


def _first_write(schedule: Schedule, rank: int, chunk: int) -> str:
    """The step in which a chunk that is read too early gets a value, if any."""
    for number, given in enumerate(schedule.steps()):
        step = schedule.layout.one_address(given)
        data = (step.op != REDUCE) & (step.op != SYNC)
        hit = data & (step.dst_rank == rank) & (step.dst_chunk <= chunk) & (chunk < step.dst_chunk + step.count)
        if hit.any():
            row = int(np.flatnonzero(hit)[0])
            return f"it is first written in step {number}, by {transfer_text(schedule.layout, step, row)}"
    return "no transfer copies anything there"


def size_mismatch(schedule: Schedule, number: int, step: Step, row: int) -> NoReturn:
    """Refuse a transfer between chunks whose sizes may differ, with its contributions and those that its destination must hold."""
    layout, one = schedule.layout, slice(row, row + 1)
    cells = step.rows(one).ends
    ends = [f"piece {layout.piece(*cell)[0]} of block {layout.block(*cell)[0]}" for cell in cells]
    reason = (
        f"joins chunks of different sizes: {ends[0]} and {ends[1]} "
        "(blocks may have different sizes, pieces of a block differ by one element)"
    )
    wanted, found = _wanted_of(schedule, *cells[1]), _held_before(schedule, number, step, row)
    unpaired = schedule.collective.kind == "send_recv" and not schedule.collective.has_output(cells[1][0])[0]
    if wanted or unpaired:
        nothing = f"nothing, because rank {step.dst_rank[row]} is not the destination of a pair"
        reason += f"\n  expected: {_list(schedule, wanted) or nothing}"
    if (wanted or unpaired) and found is not None:
        reason += f"\n  found:    {_list(schedule, sorted(found)) or 'nothing'}"
    refuse(schedule, number, step, row, reason)


def _wanted_of(schedule: Schedule, rank: Ints, chunk: Ints) -> list[Cell]:
    """Contributions that a stored chunk must hold at the end; none if it is not an output."""
    layout = schedule.layout
    outputs = np.arange(layout.output_base, layout.scratch_base)
    named = outputs[layout.canonical(np.broadcast_to(rank, outputs.shape), outputs) == chunk]
    return (
        _wanted(schedule, int(rank[0]), int(named[0])) if len(named) and schedule.collective.has_output(rank)[0] else []
    )


def _held_before(schedule: Schedule, number: int, step: Step, row: int) -> Counter[Cell] | None:
    """Contributions that a transfer's source holds before its step; None if finding them would take too long."""
    rank, chunk = int(step.src_rank[row]), int(step.src_chunk[row])
    if sum(int(before.count.sum()) for before in islice(schedule.steps(), number)) > MAX_EXPLAINED:
        return None
    found = history(replace(schedule, source=lambda: islice(schedule.steps(), number)), rank, chunk)
    return None if found is None else found[1]


def _wanted(schedule: Schedule, rank: int, chunk: int) -> list[Cell]:
    source, wanted = (int(found[0]) for found in schedule.layout.wanted(np.array([rank]), np.array([chunk])))
    return [(each, wanted) for each in (range(schedule.nranks) if source < 0 else [source])]


def _list(schedule: Schedule, items: list[Cell]) -> str:
    return listed([f"rank {rank} {schedule.layout.name(chunk)}" for rank, chunk in items], 6)


MAX_EXPLAINED = 50_000_000
MAX_LINES = 12


def wrong_outputs(schedule: Schedule, ranks: Ints, chunks: Ints) -> NoReturn:
    """Report output chunks with wrong contributions, with the counter-example of the one whose fault takes the fewest steps."""
    n = schedule.nranks
    last = np.full(n * schedule.layout.size, -1, np.int64)
    lane = np.zeros_like(last)
    total = steps = 0
    for number, step in lowered(schedule):
        one = expanded(step)
        rows = one.dst_rank + one.dst_chunk * n
        last[rows], lane[rows] = number, one.channel
        total, steps = total + len(one), number + 1
    stored = schedule.layout.canonical(ranks, chunks) * n + ranks
    written = last[stored]
    chosen = int(np.lexsort((chunks, ranks, np.where(written < 0, steps, written)))[0])
    rank, chunk, writer = int(ranks[chosen]), int(chunks[chosen]), int(written[chosen])
    name = f"rank {rank} {schedule.layout.name(chunk)}"
    wrong = f"{len(ranks)} wrong output chunk{'s' if len(ranks) != 1 else ''} in all"
    wanted = _wanted(schedule, rank, chunk)
    lines = [f"{schedule}: {name} is wrong at the end ({wrong})"]
    shows = f"  last written in step {writer}; the counter-example is steps 0..{writer} of 0..{steps - 1}"
    if writer < steps - 1:
        shows += ", because no later step writes it"
    past = None if total > MAX_EXPLAINED else history(schedule, rank, chunk)
    if past is None:
        lines += [f"  expected: {_list(schedule, wanted)}", shows if writer >= 0 else "  never written"]
        lines.append(f"  (too large to explain: {total:,} transfers)")
    else:
        moves, found = past
        missing = [item for item in wanted if not found[item]][:1]
        way = trail(schedule, missing[0]) if missing else Trail(None, None)
        fault, reason = _fault(schedule, moves, wanted, missing, way)
        if fault >= 0:
            lines += [f"  =>  {_told(schedule, moves[fault], wanted)}", f"          which {reason}"]
        if missing:
            mark = "    " if fault >= 0 else "  =>"
            lines.append(f"{mark}  {_list(schedule, missing)} {_fate(schedule, way)}")
        lines += compared(wanted, found, partial(_list, schedule))
        lines.append(shows if writer >= 0 else "  never written")
        if moves:
            lines.append(f"  how {name} came about ({len(moves)} of the {total} transfers):")
            lines += _story(schedule, moves, fault, wanted)
    text = "\n".join(lines)
    if writer >= 0:
        raise ScheduleError(text, step=writer, rank=rank, channel=int(lane[stored[chosen]]), chunk=chunk)
    # An expected contribution stopped somewhere else.
    lost = next((item for item in wanted if item[0] != rank), wanted[0])
    stop = trail(schedule, lost).last
    channel = stop.channel if stop else 0 if schedule.nchannels == 1 else None
    raise ScheduleError(text, step=stop.step if stop else None, rank=rank, channel=channel, chunk=chunk)


def _fate(schedule: Schedule, way: Trail) -> str:
    """The end of a missing contribution's trail."""
    if way.last is None:
        return "is read by no transfer"
    last = f"gets as far as {_list(schedule, [way.last.dst])}, in step {way.last.step}"
    return last if way.overwritten is None else f"{last}; step {way.overwritten} overwrites it there"


def _fault(
    schedule: Schedule, moves: list[Move], wanted: list[Cell], missing: list[Cell], way: Trail
) -> tuple[int, str]:
    """The first wrong transfer and its fault; -1 if there is none."""
    known = frozenset(wanted)
    for position, move in enumerate(moves):
        if move.doubled:
            return position, f"counts {_list(schedule, move.doubled)} again"
        extra = sorted(item for item in move.held if item not in known)
        if extra:
            return position, f"brings {_list(schedule, extra)}, which is not wanted"
        if way.last and (move.dst, move.step) == (way.last.dst, way.overwritten):
            return position, f"overwrites {_list(schedule, missing)}"
    return -1, ""


def _told(schedule: Schedule, move: Move, wanted: list[Cell]) -> str:
    """A transfer in words, with the resulting contributions."""
    ends = " -> ".join(_list(schedule, [cell]) for cell in (move.src, move.dst))
    how = f"({OP_NAMES[move.op]}, channel {move.channel})"
    return f"step {move.step}: {ends} {how}: now {_holds(schedule, move.held, wanted)}"


def _story(schedule: Schedule, moves: list[Move], fault: int, wanted: list[Cell]) -> list[str]:
    """The transfers up to the first wrong one, or up to the last, each with the resulting contributions."""
    end = len(moves) if fault < 0 else fault + 1
    begin = max(0, end - MAX_LINES)
    lines = [f"      ... {begin} before"] if begin else []
    lines += [f"      {_told(schedule, move, wanted)}" for move in moves[begin:end]]
    return [*lines, f"      ... {len(moves) - end} after"] if end < len(moves) else lines


def _holds(schedule: Schedule, held: Counter[Cell], wanted: list[Cell]) -> str:
    """Contributions in few words; only the ranks, if all are of the expected chunk."""
    if not held:
        return "nothing"
    if {chunk for _, chunk in held} <= {chunk for _, chunk in wanted[:1]}:
        ranks = [f"{rank}" + (f" ({times} times)" if times > 1 else "") for (rank, _), times in sorted(held.items())]
        return f"rank {listed(ranks)}"
    return _list(schedule, sorted(held))
