"""The table as typed: CPU time and memory of ``simcoll perf all_reduce -t dgx-h100 -b 8 -e 8G``,
of a warm call, and of one whose schedule and plan are made anew.

``python benchmarks/table.py [--nodes N ALGORITHMS]`` prints the machine, CPU seconds (user and
system) with their ratio to the goal, and the peak of the process. With nodes only the named
algorithms run, such as ``ring,tree``.
"""

import os
import platform
import resource
import subprocess
import sys
import time

import simcoll
from simcoll.topology import load_topology

GOAL_S, WARM_GOAL_MS, ANEW_GOAL_MS = 5.0, 25.0, 5.0


def command(*more: str) -> tuple[float, int]:
    """CPU seconds and peak in MiB of one command in a process of its own, with the compiled loops
    at hand.
    """
    argv = [
        sys.executable,
        "-m",
        "simcoll",
        "perf",
        "all_reduce",
        "-t",
        "dgx-h100",
        "-b",
        "8",
        "-e",
        "8G",
        *more,
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        after.ru_maxrss >> 10,
    )


def warm() -> float:
    """Milliseconds of a repeated call, the best of seven: ring all_reduce of 1,024 ranks with its
    bound, timing only.
    """
    machine = load_topology("dgx-h100", nodes=128)
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=1024), 1 << 24)
    best = float("inf")
    for _ in range(8):
        begin = time.process_time()
        simcoll.emulate(plan, machine, data="none")
        best = min(best, time.process_time() - begin)
    return best * 1e3


def made_anew() -> float:
    """Milliseconds of the same call with its schedule and plan, as a program has it in a loop."""
    machine = load_topology("dgx-h100", nodes=128)
    best = float("inf")
    for _ in range(8):
        begin = time.process_time()
        schedule = simcoll.schedule("all_reduce", "ring", nranks=1024)
        simcoll.emulate(simcoll.bind(schedule, 1 << 24), machine, data="none")
        best = min(best, time.process_time() - begin)
    return best * 1e3


def main() -> None:
    """Run and print."""
    print(
        f"machine: {platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}"
    )
    if sys.argv[1:2] == ["--nodes"]:
        took, peak = command("--nodes", sys.argv[2], "-a", sys.argv[3])
        print(f"{sys.argv[2]} nodes, {sys.argv[3]}: {took:.1f} s, {peak} MiB")
        return
    call = warm()
    print(
        f"warm call, ring of 1,024 with bound: {call:.1f} ms, goal {WARM_GOAL_MS:.0f} ms, "
        f"{call / WARM_GOAL_MS:.2f} of it"
    )
    call = made_anew()
    print(
        f"with its schedule and plan made anew: {call:.1f} ms, goal {ANEW_GOAL_MS:.0f} ms, "
        f"{call / ANEW_GOAL_MS:.2f} of it"
    )
    took, peak = min(command() for _ in range(2))
    print(
        f"one node, all algorithms and protocols, 31 sizes: {took:.1f} s, goal {GOAL_S:.0f} s, "
        f"{took / GOAL_S:.2f} of it; {peak} MiB"
    )


if __name__ == "__main__":
    main()
