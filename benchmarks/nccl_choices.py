"""Hold the rules of NCCL's choice against NCCL itself.

    python benchmarks/nccl_choices.py FOLDER [--by machine|version|variables]

The folder has the choices, tuning tables and graphs that NCCL's own host code computed
(``nccl_choices.csv.gz``, ``nccl_tables.csv.gz``, ``nccl_graphs.csv``). The graphs are taken from
there, so that the table shows the rules alone: the share of rows with the same algorithm and
protocol, channels and threads, with an estimate within 0.2 %, and of entries of the tuning table
within 0.1 %.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import platform
from collections import Counter, defaultdict
from pathlib import Path

from defusedxml import ElementTree

from simcoll.errors import ConfigError
from simcoll.libraries.environment import parse_environment
from simcoll.libraries.library import load_library
from simcoll.libraries.nccl.choice import NcclCall, nccl_choice
from simcoll.libraries.nccl.communicator import CommunicatorFacts, call_channels, nvls_channels
from simcoll.libraries.nccl.graphs import NcclGraphs, channel_graph
from simcoll.libraries.nccl.sends import channels_of_sends, send_channels
from simcoll.libraries.nccl.tuning_table import tuning_table

WITHOUT_INPUT = {
    "aws-p4d.file": (80, "intel"),
    "azure-nc48v4.file": (80, "amd"),
    "azure-ncv4.file": (80, "amd"),
    "azure-ndv4.file": (80, "amd"),
    "azure-ndv5.file": (90, "intel"),
    "crusoe-b300.file": (103, "intel"),
    "oci-h100.dump": (90, "intel"),
}
"""Compute capability and CPU of machines whose topology files are not in the folder."""
NIC_GBps = 50.0
VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}


def hardware_of(machine: str, folder: Path) -> tuple[int, str, float]:
    """Compute capability, vendor of the CPUs and rate of the slowest NIC, from the topology file
    that NCCL read.
    """
    path = folder / "nccl_choices_inputs" / f"{machine}.xml"
    if not path.is_file():
        return *WITHOUT_INPUT[machine], NIC_GBps
    tree = ElementTree.parse(path)
    capability = min(int(gpu.get("sm")) for gpu in tree.iter("gpu"))
    vendors = [cpu.get("vendor", "") for cpu in tree.iter("cpu")]
    speeds = [int(net.get("speed")) / 8000 for net in tree.iter("net")]
    return capability, VENDORS.get(vendors[0], "arm"), min(speeds, default=NIC_GBps)


def rows_of(path: Path):
    """The rows of a table, compressed or not."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as stream:
        yield from csv.DictReader(stream)


def key_of(row: dict[str, str]) -> tuple[str, ...]:
    """What NCCL ran on: version, machine, nodes, GPUs of a node, variables."""
    return tuple(row[name] for name in ("version", "machine", "nodes", "gpus_per_node", "env"))


def communicators(folder: Path) -> dict[tuple[str, ...], CommunicatorFacts]:
    """The communicators with NCCL's own graphs."""
    rows_by_key = defaultdict(dict)
    for row in rows_of(folder / "nccl_graphs.csv"):
        rows_by_key[key_of(row)][row["graph"]] = row
    result = {}
    for key, graphs in rows_by_key.items():
        version, machine, _, _, variables = key
        ring = graphs["ring"]
        capability, cpu, nic_GBps = hardware_of(machine, folder)
        ranks, nodes = int(ring["ranks"]), int(ring["nccl_nodes"])
        result[key] = CommunicatorFacts(
            load_library(f"nccl-{version.rpartition('.')[0]}"),
            NcclGraphs(
                channel_graph(ring),
                channel_graph(graphs["tree"]),
                channel_graph(graphs["nvls"]) if "nvls" in graphs else None,
                nodes,
                int(ring["p2p_channels_per_peer"]),
                nic_GBps,
                ranks // nodes,
            ),
            ranks,
            capability,
            cpu,
            parse_environment(variables if "=" in variables else ""),
        )
    return result


def compare_tables(
    folder: Path, by_key: dict[tuple[str, ...], CommunicatorFacts], show: int
) -> str:
    """Agreement of the tuning tables, in words."""
    agreements = Counter()
    for row in rows_of(folder / "nccl_tables.csv.gz"):
        communicator = by_key[key_of(row)]
        entries = {
            (entry.algorithm, entry.protocol.lower()): entry
            for entry in tuning_table(communicator, row["function"])
        }
        entry = entries.get((row["algorithm"], row["protocol"]))
        given = [float(row["latency_us"]), float(row["bandwidth"])]
        same = (
            entry is not None
            and all(
                abs(number - expected) <= 1e-3 * expected
                for number, expected in zip((entry.latency_us, entry.rate_GBps), given, strict=True)
            )
            and entry.threads == int(row["max_threads"])
            and (entry.thread_bytes == int(row["thread_threshold"]))
        )
        agreements[same] += 1
        if not same and agreements[False] <= show:
            print("table", list(row.values()), entry)
    return f"{agreements[True]} of {agreements.total()} entries of the tuning tables agree"


def compare_channels(folder: Path, by_key, show: int) -> str:
    """Agreement of the number of channels of communicators, in words."""
    agreements = Counter()
    for row in rows_of(folder / "nccl_graphs.csv"):
        if row["graph"] != "ring":
            continue
        communicator = by_key[key_of(row)]
        counts = (
            call_channels(communicator),
            nvls_channels(communicator),
            *send_channels(communicator),
        )
        columns = ("call_channels", "nvls_channels", "p2p_channels", "p2p_channels_per_peer")
        same = counts == tuple(int(row[column]) for column in columns)
        agreements[same] += 1
        if not same and agreements[False] <= show:
            print("channels", list(row.values()), counts)
    return f"{agreements[True]} of {agreements.total()} communicators have the same channels"


def compare_sends(
    sends: list[tuple[tuple[str, ...], int, int]],
    by_key: dict[tuple[str, ...], CommunicatorFacts],
    show: int,
) -> str:
    """Agreement of the channels of calls made of sends, in words."""
    agreements = Counter()
    for key, size_bytes, expected in sends:
        channels = channels_of_sends(by_key[key], size_bytes // by_key[key].ranks)
        agreements[channels == expected] += 1
        if channels != expected and agreements[False] <= show:
            print("sends", key, size_bytes, expected, channels)
    return f"{agreements[True]} of {agreements.total()} calls made of sends have the same channels"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--by", choices=("machine", "version", "variables"), default="machine")
    parser.add_argument("--show", type=int, default=0, help="rows that differ to print")
    options = parser.parse_args()
    by_key = communicators(options.folder)
    shares = defaultdict(Counter)
    shown, sends = 0, []
    for row in rows_of(options.folder / "nccl_choices.csv.gz"):
        if row["algorithm"] == "p2p":
            sends.append((key_of(row), int(row["size_bytes"]), int(row["channels"])))
            continue
        key = key_of(row)
        call = NcclCall(row["collective"], int(row["size_bytes"]), row["dtype"], row["op"])
        try:
            choice = nccl_choice(by_key[key], call)
        except ConfigError as error:
            choice = None
            print(key, call, error)
        expected = (row["algorithm"], row["protocol"]), int(row["channels"]), int(row["threads"])
        counts = shares[key[{"machine": 1, "version": 0, "variables": 4}[options.by]]]
        counts["rows"] += 1
        if choice is not None:
            algorithm = (choice.algorithm, choice.protocol.lower()) == expected[0]
            channels, threads = choice.channels == expected[1], choice.threads == expected[2]
            estimate = float(row["estimate_us"] or 0)
            near = abs(choice.estimate_us - estimate) <= 2e-3 * estimate
            counts.update(algorithm=algorithm, channels=channels, threads=threads, estimate=near)
            if not (algorithm and channels and threads and near) and shown < options.show:
                shown += 1
                print(list(row.values()), choice)
    print(compare_tables(options.folder, by_key, options.show))
    print(compare_channels(options.folder, by_key, options.show))
    print(compare_sends(sends, by_key, options.show))
    print(f"\n{'':28} {'rows':>7} algorithm channels threads estimate")
    total = Counter()
    for name, counts in sorted(shares.items()):
        total.update(counts)
        print(line(name or "none", counts))
    print(line("all", total))
    print(f"\n{platform.processor() or platform.machine()}, Python {platform.python_version()}")


def line(name: str, counts: Counter) -> str:
    """A line of the table: shares in percent."""
    shares = (
        100 * counts[column] / counts["rows"]
        for column in ("algorithm", "channels", "threads", "estimate")
    )
    return f"{name:28.28} {counts['rows']:7} " + " ".join(f"{share:8.3f}" for share in shares)


if __name__ == "__main__":
    main()
