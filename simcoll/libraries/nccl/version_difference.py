"""Changes of NCCL's choices between two versions: what an upgrade changes on a machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from simcoll.core.collective import collective_kind
from simcoll.errors import ConfigError
from simcoll.libraries.environment import DEFAULT, Environment
from simcoll.libraries.library import Library
from simcoll.libraries.nccl.choice import NcclCall, NcclChoice, nccl_choice
from simcoll.libraries.nccl.communicator import CommunicatorFacts, communicator_on
from simcoll.libraries.nccl.tuning_table import tuning_table
from simcoll.topology import Topology

__all__ = ["ChoiceChange", "choice_changes", "refusals"]


@dataclass(frozen=True, slots=True)
class ChoiceChange:
    """A range of sizes whose choice changes in the same way.

    Attributes
    ----------
    collective
        The collective.
    sizes_bytes
        The sizes of the range that were asked for, in order.
    old_choices, new_choices
        The choice at every size, by the one version and by the other.
    """

    collective: str
    sizes_bytes: tuple[int, ...]
    old_choices: tuple[NcclChoice, ...]
    new_choices: tuple[NcclChoice, ...]

    @property
    def changes_algorithm(self) -> bool:
        """Whether the algorithm or protocol changes, and not only the number of channels."""
        return self.old_choices[0].key != self.new_choices[0].key


def choice_changes(
    topology: Topology,
    old: Library,
    new: Library,
    collectives: Sequence[str],
    sizes_bytes: Sequence[int],
    environment: Environment = DEFAULT,
) -> Iterator[ChoiceChange]:
    """The ranges of sizes in which two versions of NCCL choose differently.

    Raises
    ------
    ConfigError
        When NCCL's graphs on the topology are unknown, or its variables leave nothing to run.

    Examples
    --------
    >>> from simcoll.libraries.library import load_library
    >>> from simcoll.topology import load_topology
    >>> versions = load_library("nccl-2.27"), load_library("nccl-2.30")
    >>> two = load_topology("dgx-b200", nodes=2)
    >>> (change,) = choice_changes(two, *versions, ["all_gather"], [2**26])
    >>> change.old_choices[0].key, change.new_choices[0].key
    (('ring', 'LL128'), ('ring', 'Simple'))
    """
    old_facts, new_facts = (_communicator(topology, library, environment) for library in (old, new))
    for collective in collectives:
        calls = [NcclCall(collective_kind(collective), size) for size in sizes_bytes]
        triples = [
            (call, nccl_choice(old_facts, call), nccl_choice(new_facts, call)) for call in calls
        ]
        for _, run in groupby(triples, key=lambda triple: _kind(*triple[1:])):
            sizes, old_choices, new_choices = zip(
                *((call.size_bytes, *choices) for call, *choices in run), strict=True
            )
            change = ChoiceChange(collective, sizes, old_choices, new_choices)
            if change.changes_algorithm or old_choices[0].channels != new_choices[0].channels:
                yield change


def refusals(
    topology: Topology,
    libraries: Sequence[Library],
    collectives: Sequence[str],
    environment: Environment,
) -> list[str]:
    """The collectives for which the variables leave nothing to run in one of the versions."""
    communicators = [_communicator(topology, library, environment) for library in libraries]
    return [
        collective
        for collective in collectives
        if not all(tuning_table(communicator, collective) for communicator in communicators)
    ]


def _kind(old: NcclChoice, new: NcclChoice) -> tuple[object, ...]:
    """What is alike in a range: the algorithms and protocols, and whether the channels differ."""
    return old.key, new.key, old.channels != new.channels


def _communicator(
    topology: Topology, library: Library, environment: Environment
) -> CommunicatorFacts:
    communicator = communicator_on(topology, library, environment)
    if communicator is None:
        raise ConfigError(
            f"{topology.name} with {topology.nranks} ranks: NCCL's graphs on this machine are not "
            f"known, and so neither are the choices of {library}; name a shipped NVIDIA machine"
        )
    return communicator
