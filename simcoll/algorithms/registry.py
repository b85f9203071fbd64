"""The table of algorithms, and :func:`schedule`, which builds one by name.

A module of algorithms is loaded when one of its names is asked for, and all of them when the table
is: a process that runs a single schedule would spend a tenth of its time on the others.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from io import FileIO
from types import ModuleType
from typing import Any, overload

import numpy as np

from simcoll.algorithms.combinable import MAX_CUTS
from simcoll.algorithms.custom import direct
from simcoll.algorithms.registered import Algorithm
from simcoll.core.collective import KINDS, Collective
from simcoll.core.recent_schedules import recent_schedules
from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError, nearest, shown

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "checked_params",
    "find_algorithm",
    "meant_by",
    "refusal",
    "schedule",
]


_PACKAGE = "simcoll.algorithms"
_KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "send_recv",
    "barrier",
)


def _families() -> list[ModuleType]:
    """The modules of this package, in the order of listings.

    A module's ``PLACE`` is its place; modules without one follow by name. Errors name the first
    algorithm that would have served, so the order is part of what users see, and does not depend on
    the file system.
    """
    from pkgutil import iter_modules

    package = import_module(_PACKAGE)
    names = sorted(module.name for module in iter_modules(package.__path__))
    modules = [import_module(f"{_PACKAGE}.{name}") for name in names if name != "registry"]
    return sorted(modules, key=lambda module: getattr(module, "PLACE", math.inf))


def _algorithms_of(families: Iterable[ModuleType]) -> Iterator[Algorithm]:
    """All algorithms of some modules by collective; one that a module imports from another counts
    once.
    """
    algorithms = dict.fromkeys(
        algorithm
        for family in families
        for algorithm in vars(family).values()
        if isinstance(algorithm, Algorithm)
    )
    for kind in _KINDS:
        yield from (algorithm for algorithm in algorithms if algorithm.collective == kind)


@cache
def _all_algorithms() -> tuple[Algorithm, ...]:
    return tuple(_algorithms_of(_families()))


class _AlgorithmTable(Sequence[Algorithm]):
    """All algorithms, loaded when they are asked for."""

    def __len__(self) -> int:
        return len(_all_algorithms())

    @overload
    def __getitem__(self, index: int) -> Algorithm: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Algorithm, ...]: ...
    def __getitem__(self, index: int | slice) -> Algorithm | tuple[Algorithm, ...]:
        return _all_algorithms()[index]

    def __iter__(self) -> Iterator[Algorithm]:
        return iter(_all_algorithms())

    def __repr__(self) -> str:
        return repr(_all_algorithms())


ALGORITHMS: Sequence[Algorithm] = _AlgorithmTable()


@lru_cache(maxsize=256)
def _modules_naming(name: str) -> tuple[str, ...]:
    """Modules of this package whose text has a name in quotation marks.

    To look into forty files takes a millisecond, to import them all twenty. An algorithm whose name
    is put together elsewhere is found among all.
    """
    quoted, modules = f'"{name}"'.encode(errors="replace"), []
    for folder in import_module(_PACKAGE).__path__:
        try:
            files = list(os.scandir(folder))
        except OSError:  # an archive
            continue
        for file in files:
            if file.name.endswith(".py") and file.name not in {"__init__.py", "registry.py"}:
                with FileIO(file.path) as text:
                    if quoted in text.readall():
                        modules.append(file.name.removesuffix(".py"))
    return tuple(sorted(modules))


@lru_cache(maxsize=256)
def _algorithm_in_its_module(collective: str, name: str) -> Algorithm | None:
    """The algorithm of a name, for which only modules that mention it are loaded; None if they do
    not have it.
    """
    for module in _modules_naming(name):
        for algorithm in _algorithms_of([import_module(f"{_PACKAGE}.{module}")]):
            if (algorithm.collective, algorithm.name) == (collective, name):
                return algorithm
    return None


def refusal(algorithm: Algorithm, collective: Collective, box: int) -> str | None:
    """Why an algorithm does not serve a number of ranks, with one that does.

    None if it does, or checks that itself.
    """
    n = collective.nranks
    if collective.definition is not None:  # it has its ranks
        return None
    if algorithm.ranks == "multiple of box" and n % box:
        return (
            f"{algorithm.name} needs a multiple of box={box} ranks, got {n}; "
            f"{_for_any_ranks(collective.kind)} serves any number"
        )
    limit = algorithm.ranks.removeprefix("up to ")
    if limit != algorithm.ranks and n > int(limit):
        return (
            f"{algorithm.name} serves {algorithm.ranks} ranks, got {n}; "
            f"{_for_any_ranks(collective.kind)} serves any number"
        )
    return None


def _for_any_ranks(kind: str) -> str:
    """The first algorithm of a collective that serves any number of ranks on any machine."""
    return next(
        a.name for a in ALGORITHMS if (a.collective, a.ranks, a.topologies) == (kind, "any", "any")
    )


def _check_kind(collective: Any) -> None:
    if collective == "custom":
        return
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
    if isinstance(name, str):
        shipped = _algorithm_in_its_module(collective, name)
        if shipped is not None:
            return shipped
    serving = {
        algorithm.name: algorithm
        for algorithm in (*ALGORITHMS, direct)
        if algorithm.collective == collective
    }
    requested: Any = name  # whatever was given
    if not isinstance(requested, str) or requested not in serving:
        from simcoll.algorithms.imported import entry_point_names, imported_algorithm

        imported = imported_algorithm(collective, requested) if isinstance(requested, str) else None
        if imported is not None:
            return imported
        if isinstance(requested, str) and requested in KINDS:
            raise ConfigError(
                f"{name!r} is a collective; expected an algorithm for {collective}: "
                f"{', '.join(sorted(serving))}"
            )
        collectives = sorted(
            {algorithm.collective for algorithm in ALGORITHMS if algorithm.name == name}
        )
        if collectives:
            raise ConfigError(
                f"algorithm {name!r} serves {', '.join(collectives)}, not {collective}; valid: "
                f"{', '.join(sorted(serving)) or 'none yet'}"
            )
        raise ConfigError(
            f"unknown algorithm {name!r} for {collective}; "
            f"{nearest(str(name), [*serving, *entry_point_names()])}"
        )
    return serving[name]


def meant_by(
    collective: str | Collective,
    nranks: int | None = None,
    root: int | None = None,
    *,
    in_place: bool = False,
) -> Collective:
    """The collective that the arguments of :func:`schedule` describe.

    Raises
    ------
    ConfigError
        For an unknown kind, one without a number of ranks, or parameters that the collective
        already has.
    """
    if isinstance(collective, Collective):
        if nranks is not None or root is not None or in_place:
            raise ConfigError(
                "nranks, root and in_place cannot be given together with a Collective "
                f"({collective}); set them on the Collective"
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
    request = meant_by(collective, nranks, root, in_place=in_place)
    registered = find_algorithm(request.kind, algorithm)
    checked = checked_params(registered, request, params)
    if not registered.source:  # one's own function may return something else now
        return registered.build(request, **checked)
    key = (request, registered, *sorted(checked.items()))
    recent = recent_schedules.find(key)
    if recent is None:
        recent = registered.build(request, **checked)
        recent_schedules.note(key, recent)
    return recent


def checked_params(
    algorithm: Algorithm, collective: Collective, params: Mapping[str, Any]
) -> dict[str, Any]:
    """The checked parameters of an algorithm; None selects the default.

    Raises
    ------
    ConfigError
        For a parameter that the algorithm does not have, a value out of range, or a rank count that
        it does not serve.
    """
    set_params = {name: value for name, value in params.items() if value is not None}
    for name, value in set_params.items():
        if name == "pairs" and collective.kind == "send_recv":
            raise ConfigError(
                'pairs go with the collective: schedule(Collective("send_recv", '
                f"{collective.nranks}, pairs={value!r:.60}))"
            )
        if name not in algorithm.params:
            owners = [
                owner.name
                for owner in ALGORITHMS
                if owner.collective == collective.kind and name in owner.params
            ]
            elsewhere = f"; {', '.join(owners)} {'has' if len(owners) == 1 else 'have'} it"
            rule = "; parameters of one's own function stand after * in its signature"
            raise ConfigError(
                f"algorithm {algorithm.name!r} of {collective.kind} has no parameter {name!r}; "
                f"{nearest(name, algorithm.params)}"
                + (elsewhere if owners else "")
                + ("" if algorithm.source else rule)
            )
    if not algorithm.source:  # one's own: its function knows its types
        return set_params
    checked = {name: _checked_param(name, value) for name, value in set_params.items()}
    why = refusal(algorithm, collective, checked.get("box", 1))
    if why:
        raise ConfigError(why)
    return checked


MAX_PARAM = 2**20


def _checked_param(name: str, value: Any) -> Any:
    """A topology, or whole numbers of at least 1: several for ``dims``, otherwise one."""
    limit = MAX_CUTS if name in {"pieces", "channels"} else MAX_PARAM

    def in_range(number: Any) -> bool:
        return (
            isinstance(number, (int, np.integer))
            and not isinstance(number, bool)
            and 1 <= int(number) <= limit
        )

    if name == "topology":
        if not hasattr(value, "rank_nodes"):
            raise ConfigError(
                f"topology={value!r:.60}: expected a Topology, such as load_topology('dgx-h100')"
            )
        return value
    if name == "dims":
        sizes = tuple(value) if isinstance(value, (tuple, list, np.ndarray)) else ()
        if not (sizes and all(map(in_range, sizes))):
            raise ConfigError(
                f"dims={shown(value)}: expected a tuple of whole numbers, such as (4, 4), each at "
                "least 1"
            )
        return tuple(map(int, sizes))
    if not in_range(value):
        raise ConfigError(
            f"{name}={shown(value)}: expected a whole number, at least 1 and at most {limit}"
        )
    return int(value)
