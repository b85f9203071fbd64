"""All pairs at once, without symmetry: the many flows of an uneven or jittered all_to_all.

    python benchmarks/all_pairs.py [ranks ...]

For each number of ranks: an exchange whose messages follow a power law (the tokens of experts), and
one of equal messages with jitter, on a crossbar and on DGX H100 nodes; for multiples of 64, equal
messages on a Clos network of 32 hosts a leaf and 16 spines, which hashes choose. Each is played
message by message. Prints CPU seconds of `emulate`, with the compiled code loaded, or in numpy
where there is none.
"""

from __future__ import annotations

import platform
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import simcoll  # noqa: E402
from simcoll.core.protocol import Protocol  # noqa: E402
from simcoll.emulator.fast.compiled import COMPILED  # noqa: E402
from simcoll.topology import clos, crossbar, load_topology  # noqa: E402

ENGINE = "fast" if COMPILED else "auto"


def power_law(nranks, mean=65536, exponent=1.2, seed=1):
    """Bytes between all pairs: each rank sends in a random order of experts."""
    draws = np.random.default_rng(seed)
    share = 1 / np.arange(1, nranks + 1) ** exponent
    share *= mean * nranks / 4 / share.sum()
    return np.array(
        [np.maximum(1, draws.permutation(share)).astype(np.int64) for _ in range(nranks)]
    )


def main():
    sizes = [int(word) for word in sys.argv[1:]] or [32, 64]
    jitter = Protocol("jitter", jitter_fs=10**9, seed=3)
    print(f"machine: {platform.processor() or platform.machine()}, CPU s of emulate")
    print(f"{'':<28}{'ranks':>6}{'messages':>10}{'seconds':>9}")
    for nranks in sizes:
        schedule = simcoll.schedule("all_to_all", "direct", nranks=nranks)
        plans = {
            "power law": simcoll.bind(schedule, power_law(nranks)),
            "jitter": simcoll.bind(schedule, 16384, protocol=jitter),
        }
        machines = {
            "crossbar": crossbar(nranks, "50 GB/s", "1 us"),
            "DGX H100": load_topology("dgx-h100", nodes=nranks // 8),
        }
        runs = {
            f"{title}, {machine}": (plan, topology)
            for title, plan in plans.items()
            for machine, topology in machines.items()
        }
        if nranks % 64 == 0:
            network = clos(nranks // 32, 32, 16, "50 GB/s", "1 us", ecmp="hash", seed=1)
            runs["equal, ECMP by hash"] = simcoll.bind(schedule, 16384), network
        small = simcoll.bind(simcoll.schedule("all_to_all", "direct", nranks=4), 9)
        how = {"data": "none", "bound": False, "quotient": False}
        for title, (plan, topology) in runs.items():
            simcoll.emulate(small, crossbar(4, "50 GB/s", "1 us"), engine=ENGINE, **how)
            begin = time.process_time()
            messages = simcoll.emulate(plan, topology, engine=ENGINE, **how).messages
            seconds = time.process_time() - begin
            print(f"{title:<28}{nranks:>6}{messages:>10}{seconds:>9.3f}", flush=True)


if __name__ == "__main__":
    main()
