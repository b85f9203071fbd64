"""Lines of PyTorch's NCCL watchdog in a log: the operation that timed out on each rank, and the
numbers of the last that it had called and ended.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from simcoll.errors import ConfigError
from simcoll.formats.reports.flight_record import FlightEntry, FlightRecord, GroupStatus

__all__ = ["is_watchdog_log", "parse_watchdog"]

_GLOBAL_RANK = re.compile(r"\[rank(\d{1,9})\]")
_LAUNCHER_RANK = re.compile(r"\s*(?:\[(?:\d{1,9},)?(\d{1,9})\]|(\d{1,9}):)")
"""A rank as srun and mpirun put it before a line, for versions that do not say it."""
# "[PG 1 Rank 3]", "[PG 1 (tp) Rank 3]", "[PG ID 2 PG GUID 9(tp) Rank 3]", or "[Rank 3]".
_GROUP_RANK = re.compile(
    r"\[(?:PG (?:ID \d+ )?(?:PG )?(?:GUID )?(?P<group>[\w-]{1,64})"
    r"\s*(?:\((?P<title>[^)]{0,200})\))? )?Rank (?P<rank>\d{1,9})\]"
)
_WORK = re.compile(
    r"Work\w{1,20}\((?:SeqNum=(?P<number>\d{1,18}), )?OpType=(?P<operation>\w{1,40})"
)
_LAST = re.compile(
    r"last enqueued (?:NCCL )?work:? (?P<called>-?\d{1,18}), "
    r"last completed (?:NCCL )?work:? (?P<ended>-?\d{1,18})"
)
_MARK = re.compile(
    rb"Watchdog caught collective operation timeout|last enqueued (?:NCCL )?work|"
    rb"WorkNCCL\((?:SeqNum|OpType)="
)
_NAMES = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "_all_gather_base",
    "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "BROADCAST": "broadcast",
    "REDUCE": "reduce",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all_single",
    "GATHER": "gather",
    "SCATTER": "scatter",
    "BARRIER": "barrier",
    "SEND": "send",
    "RECV": "recv",
}


@dataclass(slots=True)
class _Sight:
    """What the lines of one rank say about one group."""

    place: int
    number: int = -1
    operation: str = ""
    called: int = -1
    ended: int = -1


def is_watchdog_log(content: bytes) -> bool:
    """Whether a text has lines of the watchdog.

    >>> is_watchdog_log(b"[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(...)")
    True
    """
    return _MARK.search(content) is not None


def parse_watchdog(text: str, file: str | None = None) -> dict[int, FlightRecord]:
    """Read the lines of all ranks in a log, as far as they can be known: a record for each rank.

    A group without a list of its ranks has those that speak of it; ranks of the default group are
    those of the job, so that silent ones are known.

    Raises
    ------
    ConfigError
        When there is no such line, or none says of which rank it is.

    Examples
    --------
    >>> line = (
    ...     "[rank1]:[E ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 1] at work: "
    ...     "2, last enqueued NCCL work: 3, last completed NCCL work: 1."
    ... )
    >>> parse_watchdog(line)[1].statuses
    (GroupStatus(group='0', called=3, ended=1),)
    """
    sights: dict[int, dict[str, _Sight]] = defaultdict(dict)
    for line in text.splitlines():
        work, last = _WORK.search(line), _LAST.search(line)
        if work is None and last is None:
            continue
        group_rank, global_rank = _GROUP_RANK.search(line), _GLOBAL_RANK.search(line)
        if group_rank is None and global_rank is None:
            continue
        group = (group_rank["group"] if group_rank else None) or "0"
        place = int(group_rank["rank"] if group_rank else global_rank[1])  # type: ignore[index]
        rank = int(global_rank[1]) if global_rank else place
        if global_rank is None and (launcher := _LAUNCHER_RANK.match(line)) is not None:
            rank = int(launcher[1] or launcher[2])
        sight = sights[rank].setdefault(group, _Sight(place))
        if work is not None and work["number"] and sight.number < 0:
            sight.number = int(work["number"])
            sight.operation = _NAMES.get(work["operation"], work["operation"])
        if last is not None:
            sight.called = max(sight.called, int(last["called"]))
            sight.ended = max(sight.ended, int(last["ended"]))
    if not sights:
        raise ConfigError("no line of PyTorch's watchdog that names a rank", file=file)
    members: dict[str, set[int]] = defaultdict(set)
    for rank, by_group in sights.items():
        for group in by_group:
            members[group] |= set(range(rank + 1)) if group == "0" else {rank}
    return {
        rank: _record(by_group, {group: tuple(sorted(members[group])) for group in by_group})
        for rank, by_group in sorted(sights.items())
    }


def _record(sights: dict[str, _Sight], members: dict[str, tuple[int, ...]]) -> FlightRecord:
    entries, statuses = [], []
    for group, sight in sights.items():
        if sight.called >= 0:
            statuses.append(GroupStatus(group, sight.called, sight.ended))
        if sight.number >= 0 and sight.operation not in {"send", "recv"}:
            entry = FlightEntry(group, sight.number, sight.operation, (), (), "scheduled")
            entries.append(entry)
    return FlightRecord("watchdog", tuple(members.items()), tuple(entries), tuple(statuses))
