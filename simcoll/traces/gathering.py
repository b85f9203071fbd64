"""Combine the traces of all ranks into a workload: equal ranks become a class, and matching steps one operation.

Ranks start in one class if their steps are equal except for communication partners; classes are then refined until partners are
equivalent too (colour refinement). Ranks of one class that communicate in a way that an operation on classes cannot express each get
a separate class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from simcoll.core.order import lowest_first
from simcoll.errors import ConfigError
from simcoll.workload.workload import Call, Compute, Operation, Rules, Send, Workload

if TYPE_CHECKING:
    from simcoll.traces.rank_traces import Step, Together, Traces

__all__ = ["gathered"]

Part = tuple[int, int]
"""A class (or, where noted, a rank) and the number of its step."""


def gathered(traces: Traces, *, title: str = "", rules: Rules | None = None) -> Workload:
    """Build the workload of all ranks' steps.

    Raises
    ------
    ConfigError
        For a collective or message that some of its ranks never reach, request differently or put on different streams, and for
        cyclic waits.
    """
    met = _meetings(traces)
    colours = _classes(traces, met)
    return _Gathering(traces, met, colours).workload(title, rules)


def _meetings(traces: Traces) -> dict[Hashable, dict[int, int]]:
    """For each collective and message, the number of its step on each of its ranks."""
    met: dict[Hashable, dict[int, int]] = defaultdict(dict)
    first: dict[Hashable, tuple[int, Step, Together]] = {}
    for rank, steps in enumerate(traces):
        for number, step in enumerate(steps):
            asked = step.together
            if asked is None:
                continue
            other, one, known = first.setdefault(asked.key, (rank, step, asked))
            if rank in met[asked.key]:
                raise ConfigError(f"rank {rank}: step {number} ({_said(step)}) is a duplicate")
            if asked != known:
                raise ConfigError(
                    f"rank {rank} asks for {_said(step)}, rank {other} for {_said(one)}, at the same place"
                )
            if step.stream != one.stream:
                raise ConfigError(
                    f"{_said(step)} is on stream {step.stream!r} of rank {rank}, and on stream {one.stream!r} of rank {other}"
                )
            met[asked.key][rank] = number
    for key, ranks in met.items():
        missing = [rank for rank in first[key][2].ranks if rank not in ranks]
        if missing or len(ranks) != len(first[key][2].ranks):
            came = ", ".join(map(str, sorted(ranks)[:8]))
            raise ConfigError(
                f"{_said(first[key][1])}: rank {missing[0] if missing else max(ranks)} never comes to it; rank {came} does"
            )
    return dict(met)


def _said(step: Step) -> str:
    asked = step.together
    if asked is None:
        return f"work {step.name!r}"
    what = f"{asked.kind} of {asked.size_bytes} bytes by group {asked.group!r}"
    return f"{step.name!r}, {what}" if step.name else what


def _classes(traces: Traces, met: dict[Hashable, dict[int, int]]) -> list[int]:
    """The class of every rank."""
    numbers: dict[object, int] = {}

    def number_of(entry: object) -> int:
        return numbers.setdefault(entry, len(numbers))

    colours = [
        number_of(tuple(
            (step.stream, step.after, step.name, step.time_fs, step.flops) if step.together is None
            else (step.stream, step.after, step.name, step.together.traits, _end(step.together, rank))
            for step in steps
        ))
        for rank, steps in enumerate(traces)
    ]  # fmt: skip
    while True:
        before = len(set(colours))
        summaries = {key: number_of(_parts(parts, colours)) for key, parts in met.items()}
        colours = [
            number_of((colour, tuple(summaries[step.together.key] for step in steps if step.together is not None)))
            for colour, steps in zip(colours, traces, strict=True)
        ]
        if len(set(colours)) != before:
            continue
        split = _unsaid(traces, met, colours)
        if not split:
            return colours
        colours = [number_of((colour, rank)) if colour in split else colour for rank, colour in enumerate(colours)]


def _end(asked: Together, rank: int) -> int:
    """The end of a message that a rank is."""
    return asked.ranks.index(rank) if asked.kind == "send" else -1


def _parts(parts: dict[int, int], colours: list[int]) -> tuple[Part, ...]:
    """The participating classes, each with the number of its step."""
    return tuple(sorted({(colours[rank], number) for rank, number in parts.items()}))


def _unsaid(traces: Traces, met: dict[Hashable, dict[int, int]], colours: list[int]) -> set[int]:
    """The classes whose communication an operation on classes cannot express."""
    members: dict[int, list[int]] = defaultdict(list)
    for rank, colour in enumerate(colours):
        members[colour].append(rank)
    place = {rank: at for ranks in members.values() for at, rank in enumerate(ranks)}
    wrong: set[int] = set()
    for parts in met.values():
        here = _parts(parts, colours)
        names = [colour for colour, _ in here]
        wrong |= {colour for colour in names if names.count(colour) > 1}
        rank, number = next(iter(parts.items()))
        asked = traces[rank][number].together
        if asked is not None and asked.kind == "send":
            one, other = asked.ranks
            if colours[one] == colours[other] or place[one] != place[other]:
                wrong |= {colours[one], colours[other]}
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
        self.leaders = [each[0] for each in ranks.values()]
        width = len(str(len(self.traces) - 1))
        self.name = {
            each[0]: f"rank {each[0]:0{width}}" + (f" and {len(each) - 1} more" if each[1:] else "")
            for each in ranks.values()
        }
        self.classes = {self.name[each[0]]: each for each in ranks.values()}
        self.leader = {colour: each[0] for colour, each in ranks.items()}
        self._axes: dict[tuple[tuple[int, ...], ...], str] = {}
        self._together()

    def _together(self) -> None:
        """Group equal collectives of different groups by their participating leaders and steps."""
        self.parts: dict[Part, tuple[Part, ...]] = {}
        self.instances: dict[tuple[Part, ...], list[Together]] = defaultdict(list)
        for parts in self.met.values():
            here = tuple((self.leader[colour], number) for colour, number in _parts(parts, self.colours))
            rank, number = next(iter(parts.items()))
            asked = self.traces[rank][number].together
            if asked is not None:
                self.instances[here].append(asked)
            self.parts.update(dict.fromkeys(here, here))

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
        yield from ((leader, each) for each in self.traces[leader][number].after)
        before = self.previous.get(part)
        if before is not None:
            yield before

    def _order(self) -> Iterable[Part]:
        """One step of each operation in topological order, lowest number first."""
        self.previous: dict[Part, Part] = {}
        for leader in self.leaders:
            latest: dict[str, Part] = {}
            for number, step in enumerate(self.traces[leader]):
                if step.stream in latest:
                    self.previous[leader, number] = latest[step.stream]
                latest[step.stream] = (leader, number)
        every = [(leader, number) for leader in self.leaders for number in range(len(self.traces[leader]))]
        first = {part: min(self.parts.get(part, (part,))) for part in every}
        needs: dict[Part, set[Part]] = {part[::-1]: set() for part in first.values()}
        for part in every:
            needs[first[part][::-1]] |= {first[each][::-1] for each in self._needs(part)}
        done = set()
        for number, leader in lowest_first(needs):
            done.add((number, leader))
            yield leader, number
        if len(done) < len(needs):
            number, leader = next(part for part in needs if part not in done)
            step = self.traces[leader][number]
            raise ConfigError(
                f"rank {leader}: step {number} ({_said(step)}) is in a cycle of waits, so it can never start"
            )

    def _add(self, part: Part) -> None:
        leader, number = part
        step = self.traces[leader][number]
        if step.together is None:
            after = tuple(dict.fromkeys(self.ids[leader, each] for each in step.after))
            name = self._named((part,))
            self.operations.append(
                Compute(
                    id=name, on=self.name[leader], time_fs=step.time_fs, stream=step.stream, after=after, name=step.name, flops=step.flops
                )
            )  # fmt: skip
            return
        parts = self.parts[part]
        after = self._joined(parts, step.stream)
        asked = self.instances[parts][0]
        if asked.kind == "send":
            self._message(parts, step, asked, after)
            return
        name = self._named(parts)
        self.operations.append(
            Call(
                id=name, kind=asked.kind, group=self._axis(self.instances[parts]), size_bytes=asked.size_bytes,
                on=tuple(self.name[each] for each, _ in parts), stream=step.stream, after=after, algorithm=asked.algorithm,
                name=step.name, dtype=asked.dtype, root=asked.root, sizes=asked.sizes, imbalance=asked.imbalance,
            )
        )  # fmt: skip

    def _next(self) -> str:
        return str(len(self.operations))

    def _named(self, parts: tuple[Part, ...]) -> str:
        """Name the next operation, which consists of these steps."""
        name = self._next()
        self.ids.update(dict.fromkeys(parts, name))
        self.takers[name] = [leader for leader, _ in parts]
        return name

    def _joined(self, parts: tuple[Part, ...], stream: str) -> tuple[str, ...]:
        """The dependencies common to all classes of an operation; others become waits on the streams of their classes."""
        wanted = {
            leader: dict.fromkeys(self.ids[leader, each] for each in self.traces[leader][number].after)
            for leader, number in parts
        }
        shared: dict[str, None] = {}
        for leader, names in wanted.items():
            own = [
                name
                for name in names
                if any(name not in wanted[other] for other in self.takers[name] if other in wanted)
            ]
            shared.update(dict.fromkeys(name for name in names if name not in own))
            if own:
                here = self._next()
                self.operations.append(
                    Compute(id=here, on=self.name[leader], time_fs=0, stream=stream, after=tuple(own))
                )
        return tuple(shared)

    def _message(self, parts: tuple[Part, ...], step: Step, asked: Together, after: tuple[str, ...]) -> None:
        source, target = (
            next(self.name[leader] for leader, _ in parts if self.colours[leader] == self.colours[asked.ranks[end]])
            for end in (0, 1)
        )
        sizes = (0, asked.size_bytes) if asked.at_once and asked.size_bytes else (asked.size_bytes,)
        for size in sizes:
            name = self._named(parts)
            self.operations.append(
                Send(
                    id=name, source=source, target=target, size_bytes=size, stream=step.stream, after=after, group=asked.group,
                    name=step.name,
                )
            )  # fmt: skip
            after = ()

    def _axis(self, instances: list[Together]) -> str:
        """The name of an axis of groups: the first group's, if it is free."""
        groups = tuple(sorted(each.ranks for each in instances))
        if groups not in self._axes:
            wanted = instances[0].group
            name = next(
                each
                for each in (wanted, *(f"{wanted} ({number})" for number in range(2, len(self.groups) + 3)))
                if each not in self.groups
            )
            self.groups[name] = groups
            self._axes[groups] = name
        return self._axes[groups]
