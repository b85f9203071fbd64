"""The sizes of a model from a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from simcoll.errors import ConfigError, nearest, shown
from simcoll.files.strict import in_words, read_file
from simcoll.training.transformer import Model

__all__ = ["model_from_hf"]

MAX_FILE_BYTES = 2**20


class _ModelType(NamedTuple):
    """Conventions of a model type.

    ``tied`` is the library's default; ``positions`` the key of learned positions, with the number
    of extra ones; ``full_every``: without per-layer types in the file, every n-th layer has full
    attention and no window (1: all, 0: none).
    """

    gated: bool = True
    tied: bool = False
    positions: tuple[str, int] = ("", 0)
    full_every: int = 0


_LLAMA, _TIED, _PLAIN = _ModelType(), _ModelType(tied=True), _ModelType(gated=False)
_PLAIN_TIED = _ModelType(gated=False, tied=True)
_LLAMA_TYPES = (
    "dbrx deepseek_v2 deepseek_v3 glm4 glm4_moe granite granitemoe kimi_k2 llama mistral mixtral "
    "olmo olmo2 olmoe phi3 "
    "qwen2 qwen2_moe qwen3 qwen3_moe seed_oss stablelm"
)
_KINDS = {
    **dict.fromkeys(_LLAMA_TYPES.split(), _LLAMA),
    **dict.fromkeys(("cohere", "gemma", "smollm3"), _TIED),
    "cohere2": _ModelType(tied=True, full_every=4),
    "gemma2": _ModelType(tied=True, full_every=2),
    "gemma3_text": _ModelType(tied=True, full_every=6),
    "gpt_oss": _ModelType(full_every=2),
    **dict.fromkeys(("llama4_text", "olmo3"), _ModelType(full_every=4)),
    **dict.fromkeys(("gpt_neox", "gptj", "nemotron", "phi"), _PLAIN),
    **dict.fromkeys(("bloom", "falcon", "mpt", "starcoder2"), _PLAIN_TIED),
    "gpt2": _PLAIN_TIED._replace(positions=("n_positions", 0)),
    "gpt_bigcode": _PLAIN_TIED._replace(positions=("n_positions", 0)),
    "opt": _PLAIN_TIED._replace(positions=("max_position_embeddings", 2)),
}
"""Supported model types, whose sizes map to :class:`~simcoll.training.transformer.Model`."""

_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocabulary": ("vocab_size",),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "kv_n_heads"),
    "head_size": ("qk_nope_head_dim", "head_dim"),
    "ffn": ("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "moe_top_k"),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_experts": ("n_shared_experts",),
    "dense_layers": ("first_k_dense_replace",),
    "moe_every": ("decoder_sparse_step", "interleave_moe_layer_step"),
    "window": ("sliding_window", "attention_chunk_size"),
    "q_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "rope_size": ("qk_rope_head_dim",),
    "value_size": ("v_head_dim",),
}
_LATENT = ("q_rank", "rope_size", "value_size")
_WINDOWED = ("sliding_attention", "chunked_attention")


def model_from_hf(path: str | Path) -> Model:
    """The model of a Hugging Face ``config.json``: a decoder, dense or with experts.

    Attention in chunks (Llama 4) counts as a window of the same width, which is at most twice its
    work.

    Raises
    ------
    ConfigError
        For an unreadable file, an unknown model type, layers that are not modelled, or missing
        sizes.
    """
    content = read_file(path, MAX_FILE_BYTES)
    try:
        config = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not a JSON object: {error}", file=str(path)) from None
    try:
        return _model(config)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"not the config of a model: {in_words(str(error))}", file=str(path)
        ) from None
    except ConfigError as error:
        raise ConfigError(error.message, file=str(path)) from None


def _model(config: dict[str, Any]) -> Model:
    name = str(config.get("model_type", ""))
    if isinstance(config.get("text_config"), dict):
        raise ConfigError(
            f"model_type {shown(name)} has several towers, of which one with text is modelled: "
            "save its text_config as a file of its own"
        )
    if name not in _KINDS:
        raise ConfigError(
            f"unknown model_type {shown(name)}; {nearest(name, _KINDS)}; or give the sizes in TOML"
        )
    kind = _KINDS[name]
    for table in ("attn_config", "ffn_config"):
        if isinstance(config.get(table), dict):
            config = {**config[table], **config}
    sizes: dict[str, Any] = {field: _first(config, keys) for field, keys in _NAMES.items()}
    sizes = {field: value for field, value in sizes.items() if value is not None}
    for field in ("layers", "hidden", "heads", "vocabulary"):
        if field not in sizes:
            raise ConfigError(f"missing: {' or '.join(_NAMES[field])}")
    if not sizes.get("kv_rank"):
        sizes = {field: value for field, value in sizes.items() if field not in _LATENT}
    sizes |= _one_head(name, config) | _experts(name, config, sizes) | _windows(kind, config, sizes)
    if name == "mpt":
        sizes["ffn"] = _number(config, "expansion_ratio", 4) * _number(config, "d_model")
    key, offset = kind.positions
    positions = _number(config, key, 1024) + offset if key else 0
    tied = bool(config.get("tie_word_embeddings", kind.tied))
    return msgspec.convert(
        {
            **sizes,
            "gated": kind.gated,
            "tied": tied,
            "positions": positions,
            "yarn": _is_yarn(config) and not sizes.get("kv_rank"),
            "qk_norm": name in _NORMED,
            "name": name,
        },
        Model,
    )


_NORMED = {"qwen3", "qwen3_moe"}
"""Models that normalise each head of queries and keys by itself."""


def _is_yarn(config: Mapping[str, Any]) -> bool:
    """Whether rotary embeddings are scaled as in YaRN, under the keys of any version."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    return isinstance(scaling, Mapping) and "yarn" in (
        scaling.get("rope_type"),
        scaling.get("type"),
    )


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _number(config: Mapping[str, Any], key: str, default: int = 0) -> int:
    value = config.get(key, default)
    if type(value) is not int:
        raise ConfigError(f"{key}: expected a whole number, got {shown(value)}")
    return value


def _one_head(name: str, config: Mapping[str, Any]) -> dict[str, int]:
    """Keys and values of one head (multi-query attention)."""
    multi_query = (
        name == "falcon" and not config.get("new_decoder_architecture")
    ) or name == "gpt_bigcode"
    return {"kv_heads": 1} if multi_query and config.get("multi_query", True) else {}


def _experts(name: str, config: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Read the model-specific keys of experts."""
    if not sizes.get("experts"):
        return {"top_k": 0, "expert_ffn": 0, "shared_experts": 0, "dense_layers": 0, "moe_every": 1}
    fields: dict[str, Any] = {"expert_bias": name == "gpt_oss", "expert_clamp": name == "gpt_oss"}
    if name == "llama4_text":
        fields |= {"expert_ffn": config.get("intermediate_size", 0), "shared_experts": 1}
    shared_width = _number(config, "shared_expert_intermediate_size")
    if shared_width and sizes.get("shared_experts") is None:
        expert_width = _number(sizes, "expert_ffn")
        if not expert_width or shared_width % expert_width:
            raise ConfigError(
                f"shared_expert_intermediate_size {shared_width}: expected a multiple of "
                f"moe_intermediate_size {expert_width}"
            )
        fields["shared_experts"] = shared_width // expert_width
    plain = config.get("mlp_only_layers") or []
    if not isinstance(plain, list) or plain != list(range(len(plain))):
        raise ConfigError(
            f"mlp_only_layers {shown(plain)}: only the first layers may be without experts; give "
            "the sizes in TOML"
        )
    if plain:
        fields["dense_layers"] = len(plain)
    frequency = config.get("moe_layer_freq", 1)
    if frequency != 1:
        raise ConfigError(
            f"moe_layer_freq {shown(frequency)}: expected 1; give the sizes in TOML, with moe_every"
        )
    return fields


def _windows(
    kind: _ModelType, config: Mapping[str, Any], sizes: Mapping[str, Any]
) -> dict[str, int]:
    """The window of sliding attention, and the number of layers that have it."""
    layers, kinds = _number(sizes, "layers"), config.get("layer_types") or []
    if not isinstance(kinds, list) or any(
        layer_type not in (*_WINDOWED, "full_attention") for layer_type in kinds
    ):
        raise ConfigError(
            f"layer_types {shown(kinds)}: only full_attention, sliding_attention and "
            "chunked_attention are modelled"
        )
    if not sizes.get("window") or config.get("use_sliding_window") is False:
        return {"window": 0}
    if kinds:
        windowed = sum(layer_type in _WINDOWED for layer_type in kinds)
    elif config.get("use_sliding_window"):
        windowed = layers - min(layers, _number(config, "max_window_layers", layers))
    else:
        every = _number(config, "sliding_window_pattern", kind.full_every)
        windowed = layers - (layers // every if every else 0)
    return {"windowed": windowed} if windowed else {"window": 0}
