"""Divide a plan into stages of MSCCL++ operations, separated by synchronisation between ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from simcoll.core.plan import Plan, PlanStep
from simcoll.core.schedule import COPY, REDUCE, SWITCH_REDUCE, Schedule
from simcoll.core.switches import switch_groups
from simcoll.core.transit import refuse_transits
from simcoll.errors import ConfigError
from simcoll.formats.mscclpp.blocks import MAX_PEERS

__all__ = ["Aside", "Ref", "Stage", "Work", "refuse", "stages_of"]


@dataclass(frozen=True, slots=True)
class Ref:
    """Chunks of a rank's memory, by their address in the schedule."""

    rank: int
    chunk: int
    count: int


Work = tuple[str, list[Ref], list[Ref]]


@dataclass(slots=True)
class Stage:
    """The operations of each rank between two synchronisations, in groups separated by fences, and
    the pairs that synchronise.
    """

    groups: dict[int, list[list[Work]]] = field(default_factory=lambda: defaultdict(list))
    meets: set[tuple[int, int]] = field(default_factory=set)


def refuse(schedule: Schedule, reason: str) -> NoReturn:
    """Raise for content that a plan cannot express."""
    raise ConfigError(f"an MSCCL++ plan cannot hold {schedule}: {reason}")


def stages_of(plan: Plan, channel: int | None, aside: Aside, *, packets: bool) -> Iterator[Stage]:
    """The stages of one channel, or of all; channels, which are not ordered, share scratch for
    saved chunks.
    """
    schedule = plan.schedule
    refuse_transits(schedule, schedule.transits, "an MSCCL++ plan cannot hold")
    reduced: dict[
        tuple[int, int], list[Ref]
    ] = {}  # results of switches that are not sent yet, and their operands
    for step in plan.steps():
        rows = np.flatnonzero(
            (step.channel == channel) if channel is not None else np.ones(len(step), np.bool_)
        )
        sources = [
            Ref(*row)
            for row in zip(
                step.src_rank.tolist(), step.src_chunk.tolist(), step.count.tolist(), strict=True
            )
        ]
        targets = [
            Ref(*row)
            for row in zip(
                step.dst_rank.tolist(), step.dst_chunk.tolist(), step.count.tolist(), strict=True
            )
        ]
        switched = Stage()
        handled = _switch_operations(
            schedule, step, set(rows.tolist()), sources, targets, reduced, switched
        )
        if handled and packets:
            refuse(schedule, f"step {step.step}: operations of switches need protocol 'Simple'")
        ordinary = [row for row in rows.tolist() if row not in handled]
        if not packets:
            saving = Stage()
            for row in ordinary:
                if step.staged[row]:
                    saved = aside.take(sources[row])
                    saving.groups[saved.rank] = saving.groups[saved.rank] or [[]]
                    saving.groups[saved.rank][0].append(("copy", [sources[row]], [saved]))
                    sources[row] = saved
            if saving.groups:
                yield saving
        moved = list(_moves(schedule, step, ordinary, sources, targets, packets=packets))
        for rank, groups in switched.groups.items():
            moved[0].groups[rank] = groups + moved[0].groups[rank]
        moved[0].meets |= switched.meets
        yield from moved
    if reduced:
        refuse(
            schedule,
            "a switch reduces and does not send the result to all: the executor cannot load that "
            "operation (glre)",
        )


class Aside:
    """Allocates scratch beyond the schedule's: new chunks for each saved copy."""

    def __init__(self, schedule: Schedule) -> None:
        self.free = [schedule.layout.size] * schedule.nranks

    def take(self, chunks: Ref) -> Ref:
        """Allocate chunks for a copy of some chunks of a rank."""
        begin = self.free[chunks.rank]
        self.free[chunks.rank] += chunks.count
        return Ref(chunks.rank, begin, chunks.count)


def _switch_operations(
    schedule: Schedule,
    step: PlanStep,
    rows: set[int],
    sources: list[Ref],
    targets: list[Ref],
    reduced: dict[tuple[int, int], list[Ref]],
    stage: Stage,
) -> set[int]:
    """Switch operations: a reduction is deferred to the multicast of its result, with which it
    forms one operation.
    """
    handled: set[int] = set()
    everyone = range(schedule.nranks)
    for group in switch_groups(step):
        if group[0] not in rows:
            continue
        handled |= set(group)
        if step.op[group[0]] == SWITCH_REDUCE:
            result = targets[group[0]]
            operands = [sources[row] for row in group]
            if (
                sorted(operand.rank for operand in operands) != list(everyone)
                or len({operand.chunk for operand in operands}) > 1
            ):
                refuse(
                    schedule,
                    f"step {step.step}: a switch reduces other than one chunk of all ranks",
                )
            reduced[result.rank, result.chunk] = operands
            continue
        source, landing = sources[group[0]], targets[group[0]].chunk
        ranks = {targets[row].rank for row in group} | {source.rank}
        if ranks != set(everyone) or len({targets[row].chunk for row in group}) > 1:
            refuse(schedule, f"step {step.step}: a switch sends other than one chunk to all ranks")
        own_rows = [
            row
            for row in rows - handled
            if step.op[row] == COPY
            and sources[row] == source
            and (targets[row].rank, targets[row].chunk) == (source.rank, landing)
        ]
        operands = reduced.pop((source.rank, source.chunk), [])
        if landing != source.chunk and not own_rows and not operands:
            refuse(
                schedule,
                f"step {step.step}: a switch also stores to rank {source.rank} itself, where the "
                "schedule has other data",
            )
        handled |= set(own_rows)
        to = [Ref(rank, landing, source.count) for rank in everyone]
        if operands and landing != source.chunk:
            refuse(
                schedule,
                f"step {step.step}: the result of a switch has another place on its own rank",
            )
        stage.groups[source.rank] = stage.groups[source.rank] or [[]]
        stage.groups[source.rank][0].append(
            ("glres", operands, to) if operands else ("gstore", [source], to)
        )
        stage.meets |= {
            (a, b) for a in everyone for b in everyone if a != b and source.rank in {a, b}
        }
    return handled


def _moves(
    schedule: Schedule,
    step: PlanStep,
    rows: list[int],
    sources: list[Ref],
    targets: list[Ref],
    *,
    packets: bool,
) -> Iterator[Stage]:
    """Copies and reductions of a step: puts, pulls and local work; or packets sent, local work,
    packets received.
    """
    by_target: dict[Ref, list[int]] = defaultdict(list)
    for row in rows:
        if step.op[row] not in {COPY, REDUCE}:
            refuse(schedule, f"step {step.step} has an operation that is no copy and no reduction")
        by_target[targets[row]].append(row)
    copies = [row for row in rows if step.op[row] == COPY]
    mixed = any(len({int(step.op[row]) for row in members}) > 1 for members in by_target.values())
    if mixed and not packets:  # a sum that grows on what is copied in the same step
        yield from _moves(schedule, step, copies, sources, targets, packets=False)
        yield from _moves(
            schedule,
            step,
            [row for row in rows if row not in set(copies)],
            sources,
            targets,
            packets=False,
        )
        return
    stage = Stage()
    groups: dict[int, dict[int, list[Work]]] = defaultdict(lambda: defaultdict(list))
    for target, members in by_target.items():
        for turn, run in enumerate(_runs(members, sources, target, step, packets=packets)):
            source, reduces, away = (
                sources[run[0]],
                step.op[run[0]] == REDUCE,
                sources[run[0]].rank != target.rank,
            )
            stage.meets |= {
                pair
                for row in run
                if away
                for pair in ((sources[row].rank, target.rank), (target.rank, sources[row].rank))
            }
            if packets and away:
                groups[source.rank][0].append(("ppkt", [source], [target]))
                groups[target.rank][2 + 2 * turn].append(
                    ("repkt" if reduces else "upkt", [source], [target])
                )
            elif reduces:
                name = "rre" if away else "re"
                groups[target.rank][1 + 2 * turn].append(
                    (name, [target, *(sources[row] for row in run)], [target])
                )
            else:
                groups[source.rank][1 + 2 * turn].append(
                    ("put" if away else "copy", [source], [target])
                )
    for rank, by_order in groups.items():
        stage.groups[rank] = [by_order[number] for number in sorted(by_order)]
    yield stage


def _runs(
    members: list[int], sources: list[Ref], target: Ref, step: PlanStep, *, packets: bool
) -> Iterator[list[int]]:
    """Group consecutive reductions into a chunk that one operation can do: all local, or all
    remote.
    """
    run: list[int] = []
    for row in members:
        kind = (sources[row].rank == target.rank, step.op[row] == REDUCE)
        fits = (
            run
            and not packets
            and kind == (sources[run[0]].rank == target.rank, step.op[run[0]] == REDUCE)
            and kind[1]
        )
        if run and not (fits and len(run) < MAX_PEERS):
            yield run
            run = []
        run.append(row)
    if run:
        yield run
