"""nanotron's parallel context and tensor-parallel layers, on four ranks: data x tensor of 2."""

from __future__ import annotations

import os

import on_cpu
import torch
import torch.distributed as dist

GPU = torch.cuda.is_available()


def main():
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # nanotron asks for it
    if not GPU:
        on_cpu.prepare()
        dist.init_process_group("gloo")  # else nanotron starts NCCL
    from nanotron.parallel.context import ParallelContext
    from nanotron.parallel.tensor_parallel.enum import TensorParallelLinearMode
    from nanotron.parallel.tensor_parallel.nn import (
        TensorParallelColumnLinear,
        TensorParallelRowLinear,
    )

    context = ParallelContext(
        tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=2
    )
    numbers = []
    for mode in (TensorParallelLinearMode.ALL_REDUCE, TensorParallelLinearMode.REDUCE_SCATTER):
        torch.manual_seed(0)
        up = TensorParallelColumnLinear(16, 32, pg=context.tp_pg, mode=mode, bias=False).cuda()
        down = TensorParallelRowLinear(32, 16, pg=context.tp_pg, mode=mode, bias=False).cuda()
        parameters = [*up.parameters(), *down.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        rows = torch.Generator().manual_seed(dist.get_rank(context.dp_pg))
        for _ in range(3):
            x = torch.randn(8, 16, generator=rows).cuda()
            if mode is TensorParallelLinearMode.REDUCE_SCATTER:
                x = x.chunk(2)[dist.get_rank(context.tp_pg)].contiguous()
            loss = (down(torch.tanh(up(x))) - x.sin()).square().mean()
            loss.backward()
            for parameter in parameters:
                dist.all_reduce(parameter.grad, group=context.dp_pg)
            optimizer.step()
            optimizer.zero_grad()
            numbers.append(loss.item())
        numbers.append(sum(float(each.detach().double().sum()) for each in parameters))
    groups = (context.tp_pg, context.dp_pg, context.pp_pg, context.cp_pg, context.mp_pg)
    places = [dist.get_rank(group) * 10 + dist.get_world_size(group) for group in groups]
    print(os.environ["RANK"], *numbers, *places, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
