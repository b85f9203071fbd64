"""Pipeline schedules: the order of a stage's passes over its micro-batches."""

from __future__ import annotations

from typing import NamedTuple

from simcoll.core.vocabulary import PassKind, PipelineSchedule

__all__ = ["PipelineTurn", "stage_order"]


class PipelineTurn(NamedTuple):
    """One pass of one micro-batch through one chunk: ``"F"`` forward, ``"B"`` backward, ``"W"``
    weight gradients only.

    In schedules with separate weight gradients, ``"B"`` computes input gradients only.
    """

    kind: PassKind
    micro: int
    chunk: int


def stage_order(
    stages: int, chunks: int, micro_batches: int, stage: int, schedule: PipelineSchedule = "1f1b"
) -> list[PipelineTurn]:
    """The passes of a stage in order.

    One chunk: 1F1B (Narayanan et al., *Memory-efficient pipeline-parallel DNN training*). Several:
    interleaved, as Megatron-LM does it (Narayanan et al., *Efficient large-scale language model
    training*). ``zero-bubble``: ZB-H1 (Qi et al., *Zero bubble pipeline parallelism*), where stage
    s computes the weight gradients of a micro-batch after the backward pass of the s-th next one.

    Examples
    --------
    >>> "".join(turn.kind for turn in stage_order(4, 1, 4, 2))
    'FFBFBFBB'
    >>> "".join(turn.kind for turn in stage_order(4, 1, 4, 2, "zero-bubble"))
    'FFBFBFBWBWWW'
    """
    p, v, m = stages, chunks, micro_batches
    if v == 1:
        ahead = min(p - 1 - stage, m)
        turns = [PipelineTurn("F", k, 0) for k in range(ahead)]
        for k in range(m):
            if ahead + k < m:
                turns.append(PipelineTurn("F", ahead + k, 0))
            turns.append(PipelineTurn("B", k, 0))
            if schedule == "zero-bubble" and k >= stage:
                turns.append(PipelineTurn("W", k - stage, 0))
        if schedule == "zero-bubble":
            turns += [PipelineTurn("W", k, 0) for k in range(max(0, m - stage), m)]
        return turns
    total = m * v
    ahead = min((p - stage - 1) * 2 + (v - 1) * p, total)
    turns = [_interleaved_turn("F", i, p, v) for i in range(ahead)]
    for i in range(total):
        if ahead + i < total:
            turns.append(_interleaved_turn("F", ahead + i, p, v))
        turns.append(_interleaved_turn("B", i, p, v))
    return turns


def _interleaved_turn(kind: PassKind, turn: int, stages: int, chunks: int) -> PipelineTurn:
    """Micro-batch and chunk of a stage's n-th forward or backward pass: rounds of ``stages``
    micro-batches, chunk by chunk.
    """
    round_number, place = divmod(turn, stages * chunks)
    chunk, micro = divmod(place, stages)
    return PipelineTurn(
        kind, round_number * stages + micro, chunk if kind == "F" else chunks - 1 - chunk
    )
