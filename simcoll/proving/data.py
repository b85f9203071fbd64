"""Proof that a schedule leaves the right contributions in every output chunk.

Every input chunk gets a token; a copy copies, a reduction adds. With random 64-bit tokens, added modulo 2**64, two different
multisets of contributions have the same sum with probability 2**-64; in exact mode a chunk holds the count of every token. A set of
contributors would not suffice: it cannot reveal a contribution that was added twice.

A hash of the expression tree records the order of every reduction. It is commutative, because a + b and b + a have the same bits, but
not associative.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints, Words
from simcoll.core.hashing import mix, mix_in_place, token_at
from simcoll.core.hazards import check_orderable
from simcoll.core.proof import LEVELS, Proof
from simcoll.core.schedule import COPY, REDUCE, SWITCH_REDUCE, SYNC, Schedule, Step, lowered, transfer_text
from simcoll.core.step import expanded, overlaps, spread
from simcoll.errors import ConfigError, ScheduleError, expect
from simcoll.proving import explain
from simcoll.proving.alike_pieces import one_of_each
from simcoll.proving.barrier_proof import check_barrier
from simcoll.proving.chunk_memory import PART, Memory, in_groups, start
from simcoll.proving.parts import parts
from simcoll.proving.symmetry import likely, verify_by_symmetry

__all__ = ["verify"]

EXACT_LIMIT = 50_000_000


def _parts(step: Step, size: int) -> list[Step]:
    """Split a step into runs of transfers with about ``size`` chunks each; switch operations stay whole."""
    if size <= PART or (step.op == SWITCH_REDUCE).any():
        return [step]
    cuts = np.searchsorted(np.cumsum(step.count), np.arange(PART, size, PART)).tolist()
    edges = dict.fromkeys([0, *cuts, len(step)])
    return [step.rows(slice(*ends)) for ends in pairwise(edges)]


def _play(schedule: Schedule, memory: Memory, number: int, step: Step) -> None:
    """Play one step: all reads, then all writes."""
    size = int(step.count.sum())
    parts, ranges = _parts(step, size), 4 * len(step) < size
    read = [_read(schedule, memory, number, part) for part in parts]
    folds = False
    if not (_disjoint(schedule, step) if ranges else _each_once(memory.tree, [part[0] for part in read])):
        folds = _check_folds(schedule, memory, number, step)
    if schedule.nchannels > 1:
        memory.beside = memory.beside or bool((step.channel != step.channel[:1]).any())
    if schedule.nchannels > 1 and not memory.mixed:
        memory.mixed = not all(_claimed(memory, step, chunk, size) for _, chunk in step.ends)
    if folds:
        _write_folds(schedule, memory, number, step, read)
        return
    for part, columns in zip(parts, read, strict=True):
        _write(schedule, memory, number, part, *columns)


def _write_folds(
    schedule: Schedule, memory: Memory, number: int, step: Step, read: list[tuple[Ints, Words, Words, Words]]
) -> None:
    """Write operands in rounds: in each round a chunk gets at most one, in the order of the fold."""
    memory.folds = True
    for before, _, _, target in read:  # the check for repeated destinations has overwritten it
        if len(target):
            memory.tree[before] = target
    dst, held, tree = (np.concatenate(column) for column in list(zip(*read, strict=True))[:3])
    one = expanded(step)
    order = np.lexsort((one.src_rank, one.op == REDUCE, dst))
    begin = np.maximum.accumulate(np.where(np.diff(dst[order], prepend=-1) != 0, np.arange(len(order)), 0))
    # Switch operations are played in one round.
    turn = np.where(one.op[order] == SWITCH_REDUCE, 0, np.arange(len(order)) - begin)
    for now in range(int(turn.max()) + 1):
        rows = order[turn == now]
        target = memory.tree.take(dst[rows])
        _write(schedule, memory, number, one.rows(rows), dst[rows], held[rows], tree[rows], target)


def _disjoint(schedule: Schedule, step: Step) -> bool:
    """Whether the ranges that a step writes are disjoint."""
    start = step.dst_rank * schedule.layout.size + step.dst_chunk
    return not overlaps(start, start + step.count)


def _each_once(words: Words, rows: list[Ints]) -> bool:
    """Whether no row occurs twice: each part writes its numbers there, then checks that they remain. Destroys the words."""
    edges = np.cumsum([0, *map(len, rows)])
    numbers = [np.arange(*ends, dtype=np.uint64) for ends in pairwise(edges.tolist())]
    for row, number in zip(rows, numbers, strict=True):
        words[row] = number
    return all(np.array_equal(words.take(row), number) for row, number in zip(rows, numbers, strict=True))


def _claimed(memory: Memory, step: Step, chunk: Ints, size: int) -> bool:
    """Record the channel of each chunk address that a step touches; return False if an address has two channels."""
    channel = step.channel
    if len(chunk) < size:
        chunk, count, channel = np.unique(np.stack([chunk, step.count, channel]), axis=1)
        row, offset = spread(count)
        chunk, channel = chunk[row] + offset, channel[row]
    return _noted(memory.lane, chunk, channel)


def _read(schedule: Schedule, memory: Memory, number: int, step: Step) -> tuple[Ints, Words, Words, Words]:
    """Check transfers; return the rows to write, the values read, and the expression trees of reduction targets, if any."""
    layout = schedule.layout
    src, dst = memory.of_step(step)
    held, tree = memory.held.take(src, axis=0), memory.tree.take(src)
    if not tree.all():
        explain.undefined(schedule, number, expanded(step), int(np.flatnonzero(tree == 0)[0]), reads=True)
    if int(step.dst_chunk.min(initial=layout.size)) < layout.output_base:
        one = expanded(step)
        writable = layout.writable(one.dst_rank, one.dst_chunk)
        if not writable.all():
            row = int(np.flatnonzero(~writable)[0])
            explain.refuse(schedule, number, one, row, "overwrites {}: inputs are read-only")
    if not schedule.divisible:
        # Ranges of pieces of one block have equal sizes if their first pieces do.
        one = step if layout.collective.nblocks <= 1 and layout.scratch_pieces is None else expanded(step)
        same = layout.same_size(one)
        if not same.all():
            explain.size_mismatch(schedule, number, one, int(np.flatnonzero(~same)[0]))
    return dst, held, tree, memory.tree.take(dst) if (step.op == REDUCE).any() else tree[:0]


def _write(
    schedule: Schedule, memory: Memory, number: int, step: Step, dst: Ints, held: Words, tree: Words, target: Words
) -> None:
    """Reduce and write the values that transfers have read."""
    op = expanded(step).op if (step.op != step.op[:1]).any() else step.op[:1]
    if (op == SWITCH_REDUCE).any():
        _switch_reduced(memory, np.broadcast_to(op, dst.shape), dst, held, tree)
    if (op == REDUCE).all():
        _reduced(schedule, memory, number, step, dst, held, tree, target)
    elif (op == REDUCE).any():
        rows = np.flatnonzero(op == REDUCE)
        part, made = held[rows], tree[rows]
        _reduced(schedule, memory, number, step, dst[rows], part, made, target[rows])
        held[rows], tree[rows] = part, made
    memory.held[dst], memory.tree[dst] = held, tree


def _reduced(
    schedule: Schedule, memory: Memory, number: int, step: Step, dst: Ints, held: Words, tree: Words, target: Words
) -> None:
    """Add the values held by the destinations."""
    if not target.all():
        row = int(np.flatnonzero(target == 0)[0])
        one = expanded(step)
        explain.undefined(schedule, number, one, int(np.flatnonzero(one.op == REDUCE)[row]), reads=False)
    held += memory.held.take(dst, axis=0)
    tree += target
    mix_in_place(tree, target)


UNORDERED = np.uint64(0xD6E8FEB86659FD93)
"""Marks the expression tree of a reduction by a switch, which is not a chain of two-operand reductions."""


def _switch_reduced(memory: Memory, op: NDArray[np.int8], dst: Ints, held: Words, tree: Words) -> None:
    """Give every transfer of a switch reduction the reduction of all operands, so that each writes the same value."""
    memory.switched = True
    switched = np.flatnonzero(op == SWITCH_REDUCE)
    target = dst[switched]
    for words, of_rows in ((memory.held, held), (memory.tree, tree)):
        words[target] = 0  # the old content does not count
        np.add.at(words, target, of_rows[switched])
        of_rows[switched] = words.take(target, axis=0)
    tree[switched] = mix(tree[switched] + UNORDERED)


def _check_folds(schedule: Schedule, memory: Memory, number: int, step: Step) -> bool:
    """Refuse a chunk written twice in a step, except by one switch reduction or fold; return whether there is a fold."""
    if (step.op == SWITCH_REDUCE).all() and (step.channel == step.channel[0]).all():
        return False
    one = expanded(step)
    dst = memory.rows(one.dst_rank, one.dst_chunk)
    order = np.lexsort((one.src_rank, one.op, dst))
    same = np.flatnonzero(np.diff(dst[order]) == 0)
    row, before = order[same + 1], order[same]
    switched = (one.op[row] == SWITCH_REDUCE) & (one.op[before] == SWITCH_REDUCE)
    added = (one.op[row] == REDUCE) & np.isin(one.op[before], (COPY, REDUCE))
    for wrong, reason in (
        (~switched & ~added, ""),
        (one.channel[row] != one.channel[before], ", on two channels"),
        (
            added & (one.op[before] == REDUCE) & (one.src_rank[row] == one.src_rank[before]),
            ", and from one rank: a fold takes one operand of each",
        ),
    ):
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            also = transfer_text(schedule.layout, one, int(before[at]))
            explain.refuse(schedule, number, one, int(row[at]), f"writes {{}} twice in one step{reason}\n  in {also}")
    return bool(added.any())


def _noted(lane: Ints, at: Ints, channel: Ints) -> bool:
    """Record the channel of each place; return False if a place has two channels."""
    seen = lane.take(at)
    if np.array_equal(seen, channel):
        return True
    lane[at] = channel
    # The second comparison finds two channels in one step.
    return not ((seen >= 0) & (seen != channel)).any() and np.array_equal(lane.take(at), channel)


def _shares_chunks(schedule: Schedule) -> bool:
    """Whether two channels touch the same chunk of a rank."""
    n = schedule.nranks
    lane = np.full(n * schedule.layout.size, -1, np.int64)
    for _, step in lowered(schedule):
        one = expanded(step)
        if not all(_noted(lane, chunk * n + rank, one.channel) for rank, chunk in one.ends):
            return True
    return False


def _outputs(schedule: Schedule, ranks: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Rank and chunk of every output on some ranks, with the source rank (or ALL) and the input chunk that it must hold."""
    layout = schedule.layout
    outputs = np.arange(layout.output_base, layout.scratch_base)
    rank, chunk = np.tile(ranks, len(outputs)), np.repeat(outputs, len(ranks))
    return rank, chunk, *layout.wanted(rank, chunk)


def _sums(schedule: Schedule) -> Words:
    """For each input chunk, the sum of its tokens over all ranks."""
    per_rank = schedule.layout.output_base
    total, chunk = np.zeros(per_rank, np.uint64), np.arange(per_rank)
    for ranks in in_groups(np.arange(schedule.nranks), per_rank):
        total += token_at(ranks[:, None] * per_rank + chunk, 1).sum(axis=0, dtype=np.uint64)
    return total


def _counted(schedule: Schedule, source: Ints, chunk: Ints) -> Words:
    """The numbers of contributions that outputs must hold."""
    per_rank, n = schedule.layout.output_base, schedule.nranks
    wanted = np.zeros((len(source), n * per_rank), np.uint64)
    for row, (rank, piece) in enumerate(zip(source.tolist(), chunk.tolist(), strict=True)):
        wanted[row, [r * per_rank + piece for r in (range(n) if rank < 0 else [rank])]] = 1
    return wanted


def _check_outputs(schedule: Schedule, memory: Memory, *, exact: bool) -> tuple[Words, bool]:
    """Compare outputs with the required contributions; return reduction trees, and whether those of each chunk are equal."""
    collective, per_rank = schedule.collective, schedule.layout.output_base
    sums = None if exact else _sums(schedule)
    wrong = [np.zeros((2, 0), np.int64)]
    first = np.zeros(per_rank, np.uint64)  # expression tree of the first reduction found for each input chunk
    alike = True
    ranks = np.flatnonzero(collective.has_output(np.arange(schedule.nranks))).astype(np.int64)
    for few in in_groups(ranks, collective.output_slots * schedule.layout.chunks):
        rank, chunk, source, held = _outputs(schedule, few)
        at = memory.rows(rank, schedule.layout.canonical(rank, chunk))
        tree = memory.tree.take(at)
        if sums is None:
            right = (memory.held[at] == _counted(schedule, source, held)).all(axis=1)
        else:
            one = token_at(np.maximum(source, 0) * per_rank + held, 1) if (source >= 0).any() else np.uint64(0)
            right = memory.held.take(at) == np.where(source < 0, sums.take(held), one)
        right &= tree != 0
        wrong.append(np.stack([rank, chunk])[:, ~right])
        reduced = source < 0
        held, tree = held[reduced], tree[reduced]
        new = first[held] == 0
        first[held[new][::-1]] = tree[new][::-1]
        alike = alike and np.array_equal(first[held], tree)
    faults = np.concatenate(wrong, axis=1)
    if faults.size:
        explain.wrong_outputs(schedule, *faults)
    return first[first != 0], alike


def _level(made: Words, *, alike: bool, switched: bool) -> str:
    """The level of the reduction order, given a tree for each reduced chunk."""
    if not len(made):
        return ""
    if not alike or switched:
        return LEVELS[1] if alike else LEVELS[0]
    return LEVELS[3] if (made == made[0]).all() else LEVELS[2]


def _by_symmetry(schedule: Schedule) -> Proof | None:
    """A proof by symmetry if one is likely and fast; None if the full proof must decide or explain."""
    if not likely(schedule):
        return None
    try:
        proof = verify_by_symmetry(schedule)
    except ScheduleError:
        return None
    schedule.known.folds = False  # it refuses folds
    return proof


def verify(schedule: Schedule, *, exact: bool = False) -> Proof:
    """Prove that a schedule implements its collective, for all sizes, dtypes and reductions; the proof is remembered.

    Parameters
    ----------
    schedule
        Any schedule.
    exact
        Count every contribution instead of comparing 64-bit fingerprints; only for small numbers of ranks.

    Returns
    -------
    Proof

    Raises
    ------
    ScheduleError
        States the step, ranks, channel and chunk at fault, and the contributions found and expected.
    ConfigError
        When ``exact`` would need too much memory.

    Examples
    --------
    >>> import simcoll
    >>> print(verify(simcoll.schedule("all_reduce", "ring", nranks=4)))
    proved (full, error 2^-64): 28 transfers in 7 steps, reduction order run-consistent
    """
    expect(schedule, Schedule, "verify takes a schedule, made by schedule(collective, algorithm)")
    known = schedule.known
    if exact:
        return _proved(schedule, exact=True)
    if known.proof is None or known.proof.of is not known:  # none yet, or one of a different schedule
        known.proof = replace(_proved(schedule, exact=False), of=known)
        next(schedule.blocks(), None)  # refuses a source that cannot be restarted
    return known.proof


def _proved(schedule: Schedule, *, exact: bool) -> Proof:
    if schedule.collective.kind == "barrier":
        steps, count = check_barrier(schedule)
        return Proof("full", "exact", "", steps, count, shared_chunks=False)
    layout, n = schedule.layout, schedule.nranks
    if exact and n * layout.size * n * layout.output_base > EXACT_LIMIT:
        raise ConfigError(
            f"exact proof of {schedule} would count {n * layout.output_base} contributions in {n * layout.size} chunks; use fingerprints"
        )
    if not exact:
        proof = _by_symmetry(schedule) or _by_parts(schedule)
        if proof is not None:
            return proof
    memory, steps, count = _followed(schedule, exact=exact)
    made, alike = _check_outputs(schedule, memory, exact=exact)
    order = _level(made, alike=alike, switched=memory.switched)
    schedule.known.folds = memory.folds
    shared = memory.mixed and _shares_chunks(schedule)
    if shared and memory.beside:
        check_orderable(schedule)
    return Proof("full", "exact" if exact else "fingerprint", order, steps, count, shared)


def _followed(schedule: Schedule, *, exact: bool) -> tuple[Memory, int, int]:
    """The memory after the last step, and the numbers of steps and transfers."""
    memory = start(schedule, exact=exact)
    count = steps = 0
    for number, step in lowered(schedule, as_given=True):
        if (step.op == SYNC).any():
            row = int(np.flatnonzero(step.op == SYNC)[0])
            explain.refuse(schedule, number, step, row, "only a barrier has sync transfers", at_source=True)
        _play(schedule, memory, number, step)
        count, steps = count + len(step), number + 1
    return memory, steps, count


def _by_parts(schedule: Schedule) -> Proof | None:
    """A proof of one piece of each kind, or of a long vector part by part; None if the full proof must decide or explain."""
    kind, (some, steps, transfers) = "by symmetry", one_of_each(schedule)
    if not some:
        kind, (some, steps, transfers) = "full", parts(schedule)
    if not some:
        return None
    trees, alike, folds, shared = [], True, False, False
    for part in some:
        try:
            memory = _followed(part, exact=False)[0]
            made, same = _check_outputs(part, memory, exact=False)
        except ScheduleError:
            return None
        shared = memory.mixed and _shares_chunks(part)
        if shared and kind == "full":
            return None
        trees.append(made)
        alike, folds = alike and same, folds or memory.folds
    schedule.known.folds = folds
    if shared:  # pieces of one kind may block each other in a step
        check_orderable(schedule)
    return Proof(
        kind, "fingerprint", _level(np.concatenate(trees), alike=alike, switched=False), steps, transfers, shared
    )
