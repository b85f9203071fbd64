"""Hold predicted times against a law: with one algorithm and protocol, no size takes less time than
a smaller one.

``python benchmarks/growing_times.py [CASES]`` draws machines, variables and collectives, 10,000
by default, and prints how many broke the law, and where the choice itself changes to one that takes
less time: there NCCL, or the library's file, leaves a choice too late. Such a fall is *wide* if the
time after it is below the 90 % interval of the time before. Its cause is

* *limit*, if none is wide without ``NCCL_MAX_CTAS``, which the libraries' estimates do not count;
* *measured*, if times fall in half of the published tables of the library, GPUs and network that
  leave this choice for the same protocol;
* *reported*, if its makers published that the library leaves this choice too late;
* *links*, if none is wide without the variables that choose links, or without these and the limit;
* *estimate*, if none is wide with the library's own latency of LL and its own limit of LL over
  nodes, by which it chooses, instead of the measured ones, or so without ``NCCL_MAX_CTAS``;
* *fit* otherwise: the times before or after are wrong, or no table has them.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from time import process_time

import numpy as np

from simcoll.core.vocabulary import CollectiveKind
from simcoll.errors import ConfigError
from simcoll.files.paths import shipped_files
from simcoll.libraries import corrected
from simcoll.libraries.environment import LAUNCHERS, Environment, parse_environment
from simcoll.libraries.intervals import spread_of
from simcoll.libraries.library import Library, library_for
from simcoll.libraries.prediction import choose, launched_us
from simcoll.libraries.question import Question, question_on
from simcoll.libraries.transports import Transports
from simcoll.planning.measured.measurements import published_tables
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
REPORTED = {("rccl", "LL128", "Simple"): "https://github.com/ROCm/rocm-systems/pull/9406"}
"""Changes of a protocol after which the makers of a library measured less time, and where."""
SLIGHT = 1e-9
"""Share of a time that rounding may take."""
OWN_LL = {"ll_hop_factor": 1.0, "ll_base_factor": 1.0, "ll_growth": 0.0, "net_ll_share": 1.0}
"""Numbers of a class of GPUs without which LL has the latency and the limit over nodes that its
library states.
"""
NEAR = 4
"""Factor of a size within which falls are one: published tables have one size in two or four."""
CLEAR = 0.1
"""Share of a measured time from which on a fall is none of noise."""


@cache
def machine(name: str, nodes: int) -> Topology | None:
    """Some nodes of a shipped machine; None if it has not as many, or no library knows it."""
    try:
        topology = load_topology(name, nodes=nodes)
        question_on("all_reduce", topology, library_for(None, topology))
    except ConfigError:
        return None
    return topology


def draw(rng: random.Random) -> tuple[Topology, Question] | None:
    """A machine, and a collective on it under some variables; None where nothing can run."""
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
    return topology, question


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
    """A change of the choice after which a larger size takes less time, by a share of it."""

    title: str
    kind: str
    size_bytes: float
    share: float
    is_wide: bool


def kind_of(question: Question) -> str:
    """Library, GPUs and links, in words; the choice is the same over InfiniBand and RoCE."""
    links = question.fabric.partition(".")[2] or f"one node, {question.machine.inside}"
    if links in corrected.VERBS:
        links = "InfiniBand or RoCE"
    return f"{question.library.name}, {question.machine.generation}, {links}"


def switches(question: Question, sizes: np.ndarray) -> list[Fall]:
    """The falls where the choice changes."""
    costs, picks = choose(question, sizes)
    times_us = np.array([cost.time_us(sizes) for cost in costs])[picks, np.arange(len(sizes))]
    changes = []
    for place in np.flatnonzero((np.diff(times_us) < 0) & (np.diff(picks) != 0)).tolist():
        before, after = costs[picks[place]], costs[picks[place + 1]]
        title = f"{before.algorithm} {before.protocol} to {after.algorithm} {after.protocol}"
        time_us, later_us = times_us[place : place + 2].tolist()
        low_fs, _ = spread_of(question, int(sizes[place])).ends_fs(round(time_us * 1e9), 0.9)
        is_wide, share = later_us * 1e9 < low_fs, 1 - later_us / time_us
        changes.append(Fall(title, kind_of(question), sizes[place], share, is_wide))
    return changes


@cache
def measured_falls() -> frozenset[tuple[str, str]]:
    """Kind, and choice before and protocol after, where times of half of the tables fall."""
    votes: dict[tuple[str, str], list[bool]] = {}
    for table in (*published_tables(added=True), *published_tables(later=True)):
        question = question_on(
            table.collective,
            table.machine(),
            library_for(table.library_file, table.machine()),
            table.settings(),
        )
        sizes, times_us = np.array(table.rows, float).T
        costs, picks = choose(question, sizes)
        falling = np.flatnonzero(np.diff(times_us) < -CLEAR * times_us[:-1])
        for place in np.flatnonzero(np.diff(picks)).tolist():
            before, after = costs[picks[place]], costs[picks[place + 1]]
            title = f"{before.algorithm} {before.protocol} to {after.protocol}"
            is_near = np.abs(np.log2(sizes[falling] / sizes[place])) <= np.log2(NEAR)
            votes.setdefault((kind_of(question), title), []).append(bool(is_near.any()))
    return frozenset(key for key, falling in votes.items() if 2 * sum(falling) >= len(falling))


def cause(topology: Topology, question: Question, fall: Fall) -> str:
    """Why a wide fall is there: what takes it away, or where it was measured."""
    environment = question.environment
    usual = replace(environment, transports=Transports(), buffer_bytes=0)
    sizes = np.unique(np.floor(fall.size_bytes * np.geomspace(1 / NEAR, NEAR, 33)))

    def is_left(changed: Environment, library: Library = question.library) -> bool:
        asked = question_on(question.collective, topology, library, changed)
        return any(near.is_wide for near in switches(asked, sizes))

    if environment.max_ctas and not is_left(replace(environment, max_ctas=0)):
        return "limit"
    before, after = fall.title.split(" to ")
    if (fall.kind, f"{before} to {after.split()[1]}") in measured_falls():
        return "measured"
    protocols = before.split()[1], after.split()[1]
    if (question.library.name, *protocols) in REPORTED:
        return "reported"
    if usual != environment and not (is_left(usual) and is_left(replace(usual, max_ctas=0))):
        return "links"
    places = {f"{question.gpu_class}.{name}": number for name, number in OWN_LL.items()}
    places["correction.net_ll_share"] = 1.0
    own = question.library.with_values(places)
    without_limit = replace(environment, max_ctas=0)
    is_fit = is_left(environment, own) and is_left(without_limit, own)
    return "fit" if is_fit else "estimate"


def table(changes: list[tuple[Fall, str]]) -> Iterator[str]:
    """The falls by change, kind of machine and cause, those with most wide ones first."""
    groups: dict[tuple[str, str, str], list[Fall]] = {}
    for fall, why in changes:
        groups.setdefault((fall.title, fall.kind, why), []).append(fall)
    yield "| from, to | machine | cause | falls | median | sizes |"
    yield "|---|---|---|---|---|---|"
    for names in sorted(groups, key=lambda names: -len(groups[names])):
        group = groups[names]
        share = 100 * float(np.median([fall.share for fall in group]))
        sizes = sorted(fall.size_bytes / 1024 for fall in group)
        row = (*names, len(group), f"{share:.0f} %", f"{sizes[0]:.0f} to {sizes[-1]:.0f} KiB")
        yield f"| {' | '.join(map(str, row))} |"


def main() -> None:
    """Print the result."""
    cases, rng = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, random.Random(33)
    began, broken, drawn = process_time(), [], 0
    slight, wide = 0, []
    while drawn < cases:
        drawn_case = draw(rng)
        if drawn_case is None:
            continue
        drawn += 1
        topology, question = drawn_case
        sizes = np.unique(np.floor(2 ** np.sort([rng.uniform(3, 35) for _ in range(80)])))
        broken += falls(question, sizes)
        for fall in switches(question, sizes):
            if fall.is_wide:
                wide.append((fall, cause(topology, question, fall)))
            else:
                slight += 1
    print(f"{drawn} cases, {process_time() - began:.0f} s: {len(broken)} falls within one choice")
    for line in broken[:20]:
        print(f"  {line}")
    print(f"{slight + len(wide)} falls where the choice changes, {len(wide)} of them wide:")
    causes = Counter(why for _, why in wide)
    print(", ".join(f"{count} {why}" for why, count in causes.most_common()))
    print("\n".join(table(wide)))


if __name__ == "__main__":
    main()
