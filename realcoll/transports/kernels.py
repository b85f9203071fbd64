"""Reductions on the GPU, bit-identical to numpy on the host.

CuPy compiles every kernel with float32 denormals flushed to zero. So float32, and bfloat16
(computed in float32 and rounded to nearest even), have kernels of our own that keep denormals. The
8-bit floats use a table of all 65,536 pairs, made on the host. All other types (integers, float16,
float64, sums of complex128) CuPy computes as numpy does.

An average divides by the number of ranks, in float32 for 16-bit types; 8-bit types use a table of
all 256 values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcoll.core.reduction import REDUCTIONS, Reduction
from simcoll.core.vocabulary import PairReduction
from simcoll.errors import ConfigError

__all__ = [
    "EXACT",
    "bfloat16_source",
    "device_dtype",
    "finisher",
    "float32_source",
    "mean_source",
    "mean_table",
    "pair_table",
    "reducer",
]

_TINY = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
_STORED: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(np.uint16),
    **dict.fromkeys(_TINY, np.dtype(np.uint8)),
}
_UFUNCS = {
    "sum": "add",
    "product": "multiply",
    "min": "minimum",
    "max": "maximum",
    "band": "bitwise_and",
    "bor": "bitwise_or",
    "bxor": "bitwise_xor",
}
_FLOAT = {
    "sum": "add_f32(x, y)",
    "product": "mul_f32(x, y)",
    "min": "(isnan(x) || less_f32(x, y)) ? x : y",
    "max": "(isnan(x) || less_f32(y, x)) ? x : y",
    "divide": "div_f32(x, y)",
}
_COMPLEX = {
    "sum": "t = T({add}(t.real(), r.real()), {add}(t.imag(), r.imag()));",
    # No fused multiply-add: the products are rounded before they are added.
    "product": """
auto re = {mul}(t.real(), r.real()), im = {mul}(t.real(), r.imag());
t = T({sub}(re, {mul}(t.imag(), r.imag())), {add}(im, {mul}(t.imag(), r.real())));
""",
}
# In PTX an instruction only flushes to zero when it says so; CUDA's operators and intrinsics say so
# when they are compiled like that.
EXACT = "".join(
    f"__device__ float {op}_f32(float x, float y) {{\n"
    f'  float z; asm("{op}.rn.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z;\n}}\n'
    for op in ("add", "sub", "mul", "div")
)
EXACT += """__device__ bool less_f32(float x, float y) {
  int z;
  asm("{ .reg .pred p; setp.lt.f32 p, %1, %2; selp.s32 %0, 1, 0, p; }"
      : "=r"(z) : "f"(x), "f"(y));
  return z;
}
"""


def device_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of CuPy's arrays for a dtype: CuPy lacks those of ``ml_dtypes``, which become
    integers.
    """
    return _STORED.get(dtype.name, dtype)


def float32_source(op: str) -> str:
    """CUDA source of ``t = t (op) r`` on float32, including "divide"."""
    return f"float x = t, y = r; t = {_FLOAT[op]};"


def bfloat16_source(op: str) -> str:
    """CUDA source of ``t = t (op) r`` on bfloat16: computed in float32, rounded to nearest even,
    NaNs quieted.

    For "divide", r is a float32.
    """
    right = "r" if op == "divide" else "__uint_as_float((unsigned int)r << 16)"
    return f"""
float x = __uint_as_float((unsigned int)t << 16), y = {right};
float z = {_FLOAT[op]};
unsigned int bits = __float_as_uint(z);
unsigned int quiet = (bits >> 16 & 0x8000) | 0x7fc0;
unsigned int even = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
t = (unsigned short)(isnan(z) ? quiet : even);
"""


def mean_source(dtype: np.dtype[Any]) -> str:
    """CUDA source of ``t = t / r`` on float16 (r: float32) and on both parts of a complex number
    (r: their type).
    """
    if dtype.name == "float16":
        return "t = T(div_f32(float(t), r));"
    divide = "div_f32" if dtype.name == "complex64" else "__ddiv_rn"
    return f"t = T({divide}(t.real(), r), {divide}(t.imag(), r));"


def mean_table(dtype: np.dtype[Any], nranks: int) -> NDArray[np.uint8]:
    """Every 8-bit value divided by the number of ranks."""
    values = np.arange(256, dtype=np.uint8)
    with np.errstate(all="ignore"):
        Reduction("avg").finish(values.view(dtype), nranks)
    return values


def pair_table(op: PairReduction, dtype: np.dtype[Any]) -> NDArray[np.uint8]:
    """The result of every pair of 8-bit values: at ``256 * left + right``."""
    values = np.arange(256, dtype=np.uint8)
    lefts = np.repeat(values, 256).view(dtype)
    with np.errstate(all="ignore"):
        results = REDUCTIONS[op](lefts, np.tile(values, 256).view(dtype))
    table: NDArray[np.uint8] = results.astype(dtype).view(np.uint8)
    return table


def _by_table(cupy: Any, op: PairReduction, dtype: np.dtype[Any]) -> Callable[[Any, Any], object]:
    table = cupy.asarray(pair_table(op, dtype))
    kernel = cupy.ElementwiseKernel(
        "uint8 r, raw uint8 table", "uint8 t", "t = table[256 * t + r];", f"simcoll_{op}_pairs"
    )
    return lambda target, source: kernel(source, table, target)


def _by_formula(cupy: Any, op: str, dtype: np.dtype[Any]) -> Callable[[Any, Any], object]:
    dtype_name, source = (
        device_dtype(dtype).name,
        (float32_source if dtype.name == "float32" else bfloat16_source)(op),
    )
    right = "float32" if op == "divide" else dtype_name
    kernel = cupy.ElementwiseKernel(
        f"{right} r", f"{dtype_name} t", source, f"simcoll_{op}_{dtype.name}", preamble=EXACT
    )
    return lambda target, source: kernel(source, target)


_OF_TRUTHS: dict[PairReduction, PairReduction] = {
    "sum": "bor",
    "max": "bor",
    "product": "band",
    "min": "band",
}
"""Reductions of bool, as in numpy."""


def reducer(cupy: Any, op: PairReduction, dtype: np.dtype[Any]) -> Callable[[Any, Any], object]:
    """``target = target (op) source`` on arrays of ``device_dtype(dtype)``, on the current stream.

    Raises
    ------
    ConfigError
        When there is no kernel for it.
    """
    if dtype.name in _TINY:
        return _by_table(cupy, op, dtype)
    if dtype.name in ("bfloat16", "float32"):
        if op not in _FLOAT:
            raise ConfigError(f"no kernel for {op} of {dtype.name}")
        return _by_formula(cupy, op, dtype)
    if dtype.kind == "c" and (op == "product" or (op == "sum" and dtype.name == "complex64")):
        names = {
            name: f"{name}_f32" if dtype.name == "complex64" else f"__d{name}_rn"
            for name in ("mul", "add", "sub")
        }
        source = _COMPLEX[op].format(**names)
        kernel = cupy.ElementwiseKernel(
            "T r", "T t", source, f"simcoll_{op}_{dtype.name}", preamble=EXACT
        )
        return lambda target, source: kernel(source, target)
    if dtype.kind == "b":
        op = _OF_TRUTHS.get(op, op)
    ufunc = getattr(cupy, _UFUNCS[op])
    return lambda target, source: ufunc(target, source, out=target)


def finisher(cupy: Any, dtype: np.dtype[Any], nranks: int) -> Callable[[Any], object]:
    """Divide by the number of ranks, as :meth:`~simcoll.core.reduction.Reduction.finish` does on
    the host.
    """
    if dtype.name in _TINY:
        table = cupy.asarray(mean_table(dtype, nranks))
        lookup = cupy.ElementwiseKernel(
            "raw uint8 table", "uint8 t", "t = table[t];", "simcoll_divide_bytes"
        )
        return lambda target: lookup(table, target)
    if dtype.kind in "iu":
        # Beyond the type's range a quotient is always 0, and CUDA's own division is towards zero.
        source = f"t = (T)(t / (T){nranks});" if nranks <= np.iinfo(dtype).max else "t = 0;"
        kernel = cupy.ElementwiseKernel("", "T t", source, f"simcoll_divide_{nranks}")
        divided: Callable[[Any], object] = kernel
        return divided
    part = np.float64 if dtype.name in ("float64", "complex128") else np.float32
    count = cupy.asarray(np.full(1, nranks, part))
    if dtype.name in ("bfloat16", "float32"):
        divide = _by_formula(cupy, "divide", dtype)
        return lambda target: divide(target, count)
    if dtype.name == "float64":
        return lambda target: cupy.true_divide(target, count, out=target)
    name = np.dtype(part).name
    mean = cupy.ElementwiseKernel(
        f"{name} r", "T t", mean_source(dtype), f"simcoll_divide_{dtype.name}", preamble=EXACT
    )
    return lambda target: mean(count, target)
