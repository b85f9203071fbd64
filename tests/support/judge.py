"""An independent judge of schedules, for the mutation gate: it knows no proof, it plays.

Transfers move whole numbers in random orders that the lanes, the explicit waits and the staging of
the plan allow, both with senders that wait for their receivers and with senders that run ahead. The
results are compared with a definition of the collectives written here. Four weaker oracles, each a
common way to test a collective, play one order only.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from simcoll.binding import bind
from simcoll.core.plan import INPUT, OUTPUT
from simcoll.core.schedule import COPY, REDUCE, SWITCH_REDUCE, SYNC
from simcoll.errors import ScheduleError

if TYPE_CHECKING:
    from simcoll.core.collective import Collective
    from simcoll.core.plan import Plan
    from simcoll.core.schedule import Schedule

PLAYS = 12
STAGE, READ, WRITE = range(3)
MASK = 2**64 - 1
ORACLES = ("all ones", "value = rank", "set of contributors", "multiset, one order")


def definition(collective: Collective, inputs: list, mask: int = MASK) -> list:
    """Outputs from inputs, each a list of blocks (lists of numbers), straight from the names of the
    collectives.
    """
    n, root = collective.nranks, collective.root
    ranks = range(n)

    def total(block):
        return [
            sum(values) & mask for values in zip(*(inputs[r][block] for r in ranks), strict=True)
        ]

    match collective.kind:
        case "broadcast":
            return [[inputs[root][0]] for _ in ranks]
        case "reduce":
            return [[total(0)] if r == root else None for r in ranks]
        case "all_reduce":
            return [[total(0)] for _ in ranks]
        case "all_gather":
            return [[inputs[s][0] for s in ranks] for _ in ranks]
        case "gather":
            return [[inputs[s][0] for s in ranks] if r == root else None for r in ranks]
        case "reduce_scatter":
            return [[total(r)] for r in ranks]
        case "scatter":
            return [[inputs[root][r]] for r in ranks]
        case "all_to_all":
            return [[inputs[s][r] for s in ranks] for r in ranks]
        case "send_recv":
            source = {dst: src for src, dst in collective.pairs}
            return [[inputs[source[r]][0]] if r in source else None for r in ranks]
        case "custom":
            return _custom(collective.definition, inputs, mask)
    raise NotImplementedError(collective.kind)


def _custom(stated, inputs: list, mask: int) -> list:
    """Outputs of a custom collective, from its lists alone."""
    block = {}
    for contributions, blocks in zip(stated.inputs, inputs, strict=True):
        for number, values in zip(contributions, blocks, strict=False):
            block.setdefault(number, values)
    return [
        [
            [sum(values) & mask for values in zip(*(block[c] for c in listed), strict=True)]
            for listed in slots
        ]
        if slots
        else None
        for slots in stated.outputs
    ]


class Game:
    """The transfers of a plan as plain lists, and memory as one list of numbers."""

    def __init__(self, plan: Plan) -> None:
        self.waits, self.needs = plan.waits, {}
        self.base, self.cells = [], 0
        for per_buffer in plan.buffer_elements().tolist():
            self.base.append([])
            for elements in per_buffer:
                self.base[-1].append((self.cells, elements))
                self.cells += elements
        self.moves, self.lanes, self.leader, self.members, self.step_of = [], {}, [], {}, []
        self.legal = True
        channels, switches = plan.nchannels, {}
        for step in plan.steps():
            columns = (
                step.src_rank,
                step.src_buffer,
                step.src_offset,
                step.dst_rank,
                step.dst_buffer,
                step.dst_offset,
                step.elements,
                step.op,
                step.channel,
                step.staged,
            )
            rows = zip(*(c.tolist() for c in columns), strict=True)
            for src, sb, so, dst, db, do, length, op, channel, staged in rows:
                (source, room), (target, space) = self.base[src][sb], self.base[dst][db]
                self.legal = self.legal and so + length <= room and do + length <= space
                lanes = (src * channels + channel, dst * channels + channel)
                number = len(self.moves)
                for lane in dict.fromkeys(lanes):
                    turns = self.lanes.setdefault(lane, [])
                    if not turns or turns[-1][0] != step.step:
                        turns.append((step.step, []))
                    turns[-1][1].append(number)
                self.moves.append((*lanes, source + so, target + do, length, op, staged))
                # What a switch reduces for one rank arrives there at once, when the last operand
                # has reached the switch.
                leader = (
                    switches.setdefault((step.step, channel, dst), number)
                    if op == SWITCH_REDUCE
                    else number
                )
                self.leader.append(leader)
                self.members.setdefault(leader, []).append(number)
                self.step_of.append(step.step)
        # beside: staged transfers that must be copied aside before each one writes; blocks: the
        # other way round.
        turns = {
            (lane, when): turn for lane, entered in self.lanes.items() for when, turn in entered
        }
        self.beside, self.blocks = [], [[] for _ in self.moves]
        for number, (_, receiver, *_) in enumerate(self.moves):
            turn = turns[receiver, self.step_of[number]]
            self.beside.append(
                [
                    other
                    for other in turn
                    if self.moves[other][0] == receiver and self.moves[other][6]
                ]
            )
            for other in self.beside[-1]:
                self.blocks[other].append(number)
        # added: reductions into what a copy of their step writes come after it.
        self.added, self.copied = [[] for _ in self.moves], [0] * len(self.moves)
        copies = {}
        for number, (_, _, _, target, length, op, _) in enumerate(self.moves):
            if op == COPY:
                copies |= {
                    (self.step_of[number], cell): number for cell in range(target, target + length)
                }
        for number, (_, _, _, target, length, op, _) in enumerate(self.moves):
            if op == REDUCE:
                cells = range(target, target + length)
                found = {
                    copies[self.step_of[number], cell]
                    for cell in cells
                    if (self.step_of[number], cell) in copies
                }
                self.copied[number] = len(found)
                for copy in found:
                    self.added[copy].append(number)

    def _needs(self, eager: bool) -> tuple[list[list[int]], dict, dict]:
        """How much every transfer waits for in each phase, and those that wait for it; the same for
        all plays of a kind.
        """
        if eager in self.needs:
            return self.needs[eager]
        moves, leader = self.moves, self.leader
        waiters, early = {}, {}
        to_stage, to_read, to_write = needs = [1] * len(moves), [1] * len(moves), [0] * len(moves)
        for number, (sender, receiver, *_, staged) in enumerate(moves):
            earlier = self.waits.get(number, ())
            to_read[number] += len(earlier)
            to_write[leader[number]] += 1 + len(self.beside[number]) + self.copied[number]
            if sender != receiver and eager:
                to_write[leader[number]] += 1
            elif sender != receiver:
                to_read[number] += 1
            for one in earlier:
                waiters.setdefault(one, []).append(number)
                if staged and self.step_of[one] < self.step_of[number]:
                    to_stage[number] += 1
                    early.setdefault(one, []).append(number)
        self.needs[eager] = needs, waiters, early
        return self.needs[eager]

    def play(self, memory: list[int], rng: random.Random, *, eager: bool) -> bool:
        """Do all transfers in a random legal order; False for a deadlock.

        A transfer reads, then writes. One whose source its own step overwrites is first copied
        aside: when its lane has entered the step and what it must wait for in earlier steps is
        done, but before that lane writes anything in the step.
        """
        moves, lanes, leader = self.moves, self.lanes, self.leader
        needs, waiters, early = self._needs(eager)
        needs = [list(each) for each in needs]
        held, ready, position, pending = {}, [], dict.fromkeys(lanes, -1), dict.fromkeys(lanes, 0)

        def need(phase, number):
            needs[phase][number] -= 1
            if not needs[phase][number]:
                ready.append((phase, number))

        def enter(lane):
            position[lane] += 1
            if position[lane] == len(lanes[lane]):
                return
            turn = lanes[lane][position[lane]][1]
            pending[lane] = len(turn)
            for number in turn:
                if lane == moves[number][0]:
                    need(STAGE if moves[number][6] else READ, number)
                elif eager:
                    need(WRITE, leader[number])
                else:
                    need(READ, number)

        def leave(lane):
            pending[lane] -= 1
            if not pending[lane]:
                enter(lane)

        for lane in lanes:
            enter(lane)
        done = 0
        while ready:
            place = int(rng.random() * len(ready))
            ready[place], ready[-1] = ready[-1], ready[place]
            phase, number = ready.pop()
            if phase != WRITE:
                sender, receiver, source, _, length, _, staged = moves[number]
                if phase == STAGE or not staged:
                    held[number] = memory[source : source + length]
                if phase == STAGE:
                    need(READ, number)
                    for other in self.blocks[number]:
                        need(WRITE, leader[other])
                    continue
                need(WRITE, leader[number])
                if eager and sender != receiver:
                    leave(sender)
                continue
            self._write(memory, held, number)
            for other in self.added[number]:
                need(WRITE, leader[other])
            for member in self.members[number]:
                sender, receiver = moves[member][:2]
                done += 1
                for later in waiters.get(member, ()):
                    need(READ, later)
                for later in early.get(member, ()):
                    need(STAGE, later)
                if not eager or sender == receiver:
                    leave(sender)
                if sender != receiver:
                    leave(receiver)
        return done == len(moves)

    def _write(self, memory: list[int], held: dict, number: int) -> None:
        """The write of a transfer, or of everything that a switch reduces for one rank."""
        _, _, _, target, length, op, _ = self.moves[number]
        if op == SWITCH_REDUCE:
            total = {}
            for member in self.members[number]:
                at = self.moves[member][3]
                for cell, value in enumerate(held.pop(member), at):
                    total[cell] = (total.get(cell, 0) + value) & MASK
            for cell, value in total.items():
                memory[cell] = value
            return
        values = held.pop(number)
        if op == REDUCE:
            values = [
                (a + b) & MASK
                for a, b in zip(memory[target : target + length], values, strict=True)
            ]
        memory[target : target + length] = values


def right(schedule: Schedule, seed: int, plays: int = PLAYS) -> bool:
    """The judge: whether every order played leaves the definition's result, and inputs that are not
    outputs as they were.
    """
    collective, count = (
        schedule.collective,
        2 * schedule.layout.chunks + (0 if schedule.divisible else 1),
    )
    try:
        plan = bind(schedule, count, "uint64", unproved=True)
    except ScheduleError:  # it leaves its buffers
        return False
    if collective.kind == "barrier":
        return _barrier_holds(plan)
    game = Game(plan)
    if not game.legal:
        return False
    rng = random.Random(seed)
    spans = []
    for rank in range(collective.nranks):
        spans.append([])
        for which in (INPUT, OUTPUT):
            buffer, offset, length = plan.view(rank, which)
            start = game.base[rank][buffer][0] + offset
            spans[-1].append(range(start, start + length))
    for turn in range(plays):
        memory = np.frombuffer(rng.randbytes(8 * game.cells), np.uint64).tolist()
        before = list(memory)
        inputs = [[memory[at : at + count] for at in given[::count]] for given, _ in spans]
        if not game.play(memory, rng, eager=turn % 2 == 1):
            return False
        for (given, made), blocks in zip(spans, definition(collective, inputs), strict=True):
            if blocks is not None and memory[made.start : made.stop] != [
                value for block in blocks for value in block
            ]:
                return False
            kept = [cell for cell in given if cell not in made] if blocks is not None else given
            if any(memory[cell] != before[cell] for cell in kept):
                return False
    return True


def _barrier_holds(plan: Plan) -> bool:
    """A receiver learns what the sender's lane knew before the step; a lane knows what came in on
    it, and its own entry.
    """
    known, everyone = {}, frozenset(range(plan.nranks))
    for step in plan.steps():
        columns = (step.src_rank, step.dst_rank, step.channel, step.op)
        rows = [row for row in zip(*(c.tolist() for c in columns), strict=True) if row[3] == SYNC]
        news = [
            (dst, channel, known.get((src, channel), {src}) | {src})
            for src, dst, channel, _ in rows
        ]
        for rank, channel, what in news:
            known[rank, channel] = known.get((rank, channel), {rank}) | what
    return all(
        {r}.union(*(what for (rank, _), what in known.items() if rank == r)) == everyone
        for r in range(plan.nranks)
    )


def weakly_caught(schedule: Schedule) -> dict[str, bool]:
    """Which of the weaker oracles sees that a schedule is wrong, in one order: step by step, every
    read before every write.

    A chunk holds the count of every contribution as the digits of one number, from which each
    oracle's value follows.
    """
    collective, layout, n = schedule.collective, schedule.layout, schedule.nranks
    if collective.kind == "barrier":
        return dict.fromkeys(ORACLES, False)
    size, chunks = layout.size, layout.chunks
    width = 8 * n * layout.output_base
    place = [layout.canonical(np.full(size, r), np.arange(size)).tolist() for r in range(n)]
    memory = [[0] * size for _ in range(n)]
    inputs = [[] for _ in range(n)]
    for rank in np.flatnonzero(collective.has_input(np.arange(n))).tolist():
        for slot in range(collective.input_slots):
            numbers = [layout.input(slot, piece) for piece in range(chunks)]
            block = [1 << 8 * (rank * layout.output_base + chunk) for chunk in numbers]
            inputs[rank].append(block)
            for chunk, value in zip(numbers, block, strict=True):
                memory[rank][place[rank][chunk]] = value
    try:
        for step in schedule.steps():
            _one_order(memory, place, step)
    except IndexError:
        return dict.fromkeys(ORACLES, True)
    caught = dict.fromkeys(ORACLES, False)
    owner = np.repeat(np.arange(n), layout.output_base)
    for rank, blocks in enumerate(definition(collective, inputs, mask=-1)):
        wanted = [value for block in blocks or [] for value in block]
        for chunk, want in enumerate(wanted, layout.output_base):
            got = memory[rank][place[rank][chunk]]
            if got == want:
                continue
            digits = [
                np.frombuffer((v % (1 << width)).to_bytes(width // 8, "little"), np.uint8).astype(
                    int
                )
                for v in (got, want)
            ]
            views = (
                [d.sum() for d in digits],
                [d @ owner for d in digits],
                [(d > 0).tolist() for d in digits],
            )
            for oracle, (a, b) in zip(ORACLES, views, strict=False):
                caught[oracle] |= bool(a != b)
            caught[ORACLES[-1]] = True
    return caught


def _one_order(memory: list, place: list, step) -> None:
    columns = (step.src_rank, step.src_chunk, step.dst_rank, step.dst_chunk, step.count, step.op)
    news = []  # copies come first
    for src, src_chunk, dst, dst_chunk, count, op in zip(
        *(c.tolist() for c in columns), strict=True
    ):
        news += [
            (dst, place[dst][dst_chunk + k], memory[src][place[src][src_chunk + k]], op)
            for k in range(count)
        ]
    switched = set()
    for rank, chunk, value, op in sorted(news, key=lambda item: item[3] == REDUCE):
        added = op == REDUCE or (rank, chunk) in switched
        if op == SWITCH_REDUCE:
            switched.add((rank, chunk))
        memory[rank][chunk] = memory[rank][chunk] + value if added else value
