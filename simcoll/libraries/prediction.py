"""Predict the time of a communication library: choose what it would run, then time that."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from simcoll.arrays import Floats, Ints
from simcoll.core.collective import KINDS
from simcoll.core.numbers import whole_number
from simcoll.errors import ConfigError, expect, nearest
from simcoll.libraries import corrected
from simcoll.libraries.assumed import assumed
from simcoll.libraries.environment import DEFAULT, Environment
from simcoll.libraries.formula import Cost, stated
from simcoll.libraries.library import Library, load_library
from simcoll.libraries.prediction_cache import key_of, recall, remember, topology_digest
from simcoll.libraries.proved_choice import play
from simcoll.topology import Topology
from simcoll.topology.machine import Machine
from simcoll.topology.machine import machine as machine_of
from simcoll.units import MAX_INT64, MAX_TIME_FS

if TYPE_CHECKING:
    from simcoll.bounds import Bottleneck
    from simcoll.libraries.calibration import Calibration

__all__ = ["COLLECTIVES", "Prediction", "chosen", "formula_time", "predict"]

COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter", "send_recv",
)  # fmt: skip
"""The collectives that a library offers."""
SLIGHT = 0.001
"""Change of time accepted for rounding the bytes so that all chunks are equal."""
ROOTED = ("broadcast", "reduce", "gather", "scatter")


@dataclass(frozen=True, slots=True)
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
        ``"events"`` if the emulator played the schedule, ``"formula"`` if the time is that of the corrected formula.
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
    """

    collective: str
    size_bytes: int
    time_fs: int
    algorithm: str
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

    @property
    def time_us(self) -> float:
        """The predicted time in microseconds."""
        return self.time_fs / 1e9


_FORM = {field.name: {"str": str, "int": int}[str(field.type)] for field in fields(Prediction)}


def chosen(
    machine: Machine,
    collective: str,
    size_bytes: Floats,
    library: Library,
    environment: Environment = DEFAULT,
    calibration: Calibration | None = None,
) -> tuple[list[Cost], Ints]:
    """The corrected costs of the permitted candidates, and the index of the choice for every size.

    The choice is the fastest candidate; on fabrics where NCCL is known to follow its own estimates, and under a calibration with a tuning
    table, it is the one preferred by those.

    Raises
    ------
    ConfigError
        When the environment allows nothing, or the library lacks numbers for the machine.
    """
    offered = corrected.costs(machine, collective, size_bytes, library, environment)
    costs = [cost for cost in offered if environment.allows(collective, cost.algorithm, cost.protocol)]
    if collective in corrected.P2P:
        costs = offered
    if not costs:
        known = sorted({f"{cost.algorithm} {cost.protocol}" for cost in offered})
        raise ConfigError(f"the environment leaves nothing to run {collective} with; here there are {', '.join(known)}")
    wanted = _preferred(machine, collective, size_bytes, library, calibration)
    judged = [cost for cost in costs if (cost.algorithm, cost.protocol) in wanted] or costs
    times = [wanted.get((cost.algorithm, cost.protocol), cost).time_us(size_bytes) for cost in judged]
    return judged, np.argmin(np.array(times), axis=0)


def _preferred(
    machine: Machine, collective: str, size_bytes: Floats, library: Library, calibration: Calibration | None
) -> dict[tuple[str, str], Cost]:
    """NCCL's own estimates, where they decide; empty elsewhere."""
    if collective in corrected.P2P:
        return {}
    fabric = corrected.fabric_of(machine, library)
    table = calibration.tuned(collective, sum(machine.domain_ranks), machine.domains) if calibration else ()
    if not table and library.text(f"{fabric}.choice") != "nccl":
        return {}
    own = {(cost.algorithm, cost.protocol): cost for cost in stated(machine, collective, size_bytes, library)}
    if not table:
        return own
    read = {
        (row.algorithm, row.protocol): (row.latency_fs / 1e9, row.bandwidth_uBps / 1e15)
        for row in table
        if row.bandwidth_uBps
    }
    plain = stated(machine, collective, size_bytes, library, by_size=False)
    found = {}
    for cost in plain:
        key = (cost.algorithm, cost.protocol)
        if key in read:  # apply NCCL's dependence on the size to the numbers of the log
            latency, rate = read[key]
            scale = own[key].latency_us / cost.latency_us, own[key].rate_GBps / cost.rate_GBps
            found[key] = replace(cost, latency_us=latency * scale[0], rate_GBps=rate * scale[1])
    return found


def formula_time(
    collective: str,
    size_bytes: int,
    topology: Topology,
    *,
    ranks: int | None = None,
    library: str | Library = "nccl",
    calibration: Calibration | None = None,
    environment: Environment = DEFAULT,
) -> Prediction:
    """Predict by the corrected formula alone, without playing a schedule or computing a bound.

    Raises
    ------
    ConfigError
        For an unknown collective, a size below 1, or a machine for which the library has no numbers.
    """
    size_bytes = whole_number("size_bytes", size_bytes, 1, MAX_INT64)
    machine, read = _asked(collective, topology, ranks, library)
    overlaid = calibrated(read, machine, calibration)
    costs, pick = chosen(machine, collective, np.array([float(size_bytes)]), overlaid, environment, calibration)
    made = _formula(costs[int(pick[0])], collective, size_bytes, machine, read, calibration, environment)
    return replace(made, time_fs=_finished_fs(made, machine, overlaid, calibration, environment))


def _formula(
    best: Cost,
    collective: str,
    size_bytes: int,
    machine: Machine,
    library: Library,
    calibration: Calibration | None,
    environment: Environment,
) -> Prediction:
    """The choice with the formula's time, without launch and calibration."""
    time_fs = in_time(float(best.time_us(np.array([float(size_bytes)]))[0]))
    channels = channels_for(best, size_bytes, sum(machine.domain_ranks), environment)
    return Prediction(
        collective, size_bytes, time_fs, best.algorithm, best.protocol, channels, "", "formula", str(library), 0, "",
        calibration.hash if calibration else "", assumed=assumed(best, collective, machine, library),
    )  # fmt: skip


def _finished_fs(
    made: Prediction, machine: Machine, library: Library, calibration: Calibration | None, environment: Environment
) -> int:
    """The time including the launch and the calibration."""
    late = made.time_fs + in_time(launch_us(machine, library, environment))
    if not calibration:
        return late
    ranks = sum(machine.domain_ranks)
    return calibration.corrected_fs(late, made.collective, ranks, made.size_bytes)


def in_time(time_us: float) -> int:
    """Femtoseconds of a time in microseconds, if within the range of the clock."""
    if not time_us * 1e9 <= MAX_TIME_FS:
        raise ConfigError(f"the predicted time is {time_us / 1e6:.6g} s; the clock ends at {MAX_TIME_FS / 1e15:.6g} s")
    return round(time_us * 1e9)


def launch_us(machine: Machine, library: Library, environment: Environment) -> float:
    """Time of launching the operation beyond the formula, by launcher."""
    if environment.launcher == "one-process":
        return library.number("launcher.one_process") * max(machine.domain_ranks)
    return library.number("launcher.torch") if environment.launcher == "torch" else 0.0


_THREADS_TIMES_BYTES = {"LL": 512 * 8, "LL128": 640 * 8, "Simple": 512 * 64}


def channels_for(cost: Cost, size_bytes: int, ranks: int, environment: Environment) -> int:
    """Number of channels for a message of this size: NCCL omits channels with too little work."""
    most = min(2 * cost.channels, environment.max_channels or 2 * cost.channels)
    most = max(most, environment.min_channels)
    least = _THREADS_TIMES_BYTES[cost.protocol] * (ranks if (cost.algorithm, cost.protocol) == ("ring", "LL") else 1)
    return max(1, min(most, size_bytes // least), environment.min_channels)


@lru_cache(maxsize=256)
def calibrated(library: Library, machine: Machine, calibration: Calibration | None) -> Library:
    """The library with its rates, fabric latency and growth adjusted by a calibration."""
    if calibration is None:
        return library
    kind, fabric = corrected.class_of(machine, library), corrected.fabric_of(machine, library)
    changes: dict[str, float | tuple[float, ...]] = {}
    rate, growth = float(calibration.rate), float(calibration.growth)
    for place in library.values:
        table, _, key = place.rpartition(".")
        if table in {kind, fabric} and key.endswith("share"):
            changes[place] = library.number(place) * (1.0 if key == "tree_share" else rate)
        if place in {f"{kind}.p2p_channel_rate", "correction.p2p_net_rate"}:
            changes[place] = library.number(place) * rate
        if place in {"correction.ll_growth", f"{kind}.ll_growth", f"{fabric}.ll_growth"}:
            changes[place] = library.number(place) * growth
        if place == f"{fabric}.steps":
            changes[place] = tuple(step * growth for step in library.numbers(place))
    if fabric:
        changes[f"{fabric}.latency"] = library.number(f"{fabric}.latency") + calibration.fabric_latency_fs / 1e9
    return library.with_values(changes)


@lru_cache(maxsize=64)
def _placed(topology: Topology, ranks: int | None) -> Topology:
    return topology if ranks is None else topology.take(ranks)


@lru_cache(maxsize=64)
def _machine(topology: Topology) -> Machine:
    return machine_of(topology)


def _asked(collective: str, topology: Topology, ranks: int | None, library: str | Library) -> tuple[Machine, Library]:
    """The machine and the library of a checked request."""
    if collective not in COLLECTIVES:
        raise ConfigError(f"no library model for collective {collective!r}; {nearest(str(collective), COLLECTIVES)}")
    machine = _machine(_placed(topology, ranks))
    if sum(machine.domain_ranks) < 2:
        raise ConfigError(f"{topology.name} has one rank here; a library moves nothing between fewer than 2")
    return machine, load_library(library)


def predict(
    collective: str,
    size_bytes: int,
    topology: Topology,
    *,
    ranks: int | None = None,
    library: str | Library = "nccl",
    calibration: Calibration | None = None,
    environment: Environment = DEFAULT,
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
        A shipped library (:func:`~simcoll.libraries.library.shipped_libraries`), a file, or a :class:`Library`.
    calibration
        A calibration from measurements of this machine.
    environment
        The settings of NCCL's environment variables.

    Raises
    ------
    ConfigError
        For an invalid request, or a machine for which the library has no numbers.

    Examples
    --------
    >>> import simcoll
    >>> found = simcoll.predict("all_reduce", 2**30, simcoll.load_topology("dgx-h100"))
    >>> found.algorithm, found.protocol, found.library
    ('nvls', 'Simple', 'nccl 2.27')
    """
    expect(collective, str, "predict takes the name of a collective, such as 'all_reduce'")
    size_bytes = whole_number("size_bytes", size_bytes, 1, MAX_INT64)
    expect(topology, Topology, "predict takes a topology, made by load_topology(name)")
    expect(environment, Environment, "predict takes an Environment, made by parse_environment(text)")
    if ranks is not None:
        ranks = whole_number("ranks", ranks, 1)
    if calibration is not None:
        from simcoll.libraries.calibration import Calibration

        expect(calibration, Calibration, "predict takes a calibration, made by load_calibration(file)")
    return _predicted(collective, size_bytes, topology, ranks, load_library(library), calibration, environment)


@lru_cache(maxsize=2**16)
def _predicted(
    collective: str,
    size_bytes: int,
    topology: Topology,
    ranks: int | None,
    library: Library,
    calibration: Calibration | None,
    environment: Environment,
) -> Prediction:
    """A prediction that is new to this process: recalled from disk, or computed."""
    machine, _ = _asked(collective, topology, ranks, library)
    placed = _placed(topology, ranks)
    told = (library.name, library.version, library.digest, calibration.hash if calibration else "", environment)
    key = key_of(collective, size_bytes, topology_digest(placed), *told)
    known = recall(key, _FORM)
    if known is not None:
        return Prediction(**known)  # type: ignore[arg-type]
    overlaid = calibrated(library, machine, calibration)
    costs, pick = chosen(machine, collective, np.array([float(size_bytes)]), overlaid, environment, calibration)
    best = costs[int(pick[0])]
    made = _formula(best, collective, size_bytes, machine, library, calibration, environment)
    made = _timed(made, best, placed, machine)
    made = replace(made, time_fs=_finished_fs(made, machine, overlaid, calibration, environment))
    remember(key, {name: getattr(made, name) for name in _FORM})
    return made


def _timed(made: Prediction, best: Cost, topology: Topology, machine: Machine) -> Prediction:
    """The prediction with the emulated time, if the emulator can play it, and the bound."""
    from simcoll.binding import bind
    from simcoll.bounds import lower_bound
    from simcoll.emulator import emulate
    from simcoll.emulator.fast.compiled import COMPILED

    collective, size = made.collective, made.size_bytes
    root, switched = 0 if collective in ROOTED else None, best.algorithm.startswith("nvls")
    known = _bottleneck(topology, collective, root, switched)
    bound = lower_bound(collective, topology, size, root=root, certificate=known, in_network=switched)
    made = replace(made, bound_fs=bound.time_fs, bottleneck=str(bound.bottleneck))
    found = play(best, 0, collective, size, topology, machine)
    if isinstance(found, str):
        return replace(made, time_fs=max(made.time_fs, bound.time_fs), note=f"timed by the formula: {found}")
    slots = max(KINDS[collective].input_slots(topology.nranks), KINDS[collective].output_slots(topology.nranks))
    count, chunks = max(1, size // slots), found.schedule.layout.chunks
    even = max(chunks, count - count % chunks)  # equal chunks are symmetric and are played once
    if abs(even - count) * slots * 10**6 < best.rate_GBps[0] * made.time_fs * SLIGHT or count >= 64 * chunks:
        count = even
    plan = bind(found.schedule, count, "uint8", protocol=found.protocol)
    played = emulate(plan, found.topology or topology, data="none", bound=False, engine="fast" if COMPILED else "auto")
    return replace(made, time_fs=played.time_fs, schedule=found.schedule.title, timed_by="events")


@lru_cache(maxsize=256)
def _bottleneck(topology: Topology, collective: str, root: int | None, switched: bool) -> Bottleneck:
    from simcoll.bounds import bottleneck

    return bottleneck(collective, topology, root=root, in_network=switched)
