"""Time the same designs as PyTorch programs and as designs of ``simcoll step``.

``python benchmarks/two_routes.py [DESIGN ...]``: a Llama-shaped model of a few layers on H100, with
fake tensors, one program for all ranks but those of a pipeline. Prints both times of a step and
their difference, and the CPU seconds of the program.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field, replace
from time import process_time
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

import simcoll.torch
from simcoll.training.design import design_from
from simcoll.training.step_calibration import UNCALIBRATED
from simcoll.training.steps import step

WIDTH, HIDDEN, HEADS, GROUPS, HEAD, VOCABULARY = 4096, 14336, 32, 8, 128, 32000


@dataclass(frozen=True)
class Case:
    """A design: sizes of its parallelism, and of its model and batch."""

    topology: str = "dgx-h100"
    nodes: int = 1
    fsdp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    micro_batches: int = 1
    layers: int = 4
    sequence: int = 8192
    experts: int = 0
    batch: int = 1
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """All ranks; those of experts are among those of the data."""
        return self.fsdp * self.tp * self.pp


CASES = {
    "fsdp 8": Case(fsdp=8, batch=4),
    "fsdp 64": Case(topology="superpod-h100", nodes=8, fsdp=64, batch=4),
    "fsdp 8, 2 micro-batches": Case(fsdp=8, micro_batches=2, batch=4, layers=2),
    "tp 8": Case(tp=8),
    "tp 8, sequence parallel": Case(tp=8, sequence_parallel=True),
    "fsdp 2, tp 4": Case(fsdp=2, tp=4, batch=4),
    "pp 2, 8 micro-batches": Case(pp=2, micro_batches=8),
    "ep 8 of 8 experts": Case(fsdp=8, ep=8, experts=8, layers=2, batch=4),
}


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, GROUPS * HEAD, bias=False) for _ in range(2))

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Perceptron(nn.Module):
    """A gated multilayer perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Two of some experts for each token, one expert a rank."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts, bias=False)
        self.gate, self.up = (nn.Parameter(torch.empty(1, WIDTH, HIDDEN)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(1, HIDDEN, WIDTH))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).topk(2)
        order = chosen.flatten().argsort() // 2
        sent = _exchange(tokens[order])
        end = torch.full((1,), len(sent), dtype=torch.int32)
        grouped = functional.grouped_mm
        gate, up, down = (part.bfloat16() for part in (self.gate, self.up, self.down))
        inner = functional.silu(grouped(sent, gate, offs=end)) * grouped(sent, up, offs=end)
        back = _exchange(grouped(inner, down, offs=end))
        back = back * weights.flatten()[:, None]
        return torch.zeros_like(tokens).index_add(0, order, back).view_as(x)


def _exchange(rows):
    return collectives.all_to_all_single_autograd(rows, None, None, dist.group.WORLD)


class Block(nn.Module):
    """A layer."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.RMSNorm(WIDTH) for _ in range(2))
        self.attention = Attention()
        self.inner = Experts(experts) if experts else Perceptron()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.inner(self.norm2(x))


class Model(nn.Module):
    """Some layers, with the embedding and the head where a stage has them."""

    def __init__(self, layers: int, experts: int = 0, *, first: bool = True, last: bool = True):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.blocks = nn.ModuleList(Block(experts) for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH) if last else None
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if last else None

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits, tokens):
    """The loss, in 32 bits."""
    return functional.cross_entropy(logits.flatten(0, -2).float(), tokens.flatten())


def split_by_tensor(model: Model, mesh, *, sequence: bool) -> None:
    """Split the matrices of each layer over the ranks of a mesh."""
    for block in model.blocks:
        out = RowwiseParallel(output_layouts=Shard(1)) if sequence else RowwiseParallel()
        plan: dict[str, Any] = {
            **{f"attention.{part}": ColwiseParallel() for part in "qkv"},
            **{f"inner.{part}": ColwiseParallel() for part in ("gate", "up")},
            "attention.o": out,
            "inner.down": out,
        }
        whole = PrepareModuleInput(
            input_layouts=(Shard(1) if sequence else Replicate(),),
            desired_input_layouts=(Replicate(),),
        )
        plan |= {"attention": whole, "inner": whole}
        if sequence:
            plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
        parallelize_module(block, mesh, plan)
    ends: dict[str, Any] = {
        "embedding": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(1) if sequence else Replicate()
        ),
        "head": ColwiseParallel(
            input_layouts=Shard(1) if sequence else Replicate(),
            output_layouts=Shard(-1),
            use_local_output=False,
        ),
    }
    if sequence:
        ends["norm"] = SequenceParallel()
    parallelize_module(model, mesh, ends)


def program(rank: int, _world_size: int, case: Case) -> float:
    """Seconds of the second step."""
    dist.init_process_group("simcoll")
    sizes = (case.pp, case.fsdp, case.tp)
    with FakeTensorMode():
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("pp", "shard", "tensor"))
        stage = rank // (case.fsdp * case.tp)
        ends = {"first": stage == 0, "last": stage == case.pp - 1}
        torch.set_default_dtype(torch.float32 if case.fsdp > 1 else torch.bfloat16)
        model = Model(case.layers // case.pp, case.experts, **ends)
        torch.set_default_dtype(torch.float32)
        if case.tp > 1:
            split_by_tensor(model, mesh["tensor"], sequence=case.sequence_parallel)
        if case.fsdp > 1:
            shard(model, mesh["shard"])
        optimizers = [
            torch.optim.AdamW(parameters, fused=True)
            for parameters in (
                [part for part in model.parameters() if isinstance(part, DTensor)],
                [part for part in model.parameters() if not isinstance(part, DTensor)],
            )
            if parameters
        ]
        run = pipeline_step(model, mesh, case) if case.pp > 1 else plain_step(model, case)
        for number in range(2):
            torch.cpu.synchronize()
            if number:
                begin = simcoll.torch.emulated_time()
            run()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        torch.cpu.synchronize()
        return simcoll.torch.emulated_time() - begin


def shard(model: Model, mesh) -> None:
    """Shard parameters, but those of experts that are spread over the same ranks."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*model.blocks, model):
        own = {
            parameter
            for part in module.modules()
            if isinstance(part, Experts)
            for parameter in (part.gate, part.up, part.down)
        }
        fully_shard(module, mesh=mesh, mp_policy=policy, ignored_params=own or None)


def plain_step(model: Model, case: Case):
    """A forward and a backward pass for each micro-batch."""

    def run() -> None:
        for _ in range(case.micro_batches):
            tokens = torch.zeros(case.batch, case.sequence, dtype=torch.int64)
            with loss_parallel() if case.tp > 1 else contextlib.nullcontext():
                loss_of(model(tokens), tokens).backward()

    return run


def pipeline_step(model: Model, mesh, case: Case):
    """A step of one forward and one backward pass in turn."""
    group, place = mesh.get_group("pp"), mesh.get_local_rank("pp")
    stage = PipelineStage(model, place, case.pp, torch.device("cpu"), group=group)
    schedule = Schedule1F1B(stage, case.micro_batches, loss_fn=loss_of)

    def run() -> None:
        tokens = torch.zeros(case.micro_batches, case.sequence, dtype=torch.int64)
        first, last = place == 0, place == case.pp - 1
        schedule.step(*((tokens,) if first else ()), **({"target": tokens} if last else {}))

    return run


def design_of(case: Case) -> dict[str, Any]:
    """The design of ``simcoll step``."""
    model: dict[str, Any] = {
        "layers": case.layers,
        "hidden": WIDTH,
        "heads": HEADS,
        "kv_heads": GROUPS,
        "ffn": HIDDEN,
        "vocabulary": VOCABULARY,
        "sequence": case.sequence,
        "global_batch": case.fsdp * case.micro_batches * case.batch,
    }
    if case.experts:
        model |= {"experts": case.experts, "top_k": 2}
    parallel: dict[str, Any] = {
        "tp": case.tp,
        "pp": case.pp,
        "ep": case.ep,
        "micro_batch": case.batch,
        "sequence_parallel": case.sequence_parallel,
        "shard": "parameters" if case.fsdp > 1 else "none",
        "gradients": "fp32" if case.fsdp > 1 else "bf16",
        **case.extra,
    }
    topology = {"name": case.topology, "nodes": case.nodes}
    if case.ranks < 8:
        topology["gpus"] = case.ranks
    return {"model": model, "topology": topology, "parallel": parallel}


def eager_bytes(case: Case) -> float:
    """Bytes that the kernels of these programs move, over those of the fused kernels that a design
    assumes: the activation and its product are two kernels, gradients of a layer's five inputs are
    summed by a kernel each, and heads are not transposed.
    """
    inner, heads = HIDDEN / case.tp, (HEADS + 2 * GROUPS) * HEAD / case.tp
    rows = WIDTH / (case.tp if case.sequence_parallel else 1)
    fused = (10 + 16) * rows + (3 + 5) * inner + (2 + 2) * heads
    eager = (10 + 6 + 5 * 3) * rows + (5 + 9) * inner
    return eager / fused


def compare(name: str) -> tuple[float, float, Any]:
    """Seconds of a step as a program and as a design, and the run of the program."""
    case = CASES[name]
    unfused = msgspec.structs.replace(UNCALIBRATED, unfused=eager_bytes(case))
    design = replace(design_from(design_of(case)), calibration=unfused)
    designed = step(design, exposed=False).time_fs / 1e15
    run = simcoll.torch.spawn(
        program,
        case.ranks,
        args=(case,),
        alike=None if case.pp > 1 else "all",
        topology=design.topology,
        compute="roofline",
        gpu="h100",
        library="nccl",
        trace=True,
    )
    return max(run.returns), designed, run


def main(names: list[str]) -> None:
    """Compare some designs, or all."""
    for name in names or CASES:
        begin = process_time()
        programmed, designed, run = compare(name)
        difference = 100 * (programmed / designed - 1)
        print(
            f"{name:28} program {programmed * 1e3:7.1f} ms, design {designed * 1e3:7.1f} ms, "
            f"{difference:+5.1f} %; {process_time() - begin:.0f} CPU s {run.launches}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
