"""A library's choice for a collective of one size, as a plan that the emulator can play alongside others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from simcoll.binding import bind
from simcoll.core.collective import KINDS
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import Schedule
from simcoll.emulator.engine_choice import DEEPEST_FIFO
from simcoll.errors import ConfigError
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.environment import DEFAULT, Environment
from simcoll.libraries.library import Library, load_library
from simcoll.libraries.prediction import COLLECTIVES, calibrated, chosen
from simcoll.libraries.proved_choice import play
from simcoll.topology import Topology
from simcoll.topology.machine import machine as machine_of
from simcoll.tuning import collective_on, costs, default_protocols, schedule_on

__all__ = ["library_plan", "library_play"]

_PLAIN = {
    "all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring", "broadcast": "chain", "reduce": "chain",
    "all_to_all": "pairwise", "gather": "direct", "scatter": "direct", "send_recv": "direct", "barrier": "dissemination",
}  # fmt: skip
"""The algorithms that run if the library's choice cannot be played."""


def library_play(
    kind: str,
    size_bytes: int,
    topology: Topology,
    *,
    library: str | Library = "nccl",
    environment: Environment = DEFAULT,
    calibration: Calibration | None = None,
    algorithm: str = "",
) -> tuple[Schedule, Protocol]:
    """The schedule and protocol that a library would run on all ranks of a topology.

    If the emulator cannot play the library's choice, it is the next best that it can; if the library has no numbers for the machine, a ring
    or another plain algorithm under the protocol ``ideal``.

    Parameters
    ----------
    calibration
        A calibration from measurements of this machine, without its correction by size, which is of a whole run and not of its messages.
    algorithm
        Run this algorithm instead, with the protocol of the library's choice.

    Raises
    ------
    ConfigError
        For an unknown collective or algorithm.

    Examples
    --------
    >>> from simcoll.topology import load_topology
    >>> schedule, protocol = library_play("all_reduce", 2**30, load_topology("dgx-h100"))
    >>> schedule.name, protocol.name
    ('nvls', 'Simple')
    """
    collective = collective_on(
        kind, topology.nranks, 0 if kind in {"broadcast", "reduce", "gather", "scatter"} else None
    )
    for schedule, protocol in _offers(kind, size_bytes, topology, load_library(library), environment, calibration):
        if algorithm and schedule.name != algorithm:
            return schedule_on(collective, algorithm, topology), protocol
        return schedule, protocol
    names, _ = default_protocols(topology)
    schedule = schedule_on(collective, algorithm or _PLAIN[kind], topology)
    return schedule, costs(names[-1], topology, schedule)


def _offers(
    kind: str,
    size_bytes: int,
    topology: Topology,
    library: Library,
    environment: Environment,
    calibration: Calibration | None,
) -> Iterator[tuple[Schedule, Protocol]]:
    """The ways to run it that the emulator can play, the library's choice first."""
    if kind not in COLLECTIVES:
        return
    machine = machine_of(topology)
    try:
        overlaid = calibrated(library, machine, calibration)
        judged, pick = chosen(machine, kind, np.array([float(max(1, size_bytes))]), overlaid, environment, calibration)
    except ConfigError:  # no numbers for this machine
        return
    times = [float(cost.time_us(np.array([float(max(1, size_bytes))]))[0]) for cost in judged]
    order = sorted(range(len(judged)), key=lambda at: (at != int(pick[0]), times[at]))
    for at in order:
        found = play(judged[at], 0, kind, max(1, size_bytes), topology, machine)
        if not isinstance(found, str):
            depth = min(found.protocol.fifo_depth, DEEPEST_FIFO)  # a FIFO of this depth holds the flow of one latency
            launch_fs = max(0, found.protocol.launch_fs + (calibration.launch_fs if calibration else 0))
            yield found.schedule, replace(found.protocol, fifo_depth=depth, launch_fs=launch_fs)


def library_plan(
    kind: str,
    size_bytes: int,
    topology: Topology,
    *,
    library: str | Library = "nccl",
    environment: Environment = DEFAULT,
    calibration: Calibration | None = None,
    algorithm: str = "",
    imbalance: float = 1.0,
) -> Plan:
    """:func:`library_play`, proved and bound to a size as nccl-tests counts it.

    Parameters
    ----------
    imbalance
        For an all_to_all, the data of the most loaded rank over the mean.

    Raises
    ------
    ConfigError
        As :func:`library_play`.
    """
    schedule, protocol = library_play(
        kind,
        size_bytes,
        topology,
        library=library,
        environment=environment,
        calibration=calibration,
        algorithm=algorithm,
    )
    return bind_size(schedule, protocol, size_bytes, imbalance)


def bind_size(schedule: Schedule, protocol: Protocol, size_bytes: int, imbalance: float = 1.0) -> Plan:
    """A schedule bound to a size, which is rounded down to equal chunks if large.

    Uneven blocks for an imbalance.
    """
    n, kind = schedule.nranks, KINDS[schedule.collective.kind]
    slots = max(kind.input_slots(n), kind.output_slots(n), 1)
    count, chunks = max(1, size_bytes // slots), schedule.layout.chunks
    if count >= 64 * chunks:
        count -= count % chunks
    if imbalance > 1 and schedule.collective.kind == "all_to_all" and n > 1:
        loaded, others = round(count * imbalance), round(count * max(0.0, (n - imbalance) / (n - 1)))
        row = [loaded, *[others] * (n - 1)]
        return bind(schedule, [row] * n, "uint8", protocol=protocol)
    return bind(schedule, count, "uint8", protocol=protocol)
