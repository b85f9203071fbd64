"""Ranks in separate processes: the interface of a real backend, and control messages between
processes.

A backend moves two things: small control messages that coordinate the ranks, and the data of plans.
The control protocol is defined in :mod:`simcoll.distributed.linked.linked_world`, once for all
backends.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from simcoll.arrays import Array
from simcoll.core.plan import Plan
from simcoll.errors import ConfigError, nearest

__all__ = [
    "BACKEND_VARIABLE",
    "EMULATOR",
    "HOMES",
    "ControlMessages",
    "Link",
    "connect_processes",
    "place_of",
]

EMULATOR = "emulator"
BACKEND_VARIABLE = "SIMCOLL_BACKEND"
HOMES = {"mpi": "realcoll.mpi_link"}
"""The modules of backends for real processes, imported when a run asks for one by name. Each has a
function ``connect``.
"""


class Link(Protocol):
    """The connection of a process to the others of its job. Rank r is process r."""

    name: str
    rank: int
    world_size: int

    def send_control(self, rank: int, message: bytes) -> None:
        """Start to send a control message. Messages between a pair of ranks arrive in order."""

    def receive_control(self) -> Iterable[tuple[int, bytes]]:
        """Control messages received since the last call, each with its sender."""

    def death_notice(self) -> str:
        """A sentence that names a process that died; empty if none has."""

    def execute(
        self, plan: Plan, rank: int, data: Array, stream: int, poll: Callable[[], None]
    ) -> Array | None:
        """Play one rank's part of a plan, from its input to its output.

        Parameters
        ----------
        plan
            The same on all its ranks; ``plan.ranks`` are processes.
        rank
            Number of this process in the plan.
        data
            Its input.
        stream
            A tag equal on all ranks of the plan, and unique among concurrent plans.
        poll
            Called repeatedly while the plan waits, so that other operations progress. It raises
            when the wait can no longer succeed.
        """

    def give_up(self, reason: str) -> None:
        """Announce that this process cannot continue; its exit ends the job."""


class ControlMessages:
    """Control messages of a process, sorted by run: a process may start several runs, and ranks may
    be in different ones.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._pid = os.getpid()
        self._run = 0
        self._early: list[tuple[int, list[Any]]] = []

    @property
    def link(self) -> Link:
        """The link; a RuntimeError in a process that this one has forked, which must not speak for
        it.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(
                "the link to the other ranks belongs to the process that forked this one"
            )
        return self._link

    def open(self) -> None:
        """Begin the next run."""
        self._run += 1

    def send(self, ranks: Iterable[int], *content: Any) -> None:
        """Send a control message to some ranks."""
        message = msgspec.msgpack.encode([self._run, *content])
        for rank in ranks:
            self.link.send_control(rank, message)

    def receive(self) -> list[tuple[int, list[Any]]]:
        """The control messages that have arrived for this run."""
        arrived = self._early
        arrived += (
            (sender, msgspec.msgpack.decode(message))
            for sender, message in self.link.receive_control()
        )
        self._early = [(sender, content) for sender, content in arrived if content[0] > self._run]
        return [(sender, content[1:]) for sender, content in arrived if content[0] == self._run]


@functools.cache
def _connection(name: str) -> ControlMessages:
    link: Link = importlib.import_module(HOMES[name]).connect()
    return ControlMessages(link)


def connect_processes(name: str, world_size: int | None = None) -> ControlMessages:
    """The connection of this process by a backend, made once; a ConfigError if the number of
    processes differs.
    """
    if name not in HOMES:
        raise ConfigError(
            f"no backend {name!r} runs ranks in processes; {nearest(name, [EMULATOR, *HOMES])}"
        )
    connection = _connection(name)
    size = connection.link.world_size
    if world_size not in (None, size):
        raise ConfigError(
            f"{world_size} ranks were asked for, but backend {name!r} has {size} "
            f"process{'es' if size > 1 else ''}; "
            f"start {world_size}, for example: mpiexec -n {world_size} python program.py"
        )
    return connection


def place_of(backend: str | None) -> str:
    """Where ranks run: the emulator, or a real backend named by the call or ``SIMCOLL_BACKEND``.

    >>> place_of("mpi"), place_of("nccl")
    ('mpi', 'emulator')
    """
    if backend in HOMES or backend == EMULATOR:
        return str(backend)
    chosen = os.environ.get(BACKEND_VARIABLE, EMULATOR)
    if chosen not in (EMULATOR, *HOMES):
        raise ConfigError(f"{BACKEND_VARIABLE}={chosen!r}; {nearest(chosen, [EMULATOR, *HOMES])}")
    return chosen
