"""The trusted core: everything that the proof of a schedule's data rests on, with the arithmetic of
:mod:`simcoll.proving.field`.

A proof plays the steps of a schedule and follows the *contents* of chunks. The strategies beside
this module (:mod:`simcoll.proving.symmetry`, :mod:`simcoll.proving.copied_shares`,
:mod:`simcoll.proving.alike_pieces`, :mod:`simcoll.proving.image_pieces`,
:mod:`simcoll.proving.parts`) only choose which chunks to follow. What they choose is followed and
judged here, by three things:

* the *algebra*: the contents of a chunk, and of the sum of two chunks;
* the *rules* of a step: all reads come before all writes, and the transfers that are refused;
* the *comparison* with the collective's definition.

Contents have three parts:

``leaves``
    The number of contributions, each as often as it was added, in integers that saturate at
    ``MOST_LEAVES``. No chain of additions wraps it around, and no right output comes near that
    limit. 0: nothing was written yet.
``sums``
    The multiset of contributions. :class:`Fingerprints`: the sum of a token for each, modulo the
    prime 2^61 - 1; the tokens are drawn from the salt of the proof. Two multisets of equally many
    contributions, fewer than ``MOST_LEAVES``, differ by a vector that is not 0 in the field; its
    product with random tokens is 0 with probability 9 / 2^64 at most. :class:`Counts`: how often
    each contribution was added.
``trees``
    The expression: its brackets, without the order of two operands, because a + b and b + a have
    the same bits. :class:`Fingerprints`: the polynomial x_r for a contribution of rank r, and y + A
    * B for the reduction of A and B, at a random point of the field. Different expressions have
    different polynomials: with all x equal, each is a power of x modulo y, and its constant term is
    divisible by y once, so it is irreducible (Eisenstein), and the factors of P - y are A and B.
    The degree is the number of leaves, so expressions of n leaves are confused with probability 9 n
    / 2^64 at most (Schwartz and Zippel). :class:`Counts`: equal expressions have one number, others
    have different ones.

A wrong schedule has a wrong output chunk, and is proved only if that very chunk looks right. So the
bound for one chunk holds for the whole schedule, however large: 9 / 2^64 for the data, and n times
as much for the order of reductions (:func:`error_bits`). It holds against an author who knows this
code, because the salt is drawn after the schedule was written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simcoll import proving
from simcoll.arrays import Ints, Words
from simcoll.core.definition import Definition
from simcoll.core.layout import Layout
from simcoll.core.memory_limits import check_room
from simcoll.core.proof import Proof
from simcoll.core.schedule import COPY, REDUCE, SWITCH_REDUCE, SYNC, Schedule, Step, transfer_text
from simcoll.core.step import by_chunk, overlaps
from simcoll.core.vocabulary import OrderLevel, ProofKind
from simcoll.proving.field import PRIME, add, column_sums, multiply, random_words, run_sums

__all__ = [
    "MOST_LEAVES",
    "Algebra",
    "Contents",
    "Counts",
    "Fingerprints",
    "Memory",
    "Sums",
    "by_fingerprints",
    "check_memory",
    "error_bits",
    "play_few",
    "requirements",
]

MOST_LEAVES = 2**31 - 1
"""Saturation of the number of contributions; sums of two such numbers fit 32 bits."""
SALT_BYTES = 32
CHUNKS_OF_RANGE = 6
"""From this mean number of chunks a transfer on, comparing ranges is faster than marking each chunk
(of 2^12 to 2^20 chunks written in a step: with 5 it takes 1.1 to 1.4 times as long, with 8 0.4 to
1.0 times).
"""
PART = 2**16
"""Number of chunks followed at a time, few enough for a processor's cache (bruck of 512 ranks:
0.32 s with 4,096, 0.22 with 65,536, 0.21 with more; two_shot: 0.30, 0.30, 0.32).
"""

Leaves: TypeAlias = NDArray[np.uint32]
_MOST_LEAVES = np.array(MOST_LEAVES, np.uint32)


def error_bits(nranks: int, *, reduces: bool) -> int:
    """The greatest whole e such that a wrong schedule is proved by fingerprints with a probability
    of at most 2^-e; ``nranks`` is the largest number of contributions that an output must hold.

    >>> error_bits(8, reduces=False), error_bits(1024, reduces=True)
    (60, 50)
    """
    return math.floor(64 - math.log2(9 * (nranks + 1 if reduces else 1)))


def by_fingerprints(
    schedule: Schedule,
    kind: ProofKind,
    order: OrderLevel,
    followed: tuple[int, int],
    salt: bytes,
    *,
    shared_chunks: bool,
    folds: bool,
) -> Proof:
    """The proof of a schedule whose contents were compared by fingerprints; ``followed``: its
    numbers of steps and transfers.
    """
    definition = schedule.collective.definition
    summands = schedule.nranks if definition is None else definition.most_summands
    bits = error_bits(summands, reduces=schedule.collective.spec.reduces)
    return Proof(kind, "fingerprint", order, *followed, shared_chunks, bits, folds, salt)


class Fingerprints:
    """Multisets as sums of tokens, expressions as values of polynomials.

    Parameters
    ----------
    salt
        Secret bytes, drawn for one proof.
    nranks
        World size; the number of contributions of a custom collective, which then stand for ranks.
    chunks
        The input chunks that are followed, ascending; the pieces of a custom collective.
    """

    exact = False

    def __init__(self, salt: bytes, nranks: int, chunks: Ints) -> None:
        self.nranks = nranks
        self.chunks = chunks
        self.tokens = random_words(salt + b"tokens", nranks * len(chunks)).reshape(
            nranks, len(chunks)
        )
        # X of every rank, y, and the y of switches.
        self.points = random_words(salt + b"expressions", nranks + 2)

    def _column(self, chunk: Ints) -> Ints:
        return (
            chunk
            if len(self.chunks) == self.chunks[-1] + 1
            else np.searchsorted(self.chunks, chunk)
        )

    def nothing(self, rows: int) -> tuple[Words, Words]:
        """Sums and trees of chunks that hold nothing."""
        return np.zeros(rows, np.uint64), np.zeros(rows, np.uint64)

    def inputs(self, rank: Ints, chunk: Ints) -> tuple[Words, Words]:
        """Sums and trees of input chunks."""
        return self.tokens[rank, self._column(chunk)], self.points[rank]

    def reduce(self, a: tuple[Words, Words], b: tuple[Words, Words]) -> tuple[Words, Words]:
        """Sums and trees of a (op) b."""
        return add(a[0], b[0]), add(multiply(a[1], b[1]), self.points[-2:-1])

    def reduce_by_switch(self, operands: tuple[Words, Words], starts: Ints) -> tuple[Words, Words]:
        """Sums of runs of operands; their trees are another y plus the product of all operands."""
        sums, factors = operands
        lengths = np.diff(np.append(starts, len(factors)))
        while (lengths > 1).any():  # multiply neighbours until one factor of each run is left
            index = np.arange(len(factors)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            odd = index % 2 == 1
            right = np.flatnonzero(odd)
            factors[right - 1] = multiply(factors[right - 1], factors[right])
            factors = factors[~odd]
            lengths = (lengths + 1) // 2
        return run_sums(sums, starts), add(factors, self.points[-1:])

    def total(self, tokens: Words, starts: Ints) -> Words:
        """Sums of runs of tokens."""
        return run_sums(tokens, starts)

    def everyone(self, chunk: Ints) -> Words:
        """Sums of a token of every rank, of these input chunks."""
        return self._of_all_ranks[self._column(chunk)]

    @cached_property
    def _of_all_ranks(self) -> Words:
        """For each chunk that is followed, the sum of the tokens of all ranks."""
        return column_sums(self.tokens)


class Counts:
    """Multisets as the number of times that each contribution was added; numbers of expressions.

    A count may wrap around at 2^64, but not unseen: ``leaves`` saturates long before.
    """

    exact = True

    def __init__(self, nranks: int, per_rank: int) -> None:
        self.nranks = nranks
        self.per_rank = per_rank
        self.numbers: dict[tuple[int, ...], int] = {}

    def nothing(self, rows: int) -> tuple[Words, Words]:
        """Sums and trees of chunks that hold nothing."""
        return np.zeros((rows, self.nranks * self.per_rank), np.uint64), np.zeros(rows, np.uint64)

    def inputs(self, rank: Ints, chunk: Ints) -> tuple[Words, Words]:
        """Sums and trees of input chunks: one contribution; the expression of a rank."""
        sums, _ = self.nothing(len(rank))
        sums[np.arange(len(rank)), rank * self.per_rank + chunk] = 1
        return sums, rank.astype(np.uint64)

    def _number(self, expression: tuple[int, ...]) -> int:
        return self.numbers.setdefault(expression, self.nranks + len(self.numbers))

    def reduce(self, a: tuple[Words, Words], b: tuple[Words, Words]) -> tuple[Words, Words]:
        """Sums and trees of a (op) b."""
        low = np.minimum(a[1], b[1]).tolist()
        high = np.maximum(a[1], b[1]).tolist()
        return a[0] + b[0], np.array([*map(self._number, zip(low, high, strict=True))], np.uint64)

    def reduce_by_switch(self, operands: tuple[Words, Words], starts: Ints) -> tuple[Words, Words]:
        """Sums and trees of runs of operands."""
        ends = [*starts.tolist(), len(operands[1])]
        trees = [
            self._number((-1, *sorted(operands[1][low:high].tolist())))
            for low, high in pairwise(ends)
        ]
        return np.add.reduceat(operands[0], starts, axis=0), np.array(trees, np.uint64)

    def total(self, tokens: Words, starts: Ints) -> Words:
        """Sums of runs of contributions."""
        totals: Words = np.add.reduceat(tokens, starts, axis=0)
        return totals

    def everyone(self, chunk: Ints) -> Words:
        """Sums of a contribution from every rank, of these input chunks."""
        sums, _ = self.nothing(len(chunk))
        sums[
            np.arange(len(chunk))[:, None], np.arange(self.nranks) * self.per_rank + chunk[:, None]
        ] = 1
        return sums


Algebra: TypeAlias = Fingerprints | Counts


@dataclass(slots=True)
class Contents:
    """Contents of some chunks: a row for each."""

    algebra: Algebra
    leaves: Leaves
    sums: Any
    trees: Words

    @classmethod
    def nothing(cls, algebra: Algebra, rows: int) -> Contents:
        """Chunks that hold nothing."""
        return cls(algebra, np.zeros(rows, np.uint32), *algebra.nothing(rows))

    def put_inputs(self, rows: Ints, rank: Ints, chunk: Ints) -> None:
        """Store input chunks."""
        self.leaves[rows] = 1
        self.sums[rows], self.trees[rows] = self.algebra.inputs(rank, chunk)

    def read(self, rows: Ints | slice) -> Contents:
        """A copy of some rows."""
        if isinstance(rows, slice):
            return Contents(
                self.algebra,
                self.leaves[rows].copy(),
                self.sums[rows].copy(),
                self.trees[rows].copy(),
            )
        return Contents(
            self.algebra,
            self.leaves.take(rows),
            self.sums.take(rows, axis=0),
            self.trees.take(rows),
        )

    def write(self, rows: Ints, contents: Contents) -> None:
        """Replace some rows: a copy."""
        self.leaves[rows] = contents.leaves
        self.sums[rows] = contents.sums
        self.trees[rows] = contents.trees

    def plus(self, addend: Contents) -> Contents:
        """Reduction of each row with the same row of other contents."""
        return Contents(
            self.algebra,
            np.minimum(self.leaves + addend.leaves, _MOST_LEAVES),
            *self.algebra.reduce((self.sums, self.trees), (addend.sums, addend.trees)),
        )

    def reduce_by_switch(self, target: Ints) -> tuple[Ints, Contents]:
        """The distinct targets of the rows, and the reduction by a switch of the rows of each."""
        order = np.argsort(target, kind="stable")
        target = target[order]
        starts = np.flatnonzero(np.diff(target, prepend=-1))
        # Fewer than 2^32 rows cannot wrap this.
        leaves = np.add.reduceat(self.leaves[order].astype(np.uint64), starts)
        sums, trees = self.algebra.reduce_by_switch((self.sums[order], self.trees[order]), starts)
        return target[starts], Contents(
            self.algebra, np.minimum(leaves, MOST_LEAVES).astype(np.uint32), sums, trees
        )


def requirements(
    algebra: Algebra, layout: Layout, rank: Ints, chunk: Ints
) -> tuple[Leaves, Any, Ints]:
    """The leaves and sums that outputs must hold, by the collective's definition, and the input
    chunk of each reduction, else -1.

    A custom collective has a number for each chunk of each sum in place of the input chunk.
    """
    if layout.collective.definition is not None:
        return _definition_requirements(algebra, layout, layout.collective.definition, rank, chunk)
    source, piece = layout.wanted(rank, chunk)
    reduces = source < 0
    if reduces.all():
        sums = algebra.everyone(piece)
    else:
        sums = algebra.inputs(np.maximum(source, 0), piece)[0]
        sums[reduces] = algebra.everyone(piece[reduces])
    leaves = np.where(reduces, layout.collective.nranks, 1).astype(np.uint32)
    return leaves, sums, np.where(reduces, piece, -1)


class _Summands(NamedTuple):
    """The contributions that some output chunks must hold, in a row, as they are listed."""

    origin: Ints
    piece: Ints
    starts: Ints
    lengths: Ints


def _summands(layout: Layout, definition: Definition, rank: Ints, chunk: Ints) -> _Summands:
    slot, piece = np.divmod(chunk - layout.output_base, layout.chunks)
    row = rank * definition.sums.shape[1] + slot
    lengths = definition.starts[row + 1] - definition.starts[row]
    starts = np.cumsum(lengths) - lengths
    offset = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    origin = definition.summands[np.repeat(definition.starts[row], lengths) + offset]
    return _Summands(origin, np.repeat(piece, lengths), starts, lengths)


def _definition_requirements(
    algebra: Algebra, layout: Layout, definition: Definition, rank: Ints, chunk: Ints
) -> tuple[Leaves, Any, Ints]:
    """The requirements of outputs by the definition of a custom collective; every output chunk
    lies in a slot that its rank has.
    """
    summands = _summands(layout, definition, rank, chunk)
    tokens = algebra.inputs(summands.origin, summands.piece)[0]
    slot, piece = np.divmod(chunk - layout.output_base, layout.chunks)
    number = definition.sums[rank, slot] * layout.chunks + piece
    leaves = summands.lengths.astype(np.uint32)
    return leaves, algebra.total(tokens, summands.starts), np.where(leaves > 1, number, -1)


def _listed_trees(
    algebra: Algebra, layout: Layout, definition: Definition, rank: Ints, chunk: Ints
) -> Words:
    """Expressions of outputs whose contributions are added in the order in which they are
    listed.
    """
    summands = _summands(layout, definition, rank, chunk)
    operands = algebra.inputs(summands.origin, summands.piece)
    sums, trees = operands[0][summands.starts], operands[1][summands.starts].copy()
    for place in range(1, int(summands.lengths.max(initial=1))):
        rows = np.flatnonzero(summands.lengths > place)
        addend = summands.starts[rows] + place
        sums[rows], trees[rows] = algebra.reduce(
            (sums[rows], trees[rows]), (operands[0][addend], operands[1][addend])
        )
    return trees


def play_few(
    cells: list[list[int]], y: int, sources: list[int], targets: list[int], reduces: list[bool]
) -> str:
    """The rules of a step for a few transfers, in Python's integers: for them, numpy would take
    longer to call than to compute.

    Parameters
    ----------
    cells
        Leaves, sums and trees of the chunks that are followed, by :class:`Fingerprints`.
    y
        The point of reductions.
    sources, targets, reduces
        Row read, row written, and whether it is reduced into, for each transfer.

    Returns
    -------
    str
        Empty, or the row at fault and the reason.
    """
    leaves, sums, trees = cells
    if len(set(targets)) != len(targets):
        return (
            f"{max(targets, key=targets.count)} is written by several transfers; only the full "
            "proof handles that"
        )
    # All reads come before the first write.
    values = [(leaves[row], sums[row], trees[row]) for row in sources]
    moves = zip(sources, targets, reduces, strict=True)
    for (source, target, reduce), (leaf_count, total, tree) in zip(moves, values, strict=True):
        if not leaf_count:
            return f"{source} is read but holds nothing yet"
        if reduce:
            if not leaves[target]:
                return f"{target} is reduced into but holds nothing yet"
            leaves[target] = min(leaves[target] + leaf_count, MOST_LEAVES)
            sums[target] = (sums[target] + total) % PRIME
            trees[target] = (y + trees[target] * tree) % PRIME
        else:
            leaves[target], sums[target], trees[target] = leaf_count, total, tree
    return ""


def check_memory(schedule: Schedule, *, exact: bool) -> None:
    """Refuse a proof that does not fit in memory.

    Raises
    ------
    ConfigError
        States the memory that it takes.
    """
    layout = schedule.layout
    n = schedule.nranks
    contributions = layout.contributors * layout.leaves
    rows = n * layout.size
    size_bytes = rows * (8 * (contributions if exact else 1) + 16) + 8 * (
        layout.size + 2 * contributions
    )
    work = f"proving a schedule with {layout.size} chunks on each of {n} ranks"
    check_room(size_bytes, work, "cut its blocks into fewer")


class Sums(NamedTuple):
    """The reductions that the outputs hold after a proof.

    Attributes
    ----------
    trees
        Expressions, one for each input chunk that is reduced, or for each chunk of each sum of a
        custom collective.
    groups
        The sum that each is a chunk of, ascending; one number for all ranks' contributions.
    consistent
        Whether the expressions of each are equal on all ranks.
    """

    trees: Words
    groups: Ints
    consistent: bool


class Memory:
    """Every chunk of every rank during a proof, and the rules by which steps change it.

    Chunk ``c`` of rank ``r`` is row ``r * strides[0] + c * strides[1]``. If one vector is cut into
    chunks, consecutive chunks are adjacent, since they move together; otherwise one chunk of all
    ranks is.

    Attributes
    ----------
    folds
        Some step has several reductions into one chunk.
    switched
        A switch reduced something, in unspecified order.
    """

    def __init__(self, schedule: Schedule, algebra: Algebra) -> None:
        layout = schedule.layout
        collective = schedule.collective
        n = schedule.nranks
        rows = n * layout.size
        per_rank = layout.output_base
        self.schedule = schedule
        self.layout = layout
        self.algebra = algebra
        self.strides = (layout.size, 1) if collective.nblocks == 1 else (1, n)
        self.contents = Contents.nothing(algebra, rows)
        # Number of the last transfer in a step that wrote each row.
        self.writer = np.zeros(rows, np.uint32)
        self.folds = self.switched = False
        for ranks in in_groups(np.flatnonzero(collective.has_input(np.arange(n))), per_rank):
            rank = np.tile(ranks, per_rank)
            chunk = np.repeat(np.arange(per_rank), len(ranks))
            origin, leaf = layout.contribution(rank, chunk)
            row = self.rows(rank, layout.canonical(rank, chunk))
            if collective.definition is not None:  # a rank may have fewer slots than another
                row, origin, leaf = row[origin >= 0], origin[origin >= 0], leaf[origin >= 0]
            self.contents.put_inputs(row, origin, leaf)

    def rows(self, rank: Ints, chunk: Ints) -> Ints:
        """Row of each chunk."""
        return rank * self.strides[0] + chunk * self.strides[1]

    def _of_step(self, step: Step) -> tuple[Ints, Ints]:
        """Rows of every chunk that a step reads and writes, in the order of
        :func:`simcoll.core.step.by_chunk`.
        """
        src = self.rows(step.src_rank, step.src_chunk)
        dst = self.rows(step.dst_rank, step.dst_chunk)
        if (step.count == 1).all():
            return src, dst
        count = np.maximum(step.count, 1)
        base = (np.cumsum(count) - count) * self.strides[1]
        offset = np.arange(int(count.sum())) * self.strides[1]
        return np.repeat(src - base, count) + offset, np.repeat(dst - base, count) + offset

    def play(self, number: int, step: Step) -> None:
        """Play one checked step, with aliases resolved: all reads, then all writes.

        Raises
        ------
        ScheduleError
            For a transfer that breaks a rule.
        """
        if (step.op == SYNC).any():
            row = int(np.flatnonzero(step.op == SYNC)[0])
            proving.explain.refuse(
                self.schedule,
                number,
                step,
                row,
                "only a barrier has sync transfers",
                at_source=True,
            )
        parts = _parts(step)
        reads = [self._read(number, part) for part in parts]
        if not self._writes_once(step, [dst for dst, _ in reads]) and self._check_folds(
            number, step
        ):
            self._write_folds(number, step, reads)
            return
        for part, (dst, contents) in zip(parts, reads, strict=True):
            self._write(number, part, dst, contents)

    def _read(self, number: int, step: Step) -> tuple[Ints, Contents]:
        """Check transfers; return the rows to write, and the contents read."""
        layout = self.layout
        schedule = self.schedule
        src, dst = self._of_step(step)
        contents = self.contents.read(src)
        if not contents.leaves.all():
            proving.explain.refuse_empty(
                schedule,
                number,
                by_chunk(step),
                int(np.flatnonzero(contents.leaves == 0)[0]),
                reads=True,
            )
        if int(step.dst_chunk.min(initial=layout.size)) < layout.output_base:
            units = by_chunk(step)
            writable = layout.writable(units.dst_rank, units.dst_chunk)
            if not writable.all():
                row = int(np.flatnonzero(~writable)[0])
                proving.explain.refuse(
                    schedule, number, units, row, "overwrites {}: inputs are read-only"
                )
        if not schedule.divisible:
            # Ranges of pieces of one block have equal sizes if their first pieces do.
            units = (
                step
                if layout.collective.nblocks <= 1 and layout.scratch_pieces is None
                else by_chunk(step)
            )
            equal = layout.same_size(units)
            if not equal.all():
                proving.explain.size_mismatch(
                    schedule, number, units, int(np.flatnonzero(~equal)[0])
                )
        return dst, contents

    def _writes_once(self, step: Step, rows: list[Ints]) -> bool:
        """Whether a step writes no chunk twice."""
        if CHUNKS_OF_RANGE * len(step) < sum(map(len, rows)):
            start = step.dst_rank * self.layout.size + step.dst_chunk
            return not overlaps(start, start + step.count)
        # Each transfer writes its number; if two write to one row, one of the numbers is not there
        # afterwards.
        edges = np.cumsum([0, *map(len, rows)])
        numbers = [np.arange(*ends, dtype=np.uint32) for ends in pairwise(edges.tolist())]
        for row, number in zip(rows, numbers, strict=True):
            self.writer[row] = number
        return all(
            np.array_equal(self.writer.take(row), number)
            for row, number in zip(rows, numbers, strict=True)
        )

    def _check_folds(self, number: int, step: Step) -> bool:
        """Refuse a chunk written twice in a step, except by one switch reduction or fold; return
        whether there is a fold.
        """
        if (step.op == SWITCH_REDUCE).all() and (step.channel == step.channel[0]).all():
            return False
        units = by_chunk(step)
        dst = self.rows(units.dst_rank, units.dst_chunk)
        order = np.lexsort((units.src_rank, units.op, dst))
        repeats = np.flatnonzero(np.diff(dst[order]) == 0)
        row = order[repeats + 1]
        previous = order[repeats]
        switched = (units.op[row] == SWITCH_REDUCE) & (units.op[previous] == SWITCH_REDUCE)
        added = (units.op[row] == REDUCE) & np.isin(units.op[previous], (COPY, REDUCE))
        for wrong, reason in (
            (~switched & ~added, ""),
            (units.channel[row] != units.channel[previous], ", on two channels"),
            (
                added
                & (units.op[previous] == REDUCE)
                & (units.src_rank[row] == units.src_rank[previous]),
                ", and from one rank: a fold takes one operand of each",
            ),
        ):
            if wrong.any():
                index = int(np.flatnonzero(wrong)[0])
                also = transfer_text(self.layout, units, int(previous[index]))
                text = f"writes {{}} twice in one step{reason}\n  in {also}"
                proving.explain.refuse(self.schedule, number, units, int(row[index]), text)
        return bool(added.any())

    def _write_folds(self, number: int, step: Step, reads: list[tuple[Ints, Contents]]) -> None:
        """Write operands in rounds: in each round a chunk gets at most one, in the order of the
        fold.
        """
        self.folds = True
        units = by_chunk(step)
        dst = np.concatenate([rows for rows, _ in reads])
        columns = [(contents.leaves, contents.sums, contents.trees) for _, contents in reads]
        operands = Contents(self.algebra, *map(np.concatenate, zip(*columns, strict=True)))
        order = np.lexsort((units.src_rank, units.op == REDUCE, dst))
        begin = np.maximum.accumulate(
            np.where(np.diff(dst[order], prepend=-1) != 0, np.arange(len(order)), 0)
        )
        # Switch operations are played in one round.
        turn = np.where(units.op[order] == SWITCH_REDUCE, 0, np.arange(len(order)) - begin)
        by_turn = order[np.argsort(turn, kind="stable")]
        for rows in np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]):
            self._write(number, units.rows(rows), dst[rows], operands.read(rows))

    def _write(self, number: int, step: Step, dst: Ints, contents: Contents) -> None:
        """Reduce and write the contents that transfers have read."""
        ops = np.flatnonzero(np.bincount(step.op))
        of_chunk = by_chunk(step).op if len(ops) > 1 else step.op
        for op in ops.tolist():
            chosen: Ints | slice = slice(None)
            if len(ops) > 1:
                chosen = np.flatnonzero(of_chunk == op)
                part = contents.read(chosen)
                target = dst[chosen]
            else:
                part = contents
                target = dst
            if op == SWITCH_REDUCE:  # the old content does not count
                self.switched = True
                target, part = part.reduce_by_switch(target)
            elif op == REDUCE:
                old = self.contents.read(target)
                if not old.leaves.all():
                    row = int(np.arange(len(dst))[chosen][old.leaves == 0][0])
                    proving.explain.refuse_empty(
                        self.schedule, number, by_chunk(step), row, reads=False
                    )
                part = old.plus(part)
            self.contents.write(target, part)

    def compare(self) -> Sums:
        """Compare all outputs with the collective's definition.

        Returns
        -------
        Sums
            The reductions that the outputs hold.

        Raises
        ------
        ScheduleError
            With the counter-example of a wrong output.
        """
        collective = self.schedule.collective
        layout = self.layout
        definition = collective.definition
        outputs = np.arange(layout.output_base, layout.scratch_base)
        faults = [np.zeros((2, 0), np.int64)]
        disorder = [np.zeros((2, 0), np.int64)]
        # 1 + row of the first reduction of each input chunk, or of each chunk of a sum.
        number = layout.output_base
        if definition is not None:
            number = (int(definition.sums.max()) + 1) * layout.chunks
        first_row = np.zeros(number, np.int64)
        consistent = True
        ranks = np.flatnonzero(collective.has_output(np.arange(self.schedule.nranks))).astype(
            np.int64
        )
        for few in in_groups(ranks, collective.output_slots * layout.chunks):
            rank = np.tile(few, len(outputs))
            chunk = np.repeat(outputs, len(few))
            if definition is not None:
                present = layout.has_slot(rank, chunk)
                rank, chunk = rank[present], chunk[present]
            row = self.rows(rank, layout.canonical(rank, chunk))
            leaves, sums, reduced = requirements(self.algebra, layout, rank, chunk)
            equal = self.contents.sums.take(row, axis=0) == sums
            right = (self.contents.leaves.take(row) == leaves) & (
                equal.all(axis=1) if equal.ndim > 1 else equal
            )
            faults.append(np.stack([rank, chunk])[:, ~right])
            if definition is not None and definition.order == "listed":
                trees = _listed_trees(self.algebra, layout, definition, rank, chunk)
                disorder.append(np.stack([rank, chunk])[:, self.contents.trees[row] != trees])
            row = row[reduced >= 0]
            reduced = reduced[reduced >= 0]
            new = first_row[reduced] == 0
            first_row[reduced[new][::-1]] = row[new][::-1] + 1
            consistent = consistent and np.array_equal(
                self.contents.trees[first_row[reduced] - 1], self.contents.trees[row]
            )
        wrong = np.concatenate(faults, axis=1)
        if wrong.size:
            proving.explain.wrong_outputs(self.schedule, *wrong)
        unlisted = np.concatenate(disorder, axis=1)
        if unlisted.size:
            proving.explain.wrong_order(self.schedule, *unlisted)
        reductions = np.flatnonzero(first_row)
        groups = np.zeros(len(reductions), np.int64)
        if definition is not None:
            groups = reductions // layout.chunks
        return Sums(self.contents.trees[first_row[reductions] - 1], groups, consistent)


def _parts(step: Step) -> list[Step]:
    """Split a step into runs of transfers with about ``PART`` chunks each; switch operations stay
    whole.
    """
    size = int(step.count.sum())
    if size <= PART or (step.op == SWITCH_REDUCE).any():
        return [step]
    cuts = np.searchsorted(np.cumsum(step.count), np.arange(PART, size, PART)).tolist()
    return [step.rows(slice(*ends)) for ends in pairwise(dict.fromkeys([0, *cuts, len(step)]))]


def in_groups(ranks: Ints, per_rank: int) -> list[Ints]:
    """Split ranks into groups with about ``PART`` chunks, if each rank has ``per_rank``."""
    return np.array_split(ranks, max(1, min(len(ranks), len(ranks) * per_rank // PART)))
