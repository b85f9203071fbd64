"""MPI libraries' hierarchical collectives through one leader per node, pipelined by segments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from simcoll.algorithms import schedule
from simcoll.core.plan import Plan
from simcoll.emulator import emulate
from simcoll.emulator.programs import Call, Program
from simcoll.libraries.isolated import bind_size
from simcoll.planning.tuners.mpi_libraries import MpiLibrary, row_for
from simcoll.topology import Topology
from simcoll.tuning import collective_on, costs

__all__ = ["time_through_leaders"]

SEGMENTED = {"inside reduce", "between reduce", "between broadcast", "inside broadcast"}
"""Stages that segments of the vector pass individually."""


def time_through_leaders(
    library: MpiLibrary, stages: Sequence[str], size_bytes: int, topology: Topology, protocol: str
) -> int | None:
    """Time a composition such as ``["inside reduce", "between all_reduce", "inside broadcast"]``,
    rooted at rank 0, in femtoseconds.

    In each round every segment advances by one stage, and a rank waits for all operations that it
    has started. None if nodes have different numbers of ranks, which compositions do not support.
    """
    members = topology.ranks_per_node
    if members is None:
        return None
    nodes = np.argsort(topology.groups["box"], kind="stable").reshape(-1, members)
    plans: dict[tuple[str, int, bool], Plan] = {}
    plan = partial(_plan, plans, library, nodes.shape, topology, protocol)
    segment = library.segment if library.segment and set(stages) <= SEGMENTED else size_bytes
    full_segments, tail_bytes = divmod(size_bytes, max(segment, 1))
    sizes = [segment] * full_segments + [tail_bytes] * (tail_bytes > 0)
    calls: list[Call] = []
    previous: range = range(0)
    for turn in range(len(sizes) + len(stages) - 1):
        begin = len(calls)
        for place, stage in enumerate(stages):
            if 0 <= turn - place < len(sizes):
                within_node = stage.startswith("inside")
                calls.append(
                    Call(
                        plan(stage, sizes[turn - place], turn > 0),
                        nodes if within_node else nodes[None, :, 0],
                        "inside" if within_node else stage,
                        previous,
                    )
                )
        previous = range(begin, len(calls))
    return emulate(Program(topology.nranks, calls), topology, data="none").time_fs


def _plan(
    plans: dict[tuple[str, int, bool], Plan],
    library: MpiLibrary,
    shape: tuple[int, int],
    topology: Topology,
    protocol: str,
    stage: str,
    size_bytes: int,
    overlapped: bool,
) -> Plan:
    """The plan of one stage for a size; ``overlapped``: at once with another stage, for which some
    libraries use other algorithms.
    """
    key = stage, size_bytes, overlapped
    if key not in plans:
        place, kind = stage.split()
        n = shape[place == "inside"]
        collective = library.collectives[kind]
        rows = (
            collective.inside or collective.one_node
            if place == "inside"
            else (overlapped and collective.beside) or collective.apart
        ) or collective.default
        size = (
            size_bytes // shape[0]
            if place == "inside" and kind in {"gather", "scatter"}
            else size_bytes
        )
        name, _, piece = row_for(
            rows, n, size // n if collective.default_counts_blocks else size
        ).partition("/")
        params: dict[str, Any] = {"pieces": -(-size // int(piece))} if piece else {}
        played = schedule(collective_on(kind, n), collective.ours(name) or "tree", **params)
        plans[key] = bind_size(played, costs(protocol, topology, played), size)
    return plans[key]
