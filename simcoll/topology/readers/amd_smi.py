"""The tables of ``rocm-smi --showtopo`` and ``amd-smi topology``, and their JSON: link types, hops,
NUMA nodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from simcoll.errors import ConfigError
from simcoll.topology.readers.smi_text import MAX_DEVICES, DeviceMatrix

__all__ = ["AMD_JSON", "AMD_TABLES", "matrix_of_amd_json", "matrix_of_amd_tables"]

AMD_TABLES = re.compile(
    rb"^[> \t]{0,8}=*\s?(?:LINK TYPE TABLE:|Link Type between two GPUs)", re.MULTILINE
)
"""The title of the table that tells how GPUs are joined."""
AMD_JSON = re.compile(rb'"(?:num_hops|\(Topology\) Hops between DRM devices \d+ and \d+)"\s*:')
"""A key that only the JSON of these tools has."""
_PAIR = re.compile(r"\(Topology\) (Hops|Link type) between DRM devices (\d{1,3}) and (\d{1,3})")
_TITLES = {
    "hops": re.compile(r"(?:HOPS TABLE:|=*\s*Hops between two GPUs\s*=*)"),
    "types": re.compile(r"(?:LINK TYPE TABLE:|=*\s*Link Type between two GPUs\s*=*)"),
}
_LABEL = re.compile(r"GPU\d{1,3}|[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9]")
_NUMA = re.compile(r"GPU\[(\d{1,3})\]\s*:\s*\(Topology\) Numa Node:\s*(\d{1,4})")


def matrix_of_amd_tables(text: str, file: str) -> DeviceMatrix:
    r"""The matrix of AMD's tables.

    Two GPUs one hop apart by xGMI have one link; others reach each other through the processors, or
    through GPUs between them.

    Raises
    ------
    ConfigError
        For tables that are missing, or not square.

    Examples
    --------
    >>> hops = "HOPS TABLE:\n 0000:03:00.0 0000:0c:00.0\n0000:03:00.0 0 2\n0000:0c:00.0 2 0\n"
    >>> types = hops.replace("HOPS", "LINK TYPE").replace(" 2", " PCIE").replace(" 0\n", " SELF\n")
    >>> matrix_of_amd_tables(hops + types, "topology.txt").words
    [['X', 'NODE'], ['NODE', 'X']]
    """
    plain = re.sub(r"^[ \t]*>[> \t]*", "", text, flags=re.MULTILINE)
    lines = [line.strip() for line in plain.split("\n")]
    tables = {name: _table(lines, title, file) for name, title in _TITLES.items()}
    labels, types = tables["types"]
    hop_labels, hops = tables["hops"]
    if labels != hop_labels:
        raise ConfigError(
            f"{len(hop_labels)} GPUs in the table of hops, {len(labels)} in that of link types",
            file=file,
        )
    numa_nodes = dict(_NUMA.findall(plain))
    numa = [numa_nodes.get(str(gpu), "") for gpu in range(len(labels))]
    source = "rocm-smi --showtopo" if _NUMA.search(plain) or "ROCm" in text else "amd-smi topology"
    words = _words(labels, types, hops, numa, file)
    return DeviceMatrix(len(labels), words, numa, source)


class _AmdLink(msgspec.Struct, frozen=True):
    gpu: int
    link_type: str
    num_hops: int | str


class _AmdGpu(msgspec.Struct, frozen=True):
    gpu: int
    links: list[_AmdLink]


def matrix_of_amd_json(content: bytes, file: str) -> DeviceMatrix:
    """The matrix of ``amd-smi topology --json``, or of ``rocm-smi --showtopo --json``.

    Raises
    ------
    ConfigError
        For other JSON, and for pairs of GPUs that are missing.
    """
    try:
        if content.lstrip()[:1] == b"[":
            gpus = msgspec.json.decode(content, type=list[_AmdGpu])
            pairs = {
                (source.gpu, link.gpu): (link.link_type, str(link.num_hops))
                for source in gpus
                for link in source.links
            }
            return _of_pairs(pairs, {}, "amd-smi topology", file)
        document = msgspec.json.decode(content, type=dict[str, dict[str, Any]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not the JSON of amd-smi or rocm-smi: {error}", file=file) from None
    values: dict[tuple[int, int], dict[str, str]] = {}
    numa: dict[int, str] = {}
    for name, table in document.items():
        if name.startswith("card") and name[4:].isdecimal() and "(Topology) Numa Node" in table:
            numa[int(name[4:])] = str(table["(Topology) Numa Node"])
        for key, value in table.items():
            if match := _PAIR.fullmatch(key):
                ends = int(match[2]), int(match[3])
                for pair in (ends, ends[::-1]):
                    values.setdefault(pair, {})[match[1]] = str(value)
    pairs = {
        pair: (value.get("Link type", ""), value.get("Hops", "")) for pair, value in values.items()
    }
    return _of_pairs(pairs, numa, "rocm-smi --showtopo", file)


def _of_pairs(
    pairs: dict[tuple[int, int], tuple[str, str]], numa: dict[int, str], source: str, file: str
) -> DeviceMatrix:
    """The matrix of pairs of GPUs, each with the type and the hops of its link."""
    number = 1 + max((max(pair) for pair in pairs), default=0)
    if number > MAX_DEVICES:
        raise ConfigError(f"GPU {number - 1}; expected at most {MAX_DEVICES} GPUs", file=file)
    for a in range(number):
        for b in range(number):
            if a != b and (a, b) not in pairs:
                raise ConfigError(f"no link of GPU {a} to GPU {b}", file=file)
    cells = [[pairs.get((a, b), ("", "0")) for b in range(number)] for a in range(number)]
    types, hops = ([[cell[place] for cell in row] for row in cells] for place in (0, 1))
    numa_nodes = [numa.get(gpu, "") for gpu in range(number)]
    labels = [f"GPU{gpu}" for gpu in range(number)]
    return DeviceMatrix(number, _words(labels, types, hops, numa_nodes, file), numa_nodes, source)


def _words(
    labels: Sequence[str],
    types: Sequence[Sequence[str]],
    hops: Sequence[Sequence[str]],
    numa: Sequence[str],
    file: str,
) -> list[list[str]]:
    """The words of each pair of GPUs, as in the matrix of nvidia-smi."""

    def refuse(message: str) -> NoReturn:
        raise ConfigError(message, file=file)

    words = []
    for a in range(len(labels)):
        row = []
        for b in range(len(labels)):
            pair = f"{labels[a]} to {labels[b]}"
            kind, distance = types[a][b], hops[a][b]
            if (kind, distance) != (types[b][a], hops[b][a]):
                refuse(f"{pair} is {kind}, {distance} hops; back {types[b][a]}, {hops[b][a]} hops")
            if a == b:
                row.append("X")
            elif kind not in {"XGMI", "PCIE"} or not distance.isdecimal():
                refuse(f"{pair}: {kind!r}, {distance!r} hops; expected XGMI or PCIE, and a number")
            elif kind == "XGMI" and distance == "1":
                row.append("NV1")
            else:
                row.append("SYS" if numa[a] != numa[b] else "NODE")
        words.append(row)
    return words


def _table(
    lines: list[str], title: re.Pattern[str], file: str
) -> tuple[list[str], list[list[str]]]:
    """The labels and the cells of the table below a title."""
    start = next((place for place, line in enumerate(lines) if title.fullmatch(line)), None)
    if start is None:
        raise ConfigError(
            "tables of hops and link types are needed; print all with rocm-smi --showtopo or "
            "amd-smi topology",
            file=file,
        )
    labels = lines[start + 1].split() if start + 1 < len(lines) else []
    if not 1 <= len(labels) <= MAX_DEVICES or not all(map(_LABEL.fullmatch, labels)):
        raise ConfigError(
            f"expected names of 1 to {MAX_DEVICES} GPUs, got {' '.join(labels)[:80]!r}",
            file=file,
            path=f"line {start + 2}",
        )
    rows = []
    for number, label in enumerate(labels, start + 2):
        cells = lines[number].split() if number < len(lines) else []
        if cells[:1] != [label] or len(cells) != len(labels) + 1:
            raise ConfigError(
                f"expected a row of {label} with {len(labels)} cells; lines are cut off or wrapped",
                file=file,
                path=f"line {number + 1}",
            )
        rows.append(cells[1:])
    return labels, rows
