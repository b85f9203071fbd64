"""Two checks of shared networks: measured expert dispatch and combine, and two axes on one NIC
against formulas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simcoll.algorithms import schedule
from simcoll.arrays import Ints
from simcoll.binding import bind
from simcoll.core.protocol import nccl
from simcoll.emulator.programs import Call, Compute, Operation, Program, Send, emulate_program
from simcoll.topology import load_topology
from simcoll.training.pipeline import PipelineTurn, stage_order
from simcoll.workload.mesh import Mesh

Tokens = Ints

__all__ = [
    "CONTENTION",
    "DEEPEP",
    "PLACED",
    "Contention",
    "contention",
    "exchange_us",
    "placement_ms",
]

DEEPEP = {8: (163, 318), 32: (182, 350), 128: (192, 369)}
"""Microseconds of dispatch and combine by number of GPUs: DeepEP's README at commit 3b1045d,
low-latency kernels, H800 with ConnectX-7 of 400 Gbit/s, 128 tokens of 7168 a GPU, 8 of 256 experts,
dispatch in FP8, combine in BF16.
"""
TOKENS = 128
WIDTH = 7168
EXPERTS = 256
CHOSEN = 8
DRAWS = 5
NIC_GBPS = 47
"""Of 50: NVIDIA in nccl-tests issues 212 and 290."""
LATENCY_US = 3.7
"""Between leaves: DeepSeek-V3 hardware paper (ISCA 2025), table 5."""
MESSAGE = (WIDTH + WIDTH // 128 * 4 + 16, 2 * WIDTH)
"""Bytes of a token: 8-bit values with a scale for every 128 and a header; 16-bit values."""


def exchange_us(gpus: int, phase: int, *, balanced: bool = False) -> float:
    """Microseconds of DeepEP's dispatch (0) or combine (1): the time of the most loaded NIC, plus
    network latency.

    Its kernels use the NIC for all traffic, including a GPU's to itself. Tokens choose experts at
    random (mean of a few draws); ``balanced``: all pairs of GPUs exchange equally.
    """
    draws = _draws(gpus, balanced=balanced)
    loads = [max(int(rows.sum(axis=0).max()), int(rows.sum(axis=1).max())) for rows in draws]
    return LATENCY_US + float(np.mean(loads)) * MESSAGE[phase] / (1000 * NIC_GBPS)


def _draws(gpus: int, *, balanced: bool) -> list[Tokens]:
    if balanced:
        return [np.full((gpus, gpus), TOKENS * CHOSEN // gpus)]
    return [_routes(gpus, seed) for seed in range(DRAWS)]


def _routes(gpus: int, seed: int) -> Tokens:
    """Tokens from each GPU to each."""
    random = np.random.default_rng(seed)
    chosen = np.argsort(random.random((gpus, TOKENS, EXPERTS)), axis=2)[:, :, :CHOSEN] // (
        EXPERTS // gpus
    )
    return np.stack([np.bincount(experts.ravel(), minlength=gpus) for experts in chosen])


@dataclass(frozen=True, slots=True)
class Contention:
    """Backward passes of 8 layers with experts on 4 nodes of 8 H100, in milliseconds and MiB.

    Attributes
    ----------
    compute_ms, exchange_mib, reduce_mib
        Per layer: computation, a blocking all_to_all of 16 ranks, and a reduce_scatter of 32 ranks
        that overlaps the next layers.
    """

    compute_ms: float
    exchange_mib: int
    reduce_mib: int


CONTENTION = (
    Contention(3, 64, 128),
    Contention(3, 256, 1024),
    Contention(3, 448, 1400),
    Contention(1.5, 256, 1024),
    Contention(1.5, 256, 1400),
)
LAYERS = 8


def contention(case: Contention) -> tuple[float, float, float]:
    """Milliseconds of a case: maximum of the two streams, their sum, and emulated."""
    parts = {part: _layers(case, part) for part in ("ce", "r", "c", "e")}
    return max(parts["ce"], parts["r"]), parts["c"] + parts["e"] + parts["r"], _layers(case, "cer")


def _layers(case: Contention, parts: str) -> float:
    """The layers with a subset of computation, exchange and reduction."""
    topology = load_topology("superpod-h100", nodes=4)
    program = Program(topology.nranks, list(_operations(case, parts)))
    return emulate_program(program, topology, data="none").time_fs / 1e12


def _operations(case: Contention, parts: str) -> Iterator[Operation]:
    simple = nccl("Simple", generation="hopper")
    everyone = np.arange(32)
    exchange = bind(
        schedule("all_to_all", "direct", nranks=16),
        case.exchange_mib * 2**20 // 16,
        "uint8",
        protocol=simple,
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


PLACED = {
    (1, "tp-dp-pp"): "1:1",
    (4, "tp-dp-pp"): "4:1, data parallelism first",
    (4, "tp-pp-dp"): "4:1, pipeline first",
}
"""Oversubscription of the spine and order of the axes of :func:`placement_ms`."""
STAGES, MICRO_BATCHES, BUCKETS = 4, 8, 4
FORWARD_MS, BACKWARD_MS = 20, 40
ACTIVATIONS, GRADIENTS, PARAMETERS = 32 * 2**20, 4 * 10**9, 2 * 10**9


def placement_ms(
    oversubscription: int, order: str, *, sends: bool = True, data: bool = True
) -> float:
    """Milliseconds of a step on 256 H100, four nodes a leaf: tensor parallelism of 8, 4 stages,
    data parallelism of 8.

    Every pass has a fixed time; gradients are reduced in four parts during the last backward pass,
    parameters gathered at the end. ``sends``, ``data``: whether messages between stages and
    collectives of data parallelism have bytes.
    """
    topology = load_topology(
        "superpod-h100",
        nodes=32,
        network__oversubscription=oversubscription,
        network__boxes_per_leaf=4,
    )
    sizes = {"tp": 8, "dp": 8, "pp": STAGES, "cp": 1}
    mesh = Mesh(tuple((axis, sizes[axis]) for axis in order.split("-")))
    traffic = _PlacedJob(list(mesh.groups("tp", "dp")), mesh.groups("dp"), sends=sends, data=data)
    return (
        emulate_program(
            Program(topology.nranks, traffic.operations()), topology, data="none"
        ).time_fs
        / 1e12
    )


class _PlacedJob:
    """The operations of a step with a fixed time for every pass."""

    def __init__(self, stages: list[Tokens], groups: Tokens, *, sends: bool, data: bool) -> None:
        self.stages, self.sends, self.data = stages, sends, data
        self.groups = [groups[np.isin(groups[:, 0], stage)] for stage in stages]
        self.simple = nccl("Simple", generation="hopper")
        self.made: list[Operation] = []
        self.arrived: dict[tuple[str, int, int], int] = {}

    def add(self, operation: Operation) -> int:
        self.made.append(operation)
        return len(self.made) - 1

    def operations(self) -> list[Operation]:
        orders = [stage_order(STAGES, 1, MICRO_BATCHES, stage) for stage in range(STAGES)]
        places = [0] * STAGES
        while any(place < len(order) for place, order in zip(places, orders, strict=True)):
            for stage, order in enumerate(orders):
                while places[stage] < len(order) and self.ready(stage, order[places[stage]]):
                    self.turn(stage, order[places[stage]])
                    places[stage] += 1
        return self.made

    def ready(self, stage: int, turn: PipelineTurn) -> bool:
        begins = stage == (0 if turn.kind == "F" else STAGES - 1)
        return begins or (turn.kind, turn.micro, stage) in self.arrived

    def turn(self, stage: int, turn: PipelineTurn) -> None:
        came = self.arrived.get((turn.kind, turn.micro, stage))
        dependencies = () if came is None else (came,)
        last = turn.kind == "B" and turn.micro == MICRO_BATCHES - 1
        parts = BUCKETS if last else 1
        duration_ms = FORWARD_MS if turn.kind == "F" else BACKWARD_MS
        last_operation = 0
        for _ in range(parts):
            last_operation = self.add(
                Compute(self.stages[stage], duration_ms * 10**12 // parts, after=dependencies)
            )
            dependencies = ()
            if last:
                self.collective("reduce_scatter", stage, GRADIENTS // BUCKETS, (last_operation,))
        if last:
            self.collective("all_gather", stage, PARAMETERS)
        target = stage + (1 if turn.kind == "F" else -1)
        if 0 <= target < STAGES:
            pairs = np.stack([self.stages[stage], self.stages[target]], axis=1)
            size = ACTIVATIONS if self.sends else 2
            stream = f"send {turn.kind} {stage % 2}"  # a stream has one direction on each stage
            self.arrived[turn.kind, turn.micro, target] = self.add(
                Send(pairs, size, stream, (last_operation,), self.simple)
            )

    def collective(
        self, kind: str, stage: int, size_bytes: int, dependencies: tuple[int, ...] = ()
    ) -> None:
        groups = self.groups[stage]
        chunk_bytes = size_bytes // groups.shape[1] // 2 * 2 if self.data else 2
        plan = bind(
            schedule(kind, "ring", nranks=groups.shape[1]),
            chunk_bytes,
            "uint8",
            protocol=self.simple,
        )
        self.add(Call(plan, groups, "data", dependencies))
