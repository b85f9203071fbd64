"""Transformer models by their sizes, from TOML or shipped files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from simcoll.errors import ConfigError, nearest, shown
from simcoll.files.paths import shipped_files
from simcoll.files.text import parse_toml

__all__ = ["WINDOW_KEYS", "Linear", "Model", "linears", "shipped_model", "shipped_models"]

MAX_LAYERS = 2**14
WINDOW_KEYS = 512
"""Keys beyond those of a window for which a query of a fused kernel pays: whole tiles at both ends
of the window, and the begin and end of each tile of queries.

Times of prefills with a window of 128 over those without, 4,096 to 16,384 tokens, heads of 64 and
128: 350 to 470 keys in FlashAttention of vLLM 0.19 on H100, 520 to 690 in vLLM 0.24 on B200 and
GB200, 650 to 820 on GB300, and 750 to 1,400 in TensorRT-LLM 1.2 and 1.3 on all four
(ai-dynamo/aiconfigurator 095f58a, context_attention).
"""


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The sizes of a decoder-only transformer.

    Attributes
    ----------
    name
        Name, for titles.
    layers, hidden, heads, vocabulary
        Number of layers, hidden size, attention heads, and vocabulary size.
    kv_heads, head_size, ffn
        Heads of keys and values (grouped-query attention), width of a head, and inner width of the
        MLP; 0: ``heads``, ``hidden / heads`` and four times ``hidden``.
    gated
        Whether the MLP has a gate (SwiGLU): three matrices instead of two.
    tied
        Whether input and output embeddings are one matrix.
    positions
        Learned positions; 0 for rotary ones.
    dropout
        Whether attention and residuals have dropout, whose masks are stored.
    experts, top_k, expert_ffn, shared_experts, dense_layers
        Routed experts per MoE layer, experts per token, their inner width, experts that see all
        tokens, and number of leading layers with a dense MLP. No experts: a dense model.
    expert_bias
        Whether experts have biases. Megatron-LM adds those of their outputs in 32 bits, by separate
        kernels.
    expert_clamp
        Whether the gate and the other half of an expert's inner values are clamped before the
        activation function. Megatron-LM clamps and joins them by separate kernels.
    yarn
        Whether rotary embeddings are scaled (YaRN), which Megatron-LM does by separate kernels;
        false for latent attention, whose fused kernel scales them too.
    qk_norm
        Whether queries and keys are normalised, each head by itself (Qwen3).
    moe_every
        Only every n-th layer has experts; the others have a dense MLP.
    window, windowed
        Sliding-window attention: the most tokens that a token attends to, itself included, and the
        number of layers with the window; 0: all tokens, and all layers. It speeds up fused
        attention only.
    q_rank, kv_rank, rope_size, value_size
        Multi-head latent attention: ranks of the compressed queries and of keys and values, width
        of the rotary part of a head (besides ``head_size``), and width of a value. ``kv_rank`` 0:
        ordinary attention.

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
    expert_bias: bool = False
    expert_clamp: bool = False
    yarn: bool = False
    qk_norm: bool = False
    moe_every: int = 1
    window: int = 0
    windowed: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_size: int = 0
    value_size: int = 0

    def __post_init__(self) -> None:
        lower_bounds = {"layers": 1, "hidden": 1, "heads": 1, "vocabulary": 1, "moe_every": 1}
        upper_bounds = {"layers": MAX_LAYERS}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            low, high = lower_bounds.get(name, 0), upper_bounds.get(name, 2**31 - 1)
            if type(value) is int and not low <= value <= high:
                raise ConfigError(
                    f"model: {name}: {shown(value)} is out of range; expected {low} to {high}"
                )
        if not self.head_size and self.hidden % self.heads:
            raise ConfigError(
                f"model: {self.heads} heads do not divide hidden {self.hidden}; give head_size"
            )
        if self.kv_heads and self.heads % self.kv_heads:
            raise ConfigError(
                f"model: kv_heads {self.kv_heads} does not divide the {self.heads} heads"
            )
        if self.experts and not 0 < self.top_k <= self.experts:
            raise ConfigError(
                f"model: top_k {self.top_k}: expected 1 to the {self.experts} experts"
            )
        if self.dense_layers > self.layers:
            raise ConfigError(
                f"model: dense_layers {self.dense_layers}: there are {self.layers} layers"
            )
        if self.windowed > self.layers or (self.windowed and not self.window):
            raise ConfigError(
                f"model: windowed {self.windowed}: expected a window, and at most the "
                f"{self.layers} layers"
            )

    @property
    def head(self) -> int:
        """Width of a head; under latent attention, of its non-rotary part."""
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
        """Inner width of a dense MLP."""
        return self.ffn or 4 * self.hidden

    @property
    def expert_inner(self) -> int:
        """Inner width of an expert."""
        return self.expert_ffn or self.inner

    def is_moe(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        return (
            bool(self.experts) and layer >= self.dense_layers and (layer + 1) % self.moe_every == 0
        )

    def attention_share(self, sequence: int, *, more_keys: int = 0) -> float:
        """Share of causal attention left by windows, averaged over layers.

        ``more_keys``: beyond those of a window, as in :data:`WINDOW_KEYS` for the time of a kernel.
        """
        if not 0 < self.window < sequence:
            return 1.0
        keys = min(sequence, self.window + more_keys)
        share = keys * (2 * sequence - keys) / sequence**2
        return 1 - (self.windowed or self.layers) / self.layers * (1 - share)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding, with learned positions."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the output embedding; 0 if tied."""
        return 0 if self.tied else self.vocabulary * self.hidden

    def layer_parameters(self, *, moe: bool, active: bool = False) -> int:
        """Parameters of a layer; ``active``: only those that a token uses."""
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
        """Parameters that a token uses, with embeddings."""
        return self._total(active=True)

    def _total(self, *, active: bool) -> int:
        moe = sum(self.is_moe(layer) for layer in range(self.layers))
        count = (self.layers - moe) * self.layer_parameters(moe=False)
        if moe:
            count += moe * self.layer_parameters(moe=True, active=active)
        return count + self.embedding_parameters + self.head_parameters + self.hidden


LayerPart: TypeAlias = Literal["attention", "mlp", "router", "expert"]
LinearName: TypeAlias = Literal[
    "queries down",
    "queries up",
    "queries",
    "keys and values down",
    "keys and values up",
    "qkv",
    "attention out",
    "mlp up",
    "mlp down",
    "router",
    "shared up",
    "shared down",
    "expert up",
    "expert down",
]
SplitSize: TypeAlias = Literal["outputs", "inputs", ""]


@dataclass(frozen=True, slots=True)
class Linear:
    """One weight matrix of a layer.

    Attributes
    ----------
    name, part
        Its name, and the part it belongs to: ``"attention"``, ``"mlp"``, ``"router"``, or one
        ``"expert"``.
    inputs, outputs
        Its sizes.
    split
        The size that tensor parallelism divides: ``"outputs"``, ``"inputs"``, or ``""`` for none.
    """

    name: LinearName
    part: LayerPart
    inputs: int
    outputs: int
    split: SplitSize


@lru_cache(maxsize=256)
def linears(model: Model, *, moe: bool) -> tuple[Linear, ...]:
    """The weight matrices of a layer in the order of the forward pass; one expert stands for
    all.
    """
    h, heads = model.hidden, model.heads
    if model.kv_rank:
        attention = [
            Linear("queries down", "attention", h, model.q_rank, ""),
            Linear("queries up", "attention", model.q_rank, heads * model.key_width, "outputs"),
            Linear("keys and values down", "attention", h, model.kv_rank + model.rope_size, ""),
            Linear(
                "keys and values up",
                "attention",
                model.kv_rank,
                heads * (model.head + model.value_width),
                "outputs",
            ),
        ]
        if not model.q_rank:
            attention[:2] = [Linear("queries", "attention", h, heads * model.key_width, "outputs")]
    else:
        attention = [
            Linear("qkv", "attention", h, (heads + 2 * model.groups) * model.head, "outputs")
        ]
    attention.append(Linear("attention out", "attention", heads * model.value_width, h, "inputs"))
    ways = 2 if model.gated else 1
    if not moe:
        return (
            *attention,
            Linear("mlp up", "mlp", h, ways * model.inner, "outputs"),
            Linear("mlp down", "mlp", model.inner, h, "inputs"),
        )
    attention.append(Linear("router", "router", h, model.experts, ""))
    if model.shared_experts:
        shared = model.shared_experts * model.expert_inner
        attention.append(Linear("shared up", "mlp", h, ways * shared, "outputs"))
        attention.append(Linear("shared down", "mlp", shared, h, "inputs"))
    attention.append(Linear("expert up", "expert", h, ways * model.expert_inner, ""))
    attention.append(Linear("expert down", "expert", model.expert_inner, h, ""))
    return tuple(attention)


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
        raise ConfigError(
            f"unknown model {name!r}; {nearest(name, shipped)}; or give its sizes, or hf = "
            "'config.json'"
        )
    return msgspec.convert({**_document(shipped[name])[0], "name": name}, Model)


def _document(path: Path) -> tuple[dict[str, Any], str]:
    document = parse_toml(path.read_bytes(), path.name)
    source = document.pop("source", None)
    if not isinstance(source, str) or not source.strip():
        raise ConfigError(
            f"expected the publication of its sizes, as text, got {shown(source)}",
            file=path.name,
            path="$.source",
        )
    return document, source
