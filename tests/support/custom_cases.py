"""Custom collectives with schedules: the ten shipped ones, each for several numbers of ranks; and
collectives that convert on the way.
"""

from __future__ import annotations

import numpy as np

import simcoll
from simcoll.algorithms import in_transit
from simcoll.collectives import (
    Routing,
    broadcast_from_roots,
    chain,
    combine,
    combine_by_node,
    dispatch,
    dispatch_by_node,
    doubling,
    exclusive_scan,
    gossip,
    halo_exchange,
    neighbour_rounds,
    quantised_two_step,
    reduce_to_roots,
    reshard,
    scan,
    shard_to_shard,
    torus_exchange,
    tree_and_fan,
    trees_side_by_side,
    two_phases,
    with_neighbours,
)


def shipped(nranks):
    """Each of the ten with its algorithms, by name: those that serve this number of ranks."""
    schedules = {
        "scan by a chain": chain(scan(nranks, order="listed")),
        "scan by doubling": doubling(scan(nranks)),
        "reduction to roots": tree_and_fan(reduce_to_roots(nranks)),
        "broadcast from roots": trees_side_by_side(broadcast_from_roots(nranks)),
    }
    if nranks >= 2:
        routing = Routing.drawn(nranks, 2 if nranks % 2 == 0 else 1, tokens=2, experts=2)
        schedules |= {
            "exclusive scan by a chain": chain(exclusive_scan(nranks)),
            "exclusive scan by doubling": doubling(exclusive_scan(nranks)),
            "torus": with_neighbours(torus_exchange(nranks)),
            "halo": two_phases(halo_exchange(nranks)),
            "dispatch": dispatch_by_node(dispatch(nranks, routing=routing), routing=routing),
            "combine": combine_by_node(combine(nranks, routing=routing), routing=routing),
            "reshard": shard_to_shard(reshard(nranks)),
        }
    if nranks >= 3:
        schedules |= {
            "gossip": neighbour_rounds(gossip(nranks)),
            "gossip in three rounds": neighbour_rounds(gossip(nranks, rounds=3)),
        }
    return schedules


WIRES = ("bfloat16", "float16", "float8_e4m3fn", "int8/256", "int8/7", "int4/33")
ALGORITHMS = {
    "all_reduce": ["ring", "tree", "recursive_doubling", "direct"],
    "reduce_scatter": ["ring", "direct"],
    "all_gather": ["ring", "bruck"],
    "all_to_all": ["direct", "bruck"],
    "broadcast": ["binomial", "chain"],
}


def converting(nranks):
    """Collectives that convert on the way, by name; a wire format each in turn."""
    schedules = {}
    for number, wire in enumerate(WIRES):
        everyone = simcoll.Collective("all_reduce", nranks)
        schedules[f"two steps, {wire}"] = quantised_two_step(everyone, wire=wire)
        for kind, algorithms in ALGORITHMS.items():
            algorithm = algorithms[number % len(algorithms)]
            try:
                plain = simcoll.schedule(kind, algorithm, nranks=nranks, in_place=number % 2 == 1)
            except simcoll.ConfigError:  # it does not serve this number of ranks, or this place
                continue
            schedules[f"{plain.title}, {wire}"] = in_transit(plain, wire=wire)
    return schedules


def rounding_inputs(plan, seed=5):
    """Inputs whose sums depend on the order; equal contributions are equal."""
    definition, inputs = plan.collective.definition, []
    for rank, contributions in enumerate(definition.inputs):
        length = plan.view(rank, 0)[2] // max(len(contributions), 1)
        blocks = [
            np.random.default_rng(seed + number).standard_normal(length) * 10.0 ** (number % 5)
            for number in contributions
        ]
        inputs.append(np.concatenate([np.zeros(0), *blocks]).astype(plan.dtype))
    return inputs
