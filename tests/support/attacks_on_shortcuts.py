"""Directed attacks on what stands for the whole: symmetries, pieces of one kind, parts of a vector,
channels, certificates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

import simcoll
from simcoll import Collective, SimcollError, transfers
from simcoll.types import REDUCE, SYNC, Repeat, Step
from tests.support.attack_cases import Attack, Case, Trial, schedule, schedule_case, with_blocks
from tests.support.attack_certificates import certificate, checker_words, has_checker
from tests.support.exact_player import Verdict, verdict_on


def altered_step(rng, step, layout, nranks, channels):
    """The step with one transfer changed, and what was changed."""
    columns = [np.array(column) for column in step.columns]
    row = rng.randrange(len(step))
    src_rank, src_chunk, dst_rank, dst_chunk, count, op, channel = columns
    what = rng.choice(
        (
            "dst_rank",
            "src_rank",
            "chunks",
            "src_chunk",
            "op",
            "dropped",
            "channel",
            "shortened",
            "swapped",
        )
    )
    piece = rng.choice((1, -1, layout.size // 3))
    if what == "dst_rank":
        dst_rank[row] = (dst_rank[row] + rng.randrange(1, nranks)) % nranks
    elif what == "src_rank":
        src_rank[row] = (src_rank[row] + rng.randrange(1, nranks)) % nranks
    elif what == "chunks":
        src_chunk[row], dst_chunk[row] = (int(c[row]) + piece for c in (src_chunk, dst_chunk))
    elif what == "src_chunk":
        src_chunk[row] = int(src_chunk[row]) + piece
    elif what == "op":
        op[row] = REDUCE - op[row]
    elif what == "channel":
        channel[row] = (channel[row] + 1) % channels
    elif what == "shortened":
        count[row] = max(1, int(count[row]) - 1)
    elif what == "swapped" and len(step) > 1:
        other = (row + rng.randrange(1, len(step))) % len(step)
        dst_rank[[row, other]] = dst_rank[[other, row]]
        dst_chunk[[row, other]] = dst_chunk[[other, row]]
    if what == "dropped":
        columns = [np.delete(column, row) for column in columns]
    return Step(*columns), f"{what} of transfer {row}"


def split_repeat(block: Repeat, turn: int) -> tuple[list, list, list]:
    """A repeat as what comes before one of its iterations, the steps of that iteration, and what
    comes after.
    """
    steps = list(block.unrolled())
    width = len(block.steps)
    before = (
        [Repeat(block.steps, turn, block.stride, block.base, block.modulus, block.order)]
        if turn
        else []
    )
    rest = steps[(turn + 1) * width : (turn + 2) * width]
    after = (
        [
            Repeat(
                tuple(rest),
                block.count - turn - 1,
                block.stride,
                block.base,
                block.modulus,
                block.order,
            )
        ]
        if rest
        else []
    )
    return before, steps[turn * width : (turn + 1) * width], after


def rings(rng, quick):
    """Symmetric schedules broken in one transfer of one iteration, of all iterations, or beside
    them.
    """
    kind = rng.choice(("all_reduce", "all_gather", "reduce_scatter"))
    n = rng.choice(
        (64, 65, 67) if quick else (64, 72, 100, 128, 200 if kind == "all_gather" else 150)
    )
    channels = rng.choice((1, 1, 2))
    plain = simcoll.schedule(kind, "ring", nranks=n, channels=channels)
    wide = simcoll.Schedule("attack", plain.layout, plain.source, max(channels, 2))
    blocks = list(plain.blocks())
    repeats = [k for k, block in enumerate(blocks) if isinstance(block, Repeat)]
    place = rng.choice(repeats)
    before, one, after = split_repeat(blocks[place], rng.randrange(blocks[place].count))
    whole = [*blocks[:place], *before, *one, *after, *blocks[place + 1 :]]
    label = f"{kind} ring n={n} channels={channels}"
    yield schedule_case(
        f"{label}, one iteration apart", True, lambda: with_blocks(wide, whole), exact=False
    )
    for way in ("one iteration", "all iterations", "another step", "added"):
        if way == "one iteration":
            inner = rng.randrange(len(one))
            step, what = altered_step(rng, one[inner], plain.layout, n, 2)
            steps = [
                *blocks[:place],
                *before,
                *one[:inner],
                step,
                *one[inner + 1 :],
                *after,
                *blocks[place + 1 :],
            ]
        elif way == "all iterations":
            block = blocks[place]
            inner = rng.randrange(len(block.steps))
            step, what = altered_step(rng, block.steps[inner], plain.layout, n, 2)
            changed = Repeat(
                (*block.steps[:inner], step, *block.steps[inner + 1 :]),
                block.count,
                block.stride,
                block.base,
                block.modulus,
                block.order,
            )
            steps = [*blocks[:place], changed, *blocks[place + 1 :]]
        elif way == "another step":
            others = [k for k, block in enumerate(blocks) if isinstance(block, Step)]
            if not others:
                continue
            at = rng.choice(others)
            step, what = altered_step(rng, blocks[at], plain.layout, n, 2)
            steps = [*blocks[:at], step, *blocks[at + 1 :]]
        else:
            # One more transfer between two chunks of one size: at the end, or between two
            # iterations.
            chunk = rng.randrange(plain.layout.output_base, plain.layout.size)
            a, b = rng.sample(range(n), 2)
            extra = transfers(a, chunk, b, chunk, op=rng.choice((0, REDUCE)))
            steps, what = [*whole, extra], f"{a} to {b} chunk {chunk} at the end"
            if rng.random() < 0.5:
                steps = [*blocks[:place], *before, extra, *one, *after, *blocks[place + 1 :]]
                what = f"{a} to {b} chunk {chunk} between iterations"
        yield by_player(f"{label}, {way}: {what}", with_blocks(wide, steps), exact=False)


def by_player(label, subject, **some) -> Case:
    """A case whose truth the player tells."""
    return schedule_case(
        label,
        verdict_on(subject).right,
        lambda: with_blocks(subject, list(subject.source())),
        **some,
    )


def routes(n, pieces, kind):
    """The transfers of every piece of a pipeline along a chain: ``(turn, src, dst, op)``."""
    up = [(k, k, k + 1, REDUCE if kind == "all_reduce" else 0) for k in range(n - 1)]
    down = (
        [(n - 1 + k, n - 1 - k, n - 2 - k, 0) for k in range(n - 1)] if kind == "all_reduce" else []
    )
    return [
        [(piece + 1 + turn, src, dst, op, 0) for turn, src, dst, op in up + down]
        for piece in range(pieces)
    ]


def pipeline(kind, n, pieces, moves):
    """The schedule of some routes; its first step loads the outputs."""
    empty = schedule(Collective(kind, n), [], chunks=pieces, channels=2)
    out = empty.layout.output()
    loaded = np.arange(n) if kind == "all_reduce" else 0
    steps, by_turn = [transfers(loaded, 0, loaded, out, count=pieces)], {}
    for piece, route in enumerate(moves):
        for turn, src, dst, op, channel in route:
            by_turn.setdefault(turn, []).append((src, out + piece, dst, out + piece, op, channel))
    for _, rows in sorted(by_turn.items()):
        src, src_chunk, dst, dst_chunk, op, channel = zip(*rows, strict=True)
        steps.append(transfers(src, src_chunk, dst, dst_chunk, op=op, channel=channel))
    return with_blocks(empty, steps)


def pieces(rng, quick):
    """Pipelines of many pieces, one of which differs in one transfer, its order, or the steps that
    its transfers share.
    """
    kind, n = rng.choice(("broadcast", "all_reduce")), rng.randint(3, 6)
    many = rng.choice((128, 129, 160)) if quick else rng.choice((128, 200, 513))
    plain = routes(n, many, kind)
    yield schedule_case(
        f"{kind} n={n}, {many} pieces", True, lambda: pipeline(kind, n, many, plain), exact=False
    )
    for _ in range(6 if quick else 14):
        moves = [list(route) for route in plain]
        piece, at = rng.randrange(many), rng.randrange(len(plain[0]))
        route = moves[piece]
        turn, src, dst, op, channel = route[at]
        what = rng.choice(
            (
                "later",
                "shared step",
                "exchanged",
                "other end",
                "other op",
                "dropped",
                "twice",
                "other channel",
                "shortcut",
            )
        )
        if what == "later":
            route[at:] = [(t + 3, *rest) for t, *rest in route[at:]]
        elif what == "shared step" and at:
            route[at] = (route[at - 1][0], src, dst, op, channel)
        elif what == "exchanged" and at:
            first = route[at - 1]
            route[at - 1], route[at] = (first[0], *route[at][1:]), (turn, *first[1:])
        elif what == "other end":
            route[at] = (turn, src, (dst + rng.randrange(1, n)) % n, op, channel)
        elif what == "other op":
            route[at] = (turn, src, dst, REDUCE - op, channel)
        elif what == "dropped":
            del route[at]
        elif what == "twice":
            route.append((many + 3 * n, src, dst, op, channel))
        elif what == "other channel":
            route[at] = (turn, src, dst, op, 1)
        elif what == "shortcut":
            route[at] = (turn, (src + rng.randrange(1, n)) % n, dst, op, channel)
        if what == "other end" and route[at][1] == route[at][2]:
            continue
        subject = pipeline(kind, n, many, moves)
        yield by_player(
            f"{kind} n={n}, {many} pieces: {what} at transfer {at} of piece {piece}",
            subject,
            exact=False,
        )


def long_vectors(rng, quick):
    """Vectors so long that they are proved part by part, with one chunk missing or added twice near
    the edge of a part.
    """
    chunks = (2**14 if quick else 2**21) + rng.randrange(1, 99)
    for kind in ("broadcast",) if quick else ("broadcast", "all_reduce"):
        empty = schedule(Collective(kind, 2), [], chunks=chunks)
        out, r = empty.layout.output(), np.arange(2)
        spot = rng.choice((0, chunks - 1, chunks // 2, chunks // 3, rng.randrange(1, chunks - 1)))
        cuts = sorted({0, spot, spot + 1, chunks})
        edges = [(a, b - a) for a, b in pairwise(cuts)]
        for what in ("whole", "missing", "twice"):
            start, count = (
                np.array(c)
                for c in zip(*[e for e in edges if what != "missing" or e[0] != spot], strict=True)
            )
            if kind == "broadcast":
                load, more = (
                    transfers(0, 0, 0, out, count=chunks),
                    transfers(0, start, 1, out + start, count=count),
                )
                last = transfers(0, spot, 1, out + spot, op=REDUCE) if what == "twice" else None
            else:
                load = transfers(r, 0, r, out, count=chunks)
                src, dst = np.repeat([0, 1], len(start)), np.repeat([1, 0], len(start))
                more = transfers(
                    src,
                    np.tile(start, 2),
                    dst,
                    out + np.tile(start, 2),
                    count=np.tile(count, 2),
                    op=REDUCE,
                )
                last = transfers(0, spot, 1, out + spot, op=REDUCE) if what == "twice" else None
            steps = [load, more, *([last] if last is not None else [])]
            verdict = Verdict(
                what == "whole", "position-independent" if kind == "all_reduce" else "", what
            )
            # May be declined, in words, where the machine has too little memory left.
            trial = Trial(
                "verify",
                lambda e=empty, s=steps: simcoll.verify(with_blocks(e, s)),
                may_decline=True,
            )
            yield Case(
                f"{kind}, {chunks} chunks, chunk {spot} {what}",
                what == "whole",
                (trial,),
                lambda v=verdict: v,
            )


def channels(rng, quick):
    """Thousands of channels with a piece each, one of them broken; and barriers whose news arrive
    on other channels than they leave on.
    """
    n, many = 3, rng.randint(300, 500) if quick else rng.choice((1000, 2500, 4000))
    empty = schedule(Collective("all_gather", n), [], chunks=many, channels=many)
    layout, r, lane = empty.layout, np.arange(n)[:, None], np.arange(many)
    load = transfers(r, layout.input(0, lane), r, layout.output(r, lane), channel=lane)
    turns = [
        (r + 0 * lane, layout.output((r - k) % n, lane), (r + 1) % n + 0 * lane, lane + 0 * r)
        for k in range(n - 1)
    ]
    steps = [load, *(transfers(a, b, c, b, channel=d) for a, b, c, d in turns)]
    # Kept short where the channel numbers alone would make the lowering long.
    some = {"exact": False, "lowering": False}
    yield schedule_case(f"{many} channels", True, lambda: with_blocks(empty, steps), **some)
    turn, rank, broken = rng.randrange(n - 1), rng.randrange(n), rng.randrange(many)
    a, b, c, d = (np.array(np.broadcast_to(column, (n, many))) for column in turns[turn])
    for what in ("another destination", "another channel", "no such channel", "another piece"):
        c2, b2, d2 = c.copy(), b.copy(), d.copy()
        if what == "another destination":
            c2[rank, broken] = rank
        elif what == "another piece":
            b2[rank, broken] += 1 if broken + 1 < many else -1
        else:
            d2[rank, broken] = many if what == "no such channel" else (broken + 1) % many
        changed = [*steps[: turn + 1], transfers(a, b, c2, b2, channel=d2), *steps[turn + 2 :]]
        yield by_player(f"{many} channels, {what} in one", with_blocks(empty, changed), **some)
    yield from _barriers(rng)


def _barriers(rng):
    n, many = rng.randint(3, 20), 4096
    empty = schedule(Collective("barrier", n), [], channels=many)
    r, rounds = np.arange(n), (n - 1).bit_length()
    lanes = {
        "one channel": [rng.randrange(many)] * rounds,
        "another channel each round": list(range(rounds)),
        "the last round elsewhere": [5] * (rounds - 1) + [many - 1],
        "all on the last channel": [many - 1] * rounds,
    }
    for name, channel in lanes.items():
        steps = [
            transfers(r, 0, (r + 2**k) % n, 0, op=SYNC, channel=channel[k]) for k in range(rounds)
        ]
        yield by_player(f"barrier n={n}, {name}", with_blocks(empty, steps), exact=False)
    lone = rng.randrange(n)
    steps = [
        transfers(r, 0, (r + 2**k) % n, 0, op=SYNC, channel=np.where(r == lone, 1, 0))
        for k in range(rounds)
    ]
    yield by_player(
        f"barrier n={n}, one rank on another channel", with_blocks(empty, steps), exact=False
    )
    short = [transfers(r, 0, (r + 2**k) % n, 0, op=SYNC) for k in range(rounds)]
    short[-1] = Step(*(np.delete(column, lone) for column in short[-1].columns))
    yield by_player(f"barrier n={n}, one message missing", with_blocks(empty, short), exact=False)
    sums = [transfers(r, 0, (r + k) % n, 0, op=SYNC, count=2**40) for k in range(1, n)]
    yield by_player(f"barrier n={n}, counts mean nothing", with_blocks(empty, sums), exact=False)


def certificate_case(label, right, make) -> Iterator[Case]:
    """Ask the checker about a certificate."""
    if has_checker():
        verdict = Verdict(right, "", label)
        yield Case(
            label, right, (Trial("simcoll_check", lambda: checker_words(make())),), lambda: verdict
        )


def renumberings(rng, quick):
    """Certificates of proofs by symmetry whose renumbering is none, or does not fit, or whose
    schedule is broken in one place.
    """
    kind, n = (
        rng.choice(("all_reduce", "all_gather", "reduce_scatter")),
        rng.choice((4, 6, 8, 12, 16)),
    )
    plain = simcoll.schedule(kind, "ring", nranks=n)
    whole = certificate(plain, verdict_on(plain))
    whole["claims"] |= {"shared_chunks": False, "folds": False}
    chunks = plain.layout.chunks
    places = chunks * (1 if kind == "all_reduce" else n)
    first, *_ = [block for block in plain.blocks() if isinstance(block, Repeat)]
    step = first.steps[0]
    way = int(step.dst_rank[0] - step.src_rank[0]) % n
    forward = [(r + way) % n for r in range(n)]
    shifts = {"all_reduce": [(p + way * (places // n)) % places for p in range(places)]}
    place = shifts.get(kind, [(p + way * chunks) % places for p in range(places)])
    symmetry = {"kind": "by symmetry", "rank": [forward], "lane": 0, "place": place}

    def proof(**changes):
        return lambda: {**whole, "proof": {**symmetry, **changes}}

    if kind == "all_reduce" and has_checker():
        # Which way the pieces rotate depends on the ring; one of the two ways is right.
        back = [(p - way * (places // n)) % places for p in range(places)]
        try:
            checker_words(proof()())
        except SimcollError:
            symmetry["place"] = place = back
    yield from certificate_case(f"{kind} ring n={n}", True, proof())
    yield from certificate_case(
        f"{kind} ring n={n}, nothing renumbered",
        True,
        proof(rank=[list(range(n))], place=list(range(places))),
    )
    a, b = rng.sample(range(n), 2)
    doubled, swapped = list(forward), list(forward)
    doubled[a] = doubled[b]
    swapped[a], swapped[b] = swapped[b], swapped[a]
    same = [0] * n
    twice = list(place)
    twice[a] = twice[b]
    wrong = {
        "two ranks to one": {"rank": [doubled]},
        "all ranks to 0": {"rank": [same]},
        "two images exchanged": {"rank": [swapped]},
        "ranks only": {"place": list(range(places))},
        "places only": {"rank": [list(range(n))]},
        "two places to one": {"place": twice},
        "all places to 0": {"place": [0] * places},
        "negative ranks": {"rank": [[r - n for r in forward]]},
        "negative places": {"place": [p - places for p in place]},
        "places beyond": {"place": [p + places for p in place]},
        "a short list of ranks": {"rank": [forward[:-1]]},
        "a long list of ranks": {"rank": [[*forward, 0]]},
        "a short list of places": {"place": place[:-1]},
        "no lane": {"rank": []},
        "a lane that does not exist": {"lane": 1},
        "a negative lane": {"lane": -1},
        "fractions": {"rank": [[float(r) for r in forward]]},
        "texts": {"place": [str(p) for p in place]},
        "truths for 0 and 1": {"rank": [[bool(r) if r < 2 else r for r in forward]]},
        "ranks modulo 2^64": {"rank": [[r + 2**64 for r in forward]]},
        "steps of two": {"rank": [[(r + 2 * way) % n for r in range(n)]]},
    }
    for label, changes in wrong.items():
        if label != "steps of two" or n % 2 == 0:
            yield from certificate_case(f"{kind} ring n={n}: {label}", False, proof(**changes))
    place_of = rng.choice(
        [k for k, block in enumerate(plain.blocks()) if isinstance(block, Repeat)]
    )
    blocks = list(plain.blocks())
    before, one, after = split_repeat(blocks[place_of], rng.randrange(blocks[place_of].count))
    for _ in range(4):
        step, what = altered_step(rng, one[0], plain.layout, n, 1)
        broken = with_blocks(
            plain, [*blocks[:place_of], *before, step, *one[1:], *after, *blocks[place_of + 1 :]]
        )
        if not verdict_on(broken).right:
            false = certificate(broken, verdict_on(broken))
            false["claims"] = {**whole["claims"], "transfers": false["claims"]["transfers"]}
            yield from certificate_case(
                f"{kind} ring n={n}, one iteration: {what}",
                False,
                lambda c=false: {**c, "proof": symmetry},
            )


def claims(rng, quick):
    """Certificates that claim too much, and numbers that are written in other ways."""
    plain = rng.choice(
        [
            simcoll.schedule(
                "all_reduce", rng.choice(("ring", "tree", "rabenseifner")), nranks=rng.randint(3, 6)
            ),
            simcoll.schedule("reduce_scatter", "ring", nranks=rng.randint(2, 6)),
            simcoll.schedule("all_gather", "bruck", nranks=rng.randint(2, 6)),
        ]
    )
    verdict = verdict_on(plain)
    whole = certificate(plain, verdict)
    orders = ("any", "rank-consistent", "run-consistent", "position-independent")
    yield from certificate_case(f"{plain}", True, lambda: whole)

    def claiming(**changes):
        return lambda: {**whole, "claims": {**whole["claims"], **changes}}

    for order in orders:
        weaker = verdict.order and orders.index(order) <= orders.index(verdict.order)
        yield from certificate_case(f"{plain}: order {order}", bool(weaker), claiming(order=order))
    if verdict.order:
        yield from certificate_case(f"{plain}: no order", False, claiming(order=""))
    for name in ("steps", "transfers"):
        for more in (-1, 1, 2**64, -(2**64)):
            yield from certificate_case(
                f"{plain}: {name} + {more}", False, claiming(**{name: whole["claims"][name] + more})
            )
    text = json.dumps(whole)
    spelt = {
        "true for 1": text.replace('"version": 1', '"version": true'),
        "a fraction": text.replace('"version": 1', '"version": 1.0'),
        "an exponent": text.replace('"version": 1', '"version": 1e0'),
        "a text": text.replace('"version": 1', '"version": "1"'),
        "a key twice": text.replace('"version": 1', '"version": 1, "version": 1'),
        "an unknown key": text.replace('"version": 1', '"version": 1, "more": 1'),
        "not a number": text.replace('"version": 1', '"version": NaN'),
        "a longer version": text.replace('"version": 1', '"version": 18446744073709551617'),
        "truth for a count": text.replace('"count": [1', '"count": [true'),
        "a fraction for a count": text.replace('"count": [1', '"count": [1.0'),
        "a rank below 0": text.replace('"src_rank": [0', '"src_rank": [-' + str(plain.nranks)),
        "a rank modulo 2^64": text.replace('"src_rank": [0', '"src_rank": [18446744073709551616'),
        "cut off": text[:-1],
        "something after": text + "0",
    }
    for label, changed in spelt.items():
        if changed != text:
            yield from certificate_case(f"{plain}: {label}", False, lambda c=changed: c.encode())
    yield from _hidden_facts(rng)


def _hidden_facts(rng):
    """Folds and shared chunks that a certificate denies."""
    n = rng.randint(3, 6)
    folded = schedule(Collective("reduce", n), [])
    r = np.arange(1, n)
    steps = [transfers(0, 0, 0, 1), transfers(r, 0, 0, 1, op=REDUCE)]
    subject = with_blocks(folded, steps)
    whole = certificate(subject, verdict_on(subject))
    for folds in (True, False):
        yield from certificate_case(
            f"folds: {folds}",
            folds,
            lambda f=folds: {**whole, "claims": {**whole["claims"], "folds": f}},
        )
    lanes = schedule(Collective("reduce", n), [], channels=2)
    steps = [
        transfers(0, 0, 0, 1),
        *[transfers(s, 0, 0, 1, op=REDUCE, channel=s % 2) for s in range(1, n)],
    ]
    shared = with_blocks(lanes, steps)
    content = certificate(shared, verdict_on(shared))
    for claim in (True, False):
        yield from certificate_case(
            f"shared chunks: {claim}",
            claim,
            lambda c=claim: {**content, "claims": {**content["claims"], "shared_chunks": c}},
        )


ATTACKS = (
    Attack("rings", "symmetric schedules broken in one transfer", rings),
    Attack("pieces", "pipelines in which one piece differs", pieces),
    Attack(
        "long vectors", "vectors that are proved part by part, with one chunk wrong", long_vectors
    ),
    Attack(
        "channels", "thousands of channels, one of them broken; barriers on many channels", channels
    ),
    Attack("renumberings", "certificates whose renumbering is none or does not fit", renumberings),
    Attack("claims", "certificates that claim too much, and numbers written in other ways", claims),
)
