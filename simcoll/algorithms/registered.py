"""The record of an algorithm, and the decorator that registers it at its definition."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from simcoll.algorithms.cost import parse_cost
from simcoll.core.collective import KINDS, Collective
from simcoll.core.schedule import Schedule
from simcoll.core.vocabulary import DesignedFor
from simcoll.errors import ConfigError, nearest

Written = Callable[..., Any]

__all__ = ["MACHINES", "Algorithm", "algorithm"]

MACHINES: Mapping[str, str] = MappingProxyType(
    {
        "crossbar": "one port a rank, into a switch that slows nobody down, and reduces if the "
        "algorithm needs it to",
        "ring": "ranks in a circle, each with a link to either neighbour",
        "torus": "equal rings in every dimension, of at least three ranks",
        "mesh": "ranks with direct links, of which NCCL makes rings",
        "boxes": "nodes with a switch inside and a NIC, thus a rail, for every rank",
        "any": "every machine",
    }
)
"""The machines to which costs refer."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm for one collective.

    Attributes
    ----------
    collective, name
        The arguments of ``schedule(collective, name, ...)``.
    function
        Makes the schedule from a collective and the algorithm's own parameters.
    cost
        Time on ``machine``, a formula over :data:`simcoll.algorithms.cost.SYMBOLS`, among them
        ``a`` latency, ``b`` time per byte, ``g`` time per byte reduced, ``s`` total bytes, ``n``
        ranks; see :func:`~simcoll.algorithms.cost.parse_cost`. Empty for an algorithm from
        elsewhere.
    pattern
        ``ring`` or ``tree``: selects NCCL's latencies for its messages.
    ranks
        Rank counts served, in words.
    source
        Paper or program that describes the algorithm.
    topologies
        ``any``, ``boxes`` (designed for nodes with rails) or ``torus`` (designed for rings and
        tori): runs correctly on all. ``switch``: only if switches multicast and reduce (the trait
        ``switch_reduce`` of a topology); ``sharp``: only if those of the network do. ``direct``:
        only if ranks have links to each other.
    order
        The level of :data:`simcoll.proving.LEVELS` of its reductions with any parameters; empty if
        nothing is reduced.
    shared
        Adds parameters shared by many algorithms, such as ``channels``, to the schedule; ``None``
        if there are none.
    machine
        A key of :data:`MACHINES`, to which ``cost`` refers.

    Raises
    ------
    ConfigError
        For an unknown collective or machine, or a cost that is no formula.
    """

    collective: str
    name: str
    function: Callable[..., Any]
    cost: str
    pattern: str
    ranks: str
    source: str
    topologies: DesignedFor = "any"
    order: str = ""
    shared: Callable[..., Schedule] | None = None
    machine: str = "crossbar"

    def __post_init__(self) -> None:
        if self.collective not in KINDS and self.collective != "custom":
            raise ConfigError(
                f"algorithm {self.name!r}: unknown collective {self.collective!r}; "
                f"{nearest(self.collective, KINDS)}"
            )
        if self.machine not in MACHINES:
            raise ConfigError(
                f"algorithm {self.name!r}: unknown machine {self.machine!r}; "
                f"{nearest(self.machine, MACHINES)}"
            )
        if self.cost:
            try:
                parse_cost(self.cost)
            except ConfigError as error:
                raise ConfigError(
                    f"algorithm {self.name!r} of {self.collective}: {error.message}"
                ) from None

    @property
    def params(self) -> dict[str, Any]:
        """Parameters with their defaults: the algorithm's own, then the shared ones."""
        return _keywords(self.function) | ({} if self.shared is None else _keywords(self.shared))

    def build(self, collective: Collective, **params: Any) -> Schedule:
        """Make the schedule for a collective."""
        keywords = _keywords(self.function)
        schedule: Any = self.function(
            collective, **{name: value for name, value in params.items() if name in keywords}
        )
        if self.shared is not None:
            schedule = self.shared(
                schedule, **{name: value for name, value in params.items() if name not in keywords}
            )
        texts = (
            (name, getattr(value, "name", value)) for name, value in (self.params | params).items()
        )
        result: Schedule = replace(schedule, name=self.name, params=tuple(texts))
        module, name = (getattr(self.function, key, "") for key in ("__module__", "__name__"))
        # Another process finds it there, too.
        if getattr(sys.modules.get(module), name, None) is self:
            result.keep_passes(build_again, module, name, collective, tuple(params.items()))
        else:
            result.keep_passes()
        return result

    def __call__(self, collective: Collective, **params: Any) -> Schedule:
        """Make the schedule, as :meth:`build` does."""
        return self.build(collective, **params)


def build_again(
    module: str, name: str, collective: Collective, params: tuple[tuple[str, Any], ...]
) -> Schedule:
    """The schedule of a pickled algorithm; the same one for the same numbers, so that it is proved
    once in a process.
    """
    plain = all(isinstance(value, (int, str, tuple)) for _, value in params)
    return (_build if plain else _build.__wrapped__)(module, name, collective, params)


@lru_cache(maxsize=16)
def _build(
    module: str, name: str, collective: Collective, params: tuple[tuple[str, Any], ...]
) -> Schedule:
    algorithm: Algorithm = getattr(import_module(module), name)
    return algorithm.build(collective, **dict(params))


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
    topologies: DesignedFor = "any",
    order: str = "",
    shared: Callable[..., Schedule] | None = None,
    machine: str = "crossbar",
) -> Callable[[Written], Algorithm]:
    """Register the function below as an algorithm; see :class:`Algorithm`.

    The function takes a collective and the algorithm's own keyword parameters, and returns a
    schedule, or the input from which ``shared`` makes one.
    """

    def register(function: Written) -> Algorithm:
        return Algorithm(
            collective,
            name,
            function,
            cost,
            pattern,
            ranks,
            source,
            topologies,
            order,
            shared,
            machine,
        )

    return register
