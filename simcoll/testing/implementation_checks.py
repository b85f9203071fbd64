"""Check somebody's implementation of collectives on a case."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import currently_in_test_context, reject

from simcoll.arrays import Array
from simcoll.testing.collective_cases import Case, legal_outputs
from simcoll.testing.object_values import equal_elements
from simcoll.testing.rank_calls import RankOutcome, Target, callers, refused_operations
from simcoll.testing.rank_runners import Runner, ThreadRunner
from simcoll.testing.wrong_calls import MISTAKES, Mistake

__all__ = ["assert_collective", "case_faults"]

MOST_FAULTS = 6
"""Lines of a message."""


def assert_collective(
    run: Target, case: Case, runner: Runner | None = None, *, deadline_s: float = 10
) -> None:
    """Assert that an implementation does what a case says, on every rank.

    Outputs must be those of the definition. Inputs, and the memory around all buffers, must stay
    as they were. A wrong call must raise on every rank, and what follows it must be right.

    Parameters
    ----------
    run
        A function of a :class:`~simcoll.testing.rank_calls.RankCall`, called on every rank of a
        group for each operation, or a class with ``run``, whose instances are ranks; ``setup`` is
        called with the rank's :class:`~simcoll.testing.rank_calls.RankWorld` before, ``teardown``
        after. A call returns ``None``, or an object with ``wait()``. An operation that is not
        offered raises NotImplementedError on every rank, and Hypothesis passes over the case.
    case
        As drawn by :func:`~simcoll.testing.cases` or :func:`~simcoll.testing.programs`.
    runner
        Default: threads, which join a new world for each case.
    deadline_s
        Seconds after which ranks that have not ended hang.

    Raises
    ------
    AssertionError
        With the ranks and elements that are wrong, or the ranks that hang, and a line that replays
        the case.

    Examples
    --------
    >>> from simcoll import Collective
    >>> from simcoll.testing import CaseOperation
    >>> def run(call):  # each rank copies its input: right for one rank only
    ...     call.output[...] = call.input
    >>> alone = Case(1, (CaseOperation(Collective("all_reduce", 1), (0,)),))
    >>> assert_collective(run, alone)
    """
    __tracebackhide__ = True
    outcomes = (runner or ThreadRunner()).play(run, case, deadline_s)
    faults = list(case_faults(case, outcomes, deadline_s))
    refusals = refused_operations(case, outcomes)
    if refusals and not faults:
        if currently_in_test_context():
            reject()
        raise NotImplementedError(next(iter(refusals.values())))
    if not faults:
        return
    hidden = len(faults) - MOST_FAULTS
    lines = [str(case), *(f"  {fault}" for fault in faults[:MOST_FAULTS])]
    if hidden > 0:
        lines.append(f"  and {hidden} more")
    lines.append(f"replay: assert_collective({_name(run)}, {case!r})")
    raise AssertionError("\n".join(lines))


def _name(run: Target) -> str:
    return str(getattr(run, "__name__", run))


def case_faults(
    case: Case, outcomes: Sequence[RankOutcome | None], deadline_s: float
) -> Iterator[str]:
    """What is wrong with the outcomes of all ranks."""
    refused = refused_operations(case, outcomes)
    hung = [rank for rank, outcome in enumerate(outcomes) if outcome is None]
    if hung:
        plural = "rank" if len(hung) == 1 else "ranks"
        yield f"{plural} {', '.join(map(str, hung))} did not end within {deadline_s:g} s"
    for rank, outcome in enumerate(outcomes):
        if outcome is None:
            continue
        if outcome.error is not None:
            yield f"rank {rank}: {outcome.error}"
        for index, text in outcome.refused.items():
            if index not in refused and rank in callers(case.operations[index]):
                yield f"rank {rank} refuses what others execute: {text}"
        yield from (f"rank {rank}: {fault}" for fault in outcome.faults)
    for index, operation in enumerate(case.operations):
        if index in refused:
            continue
        if operation.mistake:
            mistake = MISTAKES[operation.mistake]
            yield from _missing_errors(case, index, mistake, outcomes)
            continue
        results = legal_outputs(operation)
        for position, rank in enumerate(operation.ranks):
            outcome, choices = outcomes[rank], results[position]
            if (
                outcome is None
                or not outcome.outputs
                or choices is None
                or index in outcome.refused
            ):
                continue
            fault = difference(outcome.outputs[index], choices)
            if fault:
                place = f"operation {index}, " if len(case.operations) > 1 else ""
                yield f"{place}rank {rank}: {fault}"


def _missing_errors(
    case: Case, index: int, mistake: Mistake, outcomes: Sequence[RankOutcome | None]
) -> Iterator[str]:
    """The ranks on which a wrong call has not raised, or has raised something else."""
    operation = case.operations[index]
    due = " or ".join(mistake.errors)
    for rank in sorted(callers(operation)):
        outcome = outcomes[rank]
        if outcome is None or outcome.error or index in outcome.refused:
            continue
        error = outcome.raised.get(index)
        if error is None:
            yield f"rank {rank}: no error for {mistake.text}, expected {due}"
        elif not set(error.classes) & set(mistake.errors):
            yield f"rank {rank}: {error.text}; expected {due}, for {mistake.text}"


def difference(output: Array | None, choices: Sequence[Array]) -> str | None:
    """How an output differs from all its legal values, or ``None``."""
    expected = choices[0]
    if output is None or output.shape != expected.shape:
        return f"the output is missing, expected {expected.size} elements"
    right = np.zeros(expected.shape, np.bool_)
    for choice in choices:
        right |= equal_elements(output, choice)
    if right.all():
        return None
    place = int(np.argmin(right))
    also = "" if len(choices) == 1 else f" or another of {len(choices)} orders' results"
    return (
        f"element {place} is {_text(output[place])}, expected {_text(expected[place])}{also} "
        f"({int((~right).sum())} of {expected.size} elements are wrong)"
    )


def _text(value: object) -> str:
    """A number, or an object as its representation, not longer than a line."""
    return str(value) if isinstance(value, np.generic) else reprlib.repr(value)
