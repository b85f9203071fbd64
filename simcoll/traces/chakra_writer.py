"""Write workloads, programs and plans as Chakra execution traces, one file per rank.

A stream becomes dependencies: each node depends on its predecessor on the stream. Properties that
the schema lacks (femtoseconds, streams, element types, roots, rules) are in attributes prefixed
``simcoll.``, which other readers skip.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from simcoll.core.collective import KINDS, collective_kind
from simcoll.core.plan import Plan, PlanStep
from simcoll.core.schedule import MULTICAST, OP_NAMES, REDUCE
from simcoll.core.transit import refuse_transits
from simcoll.emulator.programs import Compute as Work
from simcoll.emulator.programs import Program
from simcoll.emulator.programs import Send as Messages
from simcoll.errors import ConfigError
from simcoll.formats.chakra.nodes import Node, NodeType, Value, dump_nodes
from simcoll.traces.chakra import COLLECTIVES, OWN
from simcoll.traces.rank_traces import Together, Traces, TraceStep
from simcoll.workload.lower import NOTHING
from simcoll.workload.stream_names import message_stream
from simcoll.workload.workload import ComputeOperation, Operation, Rules, SendOperation, Workload

__all__ = ["dump_chakra", "traces_of_program", "traces_of_workload"]

_US = 10**9


def traces_of_workload(workload: Workload) -> Traces:
    """The steps of each rank of a workload.

    Raises
    ------
    ConfigError
        For computations with collectives inside, which have to be lowered to a program for a
        topology first.
    """
    traces: Traces = [[] for _ in range(workload.nranks)]
    places: dict[str, dict[int, int]] = {}
    for operation in workload.unroll():
        if isinstance(operation, ComputeOperation) and operation.inside:
            raise ConfigError(
                f"operation {operation.id!r} has collectives inside, whose pieces depend on where "
                "it runs: give the program on a topology"
            )
        steps_of = places[operation.id] = {}
        for rank, together in _parts(workload, operation):
            needs = tuple(
                dict.fromkeys(
                    places[needed][rank] for needed in operation.after if rank in places[needed]
                )
            )
            steps_of[rank] = len(traces[rank])
            time, flops = (
                (operation.time_fs, operation.flops)
                if isinstance(operation, ComputeOperation)
                else (0, 0.0)
            )
            time = (
                max(time, operation.least_fs) if isinstance(operation, ComputeOperation) else time
            )
            traces[rank].append(
                TraceStep(operation.stream, needs, operation.name, time, flops, together)
            )
    return traces


def _parts(workload: Workload, operation: Operation) -> Iterable[tuple[int, Together | None]]:
    """The ranks of an operation, and each rank's part of its communication."""
    if isinstance(operation, ComputeOperation):
        yield from ((rank, None) for rank in workload.classes[operation.on].tolist())
        return
    if isinstance(operation, SendOperation):
        ends = (
            workload.classes[operation.source].tolist(),
            workload.classes[operation.target].tolist(),
        )
        for pair in zip(*ends, strict=True):
            together = Together(
                (operation.id, pair), pair, "send", operation.group, operation.size_bytes
            )
            yield from ((rank, together) for rank in pair)
        return
    for ranks in workload.groups_of(operation).tolist():
        together = Together(
            (operation.id, ranks[0]),
            tuple(ranks),
            operation.kind,
            operation.group,
            operation.size_bytes,
            operation.dtype,
            operation.root,
            operation.sizes,
            operation.algorithm,
            operation.imbalance,
        )
        idle = not operation.moves and operation.kind != "meeting"
        yield from ((rank, None if idle else together) for rank in ranks)


def traces_of_program(program: Program, *, lowered: bool = False) -> Traces:
    """The steps of each rank of a program.

    Parameters
    ----------
    lowered
        Write collectives as the messages and reductions of their plans.

    Raises
    ------
    ConfigError
        With ``lowered``, for operations of switches.
    """
    return _OfProgram(program, lowered=lowered).traces()


@dataclass(eq=False)
class _OfProgram:
    program: Program
    lowered: bool
    steps: Traces = field(init=False)
    ends: list[dict[int, tuple[int, ...]]] = field(default_factory=list)
    latest: dict[tuple[int, str], tuple[int, ...]] = field(default_factory=dict)

    def traces(self) -> Traces:
        program = self.program
        starts = np.broadcast_to(program.starts_fs, (program.nranks,)).tolist()
        self.steps = [
            [TraceStep("start", name="start", time_fs=start)] if start else [] for start in starts
        ]
        for number, operation in enumerate(program.operations):
            self.ends.append({})
            if isinstance(operation, Work):
                times = np.broadcast_to(operation.duration_fs, (len(operation.ranks),)).tolist()
                for rank, time in zip(operation.ranks.tolist(), times, strict=True):
                    self._end(number, rank, (self._add(number, rank, time_fs=time),))
                continue
            call = operation.call if isinstance(operation, Messages) else operation
            for position, ranks in enumerate(call.groups.tolist()):
                self._call(number, position, call.plan, ranks)
        return self.steps

    def _after(self, number: int, rank: int) -> tuple[int, ...]:
        """The steps of a rank that an operation's first step depends on."""
        needs = [
            step
            for earlier in self.program.before[number]
            for step in self.ends[earlier].get(rank, ())
        ]
        needs += self.latest.get((rank, self.program.operations[number].stream), ())
        if not needs and self.steps[rank] and self.steps[rank][0].stream == "start":
            needs = [0]
        return tuple(dict.fromkeys(needs))

    def _add(
        self,
        number: int,
        rank: int,
        *,
        time_fs: int = 0,
        together: Together | None = None,
        stream: str = "",
    ) -> int:
        operation = self.program.operations[number]
        self.steps[rank].append(
            TraceStep(
                stream or operation.stream,
                self._after(number, rank),
                operation.name,
                time_fs,
                together=together,
            )
        )
        return len(self.steps[rank]) - 1

    def _end(self, number: int, rank: int, steps: tuple[int, ...]) -> None:
        self.ends[number][rank] = steps
        self.latest[rank, self.program.operations[number].stream] = steps

    def _call(self, number: int, position: int, plan: Plan, ranks: list[int]) -> None:
        collective = plan.collective
        if plan.protocol == NOTHING:
            together = Together((number, position), tuple(ranks), "meeting", "meeting", 0)
        elif collective.kind == "send_recv":
            self._messages(number, position, plan, ranks)
            return
        elif self.lowered:
            self._lower(number, position, plan, ranks)
            return
        else:
            together = Together(
                (number, position),
                tuple(ranks),
                collective.kind,
                f"{len(ranks)} ranks",
                plan.total_bytes,
                plan.dtype.name,
                collective.root or 0,
                _explicit_blocks(plan),
            )
        for rank in ranks:
            self._end(number, rank, (self._add(number, rank, together=together),))

    def _messages(self, number: int, position: int, plan: Plan, ranks: list[int]) -> None:
        """The messages of a send_recv, in which a rank may be the source of one and the destination
        of another.
        """
        steps_of: dict[int, list[int]] = {rank: [] for rank in ranks}
        for pair, size in zip(plan.collective.pairs, _pair_bytes(plan), strict=True):
            ends = tuple(ranks[index] for index in pair)
            if ends[0] == ends[1]:
                raise ConfigError(f"rank {ends[0]} sends to itself, which a trace has no node for")
            together = Together((number, position, pair), ends, "send", "messages", size)
            stream = self.program.operations[number].stream
            name = (
                stream if len(plan.collective.pairs) == 1 else f"{stream} {message_stream(*ends)}"
            )
            for rank in ends:
                steps_of[rank].append(self._add(number, rank, together=together, stream=name))
        for rank, steps in steps_of.items():
            if steps:
                self._end(number, rank, tuple(steps))

    def _lower(self, number: int, position: int, plan: Plan, ranks: list[int]) -> None:
        """Lower a plan to messages: each lane of a rank runs its steps in order, with one message
        per step and destination.
        """
        if plan.waits:
            raise ConfigError(
                f"a Chakra trace cannot hold {plan.schedule.title}: its messages of different "
                "channels wait for each other"
            )
        stream = self.program.operations[number].stream
        entry_steps = {rank: self._after(number, rank) for rank in ranks}
        lanes: dict[tuple[int, int], tuple[int, ...]] = {}
        refuse_transits(plan.schedule, plan.schedule.transits, "a Chakra trace cannot hold")
        for step in plan.steps():
            next_of: dict[tuple[int, int], list[int]] = defaultdict(list)
            name = f"{plan.collective.kind} step {step.step}{'' if plan.proof else ', unproved'}"
            for (src, dst, channel), (size, work) in _messages_of(step, plan).items():
                ends = (ranks[src], ranks[dst])
                together = (
                    None
                    if src == dst
                    else Together(
                        (number, position, step.step, channel, ends), ends, "send", "messages", size
                    )
                )
                for local in dict.fromkeys((src, dst)):
                    rank_steps, needs = (
                        self.steps[ranks[local]],
                        lanes.get((local, channel), entry_steps[ranks[local]]),
                    )
                    if together is not None:
                        rank_steps.append(TraceStep("", needs, name, together=together))
                        needs = (len(rank_steps) - 1,)
                    if together is None or (work and local == dst):
                        rank_steps.append(
                            TraceStep(f"{stream} channel {channel}", needs, name, work)
                        )
                    next_of[local, channel].append(len(rank_steps) - 1)
            lanes.update({lane: tuple(steps) for lane, steps in next_of.items()})
        for local, rank in enumerate(ranks):
            last = tuple(
                step for (owner, _), steps in lanes.items() if owner == local for step in steps
            )
            self._end(number, rank, last or entry_steps[rank])


def _messages_of(step: PlanStep, plan: Plan) -> dict[tuple[int, int, int], tuple[int, int]]:
    """Bytes, and the time to reduce or copy them at the destination, by source, destination and
    channel.
    """
    strange = np.flatnonzero(step.op >= MULTICAST)
    if len(strange):
        operation = OP_NAMES[step.op[strange[0]]]
        raise ConfigError(
            f"{plan.schedule.title} has an operation {operation!r} of a switch; a trace has "
            "messages between two ranks"
        )
    messages: dict[tuple[int, int, int], tuple[int, int]] = {}
    protocol = plan.protocol
    lanes = zip(step.src_rank.tolist(), step.dst_rank.tolist(), step.channel.tolist(), strict=True)
    for lane, op, size in zip(lanes, step.op.tolist(), step.size_bytes.tolist(), strict=True):
        costs = protocol.reduce_as_per_byte if op == REDUCE else 0
        costs += protocol.copy_as_per_byte if lane[0] == lane[1] else 0
        earlier = messages.get(lane, (0, 0))
        messages[lane] = (earlier[0] + size, earlier[1] + size * costs // 1000)
    return messages


def _pair_bytes(plan: Plan) -> list[int]:
    """Bytes of each pair of a send_recv."""
    size: Counter[tuple[int, int]] = Counter()
    for step in plan.steps():
        for src, dst, count in zip(
            step.src_rank.tolist(), step.dst_rank.tolist(), step.size_bytes.tolist(), strict=True
        ):
            size[src, dst] += count
    return [size[pair] for pair in plan.collective.pairs]


def _explicit_blocks(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The blocks of a plan with explicit or empty blocks."""
    sizes = np.atleast_2d(np.asarray(plan.sizes))
    return tuple(map(tuple, sizes.tolist())) if sizes.size > 1 or not plan.total_bytes else ()


def dump_chakra(traces: Traces, rules: Rules | None = None) -> list[bytes]:
    """Encode the file of every rank.

    Examples
    --------
    >>> from simcoll.traces.chakra import parse_chakra
    >>> files = dump_chakra([[TraceStep("compute", name="forward", time_fs=10**12)]])
    >>> parse_chakra([(files[0], None)]).operations[0].time_fs
    1000000000000
    """
    every = tuple(range(len(traces)))
    groups: dict[tuple[int, ...], str] = {every: ""}
    for steps in traces:
        for step in steps:
            together = step.together
            if together is not None and together.kind != "send":
                groups.setdefault(together.ranks, str(len(groups)))
    tags: dict[object, int] = {}
    metadata: dict[str, Value] = {}
    if rules is not None:
        metadata = {f"{OWN}protocol": rules.protocol, f"{OWN}library": rules.library}
    return [
        dump_nodes(metadata, _nodes(rank, steps, groups, tags)) for rank, steps in enumerate(traces)
    ]


def _nodes(
    rank: int,
    steps: list[TraceStep],
    groups: Mapping[tuple[int, ...], str],
    tags: dict[object, int],
) -> list[Node]:
    """The nodes of a rank: its groups, then its steps."""
    memberships = {ranks: name for ranks, name in groups.items() if name and rank in ranks}
    nodes = []
    if memberships:
        listing = json.dumps(
            [{"pg_name": name, "ranks": list(ranks)} for ranks, name in memberships.items()],
            separators=(",", ":"),
        )
        nodes.append(Node(0, "## process_group:init ##", "METADATA", values=f'["{listing}"]'))
    latest: dict[str, int] = {}
    offset = len(nodes)
    for number, step in enumerate(steps, offset):
        needs = [offset + number_in_trace for number_in_trace in step.after]
        if step.stream:
            needs += [latest[step.stream]] if step.stream in latest else []
            latest[step.stream] = number
        nodes.append(_node(number, rank, step, tuple(dict.fromkeys(needs)), groups, tags))
    return nodes


def _node(
    number: int,
    rank: int,
    step: TraceStep,
    needs: tuple[int, ...],
    groups: Mapping[tuple[int, ...], str],
    tags: dict[object, int],
) -> Node:
    together = step.together
    attributes: dict[str, Value] = {"is_cpu_op": False}
    if step.stream:
        attributes[f"{OWN}stream"] = step.stream
    if together is None:
        attributes[f"{OWN}time_fs"] = step.time_fs
        if step.flops:
            attributes["num_ops"] = round(step.flops)
        return Node(
            number, step.name or "compute", "COMP", needs, -(-step.time_fs // _US), attributes
        )
    if together.kind == "send":
        source, target = together.ranks
        attributes |= {
            "comm_src": source,
            "comm_dst": target,
            "comm_size": together.size_bytes,
            "comm_tag": tags.setdefault(together.key, len(tags)),
        }
        if step.stream:
            attributes[f"{OWN}waits"] = True
        kind: NodeType = "COMM_SEND" if rank == source else "COMM_RECV"
        return Node(number, step.name or "message", kind, needs, 0, attributes)
    meets = together.kind == "meeting"
    size_bytes = (
        together.size_bytes // len(together.ranks)
        if together.kind in {"all_gather", "gather"}
        else together.size_bytes
    )
    attributes |= {
        "comm_type": COLLECTIVES.index("barrier" if meets else together.kind),
        "comm_size": size_bytes,
    }
    if groups[together.ranks]:
        attributes["pg_name"] = groups[together.ranks]
    sizes = ";".join(",".join(map(str, row)) for row in together.sizes)
    extras: dict[str, Value] = {
        "meeting": meets,
        "dtype": together.dtype,
        "algorithm": together.algorithm,
        "sizes": sizes,
    }
    if together.imbalance != 1:
        extras["imbalance"] = together.imbalance
    if not meets and KINDS[collective_kind(together.kind)].rooted:
        extras["root"] = together.root
    attributes |= {f"{OWN}{name}": value for name, value in extras.items() if value}
    return Node(number, step.name or together.kind, "COMM_COLL", needs, 0, attributes)
