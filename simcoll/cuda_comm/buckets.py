"""Buckets: small tensors that are sent together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simcoll.cuda_comm.devices import Array

__all__ = ["BUFFER_BYTES", "buckets", "cut"]

BUFFER_BYTES = 10485760
"""PyTorch's default."""


def buckets(tensors: Sequence[Array], buffer_size: int) -> list[list[int]]:
    """Group consecutive tensors of one dtype that fit a buffer, ordered by each bucket's first tensor."""
    if buffer_size <= 0:
        raise ValueError(f"buffer_size must be above 0, but got {buffer_size}")
    result: list[list[int]] = []
    filling: dict[str, tuple[list[int], int]] = {}
    for index, tensor in enumerate(tensors):
        bucket, size = filling.get(tensor.dtype.name, ([], 0))
        if not bucket or (size and size + tensor.nbytes > buffer_size):
            bucket, size = [], 0
            result.append(bucket)
        bucket.append(index)
        filling[tensor.dtype.name] = (bucket, size + tensor.nbytes)
    return result


def cut(flat: Array, like: Sequence[Array]) -> list[Array]:
    """Split a buffer into tensors shaped like others."""
    ends = np.cumsum([part.size for part in like])[:-1]
    return [piece.reshape(part.shape) for piece, part in zip(np.split(flat, ends), like, strict=True)]
