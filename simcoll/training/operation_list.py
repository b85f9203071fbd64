"""Lists of operations in TOML as workloads: work, collectives on the axes of a mesh, and messages
along them.

Ranks whose coordinates differ only along axes that no operation distinguishes form a class.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from simcoll.core.vocabulary import CollectiveKind
from simcoll.errors import ConfigError, blamed_on, nearest, shown
from simcoll.files.paths import is_file
from simcoll.files.reader_arguments import FilePath, path_of
from simcoll.files.strict import convert_table, read_file
from simcoll.files.text import parse_toml
from simcoll.topology import Topology
from simcoll.training.design import Cluster, load_cluster, slow_ranks
from simcoll.training.gpu import Gpu, load_gpu
from simcoll.training.measured_kernels import OperatorTimes, load_measured
from simcoll.units import parse_size, parse_time
from simcoll.workload.mesh import Mesh
from simcoll.workload.stream_names import message_stream
from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    Operation,
    Rules,
    SendOperation,
    Workload,
)

__all__ = ["ListedWorkload", "load_operations", "operations_from"]

MAX_FILE_BYTES = 1 << 24
MAX_OPERATIONS = 1_000_000
MAX_RANKS = 1 << 20
MAX_CLASSES = 1 << 14
_COUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kMGTP]?)\s*")
_POWERS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


_ALWAYS = {"id", "name", "on", "stream", "after", "repeat"}
_KEYS = {
    "call": {"call", "axis", "bytes", "algorithm", "imbalance", "root"},
    "send": {"send", "bytes", "shift", "wrap"},
    "time": {"time", "flops"},
    "operator": {"operator", "shape", "dtype"},
    "flops": {"flops", "bytes", "dtype"},
}
"""The keys of each kind of entry, which is named by the first of these keys that it has."""


class _OperationEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One entry of ``[[op]]``, of any kind."""

    id: str
    time: str | None = None
    flops: str | float | None = None
    bytes: str | int | None = None
    operator: str | None = None
    shape: str = ""
    dtype: str | None = None
    call: CollectiveKind | None = None
    axis: str | tuple[str, ...] = ()
    send: str | None = None
    shift: int = 1
    wrap: bool = False
    on: dict[str, int | tuple[int, ...]] = {}
    stream: str | None = None
    after: tuple[str, ...] = ()
    repeat: int = 1
    algorithm: str = ""
    imbalance: float = 1.0
    root: int = 0
    name: str = ""


_NOTHING = msgspec.structs.asdict(_OperationEntry(id=""))


class _OperationsGpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str = ""
    dtype: str = "bf16"
    measured: str = ""


class _OperationsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    op: tuple[_OperationEntry, ...]
    mesh: dict[str, int]
    title: str = ""
    topology: Cluster | None = None
    gpu: _OperationsGpu = _OperationsGpu()
    rules: Rules | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ListedWorkload:
    """A file's workload, and its topology, if given.

    Attributes
    ----------
    workload, topology
        The operations, and the topology that the file names.
    slow
        Slow-down factors by rank.
    """

    workload: Workload
    topology: Topology | None
    slow: Mapping[int, float]


def load_operations(path: FilePath) -> ListedWorkload:
    """Load the workload of a file; its paths are relative to it.

    Raises
    ------
    ConfigError
        With the file, the place in it, and the nearest valid choice.
    """
    path = path_of(path, "load_operations")
    return operations_from(parse_toml(read_file(path, MAX_FILE_BYTES), path), file=path)


def operations_from(document: Mapping[str, Any], *, file: str = "operations") -> ListedWorkload:
    """Make a workload from the tables of its file.

    Raises
    ------
    ConfigError
        As :func:`load_operations`.

    Examples
    --------
    >>> listed = operations_from({"mesh": {"dp": 4}, "op": [
    ...     {"id": "backward", "time": "1 ms"},
    ...     {"id": "gradients", "call": "all_reduce", "axis": "dp", "bytes": "64M",
    ...      "after": ["backward"]},
    ... ]})
    >>> listed.workload.nranks, [operation.id for operation in listed.workload.operations]
    (4, ['backward', 'gradients'])
    """
    with blamed_on(file):
        record = convert_table(dict(document), _OperationsFile)
        folder = Path(file).parent
        if record.topology is not None and record.topology.calibration:
            raise ConfigError(
                "is for designs, whose collectives are NCCL's", path="$.topology.calibration"
            )
        topology = None if record.topology is None else load_cluster(record.topology, folder)
        slow = {} if record.topology is None else slow_ranks(record.topology.slow)
        return ListedWorkload(
            _List(record, folder, topology, Path(file).stem).workload(), topology, slow
        )


@dataclass(eq=False)
class _List:
    """Builds the operations of a file in order."""

    record: _OperationsFile
    folder: Path
    topology: Topology | None
    stem: str
    mesh: Mesh = field(init=False)
    split_axes: tuple[str, ...] = ()
    operations: list[Operation] = field(default_factory=list)
    ids: dict[str, tuple[str, ...]] = field(default_factory=dict)
    classes_of: dict[str, set[str]] = field(default_factory=dict)
    groups: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Determine the mesh, the classes and the GPU."""
        self.mesh = Mesh(tuple(self.record.mesh.items()))
        axes = dict.fromkeys(
            axis
            for work in self.record.op
            for axis in (*work.on, *([work.send] if work.send else ()))
        )
        for axis in axes:
            if axis not in self.record.mesh:
                raise ConfigError(
                    f"no axis {axis!r}; {nearest(axis, self.record.mesh)}", path="$.op"
                )
        self.split_axes = tuple(axis for axis in self.record.mesh if axis in axes)
        if self.mesh.nranks > MAX_RANKS or prod(map(self.mesh.size, self.split_axes)) > MAX_CLASSES:
            raise ConfigError(
                f"the mesh has more than {MAX_RANKS:,} ranks, or operations tell more than "
                f"{MAX_CLASSES:,} classes apart",
                path="$.mesh",
            )
        self.points = [
            dict(zip(self.split_axes, place, strict=True))
            for place in product(*(range(self.mesh.size(axis)) for axis in self.split_axes))
        ]
        self.classes = dict(zip(map(_point_name, self.points), self._classes(), strict=True))
        self.gpu: Gpu | None = None
        name = self.record.gpu.name or (
            "" if self.topology is None else self.topology.traits.get("gpu", "").lower()
        )
        if name:
            gpu_path = self.folder / name
            self.gpu = load_gpu(gpu_path if is_file(gpu_path) else name)
        self.measured: OperatorTimes | None = None
        if self.record.gpu.measured:
            self.measured = load_measured(self.folder / self.record.gpu.measured)

    def _classes(self) -> np.ndarray[Any, Any]:
        """The ranks of each class in ascending order: ``[classes, ranks]``."""
        number = np.zeros(self.mesh.nranks, np.int64)
        for axis in self.split_axes:
            number = number * self.mesh.size(axis) + self.mesh.coordinate(axis)
        return np.argsort(number, kind="stable").reshape(len(self.points), -1)

    def workload(self) -> Workload:
        for number, work in enumerate(self.record.op):
            path = f"$.op[{number}]"
            try:
                self._add(work)
            except ConfigError as error:
                suffix = (error.path or "$").removeprefix("$")
                raise ConfigError(error.message, path=f"{path}{suffix}") from None
        return Workload(
            self.mesh.nranks,
            self.classes,
            self.groups,
            tuple(self.operations),
            self.record.title or self.stem,
            rules=self.record.rules,
        )

    def _add(self, work: _OperationEntry) -> None:
        _check_keys(work)
        if not work.repeat >= 1 or work.repeat + len(self.operations) > MAX_OPERATIONS:
            raise ConfigError(
                f"expected 1 to {MAX_OPERATIONS:,} operations in all, got {work.repeat}",
                path="$.repeat",
            )
        if work.id in self.ids:
            raise ConfigError(f"{work.id!r} is a duplicate", path="$.id")
        points = self._points(work.on)
        needs = tuple(identifier for name in work.after for identifier in self._ids_of(name))
        make = (
            self._calls
            if work.call is not None
            else self._sends
            if work.send is not None
            else self._works
        )
        for turn in range(work.repeat):
            start = len(self.operations)
            self.operations += make(
                work, points, f"{work.id} {turn + 1}" if work.repeat > 1 else work.id, needs
            )
            self.ids[work.id] = tuple(operation.id for operation in self.operations[start:])
            self.classes_of[work.id] = {
                name for added in self.operations[start:] for name in self._classes_in(added)
            }
        for name in work.after:
            if not self.classes_of[name] & self.classes_of[work.id]:
                raise ConfigError(
                    f"no rank takes part in both {name!r} and {work.id!r}; only a send or a "
                    "collective makes ranks wait for others",
                    path="$.after",
                )

    def _classes_in(self, operation: Operation) -> Iterable[str]:
        if isinstance(operation, ComputeOperation):
            return (operation.on,)
        return (
            (operation.source, operation.target)
            if isinstance(operation, SendOperation)
            else operation.on or self.classes
        )

    def _ids_of(self, name: str) -> tuple[str, ...]:
        if name in self.ids:
            return self.ids[name]
        later = [number for number, work in enumerate(self.record.op) if work.id == name]
        if later:
            raise ConfigError(
                f"operation {name!r} is $.op[{later[0]}], not before this one; put it first, or "
                "break the cycle",
                path="$.after",
            )
        raise ConfigError(f"unknown operation {name!r}; {nearest(name, self.ids)}", path="$.after")

    def _points(self, on: Mapping[str, int | tuple[int, ...]]) -> list[dict[str, int]]:
        for axis, places in on.items():
            size = self.mesh.size(axis)
            for place in (places,) if isinstance(places, int) else places:
                if not 0 <= place < size:
                    raise ConfigError(f"{axis} = {place}: expected 0 to {size - 1}", path="$.on")
        matches = [
            point
            for point in self.points
            if all(
                point[axis] in ((places,) if isinstance(places, int) else places)
                for axis, places in on.items()
            )
        ]
        if not matches:
            raise ConfigError("no rank takes part: an empty list", path="$.on")
        return matches

    def _works(
        self, work: _OperationEntry, points: list[dict[str, int]], name: str, needs: tuple[str, ...]
    ) -> Iterable[Operation]:
        time_fs, flops = self._time(work)
        for point in points:
            identifier = name if len(points) == 1 else f"{name} [{_point_name(point)}]"
            yield ComputeOperation(
                id=identifier,
                on=_point_name(point),
                time_fs=time_fs,
                stream=work.stream or "compute",
                after=needs,
                name=work.name or work.id,
                flops=flops,
            )

    def _time(self, work: _OperationEntry) -> tuple[int, float]:
        """Femtoseconds and FLOPs of work."""
        dtype = work.dtype or self.record.gpu.dtype
        flops = _count(work.flops, "flops")
        if work.time is not None:
            return parse_time(work.time, what="time", path="$.time"), flops
        if work.operator is not None:
            if self.measured is None:
                raise ConfigError(
                    "an operator needs a table: [gpu] measured = 'operators.csv'", path="$.operator"
                )
            return self.measured.time_fs(work.operator, work.shape, dtype), flops
        if self.gpu is None:
            raise ConfigError("flops and bytes need a GPU: [gpu] name = 'h100'", path="$.gpu.name")
        moved = 0 if work.bytes is None else parse_size(work.bytes, what="bytes", path="$.bytes")
        bandwidth = self.gpu.number("memory.measured", self.gpu.number("memory.bandwidth"))
        return round(
            max(flops / self.gpu.gemm(dtype) if flops else 0.0, moved / bandwidth) * 1e15
        ), flops

    def _calls(
        self, work: _OperationEntry, points: list[dict[str, int]], name: str, needs: tuple[str, ...]
    ) -> Iterable[Operation]:
        axes = (work.axis,) if isinstance(work.axis, str) else work.axis
        if not axes:
            raise ConfigError("missing; expected an axis of the mesh, or several", path="$.axis")
        group = "-".join(axes)
        if group not in self.groups:
            self.groups[group] = self.mesh.groups(*axes)
        size = 0 if work.call == "barrier" else _size(work)
        members = prod(map(self.mesh.size, axes))
        if work.imbalance != 1 and (work.call != "all_to_all" or work.imbalance > members):
            raise ConfigError(
                f"expected a load over the mean of an all_to_all, at most {members} for {members} "
                f"ranks, got {work.imbalance}",
                path="$.imbalance",
            )
        on = () if len(points) == len(self.points) else tuple(map(_point_name, points))
        barrier = work.call == "barrier"
        yield CallOperation(
            id=name,
            kind=cast("CollectiveKind", work.call),
            group=group,
            size_bytes=size,
            on=on,
            stream=work.stream or group,
            after=needs,
            algorithm=work.algorithm,
            imbalance=work.imbalance,
            name=work.name or work.id,
            root=work.root,
            sizes=((0,),) if barrier else (),
        )

    def _sends(
        self, work: _OperationEntry, points: list[dict[str, int]], name: str, needs: tuple[str, ...]
    ) -> Iterable[Operation]:
        axis = work.send or ""
        length = self.mesh.size(axis)
        size = _size(work)
        if not work.shift or abs(work.shift) >= length:
            raise ConfigError(
                f"expected 1 to {length - 1}, or negative, got {work.shift}", path="$.shift"
            )
        messages = defaultdict(list)
        for point in points:
            place = point[axis] + work.shift
            if work.wrap or 0 <= place < length:
                messages[point[axis]].append((point, {**point, axis: place % length}))
        if not messages:
            raise ConfigError(
                "no rank sends: all targets are outside the mesh; set wrap = true to go around",
                path="$.shift",
            )
        several = sum(map(len, messages.values())) > 1
        for pairs in messages.values():
            for source, target in pairs:
                lane = message_stream(source[axis], target[axis])
                yield SendOperation(
                    id=f"{name} [{_point_name(source)}]" if several else name,
                    source=_point_name(source),
                    target=_point_name(target),
                    size_bytes=size,
                    stream=f"{work.stream or axis} {lane}",
                    after=needs,
                    group=axis,
                    name=work.name or work.id,
                )


def _check_keys(work: _OperationEntry) -> None:
    """Refuse entries of no kind or of several, and keys that mean nothing beside those of the
    kind.
    """
    set_keys = {
        name for name in work.__struct_fields__ if getattr(work, name) != _NOTHING.get(name)
    }
    kinds = [name for name in ("call", "send", "time", "operator") if name in set_keys]
    if len(kinds) > 1 or not (kinds or set_keys & {"flops", "bytes"}):
        raise ConfigError(
            "expected call, send, or work: time, flops and bytes, or operator and shape; exactly "
            "one of these"
        )
    kind = kinds[0] if kinds else "flops"
    for name in work.__struct_fields__:
        if name in set_keys - _ALWAYS - _KEYS[kind]:
            raise ConfigError(f"means nothing beside {kind!r}; leave it out", path=f"$.{name}")


def _size(work: _OperationEntry) -> int:
    """The bytes of a call or a message, which may be 0 but not left out."""
    if work.bytes is None:
        raise ConfigError(
            "missing; expected a size such as '64M'; with '0', it only orders", path="$.bytes"
        )
    return parse_size(work.bytes, what="bytes", path="$.bytes")


def _point_name(point: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} {place}" for axis, place in point.items()) or "all"


def _count(number: str | float | None, key: str) -> float:
    """Parse a number with a decimal prefix: ``"2.1T"``."""
    if number is None:
        return 0.0
    match = _COUNT.fullmatch(number) if isinstance(number, str) else None
    value = number if isinstance(number, (int, float)) and not isinstance(number, bool) else None
    if match is not None:
        value = float(match[1]) * _POWERS[match[2]]
    if value is None or not 0 <= value < 1e30:
        raise ConfigError(f"expected a number such as '2.1T', got {shown(number)}", path=f"$.{key}")
    return float(value)
