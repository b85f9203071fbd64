"""NCCL's choice against NCCL's own host code, and its answers to variables."""

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.errors import ConfigError
from simcoll.libraries.environment import Environment, parse_environment
from simcoll.libraries.library import load_library
from simcoll.libraries.nccl.choice import NcclCall, nccl_choice
from simcoll.libraries.nccl.communicator import (
    CommunicatorFacts,
    call_channels,
    communicator_on,
    nvls_channels,
)
from simcoll.libraries.nccl.graphs import NcclGraphs, channel_graph
from simcoll.libraries.nccl.sends import channels_of_sends, channels_to_a_peer, send_channels
from simcoll.libraries.nccl.tuning_table import tuning_table
from simcoll.topology import load_topology

HERE = Path(__file__).parent
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


def rows_of(name):
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def communicator_of(graphs):
    ring = graphs["ring"]
    ranks, nodes = int(ring["ranks"]), int(ring["nccl_nodes"])
    return CommunicatorFacts(
        load_library(f"nccl-{ring['version']}"),
        NcclGraphs(
            channel_graph(ring),
            channel_graph(graphs["tree"]),
            channel_graph(graphs["nvls"]) if "nvls" in graphs else None,
            nodes,
            int(ring["p2p_channels_per_peer"]),
            float(ring["nic_GBps"]),
            ranks // nodes,
        ),
        ranks,
        int(ring["capability"]),
        ring["cpu"],
        parse_environment(ring["variables"]),
    )


@cache
def communicators():
    by_id = {}
    for row in rows_of("graphs.csv"):
        by_id.setdefault(row["id"], {})[row["graph"]] = row
    return {number: communicator_of(graphs) for number, graphs in by_id.items()}


def sample(machine, hosts=1, ranks=8, version="2.30"):
    topology = load_topology(machine, nodes=hosts)
    return communicator_on(topology.take(ranks), load_library(f"nccl-{version}"))


def with_variables(communicator, text):
    return replace(communicator, environment=parse_environment(text))


def test_every_choice_is_nccls():
    wrong = []
    for row in rows_of("choices.csv"):
        call = NcclCall(row["collective"], int(row["size_bytes"]), row["dtype"], row["op"])
        choice = nccl_choice(communicators()[row["id"]], call)
        expected = (row["algorithm"], row["protocol"], int(row["channels"]), int(row["threads"]))
        choice_of_us = (choice.algorithm, choice.protocol, choice.channels, choice.threads)
        estimate = float(row["estimate_us"])
        if choice_of_us != expected or abs(choice.estimate_us - estimate) > 2e-3 * estimate:
            wrong.append((row, choice))
    assert wrong == []


@pytest.mark.slow
def test_variables_change_the_choice_as_in_nccl_from_the_topology_alone():
    graphs = {row["id"]: row for row in rows_of("graphs.csv")}
    compared = 0
    for row in rows_of("choices.csv"):
        about = graphs[row["id"]]
        ranks, hosts = int(about["ranks"]), int(about["hosts"])
        if about["machine"] not in {"dgx-h100", "dgx-a100"} or not about["variables"]:
            continue
        assert ranks == 8 * hosts
        communicator = communicator_on(
            load_topology(about["machine"], nodes=hosts),
            load_library(f"nccl-{about['version']}"),
            parse_environment(about["variables"]),
        )
        call = NcclCall(row["collective"], int(row["size_bytes"]), row["dtype"], row["op"])
        choice = nccl_choice(communicator, call)
        expected = (row["algorithm"], row["protocol"], int(row["channels"]))
        assert (choice.algorithm, choice.protocol, choice.channels) == expected, (about, row)
        compared += 1
    assert compared > 50


def test_every_entry_of_the_tuning_tables_is_nccls():
    for row in rows_of("tables.csv"):
        table = tuning_table(communicators()[row["id"]], row["function"])
        (entry,) = (
            entry
            for entry in table
            if (entry.algorithm, entry.protocol) == (row["algorithm"], row["protocol"])
        )
        assert entry.latency_us == pytest.approx(float(row["latency_us"]), rel=1e-4), row
        assert entry.rate_GBps == pytest.approx(float(row["bandwidth"]), rel=1e-4), row
        assert entry.threads == int(row["max_threads"])
        assert entry.thread_bytes == int(row["thread_threshold"])


def test_every_communicator_has_nccls_channels():
    for row in rows_of("graphs.csv"):
        communicator = communicators()[row["id"]]
        assert call_channels(communicator) == int(row["call_channels"]), row
        assert nvls_channels(communicator) == int(row["nvls_channels"]), row
        sends = int(row["p2p_channels"]), int(row["p2p_channels_per_peer"])
        assert send_channels(communicator) == sends, row


def test_every_call_of_sends_has_nccls_channels():
    for row in rows_of("sends.csv"):
        communicator = communicators()[row["id"]]
        piece_bytes = int(row["size_bytes"]) // communicator.ranks
        assert channels_of_sends(communicator, piece_bytes) == int(row["channels"]), row


@pytest.mark.parametrize(
    ("machine", "variables", "version", "to_peer"),
    [
        # NCCL 2.28.9's host code; src/graph/paths.cc of 2.27.7 has the same lines.
        ("dgx-h100", "", "2.28", 2),
        ("dgx-h100", "NCCL_MAX_NCHANNELS=4", "2.28", 1),
        ("dgx-a100", "NCCL_MAX_NCHANNELS=4", "2.28", 1),
        ("dgx-a100", "NCCL_MAX_NCHANNELS=4", "2.27", 1),
        ("dgx-b200", "NCCL_MAX_NCHANNELS=4", "2.28", 1),
        ("rtx-pro-6000", "", "2.28", 1),
        ("rtx-pro-6000", "NCCL_MIN_NCHANNELS=32", "2.28", 2),
        ("rtx-pro-6000", "NCCL_MIN_CTAS=24", "2.28", 2),
        # From 2.29 on by the rate of the NICs.
        ("dgx-a100", "NCCL_MAX_NCHANNELS=4", "2.30", 2),
    ],
)
def test_variables_set_how_many_channels_a_peer_gets_over_nodes(
    machine, variables, version, to_peer
):
    communicator = communicator_on(
        load_topology(machine, nodes=2),
        load_library(f"nccl-{version}"),
        parse_environment(variables),
    )
    assert send_channels(communicator)[1] == to_peer


def test_a_small_buffer_shortens_the_chunks_of_sends():
    node = sample("dgx-h100")
    small = with_variables(node, "NCCL_BUFFSIZE=1048576")
    assert channels_to_a_peer(node, 2**16) < channels_to_a_peer(small, 2**16)


@pytest.mark.parametrize("text", ["Tree", "NVLS", "NVLSTree", "^Ring", "broadcast:tree"])
def test_nccl_refuses_a_broadcast_without_a_ring(text):
    node = with_variables(sample("dgx-h100"), f"NCCL_ALGO={text}")
    with pytest.raises(ConfigError, match=r"invalid usage.*NCCL_ALGO=Ring"):
        nccl_choice(node, NcclCall("broadcast", 2**20))


def test_an_all_gather_by_switches_needs_one_node():
    for hosts in (1, 2):
        node = with_variables(sample("dgx-h100", hosts, 8 * hosts), "NCCL_ALGO=NVLS")
        if hosts == 1:
            assert nccl_choice(node, NcclCall("all_gather", 2**20)).algorithm == "nvls"
            continue
        with pytest.raises(ConfigError, match="invalid usage"):
            nccl_choice(node, NcclCall("all_gather", 2**20))


def test_a_rack_gathers_by_rings_and_reduces_in_switches():
    trays = sample("gb200-nvl72", hosts=4, ranks=16)
    rack = replace(trays, ranks=72)
    algorithms = [
        {entry.algorithm for entry in tuning_table(communicator, collective)}
        for communicator in (trays, rack)
        for collective in ("all_gather", "all_reduce")
    ]
    assert ["nvls" in names for names in algorithms] == [True, True, False, True]


def test_a_list_for_one_collective_leaves_the_others():
    node = with_variables(
        sample("dgx-h100"), "NCCL_ALGO=ring,collnetdirect;allreduce:tree;broadcast:ring"
    )
    assert nccl_choice(node, NcclCall("all_reduce", 2**30)).algorithm == "tree"
    assert nccl_choice(node, NcclCall("all_gather", 2**30)).algorithm == "ring"


def test_a_protocol_by_name_runs_where_nccl_would_not_choose_it():
    pair = sample("rtx-pro-6000")
    assert "LL128" not in {entry.protocol for entry in tuning_table(pair, "all_reduce")}
    pair = with_variables(pair, "NCCL_PROTO=LL128")
    assert nccl_choice(pair, NcclCall("all_reduce", 2**20)).protocol == "LL128"


def test_reduction_in_switches_obeys_ctas_alone():
    node = sample("dgx-h100")
    assert nvls_channels(with_variables(node, "NCCL_MAX_NCHANNELS=4")) == 16
    assert nvls_channels(with_variables(node, "NCCL_MAX_CTAS=8")) == 8
    assert nvls_channels(with_variables(node, "NCCL_MIN_CTAS=32")) == 32
    assert call_channels(with_variables(node, "NCCL_MAX_NCHANNELS=4")) == 4


def test_the_least_number_of_channels_holds_over_the_most():
    node = sample("dgx-h100")
    assert call_channels(with_variables(node, "NCCL_MAX_NCHANNELS=4 NCCL_MIN_NCHANNELS=8")) == 8
    assert call_channels(with_variables(node, "NCCL_MAX_CTAS=4 NCCL_MIN_CTAS=8")) == 4


@pytest.mark.parametrize(
    ("dtype", "op", "algorithm"),
    [
        ("float32", "sum", "nvls"),
        ("float32", "min", "ring"),
        ("float32", "avg", "ring"),
        ("bfloat16", "max", "nvls"),
        ("int64", "min", "nvls"),
        ("float8_e4m3fn", "sum", "ring"),
        ("uint8", "sum", "ring"),
    ],
)
def test_switches_reduce_some_types(dtype, op, algorithm):
    node = sample("dgx-h100")
    assert nccl_choice(node, NcclCall("all_reduce", 2**28, dtype, op)).algorithm == algorithm


def test_threads_are_whole_warps_within_limits():
    node = sample("dgx-a100")
    call = NcclCall("all_reduce", 2**30)
    for threads, result in ((256, 288), (100, 544), (32, 96), (4096, 544)):
        choice = nccl_choice(with_variables(node, f"NCCL_NTHREADS={threads}"), call)
        assert choice.threads == result


def test_thresholds_of_threads_set_the_channels():
    node = sample("dgx-a100")
    eager = with_variables(node, "NCCL_THREAD_THRESHOLDS=-2 -2 -2 1 -2 -2")
    call = NcclCall("all_reduce", 2**14)
    assert nccl_choice(eager, call).channels > nccl_choice(node, call).channels


@pytest.mark.parametrize("version", ["2.27", "2.28", "2.29", "2.30"])
def test_every_version_has_rules(version):
    node = replace(sample("dgx-b200"), library=load_library(f"nccl-{version}"))
    assert nccl_choice(node, NcclCall("all_reduce", 2**28)).algorithm == "nvls"


def test_versions_change_the_choice():
    pair = sample("dgx-b200", hosts=2, ranks=16)
    call = NcclCall("all_reduce", 2**25)
    choices = {
        version: nccl_choice(replace(pair, library=load_library(f"nccl-{version}")), call)
        for version in ("2.27", "2.30")
    }
    assert choices["2.27"] != choices["2.30"]


VARIABLES = st.builds(
    Environment,
    nvls=st.booleans(),
    max_nchannels=st.integers(0, 64),
    min_nchannels=st.integers(0, 64),
    min_ctas=st.integers(0, 64),
    max_ctas=st.integers(0, 64),
    threads=st.integers(0, 640),
    ll128_threads=st.integers(0, 640),
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    number=st.integers(0, len(communicators()) - 1),
    collective=st.sampled_from(COLLECTIVES),
    variables=VARIABLES,
    exponents=st.tuples(st.floats(3, 34), st.floats(3, 34)),
)
def test_within_one_choice_the_estimate_never_falls_as_the_size_grows(
    number, collective, variables, exponents
):
    communicator = replace(communicators()[str(number)], environment=variables)
    sizes = sorted(int(2**exponent) for exponent in exponents)
    small, large = (nccl_choice(communicator, NcclCall(collective, size)) for size in sizes)
    assert all(96 <= choice.threads <= 640 for choice in (small, large))
    assert all(1 <= choice.channels <= 64 for choice in (small, large))
    # NCCL corrects trees by powers of two of the size, so that its own estimate falls at some.
    corrects = "tree" in small.algorithm and sizes[0].bit_length() < sizes[1].bit_length()
    if (small.algorithm, small.protocol) == (large.algorithm, large.protocol) and not corrects:
        assert small.estimate_us <= large.estimate_us
