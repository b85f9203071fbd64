"""The single entry point: from a plan and a topology to a checked prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from time import perf_counter
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from simcoll.arrays import Array
from simcoll.core.facts import FactStore
from simcoll.core.memory_limits import VARIABLE, in_words, largest_automatic
from simcoll.core.numbers import check_seed
from simcoll.core.plan import Plan
from simcoll.core.vocabulary import DataMode
from simcoll.emulator.request import Request
from simcoll.emulator.result import Result
from simcoll.emulator.ways import play
from simcoll.errors import ConfigError, InternalError, expect, nearest
from simcoll.topology import Topology
from simcoll.topology.chosen_paths import check_paths, chosen_routes

if TYPE_CHECKING:
    from simcoll.bounds import Bottleneck, Bound
    from simcoll.core.definition import Definition
    from simcoll.emulator.events import Event, Policy, Timeline
    from simcoll.emulator.programs import Program, ProgramObserver, ProgramResult
    from simcoll.emulator.reference.ledger import Observer


__all__ = ["emulate", "run_checked"]

DATA: tuple[DataMode, ...] = ("auto", "exact", "none")


@overload
def emulate(
    plan: Plan,
    topology: Topology,
    *,
    data: str | Sequence[Array | None] = "auto",
    seed: int = 0,
    observer: Observer | None = None,
    bound: bool | Bottleneck = True,
    keep: bool = False,
    engine: str = "auto",
    quotient: bool | None = None,
    events: Sequence[Event | str] = (),
    policy: Policy | str = "stall",
) -> Result: ...
@overload
def emulate(
    plan: Program | Sequence[Plan],
    topology: Topology,
    *,
    data: str = "auto",
    seed: int = 0,
    observer: ProgramObserver | None = None,
    keep: bool = False,
    engine: str = "auto",
    quotient: bool | None = None,
    events: Sequence[Event | str] = (),
    policy: Policy | str = "stall",
) -> ProgramResult: ...
def emulate(
    plan: Plan | Program | Sequence[Plan],
    topology: Topology,
    *,
    data: str | Sequence[Array | None] = "auto",
    seed: int = 0,
    observer: Any = None,
    bound: bool | Bottleneck = True,
    keep: bool = False,
    engine: str = "auto",
    quotient: bool | None = None,
    events: Sequence[Event | str] = (),
    policy: Policy | str = "stall",
) -> Result | ProgramResult:
    """Play a plan, concurrent plans, or a program on a topology, and check the run.

    Parameters
    ----------
    plan
        A bound schedule, a list of bound schedules that run concurrently, or a
        :class:`simcoll.planning.Program`.
    topology
        The cluster; it must contain every endpoint in ``plan.ranks``.
    data
        ``"exact"``: move generated data whose result does not depend on the order of reduction, and
        compare it with the definition of the collective. A schedule that converts on the way moves
        random numbers between -1 and 1, and the difference is measured
        (``Result.conversion_error``). ``"none"``: timing only. ``"auto"``: exact if that takes
        at most 2 GiB (or the value of the environment variable ``SIMCOLL_MAX_BYTES``), else timing
        only. For a plan also one input array per rank.
    seed
        Seed of the generated data.
    observer
        Called for every transfer, for example a :class:`simcoll.emulator.traces.trace.Trace`; for a
        program, a :class:`simcoll.planning.ProgramObserver`.
    bound
        Whether to compute the lower bound of a plan; a proved schedule that beats it is an error.
        The ``certificate`` of an earlier bound for the same collective and placement saves its
        time.
    keep
        Whether the result keeps the completion time of every transfer, and for a program also of
        its operations.
    engine
        ``"simpy"``: the reference. ``"fast"``: compiled, with the same times to the last
        femtosecond. ``"auto"``: fast, if it is installed and the run is large enough. ``simpy``
        plays what the fast engine cannot, and ``Result.path`` states why.
    quotient
        Whether messages that provably behave alike are played only once (timing only). Default: if
        that saves a lot; ``False`` with ``engine="simpy"``.
    events
        Events during the run: :class:`simcoll.types.LinkShare`, :class:`~simcoll.types.Background`,
        :class:`~simcoll.types.Slow`, :class:`~simcoll.types.Stop`, or their text, such as
        ``"t=1ms box0.gpu3 -> box0.nic3 = 0 for 2ms"``.
    policy
        How to handle bytes that meet a link that is down: a :class:`simcoll.types.Policy`, or
        ``"stall"``, ``"stall 67ms x 7"``, ``"re-route"`` or ``"abort"``. A run that cannot reach
        its end has a ``cut``. Programs whose protocols leave different shares of links to data do
        not re-route.

    Raises
    ------
    ConfigError
        When the topology has too few ranks, a link has no capacity left, data does not fit the plan
        or the machine, or time exceeds the range of the clock.
    InternalError
        When a check of the run fails.

    Examples
    --------
    >>> import simcoll
    >>> from simcoll.topology import crossbar
    >>> plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), count=1 << 20)
    >>> result = emulate(plan, crossbar(4, "50 GB/s", "1 us"))
    >>> result.time_us, result.wrong
    (131.82912, 0)
    >>> outage = "t=30us gpu0 -> switch = 0 for 1ms"
    >>> emulate(plan, crossbar(4, "50 GB/s", "1 us"), events=[outage]).time_us
    1131.82912
    """
    seed = check_seed(seed)
    if not isinstance(plan, Plan):
        from simcoll.emulator.programs import Program, emulate_program

        program = Program.of(plan) if isinstance(plan, (list, tuple)) else plan
        if isinstance(program, Program):
            how: Any = {
                "data": data,
                "seed": seed,
                "observer": observer,
                "keep": keep,
                "events": events,
                "policy": policy,
            }
            return emulate_program(program, topology, **how, engine=engine, quotient=quotient)
        raise ConfigError(
            "emulate takes a plan, made by bind(schedule, count), a list of plans, or a program; "
            f"got {plan!r:.60}"
        )
    expect(topology, Topology, "emulate takes a topology, made by load_topology(name)")
    timeline = _timeline(plan, topology, events, policy)
    request = Request(
        plan,
        topology,
        observer=observer,
        timeline=timeline,
        keep=keep,
        engine=engine,
        quotient=quotient,
    )
    return run_checked(request, data=data, seed=seed, bound=bound)


def _timeline(
    plan: Plan, topology: Topology, events: Sequence[Event | str], policy: Policy | str
) -> Timeline | None:
    """The events of a run; nothing of them is loaded for the defaults."""
    if isinstance(events, tuple) and not events and policy == "stall":
        return None
    from simcoll.emulator.events import timeline_of

    return timeline_of(events, policy, topology, plan.nranks)


def run_checked(
    request: Request,
    *,
    data: str | Sequence[Array | None] = "auto",
    seed: int = 0,
    bound: bool | Bottleneck = True,
) -> Result:
    """Play a request on generated data and check the run, as :func:`emulate` does; ``request`` has
    no storage yet.
    """
    plan, topology, timeline = request.plan, request.topology, request.timeline
    _check_placement(plan, topology)
    _check_paths(plan, topology)
    inputs, no_data = _inputs(plan, data, seed)
    storage = None
    if inputs is not None:
        from simcoll.emulator.data.dataplane import Storage

        storage = Storage(plan, inputs)
    began = perf_counter()
    played = play(replace(request, storage=storage))
    wall = perf_counter() - began
    # A detour around a dead link may not be a route of the topology, for which the bound holds.
    firm = played.cut is None and (timeline is None or not timeline.detours)
    found = _bound(plan, topology, played, bound, firm=firm) if bound else None
    if played.cut is not None:
        return replace(played, no_data="the run was cut off", bound=found, wall_s=wall)
    if inputs is None or storage is None:
        return replace(played, no_data=no_data, bound=found, wall_s=wall)
    outputs = storage.outputs()
    if not isinstance(data, str):
        return replace(played, data="given", outputs=outputs, bound=found, wall_s=wall)
    if plan.schedule.wire_formats:
        error = _conversion_error(plan, inputs, outputs)
        return replace(
            played,
            data="converted",
            conversion_error=error,
            outputs=outputs,
            bound=found,
            wall_s=wall,
        )
    wrong = _wrong(plan, inputs, outputs)
    return replace(played, data="exact", wrong=wrong, outputs=outputs, bound=found, wall_s=wall)


def _check_placement(plan: Plan, topology: Topology) -> None:
    last = int(plan.ranks.max())
    if last >= topology.nranks:
        raise ConfigError(
            f"the plan places a rank on endpoint {last}; topology {topology.name!r} has "
            f"0..{topology.nranks - 1} only"
        )


def _check_paths(plan: Plan, topology: Topology) -> None:
    """Refuse paths that the topology does not have, before any engine looks for them."""
    vias = [transit.via for transit in plan.schedule.transits if transit.via]
    check_paths(topology, vias)
    for step in plan.steps(staged=False) if vias else ():
        if step.transits is not None:
            ends = plan.ranks[step.src_rank], plan.ranks[step.dst_rank]
            try:
                chosen_routes(topology, *ends, step.transits.paths())
            except ConfigError as error:
                raise ConfigError(f"{plan.schedule.title}, step {step.step}: {error}") from None


def _inputs(
    plan: Plan, data: str | Sequence[Array | None], seed: int
) -> tuple[Sequence[Array | None] | None, str]:
    """The data to move, or the reason for moving none; memory is checked before anything is
    allocated.
    """
    if isinstance(data, str) and data not in DATA:
        raise ConfigError(
            f"data {data!r} is not known; {nearest(data, DATA)}, or one array per rank"
        )
    if isinstance(data, str) and data == "none":
        return None, ""
    from simcoll.emulator.data.budget import check_exact, exact_bytes

    if not isinstance(data, str):
        check_exact(exact_bytes(plan, inputs_exist=True))
        return data, ""
    wanted = exact_bytes(plan)
    if data == "auto" and wanted > (most := largest_automatic()):
        return (
            None,
            f"exact data takes {in_words(wanted)}, more than the {in_words(most)} of {VARIABLE}",
        )
    check_exact(wanted)
    from simcoll.core.reference import exact_inputs, random_inputs

    return (random_inputs if plan.schedule.wire_formats else exact_inputs)(plan, seed), ""


def _wrong(plan: Plan, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> int:
    from simcoll.core.reference import count_wrong, expected_outputs

    return count_wrong(outputs, expected_outputs(plan, _arrays(plan, inputs)))


def _arrays(plan: Plan, inputs: Sequence[Array | None]) -> list[Array]:
    """The inputs, with empty arrays for none."""
    return [np.zeros(0, plan.dtype) if array is None else array for array in inputs]


def _conversion_error(
    plan: Plan, inputs: Sequence[Array | None], outputs: Sequence[Array | None]
) -> float:
    from simcoll.core.reference import expected_outputs, largest_difference

    return largest_difference(outputs, expected_outputs(plan, _arrays(plan, inputs)))


def _bound(
    plan: Plan, topology: Topology, played: Result, known: bool | Bottleneck, *, firm: bool
) -> Bound:
    """The lower bound; if ``firm``, the time of the run must respect it.

    If blocks differ, it is the bound for equal blocks of the smallest size, since more bytes never
    take less time.
    """
    from simcoll.bounds import lower_bound
    from simcoll.emulator.floor import latency_floor_fs

    collective = plan.collective
    total = plan.total_bytes
    if collective.definition is not None:
        return _custom_bound(plan, topology, played, collective.definition, firm=firm)
    if not isinstance(plan.sizes, int):
        sizes = plan.sizes
        if collective.kind == "all_to_all":  # a rank's own block need not move
            sizes = sizes[[row for row in range(len(sizes)) if row % (plan.nranks + 1)]]
        smallest = int(sizes.min()) if len(sizes) else 0
        total = (
            smallest * plan.dtype.itemsize * max(collective.input_slots, collective.output_slots)
        )
    chooses = any(transit.via for transit in plan.schedule.transits)
    found = lower_bound(
        collective.kind,
        _bounding(topology.with_ranks(plan.ranks), chooses=chooses),
        int(total * _least_share(plan)),
        root=collective.root or 0,
        latency_fs=latency_floor_fs(plan, topology),
        certificate=None if isinstance(known, bool) or chooses else known,
        in_network=played.switched,
        any_path=chooses,
    )
    return _firm_bound(plan, topology, played, found, firm=firm)


def _least_share(plan: Plan) -> Fraction:
    """The least number of bytes on the wire for each byte of data: less than one for some
    protocols and wire formats.
    """
    from simcoll.core.wire_format import wire_format

    formats = map(wire_format, plan.schedule.wire_formats)
    shares = [wire.least_bytes() / plan.dtype.itemsize for wire in formats]
    return min(plan.protocol.wire_factor, Fraction(1)) * min([*shares, Fraction(1)])


_forwarding: FactStore[Topology, Topology] = FactStore(
    lambda topology: replace(topology, gpus_forward=True)
)


def _bounding(topology: Topology, *, chooses: bool) -> Topology:
    """The topology that bounds a plan: a schedule that chooses paths may pass through GPUs."""
    return _forwarding(topology) if chooses and not topology.passes_gpus else topology


def _custom_bound(
    plan: Plan, topology: Topology, played: Result, definition: Definition, *, firm: bool
) -> Bound:
    """The lower bound of a custom collective."""
    from simcoll.bounds import custom_bound
    from simcoll.emulator.floor import latency_floor_fs

    sizes = plan.block_sizes
    elements = [sizes] * definition.nclasses if isinstance(sizes, int) else sizes.tolist()
    factor = plan.dtype.itemsize * _least_share(plan)
    chooses = any(transit.via for transit in plan.schedule.transits)
    bound = custom_bound(
        definition,
        _bounding(topology.with_ranks(plan.ranks), chooses=chooses),
        [int(count * factor) for count in elements],
        latency_fs=latency_floor_fs(plan, topology),
    )
    return _firm_bound(plan, topology, played, bound, firm=firm and not played.switched)


def _firm_bound(
    plan: Plan, topology: Topology, played: Result, bound: Bound, *, firm: bool
) -> Bound:
    """A bound that the run respects, if ``firm``."""
    # The bound is exact; a message rounds its time by less than 1 fs, and float64 keeps 53 bits.
    slack = played.steps + bound.time_fs // 2**50
    if firm and plan.proof is not None and played.time_fs + slack < bound.time_fs:
        raise InternalError(
            f"{plan} took {played.time_fs} fs on {topology.name}; "
            f"its lower bound is {bound.time_fs} fs ({bound.bottleneck})"
        )
    return bound
