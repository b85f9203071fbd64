"""Every collective in every form: place, sizes, roots, groups, reductions and dtypes, in
combinations that cover all pairs.

What is compared with is a definition on lists of numbers, written here from the names of the
collectives.
"""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import simcoll
from simcoll.core.collective import KINDS, Collective
from simcoll.core.reduction import REDUCTIONS, parse_dtype
from simcoll.errors import ConfigError, ScheduleError
from simcoll.proving import check_lowering
from simcoll.topology import crossbar

MOVING = [kind for kind in KINDS if kind != "barrier"]
REDUCING = [kind for kind in KINDS if KINDS[kind].reduces]
NAMES = {
    "broadcast": ["tree", "chain", "linear"],
    "reduce": ["tree", "chain", "linear"],
    "all_reduce": ["ring", "tree", "recursive_doubling"],
    "all_gather": ["ring", "bruck", "direct"],
    "reduce_scatter": ["ring", "recursive_halving", "direct"],
    "gather": ["tree", "linear"],
    "scatter": ["tree", "linear"],
    "all_to_all": ["direct", "pairwise", "bruck"],
    "send_recv": ["direct"],
}
WORLD = crossbar(9, "50 GB/s", "1 us")
DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "complex64",
    "complex128",
]
OPS = [*REDUCTIONS, "avg", simcoll.types.premul_sum(2)]


def collective_of(kind, n, root=None, *, in_place=False):
    pairs = tuple((r, (r + 2) % n) for r in range(n) if r != 1) if kind == "send_recv" else ()
    return Collective(kind, n, root=root, pairs=pairs, in_place=in_place)


def inputs_of(plan):
    """Small whole numbers that differ by rank and place: sums of four of 0..2, and products of four
    of 1..2, are exact in float8.
    """
    result = []
    for rank in range(plan.nranks):
        mixed = (np.arange(plan.view(rank, 0)[2]) * 3 + 5 * rank) % 7
        values = 1 + mixed % 2 if plan.op == "product" and plan.dtype.kind != "b" else mixed % 3
        result.append(values.astype(plan.dtype))
    return result


def blocks_of(plan, rank, values):
    """The blocks that the input of a rank consists of."""
    sizes, n = plan.sizes, plan.nranks
    kind, each = plan.collective.kind, np.arange(n)
    if kind in ("reduce_scatter", "scatter", "all_to_all"):
        lengths = (
            [sizes] * n
            if isinstance(sizes, int)
            else sizes[rank * n + each]
            if kind == "all_to_all"
            else sizes
        )
        return np.split(values, np.cumsum(lengths)[:-1])
    return [values]


def reduced(op, dtype, parts):
    """The reduction, in the widest type of its kind."""
    wide = {"b": object, "i": object, "u": object, "c": np.complex128}.get(dtype.kind, np.float64)
    values = [part.astype(wide) for part in parts]
    name = op if isinstance(op, str) else op.name
    if dtype.kind == "b":
        fold = {
            "sum": np.any,
            "max": np.any,
            "bor": np.any,
            "product": np.all,
            "min": np.all,
            "band": np.all,
        }
        stack = np.array(parts)
        return fold[name](stack, axis=0) if name in fold else np.logical_xor.reduce(stack)
    functions = {
        "product": lambda a, b: a * b,
        "min": np.minimum,
        "max": np.maximum,
        "band": lambda a, b: a & b,
        "bor": lambda a, b: a | b,
        "bxor": lambda a, b: a ^ b,
    }
    factor = 2 if name == "premul_sum" else 1
    total = values[0] * factor if factor > 1 else values[0]
    for value in values[1:]:
        total = functions[name](total, value) if name in functions else total + value * factor
    if name == "avg":
        # Whole numbers are cut off towards zero; the sums here are not negative.
        total = (
            total // len(parts)
            if dtype.kind in "iu"
            else total.astype(dtype) / dtype.type(len(parts))
        )
    return total.astype(dtype)


def wanted(plan, op, inputs):
    """What each rank must hold, or None."""
    collective, n = plan.collective, plan.nranks
    blocks = [blocks_of(plan, rank, values) for rank, values in enumerate(inputs)]
    ranks, root = range(n), collective.root
    match collective.kind:
        case "broadcast":
            return [inputs[root]] * n
        case "reduce" | "all_reduce":
            total = reduced(op, plan.dtype, inputs)
            return [total if r == root or root is None else None for r in ranks]
        case "all_gather":
            return [np.concatenate(inputs)] * n
        case "gather":
            return [np.concatenate(inputs) if r == root else None for r in ranks]
        case "reduce_scatter":
            return [reduced(op, plan.dtype, [blocks[s][r] for s in ranks]) for r in ranks]
        case "scatter":
            return [blocks[root][r] for r in ranks]
        case "all_to_all":
            return [np.concatenate([blocks[s][r] for s in ranks]) for r in ranks]
        case "send_recv":
            source = {dst: src for src, dst in collective.pairs}
            return [inputs[source[r]] if r in source else None for r in ranks]
    raise NotImplementedError(collective.kind)


def run(schedule, count, dtype="int32", op="sum", ranks=None):
    """Prove, lower, check, emulate; compare with the definition."""
    plan = simcoll.bind(schedule, count, dtype, op, ranks=ranks)
    check_lowering(plan)
    inputs = inputs_of(plan)
    before = [values.copy() for values in inputs]
    result = simcoll.emulate(plan, WORLD, data=inputs)
    for rank, (got, want) in enumerate(zip(result.outputs, wanted(plan, op, before), strict=True)):
        assert (got is None) == (want is None), rank
        if want is not None:
            assert got.dtype == want.dtype == plan.dtype
            np.testing.assert_array_equal(got, want, err_msg=f"{plan}, rank {rank}")
    for values, old in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(values, old)
    return result


def counts_of(kind, n):
    """An even count, none, and uneven counts with zeros, whole zero rows and columns."""
    uneven = [(3 * r) % (n + 1) for r in range(n)]
    if kind in ("all_gather", "gather", "reduce_scatter", "scatter", "send_recv"):
        return [2 * n + 1, 0, uneven, [0] * n, [7 if r == n - 1 else 0 for r in range(n)]]
    if kind == "all_to_all":
        matrix = np.array([[(2 * s + 3 * d) % 5 for d in range(n)] for s in range(n)])
        matrix[n // 2], matrix[:, n - 1] = 0, 0
        return [n - 1, 0, matrix.tolist(), np.eye(n, dtype=int).tolist()]
    return [2 * n + 1, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MOVING)
@pytest.mark.parametrize("in_place", [False, True], ids=["out-of-place", "in-place"])
def test_every_size_and_place(kind, in_place):
    for position, (name, n) in enumerate(itertools.product(NAMES[kind], (1, 2, 3, 5))):
        schedule = simcoll.schedule(collective_of(kind, n, in_place=in_place), name)
        for count in counts_of(kind, n):
            group = list(np.roll(range(9), position)[:n]) if position % 2 else None
            if schedule.divisible and not isinstance(count, int):
                with pytest.raises(ConfigError, match="needs equal blocks"):
                    simcoll.bind(schedule, count)
                continue
            run(schedule, count, ranks=group)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].rooted])
def test_every_root(kind):
    for name in NAMES[kind]:
        for n, in_place in ((3, False), (4, True), (5, False)):
            for root in range(n):
                schedule = simcoll.schedule(collective_of(kind, n, root, in_place=in_place), name)
                run(
                    schedule,
                    counts_of(kind, n)[2 if KINDS[kind].nblocks(n) > 1 else 0],
                    ranks=list(range(8, 8 - n, -1)),
                )


PAIRS = [(0, 3), (3, 0), (1, 1)]


@pytest.mark.parametrize(
    "pairs", [PAIRS, [], [(r, (r + 1) % 4) for r in range(4)], [(3, 1)]], ids=str
)
def test_any_pairs(pairs):
    for in_place in (False, True):
        schedule = simcoll.schedule(
            Collective("send_recv", 4, pairs=tuple(pairs), in_place=in_place), "direct"
        )
        run(schedule, 5)
        run(schedule, [3, 0, 2, 7], ranks=[6, 1, 8, 0])


@pytest.mark.parametrize("name", ["dissemination", "tree", "linear"])
def test_barriers_of_groups(name):
    for n in (1, 2, 5):
        plan = simcoll.bind(
            simcoll.schedule("barrier", name, nranks=n), 0, ranks=list(range(8, 8 - n, -1))
        )
        check_lowering(plan)
        assert (simcoll.emulate(plan, WORLD).time_fs > 0) == (n > 1)


def defined(op, dtype):
    """Where a reduction is defined: written here, not read from the code."""
    name, kind = (op if isinstance(op, str) else op.name), np.dtype(dtype).kind
    if name in ("band", "bor", "bxor"):
        return kind in "biu"
    if name in ("min", "max"):
        return kind != "c"
    return kind != "b" if name in ("avg", "premul_sum") else True


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_reduction_on_every_dtype(dtype):
    # Each collective that reduces takes its turn: every (dtype, op), (dtype, collective) and (op,
    # collective) comes up.
    for position, op in enumerate(OPS):
        kind = REDUCING[(position + DTYPES.index(dtype)) % len(REDUCING)]
        name = NAMES[kind][position % 3]
        schedule = simcoll.schedule(collective_of(kind, 4, in_place=position % 2 == 1), name)
        if defined(op, parse_dtype(dtype)):
            run(schedule, 5, dtype, op)
        else:
            with pytest.raises(
                ConfigError,
                match=rf"reduction '{op if isinstance(op, str) else op.name}' .*{dtype}|defined on "
                r"bool",
            ):
                simcoll.bind(schedule, 5, dtype, op)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_moves(dtype):
    for position, kind in enumerate(MOVING):
        if not KINDS[kind].reduces:
            schedule = simcoll.schedule(
                collective_of(kind, 3, in_place=position % 2 == 0), NAMES[kind][0]
            )
            run(schedule, 4, dtype)


def test_the_pairs_are_all_covered():
    combinations = [
        (REDUCING[(position + d) % len(REDUCING)], d, position)
        for d in range(len(DTYPES))
        for position in range(len(OPS))
        if defined(OPS[position], parse_dtype(DTYPES[d]))
    ]
    assert {(kind, d) for kind, d, _ in combinations} == set(
        itertools.product(REDUCING, range(len(DTYPES)))
    )
    assert {(kind, p) for kind, _, p in combinations} == set(
        itertools.product(REDUCING, range(len(OPS)))
    )


def test_the_exact_dtypes_come_from_ml_dtypes():
    assert parse_dtype("bfloat16") == ml_dtypes.bfloat16
    assert all(parse_dtype(name).itemsize == 1 for name in DTYPES if name.startswith("float8"))


@pytest.mark.parametrize(
    ("dtype", "op", "words"),
    [
        ("float32", "band", "reduction 'band' needs an integer or bool dtype, got float32"),
        ("bfloat16", "bxor", "reduction 'bxor' needs an integer or bool dtype, got bfloat16"),
        (
            "complex64",
            "max",
            "reduction 'max' is not defined on complex64: complex numbers have no order",
        ),
        ("bool", "avg", "reduction 'avg' is not defined on bool"),
        ("int32", simcoll.types.premul_sum(0.5), "premul_sum(0.5) needs a whole factor on int32"),
        (
            "float32",
            "premul_sum",
            "premul_sum needs its factor: simcoll.types.premul_sum(0.5), or as text premul_sum:0.5",
        ),
        ("float32", "mean", "unknown reduction 'mean'"),
        ("str", "sum", "dtype 'str' is not a number type"),
    ],
)
def test_the_error_where_a_reduction_is_not_defined(dtype, op, words):
    with pytest.raises(ConfigError) as error:
        simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=3), 4, dtype, op)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("kind", "count", "words"),
    [
        (
            "all_reduce",
            [1, 2, 3],
            "all_reduce of 3 ranks takes one whole number; got counts of shape (3,)",
        ),
        (
            "all_gather",
            [1, 2],
            "takes one whole number or counts of shape (3,); got counts of shape (2,)",
        ),
        (
            "all_to_all",
            [1, 2, 3],
            "takes one whole number or counts of shape (3, 3); got counts of shape (3,)",
        ),
        ("all_to_all", [[1, 2, 3], [1, 2], [1]], "a square matrix of whole numbers"),
        ("scatter", [1, -1, 2], "count -1 is negative"),
        ("gather", [1.5, 2, 3], "counts must be whole numbers"),
    ],
)
def test_the_error_where_sizes_do_not_fit(kind, count, words):
    with pytest.raises(ConfigError) as error:
        simcoll.bind(simcoll.schedule(kind, NAMES[kind][0], nranks=3), count)
    assert words in str(error.value)


def test_a_schedule_with_a_hole_is_an_error_for_every_collective():
    for kind in MOVING:
        good = simcoll.schedule(collective_of(kind, 4), NAMES[kind][0])
        steps = list(good.steps())
        last = max(number for number, step in enumerate(steps) if len(step))
        keep = np.arange(len(steps[last])) > 0
        names = ("src_rank", "src_chunk", "dst_rank", "dst_chunk")
        columns = [getattr(steps[last], name)[keep] for name in names]
        rest = {name: getattr(steps[last], name)[keep] for name in ("count", "op", "channel")}
        steps[last] = simcoll.transfers(*columns, **rest)
        hole = simcoll.Schedule("hole", good.layout, lambda steps=steps: steps, good.nchannels)
        with pytest.raises(ScheduleError, match="hole"):
            simcoll.bind(hole, 4)


def test_overwriting_an_input_out_of_place_is_an_error():
    for kind in ("broadcast", "all_reduce", "all_gather", "all_to_all"):
        good = simcoll.schedule(collective_of(kind, 3), NAMES[kind][0])
        # All outputs are right; then rank 1 copies its result over its own input.
        back = simcoll.transfers(1, good.layout.output(1 if kind == "all_gather" else 0), 1, 0)
        steps = [*good.steps(), back]
        spoiled = simcoll.Schedule(
            "spoiled", good.layout, lambda steps=steps: steps, good.nchannels
        )
        with pytest.raises(ScheduleError, match="inputs are read-only") as error:
            simcoll.bind(spoiled, 6)
        assert (error.value.rank, error.value.chunk, error.value.step) == (1, 0, len(steps) - 1)


def test_a_factor_scales_nothing_where_nothing_is_reduced():
    plan = simcoll.bind(
        simcoll.schedule("all_gather", "ring", nranks=3), 4, "float32", simcoll.types.premul_sum(3)
    )
    assert simcoll.emulate(plan, crossbar(3, "1 GB/s")).wrong == 0
