"""What is known of an algorithm, and the decorator that says it where the algorithm is defined."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from simcoll.core.schedule import Schedule

    Written = Callable[..., Schedule]

__all__ = ["Algorithm", "algorithm"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm for one collective.

    Attributes
    ----------
    collective, name
        What ``schedule(collective, name, ...)`` looks up.
    build
        Makes the schedule from a collective and keyword parameters.
    cost
        Time: ``a`` latency, ``b`` seconds per byte, ``g`` seconds per byte reduced, ``s`` total bytes, ``n`` ranks. On an ideal crossbar,
        except for torus, bidirectional_ring, hierarchical, switch, bfb and packed: theirs is that on the machine they are made for.
    pattern
        ``ring`` or ``tree``: which of NCCL's latencies its messages have.
    ranks
        Rank counts served, in words.
    source
        Paper or program that describes it.
    topologies
        ``any``, ``boxes`` (made for nodes with rails) or ``torus`` (made for rings and tori): it runs, and is right, on all.
        ``switch``: only where switches multicast and reduce (the trait ``switch_reduce`` of a topology). ``direct``: only where ranks
        have links to each other.
    order
        The level of :data:`simcoll.proving.LEVELS` that its reductions have with any parameters; empty where nothing is reduced.
    """

    collective: str
    name: str
    build: Callable[..., Schedule]
    cost: str
    pattern: str
    ranks: str
    source: str
    topologies: str = "any"
    order: str = ""

    @property
    def params(self) -> dict[str, Any]:
        """Parameters with their defaults."""
        signature = inspect.signature(self.build)
        return {name: p.default for name, p in signature.parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}

    def __call__(self, *args: Any, **params: Any) -> Schedule:
        """Make the schedule, as ``build`` does."""
        return self.build(*args, **params)


def algorithm(
    collective: str,
    name: str,
    *,
    cost: str,
    source: str,
    pattern: str = "ring",
    ranks: str = "any",
    topologies: str = "any",
    order: str = "",
) -> Callable[[Written], Algorithm]:
    """Register the function below, which makes a schedule, as an algorithm; see :class:`Algorithm`."""

    def register(build: Written) -> Algorithm:
        return Algorithm(collective, name, build, cost, pattern, ranks, source, topologies, order)

    return register
