"""Chakra traces and files of ASTRA-sim."""

from __future__ import annotations

import json

from simcoll.formats.chakra.nodes import Node, dump_nodes
from simcoll.topology import load_topology
from simcoll.traces.astra_system import load_astra_system
from simcoll.traces.chakra import load_chakra
from tests.support.first_files import FirstFile, Reader, Refusal


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number, content):
    """A length-delimited field of a protocol buffer."""
    data = content if isinstance(content, bytes) else content.encode()
    return varint(number << 3 | 2) + varint(len(data)) + data


def message(content):
    return varint(len(content)) + content


def trace(*nodes, metadata=None):
    return dump_nodes(metadata or {}, list(nodes))


def collective(number, kind=0, size=65536, after=(), **more):
    return Node(
        number,
        f"call {number}",
        "COMM_COLL",
        after,
        0,
        {"comm_type": kind, "comm_size": size, **more},
    )


def work(number, after=(), us=10, **more):
    return Node(number, "gemm", "COMP", after, us, more)


BOTH = (work(0), collective(1, after=(0,)))


def ranks(content, name="trace.{}.et", count=2):
    return {name.format(rank): content for rank in range(count)}


def summary(path):
    """Ranks, calls, and the collectives with their bytes."""
    loaded = load_chakra(next(iter(sorted(path.iterdir()))))
    calls = [
        f"{getattr(operation, 'kind', 'message')} {operation.size_bytes}"
        for operation in loaded.operations
        if getattr(operation, "size_bytes", 0)
    ]
    return loaded.nranks, len(loaded.operations), "; ".join(dict.fromkeys(calls))


def without_version(content):
    """Metadata as Chakra's own converters write it: attributes, and no version."""
    metadata = field(2, field(1, "schema") + field(29, "1.0.2-chakra.0.0.4"))
    length = content[0]
    return message(metadata) + content[1 + length :]


READ = (2, 2, "all_reduce 65536")
CHAKRA = Reader(
    "Chakra traces",
    summary,
    (
        FirstFile("trace.0.et and so on", ranks(trace(*BOTH)), READ),
        FirstFile("metadata without a version", ranks(without_version(trace(*BOTH))), READ),
        FirstFile("rank_0.et", ranks(trace(*BOTH), "rank_{}.et"), READ),
        FirstFile("0.et", ranks(trace(*BOTH), "{}.et"), READ),
        FirstFile("npu0.chakra", ranks(trace(*BOTH), "npu{}.chakra"), READ),
        FirstFile("et.0", ranks(trace(*BOTH), "et.{}"), READ),
        FirstFile(
            "one rank, with a model in its name", {"resnet50.et": trace(work(0))}, (1, 1, "")
        ),
        FirstFile(
            "all_gather, reduce_scatter and all_to_all",
            ranks(
                trace(collective(0, 2), collective(1, 7, after=(0,)), collective(2, 6, after=(1,)))
            ),
            (2, 3, "all_gather 131072; reduce_scatter 65536; all_to_all 65536"),
        ),
        FirstFile(
            "messages between ranks",
            {
                "trace.0.et": trace(
                    Node(
                        0,
                        "s",
                        "COMM_SEND",
                        (),
                        0,
                        {"comm_src": 0, "comm_dst": 1, "comm_size": 4096},
                    )
                ),
                "trace.1.et": trace(
                    Node(
                        0,
                        "r",
                        "COMM_RECV",
                        (),
                        0,
                        {"comm_src": 0, "comm_dst": 1, "comm_size": 4096},
                    )
                ),
            },
            (2, 1, "message 4096"),
        ),
        FirstFile(
            "work of a size, for a roofline",
            ranks(trace(work(0, num_ops=10**9, tensor_size=10**6))),
            (2, 1, ""),
        ),
        FirstFile(
            "parents that are not in the trace",
            ranks(trace(work(5, after=(1, 2)), collective(6, after=(5,)))),
            READ,
        ),
        FirstFile(
            "groups in a metadata node",
            ranks(
                trace(
                    Node(
                        0,
                        "groups",
                        "METADATA",
                        values='["[{\\"pg_name\\": \\"7\\", \\"ranks\\": [0, 1]}]"]',
                    ),
                    collective(1, after=(0,), pg_name="7"),
                )
            ),
            (2, 1, "all_reduce 65536"),
        ),
        FirstFile(
            "a rank without a file",
            {"trace.0.et": trace(*BOTH), "trace.2.et": trace(*BOTH)},
            Refusal("the file of rank 1 is missing; there are those of 2 ranks"),
        ),
    ),
)


def network(topology, counts, bandwidth, latency, tail=""):
    return (
        f"topology: [ {topology} ]\nnpus_count: [ {counts} ]\nbandwidth: [ {bandwidth} ]\n"
        f"latency: [ {latency} ]\n{tail}"
    ).encode()


def network_summary(path):
    """NPUs, and GB/s of NPU 0's first link, in ASTRA-sim's of 2^30 bytes."""
    topology = load_topology(path)
    first = int(topology.link_capacity_uBps[topology.link(topology.path(0, 1)[0])])
    return topology.nranks, first // (2**30 * 10**6)


NETWORKS = Reader(
    "network files of ASTRA-sim",
    network_summary,
    (
        FirstFile("a ring", network("Ring", "8", "50.0", "500.0"), (8, 50)),
        FirstFile("a switch", network("Switch", "4", "50.0", "500.0"), (4, 50)),
        FirstFile("a full connection", network("FullyConnected", "4", "25.0", "500.0"), (4, 25)),
        FirstFile(
            "two dimensions",
            network("Ring, Switch", "4, 4", "100.0, 12.5", "50.0, 500.0"),
            (16, 100),
        ),
        FirstFile(
            "three dimensions",
            network("Ring, FullyConnected, Switch", "2, 2, 2", "200, 100, 50", "50, 500, 2000"),
            (8, 200),
        ),
        FirstFile(
            "with comments", network("Ring", "8", "50.0", "500.0", "# of the example\n"), (8, 50)
        ),
        FirstFile(
            "with comments beside values",
            b"topology: [ Ring ]  # Ring, Switch, FullyConnected\nnpus_count: [ 8 ]  # number of NPUs\n"
            b"bandwidth: [ 50.0 ]  # GB/s\nlatency: [ 500.0 ]  # ns\n",
            (8, 50),
        ),
        FirstFile(
            "keys in another order",
            b"npus_count: [ 8 ]\nlatency: [ 500 ]\nbandwidth: [ 50 ]\ntopology: [ Ring ]\n",
            (8, 50),
        ),
        FirstFile(
            "lists in rows",
            b"topology:\n  - Ring\nnpus_count:\n  - 8\nbandwidth:\n  - 50.0\nlatency:\n  - 500.0\n",
            (8, 50),
        ),
        FirstFile(
            "with carriage returns and no blanks",
            b"topology: [Ring]\r\nnpus_count: [8]\r\nbandwidth: [50.0]\r\nlatency: [500.0]\r\n",
            (8, 50),
        ),
        FirstFile(
            "the beginning of a document of YAML",
            b"---\n" + network("Ring", "8", "50.0", "500.0"),
            (8, 50),
        ),
        FirstFile(
            "a block of a newer version",
            network("Mesh", "8", "50.0", "500.0"),
            Refusal("unknown 'Mesh'"),
        ),
    ),
)
NATIVE = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 10,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 4,
    "all-reduce-implementation": ["ring"],
    "all-gather-implementation": ["ring"],
    "reduce-scatter-implementation": ["ring"],
    "all-to-all-implementation": ["ring"],
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1600,
    "boost-mode": 0,
}


def system_summary(path):
    settings = load_astra_system(path)
    return dict(settings.algorithms), settings.gpu is not None


def system(**changes):
    return json.dumps(NATIVE | changes, indent=2).encode()


RINGS = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), "ring")
SYSTEMS = Reader(
    "system files of ASTRA-sim",
    system_summary,
    (
        FirstFile("the native example", system(), (RINGS, False)),
        FirstFile(
            "with a roofline", system(**{"roofline-enabled": 1, "peak-perf": 900}), (RINGS, True)
        ),
        FirstFile(
            "a tree for all_reduce",
            system(**{"all-reduce-implementation": ["doubleBinaryTree"]}),
            (RINGS | {"all_reduce": "double_tree"}, False),
        ),
        FirstFile(
            "halving and doubling",
            system(**{"all-reduce-implementation": ["halvingDoubling"]}),
            (RINGS | {"all_reduce": "rabenseifner"}, False),
        ),
        FirstFile(
            "direct",
            system(**{"all-to-all-implementation": ["direct"]}),
            (RINGS | {"all_to_all": "direct"}, False),
        ),
        FirstFile(
            "one entry for each dimension",
            system(**{"all-reduce-implementation": ["ring", "ring"]}),
            (RINGS, False),
        ),
        FirstFile(
            "chunks, delay and tracing",
            system(**{"trace-enabled": 1, "replay-only": 0}),
            (RINGS, False),
        ),
        FirstFile(
            "few keys", b'{"all-reduce-implementation": ["ring"]}', ({"all_reduce": "ring"}, False)
        ),
        FirstFile("no algorithm", b'{"scheduling-policy": "FIFO"}', ({}, False)),
        FirstFile(
            "memory and its bandwidth",
            system(**{"peak-perf": 100, "roofline-enabled": 0}),
            (RINGS, False),
        ),
        FirstFile(
            "a key with a wrong letter",
            system(**{"all-reduce-implementatoin": ["ring"]}),
            Refusal("did you mean 'all-reduce-implementation'"),
        ),
    ),
)
