"""A deterministic topological order."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

__all__ = ["lowest_first"]

Key = TypeVar("Key", int, tuple[int, int])


def lowest_first(needs: Mapping[Key, Collection[Key]]) -> Iterator[Key]:
    """Yield keys after the keys that they need, the lowest ready key first.

    Keys in or behind a cycle are left out.

    >>> list(lowest_first({0: {2}, 1: (), 2: {1}, 3: {4}, 4: {3}}))
    [1, 2, 0]
    """
    later: dict[Key, list[Key]] = defaultdict(list)
    pending = {key: len(needed) for key, needed in needs.items()}
    for key, needed in needs.items():
        for need in needed:
            later[need].append(key)
    ready = [key for key, count in pending.items() if not count]
    heapq.heapify(ready)
    while ready:
        key = heapq.heappop(ready)
        yield key
        for dependent in later[key]:
            pending[dependent] -= 1
            if not pending[dependent]:
                heapq.heappush(ready, dependent)
