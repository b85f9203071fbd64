"""Reductions: how two values combine, by name, on any numpy dtype (including ``ml_dtypes``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from simcoll.arrays import Array
from simcoll.core.vocabulary import PairReduction, ReductionName
from simcoll.errors import ConfigError, nearest

__all__ = [
    "NAMES",
    "REDUCTIONS",
    "Reduction",
    "combine",
    "parse_dtype",
    "parse_reduction",
    "premul_sum",
]

# On bool, a sum is "or" and a product is "and", as in numpy.
REDUCTIONS: dict[PairReduction, np.ufunc] = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
_DERIVED: tuple[Literal["avg", "premul_sum"], ...] = ("avg", "premul_sum")
NAMES: tuple[ReductionName, ...] = (*REDUCTIONS, *_DERIVED)
"""Names of all reductions."""
# Names that other libraries use.
_MEANT = {
    "add": "sum",
    "plus": "sum",
    "mean": "avg",
    "average": "avg",
    "prod": "product",
    "mul": "product",
    "minimum": "min",
    "maximum": "max",
    "and": "band",
    "or": "bor",
    "xor": "bxor",
}


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction: what happens to inputs, to pairs of values, and to results.

    Attributes
    ----------
    name
        ``sum``, ``product``, ``min``, ``max``, ``band``, ``bor``, ``bxor``, ``avg`` (sum, then
        divided by the number of ranks) or ``premul_sum`` (inputs times ``factor``, then summed).
    factor
        The factor of premul_sum.
    """

    name: ReductionName
    factor: float | None = None

    @property
    def pairwise(self) -> PairReduction:
        """The operation that combines two values: a key of ``REDUCTIONS``."""
        name = self.name
        return "sum" if name == "avg" or name == "premul_sum" else name  # noqa: PLR1714 - mypy narrows

    def prepared(self, values: Array) -> Array:
        """An input as the first step uses it: the array itself, or for premul_sum a scaled copy."""
        if self.factor is None:
            return values
        with np.errstate(over="ignore", invalid="ignore"):
            scaled: Array = values * values.dtype.type(self.factor)
        return scaled

    def finish(self, values: Array, nranks: int) -> None:
        """Turn a reduced output into the result, in place: for avg, divide.

        Integers are truncated towards zero, as in NCCL; 8- and 16-bit floats are divided in
        float32, where the number of ranks is exact, and rounded once; real and imaginary parts of
        complex numbers are divided separately.
        """
        if self.name != "avg":
            return
        if values.dtype.kind in "iu":
            wide = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64)
            quotient = wide // wide.dtype.type(nranks)
            inexact = (wide < 0) & (quotient * wide.dtype.type(nranks) != wide)
            values[...] = (quotient + inexact.astype(wide.dtype)).astype(values.dtype)
            return
        for part in (values.real, values.imag) if values.dtype.kind == "c" else (values,):
            count = np.float32(nranks) if part.itemsize < 4 else part.dtype.type(nranks)
            np.divide(part, count, out=part, casting="unsafe")

    def __str__(self) -> str:
        return self.name if self.factor is None else f"{self.name}({self.factor:g})"


def premul_sum(factor: Any) -> Reduction:
    """The sum of all inputs times a factor.

    >>> str(premul_sum(0.5))
    'premul_sum(0.5)'
    """
    return Reduction("premul_sum", _number(factor))


def _number(factor: Any) -> float:
    """The factor of a premul_sum as a finite number."""
    expected = "premul_sum needs a finite number as its factor"
    if not isinstance(factor, (int, float, np.integer, np.floating)) or isinstance(factor, bool):
        raise ConfigError(f"{expected}, got {factor!r:.60}")
    try:
        number = float(factor)
    except OverflowError:
        raise ConfigError(f"{expected}, got a whole number beyond the largest float") from None
    if not math.isfinite(number):
        raise ConfigError(f"{expected}, got {factor!r}")
    return number


_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


_DTYPE_ALIASES = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
    "double": "float64",
    "fp64": "float64",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}


def parse_dtype(name: Any) -> np.dtype[Any]:
    """A numpy dtype from its name; ``bfloat16`` and the float8 types come from ``ml_dtypes``.

    Short names (``bf16``, ``fp16``, ``half``, ``float``, ``fp8_e4m3``, ...) and PyTorch's dtypes
    are accepted, too.

    >>> parse_dtype("float32").itemsize, parse_dtype("bf16").name, parse_dtype("torch.half").name
    (4, 'bfloat16', 'float16')
    """
    if name is None:
        raise ConfigError("dtype is None; expected a number type such as 'float32'")
    if isinstance(name, str) or str(name).startswith("torch."):
        name = str(name).removeprefix("torch.")
        name = _DTYPE_ALIASES.get(name, name)
        if name in _ML_DTYPES:
            import ml_dtypes

            known_dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
            return known_dtype
    try:
        dtype: np.dtype[Any] = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        names = [
            f"{kind}{bits}"
            for kind in ("int", "uint", "float")
            for bits in (8, 16, 32, 64)
            if (kind, bits) != ("float", 8)
        ]
        choices = [*names, "complex64", "complex128", "bool", *_ML_DTYPES, *_DTYPE_ALIASES]
        raise ConfigError(f"unknown dtype {name!r}; {nearest(str(name), choices)}") from None
    if dtype.kind not in "biufcV" or (dtype.kind == "V" and dtype.name not in _ML_DTYPES):
        raise ConfigError(f"dtype {name!r} is not a number type")
    return dtype


def parse_reduction(op: str | Reduction, dtype: np.dtype[Any]) -> Reduction:
    """A reduction that is defined on a dtype, from a name or a :class:`Reduction`.

    As text, premul_sum is ``premul_sum:0.5``.

    Raises
    ------
    ConfigError
        For an unknown reduction; a bitwise one on a dtype without bits; min or max of complex
        numbers; avg or premul_sum of bool; a fractional factor for integers; a factor that is not a
        finite number, or that belongs to a reduction other than premul_sum.

    Examples
    --------
    >>> parse_reduction("AVG", np.dtype("float32"))
    Reduction(name='avg', factor=None)
    >>> parse_reduction("premul_sum:0.5", np.dtype("float32"))
    Reduction(name='premul_sum', factor=0.5)
    """
    reduction = _from_text(op) if isinstance(op, str) else op
    if not isinstance(reduction, Reduction):
        raise ConfigError(f"op must be the name of a reduction or a Reduction, got {op!r:.60}")
    name = reduction.name
    if name not in NAMES:  # a Reduction made from any text
        raise _unknown(op, name)
    if name == "premul_sum" and reduction.factor is None:
        raise ConfigError(
            "premul_sum needs its factor: simcoll.types.premul_sum(0.5), or as text premul_sum:0.5"
        )
    if name != "premul_sum" and reduction.factor is not None:
        raise ConfigError(
            f"reduction {name!r} takes no factor, got {reduction.factor!r:.60}; only premul_sum "
            "scales its inputs"
        )
    if name in ("band", "bor", "bxor") and dtype.kind not in "biu":
        raise ConfigError(f"reduction {name!r} needs an integer or bool dtype, got {dtype.name}")
    if name in ("min", "max") and dtype.kind == "c":
        raise ConfigError(
            f"reduction {name!r} is not defined on {dtype.name}: complex numbers have no order"
        )
    if name in _DERIVED and dtype.kind == "b":
        raise ConfigError(f"reduction {name!r} is not defined on bool")
    if reduction.factor is not None:
        _number(reduction.factor)
        _check_factor(reduction, reduction.factor, dtype)
    return reduction


def _from_text(text: str) -> Reduction:
    """A reduction from text; the factor of premul_sum follows a colon."""
    name, colon, factor = text.lower().partition(":")
    if not colon or name != "premul_sum":
        lower = text.lower()
        if lower not in NAMES:
            raise _unknown(text, lower)
        return Reduction(lower)
    try:
        return premul_sum(float(factor))
    except ValueError:
        raise ConfigError(
            f"op {text!r}: expected a number behind the colon, as in premul_sum:0.5"
        ) from None


def _unknown(op: str | Reduction, name: str) -> ConfigError:
    return ConfigError(f"unknown reduction {op!r}; {nearest(_MEANT.get(name, name), NAMES)}")


def _check_factor(reduction: Reduction, factor: float, dtype: np.dtype[Any]) -> None:
    """Refuse a factor that the dtype cannot hold."""
    if dtype.kind in "iu":
        if factor != int(factor):
            raise ConfigError(f"{reduction} needs a whole factor on {dtype.name}")
        fits = bool(np.iinfo(dtype).min <= factor <= np.iinfo(dtype).max)
    else:
        with np.errstate(over="ignore"):
            fits = bool(np.isfinite(np.asarray(dtype.type(factor)).astype(np.complex128)))
    if not fits:
        raise ConfigError(f"the factor of {reduction} does not fit {dtype.name}")


def combine(op: PairReduction, target: Array, received: Array) -> None:
    """Compute ``target = target (op) received``, in place and in the dtype of the target."""
    REDUCTIONS[op](target, received, out=target)
