"""``bfb`` and ``packed``: proved, right in data, and as quick as the bound allows on regular,
irregular and degraded machines.
"""

import pytest

import simcoll
from simcoll.algorithms import bfb, packed
from simcoll.core.collective import Collective
from simcoll.errors import ConfigError
from simcoll.formats.schedules.schedule_json import dump_schedule, parse_schedule
from simcoll.topology import crossbar, fat_tree, hybrid_cube_mesh, hypercube, load_topology, torus

KINDS = ["all_gather", "reduce_scatter", "all_reduce"]


DIRECT = {
    "ring-5": lambda: torus([5], "25 GB/s", "1 us"),
    "ring-8": lambda: torus([8], "25 GB/s", "1 us"),
    "torus-3x5": lambda: torus([3, 5], "25 GB/s", "1 us"),
    "torus-4x4": lambda: torus([4, 4], "25 GB/s", "1 us"),
    "torus-2x3x2": lambda: torus([2, 3, 2], "25 GB/s", "1 us"),
    "hypercube-4": lambda: hypercube(4, "25 GB/s", "1 us"),
    "mesh": lambda: load_topology("mi300x"),
}
ANY = {
    "crossbar": lambda: crossbar(5, "50 GB/s", "1 us"),
    "degraded-dgx": lambda: load_topology("dgx-h100").degrade(
        "box0.gpu3 <-> box0.nvswitch", "17/18"
    ),
    "degraded-cube-mesh": lambda: hybrid_cube_mesh(2, "25 GB/s", "1 us").degrade(
        "gpu0 <-> gpu4", 0
    ),
    "path": lambda: torus([6], "25 GB/s", "1 us", wrap=False),
    "fat-tree": lambda: fat_tree(2, 3, "50 GB/s", "1 us", oversubscription=2),
}


def schedule(module, kind, topology, **params):
    return getattr(module, kind)(Collective(kind, topology.nranks), topology=topology, **params)


def headroom(made, topology, elements=2**31):
    elements = made.nranks * made.layout.chunks * (elements // (made.nranks * made.layout.chunks))
    return simcoll.emulate(simcoll.bind(made, elements), topology, data="none").headroom


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DIRECT)
def test_bfb_is_as_quick_as_the_bound_in_as_many_steps_as_the_diameter(name, kind):
    topology = DIRECT[name]()
    made = schedule(bfb, kind, topology)
    assert simcoll.verify(made).order == ("" if kind == "all_gather" else "run-consistent")
    assert 1 <= headroom(made, topology) < 1.01
    result = simcoll.emulate(simcoll.bind(made, 23), topology)
    assert result.wrong == 0


def test_bfb_steps():
    # arXiv 2202.03356: a torus 4x4 has diameter 4; the last step moves a quarter of a block per
    # link.
    steps = list(schedule(bfb, "all_gather", torus([4, 4], "25 GB/s")).steps())[1:]
    loads = [
        max(
            ((s.src_rank == a) & (s.dst_rank == b)).sum()
            for a, b in zip(s.src_rank, s.dst_rank, strict=True)
        )
        for s in steps
    ]
    assert loads == [4, 6, 4, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ANY)
def test_packed_is_right_on_any_topology(name, kind):
    topology = ANY[name]()
    made = schedule(packed, kind, topology, pieces=3)
    simcoll.verify(made)
    assert simcoll.emulate(simcoll.bind(made, made.layout.chunks + 5), topology).wrong == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ANY)
def test_packed_comes_within_one_percent_of_the_bound(name, kind):
    topology = ANY[name]()
    # Trees of one link need no pieces, and long ones many.
    flat = kind != "all_reduce" and name in {"crossbar", "degraded-dgx"}
    long = kind == "all_reduce" and name == "path"
    made = schedule(packed, kind, topology, pieces=1 if flat else 512 if long else 256)
    assert 1 <= headroom(made, topology, 2**34) < 1.01


@pytest.mark.slow
def test_degraded_machines_beat_what_was_made_for_whole_ones():
    for name, less in (("degraded-dgx", 0.96), ("degraded-cube-mesh", 0.3)):
        topology = ANY[name]()
        made = schedule(packed, "all_reduce", topology, pieces=256)
        ring = simcoll.schedule("all_reduce", "ring", nranks=8)
        assert headroom(made, topology, 2**34) < less * headroom(ring, topology, 2**34)


def test_pieces_go_down_while_the_next_are_summed_up():
    # Two ranks, one tree each way: a piece is summed in step t and sent back in t + 1, beside the
    # next.
    steps = list(schedule(packed, "all_reduce", torus([2], "25 GB/s"), pieces=3).steps())[1:]
    assert [len(step) for step in steps] == [2, 4, 4, 2]


def test_by_name():
    topology = ANY["degraded-cube-mesh"]()
    made = simcoll.schedule("all_gather", "packed", topology=topology, pieces=2)
    assert str(made) == f"packed(topology={topology.name}, pieces=2) all_gather n=8"
    assert simcoll.schedule("all_gather", topology=topology).name == "packed"
    again = parse_schedule(dump_schedule(made))
    assert again.content_hash() == made.content_hash()
    with pytest.raises(ConfigError, match="packed is made for one topology: give topology="):
        simcoll.schedule("all_gather", "packed", nranks=4)
    with pytest.raises(ConfigError, match="topology='dgx-1v': expected a Topology"):
        simcoll.schedule("all_gather", "packed", nranks=4, topology="dgx-1v")
    with pytest.raises(ConfigError, match="'ring' of all_gather has no parameter 'topology'"):
        simcoll.schedule("all_gather", "ring", nranks=8, topology=topology)


@pytest.mark.parametrize("kind", KINDS)
def test_bfb_over_a_link_that_is_all_but_lost(kind):
    # One link has a millionth of a millionth of the others' capacity.
    topology = torus([5], "299 GB/s", "1 us").degrade(8, "1/1000000").degrade(8, "1/1000000")
    made = schedule(bfb, kind, topology)
    simcoll.verify(made)
    assert simcoll.emulate(simcoll.bind(made, 23), topology).wrong == 0


@pytest.mark.parametrize("module", [bfb, packed])
@pytest.mark.parametrize("kind", KINDS)
def test_a_single_rank(module, kind):
    topology = crossbar(1, "50 GB/s")
    assert simcoll.emulate(simcoll.bind(schedule(module, kind, topology), 5), topology).wrong == 0


def test_what_they_need():
    with pytest.raises(ConfigError, match="give topology="):
        packed.all_gather(Collective("all_gather", 4))
    with pytest.raises(ConfigError, match="has 4 ranks, all_reduce 5"):
        bfb.all_reduce(Collective("all_reduce", 5), topology=torus([4], "1 GB/s"))
    with pytest.raises(ConfigError, match="packed serves any topology"):
        bfb.all_gather(Collective("all_gather", 4), topology=crossbar(4, "1 GB/s"))
