"""The tuner: chooses the algorithm, its parameters and the protocol for a collective, a size and a
topology.

Every front end uses it: ``simcoll perf`` and scenarios, rank programs, PyTorch, realcoll, and
:func:`schedule` without a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from simcoll.algorithms import ALGORITHMS, find_algorithm
from simcoll.algorithms import schedule as schedule_named
from simcoll.algorithms.custom import direct
from simcoll.algorithms.imported import named_collective, names_custom, split_choice
from simcoll.algorithms.registry import checked_params, meant_by, refusal
from simcoll.core.collective import Collective
from simcoll.core.facts import FactStore
from simcoll.core.protocol import GENERATIONS, PROTOCOL_NAMES, Protocol, protocol
from simcoll.core.schedule import SWITCH_REDUCE, Schedule
from simcoll.errors import ConfigError, missing_package, nearest
from simcoll.files.paths import is_file

if TYPE_CHECKING:
    from pathlib import Path

    from simcoll.algorithms.registered import Algorithm
    from simcoll.topology import Topology
from simcoll.topology.sub_tori import closed_dims

__all__ = [
    "NCCL_PROTOCOLS",
    "Choice",
    "candidates",
    "carries",
    "collective_on",
    "costs",
    "default_algorithm",
    "default_protocols",
    "first_algorithm",
    "parse_choice",
    "schedule",
    "schedule_on",
]

NCCL_PROTOCOLS = ("LL", "LL128", "Simple")
_FLAGGED = ("LL", "LL128")
"""Protocols whose words or lines carry an arrival flag; a switch that reduces would reduce the
flags as well.
"""

MAX_CHANNELS = 8
"""Default channels on machines with several GPUs per node: one for each NIC of eight."""

FEW_RANKS = 16
"""The largest world size at which ``packed`` runs by default; beyond, finding its trees takes
long.
"""
SWITCHED_RANKS = 128
"""The largest world size at which ``switch`` with an operation per rank runs by default; beyond,
joining their links takes long.
"""
GROWN_RANKS = 64
"""The largest world size at which ``packed`` serves every topology; beyond, it needs nodes that are
alike.
"""

SMALL_BYTES = 65536
_SMALL = {"all_reduce": "recursive_doubling", "reduce": "tree", "broadcast": "tree"}
"""Up to ``SMALL_BYTES`` latency dominates, and the fewest steps are best."""

# The default algorithm for a power-of-two number of ranks, and for other numbers.
_DEFAULTS = {
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

# A parameter that only one family of algorithms takes selects that family.
_ASKED_BY = (
    ("box", "hierarchical"),
    ("pod", "hierarchical"),
    ("dims", "torus"),
    ("topology", "packed"),
)


ParamValue: TypeAlias = int | float | bool | str | tuple[int, ...]
"""The value of a parameter of an algorithm, as texts spell it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm with parameters, such as ``ring:channels=4``; the algorithm may also be a file
    or ``module:function``.
    """

    algorithm: str
    params: tuple[tuple[str, ParamValue], ...] = ()

    def __str__(self) -> str:
        texts = [
            (name, value if isinstance(value, tuple) else (value,)) for name, value in self.params
        ]
        return ":".join(
            [self.algorithm, *(f"{name}={'x'.join(map(str, value))}" for name, value in texts)]
        )


def parse_choice(text: str, folder: Path | None = None) -> Choice:
    """Read an algorithm and its parameters from text: a name, a file (looked for in ``folder``
    first), or ``module:function``.

    Raises
    ------
    ConfigError
        When a parameter is not a name and a whole number, or several joined by ``x``. Those of
        ``module:function`` have values of any type: whole numbers, decimals, sizes joined by ``x``,
        ``true`` and ``false``, and else text.

    Examples
    --------
    >>> parse_choice("ring:channels=4:pieces=2")
    Choice(algorithm='ring', params=(('channels', 4), ('pieces', 2)))
    >>> parse_choice("ring:channels=4,pieces=2") == parse_choice("ring:channels=4:pieces=2")
    True
    >>> parse_choice("torus:dims=4x4").params
    (('dims', (4, 4)),)
    >>> parse_choice("plans/mine.xml"), parse_choice("mine.algorithms:star:arms=3").algorithm
    (Choice(algorithm='plans/mine.xml', params=()), 'mine.algorithms:star')
    >>> parse_choice("mine:star:mode=fast:share=0.5").params
    (('mode', 'fast'), ('share', 0.5))
    """
    joined = split_choices(text.strip())
    choice = joined[0] if len(joined) == 1 else text.strip()
    name, parts = split_choice(choice, {algorithm.name for algorithm in ALGORITHMS})
    if re.fullmatch(r"\w+=[0-9x]+", name):
        raise ConfigError(
            f"{name!r} is a parameter; it follows its algorithm after a colon, as in "
            "'ring:channels=4:pieces=2'"
        )
    if folder is not None and not parts and is_file(path_in_folder := str(folder / name)):
        name = path_in_folder
    params: list[tuple[str, ParamValue]] = []
    for part in parts:
        key, equals, value = part.partition("=")
        if any(key == earlier for earlier, _ in params):
            raise ConfigError(f"parameter {key!r} is given twice in algorithm {text!r}")
        if ":" in name:
            params.append((key, _own_value(part, key, value, bool(equals))))
            continue
        numbers = value.split("x")
        if not all(number.isascii() and number.isdecimal() for number in numbers):
            example = "write for example 'ring:channels=4:pieces=2' or 'torus:dims=4x4'"
            raise ConfigError(f"cannot read {part!r} in algorithm {text!r}; {example}")
        if max(map(len, numbers)) > 9:
            raise ConfigError(
                f"{part!r} is out of range in algorithm {text!r}; numbers have at most 9 digits"
            )
        integers = tuple(int(number) for number in numbers)
        params.append((key, integers if len(integers) > 1 or key == "dims" else integers[0]))
    return Choice(name, tuple(params))


def _own_value(part: str, key: str, value: str, has_value: bool) -> ParamValue:
    """The value of a parameter of one's own function, by its form."""
    if not has_value or not key.isidentifier() or not value:
        raise ConfigError(
            f"cannot read {part!r}: expected a parameter of the function and its value, such as "
            "arms=3, share=0.5, mode=fast, wide=true or dims=4x4"
        )
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if re.fullmatch(r"[-+]?\d{1,18}", value, re.ASCII):
        return int(value)
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", value, re.ASCII | re.IGNORECASE):
        return float(value)
    if re.fullmatch(r"\d{1,9}(x\d{1,9})+", value, re.ASCII):
        return tuple(map(int, value.split("x")))
    return value


def split_choices(text: str) -> list[str]:
    """Split a list of algorithms at its commas; a part that is a parameter belongs to the one
    before it.

    >>> split_choices("ring,own:f:mode=fast,share=0.5,tree")
    ['ring', 'own:f:mode=fast:share=0.5', 'tree']
    """
    choices: list[str] = []
    for part in text.split(","):
        if choices and re.match(r"\s*\w+=", part):
            choices[-1] = f"{choices[-1]}:{part.strip()}"
        else:
            choices.append(part)
    return choices


def default_algorithm(
    collective: Collective, params: Iterable[str] = (), total_bytes: int | None = None
) -> str:
    """Choose the algorithm that runs when none is named.

    A parameter that only one family takes selects that family, where it serves the collective and
    the number of ranks: ``box`` and ``pod`` the hierarchical algorithm, ``dims`` the torus,
    ``topology`` the packed one. Otherwise small sizes get the fewest steps. Larger and unknown
    sizes depend on the number of ranks. A power of two gets the recursive algorithm, which has both
    the fewest steps and the fewest bytes (all-to-all: the fewest bytes). Other numbers get a
    bandwidth-optimal algorithm where data goes to all ranks, and a binomial tree where there is a
    root.

    >>> eight, six = Collective("all_reduce", 8), Collective("all_reduce", 6)
    >>> default_algorithm(eight), default_algorithm(six, ["box"])
    ('rabenseifner', 'hierarchical')
    """
    kind = collective.kind
    if collective.definition is not None:
        return "direct"
    serving = {
        a.name for a in ALGORITHMS if a.collective == kind and refusal(a, collective, 1) is None
    }
    for param, name in _ASKED_BY:
        if (
            param in params
            and name in serving
            and (name != "packed" or collective.nranks <= GROWN_RANKS)
        ):
            return name
    if total_bytes is not None and total_bytes <= SMALL_BYTES and kind in _SMALL:
        return _SMALL[kind]
    power, any_number = _DEFAULTS[kind]
    return any_number if collective.nranks & (collective.nranks - 1) else power


def first_algorithm(kind: str) -> str:
    """The first algorithm that ``simcoll list algorithms`` shows for a collective; realcoll's
    default.

    >>> first_algorithm("broadcast")
    'tree'
    """
    if names_custom(kind):
        return "direct"
    return next(
        (algorithm.name for algorithm in ALGORITHMS if algorithm.collective == kind), "ring"
    )


def schedule(
    collective: str | Collective,
    algorithm: str | None = None,
    *,
    nranks: int | None = None,
    root: int | None = None,
    in_place: bool = False,
    **params: Any,
) -> Schedule:
    """Build the schedule of an algorithm for a collective.

    Parameters
    ----------
    collective
        Kind, such as ``"all_reduce"`` (then ``nranks`` or ``topology`` is needed), or a
        :class:`~simcoll.core.collective.Collective`.
    algorithm
        Name of an algorithm that serves the collective: see ``simcoll list algorithms``. Default:
        chosen by :func:`default_algorithm`; the schedule's name shows the choice. ``topology`` is
        then a hint, which takes effect if the chosen algorithm is built for a topology and can be
        built for this one.
    nranks, root, in_place
        Passed to :class:`~simcoll.core.collective.Collective`.
    **params
        Parameters of the algorithm: ``channels=``, ``pieces=``, ``box=``, ``pod=`` (whole numbers),
        ``dims=`` (several), or ``topology=``, a :class:`~simcoll.topology.Topology`, for algorithms
        built for one.

    Raises
    ------
    ConfigError
        For an unknown collective, algorithm or parameter, or an algorithm that does not serve this
        rank count.

    Examples
    --------
    >>> print(schedule("all_reduce", "ring", nranks=8, channels=2))
    ring(channels=2, pieces=1) all_reduce n=8
    """
    if algorithm is not None:
        return schedule_named(
            collective, algorithm, nranks=nranks, root=root, in_place=in_place, **params
        )
    set_params = {name: value for name, value in params.items() if value is not None}
    hint = set_params.get("topology")
    if isinstance(collective, str) and nranks is None:
        nranks = getattr(hint, "nranks", None)
    request = meant_by(collective, nranks, root, in_place=in_place)
    name = default_algorithm(request, set_params)
    if hint is None:
        return schedule_named(request, name, **set_params)
    return _schedule_for_hint(request, name, set_params)


def _schedule_for_hint(collective: Collective, name: str, set_params: dict[str, Any]) -> Schedule:
    """The schedule for a hinted topology, or the general one where that cannot be built."""
    hint = set_params["topology"]
    if not hasattr(hint, "rank_nodes"):
        raise ConfigError(
            f"topology={hint!r:.60}: expected a Topology, such as load_topology('dgx-h100')"
        )
    if hint.nranks != collective.nranks:
        raise ConfigError(
            f"schedule(): topology {hint.name!r} has {hint.nranks} ranks, {collective.kind} "
            f"{collective.nranks}"
        )
    plain = {param: value for param, value in set_params.items() if param != "topology"}
    registered = find_algorithm(collective.kind, name)
    if "topology" in registered.params:
        checked = checked_params(registered, collective, set_params)
        try:
            return registered.build(collective, **checked)
        except ConfigError:  # for example, the topology has no such trees
            name = default_algorithm(collective, plain)
    return schedule_named(collective, name, **plain)


def collective_on(
    kind: str, nranks: int, root: int | None = None, *, in_place: bool = False
) -> Collective:
    """The collective as measured; send_recv is the shift by one rank of nccl-tests, and a text
    with a colon or of a file names a custom one.
    """
    if names_custom(kind):
        if root is not None or in_place:
            raise ConfigError(f"{kind} takes neither a root nor in_place: it has its definition")
        return named_collective(kind, nranks)
    pairs = (
        tuple((rank, (rank + 1) % nranks) for rank in range(nranks)) if kind == "send_recv" else ()
    )
    return Collective(kind, nranks, root, pairs, in_place)


def schedule_on(
    collective: Collective,
    algorithm: str,
    topology: Topology,
    params: Mapping[str, Any] | None = None,
    *,
    most_channels: int = MAX_CHANNELS,
) -> Schedule:
    """Build a named algorithm for a topology, which supplies the missing ``box``, ``channels``,
    ``dims`` and ``topology``.

    Raises
    ------
    ConfigError
        For an algorithm or parameters that do not serve the collective or the topology.
    """
    registered = find_algorithm(collective.kind, algorithm)
    if registered.topologies == "switch" and "switch_reduce" not in topology.traits:
        raise ConfigError(
            f"{algorithm} needs switches that reduce; those of {topology.name} do not"
        )
    if (
        registered.topologies == "sharp"
        and "sharp" not in topology.traits.get("switch_reduce", "").split()
    ):
        raise ConfigError(
            f"{algorithm} needs a network that reduces (switch_reduce: sharp), not that of "
            f"{topology.name}"
        )
    filled = dict(params or {})
    box = topology.ranks_per_node
    if box is not None and box > 1:
        if "box" in registered.params and (box < topology.nranks or algorithm == "hierarchical"):
            filled.setdefault("box", box)
        if "channels" in registered.params:
            filled.setdefault("channels", min(box, most_channels))
    elif box == 1 and algorithm == "nccl_tree":
        # A tree over the nodes; the default would be one chain.
        filled.setdefault("box", box)
    if "dims" in registered.params and (dims := closed_dims(topology)):
        filled.setdefault("dims", dims)
    if "topology" in registered.params:
        filled.setdefault("topology", topology)
    return schedule_named(collective, algorithm, **filled)


def candidates(
    collective: Collective, topology: Topology, protocols: Sequence[str] = ("ideal",)
) -> tuple[list[tuple[Choice, Schedule]], list[str]]:
    """Build every algorithm that serves a collective on a topology under one of the protocols.

    List the others with reasons.
    """
    fitting: list[tuple[Choice, Schedule]] = []
    left_out: list[str] = []
    for algorithm in (*ALGORITHMS, direct):
        if algorithm.collective != collective.kind:
            continue
        if slow := _slow(algorithm.name, collective, topology):
            left_out.append(
                f"{algorithm.name}: {slow} takes long for {topology.nranks} ranks; request it with "
                f"-a {algorithm.name}"
            )
            continue
        try:
            candidate = schedule_on(collective, algorithm.name, topology)
            if not any(carries(name, candidate) for name in protocols):
                costs(protocols[0], topology, candidate)  # raises the error that states the reason
            fitting.append((Choice(algorithm.name), candidate))
        except ConfigError as error:
            left_out.append(f"{algorithm.name}: {error}")
        except ModuleNotFoundError as error:
            if not (needs := missing_package(error)):
                raise
            left_out.append(f"{algorithm.name}: {needs}")
    return fitting, left_out


def _slow(algorithm: str, collective: Collective, topology: Topology) -> str:
    """The slow part of an algorithm that keeps it from running by default; empty for most."""
    if algorithm == "packed" and topology.nranks > FEW_RANKS:
        return "finding its trees"
    rooted = collective.root is not None  # then its switches do a single operation
    if (
        algorithm == "switch"
        and not rooted
        and topology.nranks > SWITCHED_RANKS
        and "switch_reduce" in topology.traits
    ):
        return "joining the links of its operations"
    return ""


def default_protocols(topology: Topology) -> tuple[tuple[str, ...], str]:
    """The protocols that run when none is named, and a line of explanation if they are not NCCL's.

    >>> from simcoll.topology import crossbar
    >>> default_protocols(crossbar(2, "1 GB/s"))[0]
    ('ideal',)
    """
    if topology.traits.get("generation") in GENERATIONS:
        return NCCL_PROTOCOLS, ""
    return ("ideal",), f"protocol ideal: NCCL has no constants for {_gpus(topology)}"


def _gpus(topology: Topology) -> str:
    generation = topology.traits.get("generation")
    description = (
        f"whose GPUs are of generation {generation!r}"
        if generation
        else "which names no GPU generation"
    )
    return f"topology {topology.name!r}, {description}"


def costs(
    name_or_costs: str | Protocol, topology: Topology, schedule: Schedule | None = None
) -> Protocol:
    """The constants of a protocol for the GPUs of a topology, for a schedule or for single
    messages.

    Raises
    ------
    ConfigError
        For an unknown protocol, an NCCL protocol on GPUs for which NCCL has no constants, and one
        with flags for a schedule that reduces in switches.
    """
    if isinstance(name_or_costs, Protocol):
        return name_or_costs
    if name_or_costs not in PROTOCOL_NAMES:
        raise ConfigError(
            f"unknown protocol {name_or_costs!r}; {nearest(str(name_or_costs), PROTOCOL_NAMES)}"
        )
    if name_or_costs == "ideal":
        return protocol(name_or_costs)
    generation = topology.traits.get("generation")
    if generation not in GENERATIONS:
        raise ConfigError(
            f"protocol {name_or_costs!r} is NCCL's, which has constants for "
            f"{', '.join(GENERATIONS)}, not for {_gpus(topology)}; "
            "use protocol 'ideal', or name the generation in the topology file under [traits]"
        )
    if schedule is None:
        return protocol(name_or_costs, generation=generation)
    if not carries(name_or_costs, schedule):
        raise ConfigError(
            f"protocol {name_or_costs!r} mixes flags with the data, which a switch would add up: "
            f"{schedule.name} runs under Simple or ideal"
        )
    algorithm = _algorithm_of(schedule)
    return protocol(
        name_or_costs, pattern=algorithm.pattern if algorithm else "ring", generation=generation
    )


def carries(protocol_name: str, schedule: Schedule) -> bool:
    """Whether a schedule can run under a protocol.

    A switch that reduces cannot take a protocol with flags; NCCL uses only Simple there.

    >>> reduction = schedule("all_reduce", "switch", nranks=4)
    >>> multicast = schedule("broadcast", "switch", nranks=4, root=0)
    >>> carries("LL", reduction), carries("LL", multicast)
    (False, True)
    """
    if protocol_name not in _FLAGGED:
        return True
    return not _reduces_in_switches(schedule)


def _has_switch_reduction(schedule: Schedule) -> bool:
    algorithm = _algorithm_of(schedule)
    plain = algorithm is not None and algorithm.topologies not in {"switch", "sharp"}
    return not plain and any((step.op == SWITCH_REDUCE).any() for step in schedule.steps())


_reduces_in_switches: FactStore[Schedule, bool] = FactStore(_has_switch_reduction)


def _algorithm_of(schedule: Schedule) -> Algorithm | None:
    key = (schedule.collective.kind, schedule.name)
    return next(
        (algorithm for algorithm in ALGORITHMS if (algorithm.collective, algorithm.name) == key),
        None,
    )
