"""Platforms of SimGrid, and graphs."""

from __future__ import annotations

from simcoll.topology import load_topology
from tests.support.first_files import FirstFile, Reader, Refusal

HEAD = '<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'


def platform(inside, version="4.1", head=HEAD):
    return f'{head}<platform version="{version}">{inside}</platform>\n'.encode()


CLUSTER = (
    '<cluster id="c" prefix="node-" radical="{}" suffix=".grid" speed="1Gf" bw="{}" lat="{}" {}/>'
)


def cluster(radical="0-7", bw="125MBps", lat="50us", more=""):
    return CLUSTER.format(radical, bw, lat, more)


def hosts(number):
    return "".join(f'<host id="h{host}" speed="1Gf"/>' for host in range(number))


def star(number, bw="1GBps", lat="10us"):
    links = "".join(
        f'<link id="l{host}" bandwidth="{bw}" latency="{lat}"/>' for host in range(number)
    )
    routes = "".join(
        f'<route src="h{a}" dst="h{b}"><link_ctn id="l{a}"/><link_ctn id="l{b}"/></route>'
        for a in range(number)
        for b in range(a)
    )
    return f'<zone id="z" routing="Full">{hosts(number)}{links}{routes}</zone>'


def summary(path):
    """Hosts, MB/s of the slowest link between hosts 0 and 1, and its latency in nanoseconds."""
    topology = load_topology(path)
    links = [topology.link(name) for name in topology.path(0, 1)]
    rate = min(int(topology.link_capacity_uBps[link]) for link in links)
    return (
        topology.nranks,
        rate // 10**12,
        sum(int(topology.link_latency_fs[link]) for link in links) // 10**6,
    )


SIMGRID = Reader(
    "platforms of SimGrid",
    summary,
    (
        FirstFile("a cluster alone", platform(cluster()), (8, 125, 100_000)),
        FirstFile(
            "a cluster in its zone",
            platform(f'<zone id="world" routing="Full">{cluster()}</zone>'),
            (8, 125, 100_000),
        ),
        FirstFile(
            "a cluster with a backbone",
            platform(cluster(more='bb_bw="10GBps" bb_lat="1us"')),
            (8, 125, 101_000),
        ),
        FirstFile(
            "a fat tree",
            platform(
                cluster(
                    "0-15", "1GBps", "1us", 'topology="FAT_TREE" topo_parameters="2;4,4;1,2;1,2"'
                )
            ),
            Refusal("of topology 'FAT_TREE': only flat clusters are read"),
        ),
        FirstFile(
            "a torus",
            platform(cluster("0-7", "1GBps", "1us", 'topology="TORUS" topo_parameters="2,2,2"')),
            Refusal("of topology 'TORUS': only flat clusters are read"),
        ),
        FirstFile(
            "a dragonfly",
            platform(
                cluster(
                    "0-11", "1GBps", "1us", 'topology="DRAGONFLY" topo_parameters="3,4;1,3;2,1;2"'
                )
            ),
            Refusal("of topology 'DRAGONFLY': only flat clusters are read"),
        ),
        FirstFile("hosts and routes", platform(star(4)), (4, 1000, 20_000)),
        FirstFile(
            "two hosts and a link",
            platform(
                f'<zone id="z" routing="Full">{hosts(2)}<link id="l" bandwidth="125MBps" '
                'latency="50us"/><route src="h0" dst="h1"><link_ctn id="l"/></route></zone>'
            ),
            (2, 125, 50_000),
        ),
        FirstFile(
            "routes by Floyd",
            platform(
                f'<zone id="z" routing="Floyd">{hosts(3)}<link id="a" bandwidth="1GBps" latency="1us"/>'
                '<link id="b" bandwidth="1GBps" latency="1us"/><route src="h0" dst="h1"><link_ctn '
                'id="a"/></route><route src="h1" dst="h2"><link_ctn id="b"/></route></zone>'
            ),
            (3, 1000, 1000),
        ),
        FirstFile(
            "an older version, with AS for zone and power for speed",
            platform(
                '<AS id="AS0" routing="Full"><cluster id="c" prefix="n" radical="0-3" suffix="" '
                'power="1Gf" bw="125MBps" lat="50us"/></AS>',
                version="3",
            ),
            (4, 125, 100_000),
        ),
        FirstFile(
            "numbers without units",
            platform(cluster(bw="1.25E8", lat="5.0E-5")),
            (8, 125, 100_000),
        ),
        FirstFile(
            "several ranges of hosts",
            platform(cluster(radical="0-3,8-11")),
            (8, 125, 100_000),
        ),
    ),
)
