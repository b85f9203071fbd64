"""Traces of a small job that never ran, with times that are known exactly: for trying commands, and
for tests.

Each rank runs the same program: in every layer an all_gather and a product of matrices, then
backwards a product and a reduce_scatter, and at the end of a step an all_reduce of one number and
an optimizer. Its clock advances by what its host and its streams do, so the arrival of each rank
and the service of each collective are known.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from simcoll.core.vocabulary import CollectiveKind
from simcoll.errors import ConfigError, nearest
from simcoll.files.output import write_files

__all__ = ["DIALECTS", "ExampleJob", "KnownCollective", "write_example_traces"]

Dialect: TypeAlias = Literal["2.1", "2.5", "2.13", "rocm", "coalesced", "backlog", "graph"]
DIALECTS: tuple[Dialect, ...] = ("2.1", "2.5", "2.13", "rocm", "coalesced", "backlog", "graph")
"""Versions of PyTorch whose traces differ, and special forms.

2.1: whole microseconds, no metadata, only recorded inputs; 2.5: metadata on kernels; 2.13: also
numbers of calls; rocm: RCCL's generic kernels, metadata on the host; coalesced: kernels of
all_gather without metadata; backlog: device work queued before the trace; graph: computation of a
step in a CUDA graph, with device time that has no events.
"""
COMPUTE, COMMUNICATION = 7, 20
_NAMES = {
    "all_gather": ("_allgather_base", "nccl:_all_gather_base", "AllGather"),
    "reduce_scatter": ("_reduce_scatter_base", "nccl:_reduce_scatter_base", "ReduceScatter_Sum"),
    "all_reduce": ("allreduce", "nccl:all_reduce", "AllReduce_Sum"),
}
_WORKSPACE_US = 900.0


@dataclass(frozen=True, slots=True)
class KnownCollective:
    """A collective of the example: kind, size as nccl-tests counts it, and times in
    microseconds.
    """

    kind: CollectiveKind
    size_bytes: int
    arrivals_us: tuple[float, ...]
    service_us: float


@dataclass(slots=True)
class _ExampleRank:
    """The clocks of a rank, in microseconds, and its events."""

    rank: int
    clock_us: float
    speed: float
    correlation: int = 1000
    streams_us: dict[int, float] = field(default_factory=lambda: {COMPUTE: 0.0, COMMUNICATION: 0.0})
    events: list[dict[str, Any]] = field(default_factory=list)

    def event(
        self, category: str, name: str, thread: int, begin_us: float, time_us: float, **args: Any
    ) -> None:
        """Record an event."""
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": self.rank,
                "tid": thread,
                "ts": begin_us,
                "dur": time_us,
                "args": args,
            }
        )

    def call(self, name: str, time_us: float) -> float:
        """A call of the runtime; returns when it began."""
        begin = self.clock_us
        self.correlation += 1
        thread = 100 + self.rank
        self.event("cuda_runtime", name, thread, begin, time_us, correlation=self.correlation)
        self.clock_us += time_us
        return begin

    def kernel(self, name: str, stream: int, begin_us: float, time_us: float, **args: Any) -> None:
        """A kernel of the latest call."""
        arguments = {"stream": stream, "device": self.rank, "correlation": self.correlation}
        self.event("kernel", name, stream, begin_us, time_us, **arguments, **args)
        self.streams_us[stream] = begin_us + time_us


@dataclass(frozen=True, slots=True)
class ExampleJob:
    """The program of the example.

    Attributes
    ----------
    ranks, steps, layers
        Numbers of ranks, steps and layers.
    dialect
        One of ``DIALECTS``.
    slow
        Factors of the computation of some ranks.
    clocks_us
        By how much the clocks of some ranks are ahead.
    """

    ranks: int = 4
    steps: int = 2
    layers: int = 3
    dialect: Dialect = "2.13"
    slow: Mapping[int, float] = field(default_factory=dict)
    clocks_us: Mapping[int, float] = field(default_factory=dict)

    def play(self) -> tuple[list[dict[str, Any]], list[KnownCollective]]:
        """The documents of all ranks, and the collectives.

        Raises
        ------
        ConfigError
            For an unknown dialect.
        """
        if self.dialect not in DIALECTS:
            raise ConfigError(
                f"no dialect {self.dialect!r} of traces; {nearest(self.dialect, DIALECTS)}"
            )
        return _ExamplePlay(self).documents()


class _ExamplePlay:
    """Plays the program of an example."""

    def __init__(self, job: ExampleJob) -> None:
        self.job = job
        self.ranks = [
            _ExampleRank(rank, 5e6 + 7.25 * (rank * 5 % 3), job.slow.get(rank, 1.0))
            for rank in range(job.ranks)
        ]
        self.prefix = "hip" if job.dialect == "rocm" else "cuda"
        self.known: list[KnownCollective] = []

    def documents(self) -> tuple[list[dict[str, Any]], list[KnownCollective]]:
        """Play all steps; the documents and the collectives."""
        if self.job.dialect == "backlog":
            for rank in self.ranks:
                rank.kernel("gemm_before", COMPUTE, rank.clock_us + 4.0, 800.0)
        for step in range(self.job.steps):
            self._step(step)
        return [self._document(rank) for rank in self.ranks], self.known

    def _step(self, step: int) -> None:
        begins = [rank.clock_us for rank in self.ranks]
        for layer in range(self.job.layers):
            self._collective("all_gather", 8 << 20, "BFloat16", 61.0)
            self._compute("gemm_forward", 180.0 + layer)
        for layer in reversed(range(self.job.layers)):
            self._compute("gemm_backward", 350.0 + layer)
            self._collective("reduce_scatter", 8 << 20, "BFloat16", 64.0)
        self._collective("all_reduce", 4, "Float", 19.0)
        if self.job.dialect == "graph":
            self._graph()
        self._compute("adam", 40.0)
        for rank, begin in zip(self.ranks, begins, strict=True):
            start = rank.call(f"{self.prefix}DeviceSynchronize", 1.0)
            rank.clock_us = max(rank.clock_us, max(rank.streams_us.values()) + 4.0)
            rank.events[-1]["dur"] = rank.clock_us - start
            mark = f"ProfilerStep#{step + 3}"
            thread = 100 + rank.rank
            rank.event("user_annotation", mark, thread, begin, rank.clock_us - begin)

    def _compute(self, name: str, time_us: float) -> None:
        for rank in self.ranks:
            rank.clock_us += 6.0 + 0.5 * rank.rank
            begin = rank.call(f"{self.prefix}LaunchKernel", 5.0)
            start = max(begin + 7.0, rank.streams_us[COMPUTE] + 1.0)
            rank.kernel(name, COMPUTE, start, time_us * rank.speed)

    def _graph(self) -> None:
        """Many kernels of one launch, and time of the device between them without events."""
        for rank in self.ranks:
            begin = rank.call("cudaGraphLaunch", 9.0)
            start = max(begin + 9.0, rank.streams_us[COMPUTE] + 1.0)
            for number in range(8):
                rank.kernel("fused", COMPUTE, start + number * _WORKSPACE_US, 50.0)

    def _collective(
        self, kind: CollectiveKind, size_bytes: int, dtype: str, service_us: float
    ) -> None:
        arrivals = []
        for rank in self.ranks:
            rank.clock_us += 10.0 + rank.rank % 2
            self._launch(rank, kind, size_bytes, dtype)
            arrivals.append(rank.streams_us[COMMUNICATION])
        end = max(arrivals) + service_us
        self.known.append(KnownCollective(kind, size_bytes, tuple(arrivals), service_us))
        for rank, arrival in zip(self.ranks, arrivals, strict=True):
            kernel = next(
                event
                for event in reversed(rank.events)
                if event["cat"] == "kernel" and event["tid"] == COMMUNICATION
            )
            kernel["dur"] = end - arrival
            rank.streams_us[COMMUNICATION] = end
            self._wait(rank)

    def _launch(
        self, rank: _ExampleRank, kind: CollectiveKind, size_bytes: int, dtype: str
    ) -> None:
        """The host's side of a collective; its kernel ends when all ranks have come."""
        title, annotation, family = _NAMES[kind]
        begin = rank.clock_us
        rank.call(f"{self.prefix}EventRecord", 1.5)
        rank.call(f"{self.prefix}StreamWaitEvent", 1.5)
        rank.clock_us += 8.0
        launched = rank.call(f"{self.prefix}LaunchKernel", 6.0)
        ready = (rank.streams_us[COMPUTE] + 1.5, rank.streams_us[COMMUNICATION] + 1.0)
        start = max(launched + 8.0, *ready)
        stated, inputs = self._metadata(title, kind, size_bytes, dtype)
        dialect = self.job.dialect
        bare = dialect in {"2.1", "rocm"} or (dialect == "coalesced" and kind == "all_gather")
        name = f"ncclDevKernel_{family}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        if dialect == "2.1":
            name = f"ncclKernel_{family}_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
        if dialect == "rocm":
            name = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
        rank.kernel(name, COMMUNICATION, start, 0.0, **({} if bare else stated))
        rank.streams_us[COMMUNICATION] = start
        rank.clock_us += 3.0
        thread, time_us = 100 + rank.rank, rank.clock_us - begin
        metadata = inputs if dialect == "2.1" else stated
        rank.event("cpu_op", "record_param_comms", thread, begin, time_us, **metadata)
        rank.event("user_annotation", annotation, thread, begin + 2, time_us - 4, **inputs)

    def _wait(self, rank: _ExampleRank) -> None:
        """The wait for a collective, which is recorded like one."""
        name = {} if self.job.dialect == "2.1" else {"Collective name": "wait"}
        thread = 100 + rank.rank
        rank.event("cpu_op", "record_param_comms", thread, rank.clock_us, 5.0, **name)
        rank.clock_us += 2.0
        rank.call(f"{self.prefix}StreamWaitEvent", 1.5)
        rank.clock_us += 2.0
        streams = rank.streams_us
        streams[COMPUTE] = max(streams[COMPUTE], streams[COMMUNICATION])

    def _metadata(
        self, title: str, kind: CollectiveKind, size_bytes: int, dtype: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What states a collective, and its recorded inputs."""
        ranks = self.job.ranks
        elements = size_bytes // (4 if dtype == "Float" else 2)
        parts = elements // ranks
        stated = {
            "Collective name": title,
            "In msg nelems": parts if kind == "all_gather" else elements,
            "Out msg nelems": parts if kind == "reduce_scatter" else elements,
            "Group size": ranks,
            "dtype": dtype,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(ranks))),
        }
        if self.job.dialect == "2.13":
            stated["Seq"] = len(self.known) + 1
        types = {"BFloat16": "c10::BFloat16", "Float": "float"}
        inputs = {
            "Input Dims": [[stated["In msg nelems"]], [], []],
            "Input type": [types[dtype], "Scalar", "Scalar"],
        }
        return stated, inputs

    def _document(self, rank: _ExampleRank) -> dict[str, Any]:
        ahead = self.job.clocks_us.get(rank.rank, 0.0)
        for event in rank.events:
            begin, time_us = event["ts"] + ahead, event["dur"]
            if self.job.dialect == "2.1":
                event["ts"], event["dur"] = int(begin), max(1, int(time_us))
            else:
                event["ts"], event["dur"] = round(begin, 3), round(time_us, 3)
        amd = self.job.dialect == "rocm"
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"name": "AMD Instinct MI300X" if amd else "NVIDIA H100 80GB"}],
            "distributedInfo": {
                "backend": "nccl",
                "rank": rank.rank,
                "world_size": self.job.ranks,
            },
            "baseTimeNanoseconds": 1767225600000000000,
            "traceEvents": sorted(rank.events, key=lambda event: event["ts"]),
            "traceName": f"rank{rank.rank}.json",
        }


def write_example_traces(
    folder: str | Path, job: ExampleJob = ExampleJob()
) -> list[KnownCollective]:
    """Write the traces of an example job, rank0.json.gz and so on; returns its collectives.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     known = write_example_traces(folder)
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['rank0.json.gz', 'rank1.json.gz', 'rank2.json.gz', 'rank3.json.gz']
    >>> known[0].kind, known[0].size_bytes, known[0].service_us
    ('all_gather', 8388608, 61.0)
    """
    documents, collectives = job.play()
    Path(folder).mkdir(parents=True, exist_ok=True)
    files = {
        f"rank{rank}.json.gz": gzip.compress(json.dumps(document).encode(), mtime=0)
        for rank, document in enumerate(documents)
    }
    write_files(Path(folder), files)
    return collectives
