"""Channels of NCCL from its logs: put together from what every rank says, in any order of their
lines.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.formats.logs.nccl_log import NcclSearch, load_nccl_log
from simcoll.planning.tuners.nccl_graphs import (
    channels_of_log,
    channels_schedule,
    connection_lines,
    fit_lines,
)
from simcoll.topology import load_topology
from tests.support import nccl_logs

PLACES = tuple((f"node-{rank // 4}", rank % 4) for rank in range(8))
RINGS = ((0, 1, 2, 3, 4, 5, 6, 7), (0, 7, 6, 5, 4, 3, 2, 1))
TREES = ((-1, 0, 1, 2, 0, 4, 5, 6), (4, 0, 1, 2, -1, 4, 5, 6))


def interleaved(said, chance):
    """The lines of all ranks, each rank's in its order."""
    left = [list(reversed(lines)) for lines in said]
    while any(left):
        yield chance.choice([lines for lines in left if lines]).pop()


def read(tmp_path, lines):
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(lines))
    return load_nccl_log(path)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 9),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_what_was_written_is_read(tmp_path_factory, n, count, old, whole, chance):
    rings = [(0, *chance.sample(range(1, n), n - 1)) for _ in range(count)]
    trees = []
    for _ in range(count):
        order = chance.sample(range(n), n)
        tree = [-1] * n
        for at in range(1, n):
            tree[order[at]] = order[(at - 1) // 2]
        trees.append(tuple(tree))
    places = tuple((f"host{rank // 3}", rank % 3) for rank in range(n))
    said = nccl_logs.channels(rings, trees, places, old=old, whole=whole or n == 1)
    if not old:  # a second communicator of the same processes
        said = [
            a + b
            for a, b in zip(
                said, nccl_logs.channels(rings[:1], trees[:1], places, name="0xdef"), strict=True
            )
        ]
    found = read(tmp_path_factory.mktemp("log"), interleaved(said, chance))
    first = found[0]
    assert (first.nranks, first.rings, first.trees, first.notes) == (
        n,
        tuple(rings),
        tuple(trees),
        (),
    )
    assert first.places == places
    assert [each.name for each in found] == (
        ["number 0, " + f"{n} ranks"] if old else ["0xabc", "0xdef"]
    )


def test_what_is_missing_is_said(tmp_path):
    said = nccl_logs.channels(RINGS, TREES, PLACES)
    (one,) = read(tmp_path, said[0])
    assert one.rings == RINGS
    assert (one.trees, one.places) == ((), ())
    assert one.notes == ("2 of 2 trees are not whole; the logs of all ranks have them",)
    (one,) = read(
        tmp_path,
        [
            line
            for lines in nccl_logs.channels(RINGS, TREES, PLACES, whole=False)[:5]
            for line in lines
        ],
    )
    assert one.rings == ()
    assert one.notes[0].startswith("2 of 2 rings are not whole")
    with pytest.raises(ConfigError, match="no channels of NCCL; run with NCCL_DEBUG=INFO"):
        read(tmp_path, ["node-1:1:2 [0] NCCL INFO Bootstrap : Using eth0"])


def test_rings_and_trees_become_schedules(tmp_path):
    machine = load_topology("dgx-h100", nodes=1)
    (found,) = read(
        tmp_path, [line for lines in nccl_logs.channels(RINGS, TREES, PLACES) for line in lines]
    )
    ring, tree = channels_of_log(found, machine)
    for channels, options in ((ring, {}), (tree, {}), (tree, {"pieces": 3})):
        made = channels_schedule(channels, **options)
        assert simcoll.verify(made)
        assert simcoll.emulate(simcoll.bind(made, 1000), machine).wrong == 0
        sends = {
            pair
            for step in made.steps()
            for pair in zip(step.src_rank.tolist(), step.dst_rank.tolist(), strict=True)
        }
        assert {(a, b) for a, b in sends if a != b} == set(channels.edges())
    assert (0, 1) in ring.edges()
    assert {(1, 0), (0, 1), (4, 0), (0, 4)} <= set(tree.edges())
    with pytest.raises(ConfigError, match="no tree of NCCL for 'all_gather'"):
        channels_schedule(tree, "all_gather")


def test_ranks_are_placed_by_their_devices(tmp_path):
    """Ranks in another order than devices: NCCL's ring by rank is another on the machine."""
    places = tuple(("a", device) for device in (2, 0, 3, 1))
    (found,) = read(
        tmp_path,
        [
            line
            for lines in nccl_logs.channels([(0, 1, 2, 3)], [(-1, 0, 1, 2)], places)
            for line in lines
        ],
    )
    ring, tree = channels_of_log(found, load_topology("azure-nc-a100-v4"))
    assert ring.orders == ((2, 0, 3, 1),)
    assert tree.parents == ((2, 3, -1, 0),)


def test_connections_that_a_machine_could_do_better(tmp_path):
    ways = [
        (0, 1, "P2P/CUMEM"),
        (1, 2, "SHM/direct/direct"),
        (3, 8, "NET/IB/3/GDRDMA"),
        (8, 3, "NET/Socket/0"),
    ]
    places = tuple((f"node-{rank // 8}", rank % 8) for rank in range(16))
    said = nccl_logs.channels([tuple(range(16))], [], places, ways=ways)
    (found,) = read(tmp_path, [line for lines in said for line in lines])
    assert found.ways() == {
        "NET/IB/GDRDMA": 1,
        "NET/Socket": 1,
        "P2P/CUMEM": 1,
        "SHM/direct/direct": 1,
    }
    lines = list(connection_lines(found, load_topology("dgx-h100", nodes=2)))
    assert [line.strip() for line in lines[1:]] == [
        "1 of them, such as 1 -> 2, go via SHM/direct/direct, where this machine has nvlink",
        "1 of them, such as 8 -> 3, go via NET/Socket, where this machine has the network's RDMA",
    ]
    (ring,) = channels_of_log(found, load_topology("dgx-h100", nodes=2))
    head, load, *_ = fit_lines(ring, load_topology("dgx-h100", nodes=2))
    assert head == "ring: 1 channel, ring"
    assert "has 50 GB/s for 1 hop of the channels: 50 GB/s a channel" in load


@pytest.mark.parametrize(("hosts", "rate", "path"), [(1, 120.0, "NVL"), (2, 75.0, "")])
@pytest.mark.parametrize("word", ["bw", "speed"])
def test_what_the_search_found_is_the_rate_of_a_channel(tmp_path, word, hosts, rate, path):
    """Twelve rings, of 20 GB/s inside and 12.5 GB/s between nodes, that became two; a pattern of
    CollNet has no channels.
    """
    places = tuple((f"node-{rank * hosts // 8}", rank % (8 // hosts)) for rank in range(8))
    first, *others = nccl_logs.channels(RINGS, TREES, places)
    sizes = (
        (4, 12, "20.000000/12.500000"),
        (1, 8, "15.000000/15.000000"),
        (3, 0, "0.000000/0.000000"),
        (5, 16, "20.000000/20.000000"),
    )
    before = first[0].partition(" NCCL INFO ")[0] + " NCCL INFO "
    patterns = [
        f"{before}Pattern {pattern}, crossNic 0, nChannels {count}, {word} {rates}, type NVL/PIX, "
        "sameChannels 1"
        for pattern, count, rates in sizes
    ]
    said = [
        *first,
        *patterns,
        f"{before} 0 : GPU/0-18000 GPU/0-2a000",
        *(line for lines in others for line in lines),
    ]
    (found,) = read(tmp_path, said)
    assert found.searches["ring"] == NcclSearch("ring", 12, 20.0, 12.5, "NVL", "PIX")
    ring, tree, nvls = channels_of_log(found, load_topology("dgx-h100", nodes=1))
    assert (ring.GBps, ring.path, tree.GBps, nvls.count) == (rate, path, 60.0, 16)
    head = next(fit_lines(ring, load_topology("dgx-h100")))
    assert (
        head
        == f"ring: 2 channels of {rate:g} GB/s, {2 * rate:g} GB/s in all, ring"
        + f", over {path}" * bool(path)
    )


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = list(interleaved(nccl_logs.channels(RINGS, TREES, PLACES), random.Random(1)))
    (tmp_path / "run.log").write_text("\n".join(["some program starts", *lines]))
    assert (
        main(
            [
                "graph",
                "run.log",
                "-t",
                "dgx-h100",
                "--use",
                "tree",
                "--pieces",
                "2",
                "--json",
                "trees.json",
            ]
        )
        == 0
    )
    assert "communicator 0xabc: 8 ranks" in capsys.readouterr().out
    assert main(["perf", "-a", "trees.json", "-p", "ideal", "-b", "1M", "-e", "1M"]) == 0
    assert main(["graph", "run.log", "-t", "azure-nc-a100-v4", "--json", "trees.json"]) == 2
    assert "azure-nc-a100-v4 has 4 ranks; more nodes with --nodes" in capsys.readouterr().out
    assert (
        main(["graph", "run.log", "-t", "dgx-h100", "--use", "nvls", "--json", "trees.json"]) == 2
    )
