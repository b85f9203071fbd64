"""Prove a schedule and bind it to sizes; the only way from a schedule to a plan."""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from typing import Any

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.definition import Definition
from simcoll.core.numbers import whole_numbers
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.core.protocol import protocol as find_protocol
from simcoll.core.recent_schedules import recent_schedules
from simcoll.core.reduction import Reduction, parse_dtype, parse_reduction
from simcoll.core.schedule import Schedule
from simcoll.core.step import distinct
from simcoll.errors import ConfigError, expect
from simcoll.proving import verify

__all__ = ["bind", "verify"]

MAX_BYTES = 2**62
TOO_LARGE = "a rank would hold more than 2**62 bytes"


def _block_sizes(schedule: Schedule, count: Any) -> tuple[Ints | int, int]:
    """Sizes per block and the count shown in tables."""
    collective = schedule.collective
    if collective.definition is not None:
        return _class_sizes(collective.definition, count)
    if isinstance(count, (int, np.integer)) and not isinstance(count, bool):
        if count < 0:
            raise ConfigError(f"count {count} is negative")
        return int(count), int(count)
    try:
        sizes = np.array(count)
    except ValueError:
        raise ConfigError(
            "counts must be a whole number, a list, or a square matrix of whole numbers"
        ) from None
    if sizes.dtype.kind not in "iu":
        raise ConfigError(f"counts must be whole numbers, got {count!r:.80}")
    expected = (collective.nranks,) * (2 if collective.kind == "all_to_all" else 1)
    one_block = collective.spec.nblocks(2) <= 1
    if one_block or sizes.shape != expected:
        expectation = (
            "one whole number" if one_block else f"one whole number or counts of shape {expected}"
        )
        raise ConfigError(
            f"{collective.kind} of {collective.nranks} ranks takes {expectation}; got counts of "
            f"shape {sizes.shape}"
        )
    if sizes.min() < 0:
        raise ConfigError(f"count {sizes.min()} is negative")
    largest = int(sizes.max())
    if largest > MAX_BYTES:  # before it is an int64
        raise ConfigError(f"count {largest} is too large: {TOO_LARGE}")
    return np.ascontiguousarray(sizes.reshape(-1), np.int64), largest


def _class_sizes(definition: Definition, count: Any) -> tuple[Ints | int, int]:
    """Sizes of the size classes of a custom collective: the same for all, or one each."""
    single = isinstance(count, (int, np.integer)) and not isinstance(count, bool)
    numbers = [int(count)] * definition.nclasses if single else count
    sizes = whole_numbers("counts", numbers, "iu")
    if sizes.shape != (definition.nclasses,):
        raise ConfigError(
            f"{definition} has blocks of {definition.nclasses} size "
            f"class{'es' * (definition.nclasses != 1)}; expected one whole number or a list of "
            f"{definition.nclasses}; got counts of shape {sizes.shape}"
        )
    largest = int(sizes.max())
    if int(sizes.min()) < 0:
        raise ConfigError(f"count {sizes.min()} is negative")
    if largest > MAX_BYTES:
        raise ConfigError(f"count {largest} is too large: {TOO_LARGE}")
    if single and not definition.has_gaps:
        return int(count), largest
    # Slots that a rank does not have are a class of their own.
    return np.concatenate([sizes, np.zeros(int(definition.has_gaps), np.int64)]), largest


def bind(
    schedule: Schedule,
    count: int | Sequence[int] | Sequence[Sequence[int]],
    dtype: Any = "float32",
    op: str | Reduction = "sum",
    *,
    ranks: Sequence[int] | Ints | None = None,
    protocol: str | Protocol = "ideal",
    unproved: bool = False,
) -> Plan:
    """Prove a schedule and bind it to sizes.

    Parameters
    ----------
    schedule
        The schedule to bind.
    count
        Elements per block: of the whole vector (broadcast, reduce, all_reduce), per rank
        (all_gather, reduce_scatter, gather, scatter, send_recv), or per pair (all_to_all). A list
        gives every rank's own count, a matrix ``[source][destination]`` those of an all_to_all, a
        list those of the size classes of a custom collective.
    dtype
        A numpy dtype or its name; ``bfloat16`` and float8 included.
    op
        Reduction: sum, product, min, max, band, bor, bxor, avg, or ``premul_sum(factor)``.
    ranks
        Endpoint of the topology for each rank of the schedule; default ``0 .. n - 1``.
    protocol
        Cost parameters, or the name of a protocol.
    unproved
        Bind without a proof; every result then says so. Steps that cannot be addressed are refused
        all the same.

    Raises
    ------
    ScheduleError
        With the counter-example, when the schedule is wrong.
    ConfigError
        For counts, dtypes, reductions, ranks or protocols that do not fit.

    Examples
    --------
    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> print(simcoll.bind(ring, count=5, dtype="bfloat16"))
    ring(channels=1, pieces=1) all_gather n=3 count=5 bfloat16 ideal, proved (full)
    >>> simcoll.bind(ring, count=[5, 0, 2]).sizes.tolist()  # the count of each rank
    [5, 0, 2]
    """
    expect(schedule, Schedule, "bind takes a schedule, made by simcoll.schedule() or Schedule()")
    proof = None
    if unproved:
        schedule.check()
    else:
        proof = verify(schedule)
    recent_schedules.keep(schedule)
    element = parse_dtype(dtype)
    reduction = parse_reduction(op, element)
    _check_reduction(schedule.collective, reduction)
    _check_conversions(schedule, element)
    sizes, plan_count = _block_sizes(schedule, count)
    largest = sizes if isinstance(sizes, int) else int(sizes.max(initial=0))
    slots = max(schedule.collective.input_slots, schedule.collective.output_slots, 1)
    if largest * slots * max(element.itemsize, schedule.layout.chunks) > MAX_BYTES:
        raise ConfigError(f"count {largest} is too large: {TOO_LARGE}")
    if schedule.divisible:
        if not isinstance(sizes, int) and schedule.collective.definition is None:
            raise ConfigError(f"{schedule.title} needs equal blocks")
        if np.any(np.asarray(sizes) % schedule.layout.chunks):
            raise ConfigError(
                f"{schedule.title} cuts blocks into {schedule.layout.chunks} equal chunks; count "
                f"{sizes} is not a multiple"
            )
    endpoints = (
        np.arange(schedule.nranks, dtype=np.int64)
        if ranks is None
        else whole_numbers("ranks", ranks, "iu")
    )
    if endpoints.shape != (schedule.nranks,):
        description = (
            f"{endpoints.size} endpoints"
            if endpoints.ndim == 1
            else f"an array of shape {endpoints.shape}, not a list"
        )
        raise ConfigError(f"{schedule.title} has {schedule.nranks} ranks; got {description}")
    if len(distinct(endpoints)) != schedule.nranks or (endpoints < 0).any():
        raise ConfigError("ranks must name different endpoints, 0 or more")
    costs = find_protocol(protocol) if isinstance(protocol, str) else protocol
    if not isinstance(costs, Protocol):
        raise ConfigError(f"protocol must be a name or a Protocol, got {protocol!r:.60}")
    return Plan(schedule, sizes, plan_count, element, reduction, endpoints, costs, proof)


def _check_reduction(collective: Collective, reduction: Reduction) -> None:
    """Refuse what divides or scales every output where a custom collective also copies, or adds
    different numbers of contributions.
    """
    if collective.definition is None or not collective.spec.reduces:
        return
    if reduction.name in ("avg", "premul_sum") and collective.summands is None:
        raise ConfigError(
            f"{collective}: {reduction.name} needs outputs that all are sums of the same number of "
            "contributions; expected sum, or another reduction, and a division afterwards"
        )


def _check_conversions(schedule: Schedule, element: np.dtype[Any]) -> None:
    """Refuse to convert what is not a floating-point number."""
    if not schedule.wire_formats:
        return
    from simcoll.core.wire_format import is_floating

    if not is_floating(element):
        raise ConfigError(
            f"{schedule.title} converts to {' and '.join(schedule.wire_formats)} on the way, which "
            f"needs a floating-point dtype such as float32; got {element.name}"
        )


def _to_pickle(plan: Plan) -> tuple[Any, tuple[Any, ...]]:
    """How a plan is pickled: without its proof, which nobody else could trust."""
    arguments = (
        plan.schedule,
        plan.sizes,
        plan.count,
        plan.dtype,
        plan.reduction,
        plan.ranks,
        plan.protocol,
    )
    return _from_pickle, (*arguments, plan.proof is not None)


def _from_pickle(
    schedule: Schedule,
    sizes: Ints | int,
    count: int,
    dtype: Any,
    reduction: Reduction,
    ranks: Ints,
    protocol: Protocol,
    proved: bool,
) -> Plan:
    """A plan that was unpickled; if its schedule was proved, it is proved again."""
    return Plan(
        schedule,
        sizes,
        count,
        dtype,
        reduction,
        ranks,
        protocol,
        verify(schedule) if proved else None,
    )


copyreg.pickle(Plan, _to_pickle)
