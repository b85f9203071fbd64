"""The table of algorithms, and :func:`schedule`, which makes one."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simcoll.algorithms import barrier, direct, hierarchical, recursive, ring, tree
from simcoll.collective import KINDS, Collective
from simcoll.errors import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from simcoll.schedule import Schedule

__all__ = ["ALGORITHMS", "Algorithm", "find_algorithm", "schedule"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm for one collective.

    Attributes
    ----------
    name, collective
        What ``schedule(collective, name, ...)`` looks up.
    build
        Makes the schedule from a collective and keyword parameters.
    cost
        Time on an ideal crossbar: ``a`` latency, ``b`` seconds per byte, ``g`` seconds per byte reduced, ``s`` total bytes, ``n`` ranks.
    pattern
        ``ring`` or ``tree``: which of NCCL's latencies a message of it has.
    ranks
        Which rank counts it serves, in words.
    source
        Paper or program that describes it.
    """

    name: str
    collective: str
    build: Callable[..., Schedule]
    cost: str
    pattern: str
    ranks: str
    source: str

    @property
    def params(self) -> dict[str, Any]:
        """Parameters with their defaults."""
        signature = inspect.signature(self.build)
        return {name: p.default for name, p in signature.parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


_PATARASUK = "Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms, JPDC 69 (2009)"
_THAKUR = "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19 (2005)"
_BARRIER = "Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, IJPP 17 (1988)"
_HIER = "Cho et al.: BlueConnect, MLSys 2019"

ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm("ring", "all_reduce", ring.all_reduce, "2(n-1)a + 2(n-1)/n s b + (n-1)/n s g", "ring", "any", _PATARASUK),
    Algorithm("ring", "all_gather", ring.all_gather, "(n-1)a + (n-1)/n s b", "ring", "any", _PATARASUK),
    Algorithm("ring", "reduce_scatter", ring.reduce_scatter, "(n-1)a + (n-1)/n s b + (n-1)/n s g", "ring", "any", _PATARASUK),
    Algorithm("tree", "broadcast", tree.broadcast, "ceil(lg n)(a + s b)", "tree", "any", _THAKUR),
    Algorithm("tree", "reduce", tree.reduce, "ceil(lg n)(a + s b + s g)", "tree", "any", _THAKUR),
    Algorithm("tree", "all_reduce", tree.all_reduce, "2 ceil(lg n)(a + s b) + ceil(lg n) s g", "tree", "any", _THAKUR),
    Algorithm("recursive_doubling", "all_reduce", recursive.doubling_all_reduce, "lg n (a + s b + s g), n = 2^k", "tree", "any", _THAKUR),
    Algorithm("recursive_doubling", "all_gather", recursive.doubling_all_gather, "lg n a + (n-1)/n s b", "tree", "power of 2", _THAKUR),
    Algorithm("recursive_halving", "reduce_scatter", recursive.halving_reduce_scatter, "lg n a + (n-1)/n s (b + g), n = 2^k", "tree", "any", _THAKUR),
    Algorithm("rabenseifner", "all_reduce", recursive.rabenseifner_all_reduce, "2 lg n a + 2(n-1)/n s b + (n-1)/n s g, n = 2^k", "tree", "any", _THAKUR),
    Algorithm("direct", "all_to_all", direct.all_to_all, "a + (n-1)/n s b", "ring", "any", "all pairs at once; the ports share"),
    Algorithm("pairwise", "all_to_all", direct.pairwise_all_to_all, "(n-1)a + (n-1)/n s b", "ring", "any", _THAKUR),
    Algorithm("hierarchical", "all_reduce", hierarchical.all_reduce, "2(g-1)/g s b_box + 2(m-1)/m s/g b_net, m boxes of g", "ring", "multiple of box", _HIER),
    Algorithm("dissemination", "barrier", barrier.dissemination, "ceil(lg n) a", "tree", "any", _BARRIER),
)  # fmt: skip


def find_algorithm(collective: str, name: str) -> Algorithm:
    """The algorithm of that name for a collective.

    Raises
    ------
    ConfigError
        For an unknown collective or algorithm, naming the nearest.
    """
    if collective not in KINDS:
        raise ConfigError(f"unknown collective {collective!r}; {nearest(collective, KINDS)}")
    serving = {algorithm.name: algorithm for algorithm in ALGORITHMS if algorithm.collective == collective}
    if name not in serving:
        others = sorted({algorithm.collective for algorithm in ALGORITHMS if algorithm.name == name})
        if others:
            raise ConfigError(f"algorithm {name!r} serves {', '.join(others)}, not {collective}; valid: {', '.join(sorted(serving)) or 'none yet'}")
        raise ConfigError(f"unknown algorithm {name!r} for {collective}; {nearest(name, serving)}")
    return serving[name]


def schedule(
    collective: str | Collective,
    algorithm: str,
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
        Kind, such as ``"all_reduce"`` (then ``nranks`` is needed), or a :class:`~simcoll.collective.Collective`.
    algorithm
        Name of an algorithm that serves it: ``simcoll list algorithms``.
    nranks, root, in_place
        Passed to :class:`~simcoll.collective.Collective`.
    **params
        The algorithm's own: ``channels=``, ``pieces=``, ``box=`` and others.

    Raises
    ------
    ConfigError
        For an unknown collective, algorithm or parameter, or an algorithm that does not serve this rank count.

    Examples
    --------
    >>> print(schedule("all_reduce", "ring", nranks=8, channels=2))
    ring(channels=2) all_reduce n=8
    """
    if isinstance(collective, str):
        found = find_algorithm(collective, algorithm)
        if nranks is None:
            raise ConfigError(f"{collective} needs nranks, the number of ranks")
        collective = Collective(collective, nranks, root=root, in_place=in_place)
    else:
        found = find_algorithm(collective.kind, algorithm)
    for name, value in params.items():
        if name not in found.params:
            raise ConfigError(f"algorithm {algorithm!r} of {collective.kind} has no parameter {name!r}; {nearest(name, found.params)}")
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError(f"{name}={value!r}: expected a whole number, at least 1")
    return found.build(collective, **params)
