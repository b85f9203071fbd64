"""Tuning of libraries: the fastest choice for each size, and its gain over the default."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from simcoll.arrays import Floats
from simcoll.core.collective import collective_kind
from simcoll.core.schedule import Schedule
from simcoll.core.vocabulary import NcclProtocol
from simcoll.emulator import emulate
from simcoll.errors import ConfigError
from simcoll.formats.tuners.tuner_rules import NO_LIMIT, Rule
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.environment import DEFAULT, Environment
from simcoll.libraries.formula import stated_costs
from simcoll.libraries.isolated import bind_size
from simcoll.libraries.library import library_for
from simcoll.libraries.nccl_decision import own_choices
from simcoll.libraries.prediction import choose, predict
from simcoll.libraries.question import Question, calibrate, question_on
from simcoll.planning.tuners.leaders import time_through_leaders
from simcoll.planning.tuners.mpi_libraries import load_mpi_library
from simcoll.topology import Topology
from simcoll.topology.machine import machine as machine_of
from simcoll.tuning import collective_on, costs, schedule_on

__all__ = ["Picked", "nccl_choices", "played_choices", "rules_of"]

PLAYED = 2
"""Number of NCCL's choices emulated at every size besides its own: the fastest by the corrected
formula.
"""


@dataclass(frozen=True, slots=True)
class Picked:
    """The choice for one size.

    Attributes
    ----------
    collective, size_bytes
        The collective, and its size as nccl-tests counts it.
    algorithm, protocol, channels
        The fastest choice, by the library's names; protocol and channels are for NCCL, otherwise
        empty and -1.
    time_fs
        Its time.
    default, default_fs
        The default choice, and its time; None if simcoll lacks the algorithm.
    error
        Half the width of the 50 % interval of the prediction of its time, as a share of it; None
        without measurements.
    estimated, estimated_fs
        What NCCL's own estimates prefer, and its time, where that is another choice than the
        default.
    """

    collective: str
    size_bytes: int
    algorithm: str
    protocol: str
    channels: int
    time_fs: int
    default: str
    default_fs: int | None
    error: float | None
    estimated: str = ""
    estimated_fs: int = 0

    @property
    def gain(self) -> float | None:
        """Speed-up over the default; None if its time is unknown, 1 where no time passes, as on one
        rank.
        """
        if self.default_fs is None:
            return None
        return self.default_fs / self.time_fs if self.time_fs else 1.0

    @property
    def certain(self) -> bool:
        """Whether the gain exceeds the 50 % interval."""
        return (
            self.error is not None and self.gain is not None and self.gain > (1 + self.error) ** 2
        )


def nccl_choices(
    topology: Topology,
    collectives: Sequence[str],
    sizes: Sequence[int],
    library: str | None = None,
    calibration: Calibration | None = None,
) -> Iterator[Picked]:
    """The fastest of NCCL's algorithms and protocols for each size, under a calibration if there is
    one.

    The choices that the corrected formula finds fastest are played. The default is NCCL's own where
    its graphs are known, else the first of them; what its estimates prefer is told beside it.
    """
    model, machine = library_for(library, topology), machine_of(topology)
    overlaid = calibrate(model, machine, calibration)
    for collective in collectives:
        bytes_ = np.array(sizes, float)
        question = question_on(collective_kind(collective), topology, overlaid)
        offered, _ = choose(question, bytes_)
        every = {(cost.algorithm, cost.protocol): cost.time_us(bytes_) for cost in offered}
        prefers = _choices_of_estimates(question, bytes_)
        for place, size in enumerate(sizes):
            default = predict(collective, size, topology, library=model, calibration=calibration)
            fastest = _fastest_at(every, place)
            predictions = {(default.algorithm, default.protocol): default}
            for algorithm, protocol in [
                *fastest[:PLAYED],
                *([prefers[place]] if prefers[place] in every else []),
            ]:
                if (algorithm, protocol) not in predictions:
                    only = Environment(
                        ((collective, (algorithm,)),),
                        ((collective, (protocol,)),),
                        nvls=DEFAULT.nvls,
                    )
                    predictions[algorithm, protocol] = predict(
                        collective,
                        size,
                        topology,
                        library=model,
                        calibration=calibration,
                        environment=only,
                    )
            best = min(predictions.values(), key=lambda prediction: prediction.time_fs)
            preferred = predictions.get(prefers[place], default)
            yield Picked(
                collective,
                size,
                best.algorithm,
                best.protocol.lower(),
                best.channels,
                best.time_fs,
                f"{default.algorithm} {default.protocol}",
                default.time_fs,
                (best.high50_fs / best.low50_fs) ** 0.5 - 1,
                *(
                    (f"{preferred.algorithm} {preferred.protocol}", preferred.time_fs)
                    if preferred is not default
                    else ()
                ),
            )


def _choices_of_estimates(question: Question, size_bytes: Floats) -> list[tuple[str, NcclProtocol]]:
    """The algorithm and protocol that NCCL's own estimates prefer at every size, by its exact rules
    where its graphs are known.
    """
    choices = own_choices(question, size_bytes)
    if choices:
        return [choice.key for choice in choices]
    estimates = {
        (cost.algorithm, cost.protocol): cost.time_us(size_bytes)
        for cost in stated_costs(
            question.machine, question.collective, size_bytes, question.library
        )
    }
    return [_fastest_at(estimates, place)[0] for place in range(len(size_bytes))]


def _fastest_at(
    times_by_key: Mapping[tuple[str, NcclProtocol], Floats], place: int
) -> list[tuple[str, NcclProtocol]]:
    """The choices by their time at one of the sizes, the fastest first."""

    def time_us(key: tuple[str, NcclProtocol]) -> float:
        times = np.atleast_1d(times_by_key[key])
        return float(times[min(place, len(times) - 1)])

    return sorted(times_by_key, key=lambda key: (time_us(key), key))


def played_choices(
    topology: Topology,
    collectives: Sequence[str],
    sizes: Sequence[int],
    library: str,
    protocol: str = "ideal",
) -> Iterator[Picked]:
    """The fastest of an MPI library's algorithms for each size under a protocol, beside the
    library's default.

    Raises
    ------
    ConfigError
        For a collective for which simcoll has none of the library's algorithms.
    """
    model = load_mpi_library(library)
    components = load_mpi_library(model.components_of or library)
    for kind in collectives:
        if kind not in model.collectives:
            raise ConfigError(
                f"no algorithm of {library} is known for {kind}; known: "
                f"{', '.join(model.collectives)}"
            )
        selection, stages = model.collectives[kind], components.collectives[kind].through_leaders
        collective = collective_on(kind, topology.nranks)
        schedules: dict[str, Schedule] = {}
        for name in selection.algorithms:
            with suppress(ConfigError):  # it does not serve so many ranks
                schedules[name] = schedule_on(collective, name, topology, most_channels=1)
        for size in sizes:
            offered: dict[str, int] = {}
            for name, schedule in schedules.items():
                plan, library_name = (
                    bind_size(schedule, costs(protocol, topology, schedule), size),
                    selection.algorithms[name],
                )
                time_fs = emulate(plan, topology, data="none", bound=False).time_fs
                offered[library_name] = min(time_fs, offered.get(library_name, time_fs))
            default, _ = selection.default_on(topology, size)
            default_fs = offered.get(selection.alike.get(default, default))
            if default in stages:
                default_fs = time_through_leaders(
                    components, stages[default], size, topology, protocol
                )
                if model.components_of and default_fs is not None:
                    offered[default] = default_fs
            best = min(offered, key=lambda name: (offered[name], name))
            yield Picked(kind, size, best, "", -1, offered[best], default, default_fs, None)


def rules_of(
    picked: Sequence[Picked],
    topology: Topology,
    *,
    exact: bool = False,
    blocks: Collection[str] = (),
) -> list[Rule]:
    """Rules for these choices, each valid up to the largest consecutive size with the same choice.

    ``exact``: only for this number of ranks and nodes; ``blocks``: collectives whose rules count
    the bytes of one block.
    """
    nodes = len(set(topology.groups["box"].tolist())) if exact and "box" in topology.groups else -1
    ranks = topology.nranks if exact else -1
    rules: list[Rule] = []
    for collective in dict.fromkeys(choice.collective for choice in picked):
        choices = [choice for choice in picked if choice.collective == collective]
        shares = topology.nranks if collective in blocks else 1
        begin = 0
        for place, choice in enumerate(choices):
            pair = [
                (neighbour.algorithm, neighbour.protocol, neighbour.channels)
                for neighbour in choices[place : place + 2]
            ]
            if len(pair) == 2 and pair[0] == pair[1]:
                continue
            end = NO_LIMIT if place + 1 == len(choices) else choice.size_bytes // shares
            rules.append(
                Rule(
                    collective,
                    begin,
                    end,
                    choice.algorithm,
                    choice.protocol,
                    choice.channels,
                    nodes,
                    ranks,
                )
            )
            begin = end + 1
    return rules
