"""Certificates with faults: of what was proved, of what is claimed about it, and of how it is said
to be proved.

Some mutations change nothing that counts (a repeat unrolled, rows in another order, a weaker
claim), so that not all are wrong.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np

import simcoll
from simcoll.collectives import quantised_two_step
from simcoll.core.collective import Collective
from simcoll.core.rank_program import Instruction, Lane, RankProgram
from simcoll.core.schedule import OP_NAMES, Layout, Repeat, Schedule, transfers
from simcoll.formats import load_algorithm
from simcoll.formats.schedules.certificate import certificate_bytes
from simcoll.formats.schedules.msccl_writer import dump_msccl_xml
from simcoll.formats.schedules.schedule_files import parse_algorithm
from simcoll.proving import check_lowering, lower, verify, verify_program
from simcoll.proving.program_proof import ProgramProof
from simcoll.proving.symmetry import verify_by_symmetry
from tests.support.certificate_judge import Wrong, columns, unrolled
from tests.support.mutants import originals

SAMPLES = Path(__file__).resolve().parents[1] / "unit/formats/data"
MOST_MOVES = 120
"""Limit of the transfers of the certificates that are mutated: a fault needs no more, and all three
judges are faster.
"""
NAMES = ("src_rank", "src_chunk", "dst_rank", "dst_chunk", "count", "op", "channel")
LEVELS = ("", "any", "rank-consistent", "run-consistent", "position-independent")
KINDS = (
    "broadcast",
    "reduce",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
    "send_recv",
    "barrier",
)
PROGRAM_OPS = (
    "nop",
    "send",
    "recv",
    "recv_copy_send",
    "recv_reduce_send",
    "recv_reduce_copy",
    "recv_reduce_copy_send",
    "copy",
    "reduce",
)


def _small(schedule) -> bool:
    return sum(int(step.count.sum()) for step in schedule.steps()) <= MOST_MOVES


@cache
def stock() -> tuple[Callable[[], str], ...]:
    """Certificates of small schedules and programs: what is mutated. A call makes the text, once;
    it is empty where there is none. Some are equal.
    """
    schedules = itertools.chain(originals((1, 2, 3, 4, 5)), folding(), travelling())
    makers = [
        partial(make, schedule)
        for schedule in filter(_small, schedules)
        for make in (_of_schedule, _of_its_program, _of_its_symmetry)
    ]
    makers += [partial(_of_program, program) for program in programs()]
    return tuple(map(cache, makers))


def _of_schedule(schedule) -> str:
    return certificate_bytes(schedule, verify(schedule)).decode()


def _of_its_program(schedule) -> str:
    if schedule.wire_formats:  # a program has none
        return ""
    plan = simcoll.bind(schedule, 2 * schedule.layout.chunks)
    return certificate_bytes(lower(plan), check_lowering(plan)).decode()


def _of_its_symmetry(schedule) -> str:
    if schedule.wire_formats:
        return ""
    try:
        return certificate_bytes(schedule, verify_by_symmetry(schedule)).decode()
    except simcoll.ScheduleError:  # most have no symmetry
        return ""


def _of_program(program) -> str:
    return certificate_bytes(program, verify_program(program)).decode()


def drawn(rng) -> str:
    """A certificate of the stock."""
    while not (text := rng.choice(stock())()):
        pass
    return text


def folding():
    """Schedules with folds, with and without a copy below."""
    for n in (2, 3, 4):
        layout, rank = Layout(Collective("all_reduce", n)), np.arange(n)
        src, dst = (each.reshape(-1) for each in np.meshgrid(rank, rank))
        others = src != dst
        first = transfers(rank, 0, rank, 1)
        second = transfers(src[others], 0, dst[others], 1, op="reduce")
        yield Schedule(
            "own first", layout, lambda first=first, second=second: iter((first, second))
        )
        at_once = transfers(src, 0, dst, 1, op=np.where(src == 0, 0, 1))
        yield Schedule("from rank 0 on", layout, lambda step=at_once: iter((step,)))


def travelling():
    """Schedules that choose paths and convert on the way."""
    for n in (1, 2, 3, 4):
        yield quantised_two_step(Collective("all_reduce", n))
        layout, rank = Layout(Collective("all_gather", n), chunks=2), np.arange(n)
        steps = [transfers(rank, 0, rank, layout.output(rank), count=2)]
        for turn in range(1, n):  # one chunk over each of two ways
            source, target = (rank - turn) % n, layout.output((rank - turn) % n)
            near = transfers(source, 0, rank, target)
            far = transfers(source, 1, rank, target + 1, channel=1, via="net", wire="bfloat16")
            steps += [near, far]
        yield Schedule("two ways", layout, lambda steps=steps: iter(steps), nchannels=2)


def programs():
    """Programs from MSCCL XML: the samples of the tests, and shipped schedules written as such."""
    for path in sorted(SAMPLES.glob("*.xml")):
        try:
            program = load_algorithm(path)
            proof = verify_program(program)
        except (simcoll.ConfigError, simcoll.ScheduleError):
            continue
        if proof.data and program.steps <= MOST_MOVES:
            yield program
    for kind, name, n, protocol in (
        ("all_reduce", "ring", 3, "Simple"),
        ("all_gather", "recursive_doubling", 4, "LL"),
        ("reduce_scatter", "direct", 3, "LL128"),
        ("all_reduce", "double_tree", 3, "Simple"),
        ("all_to_all", "direct", 3, "Simple"),
    ):
        yield parse_algorithm(
            dump_msccl_xml(simcoll.schedule(kind, name, nranks=n), protocol=protocol)
        )


def mutated(text, rng):
    """A record with one fault, at times two or three; and what was done to it."""
    record, done = json.loads(text), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        choices = OF_PROGRAM if record["subject"] == "program" else OF_SCHEDULE
        change = rng.choice(rng.choice(choices))
        try:
            applied = change(record, rng) is not None
        except (Wrong, ValueError, IndexError):  # an earlier fault left nothing to choose from
            applied = False
        if applied:
            done.append(change.__name__)
    return record, done


# What a mutation returns is None if it did not apply.


def _some_step(record, rng):
    """A step whose columns are lists; its rows may then be changed one by one."""
    steps = [step for block in record["blocks"] for step in block["steps"]]
    if not steps:
        return None
    step = rng.choice(steps)
    _put(step, [list(row) for row in columns(step)])
    return step


def _rows(step):
    return [list(row) for row in zip(*(step[name] for name in NAMES), strict=True)]


def _put(step, rows):
    rows = [list(row) for row in rows]
    for row in rows:
        if row[5] == "sync":  # whose chunks mean nothing, but are whole numbers from 0 on
            row[1], row[3], row[4] = max(row[1], 0), max(row[3], 0), max(row[4], 1)
    for place, name in enumerate(NAMES):
        step[name] = [row[place] for row in rows]
    return True


def _row_change(place, change):
    def changed(record, rng):
        step = _some_step(record, rng)
        if step is None:
            return None
        rows = _rows(step)
        row = rng.choice(rows)
        row[place] = change(record, rng, row[place])
        return _put(step, rows)

    changed.__name__ = f"{NAMES[place]} changed"
    return changed


def _rank(record, rng, old):
    n = record["collective"]["nranks"]
    return rng.choice(
        (rng.randrange(n), (old + 1) % n, (old - 1) % n, n if rng.random() < 0.1 else old)
    )


def _chunk(record, rng, old):
    near = old + rng.choice((-1, 1, record["chunks"], -record["chunks"]))
    return rng.choice((near, near, rng.randrange(-1, 20), 2**40 if rng.random() < 0.02 else near))


def _count(record, rng, old):
    return old + rng.choice((-1, 1, 1, 2))


def _op(record, rng, old):
    return rng.choice([op for op in OP_NAMES if op != old])


def _channel(record, rng, old):
    return rng.choice((0, 1, old + 1, record["channels"] - 1))


def dropped(record, rng):
    step = _some_step(record, rng)
    if step is None or len(step["src_rank"]) < 2:
        return None
    rows = _rows(step)
    rows.pop(rng.randrange(len(rows)))
    return _put(step, rows)


def step_dropped(record, rng):
    blocks = record["blocks"]
    if not blocks:
        return None
    block = rng.choice(blocks)
    block["steps"].pop(rng.randrange(len(block["steps"])))
    if not block["steps"]:
        blocks.remove(block)
    return True


def doubled(record, rng):
    """A transfer done again, in its step or in another."""
    step, other = _some_step(record, rng), _some_step(record, rng)
    if step is None:
        return None
    return _put(other, [*_rows(other), list(rng.choice(_rows(step)))])


def moved(record, rng):
    step, other = _some_step(record, rng), _some_step(record, rng)
    if step is None or step is other or len(step["src_rank"]) < 2:
        return None
    rows = _rows(step)
    row = rows.pop(rng.randrange(len(rows)))
    return _put(step, rows) and _put(other, [*_rows(other), row])


def both_chunks(record, rng):
    step = _some_step(record, rng)
    if step is None:
        return None
    rows = _rows(step)
    row, over = rng.choice(rows), rng.choice((-1, 1, record["chunks"]))
    row[1], row[3] = row[1] + over, row[3] + over
    return _put(step, rows)


def turned_round(record, rng):
    step = _some_step(record, rng)
    if step is None:
        return None
    rows = _rows(step)
    row = rng.choice(rows)
    row[:4] = row[2], row[3], row[0], row[1]
    return _put(step, rows)


def shuffled(record, rng):
    """No fault: rows of a step have no order."""
    step = _some_step(record, rng)
    if step is None:
        return None
    rows = _rows(step)
    rng.shuffle(rows)
    return _put(step, rows)


def cut_in_two(record, rng):
    """No fault but for the number of transfers, or two channels."""
    step = _some_step(record, rng)
    long = [] if step is None else [row for row in _rows(step) if row[4] > 1]
    if not long:
        return None
    row = rng.choice(long)
    rows = [each for each in _rows(step) if each != row]
    half = rng.randrange(1, row[4])
    rest = [
        row[0],
        row[1] + half,
        row[2],
        row[3] + half,
        row[4] - half,
        row[5],
        rng.choice((row[6], row[6], 0, 1)),
    ]
    record["claims"]["transfers"] += 1
    return _put(step, [*rows, [*row[:4], half, *row[5:]], rest])


def steps_swapped(record, rng):
    blocks = record["blocks"]
    if len(blocks) < 2:
        return None
    at = rng.randrange(len(blocks) - 1)
    blocks[at], blocks[at + 1] = blocks[at + 1], blocks[at]
    return True


def step_again(record, rng):
    blocks = record["blocks"]
    if not blocks:
        return None
    blocks.insert(rng.randrange(len(blocks) + 1), json.loads(json.dumps(rng.choice(blocks))))
    return True


def steps_merged(record, rng):
    plain = [
        at
        for at, pair in enumerate(itertools.pairwise(record["blocks"]))
        if all(set(each) == {"steps"} for each in pair)
    ]
    if not plain:
        return None
    at = rng.choice(plain)
    first, second = record["blocks"][at : at + 2]
    rows = [row for block in (first, second) for step in block["steps"] for row in columns(step)]
    step = {}
    _put(step, rows)
    record["blocks"][at : at + 2] = [{"steps": [step]}]
    return True


def all_unrolled(record, rng):
    """No fault: a repeat means its unrolled steps."""
    blocks = []
    for rows in unrolled(record):
        step = {}
        _put(step, rows)
        blocks.append({"steps": [step]})
    record["blocks"] = blocks
    return True


def repeat_changed(record, rng):
    repeats = [block for block in record["blocks"] if "repeat" in block]
    if not repeats:
        return None
    block = rng.choice(repeats)
    name = rng.choice(("repeat", "stride", "base", "modulus", "order"))
    if name == "order":
        order = block.get("order")
        if order is None:
            return None
        block["order"] = rng.choice(
            (None, order[1:] + order[:1], order[::-1], order[:-1], [*order[1:], order[0] + 1])
        )
    else:
        block[name] = block.get(name, int(name == "modulus")) + rng.choice((-1, 1, 2))
    return True


def repeat_made(record, rng):
    """A plain step twice, or with shifted chunks."""
    plain = [block for block in record["blocks"] if set(block) == {"steps"}]
    if not plain:
        return None
    block = rng.choice(plain)
    modulus = rng.choice((1, record["chunks"], record["chunks"] * 2))
    block |= {
        "repeat": rng.choice((0, 1, 1, 2)),
        "stride": rng.randrange(modulus + 1),
        "base": 0,
        "modulus": modulus,
    }
    return True


def collective_changed(record, rng):
    collective = record["collective"]
    if collective is None:
        return None
    name = rng.choice(("kind", "nranks", "root", "in_place", "pairs"))
    if name == "kind":
        collective["kind"] = rng.choice(KINDS)
        collective.pop("root", None)
        collective.pop("pairs", None)
        if collective["kind"] in {"broadcast", "reduce", "gather", "scatter"}:
            collective["root"] = rng.randrange(max(1, collective["nranks"]))
    elif name == "nranks":
        collective["nranks"] += rng.choice((-1, 1))
    elif name == "root" and "root" in collective:
        collective["root"] = rng.randrange(collective["nranks"] + 1)
    elif name == "in_place":
        if collective.pop("in_place", False) is False:
            collective["in_place"] = True
    elif name == "pairs" and collective.get("pairs"):
        pairs = collective["pairs"]
        rng.choice((pairs.pop, pairs.reverse, rng.choice(pairs).reverse))()
    else:
        return None
    return True


def layout_changed(record, rng):
    name = rng.choice(("chunks", "channels", "divisible", "scratch", "scratch_pieces"))
    if name == "divisible":
        record[name] = not record.get(name, False)
    elif name in {"chunks", "channels"}:
        record[name] = record.get(name, 1) + rng.choice((-1, 1))
    elif record["collective"]["kind"] == "barrier":  # which has no blocks
        return None
    elif not record.get(name):
        record["scratch"] = [0]
    elif isinstance(record[name][0], list):
        row = rng.choice(record[name])
        row[rng.randrange(len(row))] += rng.choice((-1, 1))
    else:
        record[name][rng.randrange(len(record[name]))] += rng.choice((-1, 1))
    return True


def claim_changed(record, rng):
    claims = record["claims"]
    name = rng.choice(list(claims))
    old = claims[name]
    if name == "order":
        claims[name] = rng.choice(LEVELS)
    elif isinstance(old, bool):
        claims[name] = not old
    elif name == "least_depth":
        claims[name] = rng.choice((None, 0, 1, 2, 8))
    elif old is not None:
        claims[name] = old + rng.choice((-1, 1))
    else:
        return None
    return True


def claims_strengthened(record, rng):
    claims = record["claims"]
    if claims["order"]:
        claims["order"] = LEVELS[-1]
    for name in ("shared_chunks", "folds"):
        if name in claims:
            claims[name] = False
    return True


def counts_mended(record, rng):
    """Claims that count as the steps do, so that another fault is not hidden behind a wrong
    count.
    """
    steps = list(unrolled(record))
    record["claims"] |= {"steps": len(steps), "transfers": sum(map(len, steps))}
    return True


def proof_changed(record, rng):
    proof = record["proof"]
    if proof["kind"] == "full":
        n, chunks = record["collective"]["nranks"], record["chunks"]
        wide = chunks if record["collective"]["kind"] == "all_reduce" else n * chunks
        if not 1 <= n <= 16 or not 1 <= wide <= 64:
            return None
        places = (
            [(place + rng.choice((0, 1, chunks))) % wide for place in range(wide)]
            if rng.random() < 0.3
            else None
        )
        over = rng.choice((0, 1, 1))
        if places is None:
            by = over * (wide // n if wide % n == 0 else 1)
            places = [(place + by) % wide for place in range(wide)]
        record["proof"] = {
            "kind": "by symmetry",
            "rank": [[(rank + over) % n for rank in range(n)]],
            "lane": 0,
            "place": places,
        }
        return True
    name = rng.choice(("rank", "lane", "place", "kind"))
    if name == "kind":
        record["proof"] = {"kind": "full"}
    elif name == "lane":
        lanes = (
            proof["lane"]
            if isinstance(proof["lane"], list)
            else [proof["lane"]] * len(proof["place"])
        )
        lanes[rng.randrange(len(lanes))] = rng.randrange(len(proof["rank"]) + 1)
        proof["lane"] = lanes
    else:
        values = proof["place"] if name == "place" else rng.choice(proof["rank"])
        a, b = rng.randrange(len(values)), rng.randrange(len(values))
        if rng.random() < 0.2:
            values[a] = values[b]
        elif rng.random() < 0.3:
            values[:] = range(len(values))
        else:
            values[a], values[b] = values[b], values[a]
    return True


ROWS = tuple(
    _row_change(place, change)
    for place, change in enumerate((_rank, _chunk, _rank, _chunk, _count, _op, _channel))
)
OF_SCHEDULE = (
    ROWS,
    ROWS,
    ROWS,
    (
        dropped,
        step_dropped,
        doubled,
        moved,
        both_chunks,
        turned_round,
        steps_swapped,
        step_again,
        steps_merged,
    ),
    (dropped, doubled, moved, both_chunks, turned_round),
    (shuffled, cut_in_two, all_unrolled),
    (repeat_changed, repeat_made),
    (collective_changed, layout_changed),
    (claim_changed, claims_strengthened),
    (counts_mended,),
    (proof_changed,),
)


def _some_lane(record, rng):
    lanes = [lane for lanes in record["program"]["ranks"] for lane in lanes if lane["instructions"]]
    return rng.choice(lanes) if lanes else None


def instruction_changed(record, rng):
    lane = _some_lane(record, rng)
    if lane is None:
        return None
    instruction = rng.choice(lane["instructions"])
    name = rng.choice(
        [
            name
            for name in ("op", "src", "dst", "count", "recv_from", "send_to")
            if name in instruction
        ]
    )
    if name == "op":
        instruction["op"] = rng.choice(PROGRAM_OPS)
        for name in ("src", "dst"):  # so that most operations have what they need
            instruction.setdefault(name, instruction.get("src", instruction.get("dst", 0)))
    elif name in {"recv_from", "send_to"}:
        instruction[name] = rng.randrange(record["program"]["nranks"] + (rng.random() < 0.1))
    else:
        instruction[name] += rng.choice((-1, 1, 1, record["chunks"]))
    return True


def instructions_swapped(record, rng):
    lane = _some_lane(record, rng)
    if lane is None or len(lane["instructions"]) < 2:
        return None
    at = rng.randrange(len(lane["instructions"]) - 1)
    lane["instructions"][at : at + 2] = lane["instructions"][at : at + 2][::-1]
    return True


def instruction_gone(record, rng):
    lane = _some_lane(record, rng)
    if lane is None:
        return None
    lane["instructions"].pop(rng.randrange(len(lane["instructions"])))
    return True


def instruction_again(record, rng):
    lane, other = _some_lane(record, rng), _some_lane(record, rng)
    if lane is None:
        return None
    at = rng.randrange(len(other["instructions"]) + 1)
    other["instructions"].insert(at, json.loads(json.dumps(rng.choice(lane["instructions"]))))
    return True


def message_gone(record, rng):
    """Both ends of the last message of a connection."""
    ranks = record["program"]["ranks"]
    sends = [
        (rank, given["send_to"], lane["channel"])
        for rank, lanes in enumerate(ranks)
        for lane in lanes
        for given in lane["instructions"]
        if "send_to" in given
    ]
    if not sends:
        return None
    src, dst, channel = rng.choice(sends)
    for rank, name, peer in ((src, "send_to", dst), (dst, "recv_from", src)):
        for lane in ranks[rank]:
            at = [
                place for place, given in enumerate(lane["instructions"]) if given.get(name) == peer
            ]
            if lane["channel"] == channel and at:
                lane["instructions"].pop(at[-1])
    record["claims"]["messages"] -= 1
    return True


def waits_gone(record, rng):
    waiting = [
        given
        for lanes in record["program"]["ranks"]
        for lane in lanes
        for given in lane["instructions"]
        if given.get("waits")
    ]
    if not waiting:
        return None
    given = rng.choice(waiting)
    given["waits"].pop(rng.randrange(len(given["waits"])))
    return True


def wait_more(record, rng):
    lanes = rng.choice(record["program"]["ranks"])
    if not lanes:
        return None
    lane, other = rng.choice(lanes), rng.randrange(len(lanes))
    if not lane["instructions"] or not lanes[other]["instructions"]:
        return None
    wait = [other, rng.randrange(len(lanes[other]["instructions"]) + (rng.random() < 0.05))]
    rng.choice(lane["instructions"]).setdefault("waits", []).append(wait)
    return True


def program_changed(record, rng):
    program = record["program"]
    name = rng.choice(("fifo_depth", "fifo_depth", "buffers", "in_place", "nranks", "channel"))
    if name == "fifo_depth":
        program[name] = rng.choice((None, 0, 1, 2, 3, 8))
    elif name == "buffers":
        program[name][rng.randrange(3)] += rng.choice((-1, 1))
    elif name == "in_place":
        program[name] = not program[name]
    elif name == "nranks":
        program[name] += rng.choice((-1, 1))
    else:
        lane = _some_lane(record, rng)
        if lane is None:
            return None
        lane["channel"] = rng.choice((0, 1, 2))
    return True


OF_PROGRAM = (
    (instruction_changed, instructions_swapped, instruction_gone, instruction_again, message_gone),
    (instruction_changed, instructions_swapped, message_gone),
    (waits_gone, wait_more),
    (waits_gone, wait_more),
    (program_changed,),
    (claim_changed, claims_strengthened, collective_changed),
)


def loaded(record):
    """The schedule or program of a certificate, for the prover."""
    given = record["collective"]
    collective = None
    if given is not None:
        pairs = tuple(map(tuple, given.get("pairs", ())))
        collective = Collective(
            given["kind"], given["nranks"], given.get("root"), pairs, given.get("in_place", False)
        )
    if record["subject"] == "program":
        return _program(record, collective)
    pieces = record.get("scratch_pieces")
    layout = Layout(
        collective,
        record["chunks"],
        np.array(record.get("scratch", []), np.int64),
        None if pieces is None else np.array(pieces),
    )
    blocks = [_block(block) for block in record["blocks"]]
    return Schedule(
        "mutant", layout, lambda: iter(blocks), record["channels"], (), record["divisible"]
    )


def _block(block):
    steps = tuple(
        transfers(
            *given[:4],
            count=given[4],
            op=[OP_NAMES.index(op) for op in given[5]],
            channel=given[6],
            via=step.get("via", ""),
            wire=step.get("wire", ""),
        )
        for step in block["steps"]
        for given in [list(map(list, zip(*columns(step), strict=True)))]
    )
    repeat = (
        block.get(name, default)
        for name, default in (("repeat", 1), ("stride", 0), ("base", 0), ("modulus", 1))
    )
    order = block.get("order")
    return Repeat(steps, *repeat, None if order is None else np.array(order, np.int64))


def _program(record, collective):
    program = record["program"]
    lanes = tuple(
        tuple(Lane(lane["channel"], tuple(map(_instruction, lane["instructions"]))) for lane in own)
        for own in program["ranks"]
    )
    return RankProgram(
        "mutant",
        program["nranks"],
        lanes,
        tuple(program["buffers"]),
        collective,
        record["chunks"],
        program["in_place"],
        program["protocol"],
        program["fifo_depth"],
    )


def _instruction(given):
    op, waits = given["op"], tuple(map(tuple, given.get("waits", ())))
    count = 0 if op == "nop" else given.get("count", 1)
    return Instruction(
        op,
        given.get("src", -1),
        given.get("dst", -1),
        count,
        given.get("recv_from", -1),
        given.get("send_to", -1),
        waits,
    )


def _depths(claims):
    """The claimed depth, and the lesser ones at which the program must not run."""
    least = claims["least_depth"]
    return [depth for depth in (0, 1, 2, 8, least) if least is None or depth <= least]


def proved(record) -> str:
    """What simcoll says against a certificate: its proof refuses, or finds other facts than are
    claimed; empty if nothing.
    """
    claims = record["claims"]
    try:
        subject = loaded(record)
        proof = (
            verify(subject)
            if isinstance(subject, Schedule)
            else verify_program(subject, depths=_depths(claims))
        )
    except (
        simcoll.ConfigError,
        simcoll.ScheduleError,
        Wrong,
    ) as error:  # Wrong: columns that are no columns
        return f"{error}"
    facts = {"order": proof.order}
    if isinstance(proof, ProgramProof):
        facts |= {"messages": proof.messages, "least_depth": proof.least_depth, "data": proof.data}
    else:
        facts |= {"steps": proof.steps, "transfers": proof.transfers}
        facts |= {"shared_chunks": proof.shared_chunks, "folds": proof.folds and proof.order != ""}
    for name, fact in facts.items():
        claimed = claims[name]
        if name == "order":
            fits = (claimed == "") == (fact == "") and LEVELS.index(claimed) <= LEVELS.index(fact)
        else:
            fits = claimed == fact or (name in {"shared_chunks", "folds"} and claimed)
        if not fits:
            return f"{name} is claimed to be {claimed!r}; simcoll finds {fact!r}"
    return ""
