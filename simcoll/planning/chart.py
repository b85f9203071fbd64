"""The picture of a sweep: bus bandwidth and time over size, a curve per algorithm, and the bound."""

from __future__ import annotations

import io
import textwrap
from typing import TYPE_CHECKING, Any

from simcoll.core.collective import bus_factor
from simcoll.planning.sweep import best_rows, bound_rows
from simcoll.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simcoll.planning.sweep import Row

__all__ = ["busbw_svg"]

# Distinguishable with every common colour vision (Okabe, Ito 2008).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

_MARKERS = ("o", "^", "s", "x")
"""One for each round of the colours."""


def _curves(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The fastest run of every algorithm at every size, labelled with the algorithm and its protocols."""
    algorithms: dict[str, list[Row]] = {}
    for row in rows:
        algorithms.setdefault(str(row.choice), []).append(row)
    best = {name: best_rows(own) for name, own in algorithms.items()}
    return {f"{name} ({', '.join(dict.fromkeys(row.protocol for row in own))})": own for name, own in best.items()}


def busbw_svg(title: str, kind: str, nranks: int, rows: Sequence[Row]) -> bytes:
    """An SVG picture; the same rows give the same bytes. For a barrier, which has no bytes, the times."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "simcoll", "svg.fonttype": "none", "font.size": 10}):
        if any(row.size_bytes for row in rows):
            figure, panels = plt.subplots(2, figsize=(9, 8), sharex=True, layout="constrained")
            _draw_bandwidths(panels[0], kind, nranks, rows)
            _draw_latencies(panels[1], rows)
            _name_sizes(panels[1], rows)
        else:
            figure, panels = plt.subplots(1, figsize=(9, 5), squeeze=False, layout="constrained")
            panels = panels[0]
            _draw_times(panels[0], rows)
        panels[0].set_title(textwrap.fill(title, 90), parse_math=False)
        for axes in panels:
            axes.spines[["top", "right"]].set_visible(False)
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": "simcoll"})
        plt.close(figure)
    return stream.getvalue()


def _draw_times(axes: Any, rows: Sequence[Row]) -> None:
    """A bar for every run: without bytes, as in a barrier, there is no bandwidth, only time."""
    names = [str(row) for row in rows]
    axes.barh(names, [row.time_fs / 1e9 for row in rows], color=_COLOURS[0])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.invert_yaxis()
    axes.set_xlabel("time (us)")
    axes.grid(axis="x", alpha=0.3)


def _draw_curves(axes: Any, rows: Sequence[Row], height: Callable[[Row], float]) -> None:
    for number, (label, curve) in enumerate(_curves(rows).items()):
        axes.plot(
            [row.size_bytes for row in curve], [height(row) for row in curve], markersize=3, label=label,
            color=_COLOURS[number % len(_COLOURS)], marker=_MARKERS[number // len(_COLOURS) % len(_MARKERS)],
        )  # fmt: skip


def _draw_bound(axes: Any, rows: Sequence[Row], label: str, height: Callable[[Row], float]) -> None:
    bounds = {row.size_bytes: height(row) for row in bound_rows(rows) if row.bound_fs}
    axes.plot(list(bounds), list(bounds.values()), linestyle="--", color="grey", label=label)


def _draw_bandwidths(axes: Any, kind: str, nranks: int, rows: Sequence[Row]) -> None:
    factor = bus_factor(kind, nranks)
    _draw_curves(axes, rows, lambda row: row.busbw / 1e9)
    _draw_bound(axes, rows, "upper bound for any schedule", lambda row: row.size_bytes / row.bound_fs * 1e6 * factor)
    axes.set_ylabel("bus bandwidth (GB/s)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    for text in axes.legend(frameon=False, loc="best").get_texts():
        text.set_parse_math(False)


def _draw_latencies(axes: Any, rows: Sequence[Row]) -> None:
    """Small sizes, which a linear bandwidth hides; the colours are those of the panel above."""
    timed = [row for row in rows if row.time_fs]
    _draw_curves(axes, timed, lambda row: row.time_fs / 1e9)
    _draw_bound(axes, timed, "lower bound for any schedule", lambda row: row.bound_fs / 1e9)
    axes.set_ylabel("time (us)")
    axes.set_yscale("log")
    axes.grid(alpha=0.3)


def _name_sizes(axes: Any, rows: Sequence[Row]) -> None:
    axes.set_xscale("log", base=2)
    sizes = sorted({row.size_bytes for row in rows})
    shown = sizes[:: max(1, len(sizes) // 8)]
    axes.set_xticks(shown, [format_size(size) for size in shown])
    axes.minorticks_off()
    axes.set_xlabel("size")
