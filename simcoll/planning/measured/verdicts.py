"""The last line of a comparison: whether a machine is as fast as it should be; if not, why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simcoll.libraries.prediction import Prediction
from simcoll.libraries.transports import Transports
from simcoll.planning.measured.comparison import Compared, Setting
from simcoll.planning.measured.hypotheses import (
    SLIGHT,
    Explanation,
    bus_rate,
    odd_sizes,
    times_by_size,
)
from simcoll.units import counted, format_size

__all__ = ["LogLimit", "verdict", "verdict_of_another", "verdict_of_cpu_times"]


@dataclass(frozen=True, slots=True)
class LogLimit:
    """A cause that the log names, and the figures with and without it."""

    claim: str
    figures: str


SMALL_BYTES = 2**20
"""Size below which a time says more than a bandwidth."""


def verdict(
    setting: Setting,
    rows: Sequence[Compared],
    explanations: Sequence[Explanation],
    hints: Sequence[Explanation] = (),
    *,
    limits: Sequence[LogLimit] = (),
    statements: str = "",
    sound: Mapping[int, Prediction] | None = None,
) -> str:
    """Judge a table that was predicted with all that its log says.

    Parameters
    ----------
    explanations
        Those of the table, the likeliest first.
    hints
        Causes that the log names, whose effect the model does not have.
    limits
        Causes that the log names, and that make a size slower than on a sound machine.
    statements
        All that the log says and that the predictions of the rows follow.
    sound
        Predictions of a sound machine for sizes that took less than the bound of the machine with
        what the log says.
    """
    times = times_by_size(rows)
    slow = sorted(odd_sizes(rows))
    figure = _figure(setting, max(times), *times[max(times)])
    leading = explanations[0] if explanations else None
    bounds_fs = {row.row.size_bytes: row.prediction.bound_fs for row in rows}
    bounds_fs |= {size: prediction.bound_fs for size, prediction in (sound or {}).items()}
    impossible = [size for size, (time, _) in times.items() if time < bounds_fs[size]]
    if impossible:
        is_limited = setting.environment.transports != Transports()
        other_links = "it ran without the variables predicted with, " if is_limited else ""
        return (
            f"verdict: none, because {counted(len(impossible), 'size')} took less than the bound "
            f"of topology {setting.topology.name!r}: it is another machine, {other_links}or these "
            f"are not the times of its GPUs: {figure}"
        )
    if sound and not impossible and _is_sound(times, sound):
        without = _figure(setting, max(sound), times[max(sound)][0], sound[max(sound)].time_fs)
        return (
            "verdict: as fast as predicted without the settings of the log, which had no effect: "
            f"{statements}; {without}"
        )
    if not slow:
        if leading is not None and leading.is_in_log:
            return f"verdict: no slower than what the log says makes it: {leading.claim}; {figure}"
        if limits:
            return (
                f"verdict: no slower than what the log says makes it: {limits[0].claim}; "
                f"{limits[0].figures}"
            )
        slowest = max(measured / predicted for measured, predicted in times.values())
        if slowest > SLIGHT:
            cause = f"the log hints at a cause: {hints[0].claim}" if hints else _TOO_LITTLE
            return (
                f"verdict: up to {slowest:.1f} times the predicted time, which is inside the "
                f"intervals of this machine; {cause}: {figure}"
            )
        return f"verdict: as fast as predicted at {_all(len(times))}: {figure}{_faster(rows)}"
    factor = max(times[size][0] / times[size][1] for size in slow)
    extent = (
        f"slower than predicted at {len(slow)} of {counted(len(times), 'size')}, "
        f"up to {factor:.1f} times"
    )
    if leading is None:
        return f"verdict: {extent}, and no cause that was tested explains it: {figure}"
    if leading.is_in_log:
        return f"verdict: {extent}; the log names a cause: {leading.claim}"
    return f"verdict: {extent}; the likeliest cause, by the times alone: {leading.claim}"


def _is_sound(times: Mapping[int, tuple[int, int]], sound: Mapping[int, Prediction]) -> bool:
    """Whether times that were too short for what the log says are those of a sound machine."""
    return all(times[size][0] <= SLIGHT * sound[size].time_fs for size in sound)


_TOO_LITTLE = "too little to name a cause"


def verdict_of_cpu_times() -> str:
    """The verdict on times that do not contain the operation."""
    return (
        "verdict: none, because the times are those of the CPU, which launches an operation and "
        "does not wait for it; run nccl-tests without -C 1"
    )


def verdict_of_another(setting: Setting, device: str) -> str:
    """The verdict on a table of other GPUs than the topology's."""
    return (
        f"verdict: none, because the log is of {device} and topology {setting.topology.name!r} of "
        f"{setting.topology.traits['gpu']}; compare with a topology of the same GPUs (simcoll list "
        "topologies)"
    )


def _all(number: int) -> str:
    return {1: "the only size", 2: "both sizes"}.get(number, f"all {number} sizes")


def _figure(setting: Setting, size: int, measured_fs: int, predicted_fs: int) -> str:
    """Measured and predicted bandwidth, or time if the size is small."""
    if size < SMALL_BYTES:
        measured, predicted = measured_fs / 1e9, predicted_fs / 1e9
        return f"{measured:.4g} us at {format_size(size)}, predicted {predicted:.4g}"
    measured, predicted = (bus_rate(setting, size, time) for time in (measured_fs, predicted_fs))
    return f"{measured:.3g} GB/s at {format_size(size)}, predicted {predicted:.3g}"


def _faster(rows: Sequence[Compared]) -> str:
    """How many sizes are faster than their intervals."""
    lower_fs = {row.row.size_bytes: row.prediction.low90_fs for row in rows}
    sizes = [size for size, (time, _) in times_by_size(rows).items() if time < lower_fs[size]]
    return f"; faster than the 90 % interval at {counted(len(sizes), 'size')}" if sizes else ""
