"""Lists of operations and tables of measured operators: times by hand, classes, and what is
refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from simcoll.errors import ConfigError
from simcoll.formats.recognise import recognise
from simcoll.topology import crossbar
from simcoll.training.design import design_from
from simcoll.training.gpu import load_gpu
from simcoll.training.layers import layer_of, roofline_of
from simcoll.training.measured_kernels import parse_measured
from simcoll.training.operation_list import load_operations, operations_from
from simcoll.training.steps import step
from simcoll.workload.playing import run_workload

EXAMPLE = Path(__file__).parents[3] / "docs" / "howto" / "experts.toml"
MS, US = 10**12, 10**9


def listed(*operations, **tables):
    return operations_from({"mesh": {"tp": 2, "pp": 2}, "op": list(operations), **tables})


def test_a_pipeline_by_hand():
    """Two stages, two micro-batches: the second stage begins after a message of 1 MB, which takes 1
    us and 20 us at 50 GB/s.
    """
    found = listed(
        {"id": "forward 1", "time": "1 ms", "on": {"pp": 0}},
        {"id": "send 1", "send": "pp", "bytes": 10**6, "after": ["forward 1"]},
        {"id": "forward 2", "time": "1 ms", "on": {"pp": 0}},
        {"id": "send 2", "send": "pp", "bytes": 10**6, "after": ["forward 2"]},
        {"id": "stage 2", "time": "1.5 ms", "on": {"pp": 1}, "after": ["send 1"]},
        {"id": "stage 2 again", "time": "1.5 ms", "on": {"pp": 1}, "after": ["send 2"]},
        rules={"protocol": "ideal"},
    )
    result = run_workload(found.workload, crossbar(4, "50 GB/s", "1 us"))
    assert result.time_fs == MS + 21 * US + 3 * MS
    assert result.axes["pp"].exposed_fs == 21 * US
    assert {name: ranks.tolist() for name, ranks in found.workload.classes.items()} == {
        "pp 0": [0, 1],
        "pp 1": [2, 3],
    }


def test_messages_around_a_ring_go_at_once():
    found = listed(
        {"id": "turn", "send": "tp", "wrap": True, "bytes": 10**6}, rules={}, mesh={"tp": 4}
    )
    assert run_workload(found.workload, crossbar(4, "50 GB/s", "1 us")).time_fs == 21 * US


def test_a_collective_of_one_rank_takes_no_time():
    call = {"id": "a", "call": "all_reduce", "axis": "tp", "bytes": 10**6}
    found = listed(
        call, {"id": "b", "time": "1 ms", "after": ["a"]}, mesh={"tp": 1, "dp": 4}
    ).workload
    assert run_workload(found, crossbar(4, "50 GB/s", "1 us")).time_fs == MS


def test_work_by_roofline_table_and_repetition(tmp_path):
    (tmp_path / "table.csv").write_text(
        "operator,shape,dtype,milliseconds\ngemm,4096x8,bf16,0.25\n"
    )
    found = operations_from(
        {
            "mesh": {"dp": 2},
            "gpu": {"name": "h100", "measured": "table.csv"},
            "op": [
                {"id": "flops", "flops": "2T"},
                {"id": "bytes", "bytes": "1 GiB"},
                {"id": "known", "operator": "gemm", "shape": "4096x8", "repeat": 3},
                {"id": "last", "call": "barrier", "axis": "dp", "after": ["known"]},
            ],
        },
        file=str(tmp_path / "operations.toml"),
    )
    h100 = load_gpu("h100")
    times = [operation.time_fs for operation in found.workload.operations[:-1]]
    assert times == [
        round(2e12 / h100.gemm("bf16") * 1e15),
        round(2**30 / h100.values["memory.bandwidth"] * 1e15),
        MS // 4,
        MS // 4,
        MS // 4,
    ]
    assert found.workload.operations[-1].after == ("known 3",)


def test_the_documented_example_and_what_it_is():
    found = load_operations(EXAMPLE)
    assert found.topology.nranks == found.workload.nranks == 16
    assert recognise(EXAMPLE.read_bytes()) == "operations"
    # Without its mesh, too, so that the mesh is asked for.
    assert recognise(b'[[op]]\nid = "a"\n') == "operations"
    dispatch = next(
        operation for operation in found.workload.operations if operation.id == "dispatch"
    )
    assert found.workload.groups_of(dispatch).tolist() == [list(range(8))]


REFUSED = {
    "nothing to do": ({"id": "a"}, "expected call, send, or work"),
    "two things to do": ({"id": "a", "call": "barrier", "send": "pp"}, "exactly one of these"),
    "work and a call": ({"id": "a", "call": "barrier", "time": "1 ms"}, "exactly one of these"),
    "an unknown axis": ({"id": "a", "send": "dp", "bytes": 1}, "no axis 'dp'; did you mean 'tp'"),
    "an unknown group": (
        {"id": "a", "call": "all_reduce", "axis": "td", "bytes": 1},
        r"\$\.op\[0\].*no axis 'td'; did you mean 'tp'",
    ),
    "a place outside": (
        {"id": "a", "time": "1 ms", "on": {"pp": 2}},
        r"\$\.op\[0\]\.on.*pp = 2: expected 0 to 1",
    ),
    "an unknown operation": ({"id": "a", "time": "1 ms", "after": ["b"]}, "unknown operation 'b'"),
    "a cycle": (
        {"id": "a", "time": "1 ms", "after": ["a"]},
        r"operation 'a' is \$\.op\[0\], not before this one; .* break the cycle",
    ),
    "no GPU": ({"id": "a", "flops": "1T"}, r"need a GPU: \[gpu\]"),
    "no table": ({"id": "a", "operator": "gemm", "shape": "8x8"}, r"needs a table"),
    "a wrong number": (
        {"id": "a", "flops": "1 TB"},
        "expected a number such as '2.1T', got '1 TB'",
    ),
    "no shift": (
        {"id": "a", "send": "pp", "bytes": 1, "shift": 2},
        "expected 1 to 1, or negative, got 2",
    ),
    "a group cut in two": (
        {"id": "a", "call": "all_reduce", "axis": "pp", "bytes": 8, "on": {"pp": 0}},
        "only partly in pp 0",
    ),
    "a collective that is none": (
        {"id": "a", "call": "all_redoce", "axis": "tp", "bytes": 8},
        "did you mean 'all_reduce'",
    ),
    "no bytes": (
        {"id": "a", "call": "all_reduce", "axis": "tp"},
        r"\$\.op\[0\]\.bytes: missing; expected a size",
    ),
    "no bytes to send": (
        {"id": "a", "send": "pp"},
        r"\$\.op\[0\]\.bytes: missing; expected a size",
    ),
    "no rank": (
        {"id": "a", "time": "1 ms", "on": {"pp": []}},
        r"\$\.op\[0\]\.on: no rank takes part",
    ),
    "a key of another kind": (
        {"id": "a", "time": "1 ms", "axis": "tp"},
        r"\$\.op\[0\]\.axis: means nothing beside 'time'",
    ),
    "bytes beside a time": (
        {"id": "a", "time": "1 ms", "bytes": 8},
        r"\$\.op\[0\]\.bytes: means nothing beside 'time'",
    ),
    "an imbalance of a reduction": (
        {"id": "a", "call": "all_reduce", "axis": "tp", "bytes": 8, "imbalance": 1.5},
        "of an all_to_all",
    ),
    "an imbalance that cannot be": (
        {"id": "a", "call": "all_to_all", "axis": "tp", "bytes": 8, "imbalance": 3.0},
        "at most 2 for 2 ranks",
    ),
    "an unknown algorithm": (
        {"id": "a", "call": "all_reduce", "axis": "tp", "bytes": 8, "algorithm": "rnig"},
        "'a': unknown algorithm",
    ),
    "a root outside": (
        {"id": "a", "call": "broadcast", "axis": "tp", "bytes": 8, "root": 2},
        "root: expected a group rank, 0 to 1, got 2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    operation, said = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        run_workload(listed(operation).workload, crossbar(4, "50 GB/s", "1 us"))
    caught.match(said)
    assert "operations" in str(caught.value) or "unknown algorithm" in said


def test_a_dependency_that_orders_nothing_is_refused():
    first = {"id": "a", "time": "1 ms", "on": {"pp": 0}}
    with pytest.raises(
        ConfigError,
        match=r"\$\.op\[1\]\.after: no rank takes part in both 'a' and 'b'; only a send or a coll",
    ):
        listed(first, {"id": "b", "time": "1 ms", "on": {"pp": 1}, "after": ["a"]})
    sent = {"id": "s", "send": "pp", "bytes": 0, "after": ["a"]}
    assert (
        listed(
            first, sent, {"id": "b", "time": "1 ms", "on": {"pp": 1}, "after": ["s"]}
        ).workload.nranks
        == 4
    )


def test_a_table_of_measured_operators():
    head = "operator,shape,dtype,milliseconds\n"
    table = parse_measured(
        (head + "gemm, 8x8 ,bf16,1.5e-3\n\ngemm,8x16,bf16,2\n").encode(), "t.csv"
    )
    assert table.time_fs("gemm", "8x8", "bf16") == 1_500_000_000
    with pytest.raises(
        ConfigError, match=r"t\.csv has no row gemm 8x17 bf16; did you mean 'gemm 8x16 bf16'"
    ):
        table.time_fs("gemm", "8x17", "bf16")
    for text, said in (
        ("", "expected the columns"),
        (
            "operator,dtype\n",
            "expected the columns operator,shape,dtype,milliseconds, got operator,dtype",
        ),
        (head + "gemm,8xx8,bf16,1\n", "line 2: expected an operator"),
        (head + "gemm,8x8,bf16,-1\n", "line 2: expected an operator"),
        (
            head + "gemm,8x8,bf16,1\ngemm,8x8,bf16,2\n",
            "line 3: gemm 8x8 bf16 has 2 ms, too long or different from an earlier line",
        ),
        (head + "gemm,8x8,bf16,999999999\n", "too long"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse_measured(text.encode(), "t.csv")


def test_measured_operators_stand_in_for_the_roofline_of_a_step(tmp_path):
    def design(*lines):
        table = tmp_path / "operators.csv"
        table.write_text("\n".join(["operator,shape,dtype,milliseconds", *lines, ""]))
        tables = {
            "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 8},
            "topology": {"name": "dgx-h100"},
            "gpu": {"name": "h100", "measured": "operators.csv"},
        }
        return design_from(tables, file=str(tmp_path / "design.toml"))

    plain = design("gemm,1x1x1,bf16,1")
    # The output projection, forward: rows of a micro-batch, hidden, hidden; queries, keys and
    # values are one other product. And attention.
    product, attention = "gemm,8192x4096x4096,bf16,7", "attention,1x32x8192x8192x128x128,bf16,5"
    own = roofline_of(plain)
    alone = own.gemm(8192, 4096, 4096)
    assert roofline_of(design(product)).gemm(8192, 4096, 4096) == 0.007
    differences = [
        layer_of(design(*lines), moe=False).forward.seconds
        - layer_of(plain, moe=False).forward.seconds
        for lines in ((product,), (attention,))
    ]
    assert differences[0] == pytest.approx(0.007 - alone)
    assert differences[1] == pytest.approx(0.005 - own.attention(32 * 8192 * 8192 * 256))
    found = step(design(product, "gemm,1x1x1,bf16,1"), tier=1, exposed=False)
    assert found.design_hash != step(plain, tier=1, exposed=False).design_hash
    assert any(
        note.startswith("1 of 2 rows of ") and "by roofline gemm" in note for note in found.notes
    )
