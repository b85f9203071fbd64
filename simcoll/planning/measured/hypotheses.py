"""Explanations of differences between measured and predicted times: physical changes of the
machine, each tested by predicting with that one change.

None is a fact. A change that brings predictions closer is evidence for a cause with that effect,
which other causes share; what the log says decides between them where it can. A change is named
only if it explains at least half of the difference, and none where a range of sizes agrees.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from statistics import median

from simcoll.core.collective import bus_factor
from simcoll.errors import ConfigError
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.fitting import MOST_LAUNCH_FS, WARM_UP, Series, fit_series
from simcoll.libraries.prediction import formula_times, predict
from simcoll.planning.measured.causes import CAUSES, CauseName, cause_on
from simcoll.planning.measured.comparison import Compared, Setting
from simcoll.planning.measured.variants import (
    SLOW_HOST_GBPS,
    SOCKET_RATES,
    host_memory,
    in_environment,
    nics_of,
    no_gpudirect,
    over_interface,
    slow_host_memory,
    slower_links,
    uses_host_memory,
    with_nics,
)
from simcoll.topology.machine import machine as machine_of
from simcoll.units import counted, format_signed, format_size

__all__ = [
    "AGREES",
    "LEAST_SHARE",
    "SLIGHT",
    "SLIGHT_CHANGE",
    "Effect",
    "Explanation",
    "bus_rate",
    "cliff_of",
    "effect_of",
    "even_shortfall",
    "explanations",
    "figures",
    "odd_sizes",
    "sample_sizes",
    "sound_figure",
    "times_by_size",
]

LEAST_SHARE = 0.5
"""Share of the difference that an explanation must explain."""
AGREES = math.log(1.2)
"""Mean logarithm of the ratio of measured and predicted times below which they agree: as much as
two publishers of one machine differ at small and middle sizes.
"""
SLIGHT, FAR = 1.2, 1.5
"""Ratios of measured and predicted time: below the first nothing needs an explanation, whatever the
interval; from the second on everything does.
"""
SLIGHT_CHANGE = 0.02
"""Logarithm of a ratio of times below which a change has no effect."""
EVEN, NEAR = 1.3, 0.12
"""Ratio of the largest and the smallest share of the predicted bandwidth that count as one, and
how near to a simple fraction it must be to be called so.
"""
CLIFF = 4.0
"""Rise of the ratio between neighbouring sizes that counts as a cliff."""
SMALL_BYTES = 2**16
"""Size from which the choice of algorithm and protocol decides most of the time."""
MOST_SIZES = 9
"""Number of sizes that are predicted for a change: enough for its shape."""
MOST_HOP_FS = 200 * 10**9
"""Largest latency of a hop over a network, beyond that of the library, that is a cause: 200 us."""
MOST_RANGES = 8
"""Number of ranges of sizes that changes are tested on, at half a second each: 1,284 sizes with
random times had 81.
"""
MOST_OFFSET_FS = 500 * 10**9
"""Largest offset of every operation that is a launch: 500 us."""
MOST_CONFIRMED = 5
"""Number of changes that are predicted as the table is; others are ruled out by the formula."""


@dataclass(frozen=True, slots=True)
class PhysicalChange:
    """A change to test.

    Attributes
    ----------
    causes
        Names of the causes with this effect, the most frequent first.
    claim
        The change in words.
    setting, calibration
        What predicts it.
    rarity
        Added to the share that it leaves unexplained when changes are ranked: between equal ones,
        the cause that is found more often comes first.
    unseen
        Whether the library does not know of it, and chooses as on a sound machine.
    """

    causes: tuple[CauseName, ...]
    claim: str
    setting: Setting
    calibration: Calibration
    rarity: float = 0.0
    unseen: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """Times with a change beside those without it, of the same sizes.

    Attributes
    ----------
    sizes, measured_fs, old_fs, new_fs
        Sizes, measured times, and predictions without and with the change.
    """

    sizes: tuple[int, ...]
    measured_fs: tuple[int, ...]
    old_fs: tuple[int, ...]
    new_fs: tuple[int, ...]

    @property
    def old_error(self) -> float:
        """Mean logarithm of the ratios without the change."""
        return _error(self.old_fs, self.measured_fs)

    @property
    def new_error(self) -> float:
        """Mean logarithm of the ratios with the change."""
        return _error(self.new_fs, self.measured_fs)

    @property
    def change(self) -> float:
        """Largest logarithm of the ratio of the times with and without the change."""
        return max(
            abs(math.log(new / old)) for old, new in zip(self.old_fs, self.new_fs, strict=True)
        )

    @property
    def share(self) -> float:
        """Share of the difference that the change explains; below 0 if it adds to it."""
        return 1 - self.new_error / self.old_error if self.old_error else 0.0

    @property
    def enough(self) -> float:
        """Share of the slowness that the change is enough for: as the share, but a time that it
        predicts beyond the measured one is no error.
        """
        old, new = (
            sum(
                max(0.0, math.log(measured / time))
                for measured, time in zip(self.measured_fs, times_fs, strict=True)
            )
            for times_fs in (self.old_fs, self.new_fs)
        )
        return 1 - new / old if old else 0.0


@dataclass(frozen=True, slots=True)
class Explanation:
    """A change that explains at least half of a difference.

    Attributes
    ----------
    causes
        Names in :data:`~simcoll.planning.measured.causes.CAUSES`, the likeliest first.
    claim
        The change in words.
    effect
        How much it explains, with the figures.
    evidence
        What the log says for and against it.
    step
        What to do next; empty: the check of the first cause.
    """

    causes: tuple[CauseName, ...]
    claim: str
    effect: str
    evidence: tuple[str, ...] = ()
    step: str = ""

    @property
    def is_in_log(self) -> bool:
        """Whether the log names it."""
        return any("the log says" in text for text in (self.effect, *self.evidence))

    def lines(self, library: str = "nccl") -> Iterator[str]:
        """The claim with its effect, the evidence, and what to do next on the GPUs of a library."""
        yield f"{self.claim}: {self.effect}"
        yield from self.evidence
        likeliest = cause_on(self.causes[0], library)
        yield f"next: {self.step or f'{likeliest.check}; if so, it shows {likeliest.shows}'}"


def _error(times_fs: Sequence[int], measured_fs: Sequence[int]) -> float:
    logs = [
        abs(math.log(time / measured)) for time, measured in zip(times_fs, measured_fs, strict=True)
    ]
    return sum(logs) / len(logs)


def times_by_size(rows: Sequence[Compared]) -> dict[int, tuple[int, int]]:
    """Median measured time and predicted time of each size, in order."""
    times: dict[int, list[int]] = defaultdict(list)
    predicted: dict[int, int] = {}
    for row in rows:
        times[row.row.size_bytes].append(row.row.time_fs)
        predicted[row.row.size_bytes] = row.prediction.time_fs
    return {size: (int(median(times[size])), predicted[size]) for size in sorted(times)}


def odd_sizes(rows: Sequence[Compared]) -> set[int]:
    """Sizes whose times are above the interval of their predictions, or far above the prediction
    where the interval is wide.
    """
    upper_fs = {row.row.size_bytes: row.prediction.high90_fs for row in rows}
    return {
        size
        for size, (time, predicted) in times_by_size(rows).items()
        if time > min(max(upper_fs[size], SLIGHT * predicted), FAR * predicted)
    }


def effect_of(
    times: Mapping[int, tuple[int, int]], new_fs: Sequence[int], sizes: Sequence[int]
) -> Effect:
    """Compare times with a change with the measured and predicted ones, at some sizes."""
    measured, old = zip(*(times[size] for size in sizes), strict=True)
    return Effect(tuple(sizes), measured, old, tuple(new_fs))


def sample_sizes(sizes: Sequence[int]) -> list[int]:
    """At most :data:`MOST_SIZES` sizes, evenly spaced, both ends among them."""
    if len(sizes) <= MOST_SIZES:
        return list(sizes)
    last = len(sizes) - 1
    places = {round(last * step / (MOST_SIZES - 1)) for step in range(MOST_SIZES)}
    return [sizes[place] for place in sorted(places)]


def explanations(
    setting: Setting,
    rows: Sequence[Compared],
    calibration: Calibration | None = None,
    against: Mapping[CauseName, str] | None = None,
    support: Mapping[CauseName, str] | None = None,
    limit: int = 3,
) -> tuple[list[Explanation], str]:
    """The changes that explain most, in order, and a line on what remains unexplained.

    Parameters
    ----------
    rows
        The compared rows of the table.
    against, support
        Causes that the log rules out or points to, with what it says.
    """
    against, support = against or {}, support or {}
    base = calibration or Calibration()
    times = times_by_size(rows)
    results: list[Explanation] = []
    cliff = cliff_of(times)
    sizes = list(times)
    if cliff:
        results.append(_cliff_explanation(cliff, times, setting))
        sizes = [size for size in sizes if size < cliff]
    if cold := _cold_size(times):
        results.append(_cold_explanation(cold, times))
        sizes = [size for size in sizes if size != cold]
    disturbed = _disturbed_sizes(times)
    if disturbed:
        results.append(_disturbance(disturbed, times))
        alone = set(disturbed)
        sizes = [size for size in sizes if size not in alone]
    remains: list[str] = []
    odd = odd_sizes(rows)
    changes = _TableChanges(setting, rows, base, times)
    parts = [part for part in _parts(sizes, times) if not odd.isdisjoint(part)]
    tested = _slowest(parts, times)
    for part in tested:
        ranked = _best_changes(changes, part, against, support)
        results += [
            _explanation(candidate, test, part, sizes, setting, support)
            for candidate, test in ranked[:limit]
        ]
        if not ranked:
            remains.append(_range_text(part, times))
    unexplained = (
        [f"unexplained: {'; '.join(remains)}; no change tested explains half of it"]
        if remains
        else []
    )
    if untested := len(parts) - len(tested):
        unexplained.append(
            f"not tested: {counted(untested, 'range')} of sizes that exceed their predictions less"
        )
    return results, "; ".join(unexplained)


def _slowest(
    parts: Sequence[list[int]], times: Mapping[int, tuple[int, int]]
) -> Sequence[list[int]]:
    """The ranges of sizes that exceed their predictions most, over all their sizes, in order."""
    if len(parts) <= MOST_RANGES:
        return parts
    excess = [sum(math.log(times[size][0] / times[size][1]) for size in part) for part in parts]
    places = sorted(range(len(parts)), key=lambda place: -excess[place])[:MOST_RANGES]
    return [parts[place] for place in sorted(places)]


def _parts(sizes: Sequence[int], times: Mapping[int, tuple[int, int]]) -> list[list[int]]:
    """Ranges of sizes that are slower than predicted: all of them if none is faster."""
    if not sizes:
        return []
    logs = {size: math.log(times[size][0] / times[size][1]) for size in sizes}
    if sum(logs.values()) / len(sizes) >= AGREES and min(logs.values()) > -AGREES:
        return [list(sizes)]
    parts: list[list[int]] = []
    run: list[int] = []
    for size in [*sizes, 0]:
        if run and (not size or logs[size] <= AGREES):
            parts.append(run)
            run = []
        if size and logs[size] > AGREES:
            run.append(size)
    return [part for part in parts if len(part) > 1 or len(sizes) < 3]


def _range_text(part: Sequence[int], times: Mapping[int, tuple[int, int]]) -> str:
    factors = sorted(times[size][0] / times[size][1] for size in part)
    low, high = f"{factors[0]:.2f}", f"{factors[-1]:.2f}"
    factor_text = low if low == high else f"{low} to {high}"
    return f"{_sizes_text(part)} takes {factor_text} times the prediction"


_PARTS = {
    Fraction(1, 2): "half",
    Fraction(1, 3): "a third",
    Fraction(1, 4): "a quarter",
    Fraction(1, 8): "an eighth",
}


def _even_share(rows: Sequence[Compared]) -> float:
    """The share of the predicted bandwidth that all sizes have; 0 if they differ or are sound."""
    ratios = [predicted / measured for measured, predicted in times_by_size(rows).values()]
    if not odd_sizes(rows) or max(ratios) > EVEN * min(ratios) or max(ratios) > 1 / SLIGHT:
        return 0.0
    return sum(ratios) / len(ratios)


def _simple_part(share: float) -> Fraction | None:
    """The simple fraction that a share is near to."""
    return next((part for part in _PARTS if abs(share / float(part) - 1) < NEAR), None)


def even_shortfall(rows: Sequence[Compared]) -> str:
    """In words, that all sizes lack the same share of the predicted bandwidth; empty if not."""
    share = _even_share(rows)
    if not share:
        return ""
    part = _simple_part(share)
    part_text = _PARTS[part] if part else f"{share:.0%}"
    number = len(times_by_size(rows))
    scope = {1: "the only size", 2: "both sizes"}.get(number, f"all {number} sizes")
    return f"about {part_text} of the predicted bandwidth at {scope}"


def _sizes_text(sizes: Sequence[int]) -> str:
    ends = [format_size(size) for size in (sizes[0], sizes[-1])]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def cliff_of(times: Mapping[int, tuple[int, int]]) -> int:
    """The size from which on a table is slower by a factor that no smaller size has; 0 if none."""
    sizes = list(times)
    ratios = [times[size][0] / times[size][1] for size in sizes]
    highest = [*accumulate(ratios, max)]
    lowest = [*accumulate(reversed(ratios), min)][::-1]
    for place in range(2, len(sizes)):
        if (
            ratios[place] > CLIFF * ratios[place - 1]
            and lowest[place] > 2 * highest[place - 1]
            and sizes[place] <= 8 * sizes[place - 1]
        ):
            return sizes[place]
    return 0


def _cliff_explanation(
    cliff: int, times: Mapping[int, tuple[int, int]], setting: Setting
) -> Explanation:
    sizes = list(times)
    last = sizes[sizes.index(cliff) - 1]
    rates = [bus_rate(setting, size, times[size][0]) for size in (last, cliff)]
    several = machine_of(setting.topology).domains > 1
    causes: tuple[CauseName, ...] = ("slow_link", "shared")
    if several:
        causes = ("congestion", *causes)
    title = CAUSES["congestion"].title if several else "a fault of links or memory under load"
    below_text, above_text = (
        _range_text([size for size in sizes if (size < cliff) == is_below], times)
        for is_below in (True, False)
    )
    return Explanation(
        causes,
        f"a cliff at {format_size(cliff)}: {title}",
        f"the bandwidth falls from {rates[0]:.3g} to {rates[1]:.3g} GB/s ({below_text}; "
        f"{above_text}); no parameter of the library has such a step",
    )


def _cold_size(times: Mapping[int, tuple[int, int]]) -> int:
    """The first size, if it takes far longer than the next; 0 if not."""
    sizes = list(times)
    if len(sizes) < 3:
        return 0
    (first_fs, first_predicted), (next_fs, next_predicted) = times[sizes[0]], times[sizes[1]]
    by_prediction = first_fs / first_predicted > FAR * next_fs / next_predicted
    return sizes[0] if by_prediction and first_fs > WARM_UP * next_fs else 0


def _cold_explanation(size: int, times: Mapping[int, tuple[int, int]]) -> Explanation:
    following = list(times)[1]
    factor = times[size][0] / times[following][0]
    return Explanation(
        ("cold",),
        f"{format_size(size)} takes {factor:.1f} times as long as {format_size(following)}: "
        f"{CAUSES['cold'].title}",
        "the first operations set up connections and buffers",
    )


def _disturbed_sizes(times: Mapping[int, tuple[int, int]]) -> list[int]:
    """Single sizes that are slower than both of their neighbours, in themselves and by the
    prediction.
    """
    sizes = list(times)
    ratios = [times[size][0] / times[size][1] for size in sizes]
    disturbed = []
    for place, size in enumerate(sizes[1:-1], 1):
        between = math.sqrt(times[sizes[place - 1]][0] * times[sizes[place + 1]][0])
        stands_out = ratios[place] > FAR * max(ratios[place - 1], ratios[place + 1])
        if stands_out and times[size][0] > FAR * between:
            disturbed.append(size)
    return disturbed


def _disturbance(disturbed: Sequence[int], times: Mapping[int, tuple[int, int]]) -> Explanation:
    sizes = list(times)
    place_of = {size: place for place, size in enumerate(sizes)}
    factors = []
    for size in disturbed:
        place = place_of[size]
        neighbours = [times[sizes[place + step]] for step in (-1, 1)]
        usual_ratio = max(measured / predicted for measured, predicted in neighbours)
        factors.append(times[size][0] / times[size][1] / usual_ratio)
    names = ", ".join(map(format_size, disturbed))
    verb = "takes" if len(disturbed) == 1 else "take"
    return Explanation(
        ("shared", "algorithm"),
        f"{names} alone {verb} up to {max(factors):.1f} times as long as the sizes beside: a "
        "disturbance, such as another job on the same links, or a choice of the library there",
        "no fault of a machine has such a peak",
    )


def bus_rate(setting: Setting, size: int, time_fs: int) -> float:
    """Bus bandwidth of a time, in GB/s."""
    factor = float(bus_factor(setting.table.collective, setting.topology.nranks))
    return factor * size / time_fs * 1e6


def _best_changes(
    changes: _TableChanges,
    part: Sequence[int],
    against: Mapping[CauseName, str],
    support: Mapping[CauseName, str],
) -> list[tuple[PhysicalChange, Effect]]:
    """The changes that explain half of the difference in a range, the best of each first cause."""
    sizes = sample_sizes(part)
    candidates = []
    for candidate in changes.candidates(part):
        causes = [cause for cause in candidate.causes if cause not in against]
        if causes:
            ordered = tuple(sorted(causes, key=lambda cause: cause not in support))
            claim = candidate.claim
            if ordered[0] in support and len(ordered) > 1:
                claim = f"{CAUSES[ordered[0]].title}: {claim}"
            candidates.append(replace(candidate, causes=ordered, claim=claim))
    # The formula differs from events by some percent: a little less may be enough there.
    likely = _tests(changes.formula_times, candidates, changes.times, sizes, LEAST_SHARE - 0.1)
    likely.sort(key=lambda test: _score(test[0], test[1], support))
    remaining = [candidate for candidate, _ in likely[:MOST_CONFIRMED]]
    confirmed = _tests(changes.event_times, remaining, changes.times, sizes, LEAST_SHARE)
    confirmed.sort(key=lambda test: _score(test[0], test[1], support))
    best: dict[str, tuple[PhysicalChange, Effect]] = {}
    for candidate, effect in confirmed:
        best.setdefault(candidate.causes[0], (candidate, effect))
    return list(best.values())


def _tests(
    times_of: Callable[[PhysicalChange, Sequence[int]], Sequence[int]],
    candidates: Sequence[PhysicalChange],
    times: Mapping[int, tuple[int, int]],
    sizes: Sequence[int],
    least_share: float,
) -> list[tuple[PhysicalChange, Effect]]:
    """The changes that explain at least a share of the difference, by times of one kind."""
    tests = []
    for candidate in candidates:
        try:
            effect = effect_of(times, times_of(candidate, sizes), sizes)
        except ConfigError:  # the model has no numbers for such a machine
            continue
        if effect.share >= least_share:
            tests.append((candidate, effect))
    return tests


def _score(candidate: PhysicalChange, effect: Effect, support: Mapping[CauseName, str]) -> float:
    supported = any(cause in support for cause in candidate.causes)
    return 1 - effect.share + candidate.rarity - (10.0 if supported else 0.0)


class _TableChanges:
    """The changes to test on a table, made once for all its ranges of sizes, and their times:
    quickly by the formula, or as the table was predicted.
    """

    def __init__(
        self,
        setting: Setting,
        rows: Sequence[Compared],
        base: Calibration,
        times: Mapping[int, tuple[int, int]],
    ) -> None:
        self._setting, self._rows, self._calibration = setting, rows, base
        self.times = times
        self._base = {
            row.row.size_bytes: (row.prediction.formula_fs or row.prediction.time_fs)
            for row in rows
        }
        self._events = {row.row.size_bytes: row.prediction.time_fs for row in rows}
        self._choices = {
            row.row.size_bytes: (row.prediction.algorithm, row.prediction.protocol) for row in rows
        }

    @cached_property
    def _network(self) -> list[PhysicalChange]:
        even = _simple_part(_even_share(self._rows))
        return [*_network_candidates(self._setting, self._calibration, even)]

    @cached_property
    def _node(self) -> list[PhysicalChange]:
        return [*_node_candidates(self._setting, self._calibration)]

    @cached_property
    def _choice(self) -> list[PhysicalChange]:
        return [*_choice_candidates(self._setting, self._calibration, self._rows)]

    def candidates(self, part: Sequence[int]) -> Iterator[PhysicalChange]:
        """All changes to test on a range of sizes."""
        facts, times = machine_of(self._setting.topology), self.times
        slower = sum(math.log(times[size][0] / times[size][1]) for size in part) > 0
        if slower and facts.domains > 1:
            yield from self._network
        if slower and any(count > 1 for count in facts.domain_ranks):
            yield from self._node
        # A single time of a small size fits many choices.
        if len(part) > 1 or part[0] >= SMALL_BYTES:
            yield from self._choice
        if slower and len(part) > 2:
            yield from _fitted_candidates(self._setting, self._calibration, times, part)

    def _environment(self, candidate: PhysicalChange, size: int) -> Setting:
        """The setting of a change for one size; the choice of the sound machine if unseen."""
        algorithm, protocol = self._choices[size]
        if not candidate.unseen or algorithm == "grouped":
            return candidate.setting
        return in_environment(
            candidate.setting,
            algorithms=(("", (algorithm,)),),
            protocols=(("", (protocol,)),),
        )

    def formula_times(self, candidate: PhysicalChange, sizes: Sequence[int]) -> list[int]:
        """The formula's change of every time, applied to the table's predictions."""
        by_choice: dict[tuple[str, str], list[int]] = {}
        for size in sizes:
            by_choice.setdefault(self._choices[size], []).append(size)
        formula_fs: dict[int, int] = {}
        for group in by_choice.values():
            setting = self._environment(candidate, group[0])
            times = formula_times(
                setting.table.collective,
                group,
                setting.topology,
                library=setting.library,
                calibration=candidate.calibration,
                environment=setting.environment,
            )
            formula_fs.update(zip(group, times, strict=True))
        return [
            max(1, formula_fs[size] * self._events[size] // max(1, self._base[size]))
            for size in sizes
        ]

    def event_times(self, candidate: PhysicalChange, sizes: Sequence[int]) -> list[int]:
        """Times predicted as the table's."""
        times = []
        for size in sizes:
            setting = self._environment(candidate, size)
            times.append(
                predict(
                    setting.table.collective,
                    size,
                    setting.topology,
                    library=setting.library,
                    calibration=candidate.calibration,
                    environment=setting.environment,
                ).time_fs
            )
        return times


def _explanation(
    candidate: PhysicalChange,
    test: Effect,
    part: Sequence[int],
    sizes: Sequence[int],
    setting: Setting,
    support: Mapping[CauseName, str],
) -> Explanation:
    scope = "" if len(part) == len(sizes) else f" from {_sizes_text(part)}"
    evidence = [f"for it: {support[cause]}" for cause in candidate.causes if cause in support]
    library = setting.library.name
    titles = [cause_on(cause, library).title for cause in candidate.causes[1:]]
    if titles:
        evidence.append(f"of the same effect: {'; '.join(titles)}")
    effect = f"explains {test.share:.0%} of the difference{scope}: {figures(test, setting)}"
    is_in_log = candidate.causes[0] in support
    step = cause_on(candidate.causes[0], library).after_log if is_in_log else ""
    return Explanation(candidate.causes, candidate.claim, effect, tuple(evidence), step)


def figures(test: Effect, setting: Setting) -> str:
    """Bandwidth, or time if it is small, with the change, without it, and measured, at the size
    where the change does most.
    """
    size_text, unit, texts = _at_largest_change(test, setting)
    return f"{texts[0]} instead of {texts[1]} {unit} at {size_text}, measured {texts[2]}"


def sound_figure(test: Effect, setting: Setting) -> str:
    """Bandwidth or time without the change, at the size where it does most."""
    size_text, unit, texts = _at_largest_change(test, setting)
    return f"{texts[1]} {unit} at {size_text}"


def _at_largest_change(test: Effect, setting: Setting) -> tuple[str, str, tuple[str, str, str]]:
    """A size, the unit, and the figures with the change, without it, and measured."""
    changes = [
        round(abs(math.log(new / old)), 2)
        for old, new in zip(test.old_fs, test.new_fs, strict=True)
    ]
    place = len(changes) - 1 - changes[::-1].index(max(changes))
    size = test.sizes[place]
    times_fs = [column[place] for column in (test.new_fs, test.old_fs, test.measured_fs)]
    if size < 2**20:
        texts = [f"{time / 1e9:.4g}" for time in times_fs]
    else:
        texts = [f"{bus_rate(setting, size, time):.3g}" for time in times_fs]
    new, old, measured = texts
    return format_size(size), "us" if size < 2**20 else "GB/s", (new, old, measured)


_SHARE_NAMES = {Fraction(1, 2): "half", Fraction(1, 4): "a quarter", Fraction(1, 8): "an eighth"}
_SHARES = tuple(
    Fraction(*pair) for pair in ((3, 4), (2, 3), (1, 2), (3, 8), (1, 4), (1, 8), (1, 16))
)


EVIDENT = 0.15
"""How much likelier a share of the network is that all sizes lack alike."""
SEEN_ELSEWHERE = 0.25
"""How much likelier a rate is that reports have than the best of several shares."""


NO_GPUDIRECT: tuple[CauseName, ...] = ("no_gpudirect", "host_memory")


def _network_candidates(
    setting: Setting, base: Calibration, even: Fraction | None
) -> Iterator[PhysicalChange]:
    """Changes of the network; ``even``: the simple fraction of the bandwidth at all sizes."""
    facts = machine_of(setting.topology)
    total = nics_of(setting)
    for count in sorted({1, total // 4, total // 2, 3 * total // 4, total - 1} - {0, total}):
        claim = f"{count} of {total} NICs in use"
        rarity = -EVIDENT if Fraction(count, total) == even else 0.0
        yield PhysicalChange(("few_nics",), claim, with_nics(setting, count), base, rarity)
    gdr = CAUSES["no_gpudirect"].title
    if uses_host_memory(setting):
        claim = f"host memory at {SLOW_HOST_GBPS} GB/s a NIC"
        slow = slow_host_memory(setting)
        yield PhysicalChange(NO_GPUDIRECT, claim, slow, base, -SEEN_ELSEWHERE, unseen=True)
    else:
        yield PhysicalChange(("no_gpudirect",), gdr, no_gpudirect(setting), base, 0.15)
    for share in _SHARES:
        causes: list[CauseName] = ["slow_link", "acs", "pcie", "no_gpudirect", "shared"]
        if facts.domains > 2:
            causes.insert(1, "spine")
        if share > Fraction(1, 2):  # 16 of 24 GB/s remain across a CPU
            causes = ["pcie", *(cause for cause in causes if cause != "pcie")]
        claim = f"the network at {_SHARE_NAMES.get(share, f'{float(share):.2g}')} of its rate"
        if even and share != even:  # at full rate the network was not the limit
            claim = f"{_PARTS[even]} of the bandwidth of the network: links at {float(share):.2g}"
            claim += " of their rate"
        slow = slower_links(setting, "net", share)
        rarity = 0.12 - (EVIDENT if share == even else 0.0)
        yield PhysicalChange(tuple(causes), claim, slow, base, rarity, unseen=True)
    for rate_Gbps, title in SOCKET_RATES:
        if rate_Gbps * 10**15 < 4 * facts.nic_uBps:  # half of the rate of the NICs
            claim = f"TCP sockets over an interface of {title}"
            changed = over_interface(setting, rate_Gbps)
            yield PhysicalChange(("sockets",), claim, changed, base, 0.1)


def _node_candidates(setting: Setting, base: Calibration) -> Iterator[PhysicalChange]:
    facts = machine_of(setting.topology)
    if facts.inside in {"nvlink", "xgmi"}:
        rarity = 0.45 if facts.domains > 1 else 0.02
        for share in (Fraction(3, 4), Fraction(1, 2), Fraction(1, 4)):
            links = "NVLinks" if facts.inside == "nvlink" else "xGMI links"
            title = cause_on("few_nvlinks", setting.library.name).title
            claim = f"{links} at {float(share):.2g} of their rate: {title}"
            slow = slower_links(setting, "nvlink", share)
            yield PhysicalChange(
                ("few_nvlinks", "slow_link"), claim, slow, base, rarity, unseen=True
            )
    elif facts.inside == "pcie":
        for share in (Fraction(1, 2), Fraction(1, 4)):
            claim = f"PCIe at {float(share):.2g} of its rate: {CAUSES['pcie'].title}"
            slow = slower_links(slower_links(setting, "pcie", share), "cpu", share)
            yield PhysicalChange(("pcie", "acs", "slow_link"), claim, slow, base, 0.02, unseen=True)
    if facts.domains == 1 and facts.inside != "host":
        yield PhysicalChange(("no_p2p",), CAUSES["no_p2p"].title, host_memory(setting), base, 0.01)


def _choice_candidates(
    setting: Setting, base: Calibration, rows: Sequence[Compared]
) -> Iterator[PhysicalChange]:
    """Other choices of algorithm, protocol and channels."""
    environment = setting.environment
    algorithms = {row.prediction.algorithm for row in rows}
    if environment.nvls and any(name.startswith("nvls") for name in algorithms):
        off = in_environment(setting, nvls=False)
        yield PhysicalChange(("nvls_off",), CAUSES["nvls_off"].title, off, base)
    if not environment.max_channels and "grouped" not in algorithms:
        rarity = 0.3 if machine_of(setting.topology).domains > 1 else 0.12
        for channels in (1, 2, 4, 8):
            limited = in_environment(setting, max_ctas=channels)
            claim = f"only {channels} channel{'s' * (channels > 1)}"
            yield PhysicalChange(("few_channels",), claim, limited, base, rarity)
    if not environment.protocols:
        for names, claim, rarity in (
            (("LL", "Simple"), "no LL128: a network plugin without it, or NCCL_PROTO", 0.1),
            (("Simple",), "Simple at all sizes: NCCL_PROTO=Simple, or a tuner", 0.2),
        ):
            changed = in_environment(setting, protocols=(("", names),))
            yield PhysicalChange(("protocol",), claim, changed, base, rarity)
    if not environment.algorithms:
        for name in ("ring", "tree"):
            changed = in_environment(setting, algorithms=(("", (name,)),))
            claim = f"{name}s only: NCCL_ALGO={name.capitalize()}, or a tuner"
            yield PhysicalChange(("algorithm",), claim, changed, base, 0.25)


def _fitted_candidates(
    setting: Setting,
    base: Calibration,
    times: Mapping[int, tuple[int, int]],
    part: Sequence[int],
) -> Iterator[PhysicalChange]:
    """Changes with one fitted time, unless the fit ends at its bound or below 0."""
    timed = [_SizedTime(size, times[size][0]) for size in part]
    predictor = setting.formula()
    collective, nranks = setting.table.collective, setting.table.nranks
    series = Series.of(collective, nranks, timed, lambda sizes, c: predictor(sizes, _sum(base, c)))
    several = machine_of(setting.topology).domains > 1
    fitted = fit_series([series], ("launch",))
    rarity = 0.05
    if fitted.launch_fs >= 0.95 * MOST_LAUNCH_FS:  # the end of what a fit admits
        fitted, rarity = Calibration(launch_fs=_offset_fs(times, part)), 0.3
    if 10**9 < fitted.launch_fs < MOST_OFFSET_FS:
        claim = _launch(fitted.launch_fs)
        yield PhysicalChange(("launch", "one_process"), claim, setting, _sum(base, fitted), rarity)
    if several:
        fitted = fit_series([series], ("fabric_latency",))
        if 10**9 < fitted.fabric_latency_fs < MOST_HOP_FS:
            hop = format_signed(fitted.fabric_latency_fs)
            claim = f"{hop} on every hop over the network: another fabric, plugin or distance"
            yield PhysicalChange(("network_latency",), claim, setting, _sum(base, fitted), 0.1)


def _offset_fs(times: Mapping[int, tuple[int, int]], part: Sequence[int]) -> int:
    """How much longer the smaller half of a range takes than predicted, where time is latency."""
    smaller = part[: max(3, len(part) // 2)]
    return int(median(times[size][0] - times[size][1] for size in smaller))


@dataclass(frozen=True, slots=True)
class _SizedTime:
    size_bytes: int
    time_fs: int


def _sum(base: Calibration, fitted: Calibration) -> Calibration:
    """A calibration with the fitted times added."""
    return replace(
        base,
        launch_fs=base.launch_fs + fitted.launch_fs,
        fabric_latency_fs=base.fabric_latency_fs + fitted.fabric_latency_fs,
    )


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
    like = f", as with {' or '.join(causes)}" if causes else ""
    return (
        f"a launch offset of {format_signed(time_fs)}{like}, or processes bound to few or far "
        "cores (CPU affinity)"
    )
