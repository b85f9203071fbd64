"""The page of diagnoses: what ``simcoll compare`` names in logs of slow jobs whose cause is known.

``python benchmarks/pages/diagnosis_page.py`` prints it, with ``-o FILE`` writes it; it takes a
minute or two. The cases are in ``benchmarks/pages/diagnosis``: ``cases.toml`` and a log each,
re-created from the figures and lines of public reports.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcoll.errors import ConfigError
from simcoll.files.text import parse_toml
from simcoll.formats.logs.nccl_tests import load_log
from simcoll.formats.reports.flight_findings import findings
from simcoll.formats.reports.flight_record import FlightEntry, FlightRecord, GroupStatus
from simcoll.planning.measured.comparison import compare, settings_for
from simcoll.planning.measured.diagnosis import diagnose, with_log

__all__ = [
    "CASES",
    "Case",
    "HungJob",
    "Verdict",
    "cases",
    "diagnosis_page",
    "hung_jobs",
    "hung_verdict",
    "verdict_of",
]

CASES = Path(__file__).parent / "diagnosis"
SOUND, MISUSE = "none", "without_mpi"
"""Causes of cases that are as fast as they should be, and that are refused as no measurement."""
PLACES = ("first", "second", "third")
HEAD = """# Diagnosis

What `simcoll compare` names in the logs of slow jobs whose cause is known. `python benchmarks/pages/diagnosis_page.py -o docs/diagnosis.md` writes this page.

"""
COLUMNS = """
| column | meaning |
|---|---|
| report | the public report whose lines and figures the log is re-created from, without names. An asterisk: its rates are not in the thread, but those that such a transport has elsewhere |
| cause | the one that the thread settled |
| named | the place of the cause among the explanations, `later` from the fourth place on; `unexplained` if it is not among them, `wrong` if a cause that the thread excluded comes first. A job that is as fast as it should be is `right` if nothing is explained |
| in the log | whether a line or a variable of the log names the cause. Without one, times tell the cause only up to others with the same effect, which are printed in the order of their frequency |

The explanations were developed with these cases, so expect less on others; where the log names the cause, little depends on that.

"""


FLIGHT = """
## Hung jobs

What `simcoll flight` names in the records of hung jobs: the place of the settled cause among its findings.

| report | cause, as its thread settled it | named | first finding |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class HungJob:
    """A hung job of a public report.

    Attributes
    ----------
    source, settled
        As of a :class:`Case`.
    words
        What a finding that names the cause says.
    records
        The flight records by rank.
    """

    source: str
    settled: str
    words: str
    records: dict[int, FlightRecord]


def hung_jobs() -> list[HungJob]:
    """All hung jobs, in the order of their file."""
    document = parse_toml((CASES / "flight.toml").read_bytes(), "flight.toml")
    return [
        HungJob(entry["source"], entry["settled"], entry["words"], _records(entry))
        for entry in document["job"]
    ]


def _records(entry: Mapping[str, Any]) -> dict[int, FlightRecord]:
    """The flight records of a job, from its calls and statuses."""
    groups = tuple((name, tuple(members)) for name, members in entry["groups"])
    calls: dict[int, list[FlightEntry]] = {rank: [] for rank in range(entry["ranks"])}
    for text in entry["calls"]:
        words = text.split()
        tensors = (((int(words[5]) if len(words) > 5 else 4,), "Float"),)
        operation = f"nccl:{words[3].replace('_', ' ', 1) if '->' in words[3] else words[3]}"
        is_message = "->" in operation
        calls[int(words[0])].append(
            FlightEntry(
                words[1], int(words[2]), operation, tensors, tensors, words[4], p2p=is_message
            )
        )
    statuses: dict[int, list[GroupStatus]] = {rank: [] for rank in calls}
    for text in entry.get("statuses", ()):
        rank, group, *numbers = text.split()
        statuses[int(rank)].append(GroupStatus(group, *map(int, numbers)))
    return {
        rank: FlightRecord("2.10", groups, tuple(entries), tuple(statuses[rank]))
        for rank, entries in calls.items()
        if rank not in entry.get("missing", ())
    }


def hung_verdict(job: HungJob) -> Verdict:
    """Find the cause of a hung job, and its place among the findings."""
    causes = [line for line in findings(job.records) if not line.startswith("  ")]
    places = [place for place, line in enumerate(causes) if job.words in line]
    place = "unexplained"
    if places:
        place = PLACES[places[0]] if places[0] < len(PLACES) else "later"
    return Verdict(place, causes[0] if causes else "nothing found", in_log=True)


@dataclass(frozen=True, slots=True)
class Case:
    """A slow job of a public report.

    Attributes
    ----------
    name, source, topology
        Name of its log, address of the report, and topology to compare with.
    causes, excluded
        Names of the causes that the thread settled, and of those that it excluded.
    settled
        The settled cause in words.
    rate
        ``"quoted"`` or ``"assumed"``: whether the thread has the bandwidth.
    """

    name: str
    source: str
    topology: str
    causes: tuple[str, ...]
    excluded: tuple[str, ...]
    settled: str
    rate: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was named in a case.

    Attributes
    ----------
    place
        ``first``, ``second``, ``third``, ``later``, ``unexplained``, ``wrong`` or ``right``.
    answer
        The first explanations in words.
    in_log
        Whether the log names the first cause.
    """

    place: str
    answer: str
    in_log: bool


def cases() -> list[Case]:
    """All cases, in the order of their file."""
    document = parse_toml((CASES / "cases.toml").read_bytes(), "cases.toml")
    return [
        Case(
            name=entry["name"],
            source=entry["source"],
            topology=entry["topology"],
            causes=tuple(entry["causes"]),
            excluded=tuple(entry.get("excluded", ())),
            settled=entry["settled"],
            rate=entry["rate"],
        )
        for entry in document["case"]
    ]


def verdict_of(case: Case) -> Verdict:
    """Diagnose a case, and find its cause among the explanations."""
    try:
        (setting, *_), _ = settings_for(load_log(CASES / f"{case.name}.log"), case.topology)
    except ConfigError as error:
        is_named = MISUSE in case.causes and "without MPI" in error.message
        return Verdict("first" if is_named else "unexplained", "built without MPI", in_log=True)
    log_setting = with_log(setting)
    diagnosis = diagnose(compare(log_setting.setting), log_setting)
    claims = [entry.claim for entry in diagnosis.explanations[:2]]
    in_log = any(
        "the log says" in text for entry in diagnosis.explanations[:1] for text in entry.evidence
    )
    answer = "; ".join(claims) or "nothing to explain"
    return Verdict(_place(case, diagnosis.causes), answer, in_log)


def _place(case: Case, named: Sequence[str]) -> str:
    """The place of the settled cause among those named."""
    if case.causes == (SOUND,):
        return "wrong" if named else "right"
    if named and named[0] in case.excluded:
        return "wrong"
    places = [named.index(cause) for cause in case.causes if cause in named]
    if not places:
        return "unexplained"
    return PLACES[min(places)] if min(places) < len(PLACES) else "later"


def _link(source: str) -> str:
    """The report as a link."""
    words = source.split("/")
    return f"[{words[-3][:30]}#{words[-1]}](https://{source})" if source else "(none)"


def _rows(verdicts: Sequence[tuple[Case, Verdict]]) -> Iterator[str]:
    yield "| report | cause, as its thread settled it | named | in the log | first explanations |\n"
    yield "|---|---|---|---|---|\n"
    for case, verdict in verdicts:
        star = "\\*" if case.rate == "assumed" else ""
        report = f"{_link(case.source)}{star}"
        in_log = "yes" if verdict.in_log else "no"
        yield f"| {report} | {case.settled} | {verdict.place} | {in_log} | {verdict.answer} |\n"


def diagnosis_page() -> str:
    """The page as Markdown."""
    verdicts = [(case, verdict_of(case)) for case in cases()]
    places = Counter(verdict.place for _, verdict in verdicts)
    slow = [verdict for case, verdict in verdicts if case.causes != (SOUND,)]
    good = sum(verdict.place in PLACES[:2] for verdict in slow)
    unaided = [verdict for verdict in slow if not verdict.in_log]
    good_unaided = sum(verdict.place in PLACES[:2] for verdict in unaided)
    summary = (
        f"**{good} of {len(slow)}** slow jobs have their cause named first or second "
        f"({good / len(slow):.0%}), **{places['wrong']}** a wrong one; "
        f"of the {len(unaided)} whose log does not name it, {good_unaided}. "
        f"{places['right']} of {len(verdicts) - len(slow)} sound jobs are left unexplained.\n\n"
    )
    counts = ", ".join(f"{place} {places[place]}" for place in (*PLACES, "later", "unexplained"))
    hung = [
        f"| {_link(job.source)} | {job.settled} | {verdict.place} | {verdict.answer} |\n"
        for job in hung_jobs()
        for verdict in (hung_verdict(job),)
    ]
    table = "".join(_rows(verdicts))
    return f"{HEAD}{summary}Places: {counts}.\n{COLUMNS}{table}{FLIGHT}{''.join(hung)}"


if __name__ == "__main__":
    text = diagnosis_page()
    if sys.argv[1:2] == ["-o"]:
        Path(sys.argv[2]).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
