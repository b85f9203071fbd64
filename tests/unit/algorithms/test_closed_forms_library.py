"""More closed forms on an ideal crossbar, each met exactly: ``A alpha + B n beta + G n gamma`` for
n bytes.

The model is that of Thakur, Rabenseifner, Gropp (IJHPCA 19, 2005) and Chan et al. (CCPE 19, 2007):
one send and one receive at a time, a message of s bytes costs alpha + s beta, reducing it gamma per
byte more. Bruck's forms are those of Bruck et al. (TPDS 8, 1997), neighbour exchange's those of
Chen et al. (HPC Asia 2005); PAT with full aggregation has Bruck's.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

import simcoll
from simcoll.algorithms import find_algorithm
from simcoll.algorithms.double_tree import binary_tree, tree_pair
from simcoll.core.protocol import ideal
from simcoll.emulator.run import emulate
from simcoll.errors import ConfigError
from simcoll.topology import load_topology
from simcoll.topology.families import boxes, crossbar, torus
from tests.support.cost_machines import coefficients

RANKS = (*range(2, 18), 24, 31, 32, 33, 48, 64)
POWERS = tuple(n for n in RANKS if n & (n - 1) == 0)
EVEN = tuple(n for n in RANKS if n % 2 == 0 and n != 31)
# Messages that share a port m ways have exact rates where 10**12 / m bytes per second is whole in
# micro-bytes.
SHARED = (2, 3, 5, 6, 9, 11, 17, 33)

ALPHA_FS = 2_000_000_000
BETA_FS = 1_000  # 1 TB/s
GAMMA_FS = 7


def lg_up(n):
    return (n - 1).bit_length()


def share(n):
    return Fraction(n - 1, n)


def bits(n):
    return Fraction(sum(i.bit_count() for i in range(n)), n)


def folded_reduce(n):
    # One whole vector more, to fold into a power of two.
    members = 1 << (n.bit_length() - 1)
    extra = members != n
    return 2 * lg_up(members) + extra, 2 * share(members) + extra, share(members) + extra


def pat_added(n):
    """Blocks that a rank adds one after the other in PAT's reduce-scatter.

    For distance d it is sent the sums for the multiples of 2 d from which d further is still a
    rank, and holds those in the order of their digits read backwards (the far ones first). What
    lies side by side is one range; the ranges of a step share the port and are added as they come,
    so that only the longest counts.
    """
    total, levels = 0, range(lg_up(n))
    for level in levels:
        held = sorted(
            range(0, n, 2 << level), key=lambda place: [place >> bit & 1 for bit in levels]
        )
        runs = "".join("x" if place + (1 << level) < n else " " for place in held).split()
        total += max(map(len, runs))
    return total


# (collective, algorithm): (A, B, G) by rank count, and the rank counts.
FORMS = {
    ("broadcast", "linear"): (lambda n: (n - 1, n - 1, 0), RANKS),
    ("broadcast", "scatter_ring"): (lambda n: (lg_up(n) + n - 1, 2 * share(n), 0), RANKS),
    ("broadcast", "scatter_doubling"): (lambda n: (2 * lg_up(n), 2 * share(n), 0), POWERS),
    ("broadcast", "chain"): (lambda n: (n - 1, n - 1, 0), RANKS),
    ("broadcast", "bine"): (lambda n: (lg_up(n), lg_up(n), 0), POWERS),
    ("reduce", "rabenseifner"): (folded_reduce, RANKS),
    ("reduce", "linear"): (lambda n: (n - 1, n - 1, n - 1), RANKS),
    ("reduce", "bine"): (lambda n: (lg_up(n),) * 3, POWERS),
    ("scatter", "linear"): (lambda n: (n - 1, share(n), 0), RANKS),
    ("scatter", "tree"): (lambda n: (lg_up(n), share(n), 0), RANKS),
    ("scatter", "bine"): (lambda n: (lg_up(n), share(n), 0), POWERS),
    ("gather", "linear"): (lambda n: (n - 1, share(n), 0), RANKS),
    ("gather", "tree"): (lambda n: (lg_up(n), share(n), 0), RANKS),
    ("gather", "bine"): (lambda n: (lg_up(n), share(n), 0), POWERS),
    ("all_gather", "bruck"): (lambda n: (lg_up(n), share(n), 0), RANKS),
    ("all_gather", "pat"): (lambda n: (lg_up(n), share(n), 0), RANKS),
    ("all_gather", "neighbor_exchange"): (lambda n: (n // 2, share(n), 0), EVEN),
    ("all_gather", "bine"): (lambda n: (lg_up(n), share(n), 0), POWERS),
    ("all_gather", "bidirectional_ring"): (lambda n: (n - 1, share(n), 0), RANKS),
    ("all_gather", "direct"): (lambda n: (1, share(n), 0), SHARED),
    ("reduce_scatter", "pairwise"): (lambda n: (n - 1, share(n), share(n)), RANKS),
    ("reduce_scatter", "pat"): (lambda n: (lg_up(n), share(n), Fraction(pat_added(n), n)), RANKS),
    ("reduce_scatter", "bine"): (lambda n: (lg_up(n), share(n), share(n)), POWERS),
    ("reduce_scatter", "direct"): (lambda n: (1, share(n), share(n)), SHARED),
    ("all_reduce", "swing"): (lambda n: (2 * lg_up(n), 2 * share(n), share(n)), POWERS),
    ("all_reduce", "bine"): (lambda n: (2 * lg_up(n), 2 * share(n), share(n)), POWERS),
    ("all_reduce", "one_shot"): (lambda n: (1, n - 1, n - 1), SHARED),
    ("all_reduce", "two_shot"): (lambda n: (2, 2 * share(n), share(n)), SHARED),
    ("all_to_all", "xor"): (lambda n: (n - 1, share(n), 0), POWERS),
    ("all_to_all", "bruck"): (lambda n: (lg_up(n), bits(n), 0), RANKS),
    ("barrier", "tree"): (lambda n: (2 * lg_up(n), 0, 0), RANKS),
    ("barrier", "linear"): (lambda n: (2 * (n - 1), 0, 0), RANKS),
}


def time_fs(collective, algorithm, n, vector_bytes, root=None, **params):
    """Emulated time for a vector of that many bytes: the whole, all blocks together, or what a rank
    sends to all.
    """
    schedule = simcoll.schedule(collective, algorithm, nranks=n, root=root, **params)
    blocks = (
        n
        if collective in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
        else 1
    )
    plan = simcoll.bind(
        schedule,
        vector_bytes // blocks,
        "uint8",
        protocol=ideal(reduce_as_per_byte=GAMMA_FS * 1000),
    )
    return emulate(plan, crossbar(n, "1 TB/s", ALPHA_FS), data="none", bound=False).time_fs


def cost_fs(form, vector):
    A, B, G = (Fraction(x) for x in form)
    return A * ALPHA_FS + B * vector * BETA_FS + G * vector * GAMMA_FS


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "algorithm"), FORMS)
def test_times_equal_the_closed_form(collective, algorithm):
    form, ranks = FORMS[collective, algorithm]
    rows = []
    for n in ranks:
        vector = n * 64 * 60 if collective != "barrier" else 0
        rows.append((n, time_fs(collective, algorithm, n, vector), cost_fs(form(n), vector)))
    assert [row for row in rows if row[1] != row[2]] == []


@pytest.mark.parametrize(
    ("collective", "algorithm"), [form for form in FORMS if form[1] != "bidirectional_ring"]
)
def test_registered_costs_are_the_closed_forms(collective, algorithm):
    # The bidirectional ring's cost is that on a ring, where links are full duplex.
    form, ranks = FORMS[collective, algorithm]
    found = coefficients(find_algorithm(collective, algorithm), ranks)
    assert len(found) >= 5
    assert found == {n: tuple(Fraction(x) for x in form(n)) for n in found}


@pytest.mark.parametrize(
    ("collective", "algorithm"), [form for form in FORMS if form[0] in ("scatter", "gather")]
)
def test_the_root_does_not_matter(collective, algorithm):
    # A subtree whose blocks wrap past the last rank is two transfers of one step: the same time.
    form, _ = FORMS[collective, algorithm]
    for n, root in ((8, 3), (16, 15), (32, 17)):
        assert time_fs(collective, algorithm, n, n * 3840, root=root) == cost_fs(form(n), n * 3840)


# A byte at 400 GB/s in the box, at 50 GB/s between boxes.
BOX_FS, NET_FS = (Fraction(2500), Fraction(20000))
BOXES = ((2, 4), (3, 4), (4, 8), (5, 2))
HIERARCHICAL = {  # vectors that a GPU sends in its box, and between boxes; of m boxes of g
    "all_reduce": lambda m, g: (2 * share(g), 2 * share(m) / g),
    "all_gather": lambda m, g: (Fraction(m * g - m, m * g), Fraction(m - 1, m * g)),
    "reduce_scatter": lambda m, g: (Fraction(m * g - m, m * g), Fraction(m - 1, m * g)),
    "all_to_all": lambda m, g: (share(g), share(m)),
    "broadcast": lambda m, g: (2 * share(g), Fraction(lg_up(m), g)),
}


def hierarchical_fs(collective, m, g, vector, pieces=1):
    n = m * g
    blocks = n if collective in ("all_gather", "reduce_scatter", "all_to_all") else 1
    schedule = simcoll.schedule(collective, "hierarchical", nranks=n, box=g, pieces=pieces)
    plan = simcoll.bind(schedule, vector // blocks, "uint8", protocol=ideal())
    rails = boxes(m, g, "400 GB/s", nics=g, nic_bandwidth="50 GB/s")
    return emulate(plan, rails, data="none", bound=False).time_fs


@pytest.mark.slow
@pytest.mark.parametrize("collective", HIERARCHICAL)
@pytest.mark.parametrize(("m", "g"), BOXES)
def test_hierarchical_on_rails_takes_its_phases_one_after_the_other(collective, m, g):
    vector, (inside, outside) = m * g * 3840, HIERARCHICAL[collective](m, g)
    assert hierarchical_fs(collective, m, g, vector) == vector * (
        inside * BOX_FS + outside * NET_FS
    )


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize(("m", "g"), BOXES)
def test_hierarchical_in_many_pieces_takes_the_longer_of_its_phases(collective, m, g):
    vector, (inside, outside) = m * g * 64 * 60, HIERARCHICAL[collective](m, g)
    longer = vector * max(inside * BOX_FS, outside * NET_FS)
    assert longer <= hierarchical_fs(collective, m, g, vector, pieces=64) < 1.1 * longer


@pytest.mark.slow
@pytest.mark.parametrize(("m", "g"), BOXES)
def test_hierarchical_broadcast_in_many_pieces_goes_down_a_chain(m, g):
    # Between boxes every GPU then sends once what it got, whatever the number of boxes.
    vector, inside = m * g * 64 * 60, 2 * share(g)
    longer = vector * max(inside * BOX_FS, NET_FS / g)
    assert longer <= hierarchical_fs("broadcast", m, g, vector, pieces=64) < 1.1 * longer


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 4, 7, 16, 33])
@pytest.mark.parametrize("pieces", [1, 2, 5, 12])
def test_pipelined_chain(n, pieces):
    # Chan et al.: n - 2 + k steps of a vector's k-th part.
    steps, vector = n - 2 + pieces, 60 * 64
    part = Fraction(steps, pieces)
    assert time_fs("broadcast", "chain", n, vector, pieces=pieces) == cost_fs(
        (steps, part, 0), vector
    )
    assert time_fs("reduce", "chain", n, vector, pieces=pieces) == cost_fs(
        (steps, part, part), vector
    )


def test_pat_adds_less_than_the_form_unless_the_count_is_a_difference_of_powers_of_two():
    differences = {(1 << j) - (1 << k) for j in range(8) for k in range(j)}
    for n in range(2, 70):
        assert (pat_added(n) == n - 1) == (n in differences)
        assert pat_added(n) <= n - 1


def test_a_message_takes_one_latency_and_its_bytes():
    pairs = ((0, 1), (1, 2), (2, 0), (3, 3))
    plan = simcoll.bind(
        simcoll.schedule(simcoll.Collective("send_recv", 4, pairs=pairs)), 3840, "uint8"
    )
    assert emulate(plan, crossbar(4, "1 TB/s", ALPHA_FS), bound=False).time_fs == cost_fs(
        (1, 1, 0), 3840
    )


@pytest.mark.slow
def test_pat_reduce_scatter_needs_as_few_steps_and_bytes_for_any_number():
    # Not a power of two: the partial sums of a step may be waited for, so only latency and
    # bandwidth are the form's.
    for n in RANKS:
        schedule = simcoll.schedule("reduce_scatter", "pat", nranks=n)
        plan = simcoll.bind(schedule, 3840, "uint8")
        found = emulate(plan, crossbar(n, "1 TB/s", ALPHA_FS), data="none", bound=False).time_fs
        assert found == lg_up(n) * ALPHA_FS + (n - 1) * 3840 * BETA_FS


def test_double_trees_of_nccl():
    # The tree of 14 in the comment of NCCL's src/graph/trees.cc.
    assert binary_tree(14) == [-1, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12]
    for n in range(1, 70):
        pair = tree_pair(n)
        for parents in pair:
            assert parents.count(-1) == 1
            for rank in range(n):
                depth = 0
                while rank >= 0:
                    rank, depth = parents[rank], depth + 1  # noqa: PLW2901
                assert depth <= n.bit_length() + 1
        both = set(pair[0]) & set(pair[1]) - {-1}
        assert both <= {0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("collective", "vectors"), [("broadcast", 1), ("reduce", 1), ("all_reduce", 2)]
)
def test_double_trees_use_the_full_bandwidth(collective, vectors):
    # Sanders, Speck, Träff: with many pieces the time tends to that of the vector (all-reduce: of
    # two).
    vector = 1 << 24
    for n in (16, 17, 24, 33):
        plan = simcoll.bind(
            simcoll.schedule(collective, "double_tree", nranks=n, pieces=64), vector, "uint8"
        )
        found = emulate(plan, crossbar(n, "1 TB/s"), data="none", bound=False).time_fs
        assert vectors < found / (vector * BETA_FS) < 1.15 * vectors


@pytest.mark.slow
@pytest.mark.parametrize(
    "dims", [(8,), (4, 4), (3, 3), (3, 3, 3), (4, 4, 4), (2,), (2, 2), (2, 2, 2)]
)
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_torus_uses_all_links(collective, dims):
    # Jain, Sabharwal: sum(k - 1) steps, and every byte of the lower bound (n - 1) / n over the
    # links of a rank.
    n = 1
    for size in dims:
        n *= size
    block = 2 * len(dims) * 5 * 7 * 48
    schedule = simcoll.schedule(collective, "torus", nranks=n, dims=dims)
    plan = simcoll.bind(schedule, block * n if collective == "all_reduce" else block, "uint8")
    found = emulate(plan, torus(dims, "1 TB/s", ALPHA_FS), data="none", bound=False).time_fs
    steps = sum(size - 1 for size in dims)
    # A ring of two has one link where longer ones have two.
    links = sum(1 if size == 2 else 2 for size in dims)
    expected = steps * ALPHA_FS + Fraction((n - 1) * block * BETA_FS, links)
    assert found == expected * (2 if collective == "all_reduce" else 1)


def test_bidirectional_ring_halves_the_bytes_of_a_ring():
    n, vector = 6, 6 * 2 * 3840
    times = []
    for name in ("ring", "bidirectional_ring"):
        plan = simcoll.bind(simcoll.schedule("all_reduce", name, nranks=n), vector, "uint8")
        times.append(emulate(plan, torus((n,), "1 TB/s"), data="none", bound=False).time_fs)
    assert times[0] == 2 * times[1] == 2 * share(n) * vector * BETA_FS


@pytest.mark.parametrize("dims", [(8,), (4, 4)])
def test_swing_on_a_torus_is_nearer_than_halving(dims):
    # Its partners are 1, 1, 3 places away, with both directions used, those of halving 4, 2, 1.
    n, vector = 8 if dims == (8,) else 16, 1 << 20
    machine = torus(dims, "1 TB/s")
    times = [
        emulate(
            simcoll.bind(simcoll.schedule("all_reduce", name, nranks=n, **kw), vector, "uint8"),
            machine,
            data="none",
            bound=False,
        ).time_fs
        for name, kw in (("swing", {"dims": dims}), ("rabenseifner", {}))
    ]
    assert times[0] < 0.7 * times[1]


@pytest.mark.slow
def test_pipelined_hierarchy_overlaps_boxes_and_rails():
    # Four DGX H100: 450 GB/s and 0.7 us inside a box of 8, 50 GB/s and 2.8 us on each rail.
    machine, boxes, box, vector = load_topology("dgx-h100", nodes=4), 4, 8, 1 << 33
    inside = 2 * (box - 1) * (700_000_000 + Fraction(vector, box) * Fraction(10**15, 450 * 10**9))
    between = (
        2
        * (boxes - 1)
        * (2_800_000_000 + Fraction(vector, box * boxes) * Fraction(10**15, 50 * 10**9))
    )

    def run(pieces):
        schedule = simcoll.schedule("all_reduce", "hierarchical", nranks=32, box=box, pieces=pieces)
        return emulate(
            simcoll.bind(schedule, vector, "uint8"), machine, data="none", bound=False
        ).time_fs

    alone, overlapped = run(1), run(16)
    assert alone == pytest.approx(float(inside + between), rel=1e-12)
    assert overlapped > max(inside, between)
    assert alone / overlapped > 1.78


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "broadcast", "all_to_all"])
def test_pieces_help_every_hierarchical_collective(collective):
    machine, vector = load_topology("dgx-h100", nodes=2), 1 << 30

    def run(pieces):
        schedule = simcoll.schedule(collective, "hierarchical", nranks=16, box=8, pieces=pieces)
        count = vector if collective == "broadcast" else vector // 16
        return emulate(
            simcoll.bind(schedule, count, "uint8"), machine, data="none", bound=False
        ).time_fs

    assert run(8) < run(1) * (0.9 if collective == "all_to_all" else 0.7)


def multiplying_fs(n, radix, size, beta_fs, gamma_fs):
    """Rounds of groups whose messages share a port and are then added one after the other; one more
    pair of messages for spare ranks.
    """
    members = groups = 1
    total = 0
    while groups:
        groups = next((k for k in range(radix, 1, -1) if members * k <= n), 0)
        if groups:
            members *= groups
            total += ALPHA_FS + (groups - 1) * size * (beta_fs + gamma_fs)
    return total if members == n else total + 2 * (ALPHA_FS + size * beta_fs) + size * gamma_fs


@pytest.mark.slow
@pytest.mark.parametrize("radix", range(2, 9))
def test_recursive_multiplying_takes_its_closed_form(radix):
    # 420 GB/s can be shared by up to seven messages without a remainder.
    size, bandwidth = 21 * 4000, 420 * 10**9
    for n in (*range(1, 34), 49, 64, 81):
        plan = simcoll.bind(
            simcoll.schedule("all_reduce", "recursive_multiplying", nranks=n, radix=radix),
            size,
            "uint8",
            protocol=ideal(reduce_as_per_byte=GAMMA_FS * 1000),
        )
        found = emulate(plan, crossbar(n, "420 GB/s", ALPHA_FS), data="none", bound=False).time_fs
        assert found == multiplying_fs(n, radix, size, Fraction(10**15, bandwidth), GAMMA_FS), n


def test_recursive_multiplying_of_two_takes_as_long_as_recursive_doubling():
    for n in (2, 3, 8, 13, 32):
        times = {
            time_fs("all_reduce", "recursive_doubling", n, 6400),
            time_fs("all_reduce", "recursive_multiplying", n, 6400, radix=2),
        }
        assert len(times) == 1


@pytest.mark.slow
@pytest.mark.parametrize("radix", range(2, 9))
def test_recursive_multiplying_adds_in_one_order_on_all_ranks(radix):
    for n in range(1, 34):
        for in_place in (False, True):
            schedule = simcoll.schedule(
                "all_reduce", "recursive_multiplying", nranks=n, radix=radix, in_place=in_place
            )
            assert simcoll.verify(schedule).order == "position-independent"


@pytest.mark.parametrize("radix", [1, 9])
def test_recursive_multiplying_refuses_other_groups(radix):
    with pytest.raises(ConfigError, match="groups of 2 to 8"):
        simcoll.schedule("all_reduce", "recursive_multiplying", nranks=8, radix=radix)
