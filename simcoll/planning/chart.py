"""The picture of a sweep: bus bandwidth over size, one line per algorithm, the bound above them."""

from __future__ import annotations

import io
import textwrap
from typing import TYPE_CHECKING, Any

from simcoll.emulator import bus_factor
from simcoll.planning.sweep import bound_rows
from simcoll.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simcoll.planning.sweep import Row

__all__ = ["busbw_svg"]

# Distinguishable with every common colour vision (Okabe, Ito 2008).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

_MARKERS = ("o", "^", "s", "x")
"""One for each round of the colours."""


def _curves(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """Best bus bandwidth of each algorithm, over its protocols, in GB/s by size."""
    curves: dict[str, dict[int, float]] = {}
    for row in rows:
        curve = curves.setdefault(str(row.choice), {})
        curve[row.size_bytes] = max(curve.get(row.size_bytes, 0.0), row.busbw / 1e9)
    return curves


def busbw_svg(title: str, kind: str, nranks: int, rows: Sequence[Row]) -> bytes:
    """An SVG picture; the same rows give the same bytes. For a barrier, which has no bytes, the times."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "simcoll", "svg.fonttype": "none", "font.size": 10}):
        figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
        if not any(row.size_bytes for row in rows):
            _draw_times(axes, rows)
        else:
            _draw_curves(axes, kind, nranks, rows)
        axes.set_title(textwrap.fill(title, 90), parse_math=False)
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


def _draw_curves(axes: Any, kind: str, nranks: int, rows: Sequence[Row]) -> None:
    for number, (name, curve) in enumerate(_curves(rows).items()):
        colour = _COLOURS[number % len(_COLOURS)]
        marker = _MARKERS[number // len(_COLOURS) % len(_MARKERS)]
        axes.plot(list(curve), list(curve.values()), marker=marker, markersize=3, color=colour, label=name)
    factor = bus_factor(kind, nranks)
    bounds = {row.size_bytes: row.size_bytes / row.bound_fs * 1e6 * factor for row in bound_rows(rows) if row.bound_fs}
    axes.plot(list(bounds), list(bounds.values()), linestyle="--", color="grey", label="upper bound for any schedule")
    axes.set_xscale("log", base=2)
    sizes = sorted({row.size_bytes for row in rows})
    shown = sizes[:: max(1, len(sizes) // 8)]
    axes.set_xticks(shown, [format_size(size) for size in shown])
    axes.minorticks_off()
    axes.set_xlabel("size")
    axes.set_ylabel("bus bandwidth (GB/s)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    for text in axes.legend(frameon=False, loc="best").get_texts():
        text.set_parse_math(False)
