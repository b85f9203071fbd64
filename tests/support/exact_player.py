"""An independent player of schedules for the directed attacks: exact multisets, exact expressions,
and every rule of a step.

It shares no arithmetic with the prover: contributions are counted with Python's integers,
expressions are nested pairs that are numbered when they first occur, repeats are unrolled here, and
the collectives are defined here. It is slow, and says yes or no.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from simcoll.types import COPY, MULTICAST, REDUCE, SWITCH_REDUCE, SYNC, Repeat

LEVELS = ("any", "rank-consistent", "run-consistent", "position-independent")
INT64 = range(-(2**63), 2**63)


class Verdict(NamedTuple):
    """Whether a subject is right, the level of its reduction order, and the first reason against
    it.
    """

    right: bool
    order: str
    reason: str


class WrongError(Exception):
    """The first rule that a subject breaks."""


class Expressions:
    """Numbers nested pairs of operands: equal expressions have equal numbers, and nothing else
    has.
    """

    def __init__(self) -> None:
        self.numbers = {}

    def number(self, *parts: object) -> int:
        return self.numbers.setdefault(parts, len(self.numbers))

    def leaf(self, rank: int) -> int:
        return self.number("leaf", rank)

    def pair(self, left: int, right: int) -> int:
        return self.number("pair", *sorted((left, right)))

    def switch(self, operands: list[int]) -> int:
        return self.number("switch", *sorted(operands))


def multiset_sum(left: dict[int, int], right: dict[int, int]) -> dict[int, int]:
    """The sum of two multisets."""
    large, small = (left, right) if len(left) >= len(right) else (right, left)
    total = dict(large)
    for leaf, times in small.items():
        total[leaf] = total.get(leaf, 0) + times
    return total


class Definition:
    """One collective of the ten: who has input, which blocks the slots hold, and what the outputs
    must hold.
    """

    def __init__(self, collective, chunks: int) -> None:
        self.kind, self.n, self.root = collective.kind, collective.nranks, collective.root
        self.pairs, self.in_place, self.chunks = (
            dict(map(tuple, collective.pairs)),
            collective.in_place,
            chunks,
        )
        n = self.n
        self.inputs, self.outputs = {
            "all_gather": (1, n),
            "gather": (1, n),
            "reduce_scatter": (n, 1),
            "scatter": (n, 1),
            "all_to_all": (n, n),
            "barrier": (0, 0),
        }.get(self.kind, (1, 1))
        self.origin = {dst: src for src, dst in self.pairs.items()}
        self.reduces = self.kind in ("reduce", "all_reduce", "reduce_scatter")

    def has_input(self, rank: int) -> bool:
        if self.kind in ("broadcast", "scatter"):
            return rank == self.root
        return rank in self.pairs if self.kind == "send_recv" else True

    def has_output(self, rank: int) -> bool:
        if self.kind in ("reduce", "gather"):
            return rank == self.root
        return rank in self.origin if self.kind == "send_recv" else True

    def block(self, rank: int, slot: int, *, output: bool) -> int:
        """The block that a slot holds."""
        if self.kind in ("broadcast", "reduce", "all_reduce"):
            return 0
        if self.kind == "send_recv":
            return self.origin.get(rank, rank) if output else rank
        if self.kind == "all_to_all":
            return slot * self.n + rank if output else rank * self.n + slot
        whole = self.kind in ("all_gather", "gather")  # of the larger buffer every slot is a block
        return slot if output == whole else rank

    def wanted(self, rank: int, slot: int) -> list[tuple[int, int]]:
        """The contributions, rank and input slot, that an output slot must hold."""
        match self.kind:
            case "broadcast":
                return [(self.root, 0)]
            case "reduce" | "all_reduce":
                return [(r, 0) for r in range(self.n)]
            case "reduce_scatter":
                return [(r, rank) for r in range(self.n)]
            case "all_gather" | "gather":
                return [(slot, 0)]
            case "scatter":
                return [(self.root, rank)]
            case "all_to_all":
                return [(slot, rank)]
            case "send_recv":
                return [(self.origin[rank], 0)]
        raise NotImplementedError(self.kind)

    def aliased(self, rank: int) -> bool:
        both = self.has_input(rank) and self.has_output(rank)
        return self.in_place and both and self.kind not in ("all_to_all", "send_recv", "barrier")

    def canonical(self, rank: int, chunk: int) -> int:
        """The one address of a cell that has two."""
        if not self.aliased(rank):
            return chunk
        base, slot, piece = self.inputs * self.chunks, chunk // self.chunks, chunk % self.chunks
        if self.outputs < self.inputs:
            return rank * self.chunks + piece if slot == self.inputs else chunk
        if slot >= self.inputs:
            return chunk
        return base + (rank if self.outputs > self.inputs else slot) * self.chunks + piece

    def read_only(self, rank: int, cell: int) -> bool:
        """Whether a (canonical) cell is an input that is not also an output."""
        if cell >= self.inputs * self.chunks:
            return False
        return not (
            self.aliased(rank) and self.outputs < self.inputs and cell // self.chunks == rank
        )


def integers(column) -> list[int]:
    """A column as Python integers, whatever its type and byte order."""
    numbers = [int(value) for value in np.asarray(column).reshape(-1).tolist()]
    if any(number not in INT64 for number in numbers):
        raise WrongError("a number does not fit 64 bits")
    return numbers


def rows_of(step) -> list[tuple[int, ...]]:
    """The transfers of a step as tuples of the constructor's order."""
    columns = [integers(column) for column in step.columns]
    if len({len(column) for column in columns}) != 1:
        raise WrongError("columns of unequal length")
    return list(zip(*columns, strict=True))


def rows_by_step(blocks):
    """The transfers of every step, with repeats unrolled in exact arithmetic."""
    for block in blocks:
        if not isinstance(block, Repeat):
            yield rows_of(block)
            continue
        steps = [rows_of(step) for step in block.steps]
        order = None if block.order is None else integers(block.order)
        spot = None if order is None else {chunk: place for place, chunk in enumerate(order)}
        for turn in range(block.count):

            def moved(chunk, turn=turn, block=block, order=order, spot=spot):
                if spot is not None and chunk not in spot:
                    raise WrongError("a chunk of a repeat is not in its order")
                at = chunk if spot is None else spot[chunk]
                place = (at - block.base) % block.modulus
                at = at - place + (place + turn * block.stride) % block.modulus
                return at if order is None else order[at]

            for rows in steps:
                yield [(a, moved(b), c, moved(d), *rest) for a, b, c, d, *rest in rows]


class Player:
    """Plays the steps of one schedule."""

    def __init__(self, schedule) -> None:
        layout = schedule.layout
        self.schedule, self.layout, self.chunks = schedule, layout, layout.chunks
        self.means = Definition(schedule.collective, layout.chunks)
        self.n = self.means.n
        self.output = self.means.inputs * self.chunks
        self.scratch = self.output + self.means.outputs * self.chunks
        slots = np.asarray(layout.scratch).tolist()
        rows = slots if slots and isinstance(slots[0], list) else [slots] * self.n
        pieces = (
            None if layout.scratch_pieces is None else np.asarray(layout.scratch_pieces).tolist()
        )
        if pieces is not None and not (pieces and isinstance(pieces[0], list)):
            pieces = [pieces] * self.n
        self.slots, self.pieces, self.width = rows, pieces, 1 if pieces is not None else self.chunks
        self.size = self.scratch + len(rows[0]) * self.width
        self.expressions = Expressions()
        self.switched = False
        self.contents = {}
        # Of a cell they are always the same, and most steps ask for all cells.
        self.canonical, self.class_of = cache(self.means.canonical), cache(self.size_class)
        for rank in range(self.n):
            for chunk in range(self.output if self.means.has_input(rank) else 0):
                cell = rank, self.means.canonical(rank, chunk)
                self.contents[cell] = {rank * self.output + chunk: 1}, self.expressions.leaf(rank)

    def buffer(self, chunk: int) -> int:
        return 0 if chunk < self.output else 1 if chunk < self.scratch else 2

    def size_class(self, rank: int, chunk: int) -> tuple[int, int]:
        """Block and piece that a chunk holds."""
        if chunk >= self.scratch:
            slot, piece = divmod(chunk - self.scratch, self.width)
            return self.slots[rank][slot], piece if self.pieces is None else self.pieces[rank][slot]
        output = chunk >= self.output
        slot, piece = divmod(chunk - self.output * output, self.chunks)
        return self.means.block(rank, slot, output=output), piece

    def cells(self, rank: int, chunk: int, count: int) -> list[tuple[int, int]]:
        """The cells of a range, which must lie in one buffer."""
        if not 0 <= rank < self.n:
            raise WrongError(f"no rank {rank}")
        if (
            count < 1
            or chunk < 0
            or chunk + count > self.size
            or self.buffer(chunk) != self.buffer(chunk + count - 1)
        ):
            raise WrongError(f"range {chunk}+{count} is not in a buffer")
        return [(rank, chunk + offset) for offset in range(count)]

    def moves(self, rows: list[tuple[int, ...]]) -> list[tuple]:
        """Single-chunk transfers (row, source, target, op, channel) with one address per cell."""
        moves = []
        for row, (src, src_chunk, dst, dst_chunk, count, op, channel) in enumerate(rows):
            if op not in (COPY, REDUCE, MULTICAST, SWITCH_REDUCE):
                raise WrongError(f"op {op}")
            if not 0 <= channel < self.schedule.nchannels:
                raise WrongError(f"no channel {channel}")
            for source, target in zip(
                self.cells(src, src_chunk, count), self.cells(dst, dst_chunk, count), strict=True
            ):
                if not self.schedule.divisible and self.class_of(*source) != self.class_of(*target):
                    raise WrongError(f"{source} and {target} may differ in size")
                a, b = (src, self.canonical(*source)), (dst, self.canonical(*target))
                if a != b or op != COPY:
                    moves.append((row, a, b, op, channel))
        return moves

    def step(self, rows: list[tuple[int, ...]]) -> None:
        """Read everything, then write everything."""
        moves = self.moves(rows)
        writes = {}
        for move in moves:
            _, source, target, op, channel = move
            if source not in self.contents:
                raise WrongError(f"{source} holds nothing")
            if self.means.read_only(*target):
                raise WrongError(f"{target} is read-only")
            writes.setdefault(target, []).append((op, source[0], channel, self.contents[source]))
        results = {target: self.result(target, operands) for target, operands in writes.items()}
        if len({channel for *_, channel in moves}) > 1:
            _check_orderable(moves)
        self.contents |= results

    def result(self, target: tuple[int, int], operands: list[tuple]) -> tuple[dict[int, int], int]:
        """What a step writes into one cell."""
        if len(operands) == 1 and operands[0][0] in (COPY, MULTICAST):
            return operands[0][3]
        ops, channels = [op for op, *_ in operands], {channel for _, _, channel, _ in operands}
        if SWITCH_REDUCE in ops:
            if set(ops) != {SWITCH_REDUCE} or len(channels) > 1:
                raise WrongError(f"a switch and something else write {target}")
            self.switched = True
            counts = operands[0][3][0]
            for _, _, _, (more, _) in operands[1:]:
                counts = multiset_sum(counts, more)
            return counts, self.expressions.switch([tree for *_, (_, tree) in operands])
        plain = [value for op, _, _, value in operands if op != REDUCE]
        added = sorted(
            ((rank, value) for op, rank, _, value in operands if op == REDUCE),
            key=lambda pair: pair[0],
        )
        if len(operands) > 1:
            ranks = [rank for rank, _ in added]
            if (
                len(plain) > 1
                or MULTICAST in ops
                or len(channels) > 1
                or len(set(ranks)) < len(ranks)
            ):
                raise WrongError(f"{target} is written twice")
        if not plain and target not in self.contents:
            raise WrongError(f"{target} is reduced into but holds nothing")
        counts, tree = plain[0] if plain else self.contents[target]
        for _, (more, other) in added:
            counts, tree = multiset_sum(counts, more), self.expressions.pair(tree, other)
        return counts, tree

    def outcome(self) -> str:
        """Compare the outputs; return the level of the reduction order."""
        means, trees = self.means, {}
        for rank in filter(means.has_output, range(self.n)):
            for slot in range(means.outputs):
                for piece in range(self.chunks):
                    chunk = self.output + slot * self.chunks + piece
                    counts, tree = self.contents.get((rank, means.canonical(rank, chunk)), ({}, -1))
                    wanted = {
                        r * self.output + s * self.chunks + piece: 1
                        for r, s in means.wanted(rank, slot)
                    }
                    if counts != wanted:
                        raise WrongError(f"rank {rank} output {slot}.{piece}")
                    name = means.wanted(rank, slot)[0][1], piece
                    trees.setdefault(name, set()).add(tree)
        if not means.reduces:
            return ""
        if any(len(forms) > 1 for forms in trees.values()):
            return LEVELS[0]
        if self.switched:
            return LEVELS[1]
        return (
            LEVELS[3]
            if len({tree for forms in trees.values() for tree in forms}) == 1
            else LEVELS[2]
        )


def _check_orderable(moves: list[tuple]) -> None:
    """Refuse transfers of one step that must wait for each other in a cycle."""
    readers, waits = {}, {}
    for row, source, target, op, channel in moves:
        readers.setdefault(source, []).append((row, channel))
        if op == REDUCE:
            readers.setdefault(target, []).append((row, channel))
    for row, _, target, _, channel in moves:
        waits.setdefault(row, set()).update(
            other for other, lane in readers.get(target, ()) if lane != channel and other != row
        )
    _check_acyclic(waits, "transfers of one step wait for each other")


def _check_acyclic(waits: dict, reason: str) -> None:
    left = {row: set(others) for row, others in waits.items()}
    while left:
        free = [row for row, others in left.items() if not others & left.keys()]
        if not free:
            raise WrongError(reason)
        for row in free:
            del left[row]


def _barrier(schedule, blocks) -> None:
    n, channels = schedule.nranks, schedule.nchannels
    known = {}
    for rows in rows_by_step(blocks):
        news = []
        for src, _, dst, _, _, op, channel in rows:
            if op != SYNC or not (0 <= src < n and 0 <= dst < n and 0 <= channel < channels):
                raise WrongError("not a message of a barrier")
            news.append((dst, channel, known.get((src, channel), frozenset([src]))))
        for rank, channel, knowledge in news:
            known[rank, channel] = known.get((rank, channel), frozenset([rank])) | knowledge
    heard = {rank: {rank} for rank in range(n)}
    for (rank, _), knowledge in known.items():
        heard[rank] |= knowledge
    if any(len(knowledge) < n for knowledge in heard.values()):
        raise WrongError("a rank may leave early")


def verdict_on(schedule, blocks=None) -> Verdict:
    """The verdict on a schedule; ``blocks`` instead of those that its source yields."""
    try:
        # Read as they come: their arrays may change later.
        blocks_in_order = schedule.source() if blocks is None else blocks
        if schedule.collective.kind == "barrier":
            _barrier(schedule, blocks_in_order)
            return Verdict(True, "", "")
        player = Player(schedule)
        for rows in rows_by_step(blocks_in_order):
            player.step(rows)
        return Verdict(True, player.outcome(), "")
    except WrongError as wrong:
        return Verdict(False, "", str(wrong))
