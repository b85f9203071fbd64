"""Grouped sends have the channels that NCCL gives them.

Counts are worked out by hand from ``ncclTopoComputeP2pChannels`` and ``addP2pToPlan`` of NCCL
2.27.5: 24 channels of a node become 32, which 8 ranks share as 4 each; parts of a channel are up to
32 slots of 512 KiB in a node and one slot of 128 KiB over nodes.
"""

import pytest

import simcoll
from simcoll.libraries.environment import DEFAULT, Environment
from simcoll.libraries.library import load_library
from simcoll.libraries.prediction import formula_time, predict

MiB = 2**20
NUMBER = load_library("nccl").number


def start_us(peers):
    """Before bytes flow in a node of B200, under Simple."""
    return (
        NUMBER("class.blackwell.p2p_start")
        + NUMBER("class.blackwell.p2p_peer") * peers
        + NUMBER("correction.p2p_simple_start")
    )


@pytest.mark.parametrize(
    ("ranks", "size", "environment", "channels"),
    [
        (8, 4 * MiB, DEFAULT, 4),
        (8, 64 * MiB, DEFAULT, 4),
        (8, 65 * MiB, DEFAULT, 8),
        (8, 128 * MiB, DEFAULT, 8),
        (8, 256 * MiB, DEFAULT, 16),
        (4, 128 * MiB, DEFAULT, 8),
        (2, 256 * MiB, DEFAULT, 16),
        (
            8,
            64 * MiB,
            Environment(max_nchannels=8),
            4,
        ),  # one for each rank, and twice as many until parts have 16 MiB
    ],
)
def test_channels_of_one_message_in_a_node(ranks, size, environment, channels):
    found = formula_time(
        "send_recv", size, simcoll.load_topology("dgx-b200").take(ranks), environment=environment
    )
    rate = channels * NUMBER("class.blackwell.p2p_channel_rate")
    assert found.time_us == pytest.approx(start_us(1) + size / rate / 1000, rel=1e-6)


def test_all_channels_share_an_exchange():
    eight = simcoll.load_topology("dgx-b200")
    # 7 messages of 4 channels each, where the links would carry more.
    found = formula_time("all_to_all", 256 * MiB, eight)
    rate = 28 * NUMBER("class.blackwell.p2p_channel_rate")
    assert rate < NUMBER("class.blackwell.p2p_share") * 900
    channel_rate = NUMBER("class.blackwell.p2p_channel_rate")
    # The last slot of 512 KiB of a channel leaves the buffer after it has arrived.
    last_us = NUMBER("correction.p2p_fill") * MiB / 2 / channel_rate / 1000
    assert found.time_us == pytest.approx(start_us(7) + last_us + 224 * MiB / rate / 1000, rel=1e-6)
    # The published time of 8 B200: 438.8 us at 256 MiB; send_recv takes 792, 799 and 808 us at 64,
    # 128 and 256 MiB.
    assert found.time_us == pytest.approx(438.8, rel=0.1)
    for size, measured in ((64, 792), (128, 799), (256, 808)):
        assert formula_time("send_recv", size * MiB, eight).time_us == pytest.approx(
            measured, rel=0.1
        )


def test_small_messages_go_by_ll_and_take_longer_than_larger_ones_by_simple():
    node = simcoll.load_topology("dgx-b200")
    half, one = (formula_time("send_recv", size, node).time_us for size in (MiB // 2, MiB))
    assert half > one  # published: 35.1 us and 27.3 us
    assert predict("send_recv", MiB // 2, node).time_us == pytest.approx(half, rel=0.01)


def test_many_ranks_over_nodes_have_one_channel_each():
    two, ten = (simcoll.load_topology("dgx-h100", nodes=nodes) for nodes in (2, 10))
    few, many = (formula_time("send_recv", 2**30, topology).time_us for topology in (two, ten))
    assert many == pytest.approx(2**30 / NUMBER("correction.p2p_net_rate") / 1000, rel=0.01)
    assert few == pytest.approx(2**30 / (50 * NUMBER("fabric.ib.p2p_share")) / 1000, rel=0.01)


def test_a_root_receives_by_its_own_nic_and_sends_by_all():
    two, half = simcoll.load_topology("dgx-h100", nodes=2), 2**29
    scatter, gather = (formula_time(kind, 2 * half, two).time_us for kind in ("scatter", "gather"))
    nic = 50 * NUMBER("fabric.ib.p2p_share") * 1000
    assert gather == pytest.approx(half / nic, rel=0.02)
    sent = 2 * half * 15 / 16  # over NVLinks, to the NICs of all 8 GPUs
    assert scatter == pytest.approx(
        sent / (450 * NUMBER("class.hopper.p2p_share")) / 1000, rel=0.05
    )


def test_gpus_without_nvlink_send_everything_over_pcie():
    one, two = (simcoll.load_topology("rtx-pro-6000", nodes=nodes) for nodes in (1, 2))
    for kind in ("all_to_all", "scatter", "gather"):
        near, far = (formula_time(kind, 2**30, topology) for topology in (one, two))
        # 15 of 16 blocks leave a GPU where 7 of 8 did; the copy of its own is one of 16 or of 8.
        copy = NUMBER("correction.p2p_own_step")
        more = (15 / 16) / (7 / 8) * (1 + copy / 15) / (1 + copy / 7)
        assert far.time_us > near.time_us * more
        assert far.time_fs >= predict(kind, 2**30, two).bound_fs


def test_a_message_in_a_mesh_has_one_link():
    mesh = simcoll.load_topology("mi300x")
    rate = 64 * load_library("rccl").number("class.mi300.p2p_share")
    for time in (formula_time, predict):
        assert time("send_recv", 2**30, mesh, library="rccl").time_us == pytest.approx(
            2**30 / rate / 1000, rel=0.01
        )
