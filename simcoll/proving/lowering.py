"""Lowering of a plan to per-rank instructions in lanes, the form that is checked, executed and
exported.

A step of a plan on a channel of a rank is a group: its messages and local operations run
concurrently, and the next step starts when all are done. So each end of a connection gets a lane,
as does each local operation of a step, and the first instruction of a lane in a step waits for all
lanes of that channel in the previous step. Nothing else orders them, neither here nor where plans
run.

Sources that their own step overwrites are first copied aside, to scratch beyond that of the
schedule. Several reductions into one chunk in one step are ordered by ascending source rank;
operands of a switch, which reduces in unspecified order, keep the order of the plan, and the first
of them is a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.core.plan import Plan
from simcoll.core.rank_program import NAMES, Code, Lanes, RankProgram
from simcoll.core.schedule import COPY, REDUCE, SWITCH_REDUCE, SYNC, lowered
from simcoll.core.step import distinct, spread
from simcoll.core.transit import refuse_transits
from simcoll.core.wiring import wire
from simcoll.errors import expect
from simcoll.proving.program_proof import ProgramProof, check_data, check_order

Waits = Sequence[tuple[Ints, Ints]]

__all__ = ["Lowering", "check_lowering", "lower", "lowering"]

NOP, SEND, RECV = map(NAMES.index, ("nop", "send", "recv"))
RECV_REDUCE, LOCAL_COPY, LOCAL_REDUCE = map(NAMES.index, ("recv_reduce_copy", "copy", "reduce"))
STAGE_ROLE, SEND_ROLE, RECV_ROLE, LOCAL_ROLE = range(4)
COLUMNS = ("src_rank", "src_chunk", "dst_rank", "dst_chunk", "count", "op", "channel", "staged")


@dataclass(frozen=True, slots=True, eq=False)
class Lowering:
    """The instructions of some ranks of a plan.

    Attributes
    ----------
    code
        The instructions.
    transfer, step
        For every instruction, the transfer of the plan that it belongs to, counted over all steps,
        and its step.
    staging
        Number of chunks beyond those of the schedule for data copied aside.
    """

    code: Code
    transfer: Ints
    step: Ints
    staging: int


@dataclass(frozen=True, slots=True, eq=False)
class _PlanTransfers:
    """Transfers of all steps that involve some ranks, with their numbers in the plan."""

    number: Ints
    step: Ints
    src_rank: Ints
    src_chunk: Ints
    dst_rank: Ints
    dst_chunk: Ints
    count: Ints
    op: Ints
    channel: Ints
    staged: Ints


def _rows(plan: Plan, mine: NDArray[np.bool_]) -> _PlanTransfers:
    parts = [np.zeros((2 + len(COLUMNS), 0), np.int64)]
    base = 0
    for step in plan.steps():
        rows = np.flatnonzero(mine[step.src_rank] | mine[step.dst_rank])
        columns = [getattr(step, name)[rows] for name in COLUMNS]
        parts.append(np.stack([base + rows, np.full(len(rows), step.step), *columns]))
        base += len(step)
    return _PlanTransfers(*np.concatenate(parts, axis=1))


class _Parts(NamedTuple):
    """Instructions as columns: ``row`` is the transfer that each belongs to, ``phase`` 0 marks a
    copy aside.
    """

    row: Ints
    rank: Ints
    role: Ints
    peer: Ints
    phase: Ints
    op: Ints
    src: Ints
    dst: Ints
    recv_from: Ints
    send_to: Ints


def _parts(
    row: Ints,
    rank: Ints,
    *,
    role: Ints | int,
    peer: Ints,
    op: Ints | int,
    phase: int = 1,
    src: Ints | int = -1,
    dst: Ints | int = -1,
    recv_from: Ints | int = -1,
    send_to: Ints | int = -1,
) -> Ints:
    table = np.empty((len(_Parts._fields), len(row)), np.int64)
    for place, values in enumerate(
        (row, rank, role, peer, phase, op, src, dst, recv_from, send_to)
    ):
        table[place] = values
    return table


def _count_earlier(key: Ints) -> Ints:
    """For each row, the number of earlier rows with the same key."""
    order = np.argsort(key, kind="stable")
    begin = np.maximum.accumulate(
        np.where(np.diff(key[order], prepend=-1) != 0, np.arange(len(key)), 0)
    )
    result = np.empty(len(key), np.int64)
    result[order] = np.arange(len(key)) - begin
    return result


def _operands(rows: _PlanTransfers, *, folds: bool) -> tuple[Ints, Ints, Ints]:
    """Pairs (earlier, later) of overlapping reductions in one step, and the first operand of each
    switch operation.

    Overlapping ranges are ordered: those of a switch as in the plan; those of reductions, if the
    plan ``folds``, by ascending source rank, after the copy that they add to.
    """
    # Ranges that overlap, directly or through others, form a cluster: sorted by their start, a
    # range begins a new one if it starts behind all that the ranges before it reach. The operands
    # of a cluster form one chain, although some of them may not overlap: n - 1 waits instead of up
    # to n * n / 2, and folds are rare enough for the order that this adds.
    operand = (rows.op == REDUCE) | (rows.op == SWITCH_REDUCE)
    reducing = np.flatnonzero(operand | (rows.op == COPY) if folds else operand)
    start = rows.dst_chunk[reducing]
    end = (rows.dst_chunk + rows.count)[reducing]
    place = rows.step[reducing] * (int(rows.dst_rank.max(initial=0)) + 1) + rows.dst_rank[reducing]
    order = np.lexsort((start, place))
    width = int(end.max(initial=0)) + 1
    reach = np.maximum.accumulate((place * width + end)[order])
    new = np.ones(len(order), np.bool_)
    new[1:] = (place * width + start)[order][1:] >= reach[:-1]
    cluster = np.empty(len(order), np.int64)
    cluster[order] = np.cumsum(new)
    switch = rows.op[reducing] == SWITCH_REDUCE
    order = np.lexsort(
        (
            reducing,
            np.where(switch, 0, rows.src_rank[reducing]),
            rows.op[reducing] == REDUCE,
            cluster,
        )
    )
    follows = np.diff(cluster[order], prepend=-1) == 0
    chained = reducing[order]
    return chained[:-1][follows[1:]], chained[1:][follows[1:]], chained[~follows & switch[order]]


def _instructions(
    rows: _PlanTransfers, mine: NDArray[np.bool_], size: int, nchannels: int
) -> tuple[Ints, int]:
    """The instructions of some ranks, as the columns of :class:`_Parts`, and the number of chunks
    copied aside.
    """
    row = np.arange(len(rows.number))
    away = rows.src_rank != rows.dst_rank
    sends_here = mine[rows.src_rank]
    receives_here = mine[rows.dst_rank]
    group = (rows.src_rank * nchannels + rows.channel) * (
        int(rows.step.max(initial=0)) + 1
    ) + rows.step
    staged = np.flatnonzero((rows.staged == 1) & sends_here)
    count = rows.count[staged]
    aside = rows.src_chunk.copy()
    by_rank = staged[np.argsort(rows.src_rank[staged], kind="stable")]
    offset = np.cumsum(rows.count[by_rank]) - rows.count[by_rank]
    base = np.maximum.accumulate(
        np.where(np.diff(rows.src_rank[by_rank], prepend=-1) != 0, offset, 0)
    )
    aside[by_rank] = size + offset - base
    staging = int((aside[staged] + count - size).max(initial=0))
    sync = rows.op == SYNC
    reduces = (rows.op == REDUCE) | (rows.op == SWITCH_REDUCE)
    reduces[_operands(rows, folds=False)[2]] = False
    number = np.zeros(len(row), np.int64)
    number[staged] = _count_earlier(group[staged])
    local = np.flatnonzero(~away & sends_here)
    copies = _parts(
        staged,
        rows.src_rank[staged],
        role=np.where(away[staged], SEND_ROLE, STAGE_ROLE),
        phase=0,
        peer=np.where(away[staged], rows.dst_rank[staged], number[staged]),
        op=LOCAL_COPY,
        src=rows.src_chunk[staged],
        dst=aside[staged],
    )
    out = row[away & sends_here]
    sends = _parts(
        out,
        rows.src_rank[out],
        role=SEND_ROLE,
        peer=rows.dst_rank[out],
        op=SEND,
        src=aside[out],
        send_to=rows.dst_rank[out],
    )
    into = row[away & receives_here]
    recvs = _parts(
        into,
        rows.dst_rank[into],
        role=RECV_ROLE,
        peer=rows.src_rank[into],
        recv_from=rows.src_rank[into],
        op=np.where(reduces[into], RECV_REDUCE, RECV),
        dst=rows.dst_chunk[into],
        src=np.where(reduces[into], rows.dst_chunk[into], -1),
    )
    local_operations = _parts(
        local,
        rows.src_rank[local],
        role=LOCAL_ROLE,
        peer=_count_earlier(group[local]),
        src=aside[local],
        dst=rows.dst_chunk[local],
        op=np.where(sync[local], NOP, np.where(reduces[local], LOCAL_REDUCE, LOCAL_COPY)),
    )
    return np.concatenate([copies, sends, recvs, local_operations], axis=1), staging


def _pairs(keys: Ints, sorted_keys: Ints) -> tuple[Ints, Ints]:
    """Positions of all pairs of equal keys, one of each; both sorted."""
    low = np.searchsorted(sorted_keys, keys)
    high = np.searchsorted(sorted_keys, keys, "right")
    row, offset = spread(high - low)
    return row, low[row] + offset


def _each_once(waits: Waits, lane: Ints) -> tuple[Ints, Ints]:
    """Distinct pairs of instructions, by waiter, without missing instructions and without order
    implied by a lane.
    """
    later, earlier = (np.concatenate(column) for column in zip(*waits, strict=True))
    relevant = (later >= 0) & (earlier >= 0) & (lane[later] != lane[earlier])
    count = len(lane) + 1
    codes = distinct(later[relevant] * count + earlier[relevant])
    return codes // count, codes % count


def _group_waits(lane: Ints, group: Ints, step: Ints) -> tuple[Ints, Ints]:
    """Pairs: the first instruction of a lane in a step waits for all lanes of its group in the
    previous step.
    """
    number = np.arange(len(lane))
    new = (np.diff(lane, prepend=-1) != 0) | (np.diff(step, prepend=-1) != 0)
    start = number[new]
    end = np.concatenate([start[1:], [len(lane)]])[: len(start)] - 1
    steps = int(step.max(initial=0)) + 1
    turn = group[start] * steps + step[start]
    turns = distinct(turn)
    previous = np.full(len(turns) + 1, -1)  # the previous group of each
    previous[1:-1] = np.where(turns[1:] // steps == turns[:-1] // steps, turns[:-1], -1)
    order = np.argsort(turn, kind="stable")
    later, earlier = _pairs(previous[np.searchsorted(turns, turn)], turn[order])
    return start[later], end[order][earlier]


def lowering(plan: Plan, ranks: Sequence[int] | None = None) -> Lowering:
    """The instructions of a plan, or of some of its ranks."""
    mine = (
        np.ones(plan.nranks, np.bool_) if ranks is None else np.isin(np.arange(plan.nranks), ranks)
    )
    rows = _rows(plan, mine)
    columns, staging = _instructions(rows, mine, plan.schedule.layout.size, plan.nchannels)
    parts = _Parts(*columns)
    channel = rows.channel[parts.row]
    peers = int(parts.peer.max(initial=0)) + 1
    key = ((parts.rank * plan.nchannels + channel) * 4 + parts.role) * peers + parts.peer
    order = np.lexsort((parts.row, parts.phase, rows.step[parts.row], key))
    parts = _Parts(*columns[:, order])
    begin = np.flatnonzero(np.diff(key[order], prepend=-1))
    lane = np.repeat(np.arange(len(begin)), np.diff([*begin.tolist(), len(order)]))
    step = rows.step[parts.row]
    channel = rows.channel[parts.row]
    waits = [
        _group_waits(lane, parts.rank * plan.nchannels + channel, step),
        *_row_waits(plan, rows, parts),
    ]
    code = Code(
        parts.rank[begin],
        channel[begin],
        np.concatenate([begin, [len(order)]]),
        parts.op,
        parts.src,
        parts.dst,
        np.where(rows.op[parts.row] == SYNC, 0, rows.count[parts.row]),
        parts.recv_from,
        parts.send_to,
        *_each_once(waits, lane),
    )
    return Lowering(code, rows.number[parts.row], step, staging)


def _row_waits(plan: Plan, rows: _PlanTransfers, parts: _Parts) -> Iterator[tuple[Ints, Ints]]:
    """Pairs (later, earlier) of instructions; -1 stands for an instruction of another rank.

    Writes wait for copies aside of their step, operands for preceding operands, and transfers for
    the explicit waits of the plan.
    """
    # For each transfer, the instructions that copy aside, that send (or work locally), that
    # receive.
    aside, sent, received = (np.full(len(rows.number), -1) for _ in range(3))
    local = parts.role == LOCAL_ROLE
    for instruction, mask in (
        (aside, parts.phase == 0),
        (sent, (parts.role == SEND_ROLE) & (parts.phase == 1) | local),
        (received, (parts.role == RECV_ROLE) | local),
    ):
        instruction[parts.row[mask]] = np.flatnonzero(mask)
    steps = int(rows.step.max(initial=0)) + 1
    staged = np.flatnonzero(aside >= 0)
    place = (rows.src_rank * plan.nchannels + rows.channel) * steps + rows.step
    target = (rows.dst_rank * plan.nchannels + rows.channel) * steps + rows.step
    order = staged[np.argsort(place[staged], kind="stable")]
    later, earlier = _pairs(target, place[order])
    yield received[later], aside[order][earlier]
    preceding, following, _ = _operands(rows, folds=plan.schedule.known.folds)
    yield received[following], received[preceding]
    pairs = [(later, earlier) for later, awaited in plan.waits.items() for earlier in awaited]
    if not pairs:
        return
    wait_ends = np.array(pairs, np.int64).reshape(-1, 2).T
    wait_ends = wait_ends[
        :, np.isin(wait_ends[0], rows.number) & np.isin(wait_ends[1], rows.number)
    ]
    a, b = np.searchsorted(rows.number, wait_ends)
    ends = ((rows.src_rank, (aside, sent)), (rows.dst_rank, (received,)))
    for late_rank, late in ends:
        for early_rank, early in ends:
            on_one_rank = np.flatnonzero(late_rank[a] == early_rank[b])
            yield from ((waiter[a[on_one_rank]], early[-1][b[on_one_rank]]) for waiter in late)


def lower(plan: Plan, *, ranks: Sequence[int] | None = None) -> RankProgram:
    """The per-rank program of a plan.

    Parameters
    ----------
    plan
        Any plan.
    ranks
        The ranks to lower, such as those of one process; default all.

    Returns
    -------
    RankProgram
        A lane for each end of each connection and for each local operation that runs beside others.
        Sources that their own step overwrites are first copied aside, to scratch beyond that of the
        schedule; the waits of the plan are explicit. Paths are left out, since they do not matter
        to data and order.

    Raises
    ------
    ConfigError
        For a schedule that converts on the way.

    Examples
    --------
    >>> import simcoll
    >>> program = lower(simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), 6))
    >>> [instruction.op for lane in program.lanes[0] for instruction in lane.instructions]
    ['send', 'send', 'recv', 'recv', 'copy']
    """
    _expect_plan("lower", plan)
    subject = "a per-rank program has no conversions, as in"
    refuse_transits(plan.schedule, plan.schedule.transits, subject, formats_alone=True)
    return _program(plan, ranks)


def _expect_plan(name: str, plan: Plan) -> None:
    expect(plan, Plan, f"{name} takes a plan, made by bind(schedule, count)")


def _program(plan: Plan, ranks: Sequence[int] | None = None) -> RankProgram:
    result = lowering(plan, ranks)
    layout = plan.schedule.layout
    inputs = layout.output_base
    outputs = layout.scratch_base - layout.output_base
    buffers = inputs, outputs, layout.size - layout.scratch_base + result.staging
    return RankProgram(
        plan.schedule.title,
        plan.nranks,
        Lanes(result.code, plan.nranks),
        buffers,
        plan.collective,
        layout.chunks,
        plan.collective.in_place,
    )


def check_lowering(plan: Plan) -> ProgramProof:
    """Check that the waits, staging and channels of a plan order all conflicting accesses, whatever
    the timing.

    Its data is checked as well, unless sizes are so small that the plan leaves out empty chunks.

    Raises
    ------
    ScheduleError
        States both accesses of a race, or as :func:`~simcoll.proving.verify_program`.
    """
    _expect_plan("check_lowering", plan)
    wiring = wire(_program(plan))
    proof, run = check_order(wiring)
    if not plan.whole and sum(map(len, plan.steps())) != sum(
        len(step) for _, step in lowered(plan.schedule)
    ):
        return proof
    proof = check_data(wiring, run, proof)
    # A switch reduces in unspecified order, which only the proof of the schedule accounts for.
    return proof if plan.proof is None else replace(proof, order=plan.proof.order)
