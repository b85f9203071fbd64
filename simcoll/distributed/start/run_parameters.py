"""The parameters of a run of rank programs, as calls of Python and command lines share them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from simcoll.core.protocol import Protocol
from simcoll.distributed.runtime.turn_order import TurnOrder
from simcoll.emulator.events import Event, Policy
from simcoll.libraries.choices import Choice
from simcoll.topology import Topology

__all__ = ["POLICY", "PROTOCOL", "RunParameters", "SpawnParameters"]

PROTOCOL, POLICY = "ideal", "stall"
"""Costs of messages, and treatment of bytes at a dead link, where none are chosen."""


@dataclass(frozen=True)
class RunParameters:
    """A program that every rank runs, and how it runs.

    Attributes
    ----------
    program
        An ordinary blocking function. All ranks run in this process, one at a time, in an order
        that depends only on the program.
    nprocs
        World size.
    args, kwargs
        Further arguments of the program.
    topology
        Name, file or Topology with at least ``nprocs`` ranks; nodes are added as needed. None: a
        crossbar with 50 GB/s per rank and 1 us.
    protocol
        Costs of a message: ``ideal``, ``LL``, ``LL128``, ``Simple``, or a
        :class:`simcoll.types.Protocol`.
    algorithm
        Algorithm of the collectives: a name (used where it applies), a schedule, a mapping from
        collective to one of these, or a function of (collective, ranks, bytes). None:
        latency-optimal for small sizes, bandwidth-optimal for large ones.
    library
        Without an algorithm: emulate the choices and the speed of a communication library, such as
        ``"nccl"``.
    debug
        Guard the buffers of asynchronous operations, and refuse receives that are too long.
    alike
        Classes of symmetric ranks, as lists of ranks, or ``"all"``: only the program of the lowest
        rank of each class runs, and the others make its calls at the same time. A call completes
        when it has completed on the whole class; ``RunResult.skew_fs`` is the largest spread.
    trace
        Keep a timeline of the run, ``RunResult.timeline``; with a path, write it there: a file for
        Perfetto (``t.json`` or ``t.json.gz``), or a folder with a file per rank, as PyTorch's
        profiler writes them.
    record
        Record the run as a workload, ``RunResult.workload``, for other topologies; with a path,
        write it there: ``w.json``, Chakra traces ``w.et``, or a folder with both.
    events, policy
        Faults and traffic during the run, and the treatment of bytes at a dead link, as for
        :func:`simcoll.emulate`. A rank that stops ends where it is, and returns None. Under backend
        nccl the others get a DistBackendError after their group's timeout, under other backends a
        RuntimeError at once.
    interleavings
        Play the program in as many orders of turns, in which ranks overtake each other and messages
        come late or early, and raise a :class:`simcoll.errors.RaceError` where one fails, or a rank
        returns something else than in the usual order. A number: random orders.
        ``"exhaustive 200"``: the orders that are nearest to the usual one. ``"seed 17"``,
        ``"turns 4:1"``: only this one, as an error names it. The program starts anew for each, so
        what it shares with its caller must not change.
    """

    program: Callable[..., Any]
    nprocs: int
    args: Sequence[Any] = ()
    _: KW_ONLY
    topology: str | Path | Topology | None = None
    protocol: str | Protocol = PROTOCOL
    algorithm: Choice = None
    library: str | None = None
    debug: bool = True
    alike: str | Sequence[Sequence[int]] | None = None
    trace: str | Path | bool = False
    record: str | Path | bool = False
    events: Sequence[Event | str] = ()
    policy: Policy | str = POLICY
    kwargs: Mapping[str, Any] | None = None
    interleavings: int | str | TurnOrder | None = None


@dataclass(frozen=True)
class SpawnParameters(RunParameters):
    """Parameters of :func:`simcoll.distributed.spawn`.

    Attributes
    ----------
    backend
        ``"mpi"``: ranks are the processes that ``mpiexec`` started; this process runs one of them,
        every process of the job calls spawn, the topology only guides the algorithms, and there is
        no trace and no record. None: the environment variable ``SIMCOLL_BACKEND``, else the
        emulator. Other names run on the emulator, and get_backend returns them; a registered
        backend plays the collectives of every rank.
    init
        Give every rank a default group. A program that calls init_process_group itself replaces it.
    data
        ``"none"``: collectives and messages only take time, and leave tensors as they are, which
        may then be :func:`fake_array`; object collectives work as always.
    """

    _: KW_ONLY
    backend: str | None = None
    init: bool = True
    data: str = "exact"
