"""Counter-examples in words, for the author of a schedule whose proof fails."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from simcoll.core.schedule import OP_NAMES, REDUCE, SYNC, lowered
from simcoll.core.step import expanded
from simcoll.errors import ScheduleError
from simcoll.proving.minimal import history, trail

if TYPE_CHECKING:
    from collections import Counter

    from numpy.typing import NDArray

    from simcoll.core.schedule import Schedule, Step
    from simcoll.proving.minimal import Cell, Move

    Ints = NDArray[np.int64]

__all__ = [
    "double_write",
    "input_write",
    "size_mismatch",
    "transfer_text",
    "undefined_read",
    "undefined_target",
    "wrong_op",
    "wrong_outputs",
]


def transfer_text(schedule: Schedule, step: Step, row: int) -> str:
    """One transfer in words: ``rank 0 output chunk 1 -> rank 1 output chunk 1 (reduce, channel 0)``."""
    name = schedule.layout.name
    src, dst = (int(c[row]) for c in (step.src_chunk, step.dst_chunk))
    return (
        f"rank {step.src_rank[row]} {name(src)} -> rank {step.dst_rank[row]} {name(dst)} "
        f"({OP_NAMES[step.op[row]]}, channel {step.channel[row]})"
    )


def _fail(schedule: Schedule, number: int, step: Step, row: int, reason: str, *, at_source: bool) -> NoReturn:
    rank, chunk = (step.src_rank, step.src_chunk) if at_source else (step.dst_rank, step.dst_chunk)
    raise ScheduleError(
        f"{schedule}: step {number}: {reason}\n  in {transfer_text(schedule, step, row)}",
        step=number,
        rank=int(rank[row]),
        channel=int(step.channel[row]),
        chunk=int(chunk[row]),
    )


def undefined_read(schedule: Schedule, number: int, step: Step, row: int) -> NoReturn:
    """A transfer reads a chunk that nothing was ever written to."""
    rank, chunk = int(step.src_rank[row]), int(step.src_chunk[row])
    where = f"rank {rank} {schedule.layout.name(chunk)}"
    later = _first_write(schedule, rank, chunk)
    _fail(schedule, number, step, row, f"reads {where}, which holds nothing yet: {later}", at_source=True)


def undefined_target(schedule: Schedule, number: int, step: Step, row: int) -> NoReturn:
    """A reduction into a chunk that nothing was ever written to."""
    rank, chunk = int(step.dst_rank[row]), int(step.dst_chunk[row])
    where = f"rank {rank} {schedule.layout.name(chunk)}"
    later = _first_write(schedule, rank, chunk)
    _fail(schedule, number, step, row, f"reduces into {where}, which holds nothing yet: {later}", at_source=False)


def _first_write(schedule: Schedule, rank: int, chunk: int) -> str:
    """The step in which a chunk that is read too early gets a value, if ever."""
    for number, given in enumerate(schedule.steps()):
        step = schedule.layout.one_address(given)
        data = (step.op != REDUCE) & (step.op != SYNC)
        hit = data & (step.dst_rank == rank) & (step.dst_chunk <= chunk) & (chunk < step.dst_chunk + step.count)
        if hit.any():
            row = int(np.flatnonzero(hit)[0])
            return f"it is first written in step {number}, by {transfer_text(schedule, step, row)}"
    return "no transfer copies anything there"


def input_write(schedule: Schedule, number: int, step: Step, row: int) -> NoReturn:
    """A write to an input that is not also the output."""
    where = f"rank {step.dst_rank[row]} {schedule.layout.name(int(step.dst_chunk[row]))}"
    _fail(schedule, number, step, row, f"overwrites {where}: inputs are read-only", at_source=False)


def double_write(schedule: Schedule, number: int, step: Step, row: int, other: int, reason: str) -> NoReturn:
    """Two writes of one chunk in one step that are no fold."""
    where = f"rank {step.dst_rank[row]} {schedule.layout.name(int(step.dst_chunk[row]))}"
    also = transfer_text(schedule, step, other)
    _fail(schedule, number, step, row, f"writes {where} twice in one step{reason}\n  in {also}", at_source=False)


def size_mismatch(schedule: Schedule, number: int, step: Step, row: int) -> NoReturn:
    """A transfer between chunks whose sizes need not agree, with its contributions and those its destination must hold."""
    layout, one = schedule.layout, slice(row, row + 1)
    cells = (step.src_rank[one], step.src_chunk[one]), (step.dst_rank[one], step.dst_chunk[one])
    ends = [f"piece {layout.piece(*cell)[0]} of block {layout.block(*cell)[0]}" for cell in cells]
    reason = (
        f"joins chunks of different sizes: {ends[0]} and {ends[1]} "
        "(blocks may have different sizes, pieces of a block differ by one element)"
    )
    wanted, found = _wanted_of(schedule, *cells[1]), _held_before(schedule, number, step, row)
    unpaired = schedule.collective.kind == "send_recv" and not schedule.collective.has_output(cells[1][0])[0]
    if wanted or unpaired:
        nothing = f"nothing, for rank {step.dst_rank[row]} is the destination of no pair"
        reason += f"\n  expected: {_list(schedule, wanted) or nothing}"
    if (wanted or unpaired) and found is not None:
        reason += f"\n  found:    {_list(schedule, sorted(found)) or 'nothing'}"
    _fail(schedule, number, step, row, reason, at_source=False)


def _wanted_of(schedule: Schedule, rank: Ints, chunk: Ints) -> list[Cell]:
    """Contributions that a stored chunk must hold at the end; none where it is no output."""
    layout = schedule.layout
    outputs = np.arange(layout.output_base, layout.scratch_base)
    named = outputs[layout.canonical(np.broadcast_to(rank, outputs.shape), outputs) == chunk]
    return (
        _wanted(schedule, int(rank[0]), int(named[0])) if len(named) and schedule.collective.has_output(rank)[0] else []
    )


def _held_before(schedule: Schedule, number: int, step: Step, row: int) -> Counter[Cell] | None:
    """Contributions that a transfer's source holds before its step; None where finding them would take too long."""
    rank, chunk = int(step.src_rank[row]), int(step.src_chunk[row])
    if sum(int(before.count.sum()) for before in islice(schedule.steps(), number)) > MAX_EXPLAINED:
        return None
    return history(replace(schedule, source=lambda: islice(schedule.steps(), number)), rank, chunk)[1]


def wrong_op(schedule: Schedule, number: int, step: Step, row: int, reason: str) -> NoReturn:
    """A transfer with an operation that its collective does not have."""
    _fail(schedule, number, step, row, reason, at_source=True)


def _wanted(schedule: Schedule, rank: int, chunk: int) -> list[Cell]:
    layout = schedule.layout
    slot, piece = divmod(chunk - layout.output_base, layout.chunks)
    source, source_slot = (int(a[0]) for a in schedule.collective.source(np.array([rank]), np.array([slot])))
    return [(r, int(layout.input(source_slot, piece))) for r in (range(schedule.nranks) if source < 0 else [source])]


def _list(schedule: Schedule, items: list[Cell]) -> str:
    shown = [f"rank {rank} {schedule.layout.name(chunk)}" for rank, chunk in items[:6]]
    return ", ".join(shown) + (f" and {len(items) - 6} more" if len(items) > 6 else "")


MAX_EXPLAINED = 50_000_000
MAX_LINES = 12


def wrong_outputs(schedule: Schedule, ranks: Ints, chunks: Ints) -> NoReturn:
    """Output chunks with wrong contributions at the end; shown is the one whose fault takes the fewest steps."""
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
    expected = f"  expected: {_list(schedule, wanted)}"
    shows = f"  last written in step {writer}; the counter-example is steps 0..{writer} of 0..{steps - 1}"
    if writer < steps - 1:
        shows += ", for no later step writes it"
    if total > MAX_EXPLAINED:
        lines += [expected, shows if writer >= 0 else "  never written"]
        lines.append(f"  (too large to explain: {total:,} transfers)")
    else:
        moves, found = history(schedule, rank, chunk)
        fault, reason = _fault(schedule, moves, wanted, found)
        lines += _decisive(schedule, moves, fault, reason, wanted, found)
        lines += [expected, f"  found:    {_list(schedule, sorted(found)) or 'nothing'}"]
        lines += _differences(schedule, wanted, found)
        lines.append(shows if writer >= 0 else "  never written")
        if moves:
            lines.append(f"  how {name} came about ({len(moves)} of the {total} transfers):")
            lines += _story(schedule, moves, fault, wanted)
    text = "\n".join(lines)
    if writer >= 0:
        raise ScheduleError(text, step=writer, rank=rank, channel=int(lane[stored[chosen]]), chunk=chunk)
    # What it should hold stopped somewhere else.
    lost = next((item for item in wanted if item[0] != rank), wanted[0])
    stop = trail(schedule, lost).last
    channel = stop.channel if stop else 0 if schedule.nchannels == 1 else None
    raise ScheduleError(text, step=stop.step if stop else None, rank=rank, channel=channel, chunk=chunk)


def _differences(schedule: Schedule, wanted: list[Cell], found: Counter[Cell]) -> list[str]:
    """The missing contributions and the surplus ones."""
    missing = [item for item in wanted if not found[item]]
    extra = sorted(item for item in found if item not in wanted)
    twice = [item for item in wanted if found[item] > 1]
    lines = []
    for label, items in (("missing", missing), ("not wanted", extra), ("counted more than once", twice)):
        if items:
            lines.append(f"  {label}: {_list(schedule, items)}")
    return lines


def _fate(schedule: Schedule, missing: Cell) -> str:
    """The end of a missing contribution."""
    way = trail(schedule, missing)
    if way.last is None:
        return "is read by no transfer"
    last = f"gets as far as {_list(schedule, [way.last.dst])}, in step {way.last.step}"
    return last if way.overwritten is None else f"{last}; step {way.overwritten} overwrites it there"


def _fault(schedule: Schedule, moves: list[Move], wanted: list[Cell], found: Counter[Cell]) -> tuple[int, str]:
    """The first wrong transfer and its fault, or a sentence that there is none."""
    missing = [item for item in wanted if not found[item]]
    way = trail(schedule, missing[0]) if missing else None
    known = frozenset(wanted)
    for position, move in enumerate(moves):
        if move.doubled:
            return position, f"counts {_list(schedule, move.doubled)} again"
        extra = sorted(item for item in move.held if item not in known)
        if extra:
            return position, f"brings {_list(schedule, extra)}, which is not wanted"
        if way and way.last and (move.dst, move.step) == (way.last.dst, way.overwritten):
            return position, f"overwrites {_list(schedule, missing[:1])}"
    return -1, ""


def _decisive(
    schedule: Schedule, moves: list[Move], fault: int, reason: str, wanted: list[Cell], found: Counter[Cell]
) -> list[str]:
    """The transfer that makes it wrong; where there is none, how far the missing contribution came."""
    missing = [item for item in wanted if not found[item]]
    lines = []
    if fault >= 0:
        lines += [f"  =>  {_told(schedule, moves[fault], wanted)}", f"          which {reason}"]
    if missing:
        mark = "    " if fault >= 0 else "  =>"
        lines.append(f"{mark}  {_list(schedule, missing[:1])} {_fate(schedule, missing[0])}")
    return lines


def _told(schedule: Schedule, move: Move, wanted: list[Cell]) -> str:
    """A transfer in words, with the contributions that it leaves."""
    ends = " -> ".join(_list(schedule, [cell]) for cell in (move.src, move.dst))
    how = f"({OP_NAMES[move.op]}, channel {move.channel})"
    return f"step {move.step}: {ends} {how}: now {_holds(schedule, move.held, wanted)}"


def _story(schedule: Schedule, moves: list[Move], fault: int, wanted: list[Cell]) -> list[str]:
    """The transfers up to the first wrong one, or to the last, each with the contributions that it leaves."""
    end = len(moves) if fault < 0 else fault + 1
    begin = max(0, end - MAX_LINES)
    lines = [f"      ... {begin} before"] if begin else []
    lines += [f"      {_told(schedule, move, wanted)}" for move in moves[begin:end]]
    return [*lines, f"      ... {len(moves) - end} after"] if end < len(moves) else lines


def _holds(schedule: Schedule, held: Counter[Cell], wanted: list[Cell]) -> str:
    """Contributions in few words; only the ranks, where all are of the wanted chunk."""
    if not held:
        return "nothing"
    if {chunk for _, chunk in held} <= {chunk for _, chunk in wanted[:1]}:
        ranks = [f"{rank}" + (f" ({times} times)" if times > 1 else "") for (rank, _), times in sorted(held.items())]
        shown = ", ".join(ranks[:8]) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        return f"rank {shown}"
    return _list(schedule, sorted(held))
