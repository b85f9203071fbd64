"""Attention over sequences of several lengths, whose kernels PyTorch has for GPUs only.

``varlen_attn`` and nested tensors call ``aten::_flash_attention_forward`` there. On simulated GPUs
it is computed by its formula, sequence by sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch.nested._internal import sdpa
from torch.nn.attention import SDPBackend

from simcoll.errors import ConfigError
from simcoll.torch.operator_work import named_arguments
from simcoll.torch.replacing import for_ranks

__all__ = ["add_flash_kernels", "flash_replacements"]

_FORWARD = torch.ops.aten._flash_attention_forward.default
_BACKWARD = torch.ops.aten._flash_attention_backward.default


class _SeenKeys(NamedTuple):
    """A causal mask from the last key, and keys before and after a query's own; -1: all."""

    causal: bool
    width_before: int
    width_after: int

    def of(self, queries: int, keys: int) -> torch.Tensor:
        """Whether a query sees a key."""
        place = torch.arange(queries)[:, None] + (keys - queries)
        key = torch.arange(keys)[None]
        sees = torch.ones(queries, keys, dtype=torch.bool)
        if self.causal or self.width_after >= 0:
            sees &= key <= place + (0 if self.causal else self.width_after)
        if self.width_before >= 0:
            sees &= key >= place - self.width_before
        return sees


def _mask_of(call: Mapping[str, Any]) -> _SeenKeys:
    widths = (call.get(f"window_size_{side}") for side in ("left", "right"))
    return _SeenKeys(call["is_causal"], *(-1 if width is None else width for width in widths))


def _scale_of(call: Mapping[str, Any]) -> float:
    scale = call.get("scale")
    return float(call["query"].shape[-1] ** -0.5 if scale is None else scale)


def _offsets_of(call: Mapping[str, Any]) -> tuple[Any, Any]:
    return call["cum_seq_q"], call["cum_seq_k"]


class _Sequence(NamedTuple):
    """The rows of a sequence in the tensors of the queries and of the keys."""

    queries: slice
    keys: slice


def _sequences(query: Any, key: Any, offsets: Any, key_offsets: Any) -> Iterator[_Sequence]:
    """The sequences of tensors of [tokens, heads, width]."""
    if offsets is None:
        offsets, key_offsets = [0, len(query)], [0, len(key)]
    else:
        offsets, key_offsets = offsets.tolist(), key_offsets.tolist()
    rows, key_rows = (
        [slice(begin, end) for begin, end in itertools.pairwise(ends)]
        for ends in (offsets, key_offsets)
    )
    yield from map(_Sequence, rows, key_rows)


def _scores(query: torch.Tensor, key: torch.Tensor, mask: _SeenKeys, scale: float) -> torch.Tensor:
    """The scaled products of [heads, queries, keys] that the mask leaves."""
    scores = query.transpose(0, 1) @ key.permute(1, 2, 0) * scale
    return scores.masked_fill(~mask.of(len(query), len(key)), -torch.inf)


def _of_all_heads(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys or values in 32 bits, for each head of the queries."""
    return tensor.float().repeat_interleave(heads // tensor.shape[1], 1)


def _forward(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    call = named_arguments(_FORWARD, args, kwargs)
    _check_options(call)
    query = call["query"]
    unused = query.new_zeros(2, dtype=torch.uint64), query.new_empty(0), query.new_empty(0)
    operands = query, call["key"], call["value"]
    mask, scale = _mask_of(call), _scale_of(call)
    if query.dim() == 4:
        rows = [
            _of_sequences(*row, (None, None), mask, scale) for row in zip(*operands, strict=True)
        ]
        outputs, sums = zip(*rows, strict=True)
        return torch.stack(outputs), torch.stack(sums), *unused
    return *_of_sequences(*operands, _offsets_of(call), mask, scale), *unused


def _of_sequences(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: tuple[Any, Any],
    mask: _SeenKeys,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and the logarithm of the sum of exponentials of [heads, tokens]."""
    heads = query.shape[1]
    output = query.new_zeros(*query.shape[:2], value.shape[-1])
    sums = query.new_full((heads, len(query)), torch.inf, dtype=torch.float32)
    keys, values = _of_all_heads(key, heads), _of_all_heads(value, heads)
    for rows in _sequences(query, key, *offsets):
        scores = _scores(query[rows.queries].float(), keys[rows.keys], mask, scale)
        total = scores.logsumexp(-1)
        # A query that sees no key has no weights, and an output of zeros.
        weights = (scores - total[..., None]).exp().nan_to_num(0.0)
        output[rows.queries] = (weights @ values[rows.keys].transpose(0, 1)).transpose(0, 1)
        sums[:, rows.queries] = total.masked_fill(total == -torch.inf, torch.inf)
    return output, sums


def _backward(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    call = named_arguments(_BACKWARD, args, kwargs)
    _check_options(call)
    names = ("grad_out", "query", "key", "value", "out", "logsumexp")
    operands = _Operands(*(call[name] for name in names))
    mask, scale = _mask_of(call), _scale_of(call)
    if operands.query.dim() == 4:
        rows = [
            _gradients(_Operands._make(row), (None, None), mask, scale)
            for row in zip(*operands, strict=True)
        ]
        return tuple(map(torch.stack, zip(*rows, strict=True)))
    return _gradients(operands, _offsets_of(call), mask, scale)


class _Operands(NamedTuple):
    """What a backward pass reads, of tensors of [tokens, heads, width]."""

    change: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    out: torch.Tensor
    sums: torch.Tensor


def _gradients(
    operands: _Operands, offsets: tuple[Any, Any], mask: _SeenKeys, scale: float
) -> tuple[torch.Tensor, ...]:
    query, key, value = operands.query, operands.key, operands.value
    heads, groups = query.shape[1], key.shape[1]
    keys, values = _of_all_heads(key, heads), _of_all_heads(value, heads)
    of_queries = torch.zeros_like(query, dtype=torch.float32)
    of_keys, of_values = torch.zeros_like(keys), torch.zeros_like(values)
    for rows in _sequences(query, key, *offsets):
        part, change = query[rows.queries].float(), operands.change[rows.queries].float()
        scores = _scores(part, keys[rows.keys], mask, scale)
        weights = (scores - operands.sums[:, rows.queries, None]).exp()
        change = change.transpose(0, 1)
        output = operands.out[rows.queries].float().transpose(0, 1)
        shift = (change * output).sum(-1, keepdim=True)
        of_scores = weights * (change @ values[rows.keys].permute(1, 2, 0) - shift) * scale
        of_queries[rows.queries] = (of_scores @ keys[rows.keys].transpose(0, 1)).transpose(0, 1)
        of_keys[rows.keys] = (of_scores.mT @ part.transpose(0, 1)).transpose(0, 1)
        of_values[rows.keys] = (weights.mT @ change).transpose(0, 1)

    def of_groups(gradient: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        return gradient.unflatten(1, (groups, heads // groups)).sum(2).to(tensor.dtype)

    return of_queries.to(query.dtype), of_groups(of_keys, key), of_groups(of_values, value)


def _check_options(call: Mapping[str, Any]) -> None:
    names = ("seqused_k", "alibi_slopes", "block_table")
    unknown = [name for name in names if call.get(name) is not None]
    if call["dropout_p"]:
        unknown.append("dropout_p")
    if unknown:
        raise ConfigError(
            f"attention over sequences of several lengths is not computed with {unknown[0]}= on "
            "simulated GPUs: leave it out, or use fake tensors"
        )


def add_flash_kernels(undo: ExitStack) -> None:
    """Give PyTorch the kernels until the end."""
    library = torch.library.Library("aten", "IMPL")
    undo.callback(library._destroy)
    library.impl("_flash_attention_forward", _forward, "CPU")
    library.impl("_flash_attention_backward", _backward, "CPU")


@for_ranks
def _nested_backend(
    _thread: Any,
    standard: Callable[..., SDPBackend],
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    *args: Any,
) -> SDPBackend:
    """The kernel for nested tensors: on a GPU that of FlashAttention, unless there is a mask."""
    if attn_mask is None and torch.backends.cuda.flash_sdp_enabled():
        return SDPBackend.FLASH_ATTENTION
    return standard(query, key, value, attn_mask, *args)


def flash_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of what chooses the kernel."""
    name = "_select_sdp_backend"
    return [(sdpa, name, _nested_backend(getattr(sdpa, name)))]
