"""Writer of MSCCL XML: a proved schedule as the thread blocks of microsoft/msccl, the Azure
executor or RCCL.

Each end of each connection gets its own thread block, and the local operations of a channel share
one. A block that both sends and receives would deadlock with its neighbours when the runtime splits
a large chunk into more messages than its FIFO holds; with one direction per block, the program is
safe at any size, even without a FIFO.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from xml.sax.saxutils import quoteattr

import numpy as np

from simcoll.binding import bind, verify
from simcoll.core.layout import Layout
from simcoll.core.rank_program import NAMES, RankProgram
from simcoll.core.schedule import COPY, OP_NAMES, REDUCE, Schedule
from simcoll.core.transit import refuse_transits
from simcoll.core.wiring import wire
from simcoll.errors import ConfigError, InternalError, expect, nearest
from simcoll.files.output import write_file
from simcoll.formats.schedules.msccl_xml import MAX_COUNT, parse_msccl_xml
from simcoll.proving import lower, verify_program
from simcoll.proving.deadlock import play

__all__ = ["DIALECTS", "Dialect", "dump_msccl_xml"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """A runtime for MSCCL XML: its names and limits.

    Attributes
    ----------
    reduce_scatter
        Its name of that collective.
    out_of_place
        Whether the attribute ``outofplace`` exists.
    blocks, steps
        Maximum thread blocks per GPU, and steps per block. Dependencies refer to thread blocks by a
        signed byte: at most 128.
    """

    reduce_scatter: str
    out_of_place: bool
    blocks: int
    steps: int


DIALECTS: Mapping[str, Dialect] = {
    "msccl": Dialect("reduce_scatter", out_of_place=False, blocks=128, steps=256),
    "azure": Dialect("reducescatter", out_of_place=True, blocks=128, steps=256),
    "rccl": Dialect("reducescatter", out_of_place=True, blocks=64, steps=64),
}
"""microsoft/msccl ``src/include/msccl.h``; Azure/msccl-executor-nccl and ROCm/rccl
``src/include/msccl/msccl_struct.h``.
"""
MAX_CHANNELS, MAX_NODES = 32, 4096

_COLLS = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
_TYPES = {
    "nop": "nop",
    "send": "s",
    "recv": "r",
    "recv_reduce_copy": "rrc",
    "copy": "cpy",
    "reduce": "re",
}


@dataclass(slots=True)
class _BlockStep:
    """A step of a thread block: its instruction, the part of it, and the steps that it waits
    for.
    """

    number: int
    offset: int
    count: int
    waits: tuple[tuple[int, int], ...] = ()
    awaited: bool = False


def dump_msccl_xml(
    schedule: Schedule,
    path: str | Path | None = None,
    *,
    dialect: str = "msccl",
    protocol: str = "Simple",
    min_bytes: int = 0,
    max_bytes: int = 2**27,
    name: str | None = None,
) -> bytes:
    """Write a schedule as MSCCL XML, to ``path`` if given.

    The file is read back and proved before it is returned or appears. It runs for sizes that are
    multiples of its chunks.

    Parameters
    ----------
    schedule
        Any schedule of a supported collective, without switch operations.
    dialect
        The runtime: ``msccl``, ``azure`` or ``rccl``.
    protocol
        ``Simple``, ``LL`` or ``LL128``.
    min_bytes, max_bytes
        Range of sizes for which the runtime uses it.
    name
        Name of the algorithm; default the schedule's, with its parameters.

    Raises
    ------
    ScheduleError
        When the schedule is wrong.
    ConfigError
        For content that the format cannot express, by name; for an exceeded limit of the runtime;
        when the file cannot be written.

    Examples
    --------
    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=2)
    >>> text = dump_msccl_xml(ring, name="mine", protocol="LL").decode()
    >>> print(text.split(" min")[0])
    <algo name="mine" proto="LL" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" ...
    """
    expect(
        schedule,
        Schedule,
        "dump_msccl_xml takes a schedule, made by simcoll.schedule() or Schedule()",
    )
    if dialect not in DIALECTS:
        raise ConfigError(f"unknown dialect {dialect!r} of MSCCL XML; {nearest(dialect, DIALECTS)}")
    _check_fits(schedule)
    proof = verify(schedule)
    # Chunks of one element: what moves is independent of their size.
    refuse_transits(schedule, schedule.transits, "MSCCL XML cannot hold")
    program = lower(bind(schedule, schedule.layout.chunks))
    title = (name or schedule.title)[:63]
    collective = schedule.collective
    kind = collective.kind
    per_loop = max(collective.input_slots, collective.output_slots) * schedule.layout.chunks
    head = {
        "name": title,
        "proto": protocol,
        "nchannels": str(schedule.nchannels),
        "nchunksperloop": str(per_loop),
        "ngpus": str(schedule.nranks),
        "coll": DIALECTS[dialect].reduce_scatter if kind == "reduce_scatter" else _COLLS[kind],
        "inplace": str(int(collective.in_place)),
    }
    if DIALECTS[dialect].out_of_place:
        head["outofplace"] = str(int(not collective.in_place))
    head |= {"minBytes": str(min_bytes), "maxBytes": str(max_bytes)}
    attributes = " ".join(f"{key}={quoteattr(value)}" for key, value in head.items())
    gpus = _gpus(schedule, program, DIALECTS[dialect])
    content = f"<algo {attributes}>\n{''.join(gpus)}</algo>\n".encode()
    again = verify_program(parse_msccl_xml(content))
    if not again.data or again.order != proof.order or again.least_depth != 0:
        raise InternalError(f"{schedule}: as MSCCL XML it reads back as {again}")
    if path is not None:
        write_file(path, content)
    return content


def _refuse(schedule: Schedule, reason: str) -> NoReturn:
    raise ConfigError(f"MSCCL XML cannot hold {schedule}: {reason}")


def _check_fits(schedule: Schedule) -> None:
    """Refuse content that the format cannot express, by name."""
    collective = schedule.collective
    if collective.kind not in _COLLS:
        _refuse(schedule, f"the runtimes have no {collective.name}; they have {', '.join(_COLLS)}")
    if collective.kind == "all_to_all" and collective.in_place:
        _refuse(schedule, "the runtimes have no all_to_all in place")
    if collective.root:
        _refuse(
            schedule,
            f"a file names no root, so it would run with root 0 instead of {collective.root}",
        )
    if schedule.nchannels > MAX_CHANNELS:
        _refuse(schedule, f"{schedule.nchannels} channels; at most {MAX_CHANNELS}")
    for number, step in enumerate(schedule.steps()):
        strange = np.flatnonzero((step.op != COPY) & (step.op != REDUCE))
        if len(strange):
            _refuse(
                schedule,
                f"step {number} has an operation {OP_NAMES[step.op[strange[0]]]!r}; it has copies "
                "and reductions",
            )


def _blocks(program: RankProgram) -> list[list[tuple[int, list[int]]]]:
    """The thread blocks of each rank: channel, and instructions in order."""
    wiring = wire(program)
    code, order = wiring.code, np.empty(program.steps, np.int64)
    order[play(wiring, 0).order] = np.arange(program.steps)
    members_of: list[dict[tuple[int, int, int], list[int]]] = [{} for _ in range(program.nranks)]
    for lane, (rank, channel) in enumerate(
        zip(code.rank.tolist(), code.channel.tolist(), strict=True)
    ):
        numbers = range(code.start[lane], code.start[lane + 1])
        to, fro = (int(ends[numbers].max(initial=-1)) for ends in (code.send_to, code.recv_from))
        members_of[rank].setdefault((channel, to, fro), []).extend(numbers)
    return [
        [
            (key[0], sorted(members, key=order.__getitem__))
            for key, members in sorted(by_peers.items())
        ]
        for by_peers in members_of
    ]


def _steps(
    program: RankProgram, blocks: list[tuple[int, list[int]]], pairs: dict[int, list[int]]
) -> list[list[_BlockStep]]:
    """The steps of a rank's thread blocks, with oversized transfers split and implied waits
    dropped.
    """
    code = program.code
    place: dict[int, tuple[int, int]] = {}
    result: list[list[_BlockStep]] = [[] for _ in blocks]
    block_of = {number: block for block, (_, members) in enumerate(blocks) for number in members}
    rank_of = {number: position for _, members in blocks for position, number in enumerate(members)}
    for block, (_, members) in enumerate(blocks):
        # A flag only grows: of several waits for one block the latest is enough, and none is needed
        # twice.
        latest_waits: dict[int, int] = {}
        for number in members:
            latest: dict[int, int] = {}
            for earlier in pairs.get(number, ()):
                whose = block_of[earlier]
                if whose != block and rank_of[earlier] > max(
                    latest_waits.get(whose, -1), rank_of.get(latest.get(whose, -1), -1)
                ):
                    latest[whose] = earlier
            latest_waits |= {whose: rank_of[earlier] for whose, earlier in latest.items()}
            awaited = [latest[whose] for whose in sorted(latest)]
            result[block] += [_BlockStep(-1, 0, 0, ((earlier, 0),)) for earlier in awaited[:-1]]
            count = int(code.count[number])
            for offset in range(0, max(count, 1), MAX_COUNT):
                waits = ((awaited[-1], 0),) if awaited and offset == 0 else ()
                result[block].append(
                    _BlockStep(number, offset, min(count - offset, MAX_COUNT), waits)
                )
            place[number] = block, len(result[block]) - 1
    for steps in result:
        for step in steps:
            step.waits = tuple(place[earlier] for earlier, _ in step.waits)
            for block, position in step.waits:
                result[block][position].awaited = True
    return result


def _gpus(schedule: Schedule, program: RankProgram, limits: Dialect) -> Iterator[str]:
    """The element of each GPU."""
    code = program.code
    waits: dict[int, list[int]] = {}
    for later, earlier in zip(code.waiter.tolist(), code.awaited.tolist(), strict=True):
        waits.setdefault(later, []).append(earlier)
    all_blocks = _blocks(program)
    for rank in range(program.nranks):
        memory = _ChunkNames(schedule, rank, program)
        steps = _steps(program, all_blocks[rank], waits)
        longest, nodes = max(map(len, steps), default=0), 1 + len(steps) + sum(map(len, steps))
        for needed, maximum, subject in (
            (len(steps), limits.blocks, "thread blocks"),
            (longest, limits.steps, "steps in one thread block"),
            (nodes, MAX_NODES, "elements"),
        ):
            if needed > maximum:
                _refuse(
                    schedule, f"GPU {rank} needs {needed} {subject}; the runtime takes {maximum}"
                )
        sizes = " ".join(
            f'{name}_chunks="{size}"' for name, size in zip("ios", memory.sizes, strict=True)
        )
        yield f'  <gpu id="{rank}" {sizes}>\n'
        for number, ((channel, members), block_steps) in enumerate(
            zip(all_blocks[rank], steps, strict=True)
        ):
            to, fro = (
                int(ends[members].max(initial=-1)) for ends in (code.send_to, code.recv_from)
            )
            yield f'    <tb id="{number}" send="{to}" recv="{fro}" chan="{channel}">\n'
            for position, step in enumerate(block_steps):
                yield _line(program, memory, position, step)
            yield "    </tb>\n"
        yield "  </gpu>\n"


@dataclass(frozen=True, slots=True)
class _ChunkNames:
    """Buffers of a GPU. NCCL gives the leaves of a reduce no output, so they use scratch
    instead.
    """

    schedule: Schedule
    rank: int
    program: RankProgram

    @property
    def layout(self) -> Layout:
        return self.schedule.layout

    @property
    def outputs_in_scratch(self) -> bool:
        """Whether the schedule's output is scratch here."""
        return not bool(self.schedule.collective.has_output([self.rank])[0])

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Chunks of input, output and scratch."""
        inputs, outputs, scratch = self.program.buffers
        return inputs, outputs, scratch + outputs * self.outputs_in_scratch

    def name(self, chunk: int) -> tuple[str, int]:
        """Buffer and offset of a chunk."""
        inputs, outputs, scratch = self.program.buffers
        if chunk < inputs:
            return "i", chunk
        if chunk < inputs + outputs:
            return (
                ("s", scratch + chunk - inputs)
                if self.outputs_in_scratch
                else ("o", chunk - inputs)
            )
        return "s", chunk - inputs - outputs


def _line(program: RankProgram, memory: _ChunkNames, position: int, step: _BlockStep) -> str:
    """One step. An unused end repeats the other one, so that every address is on this GPU."""
    code, number = program.code, step.number
    kind, source, target = "nop", ("i", 0), ("o", 0)
    if number >= 0:
        kind = _TYPES[NAMES[code.op[number]]]
        used = [int(end[number]) for end in (code.src, code.dst)]
        ends = [chunk if chunk >= 0 else max(used) for chunk in used]
        source, target = (memory.name(chunk + step.offset) for chunk in ends)
    block, awaited = step.waits[0] if step.waits else (-1, -1)
    return (
        f'      <step s="{position}" type="{kind}" srcbuf="{source[0]}" srcoff="{source[1]}" '
        f'dstbuf="{target[0]}" '
        f'dstoff="{target[1]}" cnt="{step.count}" depid="{block}" deps="{awaited}" '
        f'hasdep="{int(step.awaited)}"/>\n'
    )
