"""Directed attacks on sums: wraps, faults that nearly cancel, structured multiplicities, computed
collisions, folds, switches, brackets.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np

import simcoll
from simcoll import Collective, transfers
from simcoll.proving.kernel import Fingerprints
from simcoll.types import MULTICAST, REDUCE, SWITCH_REDUCE, Repeat, Step
from tests.support.attack_cases import WEAKER, Attack, schedule, schedule_case, with_blocks
from tests.support.lattice import collision

P61 = 2**61 - 1
DOUBLINGS = (8, 16, 31, 32, 53, 61, 62, 63, 64, 128)
KINDS = ("all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather")


def scaled_collective(kind, n, times, *, more=0, discarded=False):
    """A collective whose sums hold some contributions ``times`` times, by doubling and adding.

    ``more`` further doublings of the helper slot change nothing; ``discarded`` copies the right
    value over the result.
    """
    collective, r = Collective(kind, n), np.arange(n)
    blocks = [0] if kind in ("broadcast", "reduce", "all_reduce") else [[rank] for rank in range(n)]
    empty = schedule(collective, [], scratch=blocks)
    lay = empty.layout
    slot = r if kind in ("reduce_scatter", "all_gather") else 0 * r
    source = lay.input(slot) if kind == "reduce_scatter" else lay.input(0 * r)
    out = lay.output(slot) if kind == "all_gather" else lay.output(0 * r)
    ranks = np.array([0]) if kind in ("broadcast", "reduce") else r
    source, out, power = source[ranks], out[ranks], lay.scratch_at(0)
    steps = [transfers(ranks, source, ranks, power)]
    twice = transfers(ranks, power, ranks, power, op=REDUCE)
    for bit in range(times.bit_length()):
        if times >> bit & 1:
            first = times & ((1 << bit) - 1) == 0
            steps.append(transfers(ranks, power, ranks, out, op=0 if first else REDUCE))
        steps.append(twice)
    steps += [twice] * more
    if discarded:
        steps.append(transfers(ranks, source, ranks, out))
    for k in range(1, n):
        if kind == "broadcast":
            steps.append(transfers(0, out[0], k, lay.output(0)))
        elif kind == "all_gather":
            steps.append(transfers(r, out, (r + k) % n, out))
        elif kind == "reduce":
            steps.append(transfers(k, lay.input(0), 0, lay.output(0), op=REDUCE))
        else:
            to = (r + k) % n
            steps.append(
                transfers(
                    r,
                    lay.input(to if kind == "reduce_scatter" else 0),
                    to,
                    lay.output(0),
                    op=REDUCE,
                )
            )
    return with_blocks(empty, steps)


def wraps(rng, quick):
    """Multiplicities that vanish in narrow, wrapping, floating or modular arithmetic."""
    odd = (
        [1 + k * P61 for k in (1, 2, 3, 2**3, 2**64)]
        + [1 + 2**k for k in DOUBLINGS]
        + [P61, P61 + 2, 2**64 - 1, 2**63 - 1, 2**61, 2**64]
    )
    odd += [
        1 + rng.randrange(1, 9) * P61 + rng.randrange(9) * 2**64 + rng.randrange(9) * P61 * 2**64
        for _ in range(3)
    ]
    for times in rng.sample(odd, 3 if quick else 6):
        kind, n = rng.choice(KINDS), rng.randint(2, 5)
        yield schedule_case(
            f"{kind} n={n} {times} times",
            False,
            lambda k=kind, n=n, t=times: scaled_collective(k, n, t),
        )
        more = rng.choice(DOUBLINGS)
        yield schedule_case(
            f"{kind} n={n} once, helper doubled {more} times",
            True,
            lambda k=kind, n=n, m=more: scaled_collective(k, n, 1, more=m),
        )
        yield schedule_case(
            f"{kind} n={n} {times} times, then discarded",
            True,
            lambda k=kind, n=n, t=times: scaled_collective(k, n, t, discarded=True),
        )


def balanced_wraps(rng, quick):
    """Two multiplicities, wrong by amounts whose sum vanishes in every modulus, so that the total
    number of leaves looks right.
    """
    for a, b in rng.sample(
        [
            (P61 * 2**63, P61 * 2**63),
            (P61 * 2**64, 0),
            (2**64, P61 * 2**64 - 2**64),
            (2**63 * P61, 3 * 2**63 * P61),
            (P61, P61 * (2**64 - 1)),
        ],
        2,
    ):
        empty = schedule(Collective("all_reduce", 2), [], scratch=[0, 0])
        layout = empty.layout
        r, steps = np.arange(2), []
        for rank, times in ((0, 1 + a), (1, 1 + b)):
            power = layout.scratch_at(rank)
            steps.append(transfers(rank, layout.input(), r, power))
            for bit in range(times.bit_length()):
                if times >> bit & 1:
                    first = rank == 0 and times & ((1 << bit) - 1) == 0
                    steps.append(transfers(r, power, r, layout.output(), op=0 if first else REDUCE))
                steps.append(transfers(r, power, r, power, op=REDUCE))
        yield schedule_case(
            f"1 + {a} and 1 + {b} times", False, lambda m=empty, s=steps: with_blocks(m, s)
        )
        good = [
            *steps,
            transfers(r, layout.input(), r, layout.output()),
            transfers(r, layout.input(), 1 - r, layout.output(), op=REDUCE),
        ]
        yield schedule_case(
            f"{a} and {b} times, discarded", True, lambda m=empty, s=good: with_blocks(m, s)
        )


def doubled_ring(n, doublings, *, discarded, kind="all_reduce"):
    """A ring, large enough for a proof by symmetry, whose ranks first double what they hold."""
    empty = simcoll.schedule(kind, "ring", nranks=n)
    first, *rest = empty.blocks()
    double = transfers(
        first.dst_rank,
        first.dst_chunk,
        first.dst_rank,
        first.dst_chunk,
        count=first.count,
        op=REDUCE,
    )
    again = Step(
        *first.columns[:5], np.full(len(first), 0 if discarded else REDUCE, np.int8), first.channel
    )
    return with_blocks(empty, [first, Repeat((double,), doublings, 0, 0, 1), again, *rest])


def doubled_rings(rng, quick):
    """Doublings on all ranks of a symmetric schedule, or on all pieces of a long vector."""
    for _ in range(1 if quick else 3):
        n, doublings = (
            rng.choice((64, 65, 72) if quick else (64, 81, 100, 128)),
            rng.choice(DOUBLINGS),
        )
        for kind in ("all_reduce",) if quick else ("all_reduce", "all_gather"):
            for discarded in (False, True):
                label = f"{kind} ring n={n}, {doublings} doublings{', discarded' * discarded}"
                make = lambda n=n, d=doublings, x=discarded, k=kind: doubled_ring(  # noqa: E731
                    n, d, discarded=x, kind=k
                )
                yield schedule_case(label, discarded, make, exact=False)
        pieces, n = rng.choice((128, 130, 200)), rng.randint(2, 3)
        for discarded in (False, True):
            empty = schedule(Collective("all_reduce", n), [], chunks=pieces)
            layout, r = empty.layout, np.arange(n)
            load = transfers(r, layout.input(), r, layout.output(), count=pieces)
            double = transfers(r, layout.output(), r, layout.output(), count=pieces, op=REDUCE)
            again = transfers(
                r, layout.input(), r, layout.output(), count=pieces, op=0 if discarded else REDUCE
            )
            others = [
                transfers(r, layout.input(), (r + k) % n, layout.output(), count=pieces, op=REDUCE)
                for k in range(1, n)
            ]
            steps = [load, *[double] * doublings, again, *others]
            yield schedule_case(
                f"{pieces} pieces n={n}, {doublings} doublings{', discarded' * discarded}",
                discarded,
                lambda m=empty, s=steps: with_blocks(m, s),
                lowering=False,
            )


def all_to_one_each(empty, counts, order=None):
    """An all_reduce in which rank d adds rank s ``counts[d][s]`` times, in an order of the sources
    that may differ by rank.
    """
    n, layout, rows = empty.nranks, empty.layout, []
    for rank in range(n):
        sources = [s for s in (order[rank] if order else range(n)) for _ in range(counts[rank][s])]
        rows.append(sources)
    steps = []
    for turn in range(max(map(len, rows))):
        pairs = [(sources[turn], rank) for rank, sources in enumerate(rows) if turn < len(sources)]
        src, dst = (np.array(column) for column in zip(*pairs, strict=True))
        steps.append(
            transfers(
                src,
                layout.input(),
                dst,
                layout.output(),
                op=REDUCE if turn else 0,
                count=layout.chunks,
            )
        )
    return with_blocks(empty, steps)


def near_cancelling(rng, quick):
    """Contributions that are missing at one place and doubled at another, so that sums over ranks,
    pieces or outputs are right.
    """
    n = rng.randint(4, 6 if quick else 12)
    empty = schedule(Collective("all_reduce", n), [], chunks=rng.choice((1, 2, 3)))
    ones = [[1] * n for _ in range(n)]
    order = [rng.sample(range(n), n) for _ in range(n)]
    yield schedule_case(
        f"n={n} every rank its order", True, lambda: all_to_one_each(empty, ones, order)
    )
    a, b, c, d = rng.sample(range(n), 4)
    for label, changes in (
        ("one missing, one twice", [(a, b, -1), (a, c, 1)]),
        (
            "the same and the opposite at another rank",
            [(a, b, -1), (a, c, 1), (d, b, 1), (d, c, -1)],
        ),
        ("missing here, twice there", [(a, c, -1), (b, c, 1)]),
        ("two missing, one three times", [(a, b, -1), (a, c, -1), (a, d, 2)]),
        (
            "everywhere alike",
            [(rank, b, -1) for rank in range(n)] + [(rank, c, 1) for rank in range(n)],
        ),
        (
            "round the ranks",
            [(r, r, -1) for r in range(n)] + [(r, (r + 1) % n, 1) for r in range(n)],
        ),
    ):
        counts = [list(row) for row in ones]
        for dst, src, more in changes:
            counts[dst][src] += more
        yield schedule_case(label, False, lambda x=counts: all_to_one_each(empty, x))
    # Pieces exchanged at one rank: the sum over pieces is right.
    chunks = rng.choice((2, 5))
    equal = schedule(Collective("all_reduce", 3), [], chunks=chunks, divisible=True)
    layout, r, piece = equal.layout, np.arange(3)[:, None], np.arange(chunks)
    steps = [
        transfers(r, piece, (r + k) % 3, layout.output(0, piece), op=REDUCE if k else 0)
        for k in range(3)
    ]
    moved = np.where((r == 1) & (piece < 2), 1 - piece, piece)
    wrong = [*steps[:2], transfers(r, moved, (r + 2) % 3, layout.output(0, piece), op=REDUCE)]
    yield schedule_case("pieces in their places", True, lambda: with_blocks(equal, steps))
    yield schedule_case(
        "two pieces of one rank exchanged", False, lambda: with_blocks(equal, wrong)
    )


def structured(rng, quick):
    """Multiplicities with a structure: powers of two, Fibonacci numbers, powers of primes; their
    total is right.
    """
    n = rng.randint(8, 12 if quick else 40)
    empty = schedule(Collective("all_reduce", n), [])
    ones = [[1] * n for _ in range(n)]
    families = {
        "powers of two": [1, 2, 4, 8, 16],
        "Fibonacci": [1, 1, 2, 3, 5, 8, 13],
        "powers of three": [1, 3, 9, 27],
        "primes": [2, 3, 5, 7, 11, 13],
        "powers of p": [P61 % 7, 4, 2],
        "squares": [1, 4, 9, 16],
    }
    for name in rng.sample(sorted(families), 3):
        counts, left = [], n
        for number in families[name]:
            if number <= left and number != 1:
                counts.append(number)
                left -= number
        counts = (counts + [1] * left + [0] * n)[:n]
        rng.shuffle(counts)
        yield schedule_case(
            f"{name}: {counts}", False, lambda x=counts: all_to_one_each(empty, [x] * n)
        )
    rank, src, other = rng.randrange(n), *rng.sample(range(n), 2)
    rows = [list(row) for row in ones]
    rows[rank][src], rows[rank][other] = 0, 2
    yield schedule_case("one rank only", False, lambda: all_to_one_each(empty, rows))
    yield schedule_case(
        f"all once, n={n}",
        True,
        lambda: all_to_one_each(empty, ones, [rng.sample(range(n), n)] * n),
    )


def splitmix(index: int, salt: int) -> int:
    """The token of a chunk in earlier versions: SplitMix64's finaliser, known to everybody (Steele,
    Lea, Flood, OOPSLA 2014).
    """
    mask = 2**64 - 1
    z = (index + 1 + (salt << 40)) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


def lattice(rng, quick):
    """Collisions of sums, by lattice reduction: of public tokens, as earlier versions had, and for
    the salt of an earlier proof.
    """
    n = rng.randint(66, 80)
    empty = schedule(Collective("all_reduce", n), [])
    right = all_to_one_each(empty, [[1] * n] * n)
    yield schedule_case(
        f"n={n}, all once", True, lambda: with_blocks(right, list(right.source())), exact=not quick
    )
    salt = simcoll.verify(right, exact=False).salt
    public = [splitmix(rank, 1) for rank in range(n)]
    salted = Fingerprints(salt, n, np.arange(1)).tokens[:, 0].tolist()
    for name, tokens, modulus in (
        ("public tokens modulo 2^64", public, 2**64),
        ("public tokens modulo p", public, P61),
        ("tokens of an earlier salt", salted, P61),
    ):
        vector = collision(rng, [token % modulus for token in tokens], modulus, 9)
        if vector is None:
            continue
        counts = [1 + more for more in vector]
        one = [counts if rank == 5 else [1] * n for rank in range(n)]
        for where, rows in (("every rank", [counts] * n), ("one rank", one))[: 1 if quick else 2]:
            yield schedule_case(
                f"n={n}, {name}, {where}",
                False,
                lambda x=rows: all_to_one_each(empty, x),
                exact=not quick,
            )


def brackets_by_switch(pairings):
    """An all_reduce whose switch adds pairs of ranks: each of two ranks may pair the four ranks of
    a group differently.

    ``pairings[k][i]``: whether the k-th of the two ranks adds (a + c) and (b + d) of group i
    instead of (a + b) and (c + d).
    """
    groups = len(pairings[0])
    n = 4 * groups
    empty = schedule(Collective("all_reduce", n), [], scratch=[0, 0])
    layout, r, first = empty.layout, np.arange(n), 4 * np.arange(groups)
    slots = layout.scratch_at(0), layout.scratch_at(1)
    ends = np.concatenate([first, first + 3])
    steps = [transfers(ends, layout.input(), ends, slot) for slot in slots]
    steps.append(
        transfers(
            np.concatenate([first + 1, first + 2, first + 2, first + 1]),
            layout.input(),
            np.concatenate([first, first, first + 3, first + 3]),
            np.repeat([slots[0], slots[1], slots[0], slots[1]], groups),
            op=REDUCE,
        )
    )
    for rank, other in enumerate(pairings):
        chosen = np.tile(np.where(other, slots[1], slots[0]), 2)
        steps.append(transfers(ends, chosen, rank, layout.output(), op=SWITCH_REDUCE))
    steps.append(transfers(0, layout.output(), r[2:], layout.output()))
    return with_blocks(empty, steps)


def lattice_of_brackets(rng, quick):
    """Brackets whose public hashes collide: two ranks that add differently must not be called
    consistent.
    """
    mask, groups = 2**64 - 1, 100
    leaf = [splitmix(rank, 2) for rank in range(4 * groups)]

    def pair(a, b):
        z = (leaf[a] + leaf[b]) & mask
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return z ^ z >> 31

    chosen = sorted(rng.sample(range(groups), 90))
    differences = [
        pair(f, f + 1) + pair(f + 2, f + 3) - pair(f, f + 2) - pair(f + 1, f + 3)
        for f in (4 * g for g in chosen)
    ]
    vector = collision(rng, [number & mask for number in differences], 2**64, 1)
    straight, other = [False] * groups, [False] * groups
    yield schedule_case(
        "all pairs alike", True, lambda: brackets_by_switch([straight, straight]), exact=False
    )
    other[rng.randrange(groups)] = True
    yield schedule_case(
        "one group paired otherwise",
        WEAKER,
        lambda: brackets_by_switch([straight, other]),
        exact=False,
    )
    if vector is not None:
        pairings = [[False] * groups, [False] * groups]
        for group, sign in zip(chosen, vector, strict=True):
            if sign:
                pairings[sign < 0][group] = True
        yield schedule_case(
            "colliding pairs", WEAKER, lambda: brackets_by_switch(pairings), exact=False
        )


def folds(rng, quick):
    """Folds of many operands: one missing, one twice, two from a rank, on two channels; and what
    order they have.
    """
    n = rng.randint(40, 300) if quick else rng.randint(1000, 3000)
    root, fold = rng.randrange(n), np.arange(n)
    empty = schedule(Collective("reduce", n, root), [], channels=2)
    inp, out = empty.layout.input(), empty.layout.output()
    load = transfers(root, inp, root, out)
    others = np.delete(fold, root)
    mixed = np.array(rng.sample(others.tolist(), n - 1))
    some = {"exact": False, "lowering": n <= 300}

    def fold_of(*steps):
        return lambda: with_blocks(empty, list(steps))

    missing, twice = rng.sample(others.tolist(), 2)
    yield schedule_case(
        f"n={n} ascending",
        True,
        fold_of(load, transfers(others, inp, root, out, op=REDUCE)),
        **some,
    )
    yield schedule_case(
        f"n={n} rows in any order",
        True,
        fold_of(load, transfers(mixed, inp, root, out, op=REDUCE)),
        **some,
    )
    yield schedule_case(
        f"n={n} onto a copy of the step",
        True,
        fold_of(
            transfers(
                np.append(mixed, root), inp, root, out, op=np.append(np.full(n - 1, REDUCE), 0)
            )
        ),
        **some,
    )
    fewer = others[others != missing]
    wrong = {
        "one missing": fold_of(load, transfers(fewer, inp, root, out, op=REDUCE)),
        "one missing, the root twice": fold_of(
            load, transfers(np.append(fewer, root), inp, root, out, op=REDUCE)
        ),
        "one missing, one in a second step": fold_of(
            load,
            transfers(fewer, inp, root, out, op=REDUCE),
            transfers(twice, inp, root, out, op=REDUCE),
        ),
        "on two channels": fold_of(
            load,
            transfers(others, inp, root, out, op=REDUCE, channel=(others == twice).astype(int)),
        ),
        "two copies": fold_of(
            transfers(
                np.append(others, [root, missing]),
                inp,
                root,
                out,
                op=np.append(np.full(n - 1, REDUCE), [0, 0]),
            )
        ),
    }
    for label, make in wrong.items():
        # A program has no folds, so a fold over two channels is a race there or an order of its
        # own.
        yield schedule_case(
            f"n={n} {label}",
            False,
            make,
            **{**some, "lowering": some["lowering"] and label != "on two channels"},
        )
    # Two of one rank would be right as numbers, but a fold takes one operand of each rank. The
    # order of the fold is ascending: a chain in that order is the same expression, any other is
    # not.
    n = rng.randint(3, 9)
    small = schedule(Collective("all_reduce", n), [])
    out, ranks = small.layout.output(), np.arange(n)
    start = transfers(0, inp, [0, 1], out)
    bulk = transfers(ranks[1:], inp, 0, out, op=REDUCE)
    rest = transfers(0, out, ranks[2:], out)
    for label, order, truth in (
        ("ascending", ranks[1:], True),
        ("descending", ranks[:0:-1], WEAKER),
    ):
        chain = [transfers(s, inp, 1, out, op=REDUCE) for s in order.tolist()]
        yield schedule_case(
            f"a fold and a chain, {label}, n={n}",
            truth,
            lambda c=chain: with_blocks(small, [start, bulk, *c, rest]),
        )


def switches(rng, quick):
    """Reductions in a switch: operands missing or twice, old content, other operations and channels
    at the same chunk.
    """
    n = rng.randint(3, 8) if quick else rng.choice((5, 64, 300, 1500))
    empty = schedule(Collective("all_reduce", n), [], channels=2)
    inp, out, r = empty.layout.input(), empty.layout.output(), np.arange(n)
    missing, twice = rng.sample(range(n), 2)
    fewer = np.delete(r, missing)

    def switch_of(sources, *more, before=(), channel=0, op=SWITCH_REDUCE):
        spread = transfers(0, out, r[1:], out, op=MULTICAST)
        return lambda: with_blocks(
            empty, [*before, transfers(sources, inp, 0, out, op=op, channel=channel), *more, spread]
        )

    some = {"exact": n <= 64, "lowering": n <= 64}
    load = transfers(r, inp, r, out)
    yield schedule_case(f"n={n}", True, switch_of(r), **some)
    yield schedule_case(
        f"n={n} old content does not count", True, switch_of(r, before=[load]), **some
    )
    yield schedule_case(f"n={n} one missing", False, switch_of(fewer), **some)
    yield schedule_case(
        f"n={n} one missing, one twice", False, switch_of(np.append(fewer, twice)), **some
    )
    yield schedule_case(f"n={n} one twice", False, switch_of(np.append(r, twice)), **some)
    yield schedule_case(
        f"n={n} one missing, for the old content",
        False,
        switch_of(fewer, before=[transfers(missing, inp, 0, out)]),
        **some,
    )
    yield schedule_case(
        f"n={n} two channels",
        False,
        switch_of(r, channel=(r == twice).astype(int)),
        exact=some["exact"],
        lowering=False,
    )
    mixed = np.where(r == twice, REDUCE, SWITCH_REDUCE)
    yield schedule_case(
        f"n={n} with a reduction",
        False,
        switch_of(r, op=mixed, before=[load]),
        exact=some["exact"],
        lowering=False,
    )
    copies = transfers(0, out, r[1:-1], out, op=MULTICAST)
    yield schedule_case(
        f"n={n} one rank not reached",
        False,
        lambda: with_blocks(empty, [transfers(r, inp, 0, out, op=SWITCH_REDUCE), copies]),
        **some,
    )


def in_tree(layout, rank, tree, n):
    """Steps by which a rank adds what its scratch slots hold, as a tree of nested pairs; the slot
    of the leftmost leaf gets the sum.
    """
    steps = []
    stack, order = [tree], []
    while stack:  # children before parents, without recursion: chains are deep
        node = stack.pop()
        if isinstance(node, tuple):
            order.append(node)
            stack += node
    first = {}
    for node in reversed(order):
        left, right = (first[id(child)] if isinstance(child, tuple) else child for child in node)
        first[id(node)] = left
        steps.append(
            transfers(rank, layout.scratch_at(right), rank, layout.scratch_at(left), op=REDUCE)
        )
    return steps, first[id(tree)] if isinstance(tree, tuple) else tree


def random_tree(rng, leaves):
    """A random tree over some leaves, with an innermost pair of pairs somewhere."""
    nodes = list(leaves)
    while len(nodes) > 1:
        a, b = (nodes.pop(rng.randrange(len(nodes))) for _ in range(2))
        nodes.append((a, b))
    return nodes[0]


def mirror_image(rng, tree):
    """The same brackets, with operands exchanged at random."""
    if not isinstance(tree, tuple):
        return tree
    a, b = (mirror_image(rng, child) for child in tree)
    return (b, a) if rng.random() < 0.5 else (a, b)


def other_brackets(tree):
    """Other brackets, at the deepest place that allows it: ((a, b), c) becomes (a, (b, c))."""
    deepest, stack = None, [(tree, (), 0)]
    while stack:
        node, path, depth = stack.pop()
        if not isinstance(node, tuple):
            continue
        if any(isinstance(child, tuple) for child in node) and (
            deepest is None or depth > deepest[1]
        ):
            deepest = path, depth
        stack += [(child, (*path, side), depth + 1) for side, child in enumerate(node)]

    def changed(node, path):
        if path:
            return tuple(
                changed(child, path[1:]) if side == path[0] else child
                for side, child in enumerate(node)
            )
        side = 0 if isinstance(node[0], tuple) else 1
        (a, b), c = node[side], node[1 - side]
        return a, (b, c)

    return changed(tree, deepest[0])


def added_in_trees(n, trees, chunks=1):
    """An all_reduce in which rank r adds the contributions of all ranks as ``trees[r]``."""
    empty = schedule(Collective("all_reduce", n), [], scratch=[0] * n, chunks=chunks)
    layout, r, steps = empty.layout, np.arange(n), []
    steps += [
        transfers(source, 0, r, layout.scratch_at(source), count=chunks) for source in range(n)
    ]
    for rank, tree in enumerate(trees):
        sums, slot = in_tree(layout, rank, tree, n)
        sums = [dataclasses.replace(step, count=np.full(1, chunks)) for step in sums]
        steps += [
            *sums,
            transfers(rank, layout.scratch_at(slot), rank, layout.output(), count=chunks),
        ]
    return with_blocks(empty, steps)


def trees(rng, quick):
    """Brackets that differ only deep inside must not be called equal; operands exchanged anywhere
    must be.
    """
    n = rng.randint(3, 7 if quick else 24)
    tree = random_tree(rng, range(n))
    same = [mirror_image(rng, tree) for _ in range(n)]
    yield schedule_case(f"n={n} mirrored", True, lambda: added_in_trees(n, same))
    other = list(same)
    other[rng.randrange(n)] = mirror_image(rng, other_brackets(tree))
    yield schedule_case(f"n={n} one rank regroups", WEAKER, lambda: added_in_trees(n, other))
    yield schedule_case(
        "((a+b)+c)+d and (a+b)+(c+d)",
        WEAKER,
        lambda: added_in_trees(4, [(((0, 1), 2), 3)] * 3 + [((0, 1), (2, 3))]),
    )
    yield schedule_case(
        "((a+b)+c)+d and d+(c+(b+a))",
        True,
        lambda: added_in_trees(4, [(((0, 1), 2), 3)] * 3 + [(3, (2, (1, 0)))]),
    )
    # Leaves exchanged between brackets of one shape are other expressions.
    yield schedule_case(
        "(a+b)+(c+d) and (a+c)+(b+d)",
        WEAKER,
        lambda: added_in_trees(4, [((0, 1), (2, 3))] * 3 + [((0, 2), (1, 3))]),
    )
    yield from _by_position(rng, quick)


def _by_position(rng, quick):
    """Position: the same brackets for all pieces, or other ones for one piece, on all ranks
    alike.
    """
    n, chunks = rng.randint(3, 5), rng.choice((2, 3, 130))
    empty = schedule(Collective("all_reduce", n), [], chunks=chunks)
    out, r = empty.layout.output(0, np.arange(chunks)), np.arange(n)

    def chain_over(orders):
        """Rank 0 adds piece p in the order ``orders[p]``, and gives it to all."""
        turns = np.array(orders)
        steps = [
            transfers(turns[:, k], np.arange(chunks), 0, out, op=REDUCE if k else 0)
            for k in range(n)
        ]
        return with_blocks(
            empty,
            [
                *steps,
                transfers(0, empty.layout.output(), r[1:], empty.layout.output(), count=chunks),
            ],
        )

    straight = [list(range(n))] * chunks
    swapped, moved = [list(row) for row in straight], [list(row) for row in straight]
    piece = rng.randrange(chunks)
    swapped[piece][:2] = 1, 0
    moved[piece] = [2, 1, 0, *range(3, n)]
    yield schedule_case(
        f"{chunks} pieces, one begins the other way round", True, lambda: chain_over(swapped)
    )
    yield schedule_case(f"{chunks} pieces, one in another order", WEAKER, lambda: chain_over(moved))


def chains(rng, quick):
    """Deep chains of reductions, equal or with two neighbours exchanged at the innermost place."""
    n = rng.randint(50, 120) if quick else rng.randint(200, 1200)
    empty = schedule(Collective("all_reduce", n), [])
    inp, out = empty.layout.input(), empty.layout.output()
    order = rng.sample(range(n), n)

    def chain_over(*orders):
        ranks = np.arange(len(orders))
        turns = enumerate(zip(*orders, strict=True))
        steps = [transfers(turn, inp, ranks, out, op=REDUCE if k else 0) for k, turn in turns]
        return with_blocks(empty, [*steps, transfers(0, out, np.arange(len(orders), n), out)])

    swap = [order[1], order[0], *order[2:]]
    deep = [order[0], order[2], order[1], *order[3:]]
    some = {"exact": n <= 200, "lowering": n <= 120}
    yield schedule_case(
        f"n={n}, the first two exchanged", True, lambda: chain_over(order, swap), **some
    )
    yield schedule_case(
        f"n={n}, the second and third exchanged", WEAKER, lambda: chain_over(order, deep), **some
    )
    missing = [*order[:-1], order[0]]
    yield schedule_case(
        f"n={n}, the last one replaced",
        False,
        lambda: with_blocks(
            empty,
            [
                transfers(order[0], inp, 0, out),
                *[transfers(s, inp, 0, out, op=REDUCE) for _, s in pairwise(missing)],
                transfers(0, out, np.arange(1, n), out),
            ],
        ),
        **some,
    )


ATTACKS = (
    Attack(
        "wraps",
        "multiplicities by doubling and adding that vanish modulo 2^k, 2^61 - 1 or in floats",
        wraps,
    ),
    Attack(
        "balanced wraps",
        "two multiplicities wrong by amounts whose total vanishes too",
        balanced_wraps,
    ),
    Attack(
        "doubled rings",
        "doublings on all ranks of a ring, or all pieces of a vector",
        doubled_rings,
    ),
    Attack("near-cancelling", "missing here, twice there, or pieces exchanged", near_cancelling),
    Attack(
        "structured",
        "multiplicities from doublings, Fibonacci numbers, powers of primes, with a right total",
        structured,
    ),
    Attack("lattice", "collisions of sums of public tokens, by lattice reduction", lattice),
    Attack(
        "lattice of brackets", "the same for hashes of expressions in a switch", lattice_of_brackets
    ),
    Attack("folds", "folds of thousands of operands", folds),
    Attack("switches", "operands of a switch", switches),
    Attack("trees", "brackets that differ deep inside, or mirrored ones", trees),
    Attack("chains", "deep chains of reductions", chains),
)
