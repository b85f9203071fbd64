"""A schedule as text and as a picture, a GOAL program as text."""

from __future__ import annotations

from collections.abc import Iterator

from simcoll.core.picture import schedule_svg
from simcoll.core.schedule import (
    COPY,
    MULTICAST,
    OP_NAMES,
    REDUCE,
    SWITCH_REDUCE,
    SYNC,
    Schedule,
    Step,
)
from simcoll.core.step import transit_words
from simcoll.formats.goal.language import Goal, goal_text
from simcoll.terminal import printable

__all__ = ["goal_lines", "schedule_lines", "schedule_svg"]

_ARROWS = {COPY: "->", REDUCE: "+>", SYNC: "~>", MULTICAST: "=>", SWITCH_REDUCE: "+=>"}


def _transfer(schedule: Schedule, step: Step, row: int) -> str:
    layout, op, count = schedule.layout, int(step.op[row]), int(step.count[row])
    src, dst = int(step.src_rank[row]), int(step.dst_rank[row])
    channel = f" [channel {step.channel[row]}]" if schedule.nchannels > 1 else ""
    channel += transit_words(step, row)
    if op == SYNC:
        return f"{src:>4} ~> {dst:<4}{channel}"
    src_name, dst_name = (
        layout.name(int(step.src_chunk[row])),
        layout.name(int(step.dst_chunk[row])),
    )
    chunks = f" (+{count - 1} more)" if count > 1 else ""
    place = src_name if src_name == dst_name else f"{src_name} {_ARROWS[op]} {dst_name}"
    return f"{src:>4} {_ARROWS[op]} {dst:<4} {place}{chunks}{channel}"


def schedule_lines(schedule: Schedule, max_transfers: int = 200) -> Iterator[str]:
    """List a schedule, a transfer a line: ``->`` copies, ``+>`` reduces, ``~>`` only notifies;
    switches send ``=>`` and reduce ``+=>``.
    """
    layout = schedule.layout
    slots = {
        "input": schedule.collective.input_slots,
        "output": schedule.collective.output_slots,
        "scratch": layout.scratch_slots,
    }
    contents = ", ".join(
        f"{name} {count} x {layout.chunks}" for name, count in slots.items() if count
    )
    channels = f"{schedule.nchannels} channel{'s' * (schedule.nchannels > 1)}"
    yield f"{printable(str(schedule))}: slots x chunks: {contents or 'none'}; {channels}"
    printed = total = 0
    for number, step in enumerate(schedule.steps()):
        kinds = sorted({OP_NAMES[op] for op in step.op.tolist()})
        if len(step) and printed < max_transfers:
            size = f"{len(step)} transfer{'s' * (len(step) != 1)}"
            yield f"step {number} ({', '.join(kinds)}, {size})"
        for row in range(min(len(step), max_transfers - printed)):
            yield f"  {_transfer(schedule, step, row)}"
            printed += 1
        total += len(step)
    if total > printed:
        yield f"... {total - printed:,} more of {total:,} transfers (--limit shows more)"


def goal_lines(goal: Goal, max_operations: int = 200) -> Iterator[str]:
    """List a GOAL program, one operation a line, with dependencies under each rank."""
    yield f"{goal}: data unknown"
    printed, total = 0, len(goal.kind)
    for line in goal_text(goal).decode().split("\n")[1:]:
        if not line or line == "}":
            continue
        if line.startswith("rank "):
            if printed >= max_operations:
                break
            yield line.removesuffix(" {")
            continue
        operation = ": " in line
        if not operation or printed < max_operations:
            yield f"  {line}"
        printed += operation
    if total > max_operations:
        yield f"... {total - max_operations:,} more of {total:,} operations (--limit shows more)"
