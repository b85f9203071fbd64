"""Directed attacks on representation: types and byte orders of columns, shared memory, numbers at
limits, repeats, aliases.
"""

from __future__ import annotations

import dataclasses
import mmap

import numpy as np

import simcoll
from simcoll import Collective, transfers
from simcoll.errors import ConfigError, ScheduleError
from simcoll.types import REDUCE, Repeat, Step
from tests.support.attack_cases import (
    Attack,
    Case,
    Trial,
    schedule,
    schedule_case,
    used_case,
    with_blocks,
)
from tests.support.exact_player import Verdict, verdict_on

NAMES = ("src_rank", "src_chunk", "dst_rank", "dst_chunk", "count", "op", "channel")
TYPES = (
    "i1",
    "u1",
    "<i2",
    ">i2",
    "<u2",
    ">u2",
    "<i4",
    ">i4",
    "<u4",
    ">u4",
    "<i8",
    ">i8",
    "<u8",
    ">u8",
)
ODD_TYPES = ("O", "f2", "<f4", ">f8", "c16", "m8[s]", "U3", "S2")


class Labelled(np.ndarray):
    """A subclass that does nothing."""


def unaligned(column, dtype):
    """The column in memory that begins at an odd address."""
    data = b"x" + column.astype(dtype).tobytes()
    return np.frombuffer(data, np.uint8)[1:].view(dtype)


SHAPES = {
    "plain": lambda column, dtype: column.astype(dtype),
    "every second": lambda column, dtype: np.repeat(column.astype(dtype), 2)[::2],
    "backwards": lambda column, dtype: column.astype(dtype)[::-1].copy()[::-1],
    "a column of a table": lambda column, dtype: np.stack([column, column + 1]).T.astype(dtype)[
        :, 0
    ],
    "unaligned": unaligned,
    "a subclass": lambda column, dtype: column.astype(dtype).view(Labelled),
    "masked": lambda column, dtype: np.ma.masked_array(column.astype(dtype)),
    "read-only": lambda column, dtype: np.frombuffer(column.astype(dtype).tobytes(), dtype),
    "a field of a record": lambda column, dtype: np.rec.fromarrays(
        [column.astype(dtype), column], names="a,b"
    )["a"],
}


def fits(column, dtype) -> bool:
    kind = np.dtype(dtype)
    if kind.kind not in "iu":
        return True
    limits = np.iinfo(kind)
    return len(column) == 0 or (limits.min <= column.min() and column.max() <= limits.max)


def rewritten_block(block, shape, dtype, through_transfers=False):
    """A block with its columns in another type and memory, where their values fit."""
    if isinstance(block, Repeat):
        return dataclasses.replace(
            block,
            steps=tuple(
                rewritten_block(step, shape, dtype, through_transfers) for step in block.steps
            ),
        )
    columns = [
        SHAPES[shape](column, dtype) if fits(column, dtype) else column for column in block.columns
    ]
    if through_transfers:
        return transfers(**dict(zip(NAMES, columns, strict=True)))
    return Step(*columns)


RIGHT = (
    ("all_reduce", "ring"),
    ("all_gather", "ring"),
    ("reduce_scatter", "ring"),
    ("broadcast", "chain"),
    ("all_reduce", "tree"),
    ("all_to_all", "direct"),
    ("all_reduce", "rabenseifner"),
    ("all_gather", "bruck"),
)


def right_schedule(rng, most=9, least=2):
    """A shipped schedule that is right."""
    kind, algorithm = rng.choice(RIGHT)
    return simcoll.schedule(kind, algorithm, nranks=rng.randint(least, most))


def direct_reduce(n, chunks):
    """An all_reduce of whole vectors, each rank to each other."""
    empty = schedule(Collective("all_reduce", n), [], chunks=chunks)
    inp, out, r = empty.layout.input(), empty.layout.output(), np.arange(n)
    steps = [
        transfers(r, inp, (r + k) % n, out, count=chunks, op=REDUCE if k else 0) for k in range(n)
    ]
    return empty, steps


def columns(rng, quick):
    """Columns of every integer type, byte order and memory layout, with rows whose addresses wrap
    in a narrow type.
    """
    for dtype in rng.sample(TYPES, 4 if quick else len(TYPES)):
        shape, plain = rng.choice(sorted(SHAPES)), right_schedule(rng, 16)
        for through in (False, True):
            label = f"{plain}, {dtype}, {shape}{', transfers()' * through}"

            def make(plain=plain, shape=shape, dtype=dtype, through=through):
                return with_blocks(
                    plain,
                    [rewritten_block(block, shape, dtype, through) for block in plain.blocks()],
                )

            yield schedule_case(label, True, make, exact=False, may_decline=shape == "masked")
    for dtype in rng.sample(TYPES[:-4], 3 if quick else 8):
        bits = 8 * np.dtype(dtype).itemsize
        # Too large to prove: an address that wraps must be refused as no chunk at all.
        if bits == 32:
            continue
        n = rng.randint(6, 9)
        chunks = rng.randint(17, 24) if bits == 8 else 2 ** (bits - 3) // 3
        empty, steps = direct_reduce(n, chunks)
        size = empty.layout.size
        # A write into an output whose address, wrapped to so few bits, is an input of rank 0, where
        # it would change nothing.
        spots = [
            (rank, chunk)
            for rank in range(1, n)
            for chunk in range(chunks, 2 * chunks)
            if rank < 2 ** (bits - 1)
            and chunk < 2 ** (bits - 1)
            and (rank * size + chunk) % 2**bits < chunks
        ]
        if not spots:
            continue
        rank, chunk = rng.choice(spots)
        one, zero = np.ones(1, np.int64), np.zeros(1, np.int64)
        place = chunk - chunks
        for which in ("dst", "src"):
            wrong = Step(
                zero,
                zero + place,
                np.array([rank], dtype),
                np.array([chunk], dtype),
                one,
                np.zeros(1, np.int8),
                zero,
            )
            if which == "src":
                # The right value is read where the address wraps to, a wrong one where it says.
                wrong = Step(
                    np.array([rank], dtype),
                    np.array([chunk], dtype),
                    zero,
                    zero + chunk,
                    one,
                    np.full(1, REDUCE, np.int8),
                    zero,
                )
            yield schedule_case(
                f"{dtype}, {which} of rank {rank} chunk {chunk}, {n} ranks of {size} chunks",
                False,
                lambda e=empty, s=[*steps, wrong]: with_blocks(e, s),
                exact=bits == 8,
                lowering=bits == 8,
                checker=bits == 8,
            )
        yield schedule_case(
            f"{dtype}, the same without it",
            True,
            lambda e=empty, s=steps, d=dtype: with_blocks(
                e, [rewritten_block(step, "plain", d) for step in s]
            ),
            exact=bits == 8,
            lowering=bits == 8,
            checker=bits == 8,
        )
    for dtype in rng.sample(ODD_TYPES, 3 if quick else len(ODD_TYPES)):
        empty, steps = direct_reduce(3, 2)
        wrong = [*steps[:2], transfers([0, 1, 2], 0, [2, 0, 0], 2, count=2, op=REDUCE)]
        for label, right, blocks in (("right", True, steps), ("wrong", False, wrong)):
            for through in (False, True):
                # Other kinds of numbers may be refused in words, but never misread.
                def prove(empty=empty, blocks=blocks, dtype=dtype, through=through):
                    try:
                        return simcoll.verify(
                            with_blocks(empty, [odd_step(step, dtype, through) for step in blocks])
                        )
                    except ScheduleError as error:
                        raise ConfigError(str(error)) from error

                verdict = Verdict(right, "any" if right else "", "a wrong destination")
                trial = Trial("verify", prove, may_decline=True)
                yield Case(
                    f"{dtype}, {label}{', transfers()' * through}",
                    right,
                    (trial,),
                    lambda v=verdict: v,
                )


def odd_step(step, dtype, through):
    """One column of a step in a type that is not an integer."""
    columns = list(step.columns)
    columns[2] = columns[2].astype(dtype)
    return transfers(**dict(zip(NAMES, columns, strict=True))) if through else Step(*columns)


def chain_of(n, pieces):
    """An empty broadcast, and ranks of the transfers of a chain."""
    return schedule(Collective("broadcast", n), [], chunks=pieces)


def views(rng, quick):
    """Arrays that change between the steps of one pass: the step that was yielded is what
    counts.
    """
    for pieces in (rng.randint(2, 6), rng.choice((128, 150))):
        n = rng.randint(3, 5)
        empty = chain_of(n, pieces)
        out, piece = empty.layout.output(0, np.arange(pieces)), np.arange(pieces)

        def steps(late, n=n, pieces=pieces, out=out, piece=piece, wrap=None):
            src, dst = np.zeros((n, pieces), np.int64), np.zeros((n, pieces), np.int64)
            one = np.ones(pieces, np.int64)
            for k in range(n):
                if not late:
                    src[k], dst[k] = max(k - 1, 0), k
                ends = [src[k], dst[k]] if wrap is None else [wrap(src[k]), wrap(dst[k])]
                start = (piece if k == 0 else out).copy()
                yield Step(
                    ends[0],
                    start,
                    ends[1],
                    out.copy(),
                    one.copy(),
                    np.zeros(pieces, np.int8),
                    np.zeros(pieces, np.int64),
                )
                if late:
                    src[k], dst[k] = max(k - 1, 0), k
                else:
                    src[:], dst[:] = 0, 0

        for name, wrap in (
            ("views", None),
            ("views of views", lambda a: a[:][::-1][::-1]),
            ("a subclass", lambda a: a.view(Labelled)),
            ("memoryviews", lambda a: np.asarray(memoryview(a))),
        ):
            for late in (True, False):
                label = (
                    f"{name}, {pieces} pieces, n={n}, "
                    f"{'set after the yield' if late else 'cleared after the yield'}"
                )
                make = lambda e=empty, s=steps, l=late, w=wrap: dataclasses.replace(  # noqa: E731
                    e, source=lambda: s(l, wrap=w)
                )
                yield schedule_case(
                    label, not late, make, exact=pieces < 100, lowering=pieces < 100, checker=False
                )


def memory(rng, quick):
    """Memory of columns that changes after the proof: bases of views, buffers, mapped files,
    repeated and overlapping elements.
    """
    n, pieces = rng.randint(3, 5), rng.choice((2, 3, 128))

    def holders():
        base = np.zeros(4 * n * pieces, np.int64)
        yield "a view", base[: n * pieces], lambda: base.fill(0)
        data = bytearray(8 * n * pieces)
        shared = np.frombuffer(data, np.int64)
        yield "a bytearray", shared, lambda: data.__setitem__(slice(0, len(data)), bytes(len(data)))
        pages = mmap.mmap(-1, 8 * n * pieces)
        yield (
            "mapped pages",
            np.frombuffer(pages, np.int64),
            lambda: pages.__setitem__(slice(0, len(pages)), bytes(len(pages))),
        )
        strided = np.zeros(2 * n * pieces, np.int64)
        yield "every second element", strided[::2], lambda: strided.fill(0)
        mine = np.zeros(n * pieces, np.int64)

        def unlock():
            mine.flags.writeable = True
            mine[:] = 0

        yield "an array of its own, unlocked", mine, unlock
        labelled = np.zeros(n * pieces, np.int64).view(Labelled)
        yield "a subclass", labelled, lambda: labelled.base.fill(0)
        block = np.zeros(n * pieces, np.int64)
        bridge = np.asarray(Bridge(block))
        yield "another array's address", bridge, lambda: block.fill(0)

    for name, _, _ in list(holders()):
        for through in (False, True):
            for changes in (True, False):

                def make(name=name, through=through):
                    target, clear = next((a, c) for k, a, c in holders() if k == name)
                    return _chain_in(n, pieces, target, clear, through)

                label = (
                    f"{name}{', transfers()' * through}, {pieces} "
                    f"pieces{'' if changes else ', left alone'}"
                )
                yield used_case(
                    label,
                    not changes,
                    make,
                    (lambda s: s.source.clear()) if changes else (lambda _: None),
                )
    yield from _unlocked(rng)
    yield from _overlapping()


class Bridge:
    """Lends the memory of an array."""

    def __init__(self, array) -> None:
        self.array, self.__array_interface__ = array, array.__array_interface__


class Chain:
    """A broadcast along a chain, from steps that were made once over some memory."""

    def __init__(self, n, pieces, target, clear, through) -> None:
        empty = chain_of(n, pieces)
        self.layout, self.clear, self.steps = empty.layout, clear, []
        inp, out = self.layout.input(0, np.arange(pieces)), self.layout.output(0, np.arange(pieces))
        target = target[: n * pieces].reshape(n, pieces)
        target[:] = np.arange(n)[:, None]
        one, zero = np.ones(pieces, np.int64), np.zeros(pieces, np.int64)
        for k in range(n):
            columns = (
                zero + max(k - 1, 0),
                inp if k == 0 else out,
                target[k],
                out,
                one,
                zero.astype(np.int8),
                zero,
            )
            self.steps.append(
                transfers(**dict(zip(NAMES, columns, strict=True))) if through else Step(*columns)
            )

    def __call__(self):
        return self.steps


def _chain_in(n, pieces, target, clear, through):
    chain = Chain(n, pieces, target, clear, through)
    return simcoll.Schedule("attack", chain.layout, chain)


def _unlocked(rng):
    """Make arrays of records writable again: columns, orders of repeats, blocks of scratch."""
    kinds = {
        "columns": lambda s: [column for step in s.steps() for column in step.columns],
        "columns' bases": lambda s: [
            column.base for step in s.steps() for column in step.columns if column.base is not None
        ],
        "an order": lambda s: [
            block.order
            for block in s.blocks()
            if isinstance(block, Repeat) and block.order is not None
        ],
        "scratch": lambda s: [s.layout.scratch, s.layout.scratch.base],
        "a plan's sizes": lambda s: [simcoll.bind(s, 5).sizes, simcoll.bind(s, 5).ranks],
    }

    def unlock(schedule, arrays):
        for array in arrays(schedule):
            try:
                array.flags.writeable = True
                array[...] = rng.choice((0, 1)) if array.size else 0
            except (ValueError, TypeError, AttributeError):  # frozen, or no array at all
                continue

    def make():
        # Through scratch of the same blocks on all ranks, in windows of an order.
        empty = schedule(Collective("all_gather", 3), [], scratch=[0, 1, 2])
        layout, r = empty.layout, np.arange(3)
        first = transfers(r, layout.input(), r, layout.output(r))
        aside = transfers(r, layout.input(), r, layout.scratch_at(r))
        order = np.array(
            [layout.scratch_at(s) for s in range(3)] + [layout.output(s) for s in range(3)]
        )
        passed = Repeat(
            (
                transfers(r, layout.scratch_at(r), (r + 1) % 3, layout.scratch_at(r)),
                transfers((r + 1) % 3, layout.scratch_at(r), (r + 1) % 3, layout.output(r)),
            ),
            2,
            -1,
            0,
            3,
            order,
        )
        steps = [first, aside, passed]
        return with_blocks(empty, steps)

    for name, arrays in kinds.items():
        yield used_case(
            f"{name}, unlocked and overwritten", False, make, lambda s, a=arrays: unlock(s, a)
        )
    yield used_case("nothing unlocked", True, make, lambda _: None)


def _overlapping():
    """Columns that share elements with each other or with themselves."""
    ring = np.arange(16) % 5
    window = np.lib.stride_tricks.as_strided(ring, (5,), ring.strides)
    shifted = np.lib.stride_tricks.as_strided(ring[1:], (5,), ring.strides)
    for right in (True, False):
        empty = schedule(Collective("all_gather", 5), [])
        first = transfers(window, 0, window, 1 + window)
        passed = [
            transfers(window, 1 + (window - k) % 5, shifted, 1 + (window - k) % 5) for k in range(4)
        ]
        if not right:
            passed[2] = transfers(window, 1 + (window - 2) % 5, window, 1 + (window - 2) % 5)
        one, zero = np.broadcast_to(np.int64(1), 5), np.broadcast_to(np.int64(0), 5)
        shared = [
            Step(
                s.src_rank,
                s.src_chunk,
                s.dst_rank,
                s.src_chunk if np.array_equal(s.src_chunk, s.dst_chunk) else s.dst_chunk,
                one,
                np.broadcast_to(np.int8(0), 5),
                zero,
            )
            for s in [first, *passed]
        ]
        yield schedule_case(
            f"overlapping columns, {'right' if right else 'wrong'}",
            right,
            lambda e=empty, s=shared: with_blocks(e, s),
        )


def wrong_somewhere(rng, blocks):
    """The blocks with one transfer turned to another destination rank."""
    blocks = list(blocks)
    at = rng.randrange(len(blocks))
    block = blocks[at]
    inner = list(block.steps) if isinstance(block, Repeat) else [block]
    place = rng.randrange(len(inner))
    columns = [np.array(column) for column in inner[place].columns]
    row = rng.randrange(len(columns[2]))
    columns[2][row] = (columns[2][row] + 1) % max(3, int(columns[2].max()) + 1)
    inner[place] = Step(*columns)
    blocks[at] = (
        dataclasses.replace(block, steps=tuple(inner)) if isinstance(block, Repeat) else inner[0]
    )
    return blocks


def pieces_chain(n, pieces):
    """A broadcast of many pieces along a chain, each piece a step behind its predecessor."""
    empty = chain_of(n, pieces)
    inp, out = empty.layout.input(), empty.layout.output()
    steps = [transfers(0, inp, 0, out, count=pieces)]
    for turn in range(pieces + n - 2):
        rank = np.arange(max(0, turn - pieces + 1), min(n - 1, turn + 1))
        steps.append(transfers(rank, out + turn - rank, rank + 1, out + turn - rank))
    return with_blocks(empty, steps)


def numbers(rng, quick):
    """Ranks, chunks, counts and channels near 2^31, 2^32, 2^63 and 2^64, whose low bits are those
    of a right transfer.
    """
    plain = right_schedule(rng, 6)
    far = (
        [2**k for k in (8, 16, 31, 32, 40, 53, 62)]
        + [-(2**k) for k in (8, 16, 31, 32, 62, 63)]
        + [2**63 - 1, -1]
    )
    whole = list(plain.steps())
    yield schedule_case(f"{plain}", True, lambda: with_blocks(plain, whole), exact=False)
    unsigned = [2**64 - 2**k for k in (8, 32, 63)]
    for name in rng.sample(NAMES, 3 if quick else len(NAMES)):
        for more in rng.sample(far + unsigned, 3 if quick else 6):
            at = rng.randrange(len(whole))
            columns = [np.array(column) for column in whole[at].columns]
            k = NAMES.index(name)
            row = rng.randrange(len(columns[k]))
            number = int(columns[k][row]) + more
            number = (
                min(number, 2**64 - 1) if more >= 2**63 else max(min(number, 2**63 - 1), -(2**63))
            )
            numbers = [int(value) for value in columns[k].tolist()]
            numbers[row] = number
            if number == int(columns[k][row]):
                continue
            kind = np.uint64 if number >= 2**63 else np.int64
            if kind is np.uint64 and min(numbers) < 0:
                continue

            for through in (False, True):

                def make(at=at, k=k, numbers=numbers, kind=kind, columns=columns, through=through):
                    changed = [*columns[:k], np.array(numbers, kind), *columns[k + 1 :]]
                    step = (
                        transfers(**dict(zip(NAMES, changed, strict=True)))
                        if through
                        else Step(*changed)
                    )
                    return with_blocks(plain, [*whole[:at], step, *whole[at + 1 :]])

                yield refused_case(
                    f"{plain}: {name} {int(columns[k][row])} + {more}{', transfers()' * through}",
                    make,
                )
    yield from _far_layouts()


def refused_case(label, make) -> Case:
    """A case that may be refused as early as its making."""
    verdict = Verdict(False, "", "an address that does not exist")
    return Case(
        label,
        False,
        (
            Trial("verify", lambda: simcoll.verify(make())),
            Trial("exact", lambda: simcoll.verify(make(), exact=True)),
        ),
        lambda: verdict,
    )


def _far_layouts():
    """Sizes beyond the limits of a layout, which are refused in words, and one whose low bits they
    share.
    """
    for chunks, n in ((2**40, 2), (2**40 + 1, 2), (2**62, 2), (2**63, 3), (2**64 + 1000, 2)):

        def make(chunks=chunks, n=n):
            empty = schedule(Collective("broadcast", n), [], chunks=chunks)
            return with_blocks(
                empty, [transfers(0, 0, [0, 1], empty.layout.output(), count=chunks - 1)]
            )

        yield refused_case(f"{chunks} chunks, the last one missing", make)
    small = schedule(Collective("broadcast", 2), [], chunks=1000)
    yield schedule_case(
        "1000 chunks",
        True,
        lambda: with_blocks(small, [transfers(0, 0, [0, 1], small.layout.output(), count=1000)]),
    )


def repeats(rng, quick):
    """Repeats whose strides, bases, moduli, counts and orders are at their limits or off by one."""
    yield from _windows(rng, quick)
    n = rng.choice((64, 65, 70))
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        plain = simcoll.schedule(kind, "ring", nranks=n)
        blocks = list(plain.blocks())
        place = rng.choice([k for k, block in enumerate(blocks) if isinstance(block, Repeat)])
        block = blocks[place]
        times = rng.choice(
            (1, -1, 2**33 // n, -(2**33) // n, rng.randrange(2**40 // (2 * block.modulus)))
        )
        same = {
            "stride": block.stride + times * block.modulus,
            "base": block.base - abs(times) * block.modulus,
            "unrolled": 1,
        }
        other = [
            ("stride", block.stride + 1),
            ("stride", 0),
            ("stride", -block.stride),
            ("stride", block.stride + times * block.modulus + 1),
            ("modulus", block.modulus + 1),
            ("modulus", 1),
            ("count", block.count - 1),
            ("count", block.count + 1),
            ("count", 1),
            ("base", block.base + 1),
            ("base", block.base - block.modulus // 2),
        ]
        for field, value in rng.sample(sorted(same.items()), 1 if quick else 3):
            changed = (
                block.unrolled()
                if field == "unrolled"
                else [dataclasses.replace(block, **{field: value})]
            )
            steps = [*blocks[:place], *changed, *blocks[place + 1 :]]
            yield schedule_case(
                f"{kind} ring n={n}: {field} {value}",
                True,
                lambda p=plain, s=steps: with_blocks(p, s),
                exact=False,
            )
        for field, value in rng.sample(other, 2 if quick else len(other)):
            try:
                changed = dataclasses.replace(block, **{field: value})
            except simcoll.SimcollError:
                # Windows that do not fit their order are refused when they are made.
                continue
            steps = [*blocks[:place], changed, *blocks[place + 1 :]]
            if not verdict_on(with_blocks(plain, steps)).right:
                yield schedule_case(
                    f"{kind} ring n={n}: {field} {value}",
                    False,
                    lambda p=plain, s=steps: with_blocks(p, s),
                    exact=False,
                )


def _windows(rng, quick):
    """Random repeats in a broadcast or a sum; the player says which are right."""
    tally = {True: 0, False: 0}
    for _ in range(200):
        pieces = rng.choice((1, 2, 3, 4, 6, 8, 12, 128, 132))
        n, sums = rng.randint(2, 4), rng.random() < 0.5
        empty = schedule(Collective("all_reduce" if sums else "broadcast", n), [], chunks=pieces)
        layout, r = empty.layout, np.arange(n)
        modulus = rng.choice([m for m in range(1, pieces + 1) if pieces % m == 0])
        near = rng.choice((0, 1, -1, modulus - 1, rng.randint(-pieces, pieces)))
        stride = near + modulus * rng.choice(
            (0, 1, -1, 2**40 // modulus - 2, -(2**40 // modulus - 2), 2**31)
        )
        base = rng.choice(
            (0, 0, modulus, -modulus, -modulus * (2**39 // modulus), rng.randint(-3, 3))
        )
        starts = np.arange(0, pieces, modulus)
        start = starts + rng.randrange(modulus)
        count = rng.choice((modulus, modulus, modulus - 1, modulus + 1, 1))
        order = None
        if rng.random() < 0.4:
            every = np.arange(layout.size)
            order = rng.choice(
                (
                    every,
                    every.reshape(-1, modulus)[:, ::-1].reshape(-1),
                    np.roll(every.reshape(-1, modulus), 1, 1).reshape(-1),
                )
            )
            base = modulus * rng.choice((0, 1, -1, 2))
        load = (
            transfers(r, 0, r, layout.output(), count=pieces)
            if sums
            else transfers(0, 0, 0, layout.output(), count=pieces)
        )
        if sums:
            inner = [
                transfers(
                    np.repeat(r, len(start)),
                    np.tile(start, n),
                    np.repeat((r + k) % n, len(start)),
                    np.tile(layout.output() + start, n),
                    op=REDUCE,
                )
                for k in range(1, n)
            ]
        else:
            inner = [
                transfers(0, layout.output() + start, k, layout.output() + start)
                for k in range(1, n)
            ]
        if not count:
            continue

        def make(
            empty=empty,
            load=load,
            inner=inner,
            count=count,
            stride=stride,
            base=base,
            modulus=modulus,
            order=order,
        ):
            return with_blocks(
                empty, [load, Repeat(tuple(inner), count, stride, base, modulus, order)]
            )

        try:
            right = verdict_on(make()).right
        except simcoll.SimcollError:
            continue
        if tally[right] < (3 if quick else 12):
            tally[right] += 1
            windows = (
                f"stride {stride}, base {base}, modulus {modulus}{', order' * (order is not None)}"
            )
            label = f"{empty.collective} {pieces} pieces: {count} times, {windows}"
            yield schedule_case(label, right, make, exact=pieces < 100)


def aliases(rng, quick):
    """In-place collectives, whose cells have two addresses: written through both, read through
    either, added to themselves.
    """
    n, chunks = rng.randint(2, 5), rng.choice((1, 2))
    r = np.arange(n)
    gather = schedule(Collective("all_gather", n, in_place=True), [], chunks=chunks)
    lay = gather.layout
    spread = [
        transfers(r, lay.output(r), (r + k) % n, lay.output(r), count=chunks) for k in range(1, n)
    ]
    by_input = [
        transfers(r, lay.input(0), (r + k) % n, lay.output(r), count=chunks) for k in range(1, n)
    ]
    yes = {
        "read as output": spread,
        "read as input": by_input,
        "a copy onto itself": [transfers(r, lay.input(0), r, lay.output(r), count=chunks), *spread],
        "a copy back": [transfers(r, lay.output(r), r, lay.input(0), count=chunks), *spread],
    }
    twice = transfers(r, lay.input(0), r, lay.output(r), count=chunks, op=REDUCE)
    peer = (r + 1) % n
    no = {
        "added to itself": [twice, *spread],
        "overwritten through the input": [
            transfers(peer, lay.output(r), r, lay.input(0), count=chunks),
            *spread,
        ],
        "overwritten at the end": [
            *spread,
            transfers(r, lay.output(peer), r, lay.input(0), count=chunks),
        ],
        "both addresses in one step": [
            *spread,
            transfers(
                [1 % n] * 2,
                [int(lay.output(0))] * 2,
                [0, 0],
                [int(lay.input(0)), int(lay.output(0))],
                count=chunks,
            ),
        ],
        "the own block of another": [
            transfers(r, lay.input(0), (r + k) % n, lay.output((r + k) % n), count=chunks)
            for k in range(1, n)
        ],
    }
    if n == 2:
        del no["both addresses in one step"]
    for right, variants in ((True, yes), (False, no)):
        for label, steps in variants.items():
            if verdict_on(with_blocks(gather, steps)).right == right:
                yield schedule_case(
                    f"all_gather n={n}: {label}",
                    right,
                    lambda s=steps: with_blocks(gather, s),
                    lowering=label != "the own block of another",
                )
    total = schedule(Collective("all_reduce", n, in_place=True), [], scratch=[0], chunks=chunks)
    lay = total.layout
    aside = transfers(r, lay.input(), r, lay.scratch_at(0), count=chunks)
    ends = (lay.input(), lay.output())
    adds = [
        transfers(r, lay.scratch_at(0), (r + k) % n, rng.choice(ends), count=chunks, op=REDUCE)
        for k in range(1, n)
    ]
    doubled = transfers(r, lay.input(), r, lay.output(), count=chunks, op=REDUCE)
    late = [
        transfers(r, ends[k % 2], (r + k) % n, ends[1 - k % 2], count=chunks, op=REDUCE)
        for k in range(1, n)
    ]
    yield schedule_case(
        f"all_reduce n={n}: either address", True, lambda: with_blocks(total, [aside, *adds])
    )
    yield schedule_case(
        f"all_reduce n={n}: doubled through the alias",
        False,
        lambda: with_blocks(total, [doubled, aside, *adds]),
    )
    yield schedule_case(
        f"all_reduce n={n}: doubled at the end",
        False,
        lambda: with_blocks(total, [aside, *adds, doubled]),
    )
    yield schedule_case(
        f"all_reduce n={n}: reads sums for inputs", n == 2, lambda: with_blocks(total, late)
    )
    scatter = schedule(Collective("reduce_scatter", n, in_place=True), [], chunks=chunks)
    lay = scatter.layout
    adds = [
        transfers(r, lay.input((r + k) % n), (r + k) % n, lay.output(), count=chunks, op=REDUCE)
        for k in range(1, n)
    ]
    other = [
        transfers(
            r, lay.input((r + k) % n), (r + k) % n, lay.input((r + k) % n), count=chunks, op=REDUCE
        )
        for k in range(1, n)
    ]
    foreign = [*adds, transfers(r, lay.input(r), (r + 1) % n, lay.input(r), count=chunks)]
    yield schedule_case(
        f"reduce_scatter n={n}: into the output", True, lambda: with_blocks(scatter, adds)
    )
    yield schedule_case(
        f"reduce_scatter n={n}: into the own input", True, lambda: with_blocks(scatter, other)
    )
    yield schedule_case(
        f"reduce_scatter n={n}: into another input", False, lambda: with_blocks(scatter, foreign)
    )
    outside = dataclasses.replace(
        scatter, layout=simcoll.Layout(Collective("reduce_scatter", n), chunks)
    )
    yield schedule_case(
        f"reduce_scatter n={n}: the same out of place", False, lambda: with_blocks(outside, other)
    )


ATTACKS = (
    Attack("columns", "columns of every type, byte order and memory layout", columns),
    Attack("views", "arrays that change between the steps of a pass", views),
    Attack("memory", "memory of columns that changes after the proof", memory),
    Attack("numbers", "numbers near 2^31, 2^32, 2^63 and 2^64", numbers),
    Attack("repeats", "strides, bases, moduli and orders of repeats at their limits", repeats),
    Attack("aliases", "cells with two addresses", aliases),
)
