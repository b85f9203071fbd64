"""Classes of messages without costs, which hold for every protocol and, with equal chunks, for
every size.

Messages are classified by the terms of their cost: size, operation, operands, and latency and kind
of their route. Messages with equal terms cost the same under every protocol, so a certified
partition holds for all protocols, provided that the links of each class have equal capacity.
Protocol-dependent costs are then computed for one message of each class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from simcoll.arrays import Array, Ints, Shorts
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.emulator.folding.partition import alike, first_of, in_one
from simcoll.emulator.folding.quotient import Quotient, fold, most_lane_classes
from simcoll.emulator.model import message_costs
from simcoll.emulator.steps.equal_copies import EqualCopies, equal_copies
from simcoll.emulator.steps.joint import RowCosts
from simcoll.emulator.steps.plan_placement import Placement
from simcoll.emulator.steps.run_links import all_links
from simcoll.emulator.steps.step_columns import Moves, PlanSummary, cache_key, turns
from simcoll.emulator.steps.timed import (
    StepShape,
    StepTimer,
    Timed,
    content_key,
    ends_key,
    is_too_long,
    joined_moves,
    timed_steps,
)
from simcoll.topology import Routes, Topology

__all__ = ["CostTerms", "Ends", "Folding", "UnpricedRows", "find_classes"]

LINKS_OF_SHORT_NUMBERS = 1 << 15
"""Below this number of links, 16 bits number them: links take most of the memory of a fold."""
CAP = -1
"""Capacity of a cap link while classes are sought, minus its kind: no link of a topology has it, so
classes hold for all rates.
"""


class Ends(NamedTuple):
    """The inputs of the trace hash apart from times, in the form of
    :func:`simcoll.emulator.fast.trace_hashing.hash_steps`.
    """

    steps: Ints
    patterns: Ints
    src: Shorts
    dst: Shorts
    name: Shorts


@dataclass(frozen=True, slots=True, eq=False)
class UnpricedRows:
    """Messages of distinct steps without their costs: their moves and routes, for chunks of
    ``each`` bytes.
    """

    moves: Moves
    routes: Routes
    each: int

    def price(self, protocol: Protocol, each: int) -> tuple[RowCosts, Ints]:
        """The costs and the size of every message, with chunks of ``each`` bytes."""
        moves = self.moves
        size = moves.size_bytes // self.each * each
        local = moves.src_rank == moves.dst_rank
        costs = message_costs(size, moves.op, local, self.routes, protocol, 0, moves.operands)
        delay_fs = np.where(local, -1, costs.delay_fs)
        return RowCosts(delay_fs, costs.busy_fs, costs.wire_bytes, costs.post_fs), size


@dataclass(frozen=True, slots=True, eq=False)
class Folding:
    """A quotient without costs.

    Attributes
    ----------
    quotient
        Its steps carry numbers of cost terms instead of costs; its patterns keep only what an
        expansion needs, or nothing.
    rows
        One message of each class, over all steps.
    ends
        The inputs of the trace hash; ``None`` while they can be made from the patterns.
    """

    quotient: Quotient
    rows: UnpricedRows
    ends: Ends | None = None

    def has(self, *, expanded: bool, hashed: bool) -> bool:
        """Whether it has what the times, or the trace hash, of all messages need."""
        return bool(self.quotient.patterns) or not (expanded or (hashed and self.ends is None))

    def timed(self, plan: Plan, topology: Topology) -> Quotient:
        """The quotient of a plan, with costs and capacities; without caps of channels if the plan
        has none.
        """
        capacity, each = all_links(plan, topology)[0], cache_key(plan)[1]
        caps = self.quotient.nlinks - len(capacity)
        quotient = self.quotient.without_links(topology.nlinks, caps) if caps else self.quotient
        costs, size = self.rows.price(plan.protocol, each)
        steps, first = [], 0
        for step in quotient.steps:
            rows, first = slice(first, first + len(step)), first + len(step)
            step_costs = RowCosts(*(column[rows] for column in costs))
            steps.append(
                Timed(step.shape, *step_costs, size[rows], step.bytes_by_op, depth=step.depth)
            )
        patterns = tuple(
            replace(step, size=step.size // self.rows.each * each) for step in quotient.patterns
        )
        return replace(
            quotient, steps=tuple(steps), patterns=patterns, capacity=capacity[quotient.links]
        )


class CostTerms(StepTimer):
    """Steps that carry a number for each combination of cost terms instead of costs.

    Also keeps their moves, and unless ``sparse`` their routes. Steps with equal columns are one
    object, however far apart they are, unless ``shared`` is unset: where most chunks are empty, the
    steps of a ring differ from each other, and are the same again after a few.
    """

    def __init__(
        self, protocol: Protocol, topology: Topology, placement: Placement, *, sparse: bool = False
    ) -> None:
        super().__init__(protocol, topology, placement, joint=True, sparse=sparse)
        self.moves: dict[Timed, Moves] = {}
        self.routes: dict[Timed, Routes] = {}
        self.shared = True
        # None is forgotten: refinement keeps all distinct steps.
        self.labelled: dict[bytes, Timed] = {}
        self.keys: dict[int, bytes] = {}  # by addresses of steps that ``moves`` keeps alive

    # Without jitter, the number of a message does not matter.
    def _time(self, steps: list[Moves], first_message: int) -> list[Timed]:  # noqa: ARG002
        if not self.shared or is_too_long(steps):
            return self._with_labels(steps)
        keys = [self.keys.get(id(step)) or _columns_key(step) for step in steps]
        new = {key: step for key, step in zip(keys, steps, strict=True) if key not in self.labelled}
        if new:
            self.labelled |= zip(new, self._with_labels(list(new.values())), strict=True)
            self.keys |= {id(step): key for key, step in new.items()}
        return [self.labelled[key] for key in keys]

    def _with_labels(self, steps: list[Moves]) -> list[Timed]:
        """The steps with their numbers of cost terms."""
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
            timed = Timed(
                shape, label, none, none, none, step.size_bytes, (0,) * 5, self.protocol.fifo_depth
            )
            self.moves[timed] = step
            if not self.sparse:
                self.routes[timed] = routes
            found.append(timed)
        return found


def _columns_key(step: Moves) -> bytes:
    """A digest of all columns of a step."""
    columns = step.size_bytes, step.op, step.operands
    digest = sha256()
    for part in (*ends_key(step), *(content_key(column) for column in columns)):
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.digest()


def find_classes(
    plan: Plan,
    topology: Topology,
    seen: PlanSummary,
    *,
    expanded: bool,
    worth_it: bool,
    patience: int | None = None,
    waits: tuple[Array, Array] | None = None,
) -> Folding | str:
    """The classes of a run, or the reason why there are none.

    ``expanded``: keep what the times of all messages need. Other parameters as in
    :func:`simcoll.emulator.folding.quotient.fold`.
    """
    # The times of all messages, and their trace hash, need the class of every message.
    tied = waits is not None and len(waits[0]) > 0
    copies = None if expanded or tied else equal_copies(plan)
    if copies is not None:
        return _classes_of_copies(
            copies, plan, topology, seen, worth_it=worth_it, patience=patience, waits=waits
        )
    timer, capacity = _terms(plan, topology)
    groups = seen.groups
    if waits is not None and tied:  # equal steps wait for different messages
        timer.shared = False
        groups = [
            ((step._replace(),), 1)
            for some, times in groups or turns(plan)
            for step in some * times
        ]
    most_lanes = most_lane_classes(seen.lane_steps) if worth_it else len(seen.lane_steps)
    quotient = fold(
        timed_steps(plan, topology, timer.placement, groups, timer),
        capacity,
        seen.lane_steps,
        most_lanes=most_lanes,
        patience=patience,
        waits=waits,
    )
    if isinstance(quotient, str):
        return quotient
    return _folding(quotient, timer, cache_key(plan)[1], expanded=expanded)


def _terms(plan: Plan, topology: Topology) -> tuple[CostTerms, Ints]:
    """What assigns cost terms to the steps of a plan, and the capacities of its links."""
    capacity, placement, _ = all_links(plan, topology)
    timer = CostTerms(plan.protocol, topology, placement, sparse=True)
    if len(capacity) < LINKS_OF_SHORT_NUMBERS:
        timer.link_kind = np.int16
    return timer, _without_rates(plan, topology, capacity)


def _classes_of_copies(
    copies: EqualCopies,
    plan: Plan,
    topology: Topology,
    counts: PlanSummary,
    *,
    worth_it: bool,
    patience: int | None,
    waits: tuple[Array, Array] | None,
) -> Folding | str:
    """The classes of a plan of equal copies, found among the messages of one of them."""
    timer, capacity = _terms(copies.plan, topology)
    lane_steps = copies.lanes_of_one(counts.lane_steps)
    # Lanes and links of copies that move nothing are a class of their own.
    most_lanes = most_lane_classes(counts.lane_steps) - copies.idle if worth_it else len(lane_steps)
    quotient = fold(
        timed_steps(copies.plan, topology, timer.placement, counts.copy_groups, timer),
        capacity,
        lane_steps,
        most_lanes=most_lanes,
        patience=patience,
        waits=waits,
    )
    if isinstance(quotient, str):
        return quotient
    classes = _folding(quotient, timer, cache_key(plan)[1], expanded=False)
    return replace(classes, quotient=_of_all_copies(classes.quotient, copies, plan, topology))


def _of_all_copies(
    quotient: Quotient, copies: EqualCopies, plan: Plan, topology: Topology
) -> Quotient:
    """The quotient of all copies from that of one: a shared link carries the messages of each."""
    of_channels = copies.of_channels(quotient.links, topology.nlinks)
    times = np.append(np.where(of_channels, 1, len(copies.places)), 1)  # no link is the last one
    steps = [
        replace(
            step,
            shape=replace(step.shape, weight=step.shape.weight * times[step.shape.links]),
        )
        for step in quotient.steps
    ]
    idle = np.zeros(int(copies.idle), np.int64)
    nlinks = len(all_links(plan, topology)[0])
    return replace(
        quotient,
        steps=tuple(steps),
        lane_steps=np.append(quotient.lane_steps, idle),
        links=copies.links_of_all(quotient.links, topology.nlinks),
        nlinks=nlinks,
    )


def _without_rates(plan: Plan, topology: Topology, capacity: Ints) -> Ints:
    """Capacities in which cap links have one number for each kind, so that the classes hold for all
    rates.
    """
    of_channels = 2 * plan.nranks * plan.nchannels if plan.protocol.channel_rate_uBps else 0
    capacity = capacity.copy()
    capacity[topology.nlinks :] = CAP
    capacity[topology.nlinks + of_channels :] = CAP - 1
    return capacity


def _folding(found: Quotient, timer: CostTerms, each: int, *, expanded: bool) -> Folding:
    steps = zip((timer.moves[pattern] for pattern in found.patterns), found.classes, strict=True)
    moves = joined_moves(
        [step.some(first_of(names, int(names.max()) + 1)) for step, names in steps]
    )
    patterns = tuple(map(_without_costs, found.patterns)) if expanded else ()
    kept = replace(found, patterns=patterns, classes=found.classes if expanded else ())
    routes = timer.routes_of(moves.src_rank, moves.dst_rank, moves.paths)
    return Folding(kept, UnpricedRows(moves, routes, each))


def _without_costs(step: Timed) -> Timed:
    """The parts of a step that an expansion needs."""
    none, no_links = np.zeros(0, np.int64), np.zeros((0, 0), np.int32)
    shape = StepShape(none, none, step.shape.src, step.shape.dst, no_links, none)
    return replace(step, shape=shape, delay_fs=none, busy_fs=none, wire=none, post_fs=none)
