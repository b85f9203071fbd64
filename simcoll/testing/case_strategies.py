"""Hypothesis strategies of cases for implementations, which shrink towards two ranks and one
element of a plain dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.internal import scrutineer
from hypothesis.strategies import DrawFn, SearchStrategy

from simcoll.core.collective import KINDS, Collective, collective_kind
from simcoll.core.reduction import parse_dtype
from simcoll.errors import ConfigError, nearest
from simcoll.testing.checks import several
from simcoll.testing.collective_cases import (
    MEMORIES,
    MOST_ROUNDED,
    Case,
    CaseOperation,
    Values,
    parse_reduction_text,
)
from simcoll.testing.object_values import OBJECT
from simcoll.testing.strategies import sizes
from simcoll.testing.wrong_calls import MISTAKES, MistakeName, undefined_reduction

__all__ = ["DTYPES", "OPS", "cases", "programs"]

# Hypothesis lists lines that only failing examples run: those of the kit that write the message of
# a failure always are among them, and say nothing. There is no public way to leave them out.
scrutineer.UNHELPFUL_LOCATIONS = (
    *getattr(scrutineer, "UNHELPFUL_LOCATIONS", ()),
    f"{Path(__file__).parents[1].as_posix()}/**",
)

DTYPES = (
    "int32",
    "float32",
    "int64",
    "float64",
    "uint8",
    "int8",
    "float16",
    "bfloat16",
    "bool",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
)
OPS = ("sum", "max", "min", "product", "band", "bor", "bxor", "avg", "premul_sum:2")
LARGE = 4099
"""Elements of a large block: a prime, above the sizes at which libraries change their algorithms
for small messages.
"""
MOST_RANKS = 5


@dataclass(frozen=True, slots=True)
class _Choices:
    """What operations are drawn from."""

    kinds: list[str]
    dtypes: list[str]
    ops: list[str]
    memories: list[str]
    uneven: bool
    groups: bool
    all_asynchronous: bool = False
    coalesced: bool = False
    mistakes: tuple[MistakeName, ...] = ()


def cases(
    kinds: Sequence[str] = tuple(KINDS),
    *,
    nranks: SearchStrategy[int] | None = None,
    dtypes: Sequence[str] = DTYPES,
    ops: Sequence[str] = OPS,
    memories: Sequence[str] = MEMORIES[:2],
    uneven: bool = True,
    groups: bool = True,
    in_flight: int = 1,
    coalesced: bool = False,
    mistakes: Sequence[MistakeName] = (),
) -> SearchStrategy[Case]:
    """Cases of one operation each, or of some in flight at once.

    Sizes are none, one, around the number of ranks, odd and large; roots, pairs, tags and members
    of groups are any; results are exact in any order of reduction or, for some sums and products of
    floats among at most five ranks, one of the results that the orders have.

    Parameters
    ----------
    kinds
        Kinds of collectives, plain ones first: cases shrink towards the first.
    nranks
        World sizes; default: 1 to 5, first 2.
    dtypes, ops
        Names; combinations that are not defined, such as ``max`` of complex numbers, are left out.
        ``object`` among the dtypes adds collectives of Python objects.
    memories
        Of :data:`~simcoll.testing.collective_cases.MEMORIES`; ``strided`` and ``reversed`` are for
        implementations that take arrays that are not contiguous.
    uneven
        Also blocks of different sizes.
    groups
        Also groups of some ranks, in any order.
    in_flight
        With more than 1, also cases of up to as many operations, all asynchronous, which are waited
        for after the last has started, in either order.
    coalesced
        Also cases of up to ``in_flight`` operations, at least two, that are issued as one unit:
        of one kind, group and dtype.
    mistakes
        Also wrong calls, of :data:`~simcoll.testing.wrong_calls.MISTAKES`, on every rank: each
        must raise the error that is due, and a right call behind it must work.

    Raises
    ------
    ConfigError
        For unknown kinds, dtypes, reductions or memories, and ``nranks`` that is not a strategy.

    Examples
    --------
    >>> from hypothesis import find, settings
    >>> print(find(cases(["broadcast"]), lambda case: case.nranks == 2 and case.operations))
    2 ranks: broadcast n=2 root=0, ranks [0, 1], counts 1, int32
    """
    if in_flight < 1:
        raise ConfigError(f"in_flight={in_flight}: expected 1 or more")
    choices = _choices(kinds, dtypes, ops, memories, uneven, groups)
    wrong = _mistakes(choices, mistakes)
    choices = replace(choices, all_asynchronous=True, coalesced=coalesced, mistakes=wrong)
    return _cases(choices, _ranks(nranks), in_flight)


def programs(
    kinds: Sequence[str] = tuple(KINDS),
    *,
    nranks: SearchStrategy[int] | None = None,
    dtypes: Sequence[str] = DTYPES,
    ops: Sequence[str] = OPS,
    memories: Sequence[str] = MEMORIES[:2],
    uneven: bool = True,
    most_operations: int = 6,
) -> SearchStrategy[Case]:
    """Cases of several operations on groups of the world, some of them asynchronous and waited for
    at the end, in either order.

    Parameters
    ----------
    most_operations
        The largest number of operations; all others as for :func:`cases`.
    """
    if most_operations < 1:
        raise ConfigError(f"most_operations={most_operations}: expected 1 or more")
    choices = _choices(kinds, dtypes, ops, memories, uneven, groups=True)
    return _cases(choices, _ranks(nranks), most_operations)


def _choices(
    kinds: Sequence[str],
    dtypes: Sequence[str],
    ops: Sequence[str],
    memories: Sequence[str],
    uneven: bool,
    groups: bool,
) -> _Choices:
    """The checked choices."""
    chosen = several("kinds", kinds, "['all_reduce', 'broadcast']")
    places = several("memories", memories, "['contiguous']")
    for name, values, legal in (("kind", chosen, KINDS), ("memory", places, MEMORIES)):
        for value in values:
            if value not in legal:
                raise ConfigError(f"unknown {name} {value!r:.60}; {nearest(str(value), legal)}")
    names = [_dtype_name(dtype) for dtype in several("dtypes", dtypes, "['float32']")]
    reductions = several("ops", ops, "['sum', 'max']")
    for op in reductions:
        parse_reduction_text(op, "int32")
    choices = _Choices(chosen, names, reductions, places, uneven, groups)
    reducing = [kind for kind in chosen if KINDS[collective_kind(kind)].reduces]
    if reducing and not _legal_reductions(choices):
        raise ConfigError(
            f"none of the ops {', '.join(reductions)} is defined on a dtype of {', '.join(names)}, "
            f"which {reducing[0]} needs"
        )
    return choices


def _dtype_name(dtype: Any) -> str:
    return OBJECT if dtype == OBJECT else str(parse_dtype(dtype).name)


def _mistakes(choices: _Choices, mistakes: Sequence[MistakeName]) -> tuple[MistakeName, ...]:
    """The checked mistakes; each must be possible in a kind of the choices."""
    names = several("mistakes", mistakes, "['root', 'length']") if mistakes else []
    for name in names:
        if name not in MISTAKES:
            raise ConfigError(f"unknown mistake {name!r:.60}; {nearest(str(name), MISTAKES)}")
        if not _mistaken_calls(choices, name):
            kinds = ", ".join(MISTAKES[name].kinds)
            raise ConfigError(
                f"mistake {name!r}: no kind and dtype of the choices has it; expected one of "
                f"{kinds}"
            )
    return tuple(names)


def _mistaken_calls(choices: _Choices, mistake: MistakeName) -> list[tuple[str, str]]:
    """Kinds and dtypes in which every rank can see a mistake."""
    kinds = [kind for kind in choices.kinds if kind in MISTAKES[mistake].kinds]
    dtypes = [dtype for dtype in choices.dtypes if dtype != OBJECT]
    if mistake == "reduction":
        dtypes = [dtype for dtype in dtypes if undefined_reduction(dtype)]
    return [
        (kind, dtype)
        for kind in kinds
        for dtype in dtypes
        if not KINDS[collective_kind(kind)].reduces or _is_legal(dtype, "sum")
    ]


def _ranks(nranks: Any) -> SearchStrategy[int]:
    if nranks is None:
        return st.sampled_from((2, 1, *range(3, MOST_RANKS + 1)))
    if not isinstance(nranks, SearchStrategy):
        raise ConfigError(
            f"nranks must be a strategy of Hypothesis, got {nranks!r:.60}; did you mean "
            f"hypothesis.strategies.just({nranks!r:.60})?"
        )
    return nranks


@st.composite
def _cases(
    draw: DrawFn, choices: _Choices, nranks: SearchStrategy[int], most_operations: int
) -> Case:
    n = draw(nranks)
    if len(choices.mistakes) > 0 and draw(st.booleans()):
        wrong = draw(_wrong_operations(choices, n))
        right = [replace(wrong, mistake="", seed=wrong.seed + 1)] if draw(st.booleans()) else []
        return Case(n, (wrong, *right))
    if choices.coalesced and draw(st.booleans()):
        return draw(_units(choices, n, max(2, most_operations)))
    number = draw(st.integers(1, most_operations))
    operations = [draw(_operations(choices, n, several_calls=number > 1)) for _ in range(number)]
    waiting = sum(operation.asynchronous for operation in operations) > 1
    return Case(n, tuple(operations), waiting and draw(st.booleans()))


@st.composite
def _units(draw: DrawFn, choices: _Choices, nranks: int, most_operations: int) -> Case:
    """Operations of one kind, group, dtype and reduction, of different sizes and data."""
    pattern = draw(_operations(choices, nranks, several_calls=False))
    operations = [replace(pattern, values="exact")]
    for _ in range(draw(st.integers(1, most_operations - 1))):
        counts = pattern.counts
        if pattern.collective.kind != "barrier":
            counts = draw(_counts(choices, pattern.collective))
        operations.append(replace(operations[-1], counts=counts, seed=operations[-1].seed + 1))
    return Case(nranks, tuple(operations), coalesced=True)


@st.composite
def _wrong_operations(draw: DrawFn, choices: _Choices, nranks: int) -> CaseOperation:
    """A call that is wrong on every rank, of few elements of even blocks."""
    mistake = draw(st.sampled_from(choices.mistakes))
    kind, dtype = draw(st.sampled_from(_mistaken_calls(choices, mistake)))
    ranks = draw(_members(choices, nranks))
    definition = draw(_definitions(replace(choices, kinds=[kind]), len(ranks)))
    return CaseOperation(
        replace(definition, in_place=False),
        ranks,
        draw(st.integers(1, 3)),
        dtype,
        seed=draw(st.integers(0, 2**16)),
        mistake=mistake,
    )


@st.composite
def _members(draw: DrawFn, choices: _Choices, nranks: int) -> tuple[int, ...]:
    """All ranks, or some in any order."""
    ranks: tuple[int, ...] = tuple(range(nranks))
    if choices.groups and nranks > 1 and draw(st.booleans()):
        return tuple(draw(st.permutations(ranks))[: draw(st.integers(1, nranks))])
    return ranks


@st.composite
def _operations(
    draw: DrawFn, choices: _Choices, nranks: int, *, several_calls: bool
) -> CaseOperation:
    ranks = draw(_members(choices, nranks))
    collective = draw(_definitions(choices, len(ranks)))
    counts = 0 if collective.kind == "barrier" else draw(_counts(choices, collective))
    dtype, op, values = draw(_numbers(choices, collective))
    return CaseOperation(
        collective,
        ranks,
        counts,
        dtype,
        op,
        memory=draw(st.sampled_from(choices.memories)),
        values=values,
        seed=draw(st.integers(0, 2**16)),
        tag=draw(st.integers(0, 3)) if collective.kind == "send_recv" else 0,
        asynchronous=several_calls and (choices.all_asynchronous or draw(st.booleans())),
    )


@st.composite
def _definitions(draw: DrawFn, choices: _Choices, nranks: int) -> Collective:
    kind = draw(st.sampled_from(choices.kinds))
    root = draw(st.integers(0, nranks - 1)) if KINDS[collective_kind(kind)].rooted else None
    pairs: tuple[tuple[int, int], ...] = ()
    if kind == "send_recv":
        sources, targets = (draw(st.permutations(range(nranks))) for _ in range(2))
        messages = [(src, dst) for src, dst in zip(sources, targets, strict=True) if src != dst]
        pairs = tuple(messages[: draw(st.integers(0, nranks))])
    in_place = KINDS[collective_kind(kind)].alias is not None and draw(st.booleans())
    return Collective(kind, nranks, root=root, pairs=pairs, in_place=in_place)


@st.composite
def _counts(draw: DrawFn, choices: _Choices, collective: Collective) -> Any:
    """One element first: an empty operation shows little."""
    n = collective.nranks
    even = st.sampled_from(tuple(dict.fromkeys((1, 2, n - 1, n, n + 1, 0, 2 * n + 1, 37, LARGE))))
    if not choices.uneven or collective.kind == "send_recv" or not draw(st.booleans()):
        return draw(even)
    counts = draw(sizes(collective))
    if isinstance(counts, int):
        return counts
    return tuple(tuple(row) if isinstance(row, list) else row for row in counts)


@st.composite
def _numbers(draw: DrawFn, choices: _Choices, collective: Collective) -> tuple[str, str, Values]:
    """A dtype, a reduction that is defined on it, and the kind of values."""
    if not collective.spec.reduces:
        return draw(st.sampled_from(choices.dtypes)), "sum", "exact"
    dtype, op = draw(st.sampled_from(_legal_reductions(choices)))
    rounds = parse_dtype(dtype).kind not in "biuc" and op in ("sum", "product", "avg")
    if rounds and collective.nranks <= MOST_ROUNDED and draw(st.booleans()):
        return dtype, op, "rounded"
    return dtype, op, "exact"


def _legal_reductions(choices: _Choices) -> list[tuple[str, str]]:
    """Pairs of a dtype and a reduction that is defined on it, plain reductions first."""
    return [(dtype, op) for op in choices.ops for dtype in choices.dtypes if _is_legal(dtype, op)]


def _is_legal(dtype: str, op: str) -> bool:
    if dtype == OBJECT:
        return False
    try:
        parse_reduction_text(op, dtype)
    except ConfigError:
        return False
    return True
