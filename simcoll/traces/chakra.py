"""Read Chakra execution traces (MLCommons) as workloads: one file per rank, ``prefix.0.et`` and so
on.

The nodes of a rank are sorted topologically, lowest number first. As in ASTRA-sim, CPU work, GPU
work and collectives form one stream each; a node that names its stream is on that one. The messages
between two ranks form another stream. Collectives of a group match in order, and so do messages
with the same source, destination and tag. A message starts when its sender reaches it, whether or
not its receiver has.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcoll.core.order import lowest_first
from simcoll.core.vocabulary import CallKind, CollectiveKind
from simcoll.errors import ConfigError, blamed_on, nearest, shown
from simcoll.files.reader_arguments import FilePath, path_of
from simcoll.files.strict import read_file
from simcoll.formats.chakra.nodes import Node, Value, parse_nodes
from simcoll.traces.gathering import gather_traces
from simcoll.traces.rank_traces import Together, Traces, TraceStep
from simcoll.traces.trace_files import trace_files
from simcoll.units import MAX_TIME_FS, counted
from simcoll.workload.stream_names import message_stream
from simcoll.workload.workload import Rules, Workload

if TYPE_CHECKING:
    from simcoll.training.gpu import Gpu

__all__ = ["COLLECTIVES", "OWN", "load_chakra", "parse_chakra"]

COLLECTIVES: tuple[CollectiveKind, ...] = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",
    "barrier",
)
"""Indexed by CollectiveCommType; reduce_scatter is also REDUCE_SCATTER_BLOCK."""
OWN = "simcoll."
"""Prefix of simcoll's attributes, for properties that the schema lacks."""
MAX_FILE_BYTES = 1 << 30
_US = 10**9


def load_chakra(
    path: FilePath, *, gpu: Gpu | None = None, groups: Mapping[str, Sequence[int]] | None = None
) -> Workload:
    """Load the traces of all ranks, given the file of one (``trace.0.et``), their folder, or the
    common beginning of their names (``trace``).

    Raises
    ------
    ConfigError
        For files that cannot be read, ranks that are missing, and as :func:`parse_chakra`.
    """
    path = path_of(path, "load_chakra")
    title, paths = trace_files(Path(path))
    files = [(read_file(rank_path, MAX_FILE_BYTES), str(rank_path)) for rank_path in paths]
    return parse_chakra(files, gpu=gpu, groups=groups, title=title)


def parse_chakra(
    files: Sequence[tuple[bytes, str | None]],
    *,
    gpu: Gpu | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    title: str = "",
) -> Workload:
    """Parse the contents of all ranks' files, given with their names, to a workload.

    Parameters
    ----------
    gpu
        Roofline for nodes with operation and byte counts (``num_ops``, ``tensor_size``); all other
        nodes, and without a GPU all nodes, take their recorded durations.
    groups
        Ranks of groups by name, besides those that the files describe: ASTRA-sim keeps them in a
        separate file.

    Raises
    ------
    ConfigError
        For files that are not traces, cyclic dependencies, undescribed groups,
        collectives over some dimensions only (``involved_dim``), and ranks that contradict each
        other.
    """
    value: Any = files
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(file, tuple) and len(file) == 2 for file in value
    ):
        raise ConfigError(
            f"parse_chakra takes a list of (content, name) of the ranks' files; got {shown(value)}"
        )
    traces: Traces = []
    metadata: dict[str, Value] = {}
    ndone = 0
    for rank, (content, file) in enumerate(files):
        metadata, nodes = parse_nodes(content, file)
        with blamed_on(file):
            conversion = _NodeConversion(rank, len(files), gpu)
            for name, members in (groups or {}).items():
                conversion.add_group(name, members)
            traces.append(conversion.steps(nodes))
            ndone += _count_outside(nodes)
    rules = None
    if f"{OWN}protocol" in metadata:
        rules = Rules(
            protocol=str(metadata[f"{OWN}protocol"]), library=str(metadata.get(f"{OWN}library", ""))
        )
    if ndone:
        title = f"{title}; {counted(ndone, 'node')} outside the trace taken as done"
    return gather_traces(traces, title=title.removeprefix("; "), rules=rules)


@dataclass(eq=False)
class _NodeConversion:
    """Converts the nodes of a rank to steps."""

    rank: int
    nranks: int
    gpu: Gpu | None
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    converted: list[TraceStep] = field(default_factory=list)
    ends: dict[int, tuple[int, ...]] = field(default_factory=dict)
    counts: Counter[tuple[object, ...]] = field(default_factory=Counter)

    def steps(self, nodes: Sequence[Node]) -> list[TraceStep]:
        for node in nodes:
            if node.kind == "METADATA" and node.values:
                self._groups_of(node)
        for node in _topological_order(nodes):
            try:
                self._add(node)
            except ConfigError as error:
                raise ConfigError(
                    error.message, path=f"node {node.number} {node.name!r:.60}"
                ) from None
        return self.converted

    def _add(self, node: Node) -> None:
        needs = tuple(
            dict.fromkeys(
                step for other_node in node.after for step in self.ends.get(other_node, ())
            )
        )
        if node.kind in {"INVALID", "METADATA"}:
            self.ends[node.number] = needs
            return
        self.ends[node.number] = (len(self.converted),)
        on_cpu = bool(node.attributes.get("is_cpu_op", False))
        stream = self._stream(node, on_cpu=on_cpu)
        if node.kind in {"COMP", "MEM_LOAD", "MEM_STORE"}:
            time_fs = self._time(node, on_cpu=on_cpu)
            self.converted.append(
                TraceStep(stream, needs, node.name, time_fs, float(_number(node, "num_ops", 0)))
            )
            return
        if on_cpu:
            raise ConfigError("communication on the CPU (is_cpu_op) cannot be played")
        together = self._collective(node) if node.kind == "COMM_COLL" else self._message(node)
        if node.kind == "COMM_RECV" and not node.attributes.get(f"{OWN}waits"):
            self.ends[node.number] += needs
            needs = ()
        self.converted.append(TraceStep(stream, needs, node.name, together=together))

    def _stream(self, node: Node, *, on_cpu: bool) -> str:
        name = node.attributes.get(f"{OWN}stream")
        if name is not None:
            return str(name)
        if node.kind in {"COMM_SEND", "COMM_RECV"}:
            return message_stream(*self._ends(node))
        if on_cpu:
            return "cpu"
        kind = (
            "communication"
            if node.kind == "COMM_COLL"
            else "memory"
            if node.kind.startswith("MEM")
            else "compute"
        )
        number = node.attributes.get("stream")
        return kind if number is None else f"stream {number!s:.40}"

    def _time(self, node: Node, *, on_cpu: bool) -> int:
        """Femtoseconds of work."""
        exact = node.attributes.get(f"{OWN}time_fs")
        flops, moved = _number(node, "num_ops", 0), _number(node, "tensor_size", 0)
        if exact is not None:
            time = _number(node, f"{OWN}time_fs", 0)
        elif self.gpu is not None and not on_cpu and (flops or moved):
            bandwidth = self.gpu.number("memory.measured", self.gpu.number("memory.bandwidth"))
            dtype = str(
                node.attributes.get("dtype", "bf16" if "peak.bf16" in self.gpu.values else "fp16")
            )
            time = round(max(flops / self.gpu.gemm(dtype), moved / bandwidth) * 1e15)
        else:
            time = node.duration_us * _US
            if not time and node.kind != "COMP":
                raise ConfigError(
                    f"{node.kind} of {moved} bytes has no duration, and no memory is modelled"
                )
        if time >= MAX_TIME_FS:
            raise ConfigError(f"takes {time} fs; expected less than {MAX_TIME_FS}")
        return time

    def _ends(self, node: Node) -> tuple[int, int]:
        """Source and destination of a message."""
        sends = node.kind == "COMM_SEND"
        source = _number(node, "comm_src", self.rank if sends else None)
        target = _number(node, "comm_dst", None if sends else self.rank)
        for rank in (source, target):
            if rank >= self.nranks:
                raise ConfigError(
                    f"rank {rank} does not exist; there are files of {self.nranks} ranks"
                )
        if source == target or self.rank != (source if sends else target):
            raise ConfigError(f"a message from rank {source} to rank {target}, on rank {self.rank}")
        return source, target

    def _message(self, node: Node) -> Together:
        source, target = self._ends(node)
        tag = _number(node, "comm_tag", 0)
        place = (source, target, tag)
        self.counts[place] += 1
        name = str(node.attributes.get("pg_name", "")) or "messages"
        return Together(
            (*place, self.counts[place]),
            (source, target),
            "send",
            name,
            _number(node, "comm_size", None),
        )

    def _collective(self, node: Node) -> Together:
        number = _number(node, "comm_type", None)
        if number >= len(COLLECTIVES):
            raise ConfigError(f"comm_type {number}; expected 0 to {len(COLLECTIVES) - 1}")
        involved = node.attributes.get("involved_dim", ())
        if isinstance(involved, tuple) and not all(involved):
            raise ConfigError(
                f"involved_dim {[int(flag) for flag in involved]}: a collective over some "
                "dimensions of ASTRA-sim's network; expected a "
                "group, named by pg_name"
            )
        name = str(node.attributes.get("pg_name", ""))
        ranks = self._members(name)
        kind: CallKind = COLLECTIVES[number]
        size = 0 if kind == "barrier" else _number(node, "comm_size", None)
        if kind in {"all_gather", "gather"}:
            size *= len(ranks)  # comm_size counts a rank's input
        if node.attributes.get(f"{OWN}meeting"):
            kind = "meeting"
        self.counts[ranks] += 1
        sizes = _sizes(node)
        return Together(
            (ranks, self.counts[ranks]),
            ranks,
            kind,
            name if name not in {"", "0"} else "all",
            size,
            str(node.attributes.get(f"{OWN}dtype", "")),
            _number(node, f"{OWN}root", 0),
            sizes or (((0,),) if kind == "barrier" else ()),
            str(node.attributes.get(f"{OWN}algorithm", "")),
            _imbalance(node),
        )

    def _members(self, name: str) -> tuple[int, ...]:
        if name in self.groups:
            ranks = self.groups[name]
        elif name in {"", "0"}:
            ranks = tuple(range(self.nranks))
        else:
            raise ConfigError(
                f"nothing describes group {name!r}; {nearest(name, self.groups or ['0'])}"
            )
        if self.rank not in ranks:
            raise ConfigError(
                f"rank {self.rank} is not in group {name!r} of ranks {list(ranks[:8])}"
            )
        return ranks

    def _groups_of(self, node: Node) -> None:
        """Read process groups from PyTorch's metadata node; other metadata is ignored."""
        text = node.values.strip()[2:-2]
        try:
            entries = json.loads(text if '\\"' not in text else text.replace('\\"', '"'))
        except (ValueError, RecursionError):
            return
        for entry in entries if isinstance(entries, list) else ():
            name, ranks = (
                (entry.get("pg_name"), entry.get("ranks"))
                if isinstance(entry, dict)
                else (None, None)
            )
            if not isinstance(name, str) or not isinstance(ranks, list):
                continue
            self.add_group(name, ranks or range(self.nranks))

    def add_group(self, name: str, ranks: Sequence[int]) -> None:
        """Add a group, whose ranks must be distinct and exist."""
        members = tuple(ranks)
        fits = all(type(rank) is int and 0 <= rank < self.nranks for rank in members)
        if not members or not fits or len(set(members)) != len(members):
            raise ConfigError(
                f"group {name!r:.60} has ranks {list(ranks)!s:.60}; expected different ones, 0 to "
                f"{self.nranks - 1}"
            )
        if self.groups.setdefault(name, members) != members:
            raise ConfigError(
                f"group {name!r:.60} is described twice, with ranks "
                f"{list(self.groups[name])!s:.60} and {list(members)!s:.60}"
            )


def _number(node: Node, name: str, default: int | None) -> int:
    """A whole number of at least 0 among the attributes."""
    value: Any = node.attributes.get(name, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value < 2**63:
        raise ConfigError(
            f"{name}: expected a whole number of at least 0, got "
            f"{'none' if value is None else shown(value)}"
        )
    return value


def _imbalance(node: Node) -> float:
    value = node.attributes.get(f"{OWN}imbalance", 1.0)
    if not isinstance(value, (int, float)) or not 1 <= value <= 1e6:
        raise ConfigError(f"{OWN}imbalance: expected a number of at least 1, got {shown(value)}")
    return float(value)


def _sizes(node: Node) -> tuple[tuple[int, ...], ...]:
    """Parse uneven blocks in simcoll's attribute: numbers separated by commas, rows by
    semicolons.
    """
    text = str(node.attributes.get(f"{OWN}sizes", ""))
    if not text:
        return ()
    if not re.fullmatch(r"[0-9]{1,18}([,;][0-9]{1,18})*", text):
        raise ConfigError(
            f"{OWN}sizes: expected numbers with commas and semicolons between, got {text[:60]!r}"
        )
    return tuple(tuple(map(int, row.split(","))) for row in text.split(";"))


def _count_outside(nodes: Sequence[Node]) -> int:
    """The number of nodes that others need and that are not in the trace."""
    return len({number for node in nodes for number in node.after} - {n.number for n in nodes})


def _topological_order(nodes: Sequence[Node]) -> list[Node]:
    """Sort nodes topologically, lowest number first."""
    by_number: Mapping[int, Node] = {node.number: node for node in nodes}
    # Converters cut a trace out of a longer one: what a node needs from before it is done.
    order = list(
        lowest_first(
            {
                node.number: tuple(number for number in node.after if number in by_number)
                for node in nodes
            }
        )
    )
    if len(order) < len(nodes):
        stuck = min(by_number.keys() - set(order))
        raise ConfigError(
            "depends on itself, through other nodes",
            path=f"node {stuck} {by_number[stuck].name!r:.60}",
        )
    return [by_number[number] for number in order]
