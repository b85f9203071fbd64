"""Hypothesis strategies that shrink towards few ranks, small counts and plain schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.core.collective import KINDS, Collective, collective_kind
from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError, nearest
from simcoll.testing import rewrites
from simcoll.testing.checks import several
from simcoll.testing.examples import needed_params
from simcoll.topology import Topology, boxes, crossbar, fat_tree, torus

__all__ = ["collectives", "groups", "schedules", "sizes", "topologies"]

MOST_RANKS = 9


def collectives(
    kinds: Sequence[str] = tuple(KINDS),
    nranks: SearchStrategy[int] | None = None,
    in_place: SearchStrategy[bool] | None = None,
) -> SearchStrategy[Collective]:
    """Collectives of the given kinds, with any root, any pairs, in place or not.

    Parameters
    ----------
    kinds
        Names, such as ``["all_reduce"]``; default: all.
    nranks
        World sizes; default: 1 to 9.
    in_place
        Default: both.

    Raises
    ------
    ConfigError
        For kinds that are unknown or not a list, and for arguments that are not strategies.
    """
    chosen = several("kinds", kinds, "['all_reduce', 'broadcast']")
    for kind in chosen:
        if not isinstance(kind, str) or kind not in KINDS:
            raise ConfigError(f"unknown collective {kind!r:.60}; {nearest(str(kind), KINDS)}")
    ranks = _strategy("nranks", nranks, st.integers(1, MOST_RANKS))
    return _collectives(chosen, ranks, _strategy("in_place", in_place, st.booleans()))


def _strategy(name: str, choice: Any, default: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """The given strategy, or the default."""
    if choice is not None and not isinstance(choice, SearchStrategy):
        raise ConfigError(
            f"{name} must be a strategy of Hypothesis, got {choice!r:.60}; did you mean "
            f"hypothesis.strategies.just({choice!r:.60})?"
        )
    return default if choice is None else choice


@st.composite
def _collectives(
    draw: DrawFn, kinds: list[str], nranks: SearchStrategy[int], in_place: SearchStrategy[bool]
) -> Collective:
    kind = draw(st.sampled_from(kinds))
    n = draw(nranks)
    root = draw(st.integers(0, n - 1)) if KINDS[collective_kind(kind)].rooted else None
    pairs: tuple[tuple[int, int], ...] = ()
    if kind == "send_recv":
        sources, targets = (draw(st.permutations(range(n))) for _ in range(2))
        pairs = tuple(zip(sources, targets, strict=True))[: draw(st.integers(0, n))]
    return Collective(kind, n, root=root, pairs=pairs, in_place=draw(in_place))


@st.composite
def sizes(
    draw: DrawFn, collective: Collective, most: int = 40
) -> int | list[int] | list[list[int]]:
    """Counts for bind: awkward numbers around the world size, uneven lists, split matrices with
    zero rows.

    Parameters
    ----------
    collective
        The collective to bind.
    most
        The largest count of a block.
    """
    n = collective.nranks
    awkward = sorted({size for size in (0, 1, n - 1, n, n + 1, 2 * n + 1) if size <= most})
    size_strategy = st.one_of(st.sampled_from(awkward), st.integers(0, most))
    if collective.nblocks <= 1 or draw(st.booleans()):
        return draw(size_strategy)
    if collective.kind != "all_to_all":
        return draw(st.lists(size_strategy, min_size=n, max_size=n))
    matrix = draw(st.lists(st.lists(size_strategy, min_size=n, max_size=n), min_size=n, max_size=n))
    empty = draw(st.sets(st.integers(0, n - 1), max_size=n))
    column = draw(st.none() | st.integers(0, n - 1))
    return [
        [0 if src in empty or dst == column else size for dst, size in enumerate(row)]
        for src, row in enumerate(matrix)
    ]


@st.composite
def groups(draw: DrawFn, nranks: int, world: int | Topology) -> list[int]:
    """Subgroups of a larger world, as endpoints for ``ranks=`` of bind, in any order.

    Raises
    ------
    ConfigError
        When the world is too small.
    """
    total = world if isinstance(world, int) else world.nranks
    if nranks > total:
        raise ConfigError(f"a group of {nranks} ranks does not fit in a world of {total}")
    chosen: list[int] = draw(st.permutations(range(total)))
    return chosen[:nranks]


@st.composite
def topologies(draw: DrawFn, least: int = 1) -> Topology:
    """Small crossbars, nodes with rails, fat trees and tori with at least ``least`` ranks."""
    gbps, micros = draw(st.integers(1, 400)), draw(st.integers(0, 20))
    bandwidth, latency = f"{gbps} GB/s", f"{micros} us"
    family = draw(st.sampled_from(["crossbar", "boxes", "fat_tree", "torus"]))
    if family == "crossbar":
        return crossbar(least + draw(st.integers(0, 3)), bandwidth, latency)
    inner = draw(st.integers(1, 4))
    outer = max(1, -(-least // inner)) + draw(st.integers(0, 1))
    if family == "boxes":
        return boxes(
            outer,
            inner,
            "400 GB/s",
            "1 us",
            nics=inner,
            nic_bandwidth=bandwidth,
            nic_latency=latency,
        )
    if family == "fat_tree":
        return fat_tree(
            outer, inner, bandwidth, latency, oversubscription=draw(st.sampled_from([1, 2]))
        )
    return torus([outer, inner], bandwidth, latency)


def schedules(
    wanted: SearchStrategy[Collective] | None = None, rewritten: SearchStrategy[int] | None = None
) -> SearchStrategy[Schedule]:
    """Random correct schedules: an algorithm or a random tree, rewritten without changing its
    meaning.

    Parameters
    ----------
    wanted
        Collectives; default: all.
    rewritten
        Number of rewrites: ranks or channels renamed, steps split or merged, detours through
        scratch. Default: 0 to 4.

    Raises
    ------
    ConfigError
        For arguments that are not strategies.
    """
    return _schedules(
        _strategy("wanted", wanted, collectives()),
        _strategy("rewritten", rewritten, st.integers(0, 4)),
    )


@st.composite
def _schedules(
    draw: DrawFn,
    kinds_of_collective: SearchStrategy[Collective],
    rewrite_count: SearchStrategy[int],
) -> Schedule:
    collective = draw(kinds_of_collective)
    schedule = draw(
        _random_trees(collective)
        if _tree(collective) and draw(st.booleans())
        else _library_schedules(collective)
    )
    for _ in range(draw(rewrite_count)):
        schedule = draw(_rewrites(schedule))
    return schedule


def _tree(collective: Collective) -> bool:
    return collective.kind in ("broadcast", "reduce", "all_reduce")


@st.composite
def _random_trees(draw: DrawFn, collective: Collective) -> Schedule:
    n, root = collective.nranks, collective.root or 0
    leaves = draw(st.permutations([rank for rank in range(n) if rank != root]))
    parents = [draw(st.integers(0, child - 1)) for child in range(1, n)]
    return rewrites.tree_schedule(collective, parents, [root, *leaves])


@st.composite
def _library_schedules(draw: DrawFn, collective: Collective) -> Schedule:
    served = [
        (algorithm.name, [name for name in ("channels", "pieces") if name in algorithm.params])
        for algorithm in ALGORITHMS
        if algorithm.collective == collective.kind
    ]
    name, params = draw(st.sampled_from(served))
    chosen: dict[str, Any] = {param: 2 for param in params if draw(st.booleans())}
    try:
        return simcoll.schedule(
            collective, name, **(needed_params(collective.kind, name, collective.nranks) | chosen)
        )
    except ConfigError:
        # The algorithm does not serve this rank count; the first one in the table serves all
        # counts.
        return simcoll.schedule(collective, served[0][0])


@st.composite
def _rewrites(draw: DrawFn, schedule: Schedule) -> Schedule:
    lengths = [len(step) for step in schedule.steps()]
    kind = draw(st.sampled_from(["ranks", "channels", "split", "merge", "detour"]))
    if kind == "ranks":
        return rewrites.relabel_ranks(schedule, draw(st.permutations(range(schedule.nranks))))
    if kind == "channels" or not lengths:
        return rewrites.relabel_channels(schedule, draw(st.permutations(range(schedule.nchannels))))
    index = draw(st.integers(0, len(lengths) - 1))
    if kind == "split":
        return rewrites.split(
            schedule, index, draw(st.lists(st.booleans(), min_size=1, max_size=6))
        )
    if kind == "merge":
        return rewrites.merge(schedule, index)
    return rewrites.detour(schedule, index, draw(st.integers(0, max(0, lengths[index] - 1))))
