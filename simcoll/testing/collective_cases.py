"""Cases for somebody's implementation of collectives: what each rank calls, with which data, and
what it must hold afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from simcoll.arrays import Array
from simcoll.binding import bind
from simcoll.core.collective import Collective
from simcoll.core.layout import Layout
from simcoll.core.plan import INPUT, OUTPUT, Plan
from simcoll.core.reduction import REDUCTIONS, parse_dtype, parse_reduction
from simcoll.core.reference import exact_inputs, expected_outputs
from simcoll.core.schedule import Schedule
from simcoll.core.vocabulary import PairReduction
from simcoll.errors import ConfigError, nearest
from simcoll.testing.object_values import OBJECT, object_values
from simcoll.testing.wrong_calls import MISTAKES, MistakeName, undefined_reduction

__all__ = ["MEMORIES", "MOST_ROUNDED", "VALUES", "Case", "CaseOperation", "legal_totals"]

Memory: TypeAlias = Literal["contiguous", "offset", "strided", "reversed"]
Values: TypeAlias = Literal["exact", "rounded"]
MEMORIES: tuple[Memory, ...] = ("contiguous", "offset", "strided", "reversed")
"""Where the elements of a buffer lie: one behind the other; so, but beginning at the second element
of an allocation; at every second element; from the last to the first.
"""
VALUES: tuple[Values, ...] = ("exact", "rounded")
"""Data whose reduction is exact in any order, or rounded, so that the order shows."""
MOST_ROUNDED = 5
"""Ranks of a rounded reduction: five values add up in 105 orders, six in 945."""

Counts = int | tuple[int, ...] | tuple[tuple[int, ...], ...]


def _without_defaults(record: Any) -> str:
    """Python source of a record, without the fields that have their defaults."""
    parts = [
        f"{field.name}={getattr(record, field.name)!r}"
        for field in fields(record)
        if field.default is MISSING or getattr(record, field.name) != field.default
    ]
    return f"{type(record).__name__}({', '.join(parts)})"


@dataclass(frozen=True, repr=False)
class CaseOperation:
    """One collective of a case: its definition, group, sizes, data, and the memory of its buffers.

    Parameters
    ----------
    collective
        The collective among the ranks of the group; roots and pairs are numbers in the group.
    ranks
        The members of the group, as ranks of the world, in the order of the group.
    counts
        Elements per block, as for :func:`simcoll.bind`.
    dtype
        Name of a dtype, ``bfloat16`` and the float8 types included; ``object`` for Python objects,
        in arrays of numpy's dtype ``object``.
    op
        Name of the reduction; ``premul_sum:0.5`` has its factor behind a colon.
    memory
        One of :data:`MEMORIES`.
    values
        One of :data:`VALUES`; ``rounded`` is for sums, averages and products of floats among at
        most five ranks.
    seed
        Of the data.
    tag
        Of a send_recv.
    asynchronous
        Start the operation, and wait for it after all operations of the case.
    mistake
        What is wrong with the call on every rank, of
        :data:`~simcoll.testing.wrong_calls.MISTAKES`, so that it must raise; empty if it is right.

    Examples
    --------
    >>> from simcoll import Collective
    >>> operation = CaseOperation(Collective("all_gather", 2), (0, 1), counts=2)
    >>> [values.size for values in operation.inputs()], operation.outputs()[0].size
    ([2, 2], 4)
    """

    collective: Collective
    ranks: tuple[int, ...]
    counts: Counts = 1
    dtype: str = "int32"
    op: str = "sum"
    memory: Memory = "contiguous"
    values: Values = "exact"
    seed: int = 0
    tag: int = 0
    asynchronous: bool = False
    mistake: MistakeName | Literal[""] = ""

    def __post_init__(self) -> None:
        for name, choices in (("memory", MEMORIES), ("values", VALUES)):
            if getattr(self, name) not in choices:
                text = str(getattr(self, name))
                raise ConfigError(f"{name}={text!r}: {nearest(text, choices)}")
        members = set(self.ranks)
        if len(members) != self.collective.nranks or len(members) != len(self.ranks):
            raise ConfigError(
                f"ranks={self.ranks}: expected {self.collective.nranks} different ranks, because "
                f"the collective has as many"
            )
        rounds = self.plan.op in ("sum", "product") and self.plan.dtype.kind not in "biuc"
        few = self.collective.nranks <= MOST_ROUNDED
        if self.values == "rounded" and not (self.collective.spec.reduces and rounds and few):
            raise ConfigError(
                f"values='rounded' needs a sum, average or product of floats among at most "
                f"{MOST_ROUNDED} ranks; got {self}"
            )
        if self.dtype == OBJECT and self.collective.spec.reduces:
            raise ConfigError(f"dtype='object': {self.collective.kind} reduces numbers, no objects")
        if self.mistake:
            _check_mistake(self)

    @property
    def plan(self) -> Plan:
        """The sizes and addresses of the operation; it has no steps. Objects stand as numbers."""
        dtype = "int64" if self.dtype == OBJECT else self.dtype
        return _definition(self.collective, self.counts, dtype, self.op)

    def inputs(self) -> list[Array]:
        """The input of each rank of the group; a rank without input has an empty one."""
        if self.dtype == OBJECT:
            return [object_values(numbers) for numbers in exact_inputs(self.plan, self.seed)]
        if self.values == "exact":
            return exact_inputs(self.plan, self.seed)
        return [_rounded_values(self, rank) for rank in range(self.collective.nranks)]

    def outputs(self) -> list[Array | None]:
        """The output that each rank of the group must hold; ``None`` for a rank without one.

        Of rounded data it is one of several legal ones: the sum in the order of ranks.
        """
        if self.dtype == OBJECT:
            numbers = expected_outputs(self.plan, exact_inputs(self.plan, self.seed))
            return [None if part is None else object_values(part) for part in numbers]
        with np.errstate(all="ignore"):
            return expected_outputs(self.plan, self.inputs())

    def slot_counts(self, rank: int, side: int) -> list[int]:
        """Elements of each block of a rank's input (``side`` 0) or output (1)."""
        collective, sizes = self.collective, self.plan.sizes
        count = (collective.input_slots, collective.output_slots)[side]
        if isinstance(sizes, int):
            return [sizes] * count
        block = (collective.input_block, collective.output_block)[side]
        blocks = block(np.full(count, rank, np.int64), np.arange(count, dtype=np.int64))
        return [int(size) for size in sizes[blocks]]

    def has_buffer(self, rank: int, side: int) -> bool:
        """Whether a rank has an input (``side`` 0) or an output (1) that its caller sees."""
        present = (self.collective.has_input, self.collective.has_output)[side]
        return bool(present(np.array([rank]))[0])

    def __repr__(self) -> str:
        return _without_defaults(self)

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """As Hypothesis prints it, which else lists the fields with their defaults."""
        printer.text(repr(self))

    def __str__(self) -> str:
        parts = [str(self.collective), f"ranks {list(self.ranks)}", f"counts {self.counts}"]
        if self.collective.kind != "barrier":
            parts.append(self.dtype)
        if self.collective.spec.reduces:
            parts.append(self.op)
        if self.tag:
            parts.append(f"tag {self.tag}")
        parts += [text for text in (self.memory, self.values) if text not in _PLAIN]
        if self.asynchronous:
            parts.append("asynchronous")
        if self.mistake:
            parts.append(f"with {MISTAKES[self.mistake].text}")
        return ", ".join(parts)


_PLAIN = {MEMORIES[0], VALUES[0]}


def _check_mistake(operation: CaseOperation) -> None:
    """Refuse a mistake that not every rank of an operation would see."""
    name, kind = operation.mistake, operation.collective.kind
    if name not in MISTAKES:
        raise ConfigError(f"mistake={name!r}: {nearest(name, MISTAKES)}")
    mistake = MISTAKES[name]
    if kind not in mistake.kinds:
        raise ConfigError(
            f"mistake={name!r} in {kind}: expected one of {', '.join(mistake.kinds)}, where every "
            f"rank can see it"
        )
    sizes = np.asarray(operation.counts)
    if name == "length" and not sizes.all():
        raise ConfigError(f"mistake='length' needs elements in all blocks; got {operation.counts}")
    if name == "reduction" and undefined_reduction(operation.dtype) is None:
        raise ConfigError(f"mistake='reduction': all reductions are defined on {operation.dtype}")
    if operation.dtype == OBJECT:
        raise ConfigError(f"mistake={name!r} needs a dtype of numbers; got dtype='object'")
    if operation.collective.in_place:
        raise ConfigError("a wrong call is out of place, so that its input can be checked")


@dataclass(frozen=True, repr=False)
class Case:
    """Operations that the ranks of a world call in this order.

    Parameters
    ----------
    nranks
        World size.
    operations
        One or several; a rank calls those whose group it is in.
    reverse_waits
        Wait for asynchronous operations from the last to the first.
    coalesced
        All operations, which have one group, are issued as one unit.

    Examples
    --------
    >>> from simcoll import Collective
    >>> case = Case(2, (CaseOperation(Collective("all_reduce", 2), (0, 1), counts=3),))
    >>> print(case)
    2 ranks: all_reduce n=2, ranks [0, 1], counts 3, int32, sum
    """

    nranks: int
    operations: tuple[CaseOperation, ...]
    reverse_waits: bool = False
    coalesced: bool = False

    def __post_init__(self) -> None:
        if self.coalesced and len({operation.ranks for operation in self.operations}) > 1:
            raise ConfigError("the operations of a coalesced case must have one group")
        for operation in self.operations:
            strangers = [rank for rank in operation.ranks if not 0 <= rank < self.nranks]
            if strangers:
                raise ConfigError(
                    f"rank {strangers[0]} of a group is not in the world; expected "
                    f"0..{self.nranks - 1}"
                )

    def __repr__(self) -> str:
        return _without_defaults(self)

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """As Hypothesis prints it, which else lists the fields with their defaults."""
        printer.text(repr(self))

    def __str__(self) -> str:
        steps = [str(operation) for operation in self.operations]
        order = ", waits from the last to the first" if self.reverse_waits else ""
        world = "1 rank" if self.nranks == 1 else f"{self.nranks} ranks"
        if self.coalesced:
            return f"{world}, coalesced: " + "; with ".join(steps)
        return f"{world}{order}: " + "; then ".join(steps)


@lru_cache(maxsize=256)
def _definition(collective: Collective, counts: Counts, dtype: str, op: str) -> Plan:
    """A plan of a collective without steps: sizes and addresses, which need no algorithm."""
    empty = Schedule("definition", Layout(collective), lambda: iter(()))
    count: Any = counts if isinstance(counts, int) else np.array(counts, np.int64)
    return bind(empty, count, dtype, parse_reduction_text(op, dtype), unproved=True)


def parse_reduction_text(op: str, dtype: str) -> Any:
    """The reduction of a text such as ``sum`` or ``premul_sum:0.5`` on a dtype."""
    return parse_reduction(op, parse_dtype(dtype))


def _rounded_values(operation: CaseOperation, rank: int) -> Array:
    """Numbers of several magnitudes, so that each order of a sum rounds in its own way."""
    plan = operation.plan
    rng = np.random.default_rng([operation.seed, rank])
    size = plan.view(rank, INPUT)[2]
    magnitude = 2.0 ** rng.integers(-2, 3, size)
    return (rng.standard_normal(size) * magnitude).astype(plan.dtype)


def legal_totals(operation: CaseOperation) -> list[Array]:
    """The results that a reduction of rounded data may have, as whole vectors.

    They are those of all orders and bracketings, computed in the dtype of the data, or in a wider
    one and rounded once. An average is divided, or multiplied by the reciprocal, at the end or at
    the beginning.

    >>> from simcoll import Collective
    >>> three = CaseOperation(
    ...     Collective("all_reduce", 3), (0, 1, 2), 1, "float32", values="rounded"
    ... )
    >>> len(legal_totals(three))  # (ab)c, a(bc), (ac)b in float32 and in float64
    6
    """
    plan, inputs = operation.plan, operation.inputs()
    reduction, n = plan.reduction, plan.nranks
    totals = []
    accumulators: list[np.dtype[Any]] = [plan.dtype, np.dtype("float32"), np.dtype("float64")]
    for wide in dict.fromkeys(accumulators):
        if wide.itemsize < plan.dtype.itemsize:
            continue
        summands = [reduction.prepared(values.astype(wide)) for values in inputs]
        for total in _orders(plan.op, summands):
            result = total.copy()
            reduction.finish(result, n)
            totals.append(result.astype(plan.dtype))
            if reduction.name == "avg":
                totals.append((total * wide.type(1 / n)).astype(plan.dtype))
        if reduction.name == "avg":
            quotients = [(values / wide.type(n)).astype(wide) for values in summands]
            products = [(values * wide.type(1 / n)).astype(wide) for values in summands]
            for shares in (quotients, products):
                totals += [total.astype(plan.dtype) for total in _orders(plan.op, shares)]
    return totals


def _averages(operation: CaseOperation) -> Iterator[list[Array | None]]:
    """Outputs of an average of floats whose sum is exact: divided, or multiplied by the
    reciprocal, in the dtype of the data or a wider one.
    """
    sums = replace(operation, op="sum").outputs()
    n, dtype = operation.collective.nranks, operation.plan.dtype
    complex_types, real_types = ("complex64", "complex128"), ("float32", "float64")
    for name in (dtype.name, *(complex_types if dtype.kind == "c" else real_types)):
        wide = parse_dtype(name)
        if wide.itemsize >= dtype.itemsize:
            totals = [None if total is None else total.astype(wide) for total in sums]
            with np.errstate(all="ignore"):
                yield [None if a is None else (a / wide.type(n)).astype(dtype) for a in totals]
                yield [None if a is None else (a * wide.type(1 / n)).astype(dtype) for a in totals]


def _orders(op: PairReduction, summands: list[Array]) -> Iterator[Array]:
    """The reduction in every bracketing of every order; two values commute."""
    if len(summands) == 1:
        yield summands[0]
        return
    head, *tail = summands
    for bits in range(2 ** len(tail) - 1):
        one_side = [value for place, value in enumerate(tail) if bits >> place & 1]
        other_side = [value for place, value in enumerate(tail) if not bits >> place & 1]
        for a in _orders(op, [head, *one_side]):
            for b in _orders(op, other_side):
                with np.errstate(all="ignore"):
                    yield REDUCTIONS[op](a, b)


def legal_outputs(operation: CaseOperation) -> list[list[Array] | None]:
    """For each rank of the group the outputs that it may hold, any of them at each element;
    ``None`` for a rank without output.
    """
    if operation.values == "exact":
        legal = [operation.outputs()]
        if operation.plan.reduction.name == "avg" and operation.plan.dtype.kind not in "biu":
            legal += _averages(operation)
        return [
            None if values[0] is None else [value for value in values if value is not None]
            for values in zip(*legal, strict=True)
        ]
    places = replace(operation, dtype="int64", op="max", values="exact").plan
    size = places.view(0, INPUT)[2]
    parts = expected_outputs(places, [np.arange(size, dtype=np.int64)] * places.nranks)
    totals = legal_totals(operation)
    return [None if part is None else [total[part] for total in totals] for part in parts]


def output_size(operation: CaseOperation, rank: int) -> int:
    """Elements of a rank's output."""
    return int(operation.plan.view(rank, OUTPUT)[2])
