"""RCCL runs what its source says, and takes the times that three publishers measured."""

import numpy as np
import pytest

from simcoll.libraries.environment import parse_environment
from simcoll.libraries.isolated import alone_fs
from simcoll.libraries.plans import library_plan
from simcoll.libraries.prediction import formula_time, predict
from simcoll.topology import load_topology

ONE = load_topology("mi300x")
TWO, FOUR = (load_topology("oci-mi300x", nodes=nodes) for nodes in (2, 4))
NEWER = load_topology("oci-mi355x", nodes=2)
KIB, MIB = 2**10, 2**20


def key(collective, size, topology, variables=""):
    prediction = formula_time(collective, size, topology, environment=parse_environment(variables))
    return prediction.algorithm, prediction.protocol, prediction.channels


@pytest.mark.parametrize(
    ("size", "variables", "expected"),
    [
        (512, "", ("ring", "LL")),
        (KIB, "", ("all_pairs", "LL", 4)),
        (64 * KIB, "", ("all_pairs", "LL", 4)),
        (128 * KIB, "", ("all_pairs", "LL", 8)),
        (512 * KIB, "", ("all_pairs", "Simple", 8)),
        (16 * MIB, "", ("all_pairs", "Simple", 8)),
        (32 * MIB, "", ("ring", "Simple")),
        (KIB + 4, "", ("ring", "LL")),  # no whole number of loops of 256 elements
        (512, "DTYPE=float16", ("all_pairs", "LL", 4)),
        (MIB, "RCCL_MSCCL_ENABLE=0", ("ring", "Simple")),
        (MIB, "NCCL_MAX_NCHANNELS=4", ("ring", "Simple")),
        (MIB, "NCCL_ALGO=Ring", ("all_pairs", "Simple", 8)),  # MSCCL does not heed it
        (32, "LAUNCHER=graph", ("mscclpp", "LL", 28)),
        (16, "LAUNCHER=graph", ("ring", "LL")),
        (2 * MIB, "LAUNCHER=graph", ("all_pairs", "Simple", 8)),
        (64 * KIB, "LAUNCHER=graph,RCCL_MSCCLPP_ENABLE=0", ("all_pairs", "LL", 4)),
        (64 * KIB, "LAUNCHER=graph,RCCL_MSCCLPP_THRESHOLD=32768", ("all_pairs", "LL", 4)),
    ],
)
def test_sizes_decide_within_a_node(size, variables, expected):
    assert key("all_reduce", size, ONE, variables)[: len(expected)] == expected


@pytest.mark.parametrize(
    ("collective", "size", "topology", "expected"),
    [
        ("all_reduce", MIB, TWO, ("tree", "LL")),
        ("all_reduce", 2 * MIB, TWO, ("tree", "LL128")),
        ("all_reduce", 9 * MIB, TWO, ("tree", "LL128")),
        ("all_reduce", 16 * MIB, TWO, ("tree", "Simple")),
        ("all_reduce", 128 * MIB, TWO, ("ring", "Simple")),
        ("all_reduce", 34 * MIB, FOUR, ("tree", "LL128")),  # 3.8 times as far
        ("all_reduce", 36 * MIB, FOUR, ("tree", "Simple")),
        ("all_reduce", 128 * KIB, NEWER, ("tree", "LL128")),
        ("all_reduce", 32 * MIB, NEWER, ("tree", "Simple")),
        ("all_gather", 16 * 98304, TWO, ("ring", "LL")),
        ("all_gather", 16 * 98320, TWO, ("ring", "LL128")),
        ("all_gather", 128 * MIB, TWO, ("ring", "Simple")),
        ("reduce_scatter", 16 * 131072, TWO, ("ring", "LL")),
        ("broadcast", MIB, NEWER, ("ring", "LL128")),
    ],
)
def test_sizes_decide_over_nodes(collective, size, topology, expected):
    assert key(collective, size, topology)[:2] == expected


def test_the_fastest_runs_over_nodes_where_no_sizes_are_tuned():
    times_fs = [
        formula_time(
            "broadcast", MIB, TWO, environment=parse_environment(f"NCCL_PROTO={protocol}")
        ).time_fs
        for protocol in ("LL", "LL128", "Simple")
    ]
    assert formula_time("broadcast", MIB, TWO).time_fs == min(times_fs)


def test_a_named_protocol_runs_at_every_size():
    assert key("all_reduce", 2**30, TWO, "NCCL_PROTO=LL")[1] == "LL"
    assert key("all_gather", 2**12, ONE, "NCCL_PROTO=LL128")[1] == "LL128"
    assert key("all_reduce", 8 * MIB, TWO, "NCCL_PROTO=^LL128")[1] == "Simple"


@pytest.mark.parametrize("ranks", [4, 6])
def test_fewer_ranks_have_no_algorithm_of_msccl(ranks):
    assert key("all_reduce", 64 * KIB, ONE.take(ranks))[0] == "ring"


@pytest.mark.parametrize(
    ("size", "variables", "measured_us"),
    [
        # rocm.blogs.amd.com, mi300x-rccl-xgmi: RCCL 2.22.3, a process for each GPU
        (16, "", 16.12),
        (512, "", 22.91),
        (4 * KIB, "", 13.27),
        (256 * KIB, "", 16.87),
        (2 * MIB, "", 34.81),
        (8 * MIB, "", 83.68),
        (64 * MIB, "", 429.1),
        (KIB, "LAUNCHER=graph", 7.47),
        (MIB, "LAUNCHER=graph", 19.40),
        (8 * MIB, "LAUNCHER=graph", 83.74),
    ],
)
def test_times_of_a_node_are_as_published(size, variables, measured_us):
    prediction = formula_time("all_reduce", size, ONE, environment=parse_environment(variables))
    assert prediction.time_us == pytest.approx(measured_us, rel=0.1)


@pytest.mark.parametrize("size", [4 * KIB, 4 * MIB])
def test_the_plan_of_an_algorithm_of_msccl_takes_its_time(size):
    predicted = predict("all_reduce", size, ONE)
    assert predicted.algorithm == "all_pairs"
    assert "MSCCL's all-pairs algorithm" in predicted.note
    played_fs = alone_fs(library_plan("all_reduce", size, ONE), ONE)
    assert played_fs == pytest.approx(predicted.time_fs, rel=1e-4)


def test_times_grow_with_the_size_within_a_choice():
    sizes = (1 << np.arange(3, 35)).tolist()
    times_by_key = {}
    for size in sizes:
        prediction = formula_time("all_reduce", size, ONE)
        last_fs = times_by_key.get((prediction.algorithm, prediction.protocol), 0)
        assert prediction.time_fs > last_fs
        times_by_key[prediction.algorithm, prediction.protocol] = prediction.time_fs
