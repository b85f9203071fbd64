"""Every shipped algorithm: proved for many rank counts, roots, in place and out; its data checked;
its claims compared.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import simcoll
from simcoll.algorithms import ALGORITHMS, find_algorithm
from simcoll.core.collective import KINDS, Collective
from simcoll.emulator.run import emulate
from simcoll.errors import ConfigError
from simcoll.proving import LEVELS, verify
from simcoll.testing.examples import needed_params
from simcoll.topology import load_topology
from simcoll.topology.families import crossbar
from simcoll.tuning import default_algorithm

RANKS = (*range(1, 11), 12, 15, 16, 17, 24, 33)
# Rank counts that get all parameters, not only the defaults.
ALL_TRIED = (4, 6, 7, 8, 12, 16)
# Rank counts for which real data moves: a power of two, odd ones, and those of the smallest groups.
DATA_RANKS = (1, 2, 3, 6, 8)
# Switches, not ranks, do the work there, and a crossbar's cannot.
SWITCHED = {"switch", "sharp"}
CASES = [(a.collective, a.name) for a in ALGORITHMS if a.topologies not in SWITCHED]

# Rank counts that an algorithm does not serve, and what its error must name instead.
REFUSED = {
    ("all_gather", "neighbor_exchange"): (lambda n: n % 2 and n > 1, "bruck"),
    ("all_to_all", "xor"): (lambda n: n & (n - 1), "pairwise"),
    ("broadcast", "scatter_doubling"): (lambda n: n & (n - 1), "scatter_ring"),
}


def serves(collective, name, n):
    refused = REFUSED.get((collective, name))
    return refused is None or not refused[0](n)


def smallest_factor(n):
    return next((k for k in range(2, n) if n % k == 0), n)


def params_of(collective, name, n):
    """Parameters to try: the defaults, two of each, boxes and pods, other tori."""
    known = find_algorithm(collective, name).params
    needed = needed_params(collective, name, n)
    box = smallest_factor(n)
    if name == "hierarchical":
        pod = box * smallest_factor(n // box)
        return [
            {"box": box},
            {"box": box, "pod": pod, "channels": 2},
            {"box": box, "pod": pod, "pieces": 3},
        ]
    tries = [needed]
    tries += [
        {**needed, key: value} for key, value in (("channels", 2), ("pieces", 3)) if key in known
    ]
    if "box" in known:
        tries.append({"box": box, "channels": 2})
    if name == "torus":
        tries.append({"dims": (n,)})
    if name in {"torus", "swing"} and n in {8, 16}:
        tries.append({"dims": (4, n // 4) if n == 16 else (2, 2, 2)})
    return tries


def collectives(kind, n, roots):
    """The collective from every root, or for several sets of pairs, out of place and in place."""
    if KINDS[kind].rooted:
        found = [Collective(kind, n, root=root) for root in roots]
    elif kind == "send_recv":
        shift = tuple((r, (r + 1) % n) for r in range(n))
        exchange = tuple((r, r ^ 1) for r in range(n - n % 2))
        found = [
            Collective(kind, n, pairs=pairs) for pairs in (shift, exchange, shift[: n // 2], ())
        ]
    else:
        found = [Collective(kind, n)]
    return [replace(which, in_place=in_place) for which in found for in_place in (False, True)]


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "name"), CASES)
def test_proved_for_every_number_of_ranks_and_root_with_the_claimed_order(collective, name):
    levels = set()
    for n in RANKS:
        if not serves(collective, name, n):
            continue
        tries = params_of(collective, name, n)
        for position, params in enumerate(tries if n in ALL_TRIED else tries[:1]):
            # All roots for small groups; beyond, those at both ends and one in the middle.
            roots = range(n) if n <= 9 and position == 0 else sorted({0, n // 2, n - 1})
            tried = collectives(collective, n, roots)
            if position > 0 or n > 5:
                # In place from one root, out of place from the next; without roots, for one number
                # of ranks and for the next.
                turn = n if KINDS[collective].rooted else RANKS.index(n)
                tried = [
                    which for at, which in enumerate(tried) if (at // 2 + at + turn + position) % 2
                ]
            proofs = [verify(simcoll.schedule(which, name, **params)) for which in tried]
            assert {proof.kind for proof in proofs} == {"full"}
            levels |= {proof.order for proof in proofs}
    claim = find_algorithm(collective, name).order
    if not KINDS[collective].reduces:
        assert claim == ""
        assert levels == {""}
    else:
        assert min(levels, key=LEVELS.index) == claim
        assert LEVELS.index(claim) >= LEVELS.index("rank-consistent")


def counts_of(collective, n):
    """Awkward numbers of elements, and uneven blocks where there are any."""
    counts = sorted({0, 1, max(n - 1, 1), n + 1})
    if collective == "all_to_all":
        counts.append([[(3 * s + 5 * r) % 4 for r in range(n)] for s in range(n)])
    elif KINDS[collective].nblocks(n) > 1:
        counts.append([(2 * r) % 5 for r in range(n)])
    return [0] if collective == "barrier" else counts


def shares(counts, n, position, places):
    """In place or not, and the counts that are played so: all with the default parameters of up to
    three ranks, else a half.

    Six ranks and eight play different halves: together every count in every place with the
    defaults, every count with all parameters.
    """
    half = n // 2 % 2
    if n >= 6 and position > 0:
        return [(places[(half + position) % len(places)], counts[half::2])]
    if n >= 6:
        return [(place, counts[(half + place) % 2 :: 2]) for place in places]
    return [
        (place, counts if position == 0 else counts[(n + position + place) % 2 :: 2])
        for place in places
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "name"), CASES)
def test_data_equals_the_definition(collective, name):
    for n in DATA_RANKS:
        if not serves(collective, name, n):
            continue
        topology = crossbar(n, "1 TB/s", "1 us")
        for position, params in enumerate(params_of(collective, name, n)):
            which = Collective(collective, n, root=n - 1 if KINDS[collective].rooted else None)
            if collective == "send_recv":
                which = Collective(collective, n, pairs=tuple((r, (r + 1) % n) for r in range(n)))
            # The data of an all-to-all or send-recv in place moves out of its own way before it is
            # run.
            places = (False,) if KINDS[collective].alias is None else (False, True)
            for in_place, counts in shares(counts_of(collective, n), n, position, places):
                schedule = simcoll.schedule(replace(which, in_place=in_place), name, **params)
                for count in counts:
                    if schedule.divisible and not isinstance(count, int):
                        with pytest.raises(ConfigError, match="equal blocks"):
                            simcoll.bind(schedule, count)
                        continue
                    result = emulate(simcoll.bind(schedule, count), topology, bound=False)
                    assert result.wrong == 0, (str(schedule), count)


@pytest.mark.slow
def test_bits_are_the_same_on_all_ranks():
    # Sums that depend on the order: every rank must have made them in the same one.
    n, count = 6, 13
    rng = np.random.default_rng(7)
    inputs = [
        (rng.standard_normal(count) * 10.0 ** rng.integers(-6, 6, count)).astype(np.float32)
        for _ in range(n)
    ]
    for found in ALGORITHMS:
        if found.collective != "all_reduce" or found.topologies in SWITCHED:
            continue
        schedule = simcoll.schedule(
            "all_reduce", found.name, nranks=n, **params_of("all_reduce", found.name, n)[0]
        )
        outputs = emulate(
            simcoll.bind(schedule, count), crossbar(n, "1 TB/s"), data=inputs, bound=False
        ).outputs
        assert len({output.tobytes() for output in outputs}) == 1, found.name


@pytest.mark.parametrize(("collective", "name"), REFUSED)
def test_a_number_of_ranks_that_is_not_served_names_another_algorithm(collective, name):
    refused, other = REFUSED[collective, name]
    for n in RANKS:
        if refused(n):
            with pytest.raises(ConfigError, match=other) as caught:
                simcoll.schedule(collective, name, nranks=n)
            assert str(n) in str(caught.value)
            simcoll.verify(simcoll.schedule(collective, other, nranks=n))


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("hierarchical", {}, "needs box="),
        ("hierarchical", {"box": 5}, "multiple of box=5 ranks, got 12; ring serves any number"),
        (
            "packed",
            {},
            (
                r"give topology=, for example load_topology\('dgx-h100'\) \(command line: --topology "
                r"dgx-h100\)"
            ),
        ),
        (
            "packed",
            {"nranks": 1025},
            "packed serves up to 1024 ranks, got 1025; ring serves any number",
        ),
        ("hierarchical", {"box": 2, "pod": 3}, "pod=3 must be a multiple of box=2"),
        ("hierarchical", {"box": 2, "pod": 8}, "divide the 12 ranks"),
        ("hierarchical", {"box": (2, 3)}, "expected a whole number"),
        ("torus", {"dims": (3, 3)}, "dims=\\(3, 3\\) make 9 ranks, but there are 12"),
        ("torus", {"dims": 12}, "a tuple of whole numbers"),
        ("torus", {"dims": ()}, "a tuple of whole numbers"),
        ("torus", {"dims": (12, 0)}, "each at least 1"),
        ("swing", {"dims": (3, 4)}, "powers of two.*torus serves any"),
        ("swing", {"dims": (8,)}, "make 8 ranks, but there are 12"),
        ("double_tree", {"box": 5}, "box=5 does not divide the 12 ranks"),
    ],
)
def test_bad_parameters_get_a_clear_error(name, params, message):
    with pytest.raises(ConfigError, match=message):
        simcoll.schedule("all_reduce", name, **{"nranks": 12, **params})


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_name_an_algorithm_is_chosen_and_named(kind):
    for n in RANKS:
        schedule = simcoll.schedule(kind, nranks=n)
        assert schedule.name == default_algorithm(Collective(kind, n))
        assert (kind, schedule.name) in CASES
        simcoll.verify(schedule)


def test_a_topology_is_a_hint():
    boxes, many = load_topology("dgx-h100", nodes=2), load_topology("dgx-h100", nodes=16)
    for kind in KINDS:  # those that have no algorithm for a topology are made without
        made = simcoll.schedule(kind, topology=many)
        assert str(made) == str(simcoll.schedule(kind, nranks=128))
    assert simcoll.schedule("broadcast", topology=boxes, root=3).name == "scatter_doubling"
    assert simcoll.schedule("all_gather", topology=crossbar(3, "1 GB/s")).name == "packed"
    assert default_algorithm(Collective("all_reduce", 64), ["topology"]) == "packed"
    assert default_algorithm(Collective("all_reduce", 65), ["topology"]) == "ring"
    assert simcoll.schedule("all_reduce", topology=boxes, box=8).name == "hierarchical"


def test_a_hint_does_not_hide_mistakes():
    topology = crossbar(4, "1 GB/s")
    for arguments, says in (
        ({"pieces": 0}, "pieces=0: expected a whole number"),
        ({"peices": 2}, "'packed' of all_reduce has no parameter 'peices'; did you mean 'pieces'"),
        ({"nranks": 8}, "topology 'crossbar.*' has 4 ranks, all_reduce 8"),
    ):
        with pytest.raises(ConfigError, match=says):
            simcoll.schedule("all_reduce", topology=topology, **arguments)
    with pytest.raises(ConfigError, match="topology='dgx-h100': expected a Topology"):
        simcoll.schedule("broadcast", nranks=8, topology="dgx-h100")


def test_machines_without_trees_get_another_algorithm(monkeypatch):
    def refuse(topology, **_):
        raise ConfigError("no trees")

    monkeypatch.setattr("simcoll.bounds.packing.pack_trees", refuse)
    assert (
        simcoll.schedule("all_gather", topology=crossbar(4, "1 GB/s")).name == "recursive_doubling"
    )
    with pytest.raises(ConfigError, match="no trees"):
        simcoll.schedule("all_gather", "packed", topology=crossbar(4, "1 GB/s"))


def test_parameters_take_part_in_the_choice():
    assert simcoll.schedule("all_gather", nranks=12, box=4).name == "hierarchical"
    assert simcoll.schedule("reduce_scatter", nranks=12, dims=(3, 4)).name == "torus"
    with pytest.raises(ConfigError, match="no parameter 'box'"):
        simcoll.schedule("barrier", nranks=4, box=2)


def test_every_row_of_the_table_is_complete():
    assert {a.collective for a in ALGORITHMS} == set(KINDS)
    assert len({(a.collective, a.name) for a in ALGORITHMS}) == len(ALGORITHMS)
    for found in ALGORITHMS:
        assert found.cost
        assert found.source
        assert found.ranks
        assert found.pattern in {"ring", "tree"}
        assert (found.order != "") == KINDS[found.collective].reduces
