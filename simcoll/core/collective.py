"""The definition of each collective, as data: the contributions that every output chunk must hold.

A rank's *input* and *output* buffers are sequences of *slots*; a slot holds one *block* of data
(the whole vector of an all_reduce, one rank's share of an all_gather, one (source, destination)
pair of an all_to_all), and a schedule cuts every block into the same number of chunks. Sizes are
absent here: they are fixed when a schedule is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simcoll.arrays import Ints, Whole
from simcoll.core.definition import Definition
from simcoll.core.immutable import without_subclasses
from simcoll.core.vocabulary import CollectiveKind, RankSet
from simcoll.errors import ConfigError, InternalError, nearest, shown
from simcoll.notebook_forms import facts_table

__all__ = ["ALL", "KINDS", "Collective", "Kind", "bus_factor", "collective_kind"]

MAX_RANKS = 2**20
ALL = -1
"""Source rank of an output that holds the reduction over all ranks."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table of collectives: its definition.

    Every function takes ``(rank, slot, nranks)`` arrays. ``source`` returns, for an output slot,
    the rank and the slot of the input that it must hold; rank ``ALL`` means the reduction over all
    ranks.
    """

    summary: str
    rooted: bool
    reduces: bool
    input_slots: Callable[[int], int]
    output_slots: Callable[[int], int]
    input_at: RankSet
    output_at: RankSet
    input_block: Callable[[Ints, Ints, int], Ints]
    output_block: Callable[[Ints, Ints, int], Ints]
    source: Callable[[Ints, Ints], tuple[Ints, Ints]]
    nblocks: Callable[[int], int]
    alias: Callable[[Ints, Ints], tuple[Ints, Ints]] | None


def _zero(rank: Ints, slot: Ints, nranks: int) -> Ints:
    return np.zeros(np.broadcast_shapes(np.shape(rank), np.shape(slot)), np.int64)


def _rank(rank: Ints, slot: Ints, nranks: int) -> Ints:
    return rank + 0 * slot


def _slot(rank: Ints, slot: Ints, nranks: int) -> Ints:
    return slot + 0 * rank


def _one(nranks: int) -> int:
    return 1


def _n(nranks: int) -> int:
    return nranks


def _all(rank: Ints, slot: Ints) -> Ints:
    return np.full(np.broadcast_shapes(np.shape(rank), np.shape(slot)), ALL, np.int64)


# alias(rank, slot): (input slot, output slot) of the memory that the two share when in place; slot
# runs over the smaller buffer. None: a slot's block changes, so an in-place run first sets the
# input aside.
KINDS: dict[CollectiveKind, Kind] = {
    "broadcast": Kind(
        "every rank gets the root's vector",
        True,
        False,
        _one,
        _one,
        "root",
        "all",
        _zero,
        _zero,
        lambda r, s: (0 * r + 0 * s, 0 * r + 0 * s),
        _one,
        lambda r, s: (s, s),
    ),
    "reduce": Kind(
        "the root gets the reduction of all vectors",
        True,
        True,
        _one,
        _one,
        "all",
        "root",
        _zero,
        _zero,
        lambda r, s: (_all(r, s), 0 * r + s),
        _one,
        lambda r, s: (s, s),
    ),
    "all_reduce": Kind(
        "every rank gets the reduction of all vectors",
        False,
        True,
        _one,
        _one,
        "all",
        "all",
        _zero,
        _zero,
        lambda r, s: (_all(r, s), 0 * r + s),
        _one,
        lambda r, s: (s, s),
    ),
    "all_gather": Kind(
        "every rank gets the blocks of all ranks",
        False,
        False,
        _one,
        _n,
        "all",
        "all",
        _rank,
        _slot,
        lambda r, s: (0 * r + s, 0 * r + 0 * s),
        _n,
        lambda r, s: (s, r + 0 * s),
    ),
    "reduce_scatter": Kind(
        "rank r gets block r of the reduction",
        False,
        True,
        _n,
        _one,
        "all",
        "all",
        _slot,
        _rank,
        lambda r, s: (_all(r, s), r + 0 * s),
        _n,
        lambda r, s: (r + 0 * s, s),
    ),
    "gather": Kind(
        "the root gets the blocks of all ranks",
        True,
        False,
        _one,
        _n,
        "all",
        "root",
        _rank,
        _slot,
        lambda r, s: (0 * r + s, 0 * r + 0 * s),
        _n,
        lambda r, s: (s, r + 0 * s),
    ),
    "scatter": Kind(
        "rank r gets block r of the root",
        True,
        False,
        _n,
        _one,
        "root",
        "all",
        _slot,
        _rank,
        lambda r, s: (0 * r + 0 * s, r + 0 * s),
        _n,
        lambda r, s: (r + 0 * s, s),
    ),
    "all_to_all": Kind(
        "rank r gets block r of every rank",
        False,
        False,
        _n,
        _n,
        "all",
        "all",
        lambda r, s, n: r * n + s,
        lambda r, s, n: s * n + r,
        lambda r, s: (0 * r + s, r + 0 * s),
        lambda n: n * n,
        None,
    ),
    "send_recv": Kind(
        "every destination of a pair gets its source's block",
        False,
        False,
        _one,
        _one,
        "sources",
        "destinations",
        _rank,
        _rank,
        lambda r, s: (r + 0 * s, 0 * r + 0 * s),
        _n,
        None,
    ),
    "barrier": Kind(
        "no rank leaves before every rank has entered",
        False,
        False,
        lambda n: 0,
        lambda n: 0,
        "all",
        "all",
        _zero,
        _zero,
        lambda r, s: (0 * r, 0 * r),
        lambda n: 0,
        None,
    ),
}


def _whole(value: object, expectation: str) -> int:
    """A whole number as a Python int, so that equal collectives also hash and print alike."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    raise ConfigError(f"{expectation}; got {value!r}")


def collective_kind(name: object) -> CollectiveKind:
    """The kind of a collective by its name, as callers and files give it.

    Raises
    ------
    ConfigError
        For an unknown name.

    Examples
    --------
    >>> collective_kind("all_reduce")
    'all_reduce'
    """
    # A member of an enumeration is its value.
    kind = str.__str__(name) if isinstance(name, str) else ""
    if kind not in KINDS:
        raise ConfigError(f"unknown collective {name!r}; {nearest(str(name), KINDS)}")
    return kind


def _custom_kind(definition: Definition) -> Kind:
    """The row of a collective of one's own, beside the table."""

    def no_source(rank: Ints, slot: Ints) -> tuple[Ints, Ints]:
        raise InternalError(f"{definition}: outputs of a custom collective have several sources")

    return Kind(
        definition.name,
        False,
        definition.reduces,
        lambda n: int(definition.input_numbers.shape[1]),
        lambda n: int(definition.sums.shape[1]),
        "all",
        "all",
        lambda rank, slot, n: definition.input_block(rank, slot),
        lambda rank, slot, n: definition.output_block(rank, slot),
        no_source,
        lambda n: definition.nclasses + definition.has_gaps,
        None,
    )


@without_subclasses
@dataclass(frozen=True, slots=True, repr=False)
class Collective:
    """A collective operation of ``nranks`` ranks.

    Parameters
    ----------
    kind
        ``broadcast``, ``reduce``, ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``gather``,
        ``scatter``, ``all_to_all``, ``send_recv`` or ``barrier``; ``custom`` with a definition
        (:meth:`custom` makes both).
    nranks
        World size, at least 1.
    root
        Root rank of broadcast, reduce, gather and scatter; default 0 there, ``None`` elsewhere.
    pairs
        ``(source, destination)`` pairs of a send_recv: each rank at most once as source and once as
        destination.
    in_place
        The output shares memory with the input, as in NCCL: an all_gather's input, for example, is
        its own slot of the output.
    definition
        The definition of a custom collective; ``None`` elsewhere.

    Raises
    ------
    ConfigError
        For an unknown kind, a world size below 1, a root or pair out of range, or a root for a
        collective without one.

    Examples
    --------
    >>> Collective("all_reduce", 4)
    Collective(kind='all_reduce', nranks=4, root=None, pairs=(), in_place=False)
    >>> Collective("broadcast", 4, root=2).root
    2
    """

    kind: CollectiveKind
    nranks: int
    root: int | None = None
    pairs: tuple[tuple[int, int], ...] = ()
    in_place: bool = False
    definition: Definition | None = None
    # The row of the definition, made once.
    own_row: Kind | None = field(default=None, init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            kind: str,
            nranks: Whole,
            root: Whole | None = None,
            pairs: Sequence[Sequence[Whole]] = (),
            in_place: bool | np.bool_ = False,
            definition: Definition | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        kind: Any = self.kind  # whatever was given
        custom = isinstance(kind, str) and str.__str__(kind) == "custom"
        object.__setattr__(self, "kind", "custom" if custom else collective_kind(self.kind))
        self._check_definition()
        in_place: Any = self.in_place
        if not isinstance(in_place, (bool, np.bool_)):
            raise ConfigError(f"in_place must be True or False; got {in_place!r}")
        object.__setattr__(self, "in_place", bool(in_place))
        object.__setattr__(
            self,
            "nranks",
            _whole(self.nranks, f"{self.kind} needs a whole number of ranks, at least 1"),
        )
        if self.root is not None:
            object.__setattr__(
                self, "root", _whole(self.root, f"the root of {self.kind} must be a whole number")
            )
        if self.nranks > MAX_RANKS:
            raise ConfigError(
                f"{self.kind} of {self.nranks} ranks: at most {MAX_RANKS} are supported"
            )
        if self.nranks < 1:
            raise ConfigError(
                f"{self.kind} needs a whole number of ranks, at least 1; got {self.nranks}"
            )
        if not self.spec.rooted:
            if self.root is not None:
                raise ConfigError(f"{self.kind} has no root, but root={self.root!r} was given")
        elif self.root is None:
            object.__setattr__(self, "root", 0)
        elif not 0 <= self.root < self.nranks:
            raise ConfigError(
                f"root {self.root} of {self.kind} is not a rank; expected 0..{self.nranks - 1}"
            )
        self._check_pairs()
        if self.pairs and self.kind != "send_recv":
            raise ConfigError(f"{self.kind} takes no pairs; only send_recv does")

    def _check_definition(self) -> None:
        definition: Any = self.definition  # whatever was given
        if self.kind != "custom":
            if definition is not None:
                raise ConfigError(
                    f"{self.kind} has a definition already; only custom takes one, got "
                    f"{shown(definition):.60}"
                )
            return
        if type(definition) is not Definition:
            raise ConfigError(
                "a custom collective needs its definition: Collective.custom(name, inputs, "
                "outputs) makes both, and commands take module:function of the number of ranks or "
                f"a schedule file; got {shown(definition):.60}"
            )
        if self.nranks != definition.nranks:
            raise ConfigError(
                f"{definition} is defined for {definition.nranks} ranks; got "
                f"nranks={shown(self.nranks)}"
            )
        if self.in_place:
            raise ConfigError(
                f"{definition}: a custom collective runs out of place; got in_place=True"
            )
        object.__setattr__(self, "own_row", _custom_kind(definition))

    def __reduce__(self) -> tuple[type[Collective], tuple[Any, ...]]:
        return Collective, (
            self.kind,
            self.nranks,
            self.root,
            self.pairs,
            self.in_place,
            self.definition,
        )

    @classmethod
    def custom(
        cls,
        name: str,
        inputs: Sequence[Sequence[Whole]],
        outputs: Sequence[Sequence[Whole | Sequence[Whole]]],
        sizes: Sequence[Whole] = (),
        order: str = "",
    ) -> Collective:
        """A collective of one's own; the arguments are those of
        :class:`~simcoll.core.definition.Definition`.

        >>> print(Collective.custom("swap", inputs=[[0], [1]], outputs=[[1], [0]]))
        swap n=2
        """
        definition = Definition(name, inputs, outputs, sizes, order)
        return cls("custom", definition.nranks, definition=definition)

    def _check_pairs(self) -> None:
        pairs: list[tuple[int, int]] = []
        raw_pairs: Any = self.pairs
        if not isinstance(raw_pairs, (tuple, list)):
            raise ConfigError(f"pairs={raw_pairs!r:.60}: expected a list of (source, destination)")
        for pair in self.pairs:
            ends: Any = pair  # whatever was given
            if not isinstance(ends, (tuple, list)) or len(ends) != 2:
                raise ConfigError(f"pair {pair!r}: expected (source, destination)")
            pairs.append(
                (
                    _whole(pair[0], "a source must be a rank"),
                    _whole(pair[1], "a destination must be a rank"),
                )
            )
        object.__setattr__(self, "pairs", tuple(pairs))
        for position, ends in enumerate(zip(*self.pairs, strict=True) if self.pairs else ()):
            role = ("source", "destination")[position]
            for rank in ends:
                if not 0 <= rank < self.nranks:
                    raise ConfigError(
                        f"pair {role} {rank} is not a rank; expected 0..{self.nranks - 1}"
                    )
            if len(set(ends)) != len(ends):
                twice = next(rank for rank in ends if ends.count(rank) > 1)
                raise ConfigError(
                    f"rank {twice} is the {role} of two pairs; each rank may be {role} once"
                )

    @property
    def spec(self) -> Kind:
        """The row in the table of collectives, or that of the definition.

        >>> Collective("broadcast", 4).spec.summary
        "every rank gets the root's vector"
        """
        return KINDS[self.kind] if self.own_row is None else self.own_row

    @property
    def name(self) -> str:
        """The kind, or the name of a custom collective.

        >>> Collective("all_gather", 4).name
        'all_gather'
        >>> Collective.custom("swap", inputs=[[0], [1]], outputs=[[1], [0]]).name
        'swap'
        """
        return self.kind if self.definition is None else self.definition.name

    @property
    def summands(self) -> int | None:
        """Number of contributions to every output of a reduction; None if outputs differ.

        >>> Collective("all_reduce", 4).summands
        4
        """
        return self.nranks if self.definition is None else self.definition.summand_count

    @property
    def input_slots(self) -> int:
        """Number of slots of every input buffer.

        >>> Collective("scatter", 4).input_slots, Collective("all_gather", 4).input_slots
        (4, 1)
        """
        return self.spec.input_slots(self.nranks)

    @property
    def output_slots(self) -> int:
        """Number of slots of every output buffer.

        >>> Collective("scatter", 4).output_slots, Collective("all_gather", 4).output_slots
        (1, 4)
        """
        return self.spec.output_slots(self.nranks)

    @property
    def nblocks(self) -> int:
        """Number of distinct blocks, the units whose sizes are given at bind.

        >>> [Collective(kind, 4).nblocks for kind in ("broadcast", "all_gather", "all_to_all")]
        [1, 4, 16]
        """
        return self.spec.nblocks(self.nranks)

    def _at(self, role: RankSet, rank: ArrayLike) -> NDArray[np.bool_]:
        ranks = np.asarray(rank, np.int64)
        if role == "all":
            return np.ones(ranks.shape, np.bool_)
        if role == "root":
            at_root: NDArray[np.bool_] = ranks == self.root
            return at_root
        members = [pair[0 if role == "sources" else 1] for pair in self.pairs]
        return np.isin(ranks, np.array(members, np.int64))

    def _with_slots(self, slots: Ints, rank: ArrayLike) -> NDArray[np.bool_]:
        """Whether each rank has some slot of a custom collective."""
        owners: NDArray[np.bool_] = np.any(slots >= 0, axis=1)
        return np.asarray(owners[np.asarray(rank, np.int64)])

    def has_input(self, rank: ArrayLike) -> NDArray[np.bool_]:
        """Whether each rank has an input buffer.

        >>> Collective("scatter", 3, root=1).has_input([0, 1, 2]).tolist()
        [False, True, False]
        """
        if self.definition is not None:
            return self._with_slots(self.definition.input_numbers, rank)
        return self._at(self.spec.input_at, rank)

    def has_output(self, rank: ArrayLike) -> NDArray[np.bool_]:
        """Whether each rank has an output buffer that the caller sees; elsewhere the buffer may
        serve as workspace.

        >>> Collective("gather", 3).has_output([0, 1, 2]).tolist()
        [True, False, False]
        """
        if self.definition is not None:
            return self._with_slots(self.definition.sums, rank)
        return self._at(self.spec.output_at, rank)

    def input_block(self, rank: Ints, slot: Ints) -> Ints:
        """Block that each input slot holds.

        >>> Collective("all_gather", 3).input_block(np.arange(3), np.zeros(3, np.int64)).tolist()
        [0, 1, 2]
        """
        return self.spec.input_block(rank, slot, self.nranks)

    def output_block(self, rank: Ints, slot: Ints) -> Ints:
        """Block that each output slot holds.

        >>> Collective("all_gather", 3).output_block(np.array([0]), np.arange(3)).tolist()
        [0, 1, 2]
        """
        if self.kind == "send_recv":
            return self.source(rank, slot)[0]
        return self.spec.output_block(rank, slot, self.nranks)

    def source(self, rank: Ints, slot: Ints) -> tuple[Ints, Ints]:
        """Rank (or ``ALL``) and input slot whose data each output slot must hold.

        >>> rank, slot = Collective("all_to_all", 3).source(np.array([1]), np.arange(3))
        >>> rank.tolist(), slot.tolist()
        ([0, 1, 2], [1, 1, 1])
        """
        source, source_slot = self.spec.source(rank, slot)
        if self.spec.rooted and not self.spec.reduces and self.kind != "gather":
            source = source + np.int64(self.root or 0)
        if self.kind == "send_recv":
            origin = np.arange(self.nranks, dtype=np.int64)
            for src, dst in self.pairs:
                origin[dst] = src
            source = origin[rank] + 0 * slot
        return source, source_slot

    def __repr__(self) -> str:
        # Content hashes of schedules begin with this text.
        text = "" if self.definition is None else f", definition=<{self.definition}>"
        return (
            f"Collective(kind={self.kind!r}, nranks={self.nranks!r}, root={self.root!r}, "
            f"pairs={self.pairs!r}, in_place={self.in_place!r}{text})"
        )

    def _repr_html_(self) -> str:
        facts = [("collective", self), ("meaning", self.spec.summary)]
        return facts_table(facts) if self.definition is None else self.definition._repr_html_()

    def __str__(self) -> str:
        parts = [self.name, f"n={self.nranks}"]
        if self.root is not None:
            parts.append(f"root={self.root}")
        if self.pairs:
            parts.append(f"{len(self.pairs)} pairs")
        if self.in_place:
            parts.append("in place")
        return " ".join(parts)


def bus_factor(kind: str, nranks: int) -> float:
    """Ratio of bus bandwidth to algorithm bandwidth, as nccl-tests defines it (its
    ``doc/PERFORMANCE.md``).

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if kind == "all_reduce":
        return 2 * (nranks - 1) / nranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (nranks - 1) / nranks
    return 1.0
