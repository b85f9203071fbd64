"""The definition of a collective of one's own, as data: the contribution in every input slot, and
the contributions that every output slot must hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from simcoll.arrays import Ints, Whole
from simcoll.core.immutable import by_constructor, immutable, without_subclasses
from simcoll.core.vocabulary import CollectiveKind
from simcoll.errors import ConfigError, nearest, shown
from simcoll.notebook_forms import rows_table

__all__ = ["ORDERS", "Definition", "RequiredOrder"]

RequiredOrder: TypeAlias = Literal[
    "", "rank-consistent", "run-consistent", "position-independent", "listed"
]
"""The order of reductions that a definition asks for; empty: any."""

ORDERS: tuple[RequiredOrder, ...] = (
    "",
    "rank-consistent",
    "run-consistent",
    "position-independent",
    "listed",
)
SHOWN_RANKS, SHOWN_SLOTS = 16, 8
MOST_CONTRIBUTIONS = 2**20
MOST_SUMMANDS = 2**24
"""Most contributions of all outputs together: a file of them has some 100 MB."""


@without_subclasses
@dataclass(frozen=True, slots=True, repr=False)
class Definition:
    """What a collective of one's own means.

    Contributions have numbers from 0 on, in any order; each is a block of data. Ranks may have
    different numbers of slots, and one contribution may lie in several input slots, which then hold
    equal data.

    Parameters
    ----------
    name
        The collective's name, for display: up to 60 printable characters, and none of the ten.
    inputs
        For every rank, the contribution that each of its input slots holds.
    outputs
        For every rank and each of its output slots, the contributions that the slot must hold: a
        single one, or several that are reduced. One that is listed twice counts twice. A number
        stands for a list of one.
    sizes
        The size class of every contribution. Blocks of one class have one size, which is given
        when a schedule is bound, so only blocks of one class can be reduced. Default: all
        contributions have class 0.
    order
        The order of reductions that is required: a level that the proof must reach
        (``rank-consistent``, ``run-consistent``, ``position-independent``), or ``listed``: the
        contributions of every output are added in the order in which they are listed,
        ``((a + b) + c) + d``, up to the two operands of each addition. Default: any.

    Attributes
    ----------
    input_numbers
        Contribution in each input slot, ``[nranks, input slots]``; -1 for a slot that a rank does
        not have.
    summands, starts
        The contributions of all outputs in a row, and where those of output slot s of rank r begin:
        ``starts[r * output slots + s]``; the next entry is their end.
    sums
        Number of the multiset that each output slot must hold, ``[nranks, output slots]``: equal
        multisets have equal numbers; -1 for a slot that a rank does not have.
    classes
        Size class of every contribution.

    Raises
    ------
    ConfigError
        For contributions that no input holds, sums of blocks of different classes, and anything
        that is not a whole number from 0.

    Examples
    --------
    >>> scan = Definition("scan", inputs=[[0], [1], [2]], outputs=[[0], [[0, 1]], [[0, 1, 2]]])
    >>> scan.nranks, scan.contributions, scan.reduces
    (3, 3, True)
    """

    name: str
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[tuple[int, ...], ...], ...]
    sizes: tuple[int, ...] = ()
    order: RequiredOrder = ""
    input_numbers: Ints = field(init=False, repr=False, compare=False)
    summands: Ints = field(init=False, repr=False, compare=False)
    starts: Ints = field(init=False, repr=False, compare=False)
    sums: Ints = field(init=False, repr=False, compare=False)
    classes: Ints = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str,
            inputs: Sequence[Sequence[Whole]],
            outputs: Sequence[Sequence[Whole | Sequence[Whole]]],
            sizes: Sequence[Whole] = (),
            order: str = "",
        ) -> None: ...

    def __post_init__(self) -> None:
        name: Any = self.name  # whatever was given
        if not isinstance(name, str) or not 1 <= len(name) <= 60 or not name.isprintable():
            raise ConfigError(
                f"a collective's name has 1 to 60 printable characters; got {shown(name):.80}"
            )
        if name in get_args(CollectiveKind):
            raise ConfigError(
                f"a collective of one's own cannot be called {name!r}, which has a meaning already"
            )
        if self.order not in ORDERS:
            raise ConfigError(
                f"{name}: unknown order {shown(self.order):.60}; "
                f"{nearest(str(self.order), [order for order in ORDERS if order])}"
            )
        inputs = tuple(
            _numbers(slots, f"{name}: inputs[{rank}]")
            for rank, slots in enumerate(_listing(self.inputs, f"{name}: inputs"))
        )
        outputs = tuple(
            _sums(slots, f"{name}: outputs[{rank}]")
            for rank, slots in enumerate(_listing(self.outputs, f"{name}: outputs"))
        )
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "outputs", outputs)
        object.__setattr__(self, "sizes", _numbers(self.sizes, f"{name}: sizes"))
        self._check_ranks()
        self._check_contributions()
        self._store_arrays()
        self._check_classes()

    def _check_ranks(self) -> None:
        if len(self.inputs) != len(self.outputs):
            raise ConfigError(
                f"{self.name}: inputs of {len(self.inputs)} ranks and outputs of "
                f"{len(self.outputs)}; expected a list for every rank in both"
            )
        if not self.inputs:
            raise ConfigError(f"{self.name}: expected the inputs of at least 1 rank; got none")
        for side, slots in (("input", self.inputs), ("output", self.outputs)):
            if not any(slots):
                raise ConfigError(f"{self.name}: expected an {side} slot on some rank; got none")
        total = sum(len(sum_) for slots in self.outputs for sum_ in slots)
        if total > MOST_SUMMANDS:
            raise ConfigError(
                f"{self.name}: its outputs list {total:,} contributions; at most "
                f"{MOST_SUMMANDS:,} are supported"
            )

    def _check_contributions(self) -> None:
        numbers = {number for slots in self.inputs for number in slots}
        count = len(numbers)
        largest = max(numbers, default=-1)
        if largest >= MOST_CONTRIBUTIONS:
            raise ConfigError(
                f"{self.name}: contribution {largest} is too large; at most "
                f"{MOST_CONTRIBUTIONS:,} are supported"
            )
        if largest >= count:
            gap = next(number for number in range(largest) if number not in numbers)
            raise ConfigError(
                f"{self.name}: no input slot holds contribution {gap}; contributions are numbered "
                f"without gaps, from 0 to {largest}"
            )
        for rank, slots in enumerate(self.outputs):
            for slot, listed in enumerate(slots):
                wrong = next((number for number in listed if number >= count), None)
                if wrong is not None:
                    raise ConfigError(
                        f"{self.name}: outputs[{rank}][{slot}] lists contribution {wrong}, which "
                        f"no input slot holds; expected numbers from 0 to {count - 1}"
                    )
        if self.sizes and len(self.sizes) != count:
            raise ConfigError(
                f"{self.name}: sizes of {len(self.sizes)} contributions; expected the class of "
                f"each of the {count}"
            )

    def _store_arrays(self) -> None:
        n = self.nranks
        input_numbers = np.full((n, max(map(len, self.inputs))), -1, np.int64)
        for rank, contributions in enumerate(self.inputs):
            input_numbers[rank, : len(contributions)] = contributions
        width = max(map(len, self.outputs))
        numbers: dict[tuple[int, ...], int] = {}
        sums = np.full((n, width), -1, np.int64)
        lengths = np.zeros(n * width, np.int64)
        summands: list[int] = []
        for rank, slots in enumerate(self.outputs):
            for slot, listed in enumerate(slots):
                multiset = tuple(sorted(listed))
                sums[rank, slot] = numbers.setdefault(multiset, len(numbers))
                lengths[rank * width + slot] = len(listed)
                summands.extend(listed)
        arrays = {
            "input_numbers": input_numbers,
            "summands": np.array(summands, np.int64),
            "starts": np.concatenate([[0], np.cumsum(lengths)]),
            "sums": sums,
            "classes": np.array(
                self.sizes or [0] * (int(input_numbers.max(initial=-1)) + 1), np.int64
            ),
        }
        for name, values in arrays.items():
            object.__setattr__(self, name, immutable(values))

    def _check_classes(self) -> None:
        used = sorted(set(self.classes.tolist()))
        if used != list(range(len(used))):
            gap = next(number for number, size_class in enumerate(used) if number != size_class)
            raise ConfigError(
                f"{self.name}: sizes must be classes from 0 on without gaps; no contribution has "
                f"class {gap}"
            )
        for rank, slots in enumerate(self.outputs):
            for slot, numbers in enumerate(slots):
                classes = {int(self.classes[number]) for number in numbers}
                if len(classes) > 1:
                    raise ConfigError(
                        f"{self.name}: outputs[{rank}][{slot}] reduces blocks of the size classes "
                        f"{', '.join(map(str, sorted(classes)))}; expected blocks of one class"
                    )

    __reduce__ = by_constructor

    @property
    def nranks(self) -> int:
        """World size."""
        return len(self.inputs)

    @property
    def contributions(self) -> int:
        """Number of contributions, which are ``0 .. contributions - 1``."""
        return len(self.classes)

    @property
    def reduces(self) -> bool:
        """Whether some output is a sum of several contributions."""
        return len(self.summands) > int((self.sums >= 0).sum())

    @property
    def most_summands(self) -> int:
        """Largest number of contributions of an output."""
        return int(np.diff(self.starts).max(initial=1))

    @property
    def summand_count(self) -> int | None:
        """Number of contributions of every output, if all have the same."""
        lengths = {len(listed) for slots in self.outputs for listed in slots}
        return lengths.pop() if len(lengths) == 1 else None

    @property
    def repetitions(self) -> int:
        """How often an output counts one contribution at most."""
        times = 1
        for slots in self.outputs:
            for listed in slots:
                if len(set(listed)) < len(listed):
                    times = max(times, *(listed.count(number) for number in set(listed)))
        return times

    @property
    def nclasses(self) -> int:
        """Number of size classes of blocks that hold something."""
        return int(self.classes.max(initial=-1)) + 1

    @property
    def has_gaps(self) -> bool:
        """Whether some rank has fewer slots than another; the slots that it lacks have a size
        class of their own, whose size is 0.
        """
        return bool((self.input_numbers < 0).any() or (self.sums < 0).any())

    def input_block(self, rank: Ints, slot: Ints) -> Ints:
        """Size class of each input slot.

        >>> halves = Definition("halves", inputs=[[0], [1]], outputs=[[1], [0]], sizes=[0, 1])
        >>> halves.input_block(np.array([0, 1]), np.array([0, 0])).tolist()
        [0, 1]
        """
        number = self.input_numbers[rank, slot]
        return np.where(number < 0, self.nclasses, self.classes[number])

    def output_block(self, rank: Ints, slot: Ints) -> Ints:
        """Size class of each output slot.

        >>> halves = Definition("halves", inputs=[[0], [1]], outputs=[[1], [0]], sizes=[0, 1])
        >>> halves.output_block(np.array([0, 1]), np.array([0, 0])).tolist()
        [1, 0]
        """
        begin = self.starts[:-1].reshape(self.sums.shape)[rank, slot]
        number = self.summands[np.minimum(begin, len(self.summands) - 1)]
        return np.where(self.sums[rank, slot] < 0, self.nclasses, self.classes[number])

    def requirement(self, rank: int, slot: int) -> tuple[int, ...]:
        """The contributions that an output slot must hold, as listed; empty for a slot that the
        rank does not have.

        >>> scan = Definition("scan", inputs=[[0], [1]], outputs=[[0], [[0, 1]]])
        >>> scan.requirement(1, 0)
        (0, 1)
        """
        slots = self.outputs[rank]
        return slots[slot] if slot < len(slots) else ()

    def holders(self, contribution: int) -> list[tuple[int, int]]:
        """The input slots ``(rank, slot)`` that hold a contribution, in ascending order.

        >>> copies = Definition("copies", inputs=[[0], [0, 1]], outputs=[[1], [0]])
        >>> copies.holders(0)
        [(0, 0), (1, 0)]
        """
        return [
            (int(rank), int(slot)) for rank, slot in np.argwhere(self.input_numbers == contribution)
        ]

    def record(self) -> dict[str, Any]:
        """The definition as lists, as files hold it.

        >>> swap = Definition("swap", inputs=[[0], [1]], outputs=[[1], [0]])
        >>> swap.record()
        {'name': 'swap', 'inputs': [[0], [1]], 'outputs': [[[1]], [[0]]]}
        """
        record: dict[str, Any] = {
            "name": self.name,
            "inputs": [list(slots) for slots in self.inputs],
            "outputs": [[list(listed) for listed in slots] for slots in self.outputs],
        }
        if self.sizes:
            record["sizes"] = list(self.sizes)
        if self.order:
            record["order"] = self.order
        return record

    def __repr__(self) -> str:
        slots = sum(map(len, self.outputs))
        return (
            f"<Definition: {self.name}, {self.nranks} ranks, {self.contributions} contributions to "
            f"{slots} output slots>"
        )

    def __str__(self) -> str:
        return self.name

    def _repr_html_(self) -> str:
        """A row for each rank, up to ``SHOWN_RANKS``: the contributions of its slots."""
        rows: list[tuple[object, str, str]] = [
            (
                rank,
                _slots_in_words([(number,) for number in contributions]),
                _slots_in_words(sums),
            )
            for rank, (contributions, sums) in enumerate(
                zip(self.inputs[:SHOWN_RANKS], self.outputs[:SHOWN_RANKS], strict=True)
            )
        ]
        if self.nranks > SHOWN_RANKS:
            rows.append(("...", f"of {self.nranks} ranks", ""))
        return rows_table([self.name, "input slots hold", "output slots must hold"], rows)


def _slots_in_words(slots: Sequence[Sequence[int]]) -> str:
    """The contributions of slots, as sums."""
    texts = [" + ".join(map(str, numbers)) for numbers in slots[:SHOWN_SLOTS]]
    ending = f" and {len(slots) - SHOWN_SLOTS} more" if len(slots) > SHOWN_SLOTS else ""
    return ", ".join(texts) + ending or "none"


def _listing(values: Any, name: str) -> Sequence[Any]:
    """A list or tuple, as given."""
    if isinstance(values, np.ndarray) and values.ndim:
        values = values.tolist()
    if not isinstance(values, (list, tuple)):
        raise ConfigError(f"{name}: expected a list; got {shown(values):.60}")
    return values


def _numbers(values: Any, name: str) -> tuple[int, ...]:
    """Whole numbers from 0, as Python's."""
    numbers = _listing(values, name)
    for place, number in enumerate(numbers):
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 0:
            raise ConfigError(
                f"{name}[{place}]: expected a whole number from 0; got {shown(number):.60}"
            )
    return tuple(int(number) for number in numbers)


def _sums(slots: Any, name: str) -> tuple[tuple[int, ...], ...]:
    """The contributions of every output slot of a rank."""
    sums = []
    for slot, listed in enumerate(_listing(slots, name)):
        single = isinstance(listed, (int, np.integer)) and not isinstance(listed, bool)
        numbers = _numbers([listed] if single else listed, f"{name}[{slot}]")
        if not numbers:
            raise ConfigError(
                f"{name}[{slot}]: expected at least one contribution; got an empty list (leave the "
                "slot out if nobody reads it: scratch serves as workspace)"
            )
        sums.append(numbers)
    return tuple(sums)
