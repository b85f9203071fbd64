"""Tuning of libraries: the fastest choice for each size, and its gain over the default."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from simcoll.arrays import Floats
from simcoll.core.collective import collective_kind
from simcoll.core.schedule import Schedule
from simcoll.core.vocabulary import NcclProtocol, PredictedAlgorithm
from simcoll.emulator import emulate
from simcoll.errors import ConfigError
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.environment import DEFAULT, Environment
from simcoll.libraries.formula import PROTOCOLS, stated_costs
from simcoll.libraries.isolated import bind_size
from simcoll.libraries.library import Library, library_for
from simcoll.libraries.nccl_decision import own_choices
from simcoll.libraries.prediction import Prediction, choose, predict
from simcoll.libraries.question import Question, question_on
from simcoll.planning.tuners.leaders import time_through_leaders
from simcoll.planning.tuners.mpi_libraries import MpiCollective, load_mpi_library
from simcoll.topology import Topology
from simcoll.tuning import collective_on, costs, schedule_on

__all__ = [
    "OWN_TUNERS",
    "ChoicePlayer",
    "MpiPlayer",
    "NcclPlayer",
    "Picked",
    "nccl_choices",
    "played_choices",
]

PLAYED = 2
"""Number of NCCL's choices emulated at every size besides its own: the fastest by the corrected
formula.
"""


UNMEASURED_ERROR = 0.5
"""Assumed error of times of MPI libraries, of which no measured table is shipped."""
OWN_TUNERS = {
    "efa-p4": "aws-ofi-nccl",
    "efa-p5": "aws-ofi-nccl",
    "tcpx": "GPUDirect-TCPX",
    "tcpxo": "GPUDirect-TCPXO",
}
"""Network plugins that bring a tuner, by fabric: the default there is the tuner's, and unknown."""


class ChoicePlayer(Protocol):
    """Times of a library's choices on a machine."""

    def times_fs(
        self, collective: str, size_bytes: int, algorithm: str, protocol: str
    ) -> tuple[int | None, int | None]:
        """Times of a choice and of the library's own, in femtoseconds; None if unknown."""


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
        Half the width of the 90 % interval of the prediction of its time, as a share of it; None
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
        """Whether the gain exceeds the interval.

        It is the ratio of two predictions, whose errors are independent at worst: the interval of
        its logarithm is wider by the square root of 2.
        """
        error = UNMEASURED_ERROR if self.error is None else self.error
        return self.gain is not None and self.gain > (1 + error) ** math.sqrt(2)


@dataclass(frozen=True, slots=True)
class NcclPlayer:
    """Times of NCCL's choices, under a calibration if there is one."""

    topology: Topology
    model: Library
    calibration: Calibration | None = None

    def question(self, collective: str) -> Question:
        """What is asked of NCCL for a collective."""
        return question_on(
            collective_kind(collective),
            self.topology,
            self.model,
            calibration=self.calibration,
        )

    def predict_default(self, collective: str, size_bytes: int) -> Prediction:
        """What NCCL runs without a tuner: its own choice where its graphs are known, also where
        predictions go by times, else the fastest.
        """
        choices = own_choices(self.question(collective), [size_bytes])
        prediction = predict(
            collective,
            size_bytes,
            self.topology,
            library=self.model,
            calibration=self.calibration,
        )
        if not choices or choices[0].key == (prediction.algorithm, prediction.protocol):
            return prediction
        try:
            return self.predict_choice(collective, size_bytes, *choices[0].key)
        except ConfigError:  # a choice without a time, such as PAT
            return prediction

    def predict_choice(
        self, collective: str, size_bytes: int, algorithm: str, protocol: NcclProtocol
    ) -> Prediction:
        """An algorithm and protocol, on as many channels as NCCL takes for it."""
        only = Environment(
            ((collective, (algorithm,)),), ((collective, (protocol,)),), nvls=DEFAULT.nvls
        )
        return predict(
            collective,
            size_bytes,
            self.topology,
            library=self.model,
            calibration=self.calibration,
            environment=only,
        )

    def times_fs(
        self, collective: str, size_bytes: int, algorithm: str, protocol: str
    ) -> tuple[int | None, int | None]:
        """As of :class:`ChoicePlayer`."""
        names: dict[str, NcclProtocol] = {name.lower(): name for name in PROTOCOLS}
        try:
            forced = self.predict_choice(collective, size_bytes, algorithm, names[protocol])
        except ConfigError:
            return None, self.predict_default(collective, size_bytes).time_fs
        return forced.time_fs, self.predict_default(collective, size_bytes).time_fs


def nccl_choices(
    topology: Topology,
    collectives: Sequence[str],
    sizes: Sequence[int],
    library: str | Library | None = None,
    calibration: Calibration | None = None,
) -> Iterator[Picked]:
    """The fastest of NCCL's algorithms and protocols for each size, under a calibration if there is
    one.

    The choices that the corrected formula finds fastest are played. The default is NCCL's own where
    its graphs are known, else the first of them; what its estimates prefer is told beside it.
    """
    model = library_for(library, topology)
    player = NcclPlayer(topology, model, calibration)
    if topology.nranks < 2:
        raise ConfigError(
            f"{topology.name} has one rank here; a library moves nothing between fewer than 2"
        )
    for collective in collectives:
        bytes_ = np.array(sizes, float)
        question = player.question(collective)
        offered, _ = choose(question, bytes_)
        every = {(cost.algorithm, cost.protocol): cost.time_us(bytes_) for cost in offered}
        prefers = _choices_of_estimates(question, bytes_)
        for place, size in enumerate(sizes):
            default = player.predict_default(collective, size)
            predictions = {(default.algorithm, default.protocol): default}
            candidates = _fastest_at(every, place)[:PLAYED]
            if prefers[place] in every:
                candidates.append(prefers[place])
            for algorithm, protocol in candidates:
                if (algorithm, protocol) not in predictions:
                    forced = player.predict_choice(collective, size, algorithm, protocol)
                    predictions[algorithm, protocol] = forced
            best = min(predictions.values(), key=lambda prediction: prediction.time_fs)
            preferred = predictions.get(prefers[place], default)
            differs = preferred is not default
            yield Picked(
                collective,
                size,
                best.algorithm,
                best.protocol.lower(),
                best.channels,
                best.time_fs,
                f"{default.algorithm} {default.protocol}",
                default.time_fs,
                (best.high90_fs / best.low90_fs) ** 0.5 - 1,
                f"{preferred.algorithm} {preferred.protocol}" if differs else "",
                preferred.time_fs if differs else 0,
            )


def _choices_of_estimates(
    question: Question, size_bytes: Floats
) -> list[tuple[PredictedAlgorithm, NcclProtocol]]:
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
    times_by_key: Mapping[tuple[PredictedAlgorithm, NcclProtocol], Floats], place: int
) -> list[tuple[PredictedAlgorithm, NcclProtocol]]:
    """The choices by their time at one of the sizes, the fastest first."""

    def time_us(key: tuple[PredictedAlgorithm, NcclProtocol]) -> float:
        times = np.atleast_1d(times_by_key[key])
        return float(times[min(place, len(times) - 1)])

    return sorted(times_by_key, key=lambda key: (time_us(key), key))


@dataclass(frozen=True, slots=True)
class MpiPlayer:
    """Times of the algorithms of an MPI library, played as schedules of one channel.

    Attributes
    ----------
    library
        Name of the library's tuner format.
    protocol
        Costs of a message.
    """

    topology: Topology
    library: str
    protocol: str = "ideal"
    schedules: dict[str, dict[str, Schedule]] = field(default_factory=dict)

    def selection(self, collective: str) -> MpiCollective:
        """The library's algorithms and defaults for a collective.

        Raises
        ------
        ConfigError
            When simcoll has none of the algorithms.
        """
        model = load_mpi_library(self.library)
        if collective not in model.collectives:
            raise ConfigError(
                f"no algorithm of {self.library} is known for {collective}; known: "
                f"{', '.join(model.collectives)}"
            )
        return model.collectives[collective]

    def offered_fs(self, collective: str, size_bytes: int) -> dict[str, int]:
        """The time of every algorithm that serves so many ranks, by the library's names."""
        selection = self.selection(collective)
        if collective not in self.schedules:
            meaning = collective_on(collective, self.topology.nranks)
            schedules = self.schedules[collective] = {}
            for name in selection.algorithms:
                with suppress(ConfigError):  # it does not serve so many ranks
                    schedules[name] = schedule_on(meaning, name, self.topology, most_channels=1)
        offered: dict[str, int] = {}
        for name, schedule in self.schedules[collective].items():
            cost = costs(self.protocol, self.topology, schedule)
            plan = bind_size(schedule, cost, size_bytes)
            time_fs = emulate(plan, self.topology, data="none", bound=False).time_fs
            library_name = selection.algorithms[name]
            offered[library_name] = min(time_fs, offered.get(library_name, time_fs))
        default, default_fs = self.default_of(collective, size_bytes, offered)
        is_component = bool(load_mpi_library(self.library).components_of)
        if is_component and default_fs is not None and default not in offered:
            offered[default] = default_fs
        return offered

    def default_of(
        self, collective: str, size_bytes: int, offered: Mapping[str, int]
    ) -> tuple[str, int | None]:
        """The library's default, and its time beside those of its algorithms; None if simcoll
        lacks it.
        """
        model, selection = load_mpi_library(self.library), self.selection(collective)
        components = load_mpi_library(model.components_of or self.library)
        default, _ = selection.default_on(self.topology, size_bytes)
        stages = components.collectives[collective].through_leaders
        if default in stages:
            default_fs = time_through_leaders(
                components, stages[default], size_bytes, self.topology, self.protocol
            )
        else:
            default_fs = offered.get(selection.alike.get(default, default))
        return default, default_fs

    def times_fs(
        self, collective: str, size_bytes: int, algorithm: str, protocol: str
    ) -> tuple[int | None, int | None]:
        """As of :class:`ChoicePlayer`."""
        del protocol
        offered = self.offered_fs(collective, size_bytes)
        _, default_fs = self.default_of(collective, size_bytes, offered)
        return offered.get(algorithm), default_fs


def played_choices(
    player: MpiPlayer, collectives: Sequence[str], sizes: Sequence[int]
) -> Iterator[Picked]:
    """The fastest of an MPI library's algorithms for each size, beside the library's default.

    Raises
    ------
    ConfigError
        For a collective for which simcoll has none of the library's algorithms.
    """
    for kind in collectives:
        for size in sizes:
            offered = player.offered_fs(kind, size)
            default, default_fs = player.default_of(kind, size, offered)
            best = min(offered, key=lambda name: (offered[name], name))
            yield Picked(kind, size, best, "", -1, offered[best], default, default_fs, None)
