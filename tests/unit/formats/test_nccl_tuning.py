"""NCCL's tuning tables of several versions, its choices, and what is left of a broken log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.errors import ConfigError
from simcoll.formats.logs.log_lines import Skipped
from simcoll.formats.logs.nccl_tests import load_log
from simcoll.formats.logs.nccl_tuning import COLLECTIVES, Chosen, TunedCost, TuningReader
from tests.support.nccl_logs import blocks, one_line, table

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
OLD = ("Tree", "Ring", "CollNet")
NEW = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
SIZE = (
    "node-1:11:22 [0] NCCL INFO comm 0x5558e3c1 rank 0 nRanks 16 nNodes 2 localRanks 8 "
    "localRank 0 MNNVL 0"
)
OURS = {
    "Tree": "tree",
    "Ring": "ring",
    "CollNet": "collnet_direct",
    "CollNetDirect": "collnet_direct",
    "CollNetChain": "collnet_chain",
    "NVLS": "nvls",
    "NVLSTree": "nvls_tree",
    "PAT": "pat",
}


def read(lines):
    skipped = Skipped()
    reader = TuningReader(skipped)
    for number, line in enumerate(lines, 1):
        reader.feed(number, line)
    return reader.tables(), reader.choices(), skipped.texts()


def expected(numbers):
    return {
        TunedCost(
            COLLECTIVES[f.lower()],
            OURS[a],
            p,
            round(latency * 10) * 10**8,
            round(rate * 10) * 10**14,
        )
        for (f, a, p), (latency, rate) in numbers.items()
        if rate
    }


@pytest.mark.parametrize(
    ("layout", "algorithms"),
    [(one_line, OLD), (one_line, OLD[:2]), (blocks, NEW), (blocks, NEW[:6])],
)
@pytest.mark.parametrize(
    "prefix", ["node-1:11:22 [0] NCCL INFO ", "[1,0]<stdout>:node-1:11:22 [0] NCCL INFO ", "  "]
)
def test_every_number_of_every_layout(layout, algorithms, prefix):
    numbers = table(algorithms, FUNCTIONS)
    (found,), _, skipped = read([SIZE, *layout(numbers, prefix)])
    assert set(found.rows) == expected(numbers)
    assert len(found.rows) == len(expected(numbers))
    if prefix.startswith("node"):
        assert (found.nranks, found.nnodes) == (16, 2)
    assert skipped == ()


def test_tables_of_several_communicators():
    first, second = table(NEW, FUNCTIONS), table(NEW, FUNCTIONS, first=5.0)
    other = SIZE.replace("nRanks 16 nNodes 2", "nRanks 8 nNodes 1")
    found, _, _ = read([SIZE, *blocks(first), other, *blocks(second), SIZE, *blocks(first)])
    assert [(each.nranks, each.nnodes, set(each.rows)) for each in found] == [
        (16, 2, expected(first)),
        (8, 1, expected(second)),
    ]


def test_two_processes_talk_at_once():
    mine, other = (
        list(blocks(table(NEW, FUNCTIONS))),
        list(blocks(table(NEW, FUNCTIONS, 3.0), "b:1:2 [0] NCCL INFO ")),
    )
    found, _, skipped = read([line for pair in zip(mine, other, strict=True) for line in pair])
    assert [set(each.rows) for each in found] == [
        expected(table(NEW, FUNCTIONS)),
        expected(table(NEW, FUNCTIONS, 3.0)),
    ]
    assert skipped == ()


def test_a_line_cut_off_is_named_and_the_others_used():
    lines = list(one_line(table(OLD, FUNCTIONS)))
    lines[-1] = lines[-1][:70]
    (found,), _, skipped = read(lines)
    assert {row.collective for row in found.rows} == {
        "broadcast",
        "reduce",
        "all_gather",
        "reduce_scatter",
    }
    assert skipped == (
        f"line {len(lines)}: tuning table: 1 of 9 cells of all_reduce can be read; left out",
    )


@pytest.mark.parametrize(
    "said",
    [
        "AllReduce: 1048576 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..7}",
        "AllReduce: 1048576 Bytes -> Algo 1 proto 1 time 61.8",
    ],
)
def test_choices(said):
    _, choices, _ = read([f"node-1:11:22 [0] NCCL INFO {said}"] * 3)
    assert choices == (Chosen("all_reduce", 2**20, "ring", "LL128"),)


@pytest.mark.parametrize(
    "said",
    [
        "AllReduce: x Bytes -> Algo 1 proto 1",
        "Foo: 8 Bytes -> Algo 1 proto 1",
        "AllReduce: 8 Bytes -> Algo 9 proto 1",
    ],
)
def test_what_is_no_choice(said):
    assert read([said]) == ((), (), ())


@pytest.mark.slow
@given(
    st.lists(
        st.text(max_size=80) | st.sampled_from([SIZE, *blocks(table(NEW[:3], FUNCTIONS[:2]))]),
        max_size=30,
    ),
    st.integers(1, 60),
)
def test_any_text_is_survived(lines, cut):
    read(line[: len(line) * cut // 60] for line in lines)


def test_from_a_file(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("\n".join([SIZE, *blocks(table(NEW, FUNCTIONS))]), encoding="utf-16")
    assert len(load_log(log).tuning[0].rows) == len(expected(table(NEW, FUNCTIONS)))
    log.write_bytes(b"")
    assert load_log(log).tuning == ()
    with pytest.raises(ConfigError, match=r"none\.txt: cannot be read: No such file"):
        load_log(tmp_path / "none.txt")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_log(tmp_path)
