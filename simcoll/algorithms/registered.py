"""The record of an algorithm, and the decorator that registers it at its definition."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from simcoll.core.collective import Collective
from simcoll.core.schedule import Schedule

Written = Callable[..., Any]

__all__ = ["Algorithm", "algorithm"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm for one collective.

    Attributes
    ----------
    collective, name
        What ``schedule(collective, name, ...)`` looks up.
    written
        Makes the schedule from a collective and the algorithm's own parameters.
    cost
        Time: ``a`` latency, ``b`` seconds per byte, ``g`` seconds per byte reduced, ``s`` total bytes, ``n`` ranks. On an ideal crossbar,
        except for torus, bidirectional_ring, hierarchical, switch, bfb, packed and NCCL's: theirs is that on the machine they are made for.
    pattern
        ``ring`` or ``tree``: which of NCCL's latencies its messages have.
    ranks
        Rank counts served, in words.
    source
        Paper or program that describes it.
    topologies
        ``any``, ``boxes`` (made for nodes with rails) or ``torus`` (made for rings and tori): it runs, and is right, on all.
        ``switch``: only where switches multicast and reduce (the trait ``switch_reduce`` of a topology), ``sharp``: where those of the
        network do. ``direct``: only where ranks have links to each other.
    order
        The level of :data:`simcoll.proving.LEVELS` that its reductions have with any parameters; empty where nothing is reduced.
    shared
        Gives the schedule parameters that many algorithms have, such as ``channels``; ``None`` where there are none.
    """

    collective: str
    name: str
    written: Callable[..., Any]
    cost: str
    pattern: str
    ranks: str
    source: str
    topologies: str = "any"
    order: str = ""
    shared: Callable[..., Schedule] | None = None

    @property
    def params(self) -> dict[str, Any]:
        """Parameters with their defaults: its own, then the shared ones."""
        return _keywords(self.written) | ({} if self.shared is None else _keywords(self.shared))

    def build(self, collective: Collective, **params: Any) -> Schedule:
        """Make the schedule for a collective."""
        own = _keywords(self.written)
        made: Any = self.written(collective, **{name: value for name, value in params.items() if name in own})
        if self.shared is not None:
            made = self.shared(made, **{name: value for name, value in params.items() if name not in own})
        shown = ((name, getattr(value, "name", value)) for name, value in (self.params | params).items())
        named: Schedule = replace(made, name=self.name, params=tuple(shown))
        return named

    def __call__(self, collective: Collective, **params: Any) -> Schedule:
        """Make the schedule, as :meth:`build` does."""
        return self.build(collective, **params)


@cache
def _keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """Keyword parameters of a function, with their defaults."""
    parameters = inspect.signature(function).parameters.items()
    return {name: p.default for name, p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


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
    shared: Callable[..., Schedule] | None = None,
) -> Callable[[Written], Algorithm]:
    """Register the function below as an algorithm; see :class:`Algorithm`.

    The function takes a collective and the algorithm's own keyword parameters, and returns a schedule, or whatever ``shared`` makes one
    of.
    """

    def register(written: Written) -> Algorithm:
        return Algorithm(collective, name, written, cost, pattern, ranks, source, topologies, order, shared)

    return register
