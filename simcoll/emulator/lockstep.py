"""Runs in which no two flows share a link: played step by step, without a calendar.

**Claim.** Suppose that every link that could bind carries flows of one sending lane only, or of one
receiving lane only under rendezvous, and at most one flow per step. Then each flow has the least
capacity of its links as its rate, from its start to its end.

**Why.** A lane leaves a step when its flows of that step have ended: as a sender always, as a
receiver under rendezvous, where it waits for incoming messages. So flows of one lane in different
steps never overlap, and no link that could bind carries two flows at a time.
(:mod:`simcoll.emulator.steps.pruning` finds the links that never bind.)

The times of a step then follow from the times at which its lanes entered it, and from the messages
that a FIFO makes it wait for. Both belong to earlier steps, so one pass over the steps in order
yields all times.

**Why it stays.** A table does not need it: its runs are remembered. A run that happens once does,
and one with jitter or FIFOs, for which nothing is remembered. CPU seconds of a ring all_reduce of
1,024 ranks, 2.1 million messages, in the loops and in lock-step (``python benchmarks/lockstep.py``,
AMD EPYC):

==================================  =====  =========
run                                 loops  lock-step
==================================  =====  =========
2^24 + 1 elements, DGX H100          0.38      0.026
an NVLink at 1/2, DGX H100           0.18      0.028
a link at 1/2, crossbar              1.18      0.025
jitter, crossbar                     0.78      0.035
jitter, DGX H100                     1.90      0.026
FIFOs, a link at 1/2, crossbar       1.55      0.035
==================================  =====  =========
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Ints, Shorts
from simcoll.core.hashing import mix
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.emulator import recurrence_arrays
from simcoll.emulator.fast.compiled import announce_compiling
from simcoll.emulator.fast.recurrence_rows import (
    BUSY,
    BY_RECEIVER,
    BY_SENDER,
    CONNECTION,
    CROWDED,
    DELAY,
    ENTERED,
    FLOW,
    PLACE,
    POST,
    RECEIVER,
    SENDER,
    SIZE,
    Tables,
)
from simcoll.emulator.model import FS_PER_SECOND_UBPS, JITTER, ROUNDING
from simcoll.emulator.steps.plan_placement import Placement
from simcoll.emulator.steps.roles import MOVES
from simcoll.emulator.steps.step_columns import Group, Spinning, spinning
from simcoll.emulator.steps.timed import (
    BATCH_ROWS,
    StepShape,
    StepStream,
    StepTimer,
    Timed,
    batches,
)
from simcoll.topology import Topology

__all__ = ["LockStep", "lockstep", "lockstep_program"]

MOST_ROWS = 1 << 21
"""Limit of rows of distinct steps kept between the proof and the run, at some 150 bytes each."""
LATEST_FS = 2**62
"""Runs that could take longer are left to the engine with overflow checks."""


class _Loops(NamedTuple):
    """The functions that play a run: compiled, or array operations."""

    claim: Callable[..., None]
    advance: Callable[..., None]
    in_arrays: bool


def _loops(*, in_arrays: bool) -> _Loops:
    if in_arrays:
        return _Loops(recurrence_arrays.claim, recurrence_arrays.advance, in_arrays)
    from simcoll.emulator.fast import recurrence  # imports numba

    return _Loops(recurrence.claim, recurrence.advance, in_arrays)


class Turns(NamedTuple):
    """Steps that repeat; each in as many variants as it has payloads."""

    steps: list[tuple[Timed, ...]]
    times: int
    spins: Spinning | None


class LockStepOutcome(NamedTuple):
    """The outcome of a run."""

    time_fs: int
    messages: int
    trace_hash: str
    done_fs: Ints | None


class _Owners:
    """The single lane that has flows on each link."""

    def __init__(self, capacity: Ints, loops: _Loops, *, fifo: bool) -> None:
        self.capacity, self.loops, self.fifo = capacity, loops, fifo
        self.of = np.full((4, len(capacity)), -1)
        self.of[CROWDED] = 0
        self.shapes: dict[StepShape, None] = {}
        self.next_look = 1

    def add(self, step: Timed) -> bool:
        """Register a step; return whether the claim may still hold."""
        shape = step.shape
        if shape in self.shapes:
            return True
        self.shapes[shape] = None
        # The compiled function takes writable, row-major columns.
        links = np.require(shape.links, np.int32, ["C", "W"])
        wire, sender, receiver = (
            np.require(c, np.int64, ["C", "W"]) for c in (step.wire, shape.sender, shape.receiver)
        )
        self.loops.claim(links, wire, sender, receiver, len(self.shapes), self.of)
        if len(self.shapes) < self.next_look:
            return True
        self.next_look *= 8
        return self.hold()

    def hold(self) -> bool:
        """Whether the claim holds for all steps so far."""
        several = self.of[BY_SENDER] == -2
        if not self.fifo:
            several &= self.of[BY_RECEIVER] == -2
        doubtful = several | (self.of[CROWDED] == 1)
        if not doubtful.any():
            return True
        from simcoll.emulator.steps.pruning import never_bind

        return not (doubtful & ~never_bind(self.shapes, self.capacity, doubtful)).any()


def lockstep(
    plan: Plan,
    topology: Topology,
    capacity: Ints,
    placement: Placement,
    groups: list[Group] | None,
    *,
    keep: bool,
    timer: StepTimer | None = None,
    in_arrays: bool = False,
) -> LockStep | None:
    """The run of a plan without switch operations; ``timer`` makes its steps if they have no
    jitter. ``in_arrays``: in array operations, so that no compiled loop is loaded.

    ``None`` if flows may share a link, or channels wait for each other.
    """
    if len(plan.wait_pairs[0]):
        return None
    protocol = plan.protocol
    # Jitter is added when messages are played, so that repeats stay repeats.
    calm = replace(plan, protocol=replace(protocol, jitter_fs=0))
    make = (
        timer if timer and not protocol.jitter_fs else StepTimer(calm.protocol, topology, placement)
    )
    loops = _loops(in_arrays=in_arrays)
    some = _turns(make, spinning(calm) if groups is None else groups)
    turns_of_run = _without_sharing(some, capacity, loops, fifo=protocol.fifo_depth > 0)
    lanes = plan.nranks * plan.nchannels
    if turns_of_run is None:
        return None
    return LockStep(protocol, lanes, capacity, turns_of_run, loops, keep=keep)


def lockstep_program(
    stream: StepStream, protocol: Protocol, lanes: int, capacity: Ints
) -> LockStep | None:
    """The run of the only call of a program, all groups of it at once, from the timed steps of the
    program; ``None`` if flows may share a link.

    Launches, forks and joins of lanes are left out: each lane begins after the launch, and a rank
    ends with the last of its lanes.
    """
    loops, some = _loops(in_arrays=False), _turns_of_stream(stream)
    turns_of_run = _without_sharing(some, capacity, loops, fifo=protocol.fifo_depth > 0)
    if turns_of_run is None:
        return None
    return LockStep(protocol, lanes, capacity, turns_of_run, loops, keep=False)


def _turns_of_stream(stream: StepStream) -> Iterator[Turns]:
    """The transfers of a program; groups that do not repeat together, since each turn is packed
    apart.
    """
    batch: list[tuple[Timed, ...]] = []
    rows = 0
    for group, times in stream:
        moves: list[tuple[Timed, ...]] = [(step,) for step in group if step.role == MOVES]
        if times == 1:
            batch += moves
            rows += sum(len(step) for step in group)
        if batch and (times > 1 or rows >= BATCH_ROWS):
            yield Turns(batch, 1, None)
            batch, rows = [], 0
        if times > 1 and moves:
            yield Turns(moves, times, None)
    if batch:
        yield Turns(batch, 1, None)


def _without_sharing(
    some: Iterable[Turns], capacity: Ints, loops: _Loops, *, fifo: bool
) -> list[Turns] | None:
    """All turns of a run; ``None`` if flows may share a link, or their rows are too many."""
    owners, turns_of_run, rows = _Owners(capacity, loops, fifo=fifo), [], 0
    for turns in some:
        turns_of_run.append(turns)
        rows += sum(len(each) for variants in turns.steps for each in variants)
        if rows > MOST_ROWS or not all(owners.add(variants[0]) for variants in turns.steps):
            return None
    return turns_of_run if owners.hold() else None


def _turns(make: StepTimer, groups: Iterable[Group | Spinning]) -> Iterator[Turns]:
    for spins, some in groupby(groups, lambda group: isinstance(group, Spinning)):
        if spins:
            yield from (_sized(make, group) for group in some if isinstance(group, Spinning))
            continue
        for steps, times in batches(
            (group for group in some if not isinstance(group, Spinning)), unrolled=False
        ):
            yield Turns([(each,) for each in make(steps, 0)], times, None)


def _sized(make: StepTimer, spins: Spinning) -> Turns:
    """Repeating steps with each of their payloads."""
    sized = [
        [step._replace(size_bytes=np.full(step.rows, each)) for each in spins.payloads]
        for step in spins.steps
    ]
    return Turns([tuple(make(each, 0)) for each in sized], spins.times, spins)


class _TurnColumns(NamedTuple):
    """All steps of a turn as the compiled loops take them.

    Attributes
    ----------
    fixed, varying
        Columns that are the same in every repetition, and those that are not.
    begins
        The first row of each step, and the number of rows.
    longest_fs
        The longest time that one repetition can take.
    """

    fixed: Ints
    varying: Ints
    begins: Ints
    longest_fs: int


class LockStep:
    """A run whose flows never meet: packs its steps for the compiled loops and accumulates their
    results. It is played once.
    """

    def __init__(
        self,
        protocol: Protocol,
        lanes: int,
        capacity: Ints,
        turns: list[Turns],
        loops: _Loops,
        *,
        keep: bool,
    ) -> None:
        self.protocol, self.turns, self.loops, self.keep = protocol, turns, loops, keep
        self.capacity = np.append(capacity, np.iinfo(np.int64).max)
        self.lanes = np.zeros((3, lanes), np.int64)
        self.lanes[:2] = protocol.launch_fs
        self.connections = (
            self._connections(lanes) if protocol.fifo_depth else np.zeros(0, np.int64)
        )
        self.rings = np.zeros(len(self.connections) * protocol.fifo_depth, np.int64)
        self.counts = np.zeros(len(self.connections), np.int64)
        self.sums = np.zeros(2, np.uint64)
        messages = sum(turn.times * len(each[0]) for turn in turns for each in turn.steps)
        self.done_fs = np.zeros(messages if keep else 0, np.int64)

    def _connections(self, lanes: int) -> Ints:
        """Numbers of all pairs of lanes that exchange messages, sorted."""
        shapes = {each[0].shape: None for turn in self.turns for each in turn.steps}
        none = np.zeros(0, np.int64)
        return np.unique(
            np.concatenate([none, *(shape.sender * lanes + shape.receiver for shape in shapes)])
        )

    @property
    def entered_fs(self) -> Ints:
        """When each lane could go on after its last step, once the run has been played."""
        entered_fs: Ints = self.lanes[ENTERED]
        return entered_fs

    def play(self) -> LockStepOutcome | None:
        """Play all steps; ``None`` if that may exceed the range of the clock."""
        first, latest = 0, self.protocol.launch_fs
        with nullcontext() if self.loops.in_arrays else announce_compiling(self.loops.advance):
            for turn in self.turns:
                columns = self._packed(turn)
                latest += turn.times * columns.longest_fs
                if latest > LATEST_FS:
                    return None
                self._advance(turn, first, columns)
                first += turn.times * int(columns.begins[-1])
        trace_hash = "".join(f"{int(value):016x}" for value in self.sums)
        time = int(self.lanes[1].max(initial=self.protocol.launch_fs))
        return LockStepOutcome(time, first, trace_hash, self.done_fs if self.keep else None)

    def _advance(self, turn: Turns, first: int, columns: _TurnColumns) -> None:
        protocol, spins = self.protocol, turn.spins
        window = np.zeros(2, np.int64) if spins is None else spins.window
        seed = int(mix(np.array([(protocol.seed + JITTER) % 2**64], np.uint64))[0])
        numbers = (
            first,
            turn.times,
            0 if spins is None else spins.stride,
            protocol.fifo_depth,
            protocol.jitter_fs,
        )
        tables = Tables(
            self.lanes,
            self.rings,
            self.counts,
            columns.fixed,
            columns.varying,
            np.empty((3, columns.fixed.shape[1]), np.int64),
            columns.begins,
            window,
            np.array(numbers, np.int64),
            np.uint64(seed),
            self.sums,
            self.done_fs,
        )
        if self.loops.in_arrays:
            self.loops.advance(tables)
        else:
            self.loops.advance(*tables)

    def _packed(self, turn: Turns) -> _TurnColumns:
        lanes, spins = self.lanes.shape[1], turn.spins
        steps = [variants[0] for variants in turn.steps]
        shapes = [step.shape for step in steps]
        begins = np.cumsum([0, *map(len, steps)])
        place = np.concatenate(spins.places) if spins else np.zeros(begins[-1], np.int64)
        fixed = np.empty((8, begins[-1]), np.int64)
        fixed[SENDER : BUSY + 1] = [
            np.concatenate(column)
            for column in (
                [shape.sender for shape in shapes],
                [shape.receiver for shape in shapes],
                [shape.src for shape in shapes],
                [shape.dst for shape in shapes],
                [step.delay_fs for step in steps],
                [step.busy_fs for step in steps],
            )
        ]
        pair = fixed[SENDER] * lanes + fixed[RECEIVER]
        fixed[PLACE] = place
        fixed[CONNECTION] = (
            np.searchsorted(self.connections, pair) if self.protocol.fifo_depth else place
        )
        rate = self._rates([shape.links for shape in shapes], begins)
        varying = np.empty((len(turn.steps[0]), 3, begins[-1]), np.int64)
        for payload, variant in zip(varying, zip(*turn.steps, strict=True), strict=True):
            wire = np.concatenate([step.wire for step in variant])
            flow = np.where(wire > 0, np.floor(wire * FS_PER_SECOND_UBPS / rate + ROUNDING), 0.0)
            if float(flow.max(initial=0)) > LATEST_FS:
                return _TurnColumns(fixed, varying, begins, LATEST_FS + 1)
            payload[SIZE] = np.concatenate([step.size for step in variant])
            payload[FLOW] = flow
            payload[POST] = np.concatenate([step.post_fs for step in variant])
        costs = [fixed[DELAY], fixed[BUSY], *varying[:, [FLOW, POST]].max(axis=0)]
        latest = self.protocol.jitter_fs * len(steps)
        for column in costs:  # no step is empty
            latest += sum(np.maximum.reduceat(column, begins[:-1]).clip(0).tolist())
        return _TurnColumns(fixed, varying, begins, latest)

    def _rates(self, links: list[Shorts], begins: Ints) -> Ints:
        """The least capacity on the route of every message."""
        crossed = np.full((begins[-1], max(part.shape[1] for part in links)), -1, np.int32)
        for begin, part in zip(begins[:-1].tolist(), links, strict=True):
            crossed[begin : begin + len(part), : part.shape[1]] = part
        rate = np.full(begins[-1], self.capacity[-1])
        for link in crossed.T:
            np.minimum(rate, self.capacity[link], out=rate)
        return rate
