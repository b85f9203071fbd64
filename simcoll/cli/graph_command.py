"""``simcoll graph``: check NCCL's rings, trees and channels against a machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from simcoll.command_line import WHOLE
from simcoll.errors import ConfigError, nearest
from simcoll.terminal import say

if TYPE_CHECKING:
    from simcoll.planning.tuners.nccl_graphs import NcclChannels
    from simcoll.topology import Topology

__all__ = ["check_graph"]

MAX_COMMUNICATORS = 8


def check_graph(
    file: Path,
    /,
    *,
    topology: Annotated[str, Parameter(name=["--topology", "-t"])],
    nodes: Annotated[int | None, WHOLE] = None,
    json: Path | None = None,
    collective: Annotated[str, Parameter(name=["--collective", "-c"])] = "all_reduce",
    use: str | None = None,
    pieces: Annotated[int, WHOLE] = 1,
) -> None:
    """Read the channels that NCCL chose, check them against a machine's links, and convert them to
    a schedule.

    Parameters
    ----------
    file
        A file from NCCL_GRAPH_DUMP_FILE, or a log with NCCL_DEBUG=INFO.
    topology
        The machine.
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
    from simcoll.formats.schedules.schedule_json import dump_schedule
    from simcoll.planning.tuners.nccl_graphs import channels_schedule
    from simcoll.topology import load_topology

    machine = load_topology(topology, nodes=nodes)
    channels = list(_check_channels(file, machine))
    if json is None:
        return
    graphs = {graph.name: graph for graph in reversed(channels) if graph.orders or graph.parents}
    if use is not None and use not in graphs:
        raise ConfigError(f"the file has no {use!r}; {nearest(use, graphs)}", file=str(file))
    if not graphs:
        raise ConfigError("the file has no ring graph and no trees", file=str(file))
    chosen = graphs[use] if use is not None else graphs.get("ring", next(iter(graphs.values())))
    dump_schedule(channels_schedule(chosen, collective, pieces=pieces), json)
    say(f"wrote {json}: {chosen.name}")


def _check_channels(file: Path, machine: Topology) -> Iterator[NcclChannels]:
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
        say(f"communicator {communicator.name}: {communicator.nranks} ranks{nodes}")
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
