"""Measure a collective over sizes as nccl-tests does, beside the library's own and the emulator's
prediction.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

import simcoll
from realcoll.executor import Prepared, prepare
from realcoll.transports.interface import Transport
from simcoll.algorithms.imported import is_file_name
from simcoll.binding import bind, verify
from simcoll.core.collective import KINDS, bus_factor
from simcoll.core.memory_limits import check_room
from simcoll.core.plan import Plan
from simcoll.core.reduction import parse_dtype
from simcoll.core.reference import count_wrong, exact_inputs, expected_outputs
from simcoll.emulator.data.budget import exact_bytes
from simcoll.emulator.data.stepwise import move_inputs
from simcoll.errors import ConfigError
from simcoll.topology import Topology
from simcoll.tuning import Choice, collective_on

__all__ = [
    "Line",
    "LineData",
    "TimedRuns",
    "TimingRequest",
    "kinds_of_data",
    "measure",
    "schedules",
    "time_call",
]

OP_NAMES = {"prod": "product", "mulsum": "premul_sum"}
ALL_DTYPES = (
    "int8",
    "uint8",
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
)
"""Element types of nccl-tests' ``-d all``."""
ALL_OPS = ("sum", "product", "max", "min", "avg", "premul_sum")
"""Reductions of nccl-tests' ``-o all``."""


@dataclass(frozen=True, slots=True)
class TimingRequest:
    """A requested measurement.

    Attributes
    ----------
    collective, choice, dtype, op, root
        As for ``simcoll perf``.
    counts
        Elements as passed to the collective.
    nranks
        Total number of ranks.
    iterations, warmup, check
        As nccl-tests' -n, -w, -c.
    baseline
        Whether the library's own collective runs too.
    """

    collective: str
    choice: Choice
    dtype: str
    op: str
    root: int | None
    counts: tuple[int, ...]
    nranks: int
    iterations: int = 20
    warmup: int = 1
    check: bool = True
    baseline: bool = True


@dataclass(frozen=True, slots=True)
class TimedRuns:
    """One measurement of one size.

    ``time_s`` is the mean over ranks and iterations; ``wrong`` counts wrong elements (None: not
    checked).
    """

    time_s: float
    wrong: int | None

    def algbw(self, size_bytes: int) -> float:
        """Bytes per second."""
        return size_bytes / self.time_s if self.time_s else 0.0


class LineData(NamedTuple):
    """The first columns of nccl-tests' table."""

    size_bytes: int
    elements: int
    dtype: str
    op: str
    root: int


@dataclass(frozen=True, slots=True)
class Line:
    """One size: out of place, in place where defined, the library's own collective, and the
    emulator's prediction.
    """

    plan: Plan
    op: str
    out_of_place: TimedRuns | None
    in_place: TimedRuns | None
    baseline: TimedRuns | None
    predicted_s: float | None

    @property
    def data(self) -> LineData:
        """Bytes, elements, type, reduction and root in nccl-tests' form: -1 is no root."""
        plan, root = self.plan, self.plan.collective.root
        op = self.op if plan.collective.spec.reduces else "none"
        return LineData(
            plan.total_bytes, plan.count, plan.dtype.name, op, -1 if root is None else root
        )

    @property
    def factor(self) -> float:
        """Bus bandwidth over algorithm bandwidth."""
        return bus_factor(self.plan.collective.kind, self.plan.nranks)

    @property
    def ratio(self) -> float | None:
        """Bandwidth over that of the library's own collective, both out of place."""
        seconds = self.out_of_place.time_s if self.out_of_place else 0
        return self.baseline.time_s / seconds if self.baseline and seconds else None


def kinds_of_data(collective: str, dtype: str, op: str) -> list[tuple[np.dtype[Any], str]]:
    """The element types and reductions selected by nccl-tests' -d and -o, where ``all`` stands for
    several (sum alone for a custom collective).

    Raises
    ------
    ConfigError
        For unknown names.

    Examples
    --------
    >>> [op for _, op in kinds_of_data("all_reduce", "int8", "all")]
    ['sum', 'product', 'max', 'min', 'avg', 'premul_sum']
    """
    dtypes = [parse_dtype(name) for name in (ALL_DTYPES if dtype == "all" else [dtype])]
    ops = (
        ALL_OPS
        if op == "all" and collective in KINDS and KINDS[collective].reduces
        else ["sum" if op == "all" else OP_NAMES.get(op, op)]
    )
    return [(element, reduction) for element in dtypes for reduction in ops]


def schedules(request: TimingRequest) -> tuple[simcoll.Schedule | None, simcoll.Schedule | None]:
    """The proved schedules, out of place and in place; a schedule file has only one of the two.

    Raises
    ------
    ConfigError
        When the algorithm does not support the collective, rank count or parameters.
    """
    params: dict[str, Any] = dict(request.choice.params)
    out_of_place = collective_on(request.collective, request.nranks, request.root)
    proved = simcoll.schedule(out_of_place, request.choice.algorithm, **params)
    verify(proved)
    if is_file_name(request.choice.algorithm):
        return (None, proved) if proved.collective.in_place else (proved, None)
    if out_of_place.spec.alias is None:
        return proved, None
    in_place = simcoll.schedule(
        replace(out_of_place, in_place=True), request.choice.algorithm, **params
    )
    verify(in_place)
    return proved, in_place


def time_call(
    call: Callable[[], object], transport: Transport, iterations: int, warmup: int
) -> float:
    """Mean seconds of a call, over iterations and processes."""
    for _ in range(warmup):
        call()
    transport.synchronize()
    transport.barrier()
    begin = time.perf_counter()
    for _ in range(iterations):
        call()
    transport.synchronize()
    spent = (time.perf_counter() - begin) / iterations
    seconds_by_process = transport.control.gather("time", json.dumps(spent).encode())
    return float(
        sum(json.loads(value) for value in seconds_by_process.values()) / len(seconds_by_process)
    )


def _count_wrong_elements(prepared: Prepared) -> int:
    """Wrong elements over all processes, on data whose result is exact; where transfers convert
    their data, those that differ from the emulator's.
    """
    plan = prepared.plan
    check_room(
        exact_bytes(plan),
        "checking the data of all ranks",
        "measure without it (-c 0), or smaller sizes (-e)",
    )
    inputs = exact_inputs(plan)
    prepared.load(inputs)
    prepared.run()
    with np.errstate(all="ignore"):
        converts = any(transit.wire for transit in plan.schedule.transits)
        expected = move_inputs(plan, inputs) if converts else expected_outputs(plan, inputs)
    outputs = prepared.fetch()
    wrong = count_wrong(list(outputs.values()), [expected[rank] for rank in outputs])
    wrong_by_process = prepared.transport.control.gather("wrong", json.dumps(wrong).encode())
    return int(sum(json.loads(value) for value in wrong_by_process.values()))


def _measure_plan(request: TimingRequest, prepared: Prepared) -> TimedRuns:
    wrong = _count_wrong_elements(prepared) if request.check else None
    if not request.check:
        prepared.load(
            [
                np.zeros(prepared.plan.view(rank, 0)[2], prepared.plan.dtype)
                for rank in range(request.nranks)
            ]
        )
    return TimedRuns(
        time_call(prepared.run, prepared.transport, request.iterations, request.warmup), wrong
    )


def measure(
    request: TimingRequest,
    transport: Transport,
    topology: Topology | None = None,
    on_line: Callable[[Line], None] | None = None,
) -> list[Line]:
    """Run everything; every process of the transport calls this.

    Parameters
    ----------
    request
        What to measure.
    transport
        The transport to measure on.
    topology
        For predictions; it needs an endpoint for every rank.
    on_line
        Called with each size's line when it is done.
    """
    out_of_place, in_place = schedules(request)
    if topology is not None and topology.nranks < request.nranks:
        raise ConfigError(
            f"topology {topology.name!r} has {topology.nranks} ranks; {request.nranks} are measured"
        )
    op: Any = simcoll.types.premul_sum(2) if request.op == "premul_sum" else request.op
    lines = []
    for count in request.counts:
        out = library_call = within = None
        bound = [
            None if schedule is None else bind(schedule, count, request.dtype, op)
            for schedule in (out_of_place, in_place)
        ]
        plan = next(candidate for candidate in bound if candidate is not None)
        if bound[0] is not None:
            prepared = prepare(bound[0], transport)
            out = _measure_plan(request, prepared)
            library_call = (
                transport.vendor(plan, prepared.inputs, prepared.outputs)
                if request.baseline
                else None
            )
        baseline = None
        if library_call is not None:
            baseline = TimedRuns(
                time_call(library_call, transport, request.iterations, request.warmup), None
            )
        if bound[1] is not None:
            within = _measure_plan(request, prepare(bound[1], transport))
        predicted = None
        if topology is not None:
            predicted = simcoll.emulate(plan, topology, data="none", bound=False).time
        line = Line(plan, request.op, out, within, baseline, predicted)
        lines.append(line)
        if on_line is not None:
            on_line(line)
    return lines
