# fmt: off
"""Check a certificate: does a schedule, or a program for each rank, do what it claims? Needs nothing but Python 3.10 or newer.

Usage: simcoll-check FILE, or, with this one file copied anywhere, python simcoll_check.py FILE. The certificate is played once, exactly.
Exit status: 0 right; 1 wrong, with the first wrong place; 2 unreadable, or above the limits.
"""
import gzip, io, json, reprlib, sys, zlib
from array import array
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from typing import Any

# Limits, so that every file is answered in about a minute, with less than 1 GB of memory.
MAX_BYTES, MAX_LISTS = 48 << 20, 500_000  # of a file, unpacked: up to 15 bytes of memory for each, 250 for a list or object
MAX_RANKS, MAX_CELLS = 1 << 16, 1 << 23  # chunks in the memory of all ranks: 25 bytes each
MAX_MOVES, MAX_MOVES_BY_SYMMETRY, MAX_STEP = 6_000_000, 10_000_000, 1 << 20  # chunks moved: 5 us each; in one step, 600 bytes each
MAX_SUMS, MAX_PARTS = 2_000_000, 40_000_000  # different sums: 200 bytes each; parts of outputs that are counted: 0.5 us each
MAX_HEARD, MAX_INSTRUCTIONS = 1 << 31, 50_000  # one bit for each rank on each channel of each rank; for each pair of instructions

# The objects of the format. key:type, "?" for a key that may be absent, "*" for a list, "," for "or".
# n: a number from 0; p: from 1; i: any of 64 bits; t: text; b: true or false; 0: null.
RANGES = {"n": range(2**63), "p": range(1, 2**63), "i": range(-(2**63), 2**63)}
OBJECTS = {
    "schedule": "format:t version:p subject:t name:t collective:collective chunks:p channels?:p divisible?:b scratch?:n*,n** "
                "scratch_pieces?:0,n*,n** blocks:block* proof:proof claims:claims",
    "collective": "kind:t nranks:p root?:n pairs?:n** in_place?:b definition?:definition",
    "definition": "name:t inputs:n** outputs:n*** sizes?:n* order?:t", "proof": "kind:t rank?:n** lane?:n,n* place?:n*",
    "block": "steps:step* repeat?:n stride?:i base?:i modulus?:p order?:0,n*",
    "step": "src_rank:n* src_chunk:n,n* dst_rank:n,n* dst_chunk:n,n* count?:p,p* op?:t,t* channel?:n,n* via?:t,t* wire?:t,t*",
    "claims": "order:t steps:n transfers:n shared_chunks:b folds:b",
    "program": "format:t version:p subject:t name:t collective:0,collective chunks:p program:code claims:code_claims",
    "code": "nranks:p buffers:n* in_place:b fifo_depth:0,n protocol:t ranks:lane**",
    "lane": "channel:n instructions:instruction*", "code_claims": "data:b order:t least_depth:0,n steps:0 messages:n",
    "instruction": "op:t src?:0,n dst?:0,n count?:n recv_from?:0,n send_to?:0,n waits?:n**",
}
COLUMNS = {"src_rank": 0, "src_chunk": 0, "dst_rank": 0, "dst_chunk": 0, "count": 1, "op": "copy", "channel": 0}
LEVELS = ("any", "rank-consistent", "run-consistent", "position-independent")
UNCHECKED = {"via": "its paths are not checked", "wire": "its conversions on the way are not: outputs are right up to their rounding"}

# The collectives: slots of input and of output, number of blocks; for rank r and slot s, block of the input slot, block of the
# output slot, rank (sum: all) and slot of the input that the output slot must hold; ranks with input, and ranks that see output.
KINDS = {
    "broadcast":      "1 1 1   0 0       root 0    root all",
    "reduce":         "1 1 1   0 0       sum 0     all root",
    "all_reduce":     "1 1 1   0 0       sum 0     all all",
    "all_gather":     "1 n n   r s       s 0       all all",
    "reduce_scatter": "n 1 n   s r       sum r     all all",
    "gather":         "1 n n   r s       s 0       all root",
    "scatter":        "n 1 n   s r       root r    root all",
    "all_to_all":     "n n nn  rn+s sn+r s r       all all",
    "send_recv":      "1 1 n   r source  source 0  sources targets",
    "barrier":        "0 0 0   0 0       0 0       all all",
    "custom":         "0 0 0   0 0       0 0       all all",  # has a definition instead
}
# What an instruction of a program does with its source, its destination, and the messages that come in and go out:
# a>b writes a into b, a+b adds a to what b holds or to what is written there in the same instruction.
INSTRUCTIONS = {
    "nop": "", "send": "src>out", "recv": "in>dst", "copy": "src>dst", "reduce": "src+dst", "recv_copy_send": "in>dst in>out",
    "recv_reduce_send": "in>out src+out", "recv_reduce_copy": "in>dst src+dst", "recv_reduce_copy_send": "in>dst src+dst in>out src+out",
}

class Wrong(Exception): """Something that a certificate claims does not hold."""
class Unreadable(Exception): """A certificate that is not in the format, or is above a limit."""

def need(holds: bool, message: str) -> None:
    """Stop unless the format and the limits are kept."""
    if not holds: raise Unreadable(message)

def in_words(number: int, noun: str) -> str:
    """A number of things, in words."""
    return f"{number} {noun}{'s' * (number != 1)}"

def read(value: Any, where: str, shapes: str) -> None:
    """Refuse a value of another shape."""
    for one in shapes.split(","):
        number = type(value) is int and value in RANGES.get(one, ())
        text = one == "t" and type(value) is str and len(value) <= 200 and value.isprintable()
        if type(value) is dict and one in OBJECTS:
            keys = dict(pair.split(":") for pair in OBJECTS[one].split())
            need(all(key in value or key[-1] == "?" for key in keys), f"{where}: expected the keys {', '.join(keys)}")
            for key, entry in value.items():
                need(key in keys or f"{key}?" in keys, f"{where}: unknown key {reprlib.repr(key)}")
                read(entry, f"{where}.{key}", keys[key if key in keys else f"{key}?"])
        elif type(value) is list and one[-1] == "*" and (not value or (type(value[0]) is list) == (one[-2:] == "**")):
            many = one[:-1] in RANGES and set(map(type, value)) == {int}  # not one by one
            for place, entry in enumerate((min(value), max(value)) if many else value):
                read(entry, f"{where}[{'...' if many else place}]", one[:-1])
        elif not (number or text or (one == "b" and type(value) is bool) or (one == "0" and value is None)): continue
        return
    words = "n, i, p: number of 64 bits, p from 1; t: printable text; b: true or false; 0: null; *: list"
    raise Unreadable(f"{where}: expected {shapes} ({words}); got {reprlib.repr(value) if type(value) is str else type(value).__name__}")

def sort(waits: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    """An order in which everything comes after what it waits for; without one, a cycle."""
    try: return list(TopologicalSorter(waits).static_order()), []
    except CycleError as error: return [], error.args[1][:9]

class Machine:
    """The memory of all ranks. A cell is rank * size + chunk (chunks run through input, output, scratch) and holds a value.
    A value is a number * kinds + an input chunk. Numbers stand for sums: those below n for the contribution of that rank alone, and
    equal sums with equal brackets are equal. All contributions are of that chunk; of different ones if it is kinds - 1: never right.
    """

    def __init__(self, document: dict[str, Any], scratch: list[int], buffers: list[int] | None = None) -> None:
        c, chunks, n = document["collective"] or {"kind": "barrier", "nranks": len(scratch)}, document["chunks"], len(scratch)
        self.now, self.claims, self.chunks, self.kind, self.n = "certificate", document["claims"], chunks, c["kind"], n
        need(self.kind in KINDS and c["nranks"] == n, f"collective: expected {n} ranks and one of {', '.join(KINDS)}")
        self.definition = self.define(c) if self.kind == "custom" or "definition" in c else None
        self.title, numbers = (c["definition"]["name"], len(self.classes)) if self.definition else (self.kind, n)
        self.codes, self.root, pairs = KINDS[self.kind].split(), c.get("root", 0), c.get("pairs", [])
        good = self.root < n and (self.kind == "send_recv" or not pairs) and (not self.root or "root" in self.codes)
        good = good and all(len(pair) == 2 and max(pair) < n for pair in pairs)
        self.source = {target: source for source, target in pairs} if good else {}
        who = {"all": range(n), "root": [self.root], "sources": {*self.source.values()}, "targets": self.source}
        need(good and len(self.source) == len(who["sources"]) == len(pairs), f"collective: wrong root or pairs of {self.kind}")
        self.givers, self.seers, self.in_place = who[self.codes[7]], who[self.codes[8]], c.get("in_place", False)
        slots = [max(map(len, side)) for side in self.definition or ()] or [self.at(0, 0)[code] for code in self.codes[:2]]
        self.inputs, self.outputs = inputs, outputs = buffers or [side * chunks for side in slots]
        self.size, self.kinds, self.parts = inputs + outputs + max(scratch), (chunks if self.definition else inputs) + 1, 0
        need(n * self.size <= MAX_CELLS, f"above the limits: more than {MAX_CELLS} chunks of memory")
        self.home = array("i", range(n * self.size))  # of a cell with two addresses, the one in the larger buffer
        self.values = array("q", [-1]) * len(self.home)  # -1: nothing
        self.readonly = bytearray((b"\1" * inputs).ljust(self.size, b"\0")) * n
        self.operands: list[tuple[int, ...]] = [()] * numbers  # of each number
        self.sums: dict[tuple[int, ...], int] = {}  # the number of the sum of these operands
        for rank in self.givers:
            base, output = rank * self.size, inputs + (rank * chunks if outputs > chunks else 0)
            smaller, larger = (inputs, rank * chunks) if inputs > chunks else (0, output)
            shares = self.in_place and rank in self.seers and self.kind not in {"all_to_all", "send_recv", "barrier"}
            for cell in range(base, base + chunks if shares else base):
                self.home[cell + smaller], self.readonly[cell + larger] = cell + larger, 0
            if self.definition:
                held = (number * self.kinds + piece for number in self.definition[0][rank] for piece in range(chunks))
                for chunk, value in enumerate(held): self.values[base + chunk] = value
                continue
            for chunk in range(inputs): self.values[self.home[base + chunk]] = rank * self.kinds + chunk

    def define(self, c: dict[str, Any]) -> tuple[Any, Any]:
        """A custom collective: for each rank the contribution in every input slot, and the contributions that every output slot
        must hold, each as often as it is listed. Ranks may have different numbers of slots. Blocks of a size class have one size.
        """
        need(self.kind == "custom" and "definition" in c, "collective: a definition is for kind custom")
        record = c["definition"]
        held, outputs, self.order = record["inputs"], record["outputs"], record.get("order", "")
        numbers = {number for slots in held for number in slots}
        self.classes = classes = record.get("sizes") or [0] * len(numbers)
        good = len(held) == len(outputs) == self.n and len(classes) == len(numbers) > 0 and numbers == {*range(len(numbers))}
        good = good and any(outputs) and self.order in ("", *LEVELS[1:], "listed") and not c.get("in_place", False)
        good = good and all(listed and numbers.issuperset(listed) for slots in outputs for listed in slots)
        good = good and all(len({classes[number] for number in listed}) == 1 for slots in outputs for listed in slots)
        need(good, "collective: a wrong definition")
        return held, outputs

    def block(self, rank: int, side: int, slot: int) -> int:
        """The block of a slot of input (side 0) or output (1), its size class if custom; -1 for a slot that the rank does not have."""
        if not self.definition: return self.at(rank, slot)[self.codes[3 + side]]
        slots = self.definition[side][rank]
        return -1 if slot >= len(slots) else self.classes[slots[slot][0] if side else slots[slot]]

    def required(self, rank: int, slot: int) -> tuple[Any, int, Any]:
        """The numbers and the input slot that an output slot must hold; which sum that is, None if none."""
        if self.definition:
            listed = self.definition[1][rank][slot] if slot < len(self.definition[1][rank]) else []
            return listed, 0, tuple(sorted(listed)) if len(listed) > 1 else None
        source, start = (self.at(rank, slot)[code] for code in self.codes[5:7])
        return ([source], start, None) if source >= 0 else (range(self.n), start, 0)

    def at(self, r: int, s: int) -> dict[str, int]:
        """What the codes in the table of collectives mean for slot s of rank r; -1 for a sum over all ranks."""
        n, codes = self.n, {"0": 0, "1": 1, "root": self.root, "source": self.source.get(r, r), "sum": -1, "r": r, "s": s}
        return codes | {"n": n, "nn": n * n, "rn+s": r * n + s, "sn+r": s * n + r}

    def claim(self, holds: bool, message: str, *parts: Any) -> None:
        """Stop where we are now unless something holds."""
        if not holds: raise Wrong(f"{self.now}: {message.format(*parts)}")

    def add(self, *values: int, switch: bool = False) -> int:
        """The value of a sum: the same for operands in another order, not for other brackets, or if a switch adds."""
        key, chunks = tuple(sorted(value // self.kinds for value in values)), {value % self.kinds for value in values}
        number = self.sums.setdefault((-1,) * switch + key, len(self.operands))
        if number == len(self.operands):
            self.operands.append(key if len(key) > 1 else self.operands[key[0]] or key)  # a switch may add one operand to nothing
            need(len(self.sums) <= MAX_SUMS, f"above the limits: more than {MAX_SUMS} different sums")
        return number * self.kinds + (chunks.pop() if len(chunks) == 1 else self.kinds - 1)

    def play(self, moves: list[tuple[int, int, str, int]]) -> bool:
        """Read the first cells of moves, then write the second ones; whether several were added up in one cell."""
        values, size, groups, written = self.values, self.size, dict[int, list[Any]](), dict[int, int]()
        for move in moves:
            if values[move[0]] < 0: self.claim(False, "rank {} chunk {} is read, but holds nothing", *divmod(move[0], size))
            groups.setdefault(move[1], []).append(move)
        for cell, group in groups.items():
            added = sorted((move[0] // size, values[move[0]]) for move in group if move[2] == "reduce")
            others, operations = [values[move[0]] for move in group if move[2] != "reduce"], {move[2] for move in group}
            if len(group) > 1:
                fold = operations <= {"copy", "reduce"} and len(others) < 2 and len({rank for rank, _ in added}) == len(added)
                good = (fold or operations == {"switch_reduce"}) and len({move[3] for move in group}) == 1
                self.claim(good, "rank {} chunk {} is written twice", *divmod(cell, size))
            value = self.add(*others, switch=True) if "switch_reduce" in operations else (others or [values[cell]])[0]
            if value < 0: self.claim(False, "rank {} chunk {} is added to, but holds nothing", *divmod(cell, size))
            if self.readonly[cell]: self.claim(False, "rank {} chunk {} is an input, but written", *divmod(cell, size))
            for _, operand in added: value = self.add(value, operand)
            written[cell] = value
        for cell, value in written.items(): values[cell] = value
        return any(len(group) > 1 and group[0][2] != "switch_reduce" for group in groups.values())

    def finish(self, followed: Any = None) -> None:
        """Compare the outputs with the definition of the collective, and the order of additions with the claim."""
        level, sums, self.now = self.claims["order"], dict[Any, int](), "at the end"  # sums: by sum and input chunk
        adds = any(len(listed) > 1 for slots in self.definition[1] for listed in slots) if self.definition else "sum" in self.codes
        self.claim(level in (LEVELS if adds else [""]), "claims.order is no level of {}", self.title)
        least = self.order if self.definition and adds and self.order in LEVELS else level
        self.claim(least == "" or LEVELS.index(level) >= LEVELS.index(least), "claims.order is less than the definition requires")
        for rank, output in ((rank, output) for rank in sorted(self.seers) for output in range(self.outputs)):
            cell, (slot, piece) = self.home[rank * self.size + self.inputs + output], divmod(output, self.chunks)
            listed, start, which = self.required(rank, slot)
            if not listed: continue
            self.parts += len(listed) if self.definition else 0
            need(self.parts <= MAX_PARTS, f"above the limits: more than {MAX_PARTS} parts of outputs")
            (number, chunk), wanted = divmod(self.values[cell], self.kinds), start * self.chunks + piece
            if self.definition and self.order == "listed" and which:
                total, *others = (one * self.kinds + piece for one in listed)
                for one in others: total = self.add(total, one)
                self.claim(number == total // self.kinds, "rank {} output {} is not added in the listed order", rank, output)
            right = chunk == wanted and number == (listed[0] if which is None else sums.get((which, wanted)))
            if right or (followed and not followed[cell]): continue
            counts, parts, n = Counter[int](), [number] * (number >= 0), max(self.n, len(listed))
            counts.subtract(listed)
            for part in parts:  # grows meanwhile: n contributions are in n - 1 sums and alone in n more, which makes less than 3 n parts
                counts[part] += not self.operands[part]
                parts += self.operands[part] if len(parts) < 3 * n else ()
            self.parts += len(parts)
            need(self.parts <= MAX_PARTS, f"above the limits: more than {MAX_PARTS} parts of outputs")
            faults = [f"{count:+} of rank {part}" for part, count in counts.items() if count][:8] + ["..."] * (len(parts) >= 3 * n)
            holds = "nothing" if number < 0 else f"input chunk {chunk}" if chunk < self.inputs else "different input chunks"
            self.claim(chunk == wanted and not faults, "rank {} output {} has {} (expected {}), {}", rank, output, holds, wanted, faults)
            same = which is None or level in {"", "any"} or sums.setdefault((which, wanted), number) == number
            self.claim(same, "claims.order: rank {} output {} is added in another order than on another rank", rank, output)
        alike = level != LEVELS[3] or len({(which, number) for (which, _), number in sums.items()}) == len({which for which, _ in sums})
        self.claim(alike, "claims.order: chunks are added in different orders")

def unrolled(blocks: list[dict[str, Any]], limit: int, most: int) -> Any:
    """The rows of every step, with repeats played."""
    for block in blocks:
        base, modulus, order, steps = block.get("base", 0), block.get("modulus", 1), block.get("order"), []
        places = {chunk: place for place, chunk in enumerate(order or ())}
        need(order is None or (len(places) == len(order) and len(order) % modulus == base % modulus == 0), "an order lists whole windows")
        for step in block["steps"]:
            columns, length = [step.get(key, default) for key, default in COLUMNS.items()], len(step["src_rank"])
            texts = [step.get(key, "") for key in UNCHECKED]
            good = length > 0 and all(type(c) is not list or len(c) == length for c in columns + texts)
            need(good, "a step needs transfers, and equal columns")
            steps.append([column if type(column) is list else [column] * length for column in columns])
            limit -= sum(steps[-1][4]) * block.get("repeat", 1)
            need(sum(steps[-1][4]) <= most and limit >= 0, "above the limits: chunks moved in a step, or in all")
        for shift in (turn * block.get("stride", 0) for turn in range(block.get("repeat", 1) if steps else 0)):
            for columns in map(list, steps):
                for side in (1, 3):  # the chunks
                    column = columns[side] if order is None else [places.get(chunk, 2**64) for chunk in columns[side]]
                    if shift % modulus: column = [x + ((x - base) % modulus + shift) % modulus - (x - base) % modulus for x in column]
                    columns[side] = column if order is None else [order[x] if 0 <= x < len(order) else -1 for x in column]
                yield zip(*columns, strict=True)

def renumbered(machine: Machine, places: Any, proof: dict[str, Any]) -> tuple[Any, Any]:
    """By symmetry: the image of each cell, and whether to follow it. Of each orbit, one place and its image are followed."""
    n, size, total, inner = machine.n, machine.size, max(machine.inputs, machine.outputs), machine.inputs + machine.outputs
    ranks, lane, place = (proof.get(key, []) for key in ("rank", "lane", "place"))
    lane, follow, visited = lane if type(lane) is list and lane else [lane or 0] * total, bytearray(total), bytearray(total)
    good = sorted(place) == [*range(total)] and all(sorted(row) == [*range(n)] for row in ranks)
    machine.claim(good and len(lane) == total and max(lane) < len(ranks), "a renumbering is no permutation")
    for start, spot in enumerate(place):
        block = start // machine.chunks if machine.kind != "all_reduce" else -1
        good = lane[spot] == lane[start] and (block < 0 or spot // machine.chunks == ranks[lane[start]][block])
        machine.claim(good, "place {} is mapped to another lane, or its block is not", start)
        follow[start], follow[spot] = follow[start] or not visited[start], follow[spot] or not visited[start]
        while not visited[spot]: visited[spot], spot = 1, place[spot]
    buffers = [(0, machine.inputs)] * machine.inputs + [(machine.inputs, inner)] * machine.outputs + [(inner, size)] * (size - inner)
    image = array("i", (ranks[lane[spot]][cell // size] * size + first + place[spot] % (end - first)
                        for cell, spot in enumerate(places) for first, end in [buffers[cell % size]]))
    return image, bytearray(follow[spot] for spot in places)

def check_schedule(document: dict[str, Any]) -> str:
    """Check a schedule step by step."""
    proof, claims, chunks, n = document["proof"], document["claims"], document["chunks"], document["collective"]["nranks"]
    channels, symmetric = document.get("channels", 1), proof["kind"] == "by symmetry"
    need((symmetric or proof["kind"] == "full") and n <= MAX_RANKS, f"expected up to {MAX_RANKS} ranks, full or by symmetry")
    # The place of a cell is block * chunks + piece. Cells of one place have one size, whatever the sizes of the blocks.
    scratch, pieces = ([slots] * n if not slots or type(slots[0]) is int else slots
                       for slots in (document.get("scratch", []), document.get("scratch_pieces")))
    good = len(scratch) == len(pieces) == n and all(b is None or len(a) == len(b) for a, b in zip(scratch, pieces, strict=True))
    need(good, "scratch: expected one list for all ranks, or one for each; scratch_pieces alike")
    machine = Machine(document, [len(slots) * (chunks if b is None else 1) for slots, b in zip(scratch, pieces, strict=True)])
    places, kind, home, size, sides = array("q"), machine.kind, machine.home, machine.size, (machine.inputs, machine.outputs)
    for rank, (slots, single) in enumerate(zip(scratch, pieces, strict=True)):
        blocks = max(machine.classes) + 2 if machine.definition else machine.at(0, 0)[machine.codes[2]]
        need(max(slots, default=-1) < blocks and max(single or [-1]) < chunks, "scratch: no such block or piece")
        starts = [machine.block(rank, k, slot) * chunks for k in (0, 1) for slot in range(sides[k] // chunks)]
        starts += [block * chunks for block in slots] if single is None else []
        places.extend(start + piece if start >= 0 else -1 for start in starts for piece in range(chunks))
        places.extend(block * chunks + piece for block, piece in zip(slots, single or (), strict=False))
        places.extend([-1] * (size * (rank + 1) - len(places)))
    image, follow, buffer = dict[int, int](), bytearray(), bytes(sides[0]) + b"o" * sides[1] + b"s" * (size - sum(sides))
    if symmetric:
        good = scratch == [[]] * n or (kind == "reduce_scatter" and scratch == [[*range(n)]] * n and pieces[0] is None)
        good = good and (kind in {"all_reduce", "all_gather"} or (kind == "reduce_scatter" and not machine.in_place))
        need(good, f"proof: no {kind} with such scratch, or in place, is checked by symmetry")
        image, follow = renumbered(machine, places, proof)
    lanes = channels + 1  # barriers: ranks that a rank has heard of, as bits, on each channel, and then on any
    need(kind != "barrier" or n * n * lanes <= MAX_HEARD, f"above the limits: {n} * {n} * {lanes} bits for a barrier")
    heard = [1 << rank for rank in range(n) for _ in range(lanes)] if kind == "barrier" else []
    most = 2 if symmetric else 3 if claims["order"] in LEVELS[2:] else 4  # a switch adds in any order
    operations = ["sync"] if heard else ["copy", "reduce", "multicast", "switch_reduce"][:most]
    step, transfers, touched, keeps = -1, 0, array("q", [-1]) * len(places), symmetric or not document.get("divisible", False)
    for step, rows in enumerate(unrolled(document["blocks"], *([MAX_MOVES_BY_SYMMETRY] * 2 if symmetric else [MAX_MOVES, MAX_STEP]))):
        kept, news, machine.now, waits = [], [], f"step {step}", defaultdict[Any, list[Any]](list)
        for a, chunk, b, target, count, op, channel in rows:
            good, source, cell = a < n and b < n and channel < channels and op in operations, a * size + chunk, b * size + target
            if heard and good:
                news += [(b * lanes + lane, heard[a * lanes + channel]) for lane in (channel, channels)]
                continue
            last = count - 1  # ranges lie inside one buffer, and exist on their rank
            good = good and 0 <= chunk < size - last and buffer[chunk] == buffer[chunk + last] and places[source + last] >= 0
            good = good and 0 <= target < size - last and buffer[target] == buffer[target + last] and places[cell + last] >= 0
            if not good or (keeps and places[source : source + count] != places[cell : cell + count]):
                fault = "not the same piece of a block" if good else f"no such rank, chunks, channel {channel}, or operation here"
                machine.claim(False, "{} rank {} chunk {} to rank {} chunk {} x {}: {}", op, a, chunk, b, target, count, fault)
            if op != "copy" or not machine.in_place or home[source] != home[cell]: kept.append((source, cell, count, op, channel))
        for lane, arrivals in news: heard[lane] |= arrivals
        transfers += len(kept) + len(news) // 2
        writers = {home[d + k]: c for _, d, count, _, c in kept for k in range(count)} if channels > 1 else {}
        for row, (source, cell, count, _, channel) in enumerate(kept) if channels > 1 else ():
            for s, d in zip(home[source : source + count], home[cell : cell + count]):
                shared = [(*divmod(k, size), channel) for k in (s, d) if touched[k] not in (-1, channel)]
                machine.claim(claims["shared_chunks"] or not shared, "claims.shared_chunks: (rank, chunk, channel) {}", shared[:1])
                touched[s] = touched[d] = channel
                if not claims["shared_chunks"]: continue
                waits["transfer", row].append(d)  # what overwrites a cell waits for what other channels read there
                waits[s] += [("transfer", row)] if writers.get(s, channel) != channel else []
        machine.claim(not (cycle := sort(waits)[1]), "transfers wait for each other in a cycle: {}", cycle)
        if image:
            found = defaultdict[int, list[Any]](list)  # transfers by place, moved to place 0
            for source, cell, count, op, channel in kept:
                one = (source - places[source], cell - places[cell], op, channel)
                for place in places[source : source + count]: found[place].append(one)
            for place, ones in found.items():
                there, mapped = proof["place"][place], {(image[home[s + place]], image[home[d + place]], op, c) for s, d, op, c in ones}
                same = mapped == {(home[s + there], home[d + there], op, c) for s, d, op, c in found.get(there, ())}
                machine.claim(same and len(mapped) == len(ones), "the renumbering does not map place {} onto place {}", place, there)
            kept = [(s + place, d + place, 1, op, c) for place, ones in found.items() for s, d, op, c in ones if follow[s + place]]
        folds = machine.play([(home[s + k], home[d + k], op, c) for s, d, count, op, c in kept for k in range(count)])
        machine.claim(not folds or (claims["folds"] and not symmetric), "claims.folds: a chunk is written more than once")
    machine.claim((claims["steps"], claims["transfers"]) == (step + 1, transfers), "claims: {} steps, {} transfers", step + 1, transfers)
    early = [rank for rank, ranks in enumerate(heard[channels::lanes]) if ranks.bit_count() < n]
    machine.claim(not early, "rank {} may leave before every rank has entered", early[:1])
    machine.finish(follow)
    used = [key for key in UNCHECKED if any(any(step.get(key, "")) for block in document["blocks"] for step in block["steps"])]
    # Of what is converted, ranks may have other bits though they add in one order.
    machine.claim("wire" not in used or claims["order"] in ("", "any"), "claims.order: values that are converted have no order")
    unchecked = "".join(f"; {UNCHECKED[key]}" for key in used)
    did = f"{in_words(transfers, 'transfer')} in {in_words(step + 1, 'step')}"
    return f"{machine.title} of {in_words(n, 'rank')}, {did}, {proof['kind']}{unchecked}"

def check_program(document: dict[str, Any]) -> str:
    """Check a program: messages, deadlock, races, data."""
    program, claims, known = document["program"], document["claims"], document["collective"] is not None
    buffers, n, own, least = program["buffers"], program["nranks"], program["fifo_depth"], claims["least_depth"]
    need(len(program["ranks"]) == n <= MAX_RANKS and len(buffers) == 3, "program: expected its ranks and 3 buffers")
    machine = Machine(document, [buffers[2]] * n, None if known else buffers[:2])
    same = not known or (buffers[:2] == [machine.inputs, machine.outputs] and program["in_place"] == machine.in_place)
    machine.claim(same and claims["data"] == known and (known or not claims["order"]), "buffers or claims do not fit the collective")
    code = {(rank, number, place): (lane["channel"], one) for rank, lanes in enumerate(program["ranks"])
            for number, lane in enumerate(lanes) for place, one in enumerate(lane["instructions"])}
    counts = [one.get("count", 1) for _, one in code.values()]
    need(len(code) <= MAX_INSTRUCTIONS and sum(counts) <= MAX_MOVES and max([0, *counts]) <= MAX_STEP // 4, "above the limits: the code")
    before, outbox, sender, wires = (dict[Any, Any]() for _ in range(4))  # wires: sends and receives of connections
    for key, (channel, one) in code.items():
        machine.now, does = f"(rank, lane, instruction) {key}", INSTRUCTIONS.get(one["op"], "?")
        before[key] = [(key[0], *wait) for wait in one.get("waits", [])] + [(*key[:2], key[2] - 1)] * (key[2] > 0)
        machine.claim(does != "?" and all(other in code for other in before[key]), "no such instruction, or wait")
        outbox[key] = len(machine.values)  # cells for the data that it sends
        machine.values.extend([-1] * one.get("count", 1))
        for side, name, peer in ((0, "out", one.get("send_to")), (1, "in", one.get("recv_from"))):
            if name not in does: continue
            machine.claim(peer not in (None, key[0]), "a wrong peer for data {}", name)
            wires.setdefault((peer, key[0], channel) if side else (key[0], peer, channel), ([], []))[side].append(key)
    machine.readonly.extend(bytes(len(machine.values) - len(machine.readonly)))
    for wire, ends in wires.items():
        machine.now = f"(sender, receiver, channel) {wire}"
        sends, receives = ([code[key][1].get("count", 1) for key in end] for end in ends)
        machine.claim(sends == receives and all(len({key[:2] for key in end}) == 1 for end in ends), "sends and receives, or lanes, differ")
        sender |= zip(ends[1], ends[0], strict=True)
    machine.claim(len(sender) == claims["messages"], "claims.messages: there are {}", len(sender))

    def order(depth: int | None, legal: Any) -> tuple[list[Any], list[Any]]:
        event: dict[Any, Any] = {}  # at depth 0, both ends of a message are one event, and so is a chain of messages
        for key in legal: event[key] = event[sender[key]] if depth == 0 and key in sender else key
        waits: dict[Any, list[Any]] = {event[key]: [] for key in legal}
        for key in legal: waits[event[key]] += [event[other] for other in before[key]]
        for sends, receives in wires.values() if depth != 0 else ():
            for later, sooner in [*zip(receives, sends), *zip(sends[depth:] if depth else (), receives)]: waits[later].append(sooner)
        return sort(waits)

    legal, cycle = order(None, code)
    cycle = cycle or order(own, legal)[1] or order(least, legal)[1]
    machine.claim(not cycle, "deadlock at FIFO depth {} or claims.least_depth {}: a cycle of {}", own, least, cycle)
    less = [depth for depth in (0, 1, 2, 8, own) if depth is not None and (least is None or depth < least)]
    machine.claim(not less or order(max(less), legal)[1] != [], "claims.least_depth: {} is enough", less)
    turns, done, writers, readers, home = dict[Any, int](), list[int](), dict[int, int](), dict[int, Any](), machine.home
    for turn, key in enumerate(legal):
        machine.now, one, turns[key], earlier, moves = f"(rank, lane, instruction) {key}", code[key][1], turn, 1 << turn, []
        does, count, base = INSTRUCTIONS[one["op"]], one.get("count", 1), key[0] * machine.size
        chunks = {name: one.get(name) for name in ("src", "dst") if name in does and count}
        machine.claim(all(at is not None and at + count <= machine.size for at in chunks.values()), "no such {} chunks: {}", count, chunks)
        cells = {"in": outbox.get(sender.get(key)), "out": outbox[key]} | {name: base + chunks[name] for name in chunks}
        machine.claim(len(chunks) < 2 or abs(cells["src"] - cells["dst"]) not in range(1, count), "src and dst overlap")
        for part in does.split() if count else ():
            source, target = (cells[name] for name in part.replace("+", ">").split(">"))
            moves += [(source + k, target + k, "reduce" if "+" in part else "copy", 0) for k in range(count)]
        for other in before[key] + ([sender[key]] if key in sender else []): earlier |= done[turns[other]]
        done.append(earlier)  # what is always earlier, as bits
        reads, writes = {move[0] for move in moves}, {move[1] for move in moves}
        others = [(k, other) for k in writes for other in readers.pop(k, ())] + [(k, writers.get(k, turn)) for k in reads | writes]
        races = [(*divmod(cell, machine.size), legal[other]) for cell, other in others if not earlier >> other & 1]
        machine.claim(not races, "a race: (rank, chunk, other instruction) {}", races[:1])
        machine.claim(all(cell >= len(home) or home[cell] == cell for cell in reads | writes), "an alias is addressed")
        for cell in reads: readers.setdefault(cell, []).append(turn)
        writers |= dict.fromkeys(writes, turn)
        if known: machine.play(moves)
    if known: machine.finish()
    title = machine.title if known else "unknown collective"
    return f"program of {in_words(n, 'rank')}, {title}, {in_words(len(sender), 'message')}"

def check(data: Any) -> str:
    """Check a certificate: a path, the bytes of a file, or what JSON makes of them. A line that says what holds."""
    try:
        if isinstance(data, str):
            with open(data, "rb") as file: data = file.read(MAX_BYTES + 1)
        if isinstance(data, bytes):
            if data[:2] == b"\x1f\x8b": data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MAX_BYTES + 1)
            lists = data.count(b"[") + data.count(b"{")
            need(len(data) <= MAX_BYTES and lists <= MAX_LISTS, f"above the limits: {len(data)} bytes, {lists} lists or objects")
            hook = lambda pairs: dict(pairs) | ({} if len(dict(pairs)) == len(pairs) else {"a key that occurs twice": 0})
            data = json.loads(data.decode(), object_pairs_hook=hook, parse_int=lambda digits: int(digits[:21]))
    except (EOFError, OSError, RecursionError, ValueError, zlib.error) as error:
        raise Unreadable("too deep" if type(error) is RecursionError else str(getattr(error, "strerror", "") or error)) from None
    good = type(data) is dict and data.get("format") == "simcoll-certificate" and data.get("version") == 1
    need(good and data.get("subject") in ("schedule", "program"), "expected a certificate, version 1, of a schedule or program")
    read(data, "certificate", data["subject"])
    proved = check_schedule(data) if data["subject"] == "schedule" else check_program(data)
    return f"{data['name']}: {proved}, order of reductions: {data['claims']['order'] or 'none'}"

def main(argv: list[str] | None = None) -> int:
    """Check the file that a command line names; the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments in (["--help"], ["-h"]) else 2
    try: status, answer = 0, f"right: {check(arguments[0])}"
    except Wrong as error: status, answer = 1, f"wrong: {error}"
    except Unreadable as error: status, answer = 2, f"unreadable: {error}"
    except KeyboardInterrupt: return 130
    print("".join(letter if " " <= letter <= "~" else ascii(letter)[1:-1] for letter in f"{arguments[0]}: {answer}"))
    return status

if __name__ == "__main__": sys.exit(main())
