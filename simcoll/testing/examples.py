"""Small topologies for algorithms built for one, so that tests cover all algorithms."""

from __future__ import annotations

from typing import Any

from simcoll.algorithms import find_algorithm
from simcoll.topology import crossbar, torus

__all__ = ["needed_params"]


def needed_params(collective: str, algorithm: str, nranks: int) -> dict[str, Any]:
    """Parameters that an algorithm requires: a path of ranks, or a torus for ``bfb``.

    >>> torus = needed_params("all_gather", "bfb", 6)["topology"]
    >>> needed_params("all_gather", "ring", 6), torus.name
    ({}, 'torus')
    """
    if "topology" not in find_algorithm(collective, algorithm).params:
        return {}
    if nranks == 1:
        return {"topology": crossbar(1, "25 GB/s", "1 us")}
    if algorithm == "packed":
        # On a path, each end is the root of half an all-reduce, and the ranks between are roots of
        # nothing.
        return {"topology": torus([nranks], "25 GB/s", "1 us", wrap=False), "pieces": 2}
    rows = next((rows for rows in (2, 3) if nranks % rows == 0 and nranks > 2 * rows), 1)
    return {"topology": torus([rows, nranks // rows] if rows > 1 else [nranks], "25 GB/s", "1 us")}
