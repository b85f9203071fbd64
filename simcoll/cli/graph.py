"""``simcoll graph``: whether what NCCL chose fits a machine."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import Annotated

from cyclopts import Parameter

__all__ = ["check_graph"]


def check_graph(
    file: Path,
    /,
    *,
    topology: Annotated[str, Parameter(name=["--topology", "-t"])],
    json: Path | None = None,
    collective: Annotated[str, Parameter(name=["--collective", "-c"])] = "all_reduce",
) -> None:
    """Read the graphs that NCCL's search found, and say what they ask of the links of a machine.

    Parameters
    ----------
    file
        What NCCL wrote to NCCL_GRAPH_DUMP_FILE.
    topology
        The node.
    json
        Write NCCL's rings as a schedule file.
    collective
        Of that schedule: all_reduce, all_gather or reduce_scatter.
    """
    from simcoll.errors import ConfigError
    from simcoll.formats.nccl_graph import MAX_BYTES, parse_nccl_graphs
    from simcoll.formats.schedule_json import dump_schedule
    from simcoll.formats.strict import read_file
    from simcoll.planning.nccl_graphs import fit_lines, graph_schedule
    from simcoll.topology import load_topology
    from simcoll.units import printable

    graphs = parse_nccl_graphs(read_file(file, MAX_BYTES), str(file))
    machine = load_topology(topology)
    for graph in graphs:
        for line in fit_lines(graph, machine):
            print(printable(line))
    if json is not None:
        rings = [graph for graph in graphs if graph.name == "ring"]
        if not rings:
            raise ConfigError("the file has no ring graph", file=str(file))
        dump_schedule(graph_schedule(rings[0], collective), json)
        print(f"wrote {json}")
