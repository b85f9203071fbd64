"""Protocol constants against NCCL 2.30's cost model (src/graph/tuning.cc) and the formats of its
protocols.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from simcoll.core.protocol import IDEAL, PROTOCOL_NAMES, Protocol, ideal, nccl, protocol
from simcoll.errors import ConfigError


def test_ideal_costs_nothing():
    assert Protocol("ideal") == IDEAL == protocol("ideal") == ideal()
    assert ideal(launch_fs=1, header_bytes=16, reduce_as_per_byte=667) == Protocol(
        "ideal", launch_fs=1, header_bytes=16, reduce_as_per_byte=667
    )


# Nanoseconds of base latency, then of a hop over NVLink, PCIe and network.
@pytest.mark.parametrize(
    ("pattern", "flavour", "ns"),
    [
        ("tree", "LL", (6800, 600, 1000, 5000)),
        ("tree", "LL128", (14000, 1250, 1900, 8500)),
        ("tree", "Simple", (8400, 4000, 4000, 14000)),
        ("ring", "LL", (6600, 600, 1000, 2700)),
        ("ring", "LL128", (14000, 1900, 2500, 4000)),
        ("ring", "Simple", (8400, 3400, 5700, 14000)),
    ],
)
def test_latencies(pattern, flavour, ns):
    model = nccl(flavour, pattern=pattern)
    assert (
        model.launch_fs,
        *(dict(model.hop_latency_fs)[kind] for kind in ("nvlink", "pcie", "net")),
    ) == tuple(n * 10**6 for n in ns)


def test_wire_formats():
    # LL: 4 bytes of flag for 4 of data. LL128: 120 of 128 bytes are data. Simple: data only.
    assert [nccl(f).wire_factor for f in ("LL", "LL128", "Simple")] == [2, Fraction(16, 15), 1]
    assert [nccl(f).use_efficiency for f in ("LL", "LL128", "Simple")] == [True] * 3
    caps = [
        nccl("LL128", generation=g).channel_rate_uBps
        for g in ("volta", "ampere", "hopper", "blackwell")
    ]
    assert caps == [20 * 10**15, 20 * 10**15, 36_700 * 10**12, 40 * 10**15]
    assert nccl("LL").channel_rate_uBps == nccl("Simple").channel_rate_uBps == 0


def test_unknown_names():
    assert PROTOCOL_NAMES == ("ideal", "LL", "LL128", "Simple")
    for call, says in (
        (lambda: protocol("simple"), "unknown protocol 'simple'; did you mean 'Simple'?"),
        (lambda: nccl("ideal"), "unknown NCCL protocol 'ideal'"),
        (lambda: nccl("LL", pattern="rign"), "did you mean 'ring'?"),
        (lambda: nccl("LL", generation="hoper"), "did you mean 'hopper'?"),
    ):
        with pytest.raises(ConfigError) as error:
            call()
        assert says in str(error.value)


def test_lists_are_stored_as_tuples():
    given = Protocol(
        "t", occupancy_fs=[["net", 1]], hop_latency_fs=[("net", 2)], link_shares=[["net", "1/2"]]
    )
    stored = Protocol(
        "t",
        occupancy_fs=(("net", 1),),
        hop_latency_fs=(("net", 2),),
        link_shares=(("net", Fraction(1, 2)),),
    )
    assert given == stored
    assert hash(given) == hash(stored)


def test_the_summary_names_what_a_protocol_has():
    protocol = Protocol(
        "t",
        occupancy_fs=(("net", 10**9),),
        hop_latency_fs=(("net", 3 * 10**9),),
        add_path_latency=True,
        fifo_depth=8,
        rank_rate_uBps=232 * 10**15,
        link_shares=(("net", "9/10"),),
    )
    assert protocol.summary == (
        "3 us a net hop, the path's own latency, 1 us of the sender a net hop, 1 bytes on the wire "
        "per byte, a FIFO of 8, "
        "at most 232 GB/s a rank, 0.9 of net links"
    )


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        (
            "occupancy_fs",
            (("net", -1),),
            "occupancy_fs of net of protocol 't' must be a whole number, at least 0; got -1",
        ),
        (
            "occupancy_fs",
            (("net", 2**63),),
            f"occupancy_fs of net of protocol 't' must be at most {2**63 - 1}, got {2**63}",
        ),
        (
            "rank_rate_uBps",
            0.5,
            "rank_rate_uBps of protocol 't' must be a whole number, at least 0; got 0.5",
        ),
        (
            "link_shares",
            (("net", 0),),
            "link_shares of net must be a number above 0 and at most 1, got 0",
        ),
        (
            "link_shares",
            (("net", "10/9"),),
            "link_shares of net must be a number above 0 and at most 1, got '10/9'",
        ),
        ("wire_factor", "1/0", "wire_factor must be a number above 0, got '1/0'"),
        (
            "hop_latency_fs",
            {"net": 1},
            "hop_latency_fs must be pairs (link kind, value), such as [('net', 1)]; got {'net': 1}",
        ),
        (
            "link_shares",
            5,
            "link_shares must be pairs (link kind, value), such as [('net', 1)]; got 5",
        ),
    ],
)
def test_values_that_cannot_be(field, value, says):
    with pytest.raises(ConfigError) as error:
        Protocol("t", **{field: value})
    assert str(error.value) == says
