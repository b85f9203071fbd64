"""Programs: ordered and checked operations of many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from simcoll.arrays import Ints
from simcoll.core.numbers import whole_number
from simcoll.core.plan import Plan
from simcoll.emulator.programs.operations import (
    Call,
    Compute,
    Operation,
    Send,
    rank_array,
    times_of,
)
from simcoll.errors import ConfigError, expect

__all__ = ["Program"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Program:
    """A program of operations of many ranks. Play it with :func:`simcoll.emulate`.

    A stream of a rank performs its operations in the order of the program. On a rank, an operation
    begins when the previous one on its stream has finished there, as well as all those in ``after``
    that the rank takes part in. Ranks interact only in collectives and messages.

    Parameters
    ----------
    nranks
        Number of ranks, which are ``0 .. nranks - 1``; a topology must have as many.
    operations
        The operations, in an order that each stream keeps.
    starts_fs
        Start times of the ranks, in femtoseconds: one number for all, or one for each.

    Attributes
    ----------
    before
        For every operation, the numbers of the operations that it follows.

    Raises
    ------
    ConfigError
        For ranks that do not exist or occur twice in one operation, and for operations that follow
        themselves, later ones (as in any cycle), or ones that do not exist.

    Examples
    --------
    Two ranks compute, exchange gradients while they continue, and wait for the exchange.

    >>> import simcoll
    >>> from simcoll.topology import crossbar
    >>> plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=2), count=1 << 20)
    >>> program = Program(2, [
    ...     Compute([0, 1], 50 * 10**9, name="backward 1"),
    ...     Call(plan, [[0, 1]], after="backward 1", name="gradients"),
    ...     Compute([0, 1], 50 * 10**9, name="backward 0"),
    ...     Compute([0, 1], [10**9, 2 * 10**9], after="gradients", name="optimizer"),
    ... ])
    >>> simcoll.emulate(program, crossbar(2, "50 GB/s", "1 us")).time_us
    137.88608
    """

    nranks: int
    operations: tuple[Operation, ...]
    starts_fs: int | Ints = 0
    before: tuple[tuple[int, ...], ...] = field(init=False)

    def __init__(
        self, nranks: int, operations: Sequence[Operation], starts_fs: int | ArrayLike = 0
    ) -> None:
        object.__setattr__(self, "nranks", whole_number("nranks of a Program", nranks, 1))
        try:
            listed = tuple(operations)
        except TypeError:
            raise ConfigError(
                f"operations of a Program must be a list, got {operations!r:.60}"
            ) from None
        object.__setattr__(self, "operations", listed)
        object.__setattr__(self, "starts_fs", times_of("starts_fs", starts_fs, self.nranks))
        self._check_ranks()
        object.__setattr__(self, "before", self._before())

    def _check_ranks(self) -> None:
        """Refuse ranks that do not exist or occur twice in an operation; arrays shared by
        operations are checked once.
        """
        checked: dict[int, Ints] = {}
        for number, operation in enumerate(self.operations):
            if not isinstance(operation, (Compute, Call, Send)):
                raise ConfigError(
                    f"operation {number} must be a Compute, Call or Send, got {operation!r:.60}"
                )
            array = rank_array(operation)
            if id(array) in checked:
                continue
            checked[id(array)] = array
            ranks = np.sort(array, axis=None)
            subject = self._title(number)
            if len(ranks) and (ranks[0] < 0 or ranks[-1] >= self.nranks):
                bad = ranks[0] if ranks[0] < 0 else ranks[-1]
                raise ConfigError(
                    f"{subject} has rank {bad}; the program has ranks 0 to {self.nranks - 1}"
                )
            twice = ranks[1:][ranks[1:] == ranks[:-1]]
            if len(twice):
                raise ConfigError(
                    f"{subject} has rank {twice[0]} twice; a rank takes part in an operation once"
                )

    def _before(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the operations that each operation follows."""
        by_name: dict[str, list[int]] = {}
        for number, operation in enumerate(self.operations):
            if operation.name:
                by_name.setdefault(operation.name, []).append(number)
        return tuple(
            operation.after
            if _are_earlier(operation.after, number)
            else tuple(self._number(number, entry, by_name) for entry in operation.after)
            for number, operation in enumerate(self.operations)
        )

    def _number(self, number: int, entry: int | str, by_name: dict[str, list[int]]) -> int:
        """The number of an operation that operation ``number`` follows."""
        target = entry
        if isinstance(target, str):
            numbers = by_name.get(target, [])
            if len(numbers) != 1:
                raise ConfigError(
                    f"{self._title(number)} comes after {target!r}, a name that {len(numbers)} "
                    "operations have; expected 1"
                )
            target = numbers[0]
        if not 0 <= target < number:
            raise ConfigError(
                f"{self._title(number)} comes after operation {target}; "
                + (
                    f"expected an earlier one, 0 to {number - 1}"
                    if number
                    else "the first operation comes after none"
                )
            )
        return target

    def _title(self, number: int) -> str:
        return f"operation {number} {self.operations[number]!r}"

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> Program:
        """A program of concurrent plans, each with its own placement and stream.

        >>> import simcoll
        >>> ring = simcoll.schedule("all_gather", "ring", nranks=2)
        >>> plans = [simcoll.bind(ring, 8, ranks=ranks) for ranks in ([0, 1], [2, 3])]
        >>> [operation.stream for operation in Program.of(plans).operations]
        ['plan 0', 'plan 1']
        """
        for plan in plans:
            expect(plan, Plan, "emulate takes a plan, a list of plans, or a program")
        calls = [
            Call(plan, stream=f"plan {number}", name=f"plan {number}")
            for number, plan in enumerate(plans)
        ]
        return cls(1 + max((int(plan.ranks.max()) for plan in plans), default=0), calls)

    def __repr__(self) -> str:
        return f"<Program: {len(self.operations)} operations of {self.nranks} ranks>"


def _are_earlier(entries: tuple[int | str, ...], number: int) -> TypeGuard[tuple[int, ...]]:
    """Whether all entries are numbers of operations before one."""
    return all(type(entry) is int and 0 <= entry < number for entry in entries)
