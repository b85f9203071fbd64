"""``simcoll flight``: diagnose a hung job from flight records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from simcoll.errors import ConfigError
from simcoll.terminal import say

__all__ = ["read_flight"]


def read_flight(*files: Path) -> int:
    """Report mismatched, missing and unfinished operations of the ranks of a hung job.

    Parameters
    ----------
    files
        Flight records of PyTorch, one file for each rank (a pickle or JSON; the last number of a
        name is the rank). Or a report of NCCL's RAS (ncclras -f json), or files of NCCL's inspector
        plugin.
    """
    from simcoll.files.strict import read_start
    from simcoll.formats.recognise import TITLES, recognise
    from simcoll.units import counted

    if not files:
        raise ConfigError(
            "expected the flight records of some ranks, such as record_0 record_1, or a report of "
            "RAS"
        )
    readers = {"ras": _ras, "inspector": _inspector}
    kinds = {recognise(read_start(file)) for file in files}
    for file in files:
        if (kind := recognise(read_start(file))) not in {*readers, "flight-record", "pickle"}:
            raise ConfigError(
                f"this is {TITLES[kind]}; expected a flight record, a report of RAS, or a file of "
                "the inspector",
                file=str(file),
            )
    if len(kinds) > 1 and kinds & {*readers}:
        contents = " and ".join(sorted(TITLES[kind] for kind in kinds))
        raise ConfigError(f"the files are of different kinds: {contents}; expected files of one")
    reader = readers.get(next(iter(kinds)), _records)
    findings, summary = reader(files)
    for line in findings:
        say(line)
    say(f"# {summary}: {counted(len(findings), 'finding')}")
    return 1 if findings else 0


def _records(files: Sequence[Path]) -> tuple[list[str], str]:
    from simcoll.formats.reports.flight_record import findings, load_flight_record
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
    operations = sum(len(record.entries) for record in records.values())
    return findings(records), f"{counted(len(records), 'rank')}, {counted(operations, 'operation')}"


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
