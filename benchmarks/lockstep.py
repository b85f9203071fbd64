"""What lock-step saves in runs with little symmetry: the chosen way, beside the loops that play
every message with a calendar.

``python benchmarks/lockstep.py`` prints the machine and a row for each case: CPU time of warm calls
that take turns, the best of four, the ratio to the goal, and the way that was taken.
"""

import os
import time
from functools import partial

from scale import cpu_name

import simcoll
from simcoll.core.protocol import Protocol
from simcoll.emulator import emulate
from simcoll.emulator.fast_way import play_every, plays_in_lockstep
from simcoll.emulator.request import Request
from simcoll.topology import crossbar, load_topology

RANKS, COUNT = 1024, 1 << 24
JITTER = Protocol("jitter", jitter_fs=10**9)
FIFO = Protocol("fifo", fifo_depth=8, send_overhead_fs=10**8)


def cases():
    """Name, plan, topology, and the goal in seconds, if there is one."""
    ring = simcoll.schedule("all_reduce", "ring", nranks=RANKS)
    dgx, switch = load_topology("dgx-h100", nodes=RANKS // 8), crossbar(RANKS, "50 GB/s", "1 us")
    slow = switch.degrade("gpu2 -> switch", "1/2")
    yield "2^24 + 1 elements, DGX H100", simcoll.bind(ring, COUNT + 1), dgx, 0.05
    yield "1,000,003 elements, DGX H100", simcoll.bind(ring, 1_000_003), dgx, 0.05
    yield "a link at 1/2, crossbar", simcoll.bind(ring, COUNT), slow, 0.1
    yield "an NVLink at 1/2, DGX H100", simcoll.bind(ring, COUNT), dgx.degrade(0, "1/2"), 0.1
    yield "jitter, crossbar", simcoll.bind(ring, COUNT, protocol=JITTER), switch, 0.1
    yield "jitter, DGX H100", simcoll.bind(ring, COUNT, protocol=JITTER), dgx, None
    yield "FIFOs, a link at 1/2, crossbar", simcoll.bind(ring, COUNT, protocol=FIFO), slow, None
    yield (
        "FIFOs, 2^24 + 1 elements, DGX H100",
        simcoll.bind(ring, COUNT + 1, protocol=FIFO),
        dgx,
        None,
    )


def main() -> None:
    """Run and print."""
    print(f"{os.cpu_count()} cores, {cpu_name()}; ring all_reduce of {RANKS} ranks")
    for name, plan, topology, goal in cases():
        ways = (
            partial(emulate, plan, topology, data="none", bound=False),
            partial(play_every, Request(plan, topology)),
        )
        best, results = [float("inf")] * 2, []
        for _ in range(4):
            results = []
            for which, play in enumerate(ways):
                start = time.process_time()
                results.append(play())
                best[which] = min(best[which], time.process_time() - start)
        one, two = results
        if (one.time_fs, one.trace_hash) != (two.time_fs, two.trace_hash):
            raise SystemExit(f"{one} and {two} differ")
        told = f", {best[0] / goal:.2f} of the goal" if goal else ""
        together = "in lock-step" if plays_in_lockstep(Request(plan, topology)) else "by the loops"
        print(
            f"{name}: {best[0]:.3f} s, loops {best[1]:.3f} s, {best[0] / best[1]:.3f}{told} "
            f"({together})",
            flush=True,
        )


if __name__ == "__main__":
    main()
