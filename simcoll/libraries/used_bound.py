"""The lower bound of a collective on the links that NCCL's variables leave, where these are not the
links of the topology.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from simcoll.bounds import Bottleneck, bottleneck
from simcoll.topology import crossbar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simcoll.core.vocabulary import CollectiveKind
    from simcoll.libraries.question import Question
    from simcoll.topology.machine import Machine

__all__ = ["used_bottlenecks"]

_GBPS = 10**15


def used_bottlenecks(question: Question, *, in_network: bool) -> Iterator[Bottleneck]:
    """The bottlenecks of a diverted question: the network that its nodes use, and the PCIe links of
    GPUs that exchange data in host memory.

    Every node, or GPU, counts as a rank of a crossbar with links of the rate that is left to it.
    Sizes are those of the question.
    """
    machine, kind = question.machine, question.collective
    if machine.domains > 1 and machine.nic_uBps:
        bound = _on_crossbar(kind, machine.domains, machine.nic_uBps, in_network)
        ratio = _node_share(kind, machine.domain_ranks)
        staged_uBps = round(question.library.number("correction.staged_rate", 0.0) * _GBPS)
        name = _network_name(machine, is_staged=machine.nic_uBps == staged_uBps)
        yield replace(bound, seconds_per_byte=bound.seconds_per_byte * ratio, name=name)
    if machine.inside == "host":
        bound = _on_crossbar(kind, question.nranks, machine.gpu_uBps, in_network)
        yield replace(bound, name="the PCIe links of GPUs to host memory")


@lru_cache(maxsize=256)
def _on_crossbar(
    kind: CollectiveKind, members: int, rate_uBps: int, in_network: bool
) -> Bottleneck:
    return bottleneck(kind, crossbar(members, rate_uBps), in_network=in_network)


def _node_share(kind: CollectiveKind, node_ranks: tuple[int, ...]) -> int:
    """The size for which a node counts as one rank, as a multiple of that of its ranks; 0 if a root
    may have most of the data in its own node.
    """
    if kind == "all_to_all":
        return min(node_ranks)
    return int(kind not in {"gather", "scatter"} or len(set(node_ranks)) == 1)


def _network_name(machine: Machine, *, is_staged: bool) -> str:
    if machine.fabric == "socket":
        return "the sockets of a node"
    if is_staged:
        return "the host memory of a node, through which its NICs reach GPUs"
    return f"the NICs of a node in use ({machine.nics})"
