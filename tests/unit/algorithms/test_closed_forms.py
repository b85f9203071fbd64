"""Times on an ideal crossbar equal the literature's closed forms exactly.

The model is that of Thakur, Rabenseifner, Gropp (IJHPCA 19, 2005) and Chan et al. (CCPE 19, 2007):
one send and one receive at a time, a message of s bytes costs alpha + s beta, reducing it gamma per
byte more; a step starts when both ends are ready. Then a collective of n bytes takes
``A alpha + B n beta + G n gamma``. The forms below are those papers'; for rank counts that are no
power of two the recursive ones are those of MPICH's algorithms played step by step.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

import simcoll
from simcoll.algorithms import ALGORITHMS, find_algorithm
from simcoll.core.protocol import ideal
from simcoll.emulator.run import emulate
from simcoll.topology.families import crossbar
from tests.support.cost_machines import coefficients

RANKS = (*range(2, 18), 24, 31, 32, 33, 48, 64)
POWERS = tuple(n for n in RANKS if n & (n - 1) == 0)

ALPHA_FS = 2_000_000_000
BETA_FS = 1_000  # 1 TB/s
GAMMA_FS = 7


def lg_up(n):
    return (n - 1).bit_length()


def lg_down(n):
    return n.bit_length() - 1


def share(n):
    return Fraction(n - 1, n)


def rabenseifner(n):
    if n in POWERS:
        return 2 * lg_up(n), 2 * share(n), share(n)
    members = 1 << lg_down(n)
    return 2 * lg_down(n) + 2, 2 * share(members) + 2, 1 + share(members)


def doubling(n):
    return (lg_up(n),) * 3 if n in POWERS else (lg_down(n) + 2, lg_down(n) + 2, lg_down(n) + 1)


# Recursive halving when ranks fold first: MPICH's algorithm gives A = floor(lg n) + 2; B and G are
# what its longest path moves.
FOLDED_HALVING = {
    3: (3, 2, "5/3"),
    5: (4, "11/5", 2),
    6: (4, "13/6", 2),
    7: (4, 2, "13/7"),
    9: (5, "20/9", "19/9"),
    12: (5, "9/4", "13/6"),
    15: (5, 2, "29/15"),
}


def halving(n):
    return (lg_up(n), share(n), share(n)) if n in POWERS else FOLDED_HALVING[n]


# (collective, algorithm): (A, B, G) by rank count, and the rank counts.
FORMS = {
    ("broadcast", "tree"): (lambda n: (lg_up(n), lg_up(n), 0), RANKS),
    ("reduce", "tree"): (lambda n: (lg_up(n),) * 3, RANKS),
    ("all_reduce", "tree"): (lambda n: (2 * lg_up(n), 2 * lg_up(n), lg_up(n)), RANKS),
    ("all_reduce", "ring"): (lambda n: (2 * (n - 1), 2 * share(n), share(n)), RANKS),
    ("all_reduce", "recursive_doubling"): (doubling, RANKS),
    ("all_reduce", "rabenseifner"): (rabenseifner, RANKS),
    ("all_gather", "ring"): (lambda n: (n - 1, share(n), 0), RANKS),
    ("all_gather", "recursive_doubling"): (lambda n: (lg_up(n), share(n), 0), POWERS),
    ("reduce_scatter", "ring"): (lambda n: (n - 1, share(n), share(n)), RANKS),
    ("reduce_scatter", "recursive_halving"): (halving, (*POWERS, *FOLDED_HALVING)),
    ("all_to_all", "pairwise"): (lambda n: (n - 1, share(n), 0), RANKS),
    # All pairs at once: latencies overlap, the bytes share the port.
    ("all_to_all", "direct"): (lambda n: (1, share(n), 0), RANKS),
    ("barrier", "dissemination"): (lambda n: (lg_up(n), 0, 0), RANKS),
}

# Forms of the literature that are met elsewhere or not at all, because their algorithms came later
# than this table.
LATER = {
    "linear broadcast, scatter": "no linear algorithms yet",
    "broadcast by scatter and all-gather (ring, recursive doubling)": "needs a binomial scatter",
    "reduce by Rabenseifner": "needs a binomial gather",
    "binomial scatter, gather": "no scatter or gather yet",
    "all-gather by Bruck, neighbour exchange": "no Bruck family yet",
    "reduce-scatter pairwise": "no pairwise reduce-scatter yet",
    "all-to-all by Bruck": "no Bruck family yet",
    "barrier by tree": "only dissemination yet",
}


def time_fs(collective, algorithm, n, vector_bytes, alpha_fs=ALPHA_FS, gamma_fs=GAMMA_FS):
    """Emulated time for a vector of that many bytes: the whole, all blocks together, or what a rank
    sends to all.
    """
    schedule = simcoll.schedule(collective, algorithm, nranks=n)
    blocks = n if collective in ("all_gather", "reduce_scatter", "all_to_all") else 1
    plan = simcoll.bind(
        schedule,
        vector_bytes // blocks,
        "uint8",
        protocol=ideal(reduce_as_per_byte=gamma_fs * 1000),
    )
    return emulate(plan, crossbar(n, "1 TB/s", alpha_fs), data="none", bound=False).time_fs


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "algorithm"), FORMS)
def test_times_equal_the_closed_form(collective, algorithm):
    form, ranks = FORMS[collective, algorithm]
    wrong = []
    for n in ranks:
        vector = n * 64 * 60 if collective != "barrier" else 0
        A, B, G = (Fraction(x) for x in form(n))
        expected = A * ALPHA_FS + B * vector * BETA_FS + G * vector * GAMMA_FS
        assert expected.denominator == 1
        found = time_fs(collective, algorithm, n, vector)
        if found != expected:
            wrong.append((n, found, int(expected)))
    assert wrong == []


@pytest.mark.parametrize(("collective", "algorithm"), FORMS)
def test_registered_costs_are_the_closed_forms(collective, algorithm):
    form, ranks = FORMS[collective, algorithm]
    found = coefficients(find_algorithm(collective, algorithm), ranks)
    assert len(found) >= 5
    assert found == {n: tuple(Fraction(x) for x in form(n)) for n in found}


def test_each_term_on_its_own():
    # All three coefficients of one case, each from a run in which the other costs vanish.
    vector = 12 * 4096
    assert time_fs("all_reduce", "ring", 12, 0) == 0
    assert (
        time_fs("all_reduce", "ring", 12, vector, alpha_fs=0, gamma_fs=0)
        == Fraction(22, 12) * vector * BETA_FS
    )
    full, free = (
        time_fs("all_reduce", "ring", 12, vector),
        time_fs("all_reduce", "ring", 12, vector, gamma_fs=0),
    )
    assert full - free == Fraction(11, 12) * vector * GAMMA_FS
    assert free - time_fs("all_reduce", "ring", 12, vector, alpha_fs=0, gamma_fs=0) == 22 * ALPHA_FS


def test_the_forms_are_of_shipped_algorithms():
    assert set(FORMS) <= {(a.collective, a.name) for a in ALGORITHMS}
    assert all(LATER.values())


@pytest.mark.parametrize(("boxes", "box"), [(2, 2), (3, 4), (4, 3), (1, 5), (5, 1)])
def test_hierarchical_on_a_crossbar_is_the_sum_of_its_phases(boxes, box):
    # Reduce-scatter and all-gather inside a box, a ring over the boxes on a 1/box of the vector.
    n, vector = boxes * box, 4096 * boxes * box
    schedule = simcoll.schedule("all_reduce", "hierarchical", nranks=n, box=box)
    plan = simcoll.bind(
        schedule, vector, "uint8", protocol=ideal(reduce_as_per_byte=GAMMA_FS * 1000)
    )
    found = emulate(plan, crossbar(n, "1 TB/s", ALPHA_FS), data="none", bound=False).time_fs
    inside, between = Fraction(box - 1, box), Fraction(boxes - 1, boxes) / box
    expected = 2 * (box - 1 + boxes - 1) * ALPHA_FS + (inside + between) * vector * (
        2 * BETA_FS + GAMMA_FS
    )
    assert found == expected
