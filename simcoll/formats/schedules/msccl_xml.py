"""Reader of MSCCL XML: the per-rank programs of microsoft/msccl, the Azure executor and RCCL.

The reader follows the runtimes' interpreter, not the language that wrote the file: ``rrc`` adds the
*local* source. Rules and limits are those of microsoft/msccl ``src/graph/topo.cc``,
``src/include/msccl.h`` and ``src/collectives/device/msccl_interpreter.h``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NoReturn
from xml.etree.ElementTree import Element

import numpy as np

from simcoll.core.collective import Collective
from simcoll.core.rank_program import OPS, Instruction, Lane, RankProgram
from simcoll.core.schedule import Layout
from simcoll.core.vocabulary import CollectiveKind, InstructionName
from simcoll.errors import ConfigError, ScheduleError, nearest, shown
from simcoll.files.reader_arguments import Content, FilePath, content_of, path_of
from simcoll.files.strict import read_file
from simcoll.files.xml import XmlLimits, parse_xml

__all__ = ["load_msccl_xml", "parse_msccl_xml"]

MAX_BYTES = 64 << 20
LIMITS = XmlLimits(depth=16, elements=1_000_000, attributes=16, letters=255)
MAX_CHUNKS = 1 << 22
"""Limit on chunks of all ranks: far above any runtime's, and low enough to track each one."""
MAX_CHANNELS, MAX_BLOCKS = 32, 216
MAX_STEPS, MAX_COUNT = 256, 71
MAX_DEPENDENCY = 127
MAX_NODES = 4096
INT_LIMIT = 2**31

# Chunks in flight per connection: NCCL_STEPS is 8, and Simple takes 4 of them for a chunk.
_FIFO_DEPTH = {"Simple": 2, "LL": 8, "LL128": 8}
_KINDS: dict[str, CollectiveKind | None] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    **dict.fromkeys(("custom", "alltoallv", "send", "recv")),
}
_TYPES: dict[str, InstructionName] = {
    "s": "send",
    "r": "recv",
    "rcs": "recv_copy_send",
    "rrs": "recv_reduce_send",
    "rrc": "recv_reduce_copy",
    "rrcs": "recv_reduce_copy_send",
    "cpy": "copy",
    "re": "reduce",
    "nop": "nop",
}
_STEP = ("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep")
_BUFFERS = ("i", "o", "s")


@dataclass(frozen=True, slots=True)
class _XmlPlace:
    """A position in the file, for messages."""

    file: str | None
    path: str = "algo"

    def at(self, path: str) -> _XmlPlace:
        return replace(self, path=path)

    def refuse(self, message: str) -> NoReturn:
        raise ConfigError(message, file=self.file, path=self.path)

    def text(self, element: Element, name: str) -> str:
        value: str | None = element.get(name)
        if value is None:
            self.refuse(f"attribute {name!r} is missing")
        return value

    def integer(
        self, element: Element, name: str, low: int, high: int, default: int | None = None
    ) -> int:
        attribute = element.get(name)
        if attribute is None and default is not None:
            return default
        text = self.text(element, name)
        digits = text.strip().removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
            self.refuse(f"{name}={text[:40]!r}: expected a whole number")
        value = int(text)
        if not low <= value <= high:
            self.refuse(f"{name}={value}: expected {low} to {high}")
        return value

    def choice(self, element: Element, name: str, valid: Iterable[str]) -> str:
        text = self.text(element, name)
        choices = list(valid)
        if text not in choices:
            self.refuse(f"{name}={shown(text)}; {nearest(text, choices)}")
        return text


@dataclass(frozen=True, slots=True)
class _Head:
    """Attributes of the ``algo`` element."""

    name: str
    nranks: int
    nchannels: int
    max_blocks: int
    per_loop: int
    protocol: str
    coll: str
    collective: Collective | None
    in_place: bool
    min_bytes: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class _ChunkAddresses:
    """Buffer sizes of one GPU, in chunks, and where the buffers start in a rank's memory."""

    sizes: tuple[int, int, int]
    bases: tuple[int, int, int]
    layout: Layout | None
    in_place: bool
    rank: int

    def address(self, place: _XmlPlace, buffer: int, offset: int, count: int) -> int:
        """The canonical address of a chunk."""
        size = self.sizes[buffer]
        if not 0 <= offset <= size - max(count, 1):
            name = _BUFFERS[buffer]
            place.refuse(
                f"chunks {name}[{offset}..{offset + max(count, 1) - 1}] lie outside buffer "
                f"{name!r} of {size} chunks"
            )
        inputs, collective = (buffer == 0), self.layout.collective if self.layout else None
        if self.in_place and inputs and (collective is None or collective.kind == "broadcast"):
            return self.bases[1] + offset
        if (
            self.in_place
            and buffer == 1
            and collective is not None
            and collective.kind == "reduce"
            and collective.root != self.rank
        ):
            return self.bases[0] + offset
        chunk = self.bases[buffer] + offset
        return (
            chunk
            if self.layout is None
            else int(self.layout.canonical(np.array(self.rank), np.array(chunk)))
        )


def load_msccl_xml(
    path: FilePath, *, in_place: bool | None = None, root: int | None = None
) -> RankProgram:
    """Read an MSCCL XML file; ``in_place`` and ``root`` as in :func:`parse_msccl_xml`.

    Raises
    ------
    ConfigError
        As :func:`parse_msccl_xml`, or when the file cannot be read.
    """
    path = path_of(path, "load_msccl_xml", "parse_msccl_xml")
    return parse_msccl_xml(read_file(path, MAX_BYTES), path, in_place=in_place, root=root)


def parse_msccl_xml(
    content: Content,
    file: str | None = None,
    *,
    in_place: bool | None = None,
    root: int | None = None,
) -> RankProgram:
    """Read the content of an MSCCL XML file.

    Parameters
    ----------
    file
        The file's name, for messages.
    in_place
        Interpretation of a file that allows both (``inplace="1" outofplace="1"``). Default: out of
        place.
    root
        Root of a broadcast, reduce, gather or scatter, which the format lacks. Default: 0.

    Returns
    -------
    RankProgram
        Not proved yet: see :func:`simcoll.proving.verify_program`.

    Raises
    ------
    ConfigError
        When it is not MSCCL XML or breaks a rule or limit of the runtimes; the message names GPU,
        thread block and step.
    """
    place, data = _XmlPlace(file), content_of(content, "parse_msccl_xml")
    if len(data) > MAX_BYTES:
        place.refuse(f"larger than {MAX_BYTES >> 20} MiB")
    algo = _parse(place, data)
    head = _head(place, algo, in_place, root)
    gpus = _children_by_id(place, algo, "gpu", head.nranks)
    sizes = [_sizes(place.at(f"gpu {rank}"), gpu, head) for rank, gpu in enumerate(gpus)]
    totals = [max(gpu_sizes[buffer] for gpu_sizes in sizes) for buffer in range(3)]
    chunks, layout = 1, None
    if head.collective is not None:
        chunks = (
            head.per_loop // head.collective.nblocks
            if head.collective.nblocks > 1
            else head.per_loop
        )
        if head.collective.kind == "all_to_all":
            chunks = head.per_loop // head.nranks
        layout = Layout(head.collective, chunks)
        totals[:2] = layout.output_base, layout.scratch_base - layout.output_base
    elif head.in_place:
        totals[1] = max(totals[:2])
    if sum(totals) * head.nranks > MAX_CHUNKS:
        place.refuse(
            f"{sum(totals)} chunks on each of {head.nranks} ranks; at most {MAX_CHUNKS} in all can "
            "be followed"
        )
    bases = (0, totals[0], totals[0] + totals[1])
    lanes = tuple(
        _gpu(
            place.at(f"gpu {rank}"),
            gpu,
            head,
            _ChunkAddresses(sizes[rank], bases, layout, head.in_place, rank),
        )
        for rank, gpu in enumerate(gpus)
    )
    try:
        return RankProgram(
            head.name,
            head.nranks,
            lanes,
            (totals[0], totals[1], totals[2]),
            head.collective,
            chunks,
            head.in_place,
            head.protocol,
            _FIFO_DEPTH[head.protocol],
            head.min_bytes,
            head.max_bytes,
        )
    except ScheduleError as error:
        raise ConfigError(error.message, file=place.file) from None


def _parse(place: _XmlPlace, data: bytes) -> Element:
    """The element tree."""
    top = parse_xml(data, LIMITS, place.file)
    if top.tag != "algo":
        place.refuse(f"the root element is <{top.tag[:40]}>; expected <algo>")
    return top


def _head(place: _XmlPlace, algo: Element, in_place: bool | None, root: int | None) -> _Head:
    name = place.text(algo, "name")
    if len(name) > 63:
        place.refuse(f"name has {len(name)} characters; at most 63")
    protocol = place.choice(algo, "proto", _FIFO_DEPTH)
    nchannels = place.integer(algo, "nchannels", 1, MAX_CHANNELS)
    per_loop = place.integer(algo, "nchunksperloop", 1, INT_LIMIT)
    nranks = place.integer(algo, "ngpus", 1, LIMITS.elements)
    coll = place.choice(algo, "coll", _KINDS)
    runs_in_place = place.integer(algo, "inplace", 0, 1) == 1
    runs_out_of_place = place.integer(algo, "outofplace", 0, 1, default=int(not runs_in_place)) == 1
    if not runs_in_place and not runs_out_of_place:
        place.refuse("inplace and outofplace are both 0, so the file could never run")
    if in_place is not None and not (runs_in_place if in_place else runs_out_of_place):
        place.refuse(f"this file is for {'out of' if in_place else 'in'} place only")
    reads_in_place = in_place if in_place is not None else not runs_out_of_place
    low = place.integer(algo, "minBytes", 0, 2**63 - 1, default=0)
    high = place.integer(algo, "maxBytes", 0, 2**63 - 1, default=2**27)
    if high and high < low:
        place.refuse(f"maxBytes={high} is below minBytes={low}")
    kind = _KINDS[coll]
    collective = None
    if kind is not None:
        if kind == "all_to_all" and reads_in_place:
            place.refuse("alltoall in place: no runtime supports it")
        rooted = kind in ("broadcast", "reduce", "gather", "scatter")
        if root is not None and not rooted:
            place.refuse(f"root={root} was given, but coll={coll!r} has none")
        collective = Collective(
            kind, nranks, root=(root or 0) if rooted else None, in_place=reads_in_place
        )
        if kind not in ("all_reduce", "reduce", "broadcast") and per_loop % nranks:
            place.refuse(
                f"nchunksperloop={per_loop} is not a multiple of ngpus={nranks}, as {coll} needs"
            )
    blocks = MAX_BLOCKS if algo.get("outofplace") is None else MAX_CHANNELS * nchannels
    return _Head(
        name,
        nranks,
        nchannels,
        blocks,
        per_loop,
        protocol,
        coll,
        collective,
        reads_in_place,
        low,
        high,
    )


def _children_by_id(
    place: _XmlPlace, parent: Element, tag: str, expected: int | None = None
) -> list[Element]:
    """Children of a tag in the order of their ids, which must be 0, 1, 2, ..."""
    children = parent.findall(tag)
    if expected is not None and len(children) != expected:
        place.refuse(f"ngpus={expected}, but there are {len(children)} <{tag}> elements")
    result: dict[int, Element] = {}
    for child in children:
        number = place.integer(child, "id", 0, INT_LIMIT)
        if number in result:
            place.refuse(f"two <{tag}> elements have id {number}")
        result[number] = child
    for number in range(len(children)):
        if number not in result:
            place.refuse(f"<{tag}> ids must be 0..{len(children) - 1}, but {number} is missing")
    return [result[number] for number in range(len(children))]


def _sizes(place: _XmlPlace, gpu: Element, head: _Head) -> tuple[int, int, int]:
    """Chunks of input, output and scratch of a GPU; in place, a 0 stands for the whole buffer."""
    sizes = [place.integer(gpu, f"{name}_chunks", 0, INT_LIMIT) for name in _BUFFERS]
    if head.collective is None:
        if head.in_place:
            sizes[:2] = [max(sizes[:2])] * 2
    else:
        kind, n = head.collective.kind, head.nranks
        parts = (
            n if kind in ("all_gather", "gather") else 1,
            n if kind in ("reduce_scatter", "scatter") else 1,
        )
        for buffer, part in enumerate(parts):
            name = f"{_BUFFERS[buffer]}_chunks"
            if sizes[buffer] and sizes[buffer] * part != head.per_loop:
                expected = (
                    f"{head.per_loop // part} (nchunksperloop={head.per_loop}, {head.coll} of {n})"
                )
                place.refuse(f"{name}={sizes[buffer]}: expected {expected}")
            if head.in_place and not sizes[buffer]:
                sizes[buffer] = head.per_loop // part
    return sizes[0], sizes[1], sizes[2]


def _gpu(place: _XmlPlace, gpu: Element, head: _Head, memory: _ChunkAddresses) -> tuple[Lane, ...]:
    blocks = _children_by_id(place, gpu, "tb")
    if len(blocks) > head.max_blocks:
        place.refuse(f"{len(blocks)} thread blocks; at most {head.max_blocks}")
    steps = [block.findall("step") for block in blocks]
    nodes = 1 + len(blocks) + sum(map(len, steps))
    if nodes > MAX_NODES:
        place.refuse(f"{nodes} elements for one GPU; at most {MAX_NODES}")
    published = [[step.get("hasdep") == "1" for step in block] for block in steps]
    rank = memory.rank
    lanes = []
    ends: dict[tuple[str, int, int], int] = {}
    for number, block in enumerate(blocks):
        block_place = place.at(f"gpu {rank} tb {number}")
        channel = block_place.integer(block, "chan", 0, MAX_CHANNELS - 1)
        if channel >= head.nchannels:
            block_place.refuse(f"chan={channel}, but nchannels={head.nchannels}")
        peers = {
            name: block_place.integer(block, name, -1, head.nranks - 1) for name in ("send", "recv")
        }
        for name, peer in peers.items():
            if peer == rank:
                block_place.refuse(f"{name}={peer} is this GPU itself")
            if peer >= 0 and ends.setdefault((name, peer, channel), number) != number:
                block_place.refuse(
                    f"{name}={peer} chan={channel} belongs to tb {ends[name, peer, channel]} "
                    "already"
                )
        if len(steps[number]) > MAX_STEPS:
            block_place.refuse(f"{len(steps[number])} steps; at most {MAX_STEPS}")
        instructions = [
            _step(
                block_place.at(f"{block_place.path} step {position}"),
                step,
                position,
                peers,
                memory,
                published,
            )
            for position, step in enumerate(steps[number])
        ]
        _check_nops(block_place, instructions)
        lanes.append(Lane(channel, tuple(instructions)))
    return tuple(lanes)


def _step(
    place: _XmlPlace,
    step: Element,
    position: int,
    peers: dict[str, int],
    memory: _ChunkAddresses,
    published: list[list[bool]],
) -> Instruction:
    for name in _STEP:
        place.text(step, name)
    if place.integer(step, "s", 0, INT_LIMIT) != position:
        place.refuse(f"s={step.get('s')} is not its position {position}")
    if step.get("type") == "ra":
        place.refuse("type 'ra' is parsed by the runtime but never run")
    name = _TYPES[place.choice(step, "type", _TYPES)]
    op, count = OPS[name], place.integer(step, "cnt", 0, MAX_COUNT)
    addresses = []
    for end, used in (("src", op.reads), ("dst", op.writes)):
        # An end that the operation does not use locally is the peer's address, given for readers
        # only.
        buffer = _BUFFERS.index(place.choice(step, f"{end}buf", _BUFFERS))
        offset = place.integer(step, f"{end}off", -1, INT_LIMIT)
        addresses.append(memory.address(place, buffer, offset, count) if used else -1)
    for uses, end in ((op.receives, "recv"), (op.sends, "send")):
        if uses and peers[end] < 0:
            place.refuse(
                f"type {step.get('type')!r} needs a peer, but the thread block has {end}=-1"
            )
    block, awaited = (
        place.integer(step, "depid", -1, MAX_DEPENDENCY),
        place.integer(step, "deps", -1, MAX_STEPS),
    )
    place.integer(step, "hasdep", 0, 1)
    waits: tuple[tuple[int, int], ...] = ()
    if block >= 0:
        if block >= len(published) or not 0 <= awaited < len(published[block]):
            place.refuse(f"depends on tb {block} step {awaited}, which does not exist")
        if not published[block][awaited]:
            place.refuse(
                f'depends on tb {block} step {awaited}, which lacks hasdep="1" and never reports '
                "that it is done"
            )
        waits = ((block, awaited),)
    elif awaited >= 0:
        place.refuse(f"deps={awaited} without a thread block: depid=-1")
    source, target = addresses
    return Instruction(
        name,
        source,
        target,
        count,
        peers["recv"] if op.receives else -1,
        peers["send"] if op.sends else -1,
        waits,
    )


def _check_nops(place: _XmlPlace, instructions: list[Instruction]) -> None:
    """Check that each nop, which carries an extra dependency, precedes a step with a dependency."""
    carried = False
    for position, instruction in enumerate(instructions):
        step_place = place.at(f"{place.path} step {position}")
        nop = instruction.op == "nop"
        if nop and not instruction.waits:
            step_place.refuse("a nop must carry a dependency")
        if carried and not nop and not instruction.waits:
            step_place.refuse("nops precede it, so it must carry a dependency too")
        carried = nop
    if carried:
        place.at(f"{place.path} step {len(instructions) - 1}").refuse(
            "the last step is a nop, whose dependency belongs to no step"
        )
