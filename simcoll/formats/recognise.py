"""Recognise a file's format by its content: schedules, topologies, logs and dumps.

File names are ignored: they may be wrong, and many of these formats share a suffix.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from simcoll.errors import ConfigError
from simcoll.files.lookalikes import LOOKALIKES, lookalike
from simcoll.files.text import parse_toml
from simcoll.formats.chakra.nodes import is_chakra

__all__ = ["TITLES", "FileKind", "recognise", "title_of"]

FileKind: TypeAlias = Literal[
    "schedule",
    "msccl",
    "mscclpp",
    "mscclpp-old",
    "goal",
    "goal-binary",
    "chakra",
    "nccl-topology",
    "nccl-graph",
    "nccl-log",
    "nccl-tuner",
    "ncclx-tuner",
    "nccl-tests",
    "osu",
    "nccl-tests-json",
    "perftest",
    "bandwidth-test",
    "flight-record",
    "inspector",
    "ras",
    "ras-text",
    "watchdog",
    "smi-topology",
    "ib-fabric",
    "hwloc",
    "ibstat",
    "slurm-topology",
    "openmpi-rules",
    "mpich-selection",
    "oneccl",
    "openmpi-han",
    "astra-network",
    "astra-workload",
    "simgrid",
    "graphml",
    "topology",
    "scenario",
    "sweep",
    "plan",
    "goodput",
    "design",
    "operations",
    "workload",
    "library",
    "toml",
    "hlo",
    "stablehlo",
    "kineto",
    "in-situ",
    "deepspeed-comms",
    "aicb-calls",
    "chrome-trace",
    "xml",
    "json",
    "gzip",
    "pickle",
    "empty",
    "binary",
    "text",
]
"""Short names of all formats."""
_LOOKALIKE_TITLES: Mapping[FileKind, str] = {name: title for name, title, _ in LOOKALIKES}
TITLES: Mapping[FileKind, str] = {
    "schedule": "a simcoll schedule file",
    "msccl": "an MSCCL XML file",
    "mscclpp": "an MSCCL++ execution plan",
    "mscclpp-old": "an MSCCL++ execution plan of the format before August 2025",
    "goal": "a GOAL text",
    "goal-binary": "a GOAL binary (txt2bin)",
    "chakra": "a Chakra execution trace",
    "nccl-topology": "an NCCL topology dump (NCCL_TOPO_DUMP_FILE)",
    "nccl-graph": "an NCCL graph dump (NCCL_GRAPH_DUMP_FILE)",
    "nccl-log": "a log of NCCL_DEBUG=INFO",
    "nccl-tuner": "a configuration of NCCL's tuner plugin (CSV)",
    "ncclx-tuner": "a configuration of NCCLX's tuner (CSV)",
    "nccl-tests": "a log of nccl-tests",
    "osu": "output of the OSU micro-benchmarks",
    "nccl-tests-json": "a JSON report of nccl-tests",
    "perftest": "output of perftest (ib_write_bw), which measures one connection of a network",
    "bandwidth-test": "output of nvbandwidth or p2pBandwidthLatencyTest, which measure copies",
    "flight-record": "a flight record of PyTorch",
    "inspector": "a report of NCCL's inspector plugin",
    "ras": "a report of NCCL's RAS",
    "ras-text": "a report of NCCL's RAS as text",
    "watchdog": "a log with lines of PyTorch's NCCL watchdog",
    "smi-topology": "a matrix of nvidia-smi topo -m, rocm-smi or amd-smi",
    "ib-fabric": "a listing of an InfiniBand fabric (ibnetdiscover, iblinkinfo)",
    **_LOOKALIKE_TITLES,
    "openmpi-rules": "a rules file of Open MPI",
    "mpich-selection": "a selection file of MPICH",
    "oneccl": "a list of oneCCL's environment variables",
    "openmpi-han": "a rules file of Open MPI's HAN",
    "astra-network": "a network.yml of ASTRA-sim",
    "astra-workload": "a text workload of ASTRA-sim 1.0, SimAI or AICB",
    "simgrid": "a SimGrid platform",
    "graphml": "a GraphML graph",
    "topology": "a simcoll topology file",
    "scenario": "a simcoll scenario file",
    "sweep": "a sweep file",
    "plan": "a plan file",
    "goodput": "a goodput file",
    "design": "a design of a training step",
    "operations": "a list of operations",
    "workload": "a simcoll workload",
    "library": "a simcoll library file",
    "toml": "a TOML file of no kind known here",
    "hlo": "the text of an HLO module",
    "stablehlo": "a StableHLO program, which is not compiled (lowered.compile().as_text() is)",
    "kineto": "a trace of PyTorch's profiler (Kineto)",
    "in-situ": "services of a running job (simcoll job --rows)",
    "deepspeed-comms": "a log with DeepSpeed's communication summary",
    "aicb-calls": "a list of calls of AICB (CSV)",
    "chrome-trace": "a Chrome or Perfetto trace",
    "xml": "an XML file of no kind known here",
    "json": "a JSON file of no kind known here",
    "gzip": "a compressed file (gzip)",
    "pickle": "a Python pickle",
    "empty": "an empty file",
    "binary": "a binary file of no kind known here",
    "text": "a text of no kind known here",
}
"""Descriptions of all formats by short name, worded to follow "this is"."""

_ROOTS: Mapping[str, FileKind] = {
    "algo": "msccl",
    "system": "nccl-topology",
    "graphs": "nccl-graph",
    "platform": "simgrid",
    "graphml": "graphml",
}
# Keys that tell a JSON object apart, and below a TOML file; the first row that fits decides.
_KEYS: tuple[tuple[FileKind, frozenset[str]], ...] = (
    ("schedule", frozenset({"format", "version"})),
    ("workload", frozenset({"format", "nranks", "operations"})),
    ("flight-record", frozenset({"entries", "version"})),
    ("kineto", frozenset({"traceEvents", "schemaVersion"})),
    ("kineto", frozenset({"traceEvents", "distributedInfo"})),
    ("kineto", frozenset({"traceEvents", "deviceProperties"})),
    ("chrome-trace", frozenset({"traceEvents"})),
    ("inspector", frozenset({"coll_perf"})),
    ("ras", frozenset({"communicators"})),
    ("nccl-tests-json", frozenset({"results", "nccl_version"})),
    ("openmpi-rules", frozenset({"rule_file_version"})),
)
_TABLES: tuple[tuple[FileKind, frozenset[str]], ...] = (
    ("scenario", frozenset({"topology", "collective", "sizes"})),
    ("sweep", frozenset({"topologies", "collectives", "sizes"})),
    ("plan", frozenset({"model", "objective"})),
    ("design", frozenset({"model", "topology"})),
    ("goodput", frozenset({"job", "checkpoint"})),
)
_GOAL_COOKIE = 4223
_AMD_TOPOLOGY = re.compile(rb'"(?:num_hops"|\(Topology\) Hops between DRM devices)')
# Texts, by a line that only they have; the first row that fits any line decides.
_LINES: tuple[tuple[FileKind, re.Pattern[str]], ...] = (
    ("hlo", re.compile(r"HloModule [^,\s]+")),
    ("stablehlo", re.compile(r"module @?[\w.\-]* .*\{$|.*\bstablehlo\.\w+")),
    (
        "astra-workload",
        re.compile(
            r"(?:HYBRID_(?:TRANSFORMER|DLRM|DATA_MODEL|MODEL_DATA|CUSTOMIZED)\w*(?:\s+\w+:.*)?"
            r"|(?:DATA|MODEL|MICRO|DISTRIBUTED_INFERENCE|TRANSFORMER\w*|DLRM\w*))$"
        ),
    ),
    ("in-situ", re.compile(r"collective,size_bytes,ranks,service_ns,")),
    ("aicb-calls", re.compile(r"comm_type,comm_group,")),
    ("deepspeed-comms", re.compile(r".*Comm\. Op\s+Message Size\s+Count\s")),
    ("astra-network", re.compile(r"topology\s*:\s*(?:\[|#|$)")),
    ("goal", re.compile(r"num_ranks\s+\d")),
    ("nccl-tests", re.compile(r".*# ?nThread \d|[^#]*#.* out-of-place ")),
    ("osu", re.compile(r".*# OSU (?:MPI|NCCL|RCCL)\b.* Test")),
    ("nccl-log", re.compile(r".*\bNCCL (?:INFO|WARN) ")),
    (
        "perftest",
        re.compile(
            r".*(?:(?:RDMA_Write|RDMA_Read|Send|Atomic_\w+) (?:\w+ )?(?:BW|Latency) "
            r"(?:\w+ )?Test$|#bytes\s+#iterations\s)"
        ),
    ),
    ("bandwidth-test", re.compile(r"nvbandwidth Version|\[?P2P \(?.*Bandwidth Latency Test")),
    (
        "ras-text",
        re.compile(r"Group\s+Comms\s+Nodes\s+Ranks|#\d+-\d+ \([0-9a-f]+\) [A-Z]{5,12}$"),
    ),
    (
        "smi-topology",
        re.compile(r".*\bGPU0\W+X\W|\W*(?:LINK TYPE TABLE:|=*\s?Link Type between two GPUs)"),
    ),
    (
        "ib-fabric",
        re.compile(
            r'(?:Switch|Ca|CA|Hca)\s+\d+\s+"|(?:Switch|CA): '
            r'.*:$|vendid=0x|0x[0-9a-f]{16}\s+"[^"]{0,200}"\s+\d+\s+\d+\['
        ),
    ),
    (
        "nccl-tuner",
        re.compile(r"(?:allreduce|allgather|reducescatter|broadcast|reduce),\d+,\d+,\w+,"),
    ),
    (
        "ncclx-tuner",
        re.compile(
            r"(?:allreduce|allgather|reducescatter|broadcast|reduce),(?:\*|[\[(][\d, ]*[\])]),\w+,"
        ),
    ),
    ("openmpi-rules", re.compile(r"rule-file-version-\d")),
    ("oneccl", re.compile(r"(?:export )?CCL_[A-Z_]+=")),
    (
        "watchdog",
        re.compile(r".*(?:Watchdog caught collective|last enqueued (?:NCCL )?work|WorkNCCL\()"),
    ),
    ("openmpi-han", re.compile(r"\d+\s+(?:self|basic|libnbc|tuned|sm|adapt|han)\s*$")),
)
_LONGEST, _MOST_LINES = 400, 4000
_HEAD = 1 << 20


def recognise(content: bytes) -> FileKind:
    """The short name of a file's format, a key of :data:`TITLES`.

    Examines only the start of a text. A recognised file need not be valid, which its reader checks.

    >>> recognise(b"<algo name='ring'/>"), recognise(b"num_ranks 2"), recognise(b"hello")
    ('msccl', 'goal', 'text')
    """
    head = content[:_HEAD]
    if not head.strip():
        return "empty"
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if len(head) >= 14 and struct.unpack_from("<Q", head)[0] == _GOAL_COOKIE:
        return "goal-binary"
    if head[:1] == b"\x80" and b"entries" in head:
        return "flight-record"
    if head[:2] in {b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"}:
        return "pickle"
    if is_chakra(content):
        return "chakra"
    similar = lookalike(head)
    if similar is not None:
        return similar[0]
    text = head.decode("utf-8", "replace")
    first_letter = text.lstrip("\ufeff \t\r\n")[:1]
    if first_letter == "<":
        return _xml(text)
    if first_letter in {"{", "["}:
        name = _json(content)
        if name is not None:
            return name
    return _text(text, content)


def title_of(content: bytes) -> str:
    """Describe a file's format.

    >>> title_of(b"<graphs version='1'/>")
    'an NCCL graph dump (NCCL_GRAPH_DUMP_FILE)'
    """
    return TITLES[recognise(content)]


def _xml(text: str) -> FileKind:
    begin = text.find("<")
    while text.startswith(("<?", "<!"), begin):  # comments and declarations before the root
        close = "-->" if text.startswith("<!--", begin) else ">"
        end = text.find(close, begin)
        begin = text.find("<", end) if end >= 0 else -1
        if begin < 0:
            return "xml"
    root = re.compile(r"<(?:\w+:)?(\w+)").match(text, begin)
    return _ROOTS.get(root[1], "xml") if root else "xml"


def _json(content: bytes) -> FileKind | None:
    """The format of a JSON object or list, possibly truncated or broken; None if it does not look
    like JSON.
    """
    try:
        document: object = msgspec.json.decode(
            content, type=dict[str, msgspec.Raw] | list[msgspec.Raw]
        )
        keys = set(document) if isinstance(document, dict) else set()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        keys = {key.decode() for key in re.findall(rb'"([\w=]{1,40})"\s*:', content[:_HEAD])}
        if not keys:
            return None
    if _AMD_TOPOLOGY.search(content[:_HEAD]):
        return "smi-topology"
    if {"gpus", "name"} <= keys:
        return "mscclpp-old" if b'"inputChunks"' in content else "mscclpp"
    for name, marks in _KEYS:
        if marks <= keys:
            return name
    return "mpich-selection" if any(key.startswith("collective=") for key in keys) else "json"


def _text(text: str, content: bytes) -> FileKind:
    lines = [line.strip()[:_LONGEST] for line in text.split("\n", _MOST_LINES)[:_MOST_LINES]]
    for name, pattern in _LINES:
        if any(map(pattern.match, lines)):
            return name
    if _is_openmpi_text(lines):
        return "openmpi-rules"
    if "\0" in text or "\ufffd" in text:
        return "binary"
    try:
        table = parse_toml(content)
    except ConfigError:
        return "text"
    if "version" in table and ("base" in table or "extends" in table):
        return "library"
    if "family" in table or "extends" in table:
        return "topology"
    if isinstance(table.get("op"), list):
        return "operations"
    table_format: FileKind = next(
        (name for name, marks in _TABLES if marks <= table.keys()), "toml"
    )
    return table_format if table else "text"


def _is_openmpi_text(lines: Sequence[str]) -> bool:
    """Whether a text has numbers alone, in rows of which the longest are rules of Open MPI 4 or 5:
    size, algorithm, fan out, segments, and since version 2 the number of requests.
    """
    rows = [line.partition("#")[0].split() for line in lines]
    counts = {len(row) for row in rows if row}
    return (
        counts in ({1, 4}, {1, 5})
        and len(next(row for row in rows if row)) == 1
        and all(word.isdecimal() for row in rows for word in row)
    )
