"""Sweep files: collectives over topologies, nodes, degradations, algorithms, protocols, seeds and
sizes, as a grid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, product, starmap
from pathlib import Path
from typing import Any, NamedTuple

from simcoll.algorithms import ALGORITHMS
from simcoll.algorithms.imported import file_schedule, imported_algorithm, is_file_name
from simcoll.binding import bind
from simcoll.core.collective import KINDS
from simcoll.core.numbers import check_seed
from simcoll.core.protocol import PROTOCOL_NAMES
from simcoll.core.reduction import parse_dtype, parse_reduction
from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError, blamed_on, nearest
from simcoll.files.output import csv_bytes
from simcoll.files.reader_arguments import FilePath, path_of
from simcoll.files.strict import decode_toml, read_file
from simcoll.planning.grids.grid import Point, PointGrid
from simcoll.planning.grids.grid import Row as GridRow
from simcoll.planning.sweeps.disturbance import RunDisturbance, disturbance, parse_ranks
from simcoll.planning.sweeps.goal_programs import is_program, play_program
from simcoll.planning.sweeps.mesh_groups import machines_along, parse_axes
from simcoll.planning.sweeps.run_conditions import DataKeys, RunConditions, TableKeys
from simcoll.planning.sweeps.scenario import SizesTable
from simcoll.planning.sweeps.sweep import (
    Sweep,
    SweepRow,
    build,
    costs_of,
    counts_for,
    play,
    size_ladder,
)
from simcoll.planning.sweeps.sweep_report import row_columns
from simcoll.topology import Topology, load_topology
from simcoll.topology.degraded_links import with_degraded_links
from simcoll.topology.file_layers import beside, content_of
from simcoll.tuning import parse_choice
from simcoll.units import parse_size, parse_time

__all__ = ["SweepFile", "load_sweep", "sweep_csv", "sweep_grid", "time_point"]

MAX_BYTES = 2**20
MAX_POINTS = 10**6
AXES = ("topology", "nodes", "degraded", "collective", "algorithm", "protocol", "seed", "size")
"""Axes of the grid, the last fastest, so that neighbours share topology and schedule."""
FIGURES = (
    "size_bytes",
    "count",
    "schedule",
    "proof",
    "time_fs",
    "algbw",
    "busbw",
    "bound_fs",
    "bound_kind",
    "bottleneck",
    "headroom",
    "wrong",
    "messages",
    "trace_hash",
)


@dataclass(frozen=True, kw_only=True)
class SweepFile(RunConditions, DataKeys, TableKeys):
    """A sweep file: every list is an axis of the grid. Empty ``nodes`` and ``degraded``: the
    topology unchanged.
    """

    title: str
    topologies: list[str]
    collectives: list[str]
    sizes: SizesTable | list[str | int]
    nodes: list[int] = field(default_factory=list)
    degraded: list[dict[str, str | int | float]] = field(default_factory=list)
    algorithms: list[str] = field(default_factory=list)
    seeds: tuple[int, ...] = (0,)


def load_sweep(path: FilePath) -> SweepFile:
    """Load a sweep file.

    Raises
    ------
    ConfigError
        When it cannot be read or does not fit the format.
    """
    path = path_of(path, "load_sweep")
    return decode_toml(read_file(path, MAX_BYTES), SweepFile, path)


class _MachineCase(NamedTuple):
    """One value of every axis of the machine: the keys of its topology, nodes, degraded links; and
    the collective.
    """

    topology: Mapping[str, str]
    nodes: int | None
    degraded: Mapping[str, str | int | float]
    collective: str


class _RunCase(NamedTuple):
    """One value of every other axis; a program has no size."""

    algorithm: str
    protocol: str
    seed: int
    size: int | None


def sweep_grid(sweep: SweepFile, path: Path) -> PointGrid:
    """Expand a sweep file to points, one per combination.

    A collective is played with the named algorithms that support it, by default with all that do. A
    program is played once on each machine with each protocol. A combination that does not fit its
    topology becomes a row with the reason.

    Raises
    ------
    ConfigError
        For names, sizes and numbers that no combination could use, an empty axis, and more than a
        million points.
    """
    file = str(path)
    axes = _axes(sweep, path)
    for name, values in axes.items():
        if not values:
            raise ConfigError(
                "an empty list; give at least one value, or leave the key out",
                file=file,
                path=f"$.{name}",
            )
    if sweep.op != "sum":
        parse_reduction(sweep.op, parse_dtype(sweep.dtype))
    jitter_fs = parse_time(sweep.jitter, file=file, path="$.jitter")
    if len(axes["seeds"]) > 1 and not jitter_fs:
        raise ConfigError(
            "seeds differ only where there is jitter; add a key such as jitter = '1 us'",
            file=file,
            path="$.seeds",
        )
    fixed: dict[str, Any] = {
        "dtype": parse_dtype(sweep.dtype).name,
        "op": sweep.op,
        "root": sweep.root,
        "jitter_fs": jitter_fs,
        "check_up_to": parse_size(sweep.check_up_to, file=file, path="$.check_up_to"),
    }
    # Only what is asked for is part of a point, so that others keep their keys.
    disturbed = disturbance(
        stragglers=sweep.stragglers,
        background=sweep.background,
        faults=sweep.faults,
        policy=sweep.policy,
    )
    fixed |= {"stragglers": list(disturbed.stragglers)} if disturbed.stragglers else {}
    fixed |= {"background": list(disturbed.background)} if disturbed.background else {}
    fixed |= (
        {"faults": list(disturbed.faults), "policy": disturbed.policy} if disturbed.faults else {}
    )
    fixed |= {"ranks": parse_ranks(sweep.ranks)} if sweep.ranks else {}
    mesh = parse_axes(sweep.group).axes if sweep.group else ()
    groups = [{"group": sweep.group, "axis": axis} for axis, size in mesh if size > 1] or [{}]
    points: list[Point] = []
    machines = starmap(
        _MachineCase,
        product(*(axes[n] for n in ("topologies", "nodes", "degraded", "collectives"))),
    )
    for case, group in product(machines, groups):
        serving = [text for text in axes["algorithms"] if _serves(text, case.collective)]
        algorithms = serving if sweep.algorithms else _all_of(case.collective)
        combinations = product(
            algorithms, *(axes[name] for name in ("protocols", "seeds", "sizes"))
        )
        programs = product(
            filter(_plays, axes["algorithms"]), axes["protocols"], axes["seeds"], [None]
        )
        for run in starmap(_RunCase, chain(combinations, programs)):
            point = {
                "topology": (),
                "nodes": case.nodes,
                "degraded": case.degraded,
                "collective": None if run.size is None else case.collective,
                **run._asdict(),
            }
            points.append({**point, **case.topology, **group, **fixed, **_file_hash(run.algorithm)})
            if len(points) > MAX_POINTS:
                raise ConfigError(f"more than {MAX_POINTS:,} points; split the file", file=file)
    return PointGrid(time_point, tuple(points))


def _all_of(collective: str) -> list[str]:
    return [algorithm.name for algorithm in ALGORITHMS if algorithm.collective == collective]


def _serves(text: str, collective: str) -> bool:
    name = parse_choice(text).algorithm
    if is_file_name(name):
        return not is_program(name) and file_schedule(name).collective.kind == collective
    return name in _all_of(collective) or imported_algorithm(collective, name) is not None


def _plays(text: str) -> bool:
    """Whether an algorithm is a program, which is one point for all collectives and sizes."""
    return is_program(parse_choice(text).algorithm)


@lru_cache
def _file_hash(text: str) -> dict[str, str]:
    """The hash of an algorithm's file, so that a changed file makes different points; empty for a
    name.
    """
    name = parse_choice(text).algorithm
    if not is_file_name(name):
        return {}
    return {"algorithm_hash": hashlib.sha256(Path(name).read_bytes()).hexdigest()[:16]}


def _axes(sweep: SweepFile, path: Path) -> dict[str, Sequence[Any]]:
    """The checked values of every axis."""
    file = str(path)
    for number, kind in enumerate(sweep.collectives):
        if kind not in KINDS:
            raise ConfigError(
                f"unknown collective {kind!r}; {nearest(kind, KINDS)}",
                file=file,
                path=f"$.collectives[{number}]",
            )
    names = {
        algorithm.name for algorithm in ALGORITHMS if algorithm.collective in sweep.collectives
    }
    choices = [parse_choice(text, path.parent) for text in sweep.algorithms]
    choices = [replace(choice, algorithm=_whole_name(choice.algorithm)) for choice in choices]
    for number, choice in enumerate(choices):
        name = choice.algorithm
        if (
            name not in names
            and not _plays(name)
            and not any(_serves(name, kind) for kind in sweep.collectives)
        ):
            message = (
                f"no algorithm {name!r} for {', '.join(sweep.collectives)}; {nearest(name, names)}"
            )
            raise ConfigError(message, file=file, path=f"$.algorithms[{number}]")
    for number, nodes in enumerate(sweep.nodes):
        if nodes < 1:
            raise ConfigError(
                f"expected at least one node, got {nodes}", file=file, path=f"$.nodes[{number}]"
            )
    if isinstance(sweep.sizes, list):
        sizes = [
            parse_size(size, file=file, path=f"$.sizes[{number}]")
            for number, size in enumerate(sweep.sizes)
        ]
    else:
        begin = parse_size(sweep.sizes.begin, file=file, path="$.sizes.begin")
        end = parse_size(sweep.sizes.end, file=file, path="$.sizes.end")
        with blamed_on(file, "$.sizes"):
            sizes = list(size_ladder(begin, end, sweep.sizes.factor))
    for number, seed in enumerate(sweep.seeds):
        with blamed_on(file, f"$.seeds[{number}]"):
            check_seed(seed)
    for number, name in enumerate(sweep.protocols):
        if name not in PROTOCOL_NAMES:
            message = f"unknown protocol {name!r}; {nearest(name, PROTOCOL_NAMES)}"
            raise ConfigError(message, file=file, path=f"$.protocols[{number}]")
    return {
        "topologies": [_topology_keys(name, path.parent) for name in sweep.topologies],
        "nodes": sweep.nodes or [None],
        "degraded": sweep.degraded or [{}],
        "collectives": sweep.collectives,
        "algorithms": list(map(str, choices)),
        "protocols": sweep.protocols,
        "seeds": sweep.seeds,
        "sizes": sizes,
    }


def _whole_name(name: str) -> str:
    """A name that other processes can resolve."""
    return str(Path(name).resolve()) if is_file_name(name) else name


def _topology_keys(name: str, folder: Path) -> dict[str, str]:
    """A topology in a point: its name or path, and a hash of its files, so that a changed file
    makes different points.
    """
    file = beside(folder, name)
    return {"topology": file, "topology_hash": hashlib.sha256(content_of(file)).hexdigest()[:16]}


def time_point(point: Point) -> dict[str, Any]:
    """Prove, bind and emulate one point of a sweep."""
    machine = _machine(
        point["topology"],
        point["nodes"],
        tuple(point["degraded"].items()),
        tuple(point.get("ranks", ())),
        point.get("group", ""),
        point.get("axis", ""),
    )
    choice, name = parse_choice(point["algorithm"]), point["protocol"]
    disturbed = RunDisturbance(
        tuple((rank, factor) for rank, factor in point.get("stragglers", ())),
        tuple((link, share) for link, share in point.get("background", ())),
        point["jitter_fs"],
        point["seed"],
        tuple(point.get("faults", ())),
        point.get("policy", "stall"),
    )
    if point["collective"] is None:
        figures = play_program(choice, name, machine, disturbed).columns()
        return {column: figures.get(column) for column in FIGURES}
    schedule = _schedule(machine, point["collective"], point["root"], point["algorithm"])
    sweep = Sweep(
        point["collective"],
        (point["size"],),
        (choice,),
        (name,),
        point["dtype"],
        point["op"],
        point["root"],
        point["check_up_to"],
        disturbed,
    )
    count = counts_for(
        sweep.collective, sweep.sizes, machine.nranks, parse_dtype(sweep.dtype).itemsize
    )[0]
    protocol = costs_of(sweep, name, machine, schedule)
    result = play(sweep, bind(schedule, count, sweep.dtype, sweep.op, protocol=protocol), machine)
    columns = row_columns(SweepRow(choice, name, result))
    if result.cut is not None:
        raise ConfigError(str(result.cut))
    return {name: columns[name] for name in FIGURES}


@lru_cache(maxsize=4)
def _machine(
    name: str,
    nodes: int | None,
    degraded: tuple[tuple[str, Any], ...],
    ranks: tuple[int, ...],
    group: str,
    axis: str,
) -> Topology:
    machine = with_degraded_links(load_topology(name, nodes=nodes), dict(degraded))
    machine = machine.with_ranks(ranks) if ranks else machine
    return machines_along(machine, group)[axis] if group else machine


@lru_cache(maxsize=16)
def _schedule(machine: Topology, collective: str, root: int | None, algorithm: str) -> Schedule:
    choice = parse_choice(algorithm)
    return build(Sweep(collective, (), (choice,), root=root), choice, machine)


def sweep_csv(rows: Sequence[GridRow]) -> bytes:
    """The rows as CSV; the column ``error`` has the reason why a point did not run."""
    grouped = ("axis",) if any("axis" in row["point"] for row in rows) else ()
    lines = (
        row["point"]
        | {"degraded": " ".join(f"{k}={v}" for k, v in row["point"]["degraded"].items())}
        | row.get("result", {})
        | {"error": row.get("error", "")}
        for row in rows
    )
    return csv_bytes((*AXES, *grouped, *FIGURES, "error"), lines)
