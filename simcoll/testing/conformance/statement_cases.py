"""Statements of the semantics as cases, which any implementation can play."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from simcoll.core.collective import KINDS, Collective, collective_kind
from simcoll.core.vocabulary import CollectiveKind
from simcoll.testing.collective_cases import MOST_ROUNDED, Case, CaseOperation
from simcoll.testing.object_values import OBJECT
from simcoll.testing.wrong_calls import MistakeName

__all__ = ["CASES"]

FLOATS = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
)
INTEGERS = (
    "int8",
    "uint8",
    "int32",
    "int64",
)
SEEDS = (0, 1)
"""Even and odd: adapters choose between equal calls of an interface by it."""


def _operation(kind: CollectiveKind, n: int, counts: Any = 3, **options: Any) -> CaseOperation:
    """An operation of all ranks."""
    definition = {
        name: options.pop(name) for name in ("root", "pairs", "in_place") if name in options
    }
    ranks = options.pop("ranks", tuple(range(n)))
    return CaseOperation(Collective(kind, len(ranks), **definition), ranks, counts, **options)


def _case(kind: CollectiveKind, n: int, counts: Any = 3, **options: Any) -> Case:
    """A case of one operation of all ranks."""
    return Case(n, (_operation(kind, n, counts, **options),))


def _sizes(kind: CollectiveKind, n: int, **options: Any) -> Iterator[Case]:
    """Awkward sizes, and a large one."""
    for count in (1, 0, n - 1, n + 1, 37, 4099):
        for seed in SEEDS:
            yield _case(kind, n, count, seed=seed, **options)


def _dtypes(
    kind: CollectiveKind, n: int, dtypes: tuple[str, ...], **options: Any
) -> Iterator[Case]:
    for dtype in dtypes:
        for seed in SEEDS:
            yield _case(kind, n, dtype=dtype, seed=seed, **options)


def _roots(kind: CollectiveKind, n: int) -> Iterator[Case]:
    for root in range(n):
        yield _case(kind, n, root=root, in_place=False)
        yield _case(kind, n, root=root, in_place=True)


def _groups(kind: CollectiveKind, n: int) -> Iterator[Case]:
    """Groups of some ranks, in the order of the world."""
    for ranks in {(0,), (n - 1,), tuple(range(n - 1)), tuple(range(1, n))}:
        if ranks:
            for seed in SEEDS:
                yield _case(kind, n, ranks=ranks, seed=seed)


def _reverse_groups(kind: CollectiveKind, n: int) -> Iterator[Case]:
    """A group whose order is not that of the world."""
    for seed in SEEDS:
        yield _case(kind, n, ranks=tuple(reversed(range(n))), seed=seed)


def _in_place(kind: CollectiveKind, n: int) -> Iterator[Case]:
    for seed in SEEDS:
        yield _case(kind, n, in_place=True, seed=seed)


def _uneven_blocks(kind: CollectiveKind, n: int) -> Iterator[Case]:
    """Blocks of different sizes, also none."""
    sizes = tuple((3 * rank) % 5 for rank in range(n))
    counts: Any = sizes
    if kind == "all_to_all":
        counts = tuple(tuple((row + 2 * column) % 4 for column in range(n)) for row in range(n))
    for seed in SEEDS:
        yield _case(kind, n, counts, seed=seed)


def _strided_memory(kind: CollectiveKind, n: int) -> Iterator[Case]:
    for seed in SEEDS:
        for count in (3, 37):
            yield _case(kind, n, count, memory="strided", seed=seed, dtype="float32")


def _form(
    kind: CollectiveKind, n: int, seed: int, dtypes: tuple[str, ...] = ("int32",)
) -> Iterator[Case]:
    """One of two equal calls of an interface, chosen by the seed."""
    for count in (1, 5, 37):
        for dtype in dtypes:
            yield _case(kind, n, count, dtype=dtype, seed=seed)


def _ring(n: int) -> tuple[tuple[int, int], ...]:
    return tuple((rank, (rank + 1) % n) for rank in range(n)) if n > 1 else ()


def _messages(n: int, *tags: int, reverse: bool = False, **options: Any) -> Iterator[Case]:
    """Messages around a ring, all in flight at once, with one tag each."""
    operations = tuple(
        _operation(
            "send_recv", n, pairs=_ring(n), tag=tag, seed=index, asynchronous=True, **options
        )
        for index, tag in enumerate(tags)
    )
    yield Case(n, operations, reverse_waits=reverse)


def _several(kind: CollectiveKind, n: int, *, reverse: bool) -> Iterator[Case]:
    """Several asynchronous operations of one group."""
    operations = tuple(_operation(kind, n, seed=seed, asynchronous=True) for seed in range(4))
    yield Case(n, operations, reverse_waits=reverse)


def _two_groups(n: int) -> Iterator[Case]:
    """Operations of groups that share ranks, in flight at once."""
    world, part = tuple(range(n)), tuple(range(1, n))
    if part:
        operations = tuple(
            _operation("all_reduce", n, ranks=ranks, seed=seed, asynchronous=True)
            for seed, ranks in enumerate((world, part, world, part))
        )
        yield Case(n, operations)
        yield Case(n, operations, reverse_waits=True)


def _reductions(n: int, ops: tuple[str, ...], dtypes: tuple[str, ...]) -> Iterator[Case]:
    for op in ops:
        for dtype in dtypes:
            yield _case("all_reduce", n, 5, op=op, dtype=dtype)


def _orders(n: int) -> Iterator[Case]:
    """Sums whose rounding shows their order, which may be any; of few ranks, as orders are many."""
    ranks = tuple(range(min(n, MOST_ROUNDED)))
    for kind in ("all_reduce", "reduce", "reduce_scatter"):
        for dtype in ("float32", "float64"):
            yield _case(kind, n, 17, ranks=ranks, dtype=dtype, values="rounded", seed=2)


def _overflows(n: int) -> Iterator[Case]:
    """Sums beyond the range of integers, of few elements and of whole vector registers."""
    for count in (3, 67):
        for dtype in INTEGERS:
            yield _case("all_reduce", n, count, dtype=dtype)


def _every_kind(n: int, **options: Any) -> Iterator[Case]:
    for kind in KINDS:
        pairs = {"pairs": _ring(n)} if kind == "send_recv" else {}
        yield _case(kind, n, 0 if kind == "barrier" else 3, **pairs, **options)


def _asynchronous(n: int) -> Iterator[Case]:
    for case in _every_kind(n):
        yield replace(case, operations=(replace(case.operations[0], asynchronous=True),))


def _wrong(
    mistake: MistakeName, kind: CollectiveKind, n: int, seed: int, **options: Any
) -> Iterator[Case]:
    """A wrong call, and a right one behind it."""
    wrong = _operation(kind, n, mistake=mistake, seed=seed, **options)
    yield Case(n, (wrong, replace(wrong, mistake="", seed=seed + 2)))


def _wrong_peers(n: int) -> Iterator[Case]:
    """In a group of some ranks: gloo does not look outside of the world."""
    if n > 2:
        members = tuple(range(n - 1))
        yield from _wrong("peer", "send_recv", n, 0, ranks=members, pairs=_ring(n - 1))


def _undefined_reductions(n: int) -> Iterator[Case]:
    for kind in ("all_reduce", "reduce", "reduce_scatter"):
        for dtype in COMPLEX:
            yield from _wrong("reduction", kind, n, 0, dtype=dtype)


def _wrong_blocks(kind: CollectiveKind, n: int) -> Iterator[Case]:
    """The call that has no counts, which an odd seed chooses."""
    yield from _wrong("length", kind, n, 1)
    yield from _wrong("dtype", kind, n, 1)


def _objects(kind: CollectiveKind, n: int) -> Iterator[Case]:
    """Python objects, one and several for each rank, from every root."""
    roots = range(n) if KINDS[collective_kind(kind)].rooted else (None,)
    for root in roots:
        for count in (1, 5):
            yield _case(kind, n, count, root=root, dtype=OBJECT, seed=count)


def _object_messages(n: int) -> Iterator[Case]:
    for count in (1, 5):
        yield _case("send_recv", n, count, pairs=_ring(n)[:1], dtype=OBJECT, seed=count)
        yield _case("send_recv", n, count, pairs=_ring(n), dtype=OBJECT, seed=count + 1)


def _batches(n: int) -> Iterator[Case]:
    """Messages of one batch: around the ring in both directions, with tags of their own."""
    reversed_ring = tuple((target, source) for source, target in _ring(n))
    operations = tuple(
        _operation("send_recv", n, pairs=pairs, tag=tag, seed=tag)
        for tag, pairs in enumerate((_ring(n), reversed_ring, _ring(n)))
    )
    if n > 1:
        yield Case(n, operations, coalesced=True)
        yield Case(n, operations[::-1], coalesced=True)


COMPLEX = (
    "complex64",
    "complex128",
)
ARITHMETIC = (
    "sum",
    "product",
    "min",
    "max",
)
BITWISE = (
    "band",
    "bor",
    "bxor",
)

_OF_A_KIND: dict[str, tuple[Callable[[CollectiveKind, int], Iterator[Case]], CollectiveKind]] = {
    "GR-08": (_reverse_groups, "all_gather"),
    "BC-01": (_sizes, "broadcast"),
    "AR-01": (_sizes, "all_reduce"),
    "RD-01": (_sizes, "reduce"),
    "AG-01": (_sizes, "all_gather"),
    "GA-01": (_sizes, "gather"),
    "SC-01": (_sizes, "scatter"),
    "RS-01": (_sizes, "reduce_scatter"),
    "BC-03": (_roots, "broadcast"),
    "RD-02": (_roots, "reduce"),
    "GA-03": (_roots, "gather"),
    "SC-03": (_roots, "scatter"),
    "AR-05": (_strided_memory, "all_reduce"),
    "AG-03": (_uneven_blocks, "all_gather"),
    "RS-05": (_uneven_blocks, "reduce_scatter"),
    "AG-04": (_groups, "all_gather"),
    "RS-06": (_groups, "reduce_scatter"),
    "AT-06": (_in_place, "all_gather"),
    "AT-04": (_wrong_blocks, "all_gather"),
    "RT-04": (_wrong_blocks, "reduce_scatter"),
    "OB-01": (_objects, "all_gather"),
    "OB-03": (_objects, "gather"),
    "OB-05": (_objects, "broadcast"),
    "OB-07": (_objects, "scatter"),
}

CASES: dict[str, Callable[[int], Iterator[Case]]] = {
    "GR-01": _every_kind,
    "GR-07": _two_groups,
    "GR-24": _two_groups,
    "PP-01": lambda n: iter([_case("send_recv", n, pairs=_ring(n)[:1])]),
    "PP-02": lambda n: iter([_case("send_recv", n, ranks=tuple(range(1, n)), pairs=_ring(n - 1))]),
    "PP-10": _wrong_peers,
    "PP-12": lambda n: _messages(n, 0, 1, 2, reverse=True),
    "PP-13": lambda n: _messages(n, 0, 0, 0, 0),
    "PP-15": lambda n: _messages(n, 0),
    "PP-24": lambda n: (
        _case("send_recv", n, count, pairs=_ring(n), dtype=dtype)
        for dtype in ("float32", "bool", "bfloat16", *COMPLEX)
        for count in (0, 3)
    ),
    "PP-30": _batches,
    "PP-31": lambda n: _messages(n, 0),
    "PP-32": _batches,
    "PP-33": lambda n: _messages(n, 3, 3, 3),
    "PP-36": _object_messages,
    "PP-37": _object_messages,
    "WK-01": _every_kind,
    "WK-02": _asynchronous,
    "WK-12": lambda n: _several("all_reduce", n, reverse=True),
    "BC-04": lambda n: _dtypes("broadcast", n, COMPLEX),
    "AR-03": lambda n: _dtypes("all_reduce", n, COMPLEX),
    "AR-04": lambda n: _reductions(n, ("sum", "avg"), COMPLEX),
    "AR-06": lambda n: iter([_case("all_reduce", n, count) for count in (1, 0)]),
    "AR-07": _orders,
    "AR-08": _overflows,
    "RD-03": lambda n: _dtypes("reduce", n, COMPLEX),
    "AG-02": lambda n: _dtypes("all_gather", n, ("int64", *COMPLEX)),
    "AT-01": lambda n: _form("all_gather", n, 1),
    "AT-05": lambda n: _form("all_gather", n, 1, COMPLEX),
    "GA-06": lambda n: _dtypes("gather", n, COMPLEX),
    "SC-04": lambda n: _dtypes("scatter", n, COMPLEX),
    "RT-01": lambda n: _form("reduce_scatter", n, 1),
    "RT-03": lambda n: _form("reduce_scatter", n, 1, FLOATS),
    "A1-01": lambda n: _form("all_to_all", n, 0),
    "A1-02": lambda n: iter(list(_uneven_blocks("all_to_all", n))[:1]),
    "A1-03": lambda n: _form("all_to_all", n, 0, COMPLEX),
    "A1-05": lambda n: _wrong("length", "all_to_all", n, 0),
    "A1-06": lambda n: iter(
        [_case("all_to_all", n, 0), *list(_uneven_blocks("all_to_all", n))[:1]]
    ),
    "AA-01": lambda n: _form("all_to_all", n, 1),
    "AA-02": lambda n: iter(list(_uneven_blocks("all_to_all", n))[1:]),
    "AA-03": lambda n: _form("all_to_all", n, 1, COMPLEX),
    "BA-02": lambda n: _several("barrier", n, reverse=False),
    "RO-01": lambda n: _reductions(n, ARITHMETIC, (*FLOATS, *INTEGERS, "bool")),
    "RO-02": lambda n: _reductions(n, ARITHMETIC, ("int16", "uint16")),
    "RO-03": lambda n: _reductions(n, BITWISE, (*INTEGERS, "bool")),
    "RO-04": lambda n: _reductions(n, (*ARITHMETIC, "bxor"), ("bool",)),
    "RO-05": lambda n: _reductions(n, ("avg",), (*FLOATS, *COMPLEX)),
    "RO-07": lambda n: _reductions(n, ("premul_sum:2",), ("float32", "float64")),
    "RO-08": _undefined_reductions,
}
"""Cases of each statement, for a number of ranks."""
for _row, (_cases_of, _kind) in _OF_A_KIND.items():
    CASES[_row] = partial(_cases_of, _kind)
