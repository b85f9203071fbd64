"""The latency floor of a collective, which no schedule beats, however many messages a rank sends at
once.
"""

from __future__ import annotations

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.definition import Definition
from simcoll.core.facts import FactStore
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.emulator.model import latency_fs, send_busy_fs
from simcoll.topology import Routes, Topology
from simcoll.topology.chosen_paths import chosen_routes

__all__ = ["latency_floor_fs"]

EXACT_RANKS = 256
"""Up to this world size, relays are followed exactly; the work is cubic."""
SAMPLED_SOURCES = 64
REMEMBERED = 64
"""Number of floors remembered per topology; a floor is independent of sizes."""

_floors_of: FactStore[Topology, dict[tuple[Collective, Protocol, bytes], int]] = FactStore(
    lambda _: {}
)


def latency_floor_fs(plan: Plan, topology: Topology) -> int:
    """Time before which some rank cannot have data that another rank had at the start.

    A message costs at least its latency and the receive overhead, and without a FIFO also the
    sender's overhead. Data may be relayed by other ranks, which is faster on some machines; the
    floor of a pair is therefore that of its cheapest chain of messages. The floor of the collective
    is the largest over the pairs that its definition makes dependent. Beyond 256 ranks only the
    cheapest first message of some ranks counts, which is a lower but still valid floor.
    """
    if plan.nranks == 1 or _may_be_empty(plan):
        return 0
    if plan.schedule.transits:  # the schedule's own paths count, so it is no floor of others
        return _floor_fs(plan, topology)
    floors, key = _floors_of(topology), (plan.collective, plan.protocol, plan.ranks.tobytes())
    if key not in floors:
        if len(floors) == REMEMBERED:
            floors.pop(next(iter(floors)))
        floors[key] = _floor_fs(plan, topology)
    return floors[key]


def _floor_fs(plan: Plan, topology: Topology) -> int:
    n, collective = plan.nranks, plan.collective
    definition = collective.definition
    if n > EXACT_RANKS:
        if (
            definition is not None
            or collective.kind == "send_recv"
            or collective.root is not None
            or plan.schedule.transits
        ):
            return plan.protocol.launch_fs
        sources = np.linspace(0, n - 1, SAMPLED_SOURCES).astype(np.int64)
        cost = _costs(plan, topology, sources)
        cost[np.arange(SAMPLED_SOURCES), sources] = np.iinfo(np.int64).max
        return plan.protocol.launch_fs + int(cost.min(axis=1).max())
    cost = _costs(plan, topology, np.arange(n))
    _lower_by_paths(plan, topology, cost)
    np.fill_diagonal(cost, 0)
    for relay in range(n):
        cost = np.minimum(cost, cost[:, relay, None] + cost[None, relay, :])
    if definition is not None:
        cost = _nearest_holders(definition, cost)
    elif collective.kind == "send_recv":
        cost = cost[tuple(np.array(collective.pairs, np.int64).reshape(-1, 2).T)]
    elif collective.root is not None:
        cost = (
            cost[:, collective.root]
            if collective.spec.output_at == "root"
            else cost[collective.root]
        )
    return plan.protocol.launch_fs + int(cost.max(initial=0))


def _may_be_empty(plan: Plan) -> bool:
    """Whether some block has no elements, in which case ranks may have nothing to exchange."""
    if plan.collective.nblocks == 0:
        return False
    sizes = plan.block_sizes
    return sizes == 0 if isinstance(sizes, int) else bool((sizes == 0).any())


def _nearest_holders(definition: Definition, cost: Ints) -> Ints:
    """For every contribution of every output, the cost from the nearest rank that holds it."""
    holders = np.zeros((definition.contributions, len(cost)), np.bool_)
    rank, slot = np.nonzero(definition.input_numbers >= 0)
    holders[definition.input_numbers[rank, slot], rank] = True
    nearest = np.array([cost[owners].min(axis=0) for owners in holders], np.int64)
    row = np.repeat(np.arange(definition.sums.size), np.diff(definition.starts))
    costs: Ints = nearest[definition.summands, row // definition.sums.shape[1]]
    return costs


def _costs(plan: Plan, topology: Topology, sources: Ints) -> Ints:
    """Least time of a message from each source to each rank: ``[sources, nranks]``."""
    src = np.repeat(plan.ranks[sources], plan.nranks)
    dst = np.tile(plan.ranks, len(sources))
    delay = _delay_fs(plan.protocol, topology.route(src, dst))
    return delay.reshape(len(sources), plan.nranks)


def _delay_fs(protocol: Protocol, routes: Routes) -> Ints:
    """Least time of a message on each route."""
    delay = latency_fs(routes, protocol) + protocol.receive_overhead_fs
    return delay if protocol.fifo_depth else delay + send_busy_fs(routes, protocol)


def _lower_by_paths(plan: Plan, topology: Topology, cost: Ints) -> None:
    """Lower the times of pairs of ranks to those of the paths that the schedule chooses."""
    for step in plan.steps(staged=False) if plan.schedule.transits else ():
        paths = None if step.transits is None else step.transits.paths()
        if paths is not None:
            ends = plan.ranks[step.src_rank], plan.ranks[step.dst_rank]
            delay = _delay_fs(plan.protocol, chosen_routes(topology, *ends, paths))
            np.minimum.at(cost, (step.src_rank, step.dst_rank), delay)
