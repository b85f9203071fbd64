"""Schedules, plans, topologies and results in other processes: the same steps, times and hashes,
and no proof that was not made there.
"""

import functools
import multiprocessing
import operator
import os
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.bounds.lower_bounds import bottlenecks_of
from simcoll.core import portable
from simcoll.core.portable import Blocks
from simcoll.core.schedule import Layout, Repeat, Schedule
from simcoll.core.step import transfers
from simcoll.errors import ConfigError, ScheduleError
from simcoll.proving import lower, verify_program
from simcoll.topology import crossbar, torus

MACHINE = crossbar(8, "50 GB/s", "1 us")


def sent(record):
    return pickle.loads(pickle.dumps(record))


class Direct:
    """A source with data."""

    def __init__(self, layout, last=()):
        self.layout, self.last = layout, last

    def __call__(self):
        rank = np.arange(self.layout.collective.nranks)
        for k in rank:
            yield transfers(
                rank, self.layout.input(), (rank + k) % len(rank), self.layout.output(rank)
            )
        yield from self.last


def direct(nranks=4, *last):
    layout = Layout(simcoll.Collective("all_gather", nranks))
    return Schedule("direct", layout, Direct(layout, last))


def inside(nranks=4):
    """A schedule whose source cannot be pickled."""
    made = direct(nranks)
    return Schedule("inside", made.layout, lambda: iter(list(made.source())))


@pytest.mark.slow
@pytest.mark.parametrize("found", ALGORITHMS, ids=lambda found: f"{found.collective}-{found.name}")
def test_every_algorithm_arrives_with_its_hash(found):
    for nranks in (8, 6, 4):
        try:
            schedule = simcoll.schedule(found.collective, found.name, nranks=nranks)
        except ConfigError:
            try:
                schedule = simcoll.schedule(
                    found.collective, found.name, topology=torus([4, 2], "25 GB/s")
                )
            except ConfigError:
                continue
        other = sent(schedule)
        assert other.content_hash() == schedule.content_hash()
        assert (other.title, other.layout.scratch.tolist()) == (
            schedule.title,
            schedule.layout.scratch.tolist(),
        )


def test_a_named_algorithm_travels_by_its_name():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=1000, channels=2, pieces=3)
    assert len(pickle.dumps(schedule)) < 500
    assert sent(schedule).title == schedule.title
    assert sent(schedule) is sent(schedule)  # proved once, however often it arrives
    assert sent(schedule) is not schedule


@pytest.mark.parametrize("schedule", [direct(), inside()], ids=["object", "lambda"])
def test_other_schedules_travel_with_their_source_or_steps(schedule):
    simcoll.verify(schedule)
    other = sent(schedule)
    assert isinstance(other.source, Direct if schedule.name == "direct" else Blocks)
    assert other.content_hash() == schedule.content_hash()
    assert other.known.proof is None
    assert simcoll.verify(other) == simcoll.verify(schedule)
    assert [len(block) for block in other.blocks()] == [4] * 4


def test_repeats_travel_as_repeats():
    ring = simcoll.schedule("all_reduce", "ring", nranks=64)
    unnamed = Schedule("mine", ring.layout, ring.source, ring.nchannels, divisible=True)
    other = sent(unnamed)
    assert any(isinstance(block, Repeat) for block in other.source())
    assert len(pickle.dumps(unnamed)) < 30_000
    assert (other.divisible, other.content_hash()) == (True, unnamed.content_hash())


def test_steps_that_are_too_many_to_travel_are_refused_in_words(monkeypatch):
    monkeypatch.setattr(portable, "MOST_CARRIED", 10)
    with pytest.raises(
        ConfigError,
        match=r"inside all_gather n=4 cannot be pickled: its source is <function .*top level",
    ):
        pickle.dumps(inside())
    assert sent(direct()).name == "direct"


def test_a_changed_algorithm_does_not_travel_by_name():
    from dataclasses import replace

    ring = simcoll.schedule("all_reduce", "ring", nranks=4)
    wrong = replace(ring, source=lambda: list(ring.steps())[:-1])
    with pytest.raises(ScheduleError):
        simcoll.verify(sent(wrong))


def test_a_plan_is_proved_where_it_arrives(monkeypatch):
    from simcoll import binding

    schedule = inside(8)
    plan = simcoll.bind(
        schedule,
        [3, 0, 5, 1, 1, 1, 1, 9],
        "bfloat16",
        ranks=[7, 6, 5, 4, 3, 2, 1, 0],
        protocol="LL",
    )
    message, proofs = pickle.dumps(plan), []
    monkeypatch.setattr(
        binding, "verify", lambda schedule: proofs.append(simcoll.verify(schedule)) or proofs[-1]
    )
    other = pickle.loads(message)
    assert [other.proof] == proofs
    assert other.proof.of is other.schedule.known
    assert (other.dtype, other.protocol, str(other)) == (plan.dtype, plan.protocol, str(plan))
    results = [simcoll.emulate(each, MACHINE) for each in (plan, other)]
    assert results[0].trace_hash == results[1].trace_hash
    assert results[0].time_fs == results[1].time_fs


def test_an_unproved_plan_stays_unproved(monkeypatch):
    plan = simcoll.bind(direct(), 4, unproved=True)
    monkeypatch.setattr("simcoll.binding.verify", None)
    assert sent(plan).proof is None
    assert simcoll.emulate(sent(plan), crossbar(4, "50 GB/s", "1 us")).proof == "unproved"


def test_a_plan_whose_steps_turn_wrong_on_the_way_is_refused():
    layout = Layout(simcoll.Collective("all_gather", 4))
    source = Direct(layout)
    plan = simcoll.bind(Schedule("turns", layout, source), 4)
    source.last = (transfers(0, layout.input(), 1, layout.output(1)),)
    message = pickle.dumps(plan)
    with pytest.raises(ScheduleError, match="rank 1 output"):
        pickle.loads(message)


def test_the_parts_of_a_plan_travel():
    for op in ("sum", "avg", "max", simcoll.types.premul_sum(0.5)):
        plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), 10, op=op)
        assert sent(plan).reduction.name == plan.reduction.name
        assert (simcoll.emulate(sent(plan), MACHINE.take(4)).wrong, sent(plan).op) == (0, plan.op)


@pytest.mark.parametrize("name", ["dgx-h100", "fat-tree", "dgx-a100", "gcp-a3-high"])
def test_a_topology_arrives_with_its_routes(name):
    topology = simcoll.load_topology(name)
    lost = torus([4], "25 GB/s").degrade("gpu0 <-> gpu1", 0)
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), 100)
    for one in (topology, topology.take(4), lost):
        other = sent(one)
        assert (str(other), dict(other.traits), bottlenecks_of(other)) == (
            str(one),
            dict(one.traits),
            {},
        )
        pairs = [ranks.reshape(-1) for ranks in np.indices((one.nranks, one.nranks))]
        assert np.array_equal(other.route(*pairs).links, one.route(*pairs).links)
        assert simcoll.emulate(plan, other).trace_hash == simcoll.emulate(plan, one).trace_hash


def test_a_result_and_a_program_arrive():
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=8), 999)
    result = simcoll.emulate(plan, MACHINE, keep=True)
    other = sent(result)
    assert (other.time_fs, other.trace_hash, other.proof, str(other)) == (
        result.time_fs,
        result.trace_hash,
        result.proof,
        str(result),
    )
    assert np.array_equal(other.done_fs, result.done_fs)
    assert all(map(np.array_equal, other.outputs, result.outputs))
    program = lower(plan)
    arrived = sent(program)
    assert [lane for lanes in arrived.lanes for lane in lanes] == [
        lane for lanes in program.lanes for lane in lanes
    ]
    assert str(verify_program(arrived)) == str(verify_program(program))
    with pytest.raises(ValueError, match="WRITEABLE"):
        arrived.code.src.flags.writeable = True


MODULE = """
    import sys, pickle
    import numpy as np, simcoll

    def around():
        layout, r = simcoll.Layout(simcoll.Collective("all_gather", 4)), np.arange(4)
        for k in r:
            yield simcoll.transfers(r, layout.input(), (r + k) % 4, layout.output(r))

    def made():
        return simcoll.Schedule("around", simcoll.Layout(simcoll.Collective("all_gather", 4)), around)

    def told(records):
        for schedule in records["schedules"]:
            print(schedule.known.proof, schedule.content_hash(), str(simcoll.bind(schedule, 4)))
        for plan in records["plans"]:
            result = simcoll.emulate(plan, records["machine"])
            print(plan, plan.proof.kind, result.trace_hash, result.time_fs)
"""


@pytest.mark.slow
def test_another_hash_seed_changes_nothing(tmp_path):
    (tmp_path / "around_four.py").write_text(textwrap.dedent(MODULE))
    send = """
        import sys, pickle, around_four, simcoll
        from simcoll.topology import crossbar
        ring = simcoll.schedule("all_reduce", "ring", nranks=4, channels=2)
        closed = simcoll.Schedule("closed", around_four.made().layout, lambda: around_four.around())
        schedules = [around_four.made(), ring, closed]
        plans = [simcoll.bind(schedule, 12) for schedule in schedules]
        for schedule in schedules:
            schedule.known.proof = None
        machine = crossbar(4, "50 GB/s", "1 us")
        records = {"schedules": schedules, "plans": [simcoll.bind(schedule, 12) for schedule in schedules], "machine": machine}
        sys.stdout.buffer.write(pickle.dumps(records))
    """
    take = (
        "import sys, pickle, around_four; around_four.told(pickle.loads(sys.stdin.buffer.read()))"
    )

    def run(code, seed, given=b""):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            input=given,
            capture_output=True,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    message = run(send, "1")
    lines = run(take, "2", message).decode().splitlines()
    assert lines == run(take, "77", message).decode().splitlines()
    assert len(lines) == 6
    assert all("proved" in line for line in lines)


def spawned(task, records):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(task, records)


@pytest.mark.slow
def test_spawned_workers_give_the_same_answers(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    schedules = [simcoll.schedule("all_reduce", "ring", nranks=8), inside(8)]
    plans = [simcoll.bind(schedule, 80) for schedule in schedules]
    assert spawned(operator.methodcaller("content_hash"), schedules) == [
        each.content_hash() for each in schedules
    ]
    emulated = functools.partial(simcoll.emulate, topology=MACHINE)
    results = spawned(emulated, plans)
    assert [result.trace_hash for result in results] == [
        emulated(plan).trace_hash for plan in plans
    ]
    assert [result.plan.proof for result in results] == [plan.proof for plan in plans]


@pytest.mark.slow
def test_workers_of_dask_give_the_same_answers(tmp_path):
    distributed, token = (
        pytest.importorskip("distributed"),
        pytest.importorskip("dask.base").tokenize,
    )
    plans = [
        simcoll.bind(schedule, 80)
        for schedule in (simcoll.schedule("all_to_all", "bruck", nranks=8), inside(8))
    ]
    cluster = distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=2,
        processes=True,
        # None asks for port 8787, which another program may have.
        dashboard_address="127.0.0.1:0",
        local_directory=str(tmp_path),
    )
    assert (
        token(plans[0], MACHINE) == token(sent(plans[0]), sent(MACHINE)) != token(plans[1], MACHINE)
    )
    with cluster, distributed.Client(cluster) as client:
        futures = [client.submit(simcoll.emulate, plan, MACHINE) for plan in plans]
        titles = [
            client.submit(lambda plan: (plan.proof.kind, plan.schedule.content_hash()), plan)
            for plan in plans
        ]
        results, hashes = client.gather(futures), client.gather(titles)
    assert [result.trace_hash for result in results] == [
        simcoll.emulate(plan, MACHINE).trace_hash for plan in plans
    ]
    assert hashes == [(plan.proof.kind, plan.schedule.content_hash()) for plan in plans]
