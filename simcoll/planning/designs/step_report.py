"""The table of one training step, and its file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from simcoll.libraries.intervals import without_class
from simcoll.training.evidence import rate_lines
from simcoll.training.step_intervals import bias_sentence
from simcoll.training.step_result import StepResult
from simcoll.units import format_memory, format_size, format_time

if TYPE_CHECKING:
    from simcoll.training.memory import StageMemory
    from simcoll.training.step_intervals import StepInterval
    from simcoll.workload.accounting import CallTime
    from simcoll.workload.playing import WorkloadResult

__all__ = ["call_lines", "origin_lines", "step_json", "step_lines", "workload_lines"]

_WORKLOAD_FIELDS = (
    "title",
    "nranks",
    "topology",
    "tier",
    "time_fs",
    "compute_fs",
    "axes",
    "bound_fs",
    "limit",
    "link_use",
    "calls",
    "path",
    "trace_hash",
    "seconds",
)
_STEP_FIELDS = (
    "title",
    "design_hash",
    "calibration",
    "tier",
    "time_fs",
    "tokens",
    "nranks",
    "compute_fs",
    "bubble_fs",
    "slower_fs",
    "axes",
    "memory",
    "memory_limit",
    "model_flops",
    "hardware_flops",
    "peak_flops",
    "flops_formula",
    "bound_fs",
    "limit",
    "link_use",
    "calls",
    "classes",
    "path",
    "trace_hash",
    "notes",
    "lacks",
    "gpu",
    "rates",
    "interval",
    "seconds",
    "tokens_per_second",
    "mfu",
    "hfu",
    "fits",
)
"""The fields of a result in its file, in this order."""
SHOWN_CALLS = 6
_PARTS = ("weights", "gradients", "optimizer", "activations", "buffers")


def step_lines(result: StepResult, *, verbose: bool = False) -> Iterator[str]:
    """The lines of the table.

    A row has a name of 12 characters, then its values. ``verbose`` adds the classes of errors that
    intervals come from, the formula of the FLOPs, what played the step, and hashes.
    """
    yield f"# {result.title}: {result.nranks} GPUs, tier {result.tier}, {result.calibration}"
    yield _row(
        "step",
        f"{format_time(result.time_fs)}, {result.tokens_per_second:,.0f} tokens/s, "
        f"{result.tokens_per_second / result.nranks:,.0f} for each GPU",
    )
    if result.interval:
        yield from _interval_rows(result.time_fs, result.interval, verbose=verbose)
    yield _row(
        "MFU, HFU",
        f"{100 * result.mfu:.1f} %, {100 * result.hfu:.1f} % of "
        f"{result.peak_flops / result.nranks / 1e12:,.0f} TFLOPS",
    )
    worst = max(result.memory, key=lambda memory: memory.total)
    verdict = "fits" if result.fits else "does not fit"
    yield _row(
        "memory", f"{_gib(worst.total)} of {_gib(result.memory_limit)}, {verdict}: {_parts(worst)}"
    )
    for lack in result.lacks:
        yield _row("lacks", lack)
    yield _row("compute", format_time(result.compute_fs))
    if result.slower_fs:
        yield _row("slower", f"{format_time(result.slower_fs)} more on the slowest ranks")
    yield _row("bubble", f"{format_time(result.bubble_fs)}, where communication is free")
    yield from _communication(result, verbose=verbose)
    for line in rate_lines(result.gpu, result.rates):
        yield _row("rates", line)
    for note in result.notes:
        yield _row("note", note)
    if verbose:
        yield f"# model FLOPs: {result.flops_formula}"
        trace = result.trace_hash or "-"
        yield f"# design {result.design_hash}, played: {result.path}, trace {trace}"


def _interval_rows(time_fs: int, interval: StepInterval, *, verbose: bool) -> Iterator[str]:
    """What steps that are measured take, by the errors of published ones."""
    spans = [
        " to ".join(format_time(round(time_fs * factor)) for factor in factors)
        for factors in (interval.within90, interval.within50)
    ]
    yield _row("interval", f"measured: 90 % within {spans[0]}, 50 % within {spans[1]}")
    yield _row("", f"by {interval if verbose else interval.without_class()}")
    if sentence := bias_sentence(interval.within50):
        yield _row("", sentence)


def workload_lines(result: WorkloadResult, *, verbose: bool = False) -> Iterator[str]:
    """The lines of the table of a workload without a design, as :func:`step_lines`."""
    title = result.title or "a workload"
    yield f"# {title}: {result.nranks} ranks on {result.topology}, tier {result.tier}"
    yield _row("step", format_time(result.time_fs))
    yield _row("compute", format_time(result.compute_fs))
    yield from _communication(result, verbose=verbose)
    if verbose:
        yield f"# played: {result.path}, trace {result.trace_hash or '-'}"


def _communication(result: WorkloadResult, *, verbose: bool) -> Iterator[str]:
    """Communication by axis, the limit of the step, and the busiest links."""
    for axis, cost in result.axes.items():
        moved = (
            f"{cost.bytes / 2**20:,.0f} MiB"
            if cost.bytes >= 2**20 and cost.bytes % 2**30
            else format_size(cost.bytes)
        )
        yield _row(
            axis,
            f"exposed {format_time(max(0, cost.exposed_fs))}, alone {format_time(cost.total_fs)}, "
            f"{moved} a GPU",
        )
    yield _row("bound", f"{format_time(result.bound_fs)}: {result.limit}")
    for name, share in result.link_use:
        yield _row("busiest", f"{name}, {100 * share:.0f} % of its capacity")
    yield from call_lines(result.calls)
    for line in origin_lines(result.calls, verbose=verbose):
        yield f"# {line}"


def call_lines(calls: Sequence[CallTime]) -> Iterator[str]:
    """The collectives that take longest; those that differ in nothing printed are one."""
    by_text: dict[str, CallTime] = {}
    for call in calls:
        text = _call(replace(call, count=0))
        count = by_text[text].count if text in by_text else 0
        by_text[text] = replace(call, count=count + call.count)
    joined = sorted(by_text.values(), key=lambda call: call.count * call.time_fs, reverse=True)
    for call in joined[:SHOWN_CALLS]:
        yield _row("collective", _call(call))
    if len(joined) > SHOWN_CALLS:
        yield _row("", f"and {len(joined) - SHOWN_CALLS} that take less time")


def _call(call: CallTime) -> str:
    """One collective: what it is, its time alone, and the interval around it."""
    text = (
        f"{call.axis}: {call.count} {call.kind} of {_size(call.size_bytes)} on {call.ranks}, "
        f"alone {format_time(call.time_fs)}"
    )
    if not call.library:
        return text
    within = f"{format_time(call.low90_fs)} to {format_time(call.high90_fs)}"
    played = f", {call.time_fs / call.formula_fs:.2f} times the formula's" if call.differs else ""
    return f"{text}{played} (90 % within {within}), {call.choice}"


def _size(size_bytes: int) -> str:
    """A size; above a MiB with its digits that matter.

    >>> _size(2**20), _size(436_240_384)
    ('1 MiB', '416 MiB')
    """
    exact = size_bytes < 2**20 or size_bytes % 2**20 == 0
    return format_size(size_bytes) if exact else format_memory(size_bytes)


def origin_lines(calls: Sequence[CallTime], *, verbose: bool) -> Iterator[str]:
    """The libraries of collectives, and where intervals and numbers that they lack come from, each
    once; ``verbose`` adds the classes of errors behind the intervals.
    """
    yield from dict.fromkeys(_origins(calls, verbose=verbose))


def _origins(calls: Sequence[CallTime], *, verbose: bool) -> Iterator[str]:
    for call in calls:
        if call.library:
            yield f"collectives are those of {call.library}"
    for call in calls[:SHOWN_CALLS]:
        if call.errors_of:
            errors = call.errors_of if verbose else f"{without_class(call.errors_of)} (-v: which)"
            yield f"90 % intervals of collectives: {errors}"
    for call in calls:
        for guess in filter(None, call.assumed.split("; ")):
            yield f"assumed: {guess}"


def _row(name: str, text: str) -> str:
    return f"{name:<11} {text}"


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _parts(memory: StageMemory) -> str:
    parts = [f"{name} {getattr(memory, name) / 2**30:.1f}" for name in _PARTS]
    return ", ".join(
        [*parts, f"in host memory {memory.host / 2**30:.1f}"] if memory.host else parts
    )


def step_json(result: WorkloadResult) -> bytes:
    """A result as JSON."""
    names = _STEP_FIELDS if isinstance(result, StepResult) else _WORKLOAD_FIELDS
    fields: dict[str, Any] = {name: getattr(result, name) for name in names}
    return msgspec.json.format(msgspec.json.encode(fields), indent=1) + b"\n"
