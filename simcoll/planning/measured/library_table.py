"""A communication library's predicted choices by size, as a table in nccl-tests' form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from simcoll.core.collective import bus_factor, collective_kind
from simcoll.errors import listed
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.environment import DEFAULT, Environment
from simcoll.libraries.intervals import without_class
from simcoll.libraries.library import Library
from simcoll.libraries.nccl_decision import decides, own_choices
from simcoll.libraries.prediction import Prediction, predict
from simcoll.libraries.question import question_on
from simcoll.libraries.variables import without_effect
from simcoll.planning.sweeps.nccl_tests_table import (
    TIMES,
    Column,
    gigabytes,
    microseconds,
    table_line,
    titles,
)
from simcoll.terminal import printable
from simcoll.topology import Topology
from simcoll.units import counted, format_size

if TYPE_CHECKING:
    from simcoll.planning.sweeps.sweep import SweepRow

__all__ = ["doubts", "gain_lines", "library_lines", "library_predictions", "within_text"]

_SIZE: Column = ("size", "(B)", 12)
MOST_HEADROOM = 100
"""Largest headroom shown: the bound covers bytes only, and says little where latency dominates."""
_WITHIN: tuple[Column, ...] = (("90 % within", "(us)", 21),)
_BOUND: tuple[Column, ...] = (("bound", "(us)", 11), ("headroom", "", 9))
MOST_ALIKE = 1.01
"""Ratio of two times below which neither counts as faster."""
_TIMES = TIMES[:3]
_SCHEDULES = {
    "ring": ("ring", "nvlink_ring", "chain"),
    "tree": ("nccl_tree",),
    "nvls": ("nvls",),
    "nvls_tree": ("nvls_tree",),
    "pat": (),
    "collnet": (),
    "collnet_chain": (),
    "grouped": ("grouped", "direct"),
}
"""The schedules of a library's algorithms; a send_recv is grouped sends to one rank, and so
direct.
"""


def library_predictions(
    collective: str,
    sizes: Iterable[int],
    topology: Topology,
    library: Library,
    environment: Environment = DEFAULT,
    calibration: Calibration | None = None,
) -> list[Prediction]:
    """Predict every size."""
    return [
        predict(
            collective,
            size,
            topology,
            library=library,
            environment=environment,
            calibration=calibration,
        )
        for size in sizes
    ]


def library_lines(
    predictions: Sequence[Prediction],
    topology: Topology,
    library: Library,
    environment: Environment,
    *,
    verbose: bool = False,
) -> Iterator[str]:
    """The lines of the table: choice, channels, bound, and marks of times not found by emulation.

    ``verbose`` adds the classes of errors behind the intervals, and what the library's model lacks.
    """
    yield printable(f"# {library} on {topology.name}, {topology.nranks} ranks")
    for effect, reporting in (("changes no time", True), ("not in the model", False)):
        settings = [
            setting
            for setting in environment.ignored
            if without_effect(setting.partition("=")[0]) == reporting
        ]
        if settings:
            yield printable(f"# {', '.join(settings)}: {effect}")
    if predictions[0].calibration:
        yield f"# calibration {predictions[0].calibration}"
    width = max(len(_choice(prediction)) for prediction in predictions) + 2
    heads = (("runs", "bottleneck"), ("", ""))
    for table_title, bound_title, (name, last) in zip(
        titles((_SIZE, *_TIMES)), titles((*_WITHIN, *_BOUND)), heads, strict=True
    ):
        yield f"{table_title}  {name:<{width}} {bound_title[1:]}  {last}".rstrip()
    for prediction in predictions:
        rate = prediction.size_bytes / (prediction.time_fs / 1e15)
        factor = bus_factor(prediction.collective, topology.nranks)
        cells = (
            prediction.size_bytes,
            microseconds(prediction.time_us),
            gigabytes(rate),
            gigabytes(rate * float(factor)),
        )
        ratio = prediction.time_fs / prediction.bound_fs if prediction.bound_fs else 0.0
        headroom = (
            "-" if not ratio else f"{ratio:.3g}x" if ratio < MOST_HEADROOM else f">{MOST_HEADROOM}x"
        )
        bound_text = microseconds(prediction.bound_fs / 1e9)
        within = within_text(prediction.low90_fs, prediction.high90_fs)
        bound = table_line((*_WITHIN, *_BOUND), (within, bound_text, headroom))
        line = (
            f"{table_line((_SIZE, *_TIMES), cells)}  {_choice(prediction):<{width}}{bound}  "
            f"{prediction.bottleneck}"
        )
        yield printable(line)
    yield from doubts(predictions, verbose=verbose)
    yield from _own_rules(predictions, topology, library, environment)
    if verbose:
        yield f"# not in the model: {'; '.join(library.missing)}"


def _own_rules(
    predictions: Sequence[Prediction],
    topology: Topology,
    library: Library,
    environment: Environment,
) -> Iterator[str]:
    """The choices of NCCL's own rules where the fastest is predicted instead, as over nodes whose
    graphs its search states.
    """
    collective = collective_kind(predictions[0].collective)
    question = question_on(collective, topology, library, environment)
    sizes = [prediction.size_bytes for prediction in predictions]
    if decides(question) or not (choices := own_choices(question, sizes)):
        return
    sizes_of: dict[str, list[str]] = {}
    for choice, prediction in zip(choices, predictions, strict=True):
        is_of_rules = prediction.algorithm != "symmetric"
        if is_of_rules and choice.key != (prediction.algorithm, prediction.protocol):
            name = f"{choice.algorithm} {choice.protocol}"
            sizes_of.setdefault(name, []).append(format_size(prediction.size_bytes))
    if sizes_of:
        names = "; ".join(f"{name} at {listed(sizes)}" for name, sizes in sizes_of.items())
        yield (
            f"# the fastest choice is predicted, because on these nodes its errors are smaller; "
            f"NCCL's own rules take {names}"
        )


def doubts(predictions: Iterable[Prediction], *, verbose: bool = False) -> Iterator[str]:
    """Where intervals come from, reasons why some predictions are not emulated, where played times
    differ from the formula's, and assumptions for missing numbers, each once.

    ``verbose`` adds the classes of errors behind the intervals.
    """
    rows = list(predictions)
    origins = [
        prediction.errors_of if verbose else f"{without_class(prediction.errors_of)} (-v: which)"
        for prediction in rows
    ]
    for origin, count in Counter(origins).items():
        yield f"# 90 % interval of {counted(count, 'size')}: {origin}"
    ratios = [row.time_fs / row.formula_fs for row in rows if row.differs]
    if ratios:
        low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
        times = low if low == high else f"{low} to {high}"
        yield (
            f"# {counted(len(ratios), 'size')} played in {times} times the formula's time: "
            "messages share links there"
        )
    for note, count in Counter(prediction.note for prediction in rows if prediction.note).items():
        yield printable(f"# {count} size{'s' * (count > 1)} {note}")
    for guess, count in Counter(
        guess for prediction in rows for guess in prediction.assumed.split("; ") if guess
    ).items():
        yield printable(f"# assumed for {count} size{'s' * (count > 1)}: {guess}")


def within_text(low_fs: int, high_fs: int) -> str:
    """An interval of times in microseconds.

    >>> within_text(9_500_000_000, 16_250_000_000)
    '9.50 to 16.25'
    """
    return f"{microseconds(low_fs / 1e9)} to {microseconds(high_fs / 1e9)}"


def gain_lines(predictions: Sequence[Prediction], rows: Sequence[SweepRow]) -> Iterator[str]:
    """Lines with the gain of the best of all algorithms over the communication library's own
    algorithm.

    The library's time is the shorter of its prediction, which has corrections from measurements,
    and of its algorithm among these runs, which have none. So a gain is never only a difference of
    constants.
    """
    gains = []
    for prediction in predictions:
        runs = [
            row for row in rows if row.size_bytes == prediction.size_bytes and not row.result.cut
        ]
        schedule_times = [
            row.time_fs for row in runs if row.choice.algorithm in _SCHEDULES[prediction.algorithm]
        ]
        if runs:
            best = min(runs, key=attrgetter("time_fs"))
            time_fs = min(prediction.time_fs, *schedule_times)
            gains.append((time_fs / max(best.time_fs, 1), time_fs, best))
    if not gains:
        return
    name = predictions[0].library.split()[0].upper()
    ratio, time_fs, best = max(gains, key=lambda gain: gain[0])
    if ratio < MOST_ALIKE:
        yield f"# no algorithm is faster than {name}'s"
        return
    yield (
        f"# largest gain at {best.size_bytes} B: {best} takes {microseconds(best.time_fs / 1e9)} "
        f"us, {name}'s algorithm {ratio:.2f} times as long, {microseconds(time_fs / 1e9)} us (the "
        "shorter of its times in both tables)"
    )


def _choice(prediction: Prediction) -> str:
    return f"{prediction.algorithm} {prediction.protocol} x{prediction.channels}"
