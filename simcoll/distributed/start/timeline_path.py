"""The critical path of a run of rank programs: a chain of computations and operations, each started
by the end of its predecessor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from simcoll.distributed.runtime.run_timeline import RunTimeline
from simcoll.emulator.traces.trace_marks import path_back

__all__ = ["COMPUTE", "Piece", "critical_pieces"]

COMPUTE = -1
"""Marks a computation in place of an operation's number."""


class Piece(NamedTuple):
    """An interval of a rank in a computation, or in an operation since the arrival of its last
    rank.
    """

    rank: int
    begin_fs: int
    end_fs: int
    operation: int
    ranks: tuple[int, ...]


def critical_pieces(timeline: RunTimeline) -> list[Piece]:
    """The path that leads to the last piece, in order of time.

    The predecessor of a computation ended on its rank, that of an operation on any of its ranks.
    """
    pieces = sorted(_pieces(timeline))
    ending: dict[tuple[int, int], list[Piece]] = defaultdict(list)
    for piece in pieces:
        ending[piece.rank, piece.end_fs].append(piece)
    last = max(pieces, key=lambda piece: (piece.end_fs, -piece.rank), default=None)
    return path_back(
        last,
        lambda piece: (
            piece_before for rank in piece.ranks for piece_before in ending[rank, piece.begin_fs]
        ),
    )


def _pieces(timeline: RunTimeline) -> Iterator[Piece]:
    for span in timeline.computed:
        yield Piece(span.rank, span.begin_fs, span.end_fs, COMPUTE, (span.rank,))
    together: dict[object, list[tuple[int, int]]] = defaultdict(list)
    ends: dict[tuple[int, int], object] = {}
    for number, pair in enumerate(timeline.messages):
        ends |= {(rank, entry.number): number for rank, entry in pair}
    for rank, entry in timeline.operations:
        key = ends.setdefault(
            (rank, entry.number), (entry.group[0], entry.name, entry.sequence, entry.p2p)
        )
        together[key].append((rank, entry.started_fs))
    for rank, entry in timeline.operations:
        if entry.completed_fs >= 0:
            members = together[ends[rank, entry.number]]
            begin = max(started for _, started in members)
            yield Piece(
                rank,
                begin,
                entry.completed_fs,
                entry.number,
                tuple(sorted({who for who, _ in members})),
            )
