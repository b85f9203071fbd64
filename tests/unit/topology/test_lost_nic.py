"""A node that loses a NIC goes on: over the NIC of another GPU, with times by hand, the bound below
and all engines equal.
"""

import numpy as np
import pytest

import simcoll
from simcoll.bounds import bottleneck
from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.planning import Program, Send
from simcoll.topology import boxes
from simcoll.topology.machine import machine

US = 10**9
MIB = 1 << 20
NIC_FS = MIB * 20_000
"""A MiB at 50 GB/s."""


def pair_of_nodes(**changes):
    """Two nodes of 4 GPUs and 4 NICs: 1 us through NVSwitch, 3 us through a leaf, 1 us more through
    the spine.
    """
    arguments = {
        "nics": 4,
        "nic_bandwidth": "50 GB/s",
        "nic_latency": "3 us",
        "spine_latency": "1 us",
    } | changes
    return boxes(2, 4, "400 GB/s", "1 us", **arguments)


def time_fs(topology, pairs, nbytes=MIB):
    return simcoll.emulate(
        Program(topology.nranks, [Send(pairs, nbytes)]), topology, data="none"
    ).time_fs


LOST = (
    "box0.gpu0 -> box0.nic0",
    "box0.gpu0 <-> box0.nic0",
    "box0.nic0 -> leaf0.rail0",
    "box0.nic0",
)


@pytest.mark.parametrize("link", LOST)
def test_traffic_of_a_lost_nic_shares_another(link):
    whole = pair_of_nodes()
    lost = whole.degrade(link, 0)
    rails = [(rank, rank + 4) for rank in range(4)]
    assert time_fs(whole, rails) == NIC_FS + 3 * US
    # Rank 0 goes over GPU 1, and its message and that of rank 1 share nic1; then through the spine
    # to its rail.
    assert lost.path(0, 4) == [
        "box0.gpu0 -> box0.nvswitch",
        "box0.nvswitch -> box0.gpu1",
        "box0.gpu1 -> box0.nic1",
        "box0.nic1 -> leaf0.rail1",
        "leaf0.rail1 -> spine",
        "spine -> leaf0.rail0",
        "leaf0.rail0 -> box1.nic0",
        "box1.nic0 -> box1.gpu0",
    ]
    # Bytes flow after the latency of their path: those of rank 1 from 3 us on, and from then nic1
    # is never idle.
    assert time_fs(lost, rails) == 2 * NIC_FS + 3 * US
    # To rail 2 it takes the NIC of that rail.
    assert lost.path(0, 6)[2:5] == [
        "box0.gpu2 -> box0.nic2",
        "box0.nic2 -> leaf0.rail2",
        "leaf0.rail2 -> box1.nic2",
    ]
    # Nobody else moves.
    assert all(lost.path(a, b) == whole.path(a, b) for a in range(1, 4) for b in range(8) if a != b)


def test_all_to_all_by_hand():
    whole, lost = pair_of_nodes(), pair_of_nodes().degrade("box0.nic0", 0)
    pairs = [(a, b) for a in range(4) for b in range(4, 8)]

    def together(topology):
        rounds = [Send([(a, b)], MIB, stream=f"{a} to {b}") for a, b in pairs]
        return simcoll.emulate(Program(8, rounds), topology, data="none").time_fs

    # Each NIC carries 4 messages; then nic1 carries two of rank 0, too: to its own rail, and, over
    # the spine, to rail 0.
    assert together(whole) == 4 * NIC_FS + 3 * US
    assert together(lost) == 6 * NIC_FS + 3 * US


@pytest.mark.slow
def test_a_nic_lost_at_both_ends():
    lost = pair_of_nodes().degrade("box0.nic0", 0).degrade("box1.nic0", 0)
    assert lost.path(0, 4)[3:5] == ["box0.nic1 -> leaf0.rail1", "leaf0.rail1 -> box1.nic1"]
    assert time_fs(lost, [(0, 4)]) == NIC_FS + (1 + 3 + 1) * US
    other = pair_of_nodes().degrade("box1.nic0", 0).degrade("box0.nic0", 0)
    assert all(lost.path(a, b) == other.path(a, b) for a in range(8) for b in range(8) if a != b)
    assert machine(lost).nics == 3


def test_a_rail_cut_off_from_the_spine_goes_over_other_rails():
    lost = pair_of_nodes().degrade("leaf0.rail0 <-> spine", 0)
    assert lost.path(0, 4) == pair_of_nodes().path(0, 4)
    assert lost.path(0, 5)[1:4] == [
        "box0.nvswitch -> box0.gpu1",
        "box0.gpu1 -> box0.nic1",
        "box0.nic1 -> leaf0.rail1",
    ]


def test_the_nic_of_a_neighbour_over_pcie_over_nvlink_and_last_through_a_cpu():
    """As in NCCL: a NIC under the same PCIe switch first, then PXN, then a host bridge."""
    tree = {
        "pcie_bandwidth": "25 GB/s",
        "pcie_latency": "400 ns",
        "cpu_bandwidth": "20 GB/s",
        "cpu_latency": "100 ns",
        "gpus_per_pcie_switch": 2,
    }
    whole = pair_of_nodes(**tree)
    first = whole.degrade("box0.nic0", 0)
    assert first.path(0, 5)[:3] == [
        "box0.gpu0 -> box0.pcie0",
        "box0.pcie0 -> box0.nic1",
        "box0.nic1 -> leaf0.rail1",
    ]
    both = first.degrade("box0.nic1", 0)
    assert both.path(0, 6)[:3] == [
        "box0.gpu0 -> box0.nvswitch",
        "box0.nvswitch -> box0.gpu2",
        "box0.gpu2 -> box0.pcie1",
    ]
    without = both
    for rank in range(4):
        without = without.degrade(f"box0.gpu{rank} <-> box0.nvswitch", 0)
    assert without.path(0, 6)[:3] == [
        "box0.gpu0 -> box0.pcie0",
        "box0.pcie0 -> box0.cpu0",
        "box0.cpu0 -> box0.cpu1",
    ]


@pytest.mark.parametrize("nics", [1, 4])
def test_no_other_nic_is_refused(nics):
    topology = pair_of_nodes(nics=nics)
    for card in range(1, nics):
        topology = topology.degrade(f"box0.nic{card}", 0)
    with pytest.raises(
        ConfigError,
        match=r"no route from rank 0 \(box0.gpu0\) to rank .*, nor one over another GPU",
    ):
        topology.degrade("box0.nic0", 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ring", "rabenseifner"])
def test_the_bound_holds_and_engines_agree(name):
    whole, lost = pair_of_nodes(), pair_of_nodes().degrade("box0.nic0", 0)
    made = simcoll.schedule("all_reduce", name, nranks=8)
    plan = simcoll.bind(made, count=1 << 20)
    # emulate() compares the time with the bound, which is weaker than without the NIC and stronger
    # than with it.
    slow = simcoll.emulate(plan, lost, engine="simpy")
    fast = simcoll.emulate(plan, lost, data="none", engine="fast", quotient=False)
    assert slow.trace_hash == fast.trace_hash
    assert simcoll.emulate(plan, lost, data="none", quotient=True).time_fs == slow.time_fs
    assert slow.wrong == 0
    assert (
        bottleneck("all_reduce", lost).seconds_per_byte
        == bottleneck("all_reduce", whole).seconds_per_byte * 4 / 3
    )


def test_a_node_of_two_has_nobody_to_stand_in():
    with pytest.raises(
        ConfigError,
        match=r"no route from rank 0 \(box0.gpu0\) to rank 1 \(box0.gpu1\), nor one over another",
    ):
        boxes(1, 2, "400 GB/s").degrade("box0.gpu0 -> box0.nvswitch", 0)


def test_folding_a_larger_machine():
    lost = boxes(
        12, 4, "400 GB/s", "1 us", nics=4, nic_bandwidth="50 GB/s", nic_latency="3 us"
    ).degrade("box5.nic2", 0)
    plan = simcoll.bind(simcoll.schedule("all_to_all", "direct", nranks=48), count=48)
    full = simcoll.emulate(plan, lost, data="none", engine="fast", quotient=False)
    assert simcoll.emulate(plan, lost, data="none", quotient=True).trace_hash == full.trace_hash


def test_a_relay_without_a_rank_counts_in_the_bound():
    lost = pair_of_nodes().degrade("box0.nic0", 0).with_ranks([0, 4])
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=2), count=1 << 20)
    result = simcoll.emulate(plan, lost)
    assert result.wrong == 0
    assert np.isfinite(result.headroom)


@pytest.mark.slow
def test_on_the_command_line(capsys):
    where = ["-t", "dgx-h100", "--nodes", "2", "--degrade", "box0.nic0=0"]
    assert (
        main(["perf", "all_reduce", "-b", "1G", "-e", "1G", "-a", "ring", "-p", "ideal", *where])
        == 0
    )
    assert "dgx-h100 degraded" in capsys.readouterr().out
