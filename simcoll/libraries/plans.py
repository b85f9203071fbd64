"""A library's choice for a collective of one size, as a plan that the emulator can play alongside
others.
"""

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
from simcoll.libraries.prediction import COLLECTIVES, choose
from simcoll.libraries.proved_choice import play
from simcoll.libraries.question import Question, question_on
from simcoll.topology import Topology
from simcoll.tuning import collective_on, costs, default_protocols, schedule_on

__all__ = ["library_plan", "library_play"]

_PLAIN = {
    "all_reduce": "ring",
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "broadcast": "chain",
    "reduce": "chain",
    "all_to_all": "pairwise",
    "gather": "grouped",
    "scatter": "grouped",
    "send_recv": "direct",
    "barrier": "dissemination",
}
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

    If the emulator cannot play the library's choice, it is the next best that it can; if the
    library has no numbers for the machine, a ring or another plain algorithm under the protocol
    ``ideal``.

    Parameters
    ----------
    calibration
        A calibration from measurements of this machine, without its correction by size, which is of
        a whole run and not of its messages.
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
    root = 0 if kind in {"broadcast", "reduce", "gather", "scatter"} else None
    collective = collective_on(kind, topology.nranks, root)
    question = _question(kind, topology, load_library(library), environment, calibration)
    for schedule, protocol in _plays(question, max(1, size_bytes), topology) if question else ():
        if algorithm and schedule.name != algorithm:
            return schedule_on(collective, algorithm, topology), protocol
        return schedule, protocol
    names, _ = default_protocols(topology)
    schedule = schedule_on(collective, algorithm or _PLAIN[kind], topology)
    return schedule, costs(names[-1], topology, schedule)


def _question(
    kind: str,
    topology: Topology,
    library: Library,
    environment: Environment,
    calibration: Calibration | None,
) -> Question | None:
    """What is asked of the library; None if it does not offer the collective or has no numbers for
    the machine.
    """
    if kind not in COLLECTIVES:
        return None
    try:
        return question_on(kind, topology, library, environment, calibration)
    except ConfigError:
        return None


def _plays(
    question: Question, size_bytes: int, topology: Topology
) -> Iterator[tuple[Schedule, Protocol]]:
    """The ways to run it that the emulator can play, the library's choice first; none if the
    library has no numbers for the machine.
    """
    size = np.array([float(size_bytes)])
    try:
        candidates, picks = choose(question, size)
    except ConfigError:
        return
    best = candidates.pop(int(picks[0]))
    launch_offset_fs = question.calibration.launch_fs if question.calibration else 0
    for cost in (best, *sorted(candidates, key=lambda cost: float(cost.time_us(size)[0]))):
        playable = play(cost, question.collective, size_bytes, topology, question.machine)
        if not isinstance(playable, str):
            protocol = playable.protocol
            # A FIFO of this depth holds the flow of one latency.
            depth = min(protocol.fifo_depth, DEEPEST_FIFO)
            launch_fs = max(0, protocol.launch_fs + launch_offset_fs)
            yield playable.schedule, replace(protocol, fifo_depth=depth, launch_fs=launch_fs)


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


def bind_size(
    schedule: Schedule, protocol: Protocol, size_bytes: int, imbalance: float = 1.0
) -> Plan:
    """A schedule bound to a size, which is rounded down to equal chunks if large.

    Uneven blocks for an imbalance.
    """
    n, kind = schedule.nranks, KINDS[schedule.collective.kind]
    slots = max(kind.input_slots(n), kind.output_slots(n), 1)
    count, chunks = max(1, size_bytes // slots), schedule.layout.chunks
    if count >= 64 * chunks:
        count -= count % chunks
    if imbalance > 1 and schedule.collective.kind == "all_to_all" and n > 1:
        loaded, unloaded = (
            round(count * imbalance),
            round(count * max(0.0, (n - imbalance) / (n - 1))),
        )
        row = [loaded, *[unloaded] * (n - 1)]
        return bind(schedule, [row] * n, "uint8", protocol=protocol)
    return bind(schedule, count, "uint8", protocol=protocol)
