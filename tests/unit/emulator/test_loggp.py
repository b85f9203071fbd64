"""LogGP on a FIFO: closed forms, derived in docs/explanation/model.md, and finish times of
LogGOPSim, to the femtosecond.
"""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.core.protocol import Protocol
from simcoll.emulator import emulate
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.topology import boxes, crossbar

NS, US = 10**6, 10**9
WAYS = [{"engine": "simpy"}, {"quotient": True}] + [
    {"engine": "fast", "quotient": False}
] * COMPILED


def every_way(plan, topology, **how):
    """The run, which must be the same on all engines."""
    first, *others = (emulate(plan, topology, data="none", keep=True, **how, **way) for way in WAYS)
    for other in others:
        assert other.done_fs.tolist() == first.done_fs.tolist()
        assert (other.time_fs, other.trace_hash) == (first.time_fs, first.trace_hash)
    return first


def costs(o, latency, r, depth):
    """Overheads ``o`` and ``r``, the latency of every message, and a FIFO."""
    return {
        "send_overhead_fs": o,
        "receive_overhead_fs": r,
        "hop_latency_fs": (("link", latency),),
        "fifo_depth": depth,
    }


def loggp(*parameters, **more):
    """The protocol of :func:`costs`."""
    return Protocol("loggp", **costs(*parameters), **more)


def back_to_back(k, flow, o, latency, r, depth):
    """Done times of k messages on one connection."""
    slowest = max(flow, o, r)
    if depth * slowest >= flow + latency:
        return [flow + latency + r + i * slowest for i in range(k)]
    return [(1 + i // depth) * (flow + latency) + i % depth * slowest + r for i in range(k)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("o", "size", "r", "depth"),
    [
        *product([3000 * NS], [1000], [0, 500 * NS], [2, 8]),  # occupancy-bound
        *product([0, 700 * NS], [1000], [0, 900 * NS], [2, 3, 8]),  # flow-bound
        (100 * NS, 200, 2500 * NS, 4),  # receiver-bound
        *product([0, 100 * NS], [1000], [0, 50 * NS], [1, 2]),  # bound by the FIFO
    ],
)
def test_back_to_back_sends(by_hand, o, size, r, depth):
    steps = [[(0, 0, 1)] for _ in range(9)]
    plan = by_hand(2, steps, sizes=size, **costs(o, 2000 * NS, r, depth))
    result = every_way(plan, crossbar(2, "1 GB/s"), bound=False)
    assert result.done_fs.tolist() == back_to_back(9, size * NS, o, 2000 * NS, r, depth)


@pytest.mark.slow
@settings(deadline=None)
@given(
    k=st.integers(1, 12),
    size=st.integers(1, 9),
    o=st.integers(0, 9 * NS),
    latency=st.integers(0, 30 * NS),
    r=st.integers(0, 9 * NS),
    depth=st.integers(1, 6),
)
def test_back_to_back_sends_at_random(by_hand, k, size, o, latency, r, depth):
    plan = by_hand(2, [[(0, 0, 1)]] * k, sizes=size, **costs(o, latency, r, depth))
    result = emulate(
        plan, crossbar(2, "1 GB/s"), data="none", bound=False, keep=True, engine="simpy"
    )
    assert result.done_fs.tolist() == back_to_back(k, size * NS, o, latency, r, depth)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k"), list(product([2, 3, 5, 8], [1, 2, 7])))
@pytest.mark.parametrize(("o", "r"), [(0, 0), (1300 * NS, 200 * NS), (100 * NS, 1700 * NS)])
def test_a_chain_of_pieces(n, k, o, r):
    # A piece of 1000 bytes at 1 GB/s.
    flow, latency = 1000 * NS, 3500 * NS
    schedule = simcoll.schedule("broadcast", "chain", nranks=n, pieces=k, in_place=True)
    plan = simcoll.bind(schedule, 1000 * k, "uint8", protocol=loggp(o, latency, r, 5))
    assert 5 * max(flow, o, r) >= flow + latency
    result = every_way(plan, crossbar(n, "1 GB/s"))
    assert result.time_fs == (n - 1) * (flow + latency + r) + (k - 1) * max(flow, o, r)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 8, 17])
@pytest.mark.parametrize("depth", [1, 8])
@pytest.mark.parametrize("o", [0, 2 * US, 40 * US])
def test_a_ring(n, depth, o):
    flow, latency, r, reduction = 1000 * NS, 9 * US, 300 * NS, 667_000
    protocol = loggp(o, latency, r, depth, reduce_as_per_byte=667_000)
    schedule = simcoll.schedule("all_reduce", "ring", nranks=n, in_place=True)
    result = every_way(
        simcoll.bind(schedule, 1000 * n, "uint8", protocol=protocol), crossbar(n, "1 GB/s")
    )
    message = flow + latency + r
    # The last message is done before the overhead of the last senders is over.
    assert (
        result.time_fs
        == (n - 1) * max(o, message + reduction) + (n - 2) * max(o, message) + message
    )
    gathering = simcoll.bind(
        simcoll.schedule("all_gather", "ring", nranks=n, in_place=True),
        1000,
        "uint8",
        protocol=protocol,
    )
    assert (
        every_way(gathering, crossbar(n, "1 GB/s")).time_fs == (n - 2) * max(o, message) + message
    )


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "gpus"), [(2, 3), (2, 4), (2, 8), (4, 3), (5, 8)])
@pytest.mark.parametrize("o", [0, 700 * NS, 900 * NS])
def test_a_ring_over_nodes_pays_the_network_twice_a_node(nodes, gpus, o):
    n, size = nodes * gpus, 1000
    protocol = Protocol(
        "loggp",
        occupancy_fs=(("net", o),),
        hop_latency_fs=(("nvlink", 800 * NS), ("net", 15 * US)),
        fifo_depth=n,
    )
    topology = boxes(
        nodes, gpus, "100 GB/s", "0 us", nics=gpus, nic_bandwidth="10 GB/s", nic_latency="0 us"
    )
    schedule = simcoll.schedule("all_reduce", "ring", nranks=n, in_place=True)
    plan = simcoll.bind(schedule, n * size, "uint8", protocol=protocol)
    inside, across = 10 * NS + 800 * NS, 100 * NS + 15 * US
    crossing = 2 * nodes * across + (2 * nodes - 1) * (gpus - 1) * inside
    assert every_way(plan, topology).time_fs == crossing + (gpus - 3) * max(o, inside)


# Finish times of LogGOPSim (https://spcl.inf.ethz.ch/Research/Performance/LogGOPSim/) in its own
# unit of time, by algorithm of all_reduce and rank count: 1 KiB, 1 MiB, 64 MiB. Its rendezvous (S =
# 1) gives the same times for L 2500, o 1500, g 1000, G 6.
SIZES = (1 << 10, 1 << 20, 1 << 26)
LOGGOPSIM = {
    # L, o, g, G
    (25000, 0, 0, 1): {
        ("ring", 4): (151530, 1722858, 100813290),
        ("ring", 16): (751890, 2716050, 126579090),
        ("ring", 64): (3151890, 5214258, 135270450),
        ("ring", 256): (12751530, 14838450, 146442930),
        ("recursive_doubling", 4): (52046, 2147150, 134267726),
        ("recursive_doubling", 16): (104092, 4294300, 268535452),
        ("recursive_doubling", 64): (156138, 6441450, 402803178),
        ("recursive_doubling", 256): (208184, 8588600, 537070904),
        ("rabenseifner", 4): (101532, 1672860, 100763292),
        ("rabenseifner", 16): (201912, 2166072, 126029112),
        ("rabenseifner", 64): (302004, 2364372, 132420564),
        ("rabenseifner", 256): (402024, 2488944, 134093424),
    },
    (2500, 1500, 1000, 6): {
        ("ring", 4): (42180, 9470148, 604012740),
        ("ring", 16): (176340, 11961300, 755139540),
        ("ring", 64): (704340, 13078548, 793415700),
        ("ring", 256): (2814180, 15335700, 804962580),
        ("recursive_doubling", 4): (23276, 12593900, 805317356),
        ("recursive_doubling", 16): (46552, 25187800, 1610634712),
        ("recursive_doubling", 64): (69828, 37781700, 2415952068),
        ("recursive_doubling", 256): (93104, 50375600, 3221269424),
        ("rabenseifner", 4): (31192, 9459160, 604001752),
        ("rabenseifner", 16): (55472, 11840432, 755018672),
        ("rabenseifner", 64): (78024, 12452232, 792789384),
        ("rabenseifner", 256): (100144, 12621664, 802248544),
    },
}
UNIT_FS = 1000


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1, 8])
@pytest.mark.parametrize(
    ("parameters", "algorithm", "n"), [(p, *key) for p, rows in LOGGOPSIM.items() for key in rows]
)
def test_times_of_loggopsim(parameters, algorithm, n, depth):
    L, o, g, G = (UNIT_FS * value for value in parameters)
    # There, the sender's overhead comes before the flow. With a FIFO it is beside it here, so the
    # latency has it as well.
    protocol = loggp(o if depth == 0 else max(o, g), L if depth == 0 else L + o, o, depth)
    schedule = simcoll.schedule("all_reduce", algorithm, nranks=n, in_place=True)
    topology = crossbar(n, 10**21 // G)
    steps = {
        "ring": 2 * (n - 1),
        "recursive_doubling": n.bit_length() - 1,
        "rabenseifner": 2 * (n.bit_length() - 1),
    }
    for size, units in zip(SIZES, LOGGOPSIM[parameters][algorithm, n], strict=True):
        plan = simcoll.bind(schedule, size, "uint8", protocol=protocol, unproved=True)
        quotient = n > 16 or None
        # A message of b bytes takes G (b - 1) there and G b here, once in every step.
        assert (
            emulate(plan, topology, data="none", quotient=quotient).time_fs
            == UNIT_FS * units + steps[algorithm] * G
        )
