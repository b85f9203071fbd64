"""Times of what NCCL chooses only for an all_gather or a reduce_scatter: switches within a node,
and PAT with one GPU per node.

No published table measures them, so that they are NCCL's own estimates at measured rates of links.
They are offered where NCCL's own choice decides or variables name the algorithm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.arrays import Floats
from simcoll.libraries.formula import ONE_WAY, Buses, Cost
from simcoll.libraries.nccl.tuning_table import TuningEntry, tuning_table
from simcoll.libraries.nccl_decision import decides
from simcoll.libraries.question import Question

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["one_way_costs"]


def one_way_costs(question: Question, size_bytes: Floats, buses: Buses) -> Iterator[Cost]:
    """The costs of switches and PAT for a collective, where NCCL offers them."""
    communicator, collective = question.communicator, question.collective
    if communicator is None or collective not in ONE_WAY:
        return
    if not (decides(question) or question.environment.names_algorithms(collective)):
        return
    for entry in tuning_table(communicator, collective):
        if entry.algorithm in {"nvls", "pat"}:
            yield _cost(entry, question, size_bytes, buses)


def _cost(entry: TuningEntry, question: Question, size_bytes: Floats, buses: Buses) -> Cost:
    """The cost of one algorithm: every GPU receives all blocks but its own."""
    ranks, ones = question.nranks, np.ones(len(size_bytes))
    if entry.algorithm == "nvls":
        start_us = question.constants.number(f"{question.gpu_class}.nvls_start")
        rate = buses.ring_GBps * ranks / (ranks - 1)
    else:
        start_us = entry.latency_us
        # NCCL may count a host without NVLinks as several nodes, which no NIC of ours joins.
        links_GBps = buses.net_GBps or buses.ring_GBps
        rate = min(entry.rate_GBps, links_GBps * ranks / (ranks - 1))
    return Cost(entry.algorithm, entry.protocol, buses.channels, start_us * ones, rate * ones)
