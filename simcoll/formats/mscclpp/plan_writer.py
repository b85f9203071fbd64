"""Writer of MSCCL++ execution plans: a proved schedule as thread blocks that put, pull and signal,
or that exchange packets.

``Simple``: sources put copies, and destinations pull reductions. Before and after each step its
communicating ranks signal each other, which is all the order that a schedule needs. ``LL``: every
message is a set of packets at its own address, which need no signals. Switch multicasts and
all-reduces become stores to all ranks of a switch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from simcoll.binding import bind, verify
from simcoll.core.schedule import Schedule
from simcoll.core.vocabulary import NcclProtocol
from simcoll.errors import ConfigError, ScheduleError, expect, nearest
from simcoll.files.output import write_file
from simcoll.formats.mscclpp.blocks import MAX_CHANNELS, MAX_OPERATIONS, MAX_PEERS
from simcoll.formats.mscclpp.document import PLAN_PROTOCOLS
from simcoll.formats.mscclpp.reader import MAX_SEMAPHORES, parse_mscclpp_plan
from simcoll.formats.mscclpp.stages import Aside, Ref, Stage, refuse, stages_of
from simcoll.proving import verify_device_program

__all__ = ["dump_mscclpp_plan"]

_COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_to_all": "alltoall",
}
_NOP: dict[str, Any] = {"name": "nop"}
_SPARE = 4  # operations that begin and end a thread block that others precede or follow


def dump_mscclpp_plan(
    schedule: Schedule,
    path: str | Path | None = None,
    *,
    protocol: str = "Simple",
    min_bytes: int = 0,
    max_bytes: int = 2**64 - 1,
    name: str | None = None,
) -> bytes:
    """Write a schedule as an MSCCL++ execution plan, to ``path`` if given.

    The plan is read back and proved before it is returned or appears. It runs for sizes that are
    multiples of its chunks.

    Parameters
    ----------
    schedule
        A schedule of an all_reduce, all_gather, reduce_scatter or all_to_all.
    protocol
        ``Simple``, or ``LL``: packets.
    min_bytes, max_bytes
        Range of sizes for the plan.
    name
        Its name; default the schedule's, with its parameters.

    Raises
    ------
    ScheduleError
        When the schedule is wrong.
    ConfigError
        For content that a plan cannot express, by name; for an exceeded limit of the executor; when
        the file cannot be written.

    Examples
    --------
    >>> import simcoll
    >>> plan = dump_mscclpp_plan(simcoll.schedule("all_gather", "direct", nranks=2), protocol="LL")
    >>> plan.decode()[:62]
    '{"name":"direct(channels=1)","collective":"allgather","protoco'
    """
    expect(
        schedule,
        Schedule,
        "dump_mscclpp_plan takes a schedule, made by simcoll.schedule() or Schedule()",
    )
    if protocol not in PLAN_PROTOCOLS:
        raise ConfigError(
            f"unknown protocol {protocol!r} of a plan; {nearest(protocol, ['Simple', 'LL'])}"
        )
    if schedule.collective.kind not in _COLLECTIVES:
        refuse(
            schedule,
            f"the executor has no {schedule.collective.name}; it has {', '.join(_COLLECTIVES)}",
        )
    proof = verify(schedule)
    plan = bind(schedule, schedule.layout.chunks)
    chains = range(1) if plan.waits or protocol == "LL" else range(schedule.nchannels)
    aside, packets = Aside(schedule), protocol == "LL"
    stages = [
        list(stages_of(plan, chain if len(chains) > 1 else None, aside, packets=packets))
        for chain in chains
    ]
    head = {
        "name": name or schedule.title,
        "collective": _COLLECTIVES[schedule.collective.kind],
        "protocol": protocol,
        "inplace": schedule.collective.in_place,
        "reuse_resources": False,
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": protocol == "LL",
        "buffer_alignment": 16,
        "min_message_size": min_bytes,
        "max_message_size": max_bytes,
    }
    for careful in (False, True):
        writer = _PlanWriter(schedule, protocol, careful=careful)
        for chain in stages:
            writer.chain(chain)
        content = (
            msgspec.json.encode(
                head | {"gpus": [writer.gpu(rank) for rank in range(schedule.nranks)]}
            )
            + b"\n"
        )
        try:
            again = verify_device_program(parse_mscclpp_plan(content))
            break
        except (ScheduleError, ConfigError) as error:
            if careful or protocol == "LL" or isinstance(error, ConfigError):
                refuse(schedule, f"as a plan it would be wrong: {error.message}")
    if again.order != proof.order:
        refuse(schedule, f"the plan reduces in order {again.order}, the schedule {proof.order}")
    if path is not None:
        write_file(path, content)
    return content


class _PlanWriter:
    """Collects thread blocks, channels and buffers of all ranks."""

    def __init__(self, schedule: Schedule, protocol: NcclProtocol, *, careful: bool) -> None:
        self.schedule, self.packets = schedule, protocol == "LL"
        # Whether all of a step are done before any begins the next: needed where one rank writes
        # what another read.
        self.careful = careful
        n = schedule.nranks
        self.blocks: list[list[dict[str, Any]]] = [[] for _ in range(n)]
        self.peers: list[list[int]] = [[] for _ in range(n)]
        self.buffers: list[list[tuple[int, str]]] = [[] for _ in range(n)]
        self.switches: list[list[str]] = [[] for _ in range(n)]
        self.semaphores = [0] * n
        self.scratch = 0
        self.slots: dict[tuple[Ref, Ref, int], int] = {}
        self.next_slot = [0] * n

    def chain(self, stages: list[Stage]) -> None:
        """Write consecutive thread blocks, each with as many stages as the executor allows."""
        stages = [stage for stage in stages if any(stage.groups.values())]
        self._number(stages)
        segment: list[list[dict[str, Any]]] = [[] for _ in self.blocks]
        met: set[tuple[int, int]] = set()
        previous = Stage()
        for number, stage in enumerate([*stages, Stage()]):
            all_meets = previous.meets | stage.meets
            meetings = [previous.meets, stage.meets] if self.careful and number else [all_meets]
            operations = [
                self._stage(rank, stage, number, meetings, opening=not number)
                for rank in range(len(self.blocks))
            ]
            if any(
                len(old) + len(new) > MAX_OPERATIONS - _SPARE
                for old, new in zip(segment, operations, strict=True)
            ):
                self._close(segment, met, last=False)
                segment, met = (
                    [
                        [{"name": "sem_acquire", "semaphore_ids": [count - 1]}, _NOP]
                        for count in self.semaphores
                    ],
                    set(),
                )
                if any(
                    len(old) + len(new) > MAX_OPERATIONS - _SPARE
                    for old, new in zip(segment, operations, strict=True)
                ):
                    refuse(
                        self.schedule,
                        f"step {number} needs more operations than the {MAX_OPERATIONS} that a "
                        "thread block takes",
                    )
            for old, new in zip(segment, operations, strict=True):
                old.extend(new)
            met |= all_meets if not self.packets else set()
            previous = stage
        self._close(segment, met, last=True)

    def _number(self, stages: list[Stage]) -> None:
        """Assign each message a packet address at its receiver."""
        for number, stage in enumerate(stages):
            for groups in stage.groups.values():
                for group in groups:
                    for name, sources, targets in group:
                        if name == "ppkt":
                            self.slots[sources[0], targets[0], number] = self.next_slot[
                                targets[0].rank
                            ]
                            self.next_slot[targets[0].rank] += targets[0].count

    def _stage(
        self,
        rank: int,
        stage: Stage,
        number: int,
        meetings: list[set[tuple[int, int]]],
        *,
        opening: bool,
    ) -> list[dict[str, Any]]:
        """The operations of a rank: synchronise, then work, with fences."""
        operations: list[dict[str, Any]] = []
        for meeting in meetings:
            peers = sorted(b for a, b in meeting if a == rank) if not self.packets else []
            some = [peers[begin : begin + MAX_PEERS] for begin in range(0, len(peers), MAX_PEERS)]
            operations += [
                {"name": "rlxsignal" if opening else "signal", "peers": targets} for targets in some
            ]
            operations += [
                {"name": "rlxwait" if opening else "wait", "peers": targets} for targets in some
            ]
            operations += [_NOP] if peers else []
        for group in stage.groups.get(rank, ()):
            for name, sources, targets in group:
                operations.append(self._operation(name, sources, targets, number))
                if name == "repkt":  # one after the other, if several go to one chunk
                    operations.append(_NOP)
            if operations[-1] is not _NOP:
                operations.append(_NOP)
        return operations

    def _operation(
        self, name: str, sources: list[Ref], targets: list[Ref], number: int
    ) -> dict[str, Any]:
        if name in {"ppkt", "upkt", "repkt"}:
            place = {
                "type": "s",
                "index": self.slots[sources[0], targets[0], number],
                "size": sources[0].count,
            }
            if name == "ppkt":
                return {
                    "name": name,
                    "src_buff": [self._place(sources[0])],
                    "to": [(targets[0].rank, place)],
                }
            local = self._place(targets[0])
            options = {"reduce_op": "sum"} if name == "repkt" else {}
            return {
                "name": name,
                "src_buff": [local, place] if name == "repkt" else [place],
                "dst_buff": [local],
                **options,
            }
        if name == "put":
            return {
                "name": name,
                "src_buff": [self._place(sources[0])],
                "to": [(targets[0].rank, self._place(targets[0]))],
            }
        if name == "rre":
            remote = [(source.rank, self._place(source)) for source in sources[1:]]
            local = self._place(targets[0])
            return {
                "name": name,
                "src_buff": [local],
                "from": remote,
                "dst_buff": [local],
                "reduce_op": "sum",
            }
        if name in {"glres", "gstore"}:
            return {"name": name, "by": [self._place(sources[0])], "onto": self._place(targets[0])}
        options = {"reduce_op": "sum"} if name == "re" else {}
        return {
            "name": name,
            "src_buff": list(map(self._place, sources)),
            "dst_buff": list(map(self._place, targets)),
            **options,
        }

    def _place(self, ref: Ref) -> dict[str, Any]:
        """Make a chunk reference, growing scratch as needed."""
        layout = self.schedule.layout
        if ref.chunk < layout.output_base:
            return {"type": "i", "index": ref.chunk, "size": ref.count}
        if ref.chunk < layout.scratch_base:
            return {"type": "o", "index": ref.chunk - layout.output_base, "size": ref.count}
        index = ref.chunk - layout.scratch_base
        self.scratch = max(self.scratch, index + ref.count)
        if self.packets:  # after the packets, which with their flags take twice their size
            index += 2 * max(self.next_slot)
        return {"type": "s", "index": index, "size": ref.count}

    def _close(
        self, segment: list[list[dict[str, Any]]], met: set[tuple[int, int]], *, last: bool
    ) -> None:
        """Make thread blocks of the operations so far, for every rank that has any."""
        for rank, operations in enumerate(segment):
            if not last:
                operations += [
                    _NOP,
                    {"name": "sem_release", "semaphore_ids": [self.semaphores[rank]]},
                ]
                self.semaphores[rank] += 1
                if self.semaphores[rank] > MAX_SEMAPHORES:
                    refuse(
                        self.schedule,
                        f"it needs more than the {MAX_SEMAPHORES} semaphores that the executor has",
                    )
            while operations and operations[-1] is _NOP:
                operations.pop()
            peers = sorted(b for a, b in met if a == rank)
            if len(peers) > MAX_CHANNELS:
                refuse(
                    self.schedule,
                    f"rank {rank} meets {len(peers)} others in one thread block; it takes "
                    f"{MAX_CHANNELS} channels",
                )
            self.blocks[rank].append(self._block(rank, operations, peers))

    def _block(
        self, rank: int, operations: list[dict[str, Any]], peers: list[int]
    ) -> dict[str, Any]:
        first_channel = len(self.peers[rank])
        self.peers[rank] += peers
        buffers: list[tuple[int, str]] = []
        switches: list[str] = []
        ops = [self._resolve(operation, peers, buffers, switches) for operation in operations]
        for buffer in buffers:
            if buffer not in self.buffers[rank]:
                self.buffers[rank].append(buffer)
        for switch in switches:
            if switch not in self.switches[rank]:
                self.switches[rank].append(switch)
        channels = (
            [
                {
                    "channel_type": "memory",
                    "channel_ids": list(range(first_channel, first_channel + len(peers))),
                }
            ]
            if peers
            else []
        )
        if switches:
            channels.append(
                {
                    "channel_type": "switch",
                    "channel_ids": [self.switches[rank].index(switch) for switch in switches],
                }
            )
        ids = [self.buffers[rank].index(buffer) for buffer in buffers]
        refs = [{"access_channel_type": "memory", "remote_buffer_ids": ids}] if ids else []
        return {
            "id": len(self.blocks[rank]),
            "ops": ops,
            "channels": channels,
            "remote_buffer_refs": refs,
        }

    @staticmethod
    def _resolve(
        operation: dict[str, Any],
        peers: list[int],
        buffers: list[tuple[int, str]],
        switches: list[str],
    ) -> dict[str, Any]:
        """An operation with the thread block's channel numbers in place of ranks."""
        resolved = dict(operation)

        def remote(operand: tuple[int, dict[str, Any]]) -> dict[str, Any]:
            rank, place = operand
            if (rank, place["type"]) not in buffers:
                buffers.append((rank, place["type"]))
            return {
                "buffer_id": buffers.index((rank, place["type"])),
                "index": place["index"],
                "size": place["size"],
            }

        def switch_operand(place: dict[str, Any]) -> dict[str, Any]:
            if place["type"] not in switches:
                switches.append(place["type"])
            return {
                "switch_channel_id": switches.index(place["type"]),
                "index": place["index"],
                "size": place["size"],
            }

        if "peers" in resolved:
            resolved |= {
                "channel_ids": [peers.index(peer) for peer in resolved.pop("peers")],
                "channel_type": "memory",
            }
        if "to" in resolved:
            resolved |= {
                "dst_buff": [remote(operand) for operand in resolved.pop("to")],
                "channel_type": "memory",
            }
        if "from" in resolved:
            resolved |= {
                "src_buff": [*resolved["src_buff"], *map(remote, resolved.pop("from"))],
                "channel_type": "memory",
            }
        if "onto" in resolved:
            sources, target = resolved.pop("by"), resolved.pop("onto")
            resolved["src_buff"] = (
                [switch_operand(sources[0])] if resolved["name"] == "glres" else sources
            )
            resolved |= {"dst_buff": [switch_operand(target)], "channel_type": "switch"}
            resolved |= {"reduce_op": "sum"} if resolved["name"] == "glres" else {}
        return resolved

    def gpu(self, rank: int) -> dict[str, Any]:
        """One rank's part."""
        layout = self.schedule.layout
        everyone = list(range(self.schedule.nranks))
        channels: list[dict[str, Any]] = (
            [{"channel_type": "memory", "connected_to": self.peers[rank]}]
            if self.peers[rank]
            else []
        )
        channels += [
            {
                "channel_type": "switch",
                "buffer_type": buffer,
                "rank_groups": [{"size": len(everyone), "ranks": everyone}],
            }
            for buffer in self.switches[rank]
        ]
        return {
            "id": rank,
            "input_chunks": layout.output_base,
            "output_chunks": layout.scratch_base - layout.output_base,
            "scratch_chunks": max(self.next_slot) + -(-self.scratch // 2)
            if self.packets
            else self.scratch,
            "threadblocks": self.blocks[rank],
            "channels": channels,
            "remote_buffers": [
                {"rank": owner, "type": kind, "access_channel_types": ["memory"]}
                for owner, kind in self.buffers[rank]
            ],
            "semaphores": [{"init_value": 0}] * self.semaphores[rank],
        }
