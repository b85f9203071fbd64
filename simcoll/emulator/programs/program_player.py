"""The reference engine for programs: a player for every group of every collective, under one SimPy
clock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import simpy

from simcoll.arrays import Ints
from simcoll.core.schedule import OP_NAMES
from simcoll.emulator.data.dataplane import Storage
from simcoll.emulator.digest import TraceHash
from simcoll.emulator.events.cut import Cut
from simcoll.emulator.events.timeline import Timeline
from simcoll.emulator.programs.operations import Call, Compute, rank_array
from simcoll.emulator.programs.program import Program
from simcoll.emulator.programs.program_events import ProgramEvents
from simcoll.emulator.programs.resources import Resources, call_of
from simcoll.emulator.reference.fabric import Calendar, Fabric
from simcoll.emulator.reference.messages import Message
from simcoll.emulator.reference.player import Player, Surroundings
from simcoll.emulator.reference.player_cut import until_end
from simcoll.emulator.steps.step_columns import summary
from simcoll.emulator.traces.trace_marks import TraceRow
from simcoll.errors import InternalError
from simcoll.topology import Topology

__all__ = ["HashedRow", "ProgramPlayer"]

HASH_BATCH = 4096


class HashedRow(NamedTuple):
    """A completed transfer or computation as the trace hash takes it; a computation has equal ranks
    and no bytes.
    """

    message: int
    src: int
    dst: int
    size_bytes: int
    start_fs: int
    end_fs: int
    done_fs: int


class ProgramPlayer:
    """Plays a program, operation by operation and rank by rank.

    Parameters
    ----------
    program, topology
        The program, and the machine that runs it.
    storages
        Buffers of every group of every collective, by operation and group number; a missing group
        moves no data.
    watch
        Called for every completed transfer and computation: operation, group, time of readiness,
        and the hashed row.
    timeline
        Events during the run; ``None`` if there are none.

    Attributes
    ----------
    begin_fs, end_fs
        Times by operation, then by rank.
    cut
        Where events ended the run early, if they did.
    """

    def __init__(
        self,
        program: Program,
        topology: Topology,
        storages: dict[tuple[int, int], Storage] | None = None,
        watch: Callable[[int, int, int, HashedRow], None] | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.program, self.topology = program, topology
        self.resources = resources = Resources(program, topology)
        self.events = None if timeline is None else ProgramEvents(resources, timeline)
        patience = None if timeline is None else timeline.policy.limit_fs
        self.fabric = Fabric(
            Calendar(simpy.Environment()),
            resources.capacity.tolist(),
            resources.link_name,
            patience_fs=patience,
        )
        self.cut: Cut | None = None
        self.calendar = self.fabric.calendar
        self.storages, self.watch = storages or {}, watch
        self.hash = TraceHash()
        self.rows: list[HashedRow] = []
        self.time_fs = self.messages = 0
        self.bytes_by_op = [0] * len(OP_NAMES)
        self.begin_fs: list[dict[int, int]] = [{} for _ in program.operations]
        self.end_fs: list[dict[int, int]] = [{} for _ in program.operations]
        self.recent: dict[tuple[str, object], dict[tuple[int, int, int], list[Message]]] = {}
        self.players: list[Player] = []
        self.names: dict[
            int, Callable[[int], int]
        ] = {}  # numbering of messages, by the lanes of their senders
        self.needs: list[dict[int, int]] = []
        self.followers: dict[tuple[int, int], list[int]] = {}
        self._order()
        self.first = self._numbers()
        self.enter = [self._make(number) for number in range(len(program.operations))]

    def _order(self) -> None:
        """Record the operations that every operation of every rank waits for."""
        latest: dict[tuple[str, int], int] = {}
        for number, operation in enumerate(self.program.operations):
            ranks = rank_array(operation).reshape(-1).tolist()
            self.needs.append({})
            for rank in ranks:
                earlier = {
                    predecessor
                    for predecessor in self.program.before[number]
                    if rank in self.needs[predecessor]
                }
                earlier |= (
                    {latest[operation.stream, rank]}
                    if (operation.stream, rank) in latest
                    else set()
                )
                self.needs[number][rank] = len(earlier)
                for predecessor in sorted(earlier):
                    self.followers.setdefault((predecessor, rank), []).append(number)
                latest[operation.stream, rank] = number

    def _numbers(self) -> list[int]:
        """Number of the first transfer or computation of every operation."""
        starts, sizes = [0], {0: 0}
        for operation in self.program.operations:
            call = call_of(operation)
            if call is None:
                starts.append(starts[-1] + len(operation.ranks))
                continue
            if id(call.plan) not in sizes:
                sizes[id(call.plan)] = summary(call.plan).messages
            starts.append(starts[-1] + sizes[id(call.plan)] * len(call.groups))
        return starts

    def _make(self, number: int) -> Callable[[int], None]:
        """The function with which a rank begins an operation."""
        operation = self.program.operations[number]
        call = call_of(operation)
        if call is not None:
            return self._call(number, call)
        if not isinstance(operation, Compute):
            raise InternalError(f"{operation!r} is no operation")
        ranks, base = operation.ranks.tolist(), self.first[number]
        times = np.broadcast_to(operation.duration_fs, (len(ranks),)).tolist()
        place = {rank: position for position, rank in enumerate(ranks)}

        def work(rank: int) -> None:
            begin = self.calendar.now
            end = (
                begin + times[place[rank]]
                if self.events is None
                else self.events.end_fs(rank, begin, times[place[rank]])
            )
            if end is None:
                return
            self.calendar.at(end, finish, (rank, begin, end))

        def finish(when: tuple[int, int, int]) -> None:
            rank, begin, end = when
            self._count(
                number, 0, begin, HashedRow(base + place[rank], rank, rank, 0, begin, begin, end)
            )
            self._over(number, rank)

        return work

    def _call(self, number: int, call: Call) -> Callable[[int], None]:
        """Create the players of a collective, one for each group."""
        plan, count = call.plan, len(call.groups)
        protocol = plan.protocol
        recent = self.recent.setdefault((call.stream, protocol), {})
        sizes = [len(step) for step in plan.steps()]
        starts = np.cumsum([0, *sizes])
        enter: dict[int, Callable[[int], None]] = {}
        pace = None if self.events is None else self.events.timeline.pace
        for group_number, group in enumerate(call.groups):
            ranks = group.tolist()
            name = partial(self._name, number, group_number, starts, count)
            player = Player(
                plan,
                self.topology,
                self.fabric,
                self.storages.get((number, group_number)),
                self._observer(number, group_number, ranks, starts, count),
                surroundings=Surroundings(
                    self.resources.placement(call.stream, group, protocol, plan.nchannels),
                    recent,
                    on_leave=partial(self._leave, number, ranks),
                    pace=None if pace is None else pace.of(ranks),
                    detours=None if self.events is None else self.events.detours,
                    number=name,
                ),
            )
            self.players.append(player)
            if self.events is not None:
                self.names.update({id(lane): name for lane in player.lanes})
            for local, rank in enumerate(ranks):
                enter[rank] = partial(_enter, player, local)
        return lambda rank: enter[rank](rank)

    def _leave(self, number: int, ranks: list[int], local: int) -> None:
        """Note that a rank of a group has done its part."""
        self._over(number, ranks[local])

    def _observer(
        self, number: int, group: int, ranks: list[int], starts: Ints, count: int
    ) -> Callable[..., None]:
        """An observer of the transfers of one group."""

        def report(*columns: int) -> None:
            row = TraceRow(*columns)
            name = self._name(number, group, starts, count, row.message)
            self.bytes_by_op[row.op] += row.size_bytes
            ends = ranks[row.src], ranks[row.dst]
            hashed = HashedRow(name, *ends, row.size_bytes, row.start_fs, row.end_fs, row.done_fs)
            self._count(number, group, row.ready_fs, hashed)

        return report

    def _name(self, number: int, group: int, starts: Ints, count: int, message: int) -> int:
        """The program's number of a message of one group: the groups of an operation are
        interleaved step by step.
        """
        step = int(np.searchsorted(starts, message, "right")) - 1
        rows_before, rows = int(starts[step]), int(starts[step + 1] - starts[step])
        return self.first[number] + rows_before * count + group * rows + message - rows_before

    def _count(self, number: int, group: int, ready: int, row: HashedRow) -> None:
        """Account for a completed transfer or computation."""
        self.messages += 1
        self.time_fs = max(self.time_fs, row.done_fs)
        self.rows.append(row)
        if len(self.rows) >= HASH_BATCH:
            self._hash()
        if self.watch is not None:
            self.watch(number, group, ready, row)

    def _hash(self) -> None:
        if self.rows:
            self.hash.add(list(np.array(self.rows, np.int64).T))
            self.rows.clear()

    def _begin(self, entry: tuple[int, int]) -> None:
        number, rank = entry
        if self._at_rest(rank):
            return
        self.begin_fs[number][rank] = self.calendar.now
        self.enter[number](rank)

    def _over(self, number: int, rank: int) -> None:
        """Note that an operation has finished on a rank."""
        if self._at_rest(rank):
            return
        self.end_fs[number][rank] = self.calendar.now
        for later in self.followers.get((number, rank), ()):
            self.needs[later][rank] -= 1
            if not self.needs[later][rank]:
                self.calendar.at(self.calendar.now, self._begin, (later, rank))

    def play(self) -> None:
        """Run to the end.

        Raises
        ------
        InternalError
            When something is left over, or the bytes moved are not those of the plans.
        """
        starts = np.broadcast_to(self.program.starts_fs, (self.program.nranks,)).tolist()
        for number, needs in enumerate(self.needs):
            for rank, count in needs.items():
                if not count:
                    self.calendar.at(starts[rank], self._begin, (number, rank))
        if self.events is not None:
            self.events.begin(self.fabric, lambda: not self._open_operations())
        late = until_end(self.fabric)
        missing = self._open_operations()
        if missing and self.events is not None:
            for player in self.players:
                player.end_early()  # accounts for the completed messages
        self._hash()
        self.time_fs = max([self.time_fs, *(player.ledger.time_fs for player in self.players)])
        if missing and self.events is not None:
            waiting = {
                rank
                for number in missing
                for rank in self.needs[number]
                if rank not in self.end_fs[number]
            }
            payload = (
                sum(self.bytes_by_op),
                sum(player.ledger.dropped_bytes for player in self.players),
            )
            self.cut = self.events.early_end(
                self.fabric, late, self.time_fs, self._number, sorted(waiting), payload
            )
            self.time_fs = self.cut.time_fs
            return
        for player in self.players:
            player.check()
        if missing or self.messages != self.first[-1]:
            raise InternalError(
                f"operations {missing[:8]} are not over; {self.messages} of {self.first[-1]} "
                "messages are"
            )

    def _open_operations(self) -> list[int]:
        """Operations that have not finished on all of their ranks."""
        return [
            number
            for number, needs in enumerate(self.needs)
            if len(self.end_fs[number]) != len(needs)
        ]

    def _at_rest(self, rank: int) -> bool:
        return self.events is not None and self.events.at_rest(rank, self.calendar.now)

    def _number(self, message: Message) -> int:
        return self.names[id(message.sender)](message.id)


def _enter(player: Player, local: int, _rank: int) -> None:
    player.enter(local)
