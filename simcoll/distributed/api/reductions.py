"""Reduction operators, with torch's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from simcoll.core.reduction import NAMES, Reduction
from simcoll.core.vocabulary import ReductionName
from simcoll.errors import nearest

__all__ = [
    "ReduceOp",
    "premul_sum",
    "supports_complex",
]

_COMPLEX = ("SUM", "AVG", "PREMUL_SUM")
_NAMES: dict[str, ReductionName] = {name.upper(): name for name in NAMES}


@dataclass(frozen=True, slots=True, init=False)
class ReduceOp:
    """A reduction: ``SUM``, ``AVG``, ``PRODUCT``, ``MIN``, ``MAX``, ``BAND``, ``BOR``, ``BXOR`` or
    ``PREMUL_SUM``.

    ``AVG`` divides the sum by the number of ranks. :func:`premul_sum` makes a ``PREMUL_SUM``.

    >>> ReduceOp(ReduceOp.SUM) == ReduceOp.SUM, isinstance(ReduceOp.SUM, ReduceOp)
    (True, True)
    """

    name: str
    factor: float | None
    reduction: Reduction = field(repr=False, compare=False)
    """The plan's name for it."""

    SUM: ClassVar[ReduceOp]
    AVG: ClassVar[ReduceOp]
    PRODUCT: ClassVar[ReduceOp]
    MIN: ClassVar[ReduceOp]
    MAX: ClassVar[ReduceOp]
    BAND: ClassVar[ReduceOp]
    BOR: ClassVar[ReduceOp]
    BXOR: ClassVar[ReduceOp]
    PREMUL_SUM: ClassVar[ReduceOp]

    def __init__(self, op: ReduceOp | str, factor: float | None = None) -> None:
        name, factor = (op.name, op.factor) if isinstance(op, ReduceOp) else (op, factor)
        if name not in _NAMES:
            raise ValueError(f"unknown ReduceOp {name!r}; {nearest(str(name), _NAMES)}")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "factor", factor)
        object.__setattr__(self, "reduction", Reduction(_NAMES[name], factor))

    def __reduce__(self) -> tuple[type[ReduceOp], tuple[str, float | None]]:
        return ReduceOp, (self.name, self.factor)

    def __str__(self) -> str:
        return self.name if self.factor is None else f"{self.name}({self.factor:g})"


for _name in _NAMES:
    setattr(ReduceOp, _name, ReduceOp(_name))


def premul_sum(factor: Any) -> ReduceOp:
    """The sum of all inputs, each multiplied by a factor on its own rank (NCCL's PreMulSum).

    >>> str(premul_sum(0.5))
    'PREMUL_SUM(0.5)'
    """
    return ReduceOp("PREMUL_SUM", float(factor.item() if hasattr(factor, "item") else factor))


def supports_complex(reduceOp: ReduceOp) -> bool:  # torch's name
    """Whether an operator reduces complex numbers: all but products, extremes and those on bits.

    >>> supports_complex(ReduceOp.SUM), supports_complex(ReduceOp.MAX)
    (True, False)
    """
    return ReduceOp(reduceOp).name in _COMPLEX


def check_op(op: Any, dtype: np.dtype[Any], function: str) -> Reduction:
    """The reduction of an operator; raises as torch does if the dtype or the function does not
    support it.
    """
    if not isinstance(op, ReduceOp):
        raise TypeError(
            f"{function}(): op must be a ReduceOp such as ReduceOp.SUM, got {op!r} "
            f"({type(op).__name__})"
        )
    if op.name == "PREMUL_SUM" and op.factor is None:
        raise TypeError(
            f"{function}(): ReduceOp.PREMUL_SUM needs its factor: pass premul_sum(factor)"
        )
    if dtype.kind == "c" and op.name not in _COMPLEX:
        kind = ValueError if function == "all_reduce" else RuntimeError
        raise kind(
            f"{function} does not support RedOpType.{op.name} on complex tensors; use SUM, AVG or "
            "PREMUL_SUM"
        )
    if op.name in ("BAND", "BOR", "BXOR") and dtype.kind not in "biu":
        raise RuntimeError(f"Cannot use ReduceOp.{op.name} with non-integral dtype {dtype.name}")
    if op.name in ("AVG", "PREMUL_SUM") and dtype.kind == "b":
        raise RuntimeError(f"Cannot use ReduceOp.{op.name} with dtype bool")
    if op.factor is not None and dtype.kind in "iu" and op.factor != int(op.factor):
        raise RuntimeError(f"ReduceOp.{op} needs a whole factor for dtype {dtype.name}")
    return op.reduction
