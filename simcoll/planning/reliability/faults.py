"""One collective under seeded random faults: its slow-down, or when it raises, and the time of
re-planned schedules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from typing import Literal, TypeAlias

import numpy as np

from simcoll.binding import bind
from simcoll.core.numbers import check_seed
from simcoll.core.plan import Plan
from simcoll.emulator import emulate
from simcoll.emulator.events import Background, Event, LinkShare, Stop
from simcoll.emulator.programs import Call, Program
from simcoll.errors import ConfigError
from simcoll.planning.reliability.chances import PPM, exponential, flaps, lognormal, words
from simcoll.planning.sweeps.disturbance import slow_rank
from simcoll.topology import Topology
from simcoll.topology.ecmp import reseed
from simcoll.units import format_time

__all__ = [
    "KINDS",
    "Chances",
    "Drawn",
    "FaultKind",
    "Outcome",
    "Replanned",
    "check_flaps",
    "draw",
    "outcomes",
    "percentile",
    "replan",
    "run_fault",
    "wrong_elements",
]

FaultKind: TypeAlias = Literal[
    "late", "slow", "jitter", "rehash", "traffic", "flap", "link", "nic", "stop"
]
KINDS: Mapping[FaultKind, str] = {
    "late": "ranks arrive late, each by a lognormal delay",
    "slow": "one rank's own work, and bytes over its GPU's links, take longer, by a lognormal "
    "factor",
    "jitter": "every message is delayed at random",
    "rehash": "ECMP chooses other routes",
    "traffic": "other traffic takes a share of a link",
    "flap": "a link goes down and comes back",
    "link": "a link goes down for good",
    "nic": "a NIC is lost before the run",
    "stop": "a rank stops",
}

MOST_SEED = (1 << 24) - 1
MOST_SIGMA_PPM = 10 * PPM
MOST_FLAPS, MOST_FLAPS_IN_ALL = 100_000, 1_000_000
"""Limits on expected failures in a run, and in all runs, which then take minutes; each changes the
rates of flows twice.
"""


@dataclass(frozen=True, slots=True)
class Chances:
    """Distributions of faults. Times are in femtoseconds; 0 takes the named share of the
    undisturbed time.

    Attributes
    ----------
    late_fs, sigma_ppm
        Median delay of an arriving rank (a tenth of the time), and the standard deviation of the
        logarithm of delays and factors, up to 10.
    jitter_fs
        Maximum delay of a message (a hundredth of the time).
    mtbf_fs, mttr_fs
        Mean time between failures of one link (0: one link fails once, at any moment of the run),
        and mean time to repair (a tenth).
    policy
        Treatment of bytes at a dead link.
    timeout_fs
        Time without progress after which ranks raise: the library's watchdog.
    """

    late_fs: int = 0
    sigma_ppm: int = PPM
    jitter_fs: int = 0
    mtbf_fs: int = 0
    mttr_fs: int = 0
    policy: str = "stall"
    timeout_fs: int = 600 * 10**15


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn fault: machine, plan and events of its run, and arrival times of ranks; ``text``
    describes it.
    """

    kind: FaultKind
    seed: int
    topology: Topology
    plan: Plan
    text: str
    events: tuple[Event, ...] = ()
    starts_fs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run: ``time_fs`` is when it finished, or when the last rank raises;
    ``raised`` is empty, or the reason.
    """

    kind: FaultKind
    seed: int
    text: str
    time_fs: int
    raised: str = ""


def _used(plan: Plan, topology: Topology) -> list[int]:
    """The links that the plan's messages use, in order."""
    pairs: set[tuple[int, int]] = set()
    for step in plan.schedule.steps():
        pairs.update(
            zip(plan.ranks[step.src_rank].tolist(), plan.ranks[step.dst_rank].tolist(), strict=True)
        )
    ends = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    links = topology.route(ends[:, 0], ends[:, 1]).links
    return [int(link) for link in np.unique(links[links >= 0])]


def _nics(topology: Topology) -> list[str]:
    """NICs with a link."""
    linked = np.unique(np.concatenate([topology.link_src, topology.link_dst])).tolist()
    return [
        topology.node_names[vertex] for vertex in linked if topology.node_kinds[vertex] == "nic"
    ]


def draw(
    kind: FaultKind,
    seed: int,
    plan: Plan,
    topology: Topology,
    whole_fs: int,
    chances: Chances = Chances(),
) -> Drawn:
    """Draw the fault of a kind and seed, in a collective that takes ``whole_fs`` undisturbed.

    Raises
    ------
    ConfigError
        When the machine has no component of that kind, or too many failures would occur; for a seed
        out of range.
    """
    check_seed(seed, MOST_SEED)
    if chances.sigma_ppm > MOST_SIGMA_PPM:
        raise ConfigError(
            f"sigma {chances.sigma_ppm / PPM:g}: expected at most {MOST_SIGMA_PPM // PPM}"
        )
    n, drawn = plan.nranks, list(islice(words(seed, list(KINDS).index(kind)), plan.nranks + 4))
    time_fs = drawn[0] % max(whole_fs, 1)
    base = Drawn(kind, seed, topology, plan, "")
    if kind == "late":
        median = chances.late_fs or whole_fs // 10
        delays = tuple(lognormal(word, median, chances.sigma_ppm) for word in drawn[4:])
        last = max(range(n), key=delays.__getitem__)
        if delays[last] >= 1 << 63:
            raise ConfigError(
                f"rank {last} would arrive after {delays[last] / 10**15:.3g} s; expected a smaller "
                "sigma, or median delay"
            )
        return replace(
            base, text=f"rank {last} is last, after {format_time(delays[last])}", starts_fs=delays
        )
    if kind == "jitter":
        largest_fs = chances.jitter_fs or whole_fs // 100
        protocol = replace(plan.protocol, jitter_fs=largest_fs, seed=seed)
        return replace(
            base, plan=replace(plan, protocol=protocol), text=f"up to {format_time(largest_fs)}"
        )
    if kind == "rehash":
        return replace(base, topology=reseed(topology, seed), text=f"hash seed {seed}")
    if kind == "nic":
        names = _nics(topology)
        if not names:
            raise ConfigError(f"topology {topology.name!r} has no NICs to lose")
        name = names[drawn[1] % len(names)]
        return replace(base, topology=topology.degrade(name, 0), text=f"{name} = 0")
    events = _events(kind, seed, plan, topology, whole_fs, chances, time_fs, drawn)
    return replace(base, events=events, text="; ".join(map(str, events)) or "nothing fails")


def _events(
    kind: FaultKind,
    seed: int,
    plan: Plan,
    topology: Topology,
    whole_fs: int,
    chances: Chances,
    time_fs: int,
    drawn: list[int],
) -> tuple[Event, ...]:
    """The events of a fault during the run."""
    if kind == "slow":
        factor = max(lognormal(drawn[2], PPM, chances.sigma_ppm), PPM)
        return slow_rank(drawn[1] % plan.nranks, Fraction(factor, PPM), topology)
    if kind == "stop":
        return (Stop(drawn[1] % plan.nranks, time_fs),)
    links = _used(plan, topology)
    if not links:
        raise ConfigError("the collective uses no links")
    mean = _repair_fs(whole_fs, chances)
    if kind == "flap" and chances.mtbf_fs:
        check_flaps(1, plan, topology, whole_fs, chances)
        # Until twice the time: what comes later meets few runs that are still there.
        spans = [
            (link, down)
            for link in links
            for down in flaps(seed, link, chances.mtbf_fs, mean, 2 * whole_fs)
        ]
        return tuple(
            LinkShare(topology.link_name(link), 0, begin, length) for link, (begin, length) in spans
        )
    name = topology.link_name(links[drawn[1] % len(links)])
    if kind == "traffic":
        return (Background(name, f"{1 + drawn[2] % 9}/10"),)
    return (LinkShare(name, 0, time_fs, exponential(drawn[2], mean) if kind == "flap" else None),)


def _repair_fs(whole_fs: int, chances: Chances) -> int:
    return chances.mttr_fs or max(whole_fs // 10, 1)


def check_flaps(
    seeds: int, plan: Plan, topology: Topology, whole_fs: int, chances: Chances
) -> None:
    """Refuse failure rates with too many expected failures.

    Raises
    ------
    ConfigError
        With the expected number and the limit.
    """
    if not chances.mtbf_fs:
        return
    mean = _repair_fs(whole_fs, chances)
    expected = len(_used(plan, topology)) * 2 * whole_fs // (chances.mtbf_fs + mean)
    subject = (
        f"a link that fails every {format_time(chances.mtbf_fs)} and is down for "
        f"{format_time(mean)}"
    )
    if expected > MOST_FLAPS:
        raise ConfigError(
            f"{subject}: some {expected:,} failures during a run; expected at most {MOST_FLAPS:,}"
        )
    if seeds * expected > MOST_FLAPS_IN_ALL:
        raise ConfigError(
            f"{subject}: some {seeds * expected:,} failures in {seeds} runs; expected at most "
            f"{MOST_FLAPS_IN_ALL:,}: "
            f"ask for at most {MOST_FLAPS_IN_ALL // expected} --seeds, or for a longer --mtbf"
        )


def run_fault(drawn: Drawn, chances: Chances = Chances()) -> Outcome:
    """Play a fault."""
    if drawn.starts_fs:
        arrived = emulate(_arriving(drawn), drawn.topology, data="none")
        return Outcome(drawn.kind, drawn.seed, drawn.text, arrived.time_fs)
    result = emulate(
        drawn.plan,
        drawn.topology,
        data="none",
        bound=False,
        events=drawn.events,
        policy=chances.policy,
    )
    if result.cut is None:
        return Outcome(drawn.kind, drawn.seed, drawn.text, result.time_fs)
    # An aborted run ends with the error of the NIC; a stuck one when the watchdog notices that
    # nothing moves.
    end_fs = result.cut.time_fs + (chances.timeout_fs if result.cut.kind == "stuck" else 0)
    return Outcome(drawn.kind, drawn.seed, drawn.text, end_fs, str(result.cut))


def wrong_elements(
    kind: FaultKind,
    seeds: Sequence[int],
    plan: Plan,
    topology: Topology,
    chances: Chances = Chances(),
) -> tuple[int, int]:
    """Play faults with a little data; returns the number of runs that finish, and of wrong
    elements.
    """
    chunks = plan.schedule.layout.chunks
    small = bind(
        plan.schedule,
        chunks if plan.schedule.divisible else chunks + 1,
        plan.dtype,
        plan.op,
        protocol=plan.protocol,
    )
    whole_fs = emulate(small, topology, data="none", bound=False).time_fs
    finished = wrong = 0
    for seed in seeds:
        try:
            drawn = draw(kind, seed, small, topology, whole_fs, chances)
        except ConfigError:
            continue  # counted among the outcomes
        if drawn.starts_fs:
            wrong_count = emulate(_arriving(drawn), topology, data="exact").wrong
        else:
            options = {"events": drawn.events, "policy": chances.policy}
            wrong_count = emulate(
                drawn.plan, drawn.topology, data="exact", bound=False, **options
            ).wrong  # type: ignore[call-overload]
        finished += wrong_count is not None
        wrong += wrong_count or 0
    return finished, wrong


def _arriving(drawn: Drawn) -> Program:
    """Play the collective with the drawn arrival times."""
    return Program(drawn.plan.nranks, [Call(drawn.plan)], starts_fs=drawn.starts_fs)


def outcomes(
    kind: FaultKind,
    seeds: Sequence[int],
    plan: Plan,
    topology: Topology,
    whole_fs: int,
    chances: Chances = Chances(),
) -> Iterator[Outcome]:
    """The outcome of each seed; a loss that partitions the machine raises at once."""
    for seed in seeds:
        try:
            yield run_fault(draw(kind, seed, plan, topology, whole_fs, chances), chances)
        except ConfigError as error:
            if "is disconnected" not in error.message:
                raise
            yield Outcome(kind, seed, "", 0, error.message)


def percentile(times: Sequence[int], share: int) -> int:
    """The smallest of the times that ``share`` percent of them do not exceed.

    >>> [percentile([10, 20, 30, 40], share) for share in (25, 50, 51, 99)]
    [10, 20, 30, 40]
    """
    ordered = sorted(times)
    return ordered[max(-(-share * len(ordered) // 100) - 1, 0)]


@dataclass(frozen=True, slots=True)
class Replanned:
    """A schedule for the remaining machine: its name, and its time or the reason why there is
    none.
    """

    name: str
    time_fs: int
    why_not: str = ""


def replan(drawn: Drawn) -> Iterator[Replanned]:
    """Time schedules re-planned for the remaining machine: ``packed``, ``bfb``, and a ring without
    the failed node.
    """
    remainder, gone, cut = drawn.topology, set[int](), ""
    for link in dict.fromkeys(
        str(event.link) for event in drawn.events if isinstance(event, LinkShare)
    ):
        gone |= _at_link(drawn.topology, link)
        try:
            remainder = remainder.degrade(link, 0)
        except ConfigError as error:
            cut = cut or error.message
    stopped = {event.rank for event in drawn.events if isinstance(event, Stop)}
    gone = gone.union(*(_with_rank(drawn.topology, rank) for rank in stopped))
    if drawn.kind == "nic":
        gone = _at_link(drawn.topology, drawn.text.partition(" = ")[0])
    for name, without in (("packed", stopped), ("bfb", stopped), ("ring", gone)):
        survivors = [rank for rank in range(remainder.nranks) if rank not in without]
        title = f"{name} on {len(survivors)} ranks"
        if (cut and not without) or not survivors:
            yield Replanned(title, 0, cut or "no rank is left")
            continue
        try:
            yield Replanned(title, _time_on(drawn.plan, name, remainder.with_ranks(survivors)))
        except ConfigError as error:
            yield Replanned(title, 0, error.message)


def _time_on(plan: Plan, algorithm: str, place: Topology) -> int:
    """Time the plan's collective, with as many elements, by another algorithm on a machine."""
    from simcoll.tuning import collective_on, schedule_on

    collective = plan.collective
    substitute = schedule_on(
        collective_on(collective.kind, place.nranks, collective.root), algorithm, place, {}
    )
    protocol = replace(plan.protocol, jitter_fs=0)
    again = bind(substitute, plan.count, plan.dtype, plan.op, protocol=protocol)
    return emulate(again, place, data="none", bound=False).time_fs


def _with_rank(topology: Topology, rank: int) -> set[int]:
    """The ranks of a rank's node, unless they are all ranks."""
    box = topology.groups.get("box")
    mates = {rank} if box is None else set(np.flatnonzero(box == box[rank]).tolist())
    return mates if len(mates) < topology.nranks else {rank}


def _at_link(topology: Topology, name: str) -> set[int]:
    """The ranks that belong to a link or vertex: its GPU's, else its node's; none for the
    network's.
    """
    ends = [end.strip() for end in name.split("->")]
    names = [topology.node_names[vertex] for vertex in topology.rank_nodes]
    gpu_ranks = [rank for rank, vertex in enumerate(names) if vertex in ends]
    if gpu_ranks:
        return _with_rank(topology, gpu_ranks[0])
    nodes = [end.partition(".")[0] for end in ends if "." in end]
    mates = [rank for rank, vertex in enumerate(names) if vertex.partition(".")[0] in nodes]
    return _with_rank(topology, mates[0]) if mates else set()
