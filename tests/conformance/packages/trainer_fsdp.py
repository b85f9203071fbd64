"""The Trainer of transformers with FSDP of version 1 or 2 (``FSDP_VERSION``), on a small Llama model.

On gloo it does not shard, as accelerate shards on accelerators only: what is equal are losses,
norms of gradients and the sum of all parameters.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

GPU = torch.cuda.is_available()


def train(folder, version):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    tokens = torch.Generator().manual_seed(0)
    rows = [torch.randint(64, (12,), generator=tokens) for _ in range(32)]
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=4,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=not GPU,
        disable_tqdm=True,
        fsdp="full_shard auto_wrap",
        fsdp_config={
            "version": version,
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
        },
    )
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=data)
    trainer.train()
    history = [line for line in trainer.state.log_history if "loss" in line]
    losses, norms = ([line[name] for line in history] for name in ("loss", "grad_norm"))
    parameters = list(trainer.model_wrapped.parameters())
    if GPU:
        parts = sum(each.numel() for each in map(local, parameters))
        assert parts < LlamaForCausalLM(config).num_parameters(), "each rank holds a part"
    total = torch.tensor(sum(float(local(each).double().sum()) for each in parameters))
    if GPU:
        dist.all_reduce(total := total.cuda())
    return [*losses, *norms, total.item()]


def local(parameter):
    parameter = parameter.detach()
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def main():
    numbers = train(sys.argv[1], int(os.environ.get("FSDP_VERSION", "2")))
    print(f"\n{dist.get_rank()}", *numbers, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
