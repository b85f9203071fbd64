"""Events and formula: the same time where links are free, a longer one where they are not."""

from itertools import islice

import pytest

import simcoll
from simcoll.algorithms import schedule as schedule_named
from simcoll.core.collective import KINDS, Collective
from simcoll.libraries import proved_choice as playing
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.environment import parse_environment
from simcoll.libraries.plans import library_plan, library_play
from simcoll.libraries.prediction import formula_time, predict
from simcoll.topology import load_topology, torus
from simcoll.tuning import schedule_on

SIZES = (8, 2**13, 2**17, 2**21, 2**25, 2**30)
# Topology, nodes, collective, environment: every algorithm, protocol and kind of link that events
# carry.
CASES = [
    ("dgx-h100", 1, "all_reduce", ""),
    ("dgx-a100", 1, "all_reduce", "NCCL_ALGO=Ring"),
    ("dgx-a100", 2, "all_reduce", "NCCL_ALGO=Ring"),
    ("dgx-a100", 3, "all_reduce", "NCCL_ALGO=Ring"),
    ("dgx-a100", 2, "all_gather", ""),
    ("dgx-h100", 4, "reduce_scatter", ""),
    ("dgx-h100", 2, "all_reduce", "NCCL_ALGO=Tree,NCCL_PROTO=LL,LL128"),
    ("dgx-h100", 4, "all_reduce", "NCCL_ALGO=Tree,NCCL_PROTO=LL128"),
    ("alps-gh200-1", 4, "all_reduce", "NCCL_ALGO=Ring"),
    ("alps-gh200-1", 4, "all_reduce", "NCCL_ALGO=Tree,NCCL_PROTO=LL"),
    ("gcp-a4-1nic", 16, "all_reduce", ""),
    ("aws-p4de", 2, "all_reduce", "NCCL_ALGO=Ring"),
    ("dgx-1v", 1, "all_reduce", "NCCL_ALGO=Ring"),
    ("dgx-a100", 1, "broadcast", ""),
    ("dgx-h100", 1, "reduce", ""),
    ("dgx-a100", 2, "broadcast", ""),
    ("dgx-h100", 1, "all_to_all", ""),
    ("dgx-a100", 2, "all_to_all", ""),
    ("dgx-a100", 1, "send_recv", ""),
    ("rtx-2080ti-pair", 1, "all_gather", ""),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "nodes", "collective", "settings"), CASES)
def test_events_and_formula_agree_where_links_are_free(name, nodes, collective, settings):
    topology, environment = simcoll.load_topology(name, nodes=nodes), parse_environment(settings)
    for size in SIZES:
        events = predict(collective, size, topology, environment=environment)
        formula = formula_time(collective, size, topology, environment=environment)
        assert (events.algorithm, events.protocol) == (formula.algorithm, formula.protocol)
        # A tree or a chain whose pipeline the links cannot make up for.
        if events.timed_by == "formula":
            assert (events.algorithm, size) in {
                ("tree", 2**30),
                ("tree", 2**25),
                ("ring", 2**21),
            }, (size, events.note)
            continue
        assert events.schedule
        # A block per rank of at least one byte: 8 bytes are more in 16 ranks.
        assert events.time_fs == pytest.approx(formula.time_fs, rel=0.05), (size, events)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "nodes"), [("dgx-h100", 2), ("dgx-h100", 4), ("dgx-a100", 3), ("alps-gh200-1", 4)]
)
@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
def test_forced_trees_take_the_time_of_the_formula(name, nodes, protocol):
    # Of one piece the children of a rank do not send at the same time, which the correction for
    # filling assumes: up to 9 % too fast.
    topology, tree = (
        simcoll.load_topology(name, nodes=nodes),
        parse_environment(f"NCCL_ALGO=Tree,NCCL_PROTO={protocol}"),
    )
    by_events = 0
    for size in (*(2**k for k in range(10, 31, 5)), *(3 * 2**k for k in range(12, 29, 4))):
        events = predict("all_reduce", size, topology, environment=tree)
        formula = formula_time("all_reduce", size, topology, environment=tree)
        assert events.time_fs == pytest.approx(formula.time_fs, rel=0.05), (size, events)
        by_events += events.timed_by == "events"
    assert by_events >= 8


@pytest.mark.slow
def test_gpus_without_a_link_send_through_the_memory_of_one_between_them():
    # The host would take 19 times the bound: 6 GB/s between its sockets.
    mesh = simcoll.load_topology("dgx-1v")
    for collective, least, most in (
        ("all_to_all", 1.0, 1.5),
        ("gather", 1.0, 2.0),
        ("scatter", 1.0, 2.0),
    ):
        found = predict(collective, 2**28, mesh)
        assert found.timed_by == "events"
        assert least <= found.time_fs / found.bound_fs <= most
    # The slowest hops of the ring are single NVLinks; 3 -> 4 and 7 -> 0 go through GPUs 0 and 4,
    # over double ones.
    assert predict("send_recv", 2**28, mesh).time_us == pytest.approx(2**28 / 25e3, rel=0.01)
    two = predict("all_to_all", 2**28, simcoll.load_topology("dgx-1v", nodes=2))
    assert (two.timed_by, "through the memory" in two.note) == ("formula", True)
    assert (
        predict("all_to_all", 2**28, simcoll.load_topology("mi300x"), library="rccl").timed_by
        == "events"
    )


def test_a_tree_along_other_links_than_nccls_is_not_played():
    # Ranks 3 and 4 of a DGX-1 have no NVLink: over the host a chain in the order of the ranks would
    # take nine times as long.
    two = simcoll.load_topology("dgx-1v", nodes=2)
    for size in (2**22, 2**30):
        found = predict("all_reduce", size, two)
        assert (found.algorithm, "between neighbours" in found.note) == ("tree", True)
        assert found.bound_fs < found.time_fs == formula_time("all_reduce", size, two).time_fs
    # Bridges join pairs of its GPUs.
    pairs = predict("broadcast", 2**20, simcoll.load_topology("azure-nc-a100-v4"))
    assert (pairs.timed_by, "rings of direct links" in pairs.note) == ("formula", True)


@pytest.mark.parametrize(("name", "nodes"), [("dgx-2", 4), ("dgx-h100", 8)])
def test_sends_to_all_ranks_are_under_way_at_once(name, nodes):
    # One at a time on each of 32 channels would leave NICs idle at the end: 12 and 27 % slower.
    topology = simcoll.load_topology(name, nodes=nodes)
    found = predict("all_to_all", 2**26, topology)
    assert found.timed_by == "events"
    assert found.time_fs == pytest.approx(
        formula_time("all_to_all", 2**26, topology).time_fs, rel=0.05
    )


def test_rings_that_carry_less_than_nccls_are_not_played():
    # The links between all pairs of 4 or 6 GPUs are not a sum of rings through all (Tillson 1980),
    # so that one ring less is found.
    for name, ranks, library in (("perlmutter-a100", 4, "nccl"), ("mi300x", 6, "rccl")):
        found = predict(
            "broadcast", 2**28, simcoll.load_topology(name, nodes=1), ranks=ranks, library=library
        )
        assert (found.timed_by, "rings found" in found.note) == ("formula", True)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [5, 6])
def test_some_gpus_of_a_mesh_send_over_each_other_too(ranks):
    # Links of GPUs that take no part do not count; over the host an all_to_all of 6 GPUs would take
    # eleven times as long.
    found = predict("all_to_all", 2**28, simcoll.load_topology("dgx-1v"), ranks=ranks)
    assert found.timed_by == "events"
    assert (
        found.time_fs
        < 1.5
        * formula_time("all_to_all", 2**28, simcoll.load_topology("dgx-1v"), ranks=ranks).time_fs
    )


def test_only_the_events_see_a_degraded_link():
    topology = simcoll.load_topology("dgx-a100", nodes=1)
    slow = topology.degrade("box0.gpu3 <-> box0.nvswitch", "1/4")
    whole, degraded = (
        predict("all_reduce", 2**28, each, environment=parse_environment("NCCL_ALGO=Ring"))
        for each in (topology, slow)
    )
    assert degraded.timed_by == "events"
    assert degraded.time_fs > 2 * whole.time_fs


def test_reductions_in_switches_over_nodes_wait_for_the_slowest_nic():
    # The formula times them: all NICs carry the same share.
    topology = simcoll.load_topology("dgx-h100", nodes=2)
    whole, slow = (
        predict("all_reduce", 2**30, each)
        for each in (topology, topology.degrade("box0.nic3", "1/4"))
    )
    assert (whole.algorithm, slow.algorithm, slow.timed_by) == ("nvls_tree", "nvls_tree", "formula")
    share_fs = 2**30 // 8 * 10**15 // (50 * 10**9 // 4)
    assert whole.time_fs < share_fs < slow.time_fs < 1.1 * share_fs


@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all"])
def test_a_calibration_lowers_a_hop_over_the_network_to_no_less_than_nothing(collective):
    topology = simcoll.load_topology("dgx-h100", nodes=2)
    found = []
    for less_us in (25, 50):
        fast = Calibration(fabric_latency_fs=-less_us * 10**9)
        found.append(predict(collective, 64, topology, calibration=fast))
        assert found[-1].timed_by == "events", found[-1].note
        assert found[-1].time_fs == pytest.approx(
            formula_time(collective, 64, topology, calibration=fast).time_fs, rel=0.05
        )
    assert found[0].time_fs == found[1].time_fs > 5 * 10**9


def test_a_few_bytes_to_a_rack_and_a_formula_that_would_beat_the_bound():
    rack = simcoll.load_topology("gb200-nvl72").take(64)
    assert predict("broadcast", 3, rack).timed_by == "events"
    assert "share a switch" in predict("all_reduce", 2**30, rack).note
    two = simcoll.load_topology("dgx-h100", nodes=2)
    for collective in ("gather", "scatter"):
        found = predict(collective, 2**30, two)
        assert found.time_fs >= found.bound_fs


def test_a_prediction_that_events_cannot_carry_says_so():
    found = predict("all_reduce", 2**30, simcoll.load_topology("dgx-h100", nodes=2))
    assert (found.algorithm, found.timed_by, found.schedule) == ("nvls_tree", "formula", "")
    assert "nvls_tree" in found.note


def test_schedules_of_many_rows_are_not_held_in_memory():
    few, many = (
        simcoll.load_topology("dgx-h100", nodes=2),
        simcoll.load_topology("dgx-h100", nodes=64),
    )
    for topology, held in ((few, True), (many, False)):
        made = playing._schedule("all_to_all", "pairwise", topology, ())
        rows = [len(step) for step in islice(made.source(), 3)]
        assert rows == [8 * topology.nranks] * 3
        assert isinstance(made.source(), list) is held


def test_few_bytes_are_cut_into_equal_chunks_where_that_takes_no_time():
    topology, ring = (
        simcoll.load_topology("dgx-h100", nodes=2),
        parse_environment("NCCL_ALGO=Ring,NCCL_PROTO=LL"),
    )
    # 187 and 184 bytes a rank in 8 rails.
    times = {
        predict("reduce_scatter", size, topology, environment=ring).time_fs
        for size in (187 * 16, 184 * 16)
    }
    assert len(times) == 1


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all", "broadcast"])
def test_one_rank_keeps_its_data(kind):
    alone = load_topology("dgx-h100").take(1)
    assert simcoll.emulate(library_plan(kind, 1024, alone), alone).wrong == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_machine_without_numbers_runs_a_plain_algorithm_of_every_collective(kind):
    schedule, protocol = library_play(kind, 1024, simcoll.topology.crossbar(4, "1 GB/s"))
    assert (schedule.collective.kind, protocol.name) == (kind, "ideal")
    simcoll.verify(schedule)  # raises where it is wrong


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [range(256), range(16), range(0, 256, 16)])
def test_collectives_use_all_axes_of_a_torus_in_both_directions(ranks):
    """Twice the axes times the 45 GB/s of a link, less the hops; a ring has 45 GB/s."""
    place = load_topology("tpu-v5e").with_ranks(list(ranks))
    axes = 2 if len(ranks) == 256 else 1
    schedule, protocol = library_play("all_gather", 2**30, place)
    plan = simcoll.bind(schedule, 2**30 // len(ranks), "uint8", protocol=protocol)
    bytes_fs = 2**30 * (len(ranks) - 1) / len(ranks) / (90e9 * axes) * 1e15
    assert simcoll.emulate(plan, place).time_fs == pytest.approx(bytes_fs + axes * 15e9, rel=1e-4)


def test_a_part_of_an_axis_is_no_ring():
    place = load_topology("tpu-v5e").with_ranks(list(range(8)))
    assert library_play("all_gather", 2**30, place)[0].name == "ring"


def test_dimensions_of_a_torus_are_those_of_the_topology():
    place = torus([8, 16], "45 GB/s")
    schedule = schedule_on(Collective("all_reduce", 128), "torus", place)
    expected = schedule_named(Collective("all_reduce", 128), "torus", dims=(8, 16))
    assert schedule.content_hash() == expected.content_hash()
