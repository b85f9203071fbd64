"""Two checks of shared networks: exchanges of tokens between experts as measured, and two axes on one NIC against formulas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simcoll.algorithms import schedule
from simcoll.binding import bind
from simcoll.core.protocol import nccl
from simcoll.emulator import emulate
from simcoll.emulator.programs import Call, Compute, Program, emulate_program
from simcoll.topology import crossbar, load_topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from simcoll.emulator.programs import Operation

    Tokens = NDArray[np.int64]

__all__ = ["CONTENTION", "DEEPEP", "Contention", "contention", "exchange_played_us", "exchange_us"]

DEEPEP = {8: (163, 318), 32: (182, 350), 128: (192, 369)}
"""Microseconds of dispatch and combine by number of GPUs: DeepEP's README at commit 3b1045d, low-latency kernels, H800 with ConnectX-7 of
400 Gbit/s, 128 tokens of 7168 a GPU, 8 of 256 experts, dispatch in FP8, combine in BF16."""
TOKENS, WIDTH, EXPERTS, CHOSEN = 128, 7168, 256, 8
DRAWS = 5
NIC_GBPS = 47
"""Of 50: NVIDIA in nccl-tests issues 212 and 290."""
LATENCY_US = 3.7
"""Between leaves: DeepSeek-V3 hardware paper (ISCA 2025), table 5."""
MESSAGE = (WIDTH + WIDTH // 128 * 4 + 16, 2 * WIDTH)
"""Bytes of a token: 8-bit values with a scale for every 128 and a header; 16-bit values."""


def exchange_us(gpus: int, which: int, *, balanced: bool = False) -> float:
    """Microseconds of DeepEP's dispatch (0) or combine (1): what the most loaded NIC needs, and the latency of the network.

    Its kernels use the NIC for all traffic, that of a GPU to itself included. Tokens choose experts at random, mean of a few draws;
    ``balanced``: every pair of GPUs exchanges the same. :func:`exchange_played_us` plays the messages.
    """
    draws = _draws(gpus, balanced=balanced)
    loads = [max(int(rows.sum(axis=0).max()), int(rows.sum(axis=1).max())) for rows in draws]
    return LATENCY_US + float(np.mean(loads)) * MESSAGE[which] / (1000 * NIC_GBPS)


def exchange_played_us(gpus: int, which: int) -> float:
    """The same on the emulator; senders and receivers are endpoints of their own, so that a GPU's messages to itself use its NIC."""
    topology = crossbar(2 * gpus, f"{NIC_GBPS} GB/s", f"{LATENCY_US} us")
    made = schedule("all_to_all", "direct", nranks=2 * gpus)
    times = []
    for rows in _draws(gpus, balanced=False):
        sizes = np.zeros((2 * gpus, 2 * gpus), np.int64)
        sizes[:gpus, gpus:] = (rows if which == 0 else rows.T) * MESSAGE[which]
        times.append(emulate(bind(made, sizes.tolist(), "uint8"), topology, data="none", bound=False).time_us)
    return float(np.mean(times))


def _draws(gpus: int, *, balanced: bool) -> list[Tokens]:
    if balanced:
        return [np.full((gpus, gpus), TOKENS * CHOSEN // gpus)]
    return [_routed(gpus, seed) for seed in range(DRAWS)]


def _routed(gpus: int, seed: int) -> Tokens:
    """Tokens from each GPU to each."""
    random = np.random.default_rng(seed)
    chosen = np.argsort(random.random((gpus, TOKENS, EXPERTS)), axis=2)[:, :, :CHOSEN] // (EXPERTS // gpus)
    return np.stack([np.bincount(each.ravel(), minlength=gpus) for each in chosen])


@dataclass(frozen=True, slots=True)
class Contention:
    """Backward passes of 8 layers with experts on 4 nodes of 8 H100, in milliseconds and MiB.

    Attributes
    ----------
    compute_ms, exchange_mib, reduce_mib
        Of a layer: computation, an all_to_all of 16 ranks that it waits for, a reduce_scatter of 32 ranks beside the next layers.
    """

    compute_ms: float
    exchange_mib: int
    reduce_mib: int


CONTENTION = (
    Contention(3, 64, 128), Contention(3, 256, 1024), Contention(3, 448, 1400), Contention(1.5, 256, 1024), Contention(1.5, 256, 1400),
)  # fmt: skip
LAYERS = 8


def contention(case: Contention) -> tuple[float, float, float]:
    """Milliseconds of a case as a maximum of the two streams, as their sum, and emulated."""
    apart = {part: _layers(case, part) for part in ("ce", "r", "c", "e")}
    return max(apart["ce"], apart["r"]), apart["c"] + apart["e"] + apart["r"], _layers(case, "cer")


def _layers(case: Contention, parts: str) -> float:
    """The layers with some parts: computation, exchange, reduction."""
    topology = load_topology("superpod-h100", nodes=4)
    program = Program(topology.nranks, list(_operations(case, parts)))
    return emulate_program(program, topology, data="none").time_fs / 1e12


def _operations(case: Contention, parts: str) -> Iterator[Operation]:
    simple = nccl("Simple", generation="hopper")
    everyone = np.arange(32)
    exchange = bind(
        schedule("all_to_all", "direct", nranks=16), case.exchange_mib * 2**20 // 16, "uint8", protocol=simple
    )
    ring = schedule("reduce_scatter", "ring", nranks=32, channels=8, box=8)
    reduction = bind(ring, case.reduce_mib * 2**20 // 32, "uint8", protocol=simple)
    number = -1
    for _ in range(LAYERS):
        if "c" in parts:
            yield Compute(everyone, round(case.compute_ms * 1e12))
            number += 1
        if "e" in parts:
            yield Call(exchange, everyone.reshape(2, 16), "compute")
            number += 1
        if "r" in parts:
            yield Call(reduction, everyone[None], "reduce", (number,) if parts != "r" else ())
            number += 1
