"""Hold the search for NCCL's graphs against NCCL itself.

    python benchmarks/nccl_graphs.py FOLDER [--machine NAME] [--choices]

The folder has graphs that NCCL's own host code computed (``nccl_graphs.csv``) and the topology
files that it read (``nccl_choices_inputs``). Each file is read by the reader of dumps and searched.
The table shows the share of graphs that agree in channels and pattern, speeds, types of paths,
``same_channels`` and ``cross_nic``, the first two orders and NICs, and the counts (nodes, channels
of calls, of NVLS and of sends), and the slowest search.

With ``--choices`` the choices and tuning tables of shipped machines are computed from the topology
alone and compared with NCCL's (``nccl_choices.csv.gz``, ``nccl_tables.csv.gz``), by machine and
version; with ``--files`` too, those of all machines from the files.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import platform
import time
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

from simcoll.errors import ConfigError
from simcoll.libraries.environment import parse_environment
from simcoll.libraries.library import load_library
from simcoll.libraries.nccl.choice import NcclCall, nccl_choice
from simcoll.libraries.nccl.communicator import (
    CommunicatorFacts,
    call_channels,
    nvls_channels,
)
from simcoll.libraries.nccl.device_paths import PathRules
from simcoll.libraries.nccl.graph_search import Settings
from simcoll.libraries.nccl.search import search
from simcoll.libraries.nccl.sends import send_channels
from simcoll.libraries.nccl.tuning_table import tuning_table
from simcoll.libraries.path_types import PATH_TYPES
from simcoll.topology import load_topology, shipped_topologies
from simcoll.topology.capability import compute_capability
from simcoll.topology.readers.nccl_xml import parse_nccl_xml

COLUMNS = ("channels", "speeds", "paths", "flags", "orders", "counts")
WITHOUT_GRAPHS = ("ALGO", "PROTO", "BUFFSIZE", "NTHREADS", "LL128_NTHREADS")
COMPLETED = {
    "aws-p4d.file": {
        "sm": 80,
        "nvlinks": 12,
        "nic_bandwidth": 12_500 * 10**12,
        "nic_latency": 75 * 10**9,
    },
    "azure-nc48v4.file": {},
    "azure-ncv4.file": {"links": []},
    "azure-ndv4.file": {"sm": 80, "nvlinks": 12, "nic_bandwidth": 25_000 * 10**12},
    "azure-ndv5.file": {"sm": 90, "nvlinks": 18, "nic_bandwidth": 50_000 * 10**12},
    "crusoe-b300.file": {"sm": 103, "nvlinks": 18, "nic_bandwidth": 100_000 * 10**12},
}
"""What the topology files of clouds leave out, of GPUs, NVLinks and NICs."""
AFTER_SEARCH = ("MAX_CTAS", "MIN_CTAS", "MAX_NCHANNELS", "MIN_NCHANNELS", "NVLS_NCHANNELS")


def settings_of(variables: str) -> Settings | None:
    """NCCL's variables as settings of the search; None if they are others."""
    rules, ports, cross_nic, nvls = {}, None, 2, True
    for assignment in variables.split():
        name, _, value = assignment.removeprefix("NCCL_").partition("=")
        if name in WITHOUT_GRAPHS + AFTER_SEARCH:
            continue
        if name == "P2P_DISABLE":
            rules["peer_level"] = 0
        elif name == "P2P_LEVEL":
            rules["peer_level"] = PATH_TYPES.index(value)
        elif name == "NET_GDR_LEVEL":
            rules["nic_level"] = PATH_TYPES.index(value)
        elif name in {"PXN_DISABLE", "SHM_DISABLE", "NET_DISABLE_INTRA"}:
            names = {"PXN": "through_gpus", "SHM": "shared_memory", "NET": "network_inside"}
            rules[names[name[:3]]] = False
        elif name == "CROSS_NIC":
            cross_nic = int(value)
        elif name == "IB_HCA":
            ports = tuple(int(device.removeprefix("mlx5_")) for device in value.split(","))
        elif name == "NVLS_ENABLE":
            nvls = False
        else:
            return None
    return Settings(PathRules(**rules), cross_nic, ports, nvls)


def rows_of(path: Path):
    """The rows of a table, compressed or not."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as stream:
        yield from csv.DictReader(stream)


def ranks_on(topology, row):
    """The topology with the ranks of a row: the first GPUs of each host."""
    per_host = [int(count) for count in row["gpus_per_node"].split("+")]
    hosts = int(row["nodes"])
    per_host = per_host * hosts if len(per_host) == 1 else per_host
    gpus = topology.nranks // hosts
    chosen = [host * gpus + gpu for host, count in enumerate(per_host) for gpu in range(count)]
    return topology.with_ranks(chosen)


@cache
def topology_of(machine: str, hosts: int, folder: Path):
    """The machine of a row from a file of the folder; None without one."""
    path = folder / "nccl_choices_inputs" / f"{machine}.xml"
    files = folder.parent / "samples" / "nccl" / "topo"
    if machine == "gb200-nvl72":
        return load_topology(machine, nodes=hosts)
    if machine in COMPLETED:
        path = files / machine.replace(".file", ".xml")
    elif not path.is_file():
        path = files / machine.replace(".dump", "-full-dump.xml")
    if path.is_file():
        return parse_nccl_xml(path.read_bytes(), nodes=hosts, **COMPLETED.get(machine, {}))
    return None


def differences(row, communicator) -> set[str]:
    """Columns in which a graph of NCCL differs from the search's."""
    graphs = communicator.graphs
    graph = getattr(graphs, row["graph"])
    if graph is None:
        return set(COLUMNS)
    orders = [",".join(map(str, order)) for order in graph.orders[:2]]
    nics = [f"{enter},{leave}" for enter, leave in graph.nics[:2]]
    given_orders = row["order"].split()
    if row["graph"] == "nvls":
        given_orders = [order.partition(",")[0] for order in given_orders]
    per_host = row["gpus_per_node"].partition("+")[0]
    is_part = bool(graph.orders) and len(graph.orders[0]) not in {1, int(per_host)}
    pairs = {
        "channels": (
            (graph.channels, graph.pattern),
            (int(row["channels"]), row["pattern"]),
        ),
        "speeds": (
            (graph.speed_inside, graph.speed_between, graph.net_latency_us),
            tuple(float(row[name]) for name in ("speed_intra", "speed_inter", "latency_inter")),
        ),
        "paths": ((graph.path_inside, graph.path_to_nic), (row["type_intra"], row["type_inter"])),
        "flags": (
            (graph.same_channels, graph.cross_nic),
            (row["same_channels"] == "1", int(row["cross_nic"])),
        ),
        "orders": (
            (orders, nics if row["nets"] else []),
            (given_orders, row["nets"].split()),
        ),
        "counts": (graphs.nodes, int(row["nccl_nodes"])),
    }
    if not row["env"] and pairs["counts"][0] == pairs["counts"][1]:
        names = ("call_channels", "nvls_channels", "p2p_channels", "p2p_channels_per_peer")
        counts = call_channels(communicator), nvls_channels(communicator)
        pairs["counts"] = (
            (*counts, *send_channels(communicator)),
            tuple(int(row[name]) for name in names),
        )
    if is_part:  # the file shows as many GPUs as a host has, of its part or of a whole rack
        del pairs["orders"]
    return {column for column, (computed, given) in pairs.items() if computed != given}


def compare_graphs(folder: Path, machine: str | None) -> None:
    """Print the agreement of graphs, by machine."""
    agreement, slowest, skipped = defaultdict(Counter), defaultdict(float), Counter()
    for row in rows_of(folder / "nccl_graphs.csv"):
        name = row["machine"]
        settings = settings_of(row["env"]) if "domains" not in row["env"] else None
        topology = topology_of(name, int(row["nodes"]), folder)
        if settings is None or topology is None or (machine and name != machine):
            skipped[name] += not machine
            continue
        version = tuple(int(number) for number in row["version"].split(".")[:2])
        start = time.perf_counter()
        part = ranks_on(topology, row)
        graphs = search(part, version, settings)
        slowest[name] = max(slowest[name], time.perf_counter() - start)
        library = load_library(f"nccl-{version[0]}.{version[1]}")
        capability, cpu = compute_capability(part.traits), part.traits.get("cpu", "")
        wrong = differences(row, CommunicatorFacts(library, graphs, part.nranks, capability, cpu))
        agreement[name].update(rows=1, **{column: column not in wrong for column in COLUMNS})
        if wrong and machine:
            print(sorted(wrong), list(row.values())[:22], getattr(graphs, row["graph"]))
    print(f"{'':32} {'rows':>5} {' '.join(f'{column:>8}' for column in COLUMNS)}  slowest, s")
    total = Counter()
    for name, counts in sorted(agreement.items()):
        total.update(counts)
        print(line(name, counts, COLUMNS), f"{slowest[name]:10.2f}")
    print(line("all", total, COLUMNS))
    print("not compared:", ", ".join(f"{name} ({n})" for name, n in skipped.items() if n))


@cache
def communicator_of(name, nodes, gpus, version, variables, own: Path | None):
    """The communicator of a row from its topology alone; None for a machine that is not shipped."""
    settings = settings_of(variables)
    if settings is None or (own is None and name not in shipped_topologies()):
        return None
    try:
        topology = (
            topology_of(name, int(nodes), own) if own else load_topology(name, nodes=int(nodes))
        )
    except ConfigError:  # a machine without NICs on several nodes
        return None
    if topology is None:
        return None
    topology = ranks_on(topology, {"gpus_per_node": gpus, "nodes": nodes})
    library = load_library(f"nccl-{version.rpartition('.')[0]}")
    numbers = tuple(int(number) for number in version.split(".")[:2])
    graphs = search(topology, numbers, settings)
    environment = parse_environment(
        ",".join(
            word
            for word in variables.split()
            if word.removeprefix("NCCL_").partition("=")[0] in WITHOUT_GRAPHS + AFTER_SEARCH
        )
    )
    capability, cpu = compute_capability(topology.traits), topology.traits.get("cpu", "")
    return CommunicatorFacts(library, graphs, topology.nranks, capability, cpu, environment)


def key_of(row) -> tuple[str, ...]:
    """Machine, nodes, GPUs of a node, version and variables of a row."""
    return tuple(row[name] for name in ("machine", "nodes", "gpus_per_node", "version", "env"))


def compare_choices(folder: Path, machine: str | None, *, own: bool) -> None:
    """Print the agreement of choices and tuning tables, from topologies alone."""
    shares, entries = defaultdict(Counter), defaultdict(Counter)
    inputs = folder if own else None
    for row in rows_of(folder / "nccl_choices.csv.gz"):
        if row["algorithm"] == "p2p" or "domains" in row["env"]:
            continue
        communicator = communicator_of(*key_of(row), inputs)
        if communicator is None or (machine and row["machine"] != machine):
            continue
        call = NcclCall(row["collective"], int(row["size_bytes"]), row["dtype"], row["op"])
        counts = shares[f"{row['machine']} {row['version']}"]
        counts["rows"] += 1
        try:
            choice = nccl_choice(communicator, call)
        except ConfigError:
            continue
        names = (choice.algorithm, choice.protocol.lower())
        counts["algorithm"] += names == (row["algorithm"], row["protocol"])
        counts["channels"] += choice.channels == int(row["channels"])
    for row in rows_of(folder / "nccl_tables.csv.gz"):
        if "domains" in row["env"]:
            continue
        communicator = communicator_of(*key_of(row), inputs)
        if communicator is None or (machine and row["machine"] != machine):
            continue
        table = {
            (entry.algorithm, entry.protocol.lower()): entry
            for entry in tuning_table(communicator, row["function"])
        }
        entry = table.get((row["algorithm"], row["protocol"]))
        given = float(row["latency_us"]), float(row["bandwidth"])
        same = entry is not None and all(
            abs(number - expected) <= 0.01 * expected
            for number, expected in zip((entry.latency_us, entry.rate_GBps), given, strict=True)
        )
        entries[f"{row['machine']} {row['version']}"].update(rows=1, table=same)
    print(f"{'':32} {'rows':>5} algorithm channels, and of the tuning table within 1 %")
    total, total_entries = Counter(), Counter()
    for name, counts in sorted(shares.items()):
        total.update(counts)
        total_entries.update(entries[name])
        print(line(name, counts, ("algorithm", "channels")), line("", entries[name], ("table",)))
    print(line("all", total, ("algorithm", "channels")), line("", total_entries, ("table",)))


def line(name: str, counts: Counter, columns) -> str:
    """A line of a table: shares in percent."""
    shares = (100 * counts[column] / max(counts["rows"], 1) for column in columns)
    return f"{name:32.32} {counts['rows']:5} " + " ".join(f"{share:8.2f}" for share in shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--machine", help="compare this machine only, and print its differences")
    parser.add_argument("--choices", action="store_true", help="compare choices and tables")
    parser.add_argument("--files", action="store_true", help="choices from the files of the folder")
    options = parser.parse_args()
    if options.choices:
        compare_choices(options.folder, options.machine, own=options.files)
    else:
        compare_graphs(options.folder, options.machine)
    print(f"\n{platform.processor() or platform.machine()}, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
