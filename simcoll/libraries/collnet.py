"""Times of an all_reduce in switches of the network: CollNet with InfiniBand SHARP.

No published table measures them, so that latencies are NCCL's own and rates those of the links: a
NIC sends and receives the data of its channels once, as fast as a maintainer of NCCL has seen
(github.com/NVIDIA/nccl, issue 320), and links inside a node carry all data to the NICs and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from simcoll.arrays import Floats
from simcoll.core.vocabulary import PredictedAlgorithm
from simcoll.libraries.formula import Cost
from simcoll.libraries.nccl.tuning_table import tuning_table

if TYPE_CHECKING:
    from simcoll.libraries.question import Question

__all__ = ["collnet_costs", "is_collnet"]


def is_collnet(algorithm: PredictedAlgorithm, domains: int) -> bool:
    """Whether an algorithm reduces in the network; NVLS does over several nodes."""
    return algorithm.startswith("collnet") or (algorithm == "nvls" and domains > 1)


def collnet_costs(
    question: Question, size_bytes: Floats, domain_GBps: float, nvls_domain_GBps: float
) -> Iterator[Cost]:
    """The costs of the algorithms that NCCL offers with ``NCCL_COLLNET_ENABLE=1``.

    Parameters
    ----------
    domain_GBps, nvls_domain_GBps
        Rate of a ring, and of a reduction in NVLink switches, within a domain.
    """
    communicator, machine = question.communicator, question.machine
    if communicator is None or question.collective != "all_reduce" or machine.domains == 1:
        return
    number = question.constants.number
    nic_GBps = machine.nic_uBps / 1e15 * number("share.collnet_nic")
    ones = np.ones(len(size_bytes))
    for entry in tuning_table(communicator, question.collective):
        if not is_collnet(entry.algorithm, machine.domains):
            continue
        if entry.algorithm == "nvls":
            filled = 1 - np.exp(-size_bytes / number("correction.nvls_tree_fill_bytes"))
            start_us = number("correction.nvls_tree_start") + number("hop.net.nvls")
            start = start_us + number("correction.nvls_tree_fill") * filled
            domain_rate = nvls_domain_GBps * number("correction.nvls_tree_share")
        else:
            start = entry.latency_us * ones
            domain_rate = domain_GBps / 2  # up to the NICs and down again
        rate = min(domain_rate, nic_GBps) * ones
        channels = communicator.graphs.tree.channels
        yield Cost(entry.algorithm, entry.protocol, channels, start, rate)
