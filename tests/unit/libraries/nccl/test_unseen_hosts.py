"""The search and the choice on hosts that nobody built, held against NCCL's own host code.

``unseen_hosts.csv`` has what NCCL 2.27.7, 2.28.9, 2.29.7 and 2.30.7 computed without a GPU, built
with stubs of CUDA, for the topology files of :mod:`tests.support.nccl_hosts`. For Arm they were built
without reading the CPU of the machine that they ran on. The first five hosts and the last were once
wrong: sends over NVLinks through a third GPU, sends over few channels, rings where no tree fits,
simple trees of some nodes, trees that enter fewer sockets than rings, and trials for every port.
"""

import csv
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from simcoll.libraries.library import load_library
from simcoll.libraries.nccl import attempts
from simcoll.libraries.nccl import search as nccl_search
from simcoll.libraries.nccl.channel_search import ChannelSearch
from simcoll.libraries.nccl.choice import NcclCall, nccl_choice
from simcoll.libraries.nccl.communicator import CommunicatorFacts, call_channels, nvls_channels
from simcoll.libraries.nccl.search import search
from simcoll.libraries.nccl.sends import send_channels
from simcoll.topology.capability import compute_capability
from simcoll.topology.readers.nccl_xml import parse_nccl_xml
from tests.support.nccl_hosts import RandomHost, random_host, topology_file

VERSIONS = ((2, 27), (2, 28), (2, 29), (2, 30))
with (Path(__file__).parent / "unseen_hosts.csv").open(encoding="utf-8") as stream:
    ROWS = list(csv.DictReader(line for line in stream if not line.startswith("#")))
# Of a host all versions in turn: most attempts of their searches are the same, and made once.
ROWS.sort(key=lambda row: [row[field.name] for field in fields(RandomHost)])


def host_of(row):
    """The host of a row."""
    texts = {field.name: row[field.name] for field in fields(RandomHost)}
    counts = {name: tuple(map(int, texts.pop(name).split())) for name in ("gpus", "nics")}
    words = {name: texts.pop(name) for name in ("cpu", "nvlinks", "pcie", "nic_pcie")}
    latency = float(texts.pop("nic_latency_us"))
    numbers = {name: int(text) for name, text in texts.items()}
    return RandomHost(**counts, **words, **numbers, nic_latency_us=latency)


def graph_text(graph):
    """A graph as in the file: channels x speed inside / between, and latency."""
    if graph is None:
        return ""
    speeds = f"{graph.speed_inside:g}/{graph.speed_between:g}"
    same = " same" if graph.same_channels else ""
    return f"{graph.channels} x {speeds} {graph.net_latency_us:g}us{same}"


def communicator_of(row):
    hosts = int(row["hosts"])
    topology = parse_nccl_xml(topology_file(host_of(row)), nodes=hosts)
    major, minor = map(int, row["version"].split(".")[:2])
    return CommunicatorFacts(
        load_library(f"nccl-{major}.{minor}"),
        search(topology, (major, minor)),
        topology.nranks,
        compute_capability(topology.traits),
        topology.traits["cpu"],
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", ROWS, ids=[f"{row['version']}-{place}" for place, row in enumerate(ROWS)]
)
def test_graphs_channels_and_choices_are_nccls(row):
    communicator = communicator_of(row)
    graphs = communicator.graphs
    assert [graph_text(graph) for graph in (graphs.ring, graphs.tree, graphs.nvls)] == [
        row[name] for name in ("ring", "tree", "nvls")
    ]
    counts = call_channels(communicator), nvls_channels(communicator), *send_channels(communicator)
    assert (graphs.nodes, *counts) == tuple(map(int, row["counts"].split()))
    for words in (text.split() for text in row["choices"].split("; ")):
        choice = nccl_choice(communicator, NcclCall("all_reduce", int(words[0])))
        assert [choice.algorithm, choice.protocol.upper(), choice.threads] == [
            *words[1:3],
            int(words[3]),
        ]
        assert choice.estimate_us == pytest.approx(float(words[4]), rel=2e-5)


@pytest.mark.slow
def test_attempts_that_another_version_made_change_nothing(monkeypatch):
    counts, run = Counter(), ChannelSearch.run

    def counted(*words):
        counts["runs"] += 1
        return run(*words)

    monkeypatch.setattr(ChannelSearch, "run", counted)
    topology = parse_nccl_xml(topology_file(random_host(9)), nodes=2)

    def searched(version, *caches):
        for cache in (nccl_search._graphs, nccl_search._domain, *caches):
            cache.cache_clear()
        return search(topology, version)

    alone = [searched(version, attempts._searched_layout) for version in VERSIONS]
    runs_alone = counts.pop("runs")
    attempts._searched_layout.cache_clear()
    assert [searched(version) for version in VERSIONS] == alone
    assert 0 < counts["runs"] <= runs_alone / 2


def test_the_file_has_every_version_and_many_hosts():
    assert {row["version"] for row in ROWS} == {"2.27.7", "2.28.9", "2.29.7", "2.30.7"}
    hosts = {host_of(row) for row in ROWS}
    assert len(hosts) >= 13
    assert any(host == random_host(0) for host in hosts)
