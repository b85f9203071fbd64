"""The table of algorithms, and :func:`schedule`, which makes one."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
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
    neighbor,
    packed,
    recursive,
    ring,
    swing,
    switch,
    torus,
    tree,
    van_de_geijn,
)
from simcoll.algorithms.forest import topology_of
from simcoll.core.collective import KINDS, Collective
from simcoll.errors import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from simcoll.core.schedule import Schedule

__all__ = ["ALGORITHMS", "Algorithm", "default_algorithm", "find_algorithm", "schedule"]


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
        Time: ``a`` latency, ``b`` seconds per byte, ``g`` seconds per byte reduced, ``s`` total bytes, ``n`` ranks. On an ideal crossbar,
        but for torus, bidirectional_ring, hierarchical, switch, bfb and packed: theirs is that on the machine that they are made for.
    pattern
        ``ring`` or ``tree``: which of NCCL's latencies a message of it has.
    ranks
        Which rank counts it serves, in words.
    source
        Paper or program that describes it.
    topologies
        ``any``, ``boxes`` (made for boxes with rails) or ``torus`` (made for rings and tori): it runs, and is right, on all.
        ``switch``: only where switches multicast and reduce (the trait ``switch_reduce`` of a topology). ``direct``: only where ranks
        have links to each other.
    order
        The level of :data:`simcoll.proving.LEVELS` that its reductions have with any parameters; empty where nothing is reduced.
    """

    name: str
    collective: str
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


_CHAN = "Chan, Heimlich, Purkayastha, van de Geijn: Collective communication, CCPE 19 (2007)"
_PATARASUK = "Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms, JPDC 69 (2009)"
_THAKUR = "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19 (2005)"
_SANDERS = (
    "Sanders, Speck, Träff: Two-tree algorithms for full bandwidth broadcast, reduction and scan, ParCo 35 (2009)"
)
_BRUCK = "Bruck et al.: Efficient algorithms for all-to-all communications in multiport message-passing systems, TPDS 8 (1997)"
_PAT = "Jeaugey: PAT, a new algorithm for all-gather and reduce-scatter operations at scale, arXiv 2506.20252"
_NEIGHBOR = "Chen et al.: Performance evaluation of allgather algorithms on terascale Linux cluster, HPC Asia 2005"
_SWING = "De Sensi et al.: Swing, short-cutting rings for higher bandwidth allreduce, NSDI 2024, arXiv 2401.09356"
_BINE = "De Sensi et al.: Bine trees, enhancing collective operations by optimizing communication locality, SC 2025, arXiv 2508.17311"
_BUCKET = "Jain, Sabharwal: Optimal bucket algorithms for large MPI collectives on torus interconnects, ICS 2010"
_GEIJN = "Barnett et al.: Interprocessor collective communication library, SHPCC 1994"
_BARRIER = "Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, IJPP 17 (1988)"
_HIER = "Cho et al.: BlueConnect, MLSys 2019"
_PAIRS = "all pairs at once; the messages of a rank share its port"
_LINE = "one rank after the other"
_SHARP = "Graham et al.: Scalable hierarchical aggregation protocol (SHArP), COMHPC 2016; NVLS in NCCL since 2.17"

_BFB = "Zhao et al.: Efficient direct-connect topologies for collective communications, arXiv 2202.03356"
_FOREST = (
    "Zhao et al.: ForestColl, efficient collective communications on heterogeneous network fabrics, arXiv 2402.06787"
)

_ANY, _RANK, _RUN, _SAME = "any", "rank-consistent", "run-consistent", "position-independent"
_BOXES, _TORUS, _SWITCH, _DIRECT = "boxes", "torus", "switch", "direct"


def _a(
    collective: str,
    name: str,
    build: Callable[..., Schedule],
    pattern: str,
    cost: str,
    source: str,
    ranks: str = _ANY,
    topologies: str = _ANY,
    order: str = "",
) -> Algorithm:
    return Algorithm(name, collective, build, cost, pattern, ranks, source, topologies, order)


ALGORITHMS: tuple[Algorithm, ...] = (
    _a("all_reduce", "ring", ring.all_reduce, "ring", "2(n-1)a + 2(n-1)/n s b + (n-1)/n s g", _PATARASUK, order=_RUN),
    _a("all_reduce", "bidirectional_ring", ring.bidirectional_all_reduce, "ring",
       "as ring, half of the bytes each way round", _PATARASUK, topologies=_TORUS, order=_RUN),
    _a("all_reduce", "tree", tree.all_reduce, "tree", "2 ceil(lg n)(a + s b) + ceil(lg n) s g", _THAKUR, order=_SAME),
    _a("all_reduce", "double_tree", double_tree.all_reduce, "tree", "about 4 ceil(lg n) a + 2 s b, many pieces", _SANDERS, order=_RUN),
    _a("all_reduce", "recursive_doubling", recursive.doubling_all_reduce, "tree", "lg n (a + s b + s g), n = 2^k", _THAKUR, order=_SAME),
    _a("all_reduce", "rabenseifner", recursive.rabenseifner_all_reduce, "tree",
       "2 lg n a + 2(n-1)/n s b + (n-1)/n s g, n = 2^k", _THAKUR, order=_SAME),
    _a("all_reduce", "swing", swing.all_reduce, "tree",
       "2 lg n a + 2(n-1)/n s b + (n-1)/n s g, n = 2^k", _SWING, topologies=_TORUS, order=_RUN),
    _a("all_reduce", "bine", bine.all_reduce, "tree", "2 lg n a + 2(n-1)/n s b + (n-1)/n s g, n = 2^k", _BINE, order=_RUN),
    _a("all_reduce", "one_shot", direct.one_shot_all_reduce, "ring", "a + (n-1) s (b + g)", _PAIRS, order=_SAME),
    _a("all_reduce", "two_shot", direct.two_shot_all_reduce, "ring",
       "2a + 2(n-1)/n s b + (n-1)/n s g", _PAIRS, order=_SAME),
    _a("all_reduce", "hierarchical", hierarchical.all_reduce, "ring",
       "2(g-1)/g s b_box + 2(m-1)/m s/g b_net, m boxes of g; the larger with pieces", _HIER, "multiple of box", _BOXES, _RUN),
    _a("all_reduce", "torus", torus.all_reduce, "ring",
       "2 sum(k-1) a + 2(n-1)/n s b/d, equal dimensions of k, d links a rank", _BUCKET, topologies=_TORUS, order=_RUN),
    _a("all_reduce", "switch", switch.all_reduce, "ring", "2a + (1 + 1/n) s b, many pieces", _SHARP, topologies=_SWITCH, order=_RANK),
    _a("all_reduce", "bfb", bfb.all_reduce, "tree",
       "2 diameter * a + 2(n-1)/n s b/d, d links a rank", _BFB, topologies=_DIRECT, order=_RUN),
    _a("all_reduce", "packed", packed.all_reduce, "tree", "the bound of the topology, many pieces", _FOREST, ranks="up to 64", order=_RUN),
    _a("all_gather", "ring", ring.all_gather, "ring", "(n-1)a + (n-1)/n s b", _PATARASUK),
    _a("all_gather", "bidirectional_ring", ring.bidirectional_all_gather, "ring",
       "as ring, half of the bytes each way round", _PATARASUK, topologies=_TORUS),
    _a("all_gather", "recursive_doubling", recursive.doubling_all_gather, "tree", "lg n a + (n-1)/n s b, n = 2^k", _THAKUR),
    _a("all_gather", "bruck", bruck.all_gather, "tree", "ceil(lg n) a + (n-1)/n s b", _BRUCK),
    _a("all_gather", "pat", bruck.pat_all_gather, "tree", "ceil(lg n) a + (n-1)/n s b", _PAT),
    _a("all_gather", "neighbor_exchange", neighbor.all_gather, "ring", "n/2 a + (n-1)/n s b", _NEIGHBOR, ranks="even"),
    _a("all_gather", "bine", bine.all_gather, "tree", "lg n a + (n-1)/n s b, n = 2^k", _BINE),
    _a("all_gather", "direct", direct.all_gather, "ring", "a + (n-1)/n s b", _PAIRS),
    _a("all_gather", "hierarchical", hierarchical.all_gather, "ring",
       "(n-m)/n s b_box + (m-1)/n s b_net, m boxes; the larger with pieces", _HIER, "multiple of box", _BOXES),
    _a("all_gather", "torus", torus.all_gather, "ring",
       "sum(k-1) a + (n-1)/n s b/d, equal dimensions of k, d links a rank", _BUCKET, topologies=_TORUS),
    _a("all_gather", "switch", switch.all_gather, "ring", "a + (n-1)/n s b", _SHARP, topologies=_SWITCH),
    _a("all_gather", "bfb", bfb.all_gather, "tree", "diameter * a + (n-1)/n s b/d, d links a rank", _BFB, topologies=_DIRECT),
    _a("all_gather", "packed", packed.all_gather, "tree", "the bound of the topology, many pieces", _FOREST, ranks="up to 64"),
    _a("reduce_scatter", "ring", ring.reduce_scatter, "ring", "(n-1)a + (n-1)/n s b + (n-1)/n s g", _PATARASUK, order=_RUN),
    _a("reduce_scatter", "bidirectional_ring", ring.bidirectional_reduce_scatter, "ring",
       "as ring, half of the bytes each way round", _PATARASUK, topologies=_TORUS, order=_RUN),
    _a("reduce_scatter", "recursive_halving", recursive.halving_reduce_scatter, "tree",
       "lg n a + (n-1)/n s (b + g), n = 2^k", _THAKUR, order=_SAME),
    _a("reduce_scatter", "pairwise", direct.pairwise_reduce_scatter, "ring", "(n-1)a + (n-1)/n s (b + g)", _THAKUR, order=_RUN),
    _a("reduce_scatter", "pat", bruck.pat_reduce_scatter, "tree",
       "ceil(lg n) a + (n-1)/n s (b + g), less g unless n = 2^j - 2^k", _PAT, order=_RUN),
    _a("reduce_scatter", "bine", bine.reduce_scatter, "tree", "lg n a + (n-1)/n s (b + g), n = 2^k", _BINE, order=_RUN),
    _a("reduce_scatter", "direct", direct.reduce_scatter, "ring", "a + (n-1)/n s (b + g)", _PAIRS, order=_SAME),
    _a("reduce_scatter", "hierarchical", hierarchical.reduce_scatter, "ring",
       "(n-m)/n s b_box + (m-1)/n s b_net, m boxes; the larger with pieces", _HIER, "multiple of box", _BOXES, _RUN),
    _a("reduce_scatter", "torus", torus.reduce_scatter, "ring",
       "sum(k-1) a + (n-1)/n s b/d, equal dimensions of k, d links a rank", _BUCKET, topologies=_TORUS, order=_RUN),
    _a("reduce_scatter", "switch", switch.reduce_scatter, "ring", "a + s b", _SHARP, topologies=_SWITCH, order=_RANK),
    _a("reduce_scatter", "bfb", bfb.reduce_scatter, "tree",
       "diameter * a + (n-1)/n s (b/d + g), d links a rank", _BFB, topologies=_DIRECT, order=_RUN),
    _a("reduce_scatter", "packed", packed.reduce_scatter, "tree",
       "the bound of the topology, many pieces", _FOREST, ranks="up to 64", order=_RUN),
    _a("broadcast", "tree", tree.broadcast, "tree", "ceil(lg n)(a + s b)", _THAKUR),
    _a("broadcast", "chain", chain.broadcast, "ring", "(n-2+k)(a + s/k b), k pieces", _CHAN),
    _a("broadcast", "double_tree", double_tree.broadcast, "tree", "about 2 ceil(lg n) a + s b, many pieces", _SANDERS),
    _a("broadcast", "bine", bine.broadcast, "tree", "lg n (a + s b), n = 2^k", _BINE),
    _a("broadcast", "linear", direct.linear_broadcast, "ring", "(n-1)(a + s b)", _LINE),
    _a("broadcast", "scatter_ring", van_de_geijn.ring_broadcast, "ring", "(ceil(lg n) + n-1)a + 2(n-1)/n s b", _GEIJN),
    _a("broadcast", "scatter_doubling", van_de_geijn.doubling_broadcast, "tree", "2 lg n a + 2(n-1)/n s b", _GEIJN, ranks="power of 2"),
    _a("broadcast", "hierarchical", hierarchical.broadcast, "ring",
       "2(g-1)/g s b_box + ceil(lg m) s/g b_net, m boxes of g; max(2(g-1)/g s b_box, s/g b_net) with many pieces",
       _HIER, "multiple of box", _BOXES),
    _a("broadcast", "switch", switch.broadcast, "ring", "a + s b", _SHARP, topologies=_SWITCH),
    _a("reduce", "tree", tree.reduce, "tree", "ceil(lg n)(a + s b + s g)", _THAKUR, order=_SAME),
    _a("reduce", "chain", chain.reduce, "ring", "(n-2+k)(a + s/k (b + g)), k pieces", _CHAN, order=_RUN),
    _a("reduce", "double_tree", double_tree.reduce, "tree", "about 2 ceil(lg n) a + s b, many pieces", _SANDERS, order=_RUN),
    _a("reduce", "rabenseifner", recursive.rabenseifner_reduce, "tree",
       "2 lg n a + 2(n-1)/n s b + (n-1)/n s g, n = 2^k", _THAKUR, order=_SAME),
    _a("reduce", "bine", bine.reduce, "tree", "lg n (a + s b + s g), n = 2^k", _BINE, order=_SAME),
    _a("reduce", "linear", direct.linear_reduce, "ring", "(n-1)(a + s b + s g)", _LINE, order=_SAME),
    _a("gather", "tree", tree.gather, "tree", "ceil(lg n) a + (n-1)/n s b", _THAKUR),
    _a("gather", "bine", bine.gather, "tree", "lg n a + (n-1)/n s b, n = 2^k", _BINE),
    _a("gather", "linear", direct.linear_gather, "ring", "(n-1)a + (n-1)/n s b", _LINE),
    _a("scatter", "tree", tree.scatter, "tree", "ceil(lg n) a + (n-1)/n s b", _THAKUR),
    _a("scatter", "bine", bine.scatter, "tree", "lg n a + (n-1)/n s b, n = 2^k", _BINE),
    _a("scatter", "linear", direct.linear_scatter, "ring", "(n-1)a + (n-1)/n s b", _LINE),
    _a("all_to_all", "direct", direct.all_to_all, "ring", "a + (n-1)/n s b", _PAIRS),
    _a("all_to_all", "pairwise", direct.pairwise_all_to_all, "ring", "(n-1)a + (n-1)/n s b", _THAKUR),
    _a("all_to_all", "xor", direct.xor_all_to_all, "ring", "(n-1)a + (n-1)/n s b", _THAKUR, ranks="power of 2"),
    _a("all_to_all", "bruck", bruck.all_to_all, "tree", "lg n (a + s/2 b), n = 2^k; equal blocks", _BRUCK),
    _a("all_to_all", "hierarchical", hierarchical.all_to_all, "ring",
       "(g-1)/g s b_box + (m-1)/m s b_net, m boxes of g; the larger with pieces", _HIER, "multiple of box", _BOXES),
    _a("send_recv", "direct", direct.send_recv, "ring", "a + s b", "any pairs at once"),
    _a("barrier", "dissemination", barrier.dissemination, "tree", "ceil(lg n) a", _BARRIER),
    _a("barrier", "tree", barrier.tree, "tree", "2 ceil(lg n) a", _BARRIER),
    _a("barrier", "linear", barrier.linear, "ring", "2(n-1)a", _LINE),
)  # fmt: skip

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
