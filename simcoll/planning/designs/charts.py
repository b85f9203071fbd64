"""Vega-Lite charts of a plan's report: breakdown of designs' time, memory, link use, and the
timeline of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simcoll.planning.designs.design_search import Bar
    from simcoll.planning.designs.sensitivity import Sensitivity
    from simcoll.planning.grids.grid import Row

__all__ = [
    "COLOURS",
    "effects_chart",
    "links_chart",
    "memory_chart",
    "parts_chart",
    "six_digits",
    "timeline_chart",
    "timeline_text",
]

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f"]
"""Distinguishable with every common colour vision (Okabe and Ito 2008; last two added), and legible
on white and on black.
"""


def six_digits(value: float) -> float:
    """Round to six digits, enough for a chart, to keep the page small."""
    return float(f"{value:.6g}")


def parts_chart(best: Sequence[Row], names: Sequence[str]) -> dict[str, Any]:
    """Breakdown of each design's time, in milliseconds."""
    return _stacked_chart(names, [_time_parts(row["result"]) for row in best], "ms", "ms of a step")


def _time_parts(result: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    exposed = {f"{name} exposed": axis["exposed_fs"] for name, axis in result["axes"].items()}
    parts = {"computation": result["compute_fs"], "slower ranks": result["slower_fs"]}
    parts |= {"bubble": result["bubble_fs"], **exposed}
    remainder = "waiting" if result["tier"] == 2 else "communication (tier 1)"
    parts[remainder] = max(0, result["time_fs"] - sum(parts.values()))
    return [(part, fs / 1e12) for part, fs in parts.items()]


def memory_chart(best: Sequence[Row], names: Sequence[str]) -> dict[str, Any]:
    """Memory of the fullest GPU of each design by part, in GiB."""
    parts = [
        [(part, count / 2**30) for part, count in row["result"]["memory"].items()] for row in best
    ]
    return _stacked_chart(names, parts, "GiB", "GiB of the fullest GPU")


def _stacked_chart(
    names: Sequence[str], parts: Sequence[Iterable[tuple[str, float]]], unit: str, title: str
) -> dict[str, Any]:
    """A stacked bar for each design."""
    values = [
        {"design": name, "part": part, "size": six_digits(size), "order": order}
        for name, sizes in zip(names, parts, strict=True)
        for order, (part, size) in enumerate(sizes)
        if size > 0
    ]
    return {
        **_frame(26 * len(names), values),
        "mark": "bar",
        "encoding": {
            "x": {"field": "size", "type": "quantitative", "title": title, "stack": "zero"},
            "y": {"field": "design", "type": "nominal", "title": None, "sort": None},
            "color": {
                "field": "part",
                "type": "nominal",
                "title": None,
                "sort": {"field": "order"},
                "scale": {"range": COLOURS},
            },
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": [
                {"field": "design"},
                {"field": "part"},
                {"field": "size", "type": "quantitative", "title": unit, "format": ",.4~g"},
            ],
        },
    }


def effects_chart(effects: Sequence[Sensitivity], title: str) -> dict[str, Any]:
    """Relative changes of the objective with less and with more of each input."""
    values = [
        {
            "input": effect.name,
            "change": six_digits(change),
            "with": f"times {factor:g}",
            "side": "less" if factor < 1 else "more",
        }
        for effect in effects
        for factor, change in zip(effect.factors, effect.changes, strict=True)
    ]
    return {
        **_frame(24 * len(effects), values),
        "mark": "bar",
        "encoding": {
            "x": {
                "field": "change",
                "type": "quantitative",
                "title": f"change of {title}",
                "axis": {"format": "+.0~%", "tickCount": 8},
            },
            "y": {"field": "input", "type": "nominal", "title": None, "sort": None},
            "color": {
                "field": "side",
                "type": "nominal",
                "title": None,
                "scale": {"domain": ["less", "more"], "range": COLOURS[:2]},
            },
            "tooltip": [
                {"field": "input"},
                {"field": "with"},
                {"field": "change", "type": "quantitative", "format": "+.1%"},
            ],
        },
    }


def links_chart(best: Sequence[Row], names: Sequence[str]) -> dict[str, Any]:
    """Utilisation of the busiest link of each kind over the step."""
    values = [
        {"design": name, "link": link, "share": six_digits(share)}
        for name, row in zip(names, best, strict=True)
        for link, share in row["result"]["link_use"].items()
    ]
    return {
        **_frame(12 * len(values) + 10 * len(best), values),
        "mark": "bar",
        "encoding": {
            "x": {
                "field": "share",
                "type": "quantitative",
                "title": "share of the step",
                "axis": {"format": ".2~%", "tickCount": 8},
                "scale": {"domainMin": 0},
            },
            "y": {"field": "design", "type": "nominal", "title": None, "sort": None},
            "yOffset": {"field": "link", "type": "nominal"},
            "color": {
                "field": "link",
                "type": "nominal",
                "title": None,
                "scale": {"range": COLOURS},
            },
            "tooltip": [
                {"field": "design"},
                {"field": "link"},
                {"field": "share", "type": "quantitative", "format": ".1%"},
            ],
        },
    }


def timeline_text(bars: Sequence[Bar], result: Mapping[str, Any]) -> str:
    """The caption of the timeline."""
    end = max(bar.end_fs for bar in bars)
    part = (
        f" The first {end / 1e12:,.1f} of {result['time_fs'] / 1e12:,.1f} ms."
        if end < result["time_fs"]
        else ""
    )
    return (
        f"A line for each class of ranks and stream.{part} trace.json.gz has all of it, for "
        "Perfetto."
    )


def timeline_chart(bars: Sequence[Bar]) -> dict[str, Any]:
    """A timeline with a lane for each class of ranks and stream."""
    lanes = list(dict.fromkeys(bar.lane for bar in bars))
    names = list(dict.fromkeys(bar.name for bar in bars))
    values = [
        {
            "l": lanes.index(bar.lane),
            "n": names.index(bar.name),
            "b": six_digits(bar.begin_fs / 1e12),
            "e": six_digits(bar.end_fs / 1e12),
        }
        for bar in bars
    ]
    return {
        **_frame(20 * len(lanes), values),
        "transform": [
            _lookup("l", "lane", lanes),
            _lookup("n", "name", names),
        ],
        "mark": {"type": "bar", "height": 14},
        "encoding": {
            "x": {"field": "b", "type": "quantitative", "title": "ms"},
            "x2": {"field": "e"},
            "y": {"field": "lane", "type": "nominal", "title": None, "sort": lanes},
            "color": {
                "field": "name",
                "type": "nominal",
                "title": None,
                "scale": {"range": COLOURS},
            },
            "tooltip": [
                {"field": "name"},
                {"field": "lane"},
                {"field": "b", "type": "quantitative", "title": "begin (ms)"},
                {"field": "e", "type": "quantitative", "title": "end (ms)"},
            ],
        },
    }


def _frame(height: int, values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The common head of a chart, as wide as the page."""
    return {
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": values},
    }


def _lookup(key: str, field: str, names: Sequence[str]) -> dict[str, Any]:
    """Look up names by number, to keep a chart's data small."""
    values = [{key: number, field: name} for number, name in enumerate(names)]
    return {"lookup": key, "from": {"data": {"values": values}, "key": key, "fields": [field]}}
