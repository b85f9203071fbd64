"""Hold predicted times against a law: with one algorithm and protocol, no size takes less time than
a smaller one.

``python benchmarks/growing_times.py [CASES]`` draws machines, variables and collectives, 10,000
by default, and prints how many broke the law, and where the choice itself changes to one that takes
less time: there NCCL, or the library's file, leaves a choice too late. Such a fall is *wide* if the
time after it is below the 90 % interval of the time before.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from time import process_time

import numpy as np

from simcoll.core.vocabulary import CollectiveKind
from simcoll.errors import ConfigError
from simcoll.files.paths import shipped_files
from simcoll.libraries import corrected
from simcoll.libraries.environment import LAUNCHERS, parse_environment
from simcoll.libraries.intervals import spread_of
from simcoll.libraries.library import library_for
from simcoll.libraries.prediction import choose, launched_us
from simcoll.libraries.question import Question, question_on
from simcoll.topology import Topology, load_topology

COLLECTIVES: tuple[CollectiveKind, ...] = (
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


@dataclass(frozen=True, slots=True)
class Fall:
    """A change of the choice after which a larger size takes less time, by a share of it; with the
    limit on channels, 0 for none.
    """

    title: str
    machine: str
    share: float
    is_wide: bool
    max_ctas: int


def switches(question: Question, sizes: np.ndarray) -> list[Fall]:
    """The falls where the choice changes."""
    costs, picks = choose(question, sizes)
    times_us = np.array([cost.time_us(sizes) for cost in costs])[picks, np.arange(len(sizes))]
    links = question.fabric.partition(".")[2] or f"one node, {question.machine.inside}"
    limit = question.environment.max_ctas
    machine_kind = f"{question.library.name}, {question.machine.generation}, {links}"
    changes = []
    for place in np.flatnonzero((np.diff(times_us) < 0) & (np.diff(picks) != 0)).tolist():
        before, after = costs[picks[place]], costs[picks[place + 1]]
        title = f"{before.algorithm} {before.protocol} to {after.algorithm} {after.protocol}"
        time_us, later_us = times_us[place : place + 2].tolist()
        low_fs, _ = spread_of(question, int(sizes[place])).ends_fs(round(time_us * 1e9), 0.9)
        is_wide = later_us * 1e9 < low_fs
        changes.append(Fall(title, machine_kind, 1 - later_us / time_us, is_wide, limit))
    return changes


def table(changes: list[Fall]) -> Iterator[str]:
    """The falls by change and kind of machine, those with most wide ones first."""
    groups: dict[tuple[str, str, int], list[Fall]] = {}
    for fall in changes:
        groups.setdefault((fall.title, fall.machine, fall.max_ctas), []).append(fall)
    yield "| from, to | machine | NCCL_MAX_CTAS | falls | median | wide |"
    yield "|---|---|---|---|---|---|"

    def order(group: tuple[str, str, int]) -> tuple[int, int]:
        return -sum(fall.is_wide for fall in groups[group]), -len(groups[group])

    for names in sorted(groups, key=order):
        title, kind, limit = names
        group = groups[names]
        wide = sum(fall.is_wide for fall in group)
        share = 100 * float(np.median([fall.share for fall in group]))
        yield f"| {title} | {kind} | {limit or '-'} | {len(group)} | {share:.0f} % | {wide} |"


def main() -> None:
    """Print the result."""
    cases, rng = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, random.Random(33)
    began, broken, drawn = process_time(), [], 0
    changes: list[Fall] = []
    while drawn < cases:
        question = draw(rng)
        if question is None:
            continue
        drawn += 1
        sizes = np.unique(np.floor(2 ** np.sort([rng.uniform(3, 35) for _ in range(80)])))
        broken += falls(question, sizes)
        changes += switches(question, sizes)
    print(f"{drawn} cases, {process_time() - began:.0f} s: {len(broken)} falls within one choice")
    for line in broken[:20]:
        print(f"  {line}")
    wide = sum(fall.is_wide for fall in changes)
    print(f"{len(changes)} falls where the choice changes, {wide} of them wide")
    print("\n".join(table(changes)))


if __name__ == "__main__":
    main()
