"""Columns of a step: any integers, stored as int64 (op as int8) in memory that nobody can change;
all else is refused.
"""

import mmap
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import simcoll
from simcoll.core.folds import in_fold_order
from simcoll.core.rank_program import Instruction, Lane, RankProgram
from simcoll.core.schedule import REDUCE, Layout, Repeat, Schedule
from simcoll.core.step import COLUMNS, Step, by_chunk, joined, transfers
from simcoll.errors import ConfigError, ScheduleError
from simcoll.topology import crossbar

WIDTHS = ("i1", "u1", ">i2", "<u2", ">i4", "u4", ">i8", "i8", "u8", "q", "l", "Q")
ONE, ZERO = np.ones(1, np.int64), np.zeros(1, np.int64)


def step_of(column, name="src_chunk"):
    """A step with one column as given, the others of equal length."""
    length = len(column)
    given = {each: np.zeros(length, np.int8 if each == "op" else np.int64) for each in COLUMNS}
    return Step(**{**given, "count": np.ones(length, np.int64), name: column})


def memory_of(array):
    while isinstance(array, np.ndarray):
        array = array.base
    return array


def strided(values):
    return np.repeat(values, 3)[::3]


def backwards(values):
    return values[::-1].copy()[::-1]


def of_memoryview(values):
    return np.asarray(memoryview(values.copy()))


def of_bytearray(values):
    return np.frombuffer(bytearray(values.tobytes()), values.dtype)


def of_mmap(values):
    memory = mmap.mmap(-1, max(values.nbytes, 1))
    memory[: values.nbytes] = values.tobytes()
    return np.frombuffer(memory, values.dtype)


def read_only_view(values):
    view = values.copy()[:]
    view.flags.writeable = False
    return view


def fields_of_records(values):
    records = np.zeros(len(values), [("pad", "i1"), ("value", values.dtype)])
    records["value"] = values
    return records["value"]


def diagonal(values):
    return np.diag(values.astype(values.dtype)).diagonal()


def subclass(values):
    class Sly(np.ndarray):
        def tobytes(self, *_):
            return b"\1" * self.nbytes

        def astype(self, *_, **__):
            return self * 0

        def __array_finalize__(self, _):
            self.shown = True

    return values.copy().view(Sly)


MEMORIES = (
    np.copy,
    strided,
    backwards,
    of_memoryview,
    of_bytearray,
    of_mmap,
    read_only_view,
    fields_of_records,
    diagonal,
    subclass,
)


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("memory", MEMORIES)
def test_integers_of_any_kind_are_stored_alike(memory, dtype):
    values = [0, 1, 5, 127]
    for name in COLUMNS:
        stored = getattr(step_of(memory(np.array(values, dtype)), name), name)
        assert stored.tolist() == values
        assert stored.dtype is np.dtype(np.int8 if name == "op" else np.int64)
        assert type(stored) is np.ndarray
        assert type(memory_of(stored)) is bytes


def test_a_file_in_memory_is_copied(tmp_path):
    mapped = np.memmap(tmp_path / "columns", np.int64, "w+", shape=4)
    mapped[:] = range(4)
    step = step_of(mapped)
    mapped[:] = 9
    mapped.flush()
    assert step.src_chunk.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("memory", MEMORIES[:7])
def test_what_a_caller_writes_later_is_not_seen(memory):
    values = memory(np.arange(4))
    step = step_of(values)
    owner = values
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    owner.flags.writeable = True
    owner[...] = 77
    assert step.src_chunk.tolist() == [0, 1, 2, 3]


def test_values_of_one_number_take_no_memory_and_are_frozen():
    long = transfers(np.arange(10**6) % 4, 3, 1, 2).src_chunk
    assert long.strides == (0,)
    assert len(memory_of(long)) == 8
    given = np.broadcast_to(np.array([3]), 5)
    step = step_of(given)
    given.base[:] = 4
    assert step.src_chunk.tolist() == [3] * 5


def test_frozen_columns_pass_without_a_copy():
    step = transfers(np.arange(4), 1, np.arange(4), 2)
    again = Step(*step.columns)
    assert all(a is b for a, b in zip(step.columns, again.columns, strict=True))
    assert memory_of(step.rows(slice(1, 3)).src_rank) is memory_of(step.src_rank)
    assert step.rows(slice(None, None, 2)).src_rank.tolist() == [0, 2]


WAYS = (
    lambda a: a.setflags(write=True),
    lambda a: setattr(a.flags, "writeable", True),
    lambda a: (
        setattr(a.base.flags, "writeable", True)
        if isinstance(a.base, np.ndarray)
        else a.setflags(write=True)
    ),
    lambda a: a.__setitem__(0, 1),
    lambda a: a.view().setflags(write=True),
    lambda a: a.view(np.uint8).setflags(write=True),
    lambda a: np.add(a, 1, out=a),
    lambda a: a.sort(),
    lambda a: a.fill(3),
    lambda a: memoryview(a).__setitem__(0, 1),
    lambda a: np.frombuffer(a.data, a.dtype).setflags(write=True),
    lambda a: np.lib.stride_tricks.as_strided(a, writeable=True).__setitem__(0, 1),
    lambda a: np.asarray(
        type("Sly", (), {"__array_interface__": {**a.__array_interface__}})()
    ).__setitem__(0, 1),
    lambda a: a.byteswap(inplace=True),
    lambda a: np.copyto(a, 1),
)


def derived_steps():
    """Steps from every place that makes them."""
    ring = np.arange(4)
    layout = Layout(simcoll.Collective("all_gather", 4, in_place=True))
    plain = transfers(ring, layout.input(), (ring + 1) % 4, layout.output(ring))
    folded = transfers([1, 0, 2], 0, 3, 5, op=[REDUCE, 0, REDUCE])
    yield from (
        plain,
        folded,
        in_fold_order(folded, 9),
        joined([plain, folded]),
        layout.one_address(plain),
    )
    yield from (
        by_chunk(transfers([0, 1], 0, [1, 0], 4, count=2)),
        plain.rows(np.array([2, 0])),
        plain.rows(slice(2)),
    )
    yield from Repeat((plain,), 3, 1, 1, 4).unrolled()
    yield from replace(Repeat((plain,), 2, 1, 0, 5, np.array([4, 3, 2, 1, 0]))).unrolled()
    for kind, algorithm, params in (
        ("all_reduce", "ring", {"channels": 2, "pieces": 3}),
        ("all_gather", "bruck", {}),
        ("all_to_all", "pairwise", {}),
    ):
        schedule = simcoll.schedule(
            kind, algorithm, nranks=5, in_place=kind == "all_gather", **params
        )
        yield from schedule.steps()
        yield from (step for _, step in simcoll.bind(schedule, 7).transfers())


@pytest.mark.parametrize("way", WAYS)
def test_no_column_of_any_step_can_be_written(way):
    for step in derived_steps():
        for column in step.columns:
            before = column.tolist()
            with pytest.raises((ValueError, TypeError, BufferError)):
                way(column)
            assert column.tolist() == before


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(
    ("column", "says"),
    [
        (np.zeros(1), "must be whole numbers of"),
        (np.array([1 + 0j]), "must be whole numbers of"),
        (np.array(["1"]), "must be whole numbers of"),
        (np.array([b"1"]), "must be whole numbers of"),
        (np.array([1], object), "must be whole numbers of"),
        (np.array([1], "m8[s]"), "must be whole numbers of"),
        (np.array([1], "M8[s]"), "must be whole numbers of"),
        (np.zeros(1, [("a", "i8")]), "must be whole numbers of"),
        (np.ma.array([1], mask=[True]), "must be whole numbers of"),
        (np.ma.array([1]), "must be whole numbers of"),
        (np.array([2**63], np.uint64), "must be whole numbers of"),
        (np.array([2**64 - 1], np.uint64), "must be whole numbers of"),
        (np.array(1), "must have one dimension, got shape ()"),
        (np.ones((1, 1), np.int64), "must have one dimension, got shape (1, 1)"),
        (np.ones((1, 1), np.int64).view(np.matrix), "must have one dimension, got shape (1, 1)"),
        ([1], "numpy arrays, got"),
        (1, "numpy arrays, got"),
        (None, "numpy arrays, got"),
        (memoryview(bytes(8)), "numpy arrays, got"),
    ],
)
def test_anything_else_is_refused_in_words(name, column, says):
    columns = dict.fromkeys(COLUMNS, ONE) | {name: column}
    with pytest.raises(ConfigError) as error:
        Step(**columns)
    assert says in str(error.value)


@pytest.mark.parametrize("op", [128, 256, 300, 257, -129, 2**32, 2**62])
def test_an_operation_is_not_wrapped(op):
    with pytest.raises(ConfigError, match="op of a Step must be whole numbers of 8 bits"):
        step_of(np.array([op]), "op")


def test_true_and_false_are_numbers():
    step = step_of(np.array([True, False]))
    assert (
        step.src_chunk.tolist()
        == transfers(0, np.array([True, False]), 0, 0).src_chunk.tolist()
        == [1, 0]
    )


def test_a_masked_array_is_refused_by_transfers_too():
    with pytest.raises(ConfigError, match="src_rank must be whole numbers"):
        transfers(np.ma.array([1, 2], mask=[False, True]), 0, 0, 0)
    with pytest.raises(ConfigError, match="scratch must be whole numbers"):
        Layout(simcoll.Collective("all_gather", 3), 1, np.ma.array([1, 2]))


def narrowed(schedule, dtype, change=lambda column: column):
    """The same schedule from columns of another type."""

    def steps():
        for step in schedule.steps():
            yield Step(
                *(
                    column if name == "op" else change(column.astype(dtype))
                    for name, column in zip(COLUMNS, step.columns, strict=True)
                )
            )

    return Schedule("narrow", schedule.layout, steps, schedule.nchannels)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(
    ("kind", "algorithm", "n"),
    [("all_reduce", "ring", 4), ("all_gather", "ring", 16), ("reduce_scatter", "ring", 13)],
)
def test_a_right_schedule_of_any_columns_is_proved(kind, algorithm, n, dtype):
    schedule = simcoll.schedule(kind, algorithm, nranks=n)
    wide = simcoll.verify(schedule)
    for change in (lambda column: column, strided, read_only_view):
        narrow = narrowed(schedule, dtype, change)
        proof = simcoll.verify(narrow)
        assert (proof.transfers, proof.steps, proof.order) == (
            wide.transfers,
            wide.steps,
            wide.order,
        )
        assert simcoll.verify(narrow, exact=True).method == "exact"
        assert narrow.content_hash() == schedule.content_hash()
    assert simcoll.emulate(simcoll.bind(narrow, 48), crossbar(n, "50 GB/s", "1 us")).wrong == 0


# 8 ranks, 20 chunks a block: 40 chunks a rank, so that rank 6 begins at 240, and rank * 40 wraps to
# 240 % 256 in 8 bits.
@pytest.mark.parametrize("dtype", [*WIDTHS[:4], "i8", "u8"])
@pytest.mark.parametrize("exact", [False, True])
def test_a_write_to_another_rank_is_not_taken_for_one_that_wraps(dtype, exact):
    n, chunks = 8, 20
    layout, rank = Layout(simcoll.Collective("all_reduce", n), chunks=chunks), np.arange(n)

    def steps():
        yield transfers(rank, layout.input(), rank, layout.output(), count=chunks)
        for k in range(1, n):
            yield transfers(
                rank, layout.input(), (rank + k) % n, layout.output(), count=chunks, op=REDUCE
            )
        place = np.array([chunks + 3], dtype)
        yield Step(ZERO, ZERO + 3, np.array([6], dtype), place, ONE, np.zeros(1, np.int8), ZERO)

    with pytest.raises(ScheduleError, match=r"rank 6 output chunk 3 is wrong"):
        simcoll.verify(Schedule("narrow", layout, steps), exact=exact)


def test_views_that_change_after_each_yield_are_not_followed():
    pieces, n = 128, 3
    layout = Layout(simcoll.Collective("broadcast", n), chunks=pieces)

    def steps():
        piece, out, one = (
            np.arange(pieces),
            layout.output(0, np.arange(pieces)),
            np.ones(pieces, np.int64),
        )
        src, dst = np.zeros((n, pieces), np.int64), np.zeros((n, pieces), np.int64)
        for k in range(n):
            yield Step(
                src[k],
                piece if k == 0 else out,
                dst[k],
                out,
                one,
                np.zeros(pieces, np.int8),
                0 * one,
            )
            src[k], dst[k] = max(k - 1, 0), k

    with pytest.raises(ScheduleError, match="rank 1 output chunk 0 is wrong"):
        simcoll.verify(Schedule("views", layout, steps))


WARNED = pytest.mark.filterwarnings("ignore:Setting the:DeprecationWarning")
"""numpy will no longer change an array in place."""


@WARNED
@pytest.mark.parametrize("attribute", ["strides", "shape", "dtype"])
def test_arrays_of_a_source_that_are_reshaped_after_the_yield_are_not_followed(attribute):
    pieces, n = 128, 3
    layout, to = (
        Layout(simcoll.Collective("broadcast", n), chunks=pieces),
        {"strides": (0,), "shape": (2, 64), "dtype": np.uint8},
    )
    dropped = []

    def steps():
        for k in range(n):
            # Every second piece goes to rank k, the first pieces go there twice.
            step = transfers(
                max(k - 1, 0),
                layout.input(0, 0) + np.arange(pieces)
                if k == 0
                else layout.output(0, np.arange(pieces)),
                k,
                layout.output(0, np.arange(pieces)),
            )
            yield step
            for column in (step.src_chunk, step.dst_chunk):
                setattr(column, attribute, to[attribute])
            dropped.append(step)

    schedule = Schedule("reshaped", layout, steps)
    kept = list(schedule.blocks())
    assert all(
        block.dst_chunk.tolist() == layout.output(0, np.arange(pieces)).tolist() for block in kept
    )
    assert dropped[0].dst_chunk.tolist() != kept[0].dst_chunk.tolist()
    assert simcoll.emulate(simcoll.bind(schedule, 500), crossbar(n, "50 GB/s", "1 us")).wrong == 0


@WARNED
def test_a_repeat_of_a_source_is_detached_too():
    order, inner = (
        np.array([4, 2, 3, 1]),
        transfers(np.zeros(4, np.int64), [4, 2, 3, 1], 1, [4, 2, 3, 1]),
    )
    repeat = Repeat((inner,), 4, 1, 0, 4, order)
    schedule = Schedule("turns", Layout(simcoll.Collective("all_gather", 4)), lambda: [repeat])
    (kept,) = schedule.blocks()
    before = [step.src_chunk.tolist() for step in kept.unrolled()]
    repeat.order.strides, inner.src_chunk.strides = (0,), (0,)
    assert [step.src_chunk.tolist() for step in kept.unrolled()] == before


def test_the_order_of_a_repeat_is_frozen():
    order = np.array([4, 2, 3, 1])
    repeat = Repeat((transfers(0, 4, 1, 4),), 4, 1, 0, 4, order)
    before = [step.src_chunk.tolist() for step in repeat.unrolled()]
    order[:] = 0
    assert [step.src_chunk.tolist() for step in repeat.unrolled()] == before
    for way in WAYS:
        with pytest.raises((ValueError, TypeError, BufferError)):
            way(repeat.order)
    for wrong in ([1.5, 2], np.ma.array([1, 2]), np.array([1, 2], object)):
        with pytest.raises(ConfigError, match="order of a Repeat must be whole numbers"):
            Repeat((transfers(0, 0, 1, 0),), 1, 1, 0, 1, wrong)


@pytest.mark.parametrize("waits", [7, [7], [(0, 1, 2)], "ab", [(0, 1.5)]])
def test_waits_that_are_no_pairs_are_refused_in_words(waits):
    with pytest.raises(ConfigError, match="wait"):
        Instruction("copy", 0, 2, waits=waits)


@pytest.mark.parametrize("buffers", [(1.0, 1, 0), (1, 1), 3, None, ("a", "b", "c")])
def test_buffers_that_are_no_numbers_are_refused_in_words(buffers):
    with pytest.raises(ConfigError, match="buffer"):
        RankProgram("x", 1, ((Lane(0, ()),),), buffers)


def test_equal_columns_of_scratch_take_the_memory_of_one():
    """A rank's slots all hold pieces of its own: n lists of n numbers, of which n are stored."""
    n = 2048
    column = np.arange(n)[:, None]
    tracemalloc.start()
    try:
        layout = Layout(
            simcoll.Collective("all_reduce", n),
            n,
            np.broadcast_to(np.zeros((n, 1), np.int64), (n, n)),
            np.broadcast_to(column, (n, n)),
        )
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert layout.scratch_pieces.shape == (n, n)
    assert layout.scratch_pieces[5].tolist() == [5] * n
    with pytest.raises(ValueError, match="read-only"):
        layout.scratch_pieces[0, 0] = 1
