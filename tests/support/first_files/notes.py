"""Files that are named for what they are, with what to use in their place."""

from __future__ import annotations

from simcoll.topology import load_topology
from tests.support.first_files import FirstFile, Reader, Refusal

HWLOC = b"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0"><object type="Machine" os_index="0"/></topology>
"""
IBSTAT = b"""CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tPort 1:
\t\tState: Active
\t\tRate: 400
"""
DEVINFO = b"""hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.39.2048
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
"""
PEERS = b"\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"

NAMED = Reader(
    "files that are named for what they are",
    load_topology,
    (
        FirstFile("lstopo's XML", HWLOC, Refusal("this is hwloc's description of a node (lstopo)")),
        FirstFile(
            "hwloc's XML of version 1", HWLOC.replace(b"hwloc2", b"hwloc"), Refusal("hwloc's")
        ),
        FirstFile("ibstat", IBSTAT, Refusal("ibstat")),
        FirstFile("ibv_devinfo", DEVINFO, Refusal("ibv_devinfo")),
        FirstFile(
            "topology.conf of Slurm",
            b"SwitchName=leaf0 Nodes=n[0-15]\nSwitchName=spine Switches=leaf[0-1]\n",
            Refusal("Slurm"),
        ),
        FirstFile("nvidia-smi topo -p2p", PEERS, Refusal("use that of topo -m")),
        FirstFile(
            "a graph dump of NCCL",
            b'<graphs version="1"><graph id="0" pattern="4"/></graphs>\n',
            Refusal("NCCL_GRAPH_DUMP_FILE"),
        ),
        FirstFile("an empty file", b"", Refusal("empty")),
        FirstFile("a page of the web", b"<html><body>404</body></html>\n", Refusal("found <html>")),
        FirstFile(
            "a log",
            b"node-0:1:2 [0] NCCL INFO Bootstrap : Using eth0\n",
            Refusal("not a topology: expected TOML, an NCCL topology dump"),
        ),
    ),
)
