"""Transformers by their sizes: from TOML, from the shipped files, or from a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from simcoll.errors import ConfigError, nearest, shown
from simcoll.formats.strict import in_words, read_file
from simcoll.limits.paths import shipped_files
from simcoll.limits.text import parse_toml

__all__ = ["Linear", "Model", "linears", "model_from_hf", "shipped_model", "shipped_models"]

MAX_LAYERS = 2**14
MAX_FILE_BYTES = 2**20


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The sizes of a decoder-only transformer.

    Attributes
    ----------
    name
        For titles.
    layers, hidden, heads, vocabulary
        As in every paper.
    kv_heads, head_size, ffn
        Heads of keys and values (grouped-query attention), width of a head, and inner width of the MLP; 0: ``heads``, ``hidden / heads``
        and four times ``hidden``.
    gated
        Whether the MLP has a gate (SwiGLU): three matrices instead of two.
    tied
        Whether input and output embeddings are one matrix.
    positions
        Learned positions; 0 for rotary ones.
    dropout
        Whether attention and residuals have dropout, whose masks are kept.
    experts, top_k, expert_ffn, shared_experts, dense_layers
        Routed experts of every MoE layer, experts that a token is sent to, their inner width, experts that see all tokens, and how
        many of the first layers have an ordinary MLP instead. No experts: a dense model.
    q_rank, kv_rank, rope_size, value_size
        Multi-head latent attention: ranks of the compressed queries and of keys and values, width of the rotary part of a head (beside
        ``head_size``), and width of a value. ``kv_rank`` 0: ordinary attention.

    Examples
    --------
    >>> round(shipped_model("llama-3.1-405b").parameters / 1e9, 1)
    405.9
    """

    name: str = ""
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    kv_heads: int = 0
    head_size: int = 0
    ffn: int = 0
    gated: bool = True
    tied: bool = False
    positions: int = 0
    dropout: bool = False
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_size: int = 0
    value_size: int = 0

    def __post_init__(self) -> None:
        least = {"layers": 1, "hidden": 1, "heads": 1, "vocabulary": 1}
        most = {"layers": MAX_LAYERS}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            low, high = least.get(name, 0), most.get(name, 2**31 - 1)
            if type(value) is int and not low <= value <= high:
                raise ConfigError(f"model: {name}: {shown(value)} is out of range; expected {low} to {high}")
        if not self.head_size and self.hidden % self.heads:
            raise ConfigError(f"model: {self.heads} heads do not divide hidden {self.hidden}; give head_size")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ConfigError(f"model: kv_heads {self.kv_heads} does not divide the {self.heads} heads")
        if self.experts and not 0 < self.top_k <= self.experts:
            raise ConfigError(f"model: top_k {self.top_k}: expected 1 to the {self.experts} experts")
        if self.dense_layers > self.layers:
            raise ConfigError(f"model: dense_layers {self.dense_layers}: there are {self.layers} layers")

    @property
    def head(self) -> int:
        """Width of the part of a head that is not rotary under latent attention; else of a head."""
        return self.head_size or self.hidden // self.heads

    @property
    def key_width(self) -> int:
        """Width of the queries and keys of one head."""
        return self.head + self.rope_size

    @property
    def value_width(self) -> int:
        """Width of the values of one head."""
        return self.value_size or self.head

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def inner(self) -> int:
        """Inner width of an ordinary MLP."""
        return self.ffn or 4 * self.hidden

    @property
    def expert_inner(self) -> int:
        """Inner width of an expert."""
        return self.expert_ffn or self.inner

    def is_moe(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        return bool(self.experts) and layer >= self.dense_layers

    @property
    def embedding_parameters(self) -> int:
        """Parameters of one embedding, with learned positions."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the output embedding, none if it is the input's."""
        return 0 if self.tied else self.vocabulary * self.hidden

    def layer_parameters(self, *, moe: bool, active: bool = False) -> int:
        """Parameters of a layer; ``active``: only those that a token meets."""
        count = {True: self.top_k, False: self.experts}[active]
        return 2 * self.hidden + sum(
            linear.inputs * linear.outputs * (count if linear.part == "expert" else 1)
            for linear in linears(self, moe=moe)
        )

    @property
    def parameters(self) -> int:
        """All parameters: matrices, embeddings and the weights of norms, without biases."""
        return self._total(active=False)

    @property
    def active_parameters(self) -> int:
        """Parameters that a token meets, with embeddings."""
        return self._total(active=True)

    def _total(self, *, active: bool) -> int:
        moe = sum(self.is_moe(layer) for layer in range(self.layers))
        found = (self.layers - moe) * self.layer_parameters(moe=False)
        if moe:
            found += moe * self.layer_parameters(moe=True, active=active)
        return found + self.embedding_parameters + self.head_parameters + self.hidden


@dataclass(frozen=True, slots=True)
class Linear:
    """One weight matrix of a layer.

    Attributes
    ----------
    name, part
        What it is, and whether it belongs to the ``"attention"``, the ``"mlp"``, the ``"router"``, or is one ``"expert"``.
    inputs, outputs
        Its sizes.
    split
        Which of them tensor parallelism divides: ``"outputs"``, ``"inputs"``, or ``""`` for none.
    """

    name: str
    part: str
    inputs: int
    outputs: int
    split: str


@lru_cache(maxsize=256)
def linears(model: Model, *, moe: bool) -> tuple[Linear, ...]:
    """The weight matrices of a layer in the order of the forward pass; of all experts, one stands for each."""
    h, heads = model.hidden, model.heads
    if model.kv_rank:
        found = [
            Linear("queries down", "attention", h, model.q_rank, ""),
            Linear("queries up", "attention", model.q_rank, heads * model.key_width, "outputs"),
            Linear("keys and values down", "attention", h, model.kv_rank + model.rope_size, ""),
            Linear(
                "keys and values up", "attention", model.kv_rank, heads * (model.head + model.value_width), "outputs"
            ),
        ]
        if not model.q_rank:
            found[:2] = [Linear("queries", "attention", h, heads * model.key_width, "outputs")]
    else:
        found = [Linear("qkv", "attention", h, (heads + 2 * model.groups) * model.head, "outputs")]
    found.append(Linear("attention out", "attention", heads * model.value_width, h, "inputs"))
    ways = 2 if model.gated else 1
    if not moe:
        return (
            *found,
            Linear("mlp up", "mlp", h, ways * model.inner, "outputs"),
            Linear("mlp down", "mlp", model.inner, h, "inputs"),
        )
    found.append(Linear("router", "router", h, model.experts, ""))
    if model.shared_experts:
        shared = model.shared_experts * model.expert_inner
        found.append(Linear("shared up", "mlp", h, ways * shared, "outputs"))
        found.append(Linear("shared down", "mlp", shared, h, "inputs"))
    found.append(Linear("expert up", "expert", h, ways * model.expert_inner, ""))
    found.append(Linear("expert down", "expert", model.expert_inner, h, ""))
    return tuple(found)


def shipped_models() -> dict[str, str]:
    """Names of the shipped models, each with the source of its sizes."""
    return {name: _document(path)[1] for name, path in shipped_files("models").items()}


@lru_cache(maxsize=64)
def shipped_model(name: str) -> Model:
    """A shipped model.

    Raises
    ------
    ConfigError
        For an unknown name.
    """
    shipped = shipped_files("models")
    if name not in shipped:
        raise ConfigError(f"unknown model {name!r}; {nearest(name, shipped)}; or give its sizes, or hf = 'config.json'")
    return msgspec.convert({**_document(shipped[name])[0], "name": name}, Model)


def _document(path: Path) -> tuple[dict[str, Any], str]:
    document = parse_toml(path.read_bytes(), path.name)
    return document, str(document.pop("source"))


# Model types of Hugging Face whose sizes mean what they do in Llama.
_LLAMA = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "phi3",
    "gpt_oss",
)
_NAMES = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "vocabulary": ("vocab_size",),
    "kv_heads": ("num_key_value_heads",),
    "head_size": ("qk_nope_head_dim", "head_dim"),
    "ffn": ("intermediate_size", "n_inner"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "top_k": ("num_experts_per_tok",),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_experts": ("n_shared_experts",),
    "dense_layers": ("first_k_dense_replace",),
    "q_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "rope_size": ("qk_rope_head_dim",),
    "value_size": ("v_head_dim",),
}


def model_from_hf(path: str | Path) -> Model:
    """The model of a Hugging Face ``config.json``: Llama and those that are built like it, and GPT-2.

    Raises
    ------
    ConfigError
        For a file that cannot be read, a type of model that is not known, or sizes that are missing.
    """
    content = read_file(path, MAX_FILE_BYTES)
    try:
        config = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not a JSON object: {error}", file=str(path)) from None
    kind = str(config.get("model_type", ""))
    if kind not in (*_LLAMA, "gpt2"):
        raise ConfigError(f"unknown model_type {shown(kind)}; {nearest(kind, [*_LLAMA, 'gpt2'])}", file=str(path))
    sizes: dict[str, Any] = {field: _first(config, names) for field, names in _NAMES.items()}
    sizes = {field: value for field, value in sizes.items() if value is not None}
    if not sizes.get("kv_rank"):
        sizes = {field: value for field, value in sizes.items() if field not in {"rope_size", "value_size", "q_rank"}}
    if (
        sizes.get("shared_experts") is None
        and config.get("shared_expert_intermediate_size")
        and sizes.get("expert_ffn")
    ):
        whole, each = config["shared_expert_intermediate_size"], sizes["expert_ffn"]
        if not (isinstance(whole, int) and isinstance(each, int)):
            raise ConfigError("expected whole numbers as sizes of experts", file=str(path))
        sizes["shared_experts"] = whole // each
    sizes |= {"gated": kind != "gpt2", "tied": bool(config.get("tie_word_embeddings", kind == "gpt2"))}
    sizes |= {"positions": config.get("n_positions", 1024) if kind == "gpt2" else 0, "name": kind}
    try:
        return msgspec.convert(sizes, Model)
    except msgspec.ValidationError as error:
        raise ConfigError(f"not the config of a model: {in_words(str(error))}", file=str(path)) from None
    except ConfigError as error:
        raise ConfigError(error.message, file=str(path)) from None


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)
