"""Commands that play a grid: shared options, and progress."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from simcoll.command_line import WHOLE
from simcoll.terminal import say
from simcoll.units import counted

if TYPE_CHECKING:
    from simcoll.planning.grids.executors import GridPool
    from simcoll.planning.grids.grid import GridRun, PointGrid

__all__ = ["GridOptions", "play_grid"]

MOST_REASONS = 6


@Parameter(name="*")
@dataclass(frozen=True)
class GridOptions:
    """Options of commands that play a grid.

    Parameters
    ----------
    output
        Folder for the rows and results; default out/<name of the file>.
    jobs
        Number of processes; default one per core.
    executor
        processes, dask://host:port (a scheduler of dask.distributed), or mpi (under mpiexec).
    resume
        Continue from the rows in the folder.
    shard
        Play one part of the grid, such as 3/16; parts may share a folder, and --resume without
        --shard collects them.
    """

    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None
    jobs: Annotated[int | None, Parameter(name=["--jobs", "-j"]), WHOLE] = None
    executor: str = "processes"
    resume: Annotated[bool, Parameter(negative=())] = False
    shard: str | None = None


def play_grid(
    options: GridOptions,
    file: Path,
    make: Callable[[], PointGrid],
    results: tuple[str, ...],
    then: Callable[[Sequence[GridRun]], PointGrid | None] | None = None,
) -> tuple[list[GridRun], Path] | None:
    """Play a grid, and further ones that depend on what was played; ``None`` on worker ranks of an
    MPI job.

    Prints the number of points, the number that ran, and the reasons why others did not; ``then``
    announces its grids itself, of which only such reasons are printed.
    """
    from simcoll.files.output import open_folder
    from simcoll.planning.grids.executors import open_pool
    from simcoll.planning.grids.grid import shard_of

    with open_pool(options.executor, options.jobs) as pool:
        if pool is None:
            return None
        grid = make()
        part = f"{len(shard_of(grid, options.shard)):,} of " if options.shard else ""
        folder = options.output or Path("out") / file.stem
        open_folder(folder, results)
        say(f"# {part}{counted(len(grid), 'point')}, rows in {folder}", flush=True)
        runs = [_play(grid, folder, pool, options)]
        while then is not None and not options.shard and (following := then(runs)) is not None:
            further = replace(options, resume=True)
            runs.append(_play(following, folder, pool, further, announce=False))
    return runs, folder


def _play(
    grid: PointGrid, folder: Path, pool: GridPool, options: GridOptions, *, announce: bool = True
) -> GridRun:
    from simcoll.planning.grids.grid import run_grid

    with _progress() as report:
        try:
            run = run_grid(
                grid, folder, pool, resume=options.resume, shard=options.shard, progress=report
            )
        except KeyboardInterrupt:
            say(f"# stopped; finished rows are kept, and --resume continues: {folder}", flush=True)
            raise
    resumed = len(run.rows) - run.played
    if announce:
        say(
            f"# {counted(run.played, 'point')} played"
            + (f", {resumed:,} kept from earlier" if resumed else "")
        )
    reasons_by_pattern: dict[str, list[str]] = {}
    for reason, count in run.errors.items():
        reasons_by_pattern.setdefault(re.sub(r"\d+", "#", reason), []).extend([reason] * count)
    ordered = sorted(reasons_by_pattern.values(), key=lambda reasons: (-len(reasons), reasons[0]))
    for reasons in ordered[:MOST_REASONS]:
        say(f"# {counted(len(reasons), 'point')} did not run: {reasons[0]}")
    if len(ordered) > MOST_REASONS:
        say(f"# and {sum(map(len, ordered[MOST_REASONS:])):,} for other reasons; see the rows")
    return run


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Progress on standard error: a bar with rate and remaining time on a terminal, else a line a
    minute.
    """
    from simcoll.cli.progress import each_minute, on_terminal

    if not on_terminal():
        lines = _Lines()
        with each_minute(lines.say):
            yield lines.tell
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    rate = TextColumn("{task.fields[rate]}")
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        rate,
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, rate="")

        def tell(finished: int, total: int) -> None:
            speed = bar.tasks[task].speed
            bar.update(
                task, completed=finished, total=total, rate=_rate_text(speed) if speed else ""
            )

        yield tell


class _Lines:
    """Progress as one line a minute."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.first = self.done = self.total = -1

    def tell(self, finished: int, total: int) -> None:
        self.done, self.total = finished, total
        if self.first < 0:
            self.first = finished

    def say(self) -> None:
        if self.first < 0 or sys.stderr is None:
            return
        rate = (self.done - self.first) / (time.monotonic() - self.begin)
        remaining = f", {(self.total - self.done) / rate / 60:.1f} min left" if rate else ""
        say(
            f"# {self.done:,} of {self.total:,} points, {_rate_text(rate)}{remaining}",
            error=True,
            flush=True,
        )


def _rate_text(per_second: float) -> str:
    """A rate with two digits, of slow points too.

    >>> _rate_text(12.345), _rate_text(0.05)
    ('12.3/s', '3.0/min')
    """
    return f"{per_second:.1f}/s" if per_second >= 0.1 else f"{60 * per_second:.1f}/min"
