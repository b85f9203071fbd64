"""Keys that scenario and sweep files share, most of which are options of commands too.

Commands read their options from these records when they start, so nothing heavy is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DataKeys", "RunConditions", "SeededConditions", "TableKeys"]


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


@dataclass(frozen=True, kw_only=True)
class DataKeys:
    """The elements of a collective.

    Attributes
    ----------
    dtype
        Element type, such as float32, bf16 or int8.
    op
        Reduction: sum, product, min, max, band, bor, bxor, avg.
    root
        Root rank of broadcast, reduce, gather and scatter.
    """

    dtype: str = "float32"
    op: str = "sum"
    root: int | None = None


@dataclass(frozen=True, kw_only=True)
class TableKeys:
    """The runs of every size.

    Attributes
    ----------
    protocols
        ideal, LL, LL128 and Simple, or some of them.
    check_up_to
        Largest size at which every run moves real data. In any case data is moved once through
        every algorithm.
    group
        Axes of a mesh of all ranks, fastest first, such as tp=8,dp=64: every run for one group of
        each axis.
    """

    protocols: tuple[str, ...] = ("ideal",)
    check_up_to: str | int = "0"
    group: str = ""
