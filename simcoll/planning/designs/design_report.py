"""The report of a plan: Pareto chart, best designs, time breakdown, timeline, links, comparison,
and inputs with sources.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simcoll import __version__
from simcoll.planning.designs.charts import (
    COLOURS,
    links_chart,
    memory_chart,
    parts_chart,
    six_digits,
    timeline_chart,
    timeline_text,
)
from simcoll.planning.designs.figures import FIGURES
from simcoll.planning.designs.html_page import (
    Cell,
    Comparison,
    Page,
    ReportColumn,
    ReportTable,
    Section,
)

if TYPE_CHECKING:
    from simcoll.planning.designs.design_search import Bar
    from simcoll.planning.designs.prices import Price
    from simcoll.planning.designs.space import Space
    from simcoll.planning.grids.grid import Row
    from simcoll.training.design import Design

__all__ = ["design_page"]

MOST_POINTS = 3000
MOST_ROWS = 50
MOST_BARS = 10
MEMORY = "Of the GPU that needs most, by part."
PRICES = (
    "The best design in tier 1 with one thing changed at a time. What does not shorten the "
    "step is not worth buying."
)


def design_page(
    space: Space,
    rows: Sequence[Row],
    best: Sequence[Row],
    front: Sequence[Row],
    bars: Sequence[Bar],
    design: Design,
    prices: Sequence[Price] = (),
) -> Page:
    """The report.

    Parameters
    ----------
    rows
        All designs, each timed in its highest tier.
    best, front
        The designs that ran, best first, and those on the Pareto front.
    bars
        The timeline of the best design.
    design
        The best design, whose inputs are listed.
    prices
        Sensitivities of its time to faster components.
    """
    designs = list({row["key"]: row for row in (*best[:MOST_ROWS], *front)}.values())
    axes = _axes(space, best)
    best_result = best[0]["result"]
    figure = FIGURES[space.objective.figure]
    exact = sum(row["result"]["tier"] == 2 for row in best)
    summary = [
        f"Best by {figure.title}: {_name(best[0], axes)}: "
        f"{figure.text(best_result[space.objective.figure])} {figure.unit}".rstrip()
        + ".",
        (
            f"{len(rows):,} designs: {len(best):,} timed, {exact:,} of them with everything "
            "emulated together (tier 2), the others with "
            "collectives timed once each (tier 1); "
            f"{sum(r.get('result', {}).get('fits', 'yes') != 'yes' for r in rows):,} do not fit, "
            f"{sum('error' in r for r in rows):,} are impossible."
        ),
        f"Calibration of the best design: {best_result['calibration']}.",
        *best_result["notes"],
    ]
    page = Page(space.title, summary, _sections(space, best, front, designs), _footer(best_result))
    if bars:
        text = timeline_text(bars, best_result)
        page.sections.insert(
            4, Section("timeline", "One step of the best design", text, chart=timeline_chart(bars))
        )
    if prices:
        page.sections.append(Section("prices", "What would help", PRICES, table=_prices(prices)))
    inputs = "Every number that the best design uses, with its source."
    page.sections.append(Section("inputs", "Inputs", inputs, table=_inputs(design)))
    return page


def _sections(
    space: Space, best: Sequence[Row], front: Sequence[Row], designs: Sequence[Row]
) -> list[Section]:
    """The sections that compare designs."""
    top, exact = (
        best[:MOST_BARS],
        "Click a head to sort. Tier 2 is exact where collectives share links; tier 1 is not.",
    )
    parts = (
        "Computation, bubble, and what each axis exposes: the step is so much shorter without "
        "its bytes."
    )
    links = (
        "Share of the step in which the busiest link of each kind would be busy with its "
        "bytes "
        "alone."
    )
    names = [f"{rank}. {_name(row, _axes(space, top))}" for rank, row in enumerate(top, 1)]
    sections = [
        Section(
            "pareto", "Pareto front", _pareto_text(space, best), chart=_pareto(space, best, front)
        ),
        Section("best", "Best designs", exact, table=_table(space, designs, front)),
        Section("time", "Where the time goes", parts, chart=parts_chart(top, names)),
        Section("memory", "Memory", MEMORY, chart=memory_chart(top, names)),
    ]
    if any(row["result"]["link_use"] for row in top):
        sections.append(Section("links", "Links", links, chart=links_chart(top, names)))
    if len(designs) > 1:
        two = _comparison(designs, _axes(space, designs))
        sections.append(
            Section("compare", "What if", "Any two designs of the table.", comparison=two)
        )
    return sections


def _footer(result: Mapping[str, Any]) -> str:
    return (
        f"simcoll {__version__}, Python {platform.python_version()}. Design "
        f"{result['design_hash']}, trace {result['trace_hash']}. "
        "This page loads nothing from anywhere."
    )


def _axes(space: Space, rows: Sequence[Row]) -> list[str]:
    """The values that differ between designs, in the order of the file."""
    order = dict.fromkeys(name for _, case in space.documents for name in case)
    return [
        name for name in order if len({str(row["point"]["case"].get(name, "")) for row in rows}) > 1
    ]


def _name(row: Row, axes: Sequence[str]) -> str:
    case = row["point"]["case"]
    return ", ".join(f"{name} {case[name]}" for name in axes if name in case) or "the only design"


def _label(name: str) -> str:
    figure = FIGURES[name]
    return f"{figure.title} ({figure.unit})" if figure.unit else figure.title


def _pareto_text(space: Space, best: Sequence[Row]) -> str:
    axes = [FIGURES[name] for name in _plane(space, best)]
    x, y = (
        f"{axis.title} ({'more' if axis.more_is_better else 'less'} is better)" for axis in axes
    )
    cut = f" The best {MOST_POINTS:,} designs are drawn." if len(best) > MOST_POINTS else ""
    return f"{x[0].upper()}{x[1:]} against {y}.{cut}"


def _plane(space: Space, best: Sequence[Row]) -> tuple[str, str]:
    from simcoll.planning.designs.design_search import front_figures

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
            "x": six_digits(row["result"][x]),
            "y": six_digits(row["result"][y]),
            "tier": f"tier {row['result']['tier']}",
            "front": row["key"] in on_front,
            "name": _name(row, axes),
            **({"group": str(row["point"]["case"].get(group))} if group else {}),
        }
        for row in best[:MOST_POINTS]
    ]
    tooltip = [
        {"field": "name", "type": "nominal", "title": "design"},
        {"field": "tier", "type": "nominal"},
        {"field": "x", "type": "quantitative", "title": _label(x), "format": ",.5~r"},
        {"field": "y", "type": "quantitative", "title": _label(y), "format": ",.5~r"},
    ]
    plane = {
        "x": {"field": "x", "type": "quantitative", "title": _label(x), "scale": {"zero": False}},
        "y": {"field": "y", "type": "quantitative", "title": _label(y), "scale": {"zero": False}},
    }
    points = {
        **plane,
        "tooltip": tooltip,
        "shape": {
            "field": "tier",
            "type": "nominal",
            "title": None,
            "scale": {"domain": ["tier 1", "tier 2"], "range": ["circle", "diamond"]},
        },
        "opacity": {"condition": {"test": "datum.front", "value": 1}, "value": 0.75},
        "size": {"condition": {"test": "datum.front", "value": 90}, "value": 45},
    }
    if group:
        points["color"] = {
            "field": "group",
            "type": "nominal",
            "title": group,
            "scale": {"range": COLOURS},
        }
    line = {
        "transform": [{"filter": "datum.front"}],
        "mark": {"type": "line", "strokeDash": [4, 3], "color": "#7f7f7f"},
        "encoding": plane,
    }
    return {
        "width": "container",
        "height": 360,
        "data": {"values": values},
        "layer": [
            line,
            {"mark": {"type": "point", "filled": True, "color": COLOURS[0]}, "encoding": points},
        ],
    }


def _columns(space: Space | None, designs: Sequence[Row]) -> tuple[list[str], list[ReportColumn]]:
    """The figures that differ between designs, objective first, and their columns."""
    objective = None if space is None else space.objective.figure
    figures = [name for name in FIGURES if name in designs[0]["result"]]
    names = [
        name
        for name in figures
        if name == objective or len({row["result"][name] for row in designs}) > 1
    ]
    names.sort(key=lambda name: name != objective)
    return names, [
        ReportColumn(
            FIGURES[n].title,
            FIGURES[n].unit,
            number=True,
            better=1 if FIGURES[n].more_is_better else -1,
        )
        for n in names
    ]


def _table(space: Space, designs: Sequence[Row], front: Sequence[Row]) -> ReportTable:
    axes = _axes(space, designs)
    names, columns = _columns(space, designs)
    on_front = {row["key"] for row in front}
    heads = [
        ReportColumn("rank", number=True),
        *(ReportColumn(name) for name in axes),
        ReportColumn("tier"),
        *columns,
        ReportColumn("front"),
        ReportColumn("limited by"),
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
        for rank, row in enumerate(designs, 1)
    ]
    return ReportTable(heads, rows, sortable=True)


def _comparison(designs: Sequence[Row], axes: Sequence[str]) -> Comparison:
    parts = list(dict.fromkeys(name for row in designs for name in row["result"]["axes"]))
    names, columns = _columns(None, designs)
    heads = [
        *(ReportColumn(name) for name in axes),
        ReportColumn("tier"),
        *columns,
        ReportColumn("computation", "ms", number=True, better=-1),
        ReportColumn("bubble", "ms", number=True, better=-1),
        *(ReportColumn(f"{name}, exposed", "ms", number=True, better=-1) for name in parts),
    ]

    def milliseconds(fs: int) -> Cell:
        return Cell(f"{fs / 1e12:,.2f}", fs / 1e12)

    rows = [
        [
            *(Cell(str(row["point"]["case"].get(name, ""))) for name in axes),
            Cell(str(row["result"]["tier"])),
            *(Cell(FIGURES[name].text(row["result"][name]), row["result"][name]) for name in names),
            milliseconds(row["result"]["compute_fs"]),
            milliseconds(row["result"]["bubble_fs"]),
            *(
                milliseconds(row["result"]["axes"].get(name, {}).get("exposed_fs", 0))
                for name in parts
            ),
        ]
        for row in designs
    ]
    return Comparison(
        [f"{rank}. {_name(row, axes)}" for rank, row in enumerate(designs, 1)], heads, rows
    )


def _prices(prices: Sequence[Price]) -> ReportTable:
    heads = [
        ReportColumn("change"),
        ReportColumn("step", "ms", number=True),
        ReportColumn("change of the step", number=True),
    ]
    rows = [
        [
            Cell(price.change),
            Cell(f"{price.time_fs / 1e12:,.2f}", price.time_fs / 1e12),
            Cell(f"{price.gain:+.1%}", price.gain),
        ]
        for price in prices
    ]
    return ReportTable(heads, rows)


def _inputs(design: Design) -> ReportTable:
    gpu, topology, model = design.gpu, design.topology, design.model
    rows = [
        *(
            (f"GPU {gpu.name}: {place}", gpu.format_number(place), gpu.sources.get(place, ""))
            for place in gpu.values
        ),
        *(
            (f"topology {topology.name}: {place}", "", source)
            for place, source in topology.sources.items()
        ),
        (
            f"model {model.name}",
            (
                f"{model.parameters / 1e9:,.1f} B parameters, {model.layers} layers, hidden "
                f"{model.hidden}"
            ),
            "",
        ),
        ("calibration", design.calibrations, design.calibration.hash),
        (
            "sequence, global batch, type",
            f"{design.sequence}, {design.global_batch}, {design.dtype}",
            "the plan file",
        ),
        ("design", design.hash, "hash of everything that decides the result"),
    ]
    return ReportTable(
        [ReportColumn("what"), ReportColumn("value"), ReportColumn("source")],
        [[Cell(text) for text in row] for row in rows],
    )
