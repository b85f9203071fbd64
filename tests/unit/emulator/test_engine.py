"""The player of plans: lanes, steps, rendezvous, FIFO depth, waits, data. Times by hand and by a
second simulator.
"""

from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import COPY, REDUCE, SYNC
from simcoll.emulator import Calendar, Fabric, Player, emulate
from simcoll.emulator.model import flow_delay_fs, remaining_bytes
from simcoll.errors import ConfigError, InternalError
from simcoll.topology import LINK_KINDS, crossbar, from_networkx

GBps = 10**15
US = 10**9
NET = crossbar(6, "1 GB/s", "1 us")  # 1000 bytes take 1 us of latency and 1 us of flow


def done_us(plan, topology=NET):
    result = emulate(plan, topology, data="none", bound=False, keep=True)
    return (result.done_fs / US).tolist()


def test_a_message_costs_what_the_protocol_says(by_hand):
    plan = by_hand(
        2,
        [[(0, 0, 1, 0, REDUCE)]],
        header_bytes=16,
        wire_factor=Fraction(2),
        launch_fs=3 * US,
        send_overhead_fs=5 * US,
        receive_overhead_fs=7 * US,
        reduce_as_per_byte=10**9,
    )
    # launch 3, overhead 5, latency 1, 2016 bytes 2.016, overhead 7, reduction of 1000 bytes 1
    assert done_us(plan) == [3 + 5 + 1 + 2.016 + 7 + 1]


def test_a_local_transfer_costs_its_copy_and_reduction(by_hand):
    plan = by_hand(
        2, [[(0, 0, 0), (1, 0, 1, 0, REDUCE)]], copy_as_per_byte=10**9, reduce_as_per_byte=2 * 10**9
    )
    assert done_us(plan) == [1, 3]


def test_a_step_is_no_barrier(by_hand):
    sizes = [[9000] * 4, [1000] * 4, [1000] * 4, [1000] * 4]
    plan = by_hand(4, [[(0, 0, 1), (2, 0, 3)], [(3, 1, 2)], [(1, 1, 2)]], sizes=sizes)
    assert done_us(plan) == [10, 2, 4, 12]


def test_transfers_of_a_step_overlap_and_share_the_port(by_hand):
    assert done_us(by_hand(4, [[(0, slot, slot) for slot in (1, 2, 3)]])) == [4, 4, 4]


def test_channels_are_independent(by_hand):
    one = by_hand(3, [[(0, 0, 1, 0)], [(0, 1, 2, 0)]])
    two = by_hand(3, [[(0, 0, 1, 0)], [(0, 1, 2, 1)]])
    assert done_us(one) == [2, 4]
    assert done_us(two) == [3, 3]


def test_rendezvous_waits_for_the_receiver(by_hand):
    steps = [[(2, 2, 1)], [(0, 0, 1)], [(0, 1, 1)], [(0, 2, 3)]]
    sizes = [[1000] * 4, [1000] * 4, [9000] * 4, [1000] * 4]
    # Rank 1 is busy with rank 2 until 10.
    assert done_us(by_hand(4, steps, sizes=sizes)) == [10, 12, 14, 16]


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        # Rank 0 may run ahead of rank 1, which is busy with rank 2 until 11. Flows start when a
        # message is ready, and arrive 1 us after they end. The first two share rank 1's port: 500
        # MB/s each until 2, when 8000 of the 9000 bytes are left, which flow until 10. One buffer:
        # the second message must wait until rank 1 consumes the first, at 11. It flows until 12 and
        # arrives at 13; meanwhile rank 0 sends to rank 3 from 12 to 13.
        (1, [11, 11, 13, 14]),
        # Two: the second flows from 2 to 4 at half rate, the message to rank 3 from 4 to 5; rank 1
        # is busy until 12.
        (2, [12, 12, 12, 6]),
    ],
)
def test_fifo_depth_lets_a_sender_run_ahead(by_hand, depth, expected):
    steps = [[(2, 2, 1)], [(0, 0, 1)], [(0, 1, 1)], [(0, 2, 3)]]
    sizes = [[1000] * 4, [1000] * 4, [9000] * 4, [1000] * 4]
    assert done_us(by_hand(4, steps, sizes=sizes, fifo_depth=depth)) == expected


def test_messages_ahead_keep_the_bytes_they_left_with():
    # In place, rank 0 sends its vector to rank 1 and is then overwritten by rank 2, long before
    # rank 1 takes delivery.
    collective = simcoll.Collective("all_reduce", 4, in_place=True)
    layout = simcoll.Layout(collective)
    out = layout.output()

    def steps():
        yield simcoll.transfers([3], out, [1], out, op=REDUCE)
        yield simcoll.transfers([0], out, [1], out, op=REDUCE)
        yield simcoll.transfers([2], out, [0], out, op=COPY)

    schedule = simcoll.Schedule("ahead", layout, steps)
    topology = from_networkx(star([10, 10, 10, 1]))
    data = [np.full(1000, 10.0**rank, np.float32) for rank in range(4)]
    for depth in (0, 1):
        plan = simcoll.bind(schedule, 1000, protocol=Protocol("f", fifo_depth=depth), unproved=True)
        result = emulate(plan, topology, data=data, bound=False, keep=True)
        assert [out[0] for out in result.outputs] == [100.0, 1011.0, 100.0, 1000.0]
        assert (result.done_fs[2] < result.done_fs[1]) == bool(depth)


def star(gigas, latency="1 us"):
    graph = nx.DiGraph()
    for rank, giga in enumerate(gigas):
        graph.add_node(f"g{rank}", kind="gpu", rank=rank)
        for ends in ((f"g{rank}", "hub"), ("hub", f"g{rank}")):
            graph.add_edge(*ends, bandwidth=f"{giga} GB/s", latency=latency)
    return graph


def test_a_channel_rate_caps_both_ends(by_hand):
    def capped(steps):
        return done_us(by_hand(4, steps, channel_rate_uBps=GBps // 2))

    assert capped([[(0, 0, 1)]]) == [3]
    # Two messages out of one lane share its 0.5 GB/s; on two channels each has its own.
    assert capped([[(0, 0, 1), (0, 1, 2)]]) == [5, 5]
    assert capped([[(0, 0, 1, 0), (0, 1, 2, 1)]]) == [3, 3]
    assert capped([[(0, 0, 2, 0), (1, 1, 2, 0)]]) == [5, 5]


def test_a_capped_lane_is_named_when_it_has_nothing_to_give(by_hand):
    plan = by_hand(3, [[(0, 0, 1, 0), (0, 1, 2, 0)]], channel_rate_uBps=1)
    with pytest.raises(ConfigError, match="link rank 0 channel 0 out: 2 flows share 1 micro-bytes"):
        emulate(plan, NET, data="none", bound=False)


def test_sync_messages_cost_latency_and_header(by_hand):
    assert done_us(by_hand(2, [[(0, 0, 1, 0, SYNC)], [(1, 0, 0, 0, SYNC)]])) == [1, 2]
    assert done_us(by_hand(2, [[(0, 0, 1, 0, SYNC)]], header_bytes=500)) == [1.5]


def test_nothing_to_send_ends_at_launch(by_hand):
    plan = by_hand(2, [[(0, 0, 1)]], sizes=0, launch_fs=5)
    result = emulate(plan, NET, data="none", bound=False, keep=True)
    assert (result.time_fs, result.messages, result.bytes_moved, result.done_fs.tolist()) == (
        5,
        0,
        0,
        [],
    )


def test_channels_that_share_a_chunk_wait_for_each_other():
    # Channel 1 forwards what channel 0 brought: 0 -> 1 -> 2.
    layout = simcoll.Layout(simcoll.Collective("broadcast", 3))

    def steps():
        yield simcoll.transfers([0], layout.input(), [1], layout.output())
        yield simcoll.transfers([1], layout.output(), [2], layout.output(), channel=1)

    plan = simcoll.bind(simcoll.Schedule("chain", layout, steps, 2), 1000, "uint8", unproved=True)
    assert dict(plan.waits) == {1: (0,)}
    assert done_us(plan) == [2, 4]


def test_an_exchange_of_one_buffer_reads_before_it_writes():
    layout = simcoll.Layout(simcoll.Collective("all_reduce", 2, in_place=True))

    def steps():
        yield simcoll.transfers([0, 1], layout.output(), [1, 0], layout.output())

    for depth in (0, 1):
        plan = simcoll.bind(
            simcoll.Schedule("swap", layout, steps),
            5,
            "int32",
            protocol=Protocol("p", fifo_depth=depth),
            unproved=True,
        )
        assert next(plan.steps()).staged.all()
        data = [np.arange(5, dtype=np.int32), np.arange(5, 10, dtype=np.int32)]
        # Different speeds, so that one is written before the other is.
        result = emulate(plan, from_networkx(star([1, 7])), data=data, bound=False)
        assert [out.tolist() for out in result.outputs] == [[5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]
        assert data[0].tolist() == [0, 1, 2, 3, 4]


def test_a_stuck_run_says_who_waits_for_whom(by_hand):
    plan = by_hand(3, [[(0, 0, 1)], [(1, 1, 2)]], nchannels=2)
    plan.schedule.known.waits = {1: (1,)}
    with pytest.raises(
        InternalError,
        match=r"2 lanes are stuck(.|\n)*rank 1 channel 0 is in step 1, waiting for message 1 "
        r"\(rank 1 -> 2",
    ):
        emulate(plan, NET, data="none", bound=False, engine="simpy")


def test_bytes_on_links_that_are_not_the_plans_are_caught(by_hand):
    plan = by_hand(2, [[(0, 0, 1)]])
    import simpy

    fabric = Fabric(Calendar(simpy.Environment()), NET.link_capacity_uBps.tolist(), NET.link_name)
    player = Player(plan, NET, fabric)
    player.start()
    fabric.env.run()
    player.check()
    player.check_fabric()
    fabric.delivered_bytes -= 1
    with pytest.raises(InternalError, match="links delivered 999 bytes; the plan puts 1000"):
        player.check_fabric()
    player.ledger.bytes_by_op[0] += 1
    with pytest.raises(InternalError, match=r"moved \[1001, 0, 0, 0, 0\]"):
        player.check()


def test_two_plans_share_one_fabric(by_hand):
    import simpy

    fabric = Fabric(Calendar(simpy.Environment()), NET.link_capacity_uBps.tolist(), NET.link_name)
    players = [Player(by_hand(2, [[(0, 0, 1)]]), NET, fabric) for _ in range(2)]
    for player in players:
        player.start()
    fabric.env.run(until=fabric.env.all_of([player.finished for player in players]))
    assert [player.ledger.time_fs for player in players] == [3 * US, 3 * US]


def test_memory_follows_the_steps_in_flight(by_hand):
    ranks = np.arange(4)
    plan = by_hand(4, [[(int(r), step % 4, int((r + 1) % 4)) for r in ranks] for step in range(50)])
    in_flight = []

    class Watched(Player):
        def _retire(self, block):
            super()._retire(block)
            in_flight.append(sum(len(lane.queue) for lane in self.lanes))

    import simpy

    fabric = Fabric(Calendar(simpy.Environment()), NET.link_capacity_uBps.tolist(), NET.link_name)
    player = Watched(plan, NET, fabric)
    player.start()
    fabric.env.run()
    player.check()
    assert len(in_flight) == 50
    assert max(in_flight) <= 8


# ---- a second simulator: the same rules, everything recomputed from scratch at every event ----


def rates_by_rounds(capacities, flows):
    left, waiting, rates = list(capacities), dict(flows), {}
    while waiting:
        users = {}
        for flow, links in waiting.items():
            for link in links:
                users.setdefault(link, []).append(flow)
        level = min(left[link] // len(who) for link, who in users.items())
        lowest = [link for link, who in users.items() if left[link] // len(who) == level]
        for flow in {flow for link in lowest for flow in users[link]}:
            rates[flow] = level
            for link in waiting.pop(flow):
                left[link] -= level
    return rates


class Slow:
    """Done times of a plan, by asking of every message at every event whether anything happens to
    it.
    """

    def __init__(self, plan, topology):
        self.p = plan.protocol
        self.waits = plan.waits
        self.rows = [
            (
                step.step,
                *(
                    int(column[i])
                    for column in (
                        step.src_rank,
                        step.dst_rank,
                        step.channel,
                        step.op,
                        step.size_bytes,
                    )
                ),
            )
            for step in plan.steps()
            for i in range(len(step))
        ]
        shares = dict(self.p.link_shares)
        self.capacities = [
            int(capacity * shares.get(LINK_KINDS[kind], 1))
            for capacity, kind in zip(
                topology.link_capacity_uBps.tolist(), topology.link_kind.tolist(), strict=True
            )
        ]
        self.links, self.pre, self.busy, self.latency, self.wire, self.post = [], [], [], [], [], []
        extra = {}
        for _, src, dst, channel, op, size in self.rows:
            route = topology.route([plan.ranks[src]], [plan.ranks[dst]])
            path = [link for link in route.links[0].tolist() if link >= 0]
            kind = LINK_KINDS[route.kind[0]] if path else ""
            ends = (
                [(src, channel, "out"), (dst, channel, "in"), (src, "out"), (dst, "in")]
                if path
                else []
            )
            for end, rate in zip(
                ends, [self.p.channel_rate_uBps] * 2 + [self.p.rank_rate_uBps] * 2, strict=False
            ):
                if rate and end not in extra:
                    extra[end] = len(self.capacities)
                    self.capacities.append(rate)
                path += [extra[end]] if rate else []
            reduction = size * self.p.reduce_as_per_byte // 1000 if op == REDUCE else 0
            latency = dict(self.p.hop_latency_fs).get(kind)
            if latency is None:
                latency = int(route.latency_fs[0])
            elif self.p.add_path_latency:
                latency += int(route.latency_fs[0])
            busy = self.p.send_overhead_fs + dict(self.p.occupancy_fs).get(kind, 0) if path else 0
            self.links.append(path)
            self.busy.append(busy)
            self.latency.append(latency if path else 0)
            self.pre.append(busy + latency if path and not self.p.fifo_depth else 0)
            self.wire.append(
                -(-size * self.p.wire_factor // 1) + self.p.header_bytes if path else 0
            )
            own = self.p.receive_overhead_fs if path else size * self.p.copy_as_per_byte // 1000
            self.post.append(own + reduction)
        self.lanes = {}
        self.before = []
        connections = {}
        for m, (step, src, dst, channel, *_) in enumerate(self.rows):
            for rank in {src, dst}:
                self.lanes.setdefault((rank, channel), {}).setdefault(step, []).append(m)
            recent = connections.setdefault((src, dst, channel), [])
            depth = self.p.fifo_depth
            self.before.append(
                recent[-depth] if depth and src != dst and len(recent) >= depth else None
            )
            recent.append(m)

    def at_step(self, rank, channel, step):
        """Whether a lane has finished all its steps before this one."""
        lane = self.lanes[rank, channel]
        return self.now >= self.p.launch_fs and all(
            self.finished_for(m, rank)
            for earlier, here in lane.items()
            if earlier < step
            for m in here
        )

    def finished_for(self, m, rank):
        _, src, dst, *_ = self.rows[m]
        if self.p.fifo_depth and src != dst and rank == src:
            overhead = self.ready[m] is not None and self.now >= self.ready[m] + self.busy[m]
            return overhead and self.state[m] in ("late", "ended", "post", "done")
        return self.state[m] == "done"

    def is_ready(self, m):
        step, src, dst, channel, *_ = self.rows[m]
        if any(self.state[earlier] != "done" for earlier in self.waits.get(m, ())):
            return False
        if self.before[m] is not None and self.state[self.before[m]] not in ("post", "done"):
            return False
        return self.at_step(src, channel, step) and (
            self.p.fifo_depth > 0 or self.at_step(dst, channel, step)
        )

    def advance(self, m):
        """One change of a message's state at this time, if there is one."""
        step, src, dst, channel, *_ = self.rows[m]
        state, until = self.state[m], self.until[m]
        if state == "waiting" and self.is_ready(m):
            self.state[m], self.until[m], self.ready[m] = "pre", self.now + self.pre[m], self.now
        elif state == "pre" and until == self.now:
            self.state[m], self.until[m] = ("flow", None) if self.wire[m] else self.end(m)
            if self.wire[m]:
                self.flows[m] = [float(self.wire[m]), 0, self.now]
        elif state == "flow" and until == self.now:
            del self.flows[m]
            self.state[m], self.until[m] = self.end(m)
        elif state == "late" and until == self.now:
            self.state[m], self.until[m] = "ended", None
        elif state == "ended" and (
            src == dst or not self.p.fifo_depth or self.at_step(dst, channel, step)
        ):
            self.state[m], self.until[m] = "post", self.now + self.post[m]
        elif state == "post" and until == self.now:
            self.state[m], self.until[m], self.done[m] = "done", None, self.now
        else:
            return False
        return True

    def end(self, m):
        """A flow has ended: its message has arrived, or arrives later."""
        return ("late", self.now + self.latency[m]) if self.p.fifo_depth else ("ended", None)

    def run(self):
        count = len(self.rows)
        self.state, self.until, self.done, self.flows = (
            ["waiting"] * count,
            [None] * count,
            [None] * count,
            {},
        )
        self.ready = [None] * count
        self.now = self.p.launch_fs
        while True:
            while sum(self.advance(m) for m in range(count)):
                pass
            for m, rate in rates_by_rounds(
                self.capacities, {m: self.links[m] for m in self.flows}
            ).items():
                flow = self.flows[m]
                if rate != flow[1]:
                    flow[:] = remaining_bytes(flow[0], flow[1], self.now - flow[2]), rate, self.now
                    self.until[m] = self.now + flow_delay_fs(flow[0], rate)
            if any(self.until[m] == self.now for m in self.flows):
                continue  # a flow that the new rate brings to its end at once
            if None not in self.done:
                return self.done
            overheads = [
                since + busy
                for since, busy in zip(self.ready, self.busy, strict=True)
                if since is not None
            ]
            coming = [
                until
                for until in [*self.until, *overheads]
                if until is not None and until > self.now
            ]
            self.now = min(coming)


AT_ONCE = (
    4,
    [
        [(0, 0, 0, 0, 0), (2, 0, 2, 2, 0)],
        [(0, 0, 0, 0, 0), (2, 0, 3, 0, 0)],
        [(0, 0, 0, 0, 0), (2, 2, 0, 2, 0)],
        [(2, 0, 0, 2, 0), (2, 2, 0, 0, 0), (3, 1, 0, 0, 0)],
    ],
    [[0, 0, 0, 0], [0, 0, 0, 0], [7, 0, 7, 0], [0, 1, 0, 0]],
    3,
    {"fifo_depth": 1, "receive_overhead_fs": 1, "copy_as_per_byte": 333},
    [1, 3, 10, 3],
    "0",
    [1, 0, 2, 3],
)
"""A flow ends, and the one that it shared a link with has too few bytes left for a femtosecond at
the new rate.
"""


@st.composite
def cases(draw):
    n, channels = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    rank = st.integers(0, n - 1)
    transfer = st.tuples(
        rank, rank, rank, st.integers(0, channels - 1), st.sampled_from([COPY, COPY, REDUCE, SYNC])
    )
    # No chunk may be written twice in a step.
    step = st.lists(transfer, min_size=1, max_size=6, unique_by=lambda row: (row[1], row[2]))
    steps = draw(st.lists(step, min_size=1, max_size=6))
    size = st.sampled_from([0, 1, 7, 1000, 1000, 3333])
    sizes = draw(st.lists(st.lists(size, min_size=n, max_size=n), min_size=n, max_size=n))
    delay = st.sampled_from([0, 0, 1, 1000, 12345])
    protocol = {
        "fifo_depth": draw(st.integers(0, 3)),
        "header_bytes": draw(st.sampled_from([0, 0, 16])),
        "wire_factor": draw(st.sampled_from([Fraction(1), Fraction(128, 120)])),
        "launch_fs": draw(delay),
        "send_overhead_fs": draw(delay),
        "receive_overhead_fs": draw(delay),
        "occupancy_fs": draw(st.sampled_from([(), (("link", 3_456_789),)])),
        "hop_latency_fs": draw(st.sampled_from([(), (("link", 77_777),)])),
        "add_path_latency": draw(st.booleans()),
        "reduce_as_per_byte": draw(st.sampled_from([0, 667])),
        "copy_as_per_byte": draw(st.sampled_from([0, 333])),
        "channel_rate_uBps": draw(st.sampled_from([0, 0, 3 * GBps, 7 * GBps + 1])),
        "rank_rate_uBps": draw(st.sampled_from([0, 0, 4 * GBps, 9 * GBps + 1])),
        "link_shares": draw(st.sampled_from([(), (("link", Fraction(2, 3)),)])),
    }
    gigas = draw(st.lists(st.sampled_from([1, 3, 10, 10, 25]), min_size=n, max_size=n))
    latency = draw(st.sampled_from(["0", "3 ps", "1 ns"]))
    return n, steps, sizes, channels, protocol, gigas, latency, draw(st.permutations(range(n)))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@example(case=AT_ONCE)
@given(case=cases())
def test_the_engine_agrees_with_a_simulator_that_recomputes_everything(by_hand, case):
    n, steps, sizes, channels, protocol, gigas, latency, ranks = case
    plan = by_hand(n, steps, sizes=sizes, nchannels=channels, ranks=ranks, **protocol)
    topology = from_networkx(star(gigas, latency))
    result = emulate(plan, topology, data="none", bound=False, keep=True)
    expected = Slow(plan, topology).run()
    assert result.done_fs.tolist() == expected
    assert result.time_fs == max(expected, default=protocol.get("launch_fs", 0))
