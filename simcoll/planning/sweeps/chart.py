"""Pictures of sweeps: bus bandwidth and time over size, a curve per algorithm, and the bound."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from simcoll.core.collective import bus_factor
from simcoll.errors import ConfigError
from simcoll.planning.sweeps.sweep import SweepRow, best_rows, bound_rows
from simcoll.units import format_size

if TYPE_CHECKING:
    from simcoll.libraries.prediction import Prediction

__all__ = [
    "COLOURS",
    "NO_PICTURE",
    "busbw_svg",
    "can_draw",
    "check_drawing",
    "name_sizes",
    "picture",
    "shares_svg",
]

NO_PICTURE = "no picture: matplotlib is not installed (pip install matplotlib)"

# Distinguishable with every common colour vision (Okabe, Ito 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

_MARKERS = ("o", "^", "s", "x")
"""One marker per cycle of the colours."""


def _curves(rows: Sequence[SweepRow]) -> dict[str, list[SweepRow]]:
    """The fastest run of every algorithm at every size, labelled with the algorithm and its
    protocols.
    """
    algorithms: dict[str, list[SweepRow]] = {}
    for row in rows:
        algorithms.setdefault(str(row.choice), []).append(row)
    best = {name: best_rows(runs) for name, runs in algorithms.items()}
    return {
        f"{name} ({', '.join(dict.fromkeys(row.protocol for row in runs))})": runs
        for name, runs in best.items()
    }


def busbw_svg(
    title: str,
    kind: str,
    nranks: int,
    rows: Sequence[SweepRow],
    predictions: Sequence[Prediction] = (),
    *,
    run: str = "",
) -> bytes:
    """Draw bus bandwidth as SVG (for a barrier, times), deterministic to the byte.

    Parameters
    ----------
    predictions
        A library's, drawn with the band that holds 90 % of measurements.
    run
        Identifies the results in the picture's metadata.
    """

    def bandwidths(panels: Sequence[Any]) -> None:
        factor = float(bus_factor(kind, nranks))
        _draw_predictions(panels[0], predictions, lambda size, fs: size / fs * 1e6 * factor)
        _draw_predictions(panels[1], predictions, lambda _, fs: fs / 1e9)
        _draw_bandwidths(panels[0], kind, nranks, rows)
        _draw_latencies(panels[1], rows)
        sizes = [row.size_bytes for row in rows]
        name_sizes(panels[1], sizes + [prediction.size_bytes for prediction in predictions])

    if predictions or any(row.size_bytes for row in rows):
        return picture(title, 2, bandwidths, run=run)
    return picture(title, 1, lambda panels: _draw_times(panels[0], rows), run=run)


def shares_svg(
    title: str, axis: str, curves: Mapping[str, tuple[Sequence[float], int]], *, run: str = ""
) -> bytes:
    """Draw cumulative distributions: for each curve, the share of cases up to each value."""

    def shares(panels: Sequence[Any]) -> None:
        axes = panels[0]
        for number, (name, (values, cases)) in enumerate(curves.items()):
            colour = COLOURS[number % len(COLOURS)]
            dashes = ("-", "--")[number // len(COLOURS) % 2]
            # From the axis up, where the first is done.
            heights = [100 * place / cases for place in range(len(values) + 1)]
            axes.step(
                [*values[:1], *values],
                heights if values else [],
                dashes,
                where="post",
                color=colour,
                label=name,
            )
        axes.set(
            xlabel=axis,
            ylabel="runs (%)",
            ylim=(0, 103),
            xscale="log" if any(values for values, _ in curves.values()) else "linear",
        )
        for places in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            places(lambda value, _: f"{value:.4g}")
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize=8, ncols=2, frameon=False
        )

    return picture(title, 1, shares, run=run)


def can_draw() -> bool:
    """Whether matplotlib is installed; results are written without a picture where it is not."""
    return find_spec("matplotlib") is not None


def check_drawing() -> None:
    """Refuse a picture that was asked for and cannot be drawn, before anything is computed."""
    if not can_draw():
        raise ConfigError(NO_PICTURE)


def picture(
    title: str,
    count: int,
    draw: Callable[[Sequence[Any]], None],
    *,
    shared: bool = True,
    run: str = "",
) -> bytes:
    """Draw stacked panels as SVG."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "simcoll", "svg.fonttype": "none", "font.size": 10}):
        height = 5 if count == 1 else 4 * count
        figure, grid = plt.subplots(
            count, figsize=(9, height), sharex=shared, squeeze=False, layout="constrained"
        )
        panels = list(grid[:, 0])
        draw(panels)
        if shared:
            panels[0].set_title(textwrap.fill(title, 90), parse_math=False)
        else:
            figure.suptitle(textwrap.fill(title, 90), parse_math=False)
        for axes in panels:
            axes.spines[["top", "right"]].set_visible(False)
        stream = io.BytesIO()
        metadata = {"Date": None, "Creator": "simcoll"}
        if run:
            metadata["Identifier"] = run
        figure.savefig(stream, format="svg", metadata=metadata)
        plt.close(figure)
    return stream.getvalue()


def _draw_times(axes: Any, rows: Sequence[SweepRow]) -> None:
    """Draw a bar of the time of every run, for operations without bytes such as a barrier."""
    names = [str(row) for row in rows]
    axes.barh(names, [row.time_fs / 1e9 for row in rows], color=COLOURS[0])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.invert_yaxis()
    axes.set_xlabel("time (us)")
    axes.grid(axis="x", alpha=0.3)


def _draw_curves(axes: Any, rows: Sequence[SweepRow], height: Callable[[SweepRow], float]) -> None:
    for number, (label, curve) in enumerate(_curves(rows).items()):
        axes.plot(
            [row.size_bytes for row in curve],
            [height(row) for row in curve],
            markersize=3,
            label=label,
            color=COLOURS[number % len(COLOURS)],
            marker=_MARKERS[number // len(COLOURS) % len(_MARKERS)],
        )


def _draw_predictions(
    axes: Any, predictions: Sequence[Prediction], height: Callable[[int, int], float]
) -> None:
    """Draw a library's predictions, and the band of their 90 % intervals; ``height`` is that of a
    size and a time.
    """
    if not predictions:
        return
    sizes = [prediction.size_bytes for prediction in predictions]
    times = ("time_fs", "low90_fs", "high90_fs")
    middle, low, high = (
        [height(row.size_bytes, getattr(row, name)) for row in predictions] for name in times
    )
    axes.plot(sizes, middle, color="black", linewidth=1, label=predictions[0].library)
    label = "90 % of measurements"
    axes.fill_between(sizes, low, high, color="black", alpha=0.12, linewidth=0, label=label)


def _draw_bound(
    axes: Any, rows: Sequence[SweepRow], label: str, height: Callable[[SweepRow], float]
) -> None:
    bounds = {row.size_bytes: height(row) for row in bound_rows(rows) if row.bound_fs}
    axes.plot(list(bounds), list(bounds.values()), linestyle="--", color="grey", label=label)


def _draw_bandwidths(axes: Any, kind: str, nranks: int, rows: Sequence[SweepRow]) -> None:
    factor = bus_factor(kind, nranks)
    _draw_curves(axes, rows, lambda row: row.busbw / 1e9)
    _draw_bound(
        axes,
        rows,
        "upper bound for any schedule",
        lambda row: row.size_bytes / row.bound_fs * 1e6 * factor,
    )
    axes.set_ylabel("bus bandwidth (GB/s)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    for text in axes.legend(frameon=False, loc="best").get_texts():
        text.set_parse_math(False)


def _draw_latencies(axes: Any, rows: Sequence[SweepRow]) -> None:
    """Draw small sizes, which a linear bandwidth axis hides, in the colours of the panel above."""
    timed = [row for row in rows if row.time_fs]
    _draw_curves(axes, timed, lambda row: row.time_fs / 1e9)
    _draw_bound(axes, timed, "lower bound for any schedule", lambda row: row.bound_fs / 1e9)
    axes.set_ylabel("time (us)")
    axes.set_yscale("log")
    axes.grid(alpha=0.3)


def name_sizes(axes: Any, sizes: Sequence[int]) -> None:
    """Label a logarithmic axis of sizes with some of them."""
    axes.set_xscale("log", base=2)
    distinct = sorted({*sizes})
    ticks = distinct[:: max(1, len(distinct) // 8)]
    axes.set_xticks(ticks, [format_size(size) for size in ticks])
    axes.minorticks_off()
    axes.set_xlabel("size")
