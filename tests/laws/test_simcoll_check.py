"""The independent checker against damage: always a status, never a traceback, and no yes that a
plain player contradicts.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import time
from collections import Counter, deque

import pytest

from simcoll_check import Unreadable, Wrong, check, main
from tests.support.certificates_by_hand import (
    chain,
    contributions,
    direct,
    exchange,
    ring,
    slots,
    unrolled,
)

SEEDS = [
    ring(3),
    ring(4, "by symmetry"),
    unrolled(ring(3)),
    exchange(),
    chain(3),
    direct("all_to_all", 3, chunks=2),
    direct("reduce_scatter", 3, in_place=True),
    direct("send_recv", 3, pairs=[(0, 1), (2, 0)]),
    direct("barrier", 3),
    direct("gather", 3, root=1, in_place=True),
    direct("broadcast", 4, root=2),
]


def verdict(certificate):
    """0 right, 1 wrong, 2 unreadable, with a moderate text and in moderate time; any other
    exception is a failure.
    """
    start = time.process_time()
    try:
        status, words = 0, check(certificate)
    except Wrong as error:
        status, words = 1, str(error)
    except Unreadable as error:
        status, words = 2, str(error)
    assert 0 < len(words) < 5000
    assert time.process_time() - start < 20
    return status


class Player:
    """Memory as multisets of (rank, input slot, piece), played as the format says, and nothing
    checked on the way.
    """

    def __init__(self, certificate):
        self.certificate = certificate
        collective = certificate["collective"]
        self.kind, self.n, self.chunks = (
            collective["kind"],
            collective["nranks"],
            certificate["chunks"],
        )
        self.root, self.in_place = collective.get("root", 0), collective.get("in_place", False)
        self.pairs = collective.get("pairs", ())
        self.inputs, self.outputs = (count * self.chunks for count in slots(self.kind, self.n))
        self.memory = {}
        givers = {
            "broadcast": [self.root],
            "scatter": [self.root],
            "send_recv": [pair[0] for pair in self.pairs],
        }
        for rank in givers.get(self.kind, range(self.n)):
            for chunk in range(self.inputs):
                leaf = (rank, chunk // self.chunks, chunk % self.chunks)
                self.memory[self.cell(rank, chunk)] = Counter([leaf])

    def cell(self, rank, chunk):
        """One address for what is one in place."""
        rooted = self.kind in ("broadcast", "reduce", "gather", "scatter") and rank != self.root
        if not self.in_place or rooted or self.kind in ("all_to_all", "send_recv"):
            return rank, chunk
        if self.inputs <= self.outputs and chunk < self.inputs:
            return rank, self.inputs + chunk + (
                rank * self.chunks if self.outputs > self.inputs else 0
            )
        if self.inputs > self.outputs and self.inputs <= chunk < self.inputs + self.outputs:
            return rank, chunk - self.inputs + rank * self.chunks
        return rank, chunk

    def right(self):
        for rank in range(self.n):
            for output in range(self.outputs):
                slot, piece = divmod(output, self.chunks)
                wanted = contributions(self.kind, self.n, self.root, self.pairs, rank, slot)
                wanted = Counter((source, source_slot, piece) for source, source_slot in wanted)
                if wanted and self.memory.get(self.cell(rank, self.inputs + output)) != wanted:
                    return False
        return True

    def schedule(self):
        for block in self.certificate["blocks"]:
            base, modulus, stride = (
                block.get("base", 0),
                block.get("modulus", 1),
                block.get("stride", 0),
            )
            for turn in range(block.get("repeat", 1)):
                for one in block["steps"]:
                    self.step(
                        one,
                        lambda c, t=turn, b=base, m=modulus, s=stride: (
                            c - (c - b) % m + ((c - b) % m + t * s) % m
                        ),
                    )
        return self.right()

    def step(self, one, shifted):
        length = len(one["src_rank"])

        def column(key, default):
            values = one.get(key, default)
            return values if isinstance(values, list) else [values] * length

        rows = zip(
            column("src_rank", 0),
            map(shifted, column("src_chunk", 0)),
            column("dst_rank", 0),
            map(shifted, column("dst_chunk", 0)),
            column("count", 1),
            column("op", "copy"),
            strict=True,
        )
        new = {}
        for a, source, b, target, count, op in sorted(rows, key=lambda row: row[5] == "reduce"):
            for k in range(count):
                cell = self.cell(b, target + k)
                value = self.memory[self.cell(a, source + k)]
                new[cell] = (
                    new.get(cell, self.memory.get(cell, Counter())) + value
                    if op == "reduce"
                    else value
                )
        self.memory |= new

    def program(self, rng):
        """Play the lanes in a random order, with room for any number of messages."""
        program = self.certificate["program"]
        lanes = [
            (r, k, lane["channel"], deque(lane["instructions"]))
            for r, ls in enumerate(program["ranks"])
            for k, lane in enumerate(ls)
        ]
        done, wires = Counter(), {}
        while any(code for *_, code in lanes):
            ready = [
                lane
                for lane in lanes
                if lane[3]
                and all(
                    done[lane[0], other] > place for other, place in lane[3][0].get("waits", [])
                )
                and (
                    lane[3][0].get("recv_from") is None
                    or wires.get((lane[3][0]["recv_from"], lane[0], lane[2]))
                )
            ]
            rank, number, channel, code = rng.choice(ready)
            one = code.popleft()
            done[rank, number] += 1
            received = (
                wires[one["recv_from"], rank, channel].popleft()
                if one.get("recv_from") is not None
                else None
            )
            results = []
            for k in range(one.get("count", 1) if one["op"] != "nop" else 0):
                parts = [received[k]] if received is not None else []
                if "reduce" in one["op"] or one["op"] in ("send", "copy"):
                    parts.append(self.memory[self.cell(rank, one["src"] + k)])
                if one["op"] == "reduce":
                    parts.append(self.memory[self.cell(rank, one["dst"] + k)])
                results.append(sum(parts, Counter()))
            if one["op"] not in ("send", "nop", "recv_reduce_send"):
                self.memory |= {
                    self.cell(rank, one["dst"] + k): value for k, value in enumerate(results)
                }
            if one.get("send_to") is not None:
                wires.setdefault((rank, one["send_to"], channel), deque()).append(results)
        return self.right()


def play(certificate, rng):
    """Whether a certificate that was accepted has the data that it claims."""
    if certificate["collective"] is None or certificate["collective"]["kind"] == "barrier":
        return True
    player = Player(certificate)
    return player.schedule() if certificate["subject"] == "schedule" else player.program(rng)


def places(value, path=()):
    yield path
    for key, entry in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from places(entry, (*path, key))


def mutant(certificate, rng):
    """A copy with one to three changes: numbers, texts, entries dropped, doubled, swapped, copied
    from elsewhere.
    """
    other = copy.deepcopy(certificate)
    for _ in range(rng.choice((1, 1, 2, 3))):
        path = rng.choice([path for path in places(other) if path])
        holder = other
        for key in path[:-1]:
            holder = holder[key]
        key, value = path[-1], holder[path[-1]]
        change = rng.randrange(8)
        if change < 3 and isinstance(value, int):
            holder[key] = (
                value + rng.choice((-1, 1, 1, 2, -(2**63), 2**31))
                if not isinstance(value, bool)
                else not value
            )
        elif change == 3:
            del holder[key]
        elif change == 4 and isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(value))
        elif change == 5 and isinstance(holder, list):
            where = rng.randrange(len(holder))
            holder[key], holder[where] = holder[where], holder[key]
        elif change == 6:
            holder[key] = rng.choice(
                (None, "reduce", "copy", "any", [], {}, 0, -1, True, 1e9, "\x1b")
            )
        else:
            source = rng.choice([place for place in places(certificate) if place])
            donor = certificate
            for step in source:
                donor = donor[step]
            holder[key] = copy.deepcopy(donor)
    return other


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_changed_certificates_give_no_false_yes(seed):
    rng, right = random.Random(seed), SEEDS[seed]
    assert play(right, rng)
    counts = Counter()
    for number in range(600):
        other = mutant(right, rng)
        status = verdict(other)
        counts[status] += 1
        assert status or play(other, rng), (seed, number)
    assert counts[1] > 20
    assert counts[2] > 20


def damaged(data, rng):
    """Bytes with one to four changes."""
    data = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        where, length = rng.randrange(len(data)), rng.choice((1, 1, 2, 5, 40))
        match rng.randrange(6):
            case 0:
                data[where] ^= 1 << rng.randrange(8)
            case 1:
                del data[where : where + length]
            case 2:
                data[where:where] = data[where : where + length]
            case 3:
                data[where:where] = rng.choice(
                    (b"[", b"{", b'"', b"9" * 30, b",", b"null", b"-", b"1e5", b"\\u0000", b"\xff")
                )
            case 4:
                start = rng.randrange(len(data))
                data[where : where + length] = data[start : start + length]
            case 5:
                data[where:] = data[where : where + 1]
        data = data or bytearray(b" ")
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_damaged_bytes_always_get_a_status(packed):
    rng = random.Random(7)
    counts = Counter()
    for number in range(4000):
        data = json.dumps(rng.choice(SEEDS)).encode()
        data = damaged(gzip.compress(data) if packed else data, rng)
        status = verdict(data)
        counts[status] += 1
        if status == 0 and not packed:
            assert play(json.loads(data), rng), number
    assert counts[2] > 1000


@pytest.mark.slow
def test_the_command_answers_damage_in_one_line(tmp_path, capsys):
    rng = random.Random(8)
    for _ in range(150):
        path = tmp_path / rng.choice(("a.json", "b\x1b[0m.json", "c\n.gz"))
        path.write_bytes(damaged(json.dumps(rng.choice(SEEDS)).encode(), rng))
        assert main([str(path)]) in (0, 1, 2)
        out, err = capsys.readouterr()
        assert (err, out[-1], out[:-1].isprintable()) == ("", "\n", True)
