"""Repeated runs: steps, routes, classes and waits are derived once for all protocols and, with equal chunks, all sizes.

Only message costs and link capacities are new in a run; the compiled loops then play it without returning to Python
(:mod:`simcoll.emulator.fast.whole`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Array, Ints, Shorts, Words
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import Schedule
from simcoll.emulator.engine_choice import (
    FEWEST_FOLDED,
    LEAST_A_STEP,
    MOST_HASHED,
    all_links,
    check_engine,
    few_messages,
    result_of,
)
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.fast.state import DONE, LAST, State
from simcoll.emulator.folding.quotient import Quotient
from simcoll.emulator.folding.remembered import CostTerms, Folding, folding, folding_key
from simcoll.emulator.model import message_costs
from simcoll.emulator.reference.prepared import check_switches
from simcoll.emulator.result import Result
from simcoll.emulator.steps.joint import joint_costs
from simcoll.emulator.steps.step_columns import EVEN, Group, Moves, PlanSummary, cache_key, summary, turns
from simcoll.emulator.steps.timed import Timed, joined_moves, joined_routes, timed_steps
from simcoll.errors import InternalError
from simcoll.topology import Routes, Topology

if TYPE_CHECKING:
    from simcoll.emulator.fast.whole import Sheet, SheetCosts, Whole


__all__ = ["Rehearsal", "forget_sizes", "play_rehearsed"]

MOST_SLOTS = 1 << 17
"""Limit of messages of a run, or of its classes, held at a time, at some 600 bytes each."""
MOST_JOINED = 1 << 26
"""Limit of links of switch operations: every message has room for those of the largest operation."""
MANY_UNEVEN = 1 << 15
"""Up to this number, messages of unequal chunks are played one by one, because their classes hold for one size only. The same holds for
switch operations in a run that may be the only one; beyond, the links of all operations cost more than finding classes."""


class Ends(NamedTuple):
    """The inputs of the trace hash apart from times, in the form of :func:`simcoll.emulator.fast.trace_hashing.hash_steps`."""

    steps: Ints
    patterns: Ints
    src: Shorts
    dst: Shorts
    name: Shorts


@dataclass(slots=True, eq=False, repr=False)
class Rehearsal:
    """A run without costs.

    Attributes
    ----------
    whole
        The steps, loaded.
    each
        Bytes per chunk for which its sizes hold.
    moves, routes, leader
        Of all distinct rows; leaders are row numbers over all steps.
    links, members
        One link of every class and the class of every link; ``None`` if every message is played.
    ends
        Inputs of the trace hash of a folded run.
    capacities
        Link capacities under each protocol played so far.
    """

    whole: Whole
    each: int
    moves: Moves
    routes: Routes
    leader: Ints | None
    links: Ints | None = None
    members: Ints | None = None
    ends: Ends | None = None
    capacities: dict[Protocol, tuple[Ints, Callable[[int], str]]] = field(default_factory=dict)

    def play(self, plan: Plan, topology: Topology, seen: PlanSummary, each: int, why: str) -> Result | None:
        """Play a plan; ``None`` if its protocol gives links of one class different capacities."""
        if plan.protocol not in self.capacities:
            capacity, _, name = all_links(plan, topology)
            self.capacities[plan.protocol] = capacity, name
        capacity, name = self.capacities[plan.protocol]
        links, members = self.links, self.members
        if links is not None and members is not None:
            caps = np.ones(len(members) - len(capacity), np.int64)  # absent under this protocol
            capacity = np.append(capacity, caps)
            if not np.array_equal(capacity[links][members], capacity):
                return None
            capacity = capacity[links]
        state = self.whole.play(self._costs(plan, each), capacity, plan.protocol.launch_fs, self._names(name))
        if state.reg[DONE] != len(self.whole.row):
            raise InternalError(f"{state.reg[DONE]} of {len(self.whole.row)} messages are done")
        sums = state.sums
        if self.ends is not None:
            sums = self._hash(self.ends, state)
        classes = None if links is None else len(self.whole.row)
        trace_hash = "".join(f"{int(value):016x}" for value in sums)
        if links is not None:
            why = f"quotient: {classes} classes stand for {seen.messages} messages"
            if self.ends is None:
                why, trace_hash = f"{why}; too many for a trace hash", ""
        return result_of(
            plan, topology, why or f"{seen.messages} messages", seen, int(state.reg[LAST]), trace_hash, None, classes
        )

    def _costs(self, plan: Plan, each: int) -> SheetCosts:
        """Costs of all distinct rows, with chunks of ``each`` bytes."""
        from simcoll.emulator.fast.whole import SheetCosts

        moves, leader = self.moves, self.leader
        size = moves.size_bytes // self.each * each
        local = moves.src_rank == moves.dst_rank
        costs = message_costs(size, moves.op, local, self.routes, plan.protocol, 0, moves.operands)
        fixed = np.where(local, -1, costs.delay_fs), costs.busy_fs, costs.wire_bytes, costs.post_fs
        delay, busy, wire, post = fixed if leader is None else joint_costs(leader, *fixed)
        return SheetCosts(delay, busy, wire, post, size)

    def _names(self, name: Callable[[int], str]) -> Callable[[int], str]:
        links = self.links
        return name if links is None else lambda link: f"class {link}, for example {name(int(links[link]))}"

    def _hash(self, ends: Ends, state: State) -> Words:
        """The sums of the trace hash over all messages."""
        from simcoll.emulator.fast.trace_hashing import hash_steps

        sums, here = np.zeros(2, np.uint64), self.whole.slots
        times = state.size[here], state.start_fs[here], state.end_fs[here], state.done_fs[here]
        hash_steps(sums, ends.steps, ends.patterns, (ends.src, ends.dst, ends.name), times)
        return sums


def play_rehearsed(plan: Plan, topology: Topology, engine: str) -> Result | None:
    """Play a plan without data in the compiled loops if its schedule runs repeatedly.

    ``None`` if that is not supported.
    """
    protocol, known = plan.protocol, plan.schedule.known
    check_engine(engine, None)
    if not COMPILED or engine == "simpy" or protocol.jitter_fs or protocol.fifo_depth:
        return None
    key, each, seen = folding_key(plan, topology), cache_key(plan)[1], summary(plan)
    if key[0] is None or (engine == "auto" and seen.messages <= few_messages()):
        return None
    why = "asked for" if engine == "fast" else f"{seen.messages} messages"
    found: Rehearsal | int | None = known.rehearsals.get(key, known.expected_protocols - (key[0] != EVEN))
    if isinstance(found, int):
        known.rehearsals = {old: kept for old, kept in known.rehearsals.items() if old[0] in {EVEN, key[0]}}
        known.rehearsals[key] = found + 1
        if found > 0 or (seen.switched and seen.messages > MANY_UNEVEN):
            found = known.rehearsals[key] = _rehearsed(plan, topology, seen)
    if not isinstance(found, Rehearsal) or known.rehearsals.pop(key, None) is not found:  # another thread is playing it
        return None
    played = found.play(plan, topology, seen, each, why)
    known.rehearsals[key] = found
    return played


def forget_sizes(schedule: Schedule) -> None:
    """Forget results that hold only for sizes with unequal chunks."""
    known = schedule.known
    known.foldings, known.rehearsals = (
        {key: kept for key, kept in some.items() if key[0] == EVEN} for some in (known.foldings, known.rehearsals)
    )
    known.summaries = {key: kept for key, kept in known.summaries.items() if key == EVEN}


def _rehearsed(plan: Plan, topology: Topology, seen: PlanSummary) -> Rehearsal | None:
    """The run without costs; ``None`` if messages or classes are too many."""
    even = folding_key(plan, topology)[0] == EVEN
    many = max(FEWEST_FOLDED if even else MANY_UNEVEN, LEAST_A_STEP * seen.steps)
    found = None
    if seen.messages > many:
        found = _folded(plan, topology, seen)
        if found is not None:  # further protocols need only the classes
            known = plan.schedule.known
            known.summaries = {key: replace(kept, groups=None) for key, kept in known.summaries.items()}
    if found is not None or seen.messages > MOST_SLOTS:
        return found
    wide = seen.switched and _largest(seen.groups or turns(plan)) * seen.messages > MOST_JOINED
    return None if wide else _every(plan, topology, seen)


def _largest(groups: Iterable[Group]) -> int:
    """Number of transfers of the largest switch operation."""
    leaders = (step.leader for steps, _ in groups for step in steps if step.leader is not None)
    return max((int(np.bincount(leader[leader >= 0]).max(initial=0)) for leader in leaders), default=0)


def _every(plan: Plan, topology: Topology, seen: PlanSummary) -> Rehearsal:
    """A run with every message."""
    if seen.switched:
        check_switches(plan, topology)
    from simcoll.emulator.fast.whole import Whole  # imports numba

    capacity, placement, _ = all_links(plan, topology)
    timer = CostTerms(plan.protocol, topology, placement)
    numbers: dict[Timed, int] = {}
    order: list[int] = []
    for steps, times in timed_steps(plan, topology, placement, seen.groups, timer):
        order += [numbers.setdefault(step, len(numbers)) for step in steps] * times
    moves = joined_moves([timer.moves[step] for step in numbers])
    sheet = _sheet(list(numbers), np.array(order, np.int64), plan.wait_pairs)
    whole = Whole(sheet, len(capacity), seen.lane_steps, hashed=True)
    routes = joined_routes([timer.routes[step] for step in numbers])
    return Rehearsal(whole, cache_key(plan)[1], moves, routes, sheet.leader)


def _folded(plan: Plan, topology: Topology, seen: PlanSummary) -> Rehearsal | None:
    """A run with one message of every class.

    Its classes hold also where channels have caps, so protocols with and without caps can share them.
    """
    from simcoll.emulator.fast.whole import Whole  # imports numba

    if seen.switched:
        check_switches(plan, topology)
    protocol, known = plan.protocol, plan.schedule.known
    capped = replace(plan, protocol=replace(protocol, channel_rate_uBps=protocol.channel_rate_uBps or 1))
    capacity, placement, _ = all_links(capped, topology)
    key = folding_key(capped, topology)
    others = (kept for other, kept in known.rehearsals.items() if other[:3] == key[:3] and isinstance(kept, Rehearsal))
    sibling = next((kept for kept in others if kept.links is not None), None)
    if not isinstance(known.foldings.get(key), Folding) or sibling is None:
        folding(
            capped,
            topology,
            seen,
            placement,
            capacity,
            expanded=True,
            worth_it=True,
            patience=None,
            waits=plan.wait_pairs,
        )
    kept = known.foldings.get(key)
    if not isinstance(kept, Folding) or kept.quotient.messages > MOST_SLOTS:
        return None
    made = kept.quotient
    tied = seen.switched or len(made.waits[0]) > 0  # these had a trace hash before they could fold: twice the limit
    ends = sibling.ends if sibling else _ends(made) if seen.messages <= MOST_HASHED << tied else None
    known.foldings[key] = replace(kept, quotient=replace(made, patterns=(), classes=()))
    order = np.concatenate([np.tile(np.array(numbers, np.int64), times) for numbers, times in made.groups])
    sheet = _sheet(made.steps, order, made.waits)
    if not protocol.channel_rate_uBps:
        sheet = _without(sheet, made.links >= topology.nlinks)
    whole = Whole(sheet, len(made.links), made.lane_steps, hashed=False)
    return Rehearsal(whole, kept.each, kept.moves, kept.routes, sheet.leader, made.links, made.members, ends)


def _ends(quotient: Quotient) -> Ends:
    small, large, which = quotient.starts()
    begins = _begins(quotient.patterns)
    columns = zip(
        *((p.shape.src, p.shape.dst, names) for p, names in zip(quotient.patterns, quotient.classes, strict=True)),
        strict=True,
    )
    return Ends(
        np.stack([which, large, small]), begins, *(np.concatenate(column).astype(np.int32) for column in columns)
    )


def _begins(steps: Sequence[Timed]) -> Ints:
    return np.cumsum([0, *map(len, steps)], dtype=np.int64)


def _sheet(steps: Sequence[Timed], order: Ints, waits: tuple[Array, Array]) -> Sheet:
    from simcoll.emulator.fast.whole import Sheet

    begins = _begins(steps)
    shapes = [step.shape for step in steps]
    columns = list(zip(*((shape.sender, shape.receiver, shape.src, shape.dst) for shape in shapes), strict=True))
    leaders = None
    if any(shape.leader is not None for shape in shapes):
        leaders = np.full(begins[-1], -1)
        for shape, first in zip(shapes, begins.tolist(), strict=False):
            if shape.leader is not None:
                leaders[first : first + len(shape.leader)] = np.where(shape.leader >= 0, first + shape.leader, -1)
    width = max(shape.links.shape[1] for shape in shapes)
    links, weight = np.full((begins[-1], width), -1, np.int32), np.ones((begins[-1], width), np.int32)
    for shape, first in zip(shapes, begins.tolist(), strict=False):
        here = slice(first, first + len(shape.links)), slice(shape.links.shape[1])
        links[here], weight[here] = shape.links, shape.weight
    sender, receiver, src, dst = map(np.concatenate, columns)
    return Sheet(begins, order, sender, receiver, src, dst, links, weight, leaders, *waits)


def _without(sheet: Sheet, left_out: NDArray[np.bool_]) -> Sheet:
    """The sheet without some links."""
    links = np.where(np.append(left_out, False)[sheet.links], -1, sheet.links)
    order = np.argsort(links < 0, axis=1, kind="stable")
    return sheet._replace(links=np.take_along_axis(links, order, 1), weight=np.take_along_axis(sheet.weight, order, 1))
