"""A schedule as text and as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from html import escape

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
from simcoll.formats.goal.language import Goal, goal_text
from simcoll.terminal import printable

__all__ = ["goal_lines", "schedule_lines", "schedule_svg"]

_ARROWS = {COPY: "->", REDUCE: "+>", SYNC: "~>", MULTICAST: "=>", SWITCH_REDUCE: "+=>"}
_COLOURS = {
    COPY: "#0072B2",
    REDUCE: "#D55E00",
    SYNC: "#666666",
    MULTICAST: "#56B4E9",
    SWITCH_REDUCE: "#E69F00",
}
MAX_DRAWN = 20_000


def _transfer(schedule: Schedule, step: Step, row: int) -> str:
    layout, op, count = schedule.layout, int(step.op[row]), int(step.count[row])
    src, dst = int(step.src_rank[row]), int(step.dst_rank[row])
    channel = f" [channel {step.channel[row]}]" if schedule.nchannels > 1 else ""
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


def schedule_svg(schedule: Schedule) -> str:
    """Draw a space-time diagram: ranks from top to bottom, steps from left to right, an arrow per
    transfer.
    """
    title = textwrap.wrap(printable(str(schedule)), 100)
    width, height = 56, 26
    label_width = 60
    top = 32 + 18 * len(title)
    arrows = []
    steps = drawn = 0
    for number, step in enumerate(schedule.steps()):
        steps = number + 1
        for src, dst, op in zip(
            step.src_rank.tolist(), step.dst_rank.tolist(), step.op.tolist(), strict=True
        ):
            drawn += 1
            if drawn > MAX_DRAWN:
                continue
            x, y, colour = label_width + number * width, top + src * height, _COLOURS[op]
            if src == dst:
                arrows.append(f'<circle cx="{x + width / 2}" cy="{y}" r="3" fill="{colour}"/>')
            else:
                line = f"M{x + 6} {y}L{x + width - 8} {top + dst * height}"
                arrows.append(
                    f'<path d="{line}" stroke="{colour}" marker-end="url(#{OP_NAMES[op]})"/>'
                )
    legend = (
        "blue copies, orange reduces, grey only notifies, light: by a switch, a dot stays on "
        "its rank"
    )
    # About seven pixels a character in the title, six in the legend.
    total_width = max(
        label_width + steps * width + 20, 16 + 7 * max(map(len, title)), 16 + 6 * len(legend)
    )
    total_height = top + schedule.nranks * height + 30
    grid = [
        f'<text x="8" y="{top + rank * height + 4}">rank {rank}</text>'
        for rank in range(schedule.nranks)
    ]
    grid += [
        f'<line x1="{label_width}" x2="{total_width - 20}" y1="{top + r * height}" '
        f'y2="{top + r * height}" stroke="#ddd"/>'
        for r in range(schedule.nranks)
    ]
    grid += [
        f'<text x="{label_width + s * width + width / 2}" y="{top - 14}" '
        f'text-anchor="middle">{s}</text>'
        for s in range(steps)
    ]
    heads = "".join(
        f'<marker id="{OP_NAMES[op]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" '
        'markerHeight="6" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
        for op, colour in _COLOURS.items()
    )
    heading = [
        f'<text x="8" y="{18 * number}" font-size="14">{escape(line, quote=False)}</text>'
        for number, line in enumerate(title, 1)
    ]
    if drawn > MAX_DRAWN:
        legend += f"; the first {MAX_DRAWN:,} of {drawn:,} transfers"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total_width}" height="{total_height}" '
        f'font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/><defs>{heads}</defs>'
        f"{''.join(heading)}"
        f'{"".join(grid)}<g fill="none" stroke-width="1.3">{"".join(arrows)}</g>'
        f'<text x="8" y="{total_height - 8}" fill="#555">{legend}</text></svg>\n'
    )
