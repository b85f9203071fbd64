"""A sweep on the terminal: its proofs, a progress bar, the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.binding import verify
from simcoll.cli.progress import Progress
from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError, InternalError
from simcoll.stopping import receive
from simcoll.terminal import printable, say
from simcoll.topology.degraded_links import with_degraded_links
from simcoll.units import format_size

if TYPE_CHECKING:
    from simcoll.planning.sweeps.goal_programs import ProgramRun
    from simcoll.planning.sweeps.mesh_groups import GroupRow
    from simcoll.planning.sweeps.running import SweepTable
    from simcoll.planning.sweeps.sweep import Sweep, SweepRow
    from simcoll.topology import Topology
    from simcoll.tuning import Choice

__all__ = ["degrade_links", "mesh_lines", "print_sweep", "prove_all"]

MOST_PROOFS = 6
"""More proofs than these are counted above a table, not listed: the table shall stay on the
screen.
"""


def degrade_links(machine: Topology, texts: Sequence[str]) -> Topology:
    """The machine with the links named by ``--degrade`` at their remaining share of capacity."""
    shares: dict[str, str] = {}
    for text in texts:
        link, equals, share = (part.strip() for part in text.rpartition("="))
        if link in shares:
            raise ConfigError(
                f"--degrade: {link} is given twice, as {shares[link]} and as {share}; leave one out"
            )
        shares[link] = share
        if not equals:
            raise ConfigError(
                f"--degrade {text!r}: expected a link and a share, such as 'gpu0 <-> gpu4=1/2'"
            )
    return with_degraded_links(machine, shares)


def prove_all(
    sweep: Sweep,
    topology: Topology,
    built: Sequence[Schedule] | None = None,
    refused: dict[Choice, str] | None = None,
) -> list[Schedule]:
    """Prove the schedules of a sweep with :func:`simcoll.planning.sweeps.sweep.prepare`, and show
    progress.
    """
    from simcoll.planning.sweeps.sweep import prepare

    with Progress() as progress:
        return prepare(sweep, topology, built, progress, refused)


def print_sweep(
    title: str,
    sweep: Sweep,
    schedules: Sequence[Schedule],
    topology: Topology,
    programs: Sequence[Choice] = (),
    *,
    refused: dict[Choice, str] | None = None,
    verbose: bool = False,
) -> tuple[SweepTable, list[str], bool]:
    """Run programs and a prepared sweep, and print each size when it is done.

    ``verbose`` adds the proof of every schedule, what played the runs, and the hash of their
    traces. Returns the runs, a line per proof, and whether Ctrl-C ended the sweep early, in which
    case the runs cover the finished sizes.
    """
    from simcoll.planning.sweeps.running import SweepTable, runs
    from simcoll.planning.sweeps.sweep import best_rows
    from simcoll.planning.sweeps.sweep_report import engine_lines, foot_lines, head_lines, size_line

    sweep.disturbed.check(topology)
    played: list[ProgramRun] = []
    if programs:
        from simcoll.planning.sweeps.goal_programs import play_program

        played += [
            play_program(program, name, topology, sweep.disturbed)
            for program in programs
            for name in sweep.protocols
        ]
    for run in played:
        say(run)
        if verbose:
            say(f"# trace hash {run.result.trace_hash}")
    if not sweep.choices:
        return SweepTable(sweep, topology.name, (), tuple(played)), [], False
    say(f"# simcoll: {title}")
    say(f"# topology {topology.name}: {topology.nranks} ranks. {topology.description}".rstrip())
    if sweep.disturbed:
        say(f"# disturbed: {sweep.disturbed}")
    proofs = [f"{printable(schedule.title)}: {verify(schedule)}" for schedule in schedules]
    if verbose or len(proofs) <= MOST_PROOFS:
        for proof in proofs:
            say(f"# {proof}")
    else:
        say(f"# {len(proofs)} algorithms, all proved (-v: each proof)")
    for line in _left_out(sweep, schedules):
        say(f"# {line}")
    for line in head_lines(sweep):
        say(line, flush=True)
    rows: list[SweepRow] = []
    left_out: dict[Choice, str] = {}
    stopped = False
    with Progress() as progress:
        try:
            for of_size in runs(sweep, schedules, topology, progress, refused):
                progress.clear()
                for choice, reason in (refused or {}).items():
                    if choice not in left_out:
                        left_out[choice] = reason
                        say(f"# left out from here on: {choice}: {reason}")
                if len(left_out) == len(schedules) and not rows:
                    raise ConfigError("; ".join(dict.fromkeys(left_out.values())))
                if of_size:
                    say(size_line(sweep, of_size), flush=True)
                rows += of_size
        except KeyboardInterrupt:
            receive()
            stopped = True
            rows = [
                row if row.check and row.check.made else replace(row, check=None) for row in rows
            ]
    if stopped and not rows:
        say(
            f"# stopped before the first of {len(sweep.sizes)} sizes was done; nothing is kept",
            flush=True,
        )
        return SweepTable(sweep, topology.name, (), tuple(played)), proofs, stopped
    checks = {
        row.choice: row.data_check.wrong
        for row in rows
        if row.data_check and row.data_check.wrong is not None
    }
    moved = [row.result.wrong for row in rows if row.result.wrong is not None]
    wrong = sum(moved) + sum(checks.values())
    for line in (*foot_lines(rows), *(engine_lines(rows) if verbose else ())):
        say(line)
    say(f"{_summary(rows, len(checks), len(moved), wrong)}{_hash_text(rows) if verbose else ''}")
    if stopped:
        say(
            f"# stopped after {len(best_rows(rows))} of {len(sweep.sizes)} sizes; these are kept",
            flush=True,
        )
    if wrong:
        raise InternalError(f"{wrong} wrong elements in a proved schedule")
    return SweepTable(sweep, topology.name, tuple(rows), tuple(played)), proofs, stopped


def _left_out(sweep: Sweep, schedules: Sequence[Schedule]) -> Iterator[str]:
    """Protocols that cannot carry some of the schedules."""
    switched = [
        schedule for schedule in schedules if sweep.protocols_of(schedule) != sweep.protocols
    ]
    if switched:
        protocols = [
            name for name in sweep.protocols if name not in sweep.protocols_of(switched[0])
        ]
        names = ", ".join(dict.fromkeys(schedule.name for schedule in switched))
        yield (
            f"{names}: not under {' and '.join(protocols)}, since a reducing switch would reduce "
            "their flags too"
        )


def _summary(rows: Sequence[SweepRow], checked: int, moved: int, wrong: int) -> str:
    cut = "".join(
        f", {count} {kind}"
        for kind, count in Counter(row.result.cut.kind for row in rows if row.result.cut).items()
    )
    every = f" and in {moved} runs" if moved else ""
    return (
        f"# {len(rows)} run{'s' * (len(rows) != 1)}{cut}, data checked in {checked} "
        f"schedule{'s' * (checked != 1)}{every}: "
        f"{wrong} wrong"
    )


def _hash_text(rows: Sequence[SweepRow]) -> str:
    from simcoll.planning.sweeps.sweep_report import sweep_hash

    trace_hash = sweep_hash(rows)
    return f", trace hash {trace_hash}" if trace_hash else ", no trace hash"


def mesh_lines(
    sweep: Sweep, machine: Topology, mesh: str, *, csv: Path | None, library: str = ""
) -> None:
    """Print and write the table of a collective in one group and in all groups along a mesh's axes,
    after Ctrl-C too.
    """
    from simcoll.files.output import write_file
    from simcoll.libraries.library import load_library
    from simcoll.planning.sweeps.mesh_groups import COLUMNS, group_rows, groups_csv, parse_mesh
    from simcoll.planning.sweeps.nccl_tests_table import titles

    axes = parse_mesh(mesh, machine.nranks)
    sweep.disturbed.check(machine)
    chosen = f", as {load_library(library)} would choose" if library else ""
    say(f"# {sweep.collective} on {machine.name}, mesh {mesh}, fastest axis first{chosen}")
    if sweep.disturbed:
        say(f"# disturbed: {sweep.disturbed}")
    for line in titles(COLUMNS):
        say(line, flush=True)
    rows: list[GroupRow] = []
    stopped = False
    pending_rows = group_rows(sweep, machine, axes, library)
    steps = [
        f"{axis} {format_size(size)}"
        for axis, ranks in axes.axes
        for size in sweep.sizes
        if ranks > 1
    ]
    try:
        with Progress() as progress:
            for step in steps:
                progress(len(rows), len(steps), step)
                rows.append(next(pending_rows))
                progress.clear()
                say(rows[-1], flush=True)
    except KeyboardInterrupt:
        receive()
        stopped = True
        say(f"# stopped after {len(rows)} lines", flush=True)
    say(
        "# one: a group alone; all: all groups of its axis at once, which take longer on shared "
        "links"
    )
    if csv is not None and rows:
        write_file(csv, groups_csv(sweep, rows))
        say(f"# wrote {csv}")
    if stopped:
        raise KeyboardInterrupt
