"""Quotients that hold for every size and protocol, remembered with the schedule.

Messages are classified by the terms of their cost: size, operation, operands, and latency and kind of their route. Messages with equal
terms cost the same under every protocol, so a certified partition holds for all protocols, provided that the links of each class have
equal capacity. Protocol-dependent costs are then computed for one message of each class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simcoll.arrays import Array, Ints
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.emulator.folding.partition import alike, first_of, in_one
from simcoll.emulator.folding.quotient import Quotient, fold
from simcoll.emulator.model import message_costs
from simcoll.emulator.steps.plan_placement import Placement
from simcoll.emulator.steps.step_columns import EVEN, Moves, PlanSummary, cache_key, turns
from simcoll.emulator.steps.timed import StepShape, StepTimer, Timed, joined_moves, timed_steps
from simcoll.topology import Routes, Topology

__all__ = ["CostTerms", "Folding", "folded_first", "folding", "folding_key", "worth_folding"]


class CostTerms(StepTimer):
    """Steps that carry a number for each combination of cost terms instead of costs.

    Also keeps their moves, and unless ``sparse`` their routes.
    """

    def __init__(self, protocol: Protocol, topology: Topology, placement: Placement, *, sparse: bool = False) -> None:
        super().__init__(protocol, topology, placement, joint=True, sparse=sparse)
        self.moves: dict[Timed, Moves] = {}
        self.routes: dict[Timed, Routes] = {}

    def _time(self, steps: list[Moves], first_message: int) -> list[Timed]:  # noqa: ARG002 - there is no jitter
        found, first, ways = [], 0, self._recent(steps)
        labels: Any = alike(
            *in_one(
                (
                    step.src_rank == step.dst_rank,
                    routes.latency_fs,
                    routes.kind,
                    step.size_bytes,
                    step.operands,
                    step.op,
                )
                for step, (routes, _) in zip(steps, ways, strict=True)
            )
        ).astype(np.int32)  # not used as numbers
        for step, (routes, shape) in zip(steps, ways, strict=True):
            label, first = labels[first : first + step.rows], first + step.rows
            none = np.broadcast_to(np.int64(0), label.shape)
            timed = Timed(shape, label, none, none, none, step.size_bytes, (0,) * 5, self.protocol.fifo_depth)
            self.moves[timed] = step
            if not self.sparse:
                self.routes[timed] = routes
            found.append(timed)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Folding:
    """A quotient without costs.

    Attributes
    ----------
    quotient
        Its steps carry numbers of cost terms instead of costs; its patterns keep only what an expansion needs, or nothing.
    each
        Bytes per chunk for which its sizes hold.
    moves, routes
        Of one message of each class, over all steps.
    """

    quotient: Quotient
    each: int
    moves: Moves
    routes: Routes

    def timed(self, plan: Plan, each: int, capacity: Ints) -> Quotient | None:
        """The quotient of a plan; ``None`` if its protocol gives links of one class different capacities."""
        found, moves = self.quotient, self.moves
        if not np.array_equal(capacity[found.links][found.members], capacity):
            return None
        size = moves.size_bytes // self.each * each
        local = moves.src_rank == moves.dst_rank
        costs = message_costs(size, moves.op, local, self.routes, plan.protocol, 0, moves.operands)
        columns = (np.where(local, -1, costs.delay_fs), costs.busy_fs, costs.wire_bytes, costs.post_fs, size)
        steps, first = [], 0
        for step in found.steps:
            here, first = slice(first, first + len(step)), first + len(step)
            delay, busy, wire, post, payload = (column[here] for column in columns)
            steps.append(Timed(step.shape, delay, busy, wire, post, payload, step.bytes_by_op, step.depth))
        patterns = tuple(replace(step, size=step.size // self.each * each) for step in found.patterns)
        return replace(found, steps=tuple(steps), patterns=patterns, capacity=capacity[found.links])


def folding_key(plan: Plan, topology: Topology) -> tuple[Any, ...]:
    """The key of a folding: the sizes unless all chunks are equal, the topology, and the links that a protocol adds."""
    protocol = plan.protocol
    caps = bool(protocol.channel_rate_uBps), bool(protocol.rank_rate_uBps), protocol.fifo_depth
    return cache_key(plan)[0], topology, plan.ranks.tobytes(), caps


def worth_folding(plan: Plan, topology: Topology) -> bool:
    """Whether a folding is remembered, or worth a try because the schedule runs repeatedly.

    Counts the runs until then.
    """
    key = folding_key(plan, topology)
    if key[0] is None:
        return False
    known: Folding | str | int = plan.schedule.known.foldings.get(key, 0)
    if isinstance(known, int):
        _remember(plan, key, known + 1)
    return folded_first(plan, topology)


def folded_first(plan: Plan, topology: Topology) -> bool:
    """Whether a folding is remembered, or should be tried first because the schedule has run before."""
    known: Folding | str | int = plan.schedule.known.foldings.get(folding_key(plan, topology), 0)
    # Under the last of the expected protocols it would come too late.
    enough = 1 if cache_key(plan)[0] == EVEN else max(1, plan.schedule.known.expected_protocols)
    return known > enough if isinstance(known, int) else isinstance(known, Folding)


def _remember(plan: Plan, key: tuple[Any, ...], found: Folding | str | int) -> None:
    """Keep the result for equal chunks, and for the latest other sizes."""
    if key[0] is None:
        return
    known = plan.schedule.known
    known.foldings = {old: kept for old, kept in known.foldings.items() if old[0] in {EVEN, key[0]}}
    known.foldings[key] = found


def folding(
    plan: Plan,
    topology: Topology,
    seen: PlanSummary,
    placement: Placement,
    capacity: Ints,
    *,
    expanded: bool,
    worth_it: bool,
    patience: int | None,
    waits: tuple[Array, Array] | None = None,
) -> Quotient | str:
    """The quotient of a plan, from a remembered folding if there is one; or the reason why there is none.

    ``expanded``: the times of all messages will be needed. Other parameters as in :func:`simcoll.emulator.folding.quotient.fold`.
    """
    if seen.switched and waits is None:
        stream = timed_steps(plan, topology, placement, seen.groups)
        return fold(stream, capacity, seen.lane_steps, worth_it=worth_it, patience=patience)
    key, each = folding_key(plan, topology), cache_key(plan)[1]
    known: Folding | str | int = plan.schedule.known.foldings.get(key, 0)
    if isinstance(known, str) and worth_it:
        return known
    found = None
    if isinstance(known, Folding) and (known.quotient.patterns or not expanded):
        found = known.timed(plan, each, capacity)
    if found is None:
        timer = CostTerms(plan.protocol, topology, placement, sparse=True)
        if len(capacity) < 1 << 15:
            timer.link_kind = np.int16  # the links take most of the memory
        groups = seen.groups
        if waits is not None and len(waits[0]):  # equal steps wait for different messages
            groups = [((step._replace(),), 1) for some, times in groups or turns(plan) for step in some * times]
        stream = timed_steps(plan, topology, placement, groups, timer)
        made = fold(stream, capacity, seen.lane_steps, worth_it=worth_it, patience=patience, waits=waits)
        if isinstance(made, str):
            if patience is None and worth_it:
                _remember(plan, key, made)
            return made
        known = _folding(made, timer, each, expanded=expanded)
        _remember(plan, key, known)
        found = known.timed(plan, each, capacity)
    return found or "links of one class have different capacities"


def _folding(found: Quotient, timer: CostTerms, each: int, *, expanded: bool) -> Folding:
    steps = zip((timer.moves[pattern] for pattern in found.patterns), found.classes, strict=True)
    moves = joined_moves([step.some(first_of(names, int(names.max()) + 1)) for step, names in steps])
    ends = timer.placement.endpoints[moves.src_rank], timer.placement.endpoints[moves.dst_rank]
    patterns = tuple(map(_without_costs, found.patterns)) if expanded else ()
    kept = replace(found, patterns=patterns, classes=found.classes if expanded else ())
    return Folding(kept, each, moves, timer.topology.route(*ends))


def _without_costs(step: Timed) -> Timed:
    """The parts of a step that an expansion needs."""
    none, no_links = np.zeros(0, np.int64), np.zeros((0, 0), np.int32)
    shape = StepShape(none, none, step.shape.src, step.shape.dst, no_links, none)
    return replace(step, shape=shape, delay_fs=none, busy_fs=none, wire=none, post_fs=none)
