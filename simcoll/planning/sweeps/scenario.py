"""Scenario files: a topology, a collective, sizes and algorithms in TOML, run by one command into
one folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from simcoll.errors import ConfigError, blamed_on, nearest
from simcoll.files.output import write_files
from simcoll.files.paths import exists, shipped_files
from simcoll.files.reader_arguments import FilePath, path_of
from simcoll.files.strict import decode_toml, read_file
from simcoll.formats.recognise import TITLES, recognise
from simcoll.planning.sweeps.chart import can_draw
from simcoll.planning.sweeps.disturbance import disturbance, parse_ranks
from simcoll.planning.sweeps.result_files import picture, timeline
from simcoll.planning.sweeps.run_conditions import DataKeys, SeededConditions, TableKeys
from simcoll.planning.sweeps.sweep import Sweep, size_ladder
from simcoll.planning.sweeps.sweep_report import results_csv, results_json
from simcoll.topology import Topology, load_topology
from simcoll.topology.degraded_links import with_degraded_links
from simcoll.topology.file_layers import beside
from simcoll.tuning import parse_choice
from simcoll.units import parse_size

if TYPE_CHECKING:
    from simcoll.planning.sweeps.running import SweepTable

__all__ = [
    "Scenario",
    "file_of",
    "load_scenario",
    "scenario_machines",
    "scenario_topology",
    "shipped_scenarios",
    "sweep_of",
    "write_results",
]

MAX_BYTES = 2**20
MAX_ALGORITHMS, MAX_PROTOCOLS = 256, 16
_FOLDERS = {
    "scenario": "scenarios",
    "sweep": "scenarios/sweeps",
    "plan": "scenarios/plans",
    "goodput": "scenarios/goodput",
}
_COMMANDS = {
    "scenario": "run",
    "sweep": "sweep",
    "plan": "plan",
    "goodput": "goodput",
    "design": "step",
}
_UNSURE = ("toml", "json", "text", "empty")
"""Formats that a broken file of any command may look like; its reader finds the error."""
RESULT_FILES = ("results.json", "results.csv", "busbw.svg", "trace.json.gz")


class TopologyTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``[topology]``: a shipped name or a path relative to the scenario, its number of nodes, and
    degraded links.
    """

    name: str
    nodes: int | None = None
    degraded: dict[str, str | int | float] = {}


@dataclass(frozen=True, kw_only=True)
class CollectiveTable(DataKeys):
    """``[collective]``."""

    kind: str


class SizesTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``[sizes]``: as in nccl-tests, ``-b``, ``-e`` and ``-f``."""

    begin: str | int
    end: str | int
    factor: int = 2


@dataclass(frozen=True, kw_only=True)
class Scenario(SeededConditions, TableKeys):
    """A scenario file."""

    title: str
    topology: TopologyTable
    collective: CollectiveTable
    sizes: SizesTable
    algorithms: list[str]
    trace_size: str | int = "1M"


def file_of(kind: str, name: str | Path) -> Path:
    """Find a file for a command by path or shipped name; its ``kind`` is scenario, sweep, plan or
    goodput.

    Raises
    ------
    ConfigError
        When there is no such file, or it belongs to another command.
    """
    folder = _FOLDERS[kind]
    path, shipped = Path(name), shipped_files(folder)
    if exists(path):
        content_kind = recognise(read_file(path, MAX_BYTES))
        # A design is a plan without lists.
        if content_kind not in {kind, "design" if kind == "plan" else kind, *_UNSURE}:
            player = (
                f"; simcoll {_COMMANDS[content_kind]} plays it" if content_kind in _COMMANDS else ""
            )
            raise ConfigError(
                f"this is {TITLES[content_kind]}; expected a {kind} file{player}", file=str(path)
            )
        return path
    if (
        path.stem not in shipped
        or path.suffix not in ("", ".toml")
        or str(path.parent) not in {".", folder}
    ):
        raise ConfigError(
            f"no {kind} file {str(name)!r}, and no shipped one of that name; "
            f"{nearest(path.stem, shipped)}"
        )
    return shipped[path.stem]


def shipped_scenarios() -> dict[str, str]:
    """Names and titles of the shipped scenarios."""
    return {name: load_scenario(path)[0].title for name, path in shipped_files("scenarios").items()}


def load_scenario(name: FilePath) -> tuple[Scenario, Path]:
    """Load a scenario by path or shipped name; returns its path too.

    Raises
    ------
    ConfigError
        When it cannot be read or does not fit the format.
    """
    path = file_of("scenario", path_of(name, "load_scenario"))
    return decode_toml(read_file(path, MAX_BYTES), Scenario, str(path)), path


def scenario_topology(scenario: Scenario, path: Path) -> Topology:
    """Load the topology of a scenario; its path is relative to the scenario file."""
    topology = load_topology(
        beside(path.parent, scenario.topology.name), nodes=scenario.topology.nodes
    )
    topology = with_degraded_links(topology, scenario.topology.degraded)
    return topology.with_ranks(parse_ranks(scenario.ranks)) if scenario.ranks else topology


def scenario_machines(scenario: Scenario, path: Path) -> dict[str, Topology]:
    """The topology of a scenario; with a ``group``, the ranks of one group of each axis, by axis
    name.
    """
    from simcoll.planning.sweeps.mesh_groups import machines_along

    topology = scenario_topology(scenario, path)
    return machines_along(topology, scenario.group) if scenario.group else {"": topology}


def sweep_of(scenario: Scenario, file: str) -> Sweep:
    """The sweep that a scenario describes.

    Raises
    ------
    ConfigError
        For invalid sizes or algorithms.
    """

    def size(value: str | int, place: str) -> int:
        return parse_size(value, file=file, path=place)

    if not scenario.title.isprintable():
        raise ConfigError(
            "the title has control characters; write it in one line", file=file, path="$.title"
        )
    if not scenario.protocols:
        raise ConfigError("an empty list; leave it out for 'ideal'", file=file, path="$.protocols")
    for name, entries, limit in (
        ("algorithms", scenario.algorithms, MAX_ALGORITHMS),
        ("protocols", scenario.protocols, MAX_PROTOCOLS),
    ):
        if len(entries) > limit:
            raise ConfigError(
                f"{len(entries)} entries; at most {limit}", file=file, path=f"$.{name}"
            )
    size(scenario.trace_size, "$.trace_size")
    with blamed_on(file):
        choices = tuple(parse_choice(text, Path(file).parent) for text in scenario.algorithms)
        ladder = size_ladder(
            size(scenario.sizes.begin, "$.sizes.begin"),
            size(scenario.sizes.end, "$.sizes.end"),
            scenario.sizes.factor,
        )
        return Sweep(
            scenario.collective.kind,
            ladder,
            choices,
            tuple(scenario.protocols),
            scenario.collective.dtype,
            scenario.collective.op,
            scenario.collective.root,
            size(scenario.check_up_to, "$.check_up_to"),
            disturbance(scenario),
        )


def write_results(
    folder: Path, scenario: Scenario, topology: Topology, table: SweepTable, proofs: Sequence[str]
) -> list[str]:
    """Write ``results.json``, ``results.csv``, ``busbw.svg`` and ``trace.json.gz``, each with the
    hash of all; returns the names.

    Programs alone have no picture, as they have no sizes; nor has anything without matplotlib.
    """
    content, run = results_json(
        scenario.title, table.sweep, topology, table.rows, proofs, table.programs
    )
    trace_bytes = parse_size(scenario.trace_size, what="trace_size")
    files = {
        "results.json": content,
        "results.csv": results_csv(table.rows, run, table.programs),
        **(
            {"busbw.svg": picture(scenario.title, table, topology, run)}
            if table.rows and can_draw()
            else {}
        ),
        "trace.json.gz": timeline(table, topology, trace_bytes, run),
    }
    write_files(folder, files)
    return list(files)
