"""Start and end of the default group, backends, the environment of launchers. IN-01 and the like
are rows of semantics.md.
"""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import numpy as np
import pytest

import simcoll.distributed as dist
from simcoll.core.reference import expected_outputs
from simcoll.errors import ConfigError


def run(program, nprocs=2, **kw):
    return dist.spawn(program, nprocs, **kw).returns


def test_before_init():
    """IN-01 IN-02 IN-24 IN-27: without a default group calls raise ValueError, destroying raises
    AssertionError, WORLD is None.
    """
    calls = [
        dist.get_rank,
        dist.get_world_size,
        dist.get_backend,
        dist.new_group,
        dist.barrier,
        lambda: dist.all_reduce(np.ones(1)),
    ]

    def program(rank, world_size):
        assert not dist.is_initialized()
        assert dist.group.WORLD is None
        for call in calls:
            with pytest.raises(ValueError, match="Default process group has not been initialized"):
                call()
        with pytest.raises(AssertionError, match="Process group cannot be None"):
            dist.destroy_process_group()
        dist.init_process_group("gloo")
        assert dist.is_initialized()
        assert dist.group.WORLD is dist.GroupMember.WORLD
        assert dist.group.WORLD.size() == world_size
        dist.destroy_process_group()
        assert not dist.is_initialized()
        with pytest.raises(AssertionError):
            dist.destroy_process_group()

    run(program, init=False)
    with pytest.raises(ValueError, match="not been initialized"):
        dist.get_rank()
    assert not dist.is_initialized()


def test_init_waits_for_all():
    """IN-03: init returns when every rank has called."""

    def program(rank, world_size):
        dist.compute(rank * 1e-3)
        dist.init_process_group("gloo")
        return dist.emulated_time()

    assert run(program, 3, init=False) == (2e-3, 2e-3, 2e-3)


def test_init_twice():
    """IN-04: a second init raises; the group that spawn made may be replaced once."""

    def program(rank, world_size):
        dist.init_process_group("gloo")
        with pytest.raises(
            ValueError, match="trying to initialize the default process group twice!"
        ):
            dist.init_process_group("gloo")

    run(program)


def test_arguments_that_exclude_each_other():
    """IN-05 IN-06: init_method with a store, a store without world size or rank: AssertionError."""

    def program(rank, world_size):
        store = dist.HashStore()
        with pytest.raises(AssertionError, match="Cannot specify both init_method and store"):
            dist.init_process_group("gloo", init_method="env://", store=store)
        with pytest.raises(AssertionError, match="world_size must be positive if using store"):
            dist.init_process_group("gloo", store=store, rank=0)
        with pytest.raises(AssertionError, match="rank must be non-negative if using store"):
            dist.init_process_group("gloo", store=store, world_size=2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)

    run(program, init=False)


def test_methods():
    """IN-07 IN-10 IN-14: env is the default; URLs carry rank and world size; unknown schemes raise
    RuntimeError.
    """

    def program(rank, world_size):
        with pytest.raises(RuntimeError, match="No rendezvous handler for foo://"):
            dist.init_process_group("gloo", "foo://a:1")
        with pytest.raises(ValueError, match="rank parameter missing"):
            dist.init_process_group("gloo", "tcp://127.0.0.1:1", world_size=world_size)
        with pytest.raises(ValueError, match="world size parameter missing"):
            dist.init_process_group("gloo", "tcp://127.0.0.1:1", rank=rank)
        with pytest.raises(ValueError, match="spawned with rank"):
            dist.init_process_group(
                "gloo", f"tcp://127.0.0.1:1?rank={(rank + 1) % world_size}&world_size={world_size}"
            )
        dist.init_process_group(
            "gloo", f"tcp://127.0.0.1:{port}?rank={rank}&world_size={world_size}"
        )
        dist.destroy_process_group()
        dist.init_process_group()
        return dist.get_rank()

    port = free_port()
    assert run(program, 3, init=False) == (0, 1, 2)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("kind", ["tcp", "env", "file", "none"])
def test_the_store_of_a_method_is_there(kind, tmp_path, monkeypatch):
    """IN-07 IN-10 IN-11 IN-12: a method makes its store, which ranks, and other processes, meet at;
    it ends with the groups.
    """
    port = free_port()
    url = {
        "tcp": f"tcp://127.0.0.1:{port}",
        "env": "env://",
        "file": f"file://{tmp_path}/meet",
        "none": None,
    }[kind]
    if kind == "env":
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(port))
    seen = []

    def program(rank, world_size):
        named = {} if kind in {"env", "none"} else {"rank": rank, "world_size": world_size}
        dist.init_process_group("gloo", url, **named)
        store = dist.distributed_c10d._get_default_store()
        store.add("count", 1)
        if rank == 0:
            dist.compute(1.0)
            store.set("greeting", "hello")
        # The others wait for it without keeping rank 0 from running.
        assert store.get("greeting") == b"hello"
        if rank == 0 and kind in {"tcp", "env"}:
            with dist.TCPStore("127.0.0.1", port) as other:
                seen.append(other.get("greeting"))
        if rank == 0 and kind == "file":
            seen.append((tmp_path / "meet").exists())
        dist.barrier()
        dist.destroy_process_group()
        if rank == 0:
            dist.init_process_group("gloo")
            dist.destroy_process_group()
        else:
            dist.init_process_group("gloo")
        return type(store).__name__, dist.emulated_time() >= 1.0

    assert (
        run(program, 3, init=False)
        == (({"file": "FileStore", "none": "HashStore"}.get(kind, "TCPStore"), True),) * 3
    )
    assert seen == {"tcp": [b"hello"], "env": [b"hello"], "file": [True], "none": []}[kind]
    assert not (tmp_path / "meet").exists()
    if kind in {"tcp", "env"}:
        socket.create_server(("127.0.0.1", port)).close()  # the server has ended


def test_a_store_is_closed_with_its_run_and_needs_a_group(tmp_path):
    def program(rank, world_size):
        dist.init_process_group(
            "gloo", f"file://{tmp_path}/meet?rank={rank}&world_size={world_size}"
        )
        dist.distributed_c10d._get_default_store().set("key", "value")

    run(program, 2, init=False)
    assert not (tmp_path / "meet").exists()
    with pytest.raises(ValueError, match="not been initialized"):
        dist.distributed_c10d._get_default_store()
    with pytest.raises(
        RuntimeError,
        match="init_process_group differs between ranks: rank 0 asked for gloo file:///a, rank 1",
    ):
        run(
            lambda rank, n: dist.init_process_group(
                "gloo", f"file:///{'ab'[rank]}", rank=rank, world_size=n
            )
        )
    with pytest.raises(dist.DistStoreError, match="cannot"):
        run(
            lambda rank, n: dist.init_process_group(
                "gloo", "file:///no/such/place", rank=rank, world_size=n
            )
        )


def test_timeout():
    """IN-15 IN-16: 30 minutes unless told; anything but a timedelta is a TypeError."""

    def program(rank, world_size):
        with pytest.raises(
            TypeError, match=r"Expected timeout argument to be of type datetime\.timedelta"
        ):
            dist.init_process_group("gloo", timeout=5)
        dist.init_process_group("gloo")
        with pytest.raises(TypeError, match="timedelta"):
            dist.new_group([0, 1], timeout=5)
        with pytest.raises(TypeError, match="timedelta"):
            dist.monitored_barrier(timeout=5)
        return dist.group.WORLD.timeout

    assert run(program, init=False) == (timedelta(minutes=30),) * 2


def test_backend_names_at_init():
    """IN-17 IN-18 IN-19 IN-20 IN-22 BK-07: names ignore case, may be left out or per device;
    unknown or unbuilt ones raise.
    """

    def program(rank, world_size):
        with pytest.raises(RuntimeError, match="doesn't have MPI built in"):
            dist.init_process_group("mpi")
        with pytest.raises(ValueError, match=r"Unknown backend type foo"):
            dist.init_process_group("foo")
        seen = []
        for name in ("GLOO", None, "cpu:gloo,cuda:gloo"):
            dist.init_process_group(name, group_name="ignored")
            seen.append((dist.get_backend(), dist.get_backend_config()))
            dist.destroy_process_group()
        return seen

    expected = [
        ("gloo", "cpu:gloo,cuda:gloo"),
        ("undefined", "cpu:emulator,cuda:emulator"),
        ("cpu:gloo,cuda:gloo",) * 2,
    ]
    assert run(program, init=False) == (expected, expected)


def test_device_id():
    """IN-21: it must be an accelerator with an index."""

    def program(rank, world_size):
        for wrong in (0, "cpu", "cuda"):
            with pytest.raises(ValueError, match="must be an accelerator with an index"):
                dist.init_process_group("gloo", device_id=wrong)
        dist.init_process_group("gloo", device_id="cuda:0")

    run(program, init=False)


def test_destroy():
    """IN-23 IN-25 IN-26: one group or all; init works again and names start anew; what is destroyed
    cannot be used.
    """

    def program(rank, world_size):
        group = dist.new_group([0, 1])
        assert group.group_name == "1"
        dist.destroy_process_group(dist.GroupMember.NON_GROUP_MEMBER)
        dist.destroy_process_group(group)
        with pytest.raises(ValueError, match="is not registered"):
            dist.all_reduce(np.ones(1), group=group)
        with pytest.raises(ValueError, match="Invalid process group specified"):
            dist.destroy_process_group(group)
        x = np.ones(1)
        dist.all_reduce(x)
        old = dist.group.WORLD
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        with pytest.raises(ValueError, match="is not registered"):
            dist.all_reduce(x, group=old)
        assert dist.new_group([0, 1]).group_name == "1"
        dist.all_reduce(x)
        return float(x[0])

    assert run(program) == (4.0, 4.0)


def test_errors_name_their_rank():
    """IN-28: what a program raises carries a note with its rank."""

    def program(rank, world_size):
        if rank == 1:
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        run(program)
    assert caught.value.__notes__ == ["[rank1]: raised by the program of rank 1 at 0 s"]


def test_backend_class():
    """BK-05 BK-06: lower case, attributes, ValueError for what is no string."""
    assert dist.Backend("GLOO") == "gloo" == dist.Backend.GLOO
    assert type(dist.Backend("GLOO")) is str
    assert (
        dist.Backend.NCCL,
        dist.Backend.UCC,
        dist.Backend.MPI,
        dist.Backend.XCCL,
        dist.Backend.UNDEFINED,
    ) == (
        "nccl",
        "ucc",
        "mpi",
        "xccl",
        "undefined",
    )
    assert dist.Backend("Foo") == "foo"
    with pytest.raises(ValueError, match="must be string-ish"):
        dist.Backend(3)


@pytest.fixture
def registered(monkeypatch):
    """A place to register backends that is gone after the test."""
    monkeypatch.setattr(dist.Backend, "_makers", {})
    yield
    for name in ("DUMMY", "OTHER", "THROUGH"):
        if hasattr(dist.Backend, name):
            delattr(dist.Backend, name)


@pytest.mark.usefixtures("registered")
def test_register_backend():
    """BK-08 BK-09: its function is called with store, rank, size and timeout, or with options;
    devices default with a warning.
    """
    calls = []
    with pytest.warns(UserWarning, match="Device capability of dummy unspecified"):
        dist.Backend.register_backend("dummy", lambda *args: calls.append(args))
    dist.Backend.register_backend(
        "other", lambda opts, pg: calls.append((opts, pg)), extended_api=True, devices=["cpu"]
    )
    assert dist.Backend.DUMMY == "dummy"

    def program(rank, world_size):
        store = dist.HashStore()
        dist.init_process_group("dummy", store=store, rank=rank, world_size=world_size)
        group = dist.new_group([1], backend="other", pg_options="hints")
        if rank == 1:
            assert dist.get_backend(group) == "other"
        return dist.get_backend()

    assert run(program, init=False) == ("dummy", "dummy")
    assert sorted(call[1:] for call in calls if len(call) == 4) == [
        (0, 2, timedelta(minutes=30)),
        (1, 2, timedelta(minutes=30)),
    ]
    options, hints = next(call for call in calls if len(call) == 2)
    assert (
        options["group_rank"],
        options["group_size"],
        options["global_ranks_in_group"],
        hints,
    ) == (
        0,
        1,
        [1],
        "hints",
    )


class ThroughStore:
    """A backend of a few lines: every rank writes its input to a store and computes what the
    collective means.
    """

    def __init__(self, store, name, rank, members):
        self.store, self.name, self.rank, self.members, self.calls = store, name, rank, members, 0

    def execute(self, plan, rank, data):
        assert rank == self.rank
        self.calls += 1
        key = f"{self.name}/{self.calls}"
        self.store.set(f"{key}/{rank}", data.tobytes())
        inputs = [
            np.frombuffer(self.store.get(f"{key}/{other}"), plan.dtype)
            for other in range(plan.nranks)
        ]
        return expected_outputs(plan, inputs)[rank]


def collectives(rank, world_size):
    x = np.arange(3.0) + rank
    work = dist.all_reduce(x, op=dist.ReduceOp.AVG, async_op=True)
    work.wait()
    scaled = np.array([rank + 1.0])
    dist.all_reduce(scaled, op=dist.premul_sum(2.0))
    equal = np.zeros(world_size)
    dist.all_to_all_single(equal, np.arange(float(world_size)) + 10 * rank)
    # Rank r sends r + 1 elements to everyone.
    uneven = np.zeros(sum(range(1, world_size + 1)), int)
    dist.all_to_all_single(
        uneven,
        np.full((rank + 1) * world_size, rank),
        list(range(1, world_size + 1)),
        [rank + 1] * world_size,
    )
    group = dist.new_group([0, 2])
    things = [None, None]
    if rank != 1:
        dist.all_gather_object(things, {"rank": rank}, group)
    dist.barrier()
    return x.tolist(), scaled.tolist(), equal.tolist(), uneven.tolist(), things


@pytest.mark.slow
@pytest.mark.usefixtures("registered")
def test_a_registered_backend_executes_the_same_plans_in_every_process():
    store = dist.HashStore()

    def make(options, _):
        return ThroughStore(
            store, options["group_id"], options["group_rank"], options["global_ranks_in_group"]
        )

    dist.Backend.register_backend("through", make, extended_api=True, devices="cpu")
    with ThreadPoolExecutor(3) as pool:
        ranks = [
            pool.submit(dist.run_rank, collectives, rank, 3, backend="through") for rank in range(3)
        ]
        got = tuple(future.result(timeout=60) for future in ranks)
    assert got == run(collectives, 3)
    assert got[0][4] == [{"rank": 0}, {"rank": 2}]
    with pytest.raises(ValueError, match="is emulated: use spawn"):
        dist.run_rank(collectives, 0, 3, backend="gloo")
    with pytest.raises(RuntimeError, match="has no point-to-point operations"):
        dist.run_rank(lambda *_: dist.send(np.ones(1), 1), 0, 2, backend="through")


def test_what_is_available(monkeypatch):
    """BK-10 BK-11 BK-12 LA-03 SIG-01 SIG-04 SIG-05: availability, default backends, local rank."""
    assert dist.is_available()
    assert (
        dist.is_gloo_available(),
        dist.is_nccl_available(),
        dist.is_mpi_available(),
        dist.is_xccl_available(),
    ) == (
        True,
        True,
        False,
        False,
    )
    assert (
        dist.get_default_backend_for_device("cpu")
        == dist.get_default_backend_for_device("cuda:1")
        == "emulator"
    )
    with pytest.raises(ValueError, match="Default backend not registered for device"):
        dist.get_default_backend_for_device("abacus")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not dist.is_torchelastic_launched()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "")
    assert dist.is_torchelastic_launched()
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert dist.get_node_local_rank(5) == 5
    with pytest.raises(RuntimeError, match="LOCAL_RANK is not in the environment"):
        dist.get_node_local_rank()
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert dist.get_node_local_rank(5) == 3


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "4"])
def test_nprocs(wrong):
    with pytest.raises(ConfigError, match="nprocs"):
        dist.spawn(lambda *_: None, wrong)


def test_the_first_ranks_make_a_default_group_of_their_own():
    def program(rank, world_size):
        if rank >= 2:
            return None
        dist.init_process_group("gloo", rank=rank, world_size=2, init_method="tcp://127.0.0.1:1")
        x = np.array([rank + 1.0])
        dist.all_reduce(x)
        alone = dist.new_group([1])
        both = dist.new_group()
        dist.barrier(group=both)
        return x[0], dist.get_world_size(), dist.get_world_size(both), alone is not None

    result = dist.spawn(program, 4, init=False)
    assert result.returns[2:] == (None, None)
    assert [entry[:3] for entry in result.returns[:2]] == [(3.0, 2, 2)] * 2


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (2, 2, r"the rank must be 0 to 1 \(world size 2\), got 2"),
        (0, 4, "world_size=4, but this program was spawned with world_size=3"),
        (1, 3, "rank=1, but this program was spawned with rank=0"),
    ],
)
def test_a_default_group_of_other_ranks_is_refused(rank, world_size, message):
    def program(number, _world_size):
        if number == (rank if world_size == 2 else 0):
            with pytest.raises(ValueError, match=message):
                dist.init_process_group(
                    "gloo",
                    rank=rank,
                    world_size=world_size,
                    init_method="tcp://127.0.0.1:1",
                )

    dist.spawn(program, 3, init=False)
