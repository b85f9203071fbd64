"""``simcoll plan``: search a space of designs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from simcoll.cli.grids import GridOptions
from simcoll.command_line import COUNT
from simcoll.errors import ConfigError
from simcoll.terminal import say

if TYPE_CHECKING:
    from simcoll.planning.designs.space import Space
    from simcoll.planning.grids.grid import GridRun, PointGrid, Row

__all__ = ["plan_designs"]

MOST_ALTERNATIVES = 8
"""Alternatives whose sensitivities are timed for the report."""
FILES = ("results.csv", "best.toml", "trace.json.gz", "report.html")


def plan_designs(
    plan: str,
    /,
    *,
    exact: Annotated[int, COUNT] = 8,
    top: Annotated[int, COUNT] = 10,
    options: Annotated[GridOptions, Parameter(name="*")] = GridOptions(),  # noqa: B008
) -> None:
    """Time every design of a space, the best ones exactly; write tables, the best design, its
    timeline and a report.

    Parameters
    ----------
    plan
        A plan file, or the name of a shipped one: a design file whose lists are swept, with an
        objective, limits, costs and failures.
    exact
        Number of best designs to emulate in full (tier 2), besides those on the Pareto front.
    top
        Number of printed lines of the table.
    """
    from simcoll.cli.grids import play_grid
    from simcoll.files.output import write_files
    from simcoll.planning.designs.decision import alternatives_of, verdict
    from simcoll.planning.designs.design_search import (
        best_of,
        design_of,
        exact_grid,
        firsts,
        latest,
        notes_of,
        space_grid,
        tight_of,
    )
    from simcoll.planning.designs.nearest_fit import missing_alternatives
    from simcoll.planning.designs.space import load_space
    from simcoll.planning.designs.step_report import call_lines
    from simcoll.planning.sweeps.scenario import file_of
    from simcoll.training.steps import TrainingStep

    if exact < 0 or top < 1:
        raise ConfigError(f"--exact {exact} --top {top}: expected at least 0 and 1")
    file = file_of("plan", plan)
    space: list[Space] = []

    def grid_of_file() -> PointGrid:
        space.append(load_space(file))
        return space_grid(space[0])

    def rest(runs: Sequence[GridRun]) -> PointGrid | None:
        return exact_grid(latest(runs), space[0], exact if len(runs) == 1 else 1)

    played = play_grid(options, file, grid_of_file, FILES, then=rest)
    if played is None:
        return
    runs, folder = played
    if options.shard:
        say(
            "# one shard of the designs; when all shards are done, --resume without --shard makes "
            "the rest"
        )
        return
    rows = latest(runs)
    best, front = best_of(rows, space[0])
    if tight := tight_of(rows):
        say(f"# {tight}")
    designs = list({row["key"]: row for row in (*best[:top], *firsts(best))}.values())
    for line in _table(designs, space[0], front):
        say(line)
    missing = missing_alternatives(rows)
    for alternative in missing:
        say(f"  -  {alternative.name}: {alternative.reason}")
    alternatives = alternatives_of(best)
    if len(alternatives) > 1:
        for sentence in verdict(space[0].objective.figure, alternatives, ()):
            say(f"# {sentence}")
    for line in call_lines(TrainingStep(design_of(best[0])).calls):
        say(line if line.startswith("#") else f"# best: {line}")
    for note in notes_of(designs):
        say(f"# note: {note}")
    write_files(folder, _files(space[0], rows, best, front))
    say(f"# wrote {', '.join(str(folder / name) for name in ('rows.jsonl', *FILES))}")


def _files(
    space: Space, rows: Sequence[Row], best: Sequence[Row], front: Sequence[Row]
) -> dict[str, bytes]:
    """The files of a plan's results."""
    from simcoll.files.toml_text import toml_text
    from simcoll.planning.designs.decision import alternatives_of
    from simcoll.planning.designs.design_report import PlanFindings, design_page
    from simcoll.planning.designs.design_search import bars_of, design_of, designs_csv
    from simcoll.planning.designs.html_page import page_html
    from simcoll.planning.designs.sensitivity import sensitivities
    from simcoll.planning.designs.step_trace import step_trace
    from simcoll.training.steps import TrainingStep

    step = TrainingStep(design_of(best[0]))
    clock = step.clock(tier=best[0]["result"]["tier"]).clock
    alternatives = alternatives_of(best)[:MOST_ALTERNATIVES]
    designs = {option.name: design_of(option.best) for option in alternatives}
    figure = space.objective.figure
    effects = {
        option.name: sensitivities(option.best, designs[option.name], figure)
        for option in alternatives
    }
    findings = PlanFindings(rows, best, front, designs, effects, bars_of(step.workload, clock))
    contents = (
        designs_csv(rows),
        toml_text({"title": space.title, **_design_tables(best[0])}).encode(),
        step_trace(step.workload, clock, space.title, step.alone.plans),
        page_html(design_page(space, findings)),
    )
    return dict(zip(FILES, contents, strict=True))


def _design_tables(row: Row) -> dict[str, Any]:
    """The tables of a design, with the prices of its plan, for ``simcoll goodput``."""
    from simcoll.planning.costs import changed_keys

    terms = row["point"]["terms"]
    prices = {table: changed_keys(table, terms[table]) for table in ("cost", "power")}
    return {**row["point"]["design"], **{table: keys for table, keys in prices.items() if keys}}


def _table(best: Sequence[Row], space: Space, front: Sequence[Row]) -> Iterator[str]:
    """The best designs; a star is on the Pareto front."""
    from simcoll.planning.designs.design_search import front_figures
    from simcoll.planning.designs.figures import FIGURES

    axes = list(dict.fromkeys(name for _, case in space.documents for name in case))
    figure_names = (
        space.objective.figure,
        *front_figures(space, best[0]["result"]),
        "step_s",
        "mfu",
        "memory_gib",
    )
    names = list(dict.fromkeys(figure_names))
    on_front = {row["key"] for row in front}
    lines = [
        [
            "",
            "tier",
            *axes,
            *(
                f"{FIGURES[name].title} ({FIGURES[name].unit})".removesuffix(" ()")
                for name in names
            ),
        ]
    ]
    for row in best:
        result = row["result"]
        values = [str(row["point"]["case"].get(name, "")) for name in axes]
        figures = [FIGURES[name].text(result[name]) for name in names]
        lines.append(
            ["*" if row["key"] in on_front else "", str(result["tier"]), *values, *figures]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for number, line in enumerate(lines):
        text = "  ".join(
            f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        yield f"# {text}" if number == 0 else f"  {text}"
