"""A judge of certificates for the tests: exact and slow, written from the description of the file,
apart from prover and checker.

Contributions are counted in dictionaries, expressions are nested tuples, and what happens before
what is a set for each instruction.
"""

from __future__ import annotations

from collections import Counter
from graphlib import CycleError, TopologicalSorter

OPS = ("copy", "reduce", "sync", "multicast", "switch_reduce")
LEVELS = ("any", "rank-consistent", "run-consistent", "position-independent")
REDUCES = {"reduce", "all_reduce", "reduce_scatter"}
IN, OUT, SCRATCH = range(3)


class Wrong(Exception):  # noqa: N818 - a verdict, not an error
    """What a certificate says does not hold."""


def judge(record) -> str:
    """Why a certificate is wrong; empty if everything that it claims holds."""
    try:
        check_claims(record)
    except Wrong as reason:
        return str(reason)
    return ""


def check_claims(record) -> None:
    claims, program = record["claims"], record["subject"] == "program"
    facts = of_program(record) if program else of_schedule(record)
    for name, fact in facts.items():
        claimed = claims[name]
        if name == "order":
            fits = (claimed == "") == (fact == "") and (
                not claimed or LEVELS.index(claimed) <= LEVELS.index(fact)
            )
        else:  # sharing and folding may be claimed where there is none: more caution, not less
            fits = claimed == fact or (name in {"shared_chunks", "folds"} and claimed)
        require(fits, f"{name} is claimed to be {claimed!r}; it is {fact!r}")


def require(holds, reason) -> None:
    if not holds:
        raise Wrong(reason)


class Room:
    """The memory of every rank of a collective: which cell an address is, what it may hold, and
    what it must hold at the end.
    """

    def __init__(self, collective, chunks) -> None:
        self.kind, self.n = collective["kind"], collective["nranks"]
        require(self.n >= 1, "no ranks")
        require(chunks >= 1, "no chunks")
        n, self.chunks = self.n, chunks
        self.in_place = collective.get("in_place", False)
        rooted = self.kind in ("broadcast", "reduce", "gather", "scatter")
        self.root = collective.get("root", 0 if rooted else None)
        require(rooted == (self.root is not None) and (not rooted or 0 <= self.root < n), "root")
        pairs = collective.get("pairs", [])
        require(not pairs or self.kind == "send_recv", "pairs")
        require(all(0 <= end < n for pair in pairs for end in pair), "a pair of no ranks")
        for end in (0, 1):
            require(len({pair[end] for pair in pairs}) == len(pairs), "a rank in two pairs")
        self.source_of = {dst: src for src, dst in pairs}
        few = {
            "broadcast": (1, 1),
            "reduce": (1, 1),
            "all_reduce": (1, 1),
            "send_recv": (1, 1),
            "barrier": (0, 0),
        }
        wide = {
            "all_gather": (1, n),
            "gather": (1, n),
            "reduce_scatter": (n, 1),
            "scatter": (n, 1),
            "all_to_all": (n, n),
        }
        self.inputs, self.outputs = (few | wide)[self.kind]
        self.output_base, self.scratch_base = (
            self.inputs * chunks,
            (self.inputs + self.outputs) * chunks,
        )

    def given(self, rank) -> bool:
        """Whether a rank has input."""
        if self.kind in ("broadcast", "scatter"):
            return rank == self.root
        return self.kind != "send_recv" or rank in self.source_of.values()

    def seen(self, rank) -> bool:
        """Whether the caller sees a rank's output."""
        if self.kind in ("reduce", "gather"):
            return rank == self.root
        return self.kind != "send_recv" or rank in self.source_of

    def wanted(self, rank, slot, piece):
        """The contributions that an output must hold: ranks and input chunks."""
        chunk = piece
        match self.kind:
            case "reduce" | "all_reduce":
                ranks = range(self.n)
            case "reduce_scatter":
                ranks, chunk = range(self.n), rank * self.chunks + piece
            case "broadcast":
                ranks = [self.root]
            case "scatter":
                ranks, chunk = [self.root], rank * self.chunks + piece
            case "all_gather" | "gather":
                ranks = [slot]
            case "all_to_all":
                ranks, chunk = [slot], rank * self.chunks + piece
            case "send_recv":
                ranks = [self.source_of[rank]]
        return Counter((source, chunk) for source in ranks)

    def block(self, rank, where, slot):
        """The block of an input or output slot."""
        n = self.n
        match self.kind, where:
            case "all_to_all", _:
                return rank * n + slot if where == IN else slot * n + rank
            case "send_recv", _:
                return rank if where == IN else self.source_of.get(rank, rank)
            case ("all_gather" | "gather", _):
                return rank if where == IN else slot
            case ("reduce_scatter" | "scatter", _):
                return slot if where == IN else rank
        return 0

    def shared(self, rank) -> bool:
        """Whether input and output of a rank overlap."""
        return (
            self.in_place
            and self.kind not in ("all_to_all", "send_recv", "barrier")
            and self.given(rank)
            and self.seen(rank)
        )

    def cell(self, rank, chunk):
        """The one name of an address."""
        if self.shared(rank):
            if self.inputs > self.outputs and self.output_base <= chunk < self.scratch_base:
                return rank, rank * self.chunks + chunk - self.output_base
            if self.inputs == self.outputs and chunk < self.output_base:
                return rank, chunk + self.output_base
            if self.inputs < self.outputs and chunk < self.output_base:
                return rank, self.output_base + rank * self.chunks + chunk
        return rank, chunk

    def writable(self, cell) -> bool:
        rank, chunk = cell
        if chunk >= self.output_base:
            return True
        return self.shared(rank) and self.inputs > self.outputs and chunk // self.chunks == rank

    def start(self):
        """The contributions and the expression in every cell that holds input."""
        return {
            self.cell(rank, chunk): (Counter({(rank, chunk): 1}), rank)
            for rank in range(self.n)
            if self.given(rank)
            for chunk in range(self.output_base)
        }

    def check_outputs(self, memory, *, switched):
        """Compare with the definition; the level of the order."""
        trees = {}
        for rank in range(self.n):
            for at in range(self.outputs * self.chunks) if self.seen(rank) else ():
                slot, piece = divmod(at, self.chunks)
                counts, tree = memory.get(self.cell(rank, self.output_base + at), (None, None))
                wanted = self.wanted(rank, slot, piece)
                require(
                    counts == wanted, f"output {at} of rank {rank} holds {counts}, not {wanted}"
                )
                trees.setdefault((rank, at) if self.kind == "reduce_scatter" else at, set()).add(
                    tree
                )
        if self.kind not in REDUCES:
            return ""
        if any(len(each) > 1 for each in trees.values()):
            return LEVELS[0]
        if switched:
            return LEVELS[1]
        return LEVELS[3] if len(set().union(*trees.values())) == 1 else LEVELS[2]


class Trees:
    """Names for expressions: equal ones, up to the order of operands, have equal names."""

    def __init__(self) -> None:
        self.names = {}

    def of(self, how, operands):
        return self.names.setdefault((how, *sorted(operands, key=repr)), f"#{len(self.names)}")

    def reduced(self, old, new):
        return old[0] + new[0], self.of("+", (old[1], new[1]))

    def switched(self, values):
        total = Counter()
        for counts, _ in values:
            total += counts
        return total, self.of("switch", [tree for _, tree in values])


def columns(step):
    length = len(step["src_rank"])
    given = {"count": 1, "op": "copy", "channel": 0} | step
    names = ("src_rank", "src_chunk", "dst_rank", "dst_chunk", "count", "op", "channel")
    full = [
        given[name] if isinstance(given[name], list) else [given[name]] * length for name in names
    ]
    require(all(len(column) == length for column in full), "columns of unequal length")
    require(length > 0, "a step without transfers")
    return list(zip(*full, strict=True))


def unrolled(record):
    """The rows of every step."""
    for block in record["blocks"]:
        steps = [columns(step) for step in block["steps"]]
        windows = Windows(block)
        for turn in range(block.get("repeat", 1)):
            for step in steps:
                yield [
                    (src, windows.shifted(sc, turn), dst, windows.shifted(dc, turn), *rest)
                    for src, sc, dst, dc, *rest in step
                ]


class Windows:
    """The shifts of a repeat."""

    def __init__(self, block) -> None:
        self.stride, self.base = block.get("stride", 0), block.get("base", 0)
        self.modulus, self.order = block.get("modulus", 1), block.get("order")
        require(block.get("repeat", 1) >= 0 and self.modulus >= 1, "repeat or modulus")
        if self.order is not None:
            require(len(set(self.order)) == len(self.order) > 0 <= min(self.order), "order")
            require(
                len(self.order) % self.modulus == 0 == self.base % self.modulus, "windows of order"
            )

    def shifted(self, chunk, turn):
        if self.order is not None:
            require(chunk in self.order, f"chunk {chunk} is not in order")
            chunk = self.order.index(chunk)
        place = (chunk - self.base) % self.modulus
        moved = chunk - place + (place + turn * self.stride) % self.modulus
        return moved if self.order is None else self.order[moved]


def of_schedule(record):
    """The facts of a schedule, or what is wrong with it."""
    room = Room(record["collective"], record["chunks"])
    sizes = Sizes(record, room)
    channels, n = record.get("channels", 1), room.n
    require(channels >= 1, "no channels")
    memory, trees = room.start(), Trees()
    touched, facts = (
        {},
        {"steps": 0, "transfers": 0, "shared_chunks": False, "folds": False, "switched": False},
    )
    heard = {(rank, channel): {rank} for rank in range(n) for channel in range(channels)}
    for rows in unrolled(record):
        facts["steps"] += 1
        for src, _, dst, _, _, op, channel in rows:
            require(
                0 <= src < n and 0 <= dst < n and 0 <= channel < channels and op in OPS,
                "no such rank, channel or op",
            )
            require((op == "sync") == (room.kind == "barrier"), f"{op} in {room.kind}")
        if room.kind == "barrier":
            news = [
                ((dst, channel), set(heard[src, channel])) for src, _, dst, _, _, _, channel in rows
            ]
            for key, ranks in news:
                heard[key] |= ranks
            facts["transfers"] += len(rows)
        else:
            play_step(record, room, sizes, rows, memory, trees, touched, facts)
    if room.kind == "barrier":
        for rank in range(n):
            require(
                set().union(*(heard[rank, channel] for channel in range(channels)))
                == set(range(n)),
                "leaves early",
            )
        facts["order"] = ""
    else:
        facts["order"] = room.check_outputs(memory, switched=facts["switched"])
        if any(step.get("wire") for block in record["blocks"] for step in block["steps"]):
            facts["order"] = facts["order"] and "any"  # bits depend on who converted what
    del facts["switched"]
    return facts


class Sizes:
    """Buffers of a schedule, and the size class of every chunk."""

    def __init__(self, record, room) -> None:
        n, self.room = room.n, room
        scratch, pieces = record.get("scratch", []), record.get("scratch_pieces")
        self.scratch = scratch if scratch and isinstance(scratch[0], list) else [scratch] * n
        require(
            len(self.scratch) == n and len({len(row) for row in self.scratch}) == 1,
            "rows of scratch",
        )
        blocks = {
            "all_to_all": n * n,
            "broadcast": 1,
            "reduce": 1,
            "all_reduce": 1,
            "barrier": 1,
        }.get(room.kind, n)
        require(
            all(0 <= block < blocks for row in self.scratch for block in row), "a block of scratch"
        )
        self.pieces = None
        if pieces is not None:
            self.pieces = pieces if pieces and isinstance(pieces[0], list) else [pieces] * n
            require(
                [len(row) for row in self.pieces] == [len(row) for row in self.scratch],
                "rows of pieces",
            )
            require(
                all(0 <= piece < room.chunks for row in self.pieces for piece in row),
                "a piece of scratch",
            )
        each = room.chunks if self.pieces is None else 1
        self.bounds = (
            0,
            room.output_base,
            room.scratch_base,
            room.scratch_base + each * len(self.scratch[0]),
        )

    def buffer(self, chunk):
        return next(
            (which for which in range(3) if self.bounds[which] <= chunk < self.bounds[which + 1]),
            None,
        )

    def size_class(self, rank, chunk):
        where = self.buffer(chunk)
        at = chunk - self.bounds[where]
        if where == SCRATCH and self.pieces is not None:
            return self.scratch[rank][at], self.pieces[rank][at]
        slot, piece = divmod(at, self.room.chunks)
        return (
            self.scratch[rank][slot] if where == SCRATCH else self.room.block(rank, where, slot)
        ), piece


def play_step(record, room, sizes, rows, memory, trees, touched, facts) -> None:
    """One step: check its rules, read everything, write everything."""
    moves, kept = [], []
    for src, sc, dst, dc, count, op, channel in rows:
        require(count >= 1, "count")
        for chunk in (sc, dc):
            where = sizes.buffer(chunk)
            require(
                where is not None and chunk + count <= sizes.bounds[where + 1],
                f"chunk {chunk} leaves its buffer",
            )
        if not record.get("divisible", False):
            for k in range(count):
                require(
                    sizes.size_class(src, sc + k) == sizes.size_class(dst, dc + k),
                    "chunks of different size",
                )
        ends = [(room.cell(src, sc + k), room.cell(dst, dc + k)) for k in range(count)]
        if room.in_place and op == "copy" and ends[0][0] == ends[0][1]:
            continue
        kept.append((channel, op, ends))
        moves += [(len(kept) - 1, src, *pair, op, channel) for pair in ends]
    facts["transfers"] += len(kept)
    writes = {}
    for move in moves:
        _, _, read, written, _, channel = move
        require(room.writable(written), f"{written} is read-only")
        require(read in memory, f"{read} is read but holds nothing")
        writes.setdefault(written, []).append(move)
        for cell in (read, written):
            if touched.setdefault(cell, channel) != channel:
                facts["shared_chunks"] = True
    values = {}
    for cell, into in writes.items():
        values[cell] = written_value(cell, into, memory, trees, facts)
    check_orderable(kept)
    memory.update(values)


def written_value(cell, into, memory, trees, facts):
    """What several transfers of a step leave in a cell."""
    ops = [op for *_, op, _ in into]
    require(len({channel for *_, channel in into}) == 1, f"{cell} is written on two channels")
    if "switch_reduce" in ops:
        require(set(ops) == {"switch_reduce"}, f"{cell} is written by a switch and beside it")
        facts["switched"] = True
        return trees.switched([memory[read] for _, _, read, *_ in into])
    adds = sorted((src, read) for _, src, read, _, op, _ in into if op == "reduce")
    others = [move for move in into if move[4] != "reduce"]
    require(len(others) <= 1, f"{cell} is written twice")
    require(
        len({src for src, _ in adds}) == len(adds),
        f"a fold into {cell} takes two operands of a rank",
    )
    if adds and others:
        require(others[0][4] == "copy", f"{cell} is written twice")
    if others:
        value = memory[others[0][2]]
    else:
        require(cell in memory, f"{cell} is reduced into but holds nothing")
        value = memory[cell]
    facts["folds"] |= len(into) > 1
    for _, read in adds:
        value = trees.reduced(value, memory[read])
    return value


def check_orderable(kept) -> None:
    """No cycle of transfers of different channels that overwrite what the next one reads."""
    reads = {}
    for number, (channel, op, ends) in enumerate(kept):
        for read, written in ends:
            reads.setdefault(read, set()).add((number, channel))
            if op == "reduce":
                reads.setdefault(written, set()).add((number, channel))
    waits = {
        number: {
            other
            for _, written in ends
            for other, beside in reads.get(written, ())
            if beside != channel
        }
        for number, (channel, _, ends) in enumerate(kept)
    }
    try:
        TopologicalSorter(waits).prepare()
    except CycleError:
        raise Wrong("channels overwrite what each other read, in a cycle") from None


RECEIVES = {
    "recv",
    "recv_copy_send",
    "recv_reduce_send",
    "recv_reduce_copy",
    "recv_reduce_copy_send",
}
SENDS = {"send", "recv_copy_send", "recv_reduce_send", "recv_reduce_copy_send"}
READS = {"send", "recv_reduce_send", "recv_reduce_copy", "recv_reduce_copy_send", "copy", "reduce"}
WRITES = {"recv", "recv_copy_send", "recv_reduce_copy", "recv_reduce_copy_send", "copy", "reduce"}


def of_program(record):
    """The facts of a program, or what is wrong with it."""
    program, collective = record["program"], record["collective"]
    n, size = program["nranks"], sum(program["buffers"])
    require(
        n >= 1 and len(program["ranks"]) == n and min(program["buffers"]) >= 0, "ranks or buffers"
    )
    require(collective is None or collective["nranks"] == n, "nranks")
    depth = program["fifo_depth"]
    require(depth is None or depth >= 0, "FIFO depth")
    each, before = instructions_of(program, n, size)
    matched = matches(program, each)
    require(completes(each, before, matched, depth), f"deadlock at FIFO depth {depth}")
    order = list(TopologicalSorter(happens(before, matched)).static_order())
    check_races(each, order, happens(before, matched))
    check_least(
        record["claims"]["least_depth"], depth, lambda at: completes(each, before, matched, at)
    )
    facts = {"messages": len(matched), "steps": None, "data": collective is not None, "order": ""}
    if collective is not None:
        facts["order"] = data_of(record, each, order, {recv: send for send, recv, *_ in matched})
    return facts


def check_least(claimed, own, runs) -> None:
    """The program runs at the claimed depth, and at no lesser one of those that count."""
    tried = {0, 1, 2, 8, own} - {None}
    require(runs(claimed), f"least_depth is claimed to be {claimed}; it does not run at that")
    for depth in tried:
        require(
            (claimed is not None and depth >= claimed) or not runs(depth),
            f"least_depth is claimed to be {claimed}; {depth} does",
        )


def instructions_of(program, n, size):
    """Every instruction by (rank, lane, position), and those that each waits for in its rank."""
    each, before = {}, {}
    for rank, lanes in enumerate(program["ranks"]):
        for number, lane in enumerate(lanes):
            for position, given in enumerate(lane["instructions"]):
                key, op = (rank, number, position), given["op"]
                count = 0 if op == "nop" else given.get("count", 1)
                require(op == "nop" or op in RECEIVES | SENDS | READS, f"no operation {op}")
                require(count >= 0, "count")
                for uses, end in ((RECEIVES, "recv_from"), (SENDS, "send_to")):
                    if op in uses:
                        require(
                            0 <= given.get(end, -1) < n and given[end] != rank,
                            f"{end} no other rank",
                        )
                for uses, end in ((READS, "src"), (WRITES, "dst")):
                    if op in uses and count:
                        require(0 <= given.get(end, -1) <= size - count, f"{end} of no chunk")
                each[key] = given | {"count": count, "channel": lane["channel"]}
                before[key] = {(rank, number, position - 1)} if position else set()
                for other, at in given.get("waits", ()):
                    exists = 0 <= other < len(lanes) and 0 <= at < len(lanes[other]["instructions"])
                    require(
                        exists and not (other == number and at >= position),
                        "waits for no instruction",
                    )
                    before[key].add((rank, other, at))
    return each, before


def matches(program, each):
    """Pairs of a send and its receive, with their connection and place on it."""
    ends = {}
    for key, given in each.items():
        rank = key[0]
        if given["op"] in SENDS:
            ends.setdefault((rank, given["send_to"], given["channel"]), ([], []))[0].append(key)
        if given["op"] in RECEIVES:
            ends.setdefault((given["recv_from"], rank, given["channel"]), ([], []))[1].append(key)
    pairs = []
    for connection, (sends, recvs) in ends.items():
        require(len(sends) == len(recvs), f"messages without their other end on {connection}")
        for side in (sends, recvs):
            require(len({key[1] for key in side}) == 1, f"two lanes at one end of {connection}")
        for place, (send, recv) in enumerate(zip(sends, recvs, strict=True)):
            require(each[send]["count"] == each[recv]["count"], f"sizes differ on {connection}")
            pairs.append((send, recv, connection, place))
    return pairs


def happens(before, matched):
    graph = {key: set(earlier) for key, earlier in before.items()}
    for send, recv, *_ in matched:
        graph[recv].add(send)
    return graph


def completes(each, before, matched, depth) -> bool:
    """Whether all lanes end at a FIFO depth."""
    if depth == 0:
        joined = {key: key for key in each}

        def head(key):
            while joined[key] != key:
                key = joined[key]
            return key

        for send, recv, *_ in matched:
            if head(send) == head(recv):  # messages in a circle
                return False
            joined[head(recv)] = head(send)
        graph = {head(key): set() for key in each}
        for key, earlier in before.items():
            graph[head(key)] |= {head(other) for other in earlier}
        if any(key in earlier for key, earlier in graph.items()):
            return False
    else:
        graph = happens(before, matched)
        at = {(connection, place): recv for _, recv, connection, place in matched}
        for send, _, connection, place in matched if depth is not None else ():
            if place >= depth:
                graph[send].add(at[connection, place - depth])
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return False
    return True


def check_races(each, order, graph) -> None:
    """Any two accesses of a chunk, one a write, happen one after the other."""
    past, touching = {}, {}
    for key in order:
        past[key] = set().union(*(past[other] | {other} for other in graph[key]))
        given = each[key]
        op, count = given["op"], given["count"]
        if op in READS and op in WRITES and count:
            require(
                given["src"] == given["dst"] or abs(given["src"] - given["dst"]) >= count,
                f"{key} races with itself",
            )
        for uses, end, writes in ((READS, "src", False), (WRITES, "dst", True)):
            for k in range(count) if op in uses else ():
                cell = key[0], given[end] + k
                for other, also in touching.get(cell, ()):
                    require(
                        not (writes or also) or other in past[key] or other == key,
                        f"{key} and {other} race",
                    )
                touching.setdefault(cell, set()).add((key, writes))


def data_of(record, each, order, sender):
    """Play the data; the order level."""
    room, trees = Room(record["collective"], record["chunks"]), Trees()
    require(record["program"]["in_place"] == room.in_place, "in_place differs")
    require(
        list(record["program"]["buffers"][:2])
        == [room.output_base, room.scratch_base - room.output_base],
        "buffers",
    )
    memory, sent = room.start(), {}
    for key in order:
        given, rank = each[key], key[0]
        op, count = given["op"], given["count"]
        values = list(sent[sender[key]]) if op in RECEIVES else [None] * count
        if op in READS:
            for k in range(count):
                require(
                    room.cell(rank, given["src"] + k) == (rank, given["src"] + k),
                    f"{key} reads an alias",
                )
                own = memory.get((rank, given["src"] + k))
                require(own is not None, f"{key} reads a chunk that holds nothing")
                values[k] = own if values[k] is None else trees.reduced(own, values[k])
        if op in WRITES:
            for k, value in enumerate(values):
                cell = rank, given["dst"] + k
                require(
                    room.writable(cell) and room.cell(*cell) == cell,
                    f"{key} overwrites an input, or an alias",
                )
                if op == "reduce":
                    require(cell in memory, f"{key} reduces into a chunk that holds nothing")
                    value = trees.reduced(memory[cell], value)  # noqa: PLW2901
                memory[cell] = value
        if op in SENDS:
            sent[key] = values
    return room.check_outputs(memory, switched=False) if room.kind != "barrier" else ""
