"""Reports of NCCL's RAS, JSON (``ncclras -f json``) and text: missing, failed and lagging ranks of
communicators.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from simcoll.errors import ConfigError, ranks_listed
from simcoll.files.reader_arguments import Content, content_of
from simcoll.units import counted

__all__ = ["RasReport", "RasText", "parse_ras", "parse_ras_text", "ras_findings"]

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
_BY_ONE = "by one is normal if a later report shows that they go on, and otherwise they wait for it"


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

    In a running job, ranks' counts may differ by one, which is said; they differ by more only if
    some ranks wait for others.

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
        if behind:
            lowest = min(counts.values())
            begun = (
                f"{lowest}"
                if all(counts[rank] == lowest for rank in behind)
                else f"{lowest} or more"
            )
            has = "has" if len(behind) == 1 else "have"
            reading = "they wait for it, or it for them" if highest - lowest > 1 else _BY_ONE
            count = f"{ranks_listed(behind)} {has} begun {begun} {name[:40]}"
            yield f"{count}, others up to {highest}: {reading}"


def _result(number: int) -> str:
    return _RESULTS[number] if 0 <= number < len(_RESULTS) else f"error {number}"


def _where(rank: _NamedRank) -> str:
    gpu = (
        f"GPU {rank.cuda_dev}"
        if rank.cuda_dev in {rank.nvml_dev, -1}
        else f"GPU {rank.cuda_dev}, NVML {rank.nvml_dev}"
    )
    return f"host {rank.host[:80]}, process {rank.pid}, {gpu}"


@dataclass(frozen=True, slots=True)
class RasText:
    """A report as text: its number of communicators and of their ranks, and what is wrong."""

    communicators: int
    ranks: int
    findings: tuple[str, ...]


_GROUP_ROW = re.compile(r"\s*\d+\s+(\d+)\s+\S+\s+\S+\s+\d+\s+(\d+)\s+[A-Z]+\s+[A-Z]+")
_HEADING = re.compile(r"(?:#\d+-\d+ \(([0-9a-f]{1,32})\) )?([A-Z]{4,12})")
_SEVERITY = ("DEAD", "INCOMPLETE", "ERROR", "MISMATCH", "TIMEOUT")
_COUNTS = re.compile(
    r"(?P<ranks>\d+) ranks? (?:have|has) (?:launched up to operation (?P<count>\d+)|not launched)"
    r"|Rank (?P<rank>\d+) has (?:launched up to operation (?P<of_one>\d+)|not launched)"
)
_PLACE = re.compile(r"Rank (\d+)\b.*? -- (.*)")


def parse_ras_text(text: str, file: str | None = None) -> RasText:
    """Read the report that ``ncclras`` prints by default, dead processes and failed ranks first.

    Raises
    ------
    ConfigError
        When the text has no table of communicators.

    Examples
    --------
    >>> report = parse_ras_text('''
    ... Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    ...     #  in group  per comm  per node  per comm  in group
    ...     0         1         2         8        16        16   RUNNING  MISMATCH
    ...
    ... #0-0 (27a0) MISMATCH
    ...   Communicator ranks have different AllReduce operation counts
    ...   15 ranks have launched up to operation 66
    ...   Rank 3 has launched up to operation 50 -- GPU 3 managed by process 7 on node n1
    ... ''')
    >>> print(*report.findings)
    communicator 27a0: AllReduce: rank 3 (GPU 3, ...) has launched up to operation 50, 15 ranks ...
    """
    rows = [match for line in text.splitlines() if (match := _GROUP_ROW.fullmatch(line.rstrip()))]
    if not rows:
        raise ConfigError(
            "no table of communicators; is this the whole output of ncclras?", file=file
        )
    findings: list[tuple[int, str]] = []
    for block in re.split(r"\n[ \t\r]*\n", text):
        heading, *lines = [line.strip() for line in block.strip().splitlines()] or [""]
        match = _HEADING.fullmatch(heading)
        if match is not None and match[2] in _SEVERITY and lines:
            subject = f"communicator {match[1]}" if match[1] else "job"
            fact = _ranks_behind(lines) or "; ".join(map(_with_place, lines[: MOST_SHOWN + 1]))
            findings.append((_SEVERITY.index(match[2]), f"{subject}: {fact}"))
    findings.sort(key=lambda finding: finding[0])
    return RasText(
        sum(int(row[1]) for row in rows),
        sum(int(row[2]) for row in rows),
        tuple(fact for _, fact in findings),
    )


def _with_place(line: str) -> str:
    """A line with the place of a rank as the JSON report has it."""
    match = _PLACE.fullmatch(line)
    return line if match is None else line.replace(f" -- {match[2]}", f" ({_place(match[2])})")


def _place(text: str) -> str:
    return text.replace(" managed by process ", ", process ").replace(" on node ", ", node ")


def _ranks_behind(lines: Sequence[str]) -> str | None:
    """The ranks that have launched fewer operations than others; None for another mismatch."""
    counts: dict[int, int] = {}
    places: dict[int, list[str]] = defaultdict(list)
    count = None
    for line in lines[1:]:
        if (match := _COUNTS.match(line)) is not None:
            count = int(match["count"] or match["of_one"] or 0)
            counts[count] = counts.get(count, 0) + int(match["ranks"] or 1)
        if count is not None and (match := _PLACE.fullmatch(line)) is not None:
            places[count].append(f"rank {match[1]} ({_place(match[2])})")
    if len(counts) < 2:
        return None
    lowest, highest = min(counts), max(counts)
    kind = re.search(r"different (\w+) operation counts", lines[0])
    title = f"{kind[1]}: " if kind and kind[1] != "collective" else ""
    behind = counted(counts[lowest], "rank")
    has = "has" if counts[lowest] == 1 else "have"
    examples = places[lowest][:MOST_SHOWN]
    if counts[lowest] == len(examples):
        behind = ", ".join(examples)
    elif examples:
        behind = f"{behind}, among them {', '.join(examples)},"
    ahead = ", ".join(
        f"{counted(ranks, 'rank')} up to {number}"
        for number, ranks in sorted(counts.items())
        if number > lowest
    )
    by_one = f": {_BY_ONE}" if highest - lowest == 1 else ""
    return f"{title}{behind} {has} launched up to operation {lowest}, {ahead}{by_one}"
