"""What a schedule must do, checked in every way that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simcoll.emulator import emulate
from simcoll.errors import SimcollError
from simcoll.topology import crossbar
from simcoll.verify import check_lowering

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simcoll.emulator import Result
    from simcoll.plan import Plan
    from simcoll.reduction import Reduction
    from simcoll.schedule import Schedule
    from simcoll.topology import Topology

__all__ = ["assert_implements", "checked_run", "default_counts"]


def default_counts(schedule: Schedule) -> tuple[int, ...]:
    """Awkward elements per block: none, one, fewer and more than there are ranks or chunks, an odd number."""
    chunks, n = schedule.layout.chunks, schedule.nranks
    if schedule.divisible:
        return 0, chunks, 3 * chunks
    return tuple(dict.fromkeys((0, 1, n - 1, n + 1, chunks - 1, chunks, 2 * chunks + 1)))


def checked_run(plan: Plan, topology: Topology | None, seed: int = 0) -> Result:
    """Emulate a plan on exact data, and compare with the definition.

    Raises
    ------
    AssertionError
        When an element is wrong.
    InternalError
        When the run beats its lower bound.
    """
    where = crossbar(int(plan.ranks.max()) + 1, "50 GB/s", "1 us") if topology is None else topology
    result = emulate(plan, where, seed=seed)
    if result.wrong:
        raise AssertionError(f"{plan} on {where.name}: {result.wrong} wrong output elements (seed={seed})")
    return result


def assert_implements(
    schedule: Schedule,
    *,
    counts: Iterable[int | Sequence[int] | Sequence[Sequence[int]]] | None = None,
    dtypes: Iterable[Any] = ("float32", "int32"),
    op: str | Reduction = "sum",
    topology: Topology | None = None,
) -> None:
    """Assert that a schedule does what its collective says.

    It is proved; for each count and dtype it is bound, its per-rank programs are checked for races and deadlock, and it is emulated on
    data whose result is exact in any order of reduction.

    Parameters
    ----------
    schedule
        Any schedule.
    counts
        Elements per block, as for :meth:`~simcoll.schedule.Schedule.bind`; default some awkward ones.
    dtypes, op
        As for ``bind``.
    topology
        Where it is emulated; default a crossbar.

    Raises
    ------
    AssertionError
        With the message of the verifier, and a line that repeats the failing check.

    Examples
    --------
    >>> import simcoll
    >>> assert_implements(simcoll.schedule("all_gather", "ring", nranks=3), counts=[0, 5, [1, 0, 4]])
    """
    __tracebackhide__ = True
    try:
        schedule.proof()
    except SimcollError as error:
        replay = "schedule.proof()"
        raise AssertionError(f"{error}\nreplay: {replay}  # schedule: {_named(schedule)}") from None
    for count in default_counts(schedule) if counts is None else counts:
        for dtype in dtypes:
            bound = f"schedule.bind({count!r}, {dtype!r}, {op!r})"
            replay = bound
            try:
                plan = schedule.bind(count, dtype, op)
                replay = f"simcoll.verify.check_lowering({bound})"
                check_lowering(plan)
                where = "" if topology is None else f", topology={topology.name!r}"
                replay = f"simcoll.testing.assert_implements(schedule, counts=[{count!r}], dtypes=[{dtype!r}], op={op!r}{where})"
                checked_run(plan, topology)
            except (SimcollError, AssertionError) as error:
                raise AssertionError(f"{error}\nreplay: {replay}  # schedule: {_named(schedule)}") from None


def _named(schedule: Schedule) -> str:
    return f"{schedule.title} for {schedule.collective!r}, hash {schedule.content_hash()[:16]}"
