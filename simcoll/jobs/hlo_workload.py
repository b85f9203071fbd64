"""A compiled module as a workload: work timed by a GPU's roofline, collectives to be predicted.

Work runs on the stream ``compute`` in the order of the schedule. Collectives that are started and
ended later run on one stream, in order, as XLA runs them on GPUs, and permutes on another. All
ranks are one class, since all run the same program.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from simcoll.arrays import Ints
from simcoll.errors import ConfigError
from simcoll.files.paths import is_file
from simcoll.files.reader_arguments import FilePath, path_of
from simcoll.files.strict import read_file, read_start
from simcoll.jobs.hlo_costs import HloCost
from simcoll.jobs.hlo_groups import describe_groups
from simcoll.jobs.hlo_program import (
    HloCollective,
    HloEnd,
    HloLoop,
    HloProgram,
    HloStart,
    HloWork,
    Step,
    program_of,
)
from simcoll.jobs.hlo_text import parse_hlo
from simcoll.topology import Topology
from simcoll.training.gpu import Gpu, load_gpu, refuse_other_gpu, shipped_gpus
from simcoll.units import FS_PER_SECOND, MAX_TIME_FS
from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    RepeatOperation,
    Workload,
    WorkloadPart,
)

__all__ = [
    "gpu_of",
    "group_names",
    "hlo_workload",
    "is_hlo_file",
    "load_hlo",
    "refuse_target",
]

MAX_FILE_BYTES = 1 << 30
_MARK = b"HloModule "
_GZIP = b"\x1f\x8b"


def is_hlo_file(path: str | Path) -> bool:
    """Whether a file begins like the text of an HLO module, possibly compressed by gzip."""
    if not is_file(path):  # a pipe is read once, by what reads it
        return False
    try:
        head = read_start(path, 1 << 16)
    except ConfigError:
        return False
    if head.startswith(_GZIP):
        try:
            head = zlib.decompressobj(31).decompress(head, 1 << 16)
        except zlib.error:
            return False
    return head.lstrip().startswith(_MARK)


def load_hlo(path: FilePath) -> HloProgram:
    """Read the program of a module from its text, possibly compressed by gzip.

    Raises
    ------
    ConfigError
        With the file and the line, as :func:`~simcoll.jobs.hlo_text.parse_hlo` and
        :func:`~simcoll.jobs.hlo_program.program_of`.
    """
    file = path_of(path, "load_hlo", "parse_hlo")
    content = read_file(file, MAX_FILE_BYTES)
    if content.startswith(_GZIP):
        content = _decompress(content, file)
    return program_of(parse_hlo(content, file))


def _decompress(content: bytes, file: str) -> bytes:
    stream = zlib.decompressobj(31)
    try:
        text = stream.decompress(content, MAX_FILE_BYTES)
    except zlib.error as error:
        raise ConfigError(f"cannot be decompressed: {error}", file=file) from None
    if stream.unconsumed_tail:
        raise ConfigError(f"holds more than {MAX_FILE_BYTES:,} bytes", file=file)
    if not stream.eof:
        raise ConfigError("the compressed file is cut short", file=file)
    return text


def gpu_of(name: str | Path | None, topology: Topology | None, file: str | None = None) -> Gpu:
    """The GPU of a name or a file, or else that of a topology.

    Raises
    ------
    ConfigError
        When neither names a GPU of which there are numbers, or both and they differ.

    Examples
    --------
    >>> from simcoll.topology import load_topology
    >>> gpu_of(None, load_topology("dgx-h100")).name
    'h100'
    """
    if name is not None:
        if topology is not None:
            refuse_other_gpu(str(name), topology)
        return load_gpu(name)
    trait = "" if topology is None else topology.traits.get("gpu", "")
    model = trait.lower().replace(" ", "-")
    if model not in shipped_gpus():
        reason = f"there are no numbers of {trait}" if trait else "no topology names it"
        raise ConfigError(
            f"say which GPU does the work (--gpu h100, gpu='h100'), or on which machine: {reason}",
            file=file,
        )
    return load_gpu(model)


def refuse_target(program: HloProgram, *, cpu: bool) -> None:
    """Refuse modules whose collectives are not those of GPUs.

    Raises
    ------
    ConfigError
        For a module compiled for TPUs, for CPUs unless they are accepted, and for one that does not
        tell.
    """
    module = program.module
    if module.target == "tpu":
        raise ConfigError(
            "compiled for TPUs: times of collectives on a torus of TPUs are not modelled; without "
            "--topology its FLOPs, bytes and groups are printed",
            file=module.file,
        )
    if module.target == "gpu" or cpu:
        return
    kind = (
        "compiled for CPUs, where collectives of 16-bit types have twice the bytes and there is no "
        "reduce_scatter and nothing asynchronous"
        if module.target == "cpu"
        else "nothing in the text tells what it was compiled for"
    )
    raise ConfigError(
        f"{kind}; expected a module compiled for GPUs (docs/howto/compile-ahead-of-time.md), or "
        "accept it as it is (--accept-cpu, accept_cpu=True)",
        file=module.file,
    )


def hlo_workload(program: HloProgram, gpu: Gpu, *, cpu: bool = False) -> Workload:
    """A program as a workload, with its loops.

    Raises
    ------
    ConfigError
        As :func:`refuse_target`; when the GPU has no rate for a type; and for a program whose work
        takes too long.
    """
    refuse_target(program, cpu=cpu)
    builder = _WorkloadBuilder(gpu, program.module.devices)
    operations = builder.operations(program.steps, in_loop=False)
    devices = program.module.devices
    return Workload(
        devices,
        {"all": np.arange(devices, dtype=np.int64)},
        builder.names.groups,
        operations,
        title=program.module.name,
        hardware_flops=float(sum(program.flops.values()) * devices),
    )


def group_names(program: HloProgram) -> Callable[[HloCollective], str]:
    """A function that names the groups of a program's collectives as its workload does."""
    names = _GroupNames()
    for collective, _ in program.collectives:
        names.name(collective)
    return names.name


@dataclass(eq=False)
class _GroupNames:
    """Names for sets of groups, each different."""

    groups: dict[str, Ints] = field(default_factory=dict)
    names: dict[bytes, str] = field(default_factory=dict)

    def name(self, collective: HloCollective) -> str:
        groups = collective.groups
        key = groups.tobytes() + str(groups.shape).encode()
        if key not in self.names:
            name = description = describe_groups(groups)
            number = 1
            while name in self.groups:
                number += 1
                name = f"{description} #{number}"
            self.names[key] = name
            self.groups[name] = groups
        return self.names[key]


@dataclass(eq=False)
class _Block:
    """The operations of the program or of a loop, while they are built.

    Attributes
    ----------
    time_fs, flops, products_fs
        Of work that is not an operation yet.
    waits
        Calls for which the next work waits.
    latest
        The latest operation on the stream of the work.
    """

    operations: list[WorkloadPart] = field(default_factory=list)
    time_fs: int = 0
    flops: float = 0.0
    products_fs: int = 0
    waits: list[str] = field(default_factory=list)
    latest: str = ""


@dataclass(eq=False)
class _WorkloadBuilder:
    gpu: Gpu
    devices: int
    names: _GroupNames = field(default_factory=_GroupNames)
    calls: dict[int, str] = field(default_factory=dict)
    count: int = 0

    def _id(self, kind: str) -> str:
        self.count += 1
        return f"{kind} {self.count}"

    def operations(self, steps: Iterable[Step], *, in_loop: bool) -> tuple[WorkloadPart, ...]:
        block = _Block()
        for step in steps:
            if isinstance(step, HloWork):
                self._work(block, step)
            elif isinstance(step, HloStart):
                self._start(block, step.collective, in_loop=in_loop)
            elif isinstance(step, HloEnd):
                if not step.collective.synchronous:
                    self._flush(block)
                    block.waits.append(self.calls.pop(id(step.collective)))
            else:
                self._loop(block, step)
        self._flush(block)
        return tuple(block.operations)

    def _work(self, block: _Block, work: HloWork) -> None:
        time_fs, products = self._time_fs(work.cost)
        block.time_fs += time_fs
        block.products_fs += time_fs if products else 0
        block.flops += work.cost.total_flops
        if block.time_fs >= MAX_TIME_FS:
            raise ConfigError(f"{work.name}: the work takes more than {MAX_TIME_FS} fs")

    def _time_fs(self, cost: HloCost) -> tuple[int, bool]:
        """Time of an instruction, and whether products set it."""
        products = sum(flops / self._rate(name) for name, flops in cost.flops.items())
        bandwidth = self.gpu.number("memory.measured", self.gpu.number("memory.bandwidth"))
        moved = cost.nbytes / bandwidth
        if cost.host_bytes:
            moved = max(moved, cost.host_bytes / self.gpu.number("host.bandwidth"))
        return round(max(products, moved) * FS_PER_SECOND), products >= moved

    def _rate(self, name: str) -> float:
        """FLOP/s of products of a type."""
        if not name.startswith("attention."):
            return self.gpu.gemm(name)
        wide = "bf16" if "peak.bf16" in self.gpu.values else "fp16"
        return self.gpu.attention(wide, backward=name == "attention.backward")

    def _flush(self, block: _Block, *, anchor: bool = False) -> None:
        """Make an operation of the work so far; ``anchor``: even without work."""
        if not (block.time_fs or block.waits or anchor):
            return
        block.latest = self._id("work")
        block.operations.append(
            ComputeOperation(
                id=block.latest,
                on="all",
                time_fs=block.time_fs,
                after=tuple(dict.fromkeys(block.waits)),
                name="products" if 2 * block.products_fs > block.time_fs else "memory",
                flops=block.flops,
            )
        )
        block.time_fs, block.flops, block.products_fs, block.waits = 0, 0.0, 0, []

    def _start(self, block: _Block, collective: HloCollective, *, in_loop: bool) -> None:
        # In a loop the work before it may be that of the iteration before.
        self._flush(block, anchor=in_loop and not block.latest)
        name = self._id(collective.kind)
        stream = "compute"
        if not collective.synchronous:
            stream = "permutes" if collective.pairs else "collectives"
            self.calls[id(collective)] = name
        block.operations.append(
            CallOperation(
                id=name,
                kind=collective.kind,
                group=self.names.name(collective),
                size_bytes=collective.size_bytes,
                stream=stream,
                after=() if collective.synchronous or not block.latest else (block.latest,),
                name=collective.opcode,
                pairs=collective.pairs,
            )
        )
        if collective.synchronous:
            block.latest = name

    def _loop(self, block: _Block, loop: HloLoop) -> None:
        self._flush(block)
        name = self._id("loop")
        body = self.operations(loop.steps, in_loop=True)
        if body:
            block.operations.append(RepeatOperation(id=name, count=loop.count, operations=body))
            block.latest = name
