"""GPUs, models, designs and memory; oracles are published numbers and formulas by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from simcoll.errors import ConfigError
from simcoll.training import transformer
from simcoll.training.design import design_from, load_design
from simcoll.training.gpu import DTYPE_BYTES, EVIDENCE, load_gpu, parse_gpu, shipped_gpus
from simcoll.training.hugging_face import model_from_hf
from simcoll.training.memory import activation_bytes, chunks_in_flight, memory_by_stage
from simcoll.training.parallel import Parallel, layers_of_chunks
from simcoll.training.transformer import Model, shipped_model, shipped_models

PLAIN = {
    "virtual": 1,
    "shard": "none",
    "sequence_parallel": False,
    "recompute": "none",
    "overlap_dp": False,
}
"""A step without anything that only a well-run job does."""


def document(**tables):
    whole = {
        "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 16, "dtype": "bf16"},
        "topology": {"name": "dgx-h100"},
        "gpu": {"name": "h100"},
        "parallel": PLAIN,
    }
    return {key: {**whole[key], **tables.get(key, {})} for key in whole} | {
        key: value for key, value in tables.items() if key not in whole
    }


# Parameters in 10**9, all and those that a token meets, as their publishers say.
PUBLISHED = {
    "llama-3.1-8b": (8.03, 8.03),  # Hugging Face, meta-llama/Llama-3.1-8B
    "llama-3.1-70b": (70.55, 70.55),  # Hugging Face, meta-llama/Llama-3.1-70B
    "llama-3.1-405b": (405.85, 405.85),  # Hugging Face, meta-llama/Llama-3.1-405B
    "gpt3-175b": (
        174.6,
        174.6,
        # Megatron-LM (arXiv 2104.04473), table 1, formula P = 12 L h^2 (1 + 13/(12h) + (V+s)/(12 L
        # h)).
    ),
    "megatron-22b": (22.0, 22.0),  # arXiv 2205.05198, table 3
    "megatron-530b": (529.6, 529.6),
    "megatron-1t": (1008.0, 1008.0),
    "mixtral-8x7b": (46.7, 12.9),  # arXiv 2401.04088: 47B and 13B
    "deepseek-v3": (671.0, 37.6),  # arXiv 2412.19437: 671B and 37B
    # arXiv 2508.10925: 116.83B, of which 5.13B without the input embedding
    "gpt-oss-120b": (116.83, 5.71),
    "kimi-k2.5": (1026.0, 32.86),  # model card: 1T and 32B
    "minimax-m2.5": (229.0, 11.03),  # model card: 229B in the files, and 10B with neither embedding
    "qwen3-32b": (32.8, 32.8),  # model card of Qwen3-32B
    "qwen3-235b": (235.0, 22.2),  # arXiv 2505.09388: 235B and 22B
}


@pytest.mark.parametrize("name", shipped_models())
def test_models_have_the_parameters_that_their_publishers_say(name):
    total, active = PUBLISHED[name]
    model = shipped_model(name)
    assert model.parameters / 1e9 == pytest.approx(total, rel=0.005)
    assert model.active_parameters / 1e9 == pytest.approx(active, rel=0.005)


@pytest.mark.parametrize("line", ["", "source = ''", "source = 2407.21783"])
def test_a_model_without_a_source_is_refused(line, tmp_path, monkeypatch):
    path = tmp_path / "nameless.toml"
    path.write_text(f"{line}\nlayers = 2\nhidden = 64\nheads = 2\nvocabulary = 100\n")
    monkeypatch.setattr(transformer, "shipped_files", lambda _: {"nameless": path})
    with pytest.raises(ConfigError, match=r"nameless.toml: \$.source: expected the publication"):
        shipped_models()


def test_hugging_face_configurations(tmp_path):
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "vocab_size": 129280,
        "num_key_value_heads": 128,
        "intermediate_size": 18432,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "tie_word_embeddings": False,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert model_from_hf(path).parameters == shipped_model("deepseek-v3").parameters
    oss = {
        "model_type": "gpt_oss",
        "num_hidden_layers": 36,
        "hidden_size": 2880,
        "num_attention_heads": 64,
        "vocab_size": 201088,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 2880,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "experts_per_token": 4,
        "tie_word_embeddings": False,
    }
    path.write_text(json.dumps(oss))
    # Its model card, table 1.
    assert model_from_hf(path).parameters / 1e9 == pytest.approx(116.83, rel=0.001)
    assert (model_from_hf(path).window, model_from_hf(path).windowed) == (0, 0)
    path.write_text(json.dumps(oss | {"sliding_window": 128}))
    assert (model_from_hf(path).window, model_from_hf(path).windowed) == (128, 18)
    assert model_from_hf(path).expert_bias
    assert model_from_hf(path).expert_clamp
    assert not model_from_hf(path).yarn
    for key, kind in (("rope_scaling", "rope_type"), ("rope_scaling", "type")):
        path.write_text(json.dumps(oss | {key: {kind: "yarn", "factor": 32.0}}))
        assert model_from_hf(path).yarn
    assert not model_from_hf(path).qk_norm
    path.write_text(json.dumps(oss | {"model_type": "qwen3_moe", "num_experts": 128}))
    assert model_from_hf(path).qk_norm
    for wrong, said in (
        ({"model_type": "lama"}, "did you mean 'llama'"),
        ({**oss, "moe_layer_freq": 2}, "moe_layer_freq 2: expected 1; give the sizes in TOML"),
        ({**oss, "mlp_only_layers": [3]}, r"mlp_only_layers \[3\]: only the first layers"),
        (
            {**oss, "layer_types": ["linear_attention"]},
            r"layer_types \['linear_attention'\]: only full_attention",
        ),
        (
            {**oss, "shared_expert_intermediate_size": 9},
            "expected a multiple of moe_intermediate_size 0",
        ),
        ({"model_type": "gemma3", "text_config": {}}, "save its text_config as a file of its own"),
        ({**oss, "vocab_size": None}, "missing: vocab_size"),
        ({"model_type": "llama", "hidden_size": 8}, "layers"),
        ({**config, "num_hidden_layers": "x"}, "layers"),
        ({**config, "num_key_value_heads": 7}, "kv_heads 7"),
    ):
        path.write_text(json.dumps(wrong))
        with pytest.raises(ConfigError, match=said):
            model_from_hf(path)
    path.write_text("[")
    with pytest.raises(ConfigError, match="not a JSON object"):
        model_from_hf(path)


# Parameters of the published weights, from the model cards, with the sizes of each configuration.
PUBLISHED_SIZES = {
    "gemma2": (
        9_241_705_984,
        {
            "hidden_size": 3584,
            "intermediate_size": 14336,
            "num_hidden_layers": 42,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "vocab_size": 256000,
            "sliding_window": 4096,
        },
    ),
    "qwen2_moe": (
        57_408_000_000,
        {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 151936,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2560,
            "decoder_sparse_step": 1,
            "shared_expert_intermediate_size": 20480,
            "use_sliding_window": False,
            "sliding_window": 65536,
            "mlp_only_layers": [],
        },
    ),
    "gpt_neox": (
        20_554_567_680,
        {
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "vocab_size": 50432,
        },
    ),
    "falcon": (
        41_303_293_952,
        {
            "hidden_size": 8192,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
            "vocab_size": 65024,
        },
    ),
    "bloom": (
        176_247_271_424,
        {"hidden_size": 14336, "n_layer": 70, "n_head": 112, "vocab_size": 250880},
    ),
    "mpt": (
        29_957_000_000,
        {"d_model": 7168, "n_layers": 48, "n_heads": 64, "expansion_ratio": 4, "vocab_size": 50432},
    ),
    "phi3": (
        13_960_238_080,
        {
            "hidden_size": 5120,
            "intermediate_size": 17920,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "num_key_value_heads": 10,
            "vocab_size": 32064,
            "sliding_window": 2047,
        },
    ),
    "dbrx": (
        131_596_523_520,
        {
            "d_model": 6144,
            "n_heads": 48,
            "n_layers": 40,
            "vocab_size": 100352,
            "attn_config": {"kv_n_heads": 8},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        },
    ),
}


@pytest.mark.parametrize("kind", PUBLISHED_SIZES)
def test_parameters_of_published_models(tmp_path, kind):
    total, config = PUBLISHED_SIZES[kind]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **config}))
    model = model_from_hf(path)
    assert model.parameters == pytest.approx(total, rel=2e-4)  # without biases
    windows = {"gemma2": (4096, 21), "phi3": (2047, 40)}
    assert (model.window, model.windowed) == windows.get(kind, (0, 0))


def test_layers_with_experts_between_layers_without(tmp_path):
    """As in Llama 4 Maverick: each second layer has experts, beside one that is shared, and the
    others a wider MLP.
    """
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "llama4_text",
                "hidden_size": 64,
                "intermediate_size": 128,
                "intermediate_size_mlp": 256,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "vocab_size": 100,
                "num_local_experts": 8,
                "num_experts_per_tok": 1,
                "interleave_moe_layer_step": 2,
                "attention_chunk_size": 32,
            }
        )
    )
    model = model_from_hf(path)
    assert [model.is_moe(layer) for layer in range(4)] == [False, True, False, True]
    attention, dense, expert = 4 * 64 * 64, 3 * 64 * 256, 3 * 64 * 128
    assert (
        model.parameters
        == 4 * (attention + 2 * 64) + 2 * dense + 2 * (9 * expert + 64 * 8) + 2 * 100 * 64 + 64
    )
    assert (model.window, model.windowed) == (32, 3)


def test_windows_leave_a_share_of_attention():
    model = Model(layers=4, hidden=64, heads=4, vocabulary=100, window=1024, windowed=2)
    pairs, seen = (sum(min(token + 1, most) for token in range(8192)) for most in (8192, 1024))
    assert model.attention_share(8192) == pytest.approx((pairs + seen) / (2 * pairs), rel=1e-3)
    assert model.attention_share(1024) == 1.0
    # More keys are those of a wider window, at most all.
    wider = Model(layers=4, hidden=64, heads=4, vocabulary=100, window=1536, windowed=2)
    assert model.attention_share(8192, more_keys=512) == wider.attention_share(8192)
    assert model.attention_share(1200, more_keys=512) == 1.0
    with pytest.raises(ConfigError, match="windowed 2: expected a window"):
        Model(layers=4, hidden=64, heads=4, vocabulary=100, windowed=2)


@pytest.mark.parametrize("name", shipped_gpus())
def test_gpus_have_a_source_for_every_number(name):
    gpu = load_gpu(name)
    assert gpu.sources.keys() == gpu.evidence.keys() == gpu.values.keys()
    assert set(gpu.evidence.values()) <= set(EVIDENCE)
    for dtype in DTYPE_BYTES:
        if f"peak.{dtype}" in gpu.values:
            assert 0.32 * gpu.peak(dtype) < gpu.gemm(dtype) <= gpu.peak(dtype)


def test_fp8_doubles_the_peak():
    assert load_gpu("h100").peak("fp8") == pytest.approx(
        2 * load_gpu("h100").peak("bf16"), rel=1e-3
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[peak]\nbf17 = { value = '1 TFLOPS', source = 'x' }",
            "unknown data type; did you mean 'bf16'",
        ),
        ("[peak]\nbf16 = { value = '1 TFLOP', source = 'x' }", "'989 TFLOPS'"),
        ("[peak]\nbf16 = '1 TFLOPS'", "expected { value = ..., source = '...' }"),
        ("[memory]\nsize = { value = '8 GB', source = 'x' }", "memory.bandwidth: missing"),
        ("[peek]\n", "did you mean 'peak'"),
        (
            "[peak]\nbf16 = { value = '1 TFLOPS', source = 'x', evidence = 'measurd' }",
            "peak.bf16: evidence: got 'measurd'; did you mean 'measured'",
        ),
    ],
)
def test_wrong_gpu_files(text, said):
    with pytest.raises(ConfigError) as caught:
        parse_gpu(text.encode(), "own.toml")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"parallel": {"tp": 3}}, "6 ranks, the cluster 8 GPUs; no dp fills it, since 3,"),
        (
            {"parallel": {"pp": 2, "split": [33, -1]}},
            "split: expected numbers of layers of at least 0, got -1",
        ),
        (
            {"parallel": {"tp": 2, "sequence_parallel": True}, "model": {"sequence": 8191}},
            "sequence 8191: not divisible by",
        ),
        ({"model": {"global_batch": 17}}, "the nearest that does is 16"),
        ({"parallel": {"pp": 8, "virtual": 3}}, "32 layers do not divide into 24 parts"),
        (
            {"parallel": {"pp": 8, "split": "embeddings"}},
            "32 layers, embedding and head do not divide into 8 parts (pp x virtual); they do with",
        ),
        (
            {"parallel": {"pp": 2, "tp": 4, "virtual": 5, "split": "embeddings"}},
            "the nearest number that does is 17,",
        ),
        (
            {"topology": {"name": "dgx-h100", "slow": {"3-1": 2}}},
            "slow: '3-1' is not a rank; expected a number, or a range such as '0-7'",
        ),
        (
            {"topology": {"name": "dgx-h100", "slow": {"0-3": 2, "2": 3}}},
            "slow: rank 2 has two factors, 2.0 by '0-3' and 3.0 by '2'; leave one out",
        ),
        ({"topology": {"name": "dgx-h100", "slow": {"0-8": 2}}}, "slow: 8 is not a rank"),
        ({"model": {"dtype": "fp4"}}, "no peak for dtype 'fp4'"),
        ({"parallel": {"tp": [1, 2]}}, "space of designs"),
        ({"parallel": {"ep": 8}}, "no experts"),
        ({"parallel": {"order": "tp-dp"}}, "each of tp, cp, dp, pp once"),
        ({"parallel": {"schedule": "1f1"}}, "did you mean '1f1b'"),
        ({"model": {"name": "llama"}}, "unknown model 'llama'"),
        ({"model": {"sequence": 0}}, "$.model.sequence"),
        ({"gpu": {"name": "h10"}}, "did you mean 'h100'"),
        (
            {"gpu": {"name": ""}, "topology": {"name": "dgx-a100"}},
            "topology 'dgx-a100' names 'a100'",
        ),
        ({"paralel": {}}, "did you mean 'parallel'"),
        ({"topology": {"slow": {"8": 1.1}}}, "slow: 8 is not a rank; expected 0 to 7"),
        ({"limits": {"memory": "80"}, "model": {"hf": "missing.json"}}, "no sizes beside it"),
        ({"parallel": {"virtual": 2}}, "needs schedule '1f1b' and pp above 1"),
        ({"parallel": {"pp": 8, "virtual": 2}, "model": {"global_batch": 12}}, "multiples of pp 8"),
    ],
)
def test_designs_that_make_no_sense(tables, said):
    with pytest.raises(ConfigError) as caught:
        design_from(document(**tables))
    assert said in str(caught.value)


def test_design_files(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(
        "[model]\nlayers = 2\nhidden = 64\nheads = 4\nvocabulary = 128\nsequence = 32\n"
        "global_batch = 8\n"
        "[topology]\nname = 'dgx-h100'\n[objective]\nmaximise = 'tokens_per_second'\n"
    )
    design = load_design(path)
    assert (design.title, design.gpu.name, design.mesh.size("dp"), design.tokens) == (
        "small",
        "h100",
        8,
        256,
    )
    assert design.hash == load_design(path).hash != design_from(document()).hash
    assert design.hash != replace(design, global_batch=16).hash
    path.write_text("[model\n")
    with pytest.raises(ConfigError, match=r"small.toml: not a TOML file"):
        load_design(path)


def test_layers_of_chunks():
    model = shipped_model("llama-3.1-405b")
    chunks = layers_of_chunks(model, Parallel(pp=8, virtual=8, split="embeddings"))
    flat = sorted(layer for stage in chunks for chunk in stage for layer in chunk)
    assert flat == list(range(126))
    assert [len(chunks[0][0]), len(chunks[1][0]), len(chunks[7][7])] == [1, 2, 1]
    assert layers_of_chunks(model, Parallel(pp=2, split=(100, 26)))[1] == (tuple(range(100, 126)),)
    with pytest.raises(ConfigError, match="they do with split = 'embeddings'"):
        layers_of_chunks(model, Parallel(pp=16))


GPT = {
    "hidden": 12288,
    "heads": 96,
    "layers": 96,
    "vocabulary": 51200,
    "gated": False,
    "dropout": True,
    "tied": True,
    "positions": 2048,
}


@pytest.mark.parametrize("micro_batch", [1, 2])
@pytest.mark.parametrize(
    ("options", "formula"),
    [
        # Korthikanti et al. (arXiv 2205.05198), table 2: bytes of activations per transformer
        # layer.
        ({}, lambda sbh, _t, ash: sbh * (34 + 5 * ash)),
        ({"tp": 8}, lambda sbh, t, ash: sbh * (10 + 24 / t + 5 * ash / t)),
        ({"tp": 8, "sequence_parallel": True}, lambda sbh, t, ash: sbh / t * (34 + 5 * ash)),
        ({"tp": 8, "recompute": "selective"}, lambda sbh, t, _ash: sbh * (10 + 24 / t)),
        (
            {"tp": 8, "sequence_parallel": True, "recompute": "selective"},
            lambda sbh, t, _ash: 34 * sbh / t,
        ),
        ({"tp": 8, "recompute": "full"}, lambda sbh, _t, _ash: 2 * sbh),
    ],
)
def test_activations_are_those_of_korthikanti(micro_batch, options, formula):
    design = design_from(
        document(
            model={"name": None, **GPT, "sequence": 2048, "global_batch": 16, "dtype": "bf16"}
            | {"name": "gpt"},
            parallel={"attention": "plain", "micro_batch": micro_batch, **options},
        )
    )
    s, h, a, t = 2048, 12288, 96, options.get("tp", 1)
    assert activation_bytes(design, moe=False) == formula(s * micro_batch * h, t, a * s / h)


def test_activations_with_recomputed_operators_are_counted_by_hand():
    # 16-bit inputs of the layer, attention output and half of the products' outputs: 3 h, h, 4 h
    # and h wide; 32-bit sums of each head.
    options = {"recompute": "operators", "tp": 8, "sequence_parallel": True}
    model = {"name": "gpt", **GPT, "sequence": 2048, "global_batch": 16, "dtype": "bf16"}
    s, h, a = 2048, 12288, 96
    design = design_from(document(model=model, parallel=options))
    assert (
        activation_bytes(design, moe=False) == s * (2 * h + 2 * h + (3 + 1 + 4 + 1) * h + 4 * a) / 8
    )
    stored, some, whole = (
        activation_bytes(design, moe=False, recompute=how) for how in ("none", "operators", "full")
    )
    assert stored > some > whole


def test_activations_of_an_interleaved_pipeline_are_those_of_korthikanti():
    # Equation 5's extension: the first stage keeps s b h L (1 + (p - 1) / (p m)) (34 / t), with m
    # chunks a stage, and the mask of the embedding's dropout, s b h p / t.
    p, m, t, s, b, h, L = 8, 3, 8, 2048, 1, 12288, 96
    design = design_from(
        document(
            model={"name": "gpt3-175b", "sequence": s, "global_batch": 64},
            topology={"name": "superpod-h100", "nodes": 8},
            parallel={
                "tp": t,
                "pp": p,
                "virtual": m,
                "sequence_parallel": True,
                "recompute": "selective",
                "attention": "plain",
            },
        )
    )
    assert chunks_in_flight(design, 0) * (L // (p * m)) == L * (1 + (p - 1) / (p * m))
    assert (
        memory_by_stage(design)[0].activations
        == 34 * s * b * h / t * L * (1 + (p - 1) / (p * m)) + s * b * h * p / t
    )


def test_sharding_divides_what_it_shards():
    found = {}
    for shard in ("none", "optimizer", "gradients", "parameters"):
        found[shard] = memory_by_stage(design_from(document(parallel={"shard": shard})))[0]
    n = shipped_model("llama-3.1-8b").parameters
    assert (found["none"].weights, found["none"].gradients, found["none"].optimizer) == (
        2 * n,
        4 * n,
        12 * n,
    )
    assert found["optimizer"].optimizer == -(-12 * n // 8)
    assert (found["optimizer"].gradients, found["gradients"].gradients) == (4 * n, -(-4 * n // 8))
    assert (found["gradients"].weights, found["parameters"].weights) == (2 * n, -(-2 * n // 8))
    half = memory_by_stage(
        design_from(document(parallel={"shard": "parameters", "shard_group": 4}))
    )[0]
    assert half.weights == -(-2 * n // 4)
    away = memory_by_stage(design_from(document(parallel={"offload": ["optimizer"]})))[0]
    assert (away.optimizer, away.host) == (0, 12 * n)


def test_sizes_of_a_model_are_checked():
    for sizes, said in (
        ({"heads": 3}, "give head_size"),
        ({"kv_heads": 3}, "kv_heads 3"),
        ({"experts": 4}, "top_k 0"),
        ({"dense_layers": 9}, "there are 2 layers"),
        ({"layers": 0}, "layers: 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            Model(**{"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 8, **sizes})
