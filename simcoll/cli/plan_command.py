"""``simcoll plan``: search a space of designs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from simcoll.cli.grids import GridOptions
from simcoll.command_line import COUNT, VERBOSE, WHOLE
from simcoll.errors import ConfigError
from simcoll.terminal import say
from simcoll.units import counted

if TYPE_CHECKING:
    from pathlib import Path

    from simcoll.planning.designs.mapping_search import MappingSearch
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
    tier: Annotated[int, WHOLE] = 2,
    exact: Annotated[int, COUNT] = 8,
    budget: Annotated[int, COUNT] = 0,
    clock: str = "",
    top: Annotated[int, COUNT] = 10,
    verbose: Annotated[bool, VERBOSE] = False,
    options: Annotated[GridOptions, Parameter(name="*")] = GridOptions(),  # noqa: B008
) -> None:
    """Search or time the designs of a plan, the best ones exactly; write tables, the best design,
    its timeline and a report.

    Parameters
    ----------
    plan
        A plan file, or the name of a shipped one: a design file whose lists are swept, with an
        objective, limits, costs and failures. Without [parallel], or with [search], all legal
        mappings are searched.
    tier
        2: the best designs are emulated in full, besides those on the Pareto front. 1: none.
    exact
        Number of best designs to emulate in full.
    budget
        The most mappings that a search times on all machines together. Default: the file's, or 64
        on each machine.
    clock
        Time after which a search begins no further designs, such as "60 s"; two runs may then
        differ. Default: no limit.
    top
        Number of printed lines of the table.
    verbose
        Print also the collectives of the best design, and the classes of errors that intervals come
        from.
    """
    from simcoll.cli.grids import play_grid
    from simcoll.planning.designs.design_search import latest, open_search, space_grid
    from simcoll.planning.designs.space import load_space
    from simcoll.planning.sweeps.scenario import file_of
    from simcoll.units import parse_span

    if exact < 0 or top < 1 or budget < 0:
        raise ConfigError(
            f"--exact {exact} --top {top} --budget {budget}: expected at least 0, 1 and 0"
        )
    if tier not in {1, 2}:
        raise ConfigError(f"--tier {tier}: expected 1 or 2")
    limit_s = parse_span(clock, path="--clock") / 1e6 if clock else 0.0
    file = file_of("plan", plan)
    progress: list[_PlanProgress] = []

    def grid_of_file() -> PointGrid:
        space = load_space(file)
        if space.machines and options.shard:
            raise ConfigError("--shard: a search has no parts; use --jobs, or list the designs")
        try:
            search = open_search(space, budget)
        except ConfigError as error:  # of a design that the search made from the file
            raise ConfigError(error.message, file=str(file), path=error.path) from None
        progress.append(_PlanProgress(space, search, tier, exact, limit_s))
        return space_grid(space, search)

    def rest(runs: Sequence[GridRun]) -> PointGrid | None:
        return progress[0].next_grid(latest(runs))

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
    _conclude(progress[0], latest(runs), folder, top, verbose=verbose)


@dataclass
class _PlanProgress:
    """What is timed next: batches of the search, then the best designs in full.

    Attributes
    ----------
    space, search
        The plan, and the search of its machines.
    tier, exact, limit_s
        The options; seconds after which the search begins nothing, 0: no limit.
    """

    space: Space
    search: MappingSearch | None
    tier: int
    exact: int
    limit_s: float
    in_full: bool = False
    begin: float = field(default_factory=time.monotonic)

    def next_grid(self, rows: Sequence[Row]) -> PointGrid | None:
        """The next designs to time; None at the end."""
        from simcoll.planning.designs.design_search import exact_grid, exposure_grid, search_grid

        if self.search and self.limit_s and time.monotonic() - self.begin > self.limit_s:
            self.search.stopped = f"when the clock of {self.limit_s:g} s ran out"
        if not self.in_full and (grid := search_grid(rows, self.search)) is not None:
            say(
                f"# {len(grid):,} more mappings whose bound is below the best",
                error=True,
                flush=True,
            )
            return grid
        if not _fit(rows):
            return None
        begins, self.in_full = not self.in_full, True
        if self.tier == 1:
            return exposure_grid(rows, self.space, self.exact) if begins else None
        grid = exact_grid(rows, self.space, self.exact if begins else 1)
        if grid is not None:
            some = "of them" if begins else "more"
            say(f"# {len(grid):,} {some} emulated in full", flush=True)
        return grid


def _fit(rows: Sequence[Row]) -> bool:
    """Whether any design fits its limits."""
    return any(row.get("result", {}).get("fits") == "yes" for row in rows)


def _conclude(
    progress: _PlanProgress, rows: Sequence[Row], folder: Path, top: int, *, verbose: bool
) -> None:
    """Print the table and what was searched; write the files."""
    from simcoll.files.output import write_files
    from simcoll.planning.designs.decision import (
        alternatives_of,
        interval_lines,
        list_lines,
        typical_best,
        verdict,
    )
    from simcoll.planning.designs.design_search import (
        best_of,
        design_of,
        distinct,
        firsts,
        notes_of,
        tight_of,
    )
    from simcoll.planning.designs.nearest_fit import missing_alternatives
    from simcoll.planning.designs.step_report import call_lines, origin_lines
    from simcoll.training.evidence import rate_lines, rates_of
    from simcoll.training.steps import TrainingStep

    space = progress.space
    search_lines = list(progress.search.lines(rows)) if progress.search else []
    if not _fit(rows):
        for line in search_lines:
            say(f"# {line}")
    best, front = best_of(rows, space)
    if progress.search is None and (tight := tight_of(rows)):
        say(f"# {tight}")
    typical = typical_best(best, space.objective.figure)
    unequal = distinct(best)
    designs = list({row["key"]: row for row in (*unequal[:top], *firsts(best), typical)}.values())
    for line in _table(designs, space, front):
        say(line)
    if equal := len(best) - len(unequal):
        say(f"# {counted(equal, 'design')} as fast as another, with as much memory, not shown")
    missing = missing_alternatives(rows)
    for alternative in missing:
        say(f"  -  {alternative.name}: {alternative.reason}")
    alternatives = alternatives_of(best)
    if len(alternatives) > 1 or any(absent.name for absent in missing):
        for sentence in verdict(space.objective.figure, alternatives, ()):
            say(f"# {sentence}")
    for line in interval_lines(space.objective.figure, best, verbose=verbose):
        say(f"# {line}")
    for line in list_lines(space.objective.figure, best, space.list_axes):
        say(f"# {line}")
    for option in alternatives:
        name = option.name if len(alternatives) > 1 else "best"
        for lack in option.result["lacks"]:
            say(f"# {name} lacks: {lack}")
    calls = TrainingStep(design_of(best[0])).calls
    for line in call_lines(calls) if verbose else ():
        say(f"# best: {line}")
    origins = list(origin_lines(calls, verbose=verbose))
    for line in origins:
        say(f"# {line}")
    for option in alternatives[1:MOST_ALTERNATIVES]:
        other_calls = TrainingStep(design_of(option.best)).calls
        for line in origin_lines(other_calls, verbose=verbose):
            if line not in origins:
                say(f"# {option.name}: {line}")
    for design in {row["result"]["gpu"]: design_of(row) for row in firsts(best)}.values():
        for line in rate_lines(design.gpu.name, rates_of(design)):
            say(f"# rates: {line}")
    for note in notes_of(designs):
        say(f"# note: {note}")
    for line in search_lines:
        say(f"# {line}")
    write_files(folder, _files(space, rows, best, front))
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

    axes = [name for name in space.axes if any(name in row["point"]["case"] for row in best)]
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
