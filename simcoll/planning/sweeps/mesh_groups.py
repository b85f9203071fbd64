"""A collective in the process groups along a mesh's axes: one group alone, and all groups at
once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields

from simcoll.arrays import Ints
from simcoll.binding import bind
from simcoll.core.plan import Plan
from simcoll.core.reduction import parse_dtype
from simcoll.emulator import emulate
from simcoll.emulator.programs import Call, Program, ProgramResult
from simcoll.errors import ConfigError, shown
from simcoll.files.output import csv_bytes
from simcoll.libraries.plans import library_plan
from simcoll.planning.sweeps.nccl_tests_table import microseconds, table_line
from simcoll.planning.sweeps.sweep import Sweep, build, costs_of, counts_for
from simcoll.topology import Topology
from simcoll.tuning import Choice, collective_on, default_algorithm
from simcoll.units import format_size
from simcoll.workload.mesh import Mesh

__all__ = [
    "COLUMNS",
    "GroupRow",
    "group_rows",
    "groups_csv",
    "machines_along",
    "parse_axes",
    "parse_mesh",
]

_AXIS = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,30})=([0-9]{1,7})")
COLUMNS = (
    ("axis", "", 9),
    ("ranks", "", 7),
    ("groups", "", 8),
    ("size", "(B)", 13),
    ("one", "(us)", 12),
    ("all", "(us)", 12),
    ("all/one", "", 9),
    ("algorithm", "", 22),
    ("protocol", "", 10),
)


def parse_mesh(text: str, nranks: int) -> Mesh:
    """Parse a mesh such as ``tp=8,dp=64``, fastest axis first, that fills a machine.

    >>> parse_mesh("tp=2,dp=4", 8).axes
    (('tp', 2), ('dp', 4))

    Raises
    ------
    ConfigError
        For invalid text, and sizes whose product is not the number of ranks.
    """
    mesh = parse_axes(text)
    if mesh.nranks != nranks:
        raise ConfigError(f"--group: {text} has {mesh.nranks} ranks; the machine has {nranks}")
    return mesh


def parse_axes(text: str) -> Mesh:
    """Parse a mesh for any machine; raises as :func:`parse_mesh` does."""
    axes = []
    for part in text.split(","):
        match = _AXIS.fullmatch(part.strip())
        if match is None:
            raise ConfigError(
                f"--group: {shown(part)} is no axis; expected name=size, such as tp=8,dp=64"
            )
        axes.append((match[1], int(match[2])))
    mesh = Mesh(tuple(axes))
    if mesh.nranks == 1:
        raise ConfigError(f"--group: {text} has one rank; a group has two or more")
    return mesh


def machines_along(machine: Topology, text: str) -> dict[str, Topology]:
    """For each axis larger than 1, the machine with the ranks of one group; text as for
    :func:`parse_mesh`.

    >>> from simcoll.topology import crossbar
    >>> machines = machines_along(crossbar(8, "1 GB/s"), "tp=2,dp=4")
    >>> {axis: part.nranks for axis, part in machines.items()}
    {'tp': 2, 'dp': 4}
    """
    mesh = parse_mesh(text, machine.nranks)
    return {axis: machine.with_ranks(mesh.groups(axis)[0]) for axis, size in mesh.axes if size > 1}


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A collective of one axis at one size: the best schedule for one group, and its time alone and
    in all groups at once.

    ``one_cut``, ``all_cut``: how a fault ended the run, ``aborted`` or ``stuck``; empty if it
    finished.
    """

    axis: str
    ranks: int
    groups: int
    size_bytes: int
    algorithm: str
    protocol: str
    one_fs: int
    all_fs: int
    one_cut: str = ""
    all_cut: str = ""

    def __str__(self) -> str:
        alone = self.one_cut or microseconds(self.one_fs / 1e9)
        every = self.all_cut or microseconds(self.all_fs / 1e9)
        ratio = "-" if self.one_cut or self.all_cut else f"{self.all_fs / max(self.one_fs, 1):.2f}"
        cells = (
            self.axis,
            self.ranks,
            self.groups,
            format_size(self.size_bytes),
            alone,
            every,
            ratio,
        )
        return table_line(COLUMNS, (*cells, self.algorithm, self.protocol))


def group_rows(
    sweep: Sweep, machine: Topology, mesh: Mesh, library: str = ""
) -> Iterator[GroupRow]:
    """Rows by axis and size, with the choices of a library, the sweep's algorithms, or the default
    for each size.

    Disturbances refer to ranks of the machine, so a straggler outside the first group shows in all
    groups at once.
    """
    for axis, size in mesh.axes:
        if size == 1:
            continue
        groups = mesh.groups(axis)
        group_machine = machine.with_ranks(groups[0])
        for total in sweep.sizes:
            plans = (
                _library_plans(sweep, total, group_machine, library)
                if library
                else _plans(sweep, total, group_machine)
            )
            runs = [
                (name, _play_groups(sweep, machine, groups[:1], plan), plan) for name, plan in plans
            ]
            name, single, plan = min(runs, key=lambda run: (run[1].cut is not None, run[1].time_fs))
            every = _play_groups(sweep, machine, groups, plan)
            yield GroupRow(
                axis,
                size,
                len(groups),
                plan.total_bytes,
                name,
                plan.protocol.name,
                single.time_fs,
                every.time_fs,
                _cut_kind(single),
                _cut_kind(every),
            )


def groups_csv(sweep: Sweep, rows: Sequence[GroupRow]) -> bytes:
    """The rows as CSV, times in femtoseconds, with collective, dtype and reduction."""
    settings = {"collective": sweep.collective, "dtype": sweep.dtype, "op": sweep.op}
    return csv_bytes(
        (*settings, *(field.name for field in fields(GroupRow))),
        (settings | asdict(row) for row in rows),
    )


def _plans(sweep: Sweep, total: int, group_machine: Topology) -> Iterator[tuple[str, Plan]]:
    """The plans of one group."""
    collective = collective_on(sweep.collective, group_machine.nranks, sweep.root)
    (count,) = counts_for(
        sweep.collective, [total], group_machine.nranks, parse_dtype(sweep.dtype).itemsize
    )
    choices = sweep.choices or [Choice(default_algorithm(collective, total_bytes=total))]
    for choice in choices:
        schedule = build(sweep, choice, group_machine)
        for protocol in sweep.protocols_of(schedule) or sweep.protocols:
            yield (
                str(choice),
                bind(
                    schedule,
                    count,
                    sweep.dtype,
                    sweep.op,
                    protocol=costs_of(sweep, protocol, group_machine, schedule),
                ),
            )


def _library_plans(
    sweep: Sweep, total: int, group_machine: Topology, library: str
) -> Iterator[tuple[str, Plan]]:
    """The plan that a library would choose for one group."""
    plan = library_plan(sweep.collective, total, group_machine, library=library)
    yield plan.schedule.name, plan


def _play_groups(sweep: Sweep, machine: Topology, groups: Ints, plan: Plan) -> ProgramResult:
    """Play some groups at once."""
    program = Program(machine.nranks, [Call(plan, groups)])
    disturbed = sweep.disturbed
    return emulate(
        program, machine, data="none", events=disturbed.events(machine), policy=disturbed.policy
    )


def _cut_kind(result: ProgramResult) -> str:
    return result.cut.kind if result.cut is not None else ""
