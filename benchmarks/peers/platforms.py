"""Topologies written as SimGrid platforms, and times on them in SMPI: the numbers of
``tests/unit/topology/test_platforms.py``.

``python benchmarks/peers/platforms.py`` prints, for each machine, the SHA-256 of its platform, and
for each schedule SMPI's simulated time beside ours. ``apt-get install libsimgrid-dev`` brings
``smpirun``. SMPI's calibration factors are neutralised, and every message carries the 16 bytes that
SMPI adds.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from compare import write_traces

import simcoll
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.emulator import emulate
from simcoll.topology import crossbar, fat_tree, load_topology, torus
from simcoll.topology.readers.graph_files import simgrid_text

SMPI = Protocol("smpi", header_bytes=16)
MACHINES = {
    "crossbar": lambda: crossbar(16, "12.5 GB/s", "2 us"),
    "torus": lambda: torus((4, 4), "12.5 GB/s", "1 us"),
    "fat tree": lambda: fat_tree(
        4, 4, "12.5 GB/s", "2 us", oversubscription=2, spine_latency="2 us"
    ),
    "dgx-a100": lambda: load_topology("dgx-a100", nodes=2),
}
CASES = (
    ("all_reduce", "ring"),
    ("all_reduce", "recursive_doubling"),
    ("all_to_all", "pairwise"),
    ("broadcast", "tree"),
)
SIZES = (1 << 10, 1 << 20)
OPTIONS = (
    "network/model:CM02",
    "network/TCP-gamma:0",
    "network/weight-S:0",
    "network/latency-factor:1",
    "network/bandwidth-factor:1",
    "network/crosstraffic:0",
    "network/loopback-bw:1e18",
    "network/loopback-lat:0",
    "smpi/os:0:0:0",
    "smpi/or:0:0:0",
    "smpi/ois:0:0:0",
    "smpi/wtime:0",
    "surf/precision:1e-12",
    "maxmin/precision:1e-9",
    "smpi/host-speed:1Gf",
    "smpi/async-small-thresh:0",
    "smpi/send-is-detached-thresh:0",
    "smpi/display-timing:1",
)


def main() -> None:
    for name, make in MACHINES.items():
        machine = make()
        platform = simgrid_text(machine)
        print(f"{name}: {hashlib.sha256(platform).hexdigest()}")
        for kind, algorithm in CASES:
            for size in SIZES:
                made = simcoll.schedule(kind, algorithm, nranks=16)
                plan = simcoll.bind(
                    made, size // (16 if kind == "all_to_all" else 1), "uint8", protocol=SMPI
                )
                ours = emulate(plan, machine, data="none", bound=False).time
                print(f"  {kind} {algorithm} {size}: SMPI {in_smpi(plan, platform)}, ours {ours}")


def in_smpi(plan: Plan, platform: bytes) -> float:
    """Simulated seconds, with the six digits that SMPI prints."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_traces(plan, folder)
        (folder / "platform.xml").write_bytes(platform)
        hosts = re.findall(rb'<host id="([^"]+)"', platform)
        (folder / "hosts").write_bytes(b"".join(host + b"\n" for host in hosts))
        options = [f"--cfg={option}" for option in OPTIONS]
        command = [
            "smpirun",
            "-np",
            "16",
            "-hostfile",
            "hosts",
            "-platform",
            "platform.xml",
            "-replay",
            "traces",
            *options,
        ]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
    found = re.search(r"Simulated time: ([0-9.e+-]+) seconds", done.stdout + done.stderr)
    if found is None:
        sys.exit((done.stdout + done.stderr)[-2000:])
    return float(found[1])


if __name__ == "__main__":
    main()
