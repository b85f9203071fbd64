"""Work of attention operators: pairs of a query and a key that the mask leaves, and the operations
for them.

Kernels skip what a causal mask, a window or the blocks of FlexAttention's mask leave out. A mask
that is a tensor of elements skips nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["UNKNOWN_BLOCKS", "UNKNOWN_LENGTHS", "AttentionWork", "attention_work", "flex_work"]

UNKNOWN_LENGTHS = "the lengths of sequences are unknown on fake tensors; they count as equal"
UNKNOWN_BLOCKS = "the blocks of a mask that reads fake tensors are unknown; all of them count"
_SAMPLED_ROWS = 16
"""Rows of blocks in which a mask is evaluated where there are more."""
_HEADS_FIRST = "_scaled_dot_product"
"""Start of the names of operators whose tensors are [batch, heads, tokens, width]; those of the
rest are [batch, tokens, heads, width] or, with offsets, [tokens, heads, width]."""


class AttentionWork(NamedTuple):
    """Floating-point operations of an attention operator, and what is assumed about it."""

    flops: float
    backward: bool
    assumption: str = ""


class _Mask(NamedTuple):
    """A mask: causal from the first or the last key, and keys before and after a query's own;
    -1: all.
    """

    causal: bool = False
    from_last: bool = False
    width_before: int = -1
    width_after: int = -1


def attention_work(name: str, arguments: Mapping[str, Any]) -> AttentionWork:
    """The work of one of PyTorch's operators, called with ``arguments``."""
    query, key, value = (arguments[part] for part in ("query", "key", "value"))
    mask, assumption = _mask_of(name, arguments), ""
    offsets = _first(arguments, "cum_seq_q", "cu_seq_q", "cu_seqlens_q")
    key_offsets = _first(arguments, "cum_seq_k", "cu_seq_k", "cu_seqlens_k")
    place = 2 if name.startswith(_HEADS_FIRST) else query.dim() - 3
    tokens, keys = int(query.shape[place]), int(key.shape[place])
    heads = int(query.shape[1 if name.startswith(_HEADS_FIRST) else -2])
    sequences = int(query.shape[0]) if query.dim() == 4 else 1
    if offsets is None or name.startswith(_HEADS_FIRST):
        pairs = sequences * _pairs(tokens, keys, mask)
    else:
        lengths = _lengths(offsets, tokens)
        key_lengths = lengths if key_offsets is None else _lengths(key_offsets, keys)
        assumption = UNKNOWN_LENGTHS if isinstance(offsets, FakeTensor) else ""
        pairs = sum(_pairs(*pair, mask) for pair in zip(lengths, key_lengths, strict=True))
    backward = "backward" in name
    return AttentionWork(_flops(pairs * heads, query, value, backward), backward, assumption)


def flex_work(arguments: Sequence[Any], *, backward: bool) -> AttentionWork:
    """The work of FlexAttention's operators, whose first three arguments are tensors of [batch,
    heads, tokens, width].
    """
    query, key, value = arguments[:3]
    block_mask = next((argument for argument in arguments[3:] if _is_block_mask(argument)), None)
    pairs = float(prod(query.shape[:3]) * key.shape[2])
    share = 1.0 if block_mask is None else _share_of_blocks(block_mask)
    flops = _flops(pairs * (1.0 if share is None else share), query, value, backward)
    return AttentionWork(flops, backward, UNKNOWN_BLOCKS if share is None else "")


def _flops(pairs: float, query: Any, value: Any, backward: bool) -> float:
    """Two products forward, and five backward, of which three have the width of the keys."""
    of_keys, of_values = (3, 2) if backward else (1, 1)
    return 2.0 * pairs * (of_keys * int(query.shape[-1]) + of_values * int(value.shape[-1]))


def _first(arguments: Mapping[str, Any], *names: str) -> Any:
    return next((arguments[name] for name in names if arguments.get(name) is not None), None)


def _mask_of(name: str, arguments: Mapping[str, Any]) -> _Mask:
    kind = arguments.get("custom_mask_type", 0)  # 1: from the first key, 2: from the last
    causal = bool(arguments.get("is_causal")) or kind in {1, 2}
    from_last = kind == 2 or not (kind or name.startswith(_HEADS_FIRST))
    window = arguments.get("window_size")
    if isinstance(window, int):
        return _Mask(causal, from_last, window - 1 if window > 0 else -1)
    width_before, width_after = (
        window
        if window is not None
        else (_side(arguments, "window_size_left"), _side(arguments, "window_size_right"))
    )
    return _Mask(causal, from_last, int(width_before), int(width_after))


def _side(arguments: Mapping[str, Any], name: str) -> int:
    width = arguments.get(name)
    return -1 if width is None else int(width)


def _lengths(offsets: torch.Tensor, tokens: int) -> list[int]:
    """The lengths of sequences between offsets; equal ones where the offsets are fake."""
    count = int(offsets.shape[0]) - 1
    if isinstance(offsets, FakeTensor):
        return [tokens // count + (number < tokens % count) for number in range(count)]
    with _disable_current_modes():
        lengths: list[int] = offsets.diff().tolist()
    return lengths


@cache
def _pairs(queries: int, keys: int, mask: _Mask) -> int:
    """Pairs of a query and a key that a mask leaves.

    >>> _pairs(4, 4, _Mask()), _pairs(4, 4, _Mask(causal=True)), _pairs(2, 4, _Mask(causal=True))
    (16, 10, 3)
    >>> _pairs(2, 4, _Mask(causal=True, from_last=True)), _pairs(4, 4, _Mask(True, False, 1))
    (7, 7)
    """
    place = np.arange(queries) + (keys - queries if mask.from_last else 0)
    lowest = (
        np.zeros_like(place) if mask.width_before < 0 else np.maximum(0, place - mask.width_before)
    )
    last = np.full_like(place, keys - 1)
    if mask.width_after >= 0:
        last = np.minimum(last, place + mask.width_after)
    if mask.causal:
        last = np.minimum(last, place)
    return int(np.maximum(0, last - lowest + 1).sum())


# FlexAttention


def _is_block_mask(value: Any) -> bool:
    """Whether an argument is a block mask, as ``BlockMask.as_tuple`` makes it."""
    return isinstance(value, tuple) and len(value) > 5 and isinstance(value[2], torch.Tensor)


def _share_of_blocks(block_mask: tuple[Any, ...]) -> float | None:
    """The share of blocks of a mask that are not skipped; None if it is unknown."""
    keys, partial, full = int(block_mask[1]), block_mask[2], block_mask[4]
    *_, block_keys, mask_function = block_mask
    if isinstance(partial, FakeTensor):
        lengths = int(block_mask[0]), keys
        blocks = int(block_mask[-3]), int(block_keys)
        return _share_of_function(_MaskFunction(mask_function), lengths, blocks)
    with _disable_current_modes():
        blocks_left = int(partial.sum()) + (0 if full is None else int(full.sum()))
    every_block: int = partial.numel() * ceil(keys / int(block_keys))
    return min(1.0, blocks_left / every_block)


class _MaskFunction:
    """The function of a mask; equal are those of the same code that refer to the same objects."""

    def __init__(self, function: Any) -> None:
        self.function = function
        cells = [id(cell.cell_contents) for cell in getattr(function, "__closure__", None) or ()]
        self.identity = (id(getattr(function, "__code__", function)), *cells)

    def __eq__(self, mask: object) -> bool:
        return isinstance(mask, _MaskFunction) and self.identity == mask.identity

    def __hash__(self) -> int:
        return hash(self.identity)


@lru_cache(maxsize=256)
def _share_of_function(
    mask: _MaskFunction, lengths: tuple[int, int], blocks: tuple[int, int]
) -> float | None:
    """The share of blocks in which a mask's function lets any pair through, for the first sequence
    and head; None if it cannot be computed, as where it reads fake tensors.
    """
    with suppress(Exception), _disable_current_modes():  # the function is the program's
        return _share_by_sample(mask.function, lengths, blocks)
    return None


def _share_by_sample(function: Any, lengths: tuple[int, int], blocks: tuple[int, int]) -> float:
    tokens, keys = lengths
    height, width = blocks
    rows = range(ceil(tokens / height))
    sampled = rows if len(rows) <= _SAMPLED_ROWS else rows[:: ceil(len(rows) / _SAMPLED_ROWS)]
    zero, every_key = torch.zeros((), dtype=torch.int64), torch.arange(keys)
    over_pairs = torch.vmap(
        torch.vmap(function, in_dims=(None, None, None, 0)), in_dims=(None, None, 0, None)
    )
    blocks_left = 0
    for row in sampled:
        queries = torch.arange(row * height, min((row + 1) * height, tokens))
        allowed = over_pairs(zero, zero, queries, every_key).any(0)
        blocks_left += _blocks_with_any(allowed, width)
    return blocks_left / (len(sampled) * ceil(keys / width))


def _blocks_with_any(allowed: torch.Tensor, width: int) -> int:
    """The number of blocks of keys with any that is allowed."""
    padded = torch.nn.functional.pad(allowed, (0, -len(allowed) % width))
    return int(padded.view(-1, width).any(1).sum())
