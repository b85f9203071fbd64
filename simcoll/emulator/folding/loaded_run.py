"""Loaded runs: all steps of a run, or of one message of every class, loaded into the compiled loops
and played again and again.

Only message costs and link capacities are new in a run; the loops then play it without returning to
Python (:mod:`simcoll.emulator.fast.whole`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Array, Ints
from simcoll.core.protocol import Protocol
from simcoll.emulator.engine_choice import MOST_SLOTS
from simcoll.emulator.fast.state import DONE, LAST, State
from simcoll.emulator.folding.quotient import Quotient
from simcoll.emulator.folding.unpriced import CostTerms, Ends, Folding, UnpricedRows
from simcoll.emulator.request import Request
from simcoll.emulator.steps.joint import joint_costs
from simcoll.emulator.steps.run_links import all_links, check_switches
from simcoll.emulator.steps.step_columns import Group, cache_key, turns
from simcoll.emulator.steps.timed import StepShape, Timed, joined_moves, joined_routes, timed_steps
from simcoll.errors import InternalError

if TYPE_CHECKING:
    from simcoll.emulator.fast.whole import Sheet, SheetCosts, Whole

__all__ = ["LoadedOutcome", "LoadedRun", "classes_run", "fits", "slim", "whole_run"]

FEW_A_STEP = 64
MOST_DEEP_SLOTS = 1 << 20
"""Most messages of a run that is loaded if it has at most ``FEW_A_STEP`` a step on average: the
work for each step, done once, is then most of a run (ring of 8,192 ranks on 8 channels, 64 bytes,
327,648 messages in 16,383 steps: 1.2 s a run step by step, 0.1 s loaded).
"""
MOST_JOINED = 1 << 26
"""Most links of switch operations: every message has room for those of the largest operation, at 8
bytes, so 512 MB at the worst.
"""


class LoadedOutcome(NamedTuple):
    """The outcome of a loaded run; ``trace_hash`` is empty if it was not computed, ``classes``
    ``None`` if every message was played.
    """

    time_fs: int
    trace_hash: str
    classes: int | None


@dataclass(slots=True, eq=False, repr=False)
class LoadedRun:
    """A run without costs.

    Attributes
    ----------
    whole
        The steps, loaded.
    rows, leader
        All distinct messages; leaders are row numbers over all steps.
    links, nlinks
        One link of every class, and the number of links; ``None`` if every message is played.
    ends
        Inputs of the trace hash of a folded run.
    capacities
        Link capacities under each protocol played so far.
    """

    whole: Whole
    rows: UnpricedRows
    leader: Ints | None
    links: Ints | None = None
    nlinks: int = 0
    ends: Ends | None = None
    capacities: dict[Protocol, tuple[Ints, Callable[[int], str]]] = field(default_factory=dict)

    def play(self, request: Request) -> LoadedOutcome:
        """Play a run."""
        plan = request.plan
        if plan.protocol not in self.capacities:
            capacity, _, name = all_links(plan, request.topology)
            self.capacities[plan.protocol] = capacity, name
        capacity, name = self.capacities[plan.protocol]
        if self.links is not None:
            # Caps of channels that this protocol lacks stand before those of ranks.
            caps = np.ones(self.nlinks - len(capacity), np.int64)
            capacity = np.insert(capacity, request.topology.nlinks, caps)[self.links]
        costs = self._costs(plan.protocol, cache_key(plan)[1])
        state = self.whole.play(costs, capacity, plan.protocol.launch_fs, self._names(name))
        rows = len(self.whole.row)
        if state.reg[DONE] != rows:
            raise InternalError(f"{state.reg[DONE]} of {rows} messages are done")
        classes = None if self.links is None else rows
        return LoadedOutcome(int(state.reg[LAST]), self._hash(state), classes)

    def _costs(self, protocol: Protocol, each: int) -> SheetCosts:
        """SheetCosts of all distinct rows, with chunks of ``each`` bytes."""
        from simcoll.emulator.fast.whole import SheetCosts

        costs, size = self.rows.price(protocol, each)
        if self.leader is not None:
            costs = joint_costs(self.leader, costs)
        return SheetCosts(*costs, size)

    def _names(self, name: Callable[[int], str]) -> Callable[[int], str]:
        links = self.links
        return (
            name
            if links is None
            else lambda link: f"class {link}, for example {name(int(links[link]))}"
        )

    def _hash(self, state: State) -> str:
        """The trace hash over all messages; empty if they are too many."""
        from simcoll.emulator.fast.trace_hashing import hash_steps

        ends = self.ends
        if self.links is None:
            return _hexdigest(state.sums)
        if ends is None:
            return ""
        sums, slots = np.zeros(2, np.uint64), self.whole.slots
        times = state.size[slots], state.start_fs[slots], state.end_fs[slots], state.done_fs[slots]
        hash_steps(sums, ends.steps, ends.patterns, (ends.src, ends.dst, ends.name), times)
        return _hexdigest(sums)


def _hexdigest(sums: Array) -> str:
    return "".join(f"{int(value):016x}" for value in sums)


def fits(request: Request) -> bool:
    """Whether all messages of a run are few enough to be loaded."""
    counts = request.summary
    wide = (
        counts.switched
        and _largest(counts.groups or turns(request.plan)) * counts.messages > MOST_JOINED
    )
    deep = counts.messages <= min(MOST_DEEP_SLOTS, FEW_A_STEP * counts.steps)
    return (deep or counts.messages <= MOST_SLOTS) and not wide


def _largest(groups: Iterable[Group]) -> int:
    """Number of transfers of the largest switch operation."""
    leaders = (step.leader for steps, _ in groups for step in steps if step.leader is not None)
    return max(
        (int(np.bincount(leader[leader >= 0]).max(initial=0)) for leader in leaders), default=0
    )


def whole_run(request: Request) -> LoadedRun:
    """A run with every message."""
    from simcoll.emulator.fast.whole import Whole  # imports numba

    plan, topology, counts = request.plan, request.topology, request.summary
    if counts.switched:
        check_switches(plan, topology)
    capacity, placement, _ = all_links(plan, topology)
    timer = CostTerms(plan.protocol, topology, placement)
    numbers: dict[Timed, int] = {}
    order: list[int] = []
    for steps, times in timed_steps(plan, topology, placement, counts.groups, timer):
        order += [numbers.setdefault(step, len(numbers)) for step in steps] * times
    moves = joined_moves([timer.moves[step] for step in numbers])
    sheet = _sheet(list(numbers), np.array(order, np.int64), plan.wait_pairs)
    whole = Whole(sheet, len(capacity), counts.lane_steps, hashed=True)
    routes = joined_routes([timer.routes[step] for step in numbers])
    return LoadedRun(whole, UnpricedRows(moves, routes, cache_key(plan)[1]), sheet.leader)


def slim(classes: Folding, *, hashed: bool) -> Folding:
    """The classes with the inputs of the trace hash, if there is to be one, instead of the
    patterns.
    """
    quotient = classes.quotient
    if not quotient.patterns:
        return classes
    ends = _ends(quotient) if hashed else None
    return replace(classes, quotient=replace(quotient, patterns=(), classes=()), ends=ends)


def classes_run(request: Request, classes: Folding, *, all_caps: bool) -> LoadedRun:
    """A run with one message of every class; ``all_caps``: the classes hold also where channels
    have caps.
    """
    from simcoll.emulator.fast.whole import Whole  # imports numba

    quotient = classes.quotient
    sheet = _sheet(quotient.steps, quotient.which, quotient.waits)
    if all_caps and not request.plan.protocol.channel_rate_uBps:
        begin = request.topology.nlinks
        end = begin + 2 * request.plan.nranks * request.plan.nchannels
        sheet = _without(sheet, (quotient.links >= begin) & (quotient.links < end))
    whole = Whole(sheet, len(quotient.links), quotient.lane_steps, hashed=False)
    return LoadedRun(
        whole, classes.rows, sheet.leader, quotient.links, quotient.nlinks, classes.ends
    )


def _ends(quotient: Quotient) -> Ends:
    small, large, which = quotient.starts()
    begins = _begins(quotient.patterns)
    columns = zip(
        *(
            (p.shape.src, p.shape.dst, names)
            for p, names in zip(quotient.patterns, quotient.classes, strict=True)
        ),
        strict=True,
    )
    return Ends(
        np.stack([which, large, small]),
        begins,
        *(np.concatenate(column).astype(np.int32) for column in columns),
    )


def _begins(steps: Sequence[Timed]) -> Ints:
    return np.cumsum([0, *map(len, steps)], dtype=np.int64)


def _sheet(steps: Sequence[Timed], order: Ints, waits: tuple[Array, Array]) -> Sheet:
    from simcoll.emulator.fast.whole import Sheet

    begins = _begins(steps)
    shapes = [step.shape for step in steps]
    width = max(shape.links.shape[1] for shape in shapes)
    links = np.full((begins[-1], width), -1, np.int32)
    weight = np.ones((begins[-1], width), np.int32)
    for shape, begin in zip(shapes, begins.tolist(), strict=False):
        rows = slice(begin, begin + len(shape.links))
        columns = slice(shape.links.shape[1])
        links[rows, columns] = shape.links
        weight[rows, columns] = shape.weight
    return Sheet(
        begins,
        order,
        np.concatenate([shape.sender for shape in shapes]),
        np.concatenate([shape.receiver for shape in shapes]),
        np.concatenate([shape.src for shape in shapes]),
        np.concatenate([shape.dst for shape in shapes]),
        links,
        weight,
        _sheet_leaders(shapes, begins),
        *waits,
    )


def _sheet_leaders(shapes: Sequence[StepShape], begins: Ints) -> Ints | None:
    """The leader of each row as a row of the sheet; -1 for none."""
    if all(shape.leader is None for shape in shapes):
        return None
    leaders = np.full(begins[-1], -1)
    for shape, begin in zip(shapes, begins.tolist(), strict=False):
        if shape.leader is not None:
            rows = slice(begin, begin + len(shape.leader))
            leaders[rows] = np.where(shape.leader >= 0, begin + shape.leader, -1)
    return leaders


def _without(sheet: Sheet, left_out: NDArray[np.bool_]) -> Sheet:
    """The sheet without some links."""
    links = np.where(np.append(left_out, False)[sheet.links], -1, sheet.links)
    order = np.argsort(links < 0, axis=1, kind="stable")
    return sheet._replace(
        links=np.take_along_axis(links, order, 1), weight=np.take_along_axis(sheet.weight, order, 1)
    )
