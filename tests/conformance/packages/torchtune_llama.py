"""Pieces of torchtune's recipe for full finetuning: a Llama decoder on the meta device, sharded by
``training.shard_model``, loaded from a full state dict, trained with LinearCrossEntropyLoss, and
gathered again; with tensor parallelism of 2 on four ranks.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import parallelize_module
from torchtune import training
from torchtune.models.llama3 import base_llama_tp_plan, llama3
from torchtune.modules.loss import LinearCrossEntropyLoss
from torchtune.training.lr_schedulers import get_cosine_schedule_with_warmup

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", int(torch.cuda.current_device())) if GPU else torch.device("cpu")
SIZES = {
    "vocab_size": 64,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "embed_dim": 32,
    "max_seq_len": 16,
    "intermediate_dim": 64,
}


def main():
    dist.init_process_group("nccl" if GPU else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if GPU:
        torch.cuda.set_device(rank)
    device = torch.device("cuda", rank) if GPU else DEVICE
    torch.manual_seed(0)
    weights = llama3(**SIZES).state_dict()
    with training.set_default_dtype(torch.float32), torch.device("meta"):
        model = llama3(**SIZES)
    dims = training.ParallelDims(
        dp_replicate=1, dp_shard=-1, tp=2 if size > 2 else 1, cp=1, world_size=size
    )
    mesh = dims.build_mesh(device_type=device.type)
    if dims.tp_enabled:
        model = training.prepare_mha_for_tp(model, mesh["tp"])
        parallelize_module(model, mesh["tp"], base_llama_tp_plan(model))
    match = functools.partial(training.get_shard_conditions, names_to_match=["tok_embeddings"])
    training.shard_model(model, [match], cpu_offload=False, dp_mesh=mesh["dp_shard_cp"])
    with training.set_default_dtype(torch.float32), device:
        for module in model.modules():
            if hasattr(module, "rope_init"):
                module.rope_init()
    training.load_from_full_model_state_dict(model, weights, device, strict=True)
    training.validate_no_params_on_meta_device(model)
    loss_of = LinearCrossEntropyLoss(num_output_chunks=4, tp_enabled=dims.tp_enabled)
    loss_of.set_model_output(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 2, 6)
    tokens = torch.Generator().manual_seed(7 + mesh["dp_shard_cp"].get_local_rank())
    losses = []
    for _ in range(5):
        rows = torch.randint(0, 64, (2, 16), generator=tokens).to(device)
        labels = rows.roll(-1, 1)
        count = torch.tensor(float(labels.numel()), device=device)
        loss = loss_of(model(rows), labels) * count
        dist.all_reduce(count, group=mesh["dp_shard_cp"].get_group())
        loss.backward()
        training.scale_grads_(model.parameters(), mesh["dp_shard_cp"].size() / count)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        full_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        losses += [float(loss.detach()), float(full_norm)]
    full = training.gather_cpu_state_dict(model, rank == 0, device=device)
    print(rank, *losses, sum(float(value.double().sum()) for value in full.values()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
