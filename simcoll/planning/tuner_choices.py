"""What a library should be told to run: the fastest choice for each size, and what it gains over the default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from simcoll.core.schedule import Schedule
from simcoll.emulator import emulate
from simcoll.errors import ConfigError
from simcoll.formats.tuner_rules import NO_LIMIT, Rule
from simcoll.libraries.environment import DEFAULT, Environment
from simcoll.libraries.library import load_library
from simcoll.libraries.plans import bind_size
from simcoll.libraries.prediction import chosen, predict
from simcoll.planning.accuracy import WAYS, band_of, errors_of, medians
from simcoll.planning.measurements import published_tables
from simcoll.topology import Topology
from simcoll.topology.machine import machine as machine_of
from simcoll.tuning import collective_on, costs, default_algorithm, schedule_on

__all__ = ["Picked", "names_of", "nccl_choices", "played_choices", "rules_of"]

PLAYED = 2
"""Choices of NCCL that are played at every size, beside its own: those that the corrected formula finds fastest."""


@dataclass(frozen=True, slots=True)
class Picked:
    """The choice for one size.

    Attributes
    ----------
    collective, size_bytes
        What runs, and its size as nccl-tests counts it.
    algorithm, protocol, channels
        The fastest choice, in the library's words; protocol and channels are NCCL's, empty and -1 elsewhere.
    time_fs
        Its time.
    default, default_fs
        What runs when nothing is said, and its time.
    error
        Median error of predictions of this collective and size against published tables; None where nothing was measured.
    """

    collective: str
    size_bytes: int
    algorithm: str
    protocol: str
    channels: int
    time_fs: int
    default: str
    default_fs: int
    error: float | None

    @property
    def gain(self) -> float:
        """How many times as fast as the default; 1 where nothing takes time, as on one rank."""
        return self.default_fs / self.time_fs if self.time_fs else 1.0

    @property
    def certain(self) -> bool:
        """Whether the gain exceeds the error of both times."""
        return self.error is not None and self.gain > (1 + self.error) ** 2


@cache
def _errors(collective: str) -> Mapping[str, float]:
    """Median errors by band, of predictions by formula of the published tables, each system left out of its own fit."""
    tables = [table for table in published_tables() if table.collective == collective]
    found = [error for table in tables for error in errors_of(table, by_formula=True) if error.way == WAYS[0]]
    return medians(found)


def nccl_choices(
    topology: Topology, collectives: Sequence[str], sizes: Sequence[int], library: str = "nccl"
) -> Iterator[Picked]:
    """The fastest of NCCL's algorithms and protocols for each size.

    The choices that the corrected formula finds fastest are played, and NCCL's own.
    """
    model, machine = load_library(library), machine_of(topology)
    for collective in collectives:
        offered, _ = chosen(machine, collective, np.array(sizes, float), model)
        every = {(cost.algorithm, cost.protocol): cost.time_us(np.array(sizes, float)) for cost in offered}
        for place, size in enumerate(sizes):
            own = predict(collective, size, topology, library=model)
            near = sorted(every, key=lambda key: (float(np.broadcast_to(every[key], len(sizes))[place]), key))[:PLAYED]
            found = [own]
            for algorithm, protocol in near:
                if (algorithm, protocol) != (own.algorithm, own.protocol):
                    only = Environment(((collective, (algorithm,)),), ((collective, (protocol,)),), nvls=DEFAULT.nvls)
                    found.append(predict(collective, size, topology, library=model, environment=only))
            best = min(found, key=lambda each: each.time_fs)
            yield Picked(
                collective, size, best.algorithm, best.protocol.lower(), best.channels, best.time_fs,
                f"{own.algorithm} {own.protocol}", own.time_fs, _errors(collective).get(band_of(size)),
            )  # fmt: skip


_NAMES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "openmpi": {
        "all_reduce": {"recursive_doubling": "recursive_doubling", "ring": "ring", "rabenseifner": "rabenseifner"},
        "all_gather": {"recursive_doubling": "recursive_doubling", "ring": "ring", "bruck": "bruck", "neighbor_exchange": "neighbor"},
        "all_to_all": {"pairwise": "pairwise", "bruck": "modified_bruck", "direct": "linear"},
        "broadcast": {
            "tree": "binomial", "chain": "chain", "scatter_doubling": "scatter_allgather", "scatter_ring": "scatter_allgather_ring",
        },
        "reduce": {"tree": "binomial", "chain": "chain", "linear": "linear", "rabenseifner": "rabenseifner"},
        "reduce_scatter": {"recursive_halving": "recursive_halving", "ring": "ring"},
        "gather": {"tree": "binomial", "linear": "basic_linear"},
        "scatter": {"tree": "binomial", "linear": "basic_linear"},
    },
    "openmpi-han": {
        kind: {"hierarchical": "han", **dict.fromkeys(flat, "tuned")}
        for kind, flat in {
            "all_reduce": ("recursive_doubling", "ring", "rabenseifner"),
            "all_gather": ("recursive_doubling", "ring", "bruck"),
            "broadcast": ("tree", "chain", "scatter_doubling"),
        }.items()
    },
    "mpich": {
        "all_reduce": {
            "recursive_doubling": "MPIR_Allreduce_intra_recursive_doubling", "ring": "MPIR_Allreduce_intra_ring",
            "rabenseifner": "MPIR_Allreduce_intra_reduce_scatter_allgather",
        },
        "all_gather": {
            "recursive_doubling": "MPIR_Allgather_intra_recursive_doubling", "ring": "MPIR_Allgather_intra_ring",
            "bruck": "MPIR_Allgather_intra_brucks",
        },
        "all_to_all": {
            "pairwise": "MPIR_Alltoall_intra_pairwise", "bruck": "MPIR_Alltoall_intra_brucks", "direct": "MPIR_Alltoall_intra_scattered",
        },
        "broadcast": {
            "tree": "MPIR_Bcast_intra_binomial", "scatter_ring": "MPIR_Bcast_intra_scatter_ring_allgather",
            "scatter_doubling": "MPIR_Bcast_intra_scatter_recursive_doubling_allgather",
        },
        "reduce": {"tree": "MPIR_Reduce_intra_binomial", "rabenseifner": "MPIR_Reduce_intra_reduce_scatter_gather"},
        "reduce_scatter": {
            "recursive_halving": "MPIR_Reduce_scatter_intra_recursive_halving", "pairwise": "MPIR_Reduce_scatter_intra_pairwise",
        },
    },
    "oneccl": {
        "all_reduce": {"recursive_doubling": "recursive_doubling", "ring": "ring", "rabenseifner": "rabenseifner"},
        "all_gather": {"ring": "ring", "direct": "flat"},
        "all_to_all": {"direct": "naive", "pairwise": "scatter"},
        "broadcast": {"scatter_ring": "ring", "double_tree": "double_tree", "linear": "naive"},
        "reduce": {"tree": "tree", "rabenseifner": "rabenseifner"},
        "reduce_scatter": {"ring": "ring", "direct": "naive"},
    },
}  # fmt: skip


def names_of(library: str) -> Mapping[str, Mapping[str, str]]:
    """For each collective, algorithms here and what an MPI library calls them."""
    return _NAMES[library]


def played_choices(
    topology: Topology, collectives: Sequence[str], sizes: Sequence[int], library: str, protocol: str = "ideal"
) -> Iterator[Picked]:
    """The fastest of an MPI library's algorithms for each size, played under a protocol.

    The default is what simcoll runs when no algorithm is named: the libraries' own defaults are not modelled.

    Raises
    ------
    ConfigError
        For a collective of which the library has no algorithm that is known here.
    """
    for kind in collectives:
        if kind not in _NAMES[library]:
            raise ConfigError(f"no algorithm of {library} is known for {kind}; known: {', '.join(_NAMES[library])}")
        collective = collective_on(kind, topology.nranks)
        made: dict[str, Schedule] = {}
        for name in _NAMES[library][kind]:
            try:
                made[name] = schedule_on(collective, name, topology)
            except ConfigError:  # it does not serve so many ranks
                continue
        for size in sizes:
            usual = default_algorithm(collective, total_bytes=size)
            made.setdefault(usual, schedule_on(collective, usual, topology))
            times = {
                name: emulate(
                    bind_size(each, costs(protocol, topology, each), size), topology, data="none", bound=False
                ).time_fs
                for name, each in made.items()
            }
            known = {name: time for name, time in times.items() if name in _NAMES[library][kind]}
            best = min(known, key=lambda name: (known[name], name))
            yield Picked(kind, size, _NAMES[library][kind][best], "", -1, known[best], usual, times[usual], None)


def rules_of(picked: Sequence[Picked], topology: Topology, *, exact: bool = False) -> list[Rule]:
    """Rules that make these choices: each up to its size, and beyond the size of the last that was chosen alike.

    ``exact``: only for this number of ranks and nodes.
    """
    nodes = len(set(topology.groups["box"].tolist())) if exact and "box" in topology.groups else -1
    ranks = topology.nranks if exact else -1
    rules: list[Rule] = []
    for collective in dict.fromkeys(each.collective for each in picked):
        own = [each for each in picked if each.collective == collective]
        first = 0
        for place, each in enumerate(own):
            alike = [(other.algorithm, other.protocol, other.channels) for other in own[place : place + 2]]
            if len(alike) == 2 and alike[0] == alike[1]:
                continue
            last = NO_LIMIT if place + 1 == len(own) else each.size_bytes
            rules.append(Rule(collective, first, last, each.algorithm, each.protocol, each.channels, nodes, ranks))
            first = each.size_bytes + 1
    return rules
