"""Reader of ``nvidia-smi topo -m``, ``rocm-smi --showtopo`` and ``amd-smi topology``: the proximity
of the GPUs and NICs of a node.

The matrix states the number of NVLinks between two GPUs and the connection of other pairs, but no
rates, which must be given. Latencies are assumptions, those of NCCL dumps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simcoll.core.vocabulary import NodeKind
from simcoll.errors import ConfigError
from simcoll.files.reader_arguments import Content, content_of
from simcoll.topology.cluster import Box, Tier, cluster
from simcoll.topology.graph import Topology
from simcoll.topology.links import LinkTable
from simcoll.topology.readers.amd_smi import (
    AMD_JSON,
    AMD_TABLES,
    matrix_of_amd_json,
    matrix_of_amd_tables,
)
from simcoll.topology.readers.missing_rates import Rate, required_rates
from simcoll.topology.readers.smi_text import NEARNESS, DeviceMatrix, matrix_of_text
from simcoll.topology.values import halves_fs

__all__ = ["parse_smi_matrix"]

MAX_BYTES = 2**18
NVLINKS = 18
"""Most NVLinks of a GPU: a larger total over its peers indicates switches."""
NVLINK_FS, PCIE_FS = 700_000_000, 400_000_000
CPU_FS, NET_FS = 500_000_000, 1_000_000_000


def _pcie_switches(
    switches: Sequence[int],
    cpus: Sequence[int],
    names: list[str],
    kinds: list[NodeKind],
    links: LinkTable,
    rate: int,
) -> list[int]:
    """Add a switch for each number in ``switches`` that several devices have, and its link to the
    CPU of the first; return what each device is plugged into: its switch, or else its CPU.
    """
    parents = []
    switch_of: dict[int, int] = {}
    for switch, cpu in zip(switches, cpus, strict=True):
        if switches.count(switch) > 1 and switch not in switch_of:
            switch_of[switch] = len(names)
            links.add_pair(len(names), cpu, rate, (PCIE_FS, PCIE_FS), "pcie")
            names.append(f"pcie{len(switch_of) - 1}")
            kinds.append("pcie")
        parents.append(switch_of.get(switch, cpu))
    return parents


def parse_smi_matrix(
    content: Content,
    *,
    file: str = "matrix",
    nodes: int = 1,
    nvlink_bandwidth: Any = None,
    pcie_bandwidth: Any = None,
    nic_bandwidth: Any = None,
    cpu_bandwidth: Any = None,
) -> Topology:
    """Build a topology from the output of ``nvidia-smi topo -m``, ``rocm-smi --showtopo`` or
    ``amd-smi topology``.

    Parameters
    ----------
    content, file
        The output, and its name for messages.
    nodes
        Copies of the node, joined by a non-blocking network for each rail.
    nvlink_bandwidth, pcie_bandwidth, nic_bandwidth, cpu_bandwidth
        Rate of one NVLink or xGMI link, of a PCIe slot, of a NIC and between two sockets, in each
        direction. Each is required only if needed.

    Raises
    ------
    ConfigError
        For text that is not such a matrix, with the line; for a required rate that is missing.
    """
    content = content_of(content, "parse_smi_matrix")
    matrix = _parse(content, file)

    n, total, sockets = matrix.gpus, len(matrix.words), _sockets(matrix)
    counts = [
        [int(word[2:]) if word.startswith("NV") else 0 for word in row[:n]]
        for row in matrix.words[:n]
    ]
    link_name = "NVLinks" if matrix.source.startswith("nvidia") else "xGMI links"
    needs = {
        "nvlink": (
            any(map(any, counts)),
            Rate("nvlink.bandwidth", link_name, "25 GB/s", nvlink_bandwidth),
        ),
        "pcie": (
            n > 1 or total > n,
            Rate("pcie.bandwidth", "PCIe slots", "32 GB/s", pcie_bandwidth),
        ),
        "nic": (total > n, Rate("nic.bandwidth", "NICs", "50 GB/s", nic_bandwidth)),
        "cpu": (
            len(set(sockets)) > 1,
            Rate("cpu.bandwidth", "links between sockets", "20 GB/s", cpu_bandwidth),
        ),
    }
    needed = {part: rate for part, (is_needed, rate) in needs.items() if is_needed}
    rates = dict(
        zip(needed, required_rates("the matrix", file, list(needed.values())), strict=True)
    )
    nvlink, pcie = rates.get("nvlink", 0), rates.get("pcie", 0)
    names = [f"gpu{gpu}" for gpu in range(n)]
    kinds: list[NodeKind] = ["gpu"] * n
    links = LinkTable([])
    _nvlinks(counts, names, kinds, links, nvlink)
    switches = _groups(
        total,
        [(a, b) for a in range(total) for b in range(a) if matrix.words[a][b] in {"PIX", "PXB"}],
    )
    cpu_of: dict[int, int] = {}
    for socket in sorted(set(sockets)):
        cpu_of[socket] = len(names)
        names.append(f"cpu{socket}")
        kinds.append("cpu")
    cpus = [cpu_of[socket] for socket in sockets]
    parents = _pcie_switches(switches, cpus, names, kinds, links, pcie)
    for gpu in range(n if pcie else 0):
        links.add_pair(gpu, parents[gpu], pcie, (PCIE_FS, PCIE_FS), "pcie")
    if len(cpu_of) > 1:
        ends = sorted(cpu_of.values())
        for a in ends:
            for b in ends[: ends.index(a)]:
                links.add_pair(a, b, rates["cpu"], (CPU_FS, CPU_FS), "cpu")
    nics = []
    for device in range(n, total):
        nics.append(len(names))
        links.add_pair(len(names), parents[device], pcie, (PCIE_FS, PCIE_FS), "pcie")
        names.append(f"nic{device - n}")
        kinds.append("nic")
    nearest = [_nearest(matrix, gpu) for gpu in range(n)] if nics else [0] * n
    box = Box(
        names=tuple(names),
        kinds=tuple(kinds),
        links=links,
        gpus=tuple(range(n)),
        nics=tuple(nics),
        nic_capacity=(rates.get("nic", 0),) * len(nics),
        nic_of_gpu=tuple(nearest if nics else ()),
    )
    title = file.replace("\\", "/").rpartition("/")[2].rpartition(".")[0] or "matrix"
    topology = cluster(
        title, box, nodes, (Tier("leaf", rail_only=True, latency=NET_FS), Tier("spine"))
    )
    return replace(
        topology,
        description=f"{matrix.source}: {n} GPUs, {len(nics)} NICs",
        sources={"$": f"{matrix.source}: what joins what; rates as given; latencies unverified"},
    )


def _parse(content: bytes, file: str) -> DeviceMatrix:
    if len(content) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 10} KiB", file=file)
    text = content.decode("utf-8", "replace")
    if content.lstrip()[:1] in {b"[", b"{"} and AMD_JSON.search(content):
        return matrix_of_amd_json(content, file)
    if AMD_TABLES.search(content):
        return matrix_of_amd_tables(text, file)
    return matrix_of_text(text, file)


def _groups(count: int, pairs: list[tuple[int, int]]) -> list[int]:
    """Group of each of ``count`` items, given pairs that belong together; numbered by first
    member.
    """
    group = list(range(count))
    for a, b in pairs:
        low, high = sorted((group[a], group[b]))
        group = [low if member == high else member for member in group]
    return group


def _sockets(matrix: DeviceMatrix) -> list[int]:
    """Socket of each device: devices not separated by the word SYS, and GPUs with one NUMA node,
    share a socket.
    """
    total, n = len(matrix.words), matrix.gpus
    pairs = [(a, b) for a in range(total) for b in range(a) if matrix.words[a][b] in NEARNESS[:-1]]
    pairs += [
        (a, b)
        for a in range(n)
        for b in range(a)
        if matrix.numa[a] and matrix.numa[a] == matrix.numa[b]
    ]
    group = _groups(total, pairs)
    separate = (
        any(word == "SYS" for row in matrix.words for word in row)
        or len({numa for numa in matrix.numa if numa}) > 1
    )
    if not separate:
        group = [0] * total
    order = sorted(set(group))
    return [order.index(label) for label in group]


def _nvlinks(
    count: list[list[int]],
    names: list[str],
    kinds: list[NodeKind],
    links: LinkTable,
    link_rate: int,
) -> None:
    """Add NVLinks between GPUs, or to a switch if a GPU's links to all peers exceed its own;
    ``link_rate`` is the rate of one.
    """
    n = len(count)
    if not any(map(any, count)):
        return
    if max(map(sum, count)) <= NVLINKS:
        for a in range(n):
            for b in range(a):
                if count[a][b]:
                    links.add_pair(a, b, link_rate * count[a][b], (NVLINK_FS, NVLINK_FS), "nvlink")
        return
    switch = len(names)
    names.append("nvswitch")
    kinds.append("switch")
    for gpu in range(n):
        if any(count[gpu]):
            links.add_pair(gpu, switch, link_rate * max(count[gpu]), halves_fs(NVLINK_FS), "nvlink")


def _nearest(matrix: DeviceMatrix, gpu: int) -> int:
    """The NIC that a GPU uses: the nearest NICs are divided among the GPUs that share them."""
    n, total = matrix.gpus, len(matrix.words)

    def near(device: int) -> tuple[int, ...]:
        distance = [NEARNESS.index(matrix.words[device][nic]) for nic in range(n, total)]
        return tuple(nic for nic, far in enumerate(distance) if far == min(distance))

    mine = near(gpu)
    sharing = [peer for peer in range(n) if near(peer) == mine]
    return mine[sharing.index(gpu) * len(mine) // len(sharing) % len(mine)]
