"""Time of the kernels of a transformer on one GPU, by roofline: matrix products, fused attention, element-wise kernels.

A matrix product is computed in tiles, a wave of them on all multiprocessors at a time: sizes that leave the last wave or the last
row of tiles partly empty take as long as if they were full (NVIDIA, *Matrix multiplication background*). Small tiles reach less of
the peak, because they load more for each product. All rates are those of the GPU's file, times what a calibration says.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from simcoll.units import FS_PER_SECOND
from simcoll.workload.calibration import Calibration
from simcoll.workload.gpu import DTYPE_BYTES, Gpu

if TYPE_CHECKING:
    from simcoll.workload.measured import Measured

__all__ = ["SMALLEST_WAVE", "Roofline"]

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""Rows and columns of an output tile, as cuBLAS has them."""
_LOAD = 16
"""Loading a row or column of a tile costs as much as this many products with it."""
SMALLEST_WAVE = 108
"""Multiprocessors of a GPU whose file does not say: of an A100."""
PLAIN_SHARE = 0.6
"""Of the peak that fused attention reaches on GPUs whose file has no measured rate: that of FlashAttention-2 on A100 and 3 on H100."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Times of kernels on a GPU, in seconds.

    Attributes
    ----------
    gpu, calibration
        What computes, and what measurements say about it.
    dtype
        Of matrix products; attention and everything else are of 16 bits where it has 8.
    measured
        Times that stand in for the rates where it has them.
    """

    gpu: Gpu
    calibration: Calibration
    dtype: str
    measured: Measured | None = None

    @property
    def memory_rate(self) -> float:
        """Bytes per second of an element-wise kernel."""
        ceiling = self.gpu.number("memory.measured", self.gpu.number("memory.bandwidth"))
        return ceiling * self.calibration.hbm

    @property
    def wide(self) -> str:
        """The 16-bit type beside the type of matrix products."""
        if DTYPE_BYTES[self.dtype] >= 2:
            return self.dtype
        return "bf16" if "peak.bf16" in self.gpu.values else "fp16"

    def elementwise(self, nbytes: float) -> float:
        """A kernel that reads and writes so many bytes in all."""
        return nbytes / self.memory_rate

    def gemm(self, rows: float, columns: float, depth: float, *, batch: int = 1, wide: bool = False) -> float:
        """A matrix product ``[rows, depth] x [depth, columns]``, ``batch`` of them.

        Examples
        --------
        >>> from simcoll.workload.calibration import UNCALIBRATED
        >>> from simcoll.workload.gpu import load_gpu
        >>> a100 = Roofline(load_gpu("a100-80"), UNCALIBRATED, "bf16")
        >>> round(2 * 8192**3 / a100.gemm(8192, 8192, 8192) / 1e12)  # TFLOP/s, of 271 in the best case
        271
        """
        if min(rows, columns, depth, batch) <= 0:
            return 0.0
        dtype = self.wide if wide else self.dtype
        known = self._known("gemm", (*((batch,) if batch > 1 else ()), rows, columns, depth), dtype)
        if known is not None:
            return known
        units = self.gpu.number("units.count", SMALLEST_WAVE)
        rate = self.gpu.gemm(dtype) * self.calibration.rate
        best = min(
            ceil(ceil(rows / a) * ceil(columns / b) * batch / units)
            * units
            * 2
            * a
            * b
            * depth
            / (rate * _relative(a, b))
            for a, b in TILES
        )
        moved = batch * (DTYPE_BYTES[dtype] * (rows * depth + depth * columns) + 2 * rows * columns)
        return max(best, self.elementwise(moved))

    def _known(self, operator: str, shape: tuple[float, ...], dtype: str) -> float | None:
        """The measured time of an operator in seconds, if there is one."""
        found = None if self.measured is None else self.measured.known(operator, shape, dtype)
        return None if found is None else found / FS_PER_SECOND

    def attention(self, flops: float, shape: tuple[float, ...] = (), *, backward: bool = False) -> float:
        """Fused attention of so many operations; ``shape``: sequences, heads, queries, keys, widths of keys and of values."""
        known = self._known("attention backward" if backward else "attention", shape, self.wide)
        if known is not None:
            return known
        place = "attention.backward" if backward else "attention.forward"
        rate = self.gpu.number(place, PLAIN_SHARE * self.gpu.peak(self.wide))
        return flops / (rate * self.gpu.sustained * self.calibration.rate * self.calibration.attention)


def _relative(a: int, b: int) -> float:
    """Rate of a tile over that of the largest."""
    most = 1 + _LOAD * (1 / 256 + 1 / 128)
    return most / (1 + _LOAD * (1 / a + 1 / b))
