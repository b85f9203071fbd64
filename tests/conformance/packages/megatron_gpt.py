"""megatron-core: a GPT with tensor, pipeline and expert parallelism of 2, one after the other; on four
ranks also tensor and pipeline parallelism at once, and on eight all three, with data parallelism.
"""

from __future__ import annotations

import on_cpu
import torch
import torch.distributed as dist

GPU = torch.cuda.is_available()
LENGTH, VOCABULARY, BATCH = 8, 32, 2


def forward_step(batches, model):
    tokens = next(batches)
    positions = torch.arange(LENGTH, device="cuda")[None].expand(BATCH, -1)
    mask = torch.ones(1, 1, LENGTH, LENGTH, device="cuda").triu(1).bool()
    losses = model(tokens, positions, mask, labels=tokens.roll(-1, 1))

    def mean(values):
        loss = values.float().mean()
        return loss, {"loss": loss.detach()}

    return losses, mean


class SequenceNorm(torch.nn.LayerNorm):
    """A norm of parts of sequences, which megatron-core has only with NVIDIA's kernels: gradients
    of its parameters are summed over the parts.
    """

    def __init__(self, config, hidden_size, eps=1e-5, **_):
        super().__init__(hidden_size, eps)
        for each in self.parameters():
            each.sequence_parallel = config.sequence_parallel


def train(tensor, pipeline, expert):
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

    # Without Transformer Engine, version 0.16.1 uses this name before it is bound.
    moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
    sizes = {
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": pipeline,
        "expert_model_parallel_size": expert,
        # Experts in parts would gather unequal numbers of tokens, which gloo refuses.
        "expert_tensor_parallel_size": tensor if expert == 1 else 1,
    }
    parallel_state.initialize_model_parallel(**sizes)
    model_parallel_cuda_manual_seed(1)
    torch.manual_seed(1)
    together = tensor * pipeline * expert == 8
    experts = (
        {"num_moe_experts": 4, "moe_router_topk": 2, "moe_token_dispatcher_type": "alltoall"}
        if expert > 1
        else {}
    )
    config = TransformerConfig(
        num_layers=2,
        hidden_size=16,
        num_attention_heads=4,
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
        add_bias_linear=expert == 1,
        sequence_parallel=together,
        hidden_dropout=0.1,
        **sizes,
        **experts,
    )
    layers = get_gpt_layer_local_spec(num_experts=config.num_moe_experts)
    if together:
        parts = layers.submodules
        parts.input_layernorm = parts.pre_mlp_layernorm = SequenceNorm
        layers = TransformerBlockSubmodules([layers] * (2 // pipeline), SequenceNorm)
    model = GPTModel(
        config,
        layers,
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    ).to("cuda")
    if together:
        config.finalize_model_grads_func = finalize_model_grads
        model = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.Generator().manual_seed(5)
    shape, losses = (BATCH, LENGTH), []
    for _ in range(3):
        optimizer.zero_grad()
        batches = [torch.randint(VOCABULARY, shape, generator=tokens).cuda() for _ in range(2)]
        reports = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iter(batches),
            model=[model],
            num_microbatches=2,
            seq_length=LENGTH,
            micro_batch_size=BATCH,
            forward_only=False,
        )
        optimizer.step()
        losses += [float(report["loss"]) for report in reports]
    parallel_state.destroy_model_parallel()
    return [*losses, sum(float(each.detach().double().sum()) for each in model.parameters())]


def main():
    if not GPU:
        on_cpu.prepare()
    dist.init_process_group("nccl" if GPU else "gloo")
    if GPU:
        torch.cuda.set_device(dist.get_rank())
    numbers = [*train(2, 1, 1), *train(1, 2, 1), *train(1, 1, 2)]
    if dist.get_world_size() == 4:
        numbers += train(2, 2, 1)
    if dist.get_world_size() == 8:
        numbers = train(2, 2, 2)
    print(dist.get_rank(), *numbers, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
