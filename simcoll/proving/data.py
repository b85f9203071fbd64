"""Proof that a schedule leaves the right contributions in every output chunk: which chunks are
followed, and what the proof says.

:mod:`simcoll.proving.kernel` follows and judges them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simcoll.core.proof import LEVELS, Proof
from simcoll.core.schedule import Repeat, Schedule, lowered
from simcoll.core.vocabulary import OrderLevel, ProofKind
from simcoll.errors import ConfigError, ScheduleError, expect
from simcoll.proving.alike_pieces import one_of_each
from simcoll.proving.channel_use import ChannelUse
from simcoll.proving.copied_shares import one_share
from simcoll.proving.image_pieces import one_of_images
from simcoll.proving.kernel import (
    SALT_BYTES,
    Counts,
    Fingerprints,
    Memory,
    Sums,
    by_fingerprints,
    check_memory,
)
from simcoll.proving.parts import parts
from simcoll.proving.symmetry import likely, prove_by_symmetry

__all__ = ["EXACT_BY_DEFAULT", "verify"]

EXACT_LIMIT = 50_000_000
"""Most contributions that a proof counts when asked to: 400 MB."""
EXACT_BY_DEFAULT = 1 << 20
"""Up to this number of contributions a proof counts without being asked: 10 ms at most, and at most
1.5 times a proof by fingerprints.
"""


def verify(schedule: Schedule, *, exact: bool | None = None, salt: bytes | None = None) -> Proof:
    """Prove that a schedule implements its collective, for all sizes, dtypes and reductions; the
    proof is remembered.

    Parameters
    ----------
    schedule
        Any schedule.
    exact
        Count every contribution instead of comparing fingerprints; only for small numbers of ranks.
        Default: if all chunks of all ranks, and all chunks that are moved, could together hold at
        most ``EXACT_BY_DEFAULT`` contributions.
    salt
        Repeats a proof by fingerprints, with the ``salt`` of that proof. It only repeats: the
        probability of error is that of a salt that nobody knew when the schedule was written.
        Default: drawn anew, from the system's secure source.

    Returns
    -------
    Proof

    Raises
    ------
    ScheduleError
        States the step, ranks, channel and chunk at fault, and the contributions found and
        expected.
    ConfigError
        When ``exact`` would need too much memory, and for a salt that is not of 32 bytes.

    Examples
    --------
    >>> import simcoll
    >>> print(verify(simcoll.schedule("all_reduce", "ring", nranks=4)))
    proved (full, exact): 28 transfers in 7 steps, reduction order run-consistent
    """
    expect(schedule, Schedule, "verify takes a schedule, made by schedule(collective, algorithm)")
    if type(schedule) is not Schedule:  # its class is a property, say
        raise ConfigError(
            "verify takes a schedule, made by schedule(collective, algorithm); got "
            f"{type(schedule).__name__}"
        )
    if salt is not None:
        expect(salt, bytes, "a salt is bytes, the Proof.salt of an earlier proof")
        if len(salt) != SALT_BYTES:
            raise ConfigError(f"a salt has {SALT_BYTES} bytes, as Proof.salt; got {len(salt)}")
    facts = schedule.known
    if salt is not None:  # its author may have known it
        return replace(_prove(schedule, exact=exact, salt=salt), error_bits=0)
    if exact is not None:
        return _prove(schedule, exact=exact, salt=None)
    # None yet, or one of a different schedule.
    if facts.proof is None or facts.proof.of is not facts:
        proof = schedule.keep_proof(_prove(schedule, exact=None, salt=None))
        if not facts.keeps:  # a source of the user's may be a generator that is used up
            next(schedule.blocks(), None)
        return proof
    return facts.proof


def _prove(schedule: Schedule, *, exact: bool | None, salt: bytes | None) -> Proof:
    proof = _prove_contents(schedule, exact=exact, salt=salt)
    if not schedule.wire_formats:
        return proof
    # A value that was converted on its way differs from one that was not, so ranks that add in one
    # order may still have other bits.
    order: OrderLevel = "any" if proof.order else ""
    _check_order(schedule, order)
    return replace(proof, order=order, conversions=schedule.wire_formats)


def _prove_contents(schedule: Schedule, *, exact: bool | None, salt: bytes | None) -> Proof:
    if schedule.collective.kind == "barrier":
        from simcoll.proving.barrier_proof import check_barrier

        steps, count = check_barrier(schedule)
        return Proof("full", "exact", "", steps, count, shared_chunks=False)
    if exact is None:
        exact = salt is None and _is_small(schedule)
    elif exact and _contributions(schedule) > EXACT_LIMIT:
        layout, n = schedule.layout, schedule.nranks
        raise ConfigError(
            f"exact proof of {schedule} would count {layout.contributors * layout.leaves} "
            "contributions in "
            f"{n * layout.size} chunks; use fingerprints"
        )
    salt = salt or os.urandom(SALT_BYTES)
    schedule.hold()  # the strategies look at the same steps, one after the other
    try:
        if exact:
            return _in_full(schedule, salt, exact=True)
        if schedule.collective.definition is not None:  # the shortcuts know the table's kinds
            return _in_full(schedule, salt, exact=False)
        return (
            _by_symmetry(schedule, salt)
            or _by_share(schedule, salt)
            or _by_parts(schedule, salt)
            or _in_full(schedule, salt, exact=False)
        )
    finally:
        schedule.release()


def _contributions(schedule: Schedule) -> int:
    """Number of contributions in all chunks, if each had one of every input chunk."""
    layout, n = schedule.layout, schedule.nranks
    return n * layout.size * layout.contributors * layout.leaves


def _is_small(schedule: Schedule) -> bool:
    """Whether counting takes no longer than :data:`EXACT_BY_DEFAULT` allows: a function of the
    schedule alone.
    """
    room = EXACT_BY_DEFAULT - _contributions(schedule)
    if room < 0:  # before a pass over steps that may be large
        return False
    for block in schedule.blocks():
        if room < 0:
            return False
        steps, turns = (block.steps, block.count) if isinstance(block, Repeat) else ((block,), 1)
        room -= (
            turns
            * sum(int(step.count.sum()) for step in steps)
            * schedule.layout.contributors
            * schedule.layout.leaves
        )
    return room >= 0


def _in_full(schedule: Schedule, salt: bytes, *, exact: bool) -> Proof:
    """Follow every chunk."""
    result = _follow(schedule, salt, exact=exact)
    sums = result.memory.compare()
    shared = result.use.shares_chunks()
    if shared:
        result.use.check_orderable()
    order = _level(sums, switched=result.memory.switched)
    _check_order(schedule, order)
    if exact:
        return Proof(
            "full",
            "exact",
            order,
            result.steps,
            result.transfers,
            shared,
            folds=result.memory.folds,
        )
    counts = result.steps, result.transfers
    return by_fingerprints(
        schedule, "full", order, counts, salt, shared_chunks=shared, folds=result.memory.folds
    )


class _PlayedSteps(NamedTuple):
    """What the steps of a schedule leave: the memory after the last, the use of channels, and their
    own numbers.
    """

    memory: Memory
    use: ChannelUse
    steps: int
    transfers: int


def _follow(schedule: Schedule, salt: bytes, *, exact: bool) -> _PlayedSteps:
    """Play all steps of a schedule."""
    check_memory(schedule, exact=exact)
    origins, leaves = schedule.layout.contributors, schedule.layout.leaves
    memory = Memory(
        schedule,
        Counts(origins, leaves) if exact else Fingerprints(salt, origins, np.arange(leaves)),
    )
    use = ChannelUse(schedule)
    transfers = steps = 0
    for number, step in lowered(schedule, as_given=True):
        memory.play(number, step)
        use.record(step)
        transfers, steps = transfers + len(step), number + 1
    return _PlayedSteps(memory, use, steps, transfers)


def _level(sums: Sums, *, switched: bool) -> OrderLevel:
    """The level of the reduction order, given the expression of each chunk that is reduced."""
    trees, groups, consistent = sums
    if not len(trees):
        return ""
    if not consistent or switched:
        return LEVELS[1] if consistent else LEVELS[0]
    leader = np.searchsorted(groups, groups)  # groups ascend
    return LEVELS[3] if (trees == trees[leader]).all() else LEVELS[2]


def _check_order(schedule: Schedule, order: OrderLevel) -> None:
    """Refuse a weaker order of reductions than a custom collective requires."""
    definition = schedule.collective.definition
    required = "" if definition is None else definition.order
    if not order or required in ("", "listed"):
        return
    if LEVELS.index(order) < LEVELS.index(required):
        raise ScheduleError(
            f"{schedule}: its order of reductions is {order!r}; the definition requires at least "
            f"{required!r}"
        )


def _by_symmetry(schedule: Schedule, salt: bytes) -> Proof | None:
    """A proof by symmetry if one is likely and fast; None if the full proof must decide or
    explain.
    """
    if not likely(schedule):
        return None
    try:
        return prove_by_symmetry(schedule, salt)
    except ScheduleError:
        return None


def _by_share(schedule: Schedule, salt: bytes) -> Proof | None:
    """A proof of the first of many equal shares; None if there are none, or the full proof must
    explain.
    """
    share = one_share(schedule)
    if share is None:
        return None
    try:
        proof = _by_parts(share.schedule, salt) or _in_full(share.schedule, salt, exact=False)
    except ScheduleError:
        return None
    transfers = share.shares * proof.transfers
    return replace(proof, kind="by symmetry", steps=share.steps, transfers=transfers)


def _by_parts(schedule: Schedule, salt: bytes) -> Proof | None:
    """A proof of one piece of each kind, of one of all images, or of a long vector part by part;
    None if the full proof must decide or explain.
    """
    kind: ProofKind = "by symmetry"
    some, steps, transfers = one_of_each(schedule)
    images = not some
    if images:
        some, steps, transfers = one_of_images(schedule)
    if not some:
        images = False
        kind, (some, steps, transfers) = "full", parts(schedule)
    if not some:
        return None
    parts_of_sums: list[Sums] = []
    folds = shared = False
    for part in some:
        try:
            result = _follow(part, salt, exact=False)
            part_sums = result.memory.compare()
        except ScheduleError:
            return None
        shared = shared or result.use.shares_chunks()
        # Operands of a fold are added in the order of their ranks, which an image may change.
        unlike_images = images and (shared or result.memory.folds)
        if unlike_images or (shared and kind == "full"):
            return None
        parts_of_sums.append(part_sums)
        folds = folds or result.memory.folds
    if shared:  # pieces of one kind may block each other in a step
        from simcoll.core.hazards import check_orderable

        check_orderable(schedule)
    sums = Sums(
        np.concatenate([part.trees for part in parts_of_sums]),
        np.concatenate([part.groups for part in parts_of_sums]),
        all(part.consistent for part in parts_of_sums),
    )
    order = _level(sums, switched=False)
    return by_fingerprints(
        schedule, kind, order, (steps, transfers), salt, shared_chunks=shared, folds=folds
    )
