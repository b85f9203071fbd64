"""Plans in flight on the emulator: staging buffers, and ranks that enter and leave individually."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Protocol

import numpy as np

from simcoll.arrays import Array, Ints
from simcoll.arrays import Links as IndexLinks
from simcoll.core.plan import INPUT, OUTPUT, Plan
from simcoll.core.reduction import Reduction
from simcoll.distributed.runtime.history import History
from simcoll.distributed.runtime.rehearsals import Rehearsals, hash_at
from simcoll.distributed.runtime.takes import Event, Links, Take, Takes, take_of
from simcoll.emulator.data.budget import check_exact, exact_bytes
from simcoll.emulator.data.dataplane import Storage
from simcoll.emulator.data.stepwise import BufferPool
from simcoll.emulator.events.outage_routes import Detours
from simcoll.emulator.events.pace import Pace
from simcoll.emulator.model import shared_capacities
from simcoll.emulator.reference.fabric import Calendar, Fabric
from simcoll.emulator.reference.messages import PreparedStep, prepared_steps
from simcoll.emulator.reference.player import Player, Surroundings, add_caps
from simcoll.emulator.steps.plan_placement import Placement
from simcoll.emulator.steps.step_columns import PlanSummary, summary
from simcoll.errors import InternalError
from simcoll.topology import Topology

__all__ = ["Emulator", "Ended", "Playing", "RunningTake", "is_small", "note_take"]

KEPT_TRANSFERS = 1 << 16
KEPT_BYTES = 1 << 24


def is_small(plan: Plan) -> bool:
    """Whether a plan's messages are prepared once for all its runs."""
    few = plan.proof is not None and plan.proof.transfers <= KEPT_TRANSFERS
    return few and not plan.protocol.jitter_fs


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """A plan that ended without being played, for an equal one was: when it began, and its ranks'
    entries and departures.
    """

    plan: Plan
    begin_fs: int
    log: list[Event]


@dataclass(frozen=True, slots=True)
class RunningTake:
    """A take of ranks that entered together, followed as a whole until ``now_fs``."""

    take: Take
    begin_fs: int
    now_fs: int

    def state(self) -> tuple[list[Event], int]:
        """The log so far, and the number of ranks that have left."""
        after_fs = self.now_fs - self.begin_fs
        log = [event for event in self.take.log if not event[2] or event[0] < after_fs]
        return log, len(log) - self.take.plan.nranks


class InRound(Protocol):
    """Calls that are handled together (:mod:`simcoll.distributed.runtime.rounds`)."""

    @property
    def is_open(self) -> bool:
        """Whether calls are still to come."""

    def break_up(self) -> None:
        """Make them those of an operation."""


@dataclass(slots=True, eq=False)
class Emulator:
    """The emulator of a run: its links and staging buffers.

    Attributes
    ----------
    stages
        Free buffers by the identity of their plan and whether they are fake.
    kept_bytes
        Total size of the free buffers.
    unsettled
        Operations to fail as soon as no more calls can come.
    pace, detours
        Slowed or stopped ranks, and routes around dead links; ``None`` without such events.
    steady
        Whether links and ranks never change, so that recorded takes can be replayed.
    playing, following
        Plans in flight: the number being simulated, and those replaying a take. At most one of the
        two is non-empty.
    drawn
        Messages with jitter so far, which numbers the next draw.
    open_uBps
        Capacity of every link that the run leaves to data.
    rehearsals
        Takes of large plans whose ranks enter and go on together.
    shares
        Links that stand for the smaller shares of protocols, by the capacities that they leave.
    rounds
        Calls that are handled together, in the order of their beginnings.
    """

    topology: Topology
    calendar: Calendar
    fabric: Fabric
    history: History
    open_uBps: Ints
    stages: dict[tuple[int, bool], list[PlanStage]] = field(default_factory=dict)
    kept_bytes: int = 0
    unsettled: dict[Callable[[], None], None] = field(default_factory=dict)
    pace: Pace | None = None
    detours: Detours | None = None
    steady: bool = True
    takes: Takes = field(default_factory=Takes)
    links: Links = field(default_factory=Links)
    playing: int = 0
    drawn: int = 0
    following: dict[Playing, None] = field(default_factory=dict)
    shares: dict[bytes, IndexLinks] = field(default_factory=dict)
    rounds: dict[InRound, None] = field(default_factory=dict)
    rehearsals: Rehearsals = field(init=False)

    def __post_init__(self) -> None:
        """Begin without rehearsals."""
        self.rehearsals = Rehearsals(self.topology, self.open_uBps)

    def place(self, plan: Plan) -> Placement:
        """The placement of a plan, with links that cap its rates and that stand for the share of a
        link that its protocol uses, if that is less than the run's.
        """
        placement = add_caps(plan, self.fabric)
        share_uBps = shared_capacities(self.topology, plan.protocol)
        lower = np.flatnonzero(share_uBps < self.open_uBps)
        if not len(lower):
            return placement
        key = share_uBps.tobytes()
        if key not in self.shares:
            names = [self.topology.link_name(link) for link in lower.tolist()]
            base = self.fabric.add_links(
                share_uBps[lower].tolist(), lambda place: f"{names[place]} ({plan.protocol.name})"
            )
            self.shares[key] = np.full(self.topology.nlinks, -1, np.int32)
            self.shares[key][lower] = np.arange(base, base + len(lower))
        return replace(placement, shares=self.shares[key])

    def stage(self, plan: Plan, *, fake: bool) -> PlanStage:
        """Buffers for a plan, reused from an earlier run where possible."""
        waiting = self.stages.get((id(plan), fake))
        if not waiting:
            return PlanStage(self, plan, fake=fake)
        stage = waiting.pop()
        self.kept_bytes -= stage.size_bytes
        return stage

    def give_back(self, stage: PlanStage) -> None:
        """Keep buffers for reuse, unless they are large."""
        stored_bytes = self.kept_bytes + stage.size_bytes
        reusable = stage.prepared is not None or stage.placement is not None
        if reusable and stage.size_bytes <= KEPT_BYTES and stored_bytes <= 16 * KEPT_BYTES:
            self.kept_bytes = stored_bytes
            self.stages.setdefault((id(stage.plan), stage.pool is None), []).append(stage)

    def break_up(self, *, in_flight: bool = False) -> None:
        """Let calls that are handled together be operations: those that wait for further ones, or
        also those in flight.
        """
        for calls in list(self.rounds):
            if in_flight or calls.is_open:
                calls.break_up()

    def catch_up(self, joining: Sequence[Playing] = (), ended: Sequence[Ended] = ()) -> None:
        """Switch all plans that replay takes to simulation, after simulating the elapsed part.

        ``joining`` are plans that other plans have stood for until now, and ``ended`` those which
        shared links with them before. They share none with the plans that are simulated already.
        """
        late, self.following = [*self.following, *joining], {}
        if not late:
            return
        entries = [entry for playing in late for entry in playing.stop_following()]
        for plan in ended:
            player = self.player(self.stage(plan.plan, fake=True), None)
            entries += entries_of(plan.log, plan.begin_fs, player)
        entries.sort(key=lambda entry: entry[0])
        begin_fs = min([playing.begin_fs for playing in late] + [plan.begin_fs for plan in ended])
        with self.fabric.between_settlements():
            self.calendar.again(begin_fs, entries)
        for playing in late:
            playing.caught_up()

    def player(self, stage: PlanStage, on_leave: Callable[[int], None] | None) -> Player:
        """A player of a plan on the links of the run."""
        first_message = self.drawn
        player = Player(
            stage.plan,
            self.topology,
            self.fabric,
            stage.storage,
            plan_summary=stage.summary,
            prepared=stage.prepared,
            surroundings=Surroundings(
                placement=stage.placement,
                on_leave=on_leave,
                pace=None if self.pace is None else self.pace.of(stage.plan.ranks.tolist()),
                detours=self.detours,
                number=lambda message: first_message + message,
            ),
        )
        if stage.plan.protocol.jitter_fs:
            self.drawn += player.messages
        return player


def entries_of(
    log: Iterable[Event], begin_fs: int, player: Player
) -> list[tuple[int, Callable[[int], None], int]]:
    """The timed actions that let ranks enter a player as in a log."""
    return [
        (begin_fs + after_fs, player.enter, rank) for after_fs, rank, leaves in log if not leaves
    ]


class PlanStage:
    """Staging buffers of a plan, separate from the caller's; each rank's input is copied in on
    arrival.

    ``inputs`` and ``outputs`` hold a flat array per rank; ``None`` where there is none, and
    everywhere if they are fake. ``links`` are the topology links that the plan uses. ``prepared``
    can be reused by every run of the plan; otherwise only ``placement`` can. Prepared steps are
    part of the buffers, not of the memory of runs (:mod:`simcoll.emulator.folding.remembered`):
    they point to these arrays, and to links of this fabric.
    """

    __slots__ = (
        "inputs",
        "links",
        "outputs",
        "placement",
        "plan",
        "pool",
        "prepared",
        "size_bytes",
        "storage",
        "summary",
    )

    def __init__(self, emulator: Emulator, plan: Plan, *, fake: bool) -> None:
        self.plan = plan
        self.inputs: list[Array | None] = [None] * plan.nranks
        self.outputs: list[Array | None] = [None] * plan.nranks
        self.pool: BufferPool | None = None
        self.storage: Storage | None = None
        self.size_bytes = 0
        if not fake:
            input_bytes = plan.dtype.itemsize * sum(plan.visible_elements()[:, INPUT].tolist())
            check_exact(input_bytes + exact_bytes(plan, inputs_exist=True))
            self.pool = BufferPool(plan)
            self.storage = Storage.around(plan, self.pool.buffers)
            self.inputs = [view if view.size else None for view in self.pool.visible(INPUT)]
            has = plan.collective.has_output(np.arange(plan.nranks)).tolist()
            self.outputs = [
                view if has_output else None
                for view, has_output in zip(self.pool.visible(OUTPUT), has, strict=True)
            ]
            self.size_bytes = int(plan.buffer_elements().sum()) * plan.dtype.itemsize
        self.summary: PlanSummary = replace(summary(plan), groups=None)
        self.placement: Placement | None = None
        self.prepared: tuple[PreparedStep, ...] | None = None
        placement = emulator.place(plan)
        if is_small(plan):
            self.prepared = tuple(prepared_steps(plan, emulator.topology, self.storage, placement))
        else:
            self.placement = placement
        used = (column for step in self.prepared or () for column in step.columns)
        shared = emulator.topology.nlinks
        self.links = frozenset(link for column in used for link in column[2] if link < shared)

    def take_input(self, rank: int, sources: Iterable[Array]) -> None:
        """Copy the input of a rank in."""
        staged, begin = self.inputs[rank], 0
        if staged is None:
            return
        for source in sources:
            end = begin + source.size
            staged[begin:end] = source if source.ndim == 1 else source.reshape(-1)
            begin = end


@dataclass(slots=True, eq=False)
class Playing:
    """A plan in flight: ranks enter with their inputs, and leave with their outputs.

    Its times come from a take or from a player, and a plan that follows a take has to be able to
    change to a player at any moment.

    Parameters
    ----------
    label
        Group, sequence number and name of the operation, for the history.
    leave
        Called with each rank whose last transfer is done, and its output.
    on_end
        Called when the last rank has left.
    fake
        Whether no data moves.
    together
        Whether the ranks enter together, and one program goes on when the last has left.
    model
        A plan that has stood for this one until now; None: it begins.
    images
        Plans of other groups that take the same course elsewhere, and are not played.
    stage
        Its buffers, where the calls have been handled together until now; None: those of calls
        that are not are made operations first, and it takes other buffers.

    Attributes
    ----------
    leave_all
        Called with the outputs of all ranks when they leave together; None: they leave one by one.
    """

    # What gives the times:
    #   following  _take is set and _player is not; the log is a prefix of the take's, whose next
    #              event is on the calendar.
    #   behind     The take was given up: _player is set, and Emulator.catch_up simulates from
    #              begin_fs to now. The player repeats the logged entries, so its ranks leave at the
    #              logged times once more; until they have, they are in _early, and those departures
    #              are not reported again.
    #   playing    _player is set, and every departure comes from it.
    # Invariant: either every plan in flight follows a take, or none does. So catching up replays
    # all of them together. Only plans that were images of others (`model`) catch up while others
    # are simulated, and share no link with these. So it cannot contradict what ranks have seen: no
    # logged event is later than now, and up to now every plan did what its take says.
    # If a player disagrees with its take all the same, that is an InternalError, never another
    # time. A take could keep the state of its player instead, to continue from it; but that state
    # is spread over the fabric's flows, and a take is only entries, departures and a hash.
    emulator: Emulator
    plan: Plan
    label: tuple[str, int, str]
    leave: Callable[[int, Array | None], None]
    on_end: Callable[[], object] | None = None
    fake: bool = False
    together: bool = False
    model: Playing | RunningTake | None = None
    images: list[Plan] = field(default_factory=list)
    stage: InitVar[PlanStage | None] = None
    leave_all: Callable[[Sequence[Array | None]], None] | None = None
    stopped: bool = False
    begin_fs: int = field(init=False)
    _departures: int = 0
    _log: list[Event] = field(default_factory=list)
    _early: set[int] = field(default_factory=set)  # left by a take, and not yet by the player
    _stale: bool = True  # whether inputs have come since data was moved
    _expected_fs: int = -1  # after the first entry, as in a take
    _behind: bool = False
    _stage: PlanStage = field(init=False)
    _take: Take | None = None
    _player: Player | None = None
    _links: frozenset[int] = field(init=False)

    def __post_init__(self, stage: PlanStage | None) -> None:
        """Acquire buffers, and start the clock."""
        emulator = self.emulator
        if stage is None and emulator.rounds:
            emulator.break_up()
        self.begin_fs = emulator.calendar.now
        self._stage = stage or emulator.stage(self.plan, fake=self.fake)
        self._links = self._stage.links
        if self.model is not None:
            self.begin_fs = self.model.begin_fs
            self._log, self._departures = self.model.state()
            if self._stage.prepared is None:
                self._links = frozenset(range(emulator.topology.nlinks))
            emulator.links.take(self, self._links)
            if isinstance(self.model, RunningTake):
                self._take = self.model.take
                emulator.following[self] = None
                self._expect(self._take)
            self.model = None
            return
        take = self._known_take()
        if take is not None:
            self._take = take
            emulator.following[self] = None
        else:
            emulator.catch_up()
            self._player = self._play()

    def _known_take(self) -> Take | None:
        """The take to follow, if the plan is alone on its links; None: it is simulated."""
        emulator, stage, plan = self.emulator, self._stage, self.plan
        if stage.prepared is not None:
            if not (emulator.steady and emulator.links.take(self, stage.links)):
                return None
            takes = [] if emulator.playing else emulator.takes.of(plan)
            return takes[-1] if takes else None
        links = emulator.links
        busy = links.users or links.crowd or emulator.playing or emulator.following
        if not (self.together and self.fake and emulator.steady and plan.proof) or busy:
            links.crowd_all(self)
            return None
        take = emulator.rehearsals.of(plan)
        if take is None:
            links.crowd_all(self)
        else:
            self._links = frozenset(range(emulator.topology.nlinks))
            links.take(self, self._links)
        return take

    def _play(self) -> Player:
        self.emulator.playing += 1
        player = self.emulator.player(self._stage, self._note_departure)
        if self.emulator.steady and self._stage.prepared is not None:
            player.ledger.columns = []
        return player

    @property
    def take(self) -> Take | None:
        """The take that it follows."""
        return self._take

    def state(self) -> tuple[list[Event], int]:
        """The log so far, and the number of ranks that have left."""
        return list(self._log), self._departures

    def stop(self) -> None:
        """Let no rank leave any more: the operation has failed."""
        self.stopped = True

    def remaining(self) -> list[int]:
        """The ranks that have not left."""
        gone = {rank for _, rank, leaves in self._log if leaves}
        return [rank for rank in range(self.plan.nranks) if rank not in gone]

    def past(self, plan: Plan) -> Ended:
        """The run of an equal plan that this one has stood for."""
        return Ended(plan, self.begin_fs, self._log)

    def enter(self, rank: int, sources: Iterable[Array], op: Reduction | None = None) -> None:
        """Let a rank enter with a copy of its input."""
        staged = self._stage.inputs[rank]
        if staged is not None:
            self._stale = True
            self._stage.take_input(rank, sources)
            if op is not None and op.factor is not None:
                staged[...] = op.prepared(staged)
        log, event = self._log, (self.emulator.calendar.now - self.begin_fs, rank, False)
        take = self._take
        if take is not None and take.log[len(log)] != event and not self._finds_take(event):
            self.emulator.catch_up()
        log.append(event)
        take = self._take
        if take is not None:
            after_fs, _, leaves = take.log[len(log)]  # this rank has yet to leave
            if leaves or after_fs != self._expected_fs:
                self._expect(take)
        elif self._player is not None:
            self._player.enter(rank)

    def enter_together(
        self, take: Take, leave_all: Callable[[Sequence[Array | None]], None]
    ) -> bool:
        """Let all ranks enter, whose inputs are in the buffers, and leave as in a take; False if
        the plan does not follow one, and each has to enter.
        """
        if self._take is None or take not in self.emulator.takes.of(self.plan):
            return False
        self._take, self._log = take, list(take.log[: self.plan.nranks])
        self.leave_all = leave_all
        self._expect(take)
        return True

    # Following a take

    def _finds_take(self, event: Event) -> bool:
        """Follow another take, with the same history and this entry; returns whether there is
        one.
        """
        log = (*self._log, event)
        for take in self.emulator.takes.of(self.plan):
            if take.log[: len(log)] == log:
                self._take = take
                return True
        return False

    def _expect(self, take: Take) -> None:
        """Schedule the take's next event: a departure, or an expected entry."""
        calendar = self.emulator.calendar
        if len(self._log) == len(take.log):
            return
        after_fs, _, leaves = take.log[len(self._log)]
        time_fs = self.begin_fs + after_fs
        if leaves:
            calendar.at(time_fs, self._go_on, take)
        elif after_fs != self._expected_fs:
            self._expected_fs = after_fs
            if time_fs == calendar.now:
                calendar.at_end(self._look)
            else:
                calendar.at(time_fs, lambda _: calendar.at_end(self._look), None)

    def _go_on(self, take: Take) -> None:
        """Release the ranks that leave at this time."""
        after_fs, log, events = self.emulator.calendar.now - self.begin_fs, self._log, take.log
        if self.leave_all is not None and self._take is take:
            log += events[len(log) :]
            self._departures = self.plan.nranks
            self._close_when_over()
            if self._stage.pool is not None:
                self._stage.pool.play()
            self.leave_all(self._stage.outputs)
            return
        while self._take is take and len(log) < len(events) and not self.stopped:
            event = events[len(log)]
            if event[0] != after_fs or not event[2]:
                self._expect(take)
                return
            self._leave(event)

    def _look(self, _event: object) -> None:
        """Abandon the take if an expected rank has not entered by now."""
        take, now = self._take, self.emulator.calendar.now
        if take is not None and len(self._log) < len(take.log):
            after_fs, _, leaves = take.log[len(self._log)]
            if not leaves and self.begin_fs + after_fs <= now:
                self.emulator.catch_up()

    def stop_following(self) -> list[tuple[int, Callable[[int], None], int]]:
        """Abandon the take; returns the timed actions that bring a simulation to this point."""
        self._take, self._behind = None, True
        self._early = {rank for _, rank, leaves in self._log if leaves}
        self._player = player = self._play()
        return entries_of(self._log, self.begin_fs, player)

    def caught_up(self) -> None:
        """Check that the simulation has reached the point of the abandoned take."""
        self._behind, now = False, self.emulator.calendar.now
        gone = [
            rank
            for after_fs, rank, leaves in self._log
            if leaves and self.begin_fs + after_fs < now
        ]
        if not self._early.isdisjoint(gone):
            raise InternalError(
                f"{self.label}: ranks {sorted(self._early & set(gone))} left a take, but not its "
                "player"
            )

    # Ends

    def _note_departure(self, rank: int) -> None:
        if rank in self._early:
            self._early.remove(rank)
            self._close_when_over()
        elif self._behind and not self.stopped:
            raise InternalError(
                f"{self.label}: rank {rank} left its player, but not the take that was followed"
            )
        elif not self.stopped:
            self._leave((self.emulator.calendar.now - self.begin_fs, rank, True))

    def _leave(self, event: Event) -> None:
        self._log.append(event)
        self._departures += 1
        stage, rank = self._stage, event[1]
        if self._departures == len(stage.inputs):
            self._close_when_over()
        values = stage.outputs[rank]
        if self._stale and self._take is not None and values is not None and stage.pool is not None:
            stage.pool.play()
            self._stale = False
        self.leave(rank, values)

    def _is_over(self) -> bool:
        """Whether all ranks have left, in the player too if a take was abandoned."""
        return self._departures == self.plan.nranks and (self._take is not None or not self._early)

    def _close_when_over(self) -> None:
        if self._is_over():
            # The player accounts for its last step after this.
            self.emulator.calendar.at(self.emulator.calendar.now, self._close, None)

    def _close(self, _nothing: None) -> None:
        if not self._is_over():
            return  # the take was given up since, at the same time; its player closes
        emulator, stage, begin_fs = self.emulator, self._stage, self.begin_fs
        alone = emulator.links.give_back(self, self._links) and emulator.steady
        if self._take is not None:
            emulator.following.pop(self, None)
            for plan in (self.plan, *self.images):
                note_take(emulator, self.label, plan, self._take, begin_fs)
        elif self._player is not None:
            player, emulator.playing = self._player, emulator.playing - 1
            player.check()
            ledger = player.ledger
            times_fs, trace_hash = (
                (begin_fs, max(ledger.time_fs, begin_fs)),
                ledger.hash.hexdigest(),
            )
            for plan in (self.plan, *self.images):
                emulator.history.add(*self.label, plan, times_fs, ledger.messages, trace_hash)
            if alone and ledger.columns is not None:
                emulator.takes.add(take_of(self.plan, self._log, begin_fs, ledger))
        emulator.give_back(stage)
        # They refer to this operation: without them no circle is left, and it is freed at once.
        on_end, self.on_end = self.on_end, None
        self.leave = _nobody
        self._player = None
        if on_end is not None:
            on_end()


def note_take(
    emulator: Emulator, label: tuple[str, int, str], plan: Plan, take: Take, begin_fs: int
) -> None:
    """Add an operation that followed a take to the run's history."""
    trace_hash = hash_at(take, begin_fs) if isinstance(take.hash, str) else take.hash
    times_fs = begin_fs, begin_fs + take.end_fs
    emulator.history.add(*label, plan, times_fs, take.messages, trace_hash)


def _nobody(_rank: int, _values: Array | None) -> None:
    """Placeholder after the last rank has left; never called."""
