"""ASTRA-sim's network files: links and times by hand, and what is refused."""

from __future__ import annotations

import pytest

from simcoll.errors import ConfigError
from simcoll.formats.recognise import recognise
from simcoll.topology import load_topology
from simcoll.topology.readers.astra_network import parse_astra_network

GB = 2**30 * 10**6  # a GB/s of ASTRA-sim in micro-bytes per second
THREE = b"""# ring, full connection, switch
topology: [ Ring, FullyConnected, Switch ]
npus_count: [ 3, 4, 2 ]   # NPUs
bandwidth: [ 200.0, 100.0, 12.5 ]  # GB/s
latency: [ 50.0, 500.5, 2000.0 ]  # ns
"""


def test_links_of_three_dimensions(tmp_path):
    found = parse_astra_network(THREE)
    # 24 NPUs: 8 rings of 3 links, 6 groups of 6 links, 12 switches of 2 links, both ways.
    assert (found.nranks, found.nlinks) == (24, 2 * (8 * 3 + 6 * 6 + 12 * 2))
    assert found.path(0, 2) == ["npu0 -> npu2"]  # the short way around
    assert found.path(0, 9) == ["npu0 -> npu9"]
    assert found.path(0, 12) == ["npu0 -> switch2.0", "switch2.0 -> npu12"]
    times = found.route([0, 0, 0], [2, 9, 12]).latency_fs.tolist()
    assert times == [50 * 10**6, 500_500_000, 4000 * 10**6]
    link = {
        found.link_name(number): int(found.link_capacity_uBps[number])
        for number in range(found.nlinks)
    }
    assert [link["npu0 -> npu2"], link["npu0 -> npu9"], link["npu0 -> switch2.0"]] == [
        200 * GB,
        100 * GB,
        25 * GB // 2,
    ]
    path = tmp_path / "network.yml"
    path.write_bytes(THREE)
    assert load_topology(path).nlinks == found.nlinks
    assert recognise(THREE) == "astra-network"


REFUSED = {
    "an unknown block": (
        b"Ring",
        b"Rong",
        r"\$.topology\[0\]: unknown 'Rong'; did you mean 'Ring'",
    ),
    "a list that is too short": (
        b"[ 3, 4, 2 ]",
        b"[ 3, 4 ]",
        r"\$.npus_count: 2 values, for 3 dimensions",
    ),
    "one NPU": (
        b"[ 3, 4, 2 ]",
        b"[ 3, 1, 2 ]",
        r"\$.npus_count\[1\]: expected a whole number of at least 2, got '1'",
    ),
    "no bandwidth": (b"200.0", b"0", r"\$.bandwidth\[0\]: expected a number above 0, got '0'"),
    "a negative latency": (b"50.0,", b"-50.0,", r"\$.latency\[0\]: expected a number, got '-50.0'"),
    "too many": (b"[ 3, 4, 2 ]", b"[ 300, 4000, 2 ]", "expected at most 4096"),
    "other YAML": (
        b"[ 50.0, 500.5, 2000.0 ]",
        b"{ first: 50.0 }",
        "line 5: expected a line such as 'bandwidth: ",
    ),
    "an unknown key": (
        b"latency",
        b"latencies",
        "line 5: unknown key 'latencies'; did you mean 'latency'",
    ),
    "a key twice": (b"latency:", b"bandwidth:", "line 5: bandwidth is a duplicate"),
    "a key too few": (b"latency: [ 50.0, 500.5, 2000.0 ]", b"", r"\$.latency: missing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    old, new, said = REFUSED[case]
    with pytest.raises(ConfigError, match=said):
        parse_astra_network(THREE.replace(old, new), "network.yml")
