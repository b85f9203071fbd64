"""Why a measured table is slower than it should be: first what its log names, then changes that
explain what remains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from simcoll.errors import ConfigError
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.environment import Environment
from simcoll.planning.measured.comparison import Compared, Setting, compare
from simcoll.planning.measured.hypotheses import (
    AGREES,
    LEAST_SHARE,
    Explanation,
    effect_of,
    explanations,
    figures,
    odd_sizes,
    sample_sizes,
    times_by_size,
)
from simcoll.planning.measured.log_causes import (
    LogCause,
    channel_causes,
    excluded_causes,
    fact_lines,
    log_causes,
)
from simcoll.planning.measured.variants import SOCKET_RATES, over_interface

__all__ = ["LogSetting", "TableDiagnosis", "diagnose", "with_log"]

_OPEN_ENDED = {
    "no_gpudirect": "in public reports it cost a factor of 3 to 18 (nccl#1412, #1303, #1676), "
    "more than buses alone explain"
}
"""Causes that often cost more than the model says, with what is known of them."""
_OF_RDMA = ("few_nics", "no_gpudirect", "acs", "pcie", "sockets")
"""Causes that TCP sockets leave no room for."""


@dataclass(frozen=True, slots=True)
class LogSetting:
    """A setting with all that its log says, and what was applied.

    Attributes
    ----------
    setting
        With the variables and facts of the log.
    sound
        The same machine without what the log says.
    causes
        What the log names; those with a change are in ``setting``.
    assumed
        What the log does not say, and was chosen to fit.
    """

    setting: Setting
    sound: Setting
    causes: tuple[LogCause, ...]
    assumed: str = ""

    def lines(self) -> Iterator[str]:
        """What of the log is in the prediction, and what was assumed."""
        applied = [
            f"{cause.claim} ({cause.source})" for cause in self.causes if cause.change is not None
        ]
        if applied:
            yield f"predicted with what the log says: {'; '.join(applied)}"
        if self.assumed:
            yield f"assumed: {self.assumed}"


@dataclass(frozen=True, slots=True)
class TableDiagnosis:
    """What explains a table, the likeliest first.

    Attributes
    ----------
    facts
        What the log says, in lines.
    explanations
        Causes that the log names, then changes that explain the rest.
    remarks
        Other statements of the log, with their effects.
    unexplained
        What remains; empty if nothing does.
    """

    facts: tuple[str, ...]
    explanations: tuple[Explanation, ...]
    remarks: tuple[str, ...]
    unexplained: str

    @property
    def causes(self) -> tuple[str, ...]:
        """Names of the causes, in order, each once."""
        return tuple(dict.fromkeys(cause for entry in self.explanations for cause in entry.causes))

    def lines(self) -> Iterator[str]:
        """The explanations in words, with a title."""
        if self.explanations:
            yield "explanations, the likeliest first, each predicted like the table:"
        for number, entry in enumerate(self.explanations, 1):
            claim, *further = entry.lines()
            yield f"{number}. {claim}"
            yield from (f"   {line}" for line in further)
        yield from self.remarks
        if self.unexplained:
            yield self.unexplained


def with_log(setting: Setting, *, variables: bool = True) -> LogSetting:
    """Apply what the log says to the machine that it is compared with, optionally without its
    variables.
    """
    if not variables:
        setting = replace(setting, table=replace(setting.table, environment=()))
    sound = replace(setting, environment=_sound(setting.environment))
    causes = log_causes(setting)
    causes += channel_causes(setting, causes)
    changed, assumed = setting, ""
    times = {row.size_bytes: row.time_fs for row in setting.table.rows}
    applied: list[LogCause] = []
    for cause in causes:
        change = cause.change
        if cause.cause == "sockets":
            change = _interface_change(times)
            interface = _best_interface(changed, times)[1]
            assumed = (
                f"an interface of {interface}, the standard rate that fits best; the log does not "
                "name one"
            )
        if change is not None:
            try:
                changed = change(changed)
            except ConfigError:  # the machine's model has no such parameter
                change = None
        applied.append(replace(cause, change=change))
    return LogSetting(changed, sound, tuple(applied), assumed)


def _interface_change(times: dict[int, int]) -> Callable[[Setting], Setting]:
    return lambda setting: _best_interface(setting, times)[0]


def _best_interface(setting: Setting, measured_fs: dict[int, int]) -> tuple[Setting, str]:
    """The setting over the Ethernet interface whose times are nearest to the measured ones."""
    sizes = sample_sizes(sorted(measured_fs))
    best: tuple[float, Setting, str] | None = None
    for rate_Gbps, title in SOCKET_RATES:
        changed = over_interface(setting, rate_Gbps)
        times_fs = changed.formula()(sizes, Calibration())
        error = sum(
            abs(math.log(time / measured_fs[size]))
            for time, size in zip(times_fs, sizes, strict=True)
        )
        if best is None or error < best[0]:
            best = (error, changed, title)
    if best is None:
        return setting, ""
    return best[1], best[2]


def _sound(environment: Environment) -> Environment:
    """The environment without limits of the choice; how operations are launched stays."""
    return Environment(
        launcher=environment.launcher, dtype=environment.dtype, ignored=environment.ignored
    )


def diagnose(
    rows: Sequence[Compared], log_setting: LogSetting, calibration: Calibration | None = None
) -> TableDiagnosis:
    """Explain a table.

    Parameters
    ----------
    rows
        Its rows, predicted with all that the log says.
    log_setting
        The setting with that, by :func:`with_log`.
    """
    setting = log_setting.setting
    of_log, remarks, supports = _log_explanations(rows, log_setting, calibration)
    against = dict(excluded_causes(setting))
    applied = [cause.cause for cause in log_setting.causes if cause.change is not None]
    against |= dict.fromkeys(applied, "it is in the prediction already")
    for cause in log_setting.causes:
        if cause.cause in _OPEN_ENDED and cause.change is not None:
            against.pop(cause.cause)
            supports[cause.cause] = f"the log says so ({cause.source}); {_OPEN_ENDED[cause.cause]}"
    if "sockets" in applied:
        against |= dict.fromkeys(_OF_RDMA, "the log says TCP sockets")
    tests, unexplained = explanations(log_setting.setting, rows, calibration, against, supports)
    loose = [
        Explanation(
            (cause.cause,),
            cause.claim,
            f"the log says so ({cause.source}); the model has no number for its effect",
        )
        for cause in log_setting.causes
        if cause.change is None and cause.cause not in {name for e in tests for name in e.causes}
    ]
    slow = bool(odd_sizes(rows))
    ordered = [*of_log]
    if slow:
        firm = [entry for entry in loose if entry.causes[0] != "host_settings"]
        last = [entry for entry in loose if entry.causes[0] == "host_settings"]
        ordered += [*firm, *tests[:1], *last, *tests[1:]]
    else:
        ordered += tests
        remarks += [f"{entry.claim}: {entry.effect}" for entry in loose]
    return TableDiagnosis(tuple(fact_lines(setting)), tuple(ordered), tuple(remarks), unexplained)


def _log_explanations(
    rows: Sequence[Compared], log_setting: LogSetting, calibration: Calibration | None
) -> tuple[list[Explanation], list[str], dict[str, str]]:
    """Causes of the log that explain half of the difference to the sound machine, remarks on the
    others, and what supports changes that the log does not measure.
    """
    changes = [cause for cause in log_setting.causes if cause.change is not None]
    supports = {
        cause.cause: f"the log says so ({cause.source})"
        for cause in log_setting.causes
        if cause.change is None
    }
    if not changes:
        return [], [], supports
    sizes = sample_sizes(sorted(times_by_size(rows)))
    sound = compare(_at(log_setting.sound, sizes), calibration)
    with_all = times_by_size(rows)
    together = effect_of(sound, [with_all[size][1] for size in sizes], sizes)
    scored: list[tuple[float, LogCause, str]] = []
    for cause in changes:
        if cause.change is None:
            continue
        predicted = compare(_at(cause.change(log_setting.sound), sizes), calibration)
        test = effect_of(sound, [old for _, old in times_by_size(predicted).values()], sizes)
        scored.append((test.share, cause, figures(test, log_setting.setting)))
    scored.sort(key=lambda entry: -entry[0])
    explaining, remarks = [], []
    differs = together.old_error >= AGREES
    for place, (share, cause, text) in enumerate(scored):
        enough = share >= LEAST_SHARE or (not place and together.share >= LEAST_SHARE)
        if differs and enough and share > 0:
            effect = f"explains {share:.0%} of the difference to a sound machine: {text}"
            explaining.append(
                Explanation((cause.cause,), cause.claim, effect, (f"the log says: {cause.source}",))
            )
        else:
            remarks.append(f"the log says {cause.source} ({cause.claim}); with it {text}")
    return explaining, remarks, supports


def _at(setting: Setting, sizes: Sequence[int]) -> Setting:
    """The setting with one row of each of some sizes."""
    rows = {row.size_bytes: row for row in setting.table.rows}
    return replace(setting, table=replace(setting.table, rows=tuple(rows[size] for size in sizes)))
