"""How a collective is done: steps of transfers between chunks, free of sizes.

Every rank addresses its memory by *chunk*: first the chunks of the input slots, then those of the output slots, then scratch. A
transfer names both of its ends, so that no send can lack its receive. Steps happen in order; inside a step all reads see the memory
before the step. What may overlap in time is derived from that, never written down.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.errors import ConfigError, ScheduleError
from simcoll.step import COPY, MULTICAST, OP_NAMES, REDUCE, SWITCH_REDUCE, SYNC, Repeat, Step, joined, transfers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from simcoll.collective import Collective
    from simcoll.plan import Plan
    from simcoll.reduction import Reduction
    from simcoll.verify import Proof

    Ints = NDArray[np.int64]

__all__ = [
    "COPY",
    "MULTICAST",
    "OP_NAMES",
    "REDUCE",
    "SWITCH_REDUCE",
    "SYNC",
    "Layout",
    "Repeat",
    "Schedule",
    "Step",
    "joined",
    "transfers",
]


MAX_CHUNKS = 2**40
MAX_ADDRESSES = 2**60


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The chunk addresses of a schedule.

    Parameters
    ----------
    collective
        What the schedule implements.
    chunks
        Chunks per block. A block of s elements is cut at ``p * s // chunks``; empty chunks are legal.
    scratch
        Block whose size each scratch slot has: one entry a slot (the same on all ranks), or an array ``[nranks, slots]``.
    """

    collective: Collective
    chunks: int = 1
    scratch: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        given: Any = self.chunks  # whatever was given
        if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
            raise ConfigError(f"a block must be cut into a whole number of chunks, got {self.chunks!r}")
        if not 1 <= self.chunks <= MAX_CHUNKS:
            raise ConfigError(
                f"a block must be cut into at least 1 chunk, got {self.chunks} (at most {MAX_CHUNKS} are numbered)"
            )
        object.__setattr__(self, "scratch", np.asarray(self.scratch, np.int64))
        if self.collective.nranks * self.size > MAX_ADDRESSES:
            raise ConfigError(f"{self.collective}: {self.size} chunks on each rank are too many to number")

    @property
    def scratch_slots(self) -> int:
        """Scratch slots of every rank."""
        return int(self.scratch.shape[-1])

    @property
    def output_base(self) -> int:
        """First chunk of the output."""
        return self.collective.input_slots * self.chunks

    @property
    def scratch_base(self) -> int:
        """First chunk of scratch."""
        return self.output_base + self.collective.output_slots * self.chunks

    @property
    def size(self) -> int:
        """Chunks of a rank in all."""
        return self.scratch_base + self.scratch_slots * self.chunks

    def input(self, slot: Any = 0, piece: Any = 0) -> Any:
        """Address of a piece of an input slot (scalars or arrays)."""
        return slot * self.chunks + piece

    def output(self, slot: Any = 0, piece: Any = 0) -> Any:
        """Address of a piece of an output slot."""
        return self.output_base + slot * self.chunks + piece

    def scratch_at(self, slot: Any = 0, piece: Any = 0) -> Any:
        """Address of a piece of a scratch slot."""
        return self.scratch_base + slot * self.chunks + piece

    def region(self, chunk: Ints) -> Ints:
        """0, 1 or 2 for input, output, scratch."""
        return (chunk >= self.output_base).astype(np.int64) + (chunk >= self.scratch_base)

    def bases(self) -> Ints:
        """First chunk of input, output, scratch, and the end."""
        return np.array([0, self.output_base, self.scratch_base, self.size], np.int64)

    def block(self, rank: Ints, chunk: Ints) -> Ints:
        """Block whose piece each chunk holds: chunks may only be exchanged for chunks of the same block and piece."""
        slot = chunk // self.chunks
        inputs, outputs = self.collective.input_slots, self.collective.output_slots
        result = np.zeros(np.broadcast_shapes(np.shape(rank), np.shape(chunk)), np.int64)
        if self.collective.nblocks <= 1:
            return result
        out_slot = np.clip(slot - inputs, 0, max(outputs - 1, 0))
        result = np.where(
            slot < inputs,
            self.collective.input_block(rank, np.minimum(slot, inputs - 1)),
            self.collective.output_block(rank, out_slot),
        )
        if self.scratch_slots:
            scratch_slot = np.clip(slot - inputs - outputs, 0, self.scratch_slots - 1)
            held = self.scratch[scratch_slot] if self.scratch.ndim == 1 else self.scratch[rank, scratch_slot]
            result = np.where(slot >= inputs + outputs, held, result)
        return result

    def _aliased(self, rank: Ints) -> NDArray[np.bool_]:
        return self.collective.has_input(rank) & self.collective.has_output(rank)

    def canonical(self, rank: Ints, chunk: Ints) -> Ints:
        """The one address of each chunk when the collective is in place: of two names of the same memory, that in the larger buffer."""
        alias = self.collective.spec.alias
        if not self.collective.in_place or alias is None:
            return chunk
        inputs, outputs = self.collective.input_slots, self.collective.output_slots
        slot, piece = chunk // self.chunks, chunk % self.chunks
        if outputs >= inputs:
            other = alias(rank, slot)[1] + inputs
            here = slot < inputs
        else:
            other = alias(rank, slot - inputs)[0]
            here = (slot >= inputs) & (slot < inputs + outputs)
        return np.where(here & self._aliased(rank), other * self.chunks + piece, chunk)

    def writable(self, rank: Ints, chunk: Ints) -> NDArray[np.bool_]:
        """Whether a schedule may write to each (canonical) chunk: everything but inputs that are not also outputs."""
        outside: NDArray[np.bool_] = chunk >= self.output_base
        alias = self.collective.spec.alias
        if (
            self.collective.in_place
            and alias is not None
            and self.collective.output_slots < self.collective.input_slots
        ):
            own = chunk // self.chunks == alias(rank, np.zeros_like(chunk))[0]
            outside |= own & self._aliased(rank)
        return outside

    def name(self, chunk: int) -> str:
        """A chunk in a person's words.

        >>> from simcoll.collective import Collective
        >>> Layout(Collective("all_gather", 4), chunks=2).name(7)
        'output slot 2 chunk 1'
        """
        region = int(self.region(np.array(chunk)))
        slot, piece = divmod(chunk - int(self.bases()[region]), self.chunks)
        slots = (self.collective.input_slots, self.collective.output_slots, self.scratch_slots)[region]
        where = ("input", "output", "scratch")[region]
        if slots > 1:
            where += f" slot {slot}"
        return f"{where} chunk {piece}" if self.chunks > 1 or slots == 1 else where


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """A collective algorithm for one number of ranks: a stream of steps over a layout.

    Attributes
    ----------
    name
        The algorithm, such as ``ring``.
    layout
        Chunk addresses, with the collective.
    source
        A function that yields the steps (and repeats) anew each time it is called; nothing is held in memory.
    nchannels
        Channels are ``0 .. nchannels - 1``.
    params
        The algorithm's parameters, for display.
    divisible
        All chunks have one size, so that a block's size must be a multiple of ``layout.chunks`` (imported formats).
    """

    name: str
    layout: Layout
    source: Callable[[], Iterable[Step | Repeat]]
    nchannels: int = 1
    params: tuple[tuple[str, Any], ...] = ()
    divisible: bool = False
    _known: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.source):
            raise ConfigError(f"{self.name}: source must be a function that yields the steps, got {self.source!r:.60}")

    @property
    def collective(self) -> Collective:
        """What it implements."""
        return self.layout.collective

    @property
    def nranks(self) -> int:
        """World size."""
        return self.collective.nranks

    @property
    def title(self) -> str:
        """Name and parameters, such as ``ring(channels=2)``."""
        shown = ", ".join(f"{key}={value}" for key, value in self.params if value is not None)
        return f"{self.name}({shown})" if shown else self.name

    def steps(self) -> Iterator[Step]:
        """Every step in order, repeats unrolled."""
        blocks = self.source()
        if not isinstance(blocks, Iterable):
            raise ConfigError(f"{self.title}: its source returns {blocks!r:.60}; expected steps, yielded one by one")
        for block in blocks:
            if isinstance(block, Repeat):
                yield from block.unrolled()
            elif isinstance(block, Step):
                yield block
            else:
                raise ConfigError(f"{self.title}: its source yields {block!r:.60}; expected steps, made by transfers()")

    def content_hash(self) -> str:
        """SHA-256 (hex) of meaning: collective, layout and unrolled transfers. Equal schedules have equal hashes everywhere.

        >>> import simcoll
        >>> a, b = (simcoll.schedule("all_reduce", "ring", nranks=3) for _ in range(2))
        >>> a.content_hash() == b.content_hash()
        True
        """
        if "hash" not in self._known:
            digest = hashlib.sha256(b"simcoll-schedule-1")
            head = [
                repr(self.collective),
                self.layout.chunks,
                self.layout.scratch.tolist(),
                self.nchannels,
                self.divisible,
            ]
            digest.update(json.dumps(head).encode())
            for step in self.steps():
                digest.update(len(step).to_bytes(8, "little"))
                for column in (
                    step.src_rank,
                    step.src_chunk,
                    step.dst_rank,
                    step.dst_chunk,
                    step.count,
                    step.op,
                    step.channel,
                ):
                    digest.update(column.astype("<i8").tobytes())
            self._known["hash"] = digest.hexdigest()
        return str(self._known["hash"])

    def proof(self) -> Proof:
        """The proof that it implements its collective; computed once.

        Raises
        ------
        ScheduleError
            With the counter-example, when it does not.
        """
        if "proof" not in self._known:
            from simcoll.verify import verify

            proved = verify(self)
            if proved.transfers and next((step for step in self.steps() if len(step)), None) is None:
                raise ScheduleError(
                    f"{self}: asked again, its source yields nothing; it must be a function that starts anew"
                )
            self._known["proof"] = proved
        proof: Proof = self._known["proof"]
        return proof

    def bind(
        self,
        count: int | Sequence[int] | Sequence[Sequence[int]],
        dtype: Any = "float32",
        op: str | Reduction = "sum",
        *,
        ranks: Sequence[int] | None = None,
        protocol: Any = "ideal",
        unproved: bool = False,
    ) -> Plan:
        """The plan for given sizes: see :func:`simcoll.plan.bind`."""
        from simcoll.plan import bind

        proof = None if unproved else self.proof()
        return bind(self, count, dtype, op, ranks=ranks, protocol=protocol, proof=proof)

    def check_step(self, number: int, step: Step) -> None:
        """Refuse ranks, chunks or channels that do not exist, and transfers that leave their buffer.

        Raises
        ------
        ScheduleError
            Naming the step, rank and channel.
        """
        layout, n = self.layout, self.nranks
        bases = layout.bases()
        unknown = (step.op < 0) | (step.op >= len(OP_NAMES))
        if unknown.any():
            row = int(np.flatnonzero(unknown)[0])
            self._refuse(number, step, row, f"operation {step.op[row]} is unknown; use {', '.join(OP_NAMES).upper()}")
        for rank, chunk, end in (
            (step.src_rank, step.src_chunk, "source"),
            (step.dst_rank, step.dst_chunk, "destination"),
        ):
            if len(step) and (rank.min() < 0 or rank.max() >= n):
                row = int(np.flatnonzero((rank < 0) | (rank >= n))[0])
                self._refuse(number, step, row, f"{end} rank {rank[row]} does not exist; ranks are 0..{n - 1}")
            data = step.op != SYNC
            # Compared so that no sum can overflow.
            bad = data & ((chunk < 0) | (chunk >= layout.size) | (step.count < 1) | (step.count > layout.size))
            if not bad.any():
                bad = data & (chunk + step.count > bases[layout.region(chunk) + 1])
            if bad.any():
                row = int(np.flatnonzero(bad)[0])
                wanted = f"chunks {chunk[row]}..{int(chunk[row]) + int(step.count[row]) - 1} on rank {rank[row]}"
                buffers = f"buffers start at {bases[:-1].tolist()}, end {layout.size}"
                self._refuse(number, step, row, f"{end} {wanted} do not lie in one buffer ({buffers})")
        wrong = (step.channel < 0) | (step.channel >= self.nchannels)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            self._refuse(
                number, step, row, f"channel {step.channel[row]} does not exist; channels are 0..{self.nchannels - 1}"
            )

    def _refuse(self, number: int, step: Step, row: int, reason: str) -> None:
        raise ScheduleError(
            f"{self.title}: step {number}, rank {step.src_rank[row]} -> {step.dst_rank[row]}, channel {step.channel[row]}: {reason}",
            step=number,
            rank=int(step.src_rank[row]),
            channel=int(step.channel[row]),
            chunk=int(step.src_chunk[row]),
        )

    def __str__(self) -> str:
        return f"{self.title} {self.collective}"
