"""Gain of pipelining for hierarchical algorithms on nodes with rails, whose stages then overlap.

    python benchmarks/pipelining.py [boxes ...]

Prints, for DGX H100 nodes, protocol ``ideal`` and 8 GiB, the time of every hierarchical algorithm
in one piece, and that time over the time in several pieces. For an all-reduce on many nodes the
limit is the sum of both stages over the longer: (2 7/8 / 450 GB/s + 2/8 / 50 GB/s) / (2/8 / 50
GB/s) = 1.78.
"""

from __future__ import annotations

import os
import platform

import cyclopts

import simcoll
from simcoll.emulator import emulate
from simcoll.topology import Topology, load_topology

SIZE = 1 << 33
PIECES = (4, 8, 16, 32)


def time_us(collective: str, topology: Topology, pieces: int) -> float:
    """Emulated time of the hierarchical algorithm, in microseconds."""
    n = topology.nranks
    schedule = simcoll.schedule(collective, "hierarchical", nranks=n, box=8, pieces=pieces)
    blocks = 1 if collective in {"all_reduce", "broadcast"} else n
    return emulate(
        simcoll.bind(schedule, SIZE // blocks, "uint8"), topology, data="none", bound=False
    ).time_us


def main(*boxes: int) -> None:
    """Measure clusters of so many nodes; default 2, 4 and 8."""
    print(f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    head = "".join(f"{f'{pieces} pieces':>12}" for pieces in PIECES)
    print(f"# {'boxes':<7}{'collective':<17}{'1 piece (us)':>14}{head}")
    for nodes in boxes or (2, 4, 8):
        topology = load_topology("dgx-h100", nodes=nodes)
        for collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"):
            alone = time_us(collective, topology, 1)
            gains = "".join(
                f"{alone / time_us(collective, topology, pieces):>11.3f}x" for pieces in PIECES
            )
            print(f"  {nodes:<7}{collective:<17}{alone:>14.1f}{gains}", flush=True)


if __name__ == "__main__":
    cyclopts.run(main)
