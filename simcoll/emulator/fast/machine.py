"""Runs the loops of the fast engine: feeds them steps, takes back what is over, and makes their arrays larger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.emulator.fast.calendar import rehash
from simcoll.emulator.fast.kernel import index_lanes, load, run, wait_for
from simcoll.emulator.fast.state import (
    ARGUMENT,
    CHAIN,
    CLOCK,
    DELIVERED,
    DEPTH,
    DONE,
    EDGE,
    FULL,
    HASHED,
    HEAP,
    IDLE,
    LAST,
    MAX,
    NEED_STEP,
    NO_RATE,
    NOW,
    REGISTERS,
    RETIRED,
    STACK,
    WIDTH,
    State,
)
from simcoll.emulator.model import checked_time
from simcoll.errors import ConfigError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from simcoll.emulator.fast.timed import Timed

    Ints = NDArray[np.int64]

__all__ = ["Machine"]

PER_SLOT = (
    "sender", "receiver", "src", "dst", "pre_fs", "wire", "post_fs", "size", "block", "ring_place", "needs", "phase",
    "follower", "waiters", "start_fs", "end_fs", "done_fs", "left", "rate", "since_fs", "finish_fs", "key", "before",
    "after", "limits", "weights", "started", "moving",
)  # fmt: skip
PER_NODE = ("node_lane", "node_next", "node_first", "node_end", "entries")
PER_BLOCK = ("block_base", "block_rows", "block_nodes", "block_left", "block_first_id", "retired")
PER_LANE = ("lane_left", "lane_pending", "lane_block", "lane_head", "lane_tail", "stack")
PER_LINK = ("capacity", "level", "used", "flows", "head", "queued", "marked", "queue", "changed", "touched")
MOST_ENTRIES = 2**31 - 1
"""Entries are numbered by int32."""
AHEAD_ROWS, AHEAD_STEPS = 2048, 256
"""How far the plan is loaded ahead, so that one call of the loops is worth its cost."""


def _types() -> dict[str, type]:
    wide = {
        "pre_fs", "wire", "post_fs", "size", "ring_place", "start_fs", "end_fs", "done_fs", "rate", "since_fs", "finish_fs",
        "key", "limits", "weights", "weight", "block_first_id", "lane_left", "capacity", "level", "used", "flows", "heap",
        "table_key", "ring_count", "reg",
    }  # fmt: skip
    special = {"left": np.float64, "sums": np.uint64}
    return {name: special.get(name, np.int64 if name in wide else np.int32) for name in State._fields}


def _longer(array: NDArray[np.generic], length: int) -> NDArray[np.generic]:
    result = np.zeros(length, array.dtype)
    result[: len(array)] = array
    return result


class Machine:
    """Plays timed steps on links.

    Parameters
    ----------
    capacities_uBps
        Of every link, channel caps included.
    lane_steps
        Steps that each lane takes part in.
    depth
        ``fifo_depth`` of the protocol.
    hashed
        Whether the trace hash is computed.
    steps
        Groups of steps and how often each comes (:func:`simcoll.emulator.fast.timed.timed_steps`).
    waits
        Messages that each message waits for.
    over
        Told of every step that is over: number of its first message, start, end and done time of its messages (views that
        do not last).
    """

    def __init__(
        self,
        capacities_uBps: Ints,
        lane_steps: Ints,
        steps: Iterator[tuple[tuple[Timed, ...], int]],
        *,
        launch_fs: int = 0,
        depth: int = 0,
        hashed: bool = True,
        waits: Mapping[int, tuple[int, ...]] | None = None,
        over: Callable[[int, Timed, Ints, Ints, Ints], None] | None = None,
    ) -> None:
        self.steps = _singles(steps)
        self.left_of_run: tuple[Timed, int] | None = None
        self.over = over
        self.bytes_by_op = [0, 0, 0, 0, 0]
        self.loaded_wire = 0
        self.next_id = 0
        self.contents: list[Timed | None] = []
        self.room: list[int] = []  # rows that a block can hold
        self.free: dict[int, dict[Timed, list[int]]] = {}
        self.slots_used = 0
        self.connections: dict[tuple[int, int], int] = {}
        self.waits = dict(waits or {})
        self.waiting = np.array(sorted(self.waits), np.int64)
        self.live: dict[int, tuple[int, int]] = {}  # first message of a block under way: block, rows
        kinds = _types()
        sizes = dict.fromkeys(PER_LANE, len(lane_steps)) | dict.fromkeys(PER_LINK, len(capacities_uBps))
        sizes |= {"reg": REGISTERS, "sums": 2, "heap": 64, "table_key": 128, "table_head": 128}
        self.state = State(**{name: np.zeros(sizes.get(name, 0), kinds[name]) for name in State._fields})
        s = self.state
        s.reg[NOW] = s.reg[LAST] = launch_fs
        s.reg[CHAIN] = s.reg[EDGE] = -1
        s.reg[DEPTH], s.reg[HASHED] = depth, hashed
        s.capacity[:] = capacities_uBps
        s.level[:] = MAX
        s.lane_left[:] = lane_steps
        for name in ("head", "lane_block", "lane_head", "table_key"):
            getattr(s, name)[:] = -1
        busy = np.flatnonzero(lane_steps)
        s.stack[: len(busy)] = busy
        s.reg[STACK] = len(busy)

    @property
    def time_fs(self) -> int:
        """When the last message was done; the launch, if there is none."""
        return int(self.state.reg[LAST])

    @property
    def messages(self) -> int:
        """Messages that are done."""
        return int(self.state.reg[DONE])

    def hexdigest(self) -> str:
        """The trace hash (:class:`simcoll.emulator.digest.TraceHash`)."""
        return "".join(f"{int(value):016x}" for value in self.state.sums)

    def play(self, link_name: Callable[[int], str]) -> None:
        """Run to the end.

        Raises
        ------
        ConfigError
            When a link has nothing to give or time runs beyond the clock.
        InternalError
            When a lane is stuck or a check fails.
        """
        while True:
            stop = run(self.state)
            self._take_back()
            if stop == IDLE:
                break
            if stop == NEED_STEP:
                lane = int(self.state.reg[ARGUMENT])
                while self.state.lane_head[lane] < 0:
                    self._feed(lane)
            elif stop == FULL:
                self._grow_calendar()
            else:
                self._refuse(stop, link_name)
        s = self.state
        stuck = int(np.count_nonzero(s.lane_left) + np.count_nonzero(s.lane_pending))
        if stuck or (np.array(self.loaded_wire % 2**64, np.uint64).view(np.int64) != s.reg[DELIVERED]):
            raise InternalError(
                f"{stuck} lanes are stuck at {s.reg[NOW]} fs; links delivered {s.reg[DELIVERED]} of {self.loaded_wire} bytes"
            )

    def _refuse(self, stop: int, link_name: Callable[[int], str]) -> None:
        s, what = self.state, int(self.state.reg[ARGUMENT])
        now, width = int(s.reg[NOW]), int(s.reg[WIDTH])
        if stop == NO_RATE:
            links = [int(l) for l in s.link[what * width : (what + 1) * width] if l >= 0]
            link = min(links, key=lambda l: int(s.level[l]))
            raise ConfigError(
                f"link {link_name(link)}: {s.flows[link]} flows share {s.capacity[link]} micro-bytes per second, which "
                "leaves nothing for each; expected a larger capacity"
            )
        if stop == CLOCK:
            checked_time(now + max(what, MAX - now + 1))
        raise InternalError(f"link {link_name(what)} carries {s.used[what]} uBps of {s.capacity[what]} at {now} fs")

    # ---- feeding

    def _feed(self, lane: int) -> None:
        """Load some more steps."""
        rows = steps = 0
        while rows < AHEAD_ROWS and steps < AHEAD_STEPS:
            timed, times = self.left_of_run or next(self.steps, (None, 0))
            if timed is None:
                if steps:
                    return
                raise InternalError(
                    f"lane {lane} expects {self.state.lane_left[lane]} more steps, but the plan has ended"
                )
            count = min(times, AHEAD_STEPS - steps, max(1, -(-(AHEAD_ROWS - rows) // len(timed))))
            self.left_of_run = (timed, times - count) if times > count else None
            blocks = [self._block(timed) for _ in range(count)]
            load(self.state, np.array(blocks, np.int64), self.next_id)
            if self.waits:
                self._wait(blocks, len(timed))
            self.next_id += count * len(timed)
            self.loaded_wire += count * int(timed.wire.sum())
            rows += count * len(timed)
            steps += count

    def _block(self, timed: Timed) -> int:
        """A block that holds a step."""
        size = 1 << (len(timed) - 1).bit_length()
        pool = self.free.setdefault(size, {})
        mine = timed if timed in pool else next(iter(pool), None)
        if mine is None:
            block = self._new_block(size)
        else:
            block = pool[mine].pop()
            if not pool[mine]:
                del pool[mine]
        if self.contents[block] is not timed:
            self._fill(block, timed)
        return block

    def _new_block(self, size: int) -> int:
        block, base = len(self.contents), self.slots_used
        self.contents.append(None)
        self.room.append(size)
        self.slots_used += size
        if self.slots_used > len(self.state.phase):
            self._grow_slots(2 * self.slots_used)
        if block >= len(self.state.block_base):
            self._lengthen(PER_BLOCK, 2 * block + 64)
        self.state.block_base[block] = base
        self.state.block[base : base + size] = block
        return block

    def _fill(self, block: int, timed: Timed) -> None:
        before = self.contents[block]
        self.contents[block] = timed
        base, rows, shape = int(self.state.block_base[block]), len(timed), timed.shape
        if shape.links.shape[1] > self.state.reg[WIDTH]:
            self._widen(shape.links.shape[1])
        s = self.state
        here = slice(base, base + rows)
        s.block_rows[block] = rows
        s.pre_fs[here], s.wire[here], s.post_fs[here], s.size[here] = (
            timed.pre_fs,
            timed.wire,
            timed.post_fs,
            timed.size,
        )
        if before is not None and before.shape is shape:
            return
        s.sender[here], s.receiver[here], s.src[here], s.dst[here] = shape.sender, shape.receiver, shape.src, shape.dst
        width, hops = int(s.reg[WIDTH]), shape.links.shape[1]
        place = slice(base * width, (base + rows) * width)
        s.link[place] = -1
        s.link[place].reshape(rows, width)[:, :hops] = shape.links
        s.weight[place].reshape(rows, width)[:, :hops] = shape.weight
        index_lanes(s, block, np.zeros(len(s.lane_left), np.int32))
        if s.reg[DEPTH]:
            self._connect(here, shape.sender.tolist(), shape.receiver.tolist())

    def _connect(self, here: slice, senders: list[int], receivers: list[int]) -> None:
        """Number the connections of a block."""
        known, depth = self.connections, int(self.state.reg[DEPTH])
        numbers = [known.setdefault(pair, len(known)) for pair in zip(senders, receivers, strict=True)]
        if len(known) > len(self.state.ring_count):
            old = len(self.state.ring)
            self._lengthen(("ring_count",), 2 * len(known))
            self._lengthen(("ring",), 2 * len(known) * depth)
            self.state.ring[old:] = -1
        self.state.ring_place[here] = np.array(numbers, np.int64) * depth

    def _wait(self, blocks: list[int], rows: int) -> None:
        """Let the messages of blocks just loaded wait for earlier ones."""
        first = self.next_id
        for turn, block in enumerate(blocks):
            self.live[first + turn * rows] = block, rows
        begin, end = np.searchsorted(self.waiting, [first, first + len(blocks) * rows])
        slots = [
            (slot, self._slot(later))
            for later in self.waiting[begin:end].tolist()
            for earlier in self.waits[later]
            if (slot := self._slot(earlier)) >= 0
        ]
        if not slots:
            return
        self._grow_edges(len(slots))
        pairs = np.array(slots, np.int64)
        wait_for(self.state, np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]))

    def _slot(self, message: int) -> int:
        """Where a message is; -1 if it is over with its whole step."""
        for first, (block, rows) in self.live.items():
            if first <= message < first + rows:
                return int(self.state.block_base[block]) + message - first
        return -1

    def _take_back(self) -> None:
        s = self.state
        count = int(s.reg[RETIRED])
        s.reg[RETIRED] = 0
        for block in s.retired[:count].tolist():
            timed = self.contents[block]
            if timed is None:
                raise InternalError(f"block {block} is over, but was never filled")
            for op, moved in enumerate(timed.bytes_by_op):
                self.bytes_by_op[op] += moved
            first = int(s.block_first_id[block])
            if self.waits:
                del self.live[first]
            if self.over is not None:
                here = slice(int(s.block_base[block]), int(s.block_base[block]) + len(timed))
                self.over(first, timed, s.start_fs[here], s.end_fs[here], s.done_fs[here])
            self.free[self.room[block]].setdefault(timed, []).append(block)

    # ---- growing

    def _lengthen(self, names: tuple[str, ...], length: int) -> None:
        longer: dict[str, Any] = {name: _longer(getattr(self.state, name), length) for name in names}
        self.state = self.state._replace(**longer)

    def _grow_slots(self, slots: int) -> None:
        self._check_room(slots, int(self.state.reg[WIDTH]))
        self._lengthen(PER_SLOT, slots)
        self._lengthen(PER_NODE, 2 * slots)
        self._lengthen(("link", "weight", "next_flow", "last_flow"), slots * int(self.state.reg[WIDTH]))
        self._grow_calendar()

    def _check_room(self, slots: int, width: int) -> None:
        if slots * max(width, 4) > MOST_ENTRIES:
            raise ConfigError(
                f"{slots} messages at once, over up to {width} links each, are too many for the fast engine; expected less than "
                f"{MOST_ENTRIES // max(width, 4)}"
            )

    def _grow_calendar(self) -> None:
        """Room for the times of all slots, twice over."""
        size = 64
        while size < int(self.state.reg[HEAP]) + 4 * len(self.state.phase):
            size *= 2
        self._lengthen(("heap",), size)
        self.state = self.state._replace(
            table_key=np.full(2 * size, -1, np.int64), table_head=np.full(2 * size, -1, np.int32)
        )
        rehash(self.state)

    def _grow_edges(self, wanted: int) -> None:
        s = self.state
        at, count = int(s.reg[EDGE]), 0
        while at >= 0 and count < wanted:
            at, count = int(s.edge_next[at]), count + 1
        if count >= wanted:
            return
        old = len(s.edge_next)
        new = 2 * old + wanted
        self._lengthen(("edge_next", "edge_slot"), new)
        s = self.state
        s.edge_next[old:new] = np.arange(old + 1, new + 1)
        s.edge_next[new - 1] = s.reg[EDGE]
        s.reg[EDGE] = old

    def _widen(self, width: int) -> None:
        """More links per message; entries of links move."""
        s, old = self.state, int(self.state.reg[WIDTH])
        slots = len(s.phase)
        self._check_room(slots, width)

        def moved(entries: NDArray[np.int32]) -> NDArray[np.int32]:
            return np.where(entries < 0, -1, entries // max(old, 1) * width + entries % max(old, 1)).astype(np.int32)

        fresh: dict[str, Any] = {}
        for name in ("link", "weight", "next_flow", "last_flow"):
            wider = np.full((slots, width), -1, getattr(s, name).dtype)
            wider[:, :old] = getattr(s, name).reshape(slots, old)
            fresh[name] = wider.reshape(-1)
        self.state = s._replace(**fresh)
        self.state.next_flow[:] = moved(self.state.next_flow)
        self.state.last_flow[:] = moved(self.state.last_flow)
        self.state.head[:] = moved(self.state.head)
        self.state.reg[WIDTH] = width


def _singles(steps: Iterator[tuple[tuple[Timed, ...], int]]) -> Iterator[tuple[Timed, int]]:
    """Steps one by one; a group of one keeps how often it comes."""
    for group, times in steps:
        if len(group) == 1:
            yield group[0], times
        else:
            for _ in range(times):
                yield from ((step, 1) for step in group)
