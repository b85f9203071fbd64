"""Predict the time of a communication library: choose what it would run, then time that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.arrays import Floats, Ints
from simcoll.core.numbers import whole_number
from simcoll.core.vocabulary import CollectiveKind, NcclProtocol, PredictedAlgorithm
from simcoll.errors import ConfigError, expect, nearest
from simcoll.libraries import corrected
from simcoll.libraries.assumptions import assumptions
from simcoll.libraries.copy_engines import refuse_copy_engines
from simcoll.libraries.environment import DEFAULT, Environment
from simcoll.libraries.formula import Cost, stated_costs
from simcoll.libraries.intervals import spread_of
from simcoll.libraries.library import Library, library_for
from simcoll.libraries.nccl.choice import supports
from simcoll.libraries.nccl.sends import channels_of_sends, channels_to_a_peer
from simcoll.libraries.nccl_decision import call_of, decides, own_choices
from simcoll.libraries.prediction_cache import key_of, recall, remember, topology_digest
from simcoll.libraries.proved_choice import play
from simcoll.libraries.question import Question, question_on
from simcoll.libraries.rccl_choice import (
    ALGORITHMS,
    chooses_as_rccl,
    msccl_channels,
    rccl_picks,
)
from simcoll.libraries.symmetric import is_symmetric, symmetric_costs
from simcoll.notebook_forms import shows_facts
from simcoll.topology import Topology
from simcoll.topology.machine import machine as machine_of
from simcoll.units import MAX_INT64, MAX_TIME_FS, format_size, format_time

if TYPE_CHECKING:
    from simcoll.bounds import Bottleneck
    from simcoll.libraries.calibration import Calibration
    from simcoll.libraries.nccl.choice import NcclChoice
    from simcoll.topology.machine import Machine

__all__ = [
    "COLLECTIVES",
    "Prediction",
    "choose",
    "differs",
    "formula_time",
    "formula_times",
    "predict",
]

COLLECTIVES: tuple[CollectiveKind, ...] = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "send_recv",
)
"""The collectives that a library offers."""
ROOTED: tuple[CollectiveKind, ...] = ("broadcast", "reduce", "gather", "scatter")
DIFFERENT = 0.1
"""Share of the formula's time from which on a difference of the played time is reported."""


DIVERTED = (
    "variables lead data over other links than the routes of the topology; links that messages "
    "share are not counted, so that a played time without the variables may be longer"
)
NO_SHORTER = (
    "variables lead data over other links than the routes of the topology, on which it would take "
    "no longer"
)


@shows_facts
@dataclass(frozen=True, slots=True, repr=False)
class Prediction:
    """A library's choice for a collective of one size, and its predicted time.

    Attributes
    ----------
    collective, size_bytes
        The requested collective; the size as in nccl-tests.
    time_fs
        The predicted time.
    algorithm, protocol, channels
        The library's choice.
    schedule
        Title of the schedule that was played; empty if none was.
    timed_by
        ``"events"`` if the emulator played the schedule, ``"formula"`` if the time is that of the
        corrected formula.
    library
        Name and version, such as ``"nccl 2.27"``.
    bound_fs, bottleneck
        The lower bound of this collective on the raw capacities of the machine, and its bottleneck.
    calibration
        Hash of the calibration; empty without one.
    note
        Why the emulator could not play it, if the time is the formula's.
    assumed
        Substitutes for numbers that the library lacks; empty if there are none.
    formula_fs
        The time of the corrected formula, which knows no shared links.
    low50_fs, high50_fs, low90_fs, high90_fs
        Intervals that hold the measured time of half and of nine tenths of the published tables
        whose systems were left out of the fit.
    errors_of
        The tables whose errors the intervals come from, in words.
    """

    collective: CollectiveKind
    size_bytes: int
    time_fs: int
    algorithm: PredictedAlgorithm
    protocol: str
    channels: int
    schedule: str
    timed_by: str
    library: str
    bound_fs: int
    bottleneck: str
    calibration: str
    note: str = ""
    assumed: str = ""
    formula_fs: int = 0
    low50_fs: int = 0
    high50_fs: int = 0
    low90_fs: int = 0
    high90_fs: int = 0
    errors_of: str = ""

    @property
    def time_us(self) -> float:
        """The predicted time in microseconds."""
        return self.time_fs / 1e9

    def interval(self, share: float = 0.9) -> tuple[float, float]:
        """The interval that holds a share of the measured times, 0.5 or 0.9, in microseconds.

        Raises
        ------
        ConfigError
            For another share.

        Examples
        --------
        >>> import simcoll
        >>> prediction = simcoll.predict("all_reduce", 2**30, simcoll.load_topology("dgx-h100"))
        >>> low, high = prediction.interval(0.9)
        >>> low < prediction.time_us < high
        True
        """
        if share not in {0.5, 0.9}:
            raise ConfigError(f"no interval holds a share of {share!r}; valid: 0.5, 0.9")
        if share == 0.5:
            return self.low50_fs / 1e9, self.high50_fs / 1e9
        return self.low90_fs / 1e9, self.high90_fs / 1e9

    def facts(self) -> list[tuple[str, object]]:
        """Name and value of what a reader sees."""
        choice = f"{self.algorithm} {self.protocol}, {self.channels} channels"
        lines: list[tuple[str, object]] = [
            (
                "prediction",
                f"{self.collective} of {format_size(self.size_bytes)}: {format_time(self.time_fs)}",
            ),
            ("choice", f"{choice}, of {self.library}"),
            ("schedule", f"{self.schedule or 'not played'}, timed by {self.timed_by}"),
            ("bound", f"{format_time(self.bound_fs)}: {self.bottleneck}"),
        ]
        if self.high90_fs:
            half = f"{format_time(self.low50_fs)} to {format_time(self.high50_fs)}"
            wide = f"{format_time(self.low90_fs)} to {format_time(self.high90_fs)}"
            lines.append(("interval", f"{half} holds half of the measurements, {wide} 90 %"))
        extra = {"calibration": self.calibration, "note": self.note, "assumed": self.assumed}
        return lines + [(name, text) for name, text in extra.items() if text]

    def to_dict(self) -> dict[str, Any]:
        """The fields, and the time in microseconds, as plain values.

        >>> import simcoll
        >>> prediction = simcoll.predict("all_reduce", 2**30, simcoll.load_topology("dgx-h100"))
        >>> prediction.to_dict()["size_bytes"]
        1073741824
        """
        return {"time_us": self.time_us} | {
            entry.name: getattr(self, entry.name) for entry in fields(self)
        }

    @property
    def differs(self) -> bool:
        """Whether the time differs from the formula's by more than a tenth."""
        return differs(self.time_fs, self.formula_fs)


def differs(time_fs: int, formula_fs: int) -> bool:
    """Whether a played time differs from the formula's by more than a tenth."""
    return abs(time_fs - formula_fs) > DIFFERENT * formula_fs


# Words of a vocabulary are text.
_FORM = {field.name: int if field.type == "int" else str for field in fields(Prediction)}


def choose(question: Question, size_bytes: Floats) -> tuple[list[Cost], Ints]:
    """The corrected costs of the permitted candidates, and the index of the choice for every size.

    The choice is NCCL's own where it decides (:mod:`simcoll.libraries.nccl_decision`). Otherwise it
    is RCCL's for AMD's GPUs (:mod:`simcoll.libraries.rccl_choice`), and else the fastest candidate;
    where NCCL's graphs are unknown, on fabrics where it is known to
    follow its own estimates, and under a calibration with a tuning table, the one preferred by
    those.

    Raises
    ------
    ConfigError
        When the environment allows nothing, or asks for copy engines, or the library lacks numbers
        for the machine.
    """
    collective = question.collective
    refuse_copy_engines(question)
    candidates = permitted = corrected.costs(question, size_bytes)
    if not question.is_p2p:
        permitted = [
            cost
            for cost in candidates
            if cost.algorithm in ALGORITHMS
            or (
                question.environment.allows(collective, cost.algorithm, cost.protocol)
                and supports(cost.algorithm, call_of(question))
            )
        ]
    if not permitted:
        names = ", ".join(sorted({f"{cost.algorithm} {cost.protocol}" for cost in candidates}))
        raise ConfigError(
            f"the environment leaves nothing to run {collective} with; here there are {names}"
        )
    if is_symmetric(question):
        kernels, estimates_us = symmetric_costs(question, size_bytes, permitted)
        return [*kernels, *permitted], np.argmin(estimates_us, axis=0)
    if chooses_as_rccl(question):
        return permitted, rccl_picks(question, permitted, size_bytes)
    choices = own_choices(question, size_bytes) if decides(question) else None
    if choices:
        return permitted, picks_of(choices, permitted, size_bytes)
    estimates = _nccl_estimates(question, size_bytes)
    costs = [
        cost for cost in permitted if (cost.algorithm, cost.protocol) in estimates
    ] or permitted
    times = [
        estimates.get((cost.algorithm, cost.protocol), cost).time_us(size_bytes) for cost in costs
    ]
    return costs, np.argmin(np.array(times), axis=0)


def picks_of(choices: list[NcclChoice], costs: list[Cost], size_bytes: Floats) -> Ints:
    """Index of the cost of every choice; of the fastest where none is known, as of PAT."""
    indices = {(cost.algorithm, cost.protocol): index for index, cost in enumerate(costs)}
    fastest = np.argmin(np.array([cost.time_us(size_bytes) for cost in costs]), axis=0)
    return np.array(
        [
            indices.get(choice.key, index)
            for choice, index in zip(choices, fastest.tolist(), strict=True)
        ]
    )


def _nccl_estimates(
    question: Question, size_bytes: Floats
) -> dict[tuple[PredictedAlgorithm, NcclProtocol], Cost]:
    """NCCL's own estimates by algorithm and protocol, where they decide; empty elsewhere."""
    if question.is_p2p:
        return {}
    machine, collective, constants = question.machine, question.collective, question.constants
    calibration = question.calibration
    log_rows = (
        calibration.tuning_rows(collective, question.nranks, machine.domains) if calibration else ()
    )
    if not log_rows and constants.text(f"{question.fabric}.choice") != "nccl":
        return {}
    stated = {
        (cost.algorithm, cost.protocol): cost
        for cost in stated_costs(machine, collective, size_bytes, constants)
    }
    if not log_rows:
        return stated
    log_numbers = {
        (row.algorithm, row.protocol): (row.latency_fs / 1e9, row.bandwidth_uBps / 1e15)
        for row in log_rows
        if row.bandwidth_uBps
    }
    estimates = {}
    for cost in stated_costs(machine, collective, size_bytes, constants, by_size=False):
        key = (cost.algorithm, cost.protocol)
        if key in log_numbers:  # apply NCCL's dependence on the size to the numbers of the log
            latency, rate = log_numbers[key]
            latency_scale = stated[key].latency_us / cost.latency_us
            rate_scale = stated[key].rate_GBps / cost.rate_GBps
            estimates[key] = replace(
                cost, latency_us=latency * latency_scale, rate_GBps=rate * rate_scale
            )
    return estimates


def formula_time(
    collective: str,
    size_bytes: int,
    topology: Topology,
    *,
    ranks: int | None = None,
    library: str | Path | Library | None = None,
    calibration: Calibration | None = None,
    environment: Environment = DEFAULT,
) -> Prediction:
    """Predict by the corrected formula alone, without playing a schedule or computing a bound.

    Raises
    ------
    ConfigError
        For an unknown collective, a size below 1, or a machine for which the library has no
        numbers.
    """
    size_bytes = whole_number("size_bytes", size_bytes, 1, MAX_INT64)
    question = _question(
        collective, topology, ranks, library_for(library, topology), environment, calibration
    )
    prediction = _formula_prediction(_best(question, size_bytes), question, size_bytes)
    return _with_intervals(prediction, question)


def formula_times(
    collective: str,
    sizes: Sequence[int],
    topology: Topology,
    *,
    library: str | Path | Library | None = None,
    calibration: Calibration | None = None,
    environment: Environment = DEFAULT,
) -> list[int]:
    """The times that :func:`formula_time` predicts for some sizes, asked together.

    >>> from simcoll.topology import load_topology
    >>> dgx, sizes = load_topology("dgx-h100"), [1 << 10, 1 << 30]
    >>> alone = [formula_time("all_reduce", size, dgx).time_fs for size in sizes]
    >>> formula_times("all_reduce", sizes, dgx) == alone
    True
    """
    library = library_for(library, topology)
    question = _question(collective, topology, None, library, environment, calibration)
    size_bytes = np.array(sizes, np.float64)
    costs, picks = choose(question, size_bytes)
    times_us = {pick: costs[pick].time_us(size_bytes) for pick in np.unique(picks).tolist()}
    return [
        run_fs(in_time(float(times_us[pick][place])), size, question)
        for place, (size, pick) in enumerate(zip(sizes, picks.tolist(), strict=True))
    ]


def _best(question: Question, size_bytes: int) -> Cost:
    """The library's choice for one size."""
    costs, picks = choose(question, np.array([float(size_bytes)]))
    return costs[int(picks[0])]


def _formula_prediction(best: Cost, question: Question, size_bytes: int) -> Prediction:
    """The choice with the formula's time."""
    time_fs = in_time(float(best.time_us(np.array([float(size_bytes)]))[0]))
    formula_fs = run_fs(time_fs, size_bytes, question)
    return Prediction(
        collective=question.collective,
        size_bytes=size_bytes,
        time_fs=formula_fs,
        formula_fs=formula_fs,
        algorithm=best.algorithm,
        protocol=best.protocol,
        channels=_channels(best, question, size_bytes),
        schedule="",
        timed_by="formula",
        library=str(question.library),
        bound_fs=0,
        bottleneck="",
        calibration=question.calibration.hash if question.calibration else "",
        assumed=assumptions(best, question),
    )


def run_fs(time_fs: int, size_bytes: int, question: Question) -> int:
    """The time of a collective with its launch and the calibration."""
    launched_fs = in_time(float(launched_us(np.array([time_fs / 1e9]), question)[0]))
    if not question.calibration:
        return launched_fs
    return question.calibration.corrected_fs(
        launched_fs, question.collective, question.nranks, size_bytes
    )


def _channels(best: Cost, question: Question, size_bytes: int) -> int:
    """Number of channels of a choice: NCCL's own where its rules are known; blocks of a kernel for
    registered buffers.
    """
    if best.algorithm == "symmetric":
        return best.channels
    if best.algorithm in ALGORITHMS:
        return msccl_channels(best.algorithm, size_bytes, question)
    choices = own_choices(question, [size_bytes])
    if choices and choices[0].key == (best.algorithm, best.protocol):
        return choices[0].channels
    if question.is_p2p and question.communicator:
        if question.collective == "send_recv":
            return channels_to_a_peer(question.communicator, size_bytes)
        return channels_of_sends(question.communicator, size_bytes // question.nranks)
    return channels_for(best, size_bytes, question.nranks, question.environment)


def in_time(time_us: float) -> int:
    """Femtoseconds of a time in microseconds, if within the range of the clock."""
    if not time_us * 1e9 <= MAX_TIME_FS:
        raise ConfigError(
            f"the predicted time is {time_us / 1e6:.6g} s; the clock ends at "
            f"{MAX_TIME_FS / 1e15:.6g} s"
        )
    return round(time_us * 1e9)


def launched_us(time_us: Floats, question: Question) -> Floats:
    """Times on the GPUs together with the launch of the operation, by launcher.

    One thread issues the operation to one GPU after another, which takes a time of the host. It
    does so while the operation before is running, so that long operations hide it: the two times
    add as squares do. A graph saves a part of the launch that the library's own times contain.
    """
    launcher, constants = question.environment.launcher, question.constants
    if launcher == "one-process":
        host_us = constants.number("launcher.one_process")
        if question.collective == "all_to_all":
            host_us += constants.number("launcher.one_process_peer") * (question.nranks - 1)
        return np.hypot(time_us, host_us * max(question.machine.domain_ranks))
    if launcher == "graph":
        return np.maximum(time_us - constants.number("launcher.graph_saved"), time_us / 2)
    return time_us + (constants.number("launcher.torch") if launcher == "torch" else 0.0)


_THREADS_TIMES_BYTES = {"LL": 512 * 8, "LL128": 640 * 8, "Simple": 512 * 64}


def channels_for(cost: Cost, size_bytes: int, ranks: int, environment: Environment) -> int:
    """Number of channels for a message of this size: NCCL omits channels with too little work."""
    limit = min(2 * cost.channels, environment.max_channels or 2 * cost.channels)
    limit = max(limit, environment.min_channels)
    least_bytes = _THREADS_TIMES_BYTES[cost.protocol]
    if (cost.algorithm, cost.protocol) == ("ring", "LL"):
        least_bytes *= ranks
    return max(1, min(limit, size_bytes // least_bytes), environment.min_channels)


@lru_cache(maxsize=64)
def _part(topology: Topology, ranks: int | None) -> Topology:
    """The part of a topology with the first ranks."""
    return topology if ranks is None else topology.take(ranks)


@lru_cache(maxsize=4096)
def _question(
    collective: str,
    topology: Topology,
    ranks: int | None,
    library: Library,
    environment: Environment,
    calibration: Calibration | None,
) -> Question:
    """The checked question of a request; equal requests ask the same object, so that answers are
    remembered by it.
    """
    if collective not in COLLECTIVES:
        raise ConfigError(
            f"no library model for collective {collective!r}; "
            f"{nearest(str(collective), COLLECTIVES)}"
        )
    part = _part(topology, ranks)
    if part.nranks < 2:
        raise ConfigError(
            f"{topology.name} has one rank here; a library moves nothing between fewer than 2"
        )
    return question_on(collective, part, library, environment, calibration)


def predict(
    collective: str,
    size_bytes: int,
    topology: Topology,
    *,
    ranks: int | None = None,
    library: str | Path | Library | None = None,
    calibration: Calibration | None = None,
    environment: Environment = DEFAULT,
    version: str = "",
) -> Prediction:
    """Predict the time of a collective in a communication library.

    Parameters
    ----------
    collective, size_bytes
        The collective, and its size as in nccl-tests: the larger of a rank's input and output.
    topology
        The machine, with the trait ``generation`` and, for several nodes, ``fabric``.
    ranks
        Use only the first ``ranks`` ranks of the topology.
    library
        A shipped library (:func:`~simcoll.libraries.library.shipped_libraries`), a file, or a
        :class:`Library`. Default: that of the topology's GPUs, ``"rccl"`` for AMD's and ``"nccl"``
        for all others.
    calibration
        A calibration from measurements of this machine.
    environment
        The settings of NCCL's environment variables.
    version
        The version of a shipped library, such as ``"2.29"``.

    Raises
    ------
    ConfigError
        For an invalid request, or a machine for which the library has no numbers.

    Examples
    --------
    >>> import simcoll
    >>> prediction = simcoll.predict("all_reduce", 2**30, simcoll.load_topology("dgx-h100"))
    >>> prediction.algorithm, prediction.protocol, prediction.library
    ('nvls', 'Simple', 'nccl 2.27')
    """
    expect(collective, str, "predict takes the name of a collective, such as 'all_reduce'")
    size_bytes = whole_number("size_bytes", size_bytes, 1, MAX_INT64)
    expect(topology, Topology, "predict takes a topology, made by load_topology(name)")
    expect(
        environment, Environment, "predict takes an Environment, made by parse_environment(text)"
    )
    if ranks is not None:
        ranks = whole_number("ranks", ranks, 1)
    if calibration is not None:
        from simcoll.libraries.calibration import Calibration

        expect(
            calibration, Calibration, "predict takes a calibration, made by load_calibration(file)"
        )
    question = _question(
        collective,
        topology,
        ranks,
        library_for(library, topology, version),
        environment,
        calibration,
    )
    return _predict(question, _part(topology, ranks), size_bytes)


@lru_cache(maxsize=2**16)
def _predict(question: Question, topology: Topology, size_bytes: int) -> Prediction:
    """A prediction that is new to this process: recalled from disk, or computed."""
    library, calibration = question.library, question.calibration
    constants_id = (
        library.name,
        library.version,
        library.digest,
        calibration.hash if calibration else "",
    )
    request_id = (question.collective, size_bytes, topology_digest(topology))
    key = key_of(*request_id, *constants_id, question.environment)
    fields_on_disk = recall(key, _FORM)
    if fields_on_disk is not None:
        # The file of intervals changes without the code.
        return _with_intervals(Prediction(**fields_on_disk), question)  # type: ignore[arg-type]
    best = _best(question, size_bytes)
    prediction = _formula_prediction(best, question, size_bytes)
    prediction = _with_emulation(prediction, best, question, topology)
    prediction = _with_intervals(prediction, question)
    remember(key, {name: getattr(prediction, name) for name in _FORM})
    return prediction


def _with_intervals(prediction: Prediction, question: Question) -> Prediction:
    """The prediction with the intervals around its time."""
    spread = spread_of(question, prediction.size_bytes)
    low50_fs, high50_fs = spread.ends_fs(prediction.time_fs, 0.5)
    low90_fs, high90_fs = spread.ends_fs(prediction.time_fs, 0.9)
    return replace(
        prediction,
        low50_fs=low50_fs,
        high50_fs=high50_fs,
        low90_fs=low90_fs,
        high90_fs=high90_fs,
        errors_of=str(spread),
    )


def _with_emulation(
    prediction: Prediction, best: Cost, question: Question, topology: Topology
) -> Prediction:
    """The prediction with the emulated time, if the emulator can play it, and the bound."""
    from simcoll.bounds import lower_bound
    from simcoll.libraries.isolated import alone_fs, bind_size
    from simcoll.libraries.used_bound import used_bottlenecks

    collective, size = prediction.collective, prediction.size_bytes
    root = 0 if collective in ROOTED else None
    in_switches = best.algorithm == "symmetric" and question.machine.switch_reduce
    switched = in_switches or best.algorithm.startswith(("nvls", "collnet"))
    certificate = _bottleneck(topology, collective, root, switched)
    if question.is_diverted:
        of_used = used_bottlenecks(question, in_network=switched)
        certificate = max((certificate, *of_used), key=lambda proof: proof.seconds_per_byte)
    bound = lower_bound(
        collective, topology, size, root=root, certificate=certificate, in_network=switched
    )
    prediction = replace(prediction, bound_fs=bound.time_fs, bottleneck=str(bound.bottleneck))
    playable = play(best, collective, size, topology, question.machine)
    if question.is_diverted and not _passes_routes(question.machine, machine_of(topology)):
        playable = DIVERTED
    alone = in_time(float(best.time_us(np.array([float(size)]))[0]))
    by_formula = replace(prediction, time_fs=run_fs(max(alone, bound.time_fs), size, question))
    if isinstance(playable, str):
        return replace(by_formula, note=f"timed by the formula: {playable}")
    plan = bind_size(playable.schedule, playable.protocol, size, slight_bytes=playable.slight_bytes)
    time_fs = run_fs(alone_fs(plan, playable.topology or topology), size, question)
    if question.is_diverted and time_fs <= by_formula.time_fs:
        return replace(by_formula, note=f"timed by the formula: {NO_SHORTER}")
    title = playable.schedule.title
    return replace(prediction, time_fs=time_fs, schedule=title, timed_by="events")


def _passes_routes(used: Machine, plain: Machine) -> bool:
    """Whether data under variables passes at least the links that the routes of a topology have.

    Without GPUDirect, and in sockets, NCCL puts it into host memory between a GPU and a NIC (the
    buffers of ``sendProxyConnect`` in ``src/transport/net.cc``), and GPUs of a node reach each
    other as before; without peer access, those that reach each other over PCIe pass a CPU.
    """
    if used.domain_ranks != plain.domain_ranks:
        return False
    return used.inside == plain.inside or (plain.inside, used.inside) == ("pcie", "host")


@lru_cache(maxsize=256)
def _bottleneck(
    topology: Topology, collective: str, root: int | None, switched: bool
) -> Bottleneck:
    from simcoll.bounds import bottleneck

    return bottleneck(collective, topology, root=root, in_network=switched)
