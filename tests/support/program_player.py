"""Independent players of per-rank programs and of programs of thread blocks, for the directed
attacks.

A per-rank program is judged by its order: messages are matched, blocked lanes found by playing
them, races by the set of everything that surely happened before an instruction. Thread blocks are
played many times in random legal orders, and every order must give right data.
"""

from __future__ import annotations

import random

from simcoll.core.device_program import EACH
from tests.support.exact_player import (
    LEVELS,
    Definition,
    Expressions,
    Verdict,
    WrongError,
    multiset_sum,
)

# receives, sends, reads src, writes dst, reads dst
OPS = {
    "nop": (0, 0, 0, 0, 0),
    "send": (0, 1, 1, 0, 0),
    "recv": (1, 0, 0, 1, 0),
    "recv_copy_send": (1, 1, 0, 1, 0),
    "recv_reduce_send": (1, 1, 1, 0, 0),
    "recv_reduce_copy": (1, 0, 1, 1, 0),
    "recv_reduce_copy_send": (1, 1, 1, 1, 0),
    "copy": (0, 0, 1, 1, 0),
    "reduce": (0, 0, 1, 1, 1),
}
DEPTHS = (0, 1, 2, 8)


class ProgramPlayer:
    """One per-rank program, its instructions numbered through all lanes."""

    def __init__(self, program) -> None:
        self.program, self.size = program, sum(map(int, program.buffers))
        self.code, self.before, self.lane, first = [], [], [], {}
        for rank, lanes in enumerate(program.lanes):
            for number, lane in enumerate(lanes):
                first[rank, number] = len(self.code)
                for position, instruction in enumerate(lane.instructions):
                    self.before.append([len(self.code) - 1] if position else [])
                    self.lane.append((rank, number))
                    self.code.append((rank, int(lane.channel), instruction))
        lengths = {
            (rank, number): len(lane.instructions)
            for rank, lanes in enumerate(program.lanes)
            for number, lane in enumerate(lanes)
        }
        for number, (rank, _, instruction) in enumerate(self.code):
            for other, position in instruction.waits:
                if not 0 <= position < lengths.get((rank, other), 0):
                    raise WrongError("waits for nothing")
                self.before[number].append(first[rank, other] + position)
            self.check(rank, instruction)
        self.match()

    def check(self, rank: int, instruction) -> None:
        receives, sends, reads, writes, _ = OPS[instruction.op]
        count, src, dst = int(instruction.count), int(instruction.src), int(instruction.dst)
        for used, peer in (
            (receives, int(instruction.recv_from)),
            (sends, int(instruction.send_to)),
        ):
            if used and (not 0 <= peer < self.program.nranks or peer == rank):
                raise WrongError("no such peer")
        for used, chunk in ((reads, src), (writes, dst)):
            if count < 0 or (used and count and not 0 <= chunk <= self.size - count):
                raise WrongError("no such chunks")
        if reads and writes and src != dst and src < dst + count and dst < src + count:
            raise WrongError("overlaps itself")

    def match(self) -> None:
        """Pair the n-th send of every connection with its n-th receive."""
        sends, receives = {}, {}
        for number, (rank, channel, instruction) in enumerate(self.code):
            takes, gives, *_ = OPS[instruction.op]
            if gives:
                sends.setdefault((rank, int(instruction.send_to), channel), []).append(number)
            if takes:
                receives.setdefault((int(instruction.recv_from), rank, channel), []).append(number)
        self.sender, self.receiver, self.turn, self.queue = {}, {}, {}, {}
        for wire in {**sends, **receives}:
            out, into = sends.get(wire, []), receives.get(wire, [])
            if len(out) != len(into):
                raise WrongError(f"{len(out)} sends and {len(into)} receives on {wire}")
            for end in (out, into):
                if len({self.lane[number] for number in end}) > 1:
                    raise WrongError(f"two lanes share {wire}")
            for turn, (a, b) in enumerate(zip(out, into, strict=True)):
                if int(self.code[a][2].count) != int(self.code[b][2].count):
                    raise WrongError("a message has two sizes")
                self.sender[b], self.receiver[a], self.turn[a], self.queue[a] = a, b, turn, into

    def order(self, depth: int | None) -> list[int] | None:
        """The instructions in an order in which they run at a depth; None for a deadlock."""
        done, order, left = set(), [], set(range(len(self.code)))
        while left:
            ready = {
                number
                for number in left
                if all(other in done for other in self.before[number])
                and self.fed(number, depth, done)
            }
            while depth == 0:
                lone = {
                    number
                    for number in ready
                    if self.sender.get(number, number) not in ready
                    or self.receiver.get(number, number) not in ready
                }
                if not lone:
                    break
                ready -= lone
            if not ready:
                return None
            if depth == 0:  # a message is sent before it is received, also at one instant
                chain, ready = ready, []
                while chain:
                    first = [number for number in chain if self.sender.get(number) not in chain]
                    ready += sorted(first)
                    chain -= set(first)
            for number in sorted(ready) if depth != 0 else ready:
                done.add(number)
                order.append(number)
                left.discard(number)
        return order

    def fed(self, number: int, depth: int | None, done: set[int]) -> bool:
        if depth == 0:
            return True
        if number in self.sender and self.sender[number] not in done:
            return False
        if number not in self.receiver or depth is None:
            return True
        turn = self.turn[number] - depth
        return turn < 0 or self.queue[number][turn] in done

    def check_races(self, order: list[int]) -> None:
        """Refuse two accesses of a chunk, one a write, that nothing orders."""
        past, touched = {}, {}
        for number in order:
            earlier = [
                *self.before[number],
                *([self.sender[number]] if number in self.sender else []),
            ]
            past[number] = 0
            for other in earlier:
                past[number] |= past[other] | 1 << other
            rank, _, instruction = self.code[number]
            _, _, reads, writes, updates = OPS[instruction.op]
            for used, start, write in (
                (reads, instruction.src, False),
                (updates, instruction.dst, False),
                (writes, instruction.dst, True),
            ):
                for chunk in range(int(start), int(start) + int(instruction.count)) if used else ():
                    for other, wrote in touched.get((rank, chunk), ()):
                        if (write or wrote) and other != number and not past[number] >> other & 1:
                            raise WrongError(f"a race for chunk {chunk} of rank {rank}")
                    touched.setdefault((rank, chunk), []).append((number, write))

    def play(self, order: list[int]) -> str:
        """Play the data; return the level of the reduction order."""
        program, collective = self.program, self.program.collective
        means = Definition(collective, program.chunks)
        outputs, expressions, contents, sent = means.inputs * program.chunks, Expressions(), {}, {}
        for rank in filter(means.has_input, range(program.nranks)):
            for chunk in range(outputs):
                contents[rank, means.canonical(rank, chunk)] = (
                    {rank * outputs + chunk: 1},
                    expressions.leaf(rank),
                )
        for number in order:
            rank, _, instruction = self.code[number]
            receives, sends, reads, writes, updates = OPS[instruction.op]
            for offset in range(int(instruction.count)):
                value = sent[self.sender[number]][offset] if receives else None
                for used, chunk in ((updates, instruction.dst), (reads, instruction.src)):
                    if not used:
                        continue
                    if (rank, int(chunk) + offset) not in contents:
                        raise WrongError("reads nothing")
                    counts, tree = contents[rank, int(chunk) + offset]
                    value = (
                        (counts, tree)
                        if value is None
                        else (multiset_sum(value[0], counts), expressions.pair(value[1], tree))
                    )
                if writes:
                    if means.read_only(rank, int(instruction.dst) + offset):
                        raise WrongError("writes to an input")
                    contents[rank, int(instruction.dst) + offset] = value
                if sends:
                    sent.setdefault(number, {})[offset] = value
        return outcome(means, program.nranks, contents)

    def least_depth(self) -> int | None:
        depth = self.program.fifo_depth
        tried = sorted({*DEPTHS, *([depth] if depth is not None else [])})
        return next((depth for depth in tried if self.order(depth) is not None), None)


def outcome(means: Definition, n: int, contents: dict, *, switched: bool = False) -> str:
    """Compare the outputs with the definition; return the level of the reduction order."""
    inputs, trees = means.inputs * means.chunks, {}
    for rank in filter(means.has_output, range(n)):
        for place in range(means.outputs * means.chunks):
            slot, piece = divmod(place, means.chunks)
            counts, tree = contents.get((rank, means.canonical(rank, inputs + place)), ({}, -1))
            sources = means.wanted(rank, slot)
            if counts != {r * inputs + s * means.chunks + piece: 1 for r, s in sources}:
                raise WrongError(f"rank {rank} output {slot}.{piece}")
            trees.setdefault((sources[0][1], piece), set()).add(tree)
    if not means.reduces:
        return ""
    if any(len(forms) > 1 for forms in trees.values()):
        return LEVELS[0]
    if switched:
        return LEVELS[1]
    return (
        LEVELS[3] if len({tree for forms in trees.values() for tree in forms}) == 1 else LEVELS[2]
    )


def verdict_on_program(program) -> Verdict:
    """The verdict on a per-rank program with a collective."""
    try:
        player = ProgramPlayer(program)
        order = player.order(None)
        if order is None or (
            program.fifo_depth is not None and player.order(program.fifo_depth) is None
        ):
            return Verdict(False, "", "deadlock")
        player.check_races(order)
        return Verdict(True, player.play(order), "")
    except WrongError as wrong:
        return Verdict(False, "", str(wrong))


def verdict_on_device_program(program, seed: int, plays: int = 12) -> Verdict:
    """The verdict on a program of thread blocks without packets, proxies and switches, whose blocks
    meet at fences.
    """
    rng, levels = random.Random(seed), set()
    try:
        for _ in range(plays):
            levels.add(_device_play(program, rng))
    except WrongError as wrong:
        return Verdict(False, "", str(wrong))
    return Verdict(
        len(levels) == 1,
        min(levels, key=("", *LEVELS).index),
        "the order varies" * (len(levels) > 1),
    )


def _device_play(program, rng: random.Random) -> str:
    means = Definition(program.collective, program.cells)
    inputs, expressions, contents = means.inputs * program.cells, Expressions(), {}
    for rank in filter(means.has_input, range(program.nranks)):
        for cell in range(inputs):
            contents[rank, means.canonical(rank, cell)] = (
                {rank * inputs + cell: 1},
                expressions.leaf(rank),
            )
    raised = {
        (rank, n): int(v)
        for rank, values in enumerate(program.semaphores)
        for n, v in enumerate(values)
    }
    blocks = [
        (rank, list(operations))
        for rank, lists in enumerate(program.blocks)
        for operations in lists
    ]
    places = [0] * len(blocks)
    while True:
        ready = []
        for number, (rank, operations) in enumerate(blocks):
            if places[number] == len(operations):
                continue
            needs = [
                *operations[places[number]].waits,
                *((rank, instruction) for instruction in operations[places[number]].acquires),
            ]
            if all(raised.get(key, 0) >= needs.count(key) for key in needs):
                ready.append((number, needs))
        meeting = {}
        for number, _ in ready:
            rank, operations = blocks[number]
            if operations[places[number]].barrier is not None:
                meeting.setdefault((rank, operations[places[number]].barrier), []).append(number)
        steps = [
            (number, needs)
            for number, needs in ready
            if blocks[number][1][places[number]].barrier is None
        ]
        full = [members for (_, (_, many)), members in meeting.items() if len(members) == many]
        if not steps and not full:
            break
        choice = rng.randrange(len(steps) + len(full))
        if choice >= len(steps):
            for number in full[choice - len(steps)]:
                places[number] += 1
            continue
        number, needs = steps[choice]
        rank, operation = blocks[number][0], blocks[number][1][places[number]]
        places[number] += 1
        for key in needs:
            raised[key] -= 1
        _device_write(operation, contents, expressions, means)
        for key in [
            *operation.signals,
            *((rank, instruction) for instruction in operation.releases),
        ]:
            raised[key] = raised.get(key, 0) + 1
    if any(place < len(operations) for place, (_, operations) in zip(places, blocks, strict=True)):
        raise WrongError("deadlock")
    if any(raised.get(key, 0) for key in raised if len(key) == 3):
        raise WrongError("a signal is left over")
    return outcome(means, program.nranks, contents)


def _device_write(operation, contents: dict, expressions: Expressions, means: Definition) -> None:
    if not operation.how:
        return
    pairs = zip(operation.reads, operation.writes, strict=True) if operation.how == EACH else ()
    groups = [([read], [write]) for read, write in pairs] or [(operation.reads, operation.writes)]
    results = {}
    for reads, writes in groups:
        for offset in range(reads[0].count):
            values = [contents.get((read.rank, read.cell + offset)) for read in reads]
            if None in values:
                raise WrongError("reads nothing")
            counts, tree = values[0]
            for more, other in values[1:]:
                counts, tree = multiset_sum(counts, more), expressions.pair(tree, other)
            for write in writes:
                if means.read_only(write.rank, write.cell + offset):
                    raise WrongError("writes to an input")
                results[write.rank, write.cell + offset] = counts, tree
    contents |= results
