"""Play the statements of the semantics on a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Literal, TypeAlias

from simcoll.core.collective import Collective
from simcoll.errors import ConfigError
from simcoll.files.text import parse_toml
from simcoll.testing.collective_cases import Case, CaseOperation
from simcoll.testing.conformance.statement_cases import CASES
from simcoll.testing.conformance.statement_reasons import REASONS
from simcoll.testing.implementation_checks import case_faults
from simcoll.testing.rank_calls import RankTask, Target, refused_operations
from simcoll.testing.rank_runners import ProcessRunner, ThreadRunner

__all__ = [
    "Statement",
    "Verdict",
    "explain_absence",
    "play_statement",
    "play_suite",
    "statements",
]

DEADLINE_S = 20
PLACES = {
    "Backends": "backends",
    "Initialisation and shutdown": "initialization",
    "Groups and ranks": "groups",
    "Outside of the group": "groups",
    "DeviceMesh": "devicemesh",
    "Point to point": "point-to-point-communication",
    "Work and futures": "synchronous-and-asynchronous-collective-operations",
    "monitored_barrier": "monitored-barrier",
    "Debugging": "debugging-torch-distributed-applications",
    "Stores": "distributed-key-value-store",
    "Launch": "launch-utility",
}
"""Places in the documentation of torch.distributed; others are among the collectives."""
SUBJECTS = {
    "SIG": "interface",
    "BK": "interface",
    "IN": "launch",
    "DM": "mesh",
    "ST": "stores",
    "CS": "GPUs",
    "LA": "launch",
}
"""What the statements of a section apply to; others apply to the tensor backend."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of the semantics: its row, text, section, and what it applies to."""

    row: str
    text: str
    section: str

    @property
    def subject(self) -> str:
        """What the statement applies to."""
        return SUBJECTS.get(self.row.split("-")[0], "tensor backend")

    @property
    def place(self) -> str:
        """The place in the documentation of torch.distributed."""
        anchor = PLACES.get(self.section, "collective-functions")
        return f"https://docs.pytorch.org/docs/2.8/distributed.html#{anchor}"


Status: TypeAlias = Literal["pass", "fail", "skip"]
"""What became of a statement."""


@dataclass(slots=True)
class Verdict:
    """What became of a statement: ``pass``, ``fail`` or ``skip``, and the reasons."""

    statement: Statement
    played: int = 0
    faults: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """A statement passes if something was played, and nothing failed."""
        if self.faults:
            return "fail"
        return "pass" if self.played else "skip"

    @property
    def reason(self) -> str:
        """The first fault, or the first refusal."""
        if self.faults:
            return self.faults[0]
        if not self.refusals:
            return ""
        part = "" if not self.played else f"{len(self.refusals)} refused: "
        return part + self.refusals[0]


@cache
def statements() -> tuple[Statement, ...]:
    """All statements, in the order of the documentation's sections."""
    table = parse_toml((files("simcoll.testing.conformance") / "statements.toml").read_bytes())
    return tuple(
        Statement(f"{prefix}-{number:02d}", statement, section["title"])
        for prefix, section in table.items()
        if prefix not in {"differences", "notes"}
        for number, statement in enumerate(section["statements"], 1)
    )


def play_suite(
    target: Target,
    ranks: Sequence[int],
    runner: ProcessRunner | ThreadRunner,
    tasks: frozenset[str],
    progress: Callable[[str], None] = lambda _: None,
    reasons: Mapping[str, str] | None = None,
) -> list[Verdict]:
    """Play all statements with each number of ranks.

    Parameters
    ----------
    target
        The implementation.
    ranks
        World sizes.
    runner
        Where the ranks live.
    tasks
        Rows that the implementation checks itself, by its method ``task(row)``.
    progress
        Called with a line of text for each number of ranks.
    reasons
        Why the implementation does not play a statement, by its row, where it has a reason of its
        own.

    Raises
    ------
    ConfigError
        When no rank can join its world, which would fail every statement.
    """
    verdicts = [Verdict(statement) for statement in statements()]
    for nranks in ranks:
        progress(f"{nranks} ranks")
        _join_once(target, nranks, runner)
        for verdict in verdicts:
            play_statement(verdict, target, nranks, runner, tasks)
    for verdict in verdicts:
        explain_absence(verdict, reasons or {})
    return verdicts


def _join_once(target: Target, nranks: int, runner: ProcessRunner | ThreadRunner) -> None:
    """Let the ranks join their world, and meet at a barrier if they can."""
    barrier = CaseOperation(Collective("barrier", nranks), tuple(range(nranks)))
    for outcome in runner.play(target, Case(nranks, (barrier,)), DEADLINE_S):
        if outcome is not None and not outcome.joined:
            raise ConfigError(f"its ranks cannot join a world of {nranks}: {outcome.error}")


def play_statement(
    verdict: Verdict,
    target: Target,
    nranks: int,
    runner: ProcessRunner | ThreadRunner,
    tasks: frozenset[str],
) -> None:
    """Play the cases and the check of a statement, and add to its verdict."""
    for text, refusals, faults in _attempts(target, verdict.statement.row, nranks, runner, tasks):
        if not faults and refusals:
            verdict.refusals.append(refusals[0])
            continue
        verdict.played += 1
        verdict.faults += [f"{text}: {fault}" for fault in faults]


def explain_absence(verdict: Verdict, reasons: Mapping[str, str]) -> None:
    """Give a statement that was not played at all the reason of that."""
    statement = verdict.statement
    if not verdict.played and not verdict.refusals:
        verdict.refusals.append(reasons.get(statement.row) or _absence(statement))


def _attempts(
    target: Target,
    row: str,
    nranks: int,
    runner: ProcessRunner | ThreadRunner,
    tasks: frozenset[str],
) -> Iterator[tuple[str, list[str], list[str]]]:
    """The refusals and faults of all cases and of the check of a statement."""
    for case in CASES[row](nranks) if row in CASES else ():
        outcomes = runner.play(target, case, DEADLINE_S)
        refusals = list(refused_operations(case, outcomes).values())
        yield str(case), refusals, list(case_faults(case, outcomes, DEADLINE_S))
    if row in tasks and isinstance(runner, ProcessRunner):
        results = runner.play(target, RankTask(nranks, row), DEADLINE_S)
        hung = [rank for rank, result in enumerate(results) if result is None]
        faults = [f"ranks {hung} did not end within {DEADLINE_S} s"] if hung else []
        faults += [
            f"rank {rank}: {result.error}"
            for rank, result in enumerate(results)
            if result is not None and result.error is not None
        ]
        texts = [result.unsupported for result in results if result and result.unsupported]
        yield f"{nranks} ranks", texts, faults


def _absence(statement: Statement) -> str:
    """Why a statement was not played at all."""
    if statement.subject == "GPUs":
        return "needs GPUs"
    if statement.row in CASES:
        return "needs more ranks"
    if statement.row in REASONS:
        return REASONS[statement.row]
    return "is on the interface of torch.distributed"
