"""Reductions: how two values combine, by name, on any numpy dtype (``ml_dtypes`` included)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.errors import ConfigError, nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["REDUCTIONS", "check_reduction", "combine", "parse_dtype"]

REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


def parse_dtype(name: Any) -> np.dtype[Any]:
    """A numpy dtype from its name; ``bfloat16`` and the float8 types come from ``ml_dtypes``.

    >>> parse_dtype("float32").itemsize, parse_dtype("bfloat16").itemsize
    (4, 2)
    """
    aliases = {"float": "float32", "half": "float16", "double": "float64"}
    if isinstance(name, str):
        if name in _ML_DTYPES:
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, name))
        name = aliases.get(name, name)
    try:
        dtype = np.dtype(name)
    except TypeError:
        known = [f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64) if (kind, bits) != ("float", 8)]
        raise ConfigError(f"unknown dtype {name!r}; {nearest(str(name), [*known, 'complex64', 'complex128', 'bool', *_ML_DTYPES])}") from None
    if dtype.kind not in "biufcV" or (dtype.kind == "V" and dtype.name not in _ML_DTYPES):
        raise ConfigError(f"dtype {name!r} is not a number type")
    return dtype


def check_reduction(op: str, dtype: np.dtype[Any]) -> str:
    """The name of a reduction that is defined on the dtype.

    Raises
    ------
    ConfigError
        For an unknown reduction, a bitwise one on a dtype without bits, or an order of complex numbers.
    """
    name = op.lower()
    if name not in REDUCTIONS:
        raise ConfigError(f"unknown reduction {op!r}; {nearest(name, REDUCTIONS)}")
    if name in ("band", "bor", "bxor") and dtype.kind not in "biu":
        raise ConfigError(f"reduction {name!r} needs an integer or bool dtype, got {dtype.name}")
    if name in ("min", "max") and dtype.kind == "c":
        raise ConfigError(f"reduction {name!r} is not defined on {dtype.name}: complex numbers have no order")
    return name


def combine(op: str, target: NDArray[Any], received: NDArray[Any]) -> None:
    """``target = target (op) received``, in place and in the dtype of the target."""
    REDUCTIONS[op](target, received, out=target)
