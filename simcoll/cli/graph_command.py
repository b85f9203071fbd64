"""``simcoll graph``: compare the nodes of a job; check NCCL's rings and trees against a machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from simcoll.command_line import WHOLE
from simcoll.errors import ConfigError, nearest
from simcoll.terminal import say
from simcoll.units import counted

if TYPE_CHECKING:
    from simcoll.formats.reports.node_facts import NodeFacts
    from simcoll.planning.tuners.nccl_graphs import NcclChannels
    from simcoll.topology import Topology

__all__ = ["check_graph"]

MAX_COMMUNICATORS = 8


def check_graph(
    file: Path,
    /,
    *,
    topology: Annotated[str | None, Parameter(name=["--topology", "-t"])] = None,
    nodes: Annotated[int | None, WHOLE] = None,
    json: Path | None = None,
    collective: Annotated[str, Parameter(name=["--collective", "-c"])] = "all_reduce",
    use: str | None = None,
    pieces: Annotated[int, WHOLE] = 1,
) -> int:
    """Compare the nodes of a job by their dumps and logs; check the channels that NCCL chose
    against a machine's links, and convert them to a schedule.

    Parameters
    ----------
    file
        A file from NCCL_GRAPH_DUMP_FILE, or a log with NCCL_DEBUG=INFO. Or, without --topology, a
        folder of topology dumps (NCCL_TOPO_DUMP_FILE) and logs of the nodes of one job.
    topology
        The machine, for its links.
    nodes
        Number of nodes. Default: the topology's.
    json
        Write NCCL's rings or trees as a schedule file.
    collective
        Collective of the schedule: all_reduce, all_gather or reduce_scatter for rings, all_reduce
        for trees.
    use
        ring or tree. Default: rings if there are any.
    pieces
        Number of pieces of the trees' data.
    """
    from simcoll.files.paths import is_folder
    from simcoll.formats.schedules.schedule_json import dump_schedule
    from simcoll.planning.tuners.nccl_graphs import channels_schedule
    from simcoll.topology import load_topology

    if topology is None:
        if json is not None or use is not None or nodes is not None:
            raise ConfigError("--json, --use and --nodes need the machine: --topology")
        return _compare_nodes(file)
    if is_folder(file):
        raise ConfigError(
            "a folder, whose nodes are compared without --topology; a machine is for one file",
            file=str(file),
        )
    machine = load_topology(topology, nodes=nodes)
    channels = list(_check_channels(file, machine, nodes))
    if json is None:
        return 0
    graphs = {graph.name: graph for graph in reversed(channels) if graph.orders or graph.parents}
    if use is not None and use not in graphs:
        raise ConfigError(f"the file has no {use!r}; {nearest(use, graphs)}", file=str(file))
    if not graphs:
        raise ConfigError("the file has no ring graph and no trees", file=str(file))
    chosen = graphs[use] if use is not None else graphs.get("ring", next(iter(graphs.values())))
    dump_schedule(channels_schedule(chosen, collective, pieces=pieces), json)
    say(f"wrote {json}: {chosen.name}")
    return 0


def _compare_nodes(path: Path) -> int:
    """Print where the nodes of a folder of dumps and logs, or of one log, differ; the exit
    status.
    """
    from simcoll.files.paths import is_folder
    from simcoll.files.strict import read_file, read_start
    from simcoll.formats.logs.log_lines import log_lines
    from simcoll.formats.logs.nccl_graph import MAX_BYTES
    from simcoll.formats.recognise import TITLES, recognise
    from simcoll.formats.reports.node_facts import (
        consequence,
        facts_of_dump,
        facts_of_log,
        node_differences,
    )

    in_folder = is_folder(path)
    files = sorted(file for file in path.rglob("*") if file.is_file()) if in_folder else [path]
    dumps: list[NodeFacts] = []
    logs: list[NodeFacts] = []
    lines: list[str] = []
    for file in files:
        kind = recognise(read_start(file))
        if kind == "nccl-topology":
            name = file.relative_to(path).with_suffix("").as_posix() if in_folder else file.stem
            dumps += facts_of_dump(read_file(file, MAX_BYTES), name)
        elif kind in {"nccl-log", "nccl-tests"}:
            logs += facts_of_log(text for _, text in log_lines(file))
            lines += [f"{file.name}: {line}" for line in _incomplete_channels(file)]
        elif in_folder:
            say(f"# left out: {file.name}: this is {TITLES[kind]}")
        else:
            raise ConfigError(
                f"this is {TITLES[kind]}; expected a topology dump or a log of NCCL_DEBUG=INFO, or "
                "for graphs a machine (--topology)",
                file=str(file),
            )
    nodes = [*dumps, *_by_host(logs)]
    if not nodes:
        raise ConfigError(
            "no topology dump (NCCL_TOPO_DUMP_FILE) and no log of NCCL_DEBUG=INFO", file=str(path)
        )
    lines = [*node_differences(dumps), *node_differences(_by_host(logs)), *lines]
    for line in lines:
        say(line)
    parts = [
        f"{len(members)} node{'s' * (len(members) != 1)} in {source}"
        for members, source in ((dumps, "dumps"), (_by_host(logs), "logs"))
        if members
    ]
    alone = "" if max(len(dumps), len(_by_host(logs))) > 1 else "; nothing to compare with"
    say(f"# {' and '.join(parts)}: {len(lines) or 'no'} difference{'s' * (len(lines) != 1)}{alone}")
    for text in dict.fromkeys(filter(None, map(consequence, lines))):
        say(f"# {text}")
    return 1 if lines else 0


def _by_host(parts: Sequence[NodeFacts]) -> list[NodeFacts]:
    """The facts of each host, which may stand in several logs."""
    from simcoll.formats.reports.node_facts import NodeFacts

    hosts: dict[str, NodeFacts] = {}
    for part in parts:
        node = hosts.setdefault(part.name, NodeFacts(part.name))
        for fact, values in part.values.items():
            for value in values:
                node.add(fact, value)
    return list(hosts.values())


def _incomplete_channels(file: Path) -> Iterator[str]:
    """What is missing of the channels of a log's communicators."""
    from simcoll.formats.logs.nccl_log import load_nccl_log

    try:
        communicators = load_nccl_log(file)
    except ConfigError:  # a log without channels
        return
    for communicator in communicators:
        for note in communicator.notes:
            yield f"communicator {communicator.name}: {note}"


def _check_channels(
    file: Path, machine: Topology, expected_nodes: int | None
) -> Iterator[NcclChannels]:
    """Print the verdicts, and return the channels of graphs with the right number of ranks."""
    from simcoll.files.strict import read_file, read_start
    from simcoll.formats.logs.nccl_graph import MAX_BYTES, parse_nccl_graphs
    from simcoll.formats.logs.nccl_log import load_nccl_log
    from simcoll.formats.recognise import TITLES, recognise
    from simcoll.planning.tuners.nccl_graphs import (
        channels_of_graph,
        channels_of_log,
        connection_lines,
        fit_lines,
    )

    kind = recognise(read_start(file))
    if kind not in {"nccl-log", "nccl-tests"}:
        if kind not in {"nccl-graph", "xml"}:
            raise ConfigError(
                f"this is {TITLES[kind]}; expected a dump of NCCL's graphs or a log of "
                "NCCL_DEBUG=INFO",
                file=str(file),
            )
        for graph in parse_nccl_graphs(read_file(file, MAX_BYTES), str(file)):
            channels = channels_of_graph(graph)
            for line in fit_lines(channels, machine):
                say(line)
            yield channels
        return
    communicators = load_nccl_log(file)
    for communicator in communicators[:MAX_COMMUNICATORS]:
        nodes = f" on {communicator.nnodes} nodes" if communicator.nnodes else ""
        say(f"communicator {communicator.name}: {counted(communicator.nranks, 'rank')}{nodes}")
        if expected_nodes is not None and communicator.nnodes not in {0, expected_nodes}:
            say(f"  the log has {communicator.nnodes} nodes, and --nodes is {expected_nodes}")
        if communicator.nranks > machine.nranks:
            say(f"  {machine.name} has {machine.nranks} ranks; more nodes with --nodes")
            continue
        for channels in channels_of_log(communicator, machine):
            for line in fit_lines(channels, machine):
                say(line)
            yield channels
        for line in (
            *connection_lines(communicator, machine),
            *(f"  note: {note}" for note in communicator.notes),
        ):
            say(line)
    if len(communicators) > MAX_COMMUNICATORS:
        say(f"and {len(communicators) - MAX_COMMUNICATORS:,} more communicators")
