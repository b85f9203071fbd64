"""Roofline times of a transformer's kernels on one GPU: matrix products, fused attention,
element-wise kernels.

A matrix product is computed in tiles, one wave of tiles on all multiprocessors at a time: a partly
empty last wave or row of tiles takes as long as a full one (NVIDIA, *Matrix multiplication
background*). Small tiles reach a smaller share of the peak, because they load more per product. All
rates are the GPU file's, times the calibration.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from simcoll.training.gpu import DTYPE_BYTES, Gpu
from simcoll.training.parallel import AttentionKernel
from simcoll.training.step_calibration import StepCalibration
from simcoll.units import FS_PER_SECOND

if TYPE_CHECKING:
    from simcoll.training.measured_kernels import OperatorTimes

__all__ = ["SMALLEST_WAVE", "Roofline"]

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""Rows and columns of cuBLAS' output tiles."""
_LOAD = 16
"""Cost of loading a row or column of a tile, in products."""
SHORT_BYTES, SHORT_SHARE = 500, 0.75
"""A short product takes as long as one of a depth of these bytes and this share of its own, because
tiles begin and end besides.

cuBLAS on A100, H100, H200, B200, GB200, B300 and GB300, matrices of 100 million elements, rate over
that of depths of 3,072 to 8,192: in 8 bits 0.60 at 512, 0.73 at 768, 0.81 at 1,024, 0.90 at 1,536,
0.94 at 2,048; in 16 bits 0.85, 0.93, 0.96, 0.99 and 1 (ai-dynamo/aiconfigurator 095f58a, gemm of
TensorRT-LLM 1.3). That is within 6 % of each. From 2,000 bytes on it is all of it.
"""
WIDE_HEAD, NARROW_HEAD = 128, 64
"""Widths of heads whose rates of attention GPU files have: the rate, and the share of it."""
SMALLEST_WAVE = 108
"""Multiprocessors of a GPU whose file lacks the number: an A100's."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Times of kernels on a GPU, in seconds.

    Attributes
    ----------
    gpu, calibration
        The GPU and its calibration.
    dtype
        Type of matrix products; with an 8-bit type, attention and everything else use 16 bits.
    measured
        Measured times, which take precedence over the rates.
    """

    gpu: Gpu
    calibration: StepCalibration
    dtype: str
    measured: OperatorTimes | None = None

    @property
    def memory_rate(self) -> float:
        """Bytes per second of an element-wise kernel."""
        ceiling = self.gpu.number("memory.measured", self.gpu.number("memory.bandwidth"))
        return ceiling * self.calibration.hbm

    @property
    def wide(self) -> str:
        """The 16-bit type that accompanies the type of matrix products."""
        if DTYPE_BYTES[self.dtype] >= 2:
            return self.dtype
        return "bf16" if "peak.bf16" in self.gpu.values else "fp16"

    def elementwise(self, nbytes: float) -> float:
        """Time of a kernel that reads and writes ``nbytes`` in total."""
        return nbytes / self.memory_rate

    def gemm(
        self,
        rows: float,
        columns: float,
        depth: float,
        *,
        batch: int = 1,
        wide: bool = False,
        short: bool = False,
    ) -> float:
        """Time of a batch of matrix products ``[rows, depth] x [depth, columns]``.

        ``short``: whether it pays for a short depth, as experts do. Dense models have deeper
        products, and constants of attention from products were fitted without.

        Examples
        --------
        >>> from simcoll.training.step_calibration import UNCALIBRATED
        >>> from simcoll.training.gpu import load_gpu
        >>> a100 = Roofline(load_gpu("a100-80"), UNCALIBRATED, "bf16")
        >>> flops = 2 * 8192**3
        >>> round(flops / a100.gemm(8192, 8192, 8192) / 1e12)  # TFLOP/s, of 271 in the best case
        271
        """
        if min(rows, columns, depth, batch) <= 0:
            return 0.0
        dtype = self.wide if wide else self.dtype
        measured_seconds = self._measured_seconds(
            "gemm", (*((batch,) if batch > 1 else ()), rows, columns, depth), dtype
        )
        if measured_seconds is not None:
            return measured_seconds
        units = self.gpu.number("units.count", SMALLEST_WAVE)
        rate = self.gpu.gemm(dtype) * self.calibration.rate
        computed = depth
        if short:
            size = DTYPE_BYTES[dtype]
            computed = max(depth, SHORT_BYTES / size + SHORT_SHARE * depth)
        best = min(
            ceil(ceil(rows / a) * ceil(columns / b) * batch / units)
            * units
            * 2
            * a
            * b
            * computed
            / (rate * _relative(a, b))
            for a, b in TILES
        )
        moved = batch * (DTYPE_BYTES[dtype] * (rows * depth + depth * columns) + 2 * rows * columns)
        return max(best, self.elementwise(moved))

    def _measured_seconds(
        self, operator: str, shape: tuple[float, ...], dtype: str
    ) -> float | None:
        """The measured time of an operator in seconds, if any."""
        time_fs = None if self.measured is None else self.measured.lookup(operator, shape, dtype)
        return None if time_fs is None else time_fs / FS_PER_SECOND

    def attention(
        self,
        flops: float,
        shape: tuple[float, ...] = (),
        *,
        width: float = WIDE_HEAD,
        backward: bool = False,
        kernel: AttentionKernel = "fused",
    ) -> float:
        """Time of fused attention; ``shape``: sequences, heads, queries, keys, widths of keys and
        of values; ``width``: of a head.

        Rates are those of heads of 128. A head of 64 needs as many exponentials for half of the
        products, so that kernels reach a smaller share (``narrow.attention`` of the GPU), and one
        between the two a share between.
        """
        measured_seconds = self._measured_seconds(
            "attention backward" if backward else "attention", shape, self.wide
        )
        if measured_seconds is not None:
            return measured_seconds
        rate = self.gpu.attention(self.wide, backward=backward, kernel=kernel)
        if kernel in {"fused", "fp8"} and width < WIDE_HEAD:
            narrow = self.gpu.number("narrow.attention", 1.0)
            share = max(0.0, (width - NARROW_HEAD) / (WIDE_HEAD - NARROW_HEAD))
            rate *= narrow + (1 - narrow) * share
        return flops / (rate * self.calibration.rate * self.calibration.attention)


def _relative(a: int, b: int) -> float:
    """KernelRate of a tile relative to the largest tile's."""
    largest = 1 + _LOAD * (1 / 256 + 1 / 128)
    return largest / (1 + _LOAD * (1 / a + 1 / b))
