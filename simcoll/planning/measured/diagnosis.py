"""Why a measured table is slower than it should be: first what its log names, then changes that
explain what remains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from simcoll.errors import ConfigError
from simcoll.formats.logs.nccl_tuning import Chosen
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.environment import Environment
from simcoll.libraries.prediction import Prediction
from simcoll.planning.measured.causes import CAUSES, CauseName, cause_on
from simcoll.planning.measured.comparison import (
    CORRUPT,
    Compared,
    Setting,
    compare,
    other_generation,
)
from simcoll.planning.measured.hypotheses import (
    AGREES,
    LEAST_SHARE,
    SLIGHT,
    SLIGHT_CHANGE,
    Effect,
    Explanation,
    effect_of,
    even_shortfall,
    explanations,
    figures,
    odd_sizes,
    sample_sizes,
    sound_figure,
    times_by_size,
)
from simcoll.planning.measured.log_causes import (
    Change,
    LogCause,
    channel_causes,
    choice_evidence,
    excluded_causes,
    fact_lines,
    log_causes,
)
from simcoll.planning.measured.variants import SOCKET_RATES, in_environment, over_interface
from simcoll.planning.measured.verdicts import (
    LogLimit,
    verdict,
    verdict_of_another,
    verdict_of_cpu_times,
)
from simcoll.units import counted

__all__ = ["LogSetting", "TableDiagnosis", "diagnose", "with_log"]

_OPEN_ENDED = {
    "no_gpudirect": "in public reports it left 8 GB/s a NIC (nccl#1412), 6 (nccl#1303), 1.25 "
    "(nccl#1676), and 1.1 with one NUMA node per socket on AMD CPUs, where four gave 9 "
    "(nccl-tests#293)"
}
"""Causes that often cost more than the model says, with what is known of them."""
_UNSURE = ("no_p2p", "no_gpudirect", "through_network", "few_threads", "few_nics")
"""Causes that slow a machine down even where the model sees no effect."""
_OF_RDMA: tuple[CauseName, ...] = ("few_nics", "no_gpudirect", "acs", "pcie", "sockets")
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

    @property
    def statements(self) -> str:
        """What the log says and the setting has, with its sources."""
        return "; ".join(
            f"{cause.claim} ({cause.source})" for cause in self.causes if cause.change is not None
        )

    def lines(self) -> Iterator[str]:
        """What of the log is in the prediction, and what was assumed."""
        if self.statements:
            yield f"predicted with what the log says: {self.statements}"
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
    summary
        How much is missing, if it is the same at all sizes.
    verdict
        Whether the table is as fast as it should be, and the likeliest cause if not.
    library
        Name of the library.
    remarks
        Other statements of the log, with their effects, and what it rules out.
    unexplained
        What remains; empty if nothing does.
    """

    facts: tuple[str, ...]
    explanations: tuple[Explanation, ...]
    remarks: tuple[str, ...]
    unexplained: str
    summary: str = ""
    verdict: str = ""
    library: str = "nccl"

    @property
    def causes(self) -> tuple[CauseName, ...]:
        """Names of the causes, in order, each once."""
        return tuple(dict.fromkeys(cause for entry in self.explanations for cause in entry.causes))

    def lines(self) -> Iterator[str]:
        """The explanations in words, with a title."""
        if self.summary:
            yield self.summary
        if self.explanations:
            yield "explanations, the likeliest first, each predicted like the table:"
        for number, entry in enumerate(self.explanations, 1):
            claim, *further = entry.lines(self.library)
            yield f"{number}. {claim}"
            yield from (f"   {line}" for line in further)
        yield from self.remarks
        if self.unexplained:
            yield self.unexplained
        yield self.verdict


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
        if cause.cause == "few_channels" and _is_nearer_without_nvls(changed, cause, causes, times):
            change = _without_nvls(cause)
            assumed = (
                "no reduction in NVSwitch (NVLS): the limit of channels would not hold for it, and "
                "the times fit better without; NCCL_DEBUG=INFO, then grep NVLS, tells"
            )
        if change is not None:
            try:
                changed = change(changed)
            except ConfigError:  # the machine's model has no such parameter
                change = None
        applied.append(replace(cause, change=change))
    return LogSetting(changed, sound, tuple(applied), assumed)


def _interface_change(times: dict[int, int]) -> Change:
    return lambda setting: _best_interface(setting, times)[0]


def _is_nearer_without_nvls(
    setting: Setting, cause: LogCause, causes: Sequence[LogCause], measured_fs: dict[int, int]
) -> bool:
    """Whether a limit of channels fits better if rings and trees, for which it holds, were all
    that NCCL had; asked only where the log does not say so itself.
    """
    if cause.change is None or any(stated.cause == "nvls_off" for stated in causes):
        return False
    limited = cause.change(setting)
    if not limited.environment.nvls or "nvls_off" in excluded_causes(setting):
        return False
    sizes = sample_sizes(sorted(measured_fs))
    without = _without_nvls(cause)(setting)
    return _error(without, sizes, measured_fs) < _error(limited, sizes, measured_fs)


def _without_nvls(cause: LogCause) -> Change:
    """The change of a limit of channels, on a machine without reduction in switches."""
    limit = cause.change or (lambda setting: setting)
    return lambda setting: in_environment(limit(setting), nvls=False)


def _error(setting: Setting, sizes: Sequence[int], measured_fs: dict[int, int]) -> float:
    """How far the predicted times are from the measured ones, in logarithms."""
    times_fs = setting.formula()(sizes, Calibration())
    return sum(
        abs(math.log(time / measured_fs[size])) for time, size in zip(times_fs, sizes, strict=True)
    )


def _best_interface(setting: Setting, measured_fs: dict[int, int]) -> tuple[Setting, str]:
    """The setting over the Ethernet interface whose times are nearest to the measured ones."""
    sizes = sample_sizes(sorted(measured_fs))
    best: tuple[float, Setting, str] | None = None
    for rate_Gbps, title in SOCKET_RATES:
        changed = over_interface(setting, rate_Gbps)
        error = _error(changed, sizes, measured_fs)
        if best is None or error < best[0]:
            best = (error, changed, title)
    if best is None:
        return setting, ""
    return best[1], best[2]


def _sound(environment: Environment) -> Environment:
    """The environment without limits of the choice; how operations are launched stays."""
    launcher = environment.launcher if environment.launcher != "one-process" else "process"
    return Environment(
        launcher=launcher,
        dtype=environment.dtype,
        op=environment.op,
        registered=environment.registered,
        ignored=environment.ignored,
    )


def diagnose(
    rows: Sequence[Compared],
    log_setting: LogSetting,
    calibration: Calibration | None = None,
    choices: Sequence[Chosen] = (),
) -> TableDiagnosis:
    """Explain a table.

    Parameters
    ----------
    rows
        Its rows, predicted with all that the log says.
    log_setting
        The setting with that, by :func:`with_log`.
    choices
        NCCL's own choices, if the log has them.
    """
    setting = log_setting.setting
    library, facts = setting.library.name, tuple(fact_lines(setting))
    if (device := other_generation(setting.table.devices, setting.topology)) is not None:
        return TableDiagnosis(facts, (), (), "", "", verdict_of_another(setting, device), library)
    if setting.table.facts.values("times"):
        return TableDiagnosis(facts, (), (), "", "", verdict_of_cpu_times(), library)
    findings = _of_log(rows, log_setting, calibration)
    supports, against = choice_evidence(rows, choices)
    against |= excluded_causes(log_setting.setting)
    for cause in findings.without_number:
        supports[cause.cause] = f"the log says so ({cause.source})"
    for cause in log_setting.causes:
        if cause.change is None or cause.cause in supports:
            continue
        if cause.cause in _OPEN_ENDED:
            supports[cause.cause] = f"the log says so ({cause.source}); {_OPEN_ENDED[cause.cause]}"
        else:
            against[cause.cause] = "it is in the prediction already"
    if "sockets" in against and "sockets" in {cause.cause for cause in log_setting.causes}:
        against |= dict.fromkeys(_OF_RDMA, "the log says TCP sockets")
    limit = 1 if findings.explanations else 3  # what the log names needs few others
    tests, unexplained = explanations(
        log_setting.setting, rows, calibration, against, supports, limit=limit
    )
    tests = [_beyond(entry, findings.explanations) for entry in tests]
    tested_causes = {name for entry in tests for name in entry.causes}
    loose = [
        Explanation(
            (cause.cause,),
            cause.claim,
            f"the log says so ({cause.source}); the model has no number for its effect",
            step=cause_on(cause.cause, library).after_log,
        )
        for cause in findings.without_number
        if cause.cause not in tested_causes
    ]
    # Settings of hosts are warned of on many machines that are fast enough.
    hints = [entry for entry in loose if entry.causes[0] != "host_settings"]
    ordered, remarks = [*findings.explanations], [*findings.remarks]
    if odd_sizes(rows):
        last = [entry for entry in loose if entry.causes[0] == "host_settings"]
        ordered += [*hints, *tests[:1], *last, *tests[1:]]
    else:
        ordered += tests
        remarks += [f"{entry.claim}: {entry.effect}" for entry in loose]
    excluded = excluded_causes(log_setting.setting)
    excluded.pop("one_process", None)  # true of most logs, and asked by nobody
    if excluded and tests:
        reasons = [f"{CAUSES[cause].title} ({reason})" for cause, reason in excluded.items()]
        remarks.append(f"ruled out by the log: {'; '.join(reasons)}")
    summary = even_shortfall(rows)
    table_facts = log_setting.setting.table.facts
    wrong = sum(fact.count for fact in table_facts.of("wrong"))
    judgement = verdict(
        log_setting.setting,
        rows,
        ordered,
        hints,
        limits=findings.limits,
        statements=log_setting.statements,
        sound=_sound_predictions(rows, log_setting, calibration),
    )
    if wrong:
        judgement += f"; but {counted(wrong, 'row')} had wrong results, so {CORRUPT}"
    for failure in table_facts.of("failure")[:1]:
        judgement += f"; but the run failed (line {failure.line}: {failure.value})"
    return TableDiagnosis(
        facts, tuple(ordered), tuple(remarks), unexplained, summary, judgement, library
    )


def _beyond(test: Explanation, log_explanations: Sequence[Explanation]) -> Explanation:
    """A change with the effect of a cause that is in the prediction already, in other words."""
    title = f"{CAUSES[test.causes[0]].title}: "
    is_repeated = any(entry.causes[0] == test.causes[0] for entry in log_explanations)
    if not is_repeated or not test.claim.startswith(title):
        return test
    extent = test.claim.removeprefix(title)
    higher = replace(test, claim=f"the same cause at a higher cost than predicted: {extent}")
    if "host_memory" not in test.causes:
        return higher
    host = CAUSES["host_memory"]
    return replace(higher, step=f"{host.check}; if it shows {host.shows}: {host.repair}")


def _sound_predictions(
    rows: Sequence[Compared], log_setting: LogSetting, calibration: Calibration | None
) -> dict[int, Prediction]:
    """The times of a sound machine for sizes faster than the bound with what the log says, whose
    cost is partly assumed.
    """
    fast = {row.row.size_bytes for row in rows if row.row.time_fs < row.prediction.bound_fs}
    if not fast or all(cause.change is None for cause in log_setting.causes):
        return {}
    predicted = compare(_at(log_setting.sound, sorted(fast)), calibration)
    return {row.row.size_bytes: row.prediction for row in predicted}


@dataclass(frozen=True, slots=True)
class _OfLog:
    """What causes that the log names explain.

    Attributes
    ----------
    explanations
        Those that explain half of the difference to the sound machine.
    remarks
        Those that explain less, with their effects.
    without_number
        Those whose effect the model does not have.
    limits
        Those that make a size slower than on a sound machine, the strongest first.
    """

    explanations: tuple[Explanation, ...]
    remarks: tuple[str, ...]
    without_number: tuple[LogCause, ...]
    limits: tuple[LogLimit, ...] = ()


def _of_log(
    rows: Sequence[Compared], log_setting: LogSetting, calibration: Calibration | None
) -> _OfLog:
    """Predict each cause that the log names alone, on the sound machine."""
    without_number = [cause for cause in log_setting.causes if cause.change is None]
    if len(without_number) == len(log_setting.causes):
        return _OfLog((), (), tuple(without_number))
    with_all = times_by_size(rows)
    sizes = sample_sizes(sorted(with_all))
    sound = compare(_at(log_setting.sound, sizes), calibration)
    sound_times = times_by_size(sound)
    together = effect_of(sound_times, [with_all[size][1] for size in sizes], sizes)
    scored: list[tuple[Effect, LogCause]] = []
    for cause in log_setting.causes:
        if cause.change is not None:
            predicted = compare(_at(cause.change(log_setting.sound), sizes), calibration)
            times_fs = [time for _, time in times_by_size(predicted).values()]
            scored.append((effect_of(sound_times, times_fs, sizes), cause))
    scored.sort(key=lambda entry: -entry[0].share)
    explaining, remarks = [], []
    for place, (effect, cause) in enumerate(scored):
        is_first_of_all = not place and together.share >= LEAST_SHARE
        text = figures(effect, log_setting.setting)
        # How much a detour of the data costs differs between hosts: one that costs more than was
        # measured explains it too.
        is_enough = cause.cause in _UNSURE and effect.enough >= LEAST_SHARE
        if together.old_error >= AGREES and (
            effect.share >= LEAST_SHARE or is_enough or (is_first_of_all and effect.share > 0)
        ):
            extent = f"{effect.share:.0%} of" if effect.share >= LEAST_SHARE else "more than"
            words = f"explains {extent} the difference to a sound machine: {text}"
            evidence = (f"the log says: {cause.source}",)
            step = _without(cause, log_setting.setting, effect)
            explaining.append(Explanation((cause.cause,), cause.claim, words, evidence, step))
        elif effect.change > SLIGHT_CHANGE:
            remarks.append(f"the log says {cause.source} ({cause.claim}); with it {text}")
        elif cause.cause in _UNSURE:
            without_number.append(cause)
        elif cause.source.startswith("NCCL_"):
            remarks.append(f"the log says {cause.source}, which changes nothing here")
    limits = [
        LogLimit(cause.claim, figures(effect, log_setting.setting))
        for effect, cause in scored
        if _slows_down(effect)
    ]
    return _OfLog(tuple(explaining), tuple(remarks), tuple(without_number), tuple(limits))


def _slows_down(effect: Effect) -> bool:
    """Whether a size is slower than without the cause, and the cause slows it down."""
    return any(
        min(measured, new) > SLIGHT * old
        for measured, old, new in zip(effect.measured_fs, effect.old_fs, effect.new_fs, strict=True)
    )


def _without(cause: LogCause, setting: Setting, effect: Effect) -> str:
    """Run again without what the log names, with the figure to expect."""
    figure = sound_figure(effect, setting)
    names = [
        part.partition("=")[0]
        for part in cause.source.split("; ")
        if re.match(r"[A-Z]+_[A-Z0-9_]+=", part)
    ]
    if names:
        return f"run again without {' and '.join(names)}; predicted then: {figure}"
    repair = cause_on(cause.cause, setting.library.name).after_log
    return f"{repair}; then run again; predicted without this cause: {figure}"


def _at(setting: Setting, sizes: Sequence[int]) -> Setting:
    """The setting with one row of each of some sizes."""
    rows = {row.size_bytes: row for row in setting.table.rows}
    return replace(setting, table=replace(setting.table, rows=tuple(rows[size] for size in sizes)))
