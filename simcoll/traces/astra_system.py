"""ASTRA-sim's ``system.json`` (collective algorithms and roofline) and its file of groups.

Settings without a counterpart in simcoll are reported by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from simcoll.errors import ConfigError, nearest, shown
from simcoll.files.reader_arguments import Content, FilePath, content_of, path_of
from simcoll.files.strict import read_file
from simcoll.files.text import refuse_repeated_keys
from simcoll.training.gpu import DTYPE_BYTES, Gpu
from simcoll.workload.workload import (
    CallOperation,
    Operation,
    Rules,
    Workload,
    map_operations,
    operations_with_counts,
)

__all__ = ["AstraSystem", "load_astra_system", "load_comm_groups", "parse_astra_system"]

MAX_FILE_BYTES = 1 << 20
_ALGORITHMS: Mapping[str, Mapping[str, str]] = {
    "all_reduce": {
        "ring": "ring",
        "direct": "two_shot",
        "halvingDoubling": "rabenseifner",
        "doubleBinaryTree": "double_tree",
    },
    "all_gather": {"ring": "ring", "direct": "direct", "halvingDoubling": "recursive_doubling"},
    "reduce_scatter": {"ring": "ring", "direct": "direct", "halvingDoubling": "recursive_halving"},
    "all_to_all": {"direct": "direct"},
}
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "seprate-log": (0, 1),
    "separate-log": (0, 1),
    "local-mem-trace-filename": (),
    "active-chunks-per-dimension": (1,),
    "preferred-dataset-splits": (1,),
    "boost-mode": (0,),
    "trace-enabled": (0,),
    "replay-only": (0,),
    "track-local-mem": (0,),
    "model-shared-bus": (0,),
    "collective-optimization": ("baseline",),
}
"""Settings without effect at these values."""
_LEFT_OUT = (
    "scheduling-policy",
    "communication-delay",
    "local-reduction-delay",
    "per-node-custom-implementation",
    "endpoint-delay",
    "L",
    "o",
    "g",
    "G",
    "intra-dimension-scheduling",
    "inter-dimension-scheduling",
)
_USED = (
    "local-mem-bw",
    "peak-perf",
    "roofline-enabled",
    *(f"{kind.replace('_', '-')}-implementation" for kind in _ALGORITHMS),
)


@dataclass(frozen=True, slots=True)
class AstraSystem:
    """Settings of a ``system.json``.

    Attributes
    ----------
    algorithms
        Algorithm of each collective.
    refusals
        For collectives whose algorithm is not here, why; a workload with one is refused.
    gpu
        The roofline, if the file enables it.
    left_out
        Settings without a counterpart, with their values.
    """

    algorithms: Mapping[str, str]
    gpu: Gpu | None
    left_out: tuple[str, ...]
    refusals: Mapping[str, ConfigError] = field(default_factory=dict)

    def apply_to(self, workload: Workload) -> Workload:
        """A workload with the file's collective algorithms; without its own rules it gets the plain
        message model.

        Raises
        ------
        ConfigError
            For a collective of the workload whose algorithm in the file is not here.
        """
        for operation, _ in operations_with_counts(workload.operations):
            if (
                isinstance(operation, CallOperation)
                and not operation.algorithm
                and operation.kind in self.refusals
            ):
                raise self.refusals[operation.kind]

        def with_algorithm(operation: Operation) -> Operation:
            if (
                isinstance(operation, CallOperation)
                and not operation.algorithm
                and operation.kind in self.algorithms
            ):
                return msgspec.structs.replace(operation, algorithm=self.algorithms[operation.kind])
            return operation

        operations = map_operations(workload.operations, with_algorithm)
        return replace(workload, operations=operations, rules=workload.rules or Rules())


def load_astra_system(path: FilePath) -> AstraSystem:
    """The settings in a file.

    Raises
    ------
    ConfigError
        As :func:`parse_astra_system`, and when it cannot be read.
    """
    path = path_of(path, "load_astra_system", "parse_astra_system")
    return parse_astra_system(read_file(path, MAX_FILE_BYTES), path)


def parse_astra_system(content: Content, file: str | None = None) -> AstraSystem:
    """Parse the content of a ``system.json``.

    Raises
    ------
    ConfigError
        For unknown keys, and a roofline without its numbers.

    Examples
    --------
    >>> found = parse_astra_system(
    ...     b'{"all-reduce-implementation": ["halvingDoubling"], "endpoint-delay": 10}'
    ... )
    >>> found.algorithms, found.left_out
    ({'all_reduce': 'rabenseifner'}, ('endpoint-delay = 10',))
    """
    content = content_of(content, "parse_astra_system")
    try:
        document = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not a JSON object: {error}", file=file) from None
    algorithms: dict[str, str] = {}
    left_out: list[str] = []
    refusals: dict[str, ConfigError] = {}
    for key, value in document.items():
        kind = key.removesuffix("-implementation").replace("-", "_")
        if key.endswith("-implementation") and kind in _ALGORITHMS:
            try:
                algorithms[kind] = _algorithm(kind, value, key, file)
            except ConfigError as error:
                refusals[kind] = error
        elif key.endswith("-implementation-custom"):
            kind = key.removesuffix("-implementation-custom").replace("-", "_")
            refusals[kind] = ConfigError(
                "an algorithm in traces of its own cannot be played here",
                file=file,
                path=f"$.{key}",
            )
        elif key in _LEFT_OUT or (_NEUTRAL.get(key) and value not in _NEUTRAL[key]):
            left_out.append(f"{key} = {value!s:.40}")
        elif key not in _NEUTRAL and key not in _USED:
            raise ConfigError(
                f"unknown key {key[:60]!r}; {nearest(key, [*_USED, *_NEUTRAL, *_LEFT_OUT])}",
                file=file,
                path="$",
            )
    gpu = None
    if document.get("roofline-enabled", 0):
        rates = {}
        for key in ("peak-perf", "local-mem-bw"):
            value = document.get(key)
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not 0 < value < 1e9
            ):
                raise ConfigError(
                    f"expected a number above 0, got {shown(value)}", file=file, path=f"$.{key}"
                )
            rates[key] = float(value)
        peaks = {
            f"{table}.{dtype}": rates["peak-perf"] * 1e12
            for table in ("peak", "gemm")
            for dtype in DTYPE_BYTES
        }
        values = {**peaks, "sustained.share": 1.0, "memory.bandwidth": rates["local-mem-bw"] * 1e9}
        gpu = Gpu(
            "astra-sim", "an NPU of ASTRA-sim", values, dict.fromkeys(values, file or "system.json")
        )
    return AstraSystem(algorithms, gpu, tuple(left_out), refusals)


def load_comm_groups(path: FilePath) -> dict[str, list[int]]:
    """Load ASTRA-sim's file of groups: an object of lists of ranks, by the group names of a trace.

    Raises
    ------
    ConfigError
        When it cannot be read or has another structure.
    """
    path = path_of(path, "load_comm_groups")
    content = read_file(path, MAX_FILE_BYTES)
    try:
        groups = msgspec.json.decode(content, type=dict[str, list[int]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f'expected groups such as {{"1": [0, 1]}}: {error}', file=path) from None
    refuse_repeated_keys(content, path)
    return groups


def _algorithm(kind: str, value: object, key: str, file: str | None) -> str:
    """The algorithm of a collective, the same in all dimensions."""
    names = value if isinstance(value, list) else [value]
    valid = _ALGORITHMS[kind]
    algorithms = {
        name.removeprefix("one")
        .replace("HalvingDoubling", "halvingDoubling")
        .replace("Ring", "ring")
        .replace("Direct", "direct")
        if isinstance(name, str)
        else ""
        for name in names
    }
    if len(algorithms) != 1:
        raise ConfigError(
            f"different algorithms in different dimensions, {shown(value)}: expected one for all",
            file=file,
            path=f"$.{key}",
        )
    name = algorithms.pop()
    if name not in valid:
        raise ConfigError(
            f"{shown(value)} is not here; {nearest(name, valid)}", file=file, path=f"$.{key}"
        )
    return valid[name]
