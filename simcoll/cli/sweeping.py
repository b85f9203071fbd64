"""A sweep on the terminal: its proofs, a progress bar, the table."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from simcoll.binding import verify
from simcoll.errors import ConfigError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simcoll.core.schedule import Schedule
    from simcoll.planning.sweep import Row, Sweep
    from simcoll.topology import Topology

__all__ = ["degraded", "print_sweep", "progress_bar"]


def degraded(machine: Topology, given: Sequence[str]) -> Topology:
    """The machine with the links that ``--degrade`` names at their remaining share of capacity."""
    for each in given:
        link, equals, share = each.rpartition("=")
        if not equals:
            raise ConfigError(f"--degrade {each!r}: expected a link and a share, such as 'gpu0 <-> gpu4=1/2'")
        machine = machine.degrade(link.strip(), share.strip())
    return machine


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int, str], None] | None]:
    """A progress bar on the terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("proving", total=None)
        yield lambda done, total, next_up: bar.update(task, completed=done, total=total, description=next_up)


def print_sweep(
    title: str, sweep: Sweep, schedules: Sequence[Schedule], topology: Topology
) -> tuple[list[Row], list[str]]:
    """Run and print a prepared sweep; its rows, and a line for every proof."""
    from simcoll.planning.report import engine_lines, sweep_hash, table_lines
    from simcoll.planning.sweep import run_sweep
    from simcoll.units import printable

    print(f"# simcoll: {printable(title)}")
    print(printable(f"# topology {topology.name}: {topology.nranks} ranks. {topology.description}".rstrip()))
    proofs = [f"{printable(schedule.title)}: {verify(schedule)}" for schedule in schedules]
    for proof in proofs:
        print(f"# {proof}")
    with progress_bar() as progress:
        rows = run_sweep(sweep, schedules, topology, progress)
    for line in (*table_lines(sweep, rows), *engine_lines(rows)):
        print(line)
    checked = [row.result.wrong for row in rows if row.result.wrong is not None]
    found = sweep_hash(rows)
    told = f"trace hash {found}" if found else "no trace hash"
    print(f"# {len(rows)} run{'s' * (len(rows) != 1)}, data checked in {len(checked)}: {sum(checked)} wrong. {told}")
    if sum(checked):
        raise InternalError(f"{sum(checked)} wrong elements in a proved schedule")
    return rows, proofs
