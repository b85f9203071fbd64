"""Listings of InfiniBand fabrics, and listings that are named for what they are."""

from __future__ import annotations

from simcoll.topology.readers.ib_fabric import parse_ib_fabric
from tests.support.fabrics import discovered, fat_tree, lined, linked
from tests.support.first_files import FirstFile, Reader, Refusal

RATES = {"nvlink_bandwidth": "100 GB/s", "pcie_bandwidth": "50 GB/s"}


def summary(path):
    """Adapters, switches, and GB/s of an adapter's cable."""
    topology = parse_ib_fabric(path.read_bytes(), **RATES)
    nics = [
        name
        for name, kind in zip(topology.node_names, topology.node_kinds, strict=True)
        if kind == "nic"
    ]
    switches = sum(
        kind == "switch" and "nvswitch" not in name
        for name, kind in zip(topology.node_names, topology.node_kinds, strict=True)
    )
    cables = [
        int(topology.link_capacity_uBps[number])
        for number in range(topology.nlinks)
        if topology.link_name(number).startswith(f"{nics[0]} -> ")
        and "gpu" not in topology.link_name(number)
    ]
    return len(nics), switches, cables[0] // 10**15


SMALL = {"hosts": 4, "adapters": 2, "leaves": 2, "spines": 2}
IBSIM = b"""\
# a switch and two hosts
module-guid: 200000
Switch 8 "Sw1"
[1]\t"Hca1"[1]
[2]\t"Hca2"[1]

Hca 1 "Hca1"
[1]\t"Sw1"[1]

Hca 1 "Hca2"
[1]\t"Sw1"[2]
"""
FABRICS = Reader(
    "listings of InfiniBand fabrics",
    summary,
    (
        FirstFile("ibnetdiscover, HDR", discovered(*fat_tree(**SMALL)), (8, 4, 25)),
        FirstFile("ibnetdiscover, EDR", discovered(*fat_tree(**SMALL, speed="EDR")), (8, 4, 12)),
        FirstFile("ibnetdiscover, NDR", discovered(*fat_tree(**SMALL, speed="NDR")), (8, 4, 50)),
        FirstFile(
            "ibnetdiscover, one switch", discovered(*fat_tree(leaves=1, spines=1)), (8, 2, 25)
        ),
        FirstFile("iblinkinfo", linked(*fat_tree(**SMALL)), (8, 4, 25)),
        FirstFile("iblinkinfo, NDR", linked(*fat_tree(**SMALL, speed="NDR")), (8, 4, 50)),
        FirstFile("iblinkinfo --line", lined(*fat_tree(**SMALL)), (8, 4, 25)),
        FirstFile("a net file of ibsim", IBSIM, (2, 1, 1)),
        FirstFile(
            "ibnetdiscover with carriage returns",
            discovered(*fat_tree(**SMALL)).replace(b"\n", b"\r\n"),
            (8, 4, 25),
        ),
        FirstFile(
            "after a prompt",
            b"[root@head ~]# ibnetdiscover\n" + discovered(*fat_tree(**SMALL)),
            (8, 4, 25),
        ),
        FirstFile(
            "iblinkinfo of one adapter a host",
            linked(*fat_tree(hosts=6, adapters=1, leaves=3, spines=1)),
            (6, 4, 25),
        ),
        FirstFile(
            "cut off in the middle",
            discovered(*fat_tree(**SMALL))[:900],
            Refusal("line"),
        ),
    ),
)
