"""The driver of the fast engine: feeds steps to the loops and collects finished ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Array, Ints
from simcoll.emulator.fast.block_rows import BlockRows, rows_of
from simcoll.emulator.fast.compiled import announce_compiling
from simcoll.emulator.fast.filling import index_blocks, wait_for
from simcoll.emulator.fast.loading import load
from simcoll.emulator.fast.loops import run
from simcoll.emulator.fast.refusing import check_clock, check_end, refuse
from simcoll.emulator.fast.room import (
    PER_BLOCK,
    PER_CONNECTION,
    edges,
    extend_arrays,
    larger_calendar,
    more_hops,
    more_rings,
    more_slots,
    new_state,
)
from simcoll.emulator.fast.state import (
    AGAIN,
    ARGUMENT,
    BOTH,
    CHANGE,
    CONTENT,
    CUT,
    DONE,
    EAGER,
    FULL,
    HASHED,
    IDLE,
    LAST,
    MOVE,
    NEED_STEP,
    NEXT_ID,
    RECORD,
    RETIRED,
    SWITCHED,
    WAIT,
)
from simcoll.emulator.steps.joint import partners
from simcoll.emulator.steps.roles import RECORDS, WAITS
from simcoll.emulator.steps.timed import StepShape, Timed
from simcoll.errors import InternalError

if TYPE_CHECKING:
    from simcoll.emulator.fast.changing import Changes


__all__ = ["StepMachine"]

RULES = {RECORDS: RECORD, WAITS: WAIT}
"""The rule of all slots of a step, by the role of the step; default by its FIFO depth."""
AHEAD_ROWS, AHEAD_STEPS = 512, 256
"""Limits of loading ahead, so that one call of the loops is worth its cost. More rows crowd the
caches: with 64, 512, 2,048 and 8,192 rows a ring of 64 ranks takes 1.7, 2.1, 3.6 and 8.0 ms, one of
256 with jitter 47, 43, 40 and 42 ms, a pairwise exchange of 256 41, 39, 37 and 39 ms. From 64 steps
on, chains of 1,000 pieces take the same time.
"""

LEAST_STEPS_AHEAD, MOST_ROWS_AHEAD = 4, 4096
"""At least so many steps are loaded, up to a number of rows that bounds the memory. With one, two,
four and eight steps a call, each message of a ring of 1,024 ranks on DGX H100 takes 623, 582, 531
and 550 ms in all, one of 512 ranks 200, 187, 167 and 166.
"""

ROWS_TO_COPY = 64
"""Steps of fewer rows on average are filled in one go: a copy into a slice of its own costs a
microsecond for each column, however few its rows.
"""

MOST_WINDOWS = 16
"""Where ranks are at steps far apart, as in the stages of a pipeline, few windows finish: the 2.0
million classes of a step of 4 stages would take 1.6 GB.
"""

LARGE_ROWS, FINE_BITS = 1 << 10, 4
"""Blocks of more rows are whole multiples of a sixteenth of the next power of two."""

RESERVED_SLOTS, MOST_RESERVED = 1 << 17, 1 << 23
"""A run that has more slots than the first, and fewer messages than the second, gets room for all
of them at once: memory that is not used costs nothing, and each growth costs a copy, beside which
the old columns live on (torus of 8,192 ranks, 2 KiB, 6.4 million messages of which most wait for
steps far ahead: a third of the memory).
"""

SPARE = 2048
"""Least growth of slots and hops, up to four times as many in long runs: each growth costs as much
as playing a hundred messages.
"""

NO_LINKS_BEFORE = np.zeros(1, np.int64)
"""Where the links of a single step begin."""
ALL_ONE = np.zeros(0, np.int32)
"""Weights of links that are all 1."""


@dataclass(slots=True, eq=False)
class PartBlocks:
    """Blocks for a part of a run, with adjacent slots and hops from ``base`` and ``hop`` on. They
    are freed together, when the steps of all have finished.
    """

    blocks: Ints
    base: int
    rows: int
    hop: int = 0
    hops: int = 0


@dataclass(eq=False)
class RunInParts:
    """A run that is loaded in parts: its distinct steps, and which of them each part holds.

    The windows of parts that have finished hold later ones, so that memory grows with the steps in
    flight.
    """

    steps: Sequence[Timed]
    parts: Iterator[Ints]
    windows: list[PartBlocks] = field(default_factory=list)
    latest: PartBlocks | None = None

    @cached_property
    def lengths(self) -> Ints:
        """Number of rows of each step."""
        return np.array([len(step) for step in self.steps], np.int64)


class StepMachine:
    """Plays timed steps on links.

    Parameters
    ----------
    capacities_uBps
        Capacity of every link, including channel caps.
    lane_steps
        Number of steps that each lane takes part in.
    fifo
        Whether any step has FIFOs.
    hashed
        Whether the trace hash is computed.
    steps
        Groups of steps with their repetitions (:func:`simcoll.emulator.steps.timed.timed_steps`).
    waits
        Pairs of messages, in order, the first of which waits for the second.
    on_step
        Called for every finished step with the number of its first message and the start, end and
        done times of its messages (temporary views).
    changes
        The changes by events during the run.
    most_messages
        The number of messages of the run, if known: no room is made for many more.
    """

    def __init__(
        self,
        capacities_uBps: Ints,
        lane_steps: Ints,
        steps: Iterator[tuple[tuple[Timed, ...], int]],
        *,
        launch_fs: int = 0,
        fifo: bool = False,
        hashed: bool = True,
        waits: tuple[Array, Array] | None = None,
        on_step: Callable[[int, Timed, Ints, Ints, Ints], None] | None = None,
        changes: Changes | None = None,
        most_messages: int | None = None,
    ) -> None:
        self.most_messages = most_messages
        self.steps = _singles(steps)
        self.rest_of_run: tuple[Timed, int] | None = None
        # Later and earlier messages.
        self.waits = waits or (np.zeros(0, np.int64), np.zeros(0, np.int64))
        self.sees_all = bool(on_step or len(self.waits[0]))
        self.on_step = on_step
        self.bytes_by_op = [0, 0, 0, 0, 0]
        self.loaded_wire = 0
        self.contents: list[Timed | None] = []
        # Blocks that hold new steps, with what each held before.
        self.unfilled: list[tuple[int, Timed | None]] = []
        self.wire: list[int] = []  # bytes of the contents
        self.room: list[int] = []  # capacity of a block in rows
        self.hop_room: list[int] = []
        self.hops_used = 0
        self.free: dict[int, dict[Timed, list[int]]] = {}
        self.ahead: RunInParts | None = None
        self.spare = min(max(SPARE, int(lane_steps.sum())), 4 * SPARE)
        # And the connections of its rows.
        self.latest: tuple[StepShape | None, Ints] = (None, np.zeros(0, np.int64))
        self.ring_used = 0
        self.lanes_seen = np.zeros(len(lane_steps), np.int32)
        # Names, ascending, and numbers.
        self.connections = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        self.live: dict[int, tuple[int, int]] = {}  # blocks in flight by first message: block, rows
        self.state = new_state(capacities_uBps, lane_steps, launch_fs, fifo=fifo)
        self.state.reg[HASHED] = hashed
        self.state = edges(self.state, len(self.waits[0]))
        self.slots_used = len(self.state.phase)  # timers
        self.allocated = 0  # blocks that have their slots
        self.changes = changes
        if changes is not None:
            changes.begin(self)

    @property
    def time_fs(self) -> int:
        """Completion time of the last message; that of the launch if there is none."""
        return int(self.state.reg[LAST])

    @property
    def messages(self) -> int:
        """Number of completed messages."""
        return int(self.state.reg[DONE])

    @property
    def through(self) -> bool:
        """Whether all lanes have finished."""
        return not self.state.lane_left.any() and not self.state.lane_pending.any()

    def hexdigest(self) -> str:
        """The trace hash (:class:`simcoll.emulator.digest.TraceHash`)."""
        return "".join(f"{int(value):016x}" for value in self.state.sums)

    def play(self, link_name: Callable[[int], str]) -> None:
        """Run to the end, or until events end the run.

        Raises
        ------
        ConfigError
            When a link has no capacity left or time exceeds the range of the clock.
        InternalError
            When a lane is stuck or a check fails.
        """
        with announce_compiling(run):
            self._loop(link_name)
        check_clock(self.state)
        if self.changes is None or self.through:
            check_end(self.state, self.loaded_wire)

    def _loop(self, link_name: Callable[[int], str]) -> None:
        while True:
            self._offer()
            stop = run(self.state)
            self._take_back()
            if stop in {IDLE, CUT}:
                return
            if stop == NEED_STEP:
                lane = int(self.state.reg[ARGUMENT])
                while self.state.lane_head[lane] < 0:
                    if self.ahead is None or not self._load_part(self.ahead):
                        self._feed(lane)
            elif stop == FULL:
                self.state = larger_calendar(self.state)
            elif self.changes is not None and stop in {CHANGE, MOVE}:
                self.changes.apply(self, stop)
            else:
                refuse(self.state, stop, link_name)

    # ---- loading

    def _feed(self, lane: int) -> None:
        """Load some more steps."""
        rows = steps = 0
        blocks: list[int] = []
        while steps < AHEAD_STEPS and rows < (
            AHEAD_ROWS if steps >= LEAST_STEPS_AHEAD else MOST_ROWS_AHEAD
        ):
            timed, times = self.rest_of_run or next(self.steps, (None, 0))
            if timed is None:
                if steps:
                    break
                raise InternalError(
                    f"lane {lane} expects {self.state.lane_left[lane]} more steps, but the plan "
                    "has ended"
                )
            until_enough = -(-(AHEAD_ROWS - rows) // len(timed))
            until_most = -(-(MOST_ROWS_AHEAD - rows) // len(timed))
            repeats = max(1, until_enough, min(LEAST_STEPS_AHEAD - steps, until_most))
            count = min(times, AHEAD_STEPS - steps, repeats)
            self.rest_of_run = (timed, times - count) if times > count else None
            blocks += [self._block(timed) for _ in range(count)]
            self._count(timed, count, self.wire[blocks[-1]])
            if len(self.waits[0]):
                first_message = int(self.state.reg[NEXT_ID])
                self._load(blocks)
                self._wait(blocks, first_message, len(timed))
                blocks = []
            rows += count * len(timed)
            steps += count
        self._load(blocks)

    def load_parts(self, steps: Sequence[Timed], parts: Iterator[Ints]) -> None:
        """Load a run in parts of many steps, instead of step by step.

        Parameters
        ----------
        steps
            Its distinct steps.
        parts
            Which of them follow each other, part by part.
        """
        self.ahead = RunInParts(steps, parts)

    def _load_part(self, ahead: RunInParts) -> bool:
        """Load the next part of a run; False at its end, and where that takes too much room: what
        remains is then loaded step by step.
        """
        order = next((part for part in ahead.parts if len(part)), None)
        if order is None:
            return False
        numbers, place = np.unique(order, return_inverse=True)
        steps = [ahead.steps[number] for number in numbers.tolist()]
        lengths = ahead.lengths[order]
        window = self._window(ahead, len(order), int(lengths.sum()))
        if window is None:
            parts = chain([order], ahead.parts)
            turns_of = groupby(chain.from_iterable(part.tolist() for part in parts))
            self.steps = ((ahead.steps[number], len(list(turns))) for number, turns in turns_of)
            self.ahead = None
            return False
        ahead.latest = window
        blocks, bases = window.blocks[: len(order)], window.base + np.cumsum(lengths) - lengths
        self.state.block_base[blocks] = bases
        self.state.block[window.base : window.base + int(lengths.sum())] = np.repeat(
            blocks, lengths
        )
        begin, end = int(blocks[0]), int(blocks[-1]) + 1
        self.contents[begin:end] = map(ahead.steps.__getitem__, order.tolist())
        rows = BlockRows(blocks, bases, steps, place)
        self._price(rows)
        self._shape(rows)
        load(self.state, blocks)
        for step, times in zip(steps, np.bincount(place).tolist(), strict=True):
            self._count(step, times, int(step.wire.sum()))
        return True

    def _window(self, ahead: RunInParts, blocks: int, rows: int) -> PartBlocks | None:
        """A window for a part: one whose steps have finished, or a new one; None if there are too
        many.
        """
        for window in ahead.windows:
            fits = blocks <= len(window.blocks) and rows <= window.rows
            if fits and not self.state.block_left[window.blocks].any():
                return window
        if len(ahead.windows) == MOST_WINDOWS:
            return None
        # Powers of two fit later parts, too.
        blocks, rows = 1 << (blocks - 1).bit_length(), 1 << (rows - 1).bit_length()
        begin, base = len(self.contents), self.slots_used
        self.contents += [None] * blocks
        for column in (self.wire, self.room, self.hop_room):
            column.extend([0] * blocks)
        self.allocated = len(self.contents)
        self.slots_used += rows
        if self.slots_used > len(self.state.phase):
            self.state = more_slots(self.state, self.slots_used + rows)
        if len(self.contents) > len(self.state.block_base):
            self.state = extend_arrays(self.state, PER_BLOCK, 2 * len(self.contents) + 64)
        self.state.waiters[base : base + rows] = -1
        window = PartBlocks(np.arange(begin, begin + blocks), base, rows)
        ahead.windows.append(window)
        return window

    def _load(self, blocks: list[int]) -> None:
        """Fill what is new in blocks, and queue their messages at the lanes."""
        self._allocate()
        filling, self.unfilled = self.unfilled, []
        if sum(len(self._content(block)) for block, _ in filling) >= ROWS_TO_COPY * len(filling):
            for block in filling:
                self._fill([block])
        else:
            self._fill(filling)
        load(self.state, np.array(blocks, np.int64))

    def _content(self, block: int) -> Timed:
        content = self.contents[block]
        if content is None:
            raise InternalError(f"block {block} is in use, but holds no step")
        return content

    def _count(self, timed: Timed, times: int, wire: int) -> None:
        """Account for a loaded step with ``wire`` bytes on the wire."""
        self.loaded_wire += times * wire
        for op, moved in enumerate(timed.bytes_by_op):
            self.bytes_by_op[op] += times * moved

    def _offer(self) -> None:
        """Let the loops reload a repeated step themselves, unless each iteration must be
        reported.
        """
        if self.rest_of_run is not None and not self.sees_all:
            self.state.reg[CONTENT], self.state.reg[AGAIN] = (
                id(self.rest_of_run[0]),
                self.rest_of_run[1],
            )

    def _block(self, timed: Timed) -> int:
        """A block for a step, which :meth:`_load` fills."""
        # A block of a rounded size fits many steps; one that already holds this step need not be
        # filled.
        size = _block_rows(len(timed))
        pool = self.free.setdefault(size, {})
        mine = timed if timed in pool else next(iter(pool), None)
        if mine is None:
            block = len(self.contents)
            self.contents.append(None)
            self.wire.append(0)
            self.room.append(size)
            self.hop_room.append(0)
        else:
            block = pool[mine].pop()
            if not pool[mine]:
                del pool[mine]
        previous = self.contents[block]
        if previous is not timed:
            self.contents[block], self.wire[block] = timed, int(timed.wire.sum())
            self.unfilled.append((block, previous))
        return block

    def _allocate(self) -> None:
        """Give new blocks their slots, with room for more."""
        begin, end = self.allocated, len(self.contents)
        if begin == end:
            return
        sizes = np.array(self.room[begin:], np.int64)
        base, self.slots_used = self.slots_used, self.slots_used + int(sizes.sum())
        if self.slots_used > len(self.state.phase):
            ahead = self._slots_ahead()
            self.state = more_slots(self.state, self.slots_used + ahead)
        if end > len(self.state.block_base):
            self.state = extend_arrays(self.state, PER_BLOCK, 2 * end + 64)
        s, slots = self.state, slice(base, self.slots_used)
        s.block_base[begin:end] = base + np.cumsum(sizes) - sizes
        s.block[slots] = np.repeat(np.arange(begin, end), sizes)
        s.waiters[slots] = -1
        self.allocated = end

    def _slots_ahead(self) -> int:
        """Room for further messages, but hardly for more than the run has."""
        ahead, used = max(self.spare, self.slots_used // 2), self.slots_used
        if self.most_messages is None:
            return ahead
        unused = len(self.state.level) + self.most_messages + self.most_messages // 8 - used
        unused = max(unused, self.spare, used // 16)
        return unused if self._reserves else min(ahead, unused)

    @property
    def _reserves(self) -> bool:
        """Whether the run gets room for all its messages at once."""
        return (
            self.most_messages is not None
            and self.most_messages <= MOST_RESERVED
            and self.slots_used > RESERVED_SLOTS
        )

    def _hops_ahead(self) -> int:
        """Room for the hops of further messages: as many for each free slot as for those in use."""
        free = len(self.state.phase) - self.slots_used
        likely = self.hops_used * free // self.slots_used + self.hops_used // 16
        return max(self.spare, likely if self._reserves else min(likely, self.hops_used // 2))

    def _fill(self, filling: list[tuple[int, Timed | None]]) -> None:
        """Fill blocks with their steps; each comes with the step that it held before."""
        if not filling:
            return
        blocks = [block for block, _ in filling]
        steps = [self._content(block) for block in blocks]
        rows = rows_of(blocks, self.state.block_base, steps)
        self._price(rows)
        reshaped = [
            (block, step)
            for (block, previous), step in zip(filling, steps, strict=True)
            if previous is None or previous.shape is not step.shape
        ]
        if len(reshaped) == len(filling):
            self._shape(rows)
        elif reshaped:
            blocks, steps = [block for block, _ in reshaped], [step for _, step in reshaped]
            self._shape(rows_of(blocks, self.state.block_base, steps))

    def _price(self, rows: BlockRows) -> None:
        """Give blocks the costs of their steps."""
        s, steps, place = self.state, rows.steps, rows.place
        # The address of a step identifies it: ``contents`` keeps it alive, so no other step can
        # have the address.
        s.block_content[place] = rows.of_blocks([id(step) for step in steps])
        s.block_rows[place] = rows.of_blocks([len(step) for step in steps])
        s.block_role[place] = rows.of_blocks([step.role for step in steps])
        s.block_connected[place] = rows.of_blocks([step.uses_connections for step in steps])
        for name in ("delay_fs", "busy_fs", "wire", "post_fs", "size"):
            getattr(s, name)[rows.slots] = rows.gather([getattr(step, name) for step in steps])

    def _shape(self, rows: BlockRows) -> None:
        """Give blocks the shapes of their steps: ranks, rules, links and connections."""
        s, steps, slots = self.state, rows.steps, rows.slots
        for name in ("sender", "receiver", "src", "dst"):
            getattr(s, name)[slots] = rows.gather([getattr(step.shape, name) for step in steps])
        s.rule[slots] = rows.gather([_rules(step) for step in steps])
        if any(step.shape.leader is not None for step in steps):
            self._lead(rows)
        self._index(rows)
        if self.changes is not None:
            for block in rows.blocks.tolist():
                self.changes.note_block(self, block)
        connected = [number for number, step in enumerate(steps) if step.uses_connections]
        if connected:
            self._connect(rows.of_steps(connected))

    def _lead(self, rows: BlockRows) -> None:
        """Join the rows of switch operations to their leaders."""
        s, base = self.state, rows.spread(rows.bases)
        leaders = [
            np.full(len(step), -1) if step.shape.leader is None else step.shape.leader
            for step in rows.steps
        ]
        following = rows.gather([partners(leader) for leader in leaders])
        is_led = rows.gather(
            [(leader >= 0) & (leader != np.arange(len(leader))) for leader in leaders]
        )
        leader = rows.gather(leaders)
        s.partner[rows.slots] = np.where(following >= 0, base + following, -1)
        s.leader[rows.slots] = np.where(is_led, base + leader, -1)
        s.rule[rows.slots] = np.where(leader >= 0, SWITCHED, s.rule[rows.slots])

    def _index(self, rows: BlockRows) -> None:
        """Give blocks their hops, and list them by message and by lane."""
        shapes = [step.shape for step in rows.steps]
        links = _one_column([shape.links.reshape(-1) for shape in shapes])
        if len(shapes) == 1:  # the usual case, for which the sums below take ten times as long
            begins = NO_LINKS_BEFORE
            if self.ahead is not None or not self._has_room(rows.blocks, links.size):
                self._give_hops(rows, np.array([np.count_nonzero(links >= 0)])[rows.order])
        else:
            sizes = np.array([shape.links.size for shape in shapes], np.int64)
            begins = np.cumsum(sizes) - sizes
            up_to = np.append(0, np.cumsum(links >= 0))
            self._give_hops(rows, (up_to[begins + sizes] - up_to[begins])[rows.order])
        weight = (
            [] if all(map(_is_plain, shapes)) else [shape.weight.reshape(-1) for shape in shapes]
        )
        # The compiled function takes writable, row-major columns.
        index_blocks(
            self.state,
            rows.blocks,
            begins[rows.order],
            np.array([shape.links.shape[1] for shape in shapes])[rows.order],
            np.require(links, np.int32, ["C", "W"]),
            np.require(_one_column(weight), np.int32, ["C", "W"]) if weight else ALL_ONE,
            self.lanes_seen,
        )

    def _has_room(self, blocks: Ints, hops: int) -> bool:
        """Whether each of some blocks has room for a number of hops."""
        return all(self.hop_room[block] >= hops for block in blocks.tolist())

    def _give_hops(self, rows: BlockRows, hops: Ints) -> None:
        """Allocate the hops of blocks; a smaller earlier allocation is abandoned, which bounds the
        total.
        """
        if self.ahead is not None and self.ahead.latest is not None:
            self._give_window_hops(self.ahead.latest, hops)
            return
        room = np.array([self.hop_room[block] for block in rows.blocks.tolist()], np.int64)
        grows = hops > room
        if not grows.any():
            return
        sizes = np.maximum(hops, 2 * room)[grows]
        begin, self.hops_used = self.hops_used, self.hops_used + int(sizes.sum())
        self.state.block_hop[rows.blocks[grows]] = begin + np.cumsum(sizes) - sizes
        for block, size in zip(rows.blocks[grows].tolist(), sizes.tolist(), strict=True):
            self.hop_room[block] = size
        self._grow_hops()

    def _give_window_hops(self, window: PartBlocks, hops: Ints) -> None:
        """Allocate the hops of a window's blocks, side by side."""
        total = int(hops.sum())
        if total > window.hops:
            window.hop, window.hops = self.hops_used, max(total, 2 * window.hops)
            self.hops_used += window.hops
            self._grow_hops()
        self.state.block_hop[window.blocks[: len(hops)]] = window.hop + np.cumsum(hops) - hops

    def _grow_hops(self) -> None:
        """Grow to the hops in use."""
        if self.hops_used > len(self.state.link):
            ahead = self._hops_ahead()
            self.state = more_hops(self.state, self.hops_used + ahead)

    def _connect(self, rows: BlockRows) -> None:
        """Number the connections of blocks, and allocate new ones."""
        steps = rows.steps
        if len(rows.order) == 1 and steps[0].shape is self.latest[0]:
            self.state.connection[rows.slots] = self.latest[1]
            return
        lanes = len(self.state.lane_left)
        names = _one_column(
            [
                shape.sender * lanes + shape.receiver
                if shape.connection is None
                else shape.connection
                for shape in (step.shape for step in steps)
            ]
        )
        distinct, first_row, place = np.unique(names, return_index=True, return_inverse=True)
        registry, numbers = self.connections
        is_new = np.append(registry, -1)[np.searchsorted(registry, distinct)] != distinct
        new = distinct[is_new]
        if len(new):
            depths = np.repeat([max(step.depth, 1) for step in steps], rows.lengths)
            sizes = depths[first_row[is_new]]
            begin, end, place_of_new = (
                len(registry),
                len(registry) + len(new),
                np.searchsorted(registry, new),
            )
            numbers = np.insert(numbers, place_of_new, np.arange(begin, end))
            registry = np.insert(registry, place_of_new, new)
            self.connections = registry, numbers
            if end > len(self.state.ring_count):
                self.state = extend_arrays(self.state, PER_CONNECTION, 2 * end)
            ring, self.ring_used = self.ring_used, self.ring_used + int(sizes.sum())
            if self.ring_used > len(self.state.ring):
                self.state = more_rings(self.state, 2 * self.ring_used)
            self.state.ring_base[begin:end] = ring + np.cumsum(sizes) - sizes
            self.state.ring_size[begin:end] = sizes
        row_numbers = numbers[np.searchsorted(registry, distinct)][place]
        self.state.connection[rows.slots] = rows.gather_rows(row_numbers)
        if len(rows.order) == 1:
            self.latest = steps[0].shape, row_numbers

    def _wait(self, blocks: list[int], first_message: int, rows: int) -> None:
        """Make the messages of newly loaded blocks wait for earlier ones; ``first_message`` is
        their first message.
        """
        for turn, block in enumerate(blocks):
            self.live[first_message + turn * rows] = block, rows
        bounds = np.array([first_message, first_message + len(blocks) * rows], self.waits[0].dtype)
        begin, end = np.searchsorted(self.waits[0], bounds)
        # Steps are loaded in order, so these numbers ascend; a message whose whole step has
        # finished is in none of the blocks.
        starts = np.fromiter(self.live, np.int64, len(self.live))
        block, length = np.array(list(self.live.values()), np.int64).T
        base = self.state.block_base[block].astype(np.int64) - starts
        later, earlier = self.waits[0][begin:end], self.waits[1][begin:end]
        holder = np.searchsorted(starts, earlier, side="right") - 1
        lives = (holder >= 0) & (earlier < (starts + length)[holder])
        later, earlier, holder = later[lives], earlier[lives], holder[lives]
        wait_for(
            self.state,
            base[holder] + earlier,
            base[np.searchsorted(starts, later, side="right") - 1] + later,
        )

    def _take_back(self) -> None:
        s = self.state
        if self.rest_of_run is not None and not self.sees_all:
            timed, times = self.rest_of_run
            turns_left = int(s.reg[AGAIN])
            self._count(timed, times - turns_left, int(timed.wire.sum()))
            self.rest_of_run = (timed, turns_left) if turns_left else None
            s.reg[AGAIN] = 0
        count = int(s.reg[RETIRED])
        s.reg[RETIRED] = 0
        if self.ahead is not None and self.on_step is None:
            return
        retired = s.retired[:count]
        first_messages, bases = s.block_first_id[retired].tolist(), s.block_base[retired].tolist()
        for block, first_message, base in zip(retired.tolist(), first_messages, bases, strict=True):
            content = self.contents[block]
            if content is None:
                raise InternalError(f"block {block} has finished, but was never filled")
            if len(self.waits[0]):
                del self.live[first_message]
            if self.on_step is not None:
                slots = slice(base, base + len(content))
                self.on_step(
                    first_message, content, s.start_fs[slots], s.end_fs[slots], s.done_fs[slots]
                )
            if self.room[block]:  # not in a window
                self.free[self.room[block]].setdefault(content, []).append(block)


def _rules(step: Timed) -> NDArray[np.int8]:
    """The rules of the rows of a step."""
    rule = RULES.get(step.role, BOTH if step.depth == 0 else None)
    if rule is None:
        return np.where(step.delay_fs >= 0, np.int8(EAGER), np.int8(BOTH))
    return np.full(len(step), rule, np.int8)


def _is_plain(shape: StepShape) -> bool:
    """Whether each flow of a shape has weight 1 on all of its links."""
    weight = shape.weight
    return weight.strides == (0, 0) and (not weight.size or int(weight[0, 0]) == 1)


def _block_rows(rows: int) -> int:
    """The size of a block for some rows: up to ``LARGE_ROWS`` a power of two, beyond at most an
    eighth more than the rows, as a run may need all its steps at a time.
    """
    unit = 1 << max((rows - 1).bit_length() - (FINE_BITS if rows > LARGE_ROWS else 0), 0)
    return -(-rows // unit) * unit


def _one_column(columns: list[Array]) -> Array:
    """Columns one after the other; a single one as it is."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _singles(steps: Iterator[tuple[tuple[Timed, ...], int]]) -> Iterator[tuple[Timed, int]]:
    """Steps one by one; a group of one step keeps its repetitions."""
    for group, times in steps:
        if len(group) == 1:
            yield group[0], times
        else:
            for _ in range(times):
                yield from ((step, 1) for step in group)
