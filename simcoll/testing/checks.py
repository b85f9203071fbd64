"""Check a schedule in every available way: proof, lowering, and runs on exact data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simcoll.binding import bind, verify
from simcoll.core.plan import Plan
from simcoll.core.reduction import Reduction, parse_dtype
from simcoll.core.schedule import SYNC, Schedule
from simcoll.emulator import Result, emulate
from simcoll.errors import ConfigError, SimcollError, expect
from simcoll.proving import check_lowering
from simcoll.topology import Topology, crossbar

__all__ = ["assert_implements", "checked_run", "default_counts", "several"]


def default_counts(schedule: Schedule) -> tuple[int, ...]:
    """Awkward element counts per block: none, one, fewer and more than ranks or chunks, an odd
    number.
    """
    chunks, n = schedule.layout.chunks, schedule.nranks
    if schedule.divisible:
        return 0, chunks, 3 * chunks
    return tuple(dict.fromkeys((0, 1, n - 1, n + 1, chunks - 1, chunks, 2 * chunks + 1)))


def checked_run(plan: Plan, topology: Topology | None, seed: int = 0) -> Result:
    """Emulate a plan on exact data and compare with the definition.

    Without a topology it runs on a crossbar that supports it.

    Raises
    ------
    AssertionError
        When an element is wrong.
    InternalError
        When the run beats its lower bound.
    """
    machine = _machine(plan) if topology is None else topology
    result = emulate(plan, machine, seed=seed)
    if result.wrong:
        raise AssertionError(
            f"{plan} on {machine.name}: {result.wrong} wrong output elements (seed={seed})"
        )
    return result


def _machine(plan: Plan) -> Topology:
    """A crossbar, whose switch multicasts and reduces if the plan needs it."""
    machine = crossbar(int(plan.ranks.max()) + 1, "50 GB/s", "1 us")
    switched = any((step.op > SYNC).any() for step in plan.steps())
    return replace(machine, traits={"switch_reduce": "yes"}) if switched else machine


def assert_implements(
    schedule: Schedule,
    *,
    counts: Iterable[int | Sequence[int] | Sequence[Sequence[int]]] | None = None,
    dtypes: Iterable[Any] = ("float32", "int32"),
    op: str | Reduction = "sum",
    topology: Topology | None = None,
) -> None:
    """Assert that a schedule implements its collective.

    The schedule is proved. For each count and dtype it is bound, its lowering is checked for races
    and deadlock, and it is emulated on data whose result is exact in any order of reduction.

    Parameters
    ----------
    schedule
        Any schedule.
    counts
        Elements per block, as for :func:`simcoll.bind`, one or more; default: some awkward counts.
    dtypes
        As for ``bind``, one or more.
    op
        As for ``bind``.
    topology
        The topology for the emulation; default: a crossbar, whose switch reduces and multicasts if
        the schedule needs it.

    Raises
    ------
    AssertionError
        With the verifier's message, and a line that replays the failing check.
    ConfigError
        For a schedule, counts, dtypes or topology of the wrong kind.

    Examples
    --------
    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> assert_implements(ring, counts=[0, 5, [1, 0, 4]])
    """
    __tracebackhide__ = True
    expect(
        schedule,
        Schedule,
        "assert_implements takes a schedule, made by schedule(collective, algorithm)",
    )
    if topology is not None:
        expect(
            topology, Topology, "assert_implements takes a topology, made by load_topology(name)"
        )
    sizes = several("counts", default_counts(schedule) if counts is None else counts, "[0, 1, 7]")
    kinds = several("dtypes", dtypes, "['float32', 'int32']")
    try:
        verify(schedule)
    except SimcollError as error:
        replay = "simcoll.verify(schedule)"
        raise AssertionError(
            f"{error}\nreplay: {replay}  # schedule: {_describe(schedule)}"
        ) from None
    for count in sizes:
        for dtype in kinds:
            replay = _bound(count, dtype, op)
            try:
                plan = bind(schedule, count, dtype, op)
                replay = f"from simcoll.proving import check_lowering; check_lowering({replay})"
                check_lowering(plan)
                replay = _replay_source(count, dtype, op, topology)
                checked_run(plan, topology)
            except (SimcollError, AssertionError) as error:
                on = "" if topology is None else f"; topology: {topology.name!r}"
                raise AssertionError(
                    f"{error}\nreplay: {replay}  # schedule: {_describe(schedule)}{on}"
                ) from None


def several(name: str, choices: Any, example: str) -> list[Any]:
    """The given choices as a list, because they are iterated more than once."""
    if not isinstance(choices, Iterable) or isinstance(choices, str):
        raise ConfigError(
            f"{name} must be a list such as {example}, got {choices!r:.60}; did you mean "
            f"[{choices!r:.60}]?"
        )
    values = list(choices)
    if not values:
        raise ConfigError(
            f"{name} is empty, so nothing would be checked; expected one or more, such as {example}"
        )
    return values


def _bound(count: Any, dtype: Any, op: str | Reduction) -> str:
    """Python source that binds ``schedule`` again."""
    return f"simcoll.bind(schedule, {_plain(count)}, {_kind(dtype)}, {_operation(op)})"


def _replay_source(count: Any, dtype: Any, op: str | Reduction, topology: Topology | None) -> str:
    """Python source that checks one case of ``schedule`` (on ``topology``) again."""
    argument = "" if topology is None else ", topology=topology"
    return (
        "from simcoll.testing import assert_implements; "
        f"assert_implements(schedule, counts=[{_plain(count)}], dtypes=[{_kind(dtype)}], "
        f"op={_operation(op)}{argument})"
    )


def _plain(count: Any) -> str:
    """A count without numpy types."""
    try:
        return repr(np.asarray(count).tolist())
    except ValueError:  # rows of different lengths
        return repr(count)


def _kind(dtype: Any) -> str:
    """The name of a dtype, if it has one."""
    try:
        return repr(dtype if isinstance(dtype, str) else parse_dtype(dtype).name)
    except ConfigError:
        return repr(dtype)


def _operation(op: Any) -> str:
    return f"simcoll.types.{op!r}" if isinstance(op, Reduction) else repr(op)


def _describe(schedule: Schedule) -> str:
    return f"{schedule.title} for {schedule.collective!r}, hash {schedule.content_hash()[:16]}"
