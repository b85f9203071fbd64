"""Plans in flight on the emulator: buffers to play them on, and ranks that enter and leave one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from simcoll.core.plan import INPUT
from simcoll.emulator.budget import check_exact, exact_bytes
from simcoll.emulator.dataplane import Storage
from simcoll.emulator.engine import Player
from simcoll.emulator.score import Score

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from simcoll.core.memory import Array
    from simcoll.core.plan import Plan
    from simcoll.core.reduction import Reduction
    from simcoll.distributed.runtime.history import History
    from simcoll.emulator.events.detours import Detours
    from simcoll.emulator.events.pace import Pace
    from simcoll.emulator.fabric import Calendar, Fabric
    from simcoll.topology import Topology

__all__ = ["Emulator", "Playing"]

KEPT_TRANSFERS = 1 << 16
KEPT_BYTES = 1 << 24


@dataclass(slots=True, eq=False)
class Emulator:
    """The emulator of a run: its links, and buffers to play plans on.

    Attributes
    ----------
    stages
        Buffers that are not in use, by the identity of their plan and whether they are fake.
    kept_bytes
        What they hold together.
    unsettled
        What to do as soon as no more calls can come: operations that will fail then.
    pace, detours
        Of ranks that slow down or stop, and around links that are down; ``None`` where no event says so.
    """

    topology: Topology
    calendar: Calendar
    fabric: Fabric
    history: History
    stages: dict[tuple[int, bool], list[Stage]] = field(default_factory=dict)
    kept_bytes: int = 0
    unsettled: dict[Callable[[], None], None] = field(default_factory=dict)
    pace: Pace | None = None
    detours: Detours | None = None

    def stage(self, plan: Plan, *, fake: bool) -> Stage:
        """Buffers for a plan: those of an earlier run of it, or new ones."""
        waiting = self.stages.get((id(plan), fake))
        if not waiting:
            return Stage(self, plan, fake=fake)
        stage = waiting.pop()
        self.kept_bytes -= stage.size_bytes
        return stage

    def give_back(self, stage: Stage) -> None:
        """Keep buffers for the next run of their plan, unless they are large."""
        held = self.kept_bytes + stage.size_bytes
        if stage.score is not None and stage.size_bytes <= KEPT_BYTES and held <= 16 * KEPT_BYTES:
            self.kept_bytes = held
            self.stages.setdefault((id(stage.plan), stage.storage is None), []).append(stage)


class Stage:
    """Buffers to play a plan on, apart from the caller's; each rank's input is copied in on its arrival.

    ``inputs`` and ``outputs`` are per rank a flat array; ``None`` where there is none, and everywhere if they are fake.
    """

    __slots__ = ("inputs", "outputs", "plan", "score", "size_bytes", "storage")

    def __init__(self, emulator: Emulator, plan: Plan, *, fake: bool) -> None:
        self.plan = plan
        self.inputs: list[Array | None] = [None] * plan.nranks
        self.outputs: tuple[Array | None, ...] = (None,) * plan.nranks
        self.storage: Storage | None = None
        self.size_bytes = 0
        if not fake:
            taken = plan.dtype.itemsize * sum(plan.visible_elements()[:, INPUT].tolist())
            check_exact(taken + exact_bytes(plan, given=True))
            elements = [plan.view(rank, INPUT)[2] for rank in range(plan.nranks)]
            self.inputs = [np.zeros(count, plan.dtype) if count else None for count in elements]
            self.storage = Storage(plan, self.inputs)
            self.outputs = tuple(self.storage.outputs())
            self.size_bytes = int(plan.buffer_elements().sum()) * plan.dtype.itemsize
        few = plan.proof is not None and plan.proof.transfers <= KEPT_TRANSFERS
        self.score = Score(plan, emulator.topology, emulator.fabric, self.storage) if few else None


@dataclass(slots=True, eq=False)
class Playing:
    """A plan in flight: ranks enter with their inputs, and leave with their outputs.

    Parameters
    ----------
    label
        Group, sequence number and name of the operation, for the history.
    leave
        Called with every rank whose last transfer is done, and its output.
    over
        Called when the last rank has left.
    fake
        Whether nothing moves.
    """

    emulator: Emulator
    plan: Plan
    label: tuple[str, int, str]
    leave: Callable[[int, Array | None], None]
    over: Callable[[], object] | None = None
    fake: bool = False
    stopped: bool = False
    _left: int = 0
    _begin_fs: int = field(init=False)
    _stage: Stage = field(init=False)
    _player: Player = field(init=False)

    def __post_init__(self) -> None:
        """Take buffers, and start the clock."""
        emulator = self.emulator
        self._begin_fs = emulator.calendar.now
        self._stage = stage = emulator.stage(self.plan, fake=self.fake)
        self._player = Player(
            self.plan,
            emulator.topology,
            emulator.fabric,
            stage.storage,
            score=stage.score,
            left=self._rank_left,
            pace=None if emulator.pace is None else emulator.pace.of(self.plan.ranks.tolist()),
            detours=emulator.detours,
        )

    def enter(self, rank: int, sources: Iterable[Array], op: Reduction | None = None) -> None:
        """Let a rank begin its part, with a copy of its input."""
        staged = self._stage.inputs[rank]
        if staged is not None:
            begin = 0
            for source in sources:
                staged[begin : begin + source.size] = source.reshape(-1)
                begin += source.size
            if op is not None and op.factor is not None:
                staged[...] = op.prepared(staged)
        self._player.enter(rank)

    def _rank_left(self, rank: int) -> None:
        if self.stopped:
            return
        self._left += 1
        if self._left == self.plan.nranks:
            # The player accounts for its last step after this.
            self.emulator.calendar.at(self.emulator.calendar.now, self._close, None)
        self.leave(rank, self._stage.outputs[rank])

    def _close(self, _nothing: None) -> None:
        player, emulator = self._player, self.emulator
        player.check()
        times_fs = (self._begin_fs, max(player.books.time_fs, self._begin_fs))
        emulator.history.add(*self.label, player.plan, times_fs, player.books.messages, player.books.hash.hexdigest())
        emulator.give_back(self._stage)
        if self.over is not None:
            self.over()
