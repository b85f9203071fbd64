"""The fabric alone: max-min fair sharing."""

from pathlib import Path

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.emulator import Calendar, Fabric
from simcoll.emulator.model import flow_delay_fs, remaining_bytes
from simcoll.emulator.reference import fabric as fabrics
from simcoll.errors import ConfigError, InternalError

GBps = 10**15
US = 10**9


def played(capacities, flows):
    """Finish time of each flow ``(start_fs, size, links)``."""
    fabric = Fabric(Calendar(simpy.Environment()), capacities, lambda link: f"link {link}")
    finish = [None] * len(flows)

    def begin(number):
        _, size, links = flows[number]
        fabric.transfer(links, size, arrived, number)

    def arrived(number):
        finish[number] = fabric.calendar.now

    for number, (start, _, _) in enumerate(flows):
        fabric.calendar.at(start, begin, number)
    fabric.env.run()
    assert fabric.delivered_bytes == sum(size for _, size, links in flows if links)
    return finish


def oracle():
    scenarios, capacities = {}, []
    for line in (Path(__file__).parent / "data" / "maxmin_simgrid.txt").read_text().splitlines():
        word, *rest = line.split()
        if word == "scenario":
            capacities, flows = [], []
            scenarios[rest[0]] = (capacities, flows)
        elif word == "links":
            for run in rest:
                capacity, count = run.split("x")
                capacities.extend([int(capacity) * 10**6] * int(count))
        elif word == "flow":
            size, start, finish, links = rest
            flows.append((int(start), int(size), tuple(map(int, links.split(","))), float(finish)))
    return scenarios


@pytest.mark.parametrize("name", sorted(oracle()))
def test_every_flow_ends_when_simgrid_says(name):
    capacities, flows = oracle()[name]
    finish = played(capacities, [flow[:3] for flow in flows])
    for got, (*_, want) in zip(finish, flows, strict=True):
        assert got / 1e15 == pytest.approx(want, rel=1e-8)


def test_the_oracle_has_all_its_flows():
    assert {name: len(flows) for name, (_, flows) in oracle().items()} == {
        "incast8": 7,
        "a2a8": 56,
        "ls32_perm": 30,
        "ls32_rand300": 300,
    }


def test_two_flows_share_then_one_has_all():
    # 50 GB/s each: 1 MB takes 20 us; then the 2 MB flow has 1 MB left at 100 GB/s.
    assert played([100 * GBps], [(0, 10**6, (0,)), (0, 2 * 10**6, (0,))]) == [20 * US, 30 * US]


def test_what_one_flow_cannot_use_goes_to_the_others():
    # The first is held to 10 on link 1; link 0 gives the others (100 - 10) / 2 = 45.
    flows = [(0, 10 * 1000, (0, 1)), (0, 45 * 1000, (0,)), (0, 45 * 1000, (0,))]
    assert played([100 * GBps, 10 * GBps], flows) == [US, US, US]


def test_shares_are_rounded_down_to_micro_bytes():
    # 100 GB/s over 3 flows: 33333333333333333 uBps each; 10**6 bytes in floor(30000000000.0000003 +
    # 0.38) fs.
    assert played([100 * GBps], [(0, 10**6, (0,))] * 3) == [30 * US] * 3


def test_empty_flows_and_flows_without_links_end_at_once():
    assert played([GBps], [(5, 0, (0,)), (7, 10, ())]) == [5, 7]


@pytest.mark.parametrize("capacity", [0, 1])
def test_a_link_with_nothing_to_give_is_named(capacity):
    with pytest.raises(ConfigError, match=r"link 1: 2 flows share \d micro-bytes per second"):
        played([GBps, capacity], [(0, 10, (0, 1)), (0, 10, (1,))])


def test_a_flow_that_outlasts_the_clock_is_refused():
    with pytest.raises(ConfigError, match="the clock ends"):  # 10 kB at 1 B/s
        played([10**6], [(0, 10**4, (0,))])


def test_a_link_over_capacity_is_caught():
    fabric = Fabric(Calendar(simpy.Environment()), [GBps], lambda link: f"wire {link}")
    fabric._used[0] = 1
    for _ in range(2):
        fabric.transfer((0,), 10, lambda _: None, None)
    with pytest.raises(InternalError, match="wire 0 carries"):
        fabric.env.run()


def test_added_links_have_their_own_names():
    fabric = Fabric(Calendar(simpy.Environment()), [1, 2], lambda link: f"a{link}")
    assert fabric.add_links([3, 4], lambda link: f"b{link}") == 2
    assert [fabric.link_name(link) for link in range(4)] == ["a0", "a1", "b0", "b1"]


def test_a_simpy_process_shares_the_fabric():
    env = simpy.Environment()
    fabric = Fabric(Calendar(env), [100 * GBps], str)
    seen = []

    def traffic():
        yield env.timeout(10 * US)
        arrived = env.event()
        fabric.transfer((0,), 10**6, arrived.succeed, "background")
        seen.append(((yield arrived), env.now))

    env.process(traffic())
    fabric.transfer((0,), 2 * 10**6, lambda item: seen.append((item, env.now)), "first")
    env.run()
    # 1 MB alone in 10 us; then 50 GB/s each, and both have 1 MB left.
    assert sorted(seen) == [("background", 30 * US), ("first", 30 * US)]


networks = st.integers(2, 6).flatmap(
    lambda links: st.tuples(
        st.lists(st.sampled_from([7, 10, 25, 50, 100, 333]), min_size=links, max_size=links),
        st.lists(
            st.tuples(
                st.sampled_from([0, 0, 3, 10, 1000]),
                st.integers(0, 5000),
                st.lists(st.integers(0, links - 1), min_size=1, max_size=3, unique=True),
            ),
            min_size=1,
            max_size=12,
        ),
    )
)


def by_rounds(capacities, flows):
    """The rates of the model's first definition: level after level, all links of the lowest share
    at once.
    """
    left, rates = list(capacities), {}
    waiting = dict(flows)
    while waiting:
        users = {
            link: [f for f, links in waiting.items() if link in links]
            for links in waiting.values()
            for link in links
        }
        level = min(left[link] // len(who) for link, who in users.items())
        lowest = [link for link, who in users.items() if left[link] // len(who) == level]
        for flow in {f for link in lowest for f in users[link]}:
            rates[flow] = level
            for link in waiting.pop(flow):
                left[link] -= level
    return rates


def recomputed(capacities, flows):
    """Finish times by recomputing all rates whenever anything happens."""
    state, finish, now = {}, [None] * len(flows), 0
    starts = sorted({flow[0] for flow in flows})
    while starts or state:
        now = min([*starts[:1], *(end for *_, end in state.values())])
        for flow in [f for f, (*_, end) in state.items() if end == now]:
            finish[flow] = now
            del state[flow]
        if starts and starts[0] == now:
            starts.pop(0)
            for number, (start, size, _) in enumerate(flows):
                if start == now:
                    if size:
                        state[number] = (float(size), 0, now, None)
                    else:
                        finish[number] = now
        for number, rate in by_rounds(capacities, {f: flows[f][2] for f in state}).items():
            left, old, since, _ = state[number]
            if rate != old:
                left = remaining_bytes(left, old, now - since)
                state[number] = (left, rate, now, now + flow_delay_fs(left, rate))
    return finish


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(networks)
def test_local_rule_and_level_rounds_agree_to_the_femtosecond(network):
    gigas, flows = network
    capacities = [g * GBps for g in gigas]
    shifted = [(start * 10**5, size, tuple(links)) for start, size, links in flows]
    assert played(capacities, shifted) == recomputed(capacities, shifted)


def times_of_rounds(capacities, flows, rounds, lower=None):
    """Finish times of the flows of each round after its begin, and how often levels spread; a link
    of the second half of the rounds may have a lower capacity.
    """
    fabric = Fabric(Calendar(simpy.Environment()), capacities, str)
    spread, spreads, times = Fabric._spread, [], []

    def count(self, queue):
        spreads[-1] += 1
        return spread(self, queue)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fabric, "_spread", count)
        patch.setattr(fabrics, "LEAST_DIRTY", 0)
        for number in range(rounds):
            begin_fs, finish = fabric.calendar.now + US, [None] * len(flows)
            spreads.append(0)
            if lower is not None and number == rounds // 2:
                fabric.change({0: lower})

            def end(flow, finish=finish, begin_fs=begin_fs):
                finish[flow] = fabric.calendar.now - begin_fs

            for flow, (start, size, links) in enumerate(flows):
                fabric.calendar.at(
                    begin_fs + start,
                    lambda flow, size=size, links=links, end=end: fabric.transfer(
                        links, size, end, flow
                    ),
                    flow,
                )
            fabric.env.run()
            times.append(finish)
    return times, spreads


@settings(max_examples=20, deadline=None)
@given(networks)
def test_flows_that_come_again_take_the_same_time_from_known_levels(network):
    gigas, flows = network
    capacities = [g * GBps for g in gigas]
    flows = [(start * 10**5, size, tuple(links)) for start, size, links in flows]
    times, spreads = times_of_rounds(capacities, flows, 3)
    assert times == [played(capacities, flows)] * 3
    assert spreads[1:] == [0, 0]


@settings(max_examples=20, deadline=None)
@given(networks)
def test_known_levels_are_forgotten_when_a_capacity_changes(network):
    gigas, flows = network
    capacities = [g * GBps for g in gigas]
    flows = [(start * 10**5, size, tuple(links)) for start, size, links in flows]
    times, _ = times_of_rounds(capacities, flows, 4, lower=3 * GBps)
    changed = [3 * GBps, *capacities[1:]]
    assert times == [played(capacities, flows)] * 2 + [played(changed, flows)] * 2


def test_known_levels_are_bounded(monkeypatch):
    monkeypatch.setattr(fabrics, "LEAST_DIRTY", 0)
    monkeypatch.setattr(fabrics, "KEPT_LEVELS", 4)
    fabric = Fabric(Calendar(simpy.Environment()), [100 * GBps] * 4, str)
    for size in range(1, 20):
        for link in range(4):
            fabric.transfer((link,), size * 1000, lambda _: None, None)
            fabric.transfer((link, (link + 1 + size % 3) % 4), 10**6, lambda _: None, None)
    fabric.env.run()
    assert fabric._levels_of is not None
    assert sum(map(len, fabric._levels_of.values())) <= 4


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(networks, st.randoms(use_true_random=False))
def test_no_order_of_flows_or_links_matters(network, random):
    gigas, flows = network
    capacities = [g * GBps + 1 for g in gigas]
    flows = [(start * 10**5, size, tuple(links)) for start, size, links in flows]
    place, order = list(range(len(gigas))), list(range(len(flows)))
    random.shuffle(place)
    random.shuffle(order)
    moved = [0] * len(place)
    for old, new in enumerate(place):
        moved[new] = capacities[old]
    shuffled = []
    for number in order:
        start, size, links = flows[number]
        renamed = [place[link] for link in links]
        random.shuffle(renamed)
        shuffled.append((start, size, tuple(renamed)))
    expected = played(capacities, flows)
    assert played(moved, shuffled) == [expected[number] for number in order]
