"""Clusters with several degraded links, as files and options name them."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from simcoll.errors import ConfigError
from simcoll.topology.graph import Topology

__all__ = ["with_degraded_links"]


def with_degraded_links(
    topology: Topology, shares: Mapping[str, str | float | Fraction]
) -> Topology:
    """The same cluster with links at shares of their capacity, as by :meth:`Topology.degrade`.

    Raises
    ------
    ConfigError
        For what that method refuses, and for a link that two names have.

    Examples
    --------
    >>> from simcoll.topology import crossbar
    >>> slow = with_degraded_links(crossbar(4, "50 GB/s"), {"gpu1 <-> switch": 0.5, "gpu2": "1/4"})
    >>> slow.name
    'crossbar degraded'
    """
    names: dict[int, str] = {}
    for name, share in shares.items():
        for link in topology.find_links(name):
            earlier = names.setdefault(link, name)
            if earlier != name:
                raise ConfigError(
                    f"link {topology.link_name(link)!r} has two shares of its capacity: "
                    f"{shares[earlier]} by {earlier!r} and {share} by {name!r}; leave one out"
                )
    for name, share in shares.items():
        topology = topology.degrade(name, share)
    return topology
