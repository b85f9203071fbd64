"""What RCCL runs on AMD's GPUs, by the rules of its source (github.com/ROCm/rccl).

* Within a node, an all_reduce of a middle size goes by an algorithm of MSCCL, in which every rank
  sends a block to every other rank and then its sum (``tools/msccl-algorithms``). It takes whole
  loops of elements only. In a graph, small sums go by MSCCL++ (``src/misc/msccl``). Neither heeds
  NCCL_ALGO and NCCL_PROTO.
* All else within a node is what RCCL's own formula prefers (``src/graph/tuning.cc``). LL128 is as
  fast as LL by its numbers, and so never preferred; trees under Simple are switched off.
* Over nodes, sizes alone decide the protocol (``src/rccl_wrap.cc``): those of a rank for all_gather
  and reduce_scatter. From a size on, an all_reduce goes by rings instead of trees, where the
  formula's tables by size cross. Where no sizes are tuned (broadcast and reduce on MI300X), the
  fastest counts.

The sizes are in the library file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from simcoll.arrays import Floats, Ints
from simcoll.core.vocabulary import NcclProtocol, PredictedAlgorithm
from simcoll.libraries.formula import ONE_WAY, PROTOCOLS, Cost, stated_costs
from simcoll.libraries.question import Question

__all__ = ["ALGORITHMS", "chooses_as_rccl", "msccl_channels", "msccl_costs", "rccl_picks"]

ALGORITHMS: tuple[PredictedAlgorithm, ...] = ("all_pairs", "mscclpp")
"""Those of MSCCL and MSCCL++."""

RANKS = 8
"""Number of ranks for which RCCL ships algorithms of MSCCL."""
FEW_CHANNELS, ALL_CHANNELS = 4, 8
"""Numbers of channels of the all-pairs algorithm: for the smallest sizes, and above."""
ELEMENTS_IN_A_LOOP = 256, 512
"""Numbers of elements, of which the all-pairs algorithm takes a multiple, as its channels."""
BLOCKS = 28
"""Number of blocks of MSCCL++: four for each other rank."""
MSCCLPP_BYTES = 32
"""MSCCL++ takes multiples of this size."""
FAR_US = 1e18
"""More than any time: what RCCL would not run counts only among equals."""
_BITS = re.compile(r"\d+")


def chooses_as_rccl(question: Question) -> bool:
    """Whether predictions choose by RCCL's rules: no tuning table of a log says what it chose."""
    calibration, by_rules = question.calibration, question.constants.text("rules.choice") == "rccl"
    if not by_rules or question.is_p2p:
        return False
    nodes = question.machine.domains
    return calibration is None or not calibration.tuning_rows(
        question.collective, question.nranks, nodes
    )


def _has_msccl(question: Question) -> bool:
    """Whether RCCL has algorithms of MSCCL and MSCCL++ for the ranks: 8 that are joined by xGMI."""
    machine, constants = question.machine, question.constants
    if constants.text("rules.choice") != "rccl" or question.collective != "all_reduce":
        return False
    return machine.domains == 1 and machine.inside == "xgmi" and question.nranks == RANKS


def _runs_all_pairs(question: Question) -> bool:
    """Whether the all-pairs algorithm runs for some sizes; too few channels switch it off."""
    limit = question.environment.max_channels
    has_channels = not 0 < limit < ALL_CHANNELS
    return _has_msccl(question) and question.environment.msccl and has_channels


def _runs_mscclpp(question: Question) -> bool:
    """Whether MSCCL++ runs for some sizes: sums in graphs, with a process for each GPU."""
    environment = question.environment
    is_known = f"{question.gpu_class}.mscclpp_start" in question.constants.values
    in_graph = environment.launcher == "graph" and not environment.op
    return is_known and in_graph and environment.mscclpp_bytes > 0 and _has_msccl(question)


def msccl_costs(question: Question, size_bytes: Floats) -> Iterator[Cost]:
    """The costs of the algorithms of MSCCL and MSCCL++ where RCCL runs them."""
    # A rank sends two blocks over each of its links.
    links_GBps = question.machine.gpu_uBps / 1e15 * question.nranks / (2 * (question.nranks - 1))
    number, place, ones = question.constants.number, question.gpu_class, np.ones(len(size_bytes))
    kinds: list[tuple[PredictedAlgorithm, NcclProtocol, str]] = []
    if _runs_all_pairs(question):
        kinds = [("all_pairs", "LL", "all_pairs_ll"), ("all_pairs", "Simple", "all_pairs")]
    if _runs_mscclpp(question):
        kinds.append(("mscclpp", "LL", "mscclpp"))
    for algorithm, protocol, name in kinds:
        start_us = number(f"{place}.{name}_start") * ones
        rate_GBps = links_GBps * number(f"{place}.{name}_share") * ones
        yield Cost(algorithm, protocol, ALL_CHANNELS, start_us, rate_GBps)


def msccl_channels(algorithm: PredictedAlgorithm, size_bytes: int, question: Question) -> int:
    """Number of channels of an algorithm of MSCCL, or of blocks of MSCCL++, for a size."""
    if algorithm == "mscclpp":
        return BLOCKS
    place = f"generation.{question.machine.generation}.all_pairs_bytes"
    few_bytes = question.constants.numbers(place)[0]
    return FEW_CHANNELS if size_bytes <= few_bytes else ALL_CHANNELS


def _msccl_choices(
    question: Question, size_bytes: Floats
) -> list[tuple[PredictedAlgorithm, NcclProtocol] | None]:
    """The algorithm of MSCCL or MSCCL++ for every size; None where rings or trees run."""
    place = f"generation.{question.machine.generation}.all_pairs_bytes"
    few_bytes, ll_bytes, most_bytes = question.constants.numbers(place)
    bits = _BITS.search(question.environment.dtype or "float32")
    element_bytes = max(1, int(bits[0]) // 8) if bits else 1
    in_graph, in_pairs = _runs_mscclpp(question), _runs_all_pairs(question)
    choices: list[tuple[PredictedAlgorithm, NcclProtocol] | None] = []
    for size in size_bytes.tolist():
        loop_bytes = element_bytes * ELEMENTS_IN_A_LOOP[size > few_bytes]
        if in_graph and size <= question.environment.mscclpp_bytes and size % MSCCLPP_BYTES == 0:
            choices.append(("mscclpp", "LL"))
        elif in_pairs and size <= most_bytes and size % loop_bytes == 0:
            choices.append(("all_pairs", "LL" if size <= ll_bytes else "Simple"))
        else:
            choices.append(None)
    return choices


def rccl_picks(question: Question, costs: Sequence[Cost], size_bytes: Floats) -> Ints:
    """Index of the cost that RCCL runs for every size, among those that variables permit."""
    picks = _picks_by_size(question, costs, size_bytes)
    if not _has_msccl(question):
        return picks
    keys = [(cost.algorithm, cost.protocol) for cost in costs]
    for place, choice in enumerate(_msccl_choices(question, size_bytes)):
        if choice is not None:
            picks[place] = keys.index(choice)
    return picks


def _picks_by_size(question: Question, costs: Sequence[Cost], size_bytes: Floats) -> Ints:
    """The choice among rings and trees.

    What variables leave runs, even where RCCL would prefer something else.
    """
    protocols, from_bytes = _protocols_over_nodes(question, size_bytes), _rings_from(question)
    if question.machine.domains == 1:
        return np.asarray(np.argmin(_estimates(question, costs, size_bytes), axis=0))
    times_us = np.array([cost.time_us(size_bytes) for cost in costs])
    if protocols is None:
        return np.asarray(np.argmin(times_us, axis=0))
    weights = []
    for cost in costs:
        is_other_protocol = protocols != PROTOCOLS.index(cost.protocol)
        is_other_algorithm = (cost.algorithm == "ring") != (size_bytes >= from_bytes)
        weights.append(2.0 * is_other_protocol + is_other_algorithm)
    return np.asarray(np.argmin(np.array(weights) * FAR_US + times_us, axis=0))


def _estimates(question: Question, costs: Sequence[Cost], size_bytes: Floats) -> Floats:
    """The times by which RCCL chooses within a node, a row for each cost."""
    stated = {
        (cost.algorithm, cost.protocol): cost.time_us(size_bytes)
        for cost in stated_costs(
            question.machine, question.collective, size_bytes, question.library
        )
    }
    never = np.full(len(size_bytes), 1e30)
    rows = []
    for key in ((cost.algorithm, cost.protocol) for cost in costs):
        is_considered = key[1] != "LL128" and key != ("tree", "Simple")
        estimate = stated.get(key, never)
        rows.append(estimate if is_considered else estimate + 1e20)
    return np.array(rows)


def _rings_from(question: Question) -> float:
    """The size from which an all_reduce over nodes goes by rings; others always do."""
    if question.collective != "all_reduce":
        return 0.0
    place = f"generation.{question.machine.generation}.rings_from_bytes"
    sizes = question.constants.numbers(place)
    return sizes[0] if question.machine.domains == 2 else sizes[1]


def _protocols_over_nodes(question: Question, size_bytes: Floats) -> Ints | None:
    """Index in :data:`PROTOCOLS` of the protocol for every size; None where none are tuned."""
    collective, machine = question.collective, question.machine
    constants = question.constants
    tuned_bytes = constants.numbers(f"generation.{machine.generation}.{collective}_bytes")
    if not tuned_bytes:
        return None
    ll_bytes, ll128_bytes = tuned_bytes
    if collective == "all_reduce" and machine.domains > 2:
        ll128_bytes *= constants.number("rules.ll128_over_more_nodes")
    is_of_a_rank = collective in {*ONE_WAY, "broadcast"}
    of_a_rank = size_bytes / question.nranks if is_of_a_rank else size_bytes
    return np.digitize(of_a_rank, [ll_bytes, ll128_bytes], right=True)
