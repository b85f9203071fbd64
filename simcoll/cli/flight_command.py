"""``simcoll flight``: diagnose a hung job from flight records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from simcoll.errors import ConfigError
from simcoll.terminal import say, say_text

__all__ = ["read_flight"]


def read_flight(*files: Path) -> int:
    """Report who stopped and who waits, and mismatched and unfinished operations, in a hung job.

    Parameters
    ----------
    files
        Flight records of PyTorch, one file for each rank (a pickle or JSON; the last number of a
        name is the rank). Or logs with lines of its watchdog, reports of NCCL's RAS (ncclras), or
        files of NCCL's inspector plugin. Or folders of such files.
    """
    from simcoll.units import counted

    sources: dict[str, list[Path]] = {}
    for file, from_folder in _files(files):
        try:
            sources.setdefault(_source(file), []).append(file)
        except ConfigError as error:
            if not from_folder:
                raise
            say_text(f"# left out: {error}")
    if not sources:
        raise ConfigError(
            "expected the flight records of some ranks, such as record_0 record_1, a folder of "
            "them, or a report of RAS"
        )
    lines: list[str] = []
    summaries = []
    for source in (name for name in _READERS if name in sources):
        reports, summary = _READERS[source](sources[source])
        lines += reports
        summaries.append(summary)
    for line in lines:
        say(line)
    causes = sum(not line.startswith("  ") for line in lines)
    say(f"# {'; '.join(summaries)}: {counted(causes, 'finding')}")
    return 1 if lines else 0


def _files(paths: Sequence[Path]) -> list[tuple[Path, bool]]:
    """The files, and those in folders by name; whether they are from a folder."""
    from simcoll.files.paths import is_folder

    files: list[tuple[Path, bool]] = []
    for path in paths:
        if not is_folder(path):
            files.append((path, False))
            continue
        inner = sorted(
            file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")
        )
        if not inner:
            raise ConfigError("a folder without files", file=str(path))
        files += [(file, True) for file in inner]
    return files


def _source(file: Path) -> str:
    """The kind of a file, a key of the readers."""
    from simcoll.files.strict import read_file, read_start
    from simcoll.formats.recognise import TITLES, recognise
    from simcoll.formats.reports.flight_record import MAX_BYTES
    from simcoll.formats.reports.watchdog import is_watchdog_log

    kind = recognise(read_start(file))
    if kind == "pickle":
        return "flight-record"
    if kind in {"text", "nccl-log", "nccl-tests"} and is_watchdog_log(read_file(file, MAX_BYTES)):
        return "watchdog"
    if kind not in _READERS:
        raise ConfigError(
            f"this is {TITLES[kind]}; expected a flight record, a log with lines of PyTorch's "
            "watchdog, a report of RAS, or a file of the inspector",
            file=str(file),
        )
    return kind


def _records(files: Sequence[Path]) -> tuple[list[str], str]:
    from simcoll.formats.reports.flight_findings import findings, wrong_rank
    from simcoll.formats.reports.flight_record import load_flight_record
    from simcoll.units import counted

    records = {}
    for place, file in enumerate(files):
        numbers = re.findall(r"[0-9]{1,9}", file.name)
        rank = int(numbers[-1]) if numbers and len(files) > 1 else place
        if rank in records:
            raise ConfigError(
                f"a second record of rank {rank}; the last number of a name is the rank",
                file=str(file),
            )
        records[rank] = load_flight_record(file)
        if len(files) > 1 and (reason := wrong_rank(rank, records[rank])) is not None:
            raise ConfigError(
                f"not a record of rank {rank}, the last number of the name: {reason}",
                file=str(file),
            )
    operations = sum(len(record.entries) for record in records.values())
    return findings(records), f"{counted(len(records), 'rank')}, {counted(operations, 'operation')}"


def _watchdog(files: Sequence[Path]) -> tuple[list[str], str]:
    from simcoll.files.strict import read_file
    from simcoll.formats.reports.flight_findings import findings
    from simcoll.formats.reports.flight_record import MAX_BYTES
    from simcoll.formats.reports.watchdog import parse_watchdog
    from simcoll.units import counted

    text = "\n".join(read_file(file, MAX_BYTES).decode("utf-8", "replace") for file in files)
    records = parse_watchdog(text, str(files[0]) if len(files) == 1 else None)
    return findings(records), f"lines of {counted(len(records), 'rank')}"


def _ras_text(files: Sequence[Path]) -> tuple[list[str], str]:
    from simcoll.files.strict import read_file
    from simcoll.formats.reports.nccl_ras import MAX_BYTES, parse_ras_text
    from simcoll.units import counted

    reports = [
        parse_ras_text(read_file(file, MAX_BYTES).decode("utf-8", "replace"), str(file))
        for file in files
    ]
    communicators = sum(report.communicators for report in reports)
    ranks = sum(report.ranks for report in reports)
    return (
        [finding for report in reports for finding in report.findings],
        f"{counted(communicators, 'communicator')}, {counted(ranks, 'rank')}",
    )


def _ras(files: Sequence[Path]) -> tuple[list[str], str]:
    from simcoll.files.strict import read_file
    from simcoll.formats.reports.nccl_ras import MAX_BYTES, parse_ras, ras_findings
    from simcoll.units import counted

    reports = [parse_ras(read_file(file, MAX_BYTES), str(file)) for file in files]
    communicators = [communicator for report in reports for communicator in report.communicators]
    findings = [line for report in reports for line in ras_findings(report)]
    return (
        findings,
        (
            f"{counted(len(communicators), 'communicator')}, "
            f"{counted(sum(communicator.size for communicator in communicators), 'rank')}"
        ),
    )


def _inspector(files: Sequence[Path]) -> tuple[list[str], str]:
    from simcoll.files.strict import read_file
    from simcoll.formats.reports.nccl_inspector import (
        MAX_BYTES,
        inspector_findings,
        parse_inspector,
    )
    from simcoll.units import counted

    rows = [row for file in files for row in parse_inspector(read_file(file, MAX_BYTES), str(file))]
    ranks = {(row.communicator, row.rank) for row in rows}
    return inspector_findings(
        rows
    ), f"{counted(len(ranks), 'rank')}, {counted(len(rows), 'collective')}"


_READERS: Mapping[str, Callable[[Sequence[Path]], tuple[list[str], str]]] = {
    "flight-record": _records,
    "watchdog": _watchdog,
    "ras": _ras,
    "ras-text": _ras_text,
    "inspector": _inspector,
}
"""By kind of file: what reads files of that kind, as lines of findings and a summary."""
