#!/usr/bin/env python3
"""Check a certificate of simcoll: does a schedule, or a program for each rank, do what the certificate claims?

    simcoll-check FILE          (or, with this one file copied anywhere: python simcoll_check.py FILE)

The exit status is 0 for right, 1 for wrong (the first wrong place is printed), 2 for a file that is unreadable or above the limits.
What the file holds is played once, exactly. Only the standard library of Python 3.10 or newer is used, and nothing of simcoll.
"""

from __future__ import annotations

import gzip
import io
import json
import reprlib
import sys
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

# fmt: off
# Limits, so that every file is answered in about a minute, with less than 1 GB of memory.
FILE_BYTES = 48 << 20  # packed and unpacked; in memory together with
VALUES = 6_000_000     # numbers and texts, up to 90 bytes each; a list or object counts as 8
RANKS = 1 << 16
CELLS = 1 << 23        # chunks in the memory of all ranks: 25 bytes each
MOVES = 6_000_000      # chunks that are moved, or accessed by a program: 5 us each
SYMMETRIC = 10_000_000 # chunks that are moved, in a proof by symmetry: 4 us each
STEP_MOVES = 500_000   # chunks that are moved in one step: 600 bytes each
SUMS = 2_000_000       # different sums: 200 bytes each
VISITS = 40_000_000    # parts of outputs that are counted: 0.5 us each
HEARD = 1 << 32        # barriers: one bit for each rank, on each channel of each rank
INSTRUCTIONS = 50_000  # of a program: one bit for each pair of them

# The format, by example. range: a number in it; "": text; False: true or false; None: null; [shape of each entry];
# {key: shape}, where a key that ends in "?" may be absent; (one shape or another).
INT, FROM_0, FROM_1 = range(-(2**63), 2**63), range(2**63), range(1, 2**63)
NUMBERS, OR_NULL, SCRATCH = (FROM_0, [FROM_0]), (None, FROM_0), [(FROM_0, [FROM_0])]
STEP = {"src_rank": [FROM_0], "src_chunk": NUMBERS, "dst_rank": NUMBERS, "dst_chunk": NUMBERS,
        "count?": (FROM_1, [FROM_1]), "op?": ("", [""]), "channel?": NUMBERS}
BLOCK = {"steps": [STEP], "repeat?": FROM_0, "stride?": INT, "base?": INT, "modulus?": FROM_1, "order?": (None, [FROM_0])}
INSTRUCTION = {"op": "", "src?": OR_NULL, "dst?": OR_NULL, "count?": FROM_0, "recv_from?": OR_NULL, "send_to?": OR_NULL,
               "waits?": [[FROM_0]]}
COLLECTIVE = {"kind": "", "nranks": FROM_1, "root?": FROM_0, "pairs?": [[FROM_0]], "in_place?": False}
COMMON = {"format": "", "version": INT, "subject": "", "name": "", "chunks": FROM_1}
SHAPES: dict[str, dict[str, Any]] = {
    "schedule": COMMON | {
        "collective": COLLECTIVE, "channels?": FROM_1, "divisible?": False, "scratch?": SCRATCH, "scratch_pieces?": (None, SCRATCH),
        "blocks": [BLOCK], "proof": {"kind": "", "rank?": [[FROM_0]], "lane?": NUMBERS, "place?": [FROM_0]},
        "claims": {"order": "", "steps": INT, "transfers": INT, "shared_chunks": False, "folds": False}},
    "program": COMMON | {
        "collective": (None, COLLECTIVE),
        "program": {"nranks": FROM_1, "buffers": [FROM_0], "in_place": False, "fifo_depth": OR_NULL, "protocol": "",
                    "ranks": [[{"channel": FROM_0, "instructions": [INSTRUCTION]}]]},
        "claims": {"data": False, "order": "", "least_depth": OR_NULL, "steps": None, "messages": INT}}}
NAMES = {range: "a number in its range", str: "up to 200 printable characters", bool: "true or false",
         type(None): "null", list: "a list", dict: "an object"}
COLUMNS = {"src_rank": 0, "src_chunk": 0, "dst_rank": 0, "dst_chunk": 0, "count": 1, "op": "copy", "channel": 0}
LEVELS = ("any", "rank-consistent", "run-consistent", "position-independent")

# The collectives: slots of input and of output, number of blocks; for rank r and slot s, the block of the input slot, that of the output
# slot, rank and slot of the input that the output slot must hold (sum: of all ranks); ranks that have input, and that see their output.
KINDS = {
    "broadcast":      "1 1 1   0 0       root 0    root all",
    "reduce":         "1 1 1   0 0       sum 0     all root",
    "all_reduce":     "1 1 1   0 0       sum 0     all all",
    "all_gather":     "1 n n   r s       s 0       all all",
    "reduce_scatter": "n 1 n   s r       sum r     all all",
    "gather":         "1 n n   r s       s 0       all root",
    "scatter":        "n 1 n   s r       root r    root all",
    "all_to_all":     "n n nn  rn+s sn+r s r       all all",
    "send_recv":      "1 1 n   r source  source 0  sources destinations",
    "barrier":        "0 0 0   0 0       0 0       all all",
}

# What an instruction of a program does: receive, read its source, read its destination (old), write it, send.
PARTS = {
    "nop": "", "send": "source send", "recv": "receive write", "copy": "source write", "reduce": "source old write",
    "recv_copy_send": "receive write send", "recv_reduce_send": "receive source send",
    "recv_reduce_copy": "receive source write", "recv_reduce_copy_send": "receive source write send",
}
# fmt: on


class Wrong(Exception):  # noqa: N818
    """Something that a certificate claims does not hold."""


class Unreadable(Exception):  # noqa: N818
    """A certificate that is not in the format, or is above a limit."""


def need(holds: bool, message: str, error: type[Exception] = Unreadable) -> None:
    """Stop with an error unless something holds."""
    if not holds:
        raise error(message)


def within(count: int, limit: int, what: str) -> None:
    """Stop above a limit."""
    need(count <= limit, f"above the limits: {what}, at most {limit}")


def read(value: Any, where: str, shape: Any) -> None:
    """Refuse a value of another shape."""
    shapes = shape if type(shape) is tuple else (shape,)
    one = next((one for one in shapes if type(value) is (int if type(one) is range else type(one))), ...)
    good = value in one if type(one) is range else one is not ...
    if type(one) is str:
        good = len(value) <= 200 and value.isprintable()
    elif type(one) is dict:
        for key, entry in value.items():
            need(key in one or f"{key}?" in one, f"{where}: unknown key {reprlib.repr(key)}")
            read(entry, f"{where}.{key}", one[key if key in one else f"{key}?"])
        absent = [key for key in one if key not in value and key[-1] != "?"]
        need(not absent, f"{where}: missing {', '.join(absent)}")
    elif type(one) is list and type(one[0]) is range and set(map(type, value)) == {int}:
        good = min(value) in one[0] and max(value) in one[0]  # not one by one: there are many
    elif type(one) is list:
        for place, entry in enumerate(value):
            read(entry, f"{where}[{place}]", one[0])
    given = "another" if type(value) is int else "" if good else reprlib.repr(value)
    need(good, f"{where}: expected {' or '.join(NAMES[type(one)] for one in shapes)}; got {given}")


class Machine:
    """The memory of all ranks. A cell is rank * size + chunk. Its value is the number of an input chunk, or of a sum of values."""

    def __init__(self, document: dict[str, Any]) -> None:
        value = document["collective"] or {"kind": "barrier", "nranks": document["program"]["nranks"]}  # without data
        self.document, self.claims, self.chunks = document, document["claims"], document["chunks"]
        self.kind, self.n, self.root = value["kind"], value["nranks"], value.get("root", 0)
        need(self.kind in KINDS, f"collective.kind: unknown kind {reprlib.repr(self.kind)}")
        within(self.n, RANKS, "ranks")
        self.codes, pairs = KINDS[self.kind].split(), value.get("pairs", [])
        need(self.root < self.n and ("root" not in value or "root" in self.codes), "collective.root: expected a rank, or none")
        need(all(len(pair) == 2 and max(pair) < self.n for pair in pairs), "collective.pairs: expected pairs of ranks")
        self.source = {target: source for source, target in pairs}
        sources = set(self.source.values())
        need("pairs" not in value or self.kind == "send_recv", f"collective.pairs: {self.kind} has no pairs")
        need(len(self.source) == len(sources) == len(pairs), "collective.pairs: a rank is on the same side twice")
        members = {"all": range(self.n), "root": [self.root], "sources": sources, "destinations": self.source}
        self.given, self.seen = (members[code] for code in self.codes[7:])
        self.in_place = value.get("in_place", False)
        self.inputs, self.outputs = (self.number(code) * self.chunks for code in self.codes[:2])

    def number(self, code: str, r: int = 0, s: int = 0) -> int:
        """What a code in the table of collectives means for slot s of rank r; -1 for the sum over all ranks."""
        n = self.n
        numbers = {"0": 0, "1": 1, "n": n, "nn": n * n, "r": r, "s": s, "rn+s": r * n + s, "sn+r": s * n + r}
        return (numbers | {"root": self.root, "source": self.source.get(r, r), "sum": -1})[code]

    def allocate(self, scratch: list[int]) -> None:
        """Make the memory, for numbers of scratch chunks on every rank."""
        self.ends = [self.inputs + self.outputs + chunks for chunks in scratch]
        self.size = max(self.ends)
        within(self.n * self.size, CELLS, "chunks of memory")
        self.home = array("i", range(self.n * self.size))  # of a cell with two addresses, the one in the larger buffer
        self.values = array("q", [-1]) * len(self.home)  # -1: nothing
        self.readonly = bytearray((b"\1" * self.inputs).ljust(self.size, b"\0")) * self.n
        self.operands: list[tuple[int, ...]] = [()] * (self.n * self.inputs)  # of every value; none: an input chunk
        self.sums: dict[tuple[int, ...], int] = {}  # values, by operands
        self.visits = 0
        for rank in range(self.n):
            base, output = rank * self.size, self.inputs + (rank * self.chunks if self.outputs > self.chunks else 0)
            alias, other = (self.inputs, rank * self.chunks) if self.inputs > self.chunks else (0, output)
            shared = self.in_place and self.kind not in {"all_to_all", "send_recv"} and rank in self.given and rank in self.seen
            for piece in range(base, base + self.chunks) if shared else ():
                self.home[alias + piece], self.readonly[other + piece] = other + piece, 0
            for chunk in range(self.inputs) if rank in self.given else ():
                self.values[self.home[base + chunk]] = rank * self.inputs + chunk

    def cells(self, rank: int, chunk: int, count: int) -> range:
        """The cells of a range of chunks, as addressed; none if the range is not inside one buffer."""
        inner, base = self.inputs + self.outputs, rank * self.size
        end = self.inputs if chunk < self.inputs else inner if chunk < inner else self.ends[rank]
        return range(base + chunk, base + chunk + count) if 0 <= chunk <= end - count else range(0)

    def name(self, cell: int) -> str:
        """The rank, buffer and chunk of a cell."""
        (rank, chunk), inner = divmod(cell, self.size), self.inputs + self.outputs
        place = f"input[{chunk}]" if chunk < self.inputs else f"output[{chunk - self.inputs}]"
        return f"rank {rank} {place if chunk < inner else f'scratch[{chunk - inner}]'}"

    def add(self, *operands: int) -> int:
        """The value of a sum: the same for the same operands in another order, but not with other brackets."""
        key = tuple(sorted(operands))
        value = self.sums.setdefault(key, len(self.operands))
        if value == len(self.operands):
            self.operands.append(key)
            within(len(self.sums), SUMS, "different sums")
        return value

    def contributions(self, value: int) -> Counter[int]:
        """How often each input chunk is in a value, and (of one that cannot be right) sums that are left to take apart."""
        counts, waiting, tries = Counter[int](), [value], 2 * self.n  # n contributions need n - 1 sums at most
        while waiting and tries:
            value, tries = waiting.pop(), tries - 1
            counts[value] += not self.operands[value]
            waiting.extend(self.operands[value])
        self.visits += 2 * self.n - tries
        within(self.visits, VISITS, "parts of outputs to count")
        return +counts + Counter(waiting)

    def fault(self, cell: int, wanted: range) -> Wrong:
        """The error for an output that does not hold what is wanted."""
        counts = self.contributions(self.values[cell]) if self.values[cell] >= 0 else Counter[int]()
        counts.subtract(wanted)
        words = []
        for value, count in sorted(counts.items()):
            if count and not self.operands[value]:
                words += [f"rank {value // self.inputs} input[{value % self.inputs}] {count:+}"]
        more = ", ..." if len(words) > 8 else ""
        return Wrong(f"at the end, {self.name(cell)} differs from what is expected by: {', '.join(words[:8])}{more}")

    def finish(self, followed: Any = None) -> None:
        """Compare the outputs with the definition of the collective, and the order of additions with the claim."""
        level, results = self.claims["order"], dict[int, int]()  # first expected contribution: value
        need(level in LEVELS if "sum" in self.codes else level == "", f"claims.order: no level of {self.kind}", Wrong)
        for cell in (r * self.size + self.inputs + k for r in sorted(self.seen) for k in range(self.outputs)):
            if followed and not followed[self.home[cell]]:
                continue
            slot, piece = divmod(cell % self.size - self.inputs, self.chunks)
            source, start = (self.number(code, cell // self.size, slot) for code in self.codes[5:7])
            first, value = max(source, 0) * self.inputs + start * self.chunks + piece, self.values[self.home[cell]]
            if source >= 0 and value != first:
                raise self.fault(self.home[cell], range(first, first + 1))
            if source < 0 and results.get(first) != value:
                wanted = range(first, self.n * self.inputs, self.inputs)
                if value < 0 or self.contributions(value) != Counter(wanted):
                    raise self.fault(self.home[cell], wanted)
                same = results.setdefault(first, value) == value
                need(same or level == "any", f"claims.order: ranks add in different orders at {self.name(cell)}", Wrong)
        names, renamed = dict[tuple[int, ...], int](), list[int]()  # sums with contributions named by their ranks alone
        for value, operands in enumerate(self.operands if level == LEVELS[3] else ()):
            key = tuple(sorted(renamed[operand] for operand in operands)) or (-1 - value // self.inputs,)
            renamed.append(names.setdefault(key, len(names)))
        same = len({renamed[value] for value in results.values()} if renamed else ()) < 2
        need(same, "claims.order: the order of additions depends on the chunk", Wrong)


class Schedule(Machine):
    """A schedule: what its steps read and write, in order."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document)
        self.channels, self.proof = document.get("channels", 1), document["proof"]
        self.symmetric = self.proof["kind"] == "by symmetry"
        need(self.symmetric or self.proof["kind"] == "full", "proof.kind: expected 'full' or 'by symmetry'")
        scratch, pieces = document.get("scratch", []), document.get("scratch_pieces")
        blocks, per_rank = self.number(self.codes[2]), len(scratch) > 0 and type(scratch[0]) is list
        self.scratch = scratch if per_rank else [scratch] * self.n
        pieces = [None] * self.n if pieces is None else pieces if per_rank else [pieces] * self.n
        need(len(self.scratch) == len(pieces) == self.n, "scratch: expected one list, or one for each rank")
        rows = []
        for slots, single in zip(self.scratch, pieces, strict=True):
            need(type(slots) is list and all(type(block) is int and block < blocks for block in slots), "scratch: no such block")
            within(len(slots) * self.chunks, CELLS, "chunks of scratch")
            if single is None:
                rows.append([block * self.chunks + piece for block in slots for piece in range(self.chunks)])
            else:
                need(type(single) is list and len(single) == len(slots) and all(type(piece) is int and piece < self.chunks for piece in single), "scratch_pieces: expected a piece for each slot")
                rows.append([block * self.chunks + piece for block, piece in zip(slots, single, strict=True)])
        self.allocate([len(row) for row in rows])
        self.places = array("q")  # of each cell: block * chunks + piece
        for rank, row in enumerate(rows):
            for code, length in zip(self.codes[3:5], (self.inputs, self.outputs), strict=True):
                for slot in range(length // self.chunks):
                    start = self.number(code, rank, slot) * self.chunks
                    self.places.extend(range(start, start + self.chunks))
            self.places.extend(row + [-1] * (self.size - self.ends[rank]))
        self.transfers, self.folds, self.switches, self.rank_order = 0, False, False, False
        total = 0
        for block in document["blocks"]:
            for step in block["steps"]:
                length, count = len(step["src_rank"]), step.get("count", 1)
                same = all(type(column) is not list or len(column) == length for column in step.values())
                need(length > 0 and same, "a step needs transfers, and columns of equal length")
                moves = count * length if type(count) is int else sum(count)
                within(moves, STEP_MOVES, "chunks moved in a step")
                total += moves * block.get("repeat", 1)
        within(total, SYMMETRIC if self.symmetric else MOVES, "chunks moved")

    def steps(self) -> Iterator[list[Any]]:
        """The columns of every step, with repeats played."""
        for block in self.document["blocks"]:
            base, modulus, order = block.get("base", 0), block.get("modulus", 1), block.get("order")
            spots = {chunk: spot for spot, chunk in enumerate(order or ())}
            need(len(spots) == len(order or ()), "a chunk is in an order twice")
            for turn in range(block.get("repeat", 1) if block["steps"] else 0):
                shift = turn * block.get("stride", 0) % modulus
                for step in block["steps"]:
                    columns = [step.get(key, default) for key, default in COLUMNS.items()]
                    columns = [column if type(column) is list else [column] * len(columns[0]) for column in columns]
                    for which in (1, 3) if shift or order is not None else ():
                        column = columns[which]
                        if order is not None:
                            need(spots.keys() >= set(column), "a chunk of a step is not in the order of its block", Wrong)
                            column = [spots[chunk] for chunk in column]
                        column = [x + ((x - base) % modulus + shift) % modulus - (x - base) % modulus for x in column]
                        if order is not None:
                            column = [order[x] if 0 <= x < len(order) else -1 for x in column]
                        columns[which] = column
                    yield columns

    def moves(self, step: int, columns: list[Any]) -> list[tuple[int, int, str, int, int]]:
        """The chunks that a step moves: cell read, cell written, operation, channel, transfer."""
        moves, home, places = [], self.home, self.places
        operations = {"copy", "reduce"} if self.symmetric else {"copy", "reduce", "multicast", "switch_reduce"}
        keeps = self.symmetric or not self.document.get("divisible", False)
        for row, (a, chunk, b, target, count, op, channel) in enumerate(zip(*columns, strict=True)):
            good = a < self.n and b < self.n and channel < self.channels and op in operations
            reads, writes = (self.cells(a, chunk, count), self.cells(b, target, count)) if good else ((), ())
            if not reads or not writes:
                raise Wrong(
                    f"step {step}: {reprlib.repr(op)} of {count} chunks from rank {a} chunk {chunk} to rank {b} chunk {target} on "
                    f"channel {channel}: no such operation, rank, range of chunks or channel here"
                )
            if op == "copy" and home[reads[0]] == home[writes[0]] and self.in_place:
                continue
            self.transfers += 1
            for cell, other in zip(reads, writes, strict=True):
                if keeps and places[cell] != places[other]:
                    raise Wrong(f"step {step}: {self.name(cell)} and {self.name(other)} are not the same piece of the same block")
                moves.append((home[cell], home[other], op, channel, row))
        return moves

    def play(self, step: int, moves: list[tuple[int, int, str, int, int]]) -> None:
        """Read all, then write all."""
        groups: dict[int, list[tuple[int, int, str, int, int]]] = {}
        for move in moves:
            if self.values[move[0]] < 0:
                raise Wrong(f"step {step}: {self.name(move[0])} is read and holds nothing")
            groups.setdefault(move[1], []).append(move)
        written = []
        for cell, group in groups.items():
            added = sorted((source // self.size, self.values[source]) for source, _, op, _, _ in group if op == "reduce")
            others = [self.values[source] for source, _, op, _, _ in group if op != "reduce"]
            operations = {op for _, _, op, _, _ in group}
            value = others[0] if others else self.values[cell]
            if self.readonly[cell] or value < 0:
                raise Wrong(f"step {step}: {self.name(cell)} is {'an input' if value >= 0 else 'added to and holds nothing'}")
            if len(group) > 1:
                switched = operations == {"switch_reduce"}
                fold = operations <= {"copy", "reduce"} and len(others) < 2 and len({rank for rank, _ in added}) == len(added)
                if len({channel for _, _, _, channel, _ in group}) > 1 or not (fold or switched):
                    raise Wrong(f"step {step}: {self.name(cell)} is written twice")
                self.folds, self.rank_order = self.folds or fold, self.rank_order or len(added) > 1
                value = self.add(*others) if switched else value
            for _, operand in added:
                value = self.add(value, operand)
            self.switches = self.switches or "switch_reduce" in operations
            written.append((cell, value))
        for cell, value in written:
            self.values[cell] = value

    def wait(self, step: int, moves: list[tuple[int, int, str, int, int]]) -> None:
        """Refuse waits in a cycle: a transfer that overwrites a chunk waits for those of other channels that read it."""
        channels = {cell: channel for _, cell, _, channel, _ in moves}
        waits: TopologicalSorter[int] = TopologicalSorter()
        for source, cell, _, channel, row in moves:
            waits.add(row, -1 - cell)
            if channels.get(source, channel) != channel:
                waits.add(-1 - source, row)
        try:
            waits.prepare()
        except CycleError:
            raise Wrong(f"step {step}: channels wait for each other in a cycle") from None

    def renumber(self) -> tuple[array[int], bytearray]:
        """By symmetry: the cell that each cell is mapped to, and whether to follow it."""
        ranks, place, total = self.proof.get("rank", []), self.proof.get("place", []), self.number(self.codes[2]) * self.chunks
        lane = self.proof.get("lane", 0)
        lane = lane if type(lane) is list else [lane] * total
        gathers = self.kind in {"all_gather", "reduce_scatter"}
        need(gathers or self.kind == "all_reduce", f"proof: {self.kind} is not proved by symmetry")
        need(not (self.in_place and self.kind == "reduce_scatter"), "proof: a reduce_scatter in place is not proved by symmetry")
        whole = self.document.get("scratch_pieces") is None and self.kind == "reduce_scatter"
        need(all(slots == [] or (whole and slots == [*range(self.n)]) for slots in self.scratch), "proof: scratch by symmetry holds all blocks")
        need(len(lane) == total and max(lane) < len(ranks), "proof.lane: expected a lane for each place", Wrong)
        good = sorted(place) == [*range(total)] and all(sorted(row) == [*range(self.n)] for row in ranks)
        need(good, "proof: a renumbering is no permutation", Wrong)
        followed, visited = bytearray(total), bytearray(total)
        for start in range(total):
            next_block = place[start] // self.chunks == ranks[lane[start]][start // self.chunks] if gathers else True
            need(lane[place[start]] == lane[start] and next_block, f"proof.place: place {start} is mapped to another lane or block", Wrong)
            if not visited[start]:
                followed[start] = followed[place[start]] = 1
            while not visited[start]:
                visited[start], start = 1, place[start]
        image = array("i")
        for cell, spot in enumerate(self.places):
            rank, chunk = divmod(cell, self.size)
            inner = self.inputs + self.outputs
            start, end = (0, self.inputs) if chunk < self.inputs else (self.inputs, inner) if chunk < inner else (inner, self.size)
            image.append(ranks[lane[spot]][rank] * self.size + start + place[spot] % (end - start))
        return image, bytearray(followed[spot] for spot in self.places)

    def barrier(self) -> int:
        """Play a barrier; the number of its steps. Arrivals that a rank has heard of are the bits of a number, for each channel."""
        within(self.n**2 * self.channels, HEARD, "ranks * ranks * channels of a barrier")
        heard = [1 << rank for rank in range(self.n) for _ in range(self.channels)]
        step = -1
        for step, columns in enumerate(self.steps()):
            news = []
            for a, _, b, _, _, op, channel in zip(*columns, strict=True):
                good = a < self.n and b < self.n and channel < self.channels and op == "sync"
                need(good, f"step {step}: {reprlib.repr(op)} from rank {a} to rank {b} on channel {channel}", Wrong)
                news.append((b * self.channels + channel, heard[a * self.channels + channel]))
            for lane, arrivals in news:
                heard[lane] |= arrivals
            self.transfers += len(news)
        for rank in range(self.n):
            missing = (1 << self.n) - 1
            for arrivals in heard[rank * self.channels : (rank + 1) * self.channels]:
                missing &= ~arrivals
            need(not missing, f"rank {rank} may leave before rank {missing.bit_length() - 1} has entered", Wrong)
        return step + 1

    def check(self) -> str:
        """Play the schedule, and compare the result with the claims."""
        claims, steps = self.claims, 0
        if self.kind == "barrier":
            need(not self.symmetric, "proof: a barrier is not proved by symmetry")
            steps = self.barrier()
        image, followed = self.renumber() if self.symmetric else (None, None)
        touched = array("q", [-1]) * len(self.home)
        for step, columns in enumerate(self.steps() if self.kind != "barrier" else ()):
            every = moves = self.moves(step, columns)
            if image and followed:
                present = {move[:4] for move in every}
                lost = [move for move in every if (image[move[0]], image[move[1]], *move[2:4]) not in present]
                if lost or len(present) < len(every):
                    raise Wrong(f"step {step}: not mapped onto itself by the renumbering")
                moves = [move for move in every if followed[move[0]]]
            self.play(step, moves)
            for move in every if self.channels > 1 and not claims["shared_chunks"] else ():
                for cell in move[:2]:
                    if touched[cell] not in (-1, move[3]):
                        raise Wrong(f"claims.shared_chunks: channels {touched[cell]} and {move[3]} share {self.name(cell)}")
                    touched[cell] = move[3]
            if self.channels > 1 and claims["shared_chunks"]:
                self.wait(step, every)
            steps = step + 1
        for key, value in (("steps", steps), ("transfers", self.transfers)):
            need(claims[key] == value, f"claims.{key}: {claims[key]} claimed, {value} counted", Wrong)
        need(claims["folds"] or not self.folds, "claims.folds: a step writes a chunk more than once", Wrong)
        need(not self.switches or claims["order"] not in LEVELS[2:], "claims.order: a switch reduces, in any order", Wrong)
        fixed = claims["order"] in ("", "any") or not (self.symmetric and self.rank_order)
        need(fixed, "claims.order: a fold adds by rank, which a renumbering changes", Wrong)
        self.finish(followed)
        return f"{self.kind}, {self.n} ranks, {self.transfers} transfers in {steps} steps ({self.proof['kind']}) {claims['order']}"


class Program(Machine):
    """A program: lanes of instructions on every rank, which run concurrently."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document)
        program, known = document["program"], document["collective"] is not None
        ranks, buffers, placed = program["ranks"], program["buffers"], program["in_place"]
        need(program["nranks"] == len(ranks) == self.n and len(buffers) == 3, "program: expected its ranks and three buffers")
        same = not known or (buffers[:2] == [self.inputs, self.outputs] and placed == self.in_place)
        need(same, "program: expected the buffers of its collective, in place or not as there", Wrong)
        need(self.claims["data"] == known, "claims.data: expected true with a collective and false without", Wrong)
        self.inputs, self.outputs = buffers[:2]
        self.allocate([buffers[2]] * self.n)
        self.code = [  # rank, lane, position, channel, instruction
            (rank, number, position, lane["channel"], one)
            for rank, lanes in enumerate(ranks)
            for number, lane in enumerate(lanes)
            for position, one in enumerate(lane["instructions"])
        ]
        within(len(self.code), INSTRUCTIONS, "instructions")
        within(sum(one.get("count", 1) for *_, one in self.code), MOVES, "chunks of instructions")
        numbers = {entry[:3]: number for number, entry in enumerate(self.code)}
        self.before: list[list[int]] = []  # instructions that each must wait for, apart from messages
        self.wires: dict[tuple[int, int, int], tuple[list[int], list[int]]] = {}  # sends and receives, by connection
        for number, (rank, lane, position, channel, one) in enumerate(self.code):
            need(one["op"] in PARTS, f"unknown instruction {reprlib.repr(one['op'])}")
            waits = [numbers.get((rank, *wait), -1) for wait in one.get("waits", [])]
            need(-1 not in waits, f"{self.where(number)} waits for an instruction that does not exist", Wrong)
            self.before.append([number - 1] * (position > 0) + waits)
            for part, key, wire in (("send", "send_to", 0), ("receive", "recv_from", 1)):
                peer = one.get(key)
                need((part in PARTS[one["op"]]) == (peer is not None), f"{self.where(number)}: {key} does not fit it")
                if peer is not None:
                    ends = (peer, rank, channel) if wire else (rank, peer, channel)
                    self.wires.setdefault(ends, ([], []))[wire].append(number)
        self.sender = {receive: send for wire in self.wires.values() for send, receive in zip(*wire, strict=False)}

    def where(self, number: int) -> str:
        """The place of an instruction."""
        rank, lane, position, _, one = self.code[number]
        return f"rank {rank} lane {lane} instruction {position} ({one['op']})"

    def match(self) -> int:
        """Check that sends and receives match; the number of messages."""
        for (source, target, channel), wire in self.wires.items():
            where = f"connection from rank {source} to rank {target} on channel {channel}"
            need(len(wire[0]) == len(wire[1]), f"{where}: {len(wire[0])} sends and {len(wire[1])} receives", Wrong)
            need(all(len({self.code[end][:2] for end in ends}) == 1 for ends in wire), f"{where}: an end in two lanes", Wrong)
            for send, receive in zip(*wire, strict=True):
                same = self.code[send][4].get("count", 1) == self.code[receive][4].get("count", 1)
                need(same, f"{where}: {self.where(send)} and {self.where(receive)} have different counts", Wrong)
        return len(self.sender)

    def order(self, depth: int | None, legal: list[int] | None = None) -> tuple[list[int], str]:
        """An order in which the instructions can run at a FIFO depth (None: unbounded), or why there is none."""
        event = list(range(len(self.code)))
        for number in legal or () if depth == 0 else ():  # both ends of a message meet, and so a whole chain
            event[number] = event[self.sender.get(number, number)]
        waits: TopologicalSorter[int] = TopologicalSorter()
        for number, others in enumerate(self.before):
            waits.add(event[number], *(event[other] for other in others))
        for sends, receives in self.wires.values() if depth != 0 else ():
            for place, (send, receive) in enumerate(zip(sends, receives, strict=True)):
                waits.add(receive, send)
                if depth is not None and place >= depth:
                    waits.add(send, receives[place - depth])
        try:
            return list(waits.static_order()), ""
        except CycleError as error:
            cycle = error.args[1]
            names = ", ".join(map(self.where, cycle[:6])) + (", ..." if len(cycle) > 6 else "")
            return [], f"deadlock at FIFO depth {'unbounded' if depth is None else depth}, in a cycle: {names}"

    def check(self) -> str:
        """Check messages, deadlock, races and data."""
        claims, messages = self.claims, self.match()
        need(claims["messages"] == messages, f"claims.messages: {claims['messages']} claimed, {messages} counted", Wrong)
        legal, stuck = self.order(None)
        least, own = claims["least_depth"], self.document["program"]["fifo_depth"]
        for depth in (own, least):
            stuck = stuck or self.order(depth, legal)[1]
        need(not stuck, stuck, Wrong)
        less = [depth for depth in (0, 1, 2, 8) if least is None or depth < least]
        need(not less or self.order(less[-1], legal)[1] != "", f"claims.least_depth: {less[-1:]} is enough", Wrong)
        self.run(legal)
        if claims["data"]:
            self.finish()
        else:
            need(claims["order"] == "", "claims.order: no collective", Wrong)
        return f"program of {self.kind if claims['data'] else 'no collective'}, {self.n} ranks, {messages} messages {claims['order']}"

    def run(self, legal: list[int]) -> None:
        """Run the instructions in a legal order; refuse accesses that another legal order could swap, and follow the data."""
        done, sent = [0] * len(self.code), dict[int, list[int]]()  # done: instructions that are always earlier, as bits
        writers, readers = dict[int, int](), dict[int, list[int]]()  # of a cell: its last write, and reads since
        for number in legal:
            rank, _, _, _, one = self.code[number]
            parts, count = PARTS[one["op"]], one.get("count", 1)
            for other in [*self.before[number], *([self.sender[number]] if number in self.sender else [])]:
                done[number] |= done[other] | 1 << other
            spans = []
            for part, key in (("source", "src"), ("write", "dst")):
                wanted, chunk = count if part in parts else 0, one.get(key)
                cells = [self.home[cell] for cell in self.cells(rank, -1 if chunk is None else chunk, wanted)] if wanted else []
                need(len(cells) == wanted, f"{self.where(number)}: {key} {chunk} has no {count} chunks in a buffer", Wrong)
                spans.append(cells)
            source, target = spans
            others = [writers[cell] for cell in source + target if cell in writers]
            others += [other for cell in target for other in readers.get(cell, ())]
            for other in others:
                need(done[number] >> other & 1 == 1, f"race between {self.where(number)} and {self.where(other)}", Wrong)
            need(source == target or not {*source} & {*target}, f"{self.where(number)} overlaps itself", Wrong)
            for cell in source:
                readers.setdefault(cell, []).append(number)
            for cell in target:
                writers[cell] = number
                readers.pop(cell, None)
            if not self.claims["data"]:
                continue
            columns = [sent.pop(self.sender[number])] if "receive" in parts else []
            columns += [[self.values[cell] for cell in target]] if "old" in parts else []
            columns += [[self.values[cell] for cell in source]] if "source" in parts else []
            need(all(min(column, default=0) >= 0 for column in columns), f"{self.where(number)} reads a chunk that holds nothing", Wrong)
            values = [self.add(*operands) if len(operands) > 1 else operands[0] for operands in zip(*columns, strict=True)]
            for cell, value in zip(target, values, strict=False):
                need(not self.readonly[cell], f"{self.where(number)} writes {self.name(cell)}", Wrong)
                self.values[cell] = value
            if "send" in parts:
                sent[number] = values


def check(document: Any) -> str:
    """Check a certificate, as JSON gives it, and say in a line what holds; ``Wrong`` or ``Unreadable`` otherwise."""
    need(type(document) is dict and document.get("format") == "simcoll-certificate", "this is no certificate of simcoll")
    need(document.get("version") == 1, "expected version 1 of the format")
    subject = document.get("subject")
    need(type(subject) is str and subject in SHAPES, "subject: expected 'schedule' or 'program'")
    read(document, "certificate", SHAPES[subject])
    return f"{document['name']}: {(Schedule if subject == 'schedule' else Program)(document).check()}"


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of JSON with these keys and values."""
    need(len(dict(pairs)) == len(pairs), f"a key occurs twice in an object: {reprlib.repr([key for key, _ in pairs])}")
    return dict(pairs)


def check_file(path: str) -> str:
    """Check a file, like ``check``."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            data = file.read(FILE_BYTES + 1)
        if data[:2] == b"\x1f\x8b":
            within(len(data), FILE_BYTES, "bytes")
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(FILE_BYTES + 1)
        within(len(data), FILE_BYTES, "bytes")
        within(data.count(b",") + 8 * (data.count(b"[") + data.count(b"{")), VALUES, "values")
        document = json.loads(data.decode(), object_pairs_hook=once, parse_int=lambda digits: int(digits[:21]))
    except RecursionError:
        raise Unreadable("nested too deeply") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from None
    return check(document)


def main(argv: list[str] | None = None) -> int:
    """Check the file that the command line names; the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1 or arguments[0].startswith("-"):
        asked = arguments in (["--help"], ["-h"])
        print(__doc__, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    try:
        status, answer = 0, f"right: {check_file(arguments[0])}"
    except Wrong as error:
        status, answer = 1, f"wrong: {error}"
    except Unreadable as error:
        status, answer = 2, f"unreadable: {error}"
    except KeyboardInterrupt:
        return 130
    line = f"{arguments[0]}: {answer}"
    print("".join(letter if " " <= letter <= "~" else ascii(letter)[1:-1] for letter in line))
    return status


if __name__ == "__main__":
    sys.exit(main())
