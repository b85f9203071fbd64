"""Events during a run: times worked out by hand, and runs that cannot go on to their end."""

from fractions import Fraction

import numpy as np
import pytest

import simcoll
from simcoll.emulator import emulate
from simcoll.emulator.events import parse_event, parse_policy
from simcoll.emulator.events.pace import paces
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.errors import ConfigError
from simcoll.topology import boxes, crossbar, torus
from simcoll.types import REDUCE, Background, LinkShare, Policy, Slow, Stop

US, MS = 10**9, 10**12
MEGA = 10**6
NET = crossbar(4, "1 GB/s", "1 us")  # a message of 1 MB takes 1 us and then 1 ms


@pytest.fixture(
    params=[
        "simpy",
        pytest.param("fast", marks=pytest.mark.skipif(not COMPILED, reason="needs numba")),
    ]
)
def play(request):
    def run(plan, events, policy="stall", topology=NET, **how):
        how = {"data": "none", "bound": False, "keep": True, "engine": request.param} | how
        return emulate(plan, topology, events=events, policy=policy, **how)

    return run


@pytest.fixture(scope="module")
def one(by_hand):
    return by_hand(2, [[(0, 1, 1)]], sizes=MEGA)


@pytest.mark.parametrize(
    ("events", "done_us"),
    [
        ((), 1001),
        (["t=501us gpu0 -> switch = 1/2"], 1501),  # half of it is left, at half the rate
        (["t=0 gpu0 -> switch = 0.5"], 2001),
        (["t=501us gpu0 -> switch = 1/2 for 400us"], 1201),  # 0.5, 0.2 and 0.3 of it
        (["t=501us gpu0 -> switch = 0 for 2ms"], 3001),
        (["t=0 switch -> gpu1 = 0 for 2ms"], 3000),  # the latency passes meanwhile
        (["t=1001us gpu0 -> switch = 0"], 1001),  # it ends just then
        (["t=501us gpu0 -> switch = 0 for 2ms", "t=1ms switch -> gpu1 = 0 for 5ms"], 6500),
        (
            ["t=501us gpu0 <-> switch = 1/2", "t=501us gpu0 -> switch = 1/4 for 1ms"],
            2001,
        ),  # the lowest counts
        (["t=501us gpu0 -> switch = 1/2", "t=501us gpu0 -> switch background 1/2"], 2501),
        (["t=501us gpu0 -> switch background 1/4", "t=501us gpu0 -> switch background 1/4"], 1501),
        (["t=501us switch -> gpu0 = 0", "t=1ms rank 3 stops"], 1001),  # not on its way
    ],
)
def test_one_message(play, by_hand, events, done_us):
    result = play(by_hand(4, [[(0, 1, 1)]], sizes=MEGA), events)
    assert (result.time_fs, result.done_fs.tolist(), result.cut) == (
        done_us * US,
        [done_us * US],
        None,
    )


def test_two_flows_share_what_is_left(play, by_hand):
    plan = by_hand(3, [[(0, 2, 2), (1, 2, 2)]], sizes=MEGA)
    # At 1,001 us each has half of its bytes left.
    assert play(plan, ["t=1001us switch -> gpu2 = 1/2"]).done_fs.tolist() == [3001 * US, 3001 * US]
    assert play(plan, ["t=1001us gpu0 -> switch = 1/4"]).done_fs.tolist() == [
        3001 * US,
        1667666666667,
    ]
    # While one waits the other has the whole link.
    assert play(plan, ["t=1001us gpu0 -> switch = 0 for 1ms"]).done_fs.tolist() == [
        2501 * US,
        1501 * US,
    ]


@pytest.mark.parametrize("nranks", [2, 3, 5, 8])
def test_a_ring_waits_for_its_link(play, nranks):
    plan = simcoll.bind(
        simcoll.schedule("all_reduce", "ring", nranks=nranks, in_place=True),
        count=nranks * MEGA,
        dtype="uint8",
    )
    net = crossbar(nranks, "1 GB/s", "1 us")
    whole = 2 * (nranks - 1) * 1001 * US
    assert play(plan, [], topology=net).time_fs == whole
    # It is down in the middle of the first round, and what waits for it goes round until the end.
    assert (
        play(plan, ["t=500us gpu0 -> switch = 0 for 7ms"], topology=net).time_fs == whole + 7 * MS
    )
    # Between rounds nothing is on it but latency.
    assert play(plan, ["t=1001us gpu0 -> switch = 0 for 1us"], topology=net).time_fs == whole


def test_events_that_change_nothing_leave_the_trace_as_it_is(play, one):
    expected = emulate(one, NET, data="none", bound=False)
    for events in (
        ["t=5ms gpu0 -> switch = 0"],
        ["t=0 gpu0 -> switch = 1"],
        ["t=0 rank 0 slower 1"],
        [Stop(1, 2 * MS)],
    ):
        assert (play(one, events).trace_hash, play(one, events).time_fs) == (
            expected.trace_hash,
            expected.time_fs,
        )


def test_a_slow_rank_takes_longer_for_its_own_work(play, by_hand):
    costs = {
        "send_overhead_fs": 10 * US,
        "receive_overhead_fs": 40 * US,
        "reduce_as_per_byte": 10**9,
    }
    plan = by_hand(2, [[(0, 1, 1, 0, REDUCE)]], sizes=1000, **costs)
    # 10 us to send, 1 us of latency, 1 us of bytes, 40 us and 1 us to receive and reduce.
    assert play(plan, []).time_fs == 53 * US
    assert play(plan, [Slow(0, 3)]).time_fs == 73 * US
    assert play(plan, [Slow(1, 3)]).time_fs == 135 * US
    assert play(plan, [Slow(1, 3, at_fs=22 * US)]).time_fs == (22 + 31 * 3) * US
    assert (
        play(
            plan, [Slow(1, "3/2", at_fs=22 * US, for_fs=12 * US), Slow(1, 3, 25 * US, 3 * US)]
        ).time_fs
        == 58 * US
    )


def test_a_slow_rank_with_a_fifo(play, by_hand):
    plan = by_hand(
        2,
        [[(0, 1, 1)]] * 3,
        sizes=1000,
        fifo_depth=1,
        send_overhead_fs=10 * US,
        receive_overhead_fs=3 * US,
    )
    assert play(plan, []).done_fs.tolist() == [5 * US, 15 * US, 25 * US]
    assert play(plan, [Slow(0, 2, at_fs=5 * US)]).done_fs.tolist() == [5 * US, 20 * US, 40 * US]
    assert play(plan, [Slow(1, 4)]).done_fs.tolist() == [14 * US, 26 * US, 38 * US]


def test_work_that_spans_paces_is_rounded_up_and_what_was_done_of_it_down():
    pace = paces([Slow(0, Fraction(7, 3), at_fs=10, for_fs=10), Stop(1, 5)])
    assert [pace.end(0, 10, work) for work in (0, 1, 2, 3, 4, 5)] == [10, 13, 15, 17, 20, 21]
    assert [pace.end(0, at, 10) for at in (0, 5, 19, 20)] == [10, 21, 30, 30]
    assert [pace.end(1, 0, work) for work in (0, 5, 6)] == [0, 5, None]
    assert (pace.end(1, 5, 0), pace.end(2, 5, 3), pace.at_rest(1, 4), pace.at_rest(1, 5)) == (
        None,
        8,
        False,
        True,
    )


@pytest.mark.slow
def test_bytes_take_another_way(play, by_hand):
    net = torus([4], "1 GB/s", "1 us")
    plan = by_hand(4, [[(0, 1, 1), (3, 2, 2)]], sizes=MEGA)
    assert play(plan, [], topology=net).done_fs.tolist() == [1001 * US] * 2
    down = ["t=501us gpu0 -> gpu1 = 0"]
    # Both have half of their bytes left and share the link from 3 to 2.
    assert play(plan, down, "re-route", topology=net).done_fs.tolist() == [1501 * US] * 2
    # 0.3 of each are left, and go their own ways again.
    back = ["t=501us gpu0 -> gpu1 = 0 for 400us"]
    assert play(plan, back, "re-route", topology=net).done_fs.tolist() == [1201 * US] * 2
    late = ["t=0 gpu0 -> gpu1 = 0", "t=201us gpu0 -> gpu1 = 1"]
    assert (
        play(plan, [late[0] + " for 201us"], "re-route", topology=net).done_fs.tolist()
        == [1101 * US] * 2
    )
    # A NIC is lost: its GPU goes over its neighbour's, whose links have room for both.
    node = boxes(2, 2, "8 GB/s", "0 us", nics=2, nic_bandwidth="1 GB/s", nic_latency="1 us")
    far = by_hand(4, [[(0, 2, 2)]], sizes=MEGA)
    assert "box0.gpu0 -> box0.nic0" in node.path(0, 2)
    whole = play(far, [], topology=node).time_fs
    assert play(far, ["t=501us box0.nic0 = 0"], "re-route", topology=node).time_fs == whole
    assert play(far, ["t=501us box0.nic0 = 0 for 1ms"], topology=node).time_fs == whole + MS
    busy = by_hand(4, [[(0, 2, 2), (1, 3, 3)]], sizes=MEGA)  # from then on both share one NIC
    times = play(busy, ["t=501us box0.nic0 = 0"], "re-route", topology=node).done_fs - whole
    assert times.tolist() == [500 * US, 500 * US]
    # Without another way they wait.
    assert (
        play(
            by_hand(2, [[(0, 1, 1)]], sizes=MEGA),
            ["t=501us gpu0 -> switch = 0 for 1ms"],
            "re-route",
        ).time_fs
        == 2001 * US
    )


@pytest.mark.parametrize("flows", [[(0, 1, 1), (3, 2, 2)], [(3, 2, 2), (0, 1, 1)]])
def test_bytes_that_go_another_way_and_then_wait_leave_others_alone(play, by_hand, flows):
    """Both would have ended at 1001 us, before they were slowed down; then one goes around, and
    then there is no way for it.
    """
    net, plan = torus([4], "1 GB/s", "1 us"), by_hand(4, [flows], sizes=MEGA)
    slow = ["t=91us gpu3 -> gpu2 = 1/2 for 100us", "t=101us gpu0 -> gpu1 = 1/2 for 100us"]
    gone = ["t=301us gpu3 -> gpu2 = 0 for 1ms", "t=401us gpu3 -> gpu0 = 0 for 900us"]
    # 0.25 are done when they begin to share a link, and 0.3 when one is left alone on it; the other
    # goes on at 1301 us.
    alone, waits = 1101 * US, 2001 * US
    expected = [alone, waits] if flows[0] == (0, 1, 1) else [waits, alone]
    assert play(plan, [*slow, *gone], "re-route", topology=net).done_fs.tolist() == expected


@pytest.mark.parametrize(
    ("policy", "for_us", "ends"),
    [
        ("stall", "", ("stuck", 0)),
        ("stall 1ms x 7", "", ("aborted", 8501 * US)),
        ("re-route 1ms x 2", "", ("aborted", 3501 * US)),
        ("abort", "", ("aborted", 501 * US)),
        ("abort", " for 1ns", ("aborted", 501 * US)),
        ("stall 250us x 3", " for 1ms", None),  # back when the time is over
        ("stall 250us x 3", " for 1000001ns", ("aborted", 1501 * US)),
    ],
)
def test_the_end_of_patience(play, one, policy, for_us, ends):
    result = play(one, ["t=501us gpu0 -> switch = 0" + for_us], policy)
    if ends is None:
        assert (result.cut, result.time_fs) == (None, 2001 * US)
        return
    cut = result.cut
    assert (cut.kind, cut.time_fs, cut.links, cut.ranks) == (*ends, ("gpu0 -> switch",), (0, 1))
    assert (cut.delivered_bytes, cut.dropped_bytes, cut.waiting) == (0, MEGA, (0, 1))
    assert [(m.message, m.src, m.dst) for m in cut.messages] == [(0, 0, 1)]
    assert (result.done_fs.tolist(), result.messages, result.algbw) == ([-1], 0, 0.0)


def test_what_was_delivered_before_a_link_died(play, by_hand):
    plan = by_hand(3, [[(0, 1, 1), (2, 0, 0)], [(1, 2, 2)], [(2, 0, 0)]], sizes=[[MEGA] * 3] * 3)
    cut = play(plan, ["t=1500us gpu1 -> switch = 0"], "stall 1s").cut
    assert (cut.delivered_bytes, cut.dropped_bytes, cut.time_fs) == (
        2 * MEGA,
        2 * MEGA,
        1500 * US + 1000 * MS,
    )
    assert [(m.message, m.src, m.dst) for m in cut.messages] == [(2, 1, 2)]
    assert str(cut) == (
        "aborted at 1 s: down: gpu1 -> switch; cut off: message 2 (rank 1 -> 2); waiting: rank 0, "
        "1, 2; "
        "2000000 B delivered, 2000000 B dropped"
    )


@pytest.mark.parametrize("depth", [0, 2])
def test_a_rank_that_stops(play, by_hand, depth):
    plan = by_hand(3, [[(0, 1, 1)], [(1, 2, 2)], [(2, 0, 0)]], sizes=MEGA, fifo_depth=depth)
    result = play(plan, ["t=1500us rank 1 stops"])
    # It has sent all that it has to; the bytes on the way arrive.
    assert (result.cut, result.time_fs) == (None, 3003 * US)
    result = play(plan, ["t=500us rank 1 stops"])
    cut = result.cut
    assert (cut.kind, cut.stopped, cut.ranks, cut.messages) == ("stuck", (1,), (1,), ())
    assert (cut.delivered_bytes, cut.dropped_bytes) == (0, 3 * MEGA)
    assert {1, 2} <= set(cut.waiting)


def test_data_is_right_whatever_happens(play):
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), count=1 << 10)
    events = ["t=3us gpu1 -> switch = 0 for 1ms", "t=2us switch -> gpu2 background 1/3"]
    result = play(plan, events, data="exact", topology=crossbar(4, "1 GB/s", "1 us"))
    assert (result.wrong, result.cut) == (0, None)
    cut = play(plan, ["t=3us gpu1 -> switch = 0"], data="exact")
    assert (cut.wrong, cut.outputs, cut.headroom, cut.no_data) == (
        None,
        None,
        None,
        "the run was cut off",
    )


def test_events_do_not_fold():
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=8), count=1 << 10)
    net = crossbar(8, "1 GB/s", "1 us")
    assert emulate(plan, net, quotient=True, data="none").classes is not None
    result = emulate(
        plan, net, quotient=True, data="none", events=["t=1us gpu0 -> switch = 1/2", Stop(3, MS)]
    )
    assert (result.classes, result.path) == (None, "no quotient: 2 events during the run")


EVENTS = [
    LinkShare("box0.gpu3 -> box0.nic3", "1/3", 1500 * US, 2 * MS),
    LinkShare("rank 3 -> x y", 0),
    Background("a <-> b", Fraction(1, 4), 7),
    Slow(12, 1.5, 3 * 10**15),
    Stop(0, 1),
]


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_the_text_of_an_event_reads_back(event):
    assert parse_event(str(event)) == event


def test_the_text_of_a_policy_reads_back():
    for policy in (
        Policy(),
        Policy("re-route"),
        Policy("abort"),
        Policy("stall", 67 * MS, 7),
        Policy("re-route", 1, 0),
    ):
        assert parse_policy(str(policy)) == policy
    assert (Policy("abort").limit_fs, Policy("stall", MS, 2).limit_fs) == (0, 3 * MS)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("t=-1ms gpu0 -> switch = 0", "'-1ms' is negative"),
        ("t=1 gpu0 -> switch = 0", "'1' has no unit"),
        ("t=1ms gpu0 -> swich = 0", "no vertex 'swich'; did you mean 'switch'"),
        ("t=1ms gpu0 -> gpu1 = 0", "no link 'gpu0 -> gpu1'; from 'gpu0' valid: switch"),
        ("t=1ms gpu0 -> switch = 3/2", "expected 0 to 1, got '3/2'"),
        ("t=1ms gpu0 -> switch = half", "expected 0, or a positive number or ratio"),
        ("t=1ms gpu0 -> switch = 0 for 0us", "expected more than 0"),
        ("t=1ms gpu0 -> switch background 1", "expected less than all of it"),
        ("gpu0 -> switch = 0", "expected a time first"),
        ("t=1ms rank 4 stops", "the run has ranks 0 to 3"),
        ("t=1ms rank 1 stops for 2ms", "does not come back"),
        ("t=1ms rank 1 slower 1/2", "expected 1 or more"),
        ("t=1ms rank 1 sleeps", "expected 'rank 1 slower 1.5' or 'rank 1 stops'"),
        ("t=1ms gpu0", "expected one of the forms"),
        (17, "an event: expected text"),
        (LinkShare(99, 0), "link 99 is not in topology"),
        (Background("gpu0 -> switch", 1e-30), None),
        (LinkShare("gpu0 -> switch", "1e-20"), "a share of 1/100000000000000000000 of"),
    ],
)
def test_wrong_events_are_explained(by_hand, event, message):
    plan = by_hand(4, [[(0, 1, 1)]])
    if message is None:
        assert emulate(plan, NET, events=[event]).cut is None
        return
    with pytest.raises(ConfigError) as error:
        emulate(plan, NET, events=[event])
    assert message in str(error.value)


def test_wrong_lists_and_policies_are_explained(by_hand):
    plan = by_hand(4, [[(0, 1, 1)]])
    for how, message in (
        ({"events": "t=1ms rank 1 stops"}, "put it in brackets"),
        ({"events": [Background("gpu0 -> switch", "1/2")] * 2}, "background traffic takes 1 of it"),
        ({"policy": "stal"}, "did you mean 'stall'"),
        ({"policy": "stal 1ms"}, "did you mean 'stall'"),
        ({"policy": "abort 1ms"}, "expected no timeout"),
        ({"policy": Policy}, "expected text such as"),
    ):
        with pytest.raises(ConfigError) as error:
            emulate(plan, NET, **{"events": ["t=0 rank 1 slower 2"]} | how)
        assert message in str(error.value)
    for make in (
        lambda: LinkShare("a -> b", 0, at_fs=-1),
        lambda: Slow(0, 2, for_fs=1.5),
        lambda: Stop(-1),
        lambda: Policy("stall", 0, 3),
    ):
        with pytest.raises(ConfigError):
            make()


@pytest.mark.slow
def test_a_thousand_flaps(play, by_hand):
    plan = by_hand(2, [[(0, 1, 1)]], sizes=MEGA)
    flaps = [LinkShare("gpu0 -> switch", 0, at_fs=(1 + 2 * k) * US, for_fs=US) for k in range(1000)]
    result = play(plan, flaps)
    assert (result.time_fs, np.count_nonzero(result.done_fs < 0)) == (2001 * US, 0)
