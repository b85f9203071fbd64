"""What every transport must do alike: a selection of cases in which every two choices that go
together meet, and the check of one case.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

import realcoll
import simcoll
from realcoll.turns import part
from simcoll.algorithms import ALGORITHMS
from simcoll.core.collective import KINDS
from simcoll.core.reduction import parse_dtype, parse_reduction
from simcoll.core.reference import exact_inputs, expected_outputs
from simcoll.core.wiring import wire
from simcoll.emulator import emulate
from simcoll.proving import check_lowering
from simcoll.proving.program_proof import check_order
from simcoll.testing.examples import needed_params
from simcoll.topology import crossbar
from tests.support.turns_read_back import program_of

RANKS = (1, 2, 3, 4, 5, 7, 8)
MOST = 8
COUNTS = ("0", "1", "n-1", "n", "n+1", "257")
DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "uint8",
    "int32",
    "int64",
    "uint64",
    "bool",
    "complex64",
    "complex128",
)
OPS = ("sum", "product", "min", "max", "band", "bor", "bxor", "avg", "premul_sum")
ROOTS = ("first", "last", "middle")
PLACES = ("straight", "reversed", "apart")
"""Endpoints of the ranks among eight: 0.., ..0, or with gaps."""
FACTORS = ("algorithm", "nranks", "count", "dtype", "op", "root", "in_place", "place")


@dataclass(frozen=True, slots=True)
class Case:
    algorithm: tuple[str, str]
    nranks: int
    count: str
    dtype: str
    op: str
    root: str
    in_place: bool
    place: str

    def __str__(self) -> str:
        parts = (
            *self.algorithm,
            self.nranks,
            self.count,
            self.dtype,
            self.op,
            self.root,
            self.in_place,
            self.place,
        )
        return "-".join(map(str, parts))

    def plan(self) -> simcoll.types.Plan | None:
        """The plan; None where the algorithm does not serve it or the reduction is not defined."""
        return _plan(self)


@cache
def _schedule(
    kind: str, name: str, n: int, root: int | None, *, in_place: bool
) -> simcoll.Schedule | None:
    """The schedule; None where the algorithm does not serve it."""
    found = next(found for found in ALGORITHMS if (found.collective, found.name) == (kind, name))
    params: dict[str, Any] = {"pieces": 2} if "pieces" in found.params and n > 3 else {}
    params = needed_params(kind, name, n) | params
    if name == "hierarchical":
        params["box"] = next(box for box in (2, 3, 5, 7, 1) if n % box == 0)
    try:
        return simcoll.schedule(kind, name, nranks=n, root=root, in_place=in_place, **params)
    except simcoll.ConfigError:
        return None


@cache
def _plan(case: Case) -> simcoll.types.Plan | None:
    kind, name = case.algorithm
    n = case.nranks
    if not KINDS[kind].reduces and case.op != "sum":
        return None  # without a reduction there is only one
    op: Any = simcoll.types.premul_sum(2) if case.op == "premul_sum" else case.op
    try:
        parse_reduction(op, parse_dtype(case.dtype))
    except simcoll.ConfigError:
        return None
    root = {"first": 0, "last": n - 1, "middle": n // 2}[case.root] if KINDS[kind].rooted else None
    schedule = _schedule(kind, name, n, root, in_place=case.in_place)
    if schedule is None:
        return None
    count = {"0": 0, "1": 1, "n-1": n - 1, "n": n, "n+1": n + 1, "257": 257}[case.count]
    if kind == "barrier":
        count = 0
    ranks = {
        "straight": range(n),
        "reversed": range(n - 1, -1, -1),
        "apart": [r * MOST // n for r in range(n)],
    }
    try:
        return simcoll.bind(
            schedule, count, case.dtype, op, ranks=list(ranks[case.place]), unproved=True
        )
    except simcoll.ConfigError:
        return None


def _choices() -> dict[str, tuple[Any, ...]]:
    algorithms = tuple((found.collective, found.name) for found in ALGORITHMS)
    return dict(
        zip(
            FACTORS,
            (algorithms, RANKS, COUNTS, DTYPES, OPS, ROOTS, (False, True), PLACES),
            strict=True,
        )
    )


def _pairs(case: Case) -> set[tuple[str, Any, str, Any]]:
    return {
        (a, getattr(case, a), b, getattr(case, b)) for a, b in itertools.combinations(FACTORS, 2)
    }


@cache
def select(seed: int = 0) -> tuple[Case, ...]:
    """Cases such that every legal pair of choices occurs: each still missing pair gets a case, with
    the rest at random.
    """
    choices, rng, cases = _choices(), random.Random(seed), []
    covered: set[tuple[str, Any, str, Any]] = set()
    for first, second in itertools.combinations(FACTORS, 2):
        for one, two in itertools.product(choices[first], choices[second]):
            if (first, one, second, two) in covered:
                continue
            for _ in range(40):
                picked = {name: rng.choice(values) for name, values in choices.items()} | {
                    first: one,
                    second: two,
                }
                if not KINDS[picked["algorithm"][0]].reduces and "op" not in {first, second}:
                    picked["op"] = "sum"
                case = Case(**picked)
                if case.plan() is not None:
                    cases.append(case)
                    covered |= _pairs(case)
                    break
    return tuple(_needed(cases))


def _needed(cases: list[Case]) -> Iterator[Case]:
    """The cases without those of which every pair occurs in others."""
    times = Counter(pair for case in cases for pair in _pairs(case))
    for case in cases:
        if all(times[pair] > 1 for pair in _pairs(case)):
            times.subtract(_pairs(case))
        else:
            yield case


def machine() -> simcoll.types.Topology:
    """Any topology will do, if its switch can reduce."""
    return replace(crossbar(MOST, "50 GB/s", "1 us"), traits={"switch_reduce": "yes"})


def ordered_inputs(plan: simcoll.types.Plan) -> list[np.ndarray]:
    """Data whose sum depends on the order; whole bytes of it for types without fractions."""
    result = []
    for rank in range(plan.nranks):
        rng = np.random.default_rng([3, rank])
        values = rng.standard_normal(plan.view(rank, 0)[2]) * 10.0 ** rng.integers(
            -3, 3, plan.view(rank, 0)[2]
        )
        with np.errstate(all="ignore"):
            result.append(
                (
                    values * (1 + 1j)
                    if plan.dtype.kind == "c"
                    else abs(values)
                    if plan.dtype.kind == "u"
                    else values
                ).astype(plan.dtype)
            )
    return result


def same_bits(got: np.ndarray, want: np.ndarray) -> bool:
    return got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()


turns_of = lru_cache(maxsize=16)(part)
"""In place of ``realcoll.executor.part``, so that executors play the very turns that are read back
here.
"""


def order_faults(case: Case, hosts: tuple[int, ...], *, apart: bool) -> list[str]:
    """What is wrong with the lowering of a plan, and with the turns of all processes read back."""
    plan = case.plan()
    try:
        _check_lowering(case)
        proof, _ = check_order(
            wire(
                program_of(
                    plan, [turns_of(plan, hosts, p, apart=apart) for p in range(max(hosts) + 1)]
                )
            )
        )
    except simcoll.ScheduleError as error:
        return [str(error)]
    return (
        []
        if proof.least_depth == 0
        else [f"{plan}: turns need {proof.least_depth} messages in flight"]
    )


@cache
def _check_lowering(case: Case) -> None:
    check_lowering(case.plan())


Outputs = Sequence["np.ndarray | None"]


@dataclass(frozen=True, slots=True)
class Kept:
    """A source of steps that can be sent to another process."""

    blocks: tuple[Any, ...]

    def __call__(self) -> tuple[Any, ...]:
        return self.blocks


def sendable(plan: simcoll.types.Plan) -> simcoll.types.Plan:
    """The plan with its steps in place of the algorithm that makes them, which takes longer and
    imports more.
    """
    return replace(
        plan, schedule=replace(plan.schedule, source=Kept(tuple(plan.schedule.blocks())))
    )


def answers(case: Case) -> list[Outputs]:
    """The outputs of all ranks: by the definition from exact data and, where there is data, by the
    emulator from data whose order shows.
    """
    plan = case.plan()
    with np.errstate(all="ignore"):
        expected = expected_outputs(plan, exact_inputs(plan))
        if plan.collective.kind == "barrier":
            return [expected]
        return [expected, emulate(plan, machine(), data=ordered_inputs(plan), bound=False).outputs]


def check(
    case: Case, plan: simcoll.types.Plan, transport: Any, wanted: Sequence[Outputs], **options: Any
) -> list[str]:
    """What is wrong with a case on a transport, as seen by this process; ``wanted`` are its
    :func:`answers`.
    """
    prepared = realcoll.prepare(plan, transport, **options)
    oracles = (
        (exact_inputs, np.array_equal, "the definition"),
        (ordered_inputs, same_bits, "the emulator"),
    )
    faults = []
    for (inputs, same, oracle), outputs in zip(oracles, wanted, strict=False):
        prepared.load(inputs(plan))
        prepared.run()
        differ = [rank for rank, got in prepared.fetch().items() if not same(got, outputs[rank])]
        faults += [f"{case}: rank {rank} differs from {oracle}" for rank in differ]
    return faults


def check_alone(case: Case, transports: Sequence[Any]) -> list[str]:
    """What is wrong with a case, the order of its turns included, on transports of one process."""
    plan, wanted = case.plan(), answers(case)
    faults: list[str] = []
    for apart in sorted({len(transport.lanes(plan, 1)) > 1 for transport in transports}):
        faults += order_faults(case, (0,) * plan.nranks, apart=apart)
    for transport in transports:
        faults += check(case, plan, transport, wanted)
    return faults
