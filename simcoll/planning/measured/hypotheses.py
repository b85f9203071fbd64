"""Hypotheses on differences between measured and predicted times, each tested by predicting with
that one change.

None is a fact: a change that brings predictions closer is evidence for a cause with that effect,
which other causes may share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from simcoll.errors import ConfigError
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.environment import Environment
from simcoll.libraries.fitting import Series, fit_series
from simcoll.libraries.question import fabric_of
from simcoll.planning.measured.comparison import Setting
from simcoll.topology.machine import machine as machine_of
from simcoll.units import format_signed, format_size

__all__ = ["Hypothesis", "hypotheses"]

FEWEST_ROWS = 3
"""Minimum number of rows; fewer would fit too many changes."""
LARGE_BYTES = 2**26
"""Size from which a launch offset is negligible."""
GAIN, LEAST_GAIN = 0.15, 0.02
"""Share of the mean error, and share of the times, that a change must explain to be reported."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A change that brings predictions closer to the measurements.

    Attributes
    ----------
    claim
        The possible cause and its effect.
    old_error, new_error
        Geometric mean error of all rows without and with the change.
    closer, rows
        Number of rows that it brings closer, and total number.
    least_bytes, most_bytes
        Range of sizes that it brings closer by a tenth or more; 0 if none.
    """

    claim: str
    old_error: float
    new_error: float
    closer: int
    rows: int
    least_bytes: int
    most_bytes: int

    def __str__(self) -> str:
        extent = ""
        if self.most_bytes:
            ends = [format_size(size) for size in (self.least_bytes, self.most_bytes)]
            extent = (
                f", most at {ends[0]}"
                if ends[0] == ends[1]
                else f", most from {ends[0]} to {ends[1]}"
            )
        falls = f"the mean error falls from {self.old_error:.0%} to {self.new_error:.0%}"
        return f"{self.claim}: {falls}; {self.closer} of {self.rows} rows are closer{extent}"


def hypotheses(
    setting: Setting, calibration: Calibration | None = None, limit: int = 4
) -> list[Hypothesis]:
    """The changes that explain most, in order; empty if none explains enough."""
    base = calibration or Calibration()
    rows = sorted((row.size_bytes, row.time_fs) for row in setting.table.rows)
    sizes = [size for size, _ in rows]
    if len(set(sizes)) < FEWEST_ROWS:
        return []
    base_times = setting.formula()(sizes, base)
    ranked: list[tuple[float, int, Hypothesis]] = []
    for claim, times in _changes(setting, base, rows, base_times):
        errors = [
            (abs(math.log(old / time)), abs(math.log(new / time)))
            for old, new, (_, time) in zip(base_times, times, rows, strict=True)
        ]
        old_error, new_error = (sum(column) / len(rows) for column in zip(*errors, strict=True))
        if old_error - new_error < max(LEAST_GAIN, GAIN * old_error):
            continue
        far = [size for size, (old, new) in zip(sizes, errors, strict=True) if old - new > 0.1]
        closer = sum(new < old for old, new in errors)
        ends = min(far, default=0), max(far, default=0)
        hypothesis = Hypothesis(
            claim, math.expm1(old_error), math.expm1(new_error), closer, len(rows), *ends
        )
        ranked.append((new_error, len(ranked), hypothesis))
    return [entry for _, _, entry in sorted(ranked, key=lambda scored: scored[:2])[:limit]]


def _changes(
    setting: Setting, base: Calibration, rows: Sequence[tuple[int, int]], base_times: Sequence[int]
) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield claims with the times that they predict."""
    yield from _fit_claims(setting, base, rows)
    yield from _choice_claims(setting, base, rows, base_times)
    machine = machine_of(setting.topology)
    if machine.domains > 1:
        share = f"{fabric_of(machine, setting.library)}.share"
        half = setting.library.with_values({share: setting.library.number(share) / 2})
        yield (
            (
                "half of the network bandwidth: half of the NICs unused, or data through host "
                "memory "
                "(no GPUDirect)"
            ),
            setting.formula(half)([size for size, _ in rows], base),
        )


def _fit_claims(
    setting: Setting, base: Calibration, rows: Sequence[tuple[int, int]]
) -> Iterator[tuple[str, Sequence[int]]]:
    """Claims with one fitted number."""
    predictor = setting.formula()
    sizes = [size for size, _ in rows]
    series = Series.of(
        setting.table.collective, setting.table.nranks, setting.table.rows, predictor
    )
    several = machine_of(setting.topology).domains > 1
    names = (("launch",) if sizes[0] < LARGE_BYTES else ()) + ("rate", "growth")
    for name in (*names, *(("fabric_latency",) if several else ())):
        fitted = fit_series([series], (name,))
        changed = replace(
            base,
            launch_fs=base.launch_fs + fitted.launch_fs,
            rate=base.rate * fitted.rate,
            fabric_latency_fs=base.fabric_latency_fs + fitted.fabric_latency_fs,
            growth=base.growth * fitted.growth,
        )
        hop = format_signed(fitted.fabric_latency_fs)
        claim = {
            "launch": _launch(fitted.launch_fs),
            "rate": f"links and NICs at {float(fitted.rate):.2f} of the rates that the library "
            "file has measured elsewhere",
            "fabric_latency": f"{hop} on every hop over the network: another fabric, plugin or "
            "distance",
            "growth": f"LL that slows down {float(fitted.growth):.1f} times as much with size as "
            "it does elsewhere",
        }[name]
        yield claim, predictor(sizes, changed)


_STARTS = (
    (18, 22, "a loop in PyTorch"),
    (20, 24, "one process that drives eight GPUs"),
    (28, 35, "virtual machines of some clouds"),
)
"""Launch offsets seen in published runs, in microseconds."""


def _launch(time_fs: int) -> str:
    """Describe an offset, with published causes of a similar one."""
    causes = [
        f"{cause} ({low} to {high} us)"
        for low, high, cause in _STARTS
        if low - 4 <= time_fs / 10**9 <= high + 4
    ]
    return (
        "a launch offset of "
        f"{format_signed(time_fs)}{', as with ' if causes else ''}{' or '.join(causes)}"
    )


def _choice_claims(
    setting: Setting, base: Calibration, rows: Sequence[tuple[int, int]], base_times: Sequence[int]
) -> Iterator[tuple[str, Sequence[int]]]:
    """Claims of another choice of algorithm or protocol."""
    environment, sizes = setting.environment, [size for size, _ in rows]
    alternatives: list[tuple[str, Environment]] = []
    if not environment.protocols:
        no_ll128 = replace(environment, protocols=(("", ("LL", "Simple")),))
        alternatives.append(("no LL128: a network plugin without it, or NCCL_PROTO", no_ll128))
    if environment.nvls:
        alternatives.append(
            (
                "no reduction in switches (NVLS): switched off, or no fabric manager",
                replace(environment, nvls=False),
            )
        )
    if not environment.algorithms:
        for name in ("ring", "tree"):
            only = replace(environment, algorithms=(("", (name,)),))
            alternatives.append((f"{name}s only: NCCL_ALGO={name.capitalize()}, or a tuner", only))
    for claim, alternative in alternatives:
        times = _times(setting, alternative, base, sizes)
        if times and list(times) != list(base_times):
            yield claim, times
    if not environment.protocols and (
        low := _times(setting, replace(environment, protocols=(("", ("LL",)),)), base, sizes)
    ):
        yield from _ll_claims(rows, base_times, low)


def _times(
    setting: Setting, environment: Environment, base: Calibration, sizes: Sequence[int]
) -> Sequence[int]:
    """The times under another environment; empty if it leaves no choice."""
    try:
        return setting.formula(environment=environment)(sizes, base)
    except ConfigError:
        return []


def _ll_claims(
    rows: Sequence[tuple[int, int]], base_times: Sequence[int], low: Sequence[int]
) -> Iterator[tuple[str, Sequence[int]]]:
    """Claims that LL is used up to some size, for the size that explains most."""
    gains = (
        abs(math.log(old / time)) - abs(math.log(new / time))
        for old, new, (_, time) in zip(base_times, low, rows, strict=True)
    )
    summed = list(accumulate(gains, initial=0.0))
    place = max(range(len(summed)), key=summed.__getitem__)
    if place and low[place - 1] != base_times[place - 1]:
        claim = (
            f"LL kept up to {format_size(rows[place - 1][0])}, where another protocol would "
            "be "
            "faster: a choice of NCCL's tuner"
        )
        yield claim, [*low[:place], *base_times[place:]]
