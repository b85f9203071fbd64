"""Operations of programs: computations, collectives and messages of many ranks, on streams, with
dependencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.numbers import whole_number, whole_numbers
from simcoll.core.plan import Plan
from simcoll.core.protocol import IDEAL, Protocol
from simcoll.core.protocol import protocol as find_protocol
from simcoll.errors import ConfigError, expect
from simcoll.units import MAX_TIME_FS

After = int | str | Sequence[int | str]

__all__ = ["Call", "Compute", "Operation", "Send", "copy_after", "rank_array", "times_of"]


def _read_only(subject: str, values: ArrayLike, dimensions: int) -> Ints:
    """Whole numbers as a read-only array; an array that is already read-only is not copied."""
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and not values.flags.writeable:
        array = values
    else:
        array = whole_numbers(subject, values, "iu").copy()
        array.setflags(write=False)
    if array.ndim != dimensions:
        shape = ("a number", "a list", "a matrix")[dimensions]
        raise ConfigError(f"{subject} must be {shape} of whole numbers, got {values!r:.60}")
    return array


def times_of(subject: str, values: int | ArrayLike, count: int) -> int | Ints:
    """One time in femtoseconds for all ranks, or one for each."""
    if isinstance(values, (int, np.integer)):
        return whole_number(subject, values, 0, MAX_TIME_FS)
    times = _read_only(subject, values, 1)
    if len(times) != count:
        raise ConfigError(
            f"{subject} must be one time, or one for each of {count} ranks; got {len(times)}"
        )
    if count and times.min() < 0:
        raise ConfigError(f"{subject} must be at least 0, got {times.min()}")
    return times


def _after(predecessors: After) -> tuple[int | str, ...]:
    if isinstance(predecessors, tuple) and set(map(type, predecessors)) <= {int}:
        return predecessors
    if isinstance(predecessors, (int, str, np.integer)):
        predecessors = (predecessors,)
    try:
        entries = tuple(entry if isinstance(entry, str) else int(entry) for entry in predecessors)
    except (TypeError, ValueError):
        entries = None
    if entries is None or any(isinstance(entry, (bool, float)) for entry in predecessors):
        raise ConfigError(
            f"after must be numbers or names of earlier operations, got {predecessors!r:.60}"
        )
    return entries


def _text(subject: str, text: object) -> None:
    if not isinstance(text, str):
        raise ConfigError(f"the {subject} of an operation must be text, got {text!r:.60}")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Compute:
    """Computation of some ranks, each independently.

    Parameters
    ----------
    ranks
        The computing ranks.
    duration_fs
        Duration in femtoseconds: one number for all, or one for each of ``ranks`` (for stragglers).
    stream
        Name of the operation's stream.
    after
        Operations that must finish before this one begins, on the ranks that both share: their
        numbers in the program, or their names.
    name
        Used in ``after``, messages and timelines.

    Raises
    ------
    ConfigError
        For ranks that are not a list of different whole numbers, and for durations that are
        negative or of the wrong number.

    Examples
    --------
    >>> Compute([0, 1], [10**12, 11 * 10**11], name="forward")
    <Compute 'forward' of 2 ranks on stream 'compute'>
    """

    ranks: Ints
    duration_fs: int | Ints
    stream: str = "compute"
    after: tuple[int | str, ...] = ()
    name: str = ""

    def __init__(
        self,
        ranks: ArrayLike,
        duration_fs: int | ArrayLike,
        stream: str = "compute",
        after: After = (),
        name: str = "",
    ) -> None:
        _set(self, stream, after, name)
        object.__setattr__(self, "ranks", _read_only("ranks of a Compute", ranks, 1))
        object.__setattr__(
            self, "duration_fs", times_of("duration_fs", duration_fs, len(self.ranks))
        )

    def __repr__(self) -> str:
        return _describe(self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call:
    """A collective, performed concurrently by several groups of ranks.

    Parameters
    ----------
    plan
        The collective of every group, made by :func:`simcoll.bind`; it includes its protocol. The
        plan's own placement is ignored.
    groups
        The ranks of every group: ``[groups, plan.nranks]``, without duplicates. Default: one group,
        the plan's own ``ranks``.
    stream, after, name
        As in :class:`Compute`.

    Raises
    ------
    ConfigError
        When the groups are not a matrix with a column for each rank of the plan.

    Examples
    --------
    >>> import simcoll
    >>> plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=2), count=1024)
    >>> Call(plan, [[0, 1], [2, 3]], stream="tp", after=0)
    <Call of all_reduce by 2 groups of 2 ranks on stream 'tp'>
    """

    plan: Plan
    groups: Ints
    stream: str = "comm"
    after: tuple[int | str, ...] = ()
    name: str = ""

    def __init__(
        self,
        plan: Plan,
        groups: ArrayLike | None = None,
        stream: str = "comm",
        after: After = (),
        name: str = "",
    ) -> None:
        expect(plan, Plan, "a Call takes a plan, made by bind(schedule, count)")
        _set(self, stream, after, name)
        matrix = _read_only("groups of a Call", plan.ranks[None] if groups is None else groups, 2)
        if matrix.shape[1] != plan.nranks or not matrix.size:
            raise ConfigError(
                f"groups of {plan.collective} are lists of {plan.nranks} ranks; got a matrix of "
                f"shape {matrix.shape}"
            )
        object.__setattr__(self, "plan", plan)
        object.__setattr__(self, "groups", matrix)

    @property
    def ranks(self) -> Ints:
        """All ranks, group after group."""
        return self.groups.reshape(-1)

    def __repr__(self) -> str:
        return _describe(self, self.plan.collective.kind)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Send:
    """Concurrent messages between pairs of ranks.

    Parameters
    ----------
    pairs
        ``[pairs, 2]``: source and destination. A rank may be the source of one pair and the
        destination of one.
    nbytes
        Size of every message.
    stream, after, name
        As in :class:`Compute`; source and destination are busy until the message is done.
    protocol
        Costs of a message, or the name of a protocol.

    Raises
    ------
    ConfigError
        For pairs that are not a matrix of two columns, a rank that is the source or destination of
        two pairs, and negative sizes.

    Examples
    --------
    >>> Send([(0, 2), (1, 3)], 1 << 20, name="activations")
    <Send 'activations' of 2 pairs on stream 'comm'>
    """

    pairs: Ints
    nbytes: int
    stream: str = "comm"
    after: tuple[int | str, ...] = ()
    protocol: Protocol = IDEAL
    name: str = ""
    call: Call = field(init=False)

    def __init__(
        self,
        pairs: ArrayLike,
        nbytes: int,
        stream: str = "comm",
        after: After = (),
        protocol: Protocol | str = IDEAL,
        name: str = "",
    ) -> None:
        _set(self, stream, after, name)
        matrix = _read_only("pairs of a Send", pairs, 2)
        if matrix.shape[1] != 2 or not matrix.size:
            raise ConfigError(
                f"pairs of a Send are (source, destination); got a matrix of shape {matrix.shape}"
            )
        chosen = find_protocol(protocol) if isinstance(protocol, str) else protocol
        if not isinstance(chosen, Protocol):
            raise ConfigError(f"protocol must be a name or a Protocol, got {protocol!r:.60}")
        object.__setattr__(self, "pairs", matrix)
        object.__setattr__(self, "nbytes", whole_number("nbytes of a Send", nbytes, 0, MAX_TIME_FS))
        object.__setattr__(self, "protocol", chosen)
        object.__setattr__(self, "call", self._call())

    def _call(self) -> Call:
        """The equivalent collective: send_recv of two ranks by every pair, or of all ranks if pairs
        share ranks.
        """
        ordered = np.sort(self.pairs, axis=None)
        if (ordered[1:] != ordered[:-1]).all():
            plan, groups = _send_recv(((0, 1),), self.nbytes, self.protocol), self.pairs
        else:
            self._check_pairs()
            ranks, place = np.unique(self.pairs, return_inverse=True)
            pairs = tuple(map(tuple, place.reshape(-1, 2).tolist()))
            plan, groups = _send_recv(pairs, self.nbytes, self.protocol), ranks[None]
        return Call(plan, groups, self.stream, self.after, self.name)

    def _check_pairs(self) -> None:
        """Refuse ranks that are source or destination twice, or send to themselves."""
        for end, ranks in zip(("source", "destination"), self.pairs.T, strict=True):
            different, times = np.unique(ranks, return_counts=True)
            if (times > 1).any():
                raise ConfigError(
                    f"rank {different[times > 1][0]} is the {end} of two pairs of a Send; expected "
                    "at most one"
                )
        loops = self.pairs[self.pairs[:, 0] == self.pairs[:, 1]]
        if len(loops):
            raise ConfigError(
                f"rank {loops[0, 0]} sends to itself; work inside a rank is a Compute"
            )

    @property
    def ranks(self) -> Ints:
        """All sources and destinations, without duplicates."""
        return self.call.ranks

    def __repr__(self) -> str:
        return _describe(self)


Operation = Compute | Call | Send


def rank_array(operation: Operation) -> Ints:
    """The array of an operation's ranks; the same object at every call."""
    if isinstance(operation, Compute):
        return operation.ranks
    return operation.groups if isinstance(operation, Call) else operation.call.groups


Repeatable = TypeVar("Repeatable", Compute, Call)


def copy_after(operation: Repeatable, predecessors: tuple[int, ...]) -> Repeatable:
    """The same operation after others: its values were checked when it was made, which takes six
    times as long.
    """
    copy: Repeatable = object.__new__(type(operation))
    for name in operation.__slots__:
        object.__setattr__(copy, name, getattr(operation, name))
    object.__setattr__(copy, "after", predecessors)
    return copy


@lru_cache(256)
def _send_recv(pairs: tuple[tuple[int, int], ...], nbytes: int, protocol: Protocol) -> Plan:
    return _bind(pairs, nbytes, protocol)


def _bind(pairs: tuple[tuple[int, int], ...], nbytes: int, protocol: Protocol) -> Plan:
    from simcoll.algorithms import schedule
    from simcoll.binding import bind

    collective = Collective("send_recv", 1 + max(chain.from_iterable(pairs)), pairs=pairs)
    return bind(schedule(collective, "direct"), nbytes, "uint8", protocol=protocol)


def _set(operation: Any, stream: str, predecessors: After, name: str) -> None:
    _text("stream", stream)
    _text("name", name)
    object.__setattr__(operation, "stream", stream)
    object.__setattr__(operation, "after", _after(predecessors))
    object.__setattr__(operation, "name", name)


def _describe(operation: Operation, kind: str = "") -> str:
    title = type(operation).__name__
    if operation.name:
        title = f"{title} {operation.name!r}"
    if isinstance(operation, Call):
        groups, size = operation.groups.shape
        ranks = f"{kind} by {groups} groups of {size} ranks"
    else:
        ranks = (
            f"{len(operation.pairs)} pairs"
            if isinstance(operation, Send)
            else f"{len(operation.ranks)} ranks"
        )
    return f"<{title} of {ranks} on stream {operation.stream!r}>"
