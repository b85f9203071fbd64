"""What ``engine="auto"`` costs over the best engine, and what waits cost once and again.

``python benchmarks/choices.py`` prints the machine and a row for each schedule: CPU time of warm
calls that take turns, the best of four. There are the choice, every message with a calendar
(loops), what ``engine="fast"`` does (lock-step where flows do not meet), and classes.
"""

import os
import time
from collections.abc import Callable
from functools import partial

from scale import cpu_name

import simcoll
from simcoll.emulator import Result, emulate
from simcoll.emulator.fast_way import play_every
from simcoll.emulator.request import Request
from simcoll.topology import load_topology

CASES = (
    ("all_reduce", "ring", 64, {}),
    ("all_reduce", "ring", 128, {}),
    ("all_reduce", "ring", 512, {}),
    ("all_reduce", "ring", 1024, {}),
    ("all_reduce", "ring", 4096, {}),
    ("all_reduce", "ring", 512, {"channels": 2}),
    ("all_reduce", "hierarchical", 1024, {"box": 8}),
    ("all_to_all", "pairwise", 1024, {}),
    ("all_reduce", "recursive_doubling", 64, {}),
    ("all_reduce", "recursive_doubling", 1024, {}),
    ("all_reduce", "recursive_doubling", 4096, {}),
    ("all_reduce", "recursive_doubling", 16384, {}),
)


def best(calls: list[Callable[[], Result]], runs: int = 4) -> tuple[list[float], list[Result]]:
    """Milliseconds of the fastest of some runs of each call, which take turns, and what they
    returned.
    """
    fastest, results = [float("inf")] * len(calls), []
    for _ in range(runs):
        results = []
        for which, call in enumerate(calls):
            start = time.process_time()
            results.append(call())
            fastest[which] = min(fastest[which], 1e3 * (time.process_time() - start))
    return fastest, results


def waits() -> None:
    """Derive the waits between the channels of hierarchical schedules in 4 pieces, and print what
    it takes.
    """
    for kind, nranks in (("all_reduce", 512), ("all_reduce", 1024), ("all_gather", 1024)):
        plan = simcoll.bind(
            simcoll.schedule(kind, "hierarchical", nranks=nranks, box=8, pieces=4),
            count=nranks << 14,
        )
        start = time.process_time()
        many = len(plan.wait_pairs[0])
        print(
            f"waits of {kind}, {nranks} ranks, 4 pieces: {time.process_time() - start:.2f} s, "
            f"{many:,}",
            flush=True,
        )


def main() -> None:
    """Run and print."""
    print(f"{os.cpu_count()} cores, {cpu_name()}")
    for kind, algorithm, nranks, params in CASES:
        topology = load_topology("dgx-h100", nodes=nranks // 8)
        plan = simcoll.bind(
            simcoll.schedule(kind, algorithm, nranks=nranks, **params), count=nranks << 14
        )
        call = partial(emulate, plan, topology, data="none", bound=False)
        ways = {
            "fast": partial(call, engine="fast", quotient=False),
            "folded": partial(call, quotient=True),
        }
        if nranks <= 1024:
            ways["loops"] = partial(play_every, Request(plan, topology))
        times, results = best([*ways.values(), call])
        if len({result.time_fs for result in results}) > 1:
            raise SystemExit(f"{results} differ")
        shown = ", ".join(f"{way} {each:.1f} ms" for way, each in zip(ways, times, strict=False))
        ratio = times[-1] / min(times[:-1])
        print(
            f"{algorithm} {nranks} {params or ''}: chosen {times[-1]:.1f} ms, {ratio:.2f} "
            f"({results[-1].path}); {shown}",
            flush=True,
        )
    plan = simcoll.bind(
        simcoll.schedule("all_reduce", "hierarchical", nranks=512, box=8, pieces=4), count=1 << 24
    )
    for text in ("hierarchical 512 in 4 pieces, with its waits", "another size"):
        start = time.process_time()
        result = emulate(plan, load_topology("dgx-h100", nodes=64), data="none", bound=False)
        print(f"{text}: {time.process_time() - start:.2f} s ({result.path})")
        plan = simcoll.bind(plan.schedule, count=1 << 25)
    waits()


if __name__ == "__main__":
    main()
