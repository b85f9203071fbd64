"""ASTRA-sim's settings: algorithms, roofline, and what is told or refused by name."""

from __future__ import annotations

import json

import pytest

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.formats.chakra.nodes import Node, dump_nodes
from simcoll.traces.astra_system import parse_astra_system
from simcoll.traces.chakra import parse_chakra

SYSTEM = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 10,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 4,
    "all-reduce-implementation": ["ring"],
    "all-gather-implementation": ["oneDirect", "oneDirect"],
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1600,
    "boost-mode": 0,
    "roofline-enabled": 1,
    "peak-perf": 900,
}


def parsed(**changes):
    return parse_astra_system(json.dumps({**SYSTEM, **changes}).encode(), "system.json")


def test_algorithms_roofline_and_what_is_left_out():
    found = parsed()
    assert found.algorithms == {"all_reduce": "ring", "all_gather": "direct"}
    assert (found.gpu.gemm("bf16"), found.gpu.number("memory.bandwidth")) == (900e12, 1600e9)
    assert found.left_out == (
        "scheduling-policy = LIFO",
        "endpoint-delay = 10",
        "preferred-dataset-splits = 4",
        "collective-optimization = localBWAware",
    )
    assert parsed(**{"roofline-enabled": 0}).gpu is None


@pytest.mark.slow
def test_a_trace_on_astra_sims_files(tmp_path, capsys):
    """A ring all_reduce of 4 MB on 4 NPUs: 6 steps of 1 MB at 50 x 2^30 B/s and 500 ns; before it 9
    GFLOP at 900 TFLOPS.
    """
    size = 4 << 20
    nodes = [
        Node(0, "work", "COMP", (), 0, {"num_ops": 9 * 10**9, "tensor_size": 1}),
        Node(1, "sum", "COMM_COLL", (0,), 0, {"comm_type": 0, "comm_size": size}),
    ]
    for rank in range(4):
        (tmp_path / f"t.{rank}.et").write_bytes(dump_nodes({}, nodes))
    (tmp_path / "network.yml").write_text(
        "topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 50.0 ]  # GB/s\nlatency: [ 500.0 ]\n"
    )
    (tmp_path / "system.json").write_text(json.dumps(SYSTEM))
    words = [
        "step",
        str(tmp_path / "t"),
        "-t",
        str(tmp_path / "network.yml"),
        "--system",
        str(tmp_path / "system.json"),
    ]
    assert not main([*words, "-o", str(tmp_path / "out")])
    assert (
        "no counterpart here: scheduling-policy = LIFO, endpoint-delay = 10"
        in capsys.readouterr().out
    )
    time_fs = json.loads((tmp_path / "out" / "step.json").read_bytes())["time_fs"]
    each = -(-(size // 4) * 10**15 // (50 * 2**30)) + 500 * 10**6
    assert time_fs == pytest.approx(10**10 + 6 * each, abs=6)


REFUSED = {
    "an unknown key": ({"peak-pref": 1}, "unknown key 'peak-pref'; did you mean 'peak-perf'"),
    "a roofline without a peak": ({"peak-perf": None}, r"\$.peak-perf: expected a number above 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    changes, said = REFUSED[case]
    with pytest.raises(ConfigError, match=said):
        parsed(**changes)


@pytest.mark.slow
def test_groups_in_a_file_of_their_own(tmp_path, capsys):
    """Two groups of two NPUs: each sums 1 MB in 2 steps of half a MB at 50 x 2^30 B/s and 500
    ns.
    """
    size = 1 << 20
    for rank in range(4):
        node = Node(
            0,
            "sum",
            "COMM_COLL",
            (),
            0,
            {"comm_type": 0, "comm_size": size, "pg_name": str(rank // 2)},
        )
        (tmp_path / f"t.{rank}.et").write_bytes(dump_nodes({}, [node]))
    (tmp_path / "network.yml").write_text(
        "topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n"
    )
    (tmp_path / "system.json").write_text(json.dumps({"all-reduce-implementation": ["ring"]}))
    groups = tmp_path / "comm_group.json"
    words = [
        "step",
        str(tmp_path / "t"),
        "-t",
        str(tmp_path / "network.yml"),
        "--system",
        str(tmp_path / "system.json"),
    ]
    words += ["--comm-groups", str(groups), "-o", str(tmp_path / "out")]
    groups.write_text('{"0": [0, 1], "1": [2, 3]}')
    assert not main(words)
    each = -(-(size // 2) * 10**15 // (50 * 2**30)) + 500 * 10**6
    assert abs(json.loads((tmp_path / "out" / "step.json").read_bytes())["time_fs"] - 2 * each) <= 2
    for text, said in (
        ("[1]", "expected groups such as"),
        (
            '{"0": [0, 1], "1": [2, 4]}',
            "group '1' has ranks [2, 4]; expected different ones, 0 to 3",
        ),
        ('{"0": [0, 1], "2": [2, 3]}', "nothing describes group '1'"),
        ('{"0": [0, 1], "0": [2, 3], "1": [2, 3]}', "the key '0' occurs twice"),
    ):
        groups.write_text(text)
        assert main(words) == 2
        assert said in capsys.readouterr().err


def test_a_group_that_file_and_trace_describe_differently_is_refused():
    said = '["[{\\"pg_name\\": \\"1\\", \\"ranks\\": [0, 1]}]"]'
    told = Node(0, "pg", "METADATA", values=said)
    files = [(dump_nodes({}, [told]), f"t.{rank}.et") for rank in range(4)]
    assert parse_chakra(files, groups={"1": [0, 1]}).nranks == 4
    with pytest.raises(ConfigError, match=r"described twice, with ranks \[2, 3\] and \[0, 1\]"):
        parse_chakra(files, groups={"1": [2, 3]})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"all-reduce-implementation": ["tree"]}, r"\$.all-reduce-implementation: .*is not here"),
        (
            {"all-reduce-implementation": ["ring", "direct"]},
            "different algorithms in different dimensions",
        ),
        ({"all-reduce-implementation-custom": ["a/b"]}, "traces of its own cannot be played here"),
    ],
)
def test_an_algorithm_is_judged_where_a_trace_uses_it(changes, said):
    node = Node(0, "c", "COMM_COLL", (), 0, {"comm_type": 0, "comm_size": 64})
    workload = parse_chakra([(dump_nodes({}, [node]), None)] * 2)
    system = parsed(**changes)
    with pytest.raises(ConfigError, match=said):
        system.apply_to(workload)
    others = {"all-to-all-implementation": ["ring"], "reduce-scatter-implementation": ["a", "b"]}
    (call,) = parsed(**others).apply_to(workload).operations
    assert call.algorithm == "ring"


def test_all_keys_of_the_native_system_are_known():
    """Those that ASTRA-sim 2 reads (system/Sys.cc)."""
    settings = parsed(
        **{
            "local-reduction-delay": 1,
            "per-node-custom-implementation": 0,
            "local-mem-trace-filename": "mem_trace/local",
            "track-local-mem": 1,
            "trace-enabled": 0,
            "replay-only": 0,
            "model-shared-bus": 0,
            "L": 0.0,
            "o": 0.0,
            "g": 0.0,
            "G": 0.0,
        }
    )
    assert "local-reduction-delay = 1" in settings.left_out
    assert "track-local-mem = 1" in settings.left_out
    assert not any("mem_trace" in text for text in settings.left_out)
