"""Chunk addresses: positions of input, output and scratch, and one canonical address for aliased
chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simcoll.arrays import Ints, Whole
from simcoll.core.collective import Collective
from simcoll.core.immutable import by_constructor, immutable, without_subclasses
from simcoll.core.numbers import whole_numbers
from simcoll.core.step import Step
from simcoll.errors import ConfigError
from simcoll.notebook_forms import facts_table
from simcoll.units import counted

__all__ = ["Layout"]

MAX_CHUNKS = 2**40
MAX_ADDRESSES = 2**60


def _outside(number: Any, limit: int) -> int | None:
    """A single number that is not in 0 .. limit - 1."""
    if isinstance(number, (int, np.integer)) and not 0 <= number < limit:
        return int(number)
    return None  # arrays may hold numbers that a mask leaves out; their step is checked


def _in_words(number: Any) -> str:
    """A slot or piece as it was written."""
    return str(number) if np.ndim(number) == 0 else "[...]"


@without_subclasses
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Layout:
    """The chunk addresses of a schedule.

    Parameters
    ----------
    collective
        The collective that the schedule implements.
    chunks
        Chunks per block. A block of s elements is cut at ``p * s // chunks``; empty chunks are
        legal.
    scratch
        The block whose size each scratch slot has: one entry per slot (the same on all ranks), or
        an array ``[nranks, slots]``.
    scratch_pieces
        For scratch slots that hold a single chunk instead of a whole block: the piece of the block;
        an array like ``scratch``.

    Attributes
    ----------
    scratch_slots, scratch_chunks
        Number of scratch slots on every rank, and of chunks in each.
    output_base, scratch_base, size
        First chunk of the output and of scratch (the input begins at 0), and the number of chunks
        of a rank.

    Raises
    ------
    ConfigError
        For numbers that are not whole, blocks or pieces that do not exist, and too many chunks.

    Examples
    --------
    >>> from simcoll.core.collective import Collective
    >>> layout = Layout(Collective("all_gather", 3), chunks=2)
    >>> layout.output_base, layout.scratch_base, layout.size
    (2, 8, 8)
    """

    collective: Collective
    chunks: int = 1
    scratch: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    scratch_pieces: Ints | None = None
    # Computed once, because every step needs them.
    scratch_slots: int = field(init=False, repr=False)
    scratch_chunks: int = field(init=False, repr=False)
    output_base: int = field(init=False, repr=False)
    scratch_base: int = field(init=False, repr=False)
    size: int = field(init=False, repr=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            collective: Collective,
            chunks: Whole = 1,
            scratch: ArrayLike = (),
            scratch_pieces: ArrayLike | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        whose: Any = self.collective  # whatever was given
        if type(whose) is not Collective:
            raise ConfigError(f"a layout needs a Collective, got {whose!r:.60}")
        raw_chunks: Any = self.chunks
        if isinstance(raw_chunks, bool) or not isinstance(raw_chunks, (int, np.integer)):
            raise ConfigError(
                f"a block must be cut into a whole number of chunks, got {self.chunks!r}"
            )
        object.__setattr__(self, "chunks", int(raw_chunks))
        if not 1 <= self.chunks <= MAX_CHUNKS:
            raise ConfigError(
                f"a block must be cut into at least 1 chunk, got {self.chunks} (at most "
                f"{MAX_CHUNKS} are numbered)"
            )
        self._check_slots("scratch", max(self.collective.nblocks, 1), "blocks of the collective")
        if self.scratch_pieces is not None:
            self._check_slots("scratch_pieces", self.chunks, "pieces of a block")
            if self.scratch_pieces.shape != self.scratch.shape:
                raise ConfigError(
                    f"scratch_pieces must have the shape of scratch, {self.scratch.shape}; got "
                    f"{self.scratch_pieces.shape}"
                )
        outputs = self.collective.input_slots * self.chunks
        numbers = {
            "scratch_slots": self.scratch.shape[-1],
            "scratch_chunks": self.chunks if self.scratch_pieces is None else 1,
        }
        numbers |= {
            "output_base": outputs,
            "scratch_base": outputs + self.collective.output_slots * self.chunks,
        }
        numbers["size"] = (
            numbers["scratch_base"] + numbers["scratch_slots"] * numbers["scratch_chunks"]
        )
        for name, number in numbers.items():
            object.__setattr__(self, name, int(number))
        if self.collective.nranks * self.size > MAX_ADDRESSES:
            raise ConfigError(
                f"{self.collective}: {self.size} chunks on each rank are too many to number"
            )

    def _check_slots(self, name: str, limit: int, domain: str) -> None:
        """Check and convert an array with an entry per scratch slot, or one such row per rank."""
        slots, n = getattr(self, name), self.collective.nranks
        if isinstance(slots, np.ndarray) and slots.ndim == 2 and slots.strides[1] == 0:
            column = whole_numbers(name, slots[:, :1], "iu")
            values: Ints = np.broadcast_to(immutable(column), slots.shape)
        else:
            values = whole_numbers(name, slots, "iu")
            # Equal columns take the memory of one.
            if values.ndim == 2 and values.shape[1] and (values == values[:, :1]).all():
                values = np.broadcast_to(immutable(values[:, :1].copy()), values.shape)
        object.__setattr__(self, name, values)
        if values.ndim != 1 and (values.ndim != 2 or len(values) != n):
            raise ConfigError(
                f"{name} must be a list with an entry for each slot, or one such list for each of "
                f"the {n} ranks; got shape {values.shape}"
            )
        if values.size and (values.min() < 0 or values.max() >= limit):
            wrong = values[(values < 0) | (values >= limit)][0]
            raise ConfigError(f"{name} must lie in 0..{limit - 1}, the {domain}; got {wrong}")

    __reduce__ = by_constructor

    def __repr__(self) -> str:
        return f"<Layout: {self}>"

    def _repr_html_(self) -> str:
        return facts_table(
            [
                ("layout", self.collective),
                ("input slots", self.collective.input_slots),
                ("output slots", self.collective.output_slots),
                ("scratch slots", self.scratch_slots),
                ("chunks a block", self.chunks),
            ]
        )

    def __str__(self) -> str:
        slots = (self.collective.input_slots, self.collective.output_slots, self.scratch_slots)
        text = ", ".join(
            f"{name} {count}"
            for name, count in zip(("input", "output", "scratch"), slots, strict=True)
        )
        return f"{self.collective}, slots: {text}; {counted(self.chunks, 'chunk')} a block"

    def input(self, slot: Any = 0, piece: Any = 0) -> Any:
        """Address of a piece of an input slot (scalars or arrays).

        >>> from simcoll.core.collective import Collective
        >>> layout = Layout(Collective("all_gather", 3), chunks=2)
        >>> layout.input(0, 1)
        1

        Raises
        ------
        ConfigError
            For a slot or piece that does not exist; in an array, the check of its step finds it.
        """
        self._check_address("input", slot, self.collective.input_slots, piece, self.chunks)
        return slot * self.chunks + piece

    def output(self, slot: Any = 0, piece: Any = 0) -> Any:
        """Address of a piece of an output slot.

        >>> from simcoll.core.collective import Collective
        >>> layout = Layout(Collective("all_gather", 3), chunks=2)
        >>> layout.output(2, np.arange(2)).tolist()
        [6, 7]
        >>> Layout(Collective("all_reduce", 3)).output(0, 1)
        Traceback (most recent call last):
        simcoll.errors.ConfigError: output(0, 1) of all_reduce n=3: there is no piece 1; a block ...
        """
        self._check_address("output", slot, self.collective.output_slots, piece, self.chunks)
        return self.output_base + slot * self.chunks + piece

    def scratch_at(self, slot: Any = 0, piece: Any = 0) -> Any:
        """Address of a piece of a scratch slot.

        >>> from simcoll.core.collective import Collective
        >>> layout = Layout(Collective("all_reduce", 3), scratch=[0, 0])
        >>> layout.scratch_at(1)
        3
        """
        self._check_address("scratch_at", slot, self.scratch_slots, piece, self.scratch_chunks)
        return self.scratch_base + slot * self.scratch_chunks + piece

    def _check_address(self, name: str, slot: Any, slots: int, piece: Any, pieces: int) -> None:
        """Refuse a slot or piece that does not exist, where it is written."""
        wrong_slot, wrong_piece = _outside(slot, slots), _outside(piece, pieces)
        if wrong_slot is None and wrong_piece is None:
            return
        place = f"{name}({_in_words(slot)}, {_in_words(piece)}) of {self.collective}"
        if wrong_slot is not None:
            has = f"slots are numbered 0 to {slots - 1}" if slots else "there are no slots"
            add = "; scratch= of the layout adds some" if name == "scratch_at" else ""
            raise ConfigError(f"{place}: there is no slot {wrong_slot}; {has}{add}")
        cut = f"a block is cut into {pieces} chunk{'s' * (pieces != 1)}, numbered from 0"
        raise ConfigError(
            f"{place}: there is no piece {wrong_piece}; {cut}; Layout(collective, chunks=...) cuts "
            "it into more"
        )

    def region(self, chunk: Ints) -> Ints:
        """0, 1 or 2 for input, output, scratch.

        >>> from simcoll.core.collective import Collective
        >>> layout = Layout(Collective("all_gather", 3), chunks=2)
        >>> layout.region(np.array([0, 2])).tolist()
        [0, 1]
        """
        return (chunk >= self.output_base).astype(np.int64) + (chunk >= self.scratch_base)

    def bases(self) -> Ints:
        """First chunk of input, output, scratch, and the end.

        >>> from simcoll.core.collective import Collective
        >>> layout = Layout(Collective("all_gather", 3), chunks=2)
        >>> layout.bases().tolist()
        [0, 2, 8, 8]
        """
        return np.array([0, self.output_base, self.scratch_base, self.size], np.int64)

    def block(self, rank: Ints, chunk: Ints) -> Ints:
        """Block whose piece each chunk holds.

        Chunks may only be exchanged for chunks of the same block and piece.

        >>> from simcoll.core.collective import Collective
        >>> layout = Layout(Collective("all_gather", 3), chunks=2)
        >>> layout.block(np.array([1, 1]), np.array([0, 2])).tolist()  # its own, and the first
        [1, 0]
        """
        if self.collective.nblocks <= 1:
            return np.zeros(chunk.shape, np.int64)
        return self._by_region(rank, chunk, self._block_in)

    def piece(self, rank: Ints, chunk: Ints) -> Ints:
        """Index within its block of the piece that each chunk holds.

        >>> from simcoll.core.collective import Collective
        >>> layout = Layout(Collective("all_gather", 3), chunks=2)
        >>> layout.piece(np.array([0, 0]), np.array([2, 3])).tolist()
        [0, 1]
        """
        if self.scratch_pieces is None:
            return chunk % self.chunks
        return self._by_region(rank, chunk, self._piece_in)

    def _by_region(
        self, rank: Ints, chunk: Ints, function: Callable[[int, Ints, Ints], Ints]
    ) -> Ints:
        """Evaluate a function of (region, rank, place in the region) for each chunk."""
        region, bases = self.region(chunk), self.bases()
        common_region = int(region[0]) if len(region) else 0
        if (region == common_region).all():  # the common case
            return function(common_region, rank, chunk - bases[common_region])
        result = np.zeros(chunk.shape, np.int64)
        for number in range(3):
            rows = np.flatnonzero(region == number)
            result[rows] = function(number, rank[rows], chunk[rows] - bases[number])
        return result

    def _block_in(self, region: int, rank: Ints, place: Ints) -> Ints:
        if region < 2:
            function = self.collective.output_block if region else self.collective.input_block
            return function(rank, place // self.chunks)
        return self._of_scratch(self.scratch, rank, place)

    def _piece_in(self, region: int, rank: Ints, place: Ints) -> Ints:
        if region < 2 or self.scratch_pieces is None:
            return place % self.chunks
        return self._of_scratch(self.scratch_pieces, rank, place)

    def _of_scratch(self, values: Ints, rank: Ints, place: Ints) -> Ints:
        slot = place // self.scratch_chunks
        return values[slot] if values.ndim == 1 else values[rank, slot]

    def same_size(self, step: Step) -> NDArray[np.bool_]:
        """Mask of the single-chunk transfers whose two chunks have the same size for every choice
        of block sizes.

        >>> from simcoll.core.collective import Collective
        >>> layout = Layout(Collective("all_gather", 3), chunks=2)
        >>> from simcoll.core.step import transfers
        >>> layout.same_size(transfers(0, 0, 1, [2, 3])).tolist()
        [True, False]
        """
        by_address = (
            self.collective.nblocks <= 1
            or int(step.src_chunk.min(initial=self.size)) >= self.scratch_base
        )
        if by_address and self.scratch.ndim == 1 and np.array_equal(step.src_chunk, step.dst_chunk):
            return np.ones(len(step), np.bool_)  # the same addresses on all ranks
        if self.scratch_pieces is None:
            equal: NDArray[np.bool_] = (step.src_chunk - step.dst_chunk) % self.chunks == 0
        else:
            equal = self.piece(*step.ends[0]) == self.piece(*step.ends[1])
        if self.collective.nblocks > 1:
            equal &= self.block(*step.ends[0]) == self.block(*step.ends[1])
        return equal

    def _has_alias(self, rank: Ints) -> NDArray[np.bool_]:
        return self.collective.has_input(rank) & self.collective.has_output(rank)

    def canonical(self, rank: Ints, chunk: Ints) -> Ints:
        """The canonical address of each chunk; of two in-place aliases, the one in the larger
        buffer.

        >>> from simcoll.core.collective import Collective
        >>> layout = Layout(Collective("all_gather", 3, in_place=True))
        >>> layout.canonical(np.array([2]), np.array([0])).tolist()  # its slot of the output
        [3]
        """
        alias = self.collective.spec.alias
        if not self.collective.in_place or alias is None:
            return chunk
        inputs, outputs = self.collective.input_slots, self.collective.output_slots
        inner = outputs < inputs  # the outputs lie inside the inputs, or the other way round
        in_inner = (
            (chunk >= self.output_base) & (chunk < self.scratch_base)
            if inner
            else chunk < self.output_base
        )
        if not in_inner.any():  # the common case
            return chunk
        slot, piece = chunk // self.chunks, chunk % self.chunks
        outer_slot = alias(rank, slot - inputs)[0] if inner else alias(rank, slot)[1] + inputs
        return np.where(in_inner & self._has_alias(rank), outer_slot * self.chunks + piece, chunk)

    def wanted(self, rank: Ints, chunk: Ints) -> tuple[Ints, Ints]:
        """Rank (or ``ALL``) and input chunk whose data each output chunk must hold.

        >>> from simcoll.core.collective import Collective
        >>> layout = Layout(Collective("all_gather", 3), chunks=2)
        >>> [column.tolist() for column in layout.wanted(np.array([0]), np.array([4]))]
        [[1], [0]]
        """
        place = chunk - self.output_base
        slot = place // self.chunks
        source, source_slot = self.collective.source(rank, slot)
        return source, self.input(source_slot, place - slot * self.chunks)

    @property
    def contributors(self) -> int:
        """Number of origins of contributions: the ranks, or the contributions of a definition.

        >>> from simcoll.core.collective import Collective
        >>> Layout(Collective("all_gather", 3), chunks=2).contributors
        3
        """
        definition = self.collective.definition
        return self.collective.nranks if definition is None else definition.contributions

    @property
    def leaves(self) -> int:
        """Number of chunks of every origin of contributions.

        >>> from simcoll.core.collective import Collective
        >>> Layout(Collective("all_gather", 3), chunks=2).leaves
        2
        """
        return self.output_base if self.collective.definition is None else self.chunks

    def contribution(self, rank: Ints, chunk: Ints) -> tuple[Ints, Ints]:
        """Origin and chunk of the contribution in each input chunk: the rank and the chunk itself,
        or a contribution of the definition (-1 for a slot that the rank does not have) and its
        piece.

        >>> from simcoll.core.collective import Collective
        >>> swap = Layout(Collective.custom("swap", inputs=[[1], [0]], outputs=[[0], [1]]), 2)
        >>> [column.tolist() for column in swap.contribution(np.array([0]), np.array([1]))]
        [[1], [1]]
        """
        definition = self.collective.definition
        if definition is None:
            return rank, chunk
        return definition.input_numbers[rank, chunk // self.chunks], chunk % self.chunks

    def has_slot(self, rank: Ints, chunk: Ints) -> NDArray[np.bool_]:
        """Whether each output chunk lies in a slot that its rank has.

        >>> from simcoll.core.collective import Collective
        >>> pair = Collective.custom("pair", inputs=[[0], [1]], outputs=[[0, 1], [0]])
        >>> Layout(pair).has_slot(np.array([0, 1]), np.array([2, 2])).tolist()
        [True, False]
        """
        definition = self.collective.definition
        if definition is None:
            return np.ones(rank.shape, np.bool_)
        present: NDArray[np.bool_] = (
            definition.sums[rank, (chunk - self.output_base) // self.chunks] >= 0
        )
        return present

    def writable(self, rank: Ints, chunk: Ints) -> NDArray[np.bool_]:
        """Whether a schedule may write to each (canonical) chunk: all chunks except inputs that are
        not also outputs.

        >>> from simcoll.core.collective import Collective
        >>> layout = Layout(Collective("all_gather", 3), chunks=2)
        >>> layout.writable(np.array([0, 0]), np.array([1, 2])).tolist()
        [False, True]
        """
        allowed: NDArray[np.bool_] = chunk >= self.output_base
        alias = self.collective.spec.alias
        if (
            self.collective.in_place
            and alias is not None
            and self.collective.output_slots < self.collective.input_slots
        ):
            is_output = chunk // self.chunks == alias(rank, np.zeros_like(chunk))[0]
            allowed |= is_output & self._has_alias(rank)
        return allowed

    def name(self, chunk: int) -> str:
        """A chunk in words.

        >>> from simcoll.core.collective import Collective
        >>> Layout(Collective("all_gather", 4), chunks=2).name(7)
        'output slot 2 chunk 1'
        """
        region = int(self.region(np.array(chunk)))
        slot_chunks = self.scratch_chunks if region == 2 else self.chunks
        slot, piece = divmod(chunk - int(self.bases()[region]), slot_chunks)
        slots = (self.collective.input_slots, self.collective.output_slots, self.scratch_slots)[
            region
        ]
        text = ("input", "output", "scratch")[region]
        if slots > 1:
            text += f" slot {slot}"
        return f"{text} chunk {piece}" if slot_chunks > 1 or slots == 1 else text

    def one_address(self, step: Step) -> Step:
        """A step with in-place aliases resolved to one address per chunk; transfers that become
        self-copies are dropped.

        >>> from simcoll.core.collective import Collective
        >>> from simcoll.core.step import transfers
        >>> layout = Layout(Collective("all_gather", 3, in_place=True))
        >>> own = transfers([0, 1], layout.input(), [0, 1], [layout.output(0), layout.output(1)])
        >>> len(own), len(layout.one_address(own))
        (2, 0)
        """
        if not self.collective.in_place:
            return step
        src, dst = (self.canonical(*end) for end in step.ends)
        keep = (step.src_rank != step.dst_rank) | (src != dst) | (step.op != 0)
        fixed = step.count, step.op, step.channel, step.transits
        resolved = Step(step.src_rank, src, step.dst_rank, dst, *fixed)
        return resolved if keep.all() else resolved.rows(keep)
