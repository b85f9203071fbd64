"""Substitutes for numbers that a library model lacks, reported with each prediction."""

from __future__ import annotations

from collections.abc import Iterator

from simcoll.libraries.collnet import is_collnet
from simcoll.libraries.copy_engines import AUTOMATIC_ELEMENTS, takes_copy_engines_when_large
from simcoll.libraries.formula import ONE_WAY, Cost
from simcoll.libraries.nccl_decision import decides
from simcoll.libraries.question import Question
from simcoll.libraries.rccl_choice import ALGORITHMS
from simcoll.libraries.transports import Transports

__all__ = ["assumptions"]

_GUESSES = ("assumed", "unverified")
"""Words by which a source marks a number that is neither measured nor published."""


def assumptions(cost: Cost, question: Question) -> str:
    """The substitutes for missing numbers in the time of one way to run a collective, in words;
    empty if there are none.

    A number is missing if its source says so, if the library borrows it from another, or if the
    library has none at all, as for networks that reduce and for PAT.
    """
    collective, machine, library = question.collective, question.machine, question.library
    borrowed: dict[str, list[str]] = {}
    sentences = []
    for place in _places(cost, question):
        lender = library.borrowed.get(place)
        if lender:
            borrowed.setdefault(lender, []).append(place)
        elif place not in library.values:
            sentences.append(f"{place} is taken as 0, because the number is unknown")
        elif any(word in library.sources[place] for word in _GUESSES):
            sentences.append(f"{place} is {library.sources[place].replace(';', ',')}")
    sentences += [
        f"{', '.join(places)} {'are those' if len(places) > 1 else 'is that'} of {lender}"
        for lender, places in borrowed.items()
    ]
    if cost.algorithm in {"nvls", "pat"} and collective in ONE_WAY:
        numbers = (
            "the start of an all_reduce and the rate of rings"
            if cost.algorithm == "nvls"
            else "NCCL's own estimate"
        )
        sentences.append(
            f"{collective} by {cost.algorithm} has {numbers}, because no published table measures "
            "it"
        )
    # RCCL's is off by default.
    is_offered = question.communicator is not None and decides(question)
    if (
        collective in ONE_WAY
        and max(machine.domain_ranks) == 1
        and library.name == "nccl"
        and not is_offered
    ):
        sentences.append(
            "PAT, which NCCL may choose for one GPU per node, is left out, because there are no "
            f"numbers in {library}"
        )
    if question.environment.registered:
        sentences += _of_registration(cost, question)
    elif question.environment.zero_ctas:
        sentences.append("NCCL_CTA_POLICY=2 changes nothing without registered buffers")
    sentences += _of_variables(question)
    if machine.domains > 1 and collective == "all_reduce":
        sentences += _of_network(question)
    return "; ".join(sentences)


def _of_registration(cost: Cost, question: Question) -> Iterator[str]:
    """What is known of registered buffers."""
    if cost.algorithm != "symmetric":
        yield (
            "registered buffers change nothing here, because NCCL has kernels for them only for "
            "all_gather and for sums of floating-point numbers by all_reduce and reduce_scatter, "
            "among GPUs that are joined by NVLink alone"
        )
        return
    yield (
        "kernels for registered buffers take the time of NCCL's own estimate, and no less than the "
        "links need with ordinary buffers, because no published table measures them"
    )
    if takes_copy_engines_when_large(question):
        yield (
            f"more than {AUTOMATIC_ELEMENTS >> 20} Mi elements of a rank take the time of a "
            "kernel, where NCCL takes copy engines"
        )


def _of_network(question: Question) -> Iterator[str]:
    """Whether switches of the network reduce."""
    environment, has_numbers = question.environment, question.communicator is not None
    if environment.collnet and not has_numbers:
        yield (
            "reduction in the network (CollNet) is left out, because NCCL's search is unknown for "
            f"{question.library} on this topology"
        )
    elif environment.collnet and not question.machine.network_reduces:
        yield "the network is taken to reduce (SHARP), which the topology does not state"
    elif question.machine.network_reduces and not environment.collnet:
        yield (
            "reduction in the network (CollNet) is off, as in NCCL, unless NCCL_COLLNET_ENABLE=1"
        )


def _of_variables(question: Question) -> Iterator[str]:
    """What NCCL's variables may change beyond the model."""
    environment, library = question.environment, question.library
    transports = environment.transports
    if environment.threads:
        yield "blocks of fewer threads copy as fast as NCCL's own, because no table measures them"
    if transports == Transports():
        return
    if question.machine.fabric != "socket":
        for name, Gbps in (
            ("SOCKET_GBPS", transports.socket_Gbps),
            ("FLOW_GBPS", transports.flow_Gbps),
        ):
            if Gbps:
                yield f"{name} changes nothing, because no sockets are in use"
    elif transports.sockets_per_thread > 1 and not transports.flow_Gbps:
        yield (
            "more sockets change nothing unless the network limits each of them: FLOW_GBPS states "
            "that limit"
        )
    if question.communicator is None:
        reason = (
            "the topology describes no PCIe devices"
            if library.name == "nccl"
            else f"the search of {library} is unknown"
        )
        yield (
            "of variables that choose links only peer access, GPUDirect, sockets and the number of "
            f"NICs count, because {reason}"
        )
    place = "correction.staged_rate"
    staged_uBps = round(library.number(place, 0.0) * 10**15)
    if transports.nic_level is not None and question.machine.nic_uBps == staged_uBps:
        yield f"{place} is {library.sources[place].replace(';', ',')}"
    if question.machine.fabric == "socket" and not transports.socket_Gbps:
        rate = question.machine.nic_uBps * 8 / question.machine.nics / 1e15
        yield (
            f"an interface of sockets has at most the {rate:.3g} Gbit/s that a NIC and the links "
            "on its way carry, SOCKET_GBPS states its own"
        )


def _places(cost: Cost, question: Question) -> Iterator[str]:
    """The numbers that decide the time, by their names in the file."""
    machine, gpu_class, fabric = question.machine, question.gpu_class, question.fabric
    if question.environment.launcher == "graph":
        yield "launcher.graph_saved"
    if question.is_p2p:
        yield f"{gpu_class}.p2p_share"
        yield "correction.p2p_start"
        yield f"{fabric}.p2p_share" if fabric else f"{gpu_class}.p2p_channel_rate"
        return
    if is_collnet(cost.algorithm, machine.domains):
        yield "share.collnet_nic"
        return
    if cost.algorithm == "symmetric":
        yield f"generation.{machine.generation}.symmetric_rate"
        return
    if cost.algorithm in ALGORITHMS:
        under_ll = "_ll" if (cost.algorithm, cost.protocol) == ("all_pairs", "LL") else ""
        yield f"{gpu_class}.{cost.algorithm}{under_ll}_start"
        return
    if cost.algorithm.startswith("nvls"):
        yield from (f"{gpu_class}.nvls_share", f"{gpu_class}.nvls_start")
    else:
        yield from (f"{gpu_class}.ring_share", f"base.{cost.algorithm}")
        yield f"hop.{'pcie' if machine.inside in {'pcie', 'host'} else 'nvlink'}.{cost.algorithm}"
    if fabric:
        yield from (f"{fabric}.share", f"{fabric}.latency", f"hop.net.{cost.algorithm}")
        if machine.fabric == "socket":
            yield from (f"{fabric}.thread_rate", f"{fabric}.host_rate")
    elif not cost.algorithm.startswith("nvls"):
        yield from _protocol_places(cost, f"generation.{machine.generation}", gpu_class)


def _protocol_places(cost: Cost, generation: str, gpu_class: str) -> Iterator[str]:
    """The specific numbers of a protocol's rate and start within a domain."""
    if cost.protocol == "Simple":
        yield f"{gpu_class}.simple_start"
    else:
        yield (
            f"{generation}.ll_rate"
            if cost.protocol == "LL"
            else f"{generation}.{cost.algorithm}_ll128_rate"
        )
    if cost.algorithm == "tree":
        yield f"{generation}.tree_rate"
