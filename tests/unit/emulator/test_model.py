"""The integer model, against numbers worked out by hand."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.core.protocol import Protocol, nccl
from simcoll.core.schedule import COPY, MULTICAST, REDUCE, SYNC
from simcoll.emulator import model
from simcoll.errors import ConfigError
from simcoll.topology import boxes, crossbar

GBps = 10**15
US = 10**9


def test_flow_delay_is_size_over_rate():
    assert model.flow_delay_fs(1e6, 50 * GBps) == 20 * US
    assert model.flow_delay_fs(0.0, 50 * GBps) == 0
    assert model.flow_delay_fs(-1e-9, 50 * GBps) == 0


@pytest.mark.parametrize(
    ("rate", "expected"), [(3 * GBps, 333_333), (6 * GBps, 166_667), (7 * GBps, 142_857)]
)
def test_flow_delay_rounds_away_from_simple_fractions(rate, expected):
    # 1 byte: 10**6 / 3, / 6, / 7 fs; the threshold to round up is 1 - 0.38 = 0.62.
    assert model.flow_delay_fs(1.0, rate) == expected


def test_remaining_bytes():
    assert model.remaining_bytes(1e6, 50 * GBps, 10 * US) == 5e5


@pytest.mark.slow
@given(st.integers(1, 10**18), st.lists(st.integers(1, 10**18), min_size=1, max_size=8))
def test_water_level_is_the_highest_that_fits(capacity, limits):
    level = model.water_level(capacity, limits)
    if level == model.UNLIMITED:
        assert sum(limits) <= capacity
        return
    assert sum(min(limit, level) for limit in limits) <= capacity
    # Those it limits cannot have more, even if they could elsewhere.
    assert any(limit >= level for limit in limits)
    assert sum(limit if limit < level else level + 1 for limit in limits) > capacity


def test_water_level_of_an_idle_link_is_unlimited():
    assert model.water_level(5, []) == model.UNLIMITED


def test_wire_bytes_round_up_and_add_the_header():
    protocol = Protocol("t", header_bytes=16, wire_factor=Fraction(128, 120))
    assert model.wire_bytes(np.array([0, 1, 120, 121]), protocol).tolist() == [16, 18, 144, 146]


def test_wire_bytes_that_overflow_are_refused():
    with pytest.raises(ConfigError, match="too large for protocol 't'"):
        model.wire_bytes(np.array([2**62]), Protocol("t", wire_factor=Fraction(2)))


def test_costs_of_messages_and_local_transfers():
    protocol = Protocol(
        "t",
        header_bytes=1,
        send_overhead_fs=3,
        receive_overhead_fs=5,
        reduce_as_per_byte=1500,
        copy_as_per_byte=700,
    )
    size = np.array([1000, 1000, 0, 1001, 1001])
    op = np.array([COPY, REDUCE, SYNC, COPY, REDUCE], np.int8)
    src, dst = np.array([0, 0, 1, 2, 2]), np.array([1, 2, 0, 2, 2])
    costs = model.message_costs(
        size, op, src == dst, crossbar(3, "50 GB/s", "2 us").route(src, dst), protocol
    )
    assert costs.delay_fs.tolist() == [2 * US + 3] * 3 + [0, 0]
    assert costs.wire_bytes.tolist() == [1001, 1001, 1, 0, 0]
    # Reduction: 1000 B * 1.5 fs; 1001 * 1.5 rounds down. Copy inside a rank: 1001 * 0.7 rounds
    # down.
    assert costs.post_fs.tolist() == [5, 5 + 1500, 5, 700, 700 + 1501]


def test_a_cost_beyond_the_clock_is_refused():
    routes = crossbar(2, "50 GB/s").route([0], [1])
    with pytest.raises(ConfigError, match="clock ends at"):
        model.message_costs(
            np.array([2**50]),
            np.array([REDUCE], np.int8),
            np.array([False]),
            routes,
            Protocol("t", reduce_as_per_byte=10**4),
        )


def test_hop_latency_replaces_that_of_the_path_by_kind():
    topology = boxes(
        nodes=2,
        gpus_per_node=2,
        gpu_bandwidth="450 GB/s",
        gpu_latency="1 us",
        nics=2,
        nic_bandwidth="50 GB/s",
        nic_latency="2 us",
    )
    routes = topology.route([0, 0], [1, 2])
    delays = model.latency_fs(routes, Protocol("t", hop_latency_fs=(("net", 7),)))
    assert delays.tolist() == [int(routes.latency_fs[0]), 7]
    added = model.latency_fs(
        routes, Protocol("t", hop_latency_fs=(("net", 7),), add_path_latency=True)
    )
    assert added.tolist() == [int(routes.latency_fs[0]), int(routes.latency_fs[1]) + 7]
    busy = model.send_busy_fs(routes, Protocol("t", occupancy_fs=(("net", 5),), send_overhead_fs=1))
    assert busy.tolist() == [1, 6]


@pytest.mark.parametrize("field", ["hop_latency_fs", "occupancy_fs"])
def test_a_kind_that_no_link_has_is_refused(field):
    protocol = Protocol("t", **{field: (("nvlnik", 7),)})
    routes = crossbar(2, "50 GB/s").route([0], [1])
    with pytest.raises(ConfigError, match=r"links of kind 'nvlnik'; did you mean 'nvlink'\?"):
        model.message_costs(
            np.array([1]), np.array([COPY], np.int8), np.array([False]), routes, protocol
        )
    with pytest.raises(ConfigError, match=r"links of kind 'nvlnik'; did you mean 'nvlink'\?"):
        model.effective_capacities(
            crossbar(2, "50 GB/s"), Protocol("t", link_shares=(("nvlnik", 1),))
        )


def test_with_a_fifo_the_overhead_is_the_senders_and_the_latency_the_messages():
    protocol = Protocol("t", fifo_depth=1, send_overhead_fs=3, occupancy_fs=(("link", 4),))
    size, op = np.array([1000, 1000, 1000]), np.array([COPY, MULTICAST, COPY], np.int8)
    src, dst = np.array([0, 0, 1]), np.array([1, 1, 1])
    routes = crossbar(2, "50 GB/s", "2 us").route(src, dst)
    costs = model.message_costs(size, op, src == dst, routes, protocol)
    # A switch's part waits for both, as under rendezvous; what stays inside a rank has neither.
    assert costs.delay_fs.tolist() == [2 * US, 2 * US + 7, 0]
    assert costs.busy_fs.tolist() == [7, 7, 0]


def test_efficiency_scales_capacities_down_to_whole_numbers():
    import dataclasses

    topology = dataclasses.replace(
        crossbar(2, "50 GB/s"),
        efficiency={"net": Fraction(1, 3), "link": Fraction(1, 3), "nvlink": Fraction(1, 3)},
    )
    assert model.effective_capacities(topology, Protocol("t")) == [50 * GBps] * 4
    assert model.effective_capacities(topology, nccl("Simple")) == [50 * GBps // 3] * 4
    halves = (("link", Fraction(1, 2)), ("net", Fraction(1, 2)), ("nvlink", Fraction(1, 2)))
    for used in (False, True):
        protocol = Protocol("t", link_shares=halves, use_efficiency=used)
        assert model.effective_capacities(topology, protocol) == [25 * GBps] * 4


def test_the_clock_ends():
    assert model.checked_time(2**63 - 1) == 2**63 - 1
    with pytest.raises(ConfigError, match=r"9223.37 s"):
        model.checked_time(2**63)
