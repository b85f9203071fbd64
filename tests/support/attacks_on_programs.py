"""Directed attacks on the provers of programs: per-rank programs, MSCCL XML, and programs of thread
blocks (MSCCL++ plans).
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

import simcoll
from simcoll import Collective
from simcoll.core.device_program import FOLD, DeviceOp, DeviceProgram, Region
from simcoll.core.rank_program import Instruction, Lane, RankProgram
from simcoll.formats import parse_msccl_xml, parse_mscclpp_plan
from simcoll.proving import lower, verify_device_program, verify_program
from tests.support.attack_cases import WEAKER, Attack, Case, Trial, device_case, program_case
from tests.support.attacks_on_sums import (
    DOUBLINGS,
    KINDS,
    P61,
    added_in_trees,
    mirror_image,
    other_brackets,
    random_tree,
    scaled_collective,
)
from tests.support.exact_player import Verdict
from tests.support.program_player import ProgramPlayer


def plain_program(rng, most=5):
    """A lowered program that is right, as records."""
    kind, algorithm = rng.choice(
        (
            ("all_reduce", "ring"),
            ("all_gather", "ring"),
            ("reduce_scatter", "ring"),
            ("broadcast", "chain"),
            ("all_reduce", "tree"),
        )
    )
    schedule = simcoll.schedule(kind, algorithm, nranks=rng.randint(2, most))
    return as_records(lower(simcoll.bind(schedule, 2 * schedule.layout.chunks + 1)))


def as_records(program):
    return replace(program, lanes=tuple(program.lanes[rank] for rank in range(program.nranks)))


def edited_program(program, rank, lane, position, *instructions):
    """The program with one instruction replaced by others."""
    code = list(program.lanes[rank][lane].instructions)
    code[position : position + 1] = instructions
    lanes = [list(row) for row in program.lanes]
    lanes[rank][lane] = replace(lanes[rank][lane], instructions=tuple(code))
    return replace(program, lanes=tuple(map(tuple, lanes)))


def spots(program):
    return [
        (rank, lane, position, instruction)
        for rank, lanes in enumerate(program.lanes)
        for lane, row in enumerate(lanes)
        for position, instruction in enumerate(row.instructions)
    ]


def program_wraps(rng, quick):
    """Multiplicities in lowered programs, and doublings written as local reductions."""
    for _ in range(2 if quick else 5):
        kind, n = rng.choice(KINDS), rng.randint(2, 4)
        times = rng.choice([1 + 2**k for k in DOUBLINGS] + [1 + P61, 1 + 2**64 * P61, P61 + 2])
        program = as_records(
            lower(simcoll.bind(scaled_collective(kind, n, times), 3, unproved=True))
        )
        yield program_case(f"{kind} n={n} {times} times", False, lambda p=program: p)
        more = rng.choice(DOUBLINGS)
        program = as_records(
            lower(simcoll.bind(scaled_collective(kind, n, 1, more=more), 3, unproved=True))
        )
        yield program_case(
            f"{kind} n={n} once, helper doubled {more} times", True, lambda p=program: p
        )


def program_brackets(rng, quick):
    """Brackets of lowered programs: mirrored, or other ones deep inside on one rank."""
    n = rng.randint(3, 6 if quick else 12)
    tree = random_tree(rng, range(n))
    same = [mirror_image(rng, tree) for _ in range(n)]
    other = list(same)
    other[rng.randrange(n)] = mirror_image(rng, other_brackets(tree))
    for label, right, shapes in (("mirrored", True, same), ("one rank regroups", WEAKER, other)):
        program = as_records(lower(simcoll.bind(added_in_trees(n, shapes), 3, unproved=True)))
        yield program_case(f"n={n} {label}", right, lambda p=program: p)


NARROW = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)


def narrow_fields(rng, quick):
    """Fields of instructions as narrow numbers, with chunks and counts whose sums wrap."""
    big = 300
    collective = Collective("broadcast", 2)

    def program(src, dst, count, kind=int, more=()):
        rank0 = (
            Lane(
                0,
                (
                    Instruction(
                        "copy", kind(src), kind(dst) if dst <= limit_of(kind) else dst, kind(count)
                    ),
                    *more,
                    Instruction("send", big, -1, big, send_to=1),
                ),
            ),
        )
        rank1 = (Lane(0, (Instruction("recv", -1, big, big, recv_from=0),)),)
        return RankProgram("attack", 2, (rank0, rank1), (big, big, 0), collective, big)

    rest = Instruction("copy", 100, 400, 200)
    yield program_case("python numbers", True, lambda: program(0, 300, 300))
    for kind in rng.sample(NARROW, 4 if quick else len(NARROW)):
        limit = np.iinfo(kind).max
        yield program_case(
            f"{kind.__name__} count",
            True,
            lambda k=kind: program_of_thirds(k, big, collective),
            lambda: program_of_thirds(int, big, collective),
        )
        if limit >= 400:
            yield program_case(
                f"{kind.__name__} everything",
                True,
                lambda k=kind: program(0, 300, 300, k),
                lambda: program(0, 300, 300),
            )
        far = min(limit, 2**62)
        yield refusal(
            f"{kind.__name__} chunk {far} and count 100",
            lambda k=kind, f=far: program(f, 300, 100, k if f <= 2**31 else int, (rest,)),
        )
        yield refusal(
            f"{kind.__name__} count {limit}",
            lambda k=kind, c=limit: program(200, 300, k(c), int, (rest,)),
        )
    for number in (2**31, 2**32, 2**63, 2**64, -1, -(2**31), -(2**63)):
        yield refusal(f"source {number}", lambda x=number: program(x, 300, 300))
        yield refusal(f"count {number}", lambda x=number: program(0, 300, x))
        yield refusal(
            f"receives from {number}",
            lambda x=number: edited_program(
                program(0, 300, 300), 1, 0, 0, Instruction("recv", -1, big, big, recv_from=x)
            ),
        )


def limit_of(kind) -> float:
    """The largest number of a type."""
    return float("inf") if kind is int else np.iinfo(kind).max


def program_of_thirds(kind, big, collective):
    """A broadcast of 300 chunks in three thirds, whose counts have a narrow type."""
    third = kind(100)
    first = tuple(Instruction("copy", at, big + at, third) for at in (0, 100, 200))
    lanes = (
        (
            Lane(
                0,
                (
                    *first,
                    *(
                        Instruction("send", big + at, -1, third, send_to=kind(1))
                        for at in (0, 100, 200)
                    ),
                ),
            ),
        ),
        (
            Lane(
                0,
                tuple(
                    Instruction("recv", -1, big + at, third, recv_from=kind(0))
                    for at in (0, 100, 200)
                ),
            ),
        ),
    )
    return RankProgram("attack", 2, lanes, (big, big, 0), collective, big)


def refusal(label, make) -> Case:
    """A case whose falseness is plain, and that may be refused as early as its making."""
    return Case(
        label,
        False,
        (Trial("verify_program", lambda: verify_program(make())),),
        lambda: Verdict(False, "", "no such number"),
    )


def exchange(messages, depth, reduces=False):
    """Two ranks that both send some messages before they receive: an all_gather of that many
    pieces.
    """
    lanes = []
    for rank in range(2):
        other = 1 - rank
        load = [Instruction("copy", 0, messages * (1 + rank), messages)]
        out = [Instruction("send", piece, -1, 1, send_to=other) for piece in range(messages)]
        into = [
            Instruction("recv", -1, messages * (1 + other) + piece, 1, recv_from=other)
            for piece in range(messages)
        ]
        lanes.append((Lane(0, (*load, *out, *into)),))
    return RankProgram(
        "attack",
        2,
        tuple(lanes),
        (messages, 2 * messages, 0),
        Collective("all_gather", 2),
        messages,
        fifo_depth=depth,
    )


def fifos(rng, quick):
    """Programs that need a depth, at that depth and just below; and depths at the limits of
    numbers.
    """
    for messages in rng.sample((1, 2, 3, 8, 9, 31, 64), 2 if quick else 5):
        for depth in (messages, messages + 1, None, 2**31, 2**63, 2**64):
            yield depth_case(
                f"{messages} messages, depth {depth}",
                True,
                lambda m=messages, d=depth: exchange(m, d),
            )
        for depth in {0, messages - 1, messages // 2}:
            yield depth_case(
                f"{messages} messages, depth {depth}",
                False,
                lambda m=messages, d=depth: exchange(m, d),
            )
    n = rng.randint(3, 6)
    ring = simcoll.schedule("all_gather", "ring", nranks=n)
    whole = as_records(lower(simcoll.bind(ring, 3)))
    for depth in (0, 1, 2):
        yield depth_case(
            f"ring n={n}, depth {depth}", True, lambda d=depth: replace(whole, fifo_depth=d)
        )
    joined = one_lane(whole)
    for depth in (0, 1, 2, 8):
        program = replace(joined, fifo_depth=depth)
        right = ProgramPlayer(program).order(depth) is not None
        yield depth_case(f"ring n={n} in one lane each, depth {depth}", right, lambda p=program: p)


def one_lane(program):
    """The program with all lanes of a rank in one, in an order in which they may run."""
    player = ProgramPlayer(program)
    rows = [[] for _ in range(program.nranks)]
    for number in player.order(None):
        rank, _, instruction = player.code[number]
        rows[rank].append(replace(instruction, waits=()))
    return replace(program, lanes=tuple((Lane(0, tuple(row)),) for row in rows))


def depth_case(label, right, make) -> Case:
    """A case whose least depth is compared as well."""
    case = program_case(label, right, make)

    def prove():
        proof = verify_program(make())
        least = ProgramPlayer(make()).least_depth()
        if proof.least_depth != least:
            raise AssertionError(f"least depth {proof.least_depth} instead of {least}")
        return proof

    return Case(case.label, case.right, (Trial("verify_program", prove),), case.verdict)


def lanes(rng, quick):
    """Waits that are missing, turned round or in a cycle; messages that meet the wrong partner;
    ranges that overlap themselves.
    """
    for _ in range(2 if quick else 6):
        program = plain_program(rng)
        yield program_case(f"{program}", True, lambda p=program: p)
        for _ in range(6 if quick else 12):
            rank, lane, position, instruction = rng.choice(spots(program))
            what = rng.choice(
                (
                    "no waits",
                    "fewer waits",
                    "dropped",
                    "twice",
                    "count 0",
                    "shifted",
                    "itself",
                    "other rank",
                    "not reduced",
                    "later",
                )
            )
            if what == "later" and position + 1 == len(program.lanes[rank][lane].instructions):
                continue
            match what:
                case "no waits":
                    changed = (replace(instruction, waits=()),)
                case "fewer waits":
                    changed = (replace(instruction, waits=instruction.waits[1:]),)
                case "dropped":
                    changed = (Instruction("nop", waits=instruction.waits),)
                case "twice":
                    changed = (instruction, instruction)
                case "count 0":
                    changed = (replace(instruction, count=0),)
                case "shifted":
                    changed = (replace(instruction, src=instruction.src + 1),)
                case "itself":
                    changed = (replace(instruction, src=instruction.dst),)
                case "other rank":
                    changed = (
                        replace(instruction, send_to=(instruction.send_to + 1) % program.nranks),
                    )
                case "not reduced":
                    changed = (
                        replace(
                            instruction,
                            op={
                                "recv_reduce_copy": "recv",
                                "reduce": "copy",
                                "recv": "recv_reduce_copy",
                            }.get(instruction.op, "nop"),
                        ),
                    )
                case _:
                    changed = (program.lanes[rank][lane].instructions[position + 1],)
            if what == "twice":
                subject = _twice(program, rank, lane, position)
            else:
                subject = lambda p=program, r=rank, l=lane, k=position, c=changed: edited_program(  # noqa: E731
                    p, r, l, k, *c
                )
            case = program_case("", True, subject)
            verdict = case.verdict()
            yield program_case(
                f"{program}: {what} at rank {rank} lane {lane} step {position} ({instruction.op})",
                verdict.right,
                subject,
            )
    yield from _overlaps()


def _twice(program, rank, lane, position):
    """The last instruction of a lane once more; others would shift the numbers that waits name."""
    last = len(program.lanes[rank][lane].instructions) - 1
    instruction = program.lanes[rank][lane].instructions[last]
    return lambda: edited_program(
        program, rank, lane, last, instruction, replace(instruction, waits=())
    )


def _overlaps():
    """Copies within one buffer whose source and destination overlap: racing with themselves unless
    they are identical.
    """
    for shift, right in ((0, True), (1, False), (2, False), (3, True)):
        copies = (
            Instruction("copy", 0, 3, 3),
            Instruction("copy", 0, 6, 3),
            Instruction("copy", 6, 6 + shift, 3),
        )
        lane = (Lane(0, copies),)
        program = RankProgram("attack", 1, (lane,), (3, 3, 6), Collective("all_reduce", 1), 3)
        yield program_case(
            f"three chunks onto themselves shifted by {shift}", right, lambda p=program: p
        )


def xml(steps, coll="allreduce", chunks=1, protocol="Simple", inplace=0, scratch=4):
    """The text of an algorithm file; ``steps[gpu][block]`` is ``(send, recv, rows)``, with rows as
    :func:`step` makes them.
    """
    gpus = []
    outputs = {"allgather": len(steps) * chunks}.get(coll, chunks)
    for gpu, blocks in enumerate(steps):
        texts = []
        for block, (send, recv, rows) in enumerate(blocks):
            lines = [
                f'<step s="{s}" type="{kind}" srcbuf="{a}" srcoff="{b}" dstbuf="{c}" dstoff="{d}" '
                f'cnt="{count}" '
                f'depid="{dep}" deps="{at}" hasdep="{has}"/>'
                for s, (kind, a, b, c, d, count, dep, at, has) in enumerate(rows)
            ]
            texts.append(
                f'<tb id="{block}" send="{send}" recv="{recv}" chan="0">{"".join(lines)}</tb>'
            )
        gpus.append(
            f'<gpu id="{gpu}" i_chunks="{chunks}" o_chunks="{outputs}" '
            f's_chunks="{scratch}">{"".join(texts)}</gpu>'
        )
    return (
        f'<algo name="attack" proto="{protocol}" nchannels="1" nchunksperloop="{chunks}" '
        f'ngpus="{len(steps)}" coll="{coll}" inplace="{inplace}">'
        f"{''.join(gpus)}</algo>"
    ).encode()


def step(kind, a, b, c, d, count=1, dep=-1, at=-1, has=0):
    return kind, a, b, c, d, count, dep, at, has


def files(rng, quick):
    """MSCCL XML by hand: doublings, dependencies that are missing, offsets and counts at their
    limits.
    """
    doublings = rng.choice(DOUBLINGS)
    times = rng.choice(
        [1 + 2**k for k in (8, 16, 31, 32, 53, 61, 62, 63, 64)] + [1 + P61, 1 + 2**64 * P61]
    )

    def sums(multiple, more=0):
        """Both ranks send their input aside and add both; the own one is added ``multiple``
        times.
        """
        gpus = []
        for gpu in range(2):
            rows = [
                step("s", "i", 0, "s", 0),
                step("r", "i", 0, "s", 0),
                step("cpy", "i", 0, "s", 1),
            ]
            started = False
            for bit in range(multiple.bit_length()):
                if multiple >> bit & 1:
                    rows.append(step("re" if started else "cpy", "s", 1, "o", 0))
                    started = True
                rows.append(step("re", "s", 1, "s", 1))
            rows += [step("re", "s", 1, "s", 1)] * more + [step("re", "s", 0, "o", 0)]
            gpus.append([(1 - gpu, 1 - gpu, rows)])
        return xml(gpus)

    yield program_case(
        f"once, helper doubled {doublings} times", True, lambda: parse_msccl_xml(sums(1, doublings))
    )
    yield program_case(f"{times} times", False, lambda: parse_msccl_xml(sums(times)))
    yield program_case("twice", False, lambda: parse_msccl_xml(sums(2)))

    def apart(depends):
        """One block receives, another adds: right only if it waits."""
        gpus = []
        for gpu in range(2):
            first = [step("s", "i", 0, "s", 0), step("r", "i", 0, "s", 0, has=1)]
            wait = (0, 1) if depends else (-1, -1)
            second = [step("cpy", "i", 0, "o", 0), step("re", "s", 0, "o", 0, 1, *wait)]
            gpus.append([(1 - gpu, 1 - gpu, first), (-1, -1, second)])
        return xml(gpus)

    yield program_case("a block waits for another", True, lambda: parse_msccl_xml(apart(True)))
    yield program_case("it does not wait", False, lambda: parse_msccl_xml(apart(False)))

    def circle():
        one = [step("cpy", "i", 0, "o", 0, 1, 1, 0, 1)]
        two = [step("cpy", "i", 0, "s", 0, 1, 0, 0, 1)]
        return xml([[(-1, -1, one), (-1, -1, two)]])

    yield program_case("two blocks wait for each other", False, lambda: parse_msccl_xml(circle()))
    good = xml([[(-1, -1, [step("cpy", "i", 0, "o", 0, 2)])]], chunks=2)
    yield program_case("two chunks", True, lambda: parse_msccl_xml(good))
    for label, old, new in (
        ("an offset of 2^31", 'dstoff="0"', 'dstoff="2147483648"'),
        ("an offset of 2^64", 'dstoff="0"', 'dstoff="18446744073709551616"'),
        ("an offset below 0", 'srcoff="0"', 'srcoff="-1"'),
        ("a count of 2^32 + 2", 'cnt="2"', 'cnt="4294967298"'),
        ("a count of 0", 'cnt="2"', 'cnt="0"'),
        ("a count of 1", 'cnt="2"', 'cnt="1"'),
        ("scratch for the output", 'dstbuf="o"', 'dstbuf="s"'),
        ("chunks of 2^64 + 2", 'i_chunks="2"', 'i_chunks="18446744073709551618"'),
        ("a step of 2^64", 's="0"', 's="18446744073709551616"'),
        ("other digits", 'cnt="2"', 'cnt="\N{ARABIC-INDIC DIGIT TWO}"'),
        ("a fraction", 'cnt="2"', 'cnt="2.0"'),
        ("underscores", 'srcoff="0"', 'srcoff="0_0"'),
    ):
        changed = good.replace(old.encode(), new.encode())
        yield refusal(label, lambda c=changed: parse_msccl_xml(c))


def handshake(n, rank, number):
    """A rank tells all others, and waits until all have told it."""
    peers = [other for other in range(n) if other != rank]
    return [
        DeviceOp("nop", fence=True),
        DeviceOp("signal", signals=tuple((rank, other, number) for other in peers)),
        DeviceOp("wait", waits=tuple((other, rank, number) for other in peers)),
        DeviceOp("nop", fence=True),
    ]


def direct(n, orders, extra=(), *, first=True, last=True):
    """An all_reduce in which each rank folds the inputs of all ranks in an order of its own.

    Memory of a rank: input, output, a cell of scratch. ``extra[r]``: operations of rank r after its
    fold.
    """
    blocks = []
    for rank in range(n):
        reads = tuple(Region(source, 0, 1) for source in orders[rank])
        work = [
            DeviceOp("reduce", FOLD, reads, (Region(rank, 1, 1),)),
            DeviceOp("nop", fence=True),
            *(extra[rank] if extra else ()),
        ]
        begin = handshake(n, rank, 0) if first else []
        blocks.append(((*begin, *work, *(handshake(n, rank, 1) if last else [])),))
    return DeviceProgram("attack", tuple(blocks), (1, 1, 1, 0), Collective("all_reduce", n), 1)


def doublings_of(rank, times, *, discarded=None):
    """Double the output again and again; or a cell of scratch."""
    cell = 2 if discarded is not None else 1
    begin = (
        [
            DeviceOp("copy", FOLD, (Region(rank, 0, 1),), (Region(rank, 2, 1),)),
            DeviceOp("nop", fence=True),
        ]
        if discarded is not None
        else []
    )
    both = [
        DeviceOp("reduce", FOLD, (Region(rank, cell, 1),) * 2, (Region(rank, cell, 1),)),
        DeviceOp("nop", fence=True),
    ]
    return [*begin, *both * times]


def devices(rng, quick):
    """Programs of thread blocks: folds with missing and double operands, doublings, brackets, and
    handshakes that are missing.
    """
    n = rng.randint(2, 5)
    straight = [list(range(n))] * n
    mirrored = [[1, 0, *range(2, n)] if rank == n - 1 else list(range(n)) for rank in range(n)]
    yield device_case(f"n={n}", True, lambda: direct(n, straight))
    yield device_case(
        f"n={n}, one rank begins the other way round", True, lambda: direct(n, mirrored)
    )
    if n > 2:
        turned = [list(range(n))[::-1] if rank == 1 else list(range(n)) for rank in range(n)]
        yield device_case(
            f"n={n}, one rank in the other direction", True, lambda: direct(n, turned)
        )
    a, b = rng.sample(range(n), 2)
    for label, reads in (
        ("one missing", [s for s in range(n) if s != a]),
        ("one twice", [*range(n), a]),
        ("one missing, one twice", [b if s == a else s for s in range(n)]),
    ):
        rows = [reads if rank == b else list(range(n)) for rank in range(n)]
        yield device_case(f"n={n}, {label}", False, lambda r=rows: direct(n, r))
    times = rng.choice(DOUBLINGS)
    yield device_case(
        f"n={n}, doubled {times} times",
        False,
        lambda: direct(n, straight, [doublings_of(r, times) for r in range(n)]),
    )
    yield device_case(
        f"n={n}, scratch doubled {times} times",
        True,
        lambda: direct(n, straight, [doublings_of(r, times, discarded=True) for r in range(n)]),
    )
    # A rank that does not wait reads inputs that are not there yet, or lets others read inputs that
    # are there no more.
    for label, program in (
        ("nobody waits at the end", lambda: direct(n, straight, last=False)),
        ("a signal without a wait", lambda: with_lone_signal(direct(n, straight))),
    ):
        yield Case(
            f"n={n}, {label}",
            False,
            (Trial("verify_device_program", lambda p=program: verify_device_program(p())),),
            lambda: Verdict(False, "", "no order"),
        )
    yield from _plans(rng)


def with_lone_signal(program):
    blocks = list(program.blocks)
    blocks[0] = ((*blocks[0][0], DeviceOp("signal", signals=((0, 1, 7),))),)
    return replace(program, blocks=tuple(blocks))


def _plans(rng):
    """MSCCL++ plans as text, with numbers written in other ways or beyond their limits."""

    def region(kind, index):
        return {"type": kind, "index": index, "size": 1}

    def content(**changes):
        block = {
            "id": 0,
            "channels": [],
            "remote_buffer_refs": [],
            "ops": [
                {
                    "name": "copy",
                    "src_buff": [region("i", 0)],
                    "dst_buff": [region("o", changes.get("target", 0))],
                },
                {"name": "nop"},
                *changes.get("more", []),
            ],
        }
        gpu = {
            "id": 0,
            "input_chunks": 1,
            "output_chunks": 1,
            "scratch_chunks": changes.get("scratch", 1),
            "channels": [],
            "remote_buffers": [],
            "semaphores": [],
            "threadblocks": [block],
        }
        return json.dumps(
            {
                "name": "attack",
                "collective": "allreduce",
                "protocol": "Simple",
                "inplace": False,
                "gpus": [gpu],
                "num_threads_per_block": 64,
                "reuse_resources": False,
                "use_double_scratch_buffer": False,
                "min_message_size": 0,
                "max_message_size": 2**40,
            }
        )

    both = {
        "name": "reduce",
        "src_buff": [region("o", 0), region("o", 0)],
        "dst_buff": [region("o", 0)],
        "reduce_op": "sum",
    }
    times = rng.choice(DOUBLINGS)
    text = content()
    yield device_case("a plan of one rank", True, lambda: parse_mscclpp_plan(text.encode()))
    yield device_case(
        f"a plan of one rank, doubled {times} times",
        False,
        lambda: parse_mscclpp_plan(content(more=[both, {"name": "nop"}] * times).encode()),
    )
    for label, old, new in (
        ("an index of 2^64", '"index": 0', '"index": 18446744073709551616'),
        ("an index below 0", '"index": 0', '"index": -1'),
        ("a truth for a number", '"input_chunks": 1', '"input_chunks": true'),
        ("a fraction", '"output_chunks": 1', '"output_chunks": 1.5'),
        ("a size of 2^32 + 1", '"size": 1', '"size": 4294967297'),
        ("chunks of 2^63", '"scratch_chunks": 1', '"scratch_chunks": 9223372036854775808'),
        ("into scratch", '"type": "o"', '"type": "s"'),
    ):
        changed = text.replace(old, new)
        if changed != text:
            yield Case(
                label,
                False,
                (
                    Trial(
                        "verify_device_program",
                        lambda c=changed: verify_device_program(parse_mscclpp_plan(c.encode())),
                    ),
                ),
                lambda: Verdict(False, "", "no such number"),
            )


ATTACKS = (
    Attack("program wraps", "multiplicities in per-rank programs", program_wraps),
    Attack("program brackets", "brackets of per-rank programs", program_brackets),
    Attack("narrow fields", "fields of instructions as narrow or huge numbers", narrow_fields),
    Attack("FIFO depths", "programs that need a depth, at it and below it", fifos),
    Attack("lanes", "waits, messages and ranges of per-rank programs", lanes),
    Attack("MSCCL XML", "algorithm files by hand", files),
    Attack("thread blocks", "programs of thread blocks and MSCCL++ plans", devices),
)
