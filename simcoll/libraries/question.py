"""The question that a library model answers: which algorithm runs a collective on a machine, and
how long it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from simcoll.core.vocabulary import CollectiveKind
from simcoll.errors import ConfigError, nearest
from simcoll.libraries.environment import DEFAULT, Environment
from simcoll.libraries.formula import MachineShape, shape
from simcoll.libraries.nccl.communicator import CommunicatorFacts, communicator_on
from simcoll.libraries.used_machine import used_machine
from simcoll.topology.machine import FABRICS
from simcoll.topology.machine import machine as machine_of

if TYPE_CHECKING:
    from simcoll.libraries.calibration import Calibration
    from simcoll.libraries.library import Library
    from simcoll.topology import Topology
    from simcoll.topology.machine import Machine

__all__ = ["P2P", "Question", "calibrate", "class_of", "fabric_of", "question_on"]

P2P = ("all_to_all", "gather", "scatter", "send_recv")
"""Collectives that NCCL implements as grouped sends and receives."""


def class_of(machine: Machine, library: Library) -> str:
    """The class of GPU whose measured numbers apply: by GPU interconnect, by model, else by
    generation.

    Raises
    ------
    ConfigError
        When the library has no numbers for it.
    """
    classes = library.tables("class")
    by_model = [name for name in classes if machine.gpu in library.texts(f"class.{name}.gpus")]
    gpu_class = (
        machine.inside
        if machine.inside in {"pcie", "host"}
        else (by_model or [machine.generation])[0]
    )
    if gpu_class not in classes:
        gpu = machine.gpu or machine.generation or "unnamed"
        raise ConfigError(
            f"{library} has no measured numbers for {gpu} GPUs; {nearest(gpu, classes)}"
        )
    return f"class.{gpu_class}"


def fabric_of(machine: Machine, library: Library) -> str:
    """The fabric whose measured numbers apply; empty within one domain.

    Raises
    ------
    ConfigError
        When the topology states no fabric, or one for which the library has no numbers.
    """
    if machine.domains == 1:
        return ""
    fabrics = library.tables("fabric")
    if machine.fabric not in fabrics:
        subject = (
            f"fabric {machine.fabric!r}"
            if machine.fabric
            else "a topology without the trait 'fabric' (add it to the name, FILE:traits.fabric=ib)"
        )
        raise ConfigError(
            # A fabric of another library or transport is no misspelling of one of these.
            f"{library} has no numbers for {subject}; "
            f"{nearest('' if machine.fabric in FABRICS else machine.fabric, fabrics)}"
        )
    return f"fabric.{machine.fabric}"


@lru_cache(maxsize=256)
def calibrate(library: Library, machine: Machine, calibration: Calibration | None) -> Library:
    """The library with its rates, fabric latency and growth adjusted by a calibration."""
    if calibration is None:
        return library
    gpu_class, fabric = class_of(machine, library), fabric_of(machine, library)
    changes: dict[str, float | tuple[float, ...]] = {}
    rate, growth = float(calibration.rate), float(calibration.growth)
    for place in library.values:
        table, _, key = place.rpartition(".")
        if table in {gpu_class, fabric} and key.endswith("share"):
            changes[place] = library.number(place) * (1.0 if key == "tree_share" else rate)
        is_rate = place in {f"{gpu_class}.p2p_channel_rate", "correction.p2p_net_rate"}
        if is_rate or (table.startswith("cpu.") and key == "p2p_rate"):
            changes[place] = library.number(place) * rate
        if place in {"correction.ll_growth", f"{gpu_class}.ll_growth", f"{fabric}.ll_growth"}:
            changes[place] = library.number(place) * growth
        if place == f"{fabric}.steps":
            changes[place] = tuple(step * growth for step in library.numbers(place))
    if fabric:
        changes[f"{fabric}.latency"] = (
            library.number(f"{fabric}.latency") + calibration.fabric_latency_fs / 1e9
        )
    return library.with_values(changes)


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A collective on a machine, under a library, an environment and a calibration; its sizes are
    asked one by one or as an array.

    Attributes
    ----------
    library
        The library as its file states it.
    machine
        The machine that variables leave.
    communicator
        The ranks as NCCL sees them; None for other libraries, and where the graphs are unknown.
    is_diverted
        Whether variables lead data over other links than the routes of the topology.
    constants
        The library under the calibration: what the formulas read.
    """

    collective: CollectiveKind
    machine: Machine
    library: Library
    environment: Environment = DEFAULT
    calibration: Calibration | None = None
    communicator: CommunicatorFacts | None = None
    is_diverted: bool = False
    constants: Library = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "constants", calibrate(self.library, self.machine, self.calibration)
        )

    @property
    def shape(self) -> MachineShape:
        """Counts of ranks and domains."""
        return shape(self.machine)

    @property
    def nranks(self) -> int:
        """Number of ranks."""
        return sum(self.machine.domain_ranks)

    @property
    def is_p2p(self) -> bool:
        """Whether the library runs the collective as grouped sends and receives."""
        return self.collective in P2P

    @property
    def gpu_class(self) -> str:
        """:func:`class_of` the machine."""
        return _class_of(self)

    @property
    def fabric(self) -> str:
        """:func:`fabric_of` the machine."""
        return _fabric_of(self)


@lru_cache(maxsize=256)
def _class_of(question: Question) -> str:
    """The class of a question's GPUs, which every term of its formulas asks for."""
    return class_of(question.machine, question.library)


@lru_cache(maxsize=256)
def _fabric_of(question: Question) -> str:
    """The fabric of a question's machine."""
    return fabric_of(question.machine, question.library)


def question_on(
    collective: CollectiveKind,
    topology: Topology,
    library: Library,
    environment: Environment = DEFAULT,
    calibration: Calibration | None = None,
) -> Question:
    """What is asked of a library for a collective of all ranks of a topology."""
    machine = machine_of(topology)
    communicator = None
    if library.name == "nccl":
        fabric = f"fabric.{machine.fabric}" if machine.domains > 1 else ""
        permitted = _under_defaults(environment, library, fabric)
        communicator = communicator_on(topology, library, permitted)
    used = used_machine(machine, topology, library, environment)
    return Question(
        collective, used, library, environment, calibration, communicator, used != machine
    )


def _under_defaults(environment: Environment, library: Library, fabric: str) -> Environment:
    """The environment with the algorithms and protocols that a fabric's plugin permits, where it
    names none.
    """
    algorithms, protocols = (
        library.texts(f"{fabric}.{name}") for name in ("algorithms", "protocols")
    )
    if algorithms and not environment.algorithms:
        environment = replace(environment, algorithms=(("", algorithms),))
    if protocols and not environment.protocols:
        environment = replace(environment, protocols=(("", protocols),))
    return environment
