"""The report of a plan: Pareto chart, best designs, where the time goes, timeline, links, a comparison, and every input with its source."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from simcoll import __version__
from simcoll.planning.figures import FIGURES
from simcoll.planning.page import Cell, Column, Comparison, Page, Section, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simcoll.planning.designs import Bar
    from simcoll.planning.grid import Row
    from simcoll.planning.space import Space
    from simcoll.workload.design import Design

__all__ = ["design_page"]

MOST_POINTS = 3000
MOST_ROWS = 50
MOST_BARS = 10
BELOW = {"columns": 4, "orient": "bottom"}
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f"]
"""Apart for every common colour vision (Okabe and Ito 2008), the last two added; of enough contrast on white and on black."""


def design_page(
    space: Space, rows: Sequence[Row], best: Sequence[Row], front: Sequence[Row], bars: Sequence[Bar], design: Design
) -> Page:
    """The report.

    Parameters
    ----------
    rows
        All designs, each as its highest tier timed it.
    best, front
        Those that ran, the best first, and those on the Pareto front.
    bars
        The timeline of the best design.
    design
        The best design, whose inputs are listed.
    """
    shown = list({row["key"]: row for row in (*best[:MOST_ROWS], *front)}.values())
    axes = _axes(space, best)
    first = best[0]["result"]
    figure = FIGURES[space.objective.figure]
    exact = sum(row["result"]["tier"] == 2 for row in best)
    summary = [
        f"Best by {figure.title}: {_name(best[0], axes)}: {figure.text(first[space.objective.figure])} {figure.unit}".rstrip()
        + ".",
        (
            f"{len(rows):,} designs: {len(best):,} timed, {exact:,} of them with everything emulated together (tier 2), the others with "
            f"collectives timed once each (tier 1); {sum(r.get('result', {}).get('fits', 'yes') != 'yes' for r in rows):,} do not fit, "
            f"{sum('error' in r for r in rows):,} cannot be."
        ),
        f"Calibration of the best design: {first['calibration']}.",
        *first["notes"],
    ]
    page = Page(space.title, summary, _sections(space, best, front, shown), _footer(first))
    if bars:
        text = _timeline_text(bars, first)
        page.sections.insert(3, Section("timeline", "One step of the best design", text, chart=_timeline(bars)))
    inputs = "Every number that the best design uses, with its source."
    page.sections.append(Section("inputs", "Inputs", inputs, table=_inputs(design)))
    return page


def _sections(space: Space, best: Sequence[Row], front: Sequence[Row], shown: Sequence[Row]) -> list[Section]:
    """What compares designs."""
    top, exact = best[:MOST_BARS], "Click a head to sort. Tier 2 is exact where collectives share links; tier 1 is not."
    parts = "Computation, bubble, and what each axis exposes: the step is so much shorter without its bytes."
    links = "Share of the step in which the busiest link of each kind would be busy with its bytes alone."
    found = [
        Section("pareto", "Pareto front", _pareto_text(space, best), chart=_pareto(space, best, front)),
        Section("best", "Best designs", exact, table=_table(space, shown, front)),
        Section("time", "Where the time goes", parts, chart=_parts(top, _axes(space, top))),
    ]
    if any(row["result"]["link_use"] for row in top):
        found.append(Section("links", "Links", links, chart=_links(top, _axes(space, top))))
    if len(shown) > 1:
        two = _comparison(shown, _axes(space, shown))
        found.append(Section("compare", "What if", "Any two designs of the table.", comparison=two))
    return found


def _footer(first: Mapping[str, Any]) -> str:
    return (
        f"simcoll {__version__}, Python {platform.python_version()}. Design {first['design_hash']}, trace {first['trace_hash']}. "
        "This page loads nothing from anywhere."
    )


def _axes(space: Space, rows: Sequence[Row]) -> list[str]:
    """What differs between some designs, in the order of the file."""
    order = dict.fromkeys(name for _, case in space.documents for name in case)
    return [name for name in order if len({str(row["point"]["case"].get(name, "")) for row in rows}) > 1]


def _name(row: Row, axes: Sequence[str]) -> str:
    case = row["point"]["case"]
    return ", ".join(f"{name} {case[name]}" for name in axes if name in case) or "the only design"


def _label(name: str) -> str:
    figure = FIGURES[name]
    return f"{figure.title} ({figure.unit})" if figure.unit else figure.title


def _pareto_text(space: Space, best: Sequence[Row]) -> str:
    axes = [FIGURES[name] for name in _plane(space, best)]
    x, y = (f"{axis.title} ({'more' if axis.more_is_better else 'less'} is better)" for axis in axes)
    cut = f" The best {MOST_POINTS:,} designs are drawn." if len(best) > MOST_POINTS else ""
    return f"{x[0].upper()}{x[1:]} against {y}.{cut}"


def _plane(space: Space, best: Sequence[Row]) -> tuple[str, str]:
    from simcoll.planning.designs import front_figures

    x, y = front_figures(space, best[0]["result"])[:2]
    return x, y


def _pareto(space: Space, best: Sequence[Row], front: Sequence[Row]) -> dict[str, Any]:
    x, y = _plane(space, best)
    on_front = {row["key"] for row in front}
    axes = _axes(space, best)
    kinds = {name: {str(row["point"]["case"].get(name)) for row in best} for name in axes}
    group = next((name for name in axes if len(kinds[name]) <= len(COLOURS)), None)
    values = [
        {
            "x": _round(row["result"][x]), "y": _round(row["result"][y]), "tier": f"tier {row['result']['tier']}",
            "front": row["key"] in on_front, "name": _name(row, axes),
            **({"group": str(row["point"]["case"].get(group))} if group else {}),
        }
        for row in best[:MOST_POINTS]
    ]  # fmt: skip
    told = [
        {"field": "name", "type": "nominal", "title": "design"}, {"field": "tier", "type": "nominal"},
        {"field": "x", "type": "quantitative", "title": _label(x), "format": ",.5~g"},
        {"field": "y", "type": "quantitative", "title": _label(y), "format": ",.5~g"},
    ]  # fmt: skip
    plane = {
        "x": {"field": "x", "type": "quantitative", "title": _label(x), "scale": {"zero": False}},
        "y": {"field": "y", "type": "quantitative", "title": _label(y), "scale": {"zero": False}},
    }
    points = {
        **plane,
        "tooltip": told,
        "shape": {
            "field": "tier",
            "type": "nominal",
            "title": None,
            "scale": {"domain": ["tier 1", "tier 2"], "range": ["circle", "diamond"]},
        },
        "opacity": {"condition": {"test": "datum.front", "value": 1}, "value": 0.45},
        "size": {"condition": {"test": "datum.front", "value": 90}, "value": 30},
    }
    if group:
        points["color"] = {"field": "group", "type": "nominal", "title": group, "scale": {"range": COLOURS}}
    line = {
        "transform": [{"filter": "datum.front"}],
        "mark": {"type": "line", "strokeDash": [4, 3], "color": "#7f7f7f"},
        "encoding": plane,
    }
    return {
        "width": "container",
        "height": 360,
        "data": {"values": values},
        "layer": [line, {"mark": {"type": "point", "filled": True, "color": COLOURS[0]}, "encoding": points}],
    }


def _round(value: float) -> float:
    """Six digits are enough for a chart, and keep the page small."""
    return float(f"{value:.6g}")


def _columns(space: Space | None, shown: Sequence[Row]) -> tuple[list[str], list[Column]]:
    """The figures that differ between designs, and their columns; the objective first."""
    first = None if space is None else space.objective.figure
    known = [name for name in FIGURES if name in shown[0]["result"]]
    names = [name for name in known if name == first or len({row["result"][name] for row in shown}) > 1]
    names.sort(key=lambda name: name != first)
    return names, [
        Column(FIGURES[n].title, FIGURES[n].unit, number=True, better=1 if FIGURES[n].more_is_better else -1)
        for n in names
    ]


def _table(space: Space, shown: Sequence[Row], front: Sequence[Row]) -> Table:
    axes = _axes(space, shown)
    names, columns = _columns(space, shown)
    on_front = {row["key"] for row in front}
    heads = [
        Column("rank", number=True),
        *(Column(name) for name in axes),
        Column("tier"),
        *columns,
        Column("front"),
        Column("limited by"),
    ]
    rows = [
        [
            Cell(str(rank), rank),
            *(Cell(str(row["point"]["case"].get(name, ""))) for name in axes),
            Cell(str(row["result"]["tier"])),
            *(Cell(FIGURES[name].text(row["result"][name]), row["result"][name]) for name in names),
            Cell("yes" if row["key"] in on_front else ""),
            Cell(row["result"]["limit"]),
        ]
        for rank, row in enumerate(shown, 1)
    ]
    return Table(heads, rows, sortable=True)


def _parts(best: Sequence[Row], axes: Sequence[str]) -> dict[str, Any]:
    values = []
    for rank, row in enumerate(best, 1):
        told = row["result"]
        exposed = {f"{name} exposed": axis["exposed_fs"] for name, axis in told["axes"].items()}
        parts = {"computation": told["compute_fs"], "bubble": told["bubble_fs"], **exposed}
        rest = "waiting" if told["tier"] == 2 else "communication (tier 1)"
        parts[rest] = max(0, told["time_fs"] - sum(parts.values()))
        values += [
            {
                "design": f"{rank}. {_name(row, axes)}",
                "rank": rank,
                "part": part,
                "ms": _round(fs / 1e12),
                "order": order,
            }
            for order, (part, fs) in enumerate(parts.items())
            if fs > 0
        ]
    return {
        "width": "container",
        "height": 26 * len(best),
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": values},
        "mark": "bar",
        "encoding": {
            "x": {"field": "ms", "type": "quantitative", "title": "ms of a step", "stack": "zero"},
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
                {"field": "ms", "type": "quantitative", "format": ",.4~g"},
            ],
        },
    }


def _links(best: Sequence[Row], axes: Sequence[str]) -> dict[str, Any]:
    values = [
        {"design": f"{rank}. {_name(row, axes)}", "rank": rank, "link": link, "share": _round(share)}
        for rank, row in enumerate(best, 1)
        for link, share in row["result"]["link_use"].items()
    ]
    return {
        "width": "container",
        "height": 12 * len(values) + 10 * len(best),
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": values},
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
                "legend": BELOW,
            },
            "tooltip": [
                {"field": "design"},
                {"field": "link"},
                {"field": "share", "type": "quantitative", "format": ".1%"},
            ],
        },
    }


def _timeline_text(bars: Sequence[Bar], told: Mapping[str, Any]) -> str:
    end = max(bar.end_fs for bar in bars)
    part = f" The first {end / 1e12:,.1f} of {told['time_fs'] / 1e12:,.1f} ms." if end < told["time_fs"] else ""
    return f"A line for each class of ranks and stream.{part} trace.json.gz has all of it, for Perfetto."


def _timeline(bars: Sequence[Bar]) -> dict[str, Any]:
    lanes = list(dict.fromkeys(bar.lane for bar in bars))
    names = list(dict.fromkeys(bar.name for bar in bars))
    values = [
        {
            "l": lanes.index(bar.lane),
            "n": names.index(bar.name),
            "b": _round(bar.begin_fs / 1e12),
            "e": _round(bar.end_fs / 1e12),
        }
        for bar in bars
    ]
    return {
        "width": "container",
        "height": 20 * len(lanes),
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": values},
        "transform": [
            _looked_up("l", "lane", lanes),
            _looked_up("n", "name", names),
        ],
        "mark": {"type": "bar", "height": 14},
        "encoding": {
            "x": {"field": "b", "type": "quantitative", "title": "ms"},
            "x2": {"field": "e"},
            "y": {"field": "lane", "type": "nominal", "title": None, "sort": lanes},
            "color": {"field": "name", "type": "nominal", "title": None, "scale": {"range": COLOURS}, "legend": BELOW},
            "tooltip": [
                {"field": "name"}, {"field": "lane"}, {"field": "b", "type": "quantitative", "title": "begin (ms)"},
                {"field": "e", "type": "quantitative", "title": "end (ms)"},
            ],
        },
    }  # fmt: skip


def _looked_up(key: str, field: str, names: Sequence[str]) -> dict[str, Any]:
    """Numbers instead of names in the data of a chart."""
    values = [{key: at, field: name} for at, name in enumerate(names)]
    return {"lookup": key, "from": {"data": {"values": values}, "key": key, "fields": [field]}}


def _comparison(shown: Sequence[Row], axes: Sequence[str]) -> Comparison:
    parts = list(dict.fromkeys(name for row in shown for name in row["result"]["axes"]))
    names, columns = _columns(None, shown)
    heads = [
        *(Column(name) for name in axes), Column("tier"), *columns, Column("computation", "ms", number=True, better=-1),
        Column("bubble", "ms", number=True, better=-1),
        *(Column(f"{name}, exposed", "ms", number=True, better=-1) for name in parts),
    ]  # fmt: skip

    def milliseconds(fs: int) -> Cell:
        return Cell(f"{fs / 1e12:,.2f}", fs / 1e12)

    rows = [
        [
            *(Cell(str(row["point"]["case"].get(name, ""))) for name in axes),
            Cell(str(row["result"]["tier"])),
            *(Cell(FIGURES[name].text(row["result"][name]), row["result"][name]) for name in names),
            milliseconds(row["result"]["compute_fs"]),
            milliseconds(row["result"]["bubble_fs"]),
            *(milliseconds(row["result"]["axes"].get(name, {}).get("exposed_fs", 0)) for name in parts),
        ]
        for row in shown
    ]
    return Comparison([f"{rank}. {_name(row, axes)}" for rank, row in enumerate(shown, 1)], heads, rows)


def _inputs(design: Design) -> Table:
    gpu, topology, model = design.gpu, design.topology, design.model
    rows = [
        *(
            (f"GPU {gpu.name}: {place}", f"{value:,.6g}", gpu.sources.get(place, ""))
            for place, value in gpu.values.items()
        ),
        *((f"topology {topology.name}: {place}", "", source) for place, source in topology.sources.items()),
        (
            f"model {model.name}",
            f"{model.parameters / 1e9:,.1f} B parameters, {model.layers} layers, hidden {model.hidden}",
            "",
        ),
        ("calibration", design.calibration.state, design.calibration.hash),
        ("sequence, global batch, type", f"{design.sequence}, {design.global_batch}, {design.dtype}", "the plan file"),
        ("design", design.hash, "hash of everything that decides the result"),
    ]
    return Table([Column("what"), Column("value"), Column("source")], [[Cell(text) for text in row] for row in rows])
