"""The table of algorithms, and :func:`schedule`, which builds one by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import numpy as np

from simcoll.algorithms.combinable import MAX_CUTS
from simcoll.algorithms.registered import Algorithm
from simcoll.core.collective import KINDS, Collective
from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError, nearest, shown

__all__ = ["ALGORITHMS", "Algorithm", "checked_params", "find_algorithm", "meant_by", "schedule", "unserved"]


_KINDS = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all", "send_recv", "barrier",
)  # fmt: skip


def _families() -> list[ModuleType]:
    """The modules of this package, in the order of listings.

    A module's ``PLACE`` is its place; modules without one follow by name. Errors name the first algorithm that would have
    served, so the order is part of what users see, and does not depend on the file system.
    """
    package = import_module("simcoll.algorithms")
    names = sorted(module.name for module in iter_modules(package.__path__))
    modules = [import_module(f"{package.__name__}.{name}") for name in names if name != "registry"]
    return sorted(modules, key=lambda module: getattr(module, "PLACE", math.inf))


def _registered(families: Iterable[ModuleType]) -> Iterator[Algorithm]:
    """All algorithms of some modules by collective; one that a module imports from another counts once."""
    algorithms = dict.fromkeys(
        algorithm for family in families for algorithm in vars(family).values() if isinstance(algorithm, Algorithm)
    )
    for kind in _KINDS:
        yield from (algorithm for algorithm in algorithms if algorithm.collective == kind)


ALGORITHMS: tuple[Algorithm, ...] = tuple(_registered(_families()))


def unserved(found: Algorithm, collective: Collective, box: int) -> str | None:
    """Why an algorithm does not serve a number of ranks, with one that does.

    None if it does, or checks that itself.
    """
    n = collective.nranks
    other = next(a.name for a in ALGORITHMS if (a.collective, a.ranks, a.topologies) == (collective.kind, "any", "any"))
    if found.ranks == "multiple of box" and n % box:
        return f"{found.name} needs a multiple of box={box} ranks, got {n}; {other} serves any number"
    most = found.ranks.removeprefix("up to ")
    if most != found.ranks and n > int(most):
        return f"{found.name} serves {found.ranks} ranks, got {n}; {other} serves any number"
    return None


def _check_kind(collective: Any) -> None:
    if not isinstance(collective, str) or collective not in KINDS:
        raise ConfigError(f"unknown collective {collective!r}; {nearest(str(collective), KINDS)}")


def find_algorithm(collective: str, name: str) -> Algorithm:
    """The algorithm of a name for a collective.

    The name may be a file, ``module:function``, or an installed package's.

    Raises
    ------
    ConfigError
        For an unknown collective or algorithm; states the nearest one.
    """
    _check_kind(collective)
    serving = {algorithm.name: algorithm for algorithm in ALGORITHMS if algorithm.collective == collective}
    given: Any = name  # whatever was given
    if not isinstance(given, str) or given not in serving:
        from simcoll.algorithms.imported import announced, imported_algorithm

        found = imported_algorithm(collective, given) if isinstance(given, str) else None
        if found is not None:
            return found
        if isinstance(given, str) and given in KINDS:
            raise ConfigError(
                f"{name!r} is a collective; expected an algorithm for {collective}: {', '.join(sorted(serving))}"
            )
        others = sorted({algorithm.collective for algorithm in ALGORITHMS if algorithm.name == name})
        if others:
            raise ConfigError(
                f"algorithm {name!r} serves {', '.join(others)}, not {collective}; valid: {', '.join(sorted(serving)) or 'none yet'}"
            )
        raise ConfigError(
            f"unknown algorithm {name!r} for {collective}; {nearest(str(name), [*serving, *announced()])}"
        )
    return serving[name]


def meant_by(
    collective: str | Collective, nranks: int | None = None, root: int | None = None, *, in_place: bool = False
) -> Collective:
    """The collective that the arguments of :func:`schedule` describe.

    Raises
    ------
    ConfigError
        For an unknown kind, one without a number of ranks, or parameters that the collective already has.
    """
    if isinstance(collective, Collective):
        if nranks is not None or root is not None or in_place:
            raise ConfigError(
                f"nranks, root and in_place cannot be given together with a Collective ({collective}); set them on the Collective"
            )
        return collective
    _check_kind(collective)
    if nranks is None:
        raise ConfigError(f"{collective} needs nranks, the number of ranks")
    return Collective(collective, nranks, root=root, in_place=in_place)


def schedule(
    collective: str | Collective,
    algorithm: str,
    *,
    nranks: int | None = None,
    root: int | None = None,
    in_place: bool = False,
    **params: Any,
) -> Schedule:
    """The schedule of a named algorithm; :func:`simcoll.schedule` also chooses one.

    >>> print(schedule("all_reduce", "ring", nranks=8, channels=2))
    ring(channels=2, pieces=1) all_reduce n=8
    """
    if isinstance(collective, str):
        find_algorithm(collective, algorithm)
        nranks = getattr(params.get("topology"), "nranks", None) if nranks is None else nranks
    wanted = meant_by(collective, nranks, root, in_place=in_place)
    found = find_algorithm(wanted.kind, algorithm)
    return found.build(wanted, **checked_params(found, wanted, params))


def checked_params(found: Algorithm, collective: Collective, params: Mapping[str, Any]) -> dict[str, Any]:
    """The checked parameters of an algorithm; None selects the default.

    Raises
    ------
    ConfigError
        For a parameter that the algorithm does not have, a value out of range, or a rank count that it does not serve.
    """
    given = {name: value for name, value in params.items() if value is not None}
    for name, value in given.items():
        if name == "pairs" and collective.kind == "send_recv":
            raise ConfigError(
                f'pairs go with the collective: schedule(Collective("send_recv", {collective.nranks}, pairs={value!r:.60}))'
            )
        if name not in found.params:
            others = [
                other.name for other in ALGORITHMS if other.collective == collective.kind and name in other.params
            ]
            raise ConfigError(
                f"algorithm {found.name!r} of {collective.kind} has no parameter {name!r}; {nearest(name, found.params)}"
                + (f"; {', '.join(others)} {'has' if len(others) == 1 else 'have'} it" if others else "")
            )
    checked = {name: _checked_param(name, value) for name, value in given.items()}
    why = unserved(found, collective, checked.get("box", 1))
    if why:
        raise ConfigError(why)
    return checked


MAX_PARAM = 2**20


def _checked_param(name: str, value: Any) -> Any:
    """A topology, or whole numbers of at least 1: several for ``dims``, otherwise one."""
    most = MAX_CUTS if name in {"pieces", "channels"} else MAX_PARAM

    def whole(given: Any) -> bool:
        number = isinstance(given, (int, np.integer)) and not isinstance(given, bool)
        return number and 1 <= int(given) <= most

    if name == "topology":
        if not hasattr(value, "rank_nodes"):
            raise ConfigError(f"topology={value!r:.60}: expected a Topology, such as load_topology('dgx-h100')")
        return value
    if name == "dims":
        sizes = tuple(value) if isinstance(value, (tuple, list, np.ndarray)) else ()
        if not (sizes and all(map(whole, sizes))):
            raise ConfigError(
                f"dims={shown(value)}: expected a tuple of whole numbers, such as (4, 4), each at least 1"
            )
        return tuple(map(int, sizes))
    if not whole(value):
        raise ConfigError(f"{name}={shown(value)}: expected a whole number, at least 1 and at most {most}")
    return int(value)
