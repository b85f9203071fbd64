"""Kernels of NCCL for registered (symmetric) buffers: GPUs of one NVLink domain read and write each
other's memory, without a ring or tree.

Their times are NCCL's own estimate by size, ranks and number of blocks (src/sym_kernels.cc), whose
numbers are in the library file. At large sizes it is not what links carry, so that there no kernel
is faster here than the same links are with ordinary buffers, and no copy or sum of parts slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simcoll.arrays import Floats
from simcoll.core.vocabulary import NcclProtocol
from simcoll.libraries.formula import Cost
from simcoll.libraries.question import Question

__all__ = ["is_symmetric", "symmetric_costs"]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
BLOCKS = 64
"""Most blocks of a kernel."""
BLOCKS_OF_SWITCHES = {"blackwell": 32}
"""Most blocks of all ranks together for kernels of the switches; 16 before Blackwell."""
NEAR = 1.025
"""A kernel takes the least number of blocks that is this near to the time with all."""
COST_OF_A_BLOCK = 0.025
"""Share of the time by which one more block makes a kernel less attractive to NCCL."""
LL_BYTES = 9.0
"""Bytes of LL for each byte of data: twice as many, and its processing."""
_FLOATS = ("", "float32", "float16", "bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2")
_SWITCHES_ADD = ("", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class SymmetricKernel:
    """One kernel, for a collective of some ranks.

    Attributes
    ----------
    protocol
        LL for those with flags, else Simple.
    in_switches
        Whether switches multicast or reduce.
    bytes_on_links
        Bytes that a GPU sends or receives, for each byte of the size as in nccl-tests.
    multiplier
        How often the bytes of a block count on the links.
    """

    protocol: NcclProtocol
    in_switches: bool
    bytes_on_links: float
    multiplier: float


def is_symmetric(question: Question) -> bool:
    """Whether registered buffers have kernels of their own: in one NVLink domain without ways over
    other GPUs, for sums of floating-point numbers and for copies.
    """
    environment, machine = question.environment, question.machine
    if not environment.registered or question.library.name != "nccl":
        return False
    if machine.domains > 1 or machine.inside != "nvlink" or not machine.peer_uBps:
        return False
    reduces = question.collective in {"all_reduce", "reduce_scatter"}
    adds = environment.op in {"", "avg"} and environment.dtype in _FLOATS
    is_known = f"generation.{machine.generation}.symmetric_rate" in question.constants.values
    return is_known and question.collective in COLLECTIVES and (adds or not reduces)


def _kernels(question: Question) -> Iterator[SymmetricKernel]:
    """The kernels of a collective."""
    ranks, environment = question.nranks, question.environment
    switches = question.machine.switch_reduce and environment.nvls and ranks > 2
    adds = switches and environment.dtype in _SWITCHES_ADD
    if question.collective == "all_reduce":
        yield SymmetricKernel("LL", False, ranks * LL_BYTES, 1.0)
        if switches:
            yield SymmetricKernel("LL", True, ranks * LL_BYTES, 1.1)
        yield SymmetricKernel("Simple", False, 2 * (ranks - 1) / ranks, 1.0)
        if adds:
            yield SymmetricKernel("Simple", True, 1 + 1 / ranks, ranks)
        return
    # The estimate counts the bytes of one rank.
    yield SymmetricKernel("LL", False, LL_BYTES, 1.0)
    if switches and question.collective == "all_gather":
        yield SymmetricKernel("LL", True, LL_BYTES, 1.1)
    yield SymmetricKernel("Simple", False, (ranks - 1) / ranks, 1.0)
    if adds if question.collective == "reduce_scatter" else switches:
        yield SymmetricKernel("Simple", True, (ranks - 1) / ranks, 0.55 * ranks)


def symmetric_costs(
    question: Question, size_bytes: Floats, ordinary: Sequence[Cost]
) -> tuple[list[Cost], Floats]:
    """The costs of all kernels, and a row for each of the estimates by which NCCL chooses.

    Parameters
    ----------
    ordinary
        The costs with ordinary buffers, for the rate that the links have.
    """
    rate_GBps = np.max([cost.rate_GBps for cost in ordinary if cost.protocol == "Simple"], axis=0)
    least_us = size_bytes / (1000 * rate_GBps)
    costs, weighted = [], []
    for kernel in _kernels(question):
        blocks, estimate_us, fastest_us = _estimate(kernel, question, size_bytes)
        weighted.append(estimate_us * (1 + COST_OF_A_BLOCK * blocks))
        # With the number of blocks an estimate jumps back a little, which no time does.
        time_us = np.maximum(fastest_us, least_us)
        if kernel.protocol == "Simple" and question.collective != "all_reduce":
            time_us = np.minimum(time_us, _start_us(kernel, question) + least_us)
        infinite = np.full_like(time_us, np.inf)  # the time is all in the latency
        costs.append(Cost("symmetric", kernel.protocol, int(blocks.max()), time_us, infinite))
    return costs, np.array(weighted)


def _estimate(
    kernel: SymmetricKernel, question: Question, size_bytes: Floats
) -> tuple[Floats, Floats, Floats]:
    """For every size the number of blocks, and the time in microseconds as NCCL estimates it with
    these and with all blocks.
    """
    constants, ranks = question.constants, question.nranks
    generation = question.machine.generation
    place, environment = f"generation.{generation}", question.environment
    is_simple_switch = kernel.in_switches and kernel.protocol == "Simple"
    is_reduced_there = is_simple_switch and question.collective == "all_reduce"
    limit = BLOCKS
    if is_simple_switch:
        limit = -(-BLOCKS_OF_SWITCHES.get(generation, 16) // ranks)
    limit = min(limit, environment.max_ctas or limit)
    kind = COLLECTIVES.index(question.collective)
    block_GBps = constants.numbers(f"{place}.symmetric_block_rate")[kind]
    links_GBps, switches_GBps = constants.numbers(f"{place}.symmetric_rate")
    peak_GBps = switches_GBps if is_reduced_there else links_GBps
    counts = np.arange(max(1, min(environment.min_ctas, limit)), limit + 1)
    # A smooth least of what the blocks and what the links carry.
    rates = counts * block_GBps * kernel.multiplier
    excess = np.log1p(np.expm1(peak_GBps / block_GBps) * np.exp(-rates / block_GBps))
    rates = peak_GBps - block_GBps * excess
    link_us = kernel.bytes_on_links * size_bytes[:, None] / (1000 * rates[None, :])
    times_us = _start_us(kernel, question) + np.logaddexp(0.0, link_us - 1)
    is_enough = times_us <= NEAR * times_us[:, -1:]
    fewest = np.argmax(is_enough, axis=1)
    time_us = np.take_along_axis(times_us, fewest[:, None], axis=1)[:, 0]
    return counts[fewest].astype(float), time_us, times_us[:, -1]


def _start_us(kernel: SymmetricKernel, question: Question) -> float:
    """The time of a kernel without data."""
    place = f"generation.{question.machine.generation}.symmetric_{kernel.protocol.lower()}_start"
    return question.constants.numbers(place)[COLLECTIVES.index(question.collective)]
