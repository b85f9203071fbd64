"""What ``engine="auto"`` costs, over the compiled engine with every message, and what waits cost once and again.

``python benchmarks/choices.py`` prints the machine and a row for each schedule, CPU time of warm calls, the best of four.
"""

import os
import time
from collections.abc import Callable
from functools import partial

from scale import cpu_name

import simcoll
from simcoll.emulator import Result, emulate
from simcoll.topology import load_topology

CASES = (
    ("all_reduce", "ring", 128),
    ("all_reduce", "ring", 256),
    ("all_reduce", "ring", 512),
    ("all_reduce", "ring", 720),
    ("all_reduce", "ring", 1024),
    ("all_to_all", "pairwise", 1024),
    ("all_reduce", "recursive_doubling", 1024),
)


def best(call: Callable[[], Result], runs: int = 4) -> tuple[float, Result]:
    """Milliseconds of the fastest of some calls, and what it returned."""
    fastest, result = float("inf"), None
    for _ in range(runs):
        start = time.process_time()
        result = call()
        fastest = min(fastest, 1e3 * (time.process_time() - start))
    return fastest, result


def main() -> None:
    """Run and print."""
    print(f"{os.cpu_count()} cores, {cpu_name()}")
    for kind, algorithm, nranks in CASES:
        topology = load_topology("dgx-h100", nodes=nranks // 8)
        plan = simcoll.bind(simcoll.schedule(kind, algorithm, nranks=nranks), count=nranks << 14)
        call = partial(emulate, plan, topology, data="none", bound=False)
        full, one = best(partial(call, engine="fast", quotient=False))
        chosen, two = best(call)
        if one.time_fs != two.time_fs:
            raise SystemExit(f"{one} and {two} differ")
        print(f"{algorithm} {nranks}: {full:.1f} ms, chosen {chosen:.1f} ms, {chosen / full:.2f} ({two.path})")
    plan = simcoll.bind(simcoll.schedule("all_reduce", "hierarchical", nranks=512, box=8, pieces=4), count=1 << 24)
    for text in ("hierarchical 512 in 4 pieces, waits derived", "another size"):
        start = time.process_time()
        result = emulate(plan, load_topology("dgx-h100", nodes=64), data="none", bound=False)
        print(f"{text}: {time.process_time() - start:.2f} s ({result.path})")
        plan = simcoll.bind(plan.schedule, count=1 << 25)


if __name__ == "__main__":
    main()
