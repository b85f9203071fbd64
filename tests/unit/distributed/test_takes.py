"""Operations that follow an earlier take of their plan have the times, hashes and bits of those
that are played.
"""

import random

import numpy as np
import pytest

import simcoll
import simcoll.distributed as dist
from simcoll.core.protocol import Protocol
from simcoll.distributed.runtime import history, rehearsals
from simcoll.distributed.runtime import plans_in_flight as playing
from simcoll.distributed.runtime.takes import Take, Takes
from simcoll.emulator.digest import TraceHash
from simcoll.emulator.moved_hash import MovedHash
from simcoll.planning import Call, Program
from simcoll.topology import crossbar
from simcoll.units import MAX_TIME_FS


@pytest.fixture
def counted(monkeypatch):
    """How many operations followed a take to its end, and how many gave one up."""
    seen = {"followed": 0, "given up": 0}
    close, stop = playing.Playing._close, playing.Playing.stop_following

    def closing(self, nothing):
        seen["followed"] += self._take is not None
        close(self, nothing)

    def stopping(self):
        seen["given up"] += 1
        return stop(self)

    monkeypatch.setattr(playing.Playing, "_close", closing)
    monkeypatch.setattr(playing.Playing, "stop_following", stopping)
    return seen


def both(monkeypatch, program, *args, **kwargs):
    """The result of a run, which is the same if nothing is followed."""
    runs = []
    for followed in (True, False):
        with monkeypatch.context() as patched:
            if not followed:
                patched.setattr(Takes, "of", lambda *_: [])
            runs.append(dist.spawn(program, *args, **kwargs))
    one, other = runs
    # Operations that end together are in no order.
    assert sorted(one.records, key=str) == sorted(other.records, key=str)
    assert [record.end_fs for record in one.records] == [record.end_fs for record in other.records]
    assert one.returns == other.returns
    assert (one.trace_hash, one.finish_fs) == (other.trace_hash, other.finish_fs)
    return one


def repeated(_rank, n, calls):
    x = np.ones(7, np.float32)
    for _ in range(calls):
        dist.all_reduce(x, dist.ReduceOp.AVG)
        everything = np.empty(7 * n, np.float32)
        dist.all_gather_into_tensor(everything, x)
    return everything.tolist()


def test_repeated_calls_follow(counted, monkeypatch):
    both(monkeypatch, repeated, 8, args=(10,))
    assert counted["followed"] == 18
    assert counted["given up"] == 0


def test_groups_with_links_of_their_own_follow_side_by_side(counted, monkeypatch):
    def program(rank, _n):
        mine, x = None, np.full(1000, rank + 0.1, np.float32)
        for first in (0, 8):
            group = dist.new_group(range(first, first + 8))
            mine = group if first <= rank < first + 8 else mine
        for _ in range(6):
            dist.all_reduce(x, group=mine)
            x /= 8
        return x.tolist()

    both(monkeypatch, program, 16, topology="dgx-h100")
    # Ranks come to the second call in another order than to the first.
    assert counted["followed"] == 8


def test_a_rank_that_comes_at_another_time_is_noticed(counted, monkeypatch):
    def program(rank, _n):
        x, ends = np.arange(1000) % (rank + 3), []
        for call in range(8):
            if rank == 2 and call in (3, 5):
                dist.compute((2e-6, 1e-9)[call == 5])
            dist.broadcast(x, call % 3)
            ends.append(dist.emulated_time())
        return ends, x.tolist()

    both(monkeypatch, program, 4)
    assert counted["given up"] >= 1


def test_another_group_on_the_same_links_is_noticed(counted, monkeypatch):
    def program(rank, n):
        other = dist.new_group(range(n))
        x, y = np.ones(50_000, np.float32), np.ones(50_000, np.float32)
        for call in range(6):
            work = dist.all_reduce(x, async_op=True)
            if call % 2:
                dist.compute(1e-6)
                dist.all_reduce(y, group=other)
            work.wait()
            x /= n
        return dist.emulated_time(), float(y[0])

    both(monkeypatch, program, 4)
    assert counted["given up"] >= 1


def mixed(rank, n, seed, jitter):
    """Collectives, drawn by a seed, on the world, on a half and on pairs, with computation between
    them.
    """
    shared, own = random.Random(seed), random.Random(f"{seed} {rank}")
    half = dist.new_group(range(n // 2))
    pairs = [dist.new_group([first, first + 1]) for first in range(0, n - 1, 2)]
    x = (np.arange(40) * (rank + 1) % 17).astype(np.float32) + np.float32(0.1)
    seen = []
    for _ in range(20):
        kind = shared.randrange(7)
        if jitter:
            dist.compute(own.choice([0, 1e-6, 2.5e-6]))
        if kind == 0:
            dist.all_reduce(x)
        elif kind == 1:
            dist.broadcast(x, shared.randrange(n))
        elif kind == 2:
            everything = np.empty(40 * n, np.float32)
            dist.all_gather_into_tensor(everything, x)
            seen.append(float(everything.sum()))
        elif kind == 3 and rank < n // 2:
            dist.all_reduce(x, group=half)
        elif kind == 4 and rank // 2 < len(pairs):
            dist.all_reduce(x, group=pairs[rank // 2])
        elif kind == 5:
            y, z = x.copy(), x.copy()
            works = [dist.all_reduce(y, async_op=True), dist.reduce(z, 0, async_op=True)]
            for work in works:
                work.wait()
            seen += [float(y[3]), float(z[3])]
        elif kind == 6:
            dist.barrier()
        x = (x % 13).astype(np.float32)
    return seen, x.tolist(), dist.emulated_time()


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_operation_that_begins_in_the_moment_in_which_a_take_ends(ranks, counted, monkeypatch):
    """The take is given up after its last rank has left it, and before it is closed."""

    def program(_rank, n):
        group, x = dist.new_group(range(n)), np.arange(5.0)
        dist.all_reduce(x, group=group)
        work = dist.all_reduce(x.copy(), group=group, async_op=True)
        dist.broadcast(x, src=0, group=group)
        work.wait()
        return x.tolist()

    both(monkeypatch, program, ranks)
    assert counted["given up"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("jitter", [False, True])
def test_random_programs(counted, monkeypatch, jitter):
    for seed in range(8):
        ranks = (2, 3, 4, 8)[seed % 4]
        both(
            monkeypatch,
            mixed,
            ranks,
            args=(seed, jitter),
            topology=("dgx-h100", "dgx-a100")[seed % 2],
        )
    assert counted["followed"] > 0
    assert not jitter or counted["given up"] > 0


def beside(rank, n):
    """A large operation and a small one at once, and then the small one alone."""
    groups = [dist.new_group(range(n)) for _ in range(2)]
    large, x, times = np.ones(100_000, np.float32), np.ones(10_000, np.float32), []
    work = dist.all_reduce(large, group=groups[0], async_op=True)
    for _ in range(3):
        dist.compute(rank * 1e-7)  # they come in the same order each time
        begin = dist.emulated_time()
        dist.broadcast(x, src=0, group=groups[1])
        times.append(dist.emulated_time() - begin)
        work.wait()
        dist.barrier()
        dist.compute("1 ms")
    return times


@pytest.mark.parametrize("kept", [0, 3, 20, 1 << 16])
def test_what_was_played_beside_an_operation_too_large_to_keep_is_not_followed(kept, monkeypatch):
    monkeypatch.setattr(playing, "KEPT_TRANSFERS", kept)
    both(monkeypatch, beside, 4, algorithm={"all_reduce": "ring", "broadcast": "chain"})


def drawn(rank, n):
    x, times = np.ones(1000, np.float32), []
    for _ in range(5):
        dist.all_reduce(x)
        times.append(dist.emulated_time())
    return times


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 3])
def test_each_call_draws_its_own_jitter_as_in_a_program_of_the_same_calls(depth):
    protocol = Protocol(
        "shaky", jitter_fs=5 * 10**9, seed=7, fifo_depth=depth, receive_overhead_fs=10**8
    )
    runs = [
        dist.spawn(
            drawn, 4, topology=crossbar(4, "50 GB/s", "1 us"), protocol=protocol, algorithm="ring"
        )
        for _ in range(2)
    ]
    assert runs[0].trace_hash == runs[1].trace_hash
    ends_fs = np.array(runs[0].returns).max(axis=0)
    assert len({round(each * 1e12) for each in np.diff(ends_fs, prepend=0)}) == 5
    ring = simcoll.schedule("all_reduce", "ring", nranks=4)
    plan = simcoll.bind(ring, count=1000, dtype="float32", protocol=protocol)
    program = Program(4, [Call(plan, [range(4)]) for _ in range(5)])
    for engine in ("simpy", "fast"):
        played = simcoll.emulate(program, crossbar(4, "50 GB/s", "1 us"), engine=engine, keep=True)
        assert [int(played.end_fs(call).max()) for call in range(5)] == [
            round(each * 1e15) for each in ends_fs
        ]


def test_runs_with_events_are_always_played(counted):
    dist.spawn(repeated, 4, args=(4,), events=["t=1s rank 1 stops"])
    assert counted["followed"] == 0


def test_the_hash_of_messages_that_are_later():
    times = np.random.default_rng(1).integers(0, MAX_TIME_FS // 2, (7, 50))
    later = TraceHash()
    later.add([*times[:4], *(times[4:] + 12345)])
    assert MovedHash(times).hexdigests([0, 12345])[1] == later.hexdigest()


def test_operations_that_are_hashed_together_have_the_hashes_of_each_alone(monkeypatch):
    together = dist.spawn(repeated, 8, args=(5,))
    monkeypatch.setattr(history, "HASHED_TOGETHER", 0)
    alone = dist.spawn(repeated, 8, args=(5,))
    assert len({record.trace_hash for record in alone.records}) == 10
    assert (together.records, together.trace_hash) == (alone.records, alone.trace_hash)


def test_old_takes_give_way():
    takes = Takes()
    plans = [object() for _ in range(3)]
    for number in range(5):
        takes.add(Take(plans[0], ((number, 0, False),), 1, 10, MovedHash([[]] * 7)))
    assert [take.log[0][0] for take in takes.of(plans[0])] == [1, 2, 3, 4]
    for plan in plans[1:]:
        takes.add(Take(plan, (), 1, (1 << 17) - 10, MovedHash([[]] * 7)))
    assert [len(takes.of(plan)) for plan in plans] == [0, 1, 1]
    assert takes.messages == 2 * ((1 << 17) - 10)


def large(_rank, world_size):
    x = dist.fake_array(1 << 16)
    for _ in range(3):
        dist.all_reduce(x)
        dist.compute("3 us")
        dist.all_gather_into_tensor(dist.fake_array(world_size << 16), x)
    groups = [dist.new_group(range(world_size)) for _ in range(2)]
    works = [dist.all_reduce(x, group=group, async_op=True) for group in groups]
    for work in works:  # beside each other: simulated
        work.wait()


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["dgx-h100", crossbar(16, "50 GB/s", "1 us")])
@pytest.mark.parametrize("library", [None, "nccl"])
def test_rehearsals_of_large_plans_are_the_simulation(monkeypatch, topology, library):
    options = {"topology": topology, "alike": "all", "library": library}
    simulated = dist.spawn(large, 16, **options)
    rehearsed_plans = []
    rehearse = rehearsals.Rehearsals._rehearse

    def note(self, plan):
        rehearsed_plans.append(plan)
        return rehearse(self, plan)

    monkeypatch.setattr(rehearsals.Rehearsals, "_rehearse", note)
    monkeypatch.setattr(playing, "KEPT_TRANSFERS", 0)
    rehearsed = dist.spawn(large, 16, **options)
    assert len(rehearsed_plans) == 2
    assert rehearsed.finish_fs == simulated.finish_fs
    assert [record.end_fs for record in rehearsed.records] == [
        record.end_fs for record in simulated.records
    ]
    assert rehearsed.trace_hash == dist.spawn(large, 16, **options).trace_hash
