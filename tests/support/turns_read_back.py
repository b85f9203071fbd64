"""The turns of all processes read back as a program, whose order can be checked."""

from dataclasses import replace

import numpy as np

from realcoll.turns import STAGING
from simcoll.core.rank_program import Instruction, Lane, RankProgram


class _Reader:
    """The program of a process, made of its turns; its memory is its ranks', then staging memory,
    in elements.
    """

    def __init__(self, plan, made):
        self.item = plan.dtype.itemsize
        self.code: list[list[Instruction]] = []
        self.lanes: dict[tuple[str, int, int], int] = {}
        self.channels: list[int] = []
        self.starts: dict[tuple[int, int], int] = {}
        self.size = 0
        sizes = {
            (rank, buffer): int(count)
            for (rank, buffer), count in np.ndenumerate(plan.buffer_elements())
        }
        sizes |= {
            (STAGING, lane): -(-size // self.item) for lane, size in enumerate(made.staging_bytes)
        }
        for place, size in sizes.items():
            self.starts[place] = self.size
            self.size += size

    def at(self, span):
        """First element of a span."""
        return self.starts[span[0], span[1]] + span[2] // self.item

    def add(self, lane, waits, instruction):
        """Append to a lane; where."""
        number = self.lanes.setdefault(lane, len(self.code))
        if number == len(self.code):
            self.code.append([])
            self.channels.append(lane[2])
        waits = tuple(sorted({spot for spot in waits if spot[0] != number}))
        self.code[number].append(replace(instruction, waits=waits))
        return number, len(self.code[number]) - 1

    def turn(self, lane, turn, process, waits):
        """All that a turn does; its last instruction."""
        own, item = ("turn", -1, lane), self.item
        spot = self.add(own, waits, Instruction("nop", count=0))
        for target, source in turn.aside:
            spot = self.add(
                own, (), Instruction("copy", self.at(source), self.at(target), source[3] // item)
            )
        under_way = []
        local = [source for source, peer, _ in turn.sends if peer == process]
        for number, (target, peer, channel) in enumerate(turn.recvs):
            count, to = target[3] // item, self.at(target)
            if peer == process:
                copy = Instruction("copy", self.at(local.pop(0)), to, count)
                under_way.append(self.add((f"self {number}", lane, channel), [spot], copy))
            else:
                recv = Instruction("recv", dst=to, count=count, recv_from=peer)
                under_way.append(self.add(("recv", peer, channel), [spot], recv))
        for source, peer, channel in turn.sends:
            if peer != process:
                send = Instruction("send", self.at(source), count=source[3] // item, send_to=peer)
                under_way.append(self.add(("send", peer, channel), [spot], send))
        spot = self.add(own, under_way, Instruction("nop", count=0))
        for reduces, target, source, _ in turn.afterwards:
            name = "reduce" if reduces else "copy"
            spot = self.add(
                own, (), Instruction(name, self.at(source), self.at(target), source[3] // item)
            )
        return spot


def program_of(plan, parts):
    """All processes' parts read back as a program, in which a process is a rank and an element a
    chunk.
    """
    readers = [_Reader(plan, made) for made in parts]
    for process, (reader, made) in enumerate(zip(readers, parts, strict=True)):
        done: dict[tuple[int, int], tuple[int, int]] = {}
        turns = [
            (turn.step, lane, index)
            for lane, own in enumerate(made.lanes)
            for index, turn in enumerate(own)
        ]
        for _, lane, index in sorted(turns):
            turn = made.lanes[lane][index]
            before = [done[each] for each in turn.waits] + (
                [done[lane, index - 1]] if index else []
            )
            done[lane, index] = reader.turn(lane, turn, process, before)
    lanes = tuple(
        tuple(
            Lane(channel, tuple(code))
            for channel, code in zip(reader.channels, reader.code, strict=True)
        )
        for reader in readers
    )
    return RankProgram(
        f"{plan.schedule} in {len(parts)} processes",
        len(parts),
        lanes,
        (max(r.size for r in readers), 0, 0),
    )
