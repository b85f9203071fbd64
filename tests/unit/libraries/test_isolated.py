"""One call has one time: predicted, as a plan, in a workload, and in a rank program."""

import numpy as np
import pytest

import simcoll
import simcoll.distributed as dist
from simcoll.core.protocol import nccl
from simcoll.files.paths import shipped_files
from simcoll.libraries.calibration import Calibration, Correction
from simcoll.libraries.environment import parse_environment
from simcoll.libraries.isolated import FEWEST_FOLDED, alone_fs, bind_size, settle
from simcoll.libraries.plans import library_plan
from simcoll.libraries.prediction import COLLECTIVES, predict
from simcoll.topology import load_topology
from simcoll.workload.playing import run_workload
from simcoll.workload.workload import CallOperation, Workload

SIZES = (1024, 2**20, 2**28)
WITHOUT_LIBRARY = {"crossbar", "fat-tree", "tpu-v4", "tpu-v5e"}
"""Shipped machines for whose accelerators no library has numbers."""
MOST_RANKS = 64
"""Larger machines are cut down, so that the test takes a minute."""
PARTLY_JOINED = ("dgx-1v", "azure-nd40rs-v2", "azure-nc-a100-v4", "perlmutter-a100")
"""Machines whose GPUs are not all joined directly: another plan stands in for some of NCCL's."""


def machine(name):
    topology = load_topology(name)
    return topology if topology.nranks <= MOST_RANKS else topology.take(MOST_RANKS)


def in_workload(kind, size, topology, tier):
    ranks = np.arange(topology.nranks)
    call = CallOperation(id="call", kind=kind, group="all", size_bytes=size, on=("every",))
    workload = Workload(topology.nranks, {"every": ranks}, {"all": ranks[None]}, (call,))
    return run_workload(workload, topology, tier=tier, exposed=False).time_fs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name"), [*enumerate(sorted(set(shipped_files("topologies")) - WITHOUT_LIBRARY))]
)
def test_a_plan_takes_the_predicted_time_on_every_machine(place, name):
    """Sizes take turns: every machine meets each of them, and every collective all of them."""
    topology = machine(name)
    for turn, kind in enumerate(COLLECTIVES, place):
        size = SIZES[turn % len(SIZES)]
        predicted = predict(kind, size, topology)
        played_fs = alone_fs(library_plan(kind, size, topology), topology)
        assert played_fs == pytest.approx(predicted.time_fs, rel=1e-4), (kind, size)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [None, "box0.nic0 <-> leaf0.rail0"])
@pytest.mark.parametrize("algorithm", ["ring", "nccl_tree"])
def test_a_schedule_that_comes_again_takes_the_time_of_all_its_messages(algorithm, lost):
    topology = load_topology("dgx-h100", nodes=16)
    if lost:
        topology = topology.degrade(lost, "1/2")
    schedule = simcoll.schedule("all_reduce", algorithm, nranks=128, box=8, channels=8)
    protocol = nccl("LL")
    for size in (2**16, 2**18, 2**20, 2**18):
        plan = bind_size(schedule, protocol, size)
        all_messages = simcoll.emulate(
            plan, topology, data="none", bound=False, engine="fast", quotient=False
        )
        assert all_messages.messages > FEWEST_FOLDED
        assert alone_fs(plan, topology) == all_messages.time_fs


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTLY_JOINED)
def test_a_stand_in_takes_the_predicted_time(name):
    topology = load_topology(name)
    for kind in ("all_reduce", "all_to_all", "gather"):
        predicted = predict(kind, 2**26, topology)
        for tier in (1, 2):
            assert in_workload(kind, 2**26, topology, tier) == pytest.approx(
                predicted.time_fs, rel=1e-4
            )


@pytest.mark.slow
def test_a_call_made_of_sends_is_not_taken_for_another_of_the_same_time(monkeypatch, tmp_path):
    monkeypatch.setenv("SIMCOLL_CACHE_DIR", str(tmp_path))
    topology = load_topology("azure-nd40rs-v2")
    times_fs = {}
    for kind in ("gather", "all_to_all"):
        predicted = predict(kind, 1024, topology)
        times_fs[kind] = predicted.time_fs
        assert alone_fs(library_plan(kind, 1024, topology), topology) == predicted.time_fs
    assert times_fs["gather"] == times_fs["all_to_all"]


def test_calibration_and_launcher_are_part_of_the_time():
    topology = load_topology("dgx-h100")
    late = Calibration(launch_fs=5 * 10**9)
    slow = Calibration(corrections=(Correction("all_reduce", 8, ((8, 2),)),))
    early = Calibration(launch_fs=-(10**11))
    for calibration in (late, slow, early):
        predicted = predict("all_reduce", 2**20, topology, calibration=calibration)
        plan = library_plan("all_reduce", 2**20, topology, calibration=calibration)
        assert alone_fs(plan, topology) == predicted.time_fs
    torch = parse_environment("LAUNCHER=torch")
    predicted = predict("all_reduce", 2**20, topology, environment=torch)
    plan = library_plan("all_reduce", 2**20, topology, environment=torch)
    assert alone_fs(plan, topology) == predicted.time_fs


@pytest.mark.slow
@pytest.mark.parametrize("nbytes", [8, 4096, 1_000_004])
@pytest.mark.parametrize("name", ["dgx-h100", "azure-nc-a100-v4", "mi300x"])
def test_a_rank_program_takes_the_predicted_time(name, nbytes):
    topology = load_topology(name)
    library = "rccl" if name == "mi300x" else "nccl"

    def program(rank, world_size):
        del rank, world_size
        dist.all_reduce(np.ones(nbytes // 4, np.float32))

    result = dist.spawn(program, nprocs=topology.nranks, topology=topology, library=library)
    predicted = predict("all_reduce", nbytes, topology)
    assert max(result.finish_fs) == pytest.approx(predicted.time_fs, rel=1e-4)


def test_the_library_is_that_of_the_gpus_unless_named():
    amd = load_topology("mi300x")
    assert predict("all_reduce", 2**26, amd).library == "rccl 2.22"
    assert predict("all_reduce", 2**26, load_topology("dgx-h100")).library.startswith("nccl ")
    with pytest.raises(simcoll.ConfigError, match="mi300"):
        predict("all_reduce", 2**26, amd, library="nccl")
    predicted = predict("all_reduce", 2**26, amd)
    assert in_workload("all_reduce", 2**26, amd, 2) == predicted.time_fs


def test_a_workload_names_library_interval_and_assumptions_of_its_calls():
    amd = load_topology("mi300x")
    ranks = np.arange(8)
    calls = tuple(
        CallOperation(
            id=str(number), kind="all_to_all", group="all", size_bytes=size, on=("every",)
        )
        for number, size in enumerate((2**20, 2**26, 2**26))
    )
    workload = Workload(8, {"every": ranks}, {"all": ranks[None]}, calls)
    large, small = run_workload(workload, amd).calls
    assert (large.size_bytes, large.count, small.count) == (2**26, 2, 1)
    predicted = predict("all_to_all", 2**26, amd)
    assert (large.time_fs, large.library) == (predicted.time_fs, "rccl 2.22")
    assert (large.assumed, large.errors_of) == (predicted.assumed, predicted.errors_of)
    assert large.low90_fs == pytest.approx(predicted.low90_fs, rel=1e-6)
    assert not large.differs


@pytest.mark.slow
def test_a_time_that_shared_links_prolong_differs_from_the_formula_in_both():
    v100 = load_topology("dgx-1v")
    ranks = np.arange(8)
    call = CallOperation(id="a", kind="all_to_all", group="all", size_bytes=2**26, on=("every",))
    workload = Workload(8, {"every": ranks}, {"all": ranks[None]}, (call,))
    (row,) = run_workload(workload, v100).calls
    predicted = predict("all_to_all", 2**26, v100)
    assert (row.differs, predicted.differs) == (True, True)
    assert row.formula_fs == predicted.formula_fs
    assert not predict("all_to_all", 2**26, load_topology("dgx-2")).differs


def test_a_plan_is_made_quicker_and_slower():
    topology = load_topology("dgx-h100").take(4)
    plan = bind_size(simcoll.schedule("all_reduce", "ring", nranks=4), nccl("Simple"), 2**20)
    plain_fs = alone_fs(plan, topology)
    for time_fs in (plain_fs // 100, plain_fs // 3, plain_fs, 3 * plain_fs):
        changed_fs = alone_fs(settle(plan, topology, time_fs), topology)
        assert changed_fs == pytest.approx(time_fs, rel=1e-5)
