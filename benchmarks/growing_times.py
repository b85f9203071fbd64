"""Hold predicted times against a law: with one algorithm and protocol, no size takes less time than
a smaller one.

``python benchmarks/growing_times.py [CASES]`` draws machines, variables and collectives, 10,000
by default, and prints how many broke the law, and where the choice itself changes to one that takes
less time: there NCCL, or the library's file, leaves a choice too late.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from time import process_time

import numpy as np

from simcoll.errors import ConfigError
from simcoll.files.paths import shipped_files
from simcoll.libraries import corrected
from simcoll.libraries.environment import LAUNCHERS, parse_environment
from simcoll.libraries.library import library_for
from simcoll.libraries.prediction import choose, launched_us
from simcoll.libraries.question import Question, question_on
from simcoll.topology import Topology, load_topology

COLLECTIVES = (
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    *("all_to_all", "send_recv", "gather", "scatter"),
)
LINKS = (
    *("", "", "", "", "NCCL_IB_HCA=mlx5_0", "NCCL_P2P_DISABLE=1", "NCCL_NET=Socket"),
    *("NCCL_NET_GDR_LEVEL=LOC", "NCCL_BUFFSIZE=65536", "NCCL_CROSS_NIC=0"),
)
"""Variables that choose links."""
SLIGHT = 1e-9
"""Share of a time that rounding may take."""


@cache
def machine(name: str, nodes: int) -> Topology | None:
    """Some nodes of a shipped machine; None if it has not as many, or no library knows it."""
    try:
        topology = load_topology(name, nodes=nodes)
        question_on("all_reduce", topology, library_for(None, topology))
    except ConfigError:
        return None
    return topology


def draw(rng: random.Random) -> Question | None:
    """A collective on a machine under some variables; None where nothing can run."""
    name, nodes = rng.choice(sorted(shipped_files("topologies"))), rng.choice([1, 1, 2, 4, 16])
    topology = machine(name, nodes)
    if topology is None or topology.nranks < 2:
        return None
    environment = replace(
        parse_environment(rng.choice(LINKS)),
        launcher=rng.choice(LAUNCHERS),
        max_ctas=rng.choice([0, 0, 1, 4, 16]),
        nvls=rng.random() < 0.8,
        dtype=rng.choice(["", "float16", "int8"]),
    )
    library = library_for(None, topology)
    try:
        question = question_on(rng.choice(COLLECTIVES), topology, library, environment)
        corrected.costs(question, np.ones(1))
    except ConfigError:
        return None
    return question


def falls(question: Question, sizes: np.ndarray) -> list[str]:
    """Sizes at which an algorithm and protocol takes less time than at a smaller one."""
    places = []
    for cost in corrected.costs(question, sizes):
        times_us = launched_us(cost.time_us(sizes), question)
        falling = np.diff(times_us) < -SLIGHT * times_us[1:]
        if question.is_p2p:
            choices = corrected.send_choices(question, sizes)
            falling &= choices[1:] == choices[:-1]
        fallen = np.flatnonzero(falling) + 1
        title = f"{question.collective} {cost.algorithm} {cost.protocol}"
        places += [f"{title} at {size:.0f}" for size in sizes[fallen].tolist()]
    return places


def switches(question: Question, sizes: np.ndarray) -> list[tuple[str, float]]:
    """Changes of the choice after which a larger size takes less time, and by what share."""
    costs, picks = choose(question, sizes)
    times_us = np.array([cost.time_us(sizes) for cost in costs])[picks, np.arange(len(sizes))]
    changes = []
    for place in np.flatnonzero((np.diff(times_us) < 0) & (np.diff(picks) != 0)).tolist():
        before, after = costs[picks[place]], costs[picks[place + 1]]
        title = f"{before.algorithm} {before.protocol} to {after.algorithm} {after.protocol}"
        changes.append((title, 1 - times_us[place + 1] / times_us[place]))
    return changes


def main() -> None:
    """Print the result."""
    cases, rng = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, random.Random(33)
    began, broken, drawn = process_time(), [], 0
    shares: dict[str, list[float]] = {}
    counts: Counter[str] = Counter()
    while drawn < cases:
        question = draw(rng)
        if question is None:
            continue
        drawn += 1
        sizes = np.unique(np.floor(2 ** np.sort([rng.uniform(3, 35) for _ in range(80)])))
        broken += falls(question, sizes)
        for title, share in switches(question, sizes):
            counts[title] += 1
            shares.setdefault(title, []).append(share)
    print(f"{drawn} cases, {process_time() - began:.0f} s: {len(broken)} falls within one choice")
    for line in broken[:20]:
        print(f"  {line}")
    for title, count in counts.most_common():
        print(f"  from {title}: {count} falls, median {100 * np.median(shares[title]):.0f} %")


if __name__ == "__main__":
    main()
