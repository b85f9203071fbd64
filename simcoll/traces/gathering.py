"""Combine the traces of all ranks into a workload: equal ranks become a class, and matching steps
one operation.

Ranks start in one class if their steps are equal except for communication partners; classes are
then refined until partners are equivalent too (colour refinement). Ranks of one class that
communicate in a way that an operation on classes cannot express each get a separate class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from simcoll.core.order import lowest_first
from simcoll.errors import ConfigError
from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    Operation,
    Rules,
    SendOperation,
    Workload,
)

if TYPE_CHECKING:
    from simcoll.traces.rank_traces import Together, Traces, TraceStep

__all__ = ["gather_traces"]

Part = tuple[int, int]
"""A class (or, where noted, a rank) and the number of its step."""


def gather_traces(traces: Traces, *, title: str = "", rules: Rules | None = None) -> Workload:
    """Build the workload of all ranks' steps.

    Raises
    ------
    ConfigError
        For a collective or message that some of its ranks never reach, request differently or put
        on different streams, and for cyclic waits.
    """
    met = _meetings(traces)
    colours = _classes(traces, met)
    return _Gathering(traces, met, colours).workload(title, rules)


def _meetings(traces: Traces) -> dict[Hashable, dict[int, int]]:
    """For each collective and message, the number of its step on each of its ranks."""
    met: dict[Hashable, dict[int, int]] = defaultdict(dict)
    examples: dict[Hashable, tuple[int, TraceStep, Together]] = {}
    for rank, steps in enumerate(traces):
        for number, step in enumerate(steps):
            together = step.together
            if together is None:
                continue
            first_rank, first_step, example = examples.setdefault(
                together.key, (rank, step, together)
            )
            if rank in met[together.key]:
                raise ConfigError(f"rank {rank}: step {number} ({_describe(step)}) is a duplicate")
            if together != example:
                raise ConfigError(
                    f"rank {rank} asks for {_describe(step)}, rank {first_rank} for "
                    f"{_describe(first_step)}, at the same place"
                )
            if step.stream != first_step.stream:
                raise ConfigError(
                    f"{_describe(step)} is on stream {step.stream!r} of rank {rank}, "
                    f"and on stream {first_step.stream!r} of rank {first_rank}"
                )
            met[together.key][rank] = number
    for key, ranks in met.items():
        missing = [rank for rank in examples[key][2].ranks if rank not in ranks]
        if missing or len(ranks) != len(examples[key][2].ranks):
            came = ", ".join(map(str, sorted(ranks)[:8]))
            raise ConfigError(
                f"{_describe(examples[key][1])}: rank {missing[0] if missing else max(ranks)} "
                f"never comes to it; rank {came} does"
            )
    return dict(met)


def _describe(step: TraceStep) -> str:
    together = step.together
    if together is None:
        return f"work {step.name!r}"
    action = f"{together.kind} of {together.size_bytes} bytes by group {together.group!r}"
    return f"{step.name!r}, {action}" if step.name else action


def _classes(traces: Traces, met: dict[Hashable, dict[int, int]]) -> list[int]:
    """The class of every rank."""
    numbers: dict[object, int] = {}

    def number_of(entry: object) -> int:
        return numbers.setdefault(entry, len(numbers))

    colours = [
        number_of(
            tuple(
                (step.stream, step.after, step.name, step.time_fs, step.flops)
                if step.together is None
                else (
                    step.stream,
                    step.after,
                    step.name,
                    step.together.traits,
                    _end(step.together, rank),
                )
                for step in steps
            )
        )
        for rank, steps in enumerate(traces)
    ]
    while True:
        nclasses = len(set(colours))
        summaries = {key: number_of(_parts(parts, colours)) for key, parts in met.items()}
        colours = [
            number_of(
                (
                    colour,
                    tuple(
                        summaries[step.together.key] for step in steps if step.together is not None
                    ),
                )
            )
            for colour, steps in zip(colours, traces, strict=True)
        ]
        if len(set(colours)) != nclasses:
            continue
        split = _inexpressible(traces, met, colours)
        if not split:
            return colours
        colours = [
            number_of((colour, rank)) if colour in split else colour
            for rank, colour in enumerate(colours)
        ]


def _end(together: Together, rank: int) -> int:
    """The end of a message that a rank is."""
    return together.ranks.index(rank) if together.kind == "send" else -1


def _parts(parts: dict[int, int], colours: list[int]) -> tuple[Part, ...]:
    """The participating classes, each with the number of its step."""
    return tuple(sorted({(colours[rank], number) for rank, number in parts.items()}))


def _inexpressible(
    traces: Traces, met: dict[Hashable, dict[int, int]], colours: list[int]
) -> set[int]:
    """The classes whose communication an operation on classes cannot express."""
    members: dict[int, list[int]] = defaultdict(list)
    for rank, colour in enumerate(colours):
        members[colour].append(rank)
    place = {rank: position for ranks in members.values() for position, rank in enumerate(ranks)}
    wrong: set[int] = set()
    for parts in met.values():
        class_parts = _parts(parts, colours)
        names = [colour for colour, _ in class_parts]
        wrong |= {colour for colour in names if names.count(colour) > 1}
        rank, number = next(iter(parts.items()))
        together = traces[rank][number].together
        if together is not None and together.kind == "send":
            source, target = together.ranks
            if colours[source] == colours[target] or place[source] != place[target]:
                wrong |= {colours[source], colours[target]}
    return {colour for colour in wrong if len(members[colour]) > 1}


@dataclass(eq=False)
class _Gathering:
    """Builds the operations of a workload in order."""

    traces: Traces
    met: dict[Hashable, dict[int, int]]
    colours: list[int]
    classes: dict[str, list[int]] = field(default_factory=dict)
    groups: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    ids: dict[Part, str] = field(default_factory=dict)
    takers: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Name the classes by their lowest ranks."""
        ranks: dict[int, list[int]] = defaultdict(list)
        for rank, colour in enumerate(self.colours):
            ranks[colour].append(rank)
        self.leaders = [members[0] for members in ranks.values()]
        width = len(str(len(self.traces) - 1))
        self.name = {
            members[0]: f"rank {members[0]:0{width}}"
            + (f" and {len(members) - 1} more" if members[1:] else "")
            for members in ranks.values()
        }
        self.classes = {self.name[members[0]]: members for members in ranks.values()}
        self.leader = {colour: members[0] for colour, members in ranks.items()}
        self._axes: dict[tuple[tuple[int, ...], ...], str] = {}
        self._together()

    def _together(self) -> None:
        """Group equal collectives of different groups by their participating leaders and steps."""
        self.parts: dict[Part, tuple[Part, ...]] = {}
        self.instances: dict[tuple[Part, ...], list[Together]] = defaultdict(list)
        for parts in self.met.values():
            class_parts = tuple(
                (self.leader[colour], number) for colour, number in _parts(parts, self.colours)
            )
            rank, number = next(iter(parts.items()))
            together = self.traces[rank][number].together
            if together is not None:
                self.instances[class_parts].append(together)
            self.parts.update(dict.fromkeys(class_parts, class_parts))
        # An axis has the name of its collectives, not that of the meetings before them.
        self.preferred = {
            tuple(sorted(together.ranks for together in instances)): instances[0].group
            for instances in reversed(self.instances.values())
            if instances[0].kind not in {"meeting", "send"}
        }

    def workload(self, title: str, rules: Rules | None) -> Workload:
        """Build the workload, with operations in a valid order."""
        for part in self._order():
            self._add(part)
        return Workload(
            len(self.traces),
            {name: np.array(ranks, np.int64) for name, ranks in self.classes.items()},
            {name: np.array(groups, np.int64) for name, groups in self.groups.items()},
            tuple(self.operations),
            title,
            rules=rules,
        )

    def _needs(self, part: Part) -> Iterable[Part]:
        """The steps that a leader's step depends on: by ``after``, and on its stream."""
        leader, number = part
        yield from ((leader, needed) for needed in self.traces[leader][number].after)
        previous = self.previous.get(part)
        if previous is not None:
            yield previous

    def _order(self) -> Iterable[Part]:
        """One step of each operation in topological order, lowest number first."""
        self.previous: dict[Part, Part] = {}
        for leader in self.leaders:
            latest: dict[str, Part] = {}
            for number, step in enumerate(self.traces[leader]):
                if step.stream in latest:
                    self.previous[leader, number] = latest[step.stream]
                latest[step.stream] = (leader, number)
        every = [
            (leader, number)
            for leader in self.leaders
            for number in range(len(self.traces[leader]))
        ]
        representative = {part: min(self.parts.get(part, (part,))) for part in every}
        needs: dict[Part, set[Part]] = {part[::-1]: set() for part in representative.values()}
        for part in every:
            needs[representative[part][::-1]] |= {
                representative[needed][::-1] for needed in self._needs(part)
            }
        ordered = set()
        for number, leader in lowest_first(needs):
            ordered.add((number, leader))
            yield leader, number
        if len(ordered) < len(needs):
            number, leader = next(part for part in needs if part not in ordered)
            step = self.traces[leader][number]
            raise ConfigError(
                f"rank {leader}: step {number} ({_describe(step)}) is in a cycle of waits, so it "
                "can never start"
            )

    def _add(self, part: Part) -> None:
        leader, number = part
        step = self.traces[leader][number]
        if step.together is None:
            needs = tuple(dict.fromkeys(self.ids[leader, needed] for needed in step.after))
            name = self._name_operation((part,))
            self.operations.append(
                ComputeOperation(
                    id=name,
                    on=self.name[leader],
                    time_fs=step.time_fs,
                    stream=step.stream,
                    after=needs,
                    name=step.name,
                    flops=step.flops,
                    scope=step.scope,
                )
            )
            return
        parts = self.parts[part]
        needs = self._dependencies(parts, step.stream)
        together = self.instances[parts][0]
        if together.kind == "send":
            self._message(parts, step, together, needs)
            return
        name = self._name_operation(parts)
        self.operations.append(
            CallOperation(
                id=name,
                kind=together.kind,
                group=self._axis(self.instances[parts]),
                size_bytes=together.size_bytes,
                on=tuple(self.name[leader] for leader, _ in parts),
                stream=step.stream,
                after=needs,
                algorithm=together.algorithm,
                name=step.name,
                scope=step.scope,
                dtype=together.dtype,
                root=together.root,
                sizes=together.sizes,
                imbalance=together.imbalance,
                service_fs=together.service_fs,
            )
        )

    def _next(self) -> str:
        return str(len(self.operations))

    def _name_operation(self, parts: tuple[Part, ...]) -> str:
        """Name the next operation, which consists of these steps."""
        name = self._next()
        self.ids.update(dict.fromkeys(parts, name))
        self.takers[name] = [leader for leader, _ in parts]
        return name

    def _dependencies(self, parts: tuple[Part, ...], stream: str) -> tuple[str, ...]:
        """The dependencies common to all classes of an operation; others become waits on the
        streams of their classes.
        """
        needed = {
            leader: dict.fromkeys(
                self.ids[leader, number_in_trace]
                for number_in_trace in self.traces[leader][number].after
            )
            for leader, number in parts
        }
        shared: dict[str, None] = {}
        for leader, names in needed.items():
            private = [
                name
                for name in names
                if any(name not in needed[taker] for taker in self.takers[name] if taker in needed)
            ]
            shared.update(dict.fromkeys(name for name in names if name not in private))
            if private:
                wait = self._next()
                self.operations.append(
                    ComputeOperation(
                        id=wait,
                        on=self.name[leader],
                        time_fs=0,
                        stream=stream,
                        after=tuple(private),
                    )
                )
        return tuple(shared)

    def _message(
        self, parts: tuple[Part, ...], step: TraceStep, together: Together, needs: tuple[str, ...]
    ) -> None:
        source, target = (
            next(
                self.name[leader]
                for leader, _ in parts
                if self.colours[leader] == self.colours[together.ranks[end]]
            )
            for end in (0, 1)
        )
        sizes = (
            (0, together.size_bytes)
            if together.at_once and together.size_bytes
            else (together.size_bytes,)
        )
        for size in sizes:
            name = self._name_operation(parts)
            self.operations.append(
                SendOperation(
                    id=name,
                    source=source,
                    target=target,
                    size_bytes=size,
                    stream=step.stream,
                    after=needs,
                    group=together.group,
                    name=step.name,
                    scope=step.scope,
                )
            )
            needs = ()

    def _axis(self, instances: list[Together]) -> str:
        """The name of an axis of groups: the first group's, if it is free."""
        groups = tuple(sorted(together.ranks for together in instances))
        if groups not in self._axes:
            preferred = self.preferred.get(groups, instances[0].group)
            name = next(
                axis
                for axis in (
                    preferred,
                    *(f"{preferred} ({number})" for number in range(2, len(self.groups) + 3)),
                )
                if axis not in self.groups
            )
            self.groups[name] = groups
            self._axes[groups] = name
        return self._axes[groups]
