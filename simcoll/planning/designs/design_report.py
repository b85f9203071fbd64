"""The report of a plan: the decision and what would turn it, where time goes, what it is sensitive
to, the front, the best designs, and every input with its source.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simcoll import __version__
from simcoll.planning.costs import price_rows
from simcoll.planning.designs.charts import (
    COLOURS,
    effects_chart,
    links_chart,
    memory_chart,
    parts_chart,
    six_digits,
    timeline_chart,
    timeline_text,
)
from simcoll.planning.designs.decision import (
    Alternative,
    alternatives_of,
    interval_of,
    is_tie,
    list_lines,
    turning_points,
    typical_sentence,
    verdict,
)
from simcoll.planning.designs.figures import FIGURES
from simcoll.planning.designs.html_page import (
    Cell,
    Comparison,
    FigureCard,
    Page,
    ReportColumn,
    ReportTable,
    Section,
)
from simcoll.planning.designs.nearest_fit import missing_alternatives
from simcoll.topology.file_layers import layers_of
from simcoll.training.evidence import rate_text, rates_of
from simcoll.training.step_intervals import bias_sentence

if TYPE_CHECKING:
    from simcoll.planning.designs.design_search import Bar
    from simcoll.planning.designs.nearest_fit import MissingAlternative
    from simcoll.planning.designs.sensitivity import Sensitivity
    from simcoll.planning.designs.space import Space
    from simcoll.planning.grids.grid import Row
    from simcoll.training.design import Design

__all__ = ["PlanFindings", "design_page"]

MOST_POINTS = 3000
MOST_ROWS = 10
MOST_COMPARED = 50
MOST_BARS = 10
MOST_TURNS = 12
MOST_EFFECTS = 12
CARD_FIGURES = (
    "days",
    "usd",
    "tokens_per_second",
    "step_s",
    "mfu",
    "goodput",
    "usd_per_hour",
    "usd_per_mtoken",
    "gpus",
    "memory_gib",
    "kilowatts",
)


@dataclass(frozen=True, slots=True)
class PlanFindings:
    """What a plan found.

    Attributes
    ----------
    rows
        All designs, each timed in its highest tier.
    best, front
        The designs that ran, best first, and those on the Pareto front.
    designs
        The best design of each alternative, by its name.
    effects
        Sensitivities of these designs.
    bars
        The timeline of the best design.
    """

    rows: Sequence[Row]
    best: Sequence[Row]
    front: Sequence[Row]
    designs: Mapping[str, Design]
    effects: Mapping[str, Sequence[Sensitivity]]
    bars: Sequence[Bar]


def design_page(space: Space, findings: PlanFindings) -> Page:
    """The report of a plan."""
    alternatives = alternatives_of(findings.best)
    missing = [option for option in missing_alternatives(findings.rows) if option.name]
    sections = [
        _decision(space, findings.best, alternatives, missing),
        *_turns(space, alternatives, findings),
        *_breakdowns(findings.best, alternatives),
        *_effects(space, alternatives, findings),
        *_comparisons(space, findings),
    ]
    if findings.bars:
        text = timeline_text(findings.bars, findings.best[0]["result"])
        chart = timeline_chart(findings.bars)
        sections.append(Section("timeline", "One step of the best design", text, chart=chart))
    terms = {option.name: option.best["point"]["terms"] for option in alternatives}
    for name, design in findings.designs.items():
        title = f"Inputs of {name}" if len(alternatives) > 1 else "Inputs"
        number = list(findings.designs).index(name)
        identity = f"inputs-{number}" if number else "inputs"
        sections.append(Section(identity, title, table=_inputs(design, terms[name])))
    sections.append(_calibration(findings))
    return Page(space.title, [_counts(findings)], sections, _footer(findings.best[0]["result"]))


def _counts(findings: PlanFindings) -> str:
    """How many designs were timed, and how."""
    exact = sum(row["result"]["tier"] == 2 for row in findings.best)
    tight = sum(row.get("result", {}).get("fits", "yes") != "yes" for row in findings.rows)
    impossible = sum("error" in row for row in findings.rows)
    return (
        f"{len(findings.rows):,} designs: {len(findings.best):,} timed, {exact:,} of them with the "
        f"whole step emulated; {tight:,} {'does' if tight == 1 else 'do'} not fit, "
        f"{impossible:,} {'is' if impossible == 1 else 'are'} impossible."
    )


def _decision(
    space: Space,
    best: Sequence[Row],
    alternatives: Sequence[Alternative],
    missing: Sequence[MissingAlternative],
) -> Section:
    """A card for each alternative, and the decision in sentences."""
    cards = [_card(space, option, alternatives) for option in alternatives]
    cards += [FigureCard(absent.name, reason=absent.reason) for absent in missing]
    figure = space.objective.figure
    sentences = verdict(figure, alternatives, missing)
    if typical := typical_sentence(best, figure):
        sentences.append(f"{typical[0].upper()}{typical[1:]}.")
    sentences += [f"The {line}." for line in list_lines(figure, best, space.list_axes)]
    intervals = any(interval_of(option.result, "step_s") for option in alternatives)
    text = (
        "The figures are exact in the model; an interval holds what nine of ten measured steps of "
        "the same class would show, by the errors of published ones whose table was left out."
        if intervals
        else "Without intervals: the figures are exact in the model, and not measured."
    )
    leader = alternatives[0]
    if intervals and (sentence := bias_sentence(leader.result["interval"]["50"])):
        text += f" {leader.name[0].upper()}{leader.name[1:]}: {sentence}."
    return Section("decision", "Decision", text, cards=cards, sentences=sentences)


def _card(
    space: Space, alternative: Alternative, alternatives: Sequence[Alternative]
) -> FigureCard:
    """The card of an alternative: the objective, and its other figures."""
    name = space.objective.figure
    result, best = alternative.result, alternatives[0]
    figure = FIGURES[name]
    mark = ""
    if alternative is best:
        mark = "best" if len(alternatives) > 1 else ""
    elif is_tie(best.result, result, name):
        mark = "a tie"
    interval = interval_of(result, name)
    span = ""
    if interval:
        low, high = (figure.end_text(end) for end in interval)
        span = f"90 %: {low} to {high}"
    facts = [
        (
            FIGURES[key].title,
            f"{FIGURES[key].text(result[key])} {FIGURES[key].unit}".strip(),
        )
        for key in CARD_FIGURES
        if key != name and key in result
    ]
    return FigureCard(
        alternative.name,
        mark,
        f"{figure.text(result[name])} {figure.unit}".strip(),
        figure.title,
        span,
        [("design", _mapping(alternative.best)), *facts],
    )


def _mapping(row: Row) -> str:
    """The parallelism of a design in a few words."""
    parallel = row["point"]["design"].get("parallel", {})
    degrees = [
        f"{axis} {parallel[axis]}"
        for axis in ("tp", "cp", "ep", "pp", "virtual", "dp")
        if parallel.get(axis, 1) not in {0, 1}
    ]
    return ", ".join(degrees) or "data parallel"


def _turns(
    space: Space, alternatives: Sequence[Alternative], findings: PlanFindings
) -> Iterator[Section]:
    """What would turn the decision."""
    if len(alternatives) < 2:
        return
    points = turning_points(space.objective.figure, alternatives, findings.effects)[:MOST_TURNS]
    heads = [
        ReportColumn("input"),
        ReportColumn("change", number=True),
        ReportColumn("makes as good as the best"),
    ]
    cells = [
        [
            Cell(point.name),
            Cell(f"{point.change:+.1%}".replace("%", " %"), point.change),
            Cell(point.rival),
        ]
        for point in points
    ]
    text = "One input at a time, the smallest change first; all else stays."
    yield Section("turns", "What would turn it", text, table=ReportTable(heads, cells))


def _breakdowns(best: Sequence[Row], alternatives: Sequence[Alternative]) -> Iterator[Section]:
    """Time, memory and links of the best of each alternative, or of the best designs of one."""
    if len(alternatives) > 1:
        bars = [(option.name, option.best) for option in alternatives[:MOST_BARS]]
    else:
        axes = _axes(best[:MOST_BARS])
        bars = [
            (f"{rank}. {_name(row, axes)}", row) for rank, row in enumerate(best[:MOST_BARS], 1)
        ]
    names, rows = [name for name, _ in bars], [row for _, row in bars]
    subject = "the best design of each alternative" if len(alternatives) > 1 else "the best designs"
    text = (
        f"Of {subject}: computation, bubble, and what each axis exposes: by how much the step is "
        "shorter without its bytes."
    )
    yield Section("time", "Where the time goes", text, chart=parts_chart(rows, names))
    memory = f"The GPU that needs most, by part, of {subject}."
    yield Section("memory", "Memory", memory, chart=memory_chart(rows, names))
    if any(row["result"]["link_use"] for row in rows):
        links = (
            f"Share of the step in which the busiest link of each kind would be busy with its "
            f"bytes alone, in {subject}."
        )
        yield Section("links", "Links", links, chart=links_chart(rows, names))


def _effects(
    space: Space, alternatives: Sequence[Alternative], findings: PlanFindings
) -> Iterator[Section]:
    """What the best design of the plan is sensitive to."""
    effects = findings.effects.get(alternatives[0].name, ())[:MOST_EFFECTS]
    if not effects:
        return
    figure = FIGURES[space.objective.figure]
    text = (
        f"{figure.title[0].upper()}{figure.title[1:]} of {alternatives[0].name} with one input "
        "changed at a time: links halved and doubled, rates of kernels by 10 %, prices by 20 %, "
        "failures and times of restarts halved and doubled. The machine is timed in tier 1."
    )
    heads = [
        ReportColumn("input"),
        *(
            column
            for side in ("less", "more")
            for column in (
                ReportColumn(side, "times", number=True),
                ReportColumn("change", number=True),
            )
        ),
    ]
    rows = [
        [
            Cell(effect.name),
            *(
                cell
                for factor, change in zip(effect.factors, effect.changes, strict=True)
                for cell in (
                    Cell(f"{factor:g}", factor),
                    Cell(f"{change:+.1%}".replace("%", " %"), change),
                )
            ),
        ]
        for effect in effects
    ]
    chart = effects_chart(effects, figure.title)
    yield Section("sensitivity", "Sensitivity", text, chart=chart, table=ReportTable(heads, rows))


def _comparisons(space: Space, findings: PlanFindings) -> Iterator[Section]:
    """The front, the best designs, and any two of them side by side."""
    from simcoll.planning.designs.design_search import distinct

    best, front = findings.best, findings.front
    leaders = [option.best for option in alternatives_of(best)]
    yield Section(
        "pareto", "Pareto front", _pareto_text(space, best), chart=_pareto(space, best, front)
    )
    listed = list({row["key"]: row for row in (*distinct(best)[:MOST_ROWS], *leaders)}.values())
    text = (
        "The best, and the best of each alternative, without those that another one equals in time "
        "and memory; results.csv has all. Click a head to sort. "
        "Tier 2 emulates the whole step; tier 1 times each collective once, alone. Both are exact "
        "in the model only."
    )
    yield Section("best", "Best designs", text, table=_table(space, listed, front))
    compared = list({row["key"]: row for row in (*leaders, *best[:MOST_COMPARED], *front)}.values())
    if len(compared) > 1:
        two = _comparison(compared, _axes(compared))
        yield Section("compare", "What if", "Any two designs, side by side.", comparison=two)


def _calibration(findings: PlanFindings) -> Section:
    """Calibrations and notes of the designs in the cards."""
    from simcoll.planning.designs.design_search import notes_of

    leaders = [option.best for option in alternatives_of(findings.best)]
    sentences = [
        f"{option.name}: {option.result['calibration']}."
        for option in alternatives_of(findings.best)
    ]
    sentences += [
        f"{option.name} lacks {lack}."
        for option in alternatives_of(findings.best)
        for lack in option.result["lacks"]
    ]
    sentences += notes_of(leaders)
    return Section("calibration", "Calibration and notes", sentences=sentences)


def _footer(result: Mapping[str, Any]) -> str:
    return (
        f"simcoll {__version__}, Python {platform.python_version()}. Design "
        f"{result['design_hash']}, trace {result['trace_hash']}. "
        "This page loads nothing from anywhere."
    )


def _axes(rows: Sequence[Row]) -> list[str]:
    """The values that differ between designs, in the order of the file."""
    order = dict.fromkeys(name for row in rows for name in row["point"]["case"])
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
    axes = _axes(best)
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
    axes = _axes(designs)
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
        ReportColumn("slower ranks", "ms", number=True, better=-1),
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
            milliseconds(row["result"]["slower_fs"]),
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


def _inputs(design: Design, terms: Mapping[str, Any]) -> ReportTable:
    """Every number that a design uses: prices, limits, machine, GPU, model, with sources."""
    gpu, topology, model = design.gpu, design.topology, design.model
    rows = [
        *price_rows(terms, gpu),
        *_topology_rows(design),
        *_gpu_rows(design),
        (
            f"model {model.name}",
            (
                f"{model.parameters / 1e9:,.1f} B parameters, {model.layers} layers, hidden "
                f"{model.hidden}"
            ),
            "its file",
        ),
        ("calibration", design.calibrations, design.calibration.hash),
        (
            "sequence, global batch, type",
            f"{design.sequence:,}, {design.global_batch:,}, {design.dtype}",
            "the plan file",
        ),
        (
            f"topology {topology.name}",
            f"{topology.nranks:,} GPUs",
            "hash of the design: " + design.hash,
        ),
    ]
    return ReportTable(
        [ReportColumn("what"), ReportColumn("value"), ReportColumn("source")],
        [[Cell(text) for text in row] for row in rows],
    )


def _gpu_rows(design: Design) -> Iterator[tuple[str, str, str]]:
    """The numbers of the GPU with their evidence, and the rates that its file lacks."""
    gpu = design.gpu
    for place in gpu.values:
        word = gpu.evidence.get(place, "unstated")
        source = f"{word}: {gpu.sources.get(place, '').removeprefix(f'{word}: ')}"
        yield f"GPU {gpu.name}: {place}", gpu.format_number(place), source
    for rate in rates_of(design):
        if rate.place not in gpu.values:
            span = f"{rate_text(rate, rate.value)}, up to {rate_text(rate, rate.high)}"
            yield f"GPU {gpu.name}: {rate.place}", span, rate.source


def _topology_rows(design: Design) -> Iterator[tuple[str, str, str]]:
    """The numbers of the machine, with the values of its file or of the plan."""
    topology, cluster = design.topology, design.cluster
    values: dict[str, Any] = {}
    for layer in layers_of(cluster.name):
        values |= _leaves(layer.document)
    values |= _leaves(cluster.set)
    for place, source in topology.sources.items():
        path = place.removeprefix("$.")
        yield f"topology: {path}", str(values.get(path, "")), source
    for key in ("nodes", "gpus"):
        if getattr(cluster, key) is not None:
            yield f"topology: {key}", f"{getattr(cluster, key):,}", "the plan file"
    for table in ("degraded", "slow"):
        for name, value in getattr(cluster, table).items():
            yield f"topology: {table} {name}", str(value), "the plan file"


def _leaves(table: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """The values of nested tables by path; ``{ value = ..., source = ... }`` is its value."""
    leaves: dict[str, Any] = {}
    for key, entry in table.items():
        path = f"{place}.{key}" if place else key
        if isinstance(entry, Mapping) and "value" in entry:
            leaves[path] = entry["value"]
        elif isinstance(entry, Mapping):
            leaves |= _leaves(entry, path)
        else:
            leaves[path] = entry
    return leaves
