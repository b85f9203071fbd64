"""Reports of NCCL's RAS (``ncclras -f json``): missing, failed and lagging ranks of
communicators.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from simcoll.errors import ConfigError, ranks_listed
from simcoll.files.reader_arguments import Content, content_of

__all__ = ["RasReport", "parse_ras", "ras_findings"]

MAX_BYTES = 256 << 20
MOST_SHOWN = 8
_RESULTS = (
    "success",
    "unhandled CUDA error",
    "system error",
    "internal error",
    "invalid argument",
    "invalid usage",
    "remote process error",
    "in progress",
)
"""NCCL's results by number."""
_IN_PROGRESS = 7


class RankStatus(msgspec.Struct, frozen=True):
    """The status of a rank that answered; results are NCCL's numbers."""

    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False


class MissingStatus(msgspec.Struct, frozen=True):
    """The status of a rank that did not answer."""

    unresponsive: bool = False
    considered_dead: bool = False


class _NamedRank(msgspec.Struct, frozen=True):
    rank: int
    host: str = "unknown"
    pid: int = -1
    cuda_dev: int = -1
    nvml_dev: int = -1


class RasRank(_NamedRank, frozen=True):
    """A rank that answered, with the number of collectives started by kind."""

    status: RankStatus = RankStatus()
    collective_counts: dict[str, int] = {}


class MissingRank(_NamedRank, frozen=True):
    """A rank that did not answer."""

    status: MissingStatus = MissingStatus()


class RasCommunicator(msgspec.Struct, frozen=True):
    """A communicator: its ranks that answered, and those that did not."""

    hash: str
    size: int
    ranks: list[RasRank] = []
    missing_ranks: list[MissingRank] = []


class RasReport(msgspec.Struct, frozen=True):
    """A snapshot of a job by RAS."""

    communicators: list[RasCommunicator]
    nccl_version: str = ""
    timestamp: str = ""


def parse_ras(content: Content, file: str | None = None) -> RasReport:
    """Read the JSON report of RAS.

    Raises
    ------
    ConfigError
        With the position, for invalid content, and ranks that are duplicated or out of range.
    """
    content = content_of(content, "parse_ras")
    if len(content) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB", file=file)
    try:
        report = msgspec.json.decode(content, type=RasReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"no report of NCCL's RAS: {str(error)[:300]}", file=file) from None
    for number, communicator in enumerate(report.communicators):
        ranks = [
            *(rank.rank for rank in communicator.ranks),
            *(rank.rank for rank in communicator.missing_ranks),
        ]
        place = f"$.communicators[{number}]"
        if len(set(ranks)) != len(ranks):
            raise ConfigError("a rank is named twice", file=file, path=place)
        if ranks and not 0 <= min(ranks) <= max(ranks) < communicator.size:
            raise ConfigError(
                f"ranks {min(ranks)} to {max(ranks)}, and a size of {communicator.size}",
                file=file,
                path=place,
            )
    return report


def ras_findings(report: RasReport) -> list[str]:
    """Diagnose each communicator: missing ranks, failed ranks, and ranks that have started fewer
    collectives.

    In a running job, ranks' counts differ by one; they differ by more only if some ranks wait for
    others.

    >>> ahead = RasRank(0, collective_counts={"AllReduce": 12})
    >>> behind = RasRank(1, collective_counts={"AllReduce": 9})
    >>> ras_findings(RasReport([RasCommunicator("0xab", 2, [ahead, behind])]))
    ['communicator 0xab: rank 1 has begun 9 AllReduce, others up to 12: they wait for it, ...']
    """
    return [
        f"communicator {communicator.hash[:40]}: {finding}"
        for communicator in report.communicators
        for finding in _of(communicator)
    ]


def _of(communicator: RasCommunicator) -> Iterator[str]:
    for missing in communicator.missing_ranks[:MOST_SHOWN]:
        how = (
            "dead"
            if missing.status.considered_dead
            else "not answering"
            if missing.status.unresponsive
            else "missing"
        )
        yield f"rank {missing.rank} is {how} ({_where(missing)})"
    if len(communicator.missing_ranks) > MOST_SHOWN:
        yield f"and {len(communicator.missing_ranks) - MOST_SHOWN} more ranks are missing"
    nreported = len(communicator.ranks) + len(communicator.missing_ranks)
    if nreported < communicator.size:
        yield f"{communicator.size - nreported} of {communicator.size} ranks are not in the report"
    failed: dict[str, list[RasRank]] = defaultdict(list)
    for rank in communicator.ranks:
        for phase, result in (
            ("setting up", rank.status.init_state),
            ("running", rank.status.async_error),
        ):
            if result:
                failed[f"{phase}: {_result(result)}"].append(rank)
        if rank.status.abort_flag:
            failed["aborted"].append(rank)
    for state, ranks in failed.items():
        yield f"{ranks_listed([rank.rank for rank in ranks])} {state} ({_where(ranks[0])})"
    for name in dict.fromkeys(
        name for rank in communicator.ranks for name in rank.collective_counts
    ):
        counts = {rank.rank: rank.collective_counts.get(name, 0) for rank in communicator.ranks}
        highest = max(counts.values())
        behind = [rank for rank, count in counts.items() if count < highest]
        if behind and highest - min(counts.values()) > 1:
            lowest = min(counts.values())
            begun = (
                f"{lowest}"
                if all(counts[rank] == lowest for rank in behind)
                else f"{lowest} or more"
            )
            has = "has" if len(behind) == 1 else "have"
            yield (
                f"{ranks_listed(behind)} {has} begun {begun} {name[:40]}, others up to {highest}: "
                "they wait for it, or it for them"
            )


def _result(number: int) -> str:
    return _RESULTS[number] if 0 <= number < len(_RESULTS) else f"error {number}"


def _where(rank: _NamedRank) -> str:
    gpu = (
        f"GPU {rank.cuda_dev}"
        if rank.cuda_dev in {rank.nvml_dev, -1}
        else f"GPU {rank.cuda_dev}, NVML {rank.nvml_dev}"
    )
    return f"host {rank.host[:80]}, process {rank.pid}, {gpu}"
