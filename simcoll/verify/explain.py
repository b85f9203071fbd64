"""Counter-examples in words: what a failed proof says to the person who wrote the schedule."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from simcoll.errors import ScheduleError
from simcoll.plan import lowered
from simcoll.schedule import OP_NAMES, REDUCE

if TYPE_CHECKING:
    from simcoll.schedule import Schedule, Step

__all__ = [
    "barrier_leaves_early",
    "double_write",
    "input_write",
    "size_mismatch",
    "transfer_text",
    "undefined_read",
    "undefined_target",
    "wrong_output",
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
    where = f"rank {step.src_rank[row]} {schedule.layout.name(int(step.src_chunk[row]))}"
    _fail(schedule, number, step, row, f"reads {where}, which holds nothing yet", at_source=True)


def undefined_target(schedule: Schedule, number: int, step: Step, row: int) -> NoReturn:
    """A reduction into a chunk that nothing was ever written to."""
    where = f"rank {step.dst_rank[row]} {schedule.layout.name(int(step.dst_chunk[row]))}"
    _fail(schedule, number, step, row, f"reduces into {where}, which holds nothing yet", at_source=False)


def input_write(schedule: Schedule, number: int, step: Step, row: int) -> NoReturn:
    """A write to an input that is not also the output."""
    where = f"rank {step.dst_rank[row]} {schedule.layout.name(int(step.dst_chunk[row]))}"
    _fail(schedule, number, step, row, f"overwrites {where}: inputs are read-only", at_source=False)


def double_write(schedule: Schedule, number: int, step: Step, row: int, other: int) -> NoReturn:
    """Two writes of one chunk in one step."""
    where = f"rank {step.dst_rank[row]} {schedule.layout.name(int(step.dst_chunk[row]))}"
    also = transfer_text(schedule, step, other)
    _fail(schedule, number, step, row, f"writes {where} twice in one step\n  in {also}", at_source=False)


def size_mismatch(schedule: Schedule, number: int, step: Step) -> NoReturn:
    """A transfer between chunks whose sizes need not agree."""
    layout = schedule.layout
    blocks = layout.block(step.src_rank, step.src_chunk), layout.block(step.dst_rank, step.dst_chunk)
    pieces = step.src_chunk % layout.chunks, step.dst_chunk % layout.chunks
    row = int(np.flatnonzero((blocks[0] != blocks[1]) | (pieces[0] != pieces[1]))[0])
    ends = [f"piece {piece[row]} of block {block[row]}" for piece, block in zip(pieces, blocks, strict=True)]
    _fail(
        schedule, number, step, row,
        f"joins chunks of different sizes: {ends[0]} and {ends[1]} (blocks may have different sizes, pieces of a block differ by one element)",
        at_source=False,
    )  # fmt: skip


def barrier_leaves_early(schedule: Schedule, rank: int, absent: list[int]) -> NoReturn:
    """A barrier that some rank leaves without having heard of all."""
    shown = ", ".join(map(str, absent[:8])) + (" ..." if len(absent) > 8 else "")
    raise ScheduleError(f"{schedule}: rank {rank} may leave before rank {shown} has entered: no chain of messages leads here from there", rank=rank)


def _contributions(schedule: Schedule, rank: int, chunk: int) -> Counter[tuple[int, int]] | None:
    """What one chunk holds at the end, found by walking back through the steps; None when it holds nothing.

    Only the chunks that the wanted one depends on are followed: a weight for each, from the last step to the first.
    """
    layout = schedule.layout
    start = int(layout.canonical(np.array([rank]), np.array([chunk]))[0])
    weight: Counter[tuple[int, int]] = Counter({(rank, start): 1})
    for _, step in reversed(list(lowered(schedule))):
        moved: Counter[tuple[int, int]] = Counter()
        for row in range(len(step)):
            for offset in range(int(step.count[row])):
                dst = (int(step.dst_rank[row]), int(step.dst_chunk[row]) + offset)
                if (times := weight.get(dst)) is not None:
                    moved[int(step.src_rank[row]), int(step.src_chunk[row]) + offset] += times
                    if step.op[row] != REDUCE:
                        del weight[dst]
        weight.update(moved)
    originals = _input_names(schedule)
    found = Counter({originals[at]: times for at, times in weight.items() if at in originals})
    return found or None


def _input_names(schedule: Schedule) -> dict[tuple[int, int], tuple[int, int]]:
    """``(rank, stored chunk) -> (rank, input chunk)`` of every input chunk."""
    layout, collective = schedule.layout, schedule.collective
    names = {}
    for rank in np.flatnonzero(collective.has_input(np.arange(schedule.nranks))).tolist():
        chunks = np.arange(layout.output_base)
        stored = layout.canonical(np.full(len(chunks), rank), chunks)
        names.update({(rank, place): (rank, chunk) for chunk, place in enumerate(stored.tolist())})
    return names


def _wanted(schedule: Schedule, rank: int, chunk: int) -> list[tuple[int, int]]:
    layout = schedule.layout
    slot, piece = divmod(chunk - layout.output_base, layout.chunks)
    source, source_slot = (int(a[0]) for a in schedule.collective.source(np.array([rank]), np.array([slot])))
    return [(r, int(layout.input(source_slot, piece))) for r in (range(schedule.nranks) if source < 0 else [source])]


def _list(schedule: Schedule, items: list[tuple[int, int]]) -> str:
    shown = [f"rank {rank} {schedule.layout.name(chunk)}" for rank, chunk in items[:6]]
    return ", ".join(shown) + (f" and {len(items) - 6} more" if len(items) > 6 else "")


MAX_EXPLAINED = 2_000_000


def wrong_output(schedule: Schedule, rank: int, chunk: int, wrong: int, writer: int) -> NoReturn:
    """An output chunk with the wrong contributions at the end."""
    name = schedule.layout.name(chunk)
    lines = [f"{schedule}: rank {rank} {name} is wrong at the end ({wrong} wrong output chunk{'s' if wrong != 1 else ''} in all)"]
    wanted = _wanted(schedule, rank, chunk)
    lines.append(f"  expected: {_list(schedule, wanted)}")
    if sum(int(step.count.sum()) for step in schedule.steps()) <= MAX_EXPLAINED:
        found = _contributions(schedule, rank, chunk) or Counter()
        missing = [item for item in wanted if item not in found]
        extra = [item for item in found if item not in wanted]
        twice = [item for item in wanted if found[item] > 1]
        lines.append(f"  found:    {_list(schedule, sorted(found)) or 'nothing'}")
        for label, items in (("missing", missing), ("not wanted", extra), ("counted more than once", twice)):
            if items:
                lines.append(f"  {label}: {_list(schedule, items)}")
    lines.append(f"  last written in step {writer}" if writer >= 0 else "  never written")
    raise ScheduleError("\n".join(lines), step=writer if writer >= 0 else None, rank=rank, chunk=chunk)
