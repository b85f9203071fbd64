"""Run a sweep, size by size; check the data of every schedule once, when it has been timed for the
first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from simcoll.binding import bind
from simcoll.core.memory_limits import give_back, in_words
from simcoll.core.plan import Plan
from simcoll.core.reduction import parse_dtype
from simcoll.core.schedule import Schedule
from simcoll.emulator import Result
from simcoll.emulator.data.budget import exact_bytes
from simcoll.emulator.data.stepwise import data_errors
from simcoll.emulator.engine_choice import ASKED, FEW_MESSAGES
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.folding.remembered import forget_sizes
from simcoll.emulator.steps.step_columns import summary
from simcoll.notebook_forms import data_frame, rows_table
from simcoll.planning.sweeps.sweep import (
    DataCheck,
    PendingCheck,
    Sweep,
    SweepRow,
    best_rows,
    costs_of,
    counts_for,
    note_refusal,
    play,
)
from simcoll.planning.sweeps.sweep_report import (
    cells,
    foot_lines,
    head_lines,
    row_columns,
    size_line,
    titles_of,
)
from simcoll.topology import Topology

if TYPE_CHECKING:
    from simcoll.planning.sweeps.goal_programs import ProgramRun
    from simcoll.tuning import Choice

__all__ = ["SweepTable", "check_data", "runs"]

CHECKED_BYTES = 512 << 20
"""Limit on data moved for a check."""
MANY_PLAYED = 1 << 20
"""After a run that played more messages than these, its freed memory goes back to the system: it
would stand beside that of the next run (torus of 8,192 ranks, 1 KiB: 0.7 GB).
"""


class _Candidate(NamedTuple):
    """An algorithm of the table: its schedule, the check of its data, and the protocols to time it
    with.
    """

    choice: Choice
    schedule: Schedule
    check: PendingCheck
    protocols: Sequence[str]


@dataclass(frozen=True, slots=True, repr=False)
class SweepTable:
    """The runs of a sweep, a sequence of rows, which prints as the table of the best run of each
    size.

    ``programs``: additional runs without a size.
    """

    sweep: Sweep
    topology: str
    rows: tuple[SweepRow, ...]
    programs: tuple[ProgramRun, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[SweepRow]:
        return iter(self.rows)

    @overload
    def __getitem__(self, index: int) -> SweepRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SweepRow, ...]: ...
    def __getitem__(self, index: int | slice) -> SweepRow | tuple[SweepRow, ...]:
        return self.rows[index]

    def sizes(self) -> list[list[SweepRow]]:
        """The runs of each size."""
        rows_by_count: dict[int, list[SweepRow]] = {}
        for row in self.rows:
            rows_by_count.setdefault(row.count, []).append(row)
        return list(rows_by_count.values())

    def __repr__(self) -> str:
        return (
            f"<SweepTable: {self.sweep.collective} on {self.topology}, {len(self.rows)} runs "
            "of "
            f"{len(self.sizes())} sizes>"
        )

    def __str__(self) -> str:
        lines = [size_line(self.sweep, rows) for rows in self.sizes()]
        return "\n".join([*head_lines(self.sweep), *lines, *foot_lines(self.rows)])

    def _repr_html_(self) -> str:
        titles = [" ".join(title) for title in titles_of()]
        return rows_table(titles, (cells(self.sweep, rows) for rows in self.sizes()))

    def to_dict(self) -> dict[str, list[Any]]:
        """Every run as columns, as the CSV of ``simcoll perf`` has them."""
        rows = [row_columns(row) for row in self.rows]
        return {name: [row.get(name) for row in rows] for name in _names(rows)}

    def to_frame(self) -> Any:
        """The same as a ``pandas.DataFrame``; a ConfigError without pandas."""
        return data_frame(self.to_dict())


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of some rows, in order."""
    return list(dict.fromkeys(name for row in rows for name in row))


def check_data(sweep: Sweep, schedule: Schedule) -> DataCheck:
    """Move generated data through a schedule once, at a size with unequal, non-empty chunks.

    The proof covers every size, since one rule determines offsets and lengths of chunks; this
    checks that execution matches the proof.
    """
    chunks = schedule.layout.chunks
    if sweep.collective == "barrier":
        return DataCheck(reason="a barrier moves no data")
    plan = bind(
        schedule, chunks if schedule.divisible else chunks + chunks // 4 + 1, sweep.dtype, sweep.op
    )
    if schedule.wire_formats:
        formats = " and ".join(schedule.wire_formats)
        return DataCheck(reason=f"{schedule.title}: its data is converted to {formats}")
    needed = exact_bytes(plan)
    if needed > CHECKED_BYTES:
        return DataCheck(reason=f"{schedule.title}: its data would take {in_words(needed)}")
    try:
        return DataCheck(plan.count, data_errors(plan))
    except MemoryError:
        return DataCheck(reason=f"{schedule.title}: not enough memory to check its data")


def runs(
    sweep: Sweep,
    schedules: Sequence[Schedule],
    topology: Topology,
    progress: Callable[[int, int, str], None] | None = None,
    refused: dict[Choice, str] | None = None,
) -> Iterator[list[SweepRow]]:
    """Run the prepared choices, size by size; calls ``progress(runs done, total runs, next run)``.

    With ``refused``, a choice that would need too much at a size is entered there, with the reason,
    and has no rows from that size on. The data of a schedule is checked before a row of it is the
    best of a size, and at the latest after the first size.

    Uses the compiled engine if there are enough messages to pay for loading it.
    """
    counts = counts_for(
        sweep.collective, sweep.sizes, topology.nranks, parse_dtype(sweep.dtype).itemsize
    )
    protocols = [sweep.protocols_of(schedule) for schedule in schedules]
    finished, total = 0, len(counts) * sum(map(len, protocols))
    tell = progress or (lambda _finished, _total, _next: None)
    engine, candidates = "auto", list[_Candidate]()
    for choice, schedule, names in zip(sweep.choices, schedules, protocols, strict=True):
        check = PendingCheck(partial(check_data, sweep, schedule))
        candidates.append(_Candidate(choice, schedule, check, names))

    def check_some(some: Iterable[_Candidate]) -> None:
        for candidate in some:
            if candidate.check.made is None:
                tell(finished, total, f"data of {candidate.choice}")
                candidate.check()
                give_back()

    for count in counts:
        rows: list[SweepRow] = []
        for candidate in candidates:
            of_candidate: list[SweepRow] = []
            with note_refusal(candidate.choice, refused):
                for name in candidate.protocols:
                    tell(finished, total, f"{candidate.choice} {name}")
                    protocol = costs_of(sweep, name, topology, candidate.schedule)
                    plan = bind(candidate.schedule, count, sweep.dtype, sweep.op, protocol=protocol)
                    # Not by what the process has loaded: the same table has the same bytes.
                    if COMPILED and engine != "fast" and not sweep.disturbed:
                        little = summary(plan).messages * (total - finished) <= FEW_MESSAGES
                        engine = "simpy" if little else "fast"
                    outcome = _play_row(sweep, plan, topology, engine, candidate)
                    of_candidate.append(SweepRow(candidate.choice, name, outcome, candidate.check))
                    finished += 1
                    if outcome.classes is None and outcome.messages > MANY_PLAYED:
                        give_back()
                rows += of_candidate
            forget_sizes(candidate.schedule)
            give_back()
        if refused:
            candidates = [candidate for candidate in candidates if candidate.choice not in refused]
        best = {row.choice for row in best_rows(rows)}
        check_some(candidate for candidate in candidates if candidate.choice in best)
        yield rows
        check_some(candidates)


def _play_row(
    sweep: Sweep, plan: Plan, topology: Topology, engine: str, candidate: _Candidate
) -> Result:
    """Play one run of the table; its data is checked already, and would be large."""
    result = play(sweep, plan, topology, engine=engine, protocols=len(candidate.protocols))
    if engine == "simpy":
        result = replace(result, path=f"only {result.messages} messages")
    elif result.path == ASKED:
        result = replace(result, path="a table of many messages")
    # What was derived from the plan would take a megabyte for each of a thousand rows.
    return replace(result, plan=replace(result.plan), outputs=None)
