"""Proof that a schedule leaves the right contributions in every output chunk.

Every input chunk gets a token; a copy copies, a reduction adds. With random 64-bit tokens, added modulo 2**64, two different
multisets of contributions have the same sum with a chance of 2**-64; in exact mode a chunk holds the count of every token. A set of
contributors would not do: it cannot see a contribution that was added twice.

The order of every reduction is followed beside it by a hash of its expression tree that is commutative, because a + b and b + a have
the same bits, but not associative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simcoll.errors import ConfigError, ScheduleError
from simcoll.plan import lowered
from simcoll.schedule import REDUCE, SWITCH_REDUCE, SYNC, Step
from simcoll.verify import explain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simcoll.schedule import Layout, Schedule

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["LEVELS", "Proof", "verify"]

LEVELS = ("any", "rank-consistent", "run-consistent", "position-independent")
"""Reduction order, weakest first. ``rank-consistent``: the same bits on every rank. ``run-consistent``: and in every run.
``position-independent``: and the same order for every chunk."""

EXACT_LIMIT = 50_000_000


@dataclass(frozen=True, slots=True)
class Proof:
    """What was proved of a schedule, for every size, dtype and reduction.

    Attributes
    ----------
    kind
        ``full``: every chunk was followed. ``by symmetry``: some were, and the rest are images of them
        (:mod:`simcoll.verify.symmetry`).
    method
        ``fingerprint`` (error 2**-64 per chunk) or ``exact``.
    order
        One of ``LEVELS``; empty where nothing is reduced.
    steps, transfers
        How much was followed.
    shared_chunks
        Two channels touch the same chunk, so that plans need explicit dependencies.
    """

    kind: str
    method: str
    order: str
    steps: int
    transfers: int
    shared_chunks: bool

    def __str__(self) -> str:
        error = "exact" if self.method == "exact" else "error 2^-64"
        order = f", reduction order {self.order}" if self.order else ""
        return f"proved ({self.kind}, {error}): {self.transfers:,} transfers in {self.steps:,} steps{order}"


def mix(values: Words) -> Words:
    """A bijective scrambling of 64-bit words (the finaliser of SplitMix64: Steele, Lea, Flood, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        z = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def token_at(index: Ints, salt: int) -> Words:
    """Pseudo-random 64-bit words, a function of (salt, index)."""
    with np.errstate(over="ignore"):
        return mix((index.astype(np.uint64) + np.uint64(1 + (salt << 40))) * np.uint64(0x9E3779B97F4A7C15))


def tokens(count: int, salt: int) -> Words:
    """The first ``count`` words of a salt."""
    return token_at(np.arange(count), salt)


@dataclass(slots=True)
class Memory:
    """Every chunk of every rank during a proof, flat: chunk ``c`` of rank ``r`` is row ``r * layout.size + c``."""

    layout: Layout
    held: NDArray[np.uint64]  # fingerprints [rows], or counts of contributions [rows, tokens] in exact mode
    tree: NDArray[np.uint64]  # hash of the expression tree; 0: holds nothing yet
    writer: NDArray[np.int32]  # last step that wrote, -1 before
    channel: NDArray[np.int32]  # channel that touches the chunk; -1: none yet
    shared: bool = False
    switched: bool = False  # a switch reduced something, in an order that nobody knows

    def rows(self, rank: Ints, chunk: Ints) -> Ints:
        """Row of each chunk."""
        return rank * self.layout.size + chunk


def _start(schedule: Schedule, *, exact: bool) -> Memory:
    layout, collective, n = schedule.layout, schedule.collective, schedule.nranks
    rows, per_rank = n * layout.size, layout.output_base
    memory = Memory(
        layout,
        np.zeros((rows, n * per_rank) if exact else rows, np.uint64),
        np.zeros(rows, np.uint64),
        np.full(rows, -1, np.int32),
        np.full(rows, -1, np.int32),
    )
    rank = np.repeat(np.flatnonzero(collective.has_input(np.arange(n))), per_rank)
    chunk = np.tile(np.arange(per_rank), len(rank) // per_rank if per_rank else 0)
    at = memory.rows(rank, layout.canonical(rank, chunk))
    token = rank * per_rank + chunk
    if exact:
        memory.held[at, token] = 1
    else:
        memory.held[at] = tokens(n * per_rank, 1)[token]
    memory.tree[at] = tokens(n, 2)[rank]
    return memory


def expanded(step: Step) -> Step:
    """The step with one row per chunk."""
    if (step.count == 1).all():
        return step
    repeat = np.maximum(step.count, 1)
    row = np.repeat(np.arange(len(step)), repeat)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(repeat) - repeat, repeat)
    one = np.ones(len(row), np.int64)
    return Step(
        step.src_rank[row], step.src_chunk[row] + offset, step.dst_rank[row], step.dst_chunk[row] + offset,
        one, step.op[row], step.channel[row],
    )  # fmt: skip


def _play(schedule: Schedule, memory: Memory, number: int, step: Step) -> None:
    """Do one step: all reads, then all writes."""
    layout = schedule.layout
    src = memory.rows(step.src_rank, step.src_chunk)
    dst = memory.rows(step.dst_rank, step.dst_chunk)
    held, tree = memory.held[src], memory.tree[src]
    if not tree.all():
        explain.undefined_read(schedule, number, step, int(np.flatnonzero(tree == 0)[0]))
    if int(step.dst_chunk.min(initial=layout.size)) < layout.output_base:
        writable = layout.writable(step.dst_rank, step.dst_chunk)
        if not writable.all():
            explain.input_write(schedule, number, step, int(np.flatnonzero(~writable)[0]))
    _claim(schedule, memory, number, step, dst)
    if not schedule.divisible:
        _check_sizes(schedule, number, step)
    if schedule.nchannels > 1 and not memory.shared:
        for at in (src, dst):
            seen = memory.channel[at]
            memory.shared = memory.shared or bool(((seen >= 0) & (seen != step.channel)).any())
            memory.channel[at] = step.channel
    if (step.op == SWITCH_REDUCE).any():
        _switch_reduced(memory, step, dst, held, tree)
    reduces = step.op == REDUCE
    if reduces.any():
        into, rows = (dst, slice(None)) if reduces.all() else (dst[reduces], reduces)
        target = memory.tree[into]
        if not target.all():
            explain.undefined_target(
                schedule, number, step, int(np.flatnonzero(reduces)[np.flatnonzero(target == 0)[0]])
            )
        held[rows] += memory.held[into]
        tree[rows] = mix(tree[rows] + target)
    memory.held[dst], memory.tree[dst] = held, tree


UNORDERED = np.uint64(0xD6E8FEB86659FD93)
"""Marks the expression tree of a reduction by a switch: it is no chain of reductions of two operands."""


def _switch_reduced(memory: Memory, step: Step, dst: Ints, held: Words, tree: Words) -> None:
    """Give every transfer of a switch reduction the reduction of all of its operands: each then writes the same to the one destination."""
    memory.switched = True
    switched = np.flatnonzero(step.op == SWITCH_REDUCE)
    target, group = np.unique(dst[switched], return_inverse=True)
    total = np.zeros((len(target), *held.shape[1:]), np.uint64)
    np.add.at(total, group, held[switched])
    leaves = np.zeros(len(target), np.uint64)
    np.add.at(leaves, group, tree[switched])
    held[switched], tree[switched] = total[group], mix(leaves + UNORDERED)[group]


def _claim(schedule: Schedule, memory: Memory, number: int, step: Step, dst: Ints) -> None:
    """Note who writes each chunk; no chunk may be written twice in a step, but by one switch reduction."""
    row = np.arange(len(dst), dtype=np.int32)
    memory.writer[dst] = row
    winner = memory.writer[dst]
    clash = winner != row
    if clash.any():
        one = (step.op == SWITCH_REDUCE) & (step.op[winner] == SWITCH_REDUCE) & (step.channel == step.channel[winner])
        clash &= ~one
    if clash.any():
        loser = int(np.flatnonzero(clash)[0])
        explain.double_write(schedule, number, step, loser, int(winner[loser]))
    memory.writer[dst] = number


def _check_sizes(schedule: Schedule, number: int, step: Step) -> None:
    """Chunks may be exchanged only for chunks that have the same size whatever the sizes of the blocks are."""
    layout = schedule.layout
    same = not ((step.src_chunk - step.dst_chunk) % layout.chunks).any()
    if same and schedule.collective.nblocks > 1:
        same = np.array_equal(layout.block(step.src_rank, step.src_chunk), layout.block(step.dst_rank, step.dst_chunk))
    if not same:
        explain.size_mismatch(schedule, number, step)


def _outputs(schedule: Schedule) -> tuple[Ints, Ints, Ints, Ints]:
    """Rank and chunk of every output the caller sees, with the source rank (or ALL) and input chunk it must hold."""
    layout, collective = schedule.layout, schedule.collective
    ranks = np.flatnonzero(collective.has_output(np.arange(schedule.nranks))).astype(np.int64)
    slots = np.repeat(np.arange(collective.output_slots, dtype=np.int64), layout.chunks)
    pieces = np.tile(np.arange(layout.chunks, dtype=np.int64), collective.output_slots)
    rank = np.repeat(ranks, len(slots))
    slot, piece = np.tile(slots, len(ranks)), np.tile(pieces, len(ranks))
    source, source_slot = collective.source(rank, slot)
    return rank, layout.output(slot, piece), source, layout.input(source_slot, piece)


def _expected(schedule: Schedule, source: Ints, chunk: Ints, *, exact: bool) -> Words:
    per_rank, n = schedule.layout.output_base, schedule.nranks
    if exact:
        wanted = np.zeros((len(source), n * per_rank), np.uint64)
        for row, (rank, piece) in enumerate(zip(source.tolist(), chunk.tolist(), strict=True)):
            wanted[row, [r * per_rank + piece for r in (range(n) if rank < 0 else [rank])]] = 1
        return wanted
    token = tokens(n * per_rank, 1).reshape(n, per_rank)
    return np.where(source < 0, token.sum(axis=0, dtype=np.uint64)[chunk], token[np.maximum(source, 0), chunk])


def _order(source: Ints, chunk: Ints, tree: Words, *, switched: bool) -> str:
    """Level of the reduction order, from the expression tree of every output chunk."""
    reduced = source < 0
    if not reduced.any():
        return ""
    tree, chunk = tree[reduced], chunk[reduced]
    first = np.zeros(int(chunk.max()) + 1, np.uint64)
    first[chunk[::-1]] = tree[::-1]
    if not np.array_equal(first[chunk], tree):
        return "any"
    if switched:
        return "rank-consistent"
    return "position-independent" if (tree == tree[0]).all() else "run-consistent"


def _verify_barrier(schedule: Schedule) -> Proof:
    """Every rank must have heard, directly or not, of every rank's entry.

    Channels are independent, so what a rank hears on one it cannot pass on on another: knowledge is that of a lane.
    """
    n, channels = schedule.nranks, schedule.nchannels
    heard = np.zeros((n * channels, -(-n // 8)), np.uint8)
    lane = np.arange(n * channels)
    heard[lane, lane // channels // 8] = 1 << (lane // channels % 8)
    count = steps = 0
    for number, step in lowered(schedule):
        schedule.check_step(number, step)
        count, steps = count + len(step), steps + 1
        if (step.op != SYNC).any():
            raise ScheduleError(
                f"{schedule}: step {number}: a barrier has no data; its transfers are sync", step=number
            )
        told = heard[step.src_rank * channels + step.channel]
        np.bitwise_or.at(heard, step.dst_rank * channels + step.channel, told)
    heard = np.bitwise_or.reduce(heard.reshape(n, channels, -1), axis=1)
    complete = np.bitwise_or.reduce(heard, axis=0)
    missing = np.flatnonzero((heard != complete).any(axis=1))
    if len(missing):
        rank = int(missing[0])
        absent = np.flatnonzero(~np.unpackbits(heard[rank], bitorder="little")[:n].astype(bool)).tolist()
        explain.barrier_leaves_early(schedule, rank, absent)
    return Proof("full", "exact", "", steps, count, shared_chunks=False)


def verify(schedule: Schedule, *, exact: bool = False) -> Proof:
    """Prove that a schedule implements its collective, for all sizes, dtypes and reductions.

    Parameters
    ----------
    schedule
        Any schedule.
    exact
        Follow exact counts of contributions instead of 64-bit fingerprints; for small numbers of ranks.

    Returns
    -------
    Proof

    Raises
    ------
    ScheduleError
        With the step, ranks, channel and chunk at fault, what was found and what was expected.
    ConfigError
        When ``exact`` would need too much memory.

    Examples
    --------
    >>> import simcoll
    >>> print(verify(simcoll.schedule("all_reduce", "ring", nranks=4)))
    proved (full, error 2^-64): 28 transfers in 7 steps, reduction order run-consistent
    """
    if schedule.collective.kind == "barrier":
        return _verify_barrier(schedule)
    layout, n = schedule.layout, schedule.nranks
    if exact and n * layout.size * n * layout.output_base > EXACT_LIMIT:
        raise ConfigError(
            f"exact proof of {schedule} would count {n * layout.output_base} contributions in {n * layout.size} chunks; use fingerprints"
        )
    if not exact:
        from simcoll.verify.sliced import verify_sliced

        proof = verify_sliced(schedule)
        if proof is not None:
            return proof
    memory = _start(schedule, exact=exact)
    count = steps = 0
    for number, step in lowered(schedule):
        schedule.check_step(number, step)
        if (step.op == SYNC).any():
            raise ScheduleError(f"{schedule.title}: step {number}: only a barrier has sync transfers", step=number)
        _play(schedule, memory, number, expanded(step))
        count, steps = count + len(step), number + 1
    rank, chunk, source, source_chunk = _outputs(schedule)
    at = memory.rows(rank, layout.canonical(rank, chunk))
    wanted = _expected(schedule, source, source_chunk, exact=exact)
    order = _order(source, source_chunk, memory.tree[at], switched=memory.switched)
    right = memory.held[at] == wanted
    if exact:
        right = right.all(axis=1)
    right &= memory.tree[at] != 0
    if not right.all():
        row = int(np.flatnonzero(~right)[0])
        explain.wrong_output(
            schedule, int(rank[row]), int(chunk[row]), int((~right).sum()), int(memory.writer[at[row]])
        )
    if memory.shared:
        from simcoll.hazards import check_orderable

        check_orderable(schedule)
    return Proof("full", "exact" if exact else "fingerprint", order, steps, count, memory.shared)
