"""One place says what runs: parameters that follow the topology, the choice by size, constants of a
protocol.
"""

import numpy as np
import pytest

import simcoll
import simcoll.distributed as dist
from simcoll import Collective, ConfigError
from simcoll.planning.sweeps.running import runs
from simcoll.planning.sweeps.sweep import Sweep, prepare
from simcoll.topology import crossbar, load_topology, place
from simcoll.tuning import (
    Choice,
    candidates,
    collective_on,
    costs,
    default_algorithm,
    default_protocols,
    schedule_on,
)

NODES = load_topology("dgx-h100", nodes=2)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (range(16), 8),
        (
            [*range(8, 16), *range(8)],
            8,
        ),  # nodes in another order are still filled one after the other
        ([0, 1, 8, 9], 2),
        ([0, 8], 1),
        ([0, 8, 1, 9], None),
        ([0, 1, 2, 8], None),
    ],
)
def test_ranks_per_node_where_ranks_fill_nodes_evenly(order, expected):
    assert NODES.with_ranks(list(order)).ranks_per_node == expected


def test_machines_without_nodes_have_no_ranks_per_node():
    assert crossbar(4, "1 GB/s").ranks_per_node is None


def test_parameters_follow_the_topology_unless_given():
    sixteen = Collective("all_reduce", 16)
    assert schedule_on(sixteen, "ring", NODES).title == "ring(channels=8, pieces=1, box=8)"
    assert (
        schedule_on(sixteen, "ring", NODES, {"channels": 2, "box": 4}).title
        == "ring(channels=2, pieces=1, box=4)"
    )
    assert (
        schedule_on(sixteen, "ring", NODES, most_channels=1).title
        == "ring(channels=1, pieces=1, box=8)"
    )
    dealt = place(NODES, "round_robin")
    assert schedule_on(sixteen, "ring", dealt).title == "ring(channels=1, pieces=1)"
    with pytest.raises(ConfigError, match="switches that reduce; those of crossbar do not"):
        schedule_on(Collective("all_reduce", 8), "switch", load_topology("crossbar"))


def test_small_sizes_get_few_steps():
    for n in (8, 12):
        wanted = Collective("all_reduce", n)
        assert default_algorithm(wanted, total_bytes=65536) == "recursive_doubling"
        assert default_algorithm(wanted, total_bytes=65537) == default_algorithm(wanted)


@pytest.mark.slow
def test_candidates_say_what_they_leave_out_and_why():
    fitting, left_out = candidates(collective_on("all_reduce", 16), NODES)
    assert {"ring", "hierarchical", "switch"} <= {choice.algorithm for choice, _ in fitting}
    assert {each.partition(":")[0] for each in left_out} == {
        "bfb",
        "collnet",
        "collnet_chain",
        "nvlink_ring",
        "nvls",
    }
    assert all(made.nranks == 16 for _, made in fitting)


def test_switches_are_left_out_only_where_every_rank_has_an_operation_of_many():
    for nodes, kind, slow in (
        (16, "all_reduce", False),
        (17, "all_reduce", True),
        (17, "broadcast", False),
    ):
        topology = load_topology("dgx-h100", nodes=nodes)
        fitting, left_out = candidates(
            collective_on(kind, topology.nranks, 0 if kind == "broadcast" else None), topology
        )
        assert ("switch" in {choice.algorithm for choice, _ in fitting}) is not slow
        line = (
            "switch: joining the links of its operations takes long for 136 ranks; request it "
            "with -a switch"
        )
        assert [each for each in left_out if each.startswith("switch")] == [line] * slow


def test_constants_are_those_of_the_generation_or_none():
    assert default_protocols(NODES) == (("LL", "LL128", "Simple"), "")
    ring, tree = (simcoll.schedule("all_reduce", name, nranks=16) for name in ("ring", "tree"))
    # NCCL 2.30, src/graph/tuning.cc: 6.6 us for a ring, 6.8 us for a tree under LL.
    assert [costs("LL", NODES, made).launch_fs for made in (ring, tree)] == [
        6_600_000_000,
        6_800_000_000,
    ]
    own = costs("LL", NODES)
    # Constants of one's own are taken as they are.
    assert costs(own, load_topology("crossbar")) is own
    with pytest.raises(ConfigError, match="names no GPU generation; use protocol 'ideal'"):
        costs("LL", load_topology("crossbar"))


@pytest.mark.parametrize("topology", [None, "crossbar", "mi300x"])
def test_rank_programs_refuse_constants_that_nccl_does_not_have(topology):
    def program(rank, world_size):
        dist.all_reduce(np.ones(4))

    with pytest.raises(ConfigError, match=r"protocol 'LL' is NCCL's.*use protocol 'ideal'"):
        dist.spawn(program, 4, topology=topology, protocol="LL")


def test_flags_do_not_pass_a_switch_that_reduces():
    """NCCL's table of base latencies has Simple alone for NVLS and CollNet; a multicast carries
    flags like any copy.
    """
    machine = load_topology("dgx-h100")
    reduced = schedule_on(Collective("all_reduce", 8), "nvls", machine)
    for name in ("LL", "LL128"):
        with pytest.raises(
            ConfigError,
            match=f"'{name}' mixes flags with the data.*nvls runs under Simple or ideal",
        ):
            costs(name, machine, reduced)
    assert costs("Simple", machine, reduced).name == "Simple"
    assert (
        costs(
            "LL", machine, schedule_on(Collective("broadcast", 8, root=0), "switch", machine)
        ).name
        == "LL"
    )
    fitting, left_out = candidates(Collective("all_reduce", 8), machine, ("LL",))
    assert {"ring", "switch", "nvls"} & {choice.algorithm for choice, _ in fitting} == {"ring"}
    assert any(line.startswith("switch: protocol 'LL' mixes flags") for line in left_out)


def test_a_table_leaves_out_what_protocols_cannot_carry():
    machine = load_topology("dgx-h100")
    choices = (Choice("ring"), Choice("nvls"))
    sweep = Sweep("all_reduce", (2**20,), choices, ("LL", "Simple"))
    (rows,) = runs(sweep, prepare(sweep, machine), machine)
    assert [(str(row.choice), row.protocol) for row in rows] == [
        ("ring", "LL"),
        ("ring", "Simple"),
        ("nvls", "Simple"),
    ]
    alone = Sweep("all_reduce", (2**20,), choices, ("LL",))
    with pytest.raises(ConfigError, match="nvls runs under Simple or ideal"):
        prepare(alone, machine)
