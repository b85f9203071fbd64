"""A sweep by machine, collective and size: the fastest run of each with its bound, as a table and
as a picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simcoll.planning.grids.grid import Row
from simcoll.planning.sweeps.chart import COLOURS, name_sizes, picture
from simcoll.units import format_size, format_time

__all__ = ["MachineRow", "fastest_rows", "machine_lines", "machines_svg"]

MOST_LINES = 48
MOST_PANELS = 6
MOST_WIDTHS = 4
"""Widths of lines; machines beyond have the narrowest."""
_CONDITIONS = ("nodes", "degraded", "group")
"""Keys of a point that tell machines apart where they differ."""


@dataclass(frozen=True, slots=True)
class MachineRow:
    """The fastest run of a collective of one size on a machine.

    Attributes
    ----------
    machine, collective, size_bytes
        Where, what, and how much: the size of the file, which may be rounded down to whole
        elements of each rank.
    run
        Algorithm and protocol.
    time_fs, bound_fs
        Its time, and the lower bound of any schedule; None for a program of messages.
    bottleneck
        What bounds it.
    """

    machine: str
    collective: str
    size_bytes: int
    run: str
    time_fs: int
    bound_fs: int | None
    bottleneck: str


def fastest_rows(rows: Sequence[Row]) -> list[MachineRow]:
    """The fastest run of each machine, collective and size, in the order of the sweep.

    Of several seeds, which stand for jitter, the slowest counts.
    """
    points = [row["point"] for row in rows]
    conditions = [key for key in _CONDITIONS if len({str(point.get(key)) for point in points}) > 1]
    slowest: dict[tuple[str, ...], Row] = {}
    for row in rows:
        if "time_fs" not in row.get("result", {}):
            continue
        point = row["point"]
        key = (
            _machine(point, conditions),
            str(point["collective"]),
            str(point.get("size") or 0),
            f"{point['algorithm']} {point['protocol']}",
        )
        if key not in slowest or row["result"]["time_fs"] > slowest[key]["result"]["time_fs"]:
            slowest[key] = row
    fastest: dict[tuple[str, ...], MachineRow] = {}
    for run, row in slowest.items():
        result, place = row["result"], run[:3]
        if place not in fastest or result["time_fs"] < fastest[place].time_fs:
            times = (result["time_fs"], result["bound_fs"], str(result["bottleneck"]))
            fastest[place] = MachineRow(run[0], run[1], int(run[2]), run[3], *times)
    return list(fastest.values())


def _machine(point: Mapping[str, Any], conditions: Sequence[str]) -> str:
    values = [f"{key} {_condition(point[key])}" for key in conditions if point.get(key)]
    return ", ".join([str(point["topology"]).rpartition("/")[2], *values])


def _condition(value: Any) -> str:
    """A value as options spell it: links with their shares, or items in a row."""
    if isinstance(value, Mapping):
        return " ".join(f"{link}={share}" for link, share in value.items())
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def machine_lines(rows: Sequence[MachineRow]) -> Iterator[str]:
    """The lines of the table."""
    heads = ["machine", "collective", "size", "fastest", "time", "bound", "times", "bottleneck"]
    lines = [heads]
    lines += [
        [
            row.machine,
            row.collective,
            format_size(row.size_bytes),
            row.run,
            format_time(row.time_fs),
            "-" if row.bound_fs is None else format_time(row.bound_fs),
            f"{row.time_fs / row.bound_fs:.2f}" if row.bound_fs else "-",
            row.bottleneck,
        ]
        for row in rows[:MOST_LINES]
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    numbers = {"size", "time", "bound", "times"}
    for number, line in enumerate(lines):
        cells = (
            f"{cell:>{width}}" if head in numbers else f"{cell:<{width}}"
            for head, cell, width in zip(heads, line, widths, strict=True)
        )
        yield f"{'# ' if number == 0 else '  '}{'  '.join(cells)}".rstrip()
    if len(rows) > MOST_LINES:
        yield f"# and {len(rows) - MOST_LINES:,} more in results.csv"
    yield "# bound: no schedule is faster on this machine; times: the fastest over the bound"
    if any(row.run.endswith(" ideal") for row in rows):
        yield (
            "# ideal: latencies and bytes alone; a library adds launches and protocols (simcoll "
            "perf --library nccl)"
        )


def machines_svg(title: str, rows: Sequence[MachineRow], *, run: str = "") -> bytes:
    """Draw the times over size: a panel for each collective, a colour for each machine, dashed its
    bound. Deterministic to the byte.
    """
    collectives = list(dict.fromkeys(row.collective for row in rows))[:MOST_PANELS]
    machines = list(dict.fromkeys(row.machine for row in rows))

    def times(panels: Sequence[Any]) -> None:
        for axes, collective in zip(panels, collectives, strict=True):
            for number, machine in enumerate(machines):
                curve = [
                    row for row in rows if (row.machine, row.collective) == (machine, collective)
                ]
                sizes = [row.size_bytes for row in curve]
                colour = COLOURS[number % len(COLOURS)]
                times_us = [row.time_fs / 1e9 for row in curve]
                bounds_us = [
                    float("nan") if row.bound_fs is None else row.bound_fs / 1e9 for row in curve
                ]
                # Machines that take as long are drawn on each other: the first ones are wider.
                width = 1.5 * min(MOST_WIDTHS, len(machines) - number)
                axes.plot(
                    sizes,
                    times_us,
                    "o-",
                    markersize=3 + width,
                    linewidth=width,
                    color=colour,
                    label=machine,
                )
                axes.plot(sizes, bounds_us, "--", color=colour, linewidth=width / 1.5)
            axes.plot([], [], "--", color="grey", linewidth=1, label="lower bound for any schedule")
            axes.set_yscale("log")
            axes.set_ylabel(f"{collective}, time (us)")
            axes.grid(alpha=0.3)
            for text in axes.legend(frameon=False, loc="best").get_texts():
                text.set_parse_math(False)
        name_sizes(panels[-1], [row.size_bytes for row in rows])

    return picture(title, len(collectives), times, run=run)
