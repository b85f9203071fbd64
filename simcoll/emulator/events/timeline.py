"""Events on a topology: the remaining share of each link over time, the paces of ranks, and the
policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from simcoll.emulator.events.kinds import Background, Event, LinkShare, Policy, Slow, Stop
from simcoll.emulator.events.pace import Pace, paces
from simcoll.emulator.events.reading import parse_events, parse_policy
from simcoll.emulator.events.windows import windows
from simcoll.errors import ConfigError
from simcoll.topology import Topology
from simcoll.units import exact_time

__all__ = ["Change", "Timeline", "timeline_of"]


@dataclass(frozen=True, slots=True)
class Change:
    """The remaining shares of some links' capacities from a time on."""

    time_fs: int
    shares: Mapping[int, Fraction]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The events of a run, resolved on a topology.

    Attributes
    ----------
    topology
        The topology of the links.
    policy
        The treatment of bytes that meet a dead link.
    changes
        In ascending order of time.
    pace
        Paces of the ranks; ``None`` if none is disturbed.
    count
        Number of events.
    """

    topology: Topology
    policy: Policy
    changes: tuple[Change, ...]
    pace: Pace | None
    count: int

    @property
    def reason(self) -> str:
        """Why the run does not fold."""
        return f"{self.count} event{'s' * (self.count != 1)} during the run"

    @property
    def detours(self) -> bool:
        """Whether messages may leave their routes."""
        return self.policy.kind == "re-route"

    def capacity(self, link: int, share: Fraction, whole_uBps: int) -> int:
        """A share of a link's capacity, rounded down.

        Raises
        ------
        ConfigError
            When a share above 0 leaves nothing.
        """
        capacity_uBps = int(whole_uBps * share)
        if share and not capacity_uBps:
            raise ConfigError(
                f"link {self.topology.link_name(link)}: a share of {share} of {whole_uBps} "
                "micro-bytes per second rounds to nothing; "
                "a link that is down has the share 0"
            )
        return capacity_uBps


def timeline_of(
    events: Sequence[Event | str], policy: Policy | str, topology: Topology, nranks: int
) -> Timeline | None:
    """The events of a run of ``nranks`` ranks on a topology; ``None`` if there are none.

    Of several shares of a link at a time the lowest applies, and background traffic takes its total
    share of that; of several paces of a rank the slowest applies.

    Raises
    ------
    ConfigError
        For a link or a rank that does not exist, and for background traffic that takes all of a
        link.
    """
    parsed, rule = parse_events(events), parse_policy(policy)
    if not parsed:
        return None
    on_links: dict[int, list[LinkShare | Background]] = {}
    on_ranks: list[Slow | Stop] = []
    for event in parsed:
        if isinstance(event, (LinkShare, Background)):
            for link in topology.find_links(event.link):
                on_links.setdefault(link, []).append(event)
        elif event.rank >= nranks:
            raise ConfigError(f"event '{event}': the run has ranks 0 to {nranks - 1}")
        else:
            on_ranks.append(event)
    shares_at: dict[int, dict[int, Fraction]] = {}
    for link, mine in sorted(on_links.items()):
        previous = Fraction(1)
        for time, active in windows(mine):
            share = _share_at(topology, link, time, active)
            if share != previous:
                shares_at.setdefault(time, {})[link] = previous = share
    changes = tuple(Change(time, shares_at[time]) for time in sorted(shares_at))
    return Timeline(topology, rule, changes, paces(on_ranks) if on_ranks else None, len(parsed))


def _share_at(
    topology: Topology, link: int, time: int, active: Sequence[LinkShare | Background]
) -> Fraction:
    """The remaining share of a link while some events are active."""
    share = min(
        (event.share for event in active if isinstance(event, LinkShare)), default=Fraction(1)
    )
    background = sum(
        (event.share for event in active if isinstance(event, Background)), Fraction(0)
    )
    if background >= 1:
        raise ConfigError(
            f"link {topology.link_name(link)}: from {exact_time(time)} on background traffic takes "
            f"{background} of it; "
            "expected a total below 1"
        )
    return share * (1 - background)
