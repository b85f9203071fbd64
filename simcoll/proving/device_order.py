"""The order of operations in a program of thread blocks, and whether the program terminates.

There are two orders. *Execution*: an operation begins after another has ended. *Data*: it also sees
the other's writes. Relaxed signals establish only the first. Operations of one block are ordered
where all its threads meet; between two such points the threads are independent, so only signals and
waits of the same thread are ordered there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from simcoll.core.device_program import EACH, DeviceOp, DeviceProgram
from simcoll.errors import ConfigError, ScheduleError

__all__ = ["Access", "Order", "device_order"]

MAX_EVENTS = 1 << 14
Counter = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Access:
    """An access to a cell, ``(rank, cell)``."""

    event: int
    cell: tuple[int, int]
    writes: bool
    label: str


@dataclass(slots=True)
class Order:
    """Events of a program, the order between them, and the sequence in which one run played the
    operations.

    ``data[e]`` and ``executed[e]`` are the sets of events that precede e in either order, as bit
    masks.
    """

    events: int = 0
    # Before, after, whether data is ordered as well.
    edges: list[tuple[int, int, bool]] = field(default_factory=list)
    played: list[tuple[int, int, int]] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    packets: dict[tuple[int, int], int] = field(default_factory=dict)  # event that wrote each
    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    data: list[int] = field(default_factory=list)
    executed: list[int] = field(default_factory=list)

    def event(self) -> int:
        """Add an event."""
        self.events += 1
        if self.events > MAX_EVENTS:
            raise ConfigError(
                f"more than {MAX_EVENTS} events; programs of so many operations are not followed"
            )
        return self.events - 1

    def edge(self, earlier: int, later: int, *, data: bool = True) -> None:
        """Record that an event precedes another."""
        self.edges.append((earlier, later, data))

    def close(self) -> None:
        """Compute the predecessors of each event."""
        successors: list[list[tuple[int, bool]]] = [[] for _ in range(self.events)]
        pending = [0] * self.events
        for earlier, later, data in self.edges:
            successors[earlier].append((later, data))
            pending[later] += 1
        self.data, self.executed = [0] * self.events, [0] * self.events
        ready = [event for event in range(self.events) if not pending[event]]
        for event in ready:
            bit = 1 << event
            for later, data in successors[event]:
                self.executed[later] |= self.executed[event] | bit
                if data:
                    self.data[later] |= self.data[event] | bit
                pending[later] -= 1
                if not pending[later]:
                    ready.append(later)


def where(program: DeviceProgram, rank: int, block: int, position: int) -> str:
    """An operation in words."""
    return (
        f"rank {rank} thread block {block} operation {position} "
        f"({program.blocks[rank][block][position].name})"
    )


# Why one play is enough. Counters only grow, each is awaited by one block only, and a full packet
# stays full, so an operation that can run stays able to run until it does: if one play gets stuck,
# every play gets stuck, at the same operations. (With two blocks that wait for one counter, or more
# blocks at a barrier than it waits for, the faster ones would decide; these are refused.)
#
# Invariant: an edge holds in every run, not only in the one that is played. The n-th wait of a
# counter that starts at 0 has needed n raises, but which ones? If one block raises the counter, the
# first n. If several do, any n of them; so the wait is ordered after all if it needs all, and else
# after none. That is why edges of counters are drawn after the play, when the raises are complete
# (`_Counters.connect`), and why the order errs only on the side of a race that is reported.
#
# Data is the narrower relation: it passes only along edges that all carry data, so it is not the
# transitive closure of anything smaller that could be kept instead, and both are kept. Bit masks
# (32 MiB for each relation at the limit of events) and not the vector clocks of
# :mod:`simcoll.proving.races`: these need a component for every sequential chain, and here each
# thread that signals begins a new chain at every meeting of its block.
def device_order(program: DeviceProgram) -> Order:
    """Play a program and record what orders its operations.

    Raises
    ------
    ScheduleError
        For a deadlock, barriers that disagree, and signals without a wait.
    ConfigError
        For counters and semaphores that several thread blocks wait for, and for programs with too
        many operations.
    """
    _check_barriers(program)
    order = Order()
    for _ in program.blocks:
        order.begin.append(order.event())
        order.end.append(order.event())
    counters = _Counters(program, order)
    blocks = {
        (rank, block): _BlockEvents(program, order, rank, block)
        for rank, rank_blocks in enumerate(program.blocks)
        for block in range(len(rank_blocks))
    }
    _play(program, order, counters, blocks)
    for (rank, _), block in blocks.items():
        order.edge(block.fence(), order.end[rank])
    counters.connect()
    order.close()
    return order


class _BlockEvents:
    """The events of one thread block, created while it is played."""

    def __init__(self, program: DeviceProgram, order: Order, rank: int, block: int) -> None:
        self.program = program
        self.order = order
        self.rank = rank
        self.block = block
        self.entry = order.begin[rank]  # the last meeting of all threads
        self.open: list[int] = []  # events since that meeting
        self.threads: dict[int, int] = {}  # last signal or wait of each thread since that meeting
        self.moving: dict[Counter, list[int]] = {}  # transfers that proxies have not completed

    def fence(self, joined: int | None = None) -> int:
        """Let all threads meet; return the event."""
        event = self.order.event() if joined is None else joined
        for earlier in (self.entry, *self.open):
            self.order.edge(earlier, event)
        self.entry, self.open, self.threads = event, [], {}
        return event

    def add(self, thread: int | None = None) -> int:
        """Add an event of all threads, or of one."""
        event = self.order.event()
        self.order.edge(
            self.entry if thread is None else self.threads.get(thread, self.entry), event
        )
        self.open.append(event)
        if thread is not None:
            self.threads[thread] = event
        return event


class _Counters:
    """Signals and semaphores: their raises and waits, and the raises that each wait is sure to
    follow.
    """

    def __init__(self, program: DeviceProgram, order: Order) -> None:
        self.program, self.order = program, order
        # For each counter, the events that raised it, by thread block, and those that waited, with
        # the number needed.
        self.raised: dict[Hashable, list[tuple[int, int, bool]]] = defaultdict(list)
        self.taken: dict[Hashable, list[tuple[int, int, bool]]] = defaultdict(list)
        self.waiter: dict[Hashable, int] = {}

    def initial(self, key: Hashable) -> int:
        """Value before the first raise; a semaphore's key is ``(rank, number)``."""
        if isinstance(key, tuple) and len(key) == 2:
            return self.program.semaphores[key[0]][key[1]]
        return 0

    def can_take(self, key: Hashable, count: int = 1) -> bool:
        """Whether ``count`` further waits can end."""
        return len(self.raised[key]) + self.initial(key) >= len(self.taken[key]) + count

    def take(self, key: Hashable, block: int, event: int, *, data: bool, location: str) -> None:
        """Record a wait that ended."""
        if self.waiter.setdefault(key, block) != block:
            raise ConfigError(
                f"{self.program}: {location} waits for the same counter as thread block "
                f"{self.waiter[key]}; "
                "which of them continues is undefined"
            )
        self.taken[key].append((block, event, data))

    def connect(self) -> None:
        """Order each wait after the raises without which it could not have ended."""
        for key, waits in self.taken.items():
            raised, initial = self.raised[key], self.initial(key)
            single = len({block for block, _, _ in raised}) <= 1
            for number, (_, event, strict) in enumerate(waits, 1):
                needed = max(number - initial, 0)
                # Raises of one block are ordered; of raises by several blocks, a wait is sure to
                # follow only all of them.
                sure = raised[:needed] if single else raised if needed == len(raised) else []
                for _, cause, data in sure:
                    self.order.edge(cause, event, data=data and strict)

    def leftovers(self) -> Iterable[tuple[Counter, int]]:
        """Signals without a wait."""
        for key, raised in self.raised.items():
            if isinstance(key, tuple) and len(key) == 3 and len(raised) > len(self.taken[key]):
                yield key, len(raised) - len(self.taken[key])


def _check_barriers(program: DeviceProgram) -> None:
    """Refuse barriers that more thread blocks come to than they wait for: which of them meet would
    be a race.
    """
    for rank, rank_blocks in enumerate(program.blocks):
        members: dict[int, set[int]] = defaultdict(set)
        for block, operations in enumerate(rank_blocks):
            for operation in operations:
                if operation.barrier is not None:
                    members[operation.barrier[0]].add(block)
        for block, operations in enumerate(rank_blocks):
            for position, operation in enumerate(operations):
                if operation.barrier is None:
                    continue
                number, count = operation.barrier
                if len(members[number]) > count:
                    raise ScheduleError(
                        f"{program}: {where(program, rank, block, position)}: "
                        f"{len(members[number])} thread blocks of the rank come to "
                        f"barrier {number}, which waits for {count}, so which of them meet depends "
                        "on their speed",
                        rank=rank,
                    )


def _play(
    program: DeviceProgram,
    order: Order,
    counters: _Counters,
    blocks: dict[tuple[int, int], _BlockEvents],
) -> None:
    """Let every block perform its operations in order until all have finished or none can
    proceed.
    """
    positions = dict.fromkeys(blocks, 0)
    meetings: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    moved = True
    while moved:
        moved = False
        for key, block in blocks.items():
            while positions[key] < len(program.blocks[key[0]][key[1]]):
                operation = program.blocks[key[0]][key[1]][positions[key]]
                if operation.barrier is not None:
                    place = (key[0], operation.barrier[0])
                    if key not in meetings[place]:
                        meetings[place].append(key)
                    if len(meetings[place]) < operation.barrier[1]:
                        break
                    _meet(program, order, blocks, meetings.pop(place), positions)
                    moved = True
                    continue
                if not _ready(operation, counters, key[0], order.packets, program.packets):
                    break
                order.played.append((*key, positions[key]))
                _do(program, order, counters, block, operation, positions[key])
                positions[key] += 1
                moved = True
    stuck = [
        key for key, position in positions.items() if position < len(program.blocks[key[0]][key[1]])
    ]
    if stuck:
        _deadlock(program, stuck, positions)
    for (src, dst, number), surplus in counters.leftovers():
        raise ScheduleError(
            f"{program}: rank {dst} never waits for {surplus} signal(s) of rank {src} on their "
            f"channel {number}; "
            "the next run would see them",
            rank=dst,
        )


def _meet(
    program: DeviceProgram,
    order: Order,
    blocks: dict[tuple[int, int], _BlockEvents],
    members: list[tuple[int, int]],
    positions: dict[tuple[int, int], int],
) -> None:
    """Let all members of a barrier proceed."""
    event = order.event()
    counts = set()
    for key in members:
        operation = program.blocks[key[0]][key[1]][positions[key]]
        counts.add(operation.barrier)
        blocks[key].fence(event)
        order.played.append((*key, positions[key]))
        positions[key] += 1
    if len(counts) > 1:
        rank, block = members[-1]
        raise ScheduleError(
            f"{program}: {where(program, rank, block, positions[rank, block] - 1)}: thread blocks "
            "disagree on how many meet",
            rank=rank,
        )


def _ready(
    operation: DeviceOp,
    counters: _Counters,
    rank: int,
    filled: Mapping[tuple[int, int], int],
    packets: int,
) -> bool:
    keys: list[Hashable] = [*operation.waits, *((rank, number) for number in operation.acquires)]
    if not all(counters.can_take(key, keys.count(key)) for key in keys):
        return False
    return all(
        (region.rank, cell) in filled
        for region in operation.reads
        if region.cell >= packets
        for cell in region.cells
    )


def _do(
    program: DeviceProgram,
    order: Order,
    counters: _Counters,
    block: _BlockEvents,
    operation: DeviceOp,
    position: int,
) -> None:
    """Create the events of an operation."""
    location = where(program, block.rank, block.block, position)
    if operation.fence:
        block.fence()
    moved = []
    for reads, writes in _cells(operation):
        event = moving = block.add()
        if operation.proxies:
            moving = order.event()
            order.edge(event, moving)
        for cell in reads:
            # Reading a packet shows that it was written, and nothing else about its writer.
            if cell in order.packets:
                order.edge(order.packets[cell], event, data=False)
        order.packets |= {cell: moving for cell in writes if cell[1] >= program.packets}
        order.accesses += [
            Access(moving, cell, of_writes, location)
            for of_writes, cells in ((False, reads), (True, writes))
            for cell in cells
        ]
        moved.append(moving)
        for counter in operation.proxies:
            block.moving.setdefault(counter, []).append(moving)
    data = not operation.relaxed
    for thread, counter in enumerate(operation.signals):
        event = block.add(thread)
        if operation.proxied:
            request, event = event, order.event()
            order.edge(request, event)
            moved = block.moving.get(counter, [])
            block.moving[counter] = [event]
        for transfer in moved:
            order.edge(transfer, event)
        counters.raised[counter].append((block.block, event, data))
    for thread, counter in enumerate(operation.waits):
        counters.take(counter, block.block, block.add(thread), data=data, location=location)
    for thread, number in enumerate(operation.releases):
        counters.raised[block.rank, number].append((block.block, block.add(thread), True))
    for thread, number in enumerate(operation.acquires):
        counters.take(
            (block.rank, number), block.block, block.add(thread), data=True, location=location
        )


def _cells(operation: DeviceOp) -> Iterator[tuple[list[tuple[int, int]], list[tuple[int, int]]]]:
    """The reads and writes of each cell of an operation; different cells are independent."""
    if operation.how == EACH:
        groups = [
            ([source], [target])
            for source, target in zip(operation.reads, operation.writes, strict=True)
        ]
    else:
        groups = [(list(operation.reads), list(operation.writes))] if operation.how else []
    for reads, writes in groups:
        for offset in range(reads[0].count):
            yield (
                [(region.rank, region.cell + offset) for region in reads],
                [(region.rank, region.cell + offset) for region in writes],
            )


def _deadlock(
    program: DeviceProgram, stuck: list[tuple[int, int]], positions: dict[tuple[int, int], int]
) -> NoReturn:
    lines = []
    for rank, block in stuck[:8]:
        operation = program.blocks[rank][block][positions[rank, block]]
        causes = [
            *(f"signal {number} of rank {src}" for src, _, number in operation.waits),
            *(f"semaphore {number}" for number in operation.acquires),
            *(
                [f"barrier {operation.barrier[0]} of {operation.barrier[1]} blocks"]
                if operation.barrier
                else []
            ),
        ] or ["packets"]
        lines.append(
            f"  {where(program, rank, block, positions[rank, block])} waits for {', '.join(causes)}"
        )
    remainder = f"\n  and {len(stuck) - 8} more" if len(stuck) > 8 else ""
    raise ScheduleError(
        f"{program}: deadlock: {len(stuck)} thread blocks cannot go on\n"
        + "\n".join(lines)
        + remainder,
        rank=stuck[0][0],
    )
