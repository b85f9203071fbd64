"""A world: the ranks of a run, their groups, and the services that rank programs use.

:class:`World` has two implementations: :class:`simcoll.distributed.runtime.emulated.EmulatedWorld`,
where all ranks share this process and a simulated clock, and
:class:`simcoll.distributed.linked.linked_world.LinkedWorld`, where each rank is a separate process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, cast

from greenlet import getcurrent  # type: ignore[import-untyped]

from simcoll.arrays import Array
from simcoll.core.plan import Plan
from simcoll.distributed.runtime.calls import CollectiveCall, End
from simcoll.distributed.runtime.history import History
from simcoll.distributed.runtime.rank_classes import RankClasses
from simcoll.distributed.runtime.rank_memory import RankMemory
from simcoll.distributed.runtime.records import Flight, new_flight
from simcoll.distributed.runtime.tasks import (
    Arrival,
    Meeting,
    Task,
    TaskClock,
    Waitable,
    current_task,
    list_ranks,
)
from simcoll.distributed.runtime.work import Work
from simcoll.distributed.stores import Store
from simcoll.distributed.stores.store_errors import DistBackendError
from simcoll.libraries.choices import Choice, Plans

__all__ = [
    "NOT_INITIALIZED",
    "NO_DESCRIPTION",
    "Communicator",
    "Executor",
    "GroupHandle",
    "Mailbox",
    "OwnStore",
    "Rank",
    "World",
    "current_rank",
    "current_rank_or_none",
]

NO_DESCRIPTION = "undefined"
"""The description of a group made without one, as in torch."""
NOT_INITIALIZED = (
    "Default process group has not been initialized, please make sure to call init_process_group."
)


class Executor(Protocol):
    """Executes one rank's part of a group's plans, from input to output."""

    def execute(self, plan: Plan, rank: int, data: Array) -> Array | None:
        """Play one rank's part of a plan."""


class Mailbox(Protocol):
    """The sends and receives of a group."""

    def post(self, end: End) -> None:
        """Post one end of a message."""


@dataclass(slots=True, eq=False)
class OwnStore:
    """A store that init_process_group made. The last rank that leaves closes it."""

    store: Store
    users: dict[int, None] = field(default_factory=dict)


class World(TaskClock, Protocol):
    """The state that the ranks of a run share."""

    debug: bool
    timed: bool
    """Whether no data moves, only time passes."""
    rank_classes: RankClasses | None
    """The ranks that do what another rank's program does; None where every rank runs its own."""
    ranks: list[Rank]
    everyone: tuple[int, ...]
    plans: Plans
    history: History
    groups: dict[str, list[Communicator]]
    home: str | None
    """The backend that connects the ranks' processes; None on the emulator."""

    def run(self) -> None:
        """Run all tasks to their ends."""

    def pause(self, duration_fs: int, name: str) -> None:
        """Block the running rank for a duration, named in the timeline."""

    def later(self, time_fs: int, action: Callable[[], None]) -> None:
        """Schedule an action; only on the emulator."""

    def hindrances(self) -> str:
        """Describe why data may not arrive: stopped ranks, dead links; empty where unknown."""

    def meet(self, me: Rank, arrival: Arrival) -> Meeting:
        """Arrive at a meeting."""

    def issue(
        self, group: GroupHandle, me: Rank, call: CollectiveCall, buffers: Buffers, *, guard: bool
    ) -> Work:
        """Match a call with the other ranks' calls and start it; ``guard`` watches the buffers
        (debug mode).
        """

    def mailbox(self, group: GroupHandle) -> Mailbox:
        """The mailbox of the group's sends and receives; a RuntimeError when its backend has
        none.
        """

    def executor(self, meeting: Meeting | None) -> Executor | None:
        """The executor of a group that was made at a meeting; None for the emulator."""

    def default_store(self) -> Store:
        """The store used when none is given; a RuntimeError where ranks are processes."""

    def open_store(self, me: Rank, url: str, timeout: timedelta | None) -> OwnStore:
        """The store of a URL, which emulated ranks share."""


Buffers = tuple["list[Array]", "list[Array]"]
"""Inputs and outputs of a call."""


class RepeatedCall(Protocol):
    """Handles the same call of all ranks together (:mod:`simcoll.distributed.runtime.rounds`)."""

    def join(self, me: Rank, buffers: Buffers) -> bool:
        """Make a rank's call, and wait for its end; False if it cannot be part of the round."""


@dataclass(slots=True, eq=False)
class Communicator:
    """The state that the ranks of a group share.

    Attributes
    ----------
    key
        Unique among all groups of a run, including successive default groups.
    members
        Global ranks by group rank.
    explicit
        Whether the program gave the timeout.
    raises
        The class of its errors, as in torch's backends.
    destroyed
        Global ranks that have left.
    failure
        The reason why the group is unusable.
    turn
        The last call of this process on a registered backend.
    planned
        The last call whose plan was asked for, and the plan.
    label
        Name and description, once for all calls until the description changes.
    calls, messages, barriers
        Number made so far, by group rank.
    device_users
        Global ranks by node and device that a program has placed their tensors on.
    rounds
        By call, what handles the calls of all ranks together; None where it has failed to.
    """

    world: World
    name: str
    key: str
    desc: str
    members: tuple[int, ...]
    timeout_fs: int
    explicit: bool
    backend: str
    algorithm: Choice = None
    group_rank: dict[int, int] = field(init=False)
    raises: type[RuntimeError] = field(init=False)
    destroyed: dict[int, None] = field(default_factory=dict)
    failure: str | None = None
    turn: Waitable | None = None
    planned: tuple[CollectiveCall, Plan] | None = None
    label: tuple[str, str] | None = None
    calls: Counter[int] = field(default_factory=Counter)
    messages: Counter[int] = field(default_factory=Counter)
    barriers: Counter[int] = field(default_factory=Counter)
    device_users: dict[tuple[str, str], int] = field(default_factory=dict)
    rounds: dict[CollectiveCall, RepeatedCall | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Number the members."""
        self.group_rank = {member: rank for rank, member in enumerate(self.members)}
        self.raises = DistBackendError if self.is_nccl else RuntimeError

    @property
    def is_nccl(self) -> bool:
        """Whether its backend is named nccl."""
        return "nccl" in self.backend

    def __str__(self) -> str:
        notes = [] if self.desc == NO_DESCRIPTION else [self.desc]
        if self.members != self.world.everyone:
            notes.append(f"ranks {list_ranks(self.members)}")
        return f"group {self.name} ({', '.join(notes or ['all ranks'])})"


@dataclass(slots=True, eq=False, repr=False)
class GroupHandle:
    """One rank's handle of a group."""

    communicator: Communicator
    global_rank: int
    timeout: timedelta
    executor: Executor | None = None

    def rank(self) -> int:
        """The calling rank's group rank."""
        return self.communicator.group_rank[self.global_rank]

    def size(self) -> int:
        """Number of ranks."""
        return len(self.communicator.members)

    def name(self) -> str:
        """Name of the backend."""
        return self.communicator.backend

    @property
    def group_name(self) -> str:
        """Unique name."""
        return self.communicator.name

    @property
    def group_desc(self) -> str:
        """The description of its purpose."""
        return self.communicator.desc

    def __repr__(self) -> str:
        return (
            f"<ProcessGroup {self.group_name} ({self.group_desc}): rank {self.rank()} of "
            f"{self.size()}>"
        )


@dataclass(slots=True, eq=False)
class Rank:
    """A rank of a world.

    Attributes
    ----------
    default
        Its default group; ``implicit`` when spawn made it.
    groups
        Its other groups.
    generation
        Number of its calls of init_process_group.
    created
        Number of groups and meshes it has made, by kind.
    store, own_store
        Its default store, and the store that init_process_group made for it.
    open_works
        Asynchronous operations that it has not waited for.
    watched_works
        Those in flight whose buffers are watched.
    coalescing
        Calls deferred to the end of a block, by group.
    debug_level, breakpoints
        The level it set, and the number of breakpoints passed.
    value, failure, finish_fs
        Return value or exception of its program, and when it ended; -1 while it runs.
    memory
        Accounting of its arrays or tensors.
    scope
        Where its program is, such as ``"backward 1/Llama/layers.3"``; empty where unknown.
    """

    number: int
    world: World
    flight: Flight = field(default_factory=new_flight)
    default: GroupHandle | None = None
    implicit: bool = False
    groups: list[GroupHandle] = field(default_factory=list)
    generation: int = 0
    created: Counter[str] = field(default_factory=Counter)
    store: Any = None
    own_store: OwnStore | None = None
    open_works: dict[Work, None] = field(default_factory=dict)
    watched_works: dict[Work, None] = field(default_factory=dict)
    coalescing: dict[Communicator, list[tuple[CollectiveCall, list[Array], list[Array]]]] = field(
        default_factory=dict
    )
    debug_level: int | None = None
    breakpoints: int = 0
    value: Any = None
    memory: RankMemory = field(default_factory=RankMemory)
    failure: BaseException | None = None
    finish_fs: int = -1
    scope: str = ""


def current_rank_or_none() -> Rank | None:
    """The rank whose program runs this code, if any."""
    task = current_task()
    return None if task is None else cast("Rank", task.owner)


def current_rank() -> Rank:
    """The rank whose program runs this code; a ValueError outside of rank programs."""
    # As current_task, without its calls where a call of a rank asks twice.
    caller = getcurrent()
    task: Task | None = caller if type(caller) is Task else None
    if task is None:
        outpost = getattr(caller, "outpost", None)
        task = current_task() if outpost is None else outpost.task
    if task is None:
        raise ValueError(
            f"{NOT_INITIALIZED} (This code is not in a rank program: start those with spawn.)"
        )
    return task.owner  # type: ignore[return-value]
