"""A schedule as a picture: a space-time diagram in SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from html import escape
from typing import Any, NamedTuple, Protocol

from simcoll.core.layout import Layout
from simcoll.core.step import (
    COPY,
    MULTICAST,
    OP_NAMES,
    REDUCE,
    SWITCH_REDUCE,
    SYNC,
    Step,
    transit_words,
)
from simcoll.terminal import printable

__all__ = ["MOST_RANKS", "schedule_svg"]

COLOURS = {
    COPY: "#0072B2",
    REDUCE: "#D55E00",
    SYNC: "#666666",
    MULTICAST: "#56B4E9",
    SWITCH_REDUCE: "#E69F00",
}
MEANINGS = {
    COPY: "copy",
    REDUCE: "reduction",
    SYNC: "message without data",
    MULTICAST: "multicast by a switch",
    SWITCH_REDUCE: "reduction by a switch",
}
MAX_DRAWN = 20_000
MOST_RANKS = 64
"""Up to this number of ranks, a notebook draws a schedule."""
STEP_WIDTH, RANK_HEIGHT, LANE_HEIGHT = 56, 26, 9
LABEL_WIDTH = 60


class Drawable(Protocol):
    """What a picture needs of a schedule, which imports this module."""

    @property
    def layout(self) -> Layout:
        """Chunk addresses."""

    @property
    def nranks(self) -> int:
        """World size."""

    @property
    def nchannels(self) -> int:
        """Number of channels."""

    def steps(self) -> Iterator[Step]:
        """Every step in order."""


class _Drawing(NamedTuple):
    """The marks of a picture, and what they are of."""

    marks: list[str]
    steps: int
    transfers: int
    operations: set[int]
    transits: set[str]


def schedule_svg(schedule: Drawable) -> str:
    """Draw a space-time diagram: ranks from top to bottom, steps from left to right, an arrow for
    each transfer; the channels of a rank lie below one another.

    The title of an arrow, which viewers show where the pointer rests, names its ends, chunks and
    channel.
    """
    title = textwrap.wrap(printable(str(schedule)), 100)
    top = 32 + 18 * len(title)
    row_height = max(RANK_HEIGHT, LANE_HEIGHT * schedule.nchannels + 8)
    drawing = _draw(schedule, top, row_height)
    used = sorted(drawing.operations)
    notes = ["a dot stays on its rank"]
    if schedule.nchannels > 1:
        notes.append("the channels of a rank lie below one another, channel 0 on its line")
    if drawing.transits:
        notes.append(f"dashed: {'; '.join(sorted(drawing.transits))}")
    if drawing.transfers > MAX_DRAWN:
        notes.append(f"the first {MAX_DRAWN:,} of {drawing.transfers:,} transfers")
    note = "; ".join(notes)
    # About seven pixels a character in the title, six in the legend.
    legend_width = sum(40 + 6 * len(MEANINGS[op]) for op in used) + 6 * len(note)
    width = max(
        LABEL_WIDTH + drawing.steps * STEP_WIDTH + 20,
        16 + 7 * max(map(len, title)),
        24 + legend_width,
    )
    height = top + schedule.nranks * row_height + 30
    heading = "".join(
        f'<text x="8" y="{18 * number}" font-size="14">{escape(line, quote=False)}</text>'
        for number, line in enumerate(title, 1)
    )
    heads = "".join(map(_arrow_head, used))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/><defs>{heads}</defs>'
        f"{heading}{''.join(_grid(schedule, drawing.steps, top, row_height, width))}"
        f'<g fill="none" stroke-width="1.3">{"".join(drawing.marks)}</g>'
        f"{_legend(used, note, height - 8)}</svg>\n"
    )


def _draw(schedule: Drawable, top: int, row_height: int) -> _Drawing:
    marks: list[str] = []
    operations: set[int] = set()
    transits: set[str] = set()
    number = transfers = 0
    for number, step in enumerate(schedule.steps(), 1):
        operations.update(step.op.tolist())
        if step.transits is not None:
            transits.update(filter(None, map(str, step.transits.table)))
        room = max(MAX_DRAWN - transfers, 0)
        transfers += len(step)
        marks += [
            _mark(schedule, number - 1, step, row, top, row_height)
            for row in range(min(len(step), room))
        ]
    return _Drawing(marks, number, transfers, operations, transits)


def _mark(schedule: Drawable, number: int, step: Step, row: int, top: int, row_height: int) -> str:
    """The arrow of a transfer, or the dot of one that stays on its rank."""
    operation, channel = int(step.op[row]), int(step.channel[row])
    source, target = int(step.src_rank[row]), int(step.dst_rank[row])
    colour = COLOURS[operation]
    x = LABEL_WIDTH + number * STEP_WIDTH
    lane = top + channel * LANE_HEIGHT
    y, y_end = lane + source * row_height, lane + target * row_height
    text = f"<title>{escape(_words(schedule, number, step, row))}</title>"
    if source == target:
        centre = f'cx="{x + STEP_WIDTH / 2}" cy="{y}"'
        return f'<circle {centre} r="3" fill="{colour}">{text}</circle>'
    line = f"M{x + 6} {y}L{x + STEP_WIDTH - 8} {y_end}"
    head = f"url(#{OP_NAMES[operation]})"
    dashes = ' stroke-dasharray="5 3"' * bool(transit_words(step, row))
    return f'<path d="{line}" stroke="{colour}" marker-end="{head}"{dashes}>{text}</path>'


def _words(schedule: Drawable, number: int, step: Step, row: int) -> str:
    """A transfer in words."""
    layout, operation, count = schedule.layout, int(step.op[row]), int(step.count[row])
    ends = f"step {number}: rank {step.src_rank[row]} to rank {step.dst_rank[row]}"
    channel = f", channel {step.channel[row]}{transit_words(step, row)}"
    if operation == SYNC:
        return f"{ends}, {MEANINGS[operation]}{channel}"
    source, target = (layout.name(int(column[row])) for column in (step.src_chunk, step.dst_chunk))
    chunks = source if source == target else f"{source} to {target}"
    beyond = f" and {count - 1} more" if count > 1 else ""
    return f"{ends}, {MEANINGS[operation]} of {chunks}{beyond}{channel}"


def _grid(schedule: Drawable, steps: int, top: int, row_height: int, width: int) -> Iterator[str]:
    """The line of every rank, with its name, and the number of every step."""
    for rank in range(schedule.nranks):
        y = top + rank * row_height
        yield f'<text x="8" y="{y + 4}">rank {rank}</text>'
        yield f'<line x1="{LABEL_WIDTH}" x2="{width - 20}" y1="{y}" y2="{y}" stroke="#ddd"/>'
    if steps:
        yield f'<text x="8" y="{top - 14}">step</text>'
    for step in range(steps):
        x = LABEL_WIDTH + step * STEP_WIDTH + STEP_WIDTH / 2
        yield f'<text x="{x}" y="{top - 14}" text-anchor="middle">{step}</text>'


def _arrow_head(operation: int) -> str:
    return (
        f'<marker id="{OP_NAMES[operation]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" '
        f'markerHeight="6" orient="auto"><path d="M0 0L8 4L0 8z" fill="{COLOURS[operation]}"/>'
        "</marker>"
    )


def _legend(operations: list[int], note: str, y: int) -> str:
    """The meaning of the colours, and the notes."""
    parts: list[Any] = []
    x = 8
    for operation in operations:
        colour = COLOURS[operation]
        parts.append(
            f'<path d="M{x} {y - 4}h18" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{x + 22}" y="{y}" fill="#555">{MEANINGS[operation]}</text>'
        )
        x += 40 + 6 * len(MEANINGS[operation])
    return "".join(parts) + f'<text x="{x}" y="{y}" fill="#555">{note}</text>'
