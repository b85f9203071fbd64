"""Substitutes for numbers that a library model lacks, reported with each prediction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simcoll.libraries.corrected import P2P, class_of, fabric_of
from simcoll.libraries.formula import Cost

if TYPE_CHECKING:
    from simcoll.libraries.library import Library
    from simcoll.topology.machine import Machine

__all__ = ["assumed"]

_GUESSES = ("assumed", "unverified")
"""Words by which a source marks a number that is neither measured nor published."""


def assumed(cost: Cost, collective: str, machine: Machine, library: Library) -> str:
    """The substitutes for missing numbers in the time of one way to run a collective, in words; empty if there are none.

    A number is missing if its source says so, if the library borrows it from another, or if the library has none at all, as for networks
    that reduce and for PAT.
    """
    lent: dict[str, list[str]] = {}
    found = []
    for place in _places(cost, collective, machine, library):
        lender = library.borrowed.get(place)
        if lender:
            lent.setdefault(lender, []).append(place)
        elif place not in library.values:
            found.append(f"{place} is taken as 0, because the number is unknown")
        elif any(word in library.sources[place] for word in _GUESSES):
            found.append(f"{place} is {library.sources[place].replace(';', ',')}")
    found += [
        f"{', '.join(places)} {'are those' if len(places) > 1 else 'is that'} of {lender}"
        for lender, places in lent.items()
    ]
    # RCCL's is off by default.
    if collective in {"all_gather", "reduce_scatter"} and max(machine.domain_ranks) == 1 and library.name == "nccl":
        found.append(
            f"PAT, which NCCL may choose for one GPU per node, is left out, because there are no numbers in {library}"
        )
    if machine.network_reduces and machine.domains > 1 and collective == "all_reduce":
        found.append(f"reduction in the network (CollNet) is left out, because there are no numbers in {library}")
    return "; ".join(found)


def _places(cost: Cost, collective: str, machine: Machine, library: Library) -> Iterator[str]:
    """The numbers that decide the time, by their names in the file."""
    kind, fabric = class_of(machine, library), fabric_of(machine, library)
    if collective in P2P:
        yield f"{kind}.p2p_share"
        yield "correction.p2p_start"
        yield f"{fabric}.p2p_share" if fabric else f"{kind}.p2p_channel_rate"
        return
    if cost.algorithm.startswith("nvls"):
        yield from (f"{kind}.nvls_share", f"{kind}.nvls_start")
    else:
        yield from (f"{kind}.ring_share", f"base.{cost.algorithm}")
        yield f"hop.{'pcie' if machine.inside in {'pcie', 'host'} else 'nvlink'}.{cost.algorithm}"
    if fabric:
        yield from (f"{fabric}.share", f"{fabric}.latency", f"hop.net.{cost.algorithm}")
    elif not cost.algorithm.startswith("nvls"):
        yield from _inside(cost, f"generation.{machine.generation}", kind)


def _inside(cost: Cost, generation: str, kind: str) -> Iterator[str]:
    """The specific numbers of a protocol's rate and start within a domain."""
    if cost.protocol == "Simple":
        yield f"{kind}.simple_start"
    else:
        yield f"{generation}.ll_rate" if cost.protocol == "LL" else f"{generation}.{cost.algorithm}_ll128_rate"
    if cost.algorithm == "tree":
        yield f"{generation}.tree_rate"
