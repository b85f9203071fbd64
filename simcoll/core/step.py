"""Steps: transfers that all read the memory before the step, as parallel arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simcoll.arrays import Array, Ints, Whole
from simcoll.core.immutable import (
    SLIM_ROWS,
    by_constructor,
    constant,
    immutable,
    without_subclasses,
)
from simcoll.core.numbers import LARGEST, NUMBER, whole_number, whole_numbers
from simcoll.core.transit import Transits, chosen_transits, transits_of
from simcoll.core.vocabulary import TransferOp
from simcoll.errors import ConfigError, nearest
from simcoll.notebook_forms import rows_table

__all__ = [
    "COPY",
    "MULTICAST",
    "OP_NAMES",
    "REDUCE",
    "SWITCH_REDUCE",
    "SYNC",
    "LongStep",
    "Repeat",
    "Step",
    "concurrent",
    "first_alike",
    "joined",
    "moving_part",
    "overlaps",
    "private_copy",
    "transfers",
    "transit_words",
]

COPY, REDUCE, SYNC, MULTICAST, SWITCH_REDUCE = range(5)
OP_NAMES: tuple[TransferOp, ...] = ("copy", "reduce", "sync", "multicast", "switch_reduce")
"""``copy``: dst = src. ``reduce``: dst = dst (op) src. ``sync``: a message without data.

Several reductions into one chunk in one step form a *fold*: their sources are added in ascending
order of their ranks to the old content of dst, or to the result of a copy to dst in the same step.
A fold has one channel and at most one reduction per source rank.

A switch performs the others, for all transfers of a step with the same channel and the same source
chunk (``multicast``: the source sends once, every dst = src) or destination chunk
(``switch_reduce``: the destination receives once, dst = the reduction of all sources in unspecified
order; the old content of dst does not count).
"""

OPERATION = np.dtype(np.int8)
COLUMNS = ("src_rank", "src_chunk", "dst_rank", "dst_chunk", "count", "op", "channel")
_FORMS: tuple[tuple[np.dtype[Any], tuple[tuple[int], tuple[int]]], ...] = tuple(
    (OPERATION, ((1,), (0,))) if name == "op" else (NUMBER, ((8,), (0,))) for name in COLUMNS
)
"""Type and strides of each column: its values follow each other, or are all the same one."""
SHOWN_ROWS, SHOWN_IN_TABLE = 3, 24
SPARSE = 16
"""Up to this multiple of the number of rows, a table of their keys is faster than sorting."""


@without_subclasses
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Step:
    """Transfers that all read the memory before the step, as parallel arrays of equal length.

    ``count`` consecutive chunks from ``src_chunk`` on ``src_rank`` go to ``dst_chunk`` on
    ``dst_rank``, on lane ``channel``. Equal ranks make it a local copy or reduction.

    Columns may be arrays of any integer type, byte order and stride. They are stored as int64
    (``op`` as int8) in memory that nobody can change (:mod:`simcoll.core.immutable`): what is
    proved is what was given.

    Raises
    ------
    ConfigError
        For a column that is not an array of one dimension, and for values that are not whole or do
        not fit.

    Examples
    --------
    >>> step = transfers([0, 1], 5, [1, 0], 6)
    >>> step.src_chunk.tolist(), step.ends[1][0].tolist()
    ([5, 5], [1, 0])
    """

    src_rank: Ints
    src_chunk: Ints
    dst_rank: Ints
    dst_chunk: Ints
    count: Ints
    op: NDArray[np.int8]
    channel: Ints
    transits: Transits | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            src_rank: Array,
            src_chunk: Array,
            dst_rank: Array,
            dst_chunk: Array,
            count: Array,
            op: Array,
            channel: Array,
            transits: Transits | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        for name, column, (dtype, strides) in zip(COLUMNS, self.columns, _FORMS, strict=True):
            # Columns of other steps, and new ones of the right type, decide how much a derived step
            # costs.
            if type(column) is np.ndarray and column.dtype is dtype:
                memory: Any = column.base
                if type(memory) is np.ndarray:
                    memory = memory.base
                if type(memory) is bytes and column.strides in strides:
                    continue
                if column.ndim == 1:
                    object.__setattr__(self, name, np.frombuffer(column.tobytes(), dtype))
                    continue
            object.__setattr__(self, name, _column(name, column, dtype))
        if self.transits is not None:
            object.__setattr__(self, "transits", _checked_transits(self.transits))

    __reduce__ = by_constructor

    def __copy__(self) -> Step:
        return self

    def __deepcopy__(self, memo: Any) -> Step:
        return self

    def __len__(self) -> int:
        return len(self.src_rank)

    def __repr__(self) -> str:
        number = f"{len(self)} transfer{'s' * (len(self) != 1)}"
        return f"<Step: {number}{self._shown_rows()}>"

    def _shown_rows(self) -> str:
        """The first transfers, as ``rank[chunk] operation rank[chunk]``."""
        texts = []
        rows = min(map(len, self.columns))  # which may differ, for a check to find
        for row in range(min(rows, SHOWN_ROWS)):
            source, target = (f"{ranks[row]}[{chunks[row]}]" for ranks, chunks in self.ends)
            count = f" x {self.count[row]}" if self.count[row] > 1 else ""
            transit = transit_words(self, row)
            texts.append(f"{source} {_operation(int(self.op[row]))} {target}{count}{transit}")
        ending = ", ..." if len(self) > SHOWN_ROWS else ""
        return f": {', '.join(texts)}{ending}" if texts else ""

    def _repr_html_(self) -> str:
        rows = zip(*(column[:SHOWN_IN_TABLE].tolist() for column in self.columns), strict=False)
        cells: list[tuple[object, ...]] = [(*row[:5], _operation(row[5]), row[6]) for row in rows]
        if len(self) > len(cells):
            cells.append((f"and {len(self) - len(cells)} more", *[""] * (len(COLUMNS) - 1)))
        return rows_table(COLUMNS, cells)

    @property
    def columns(self) -> tuple[Any, ...]:
        """The arrays, in the order of the constructor's arguments.

        >>> step = transfers([0, 1], 5, [1, 0], 6)
        >>> [column.tolist() for column in step.columns[:4]]
        [[0, 1], [5, 5], [1, 0], [6, 6]]
        """
        return (
            self.src_rank,
            self.src_chunk,
            self.dst_rank,
            self.dst_chunk,
            self.count,
            self.op,
            self.channel,
        )

    @property
    def ends(self) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        """Rank and first chunk of the sources, and the same of the destinations.

        >>> step = transfers([0, 1], 5, [1, 0], 6)
        >>> (src_rank, src_chunk), (dst_rank, dst_chunk) = step.ends
        >>> src_rank.tolist(), dst_rank.tolist(), dst_chunk.tolist()
        ([0, 1], [1, 0], [6, 6])
        """
        return (self.src_rank, self.src_chunk), (self.dst_rank, self.dst_chunk)

    def rows(self, rows: slice | Array) -> Step:
        """A subset of the transfers.

        >>> step = transfers([0, 1, 2], 0, [1, 2, 0], 0)
        >>> step.rows(slice(1, None)).dst_rank.tolist()
        [2, 0]
        """
        columns: list[Any] = [_some(column, rows) for column in self.columns]
        columns.append(None if self.transits is None else self.transits.rows(rows))
        return Step(*columns)


def _some(column: Array, rows: slice | Array) -> Array:
    """Some rows of a column, frozen at once, so that no two copies of all columns exist."""
    if column.strides == (0,) and isinstance(rows, np.ndarray) and len(column) > SLIM_ROWS:
        size = int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else len(rows)
        return constant(int(column[0]), size, column.dtype)
    chosen: Array = column[rows]
    return chosen if isinstance(rows, slice) else immutable(chosen)


def transit_words(step: Step, row: int) -> str:
    """The path and wire format of a transfer, after a comma; empty if it has neither.

    >>> transit_words(transfers(0, 0, 1, 0, via="net"), 0)
    ', via net'
    """
    if step.transits is None or row >= len(step.transits):
        return ""
    words = str(step.transits.table[step.transits.number[row]])
    return f", {words}" if words else ""


def _checked_transits(transits: Any) -> Transits | None:
    """Transits as steps store them."""
    if type(transits) is not Transits:
        raise ConfigError(
            f"the transits of a Step are Transits, got {transits!r:.60}; transfers() takes via= "
            "and wire="
        )
    return None if transits.plain else transits


def _operation(number: int) -> str:
    """The name of an operation; its number if there is none."""
    return OP_NAMES[number] if 0 <= number < len(OP_NAMES) else f"operation {number}"


def _column(name: str, column: Any, dtype: np.dtype[Any]) -> Array:
    """A column as steps store it."""
    if not isinstance(column, np.ndarray):
        raise ConfigError(
            f"the columns of a Step are numpy arrays, got {column!r:.60}; transfers() makes a step "
            "of numbers and lists"
        )
    if column.ndim != 1:
        raise ConfigError(f"{name} of a Step must have one dimension, got shape {column.shape}")
    return np.frombuffer(whole_numbers(f"{name} of a Step", column, dtype=dtype).tobytes(), dtype)


def transfers(
    src_rank: ArrayLike,
    src_chunk: ArrayLike,
    dst_rank: ArrayLike,
    dst_chunk: ArrayLike,
    *,
    count: ArrayLike = 1,
    op: ArrayLike = COPY,
    channel: ArrayLike = 0,
    via: str | Sequence[str] = "",
    wire: str = "",
) -> Step:
    """A step from arrays of any shapes that broadcast together.

    On each rank, the steps of a channel run one after the other, also where they touch different
    chunks. Transfers that shall be under way at the same time belong to one step (``yield a, b``),
    or to different channels; :func:`simcoll.algorithms.pipelined` overlaps the pieces of any
    schedule.

    ``via`` chooses the path of the transfers: a vertex of the topology (``"box0.nic3"``) or a class
    of links (``"nvlink"``, ``"pcie"``, ``"net"``, ...), one for all or one each. Where the route of
    the topology passes it, that is the path; elsewhere the shortest path that does. ``wire`` is the
    format in which they carry their data, such as ``"bfloat16"`` or ``"int8/256"``
    (:mod:`simcoll.core.wire_format`). Neither changes what is proved: a proof holds up to the
    rounding of conversions.

    >>> ring = np.arange(4)
    >>> step = transfers(ring, ring, (ring + 1) % 4, ring)
    >>> len(step), step.dst_rank.tolist()
    (4, [1, 2, 3, 0])
    >>> transfers(0, 0, 1, 0, via="net", wire="bfloat16")
    <Step: 1 transfer: 0[0] copy 1[0], via net, as bfloat16>

    Raises
    ------
    ConfigError
        For columns that are not whole numbers or do not broadcast, and for unknown operations and
        wire formats.
    """
    names, via_number = _via_names(via)
    arguments: dict[str, Any] = {
        "via": via_number,
        "src_rank": src_rank,
        "src_chunk": src_chunk,
        "dst_rank": dst_rank,
        "dst_chunk": dst_chunk,
        "count": count,
        "channel": channel,
        "op": op,
    }
    if isinstance(op, str):
        if op.lower() not in OP_NAMES:
            raise ConfigError(f"unknown op {op!r}; {nearest(op.lower(), OP_NAMES)}")
        arguments["op"] = OP_NAMES.index(op.lower())
    columns: list[Any] = [  # whole numbers, or arrays of them
        values if _is_plain(name, values) else whole_numbers(name, values)
        for name, values in arguments.items()
    ]
    ops = columns[-1]
    # Negative ones are huge there.
    highest = ops if isinstance(ops, int) else int(ops.view(np.uint64).max(initial=0))
    if highest >= len(OP_NAMES):
        wrong = next(number for number in np.ravel(ops).tolist() if not 0 <= number < len(OP_NAMES))
        raise ConfigError(f"op {wrong} is unknown; use {', '.join(OP_NAMES).upper()}")
    try:
        shape = np.broadcast(*columns).shape
    except ValueError:
        shapes = [
            f"{name} {np.shape(column)}"
            for name, column in zip(arguments, columns, strict=True)
            if np.ndim(column)
        ]
        raise ConfigError(
            f"the columns of a step must broadcast together; got shapes {', '.join(shapes)}"
        ) from None
    transits = None
    if wire or names != [""]:
        transits = chosen_transits(_flat(columns[0], shape), names, wire)
    numbers = zip([*arguments][1:-1], columns[1:-1], strict=True)
    return Step(
        op=_flat(ops, shape, OPERATION),
        transits=transits,
        **{name: _flat(column, shape) for name, column in numbers},
    )


def _via_names(via: Any) -> tuple[list[str], Any]:
    """The distinct vertices or classes of links, and the number of each transfer's."""
    if isinstance(via, str):
        return [via], 0
    every = via.tolist() if isinstance(via, np.ndarray) else via
    if not isinstance(every, (list, tuple)) or not all(isinstance(name, str) for name in every):
        raise ConfigError(
            f"via={via!r:.60}: expected the name of a vertex or a class of links, or a list with "
            "one for each transfer"
        )
    names = list(dict.fromkeys(every))
    return names, np.array([names.index(name) for name in every], np.int64)


def _is_plain(name: str, values: Any) -> bool:
    """Whether values need no check: a usual number, or an array of the right type, which the step
    will copy.
    """
    if type(values) is int:
        return 0 <= values < LARGEST
    return type(values) is np.ndarray and values.dtype is NUMBER and name != "op"


def _flat(column: Array | int, shape: tuple[int, ...], dtype: np.dtype[Any] = NUMBER) -> Array:
    """A column flattened from its broadcast shape."""
    size = prod(shape)
    if isinstance(column, int):
        return _equal(column, size, dtype)
    if column.size == 1 < size:
        return _equal(column.item(), size, dtype)
    if column.size != size:
        column = np.frombuffer(np.broadcast_to(column, shape).tobytes(), NUMBER)
    return column.reshape(-1).astype(dtype, copy=False)


_equal = lru_cache(maxsize=32)(constant)
"""A column of one value, which many steps may share, since none can write to it."""


def joined(steps: Sequence[Step]) -> Step:
    """One step with the transfers of several.

    >>> joined([transfers(0, 0, 1, 0), transfers(2, 0, 3, 0)]).src_rank.tolist()
    [0, 2]
    """
    if len(steps) == 1:
        return steps[0]
    columns: list[Any] = [*map(_concatenate, zip(*(step.columns for step in steps), strict=True))]
    columns.append(transits_of([(len(step), step.transits) for step in steps]))
    return Step(*columns)


def _concatenate(parts: tuple[Array, ...]) -> Array:
    """Columns in a row, in immutable memory at once: concatenating them first would copy everything
    twice.
    """
    if all(part.flags.c_contiguous for part in parts):
        return np.frombuffer(b"".join([part.data for part in parts]), parts[0].dtype)
    return np.concatenate(parts)


def spread(count: Ints) -> tuple[Ints, Ints]:
    """Row and offset of each chunk, for transfers of ``count`` chunks each.

    >>> [column.tolist() for column in spread(np.array([2, 1]))]
    [[0, 0, 1], [0, 1, 0]]
    """
    row = np.repeat(np.arange(len(count)), count)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)


def distinct(*parts: Ints) -> Ints:
    """The distinct values of whole numbers, sorted; ``np.unique`` without counts loads ``numpy.ma``
    first.

    >>> distinct(np.array([3, 1]), np.array([1])).tolist()
    [1, 3]
    """
    values: Ints = np.concatenate(parts)
    values.sort(kind="stable")  # merges parts that are sorted
    new = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return values[new]


def first_alike(*columns: Array) -> Ints:
    """For each row, the first row that equals it in all columns of non-negative numbers.

    >>> first_alike(np.array([7, 5, 7]), np.array([1, 1, 1])).tolist()
    [0, 1, 0]
    """
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        highest = int(column.max(initial=0))
        if highest == 0:
            continue
        key = key * (highest + 1) + column
        if int(key.max(initial=0)) > SPARSE * len(key):
            key = np.unique(key, return_inverse=True)[1]
    first_row = np.zeros(int(key.max(initial=-1)) + 1, np.int64)
    first_row[key[::-1]] = np.arange(len(key))[::-1]  # of equal keys, the last one counts
    return first_row[key]


def by_chunk(step: Step) -> Step:
    """The step with one row per chunk."""
    if (step.count == 1).all():
        return step
    row, offset = spread(np.maximum(step.count, 1))
    src, dst = (chunk[row] + offset for _, chunk in step.ends)
    count = np.ones(len(row), np.int64)
    transits = None if step.transits is None else step.transits.rows(row)
    columns = step.op[row], step.channel[row], transits
    return Step(step.src_rank[row], src, step.dst_rank[row], dst, count, *columns)


@without_subclasses
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Repeat:
    """A block of steps done ``count`` times, with its chunks shifted by ``stride`` each time.

    The chunks lie in windows of ``modulus`` chunks that start at ``base``; a shift wraps around
    within its window. With ``order``, a list of distinct chunks, windows are runs of that list, and
    ``base`` is a place in it. A repeat means exactly its unrolled steps.

    >>> turns = Repeat((transfers(0, 1, 1, 1),), count=3, stride=1, base=1, modulus=4)
    >>> [step.src_chunk.tolist() for step in turns.unrolled()]
    [[1], [2], [3]]
    """

    steps: tuple[Step, ...]
    count: int
    stride: int
    base: int
    modulus: int
    order: Ints | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            steps: Sequence[Step],
            count: Whole,
            stride: Whole,
            base: Whole,
            modulus: Whole,
            order: ArrayLike | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        steps: Any = self.steps  # whatever was given
        inner = tuple(steps) if isinstance(steps, (tuple, list)) else (None,)
        if not all(type(step) is Step for step in inner):
            raise ConfigError(
                "the steps of a Repeat are a tuple of steps, made by transfers(); got "
                f"{steps!r:.60}"
            )
        object.__setattr__(self, "steps", inner)
        for name, minimum in (
            ("count", 0),
            ("stride", -LARGEST),
            ("base", -LARGEST),
            ("modulus", 1),
        ):
            number = whole_number(f"{name} of a Repeat", getattr(self, name), minimum)
            object.__setattr__(self, name, number)
        if self.order is not None:
            self._check_order(whole_numbers("order of a Repeat", self.order))

    def _check_order(self, order: Ints) -> None:
        """Check and convert the list of chunks."""
        if (
            order.ndim != 1
            or not len(order)
            or len(order) % self.modulus
            or self.base % self.modulus
        ):
            actual = f"got {len(np.ravel(order))} chunks and base {self.base}"
            raise ConfigError(
                f"order of a Repeat must list whole windows of {self.modulus} chunks, one of them "
                f"at base; {actual}"
            )
        if len(np.unique(order)) < len(order) or int(order.min(initial=0)) < 0:
            raise ConfigError("order of a Repeat must list distinct chunks from 0 on")
        object.__setattr__(self, "order", order)

    __reduce__ = by_constructor

    def __repr__(self) -> str:
        number = f"{len(self.steps)} step{'s' * (len(self.steps) != 1)}"
        transfers_inside = sum(map(len, self.steps))
        order = "" if self.order is None else f" of a list of {len(self.order)}"
        return (
            f"<Repeat: {self.count} times {number} of {transfers_inside} transfers, each time "
            f"{self.stride} chunks on in windows of {self.modulus}{order} from {self.base} on>"
        )

    def __copy__(self) -> Repeat:
        return self

    def __deepcopy__(self, memo: Any) -> Repeat:
        return self

    def unrolled(self) -> Iterator[Step]:
        """Yield the steps that the repeat stands for.

        >>> turns = Repeat((transfers(0, 1, 1, 1),), count=2, stride=1, base=0, modulus=4)
        >>> [len(step) for step in turns.unrolled()]
        [1, 1]
        """
        places = [
            [self.window(chunk) for chunk in (step.src_chunk, step.dst_chunk)]
            for step in self.steps
        ]
        for turn in range(self.count):
            shift = turn * self.stride % self.modulus
            for step, ends in zip(self.steps, places, strict=True):
                if not shift:
                    yield step
                    continue
                # Sums below twice the modulus need no division, which would take longer than all
                # the rest.
                src, dst = (
                    self.chunk_at(
                        start + place + shift - (place >= self.modulus - shift) * self.modulus
                    )
                    for start, place in ends
                )
                fixed = step.count, step.op, step.channel, step.transits
                yield Step(step.src_rank, src, step.dst_rank, dst, *fixed)

    def window(self, chunk: Ints) -> tuple[Ints, Ints]:
        """Start of each chunk's window, and the chunk's place in it.

        Raises
        ------
        ConfigError
            For a chunk that is not in ``order``.

        Examples
        --------
        >>> turns = Repeat((transfers(0, 6, 1, 1),), count=2, stride=1, base=0, modulus=4)
        >>> [column.tolist() for column in turns.window(np.array([6]))]
        [[4], [2]]
        """
        position = chunk.astype(np.int64)
        if self.order is not None:
            ascending = np.argsort(self.order)
            index = ascending[
                np.searchsorted(self.order, position, sorter=ascending) % len(ascending)
            ]
            if (self.order[index] != position).any():
                raise ConfigError(
                    f"chunk {position[self.order[index] != position][0]} of a Repeat is not in its "
                    "order"
                )
            position = index
        place = (position - self.base) % self.modulus
        return position - place, place

    def chunk_at(self, place: Ints) -> Ints:
        """Chunk at a place counted like the starts of windows.

        >>> turns = Repeat((transfers(0, 1, 1, 1),), count=2, stride=1, base=0, modulus=4)
        >>> turns.chunk_at(np.array([1, 3])).tolist()  # with ``order``, its entries 1 and 3
        [1, 3]
        """
        return place if self.order is None else self.order[place]


@without_subclasses
@dataclass(frozen=True, slots=True, eq=False)
class LongStep:
    """A step of very many transfers, which a source can also make a portion at a time.

    A pass that looks at each transfer by itself then needs the memory of a portion. Both ways must
    make the same transfers in the same order, which passes over a schedule compare.

    Attributes
    ----------
    joined
        Makes the step.
    portions
        Makes its transfers as steps that follow each other, together more than
        :data:`simcoll.core.digests.JOINED`.

    Examples
    --------
    >>> step = transfers([0, 1], 0, [1, 0], 0)
    >>> halves = LongStep(lambda: step, lambda: (step.rows(slice(r, r + 1)) for r in range(2)))
    >>> concurrent(halves) is step, [len(portion) for portion in halves.portions()]
    (True, [1, 1])
    """

    joined: Callable[[], Step]
    portions: Callable[[], Iterator[Step]]


def concurrent(block: Any) -> Any:
    """A block that a source yields: several steps, as a tuple or list, are one step with the
    transfers of all, and a long one is made.

    >>> pair = transfers(0, 0, 1, 0), transfers(2, 0, 3, 0)
    >>> len(concurrent(pair))
    2
    """
    if type(block) is LongStep:
        return block.joined()
    if type(block) in (tuple, list) and block and all(type(step) is Step for step in block):
        return joined(block)
    return block


def _moves(step: Step) -> bool:
    """Whether a step has transfers, or inconsistent columns, which a later check must see."""
    return any(column.size for column in step.columns)


def moving_part(block: Step | Repeat) -> Step | Repeat | None:
    """A step or repeat without empty steps; None if nothing is left."""
    if isinstance(block, Step):
        return block if _moves(block) else None
    steps = tuple(step for step in block.steps if _moves(step))
    if not steps or not block.count:
        return None
    return block if len(steps) == len(block.steps) else replace(block, steps=steps)


def private_copy(block: Step | Repeat) -> Step | Repeat:
    """The same block over arrays that nobody else holds: whoever holds an array can assign its
    shape, strides and type.
    """
    if isinstance(block, Step):
        return _private_step(block)
    order = None if block.order is None else block.order[:]
    return replace(block, steps=tuple(map(_private_step, block.steps)), order=order)


def _private_step(step: Step) -> Step:
    copy: Step = object.__new__(Step)  # without checks: these are the columns of a step
    for name, column in zip(COLUMNS, step.columns, strict=True):
        object.__setattr__(copy, name, column[:])
    object.__setattr__(copy, "transits", None if step.transits is None else step.transits.copy())
    return copy


def overlaps(start: Ints, end: Ints) -> bool:
    """Whether any two of the ranges share a chunk."""
    order = np.argsort(start)
    return bool((start[order][1:] < end[order][:-1]).any())
