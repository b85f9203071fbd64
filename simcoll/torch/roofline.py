"""Time model of PyTorch operators on a GPU: a roofline of floating-point operations and bytes, or
tables of measured times.

Products, attention and memory have the rates of :class:`simcoll.training.operators.Roofline`, which
also times the steps of ``simcoll step``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator
from torch.utils.flop_counter import flop_registry

from simcoll.errors import ConfigError, nearest
from simcoll.files.strict import read_file
from simcoll.files.text import parse_toml
from simcoll.torch.attention_work import AttentionWork, attention_work, flex_work
from simcoll.torch.module_time import Times
from simcoll.torch.operator_work import (
    multiplies,
    named_arguments,
    product_of,
    sparse_flops,
    tensors_of,
    traffic_bytes,
    traits_of,
)
from simcoll.training.gpu import Gpu, load_gpu
from simcoll.training.operators import Roofline
from simcoll.training.step_calibration import UNCALIBRATED
from simcoll.units import FS_PER_SECOND, parse_time

__all__ = ["NO_KERNEL", "Kernel", "OperatorCosts", "operator_name", "read_costs"]

MAX_FILE_BYTES = 2**20
KEPT_KERNELS = 1 << 16
"""Times of calls kept for calls of an equal key; at the most, all are forgotten."""
_DTYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
    torch.int8: "int8",
}
_WIDE_SHARE = 0.6
"""Share of the rate of products that attention in 32 bits reaches: assumed, that of fused attention
in 16 bits (gpus/).
"""
_HOST_SHARE = 0.8
"""Share of the memory bandwidth of a host that operators reach: assumed, that of GPUs."""
_HOST_MEMORY = (
    "operators on the host, which decide the time, were timed by the bandwidth of its memory, "
)
_HOST_PRODUCTS = (
    "the program multiplies matrices on the host: timed by their bytes alone, in less than the "
    "time of its processors"
)
_CONVOLUTIONS: dict[Any, Callable[..., int]] = {
    operator: count
    for operator, count in flop_registry.items()
    if "conv" in getattr(operator, "__name__", "")
}
_MOVES = (
    "_adaptive_avg",
    "_embedding_bag",
    "_foreach_",
    "_fused_",
    "_log_softmax",
    "_pad",
    "_softmax",
    "_to_copy",
    "_to_dense",
    "_to_sparse",
    "arange",
    "avg_pool",
    "batch_norm",
    "_batch_norm",
    "bernoulli",
    "bucketize",
    "cat",
    "clone",
    "col2im",
    "constant_pad",
    "copy",
    "cum",
    "dot",
    "embedding",
    "eye",
    "fill",
    "flip",
    "full",
    "gather",
    "im2col",
    "index",
    "linspace",
    "log_",
    "masked_",
    "max_pool",
    "multinomial",
    "mv",
    "native_",
    "new_",
    "nll_loss",
    "nonzero",
    "normal",
    "one_hot",
    "ones",
    "pad",
    "rand",
    "reflection_pad",
    "repeat",
    "roll",
    "scalar_tensor",
    "scatter",
    "select_backward",
    "select_scatter",
    "slice_backward",
    "slice_scatter",
    "split_with_sizes_copy",
    "stack",
    "tril",
    "triu",
    "unfold",
    "uniform",
    "upsample",
    "zero",
)
"""Name prefixes of memory-bound operators, besides those that PyTorch tags as pointwise or
reductions.
"""


class Kernel(NamedTuple):
    """What a call enqueues on a GPU.

    Attributes
    ----------
    time_fs
        Its time, at least the floor of a kernel.
    ruled
        Whether there is a rule for the operator; without one, the time is that of its bytes.
    launched
        Whether it is a kernel at all, and not a view or a query.
    """

    time_fs: int
    ruled: bool = True
    launched: bool = True


NO_KERNEL = Kernel(0, launched=False)


class OperatorCosts:
    """The time of each operator, and the names of operators without a rule.

    Parameters
    ----------
    gpu
        Its measured ceilings: of matrix products and fused attention in FLOP/s, of memory in bytes
        per second; the least time of a kernel, and the host's time to launch one.
    measured
        Times in femtoseconds by operator (``aten::mm``), or by operator and shapes of its tensors
        (``aten::mm [8, 4096] [4096, 4096]``).
    modules
        The same for the calls of modules: see :class:`~simcoll.torch.module_time.ModuleTimes`.

    Attributes
    ----------
    unknown
        Calls of operators without a rule.
    assumed
        What was assumed about calls, in a sentence each.
    """

    def __init__(self, gpu: Gpu, measured: Mapping[str, int], modules: Mapping[str, Times]) -> None:
        self.gpu = gpu
        self.measured = measured
        self.modules = modules
        self.unknown: Counter[str] = Counter()
        self.assumed: dict[str, None] = {}
        self._rooflines: dict[str, Roofline] = {}
        self._kernels: dict[tuple[Any, str], Kernel] = {}

    @cached_property
    def floor_fs(self) -> int:
        """The least time of a kernel."""
        return round(self.gpu.number("kernel.floor", 0.0) * FS_PER_SECOND)

    @cached_property
    def launch_fs(self) -> int:
        """The host's time for an operator of an eager program."""
        return round(self.gpu.number("launch.eager", 0.0) * FS_PER_SECOND)

    @cached_property
    def compiled_launch_fs(self) -> int:
        """The host's time for a kernel of a compiled program."""
        return round(self.gpu.number("launch.compiled", 0.0) * FS_PER_SECOND)

    def host_copy_fs(self, nbytes: int) -> int:
        """The time of a copy between the memory of the GPU and the host's."""
        rate = self.gpu.number("host.bandwidth", self.gpu.number("memory.bandwidth"))
        return max(self.floor_fs, round(nbytes / rate * FS_PER_SECOND))

    def on_host(self, func: Any, args: Any, kwargs: Any, result: Any) -> Kernel:
        """The time of an operator that the host runs: that of its bytes, in the memory of which
        this GPU has a share.
        """
        traits = traits_of(func)
        if not traits.launches or not (traits.mutable or tensors_of(result)):
            return NO_KERNEL
        if product_of(func, args, kwargs) is not None:
            self.assumed[_HOST_PRODUCTS] = None
        rate = self.gpu.number("host.memory", self.gpu.number("host.bandwidth"))
        nbytes = traffic_bytes(func, args, kwargs, result)
        return Kernel(round(nbytes / (_HOST_SHARE * rate) * FS_PER_SECOND))

    def note_host(self) -> None:
        """Note that a run's time depends on the rate of its host's memory, if that is assumed."""
        if self.gpu.evidence.get("host.memory") == "assumed":
            self.assumed[_HOST_MEMORY + self.gpu.sources["host.memory"]] = None

    def is_free(self, func: Any) -> bool:
        """Whether an operator is never a kernel: a view or a query without a measured time."""
        return not (self.measured or traits_of(func).launches)

    def kernel_of_key(self, key: Any, func: Any, args: Any, kwargs: Any, result: Any) -> Kernel:
        """The kernel of one operator call, which calls of an equal ``key`` in PyTorch's cache of
        fake operators share: it has all that is known of their arguments. None: no other shares it.
        """
        if key is None or key.key[0] is not func or not _is_timed_by_key(func):
            return self.kernel(func, args, kwargs, result)
        call = key, torch.get_float32_matmul_precision()
        kernel = self._kernels.get(call)
        if kernel is None:
            if len(self._kernels) >= KEPT_KERNELS:
                self._kernels.clear()
            kernel = self._kernels[call] = self.kernel(func, args, kwargs, result)
        return kernel

    def kernel(self, func: Any, args: Any, kwargs: Any, result: Any) -> Kernel:
        """The kernel of one operator call."""
        if self.measured:
            name = operator_name(func)
            shapes = " ".join(str(list(tensor.shape)) for tensor in tensors_of((args, kwargs)))
            measured_fs = self.measured.get(f"{name} {shapes}", self.measured.get(name))
            if measured_fs is not None:
                return Kernel(measured_fs)
        traits = traits_of(func)
        if not traits.launches or not (traits.mutable or tensors_of(result)):
            return NO_KERNEL
        moved = self.roofline("fp32").elementwise(traffic_bytes(func, args, kwargs, result))
        computed = self._compute_seconds(func, args, kwargs, result)
        ruled = computed is not None or _moves_bytes(func)
        time_fs = round(max(moved, computed or 0.0) * FS_PER_SECOND)
        return Kernel(max(time_fs, self.floor_fs), ruled)

    def roofline(self, dtype: str) -> Roofline:
        """The rates for products of a type."""
        if dtype not in self._rooflines:
            self._rooflines[dtype] = Roofline(self.gpu, UNCALIBRATED, dtype)
        return self._rooflines[dtype]

    def _compute_seconds(self, func: Any, args: Any, kwargs: Any, result: Any) -> float | None:
        """Seconds of a call's products, convolutions or attention; None if it has none."""
        if not _computes(func):
            return None
        name = operator_name(func)
        if isinstance(func, HigherOrderOperator):
            if not name.startswith("flex_attention"):
                return None
            return self.attention(flex_work(args, backward="backward" in name), args[0].dtype)
        if "attention" in name or "varlen_attn" in name:
            arguments = named_arguments(func, args, kwargs)
            if "query" not in arguments:
                return None
            work = attention_work(traits_of(func).name, arguments)
            return self.attention(work, arguments["query"].dtype)
        product = product_of(func, args, kwargs)
        if product is not None:
            if product.assumption:
                self.assumed[product.assumption] = None
            roofline = self.roofline(self._dtype(name, args, products=True))
            return roofline.gemm(*product[:3], batch=product.batch)
        operations = sparse_flops(func, args, kwargs)
        if operations:  # on the plain units, which the sparse libraries use
            return operations / self.gpu.peak(self._dtype(name, args, products=False))
        count = _CONVOLUTIONS.get(getattr(func, "overloadpacket", func))
        if count is None:
            return None
        rate = self.gpu.gemm(self._dtype(name, args, products=torch.backends.cudnn.allow_tf32))
        return float(count(*args, **kwargs, out_val=result)) / rate

    def attention(self, work: AttentionWork, dtype: torch.dtype) -> float:
        """Seconds of fused attention; only kernels for 16 bits and fewer have measured rates."""
        if work.assumption:
            self.assumed[work.assumption] = None
        name = _DTYPES.get(dtype, "fp32")
        if name == "fp32":
            return work.flops / (_WIDE_SHARE * self.gpu.gemm(name))
        return self.roofline(name).attention(work.flops, backward=work.backward)

    def _dtype(self, name: str, args: Any, *, products: bool) -> str:
        """The type of a product's factors by their names in the GPU's file. ``products``: those of
        32 bits may be rounded to tf32, as the program allows.
        """
        tensors = tensors_of(args)
        dtype = _DTYPES.get(tensors[-1 if "addmm" in name else 0].dtype)
        if dtype is None:
            raise ConfigError(f"{name}: GPU {self.gpu.name!r} has no rate for {tensors[0].dtype}")
        rounded = products and ("conv" in name or torch.get_float32_matmul_precision() != "highest")
        return "tf32" if dtype == "fp32" and rounded and "peak.tf32" in self.gpu.values else dtype


@cache
def _is_timed_by_key(func: Any) -> bool:
    """Whether the arguments of an operator decide its time: not for convolutions, which depend on
    settings of cuDNN, nor where elements decide the shape of the result.
    """
    if isinstance(func, HigherOrderOperator) or func.overloadpacket in _CONVOLUTIONS:
        return False
    return not {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags)


@cache
def _computes(func: Any) -> bool:
    """Whether an operator may have products, convolutions or attention."""
    if isinstance(func, HigherOrderOperator) or multiplies(func):
        return True
    name = operator_name(func)
    return "attention" in name or "varlen_attn" in name or func.overloadpacket in _CONVOLUTIONS


def operator_name(func: Any) -> str:
    """The name, such as ``aten::mm``; operators that call functions, such as ``flex_attention``,
    have no namespace.
    """
    return str(func.name() if isinstance(func, HigherOrderOperator) else func._schema.name)


@cache
def _moves_bytes(func: Any) -> bool:
    """Whether an operator is known to be memory-bound."""
    if func.namespace not in {"aten", "prims"}:
        return bool(func.namespace == "fsdp")
    memory_bound = {torch.Tag.pointwise, torch.Tag.reduction} & set(func.tags)
    return bool(memory_bound) or func.overloadpacket.__name__.startswith(_MOVES)


def read_costs(compute: str | Path, gpu: str | Path | None) -> OperatorCosts | None:
    """Read the costs named by ``compute``: ``"none"``, ``"roofline"``, or a file of measured
    operators and modules.

    Raises
    ------
    ConfigError
        When there is no such file, or no GPU is named.
    """
    if compute == "none":
        return None
    file = str(compute)
    if file != "roofline" and not file.endswith(".toml"):
        raise ConfigError(
            f"compute {file!r}; {nearest(file, ['none', 'roofline'])}; or a .toml file of measured "
            "times"
        )
    if gpu is None:
        raise ConfigError(
            "the time of operators depends on the GPU: give one, such as --gpu h100 (in Python "
            "gpu='h100')"
        )
    measured: dict[str, int] = {}
    modules: dict[str, Times] = {}
    if file != "roofline":
        document = parse_toml(read_file(file, MAX_FILE_BYTES), file)
        if (
            not document
            or not set(document) <= {"operators", "modules"}
            or not all(isinstance(table, dict) for table in document.values())
        ):
            raise ConfigError(
                'expected the tables [operators], such as "aten::mm" = "1.5 ms", and [modules], '
                "such as "
                '"Block" = { forward = "3 ms", backward = "6 ms" }',
                file=file,
                path="$",
            )
        for name, value in document.get("operators", {}).items():
            measured[name] = parse_time(value, what=name, file=file, path=f"$.operators.{name}")
        for name, value in document.get("modules", {}).items():
            modules[name] = _module_times(name, value, file)
    return OperatorCosts(load_gpu(gpu), measured, modules)


def _module_times(name: str, value: Any, file: str) -> Times:
    """The times of a module's forward pass and, if given, backward pass."""
    path = f"$.modules.{name}"
    passes = value if isinstance(value, dict) else {"forward": value}
    if "forward" not in passes or not set(passes) <= {"forward", "backward"}:
        raise ConfigError(
            f'expected {{ forward = "3 ms", backward = "6 ms" }}, got {value!r}',
            file=file,
            path=path,
        )
    times = {
        direction: parse_time(text, what=direction, file=file, path=f"{path}.{direction}")
        for direction, text in passes.items()
    }
    return times["forward"], times.get("backward")
