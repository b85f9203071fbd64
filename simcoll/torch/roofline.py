"""Time model of PyTorch operators on a GPU: a roofline of floating-point operations and bytes, or
tables of measured times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

from simcoll.errors import ConfigError, nearest
from simcoll.files.strict import read_file
from simcoll.files.text import parse_toml
from simcoll.torch.module_time import Times
from simcoll.training.gpu import Gpu, load_gpu
from simcoll.units import parse_time

__all__ = ["OperatorCosts", "operator_name", "read_costs"]

FS = 10**15
MAX_FILE_BYTES = 2**20
_DTYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
    torch.int8: "int8",
}
_FLOPS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,
}
_FREE = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
    "lift_fresh",
    "is_same_size",
    "_unsafe_view",
    "resize_",
}
"""Operators that launch no kernel, besides views and queries."""
_MOVES = (
    "_adaptive_avg",
    "_embedding_bag",
    "_foreach_",
    "_fused_",
    "_log_softmax",
    "_pad",
    "_softmax",
    "_to_copy",
    "arange",
    "avg_pool",
    "batch_norm",
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


class OperatorCosts:
    """The time of each operator, and the names of operators without a rule.

    Parameters
    ----------
    gpu
        Its measured ceilings: of matrix products and fused attention in FLOP/s, of memory in bytes
        per second.
    measured
        Times in femtoseconds by operator (``aten::mm``), or by operator and shapes of its tensors
        (``aten::mm [8, 4096] [4096, 4096]``).
    modules
        The same for the calls of modules: see :class:`~simcoll.torch.module_time.ModuleTimes`.
    """

    def __init__(self, gpu: Gpu, measured: Mapping[str, int], modules: Mapping[str, Times]) -> None:
        self.gpu = gpu
        self.measured = measured
        self.modules = modules
        self.unknown: Counter[str] = Counter()
        self._bandwidth = gpu.number("memory.measured", gpu.number("memory.bandwidth"))

    def time_fs(self, func: Any, args: Any, kwargs: Any, result: Any) -> tuple[int, bool]:
        """The time of one operator call, and whether there is a rule for it; without a rule, the
        time of its bytes.
        """
        inputs = [
            tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)
        ]
        if self.measured:
            name = operator_name(func)
            shapes = " ".join(str(list(tensor.shape)) for tensor in inputs)
            measured_fs = self.measured.get(f"{name} {shapes}", self.measured.get(name))
            if measured_fs is not None:
                return measured_fs, True
        outputs = [tensor for tensor in tree_leaves(result) if isinstance(tensor, torch.Tensor)]
        if _launches_nothing(func, outputs):
            return 0, True
        moved = (
            sum(tensor.numel() * tensor.element_size() for tensor in [*inputs, *outputs])
            / self._bandwidth
        )
        count = _FLOPS.get(getattr(func, "overloadpacket", func))
        flops = (
            0.0
            if count is None
            else count(*args, **kwargs, out_val=result) / self._rate(func, inputs)
        )
        return round(float(max(moved, flops)) * FS), count is not None or _moves_bytes(func)

    def _rate(self, func: Any, inputs: list[torch.Tensor]) -> float:
        """FLOP/s of a matrix product, convolution or attention."""
        name = operator_name(func)
        dtype = _DTYPES.get(inputs[0].dtype)
        if dtype is None:
            raise ConfigError(f"{name}: GPU {self.gpu.name!r} has no rate for {inputs[0].dtype}")
        if "attention" in name and dtype in {"bf16", "fp16"}:
            return self.gpu.attention(dtype, backward="backward" in name)
        return self.gpu.gemm(dtype)


def operator_name(func: Any) -> str:
    """The name, such as ``aten::mm``; operators that call functions, such as ``flex_attention``,
    have no namespace.
    """
    return str(func.name() if isinstance(func, HigherOrderOperator) else func._schema.name)


def _launches_nothing(func: Any, outputs: list[torch.Tensor]) -> bool:
    if isinstance(func, HigherOrderOperator):
        return False
    return (
        func.is_view
        or func.overloadpacket.__name__ in _FREE
        or not (outputs or func._schema.is_mutable)
    )


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
