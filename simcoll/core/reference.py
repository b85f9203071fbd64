"""The definition of every collective on real arrays: the oracle for everything that runs a plan.

Derived from the table of collectives alone, independently of schedules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simcoll.arrays import Array, Ints, Words
from simcoll.core.definition import Definition
from simcoll.core.hashing import mix
from simcoll.core.plan import INPUT, Plan
from simcoll.core.reduction import combine

__all__ = [
    "count_wrong",
    "exact_inputs",
    "expected_outputs",
    "largest_difference",
    "random_inputs",
]

# The dtype represents whole numbers up to this one exactly: 2**(bits of the significand).
_EXACT_TO = {
    "float64": 2**53,
    "float32": 2**24,
    "float16": 2**11,
    "bfloat16": 2**8,
    "float8_e4m3fn": 2**4,
    "float8_e4m3fnuz": 2**4,
}


ELEMENTS_AT_ONCE = 1 << 14
"""Data are made in parts of so many elements, whose intermediate results stay in the cache: eight
ranks of 64 MiB take a quarter of the time that whole arrays take.
"""


def _random_bits(seed: int, rank: int, index: range) -> Words:
    """64 pseudo-random bits as a function of (seed, rank, index)."""
    with np.errstate(over="ignore"):
        begin = np.uint64((seed * 0x1000193 + rank + 1) % 2**64) * np.uint64(0x9E3779B97F4A7C15)
        return mix(np.arange(index.start, index.stop, dtype=np.uint64) + begin)


def _values(plan: Plan, seed: int, rank: int, index: range) -> Array:
    """Some data of a rank, or of a contribution of a custom collective."""
    dtype, n, definition = plan.dtype, plan.nranks, plan.collective.definition
    bits = _random_bits(seed, rank, index)
    if dtype.kind == "b":
        return (bits & np.uint64(1)).astype(dtype)
    if dtype.kind in "iu":
        return bits.astype(dtype)
    limit = _EXACT_TO.get(dtype.name, 2**24 if dtype.kind == "c" else 2**3)
    if plan.op == "product":
        return np.where(bits & np.uint64(1), -1, 1).astype(dtype)
    factor = plan.reduction.factor
    scaled = 1.0 if factor is None else _real(dtype, factor)
    # Of n ranks at most reach / 4 contribute to an element, between -2 and 2: every partial sum is
    # exact in any order.
    reach = limit // _odd_part(scaled)
    if definition is not None:
        n = definition.contributions
        reach //= definition.repetitions
    largest, contributing = 2, reach // 4
    if reach < 8:  # doubling is always exact: two ranks contribute, between -1 and 1
        largest, contributing = 1, 2
    contributing = min(n, contributing)
    turn = (np.arange(index.start, index.stop, dtype=np.int64) * (7 if n % 7 else 1) + rank) % n
    numbers = (bits % np.uint64(2 * largest + 1)).astype(np.int64) - largest
    return np.where(
        turn < contributing, numbers * _fitting(dtype, scaled, largest * contributing), 0
    ).astype(dtype)


def _real(dtype: np.dtype[Any], value: float) -> float:
    """A real number rounded to the dtype; infinity or NaN if it is too large."""
    with np.errstate(over="ignore", invalid="ignore"):
        return complex(dtype.type(value)).real


def _odd_part(value: float) -> int:
    """The odd factor of a binary fraction, with powers of two removed: 3 for 0.75; at least 1."""
    numerator = abs(value.as_integer_ratio()[0])
    return max(1, numerator // max(1, numerator & -numerator))


def _fitting(dtype: np.dtype[Any], factor: float, largest: int) -> float:
    """The largest power of two, at most 1, that keeps its product with the factor and ``largest``
    in the range of the dtype.
    """
    power = 1.0
    while not math.isfinite(_real(dtype, factor * power * largest)):
        power /= 2
    return power


def exact_inputs(plan: Plan, seed: int = 0) -> list[Array]:
    """Inputs of every rank whose reduction is exact in any order, as a function of (seed, rank,
    index).

    The factor of a premul_sum counts: the more digits it has, the fewer ranks contribute to an
    element. A rank without input gets an empty array. All are parts of one array, whose memory goes
    back to the system at once.

    >>> import simcoll
    >>> plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=3), 3, "float32", "sum")
    >>> [values.tolist() for values in exact_inputs(plan, seed=1)]
    [[...], [...], [...]]
    """
    return _input_arrays(plan, lambda rank, index: _values(plan, seed, rank, index))


def random_inputs(plan: Plan, seed: int = 0) -> list[Array]:
    """Inputs of every rank between -1 and 1, as a function of (seed, rank, index): data that
    shows the rounding of conversions.

    >>> import simcoll
    >>> plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=3), 3, "float32", "sum")
    >>> all(abs(values).max() <= 1 for values in random_inputs(plan))
    True
    """

    def values(rank: int, index: range) -> Array:
        bits = _random_bits(seed, rank, index) >> np.uint64(11)
        uniform: Array = (bits.astype(np.float64) / 2**52 - 1).astype(plan.dtype)
        return uniform

    return _input_arrays(plan, values)


def _input_arrays(plan: Plan, values: Callable[[int, range], Array]) -> list[Array]:
    """Inputs of every rank, from a function of a rank or contribution and of indices."""
    ends = np.cumsum([plan.view(rank, INPUT)[2] for rank in range(plan.nranks)])
    inputs = np.split(np.empty(int(ends[-1]), plan.dtype), ends[:-1])
    definition = plan.collective.definition
    for rank, part in enumerate(inputs):
        if definition is None:
            _write(part, values, rank)
            continue
        offsets = _slots(plan, rank, INPUT)
        for slot, contribution in enumerate(definition.inputs[rank]):
            begin, end = offsets[slot : slot + 2].tolist()
            _write(part[begin:end], values, contribution)
    return inputs


def _write(part: Array, values: Callable[[int, range], Array], contribution: int) -> None:
    """Write the elements of a rank or contribution."""
    for begin in range(0, part.size, ELEMENTS_AT_ONCE):
        index = range(begin, min(begin + ELEMENTS_AT_ONCE, part.size))
        part[begin : index.stop] = values(contribution, index)


def _slots(plan: Plan, rank: int, side: int) -> Ints:
    """Element offsets of a rank's input or output slots, and the total."""
    collective = plan.collective
    count = (collective.input_slots, collective.output_slots)[side]
    if isinstance(plan.sizes, int):
        return np.arange(count + 1, dtype=np.int64) * plan.sizes
    slot = np.arange(count, dtype=np.int64)
    block = (collective.input_block, collective.output_block)[side](
        np.full(count, rank, np.int64), slot
    )
    return np.concatenate([[0], np.cumsum(plan.sizes[block])])


def expected_outputs(plan: Plan, inputs: Sequence[Array]) -> list[Array | None]:
    """The output that every rank must hold afterwards; ``None`` for a rank without one.

    Reductions run in rank order, in the dtype of the plan. An average is a quotient in that dtype;
    8- and 16-bit floats are divided in float32 and rounded, integers truncated towards zero.
    Outputs that must be equal may share memory. Of the plan, only its collective, sizes, dtype and
    reduction are used: neither its schedule nor the emulator. So this is the oracle of whatever
    executes a collective.

    >>> import simcoll
    >>> plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=2), 2, "int32")
    >>> expected_outputs(plan, [np.array([1, 2], "int32"), np.array([3, 4], "int32")])[0]
    array([1, 2, 3, 4], dtype=int32)
    """
    collective, n = plan.collective, plan.nranks
    if collective.definition is not None:
        return _defined_outputs(plan, collective.definition, inputs)
    starts = [_slots(plan, rank, INPUT) for rank in range(n)]
    total: Array | None = None
    if collective.spec.reduces:
        total = np.array(plan.reduction.prepared(inputs[0]), plan.dtype)
        for summand in inputs[1:]:
            combine(plan.op, total, plan.reduction.prepared(summand))
        if plan.reduction.name == "avg":
            total = _average(total, n)
    outputs: list[Array | None] = []
    slots = np.arange(collective.output_slots)
    shared_key: tuple[bytes, ...] = ()
    shared_output: Array | None = None
    for rank, visible in enumerate(collective.has_output(np.arange(n)).tolist()):
        if not visible:
            outputs.append(None)
            continue
        sources = collective.source(np.full_like(slots, rank), slots)
        key = tuple(column.tobytes() for column in sources)
        if key == shared_key:  # in an all_gather, all ranks hold the same N blocks
            outputs.append(shared_output)
            continue
        parts = []
        for source, slot in zip(*(column.tolist() for column in sources), strict=True):
            data, offsets = (total, starts[0]) if source < 0 else (inputs[source], starts[source])
            if data is not None:
                parts.append(data[offsets[slot] : offsets[slot + 1]])
        single = total is not None and len(parts) == 1
        output = parts[0] if single else np.concatenate([np.zeros(0, plan.dtype), *parts])
        outputs.append(output)
        shared_key, shared_output = key, output
    return outputs


def _defined_outputs(
    plan: Plan, definition: Definition, inputs: Sequence[Array]
) -> list[Array | None]:
    """The outputs of a custom collective: contributions are reduced in the order in which they are
    listed; of several inputs that hold a contribution, the first counts.
    """
    reduction, reduces = plan.reduction, definition.reduces
    blocks: dict[int, Array] = {}
    for rank, contributions in enumerate(definition.inputs):
        offsets = _slots(plan, rank, INPUT)
        for slot, contribution in enumerate(contributions):
            block = np.asarray(inputs[rank])[offsets[slot] : offsets[slot + 1]]
            blocks.setdefault(contribution, reduction.prepared(block) if reduces else block)
    outputs: list[Array | None] = []
    for slots in definition.outputs:
        parts = []
        for listed in slots:
            total = np.array(blocks[listed[0]], plan.dtype)
            for contribution in listed[1:]:
                combine(plan.op, total, blocks[contribution])
            averages = reduces and reduction.name == "avg"
            parts.append(_average(total, plan.summands) if averages else total)
        outputs.append(np.concatenate(parts) if parts else None)
    return outputs


def _average(total: Array, n: int) -> Array:
    """A sum divided by the number of ranks, computed differently from
    :meth:`~simcoll.core.reduction.Reduction.finish`.
    """
    dtype = total.dtype
    if dtype.kind == "c":
        result = np.empty_like(total)
        result.real, result.imag = _average(total.real, n), _average(total.imag, n)
        return result
    if dtype.kind in "iu":
        integers = total.astype(np.int64 if dtype.kind == "i" else np.uint64)
        count = integers.dtype.type(n)
        return ((integers - np.fmod(integers, count)) // count).astype(dtype)
    quotient = total / np.float64(n)
    return (quotient.astype(np.float32) if dtype.itemsize < 4 else quotient).astype(dtype)


def largest_difference(outputs: Sequence[Array | None], expected: Sequence[Array | None]) -> float:
    """The largest difference of an output from the expected one, as a share of the largest expected
    magnitude; infinite where an output is missing or no number.

    >>> largest_difference([np.array([1.0, 3.5])], [np.array([1.0, 4.0])])
    0.125
    """
    largest = difference = 0.0
    for output, reference in zip(outputs, expected, strict=True):
        if reference is None or not reference.size:
            continue
        if output is None or output.shape != reference.shape:
            return math.inf
        right = reference.astype(np.float64)
        distance = np.abs(output.astype(np.float64) - right).max()
        difference = max(difference, float(np.nan_to_num(distance, nan=math.inf)))
        largest = max(largest, float(np.abs(right).max()))
    return difference / largest if difference else 0.0


def count_wrong(outputs: Sequence[Array | None], expected: Sequence[Array | None]) -> int:
    """Number of elements that differ from the expected ones, over all ranks."""
    wrong = 0
    for output, reference in zip(outputs, expected, strict=True):
        if reference is not None:
            wrong += (
                reference.size
                if output is None or output.shape != reference.shape
                else int((output != reference).sum())
            )
    return wrong
