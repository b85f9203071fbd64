"""The table of algorithms, and :func:`schedule`, which makes one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.algorithms import (
    barrier,
    bfb,
    bine,
    bruck,
    chain,
    direct,
    double_tree,
    hierarchical,
    multiplying,
    neighbor,
    packed,
    pairs,
    recursive,
    ring,
    swing,
    switch,
    torus,
    tree,
    van_de_geijn,
)
from simcoll.algorithms.forest import topology_of
from simcoll.algorithms.registered import Algorithm
from simcoll.core.collective import KINDS, Collective
from simcoll.errors import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simcoll.core.schedule import Schedule

__all__ = ["ALGORITHMS", "Algorithm", "default_algorithm", "find_algorithm", "schedule"]


_FAMILIES = (
    ring, tree, chain, double_tree, recursive, multiplying, pairs, bruck, neighbor, swing, bine, direct, van_de_geijn, hierarchical, torus,
    switch, bfb, packed, barrier,
)  # fmt: skip
_KINDS = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all", "send_recv", "barrier",
)  # fmt: skip

ALGORITHMS: tuple[Algorithm, ...] = tuple(
    found
    for kind in _KINDS
    for family in _FAMILIES
    for found in vars(family).values()
    if isinstance(found, Algorithm) and found.collective == kind
)

# What schedule() takes when no algorithm is named: for a power of two ranks, and for other counts.
_DEFAULTS: dict[str, tuple[str, str]] = {
    "all_reduce": ("rabenseifner", "ring"),
    "all_gather": ("recursive_doubling", "bruck"),
    "reduce_scatter": ("recursive_halving", "pairwise"),
    "broadcast": ("scatter_doubling", "tree"),
    "reduce": ("rabenseifner", "tree"),
    "gather": ("tree", "tree"),
    "scatter": ("tree", "tree"),
    "all_to_all": ("pairwise", "pairwise"),
    "send_recv": ("direct", "direct"),
    "barrier": ("dissemination", "dissemination"),
}


def default_algorithm(collective: Collective, params: Iterable[str] = ()) -> str:
    """The algorithm taken when none is named.

    With ``box`` or ``pod`` among the parameters the hierarchical one, with ``dims`` the one for a torus, with ``topology`` the packed
    one, where there is one and it serves so many ranks. Else, by the number of ranks: for powers of two the recursive one, which has
    both the fewest steps and the fewest bytes (all-to-all: the fewest bytes); for other counts, one that is optimal in bytes where data
    goes to all, and a binomial tree where there is a root. Sizes are not known here: ``simcoll perf`` compares all algorithms over sizes.

    >>> default_algorithm(Collective("all_reduce", 8)), default_algorithm(Collective("all_reduce", 6), ["box"])
    ('rabenseifner', 'hierarchical')
    """
    serving = {a.name for a in ALGORITHMS if a.collective == collective.kind and _unserved(a, collective, 1) is None}
    for param, name in (("box", "hierarchical"), ("pod", "hierarchical"), ("dims", "torus"), ("topology", "packed")):
        if param in params and name in serving:
            return name
    power, other = _DEFAULTS[collective.kind]
    return other if collective.nranks & (collective.nranks - 1) else power


def _unserved(found: Algorithm, collective: Collective, box: int) -> str | None:
    """Why an algorithm does not serve a number of ranks, and which does; None when it does, or says so itself."""
    n, other = collective.nranks, _DEFAULTS[collective.kind][1]
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
    """The algorithm of that name for a collective.

    Raises
    ------
    ConfigError
        For an unknown collective or algorithm, naming the nearest.
    """
    _check_kind(collective)
    serving = {algorithm.name: algorithm for algorithm in ALGORITHMS if algorithm.collective == collective}
    given: Any = name  # whatever was given
    if not isinstance(given, str) or given not in serving:
        others = sorted({algorithm.collective for algorithm in ALGORITHMS if algorithm.name == name})
        if others:
            raise ConfigError(
                f"algorithm {name!r} serves {', '.join(others)}, not {collective}; valid: {', '.join(sorted(serving)) or 'none yet'}"
            )
        raise ConfigError(f"unknown algorithm {name!r} for {collective}; {nearest(str(name), serving)}")
    return serving[name]


def schedule(
    collective: str | Collective,
    algorithm: str | None = None,
    *,
    nranks: int | None = None,
    root: int | None = None,
    in_place: bool = False,
    **params: Any,
) -> Schedule:
    """The schedule of an algorithm for a collective.

    Parameters
    ----------
    collective
        Kind, such as ``"all_reduce"`` (then ``nranks`` or ``topology`` is needed), or a :class:`~simcoll.core.collective.Collective`.
    algorithm
        Name of an algorithm that serves it: ``simcoll list algorithms``. Without, :func:`default_algorithm` chooses; the
        schedule's name says which. Then ``topology`` is a hint, for algorithms that are made for one and can be made for that one.
    nranks, root, in_place
        Passed to :class:`~simcoll.core.collective.Collective`.
    **params
        The algorithm's own: ``channels=``, ``pieces=``, ``box=``, ``pod=`` (whole numbers), ``dims=`` (several) or ``topology=``, a
        :class:`~simcoll.topology.Topology`, for algorithms that are made for one.

    Raises
    ------
    ConfigError
        For an unknown collective, algorithm or parameter, or an algorithm that does not serve this rank count.

    Examples
    --------
    >>> print(schedule("all_reduce", "ring", nranks=8, channels=2))
    ring(channels=2, pieces=1) all_reduce n=8
    """
    if not isinstance(collective, Collective):
        _check_kind(collective)
        if algorithm is not None:
            find_algorithm(collective, algorithm)
        if nranks is None:
            nranks = getattr(params.get("topology"), "nranks", None)
        if nranks is None:
            raise ConfigError(f"{collective} needs nranks, the number of ranks")
        collective = Collective(collective, nranks, root=root, in_place=in_place)
    elif nranks is not None or root is not None or in_place:
        raise ConfigError(
            f"{collective} says its ranks, root and place itself; nranks, root and in_place go with a kind only"
        )
    # What is None is left to its default.
    given = {name: value for name, value in params.items() if value is not None}
    if algorithm is None and "topology" in given:
        return _hinted(collective, given)
    found = find_algorithm(collective.kind, default_algorithm(collective, given) if algorithm is None else algorithm)
    return found.build(collective, **_checked(found, collective, given))


def _hinted(collective: Collective, given: dict[str, Any]) -> Schedule:
    """The schedule of the algorithm that is taken for a topology; of the one taken without where that cannot be made."""
    topology_of(collective, _checked_param("topology", given["topology"]), "schedule()")
    found = find_algorithm(collective.kind, default_algorithm(collective, given))
    plain = {name: value for name, value in given.items() if name != "topology"}
    if "topology" in found.params:
        checked = _checked(found, collective, given)
        try:
            return found.build(collective, **checked)
        except ConfigError:  # it has no trees, say
            found = find_algorithm(collective.kind, default_algorithm(collective, plain))
    return found.build(collective, **_checked(found, collective, plain))


def _checked(found: Algorithm, collective: Collective, given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of an algorithm, checked."""
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
                + (f"; {', '.join(others)} have it" if others else "")
            )
    checked = {name: _checked_param(name, value) for name, value in given.items()}
    unserved = _unserved(found, collective, checked.get("box", 1))
    if unserved:
        raise ConfigError(unserved)
    return checked


MAX_PARAM = 2**20


def _checked_param(name: str, value: Any) -> Any:
    """A topology, or whole numbers from 1 on: several for ``dims``, else one."""

    def whole(given: Any) -> bool:
        number = isinstance(given, (int, np.integer)) and not isinstance(given, bool)
        return number and 1 <= int(given) <= MAX_PARAM

    if name == "topology":
        if not hasattr(value, "rank_nodes"):
            raise ConfigError(f"topology={value!r:.60}: expected a Topology, such as load_topology('dgx-h100')")
        return value
    if name == "dims":
        sizes = tuple(value) if isinstance(value, (tuple, list, np.ndarray)) else ()
        if not (sizes and all(map(whole, sizes))):
            raise ConfigError(f"dims={value!r}: expected a tuple of whole numbers, such as (4, 4), each at least 1")
        return tuple(map(int, sizes))
    if not whole(value):
        raise ConfigError(f"{name}={value!r}: expected a whole number, at least 1 and at most {MAX_PARAM}")
    return int(value)
