"""Convert the thread blocks of an MSCCL++ execution plan to operations on cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from simcoll.core.device_program import EACH, FOLD, SWITCH, DeviceOp, DeviceProgram, Region
from simcoll.core.layout import Layout
from simcoll.errors import ConfigError, nearest

if TYPE_CHECKING:
    from simcoll.formats.mscclpp.document import (
        Chunk,
        Operation,
        PlanDocument,
        PlanGpu,
        ThreadBlock,
    )

__all__ = ["MAX_PARTS", "PlanPlace", "PlanRank", "every_operation"]

MAX_OPERATIONS, MAX_OPERANDS = 64, 10
MAX_CHANNELS, MAX_PEERS, MAX_BARRIERS = 16, 8, 16
MAX_PARTS = 64
PORT = 1 << 16
"""Offset of port channels' numbers, which separates them from memory channels'."""


@dataclass(frozen=True, slots=True)
class _Form:
    """Operands of an operation, one letter each; a star repeats the last.

    l local, r remote, k local packets, K remote packets, w and W the same on all ranks of a switch.
    """

    how: str
    reads: str
    writes: str
    port: bool = False  # a proxy may do it


_FORMS: Mapping[str, _Form] = {
    "put": _Form(EACH, "l*", "r*", port=True),
    "pws": _Form(EACH, "l*", "r*", port=True),
    "pwsf": _Form(EACH, "l*", "r*", port=True),
    "get": _Form(EACH, "r*", "l*"),
    "copy": _Form(EACH, "l", "l"),
    "re": _Form(FOLD, "ll*", "l"),
    "res": _Form(FOLD, "ll*", "lr*"),
    "rre": _Form(FOLD, "lr*", "l"),
    "rres": _Form(FOLD, "lr*", "lr*"),
    "ppkt": _Form(EACH, "l*", "K*", port=True),
    "rppkt": _Form(FOLD, "k", "K*", port=True),
    "cpkt": _Form(EACH, "l", "k"),
    "upkt": _Form(EACH, "k", "l"),
    "repkt": _Form(FOLD, "lk*", "l"),
    "respkt": _Form(FOLD, "lk*", "lK*"),
    "recpkt": _Form(FOLD, "lk*", "lk"),
    "recspkt": _Form(FOLD, "lk*", "lkK*"),
    "gstore": _Form(FOLD, "l", "w"),
    "gstorepkt": _Form(FOLD, "k", "W"),
    "glres": _Form(SWITCH, "w", "w"),
}
_OTHERS = (
    "nop",
    "barrier",
    "signal",
    "wait",
    "rlxsignal",
    "rlxwait",
    "flush",
    "sem_acquire",
    "sem_release",
    "pipeline",
)


@dataclass(frozen=True, slots=True)
class PlanPlace:
    """A position in the file, for messages."""

    file: str | None
    path: str

    def at(self, suffix: str) -> PlanPlace:
        """A nested position."""
        return replace(self, path=f"{self.path}{suffix}")

    def refuse(self, message: str) -> NoReturn:
        """Raise a ConfigError at this position."""
        raise ConfigError(message, file=self.file, path=self.path)

    def within(self, name: str, value: int, low: int, high: int) -> int:
        """Check that a number is in range."""
        if not low <= value <= high:
            self.refuse(f"{name} is {value}; expected {low} to {high}")
        return value


def every_operation(operations: list[Operation]) -> Iterator[Operation]:
    """Yield operations, including those inside pipelines."""
    for operation in operations:
        yield operation
        yield from operation.ops


class PlanRank:
    """State of one GPU of a plan while its operations are read."""

    def __init__(
        self, place: PlanPlace, plan: PlanDocument, shape: DeviceProgram, rank: int
    ) -> None:
        self.place, self.rank = place, rank
        self.plan, self.shape = plan, shape
        self.gpu: PlanGpu = plan.gpus[rank]
        # Peer, and number among those to it.
        self.counters: dict[str, list[tuple[int, int]]] = {"memory": [], "port": []}
        self.switches: list[tuple[str, tuple[int, ...]]] = []
        for number in range(len(self.gpu.channels)):
            self._channel(place.at(f".channels[{number}]"), number)
        for number, buffer in enumerate(self.gpu.remote_buffers):
            place.at(f".remote_buffers[{number}]").within(
                "rank", buffer.rank, 0, len(plan.gpus) - 1
            )
        # Chunks of scratch of packets, of plain data.
        self.used: dict[bool, set[tuple[int, int]]] = {True: set(), False: set()}

    def _channel(self, place: PlanPlace, number: int) -> None:
        channel, last = self.gpu.channels[number], len(self.plan.gpus) - 1
        if channel.channel_type == "switch":
            if channel.buffer_type is None:
                place.refuse("missing key 'buffer_type', which the executor needs of a switch")
            for group in channel.rank_groups:
                ranks = tuple(place.within("rank", rank, 0, last) for rank in group.ranks)
                if self.rank not in ranks or len(set(ranks)) != len(ranks):
                    place.refuse(
                        f"ranks {list(ranks)[:8]} of a switch: expected different ones, with "
                        f"{self.rank} among them"
                    )
                self.switches.append((channel.buffer_type, ranks))
        elif channel.channel_type in self.counters:
            counters = self.counters[channel.channel_type]
            for peer in channel.connected_to:
                place.within("peer", peer, 0, last)
                if peer == self.rank:
                    place.refuse(f"a channel of rank {peer} to itself")
                counters.append((peer, sum(1 for connected, _ in counters if connected == peer)))
        else:
            place.refuse("channel_type 'none' has no channels")

    def blocks(self) -> tuple[tuple[DeviceOp, ...], ...]:
        """The operations of all thread blocks."""
        programs = []
        for number, block in enumerate(self.gpu.threadblocks):
            place = self.place.at(f".threadblocks[{number}]")
            if block.id != number:
                place.refuse(
                    f"id is {block.id}; thread blocks are indexed by it, so {number} is expected"
                )
            place.within(
                "number of operations",
                sum(1 for _ in every_operation(block.ops)),
                0,
                MAX_OPERATIONS,
            )
            programs.append(tuple(_BlockReader(place, self, block).operations()))
        # Packets with their flags take twice their size.
        overlap = {
            (owner, 2 * index + k) for owner, index in self.used[True] for k in range(2)
        } & self.used[False]
        if self.plan.protocol == "LL" and overlap:
            owner, index = min(overlap)
            self.place.refuse(
                f"scratch chunk {index} of rank {owner} holds plain data where packets with their "
                "flags lie"
            )
        return tuple(programs)

    def region(
        self,
        place: PlanPlace,
        owner: int,
        buffer: str,
        chunk: Chunk,
        part: tuple[int, int],
        *,
        packet: bool,
    ) -> Region:
        """The cells of a chunk reference."""
        gpu, pieces = self.plan.gpus[owner], self.shape.pieces
        chunks = {"i": gpu.input_chunks, "o": gpu.output_chunks, "s": gpu.scratch_chunks}[buffer]
        if buffer == "s" and self.plan.protocol == "LL" and not packet:
            chunks *= 2  # the room of flags
        if chunk.size < 1 or not 0 <= chunk.index <= chunks - chunk.size:
            place.refuse(
                f"chunks {chunk.index}..{chunk.index + chunk.size - 1} of buffer {buffer!r} of "
                f"rank {owner}, which has {chunks}"
            )
        if packet and buffer != "s":
            place.refuse(f"packets lie in scratch; this is buffer {buffer!r}")
        if packet and self.plan.protocol != "LL":
            place.refuse("packets need protocol 'LL', which makes room for their flags")
        if buffer == "s":
            self.used[packet] |= {(owner, chunk.index + k) for k in range(chunk.size)}
        inputs, outputs, scratch = self.shape.buffers[:3]
        base = {"i": 0, "o": inputs, "s": inputs + outputs + (scratch if packet else 0)}[buffer]
        index, of = part
        cells = chunk.size * pieces
        begin = base + chunk.index * pieces + cells * index // of
        return Region(owner, self._address(owner, begin), cells // of)

    def _address(self, owner: int, cell: int) -> int:
        """The canonical address of a cell that has two names in place."""
        layout: Layout | None = self.shape.layout
        if layout is None:
            return (
                cell + self.shape.buffers[0]
                if self.shape.in_place and cell < self.shape.buffers[0]
                else cell
            )
        return int(layout.canonical(np.array(owner), np.array(cell)))


class _BlockReader:
    """State of one thread block while its operations are read."""

    def __init__(self, place: PlanPlace, rank: PlanRank, block: ThreadBlock) -> None:
        self.place, self.rank, self.block = place, rank, block
        self.channels: dict[str, list[int]] = {"memory": [], "port": [], "switch": []}
        self.buffers: dict[str, list[int]] = {"memory": [], "port": []}
        limits = {kind: len(counters) for kind, counters in rank.counters.items()} | {
            "switch": len(rank.switches)
        }
        for channel in block.channels:
            if channel.channel_type == "none":
                place.refuse("channel_type 'none' has no channels")
            for number in channel.channel_ids:
                place.within(
                    f"{channel.channel_type} channel", number, 0, limits[channel.channel_type] - 1
                )
                self.channels[channel.channel_type].append(number)
        for kind, numbers in self.channels.items():
            place.within(f"number of {kind} channels", len(numbers), 0, MAX_CHANNELS)
        for buffer in block.remote_buffer_refs:
            if buffer.access_channel_type not in self.buffers:
                place.refuse(
                    "remote buffers are accessed by memory or port, not "
                    f"{buffer.access_channel_type!r}"
                )
            for number in buffer.remote_buffer_ids:
                place.within("remote buffer", number, 0, len(rank.gpu.remote_buffers) - 1)
                if (
                    buffer.access_channel_type
                    not in rank.gpu.remote_buffers[number].access_channel_types
                ):
                    place.refuse(
                        f"remote buffer {number} is not accessed by {buffer.access_channel_type}"
                    )
                self.buffers[buffer.access_channel_type].append(number)

    def operations(self) -> Iterator[DeviceOp]:
        """The operations, with pipelines unrolled."""
        for position, operation in enumerate(self.block.ops):
            place = self.place.at(f".ops[{position}]")
            if operation.name != "pipeline":
                yield self.operation(place, operation, None)
                continue
            if operation.iter_context is None:
                place.refuse("a pipeline needs iter_context")
            chunks = place.within("num_chunks", operation.iter_context.num_chunks, 1, MAX_PARTS)
            place.within("unit_size", operation.iter_context.unit_size, 1, 2**32 - 1)
            turns = chunks * self.rank.shape.pieces
            for turn in range(turns):
                for number, inner in enumerate(operation.ops):
                    inner_place = place.at(f".ops[{number}]")
                    if inner.ops or inner.name == "pipeline":
                        inner_place.refuse("a pipeline inside a pipeline")
                    if inner.tbg_info is not None:
                        inner_place.refuse("tbg_info in a pipeline is not followed")
                    yield self.operation(inner_place, inner, (turn, turns))

    def operation(
        self, place: PlanPlace, operation: Operation, slice_: tuple[int, int] | None
    ) -> DeviceOp:
        """Convert one operation; ``slice_`` is the slice of its regions, and the number of
        slices.
        """
        name = operation.name
        if name == "glre":
            place.refuse(
                "operation 'glre' is written by the language, but the executor cannot load it"
            )
        if name not in _FORMS and name not in _OTHERS:
            place.refuse(f"unknown operation {name!r}; {nearest(name, [*_FORMS, *_OTHERS])}")
        if operation.reduce_op not in {None, "sum"}:
            place.refuse(
                f"reduce_op {operation.reduce_op!r}: the executor does not read it, and always sums"
            )
        if name in _FORMS:
            return self._moving(place, operation, slice_)
        if name == "barrier":
            if operation.barrier_id is None or operation.num_threadblocks is None:
                place.refuse("a barrier needs barrier_id and num_threadblocks")
            number = place.within("barrier_id", operation.barrier_id, 0, MAX_BARRIERS - 1)
            meeting = place.within(
                "num_threadblocks", operation.num_threadblocks, 1, len(self.rank.gpu.threadblocks)
            )
            return DeviceOp(name, barrier=(number, meeting))
        if name in {"sem_acquire", "sem_release"}:
            nsemaphores = len(self.rank.gpu.semaphores)
            numbers = tuple(
                place.within("semaphore", semaphore, 0, nsemaphores - 1)
                for semaphore in operation.semaphore_ids
            )
            return (
                DeviceOp(name, acquires=numbers)
                if name == "sem_acquire"
                else DeviceOp(name, releases=numbers)
            )
        # A flush runs over the outputs of its operation, of which it has none.
        if name in {"nop", "flush"}:
            return DeviceOp(name, fence=name == "nop")
        counters = self._counters(place, operation)
        if name.endswith("signal"):
            return DeviceOp(
                name,
                signals=tuple((self.rank.rank, peer, number) for peer, number in counters),
                relaxed=name == "rlxsignal",
                proxied=operation.channel_type == "port",
            )
        return DeviceOp(
            name,
            waits=tuple((peer, self.rank.rank, number) for peer, number in counters),
            relaxed=name == "rlxwait",
        )

    def _counters(self, place: PlanPlace, operation: Operation) -> list[tuple[int, int]]:
        """Peer and number of each channel of an operation."""
        kind = operation.channel_type
        if kind not in {"memory", "port"}:
            place.refuse(f"channel_type is {kind!r}; expected 'memory' or 'port'")
        place.within("number of channels", len(operation.channel_ids), 1, MAX_PEERS)
        counters = []
        for slot in operation.channel_ids:
            numbers = self.channels[kind]
            number = numbers[place.within("channel of the thread block", slot, 0, len(numbers) - 1)]
            peer, among = self.rank.counters[kind][number]
            counters.append((peer, among + PORT * (kind == "port")))
        return counters

    def _moving(
        self, place: PlanPlace, operation: Operation, slice_: tuple[int, int] | None
    ) -> DeviceOp:
        """Convert an operation on data."""
        form, name = _FORMS[operation.name], operation.name
        port = operation.channel_type == "port"
        if port and not form.port:
            place.refuse(f"{name} by a port: a proxy only puts")
        reads_form = "k*" if port and name == "ppkt" else form.reads
        reads = self._operands(
            place.at(".src_buff"), operation, operation.src_buff, reads_form, slice_
        )
        writes = self._operands(
            place.at(".dst_buff"), operation, operation.dst_buff, form.writes, slice_
        )
        if form.how == EACH and len(reads) != len(writes):
            place.refuse(f"{len(reads)} sources and {len(writes)} destinations; expected as many")
        counts = (
            {len({region.count for region in pair}) for pair in zip(reads, writes, strict=True)}
            if form.how == EACH
            else {len({region.count for region in (*reads, *writes)})}
        )
        if counts != {1}:
            place.refuse("its regions have different sizes")
        if name in {"put", "ppkt"} and len({chunk.type for chunk in operation.src_buff}) > 1:
            place.refuse("sources in several buffers: the executor takes all from the first one's")
        if name == "get" and any(
            a.index != b.index for a, b in zip(operation.src_buff, operation.dst_buff, strict=True)
        ):
            place.refuse("a get between different indices: the executor swaps the two offsets")
        if name.startswith("re") and "pkt" in name:
            reads = (*reads[1:], reads[0])  # packets first, then the rank's own
        proxies: tuple[tuple[int, int, int], ...] = ()
        signals: tuple[tuple[int, int, int], ...] = ()
        if port:
            counters = self._counters(place, operation)
            if len(counters) != len(writes):
                place.refuse(f"{len(counters)} channels for {len(writes)} destinations")
            proxies = tuple((self.rank.rank, peer, number) for peer, number in counters)
            signals = proxies if name.startswith("pws") else ()
            if name == "pwsf":  # its thread waits until the proxy is done
                proxies = ()
        elif name.startswith("pws"):
            place.refuse(f"{name} needs channel_type 'port'")
        return DeviceOp(
            name, form.how, reads, writes, signals=signals, proxies=proxies, proxied=bool(proxies)
        )

    def _operands(
        self,
        place: PlanPlace,
        operation: Operation,
        chunks: list[Chunk],
        form: str,
        slice_: tuple[int, int] | None,
    ) -> tuple[Region, ...]:
        """The regions of a list of chunk references."""
        letters = form.rstrip("*")
        if form.endswith("*"):
            letters = letters[:-1] + letters[-1] * max(len(chunks) - len(letters) + 1, 0)
        if len(letters) != len(chunks) or not chunks or len(chunks) > MAX_OPERANDS:
            expected = f"{len(form.rstrip('*'))}{' or more' * form.endswith('*')}"
            place.refuse(
                f"{len(chunks)} operands; {operation.name} takes {expected}, at most {MAX_OPERANDS}"
            )
        part = slice_ or (
            (operation.tbg_info.tb_id, operation.tbg_info.tbg_size)
            if operation.tbg_info
            else (0, 1)
        )
        regions: list[Region] = []
        for number, (letter, chunk) in enumerate(zip(letters, chunks, strict=True)):
            operand_place = place.at(f"[{number}]")
            if (
                slice_ is not None
                and operation.ops == []
                and chunk.size * self.rank.shape.pieces != slice_[1]
            ):
                operand_place.refuse("its size is not num_chunks of the pipeline")
            packet = letter in "kKW"
            if letter in "lk":
                if chunk.type is None:
                    operand_place.refuse(
                        f"operand {number} of {operation.name} is local; expected 'type'"
                    )
                regions.append(
                    self.rank.region(
                        operand_place, self.rank.rank, chunk.type, chunk, part, packet=packet
                    )
                )
            elif letter in "rK":
                regions.append(self._remote(operand_place, operation, chunk, part, packet=packet))
            else:
                regions += self._switch_regions(
                    operand_place, operation, chunk, part, packet=packet
                )
        return tuple(regions)

    def _remote(
        self,
        place: PlanPlace,
        operation: Operation,
        chunk: Chunk,
        part: tuple[int, int],
        *,
        packet: bool,
    ) -> Region:
        if chunk.buffer_id is None or operation.channel_type not in self.buffers:
            place.refuse(
                f"this operand of {operation.name} is remote; expected 'buffer_id', and "
                "channel_type 'memory' or 'port'"
            )
        numbers = self.buffers[operation.channel_type]
        number = numbers[place.within("buffer_id", chunk.buffer_id, 0, len(numbers) - 1)]
        buffer = self.rank.gpu.remote_buffers[number]
        return self.rank.region(place, buffer.rank, buffer.type, chunk, part, packet=packet)

    def _switch_regions(
        self,
        place: PlanPlace,
        operation: Operation,
        chunk: Chunk,
        part: tuple[int, int],
        *,
        packet: bool,
    ) -> list[Region]:
        if chunk.switch_channel_id is None:
            place.refuse(
                f"this operand of {operation.name} is of a switch; expected 'switch_channel_id'"
            )
        numbers = self.channels["switch"]
        buffer, ranks = self.rank.switches[
            numbers[place.within("switch_channel_id", chunk.switch_channel_id, 0, len(numbers) - 1)]
        ]
        return [
            self.rank.region(place, rank, buffer, chunk, part, packet=packet)
            for rank in sorted(ranks)
        ]
