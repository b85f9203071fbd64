"""The quotient: every message's time is that of the full run, and a wrong partition is refused."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import simcoll
from simcoll.core.protocol import Protocol
from simcoll.emulator import emulate
from simcoll.emulator.folding.certification import certify
from simcoll.emulator.folding.partition import Partition, connections_in_order, refine
from simcoll.emulator.folding.quotient import Quotient, fold, folded
from simcoll.emulator.model import effective_capacities
from simcoll.emulator.steps.plan_placement import placement_of
from simcoll.emulator.steps.step_columns import summary, turns
from simcoll.emulator.steps.timed import timed_steps
from simcoll.errors import ConfigError
from simcoll.topology import boxes, crossbar, fat_tree

RAILS = boxes(
    4,
    4,
    "400 GB/s",
    "1 us",
    nics=4,
    nic_bandwidth="50 GB/s",
    nic_latency="3 us",
    boxes_per_leaf=2,
    oversubscription=2,
)

RAILS_OF_320 = boxes(40, 8, "400 GB/s", "1 us", nics=8, nic_bandwidth="50 GB/s", nic_latency="3 us")


def ring(n=16, count=1 << 12, **bound_to):
    return simcoll.bind(
        simcoll.schedule("all_reduce", "ring", nranks=n, in_place=True), count=count, **bound_to
    )


def pieces(plan, topology):
    """Distinct steps, groups, capacities and steps per lane."""
    patterns, groups = {}, []
    for group, times in timed_steps(plan, topology, placement_of(plan, 0)):
        groups.append((tuple(patterns.setdefault(step, len(patterns)) for step in group), times))
    capacity = np.array(effective_capacities(topology, plan.protocol), np.int64)
    places = tuple(groups), np.arange(len(groups))
    return tuple(patterns), places, capacity, summary(plan).lane_steps


@pytest.mark.slow
@pytest.mark.parametrize(
    "topology",
    [crossbar(16, "50 GB/s", "1 us"), RAILS, fat_tree(4, 4, "9 GB/s", oversubscription=2)],
)
@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        ("all_reduce", "ring"),
        ("all_reduce", "recursive_doubling"),
        ("all_to_all", "direct"),
        ("all_reduce", "rabenseifner"),
    ],
)
@pytest.mark.parametrize("depth", [0, 2])
def test_every_message_has_the_time_of_the_full_run(topology, kind, algorithm, depth):
    protocol = Protocol(
        "costs",
        receive_overhead_fs=10**8,
        occupancy_fs=(("net", 10**9), ("link", 10**9)),
        reduce_as_per_byte=667,
        fifo_depth=depth,
        channel_rate_uBps=30 * 10**15,
        rank_rate_uBps=20 * 10**15,
    )
    plan = simcoll.bind(simcoll.schedule(kind, algorithm, nranks=16), count=4800, protocol=protocol)
    full = emulate(plan, topology, data="none", keep=True, engine="simpy")
    folded_run = emulate(plan, topology, data="none", keep=True, quotient=True)
    assert folded_run.engine == "fast"
    assert folded_run.classes < folded_run.messages == full.messages
    assert (
        folded_run.path
        == f"quotient: {folded_run.classes} classes stand for {full.messages} messages"
    )
    assert np.array_equal(full.done_fs, folded_run.done_fs)
    assert (full.time_fs, full.trace_hash, full.bytes_moved) == (
        folded_run.time_fs,
        folded_run.trace_hash,
        folded_run.bytes_moved,
    )


def test_a_ring_on_a_crossbar_is_one_message_a_step():
    found = fold(
        timed_steps(ring(), crossbar(16, "1 GB/s"), placement_of(ring(), 0)),
        *pieces(ring(), crossbar(16, "1 GB/s"))[2:],
        most_lanes=4,
    )
    assert isinstance(found, Quotient)
    assert (found.messages, len(found.lane_steps), [len(step) for step in found.steps]) == (
        30,
        1,
        [1, 1],
    )


def test_merged_classes_are_refused():
    plan = ring()
    patterns, places, capacity, lane_steps = pieces(plan, RAILS)
    found = refine(patterns, capacity, len(lane_steps), len(lane_steps))
    assert isinstance(folded(patterns, places, capacity, lane_steps, found), Quotient)
    assert found.lanes.max() > 0
    refused = []
    for a, b in combinations(range(int(found.lanes.max()) + 1), 2):
        merged = np.unique(np.where(found.lanes == b, a, found.lanes), return_inverse=True)[1]
        refused.append(
            folded(patterns, places, capacity, lane_steps, Partition(merged, found.links))
        )
    for a, b in combinations(range(int(found.links.max()) + 1), 2):
        merged = np.unique(np.where(found.links == b, a, found.links), return_inverse=True)[1]
        refused.append(
            folded(patterns, places, capacity, lane_steps, Partition(found.lanes, merged))
        )
    assert {reason if isinstance(reason, str) else "accepted" for reason in refused} == {
        "partition refused: lanes of one class take part in different messages",
        "partition refused: links of one class carry different messages",
        "partition refused: links of one class have different capacities",
    }


def test_connections_of_one_class_carry_the_same_messages():
    # Rank 0 sends twice to 1 and once to 2; both receivers are alike but for that.
    layout = simcoll.Layout(simcoll.Collective("all_to_all", 4))

    def steps():
        yield simcoll.transfers(
            [0, 0, 0], layout.input(np.arange(3)), [1, 1, 2], layout.output(np.arange(3))
        )
        yield simcoll.transfers(
            [3, 3, 3], layout.input(np.arange(3)), [2, 2, 1], layout.output(np.arange(3))
        )

    schedule = simcoll.Schedule("uneven", layout, steps)
    plan = simcoll.bind(
        schedule, 1000, "uint8", protocol=Protocol("fifo", fifo_depth=1), unproved=True
    )
    patterns, places, capacity, lane_steps = pieces(plan, crossbar(4, "1 GB/s"))
    found = refine(patterns, capacity, 4, 4)
    assert isinstance(folded(patterns, places, capacity, lane_steps, found), Quotient)
    numbers, places, count = connections_in_order(patterns)
    assert [[each.tolist() for each in column] for column in (numbers, places)] == [
        [[0, 0, 1], [3, 3, 2]],
        [[0, 1, 0]] * 2,
    ]
    merged = Partition(found.lanes, found.links, np.zeros(count, np.int64))
    assert folded(patterns, places, capacity, lane_steps, merged) == (
        "partition refused: connections of one class carry different messages"
    )
    for wrong, reason in (
        ([0, 1, 2], "3 classes of connections are given"),
        ([0, 1, 2, 4], "the classes of connections are"),
    ):
        partition = Partition(found.lanes, found.links, np.array(wrong))
        assert folded(patterns, places, capacity, lane_steps, partition).startswith(
            f"partition refused: {reason}"
        )


def test_a_long_ring_with_a_fifo_is_folded():
    protocol = Protocol("fifo", fifo_depth=4, send_overhead_fs=10**9, receive_overhead_fs=10**8)
    plan, topology = ring(320, count=320 * 64, protocol=protocol), RAILS_OF_320
    result = emulate(plan, topology, data="none", bound=False, quotient=True)
    assert result.classes < result.messages // 10
    assert (
        result.trace_hash
        == emulate(plan, topology, data="none", bound=False, quotient=False).trace_hash
        != ""
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda f: Partition(f.lanes, 2 * f.links),
            "the classes of links are not numbered from 0 without gaps",
        ),
        (
            lambda f: Partition(f.lanes, f.links + 1),
            "the classes of links are not numbered from 0 without gaps",
        ),
        (
            lambda f: Partition(f.lanes, f.links - 1),
            "the classes of links are not numbered from 0 without gaps",
        ),
        (
            lambda f: Partition(2 * f.lanes, f.links),
            "the classes of lanes are not numbered from 0 without gaps",
        ),
        (
            lambda f: Partition(f.lanes[:8], f.links),
            "8 classes of lanes are given; the plan has 16 lanes",
        ),
        (
            lambda f: Partition(f.lanes, np.append(f.links, 0)),
            "LINKS + 1 classes of links are given",
        ),
        (lambda f: Partition(f.lanes, f.links[1:]), "LINKS - 1 classes of links are given"),
    ],
)
def test_a_partition_that_is_none_is_refused(change, reason):
    patterns, places, capacity, lane_steps = pieces(ring(), RAILS)
    found = refine(patterns, capacity, len(lane_steps), len(lane_steps))
    links = len(capacity)
    reason = reason.replace("LINKS + 1", f"{links + 1}").replace("LINKS - 1", f"{links - 1}")
    assert folded(patterns, places, capacity, lane_steps, change(found)).startswith(
        f"partition refused: {reason}"
    )


def test_a_partition_that_misses_one_slow_link_is_refused():
    whole = pieces(ring(), RAILS)
    found = refine(whole[0], whole[2], 16, 16)
    slow = RAILS.degrade(3, "1/2")
    patterns, places, capacity, lane_steps = pieces(ring(), slow)
    assert folded(patterns, places, capacity, lane_steps, found) == (
        "partition refused: links of one class have different capacities"
    )


def test_everything_its_own_class_is_certified_and_changes_nothing():
    patterns, places, capacity, lane_steps = pieces(ring(), RAILS)
    single = Partition(np.arange(16), np.arange(len(capacity)))
    classes = certify(patterns, capacity, single)
    assert [sorted(names.tolist()) for names in classes] == [list(range(16))] * 2
    assert folded(patterns, places, capacity, lane_steps, single).messages == 480


@pytest.mark.slow
def test_a_degraded_machine_is_run_in_lock_step():
    slow = crossbar(320, "50 GB/s", "1 us").degrade(3, "1/2")
    plan = ring(320, count=320 * 64)
    result = emulate(plan, slow, data="none", bound=False)
    assert result.classes is None
    assert result.path == "204160 messages"
    assert (
        emulate(plan, slow, data="none", bound=False, quotient=False).trace_hash
        == result.trace_hash
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "data", "reason"),
    [
        ({"jitter_fs": 5}, "none", "jitter makes every message different"),
        ({}, "exact", "data is moved"),
    ],
)
def test_what_has_no_quotient_says_why(protocol, data, reason):
    result = emulate(ring(protocol=Protocol("p", **protocol)), RAILS, data=data, quotient=True)
    assert (result.classes, result.path) == (None, f"no quotient: {reason}")


def test_the_reference_engine_refuses_a_quotient():
    with pytest.raises(
        ConfigError,
        match=r"engine 'simpy' plays every message; expected engine='auto' with quotient=True",
    ):
        emulate(ring(), RAILS, data="none", engine="simpy", quotient=True)


@pytest.mark.slow
def test_many_equal_steps_are_folded_without_being_asked():
    # On the same links.
    two_rings = simcoll.schedule("all_reduce", "ring", nranks=320, channels=2, in_place=True)
    plan, topology = simcoll.bind(two_rings, count=640 * 64), crossbar(320, "50 GB/s", "1 us")
    result = emulate(plan, topology, data="none", bound=False)
    assert (result.messages, result.classes) == (4 * 319 * 320, 2 * 319)
    assert (
        result.trace_hash
        == emulate(plan, topology, data="none", bound=False, quotient=False).trace_hash
        != ""
    )


@pytest.mark.slow
def test_a_million_messages_are_not_expanded_unless_asked():
    result = emulate(
        ring(1024, count=1024), crossbar(1024, "50 GB/s", "1 us"), data="none", bound=False
    )
    assert (result.trace_hash, result.classes, result.messages) == ("", 2046, 2_095_104)
    assert result.path.endswith("; too many for a trace hash")
    # 2 (n - 1) steps of 1 us and 4 bytes at 50 GB/s
    assert result.time_fs == 2046 * (10**9 + 80_000)


@pytest.mark.parametrize(
    ("kind", "groups"), [("all_gather", [1, 31]), ("reduce_scatter", [1, 30, 1])]
)
def test_steps_that_differ_in_their_blocks_only_are_one_step_in_time(kind, groups):
    # First come copies in each rank, then the ring; in the last step of a reduce_scatter no rank
    # copies its contribution to the next one.
    made = simcoll.schedule(kind, "ring", nranks=32, channels=8, box=8)
    made = replace(made, source=made.steps)  # without its repeats
    plan = simcoll.bind(made, 1 << 10, "uint8")
    assert [times for _, times in turns(plan)] == groups
