"""Memory of steps against published peaks, runs, and runs that ran out of it."""

from __future__ import annotations

import numpy as np
import pytest

from simcoll.errors import ConfigError
from simcoll.planning.measured.step_rows import published_memory, published_steps, read_steps
from simcoll.training.design import design_from
from simcoll.training.memory import activation_bytes, memory_by_stage

TABLES = (
    "automodel-2025",
    "bloom",
    "deepseek-v3-paper",
    "dgxc-2025",
    "dgxc-2502",
    "korthikanti",
    "llama3-paper",
    "megatron-bridge-2025",
    "megatron-bridge-2026",
    "megatron-bridge-cards",
    "megatron-lm-2026",
    "megatron-table1",
    "mlperf-405b-h100",
    "mlperf-gpt3-h100",
    "mpt-a100-40",
    "mpt-a100-80",
    "mpt-h100",
    "mpt-h100-fp8",
    "nemo-2024",
    "torchtitan",
    "vtrain-multi",
    "vtrain-single",
)


def peak(design) -> int:
    return max(stage.total for stage in memory_by_stage(design))


def design_with(model=None, topology=None, **parallel):
    sizes = {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 64, "dtype": "bf16"}
    return design_from(
        {
            "model": {**sizes, **(model or {})},
            "topology": topology or {"name": "dgx-h100"},
            "parallel": {"recompute": "none", **parallel},
        }
    )


@pytest.mark.slow
def test_published_steps_that_ran_fit():
    rows = [row for name in TABLES for row in published_steps(name).rows]
    unfit = [row for row in rows if peak(row.design) > row.design.memory_limit]
    assert len(rows) == 1536
    assert len(unfit) <= 3


def test_published_peaks_are_predicted():
    rows = [*published_steps("torchtitan").rows, *published_memory("torchtitan-405b").rows]
    rows = [row for row in rows if row.peak_gib]
    errors = [peak(row.design) / 2**30 / row.peak_gib - 1 for row in rows]
    assert len(rows) == 20
    assert np.median(np.abs(errors)) < 0.1
    assert max(np.abs(errors)) < 0.27


def test_steps_that_ran_out_of_memory_do_not_fit():
    # torchtitan 7e76ecb, docs/performance.md: FSDP alone on 128 H100 of 96 GB.
    fsdp = design_with(
        {"name": "llama-3.1-405b", "global_batch": 256},
        {"name": "superpod-h100", "nodes": 16},
        shard="parameters",
        recompute="full",
        micro_batch=2,
        saved="bf16",
        loss="plain",
    )
    assert peak(fsdp) > 96e9
    # Alibaba Cloud's benchmarks of Pai-Megatron-Patch: GPT of 1.3 billion parameters with plain data
    # parallelism on GPUs of 32 GB, sequences of 1,024; recomputation is not stated, so the least.
    ddp = design_from(
        {
            "model": {
                "layers": 24,
                "hidden": 2048,
                "heads": 32,
                "vocabulary": 50304,
                "positions": 1024,
                "sequence": 1024,
                "global_batch": 32,
                "dtype": "fp16",
            },
            "topology": {"name": "dgx-1v"},
            "parallel": {"shard": "none", "micro_batch": 4, "attention": "plain"},
        }
    )
    assert peak(ddp) > ddp.memory_limit


def test_configurations_of_bloom_that_ran_out_of_memory_do_not_fit():
    """Of three two do not fit, whatever the micro-batch. The third has less than a configuration
    that ran, with 67 GB in use, so that it is not decided by its size.
    """
    full = published_memory("bloom-oom").rows
    assert [peak(row.design) > row.design.memory_limit for row in full] == [True, True, False]
    assert peak(full[0].design) == peak(full[1].design)
    ran = [row for row in published_steps("bloom").rows if row.design.model.layers == 94]
    assert [row.peak_gib for row in ran] == [67]
    assert peak(full[2].design) < peak(ran[0].design)


def test_gradients_of_deepspeed_are_copied():
    """DeepSpeed 56c5223: gradients of 16 bits stay (bf16_optimizer.py), and those of 32 are reduced
    in a copy of 16 bits when no activations are there (allreduce_bucket in engine.py).
    """
    keys = {"gradients": "fp32", "recompute": "full", "micro_batch": 1}
    plain, copied = (
        memory_by_stage(design_with(bf16_optimizer=each, **keys))[0] for each in (False, True)
    )
    parameters = plain.weights // 2
    assert copied.gradients - plain.gradients == 2 * parameters
    assert copied.activations == plain.activations
    assert copied.buffers + copied.activations == 2 * parameters


def test_inputs_of_8_bit_products_are_saved_in_8_bits():
    sixteen, eight = design_with(), design_with({"dtype": "fp8"})
    rows, hidden, inner = 8192, 4096, 14336
    # Two norms' outputs and the activation function's lose a byte; attention's is cast besides.
    saved = rows * (2 * hidden + inner - hidden)
    assert activation_bytes(sixteen, moe=False) - activation_bytes(eight, moe=False) == saved
    kept = design_with({"dtype": "fp8"}, saved="bf16")
    assert activation_bytes(kept, moe=False) == activation_bytes(sixteen, moe=False)


def test_modules_that_are_recomputed_are_not_stored():
    whole = design_with()
    rows, hidden, inner = 8192, 4096, 14336
    norms = design_with(recompute_modules=["layernorm"])
    assert activation_bytes(whole, moe=False) - activation_bytes(norms, moe=False) == (
        4 * rows * hidden
    )
    mlp = design_with(recompute_modules=["mlp"])
    assert activation_bytes(whole, moe=False) - activation_bytes(mlp, moe=False) == 6 * rows * inner
    with pytest.raises(ConfigError, match="did you mean 'mlp'"):
        design_with(recompute_modules=["mlpp"])
    with pytest.raises(ConfigError, match="recomputes them already"):
        design_with(recompute="full", recompute_modules=["mlp"])


def test_offloaded_layers_leave_the_gpu():
    whole = memory_by_stage(design_with())[0]
    half = memory_by_stage(design_with(offload_layers=16))[0]
    layers = 32 * activation_bytes(design_with(), moe=False)
    assert whole.total - half.total == half.host == layers // 2


def test_zero_3_with_a_pipeline_keeps_what_it_gathered():
    """As PyTorch's FSDP2 does, which would gather for each micro-batch otherwise."""
    parts = {
        reshard: memory_by_stage(design_with(pp=2, virtual=1, shard="parameters", **reshard_key))[0]
        for reshard, reshard_key in ((None, {}), (True, {"reshard": True}))
    }
    assert parts[None].weights == 4 * parts[True].weights
    assert parts[None].gradients == 4 * parts[True].gradients
    assert parts[None].optimizer == parts[True].optimizer


def test_the_fullest_moment_of_interleaved_chunks_of_different_size():
    """Llama 405B with embedding and head as layers: the first chunk of the first stage has one layer
    less than the others; by hand, 15 + 16 micro-batches of it are in flight, and 16 of the others.
    """
    design = design_with(
        {"name": "llama-3.1-405b", "global_batch": 512},
        {"name": "gb200-nvl72", "nodes": 16, "gpus": 64},
        tp=4,
        pp=16,
        virtual=4,
        split="embeddings",
    )
    layer = activation_bytes(design, moe=False)
    logits_and_input = 0  # those are on the last stage
    assert memory_by_stage(design)[0].activations == layer * (31 + 3 * 16 * 2) + logits_and_input


def test_a_peak_that_makes_no_sense_is_refused(tmp_path):
    base = tmp_path / "base.toml"
    base.write_text(
        "[model]\nname = 'llama-3.1-8b'\nsequence = 1024\nglobal_batch = 8\n"
        "[topology]\nname = 'dgx-h100'\n"
    )
    rows = tmp_path / "rows.csv"
    for text, said in (
        ("time_ms,peak_gib\n1,x\n", "peak_gib: expected GiB above 0 or nothing, got 'x'"),
        ("time_ms,peak_gib\n1,-1\n", "peak_gib: expected GiB"),
    ):
        rows.write_text(text)
        with pytest.raises(ConfigError, match=said):
            read_steps(base, rows)
    rows.write_text("fold\nx\n")
    with pytest.raises(ConfigError, match="expected a column peak_gib"):
        read_steps(base, rows, timed=False)


def test_gathered_inputs_and_eager_activations_by_hand():
    def layer(**changes):
        made = design_from(
            {
                "model": {"layers": 24, "hidden": 2048, "heads": 32, "ffn": 4096, "vocabulary": 50257,
                          "gated": True, "sequence": 4096, "global_batch": 64, "dtype": "bf16"},
                "topology": {"name": "dgx-h100"},
                "parallel": {"tp": 4, "recompute": "none", **changes},
            }
        )  # fmt: skip
        return activation_bytes(made, moe=False)

    row = 2048 * 2
    # Bytes of a token: two inputs of norms and two outputs, a fourth on each rank; queries to
    # values, and attention; input of the activation function and of the product after it.
    plain = 4 * row // 4 + 4 * row // 4 + 3 * 2 * row // 4 + 4 * 32 // 4
    assert layer() == 4096 * plain
    # Both outputs of norms whole, not a fourth.
    assert layer(gathers="saved") == 4096 * (plain + 2 * row * 3 // 4)
    # The activation of the gate, 4,096 wide.
    assert layer(kernels="eager") == 4096 * (plain + 2 * row // 4)
    alone = {"gathers": "saved", "sequence_parallel": False}
    assert layer(**alone) == layer(sequence_parallel=False)


def test_nanotron_s_peaks_are_within_an_eighth():
    errors = [
        max(stage.total for stage in memory_by_stage(row.design)) / 2**30 / row.peak_gib - 1
        for row in published_memory("nanotron").rows
    ]
    assert np.median(np.abs(errors)) < 0.03
    assert max(map(abs, errors)) < 0.15
