"""What each device does in a compiled module: work, collectives and loops, in order of execution.

All devices run the same program. Work is not timed here: its cost is known without the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.vocabulary import CollectiveKind
from simcoll.errors import ConfigError
from simcoll.jobs.hlo_costs import COLLECTIVES, FREE, HloCost, HloCosts
from simcoll.jobs.hlo_groups import groups_of_pairs, permute_pairs, replica_groups
from simcoll.jobs.hlo_loops import trip_count
from simcoll.jobs.hlo_text import HloComputation, HloInstruction, HloModule, whole_number

__all__ = [
    "HloCollective",
    "HloEnd",
    "HloLoop",
    "HloProgram",
    "HloStart",
    "HloWork",
    "Step",
    "program_of",
    "steps_with_counts",
]

MOST_STEPS = 1_000_000
_DEEPEST = 100


@dataclass(frozen=True, slots=True, eq=False)
class HloWork:
    """Work of a device: the cost of one instruction, its name, and the compiler's own cycles."""

    name: str
    cost: HloCost
    cycles: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class HloCollective:
    """A collective.

    Attributes
    ----------
    name, line
        Its name, and its line in the text.
    opcode, kind
        Opcode of HLO, and the collective here.
    groups, pairs
        Groups of devices; for a permute the pairs within each.
    size_bytes
        Its size as nccl-tests counts it: the larger of a device's input and output; of a permute,
        that of a message.
    synchronous
        Whether the device's work waits for it where it starts.
    """

    name: str
    line: int
    opcode: str
    kind: CollectiveKind
    groups: Ints
    pairs: tuple[tuple[int, int], ...]
    size_bytes: int
    synchronous: bool


@dataclass(frozen=True, slots=True, eq=False)
class HloStart:
    """The start of a collective, which runs beside the work that follows."""

    collective: HloCollective


@dataclass(frozen=True, slots=True, eq=False)
class HloEnd:
    """Where the work waits for a collective that was started."""

    collective: HloCollective


@dataclass(frozen=True, slots=True, eq=False)
class HloLoop:
    """A loop: its name, the number of its iterations, and the steps of one."""

    name: str
    count: int
    steps: tuple[Step, ...]


Step: TypeAlias = "HloWork | HloStart | HloEnd | HloLoop"


@dataclass(frozen=True, slots=True, eq=False)
class HloProgram:
    """The steps of each device, and what was assumed about the module, in words."""

    module: HloModule
    steps: tuple[Step, ...]
    assumptions: tuple[str, ...] = ()

    @property
    def flops(self) -> Counter[str]:
        """FLOPs of each device by type, with all iterations of loops."""
        total: Counter[str] = Counter()
        for step, count in steps_with_counts(self.steps):
            if isinstance(step, HloWork):
                for name, flops in step.cost.flops.items():
                    total[name] += round(flops * count)
        return total

    @property
    def collectives(self) -> Iterator[tuple[HloCollective, int]]:
        """The collectives, and how often each runs."""
        for step, count in steps_with_counts(self.steps):
            if isinstance(step, HloStart):
                yield step.collective, count


def steps_with_counts(steps: Iterable[Step], count: int = 1) -> Iterator[tuple[Step, int]]:
    """Steps inside of loops too, each once, with the number of times that it is performed."""
    for step in steps:
        if isinstance(step, HloLoop):
            yield from steps_with_counts(step.steps, count * step.count)
        else:
            yield step, count


def program_of(module: HloModule) -> HloProgram:
    r"""The program of a module.

    Raises
    ------
    ConfigError
        With the line, for what cannot be read: an unknown number of iterations, custom call or
        notation, branches that differ, messages outside of collectives.

    Examples
    --------
    >>> from simcoll.jobs.hlo_text import parse_hlo
    >>> program = program_of(parse_hlo(
    ...     "HloModule sum, is_scheduled=true, num_partitions=2\n"
    ...     "ENTRY %main (x: bf16[8,4], y: bf16[4,2]) -> bf16[8,2] {\n"
    ...     "  %x = bf16[8,4]{1,0} parameter(0)\n"
    ...     "  %y = bf16[4,2]{1,0} parameter(1)\n"
    ...     "  ROOT %z = bf16[8,2]{1,0} dot(%x, %y), lhs_contracting_dims={1}, "
    ...     "rhs_contracting_dims={0}\n"
    ...     "}\n"
    ... ))
    >>> dict(program.flops)
    {'bf16': 128}
    """
    reader = _ProgramReader(module)
    steps = reader.steps(module.computations[module.entry], 0)
    return HloProgram(module, tuple(steps), tuple(reader.assumptions))


class _Started(dict[str, "HloCollective"]):
    """The collectives of a computation that are started and not ended, by the names of the values
    that hold them.

    Attributes
    ----------
    elements
        By the name of a tuple, those that its elements hold.
    copies
        Names of copies that run beside the work.
    around
        By the place in the tuple of a loop's state, those that run across the loop.
    """

    def __init__(self, around: Mapping[int, HloCollective]) -> None:
        super().__init__()
        self.around = around
        self.copies: set[str] = set()
        self.elements: dict[str, Mapping[int, HloCollective]] = {}

    def pass_on(self, instruction: HloInstruction) -> None:
        """Note the value of an instruction that holds what its operands hold."""
        operands, opcode = instruction.operands, instruction.opcode
        if opcode == "parameter":
            self.elements[instruction.name] = self.around
        elif opcode == "tuple":
            self.elements[instruction.name] = {
                place: self[name] for place, name in enumerate(operands) if name in self
            }
        elif opcode in {"get-tuple-element", "bitcast", "async-update"} and operands:
            if operands[0] in self.copies:
                self.copies.add(instruction.name)
            within = self.elements.get(operands[0], {})
            place = whole_number(instruction.attribute("index") or "-1")
            collective = within.get(place) or self.get(operands[0])
            if collective is not None:
                self[instruction.name] = collective

    def first_open(self) -> HloCollective | None:
        """One that is not ended, and was started here."""
        outer = {id(collective) for collective in self.around.values()}
        return next((value for value in self.values() if id(value) not in outer), None)


@dataclass(eq=False)
class _ProgramReader:
    module: HloModule
    costs: HloCosts = field(init=False)
    assumptions: dict[str, None] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.costs = HloCosts(self.module)

    def steps(
        self,
        computation: HloComputation,
        depth: int,
        around: Mapping[int, HloCollective] = MappingProxyType({}),
    ) -> list[Step]:
        """The steps of a computation; ``depth`` counts the calls around it, and ``around`` are the
        collectives that run across it.
        """
        if depth > _DEEPEST:
            raise ConfigError(
                f"line {computation.line}: calls are nested more than {_DEEPEST} deep",
                file=self.module.file,
            )
        # Computations that call others twice, which do so too, are a bomb.
        self.count += len(computation.instructions)
        if self.count > MOST_STEPS:
            raise ConfigError(
                f"calls unfold to more than {MOST_STEPS:,} instructions", file=self.module.file
            )
        started = _Started(around)
        steps: list[Step] = []
        for instruction in computation.instructions.values():
            steps += self._steps_of(computation, instruction, started, depth)
        waiting = started.first_open()
        if waiting is not None:
            raise ConfigError(
                f"line {waiting.line}, {waiting.name}: it is started and not ended in "
                f"{computation.name}",
                file=self.module.file,
            )
        return steps

    def _steps_of(
        self,
        computation: HloComputation,
        instruction: HloInstruction,
        started: _Started,
        depth: int,
    ) -> list[Step]:
        opcode = instruction.opcode
        base = opcode.removesuffix("-start")
        if opcode in FREE:
            started.pass_on(instruction)
            return []
        if opcode == "while":
            return self._loop(computation, instruction, started, depth)
        if opcode == "call":
            return self.steps(self.module.computation(instruction, "to_apply"), depth + 1)
        if opcode == "conditional":
            return self._branches(instruction, depth)
        if opcode in {"send", "recv", "send-done", "recv-done", "infeed", "outfeed"}:
            raise self.module.refuse(
                instruction, f"{opcode!r}: messages outside of collectives are not read"
            )
        if base in COLLECTIVES:
            collective = self._collective(computation, instruction, base)
            return self._start(instruction.name, collective, started, opcode != base)
        if opcode == "async-start":
            return self._async_start(instruction, started)
        if opcode.endswith("-done") and opcode != "slice-done":
            return self._end(instruction, started)
        if opcode == "async-update":
            started.pass_on(instruction)
            return []
        if opcode == "fusion":
            return self._fusion(computation, instruction, started)
        return [self._work(computation, instruction)]

    def _work(self, computation: HloComputation, instruction: HloInstruction) -> HloWork:
        cost = self.costs.of(computation, instruction)
        cycles = _cycles(instruction)
        return HloWork(instruction.name, cost, cycles)

    def _loop(
        self,
        computation: HloComputation,
        instruction: HloInstruction,
        started: _Started,
        depth: int,
    ) -> list[Step]:
        count = trip_count(self.module, computation, instruction)
        around = started.elements.get(next(iter(instruction.operands), ""), {})
        started.elements[instruction.name] = around
        body = self.module.computation(instruction, "body")
        steps = self.steps(body, depth + 1, around)
        if not count or not steps:
            return []
        return [HloLoop(instruction.name, count, tuple(steps))]

    def _branches(self, instruction: HloInstruction, depth: int) -> list[Step]:
        """The branch of a conditional that moves most bytes, if they only differ in these."""
        listed = instruction.attribute("branch_computations").strip("{}").split(",")
        names = [name.strip().lstrip("%") for name in listed if name.strip()]
        names += [
            instruction.computation_name(key)
            for key in ("true_computation", "false_computation")
            if instruction.computation_name(key)
        ]
        branches = []
        for name in names:
            if name not in self.module.computations:
                raise self.module.refuse(instruction, f"the text has no computation {name!r:.60}")
            branches.append(self.steps(self.module.computations[name], depth + 1))
        if len({_outline(branch) for branch in branches}) != 1:
            raise self.module.refuse(
                instruction,
                "which branch runs is decided by data, and the branches communicate, multiply or "
                "loop differently; expected a program without lax.cond around them",
            )
        self.assumptions["conditionals take the branch that moves most bytes"] = None
        return max(branches, key=_moved_bytes)

    def _collective(
        self, computation: HloComputation, instruction: HloInstruction, base: str
    ) -> HloCollective:
        pairs: tuple[tuple[int, int], ...] = ()
        nbytes = computation.operand_bytes(instruction)
        if base == "collective-permute":
            messages = permute_pairs(self.module, instruction)
            groups, pairs = (
                groups_of_pairs(messages)
                if messages
                else (replica_groups(self.module, instruction, base)[:, :1], ())
            )
            source = computation.operand(instruction, 0)
            nbytes = source.nbytes if source is not None else nbytes
        else:
            groups = replica_groups(self.module, instruction, base)
        if base == "all-gather":
            nbytes *= groups.shape[1]
        elif base == "ragged-all-to-all":
            source = computation.operand(instruction, 0)
            nbytes = source.nbytes if source is not None else nbytes
            self.assumptions[
                "ragged all_to_alls send whole buffers in even parts: the data decides their sizes"
            ] = None
        # Groups in another order are the same groups.
        groups = groups[np.argsort(groups[:, 0], kind="stable")]
        backend = instruction.settings.replace(" ", "")
        synchronous = not instruction.opcode.endswith("-start") or '"is_sync":true' in backend
        return HloCollective(
            instruction.name,
            instruction.line,
            base,
            COLLECTIVES[base],
            groups,
            pairs,
            nbytes,
            synchronous,
        )

    def _start(
        self,
        name: str,
        collective: HloCollective,
        started: _Started,
        has_end: bool,
    ) -> list[Step]:
        if has_end:
            started[name] = collective
        if collective.groups.shape[1] == 1:
            return []
        return [HloStart(collective)]

    def _async_start(self, instruction: HloInstruction, started: _Started) -> list[Step]:
        """A computation that runs beside the device's work: one collective; or a copy, which is
        work where it starts.
        """
        body = self.module.computation(instruction, "calls")
        inner = [
            candidate
            for candidate in body.instructions.values()
            if candidate.opcode.removesuffix("-start") in COLLECTIVES
        ]
        further = [
            candidate
            for candidate in body.instructions.values()
            if candidate not in inner and candidate.opcode not in FREE
        ]
        if not inner:
            started.copies.add(instruction.name)
            return [self._work(body, candidate) for candidate in further]
        if len(inner) != 1 or further:
            raise self.module.refuse(
                instruction,
                f"expected one collective in {body.name}, got {len(inner)} and "
                f"{len(further)} other operations",
            )
        base = inner[0].opcode.removesuffix("-start")
        return self._start(
            instruction.name, self._collective(body, inner[0], base), started, has_end=True
        )

    def _end(self, instruction: HloInstruction, started: _Started) -> list[Step]:
        collective = next(
            (started[operand] for operand in instruction.operands if operand in started), None
        )
        if collective is None and started.copies.intersection(instruction.operands):
            return []
        if collective is None:
            raise self.module.refuse(
                instruction, "it ends what was not started in the same computation"
            )
        if any(collective is outer for outer in started.around.values()):
            raise self.module.refuse(instruction, "it ends in a loop what was started before it")
        for name in [name for name, value in started.items() if value is collective]:
            del started[name]
        return [HloEnd(collective)] if collective.groups.shape[1] > 1 else []

    def _fusion(
        self,
        computation: HloComputation,
        instruction: HloInstruction,
        started: _Started,
    ) -> list[Step]:
        """A fusion; those of TPUs may start or end a collective, or hold one."""
        body = self.module.computation(instruction, "calls")
        inner = [
            candidate
            for candidate in body.instructions.values()
            if candidate.opcode.removesuffix("-start") in COLLECTIVES
        ]
        work: list[Step] = [self._work(computation, instruction)]
        targets = {candidate.target for candidate in body.instructions.values()} - {""}
        running = next((name for name in instruction.operands if name in started), "")
        if "AsyncCollectiveDone" in targets and running:
            return [*work, *self._end(instruction, started)]
        if running:  # a step of a collective beside which it computes
            started[instruction.name] = started[running]
            return work
        steps = work
        for candidate in inner:
            is_async = "AsyncCollectiveStart" in targets
            collective = replace(
                self._collective(body, candidate, candidate.collective), synchronous=not is_async
            )
            steps = [*self._start(instruction.name, collective, started, is_async), *steps]
        return steps


def _cycles(instruction: HloInstruction) -> int:
    """The cycles that the compiler for TPUs estimates."""
    _, marker, text = instruction.settings.partition('"estimated_cycles":"')
    return max(0, whole_number(text.partition('"')[0])) if marker else 0


def _outline(steps: Iterable[Step]) -> tuple[object, ...]:
    """What steps communicate, multiply and repeat."""
    outline: list[object] = []
    flops: Counter[str] = Counter()
    for step in steps:
        if isinstance(step, HloWork):
            flops.update(step.cost.flops)
        elif isinstance(step, HloLoop):
            outline.append((step.count, _outline(step.steps)))
        elif isinstance(step, HloStart):
            collective = step.collective
            groups = collective.groups.tobytes()
            outline.append((collective.kind, groups, collective.pairs, collective.size_bytes))
    return (*outline, tuple(sorted(flops.items())))


def _moved_bytes(steps: list[Step]) -> int:
    return sum(step.cost.nbytes for step in steps if isinstance(step, HloWork))
