"""Parse disturbances of runs (stragglers, background traffic, jitter, faults) and participating
ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from simcoll.call_records import record_of, takes
from simcoll.core.numbers import check_seed
from simcoll.emulator.events import (
    Background,
    Event,
    LinkShare,
    Slow,
    parse_event,
    parse_policy,
    timeline_of,
)
from simcoll.errors import ConfigError, shown
from simcoll.planning.sweeps.run_conditions import SeededConditions
from simcoll.topology import Topology
from simcoll.units import format_time, parse_time

__all__ = ["CALM", "RunDisturbance", "disturbance", "parse_ranks", "slow_rank"]

MAX_RANKS = 1 << 20
_STRAGGLER = re.compile(r"(?:rank\s*)?([0-9]{1,7})\s*:\s*\+\s*([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*%")
_BACKGROUND = re.compile(r"(.{1,300}?)\s*:\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%")
_RANKS = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


@dataclass(frozen=True, slots=True)
class RunDisturbance:
    """Disturbances of every run.

    Attributes
    ----------
    stragglers
        Ranks, and the factor by which their work, and bytes over their GPU's links, take longer.
    background
        Links, and the share of each that other traffic uses.
    jitter_fs, seed
        Maximum random delay of a message, and its seed.
    faults, policy
        Events as text, and the treatment of bytes at a link that is down.
    """

    stragglers: tuple[tuple[int, str], ...] = ()
    background: tuple[tuple[str, str], ...] = ()
    jitter_fs: int = 0
    seed: int = 0
    faults: tuple[str, ...] = ()
    policy: str = "stall"

    def __bool__(self) -> bool:
        return bool(self.stragglers or self.background or self.jitter_fs or self.faults)

    def __str__(self) -> str:
        parts = (
            [f"jitter {format_time(self.jitter_fs)}, seed {self.seed}"] if self.jitter_fs else []
        )
        parts += [f"rank {rank} takes {factor} of its time" for rank, factor in self.stragglers]
        parts += [f"others take {share} of {link}" for link, share in self.background]
        return "; ".join(
            [*parts, *self.faults, *([f"policy {self.policy}"] if self.faults else [])]
        )

    def events(self, topology: Topology) -> list[Event]:
        """The events of a run on a topology.

        Raises
        ------
        ConfigError
            For a rank that the topology lacks.
        """
        events: list[Event] = [Background(link, Fraction(share)) for link, share in self.background]
        for rank, factor in self.stragglers:
            if rank >= topology.nranks:
                raise ConfigError(
                    f"straggler: rank {rank}; topology {topology.name!r} has {topology.nranks} "
                    "ranks"
                )
            events += slow_rank(rank, Fraction(factor), topology)
        return [*events, *map(parse_event, self.faults)]

    def check(self, topology: Topology) -> None:
        """Refuse events that do not apply to a topology.

        Raises
        ------
        ConfigError
            For a link or a rank that the topology lacks.
        """
        timeline_of(self.events(topology), self.policy, topology, topology.nranks)


def slow_rank(rank: int, factor: Fraction, topology: Topology) -> tuple[Event, Event]:
    """The events of a rank whose own work, and bytes over its GPU's links, take longer by a
    factor.
    """
    return Slow(rank, factor), LinkShare(
        topology.node_names[int(topology.rank_nodes[rank])], 1 / factor
    )


CALM = RunDisturbance()
"""No disturbance."""


@takes(SeededConditions)
def disturbance(*arguments: Any, **keywords: Any) -> RunDisturbance:
    """Parse a disturbance.

    Takes a :class:`SeededConditions`, or its fields as arguments; the ranks do not matter.

    Raises
    ------
    ConfigError
        For invalid text.

    Examples
    --------
    >>> str(disturbance(stragglers=["rank 3: +10 %"], background=["gpu0 <-> switch: 20 %"]))
    'rank 3 takes 11/10 of its time; others take 1/5 of gpu0 <-> switch'
    """
    conditions = record_of(SeededConditions, arguments, keywords)
    slow: list[tuple[int, str]] = []
    shares = []
    for text in conditions.stragglers:
        match = _STRAGGLER.fullmatch(text.strip())
        if match is None:
            raise ConfigError(
                f"straggler {shown(text)}: expected a rank and how much longer it takes: 'rank 3: "
                "+10 %'"
            )
        rank, longer = int(match[1]), Fraction(match[2]) / 100
        if rank in dict(slow):
            raise ConfigError(
                f"straggler {shown(text)}: rank {rank} is already slow; give one number for it"
            )
        if longer:
            slow.append((rank, str(1 + longer)))
    for text in conditions.background:
        match = _BACKGROUND.fullmatch(text.strip())
        share = Fraction(match[2]) / 100 if match else Fraction(0)
        if match is None or share >= 1:
            raise ConfigError(
                f"background {shown(text)}: expected a link and the share that others take: "
                "'box0.gpu3 -> box0.nic3: 20 %', below 100 %"
            )
        if share:
            shares.append((match[1], str(share)))
    events = tuple(str(parse_event(text)) for text in conditions.faults)
    rule = str(parse_policy(conditions.policy))
    return RunDisturbance(
        tuple(slow),
        tuple(shares),
        parse_time(conditions.jitter, what="jitter"),
        check_seed(conditions.seed),
        events,
        rule,
    )


def parse_ranks(text: str) -> list[int]:
    """Parse the participating ranks, in order.

    Raises
    ------
    ConfigError
        For invalid text.

    Examples
    --------
    >>> parse_ranks("0-3,8,10-11")
    [0, 1, 2, 3, 8, 10, 11]
    """
    ranks: list[int] = []
    for part in text.split(","):
        match = _RANKS.fullmatch(part.strip())
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise ConfigError(
                f"ranks {shown(text)}: expected numbers and rising ranges, such as 0-7,16-23"
            )
        ranks += range(int(match[1]), int(match[2] or match[1]) + 1)
        if len(ranks) > MAX_RANKS:
            raise ConfigError(f"more than {MAX_RANKS:,} ranks")
    if len(set(ranks)) < len(ranks):
        raise ConfigError(f"ranks {shown(text)}: a rank comes twice; expected each at most once")
    return ranks
