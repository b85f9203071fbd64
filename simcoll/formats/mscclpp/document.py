"""Records of MSCCL++ execution plans (format since August 2025), as the executor reads them.

Fields, defaults and limits are those of microsoft/mscclpp ``src/core/executor/execution_plan.cc``
and ``execution_common.hpp`` (2026-08). Fields that the executor ignores are ignored here too.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from simcoll.core.vocabulary import NcclProtocol

__all__ = [
    "PLAN_PROTOCOLS",
    "Channel",
    "Chunk",
    "Operation",
    "PlanDocument",
    "PlanGpu",
    "RemoteBuffer",
    "ThreadBlock",
]

PLAN_PROTOCOLS: tuple[NcclProtocol, ...] = ("Simple", "LL")
Buffer = Literal["i", "o", "s"]
Kind = Literal["memory", "port", "switch", "none"]


class Chunk(msgspec.Struct, omit_defaults=True):
    """Chunks that an operation reads or writes: local (type), remote (buffer_id) or on a switch."""

    index: int
    size: int
    type: Buffer | None = None
    buffer_id: int | None = None
    switch_channel_id: int | None = None


class RegionPart(msgspec.Struct, omit_defaults=True):
    """The part of each region that a thread block of a group works on."""

    tb_id: int
    tbg_size: int


class Iteration(msgspec.Struct, omit_defaults=True):
    """The slices of a pipeline."""

    unit_size: int
    num_chunks: int


class Operation(msgspec.Struct, omit_defaults=True):
    """One operation of a thread block."""

    name: str
    src_buff: list[Chunk] = []
    dst_buff: list[Chunk] = []
    channel_ids: list[int] = []
    channel_type: Kind = "none"
    reduce_op: str | None = None
    semaphore_ids: list[int] = []
    barrier_id: int | None = None
    num_threadblocks: int | None = None
    tbg_info: RegionPart | None = None
    iter_context: Iteration | None = None
    ops: list[Operation] = []


class RankGroup(msgspec.Struct, omit_defaults=True):
    """Ranks connected by a switch."""

    size: int
    ranks: list[int]


class Channel(msgspec.Struct, omit_defaults=True):
    """Channels of one kind: memory or port channels to peers, switch channels to groups."""

    channel_type: Kind
    connected_to: list[int] = []
    buffer_type: Buffer | None = None
    rank_groups: list[RankGroup] = []


class RemoteBuffer(msgspec.Struct, omit_defaults=True):
    """A buffer of another rank, and the channels that access it."""

    rank: int
    type: Buffer
    access_channel_types: list[Kind]


class Semaphore(msgspec.Struct):
    """A counting semaphore of a rank."""

    init_value: int


class BlockChannels(msgspec.Struct, omit_defaults=True):
    """Channels of a thread block; operations refer to indices of this list."""

    channel_type: Kind
    channel_ids: list[int]


class BlockBuffers(msgspec.Struct, omit_defaults=True):
    """Remote buffers of a thread block; operations refer to indices of this list."""

    access_channel_type: Kind
    remote_buffer_ids: list[int]


class ThreadBlock(msgspec.Struct):
    """A thread block."""

    id: int
    ops: list[Operation]
    channels: list[BlockChannels] = []
    remote_buffer_refs: list[BlockBuffers] = []


class PlanGpu(msgspec.Struct):
    """One rank's part."""

    id: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: list[ThreadBlock]
    channels: list[Channel] = []
    remote_buffers: list[RemoteBuffer] = []
    semaphores: list[Semaphore] = []


class PlanDocument(msgspec.Struct):
    """An execution plan."""

    name: str
    collective: str
    protocol: str
    inplace: bool
    gpus: list[PlanGpu]
    reuse_resources: bool = False
    num_threads_per_block: int = 1024
    use_double_scratch_buffer: bool = False
    buffer_alignment: int = 16
    min_message_size: int = 0
    max_message_size: int = 2**64 - 1
