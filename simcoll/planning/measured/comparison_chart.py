"""Pictures of measurements: measured and predicted time over size, a panel per table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simcoll.planning.measured.comparison import Compared
from simcoll.planning.sweeps.chart import COLOURS, name_sizes, picture

__all__ = ["comparison_svg"]


def comparison_svg(title: str, tables: Mapping[str, Sequence[Compared]]) -> bytes:
    """Draw measured and predicted time over size with the bound, log-log, one panel per table."""

    def times(panels: Sequence[Any]) -> None:
        for axes, (name, rows) in zip(panels, tables.items(), strict=True):
            ordered = sorted(rows, key=lambda row: row.row.size_bytes)
            sizes = [row.row.size_bytes for row in ordered]
            axes.plot(
                sizes,
                [row.row.time_fs / 1e9 for row in ordered],
                color=COLOURS[0],
                marker="o",
                markersize=4,
                label="measured",
            )
            axes.plot(
                sizes,
                [row.prediction.time_fs / 1e9 for row in ordered],
                color=COLOURS[1],
                marker="^",
                markersize=4,
                label=f"predicted, {ordered[0].prediction.library}",
            )
            axes.fill_between(
                sizes,
                [row.prediction.low90_fs / 1e9 for row in ordered],
                [row.prediction.high90_fs / 1e9 for row in ordered],
                color=COLOURS[1],
                alpha=0.15,
                linewidth=0,
                label="90 % of measurements",
            )
            bounds = [
                (row.row.size_bytes, row.prediction.bound_fs / 1e9)
                for row in ordered
                if row.prediction.bound_fs
            ]
            if bounds:
                axes.plot(
                    *zip(*bounds, strict=True),
                    color="grey",
                    linestyle="--",
                    label="lower bound for any schedule",
                )
            axes.set_yscale("log")
            # Far below, where latency counts, the bound would squeeze the curves.
            axes.set_ylim(
                bottom=min(min(row.row.time_fs, row.prediction.time_fs) for row in ordered) / 3e9
            )
            axes.set_ylabel("time (us)")
            axes.grid(alpha=0.3)
            if len(tables) > 1:
                axes.set_title(name, fontsize="small", parse_math=False)
            name_sizes(axes, sizes)
            for text in axes.legend(frameon=False, loc="upper left").get_texts():
                text.set_parse_math(False)

    return picture(title, len(tables), times, shared=False)
