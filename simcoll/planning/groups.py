"""A collective of the process groups along the axes of a mesh: of one group alone, and of all of them at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from simcoll.binding import bind
from simcoll.emulator import emulate
from simcoll.emulator.programs import Call, Program
from simcoll.errors import ConfigError, shown
from simcoll.planning.sweep import counts_for
from simcoll.planning.table import microseconds, table_line
from simcoll.tuning import Choice, collective_on, costs, default_algorithm, schedule_on
from simcoll.units import format_size
from simcoll.workload.mesh import Mesh

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from simcoll.core.plan import Plan
    from simcoll.topology import Topology

    Ints = NDArray[np.int64]

__all__ = ["COLUMNS", "GroupRow", "group_rows", "machines_along", "parse_axes", "parse_mesh"]

_AXIS = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,30})=([0-9]{1,7})")
COLUMNS = (
    ("axis", "", 9), ("ranks", "", 7), ("groups", "", 8), ("size", "(B)", 13), ("one", "(us)", 12), ("all", "(us)", 12),
    ("all/one", "", 9), ("algorithm", "", 22), ("protocol", "", 10),
)  # fmt: skip


def parse_mesh(text: str, nranks: int) -> Mesh:
    """A mesh from text such as ``tp=8,dp=64``, fastest axis first, for all ranks of a machine.

    >>> parse_mesh("tp=2,dp=4", 8).axes
    (('tp', 2), ('dp', 4))

    Raises
    ------
    ConfigError
        For text of another form, and sizes that do not multiply to the number of ranks.
    """
    mesh = parse_axes(text)
    if mesh.nranks != nranks:
        raise ConfigError(f"--group: {text} has {mesh.nranks} ranks; the machine has {nranks}")
    return mesh


def parse_axes(text: str) -> Mesh:
    """A mesh from text, for any machine; its errors are those of :func:`parse_mesh`."""
    axes = []
    for part in text.split(","):
        found = _AXIS.fullmatch(part.strip())
        if found is None:
            raise ConfigError(f"--group: {shown(part)} is no axis; expected name=size, such as tp=8,dp=64")
        axes.append((found[1], int(found[2])))
    mesh = Mesh(tuple(axes))
    if mesh.nranks == 1:
        raise ConfigError(f"--group: {text} has one rank; a group has two or more")
    return mesh


def machines_along(machine: Topology, text: str) -> dict[str, Topology]:
    """The machine with the ranks of one group of each axis that is larger than 1; text as for :func:`parse_mesh`.

    >>> from simcoll.topology import crossbar
    >>> {axis: part.nranks for axis, part in machines_along(crossbar(8, "1 GB/s"), "tp=2,dp=4").items()}
    {'tp': 2, 'dp': 4}
    """
    mesh = parse_mesh(text, machine.nranks)
    return {axis: machine.with_ranks(mesh.groups(axis)[0]) for axis, size in mesh.axes if size > 1}


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A collective of one axis at one size: which schedule is best for one group, and its time alone and in all groups at once."""

    axis: str
    ranks: int
    groups: int
    size_bytes: int
    algorithm: str
    protocol: str
    one_fs: int
    all_fs: int | None

    def __str__(self) -> str:
        both = ("-", "-")
        if self.all_fs is not None:
            both = microseconds(self.all_fs / 1e9), f"{self.all_fs / max(self.one_fs, 1):.2f}"
        cells = (self.axis, self.ranks, self.groups, format_size(self.size_bytes), microseconds(self.one_fs / 1e9))
        return table_line(COLUMNS, (*cells, *both, self.algorithm, self.protocol))


def group_rows(
    kind: str,
    sizes: Sequence[int],
    machine: Topology,
    mesh: Mesh,
    choices: Sequence[Choice],
    protocols: Sequence[str],
    *,
    dtype: str = "float32",
    concurrent: bool = False,
) -> Iterator[GroupRow]:
    """Rows by axis and size. Without ``choices`` the default algorithm of the size; without ``concurrent`` one group alone."""
    for axis, size in mesh.axes:
        if size == 1:
            continue
        groups = mesh.groups(axis)
        near = machine.with_ranks(groups[0])
        for total in sizes:
            found = min(
                (_alone(machine, groups[:1], plan), number, name, plan)
                for number, (name, plan) in enumerate(_plans(kind, total, near, choices, protocols, dtype))
            )
            one_fs, _, name, plan = found
            every = _alone(machine, groups, plan) if concurrent else None
            yield GroupRow(axis, size, len(groups), plan.total_bytes, name, plan.protocol.name, one_fs, every)


def _plans(
    kind: str, total: int, near: Topology, choices: Sequence[Choice], protocols: Sequence[str], dtype: str
) -> Iterator[tuple[str, Plan]]:
    """The plans of one group."""
    from simcoll.core.reduction import parse_dtype

    collective = collective_on(kind, near.nranks)
    (count,) = counts_for(kind, [total], near.nranks, parse_dtype(dtype).itemsize)
    for choice, protocol in product(choices or [Choice(default_algorithm(collective, total_bytes=total))], protocols):
        made = schedule_on(collective, choice.algorithm, near, dict(choice.params))
        yield str(choice), bind(made, count, dtype, protocol=costs(protocol, near, made))


def _alone(machine: Topology, groups: Ints, plan: Plan) -> int:
    """Time of some groups at once."""
    return emulate(Program(machine.nranks, [Call(plan, groups)]), machine, data="none").time_fs
