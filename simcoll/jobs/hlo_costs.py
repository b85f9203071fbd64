"""What instructions of HLO cost: FLOPs of products by type, and bytes of each memory.

FLOPs are those of matrix products, convolutions and fused attention, as performed: products with
padding do not count where XLA pads inside of the operation. Everything else is counted by its
bytes, each operand read once and each result written once, and only the parts of an operand that a
slice or an update touches. An instruction whose cost is not known is refused with its line.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from operator import add
from typing import Any, NamedTuple

import numpy as np

from simcoll.core.vocabulary import CollectiveKind
from simcoll.errors import shown
from simcoll.jobs.hlo_text import (
    HOST_SPACE,
    ArrayShape,
    HloComputation,
    HloInstruction,
    HloModule,
    whole_number,
)

__all__ = ["COLLECTIVES", "FREE", "HloCost", "HloCosts", "dot_flops", "window_flops"]

COLLECTIVES: Mapping[str, CollectiveKind] = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "send_recv",
    "collective-broadcast": "broadcast",
}
"""Opcodes of collectives, and their names here."""
_FREE_WORDS = (
    "parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id "
    "add-dependency opt-barrier domain get-dimension-size copy-done"
)
FREE = frozenset(_FREE_WORDS.split())
"""Opcodes that take no time on the device: they name values."""
_MEMORY_WORDS = (
    "abs acos acosh add and asin asinh atan2 atanh batch-norm-grad batch-norm-inference "
    "batch-norm-training bitcast-convert broadcast cbrt ceil clamp compare complex "
    "concatenate convert copy copy-start cosh cosine count-leading-zeros divide "
    "dynamic-reshape dynamic-slice dynamic-update-slice erf exponential "
    "exponential-minus-one floor gather imag iota is-finite log log-plus-one logistic map "
    "maximum minimum multiply negate not or pad popcnt power real reduce reduce-precision "
    "reduce-window remainder reshape reverse rng rng-bit-generator rng-get-and-update-state "
    "round-nearest-afz round-nearest-even rsqrt scatter select select-and-scatter "
    "set-dimension-size shift-left shift-right-arithmetic shift-right-logical sign sine "
    "sinh slice slice-start slice-done sort sqrt stochastic-convert subtract tan tanh topk "
    "transpose xor"
)
_MEMORY = frozenset(_MEMORY_WORDS.split())
"""Opcodes that are timed by the bytes that they read and write."""
_GEMMS = ("__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8")
_CONVOLUTIONS = "__cudnn$conv"
_ATTENTION = "__cudnn$fmha"
_UNTIMED_TARGETS = frozenset(
    (
        *("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LayoutConstraint"),
        *("AllocateBuffer", "AssumeGatherIndicesInBound", "GatherScatterIndicesBitpacked"),
        *("NopCall", "ConcatBitcast"),
        *("MoveToHost", "MoveToDevice", "annotate_device_placement"),
        *("AsyncCollectiveStart", "AsyncCollectiveDone"),
    )
)
"""Targets of custom calls that do no work of their own."""
_MEMORY_TARGETS = frozenset(
    (
        *("cu_threefry2x32", "cu_threefry2x32_ffi", "__gpu$TopK", "TopK"),
        *("__cub$DeviceRadixSort", "__cub$DeviceRadixSortUnassignedScratchSize"),
        *("SliceToDynamic", "PadToStatic"),
    )
)
"""Targets of custom calls that are timed by their bytes."""
_KNOWN_WORK = (
    "that of matrix products, convolutions, fused attention of cuDNN, sorting, random numbers and "
    "element-wise operations is"
)
_ATTENTION_TENSORS = {"forward": 2, "backward": 5}
"""Matrix products of fused attention (Dao 2023, FlashAttention-2, section 3): the backward pass
computes the scores again.
"""
_SPLASH = re.compile(r"splash_mha_(fwd|dkv|dq)")
_SPLASH_TENSORS = {"fwd": 2, "dkv": 4, "dq": 3}
"""Names of JAX's attention kernels for TPUs (jax.experimental.pallas.ops.tpu.splash_attention), and
their matrix products: both backward kernels compute the scores and their gradients again.
"""
_PASSING = frozenset(("bitcast", "reshape", "get-tuple-element"))
_LETTERS = re.compile(r"(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"(\w+)=(\S+)")
_DEEPEST = 100
_MOST_PRODUCTS = 1 << 30
"""Limit of what is counted one by one along an axis of a convolution: seconds."""
_WINDOW_NUMBER = re.compile(r"-?[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class HloCost:
    """What an instruction costs on one device.

    Attributes
    ----------
    flops
        FLOPs by type, as GPU files name types (``"bf16"``); ``"attention.forward"`` and
        ``"attention.backward"`` are those of fused attention.
    nbytes
        Bytes that it operand_shapes and writes in the device's memory.
    host_bytes
        Bytes that it operand_shapes and writes in the host's memory.
    """

    flops: Mapping[str, float] = field(default_factory=dict)
    nbytes: int = 0
    host_bytes: int = 0

    @property
    def total_flops(self) -> float:
        """FLOPs of all types."""
        return sum(self.flops.values())


@dataclass(eq=False)
class HloCosts:
    """Costs of the instructions of a module."""

    module: HloModule
    _users: dict[str, dict[str, list[tuple[HloInstruction, int]]]] = field(default_factory=dict)
    _flops: dict[str, Counter[str]] = field(default_factory=dict)
    _depth: int = 0

    def of(self, computation: HloComputation, instruction: HloInstruction) -> HloCost:
        """The cost of an instruction that is neither a loop, a call nor a collective.

        Raises
        ------
        ConfigError
            With the line, when the cost is not known.
        """
        flops = self._own_flops(computation, instruction)
        if instruction.opcode in FREE or instruction.target in _UNTIMED_TARGETS:
            return HloCost()
        if instruction.opcode == "fusion":
            shapes = self._fusion_traffic(computation, instruction)
        else:
            shapes = self._traffic(computation, instruction)
        host = sum(nbytes for space, nbytes in shapes if space == HOST_SPACE)
        device = sum(nbytes for space, nbytes in shapes if space == 0)
        return HloCost(flops, device, host)

    def _own_flops(self, computation: HloComputation, instruction: HloInstruction) -> Counter[str]:
        """FLOPs of an instruction, and of what it calls."""
        opcode = instruction.opcode
        if opcode in {"dot", "ragged-dot"}:
            return Counter(
                {
                    self._precision(computation, instruction): dot_flops(
                        self.module, computation, instruction
                    )
                }
            )
        if opcode == "convolution":
            return Counter(
                {
                    self._precision(computation, instruction): window_flops(
                        self.module, computation, instruction, "forward"
                    )
                }
            )
        if opcode in {"fusion", "async-start"}:
            if self._depth > _DEEPEST:
                raise self.module.refuse(
                    instruction, f"fusions are nested more than {_DEEPEST} deep"
                )
            self._depth += 1
            flops = self._called_flops(self.module.computation(instruction, "calls"))
            self._depth -= 1
            return flops
        if opcode == "custom-call":
            return self._custom_flops(computation, instruction)
        if opcode not in FREE and opcode not in _MEMORY:
            raise self.module.refuse(
                instruction,
                f"the work of {opcode!r} is not known; {_KNOWN_WORK}",
            )
        return Counter()

    def _called_flops(self, computation: HloComputation) -> Counter[str]:
        if computation.name not in self._flops:
            self._flops[computation.name] = Counter()  # of a computation that calls itself
            parts = [
                self._own_flops(computation, instruction)
                for instruction in computation.instructions.values()
                if instruction.collective not in COLLECTIVES
            ]
            self._flops[computation.name] = reduce(add, parts, Counter())
        return self._flops[computation.name]

    def _precision(self, computation: HloComputation, instruction: HloInstruction) -> str:
        """The type of a product, as GPU files name it."""
        requested = instruction.attribute("operand_precision")
        operands = [computation.operand(instruction, place) for place in (0, 1)]
        dtypes = [operand.shapes[0].dtype for operand in operands if operand and operand.shapes]
        for dtype, name in (
            ("f64", "fp64"),
            ("c64", "fp32"),
            ("f32", "fp32" if "high" in requested else "tf32"),
            ("bf16", "bf16"),
            ("f16", "fp16"),
        ):
            if dtype in dtypes:
                return name
        if any(dtype.startswith("f8") for dtype in dtypes):
            return "fp8"
        if any(dtype.startswith("f4") for dtype in dtypes):
            return "fp4"
        if dtypes and all(dtype in {"s8", "u8"} for dtype in dtypes):
            return "int8"
        return "fp32"

    def _custom_flops(
        self, computation: HloComputation, instruction: HloInstruction
    ) -> Counter[str]:
        target = instruction.target
        precision = self._precision(computation, instruction)
        if target in _GEMMS:
            return Counter({precision: dot_flops(self.module, computation, instruction)})
        if target.startswith(_CONVOLUTIONS):
            direction = (
                "input"
                if target.endswith("BackwardInput")
                else "filter"
                if target.endswith("BackwardFilter")
                else "forward"
            )
            flops = window_flops(self.module, computation, instruction, direction)
            return Counter({precision: flops})
        if target.startswith(_ATTENTION):
            return self._attention_flops(computation, instruction)
        kernel = _SPLASH.match(instruction.name)
        if target == "tpu_custom_call" and kernel is not None:
            return self._splash_flops(computation, instruction, kernel[1])
        if target in _UNTIMED_TARGETS or target in _MEMORY_TARGETS:
            return Counter()
        raise self.module.refuse(
            instruction, f"the work of custom call {shown(target)} is not known; {_KNOWN_WORK}"
        )

    def _attention_flops(
        self, computation: HloComputation, instruction: HloInstruction
    ) -> Counter[str]:
        """FLOPs of cuDNN's fused attention; half of them with a causal mask."""
        settings = _table(_settings(self.module, instruction), "cudnn_fmha_backend_config")
        scores = _whole_numbers(_table(settings, "intermediate_tensor_shape"), "dimensions")
        backward = "Backward" in instruction.target
        # Of the product that contracts the width of a head: queries and keys, or output and values.
        name = "bmm2_grad_gemm2" if backward else "bmm1"
        products = _table(settings, f"{name}_dot_dimension_numbers")
        contracted = _whole_numbers(products, "lhs_contracting_dimensions")
        query = computation.operand(instruction, 0)
        sizes = query.shapes[0].dimensions if query is not None and query.shapes else ()
        if not scores or not contracted or max(contracted) >= len(sizes):
            raise self.module.refuse(
                instruction, "expected the sizes of fused attention in its backend_config"
            )
        depth = prod(sizes[place] for place in contracted)
        direction = "backward" if backward else "forward"
        causal = "CAUSAL" in str(settings.get("mask_type", ""))
        flops = 2 * prod(scores) * depth * _ATTENTION_TENSORS[direction]
        return Counter({f"attention.{direction}": flops // 2 if causal else flops})

    def _splash_flops(
        self, computation: HloComputation, instruction: HloInstruction, kernel: str
    ) -> Counter[str]:
        """FLOPs of JAX's attention kernel for TPUs. Its mask is data, taken as causal, which halves
        them.
        """
        arrays = [
            operand.shapes[0].dimensions
            for name in instruction.operands
            if (operand := computation.instructions.get(name)) is not None
            and len(operand.shapes) == 1
            and "f" in operand.shapes[0].dtype
        ]
        if len(arrays) < 3 or min(map(len, arrays[:2])) < 2:
            raise self.module.refuse(instruction, "expected queries, keys and values of attention")
        query, key, _ = arrays[:3]
        direction = "forward" if kernel == "fwd" else "backward"
        flops = prod(query) * key[-2] * _SPLASH_TENSORS[kernel]
        return Counter({f"attention.{direction}": flops})

    def _traffic(
        self, computation: HloComputation, instruction: HloInstruction
    ) -> list[tuple[int, int]]:
        """Memory and bytes of every read and write of an instruction by itself."""
        opcode = instruction.opcode
        operands = [
            computation.instructions[name]
            for name in instruction.operands
            if name in computation.instructions
        ]
        operand_shapes = [shape for operand in operands for shape in operand.shapes]
        if opcode in {"dynamic-slice", "slice", "gather", "slice-start"} and operand_shapes:
            touched = min(operand_shapes[0].nbytes, instruction.shapes[-1].nbytes)
            traffic = [(operand_shapes[0].space, touched), *_traffic_of(operand_shapes[1:])]
        elif opcode in {"dynamic-update-slice", "scatter"} and len(operands) > 1:
            update = operands[1 if opcode == "dynamic-update-slice" else -1]
            return [*_traffic_of(update.shapes), (instruction.shapes[0].space, update.nbytes)]
        else:
            traffic = _traffic_of(operand_shapes)
        if opcode in {"copy-start", "slice-start"}:
            return [*traffic, *_traffic_of(instruction.shapes[:1])]
        return traffic + ([] if opcode == "slice-done" else _traffic_of(instruction.shapes))

    def _fusion_traffic(
        self, computation: HloComputation, instruction: HloInstruction
    ) -> list[tuple[int, int]]:
        """Memory and bytes of every read and write of a fusion."""
        body = self.module.computation(instruction, "calls")
        parameters = {
            inner.parameter_number: inner
            for inner in body.instructions.values()
            if inner.opcode == "parameter"
        }
        traffic: list[tuple[int, int]] = []
        for place, name in enumerate(instruction.operands):
            operand = computation.instructions.get(name)
            if operand is None:
                continue
            touched = (
                self._read_size(body, parameters[place], operand.nbytes)
                if place in parameters
                else operand.nbytes
            )
            space = operand.shapes[0].space if operand.shapes else 0
            traffic.append((space, touched))
        root = body.instructions[body.root]
        leaves = (
            [body.instructions[name] for name in root.operands if name in body.instructions]
            if root.opcode == "tuple"
            else [root]
        )
        results = [self._write_size(body, leaf) for leaf in leaves]
        if len(results) == len(instruction.shapes):
            spaces = [shape.space for shape in instruction.shapes]
            return traffic + list(zip(spaces, results, strict=True))
        return traffic + _traffic_of(instruction.shapes)

    def _read_size(
        self, body: HloComputation, value: HloInstruction, size: int, depth: int = 0
    ) -> int:
        """Bytes of a value that its users inside of a fusion read."""
        if depth > _DEEPEST:
            return size
        total = 0
        for user, place in self._users_in(body).get(value.name, ()):
            if user.opcode in {"dynamic-slice", "slice", "gather"} and place == 0:
                total += user.nbytes
            elif user.opcode == "dynamic-update-slice" and place == 0:
                continue  # in place: what it overwrites is not read
            elif user.opcode == "scatter" and place == 0:
                update = body.operand(user, len(user.operands) - 1)
                total += update.nbytes if update else size
            elif user.opcode in _PASSING:
                total += self._read_size(body, user, size, depth + 1)
            else:
                return size
        return min(total, size)

    def _write_size(self, body: HloComputation, value: HloInstruction) -> int:
        """Bytes that a fusion writes for one of its results."""
        while value.opcode in _PASSING:
            operand = body.operand(value, 0)
            if operand is None or value.opcode == "get-tuple-element":
                break
            value = operand
        if value.opcode in {"dynamic-update-slice", "scatter"}:
            update = body.operand(value, 1 if value.opcode == "dynamic-update-slice" else 2)
            return update.nbytes if update else value.nbytes
        return value.nbytes

    def _users_in(self, body: HloComputation) -> dict[str, list[tuple[HloInstruction, int]]]:
        if body.name not in self._users:
            users: dict[str, list[tuple[HloInstruction, int]]] = defaultdict(list)
            for instruction in body.instructions.values():
                for place, operand in enumerate(instruction.operands):
                    users[operand].append((instruction, place))
            self._users[body.name] = users
        return self._users[body.name]


def _traffic_of(shapes: list[ArrayShape] | tuple[ArrayShape, ...]) -> list[tuple[int, int]]:
    return [(shape.space, shape.nbytes) for shape in shapes]


def _settings(module: HloModule, instruction: HloInstruction) -> dict[str, Any]:
    """The settings of a back end, which are JSON."""
    try:
        settings = json.loads(instruction.settings or "{}")
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise module.refuse(instruction, "its backend_config is no JSON object")
    return settings


def _table(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = settings.get(key)
    return value if isinstance(value, dict) else {}


def _whole_numbers(settings: Mapping[str, Any], key: str) -> list[int]:
    """A list of whole numbers, which JSON of protocol buffers writes as texts; empty if it is
    anything else.
    """
    values = settings.get(key)
    numbers = [whole_number(str(value)) for value in values] if isinstance(values, list) else []
    return numbers if min(numbers, default=-1) >= 0 else []


def _dimensions(module: HloModule, instruction: HloInstruction, text: str) -> list[int]:
    numbers = [part for part in text.strip("{}").split(",") if part.strip()]
    if any(whole_number(part) < 0 for part in numbers):
        raise module.refuse(instruction, f"expected numbers of dimensions, got {shown(text[:40])}")
    return [whole_number(part) for part in numbers]


def dot_flops(module: HloModule, computation: HloComputation, instruction: HloInstruction) -> int:
    """FLOPs of a matrix product: two for each element of the result and of what is summed over.

    Raises
    ------
    ConfigError
        With the line, when its operand or its dimensions are missing.
    """
    multiplicand = computation.operand(instruction, 0)
    if instruction.opcode == "custom-call":
        settings = _settings(module, instruction)
        gemm = _table(settings, "gemm_backend_config") or settings
        numbers = _table(gemm, "dot_dimension_numbers")
        contracted = _whole_numbers(numbers, "lhs_contracting_dimensions")
    else:
        text = instruction.attribute("lhs_contracting_dims")
        contracted = _dimensions(module, instruction, text)
    if multiplicand is None or not multiplicand.shapes or not instruction.shapes:
        raise module.refuse(instruction, "its first operand is not in the computation")
    sizes = multiplicand.shapes[0].dimensions
    if any(place >= len(sizes) for place in contracted) or (
        instruction.opcode == "custom-call" and not contracted
    ):
        raise module.refuse(instruction, f"contracted dimensions {contracted} of {sizes}")
    return 2 * instruction.shapes[0].elements * prod(sizes[place] for place in contracted)


def window_flops(
    module: HloModule, computation: HloComputation, instruction: HloInstruction, direction: str
) -> int:
    """FLOPs of a convolution: two for each product of an element of the input and of the kernel,
    without those with padding, like XLA counts.

    Parameters
    ----------
    direction
        ``"forward"``, or the gradient of which cuDNN computes: ``"input"`` or ``"filter"``, whose
        labels and window are those of the forward convolution.

    Raises
    ------
    ConfigError
        With the line, when operands, labels or the window are missing or do not fit.
    """
    labels = _LETTERS.fullmatch(instruction.attribute("dim_labels"))
    operands = [computation.operand(instruction, place) for place in (0, 1)]
    if labels is None or any(value is None or not value.shapes for value in operands):
        raise module.refuse(instruction, "expected dim_labels and two operands of a convolution")
    operand_sizes = [value.shapes[0].dimensions for value in operands if value]
    result = instruction.shapes[0].dimensions
    tensors = {
        "forward": (*operand_sizes, result),
        "input": (result, operand_sizes[1], operand_sizes[0]),
        "filter": (operand_sizes[0], result, operand_sizes[1]),
    }[direction]
    if any(len(sizes) != len(names) for sizes, names in zip(tensors, labels.groups(), strict=True)):
        raise module.refuse(instruction, f"dim_labels {labels[0]} do not fit the shapes")
    image, kernel, out = (
        dict(zip(names, sizes, strict=True))
        for names, sizes in zip(labels.groups(), tensors, strict=True)
    )
    window = dict(_WINDOW.findall(instruction.attribute("window").strip("{}")))
    axes = sorted(name for name in out if name.isdigit())
    if not ({"b", "f", *axes} <= out.keys() and {"i", *axes} <= kernel.keys()):
        raise module.refuse(instruction, f"dim_labels {labels[0]}: unknown letters")
    flops = int(2 * out["b"] * out["f"] * kernel["i"])
    for place, axis in enumerate(axes):
        axis_window = _axis_window(window, place)
        if axis_window is None or axis not in image or out[axis] * kernel[axis] > _MOST_PRODUCTS:
            raise module.refuse(
                instruction,
                f"window {shown(window)}: expected whole numbers, and at most "
                f"{_MOST_PRODUCTS:,} products along an axis",
            )
        flops *= _products(image[axis], kernel[axis], out[axis], axis_window)
    return flops


class _AxisWindow(NamedTuple):
    """A window along one axis: stride, padding before, and dilation of input and kernel."""

    stride: int = 1
    padding: int = 0
    dilation: int = 1
    kernel_dilation: int = 1


def _axis_window(window: dict[str, str], place: int) -> _AxisWindow | None:
    """The window along one axis, from the texts of all axes; None if they are no numbers."""

    def number(key: str, default: str) -> str:
        parts = window.get(key, "").split("x")
        return parts[place] if place < len(parts) and parts[place] else default

    texts = (
        number("stride", "1"),
        number("pad", "0_0").partition("_")[0],
        number("lhs_dilate", "1"),
        number("rhs_dilate", "1"),
    )
    if not all(map(_WINDOW_NUMBER.fullmatch, texts)):
        return None
    axis = _AxisWindow(*map(int, texts))
    return axis if min(axis.stride, axis.dilation, axis.kernel_dilation) > 0 else None


def _products(size: int, kernel: int, out: int, window: _AxisWindow) -> int:
    """Number of products along one axis: pairs of an output and an element of the kernel that meet
    an element of the input.

    >>> _products(5, 3, 5, _AxisWindow(padding=1))  # padded by one at both ends: 2 + 3 + 3 + 3 + 2
    13
    """
    last = (size - 1) * window.dilation
    places = np.arange(out, dtype=np.int64) * window.stride - window.padding
    offsets = np.arange(kernel, dtype=np.int64) * window.kernel_dilation
    shorter, longer = sorted((places, offsets), key=len)
    total = 0
    for shift in shorter.tolist():
        meets = longer + shift
        total += int(((meets >= 0) & (meets <= last) & (meets % window.dilation == 0)).sum())
    return total
