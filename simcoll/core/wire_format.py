"""Wire formats: the form in which a transfer carries its data, and how values are rounded to it.

* A floating-point type, such as ``bfloat16`` or ``float8_e4m3fn``: each value is rounded to the
  nearest one of that type, ties to even; to a type of 8 bits or bfloat16 a float64 goes through
  float32. What is too large becomes infinite, or NaN in a type without infinities.
* ``int8/B`` or ``int4/B``: blocks of B values, the last one of a transfer perhaps shorter, each
  with a scale of its own in float32: its largest magnitude divided by 127 (or 7). A value is
  divided by the scale and rounded to the nearest whole number, ties to even, all in float32. Where
  a value of a block is not finite, all of the block arrive as NaN. This is the symmetric block
  quantisation of ZeRO++ (`arXiv:2306.10209 <https://arxiv.org/abs/2306.10209>`_).

The receiver turns what arrives back into the data type of the plan, and reduces in that.

A message has its values in order, each in the type of the format; blocks come as all scales,
followed by all numbers, two of ``int4`` in a byte, the first in its lower half.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from simcoll.arrays import Array, Ints
from simcoll.core.reduction import parse_dtype
from simcoll.errors import ConfigError, nearest

__all__ = ["WireFormat", "is_floating", "wire_format"]

_BITS = {"int8": 8, "int4": 4}
SCALE_BYTES = 4
MOST_IN_BLOCK = 2**20
_EXAMPLES = ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "int8/256")
Count = TypeVar("Count", int, Ints)


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether a type is a real floating-point one, numpy's or of ``ml_dtypes``.

    >>> is_floating(parse_dtype("bfloat16")), is_floating(np.dtype(bool))
    (True, False)
    """
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def _is_of_ml_dtypes(dtype: np.dtype[Any]) -> bool:
    """Whether a type is not numpy's; its versions differ in how they round a float64 to it."""
    return dtype.type.__module__ != "numpy"


@dataclass(frozen=True, slots=True)
class WireFormat:
    """The form of data on its way.

    Attributes
    ----------
    name
        As schedules state it, such as ``"int8/256"``.
    dtype
        The floating-point type of a value; ``None`` in blocks of whole numbers.
    bits
        Of a value.
    block
        Number of values with one scale; 0 without scales.
    """

    name: str
    dtype: np.dtype[Any] | None
    bits: int
    block: int = 0

    def size_bytes(self, elements: Count) -> Count:
        """The bytes of a message of so many elements, with its scales.

        >>> wire_format("int8/256").size_bytes(1000), wire_format("int4/128").size_bytes(3)
        (1016, 6)
        """
        values = -(-elements * self.bits // 8)
        return values + SCALE_BYTES * -(-elements // self.block) if self.block else values

    def least_bytes(self) -> Fraction:
        """The least number of bytes for each element, in a message of any length.

        >>> wire_format("int8/256").least_bytes()
        Fraction(65, 64)
        """
        scale = Fraction(SCALE_BYTES, self.block) if self.block else Fraction(0)
        return Fraction(self.bits, 8) + scale

    def round_trip(self, values: Array) -> Array:
        """The values that arrive, in the type that was sent; messages lie along the last axis.

        >>> wire_format("int8/4").round_trip(np.array([127, 1.4, -63.5], np.float32)).tolist()
        [127.0, 1.0, -64.0]
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if self.dtype is not None:
                narrow = values.astype(np.float32) if _is_of_ml_dtypes(self.dtype) else values
                return narrow.astype(self.dtype).astype(values.dtype)
            return self._by_blocks(values.astype(np.float32)).astype(values.dtype)

    def encode(self, values: Array) -> Array:
        """The bytes of a message with these values, as real transports send it.

        >>> wire_format("int4/2").encode(np.array([7, -7, 3.5], np.float32)).tolist()
        [0, 0, 128, 63, 0, 0, 0, 63, 151, 7]
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if self.dtype is not None:
                narrow = values.astype(np.float32) if _is_of_ml_dtypes(self.dtype) else values
                return narrow.astype(self.dtype).view(np.uint8)
            scales, blocks = self._scales_and_numbers(values.astype(np.float32))
            finite = np.where(np.isfinite(scales), blocks, np.float32(0))
            numbers: Array = finite.astype(np.int8).reshape(-1)[: values.size].view(np.uint8)
            if self.bits < 8:
                halves = np.append(numbers, np.zeros(numbers.size % 2, np.uint8)) & 0xF
                numbers = halves[::2] | halves[1::2] << 4
            return np.concatenate([scales.reshape(-1).view(np.uint8), numbers])

    def decode(self, message: Array, elements: int, dtype: np.dtype[Any]) -> Array:
        """The values of such a message, in a type: those of :meth:`round_trip`, bit for bit.

        >>> int4 = wire_format("int4/2")
        >>> message = int4.encode(np.array([7, -7, 3.5], np.float32))
        >>> int4.decode(message, 3, np.dtype(np.float32)).tolist()
        [7.0, -7.0, 3.5]
        """
        with np.errstate(over="ignore", invalid="ignore"):
            if self.dtype is not None:
                return message.view(self.dtype).astype(dtype)
            nscales = -(-elements // self.block)
            scales = message[: SCALE_BYTES * nscales].view(np.float32)
            numbers: Array = message[SCALE_BYTES * nscales :].view(np.int8)
            if self.bits < 8:  # two in a byte; a shift to the right keeps the sign
                pairs = np.stack([numbers << 4 >> 4, numbers >> 4], axis=-1)
                numbers = pairs.reshape(-1)[:elements]
            scale = np.repeat(scales, min(self.block, elements))[:elements]
            values = numbers.astype(np.float32) * scale
            return np.where(np.isfinite(scale), values, np.float32(np.nan)).astype(dtype)

    def _by_blocks(self, values: Array) -> Array:
        """Values of float32 as they arrive with a scale for each block."""
        size = values.shape[-1]
        scales, blocks = self._scales_and_numbers(values)
        arriving = np.where(np.isfinite(scales), blocks * scales, np.nan).astype(np.float32)
        return arriving.reshape(*values.shape[:-1], -1)[..., :size]

    def _scales_and_numbers(self, values: Array) -> tuple[Array, Array]:
        """The scale of each block of values of float32, and the whole numbers in it."""
        size = values.shape[-1]
        block = max(min(self.block, size), 1)  # a short message is not padded to a long block
        missing = -size % block
        padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])
        blocks = padded.reshape(*values.shape[:-1], -1, block)
        levels = np.float32(2 ** (self.bits - 1) - 1)
        scales = np.abs(blocks).max(axis=-1, keepdims=True, initial=0) / levels
        # A block of zeros, or of numbers too small for a scale, arrives as zeros.
        numbers = np.where(scales == 0, np.float32(0), np.rint(blocks / scales))
        return scales, np.clip(numbers, -levels, levels) + np.float32(0)  # whole: no -0


@lru_cache(maxsize=64)
def wire_format(name: str) -> WireFormat:
    """The wire format of this name.

    Raises
    ------
    ConfigError
        When there is none; states the nearest one.

    Examples
    --------
    >>> wire_format("float16").bits
    16
    >>> wire_format("int8")
    Traceback (most recent call last):
    simcoll.errors.ConfigError: wire='int8': whole numbers need blocks with a scale; for example ...
    """
    if not isinstance(name, str):
        raise ConfigError(f"wire={name!r:.60}: expected a name, such as {_EXAMPLES[0]!r}")
    head, slash, block = name.partition("/")
    if head in _BITS:
        if not slash:
            raise ConfigError(
                f"wire={name!r}: whole numbers need blocks with a scale; for example '{name}/256', "
                "a scale for every 256 values"
            )
        if not re.fullmatch("[0-9]{1,7}", block) or not 1 <= int(block) <= MOST_IN_BLOCK:
            raise ConfigError(
                f"wire={name!r:.60}: expected {head}/ and the values in a block, 1 to "
                f"{MOST_IN_BLOCK}, such as '{head}/256'"
            )
        return WireFormat(f"{head}/{int(block)}", None, _BITS[head], int(block))
    try:
        dtype = parse_dtype(name)
    except ConfigError:
        dtype = np.dtype(np.void)
    if not is_floating(dtype):
        raise ConfigError(
            f"wire={name!r:.60}: no wire format; {nearest(name, _EXAMPLES)}, or int4/ and a number"
        )
    return WireFormat(dtype.name, dtype, 8 * dtype.itemsize)
