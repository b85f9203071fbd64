"""Runs of a table one by one: the first of a schedule, the same under other protocols, a further
size, and every message.

``python benchmarks/again.py [--nodes N] [--every] [ALGORITHM ...]`` prints the machine and a line
for each algorithm on DGX H100 nodes, in CPU time: all_reduce of 1 MiB, of 2 MiB, and of 1 KiB,
where most chunks are empty. ``--every`` adds a run that plays every message.
"""

import argparse
import os
import platform
import resource
import time

import simcoll
from simcoll.emulator.folding.remembered import forget_sizes
from simcoll.emulator.request import Request
from simcoll.emulator.run import run_checked
from simcoll.topology import load_topology
from simcoll.tuning import collective_on, costs, schedule_on

PROTOCOLS = ("LL", "LL128", "Simple")
IN_SWITCHES = ("nvls_tree", "switch")
"""Algorithms that reduce in switches, which only the last protocol can."""
ALGORITHMS = (
    "ring",
    "bidirectional_ring",
    "tree",
    "double_tree",
    "nccl_tree",
    "recursive_doubling",
    "rabenseifner",
    "recursive_multiplying",
    "swing",
    "bine",
    "one_shot",
    "two_shot",
    "hierarchical",
    "torus",
    "nvls_tree",
    "switch",
)


def run(schedule, machine, count, protocol, **how):
    """CPU milliseconds of binding and timing, and the result."""
    begin = time.process_time()
    plan = simcoll.bind(schedule, count, protocol=costs(protocol, machine, schedule))
    result = run_checked(Request(plan, machine, engine="fast", **how), data="none", bound=False)
    return (time.process_time() - begin) * 1e3, result


def line(name, machine, *, every):
    """Measure one algorithm."""
    schedule = schedule_on(collective_on("all_reduce", machine.nranks, None), name, machine, {})
    begin = time.process_time()
    simcoll.verify(schedule)
    proved = time.process_time() - begin
    protocols = PROTOCOLS[-1:] if name in IN_SWITCHES else PROTOCOLS
    table = {"protocols": len(protocols)}  # as in a table
    first = [run(schedule, machine, 1 << 18, each, **table)[0] for each in protocols]
    more = [run(schedule, machine, 1 << 19, each, **table) for each in protocols]
    small = [run(schedule, machine, 256, each, **table)[0] for each in protocols]
    forget_sizes(schedule)
    result = more[-1][1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    shown = (
        f"{name:22} {result.messages:>9,} {result.classes or '-':>8} {proved:7.2f} s "
        f"{sum(first):8.0f} ms"
    )
    shown += f" {min(took for took, _ in more):8.1f} ms {sum(small):8.0f} ms {peak:6} MiB"
    if every:
        took, played = run(schedule, machine, 1 << 19, PROTOCOLS[-1], quotient=False)
        assert played.time_fs == result.time_fs
        shown += f" {took:8.0f} ms {min(each for each, _ in more) / took:8.4f}"
    print(shown, flush=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithms", nargs="*", default=ALGORITHMS)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--every", action="store_true")
    given = parser.parse_args()
    machine = load_topology("dgx-h100", nodes=given.nodes)
    # Loads compiled code.
    run(
        simcoll.schedule("all_reduce", "tree", nranks=8), machine, 1 << 20, "Simple", quotient=False
    )
    print(
        f"machine: {platform.processor() or platform.machine()}, {os.cpu_count()} cores; "
        f"{machine.nranks} ranks"
    )
    print(
        f"{'schedule':22} {'messages':>9} {'classes':>8} {'proof':>9} {'3 protocols':>11} "
        f"{'next size':>11} {'1 KiB, 3':>11} {'peak':>10}"
        + (f" {'every':>11} {'ratio':>8}" if given.every else "")
    )
    for name in given.algorithms:
        line(name, machine, every=given.every)


if __name__ == "__main__":
    main()
