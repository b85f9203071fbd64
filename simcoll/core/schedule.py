"""Schedules: a collective as steps of transfers between chunks, independent of sizes.

Every rank addresses its memory by *chunk*: first the chunks of the input slots, then those of the
output slots, then scratch. A transfer names both of its ends, so no send can lack its receive.
Steps happen in order; inside a step all reads see the memory before the step. Overlap in time is
derived from that, never written down.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.arrays import Array, Ints, Whole
from simcoll.core.collective import Collective
from simcoll.core.digests import LongDigest, digest
from simcoll.core.folds import in_fold_order
from simcoll.core.immutable import by_constructor, without_subclasses
from simcoll.core.known import Known
from simcoll.core.layout import Layout
from simcoll.core.numbers import whole_number
from simcoll.core.portable import portable_source
from simcoll.core.step import (
    COLUMNS,
    COPY,
    MULTICAST,
    OP_NAMES,
    REDUCE,
    SWITCH_REDUCE,
    SYNC,
    LongStep,
    Repeat,
    Step,
    concurrent,
    joined,
    moving_part,
    private_copy,
    transfers,
    transit_words,
)
from simcoll.core.transit import PLAIN, Transit, Transits
from simcoll.errors import ConfigError, ScheduleError, shown
from simcoll.notebook_forms import data_frame, facts_table
from simcoll.terminal import printable
from simcoll.units import counted

if TYPE_CHECKING:
    from simcoll.core.proof import Proof

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
    "fault",
    "joined",
    "lowered",
    "transfer_text",
    "transfers",
]


KEPT = 1 << 12
"""Up to this number of transfers, a pass over the steps is kept: a small run would spend most of
its time regenerating them.
"""
MOST_ROWS = 10_000_000
HELD = 1 << 19
"""The same for a pass that another will follow at once, at some 60 bytes a transfer."""


@without_subclasses
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True, repr=False)
class Schedule:
    """A collective algorithm for one number of ranks: a stream of steps over a layout.

    A copy of a schedule, also a pickled one, has no proof: :func:`simcoll.verify` makes it anew. A
    schedule of a named algorithm is pickled as name and parameters, any other with its source; if
    the source cannot be pickled (a lambda, a function inside another), with its steps.

    Attributes
    ----------
    name
        The algorithm, such as ``ring``.
    layout
        Chunk addresses, including the collective.
    source
        A function that yields the steps (and repeats) afresh at each call; only short passes of
        named algorithms are held in memory. Every pass must yield the same ones, also split into
        the same steps and repeats. ``yield a, b`` is one step with the transfers of both. On one
        channel a rank starts a step when its part of the step before is done, whatever chunks the
        two touch: pieces that are to overlap share steps (:func:`simcoll.algorithms.pipelined`
        makes such steps of any schedule), or have channels of their own.
    nchannels
        Channels are ``0 .. nchannels - 1``.
    params
        Parameters of the algorithm, for display.
    divisible
        All chunks have the same size, so a block's size must be a multiple of ``layout.chunks``
        (imported formats).

    Examples
    --------
    >>> import simcoll
    >>> from simcoll.core.step import transfers
    >>> layout = Layout(simcoll.Collective("broadcast", 3))
    >>> def steps():
    ...     yield transfers(0, layout.input(), [0, 1, 2], layout.output())
    ...
    >>> star = Schedule("star", layout, steps)
    >>> star.nranks, star.nchannels, star.title
    (3, 1, 'star')
    >>> print(simcoll.verify(star))
    proved (full, exact): 3 transfers in 1 step
    """

    name: str
    layout: Layout
    source: Callable[[], Iterable[Step | LongStep | Repeat | Sequence[Step]]]
    nchannels: int = 1
    params: tuple[tuple[str, Any], ...] = ()
    divisible: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str,
            layout: Layout,
            source: Callable[[], Iterable[Step | LongStep | Repeat | Sequence[Step]]],
            nchannels: Whole = 1,
            params: tuple[tuple[str, Any], ...] = (),
            divisible: bool | np.bool_ = False,
        ) -> None: ...

    # Not copied by dataclasses.replace: derived facts do not hold for a changed schedule.
    known: Known = field(default_factory=Known, repr=False, init=False)

    def __post_init__(self) -> None:
        layout: Any = self.layout  # whatever was given
        if type(layout) is not Layout:
            raise ConfigError(f"{self.name}: expected a Layout, got {shown(layout):.60}")
        object.__setattr__(self, "divisible", bool(self.divisible))
        object.__setattr__(
            self, "nchannels", whole_number(f"{self.name}: nchannels", self.nchannels, 1)
        )
        if not callable(self.source):
            raise ConfigError(
                f"{self.name}: source must be a function that yields the steps, got "
                f"{shown(self.source):.60}"
            )

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        if self.known.again is not None:
            return self.known.again
        source = portable_source(str(self), self.source, self.blocks())
        return by_constructor(self if source is self.source else replace(self, source=source))

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "simcoll.Schedule", self.name, self.params, self.content_hash()

    def __copy__(self) -> Schedule:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Schedule:
        return replace(self, source=deepcopy(self.source, memo))

    @property
    def collective(self) -> Collective:
        """The collective that the schedule implements.

        >>> import simcoll
        >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
        >>> ring.collective.kind
        'all_gather'
        """
        return self.layout.collective

    @property
    def nranks(self) -> int:
        """World size.

        >>> import simcoll
        >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
        >>> ring.nranks
        3
        """
        return self.collective.nranks

    @property
    def title(self) -> str:
        """Name and parameters, such as ``ring(channels=2)``.

        >>> import simcoll
        >>> simcoll.schedule("all_gather", "ring", nranks=3, channels=2).title
        'ring(channels=2, pieces=1)'
        """
        arguments = ", ".join(f"{key}={value}" for key, value in self.params if value is not None)
        return f"{self.name}({arguments})" if arguments else self.name

    def blocks(self) -> Iterator[Step | Repeat]:
        """Steps and repeats as the source yields them, without empty steps.

        Step numbers, step counts and the content hash therefore refer to steps that move something.

        Raises
        ------
        ConfigError
            When the source yields anything else.
        ScheduleError
            When it yields different steps than the first time: the schedule that runs would not be
            the proved one.

        Examples
        --------
        >>> import simcoll
        >>> ring = simcoll.schedule("all_gather", "ring", nranks=4)
        >>> [type(block).__name__ for block in ring.blocks()]
        ['Step', 'Repeat']
        """
        for _, block in self.portions(whole_steps=True):
            yield block
            del block  # before the source makes the next one

    def portions(self, *, whole_steps: bool = False) -> Iterator[tuple[int, Step | Repeat]]:
        """The same blocks with their numbers, but a :class:`~simcoll.core.step.LongStep` as several
        steps of one number, unless ``whole_steps``, so that no pass needs the memory of the whole.

        That its portions are those of the step is certain when they have all been taken.

        >>> import simcoll
        >>> ring = simcoll.schedule("all_gather", "ring", nranks=4)
        >>> [number for number, _ in ring.portions()]
        [0, 1]
        """
        facts, number, moving_blocks = self.known, 0, 0
        stored = facts.kept  # read once: another thread may release it
        if stored is not None:
            yield from enumerate(stored)
            return
        blocks = self.source()
        if not isinstance(blocks, Iterable):
            raise ConfigError(
                f"{self.title}: its source returns {shown(blocks):.60}; expected steps, yielded "
                "one by one"
            )
        collected: list[Step | Repeat] = []
        room = (HELD if facts.held else KEPT) if facts.keeps else -1
        for number, entry in enumerate(blocks, 1):
            if type(entry) is LongStep and not whole_steps:
                room, empty = -1, True
                collected.clear()
                for portion in self._portions(number, entry):
                    empty = False
                    yield moving_blocks, portion
                    del portion
                moving_blocks += not empty
                continue
            block = concurrent(entry)
            if type(block) is not Step and type(block) is not Repeat:
                raise ConfigError(
                    f"{self.title}: its source yields {shown(block):.60}; expected steps, made by "
                    "transfers(), or several as a tuple, which are one step"
                )
            private = private_copy(block)
            if not facts.agrees(number, digest(private)):
                raise self._change_error(number - 1)
            _note_transits(facts, private)
            moving = moving_part(private)
            del entry, block, private  # a step is freed before the source makes the next one
            if moving is not None:
                room -= _transfers(moving)
                if room >= 0:
                    collected.append(moving)
                else:
                    collected.clear()
                yield moving_blocks, moving
                moving_blocks += 1
            del moving
        if not facts.ends(number):
            raise self._change_error(number)
        facts.kept = tuple(collected) if room >= 0 else None

    def _portions(self, number: int, step: LongStep) -> Iterator[Step]:
        """The portions of a long step that move something, which are checked against earlier passes
        at their end.
        """
        sums = LongDigest()
        for portion in step.portions():
            if type(portion) is not Step:
                raise ConfigError(
                    f"{self.title}: its source yields {shown(portion):.60}; expected steps, made "
                    "by transfers()"
                )
            private = portion.rows(slice(None))  # columns that nobody else holds
            del portion
            if (private.op > SYNC).any():
                raise ConfigError(
                    f"{self.title}: its source yields a long step with operations of switches, "
                    "which join transfers; expected a step made by transfers()"
                )
            sums.add(private)
            _note_transits(self.known, private)
            if moving_part(private) is not None:
                yield private
            del private
        if not self.known.agrees(number, sums.value()):
            raise self._change_error(number - 1)

    @property
    def transits(self) -> tuple[Transit, ...]:
        """The paths and wire formats that some transfers have; empty for most schedules.

        >>> import simcoll
        >>> simcoll.schedule("all_gather", "ring", nranks=4).transits
        ()
        """
        if not self.known.complete:
            for _ in self.blocks():
                pass
        return tuple(sorted(self.known.transits))

    @property
    def wire_formats(self) -> tuple[str, ...]:
        """The wire formats to which some transfers convert.

        >>> import simcoll
        >>> simcoll.schedule("all_gather", "ring", nranks=4).wire_formats
        ()
        """
        return tuple(sorted({transit.wire for transit in self.transits} - {""}))

    def hold(self) -> None:
        """Keep the next pass until :meth:`release`, unless it is very long.

        >>> import simcoll
        >>> ring = simcoll.schedule("all_gather", "ring", nranks=4)
        >>> ring.hold()
        >>> len(list(ring.steps()))
        4
        >>> ring.release()
        """
        self.known.held = True

    def release(self) -> None:
        """Forget a pass that was held, unless it is short.

        >>> import simcoll
        >>> ring = simcoll.schedule("all_gather", "ring", nranks=4)
        >>> ring.hold()
        >>> ring.release()
        """
        facts = self.known
        facts.held, blocks = False, facts.kept
        if blocks is not None and sum(map(_transfers, blocks)) > KEPT:
            facts.kept = facts.lowered = None

    def keep_passes(self, again: Callable[..., object] | None = None, *arguments: object) -> None:
        """Keep short passes, since the source is one of the registered algorithms; ``again``, with
        its arguments, makes it elsewhere.

        >>> import simcoll
        >>> layout = Layout(simcoll.Collective("barrier", 2))
        >>> nothing = Schedule("nothing", layout, lambda: iter(()))
        >>> nothing.keep_passes()
        """
        self.known.keeps = True
        self.known.again = None if again is None else (again, arguments)

    def keep_proof(self, proof: Proof) -> Proof:
        """Keep the proof of this schedule, and return it as such.

        >>> import simcoll
        >>> ring = simcoll.schedule("all_gather", "ring", nranks=4)
        >>> proof = simcoll.verify(ring)
        >>> ring.keep_proof(proof) == proof
        True
        """
        self.known.proof = replace(proof, of=self.known)
        return self.known.proof

    def skip_checks(self) -> None:
        """Take steps as they are, because they have been checked, or are part of steps that have
        been.

        >>> import simcoll
        >>> ring = simcoll.schedule("all_gather", "ring", nranks=4)
        >>> ring.skip_checks()
        >>> ring.check()
        """
        self.known.checked = True

    def _change_error(self, block: int) -> ScheduleError:
        return ScheduleError(
            f"{self}: when called again, its source yields other steps, from step or repeat number "
            f"{block} on; "
            "it must be a function that yields the same steps at every call"
        )

    def steps(self) -> Iterator[Step]:
        """Every step in order, with repeats unrolled.

        >>> import simcoll
        >>> ring = simcoll.schedule("all_gather", "ring", nranks=4)
        >>> [len(step) for step in ring.steps()]
        [4, 4, 4, 4]
        """
        for block in self.blocks():
            if isinstance(block, Repeat):
                yield from block.unrolled()
            else:
                yield block

    def content_hash(self) -> str:
        """SHA-256 (hex) of collective, layout and unrolled transfers. Equal schedules have equal
        hashes everywhere.

        >>> import simcoll
        >>> a, b = (simcoll.schedule("all_reduce", "ring", nranks=3) for _ in range(2))
        >>> a.content_hash() == b.content_hash()
        True
        """
        if not self.known.content_hash:
            import json

            digest = hashlib.sha256(b"simcoll-schedule-1")
            head = [
                repr(self.collective),
                self.layout.chunks,
                self.layout.scratch.tolist(),
                self.nchannels,
                self.divisible,
            ]
            if self.layout.scratch_pieces is not None:
                head.append(self.layout.scratch_pieces.tolist())
            if self.collective.definition is not None:
                head.append(self.collective.definition.record())
            digest.update(json.dumps(head).encode())
            for step in self.steps():
                digest.update(len(step).to_bytes(8, "little"))
                for column in step.columns:
                    digest.update(column.astype("<i8").tobytes())
                if step.transits is not None:  # schedules without any keep their hash
                    digest.update(b"transits" + step.transits.key)
            self.known.content_hash = digest.hexdigest()
        return self.known.content_hash

    def check(self) -> None:
        """Refuse steps that cannot be addressed; each schedule is checked only once.

        Raises
        ------
        ScheduleError
            As :meth:`check_step`.

        Examples
        --------
        >>> import simcoll
        >>> from simcoll.core.step import transfers
        >>> layout = Layout(simcoll.Collective("all_gather", 2))
        >>> far = Schedule("far", layout, lambda: iter([transfers(0, 0, 7, 0)]))
        >>> far.check()
        Traceback (most recent call last):
        simcoll.errors.ScheduleError: far: step 0, rank 0 -> 7, channel 0: destination rank 7 ...
        """
        if self.known.checked:
            return
        number = transfers_in_memory = 0
        for block in self.blocks():
            self.check_block(number, block)
            number += block.count * len(block.steps) if isinstance(block, Repeat) else 1
            transfers_in_memory += _transfers(block)
        self.known.checked, self.known.transfers = True, transfers_in_memory

    def check_block(self, number: int, block: Step | Repeat) -> None:
        """Check the steps of a block, the first of which has this number.

        One iteration of a repeat stands for all if these stay inside their buffers.

        >>> import simcoll
        >>> ring = simcoll.schedule("all_gather", "ring", nranks=4)
        >>> ring.check_block(0, next(ring.blocks()))
        """
        steps = block.steps if isinstance(block, Repeat) else (block,)
        for place, step in enumerate(steps):
            self.check_step(number + place, step)
        if isinstance(block, Repeat) and not self._stays_inside(block):
            for place, step in enumerate(block.unrolled()):
                self.check_step(number + place, step)

    def _stays_inside(self, block: Repeat) -> bool:
        """Whether every iteration of a repeat stays inside its buffers: single chunks, in windows
        that all ranks have.
        """
        room = self.layout.size
        if block.order is not None:
            if int(block.order.max(initial=-1)) >= room:
                return False
            room = len(block.order)
        for step in block.steps:
            for chunk in (step.src_chunk, step.dst_chunk):
                start = block.window(chunk)[0]
                escapes = (start < 0) | (start + block.modulus > room) | (step.count != 1)
                if (escapes & (step.op != SYNC)).any():
                    return False
        return True

    def check_step(self, number: int, step: Step) -> None:
        """Refuse ranks, chunks or channels that do not exist, transfers that leave their buffer,
        and data in a barrier.

        A step is checked before in-place aliases are resolved: afterwards, a range that left its
        buffer could lie in the larger one.

        Raises
        ------
        ScheduleError
            Names the step, rank and channel.

        Examples
        --------
        >>> import simcoll
        >>> from simcoll.core.step import transfers
        >>> ring = simcoll.schedule("all_gather", "ring", nranks=4)
        >>> ring.check_step(0, transfers(0, 99, 1, 0))
        Traceback (most recent call last):
        simcoll.errors.ScheduleError: ring(channels=1, pieces=1): step 0, rank 0 -> 1, ...
        """
        if any(
            column.shape != (len(step),) or column.dtype.kind not in "iu" for column in step.columns
        ):
            shapes = ", ".join(f"{column.dtype}{list(column.shape)}" for column in step.columns)
            raise ScheduleError(
                f"{self.title}: step {number}: the columns of a step are whole numbers, one for "
                f"each transfer; got {shapes}",
                step=number,
            )
        n, names = self.nranks, ", ".join(OP_NAMES).upper()
        for column, limit, wrong in (
            (step.op, len(OP_NAMES), f"operation {{}} is unknown; use {names}"),
            (step.src_rank, n, f"source rank {{}} does not exist; ranks are 0..{n - 1}"),
            (step.dst_rank, n, f"destination rank {{}} does not exist; ranks are 0..{n - 1}"),
            (
                step.channel,
                self.nchannels,
                f"channel {{}} does not exist; channels are 0..{self.nchannels - 1}",
            ),
        ):
            if len(column) and _largest(column) >= limit:
                row = int(np.flatnonzero((column < 0) | (column >= limit))[0])
                self._refuse(number, step, row, wrong.format(column[row]))
        if self.collective.kind == "barrier" and (step.op != SYNC).any():
            row = int(np.flatnonzero(step.op != SYNC)[0])
            self._refuse(
                number, step, row, "a barrier has no data; its transfers are sync (op=SYNC)"
            )
        self._check_chunks(number, step, step.src_rank, step.src_chunk, "source")
        self._check_chunks(number, step, step.dst_rank, step.dst_chunk, "destination")
        if step.transits is not None:
            self._check_transits(number, step, step.transits)

    def _check_transits(self, number: int, step: Step, transits: Transits) -> None:
        """Refuse paths and wire formats of transfers that cannot have them."""
        if len(transits) != len(step):
            raise ScheduleError(
                f"{self.title}: step {number}: {len(step)} transfers with {len(transits)} transits",
                step=number,
            )
        via, wire = (
            np.array([bool(text) for text in texts])[transits.number]
            for texts in zip(*((entry.via, entry.wire) for entry in transits.table), strict=True)
        )
        stays = step.src_rank == step.dst_rank
        ends = (self.layout.canonical(rank, chunk) for rank, chunk in step.ends)
        onto_itself = stays & np.equal(*ends)
        for wrong, reason in (
            ((via | wire) & (step.op > SYNC), "a switch operation has neither a path nor a format"),
            (via & stays, "a transfer that stays on its rank has no path"),
            (wire & (step.op == SYNC), "a message without data has no wire format"),
            (wire & onto_itself, "a chunk is converted onto itself; convert it into another"),
        ):
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                self._refuse(number, step, row, f"{reason} ({transits.texts()[row]})")

    def _check_chunks(self, number: int, step: Step, rank: Ints, chunk: Ints, end: str) -> None:
        size = self.layout.size
        if (step.count == 1).all() and _largest(chunk) < size:  # the common case
            return
        data = step.op != SYNC
        if not data.any():
            return
        bases = self.layout.bases()
        if (data & (step.count < 1)).any():
            row = int(np.flatnonzero(data & (step.count < 1))[0])
            self._refuse(number, step, row, f"count must be at least 1, got {step.count[row]}")
        # Arranged so that no sum can overflow.
        bad = data & ((chunk < 0) | (chunk >= size) | (step.count > size))
        if not bad.any():
            bad = data & (chunk + step.count > bases[self.layout.region(chunk) + 1])
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            chunks = (
                f"chunks {chunk[row]}..{int(chunk[row]) + int(step.count[row]) - 1} on rank "
                f"{rank[row]}"
            )
            buffers = f"buffers start at {bases[:-1].tolist()}, end {size}"
            self._refuse(number, step, row, f"{end} {chunks} do not lie in one buffer ({buffers})")

    def _refuse(self, number: int, step: Step, row: int, reason: str) -> None:
        location = (
            f"step {number}, rank {step.src_rank[row]} -> {step.dst_rank[row]}, channel "
            f"{step.channel[row]}"
        )
        raise fault(number, step, row, f"{self.title}: {location}: {reason}")

    def __str__(self) -> str:
        return f"{self.title} {self.collective}"

    def __repr__(self) -> str:
        chunks = counted(self.layout.chunks, "chunk")
        channels = counted(self.nchannels, "channel")
        return printable(f"<Schedule: {self}, {chunks} a block, {channels}>")

    def _repr_html_(self) -> str:
        """A picture; a table for more than ``picture.MOST_RANKS`` ranks."""
        from simcoll.core.picture import MOST_RANKS, schedule_svg

        if self.nranks <= MOST_RANKS:
            return schedule_svg(self)
        facts = [
            ("schedule", self),
            ("layout", self.layout),
            ("channels", self.nchannels),
            ("picture", f"drawn up to {MOST_RANKS} ranks"),
        ]
        return facts_table(facts)

    def to_dict(self) -> dict[str, list[Any]]:
        """The transfers as columns: the number of the step, then the columns of
        :class:`~simcoll.core.step.Step`.

        Raises
        ------
        ConfigError
            For more than ten million transfers.

        Examples
        --------
        >>> import simcoll
        >>> columns = simcoll.schedule("all_gather", "ring", nranks=3).to_dict()
        >>> columns["step"][:4], columns["op"][:2]
        ([0, 0, 0, 1], ['copy', 'copy'])
        """
        total = 0
        columns: dict[str, list[Any]] = {"step": []} | {name: [] for name in COLUMNS}
        for number, step in enumerate(self.steps()):
            total += len(step)
            if total > MOST_ROWS:
                raise ConfigError(f"{self}: more than {MOST_ROWS:,} transfers are too many rows")
            columns["step"] += [number] * len(step)
            for name, column in zip(COLUMNS, step.columns, strict=True):
                values = column.tolist()
                columns[name] += [OP_NAMES[op] for op in values] if name == "op" else values
            if self.transits:
                words = [""] * len(step) if step.transits is None else step.transits.texts()
                columns.setdefault("transit", []).extend(words)
        return columns

    def to_frame(self) -> Any:
        """The same as a ``pandas.DataFrame``, a row for each transfer; a ConfigError without
        pandas.

        >>> import simcoll
        >>> simcoll.schedule("all_gather", "ring", nranks=3).to_frame().shape  # doctest: +SKIP
        (9, 8)
        """
        return data_frame(self.to_dict())


def _note_transits(facts: Known, block: Step | Repeat) -> None:
    """Remember the paths and wire formats of a block."""
    for step in block.steps if isinstance(block, Repeat) else (block,):
        if step.transits is not None:
            facts.transits |= frozenset(step.transits.table) - {PLAIN}


def _transfers(block: Step | Repeat) -> int:
    """Number of transfers in memory."""
    return sum(map(len, block.steps)) if isinstance(block, Repeat) else len(block)


def fault(
    number: int, step: Step, row: int, message: str, *, at_source: bool = True
) -> ScheduleError:
    """The error of a transfer of a step, at its source or its destination."""
    rank, chunk = (int(column[row]) for column in step.ends[0 if at_source else 1])
    return ScheduleError(
        message, step=number, rank=rank, channel=int(step.channel[row]), chunk=chunk
    )


def transfer_text(layout: Layout, step: Step, row: int) -> str:
    """One transfer in words:
    ``rank 0 output chunk 1 -> rank 1 output chunk 1 (reduce, channel 0)``.
    """
    ends = [f"rank {rank[row]} {layout.name(int(chunk[row]))}" for rank, chunk in step.ends]
    how = f"{OP_NAMES[step.op[row]]}, channel {step.channel[row]}{transit_words(step, row)}"
    return f"{' -> '.join(ends)} ({how})"


def _largest(column: Array) -> int:
    """The largest number of a column, without a copy; negative ones are huge."""
    return int(column.view(f"u{column.dtype.itemsize}").max(initial=0))


def lowered(
    schedule: Schedule, *, as_given: bool = False, portioned: bool = False
) -> Iterator[tuple[int, Step]]:
    """Checked steps with in-place aliases resolved; transfers that become self-copies are dropped.

    The transfers of a fold come in the order in which they are applied, unless ``as_given``.
    ``portioned``: several with one number may stand for a long step, unless there may be folds.
    """
    facts, number = schedule.known, 0
    as_given = as_given and facts.folds
    blocks, stored = facts.kept, facts.lowered  # read once: another thread may release them
    if stored is not None and not as_given:
        yield from enumerate(stored)
        return
    collected: list[Step] | None = [] if blocks is not None and not as_given else None
    last_place = -1
    for place, block in schedule.portions(whole_steps=not portioned or facts.folds):
        if place == last_place:  # it goes on
            number -= 1
        last_place = place
        if not facts.checked:
            schedule.check_block(number, block)
        for step in block.unrolled() if isinstance(block, Repeat) else (block,):
            resolved = schedule.layout.one_address(step)
            if not as_given and facts.folds:
                resolved = in_fold_order(resolved, schedule.layout.size)
            if collected is not None:
                collected.append(resolved)
            yield number, resolved
            number += 1
            del step, resolved
        del block
    facts.checked = True
    if (
        collected is not None
        and blocks is not None
        and blocks is facts.kept
        and number == len(blocks)
    ):
        facts.lowered = tuple(collected)
