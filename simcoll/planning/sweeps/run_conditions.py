"""Keys of scenario and sweep files that commands override: disturbances, and the ranks.

Commands read their options from these records when they start, so nothing heavy is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RunConditions", "SeededConditions"]


@dataclass(frozen=True, kw_only=True)
class RunConditions:
    """Disturbances of the runs, and the participating ranks.

    Attributes
    ----------
    jitter
        Longest random delay of a message, such as 1us.
    stragglers
        A slow rank: "rank 3: +10 %" takes that much longer for its work and for bytes over its
        GPU's links. May be repeated.
    background
        Background traffic on a link: "box0.gpu3 -> box0.nic3: 20 %". May be repeated.
    faults
        An event during every run, such as "t=1ms box0.gpu3 -> box0.nic3 = 0 for 2ms", "t=0 leaf0 ->
        spine1 background 1/4", "t=1ms rank 3 slower 1.5 for 2ms" or "t=1ms rank 3 stops". May be
        repeated.
    policy
        Treatment of bytes at a link that is down: stall, "stall 67ms x 7", re-route or abort.
    ranks
        The participating ranks, in this order: 0-7,16-23. Default: all.
    """

    jitter: str = "0"
    stragglers: tuple[str, ...] = ()
    background: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    policy: str = "stall"
    ranks: str = ""


@dataclass(frozen=True, kw_only=True)
class SeededConditions(RunConditions):
    """Conditions of runs that all have one seed.

    Attributes
    ----------
    seed
        Seed of random delays. Default: 0.
    """

    seed: int = 0
