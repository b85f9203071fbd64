"""Protocol constants against NCCL 2.30's cost model (src/graph/tuning.cc) and the formats of its protocols."""

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
        ("tree", "LL", (6800, 600, 1000, 5000)), ("tree", "LL128", (14000, 1250, 1900, 8500)),
        ("tree", "Simple", (8400, 4000, 4000, 14000)),
        ("ring", "LL", (6600, 600, 1000, 2700)), ("ring", "LL128", (14000, 1900, 2500, 4000)),
        ("ring", "Simple", (8400, 3400, 5700, 14000)),
    ],
)  # fmt: skip
def test_latencies(pattern, flavour, ns):
    model = nccl(flavour, pattern=pattern)
    assert (model.launch_fs, *(dict(model.hop_latency_fs)[kind] for kind in ("nvlink", "pcie", "net"))) == tuple(
        n * 10**6 for n in ns
    )


def test_wire_formats():
    # LL: 4 bytes of flag for 4 of data. LL128: 120 of 128 bytes are data. Simple: data only.
    assert [nccl(f).wire_factor for f in ("LL", "LL128", "Simple")] == [2, Fraction(16, 15), 1]
    assert [nccl(f).use_efficiency for f in ("LL", "LL128", "Simple")] == [True] * 3
    caps = [nccl("LL128", generation=g).channel_rate_uBps for g in ("volta", "ampere", "hopper", "blackwell")]
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
