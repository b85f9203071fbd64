"""A library's choice for a collective of one size, as a plan that the emulator can play alongside
others.

Alone, the plan takes the time that :func:`~simcoll.libraries.prediction.predict` gives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from simcoll.arrays import Ints
from simcoll.binding import bind
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.environment import DEFAULT, Environment
from simcoll.libraries.isolated import alone_fs, bind_size, scale_protocol, settle
from simcoll.libraries.library import Library, library_for
from simcoll.libraries.prediction import COLLECTIVES, ROOTED, choose, predict
from simcoll.libraries.prediction_cache import key_of, recall, remember, topology_digest
from simcoll.libraries.proved_choice import LibraryPlay, play
from simcoll.libraries.question import Question, question_on
from simcoll.topology import Topology
from simcoll.topology.sub_tori import closed_dims
from simcoll.tuning import collective_on, costs, default_protocols, schedule_on

__all__ = ["LibraryCall", "library_call", "library_plan", "library_play"]

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
_ON_TORI = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""Collectives that run along all axes of a torus at once, in both directions, as XLA runs them."""
_FORM = {"time_fs": int, "launch_fs": int, "share": str}


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A collective of one size as a library runs it: schedule and protocol.

    Attributes
    ----------
    schedule, protocol
        What is played.
    topology
        The machine.
    size_bytes
        The size as nccl-tests counts it.
    slight_bytes
        As of :func:`~simcoll.libraries.isolated.bind_size`.
    """

    schedule: Schedule
    protocol: Protocol
    topology: Topology
    size_bytes: int
    slight_bytes: float = 0.0

    def plan(self, imbalance: float = 1.0) -> Plan:
        """The plan in bytes, as nccl-tests would run it."""
        return bind_size(
            self.schedule, self.protocol, self.size_bytes, imbalance, self.slight_bytes
        )

    def bind(
        self, schedule: Schedule, count: Any, dtype: Any, op: str, ranks: Ints | None = None
    ) -> Plan:
        """The plan of a program's own call, of the same size, with this call's time alone.

        Chunks of few elements are uneven or empty, and so quicker than the library's, which pads
        them. ``schedule`` is this call's, possibly of another root or other pairs; calls with
        uneven blocks keep the time of their bytes.
        """
        plan = bind(schedule, count, dtype, op, ranks=ranks, protocol=self.protocol)
        even = not isinstance(plan.sizes, int) or plan.sizes % schedule.layout.chunks == 0
        if even or schedule.collective != self.schedule.collective:
            return plan
        in_place = replace(plan, ranks=np.arange(plan.nranks))
        settled = settle(in_place, self.topology, alone_fs(self.plan(), self.topology))
        return replace(plan, protocol=settled.protocol)


def library_call(
    kind: str,
    size_bytes: int,
    topology: Topology,
    *,
    library: str | Path | Library | None = None,
    environment: Environment = DEFAULT,
    calibration: Calibration | None = None,
    algorithm: str = "",
) -> LibraryCall:
    """The call of a library on all ranks of a topology; parameters as :func:`library_play`."""
    root = 0 if kind in ROOTED else None
    collective = collective_on(kind, topology.nranks, root)
    size_bytes = max(1, size_bytes)
    model = library_for(library, topology)
    question = _question(kind, topology, model, environment, calibration)
    played = _first_playable(question, size_bytes, topology) if question else None
    if question is None or played is None:
        names, _ = default_protocols(topology)
        schedule = schedule_on(collective, algorithm or _plain(kind, topology), topology)
        return LibraryCall(schedule, costs(names[-1], topology, schedule), topology, size_bytes)
    choice, stands_in = played
    call = LibraryCall(choice.schedule, choice.protocol, topology, size_bytes, choice.slight_bytes)
    if algorithm and choice.schedule.name != algorithm:
        return replace(call, schedule=schedule_on(collective, algorithm, topology))
    if not stands_in and calibration is None and not environment.adds_launch:
        return call  # what was predicted is this plan
    prediction = predict(
        kind,
        size_bytes,
        topology,
        library=model,
        environment=environment,
        calibration=calibration,
    )
    return replace(call, protocol=_protocol_of_time(call, prediction.time_fs))


def _protocol_of_time(call: LibraryCall, time_fs: int) -> Protocol:
    """The protocol with which a call takes a time alone; recalled from disk, because large plans
    take seconds to play.
    """
    plan = call.plan()
    original = plan.protocol
    kind = call.schedule.collective.kind  # calls made of sends have schedules of one title
    request = (kind, call.schedule.title, call.size_bytes, original, time_fs)
    key = key_of("settled", topology_digest(call.topology), *request)
    fields_on_disk = recall(key, _FORM)
    if fields_on_disk is not None:
        fraction = Fraction(str(fields_on_disk["share"]))
        launch_fs = int(str(fields_on_disk["launch_fs"]))
        return replace(scale_protocol(original, fraction), launch_fs=launch_fs)
    protocol = settle(plan, call.topology, time_fs).protocol
    share = str(protocol.wire_factor / original.wire_factor)
    remember(key, {"time_fs": time_fs, "launch_fs": protocol.launch_fs, "share": share})
    return protocol


def library_play(
    kind: str,
    size_bytes: int,
    topology: Topology,
    *,
    library: str | Path | Library | None = None,
    environment: Environment = DEFAULT,
    calibration: Calibration | None = None,
    algorithm: str = "",
) -> tuple[Schedule, Protocol]:
    """The schedule and protocol that a library would run on all ranks of a topology.

    If the emulator cannot play the library's choice, the next best that it can stands in for it,
    with a protocol that gives it the predicted time; if the library has no numbers for the
    machine, a ring or another plain algorithm under the protocol ``ideal``.

    Parameters
    ----------
    library
        As for :func:`~simcoll.libraries.prediction.predict`.
    calibration
        A calibration from measurements of this machine.
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
    call = library_call(
        kind,
        size_bytes,
        topology,
        library=library,
        environment=environment,
        calibration=calibration,
        algorithm=algorithm,
    )
    return call.schedule, call.protocol


def _plain(kind: str, topology: Topology) -> str:
    """The algorithm that runs where no library has a choice."""
    return "torus" if kind in _ON_TORI and closed_dims(topology) else _PLAIN[kind]


def _question(
    kind: str,
    topology: Topology,
    library: Library,
    environment: Environment,
    calibration: Calibration | None,
) -> Question | None:
    """What is asked of the library; None if it does not offer the collective, has no numbers for
    the machine, or has one rank, which moves nothing.
    """
    if kind not in COLLECTIVES or topology.nranks < 2:
        return None
    try:
        return question_on(kind, topology, library, environment, calibration)
    except ConfigError:
        return None


def _first_playable(
    question: Question, size_bytes: int, topology: Topology
) -> tuple[LibraryPlay, bool] | None:
    """The first way to run it that the emulator can play, the library's choice first, and whether
    it stands in for what cannot be played; None if the library has no numbers for the machine.
    """
    size = np.array([float(size_bytes)])
    try:
        candidates, picks = choose(question, size)
    except ConfigError:
        return None
    best = candidates.pop(int(picks[0]))
    for cost in (best, *sorted(candidates, key=lambda cost: float(cost.time_us(size)[0]))):
        playable = play(cost, question.collective, size_bytes, topology, question.machine)
        if not isinstance(playable, str):
            stands_in = cost is not best or playable.topology is not None or question.is_diverted
            return playable, stands_in
    collective = collective_on(
        question.collective, topology.nranks, 0 if question.collective in ROOTED else None
    )
    schedule = schedule_on(collective, _plain(question.collective, topology), topology)
    names, _ = default_protocols(topology)
    return LibraryPlay(schedule, costs(names[-1], topology, schedule)), True


def library_plan(
    kind: str,
    size_bytes: int,
    topology: Topology,
    *,
    library: str | Path | Library | None = None,
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
    return library_call(
        kind,
        size_bytes,
        topology,
        library=library,
        environment=environment,
        calibration=calibration,
        algorithm=algorithm,
    ).plan(imbalance)
