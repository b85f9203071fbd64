"""Stores that a program makes itself. Each program runs on PyTorch's own stores, in threads or one
process, and in ranks; the results are to be the same.
"""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch


def error_of(call):
    """The class and the text of the error of a call, without the port."""
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return type(error).__name__, str(error).split(". port")[0].split("[error")[0].strip()
    return None


def workers(make):
    """Two threads that exchange values by queues, and three that meet."""
    store = make()

    def first():
        mine = store.clone()
        mine.queue_push("a", "1")
        return mine.queue_pop("b")

    def second():
        mine = store.clone()
        value = mine.queue_pop("a")
        mine.queue_push("b", value + b"2")
        return value

    with ThreadPoolExecutor(max_workers=2) as pool:
        popped = [future.result() for future in [pool.submit(first), pool.submit(second)]]
    with ThreadPoolExecutor(max_workers=3) as pool:
        handles = [store.clone() for _ in range(3)]
        ends = [pool.submit(handle.barrier, "meet", 3, timedelta(seconds=20)) for handle in handles]
        return popped, [end.result() for end in ends]


def program(path):
    """What PyTorch's tests of stores ask, and more."""
    server = dist.TCPStore("localhost", 0, 1, is_master=True)
    server.set("key", "value")
    client = dist.TCPStore("localhost", server.port, is_master=False, wait_for_workers=False)
    space = dist.PrefixStore("outer", dist.PrefixStore("inner", client))
    space.set("k", "v")
    counted = server.num_keys(), space.num_keys(), server.get("inner/outer/k")
    file = dist.FileStore(path, 1)
    other = dist.FileStore(path, 1)
    file.set("x", "1")
    files = other.get("x"), other.num_keys(), Path(path).exists()
    del file, other
    gone = not Path(path).exists()
    short = timedelta(seconds=0.2)
    errors = [
        error_of(lambda: dist.TCPStore("localhost", 0, world_size=0)),
        error_of(lambda: dist.TCPStore("localhost", server.port, 1, is_master=True)),
        error_of(lambda: dist.PrefixStore("x", None)),
        error_of(lambda: server.barrier("alone", 2, short)),
        error_of(lambda: next(dist.rendezvous("tcp://127.0.0.1?rank=0&world_size=1"))),
        error_of(lambda: next(dist.rendezvous("tcp://127.0.0.1:23456?rank=0"))),
        error_of(lambda: next(dist.rendezvous("file:///tmp/foo?world_size=1"))),
        error_of(lambda: dist.rendezvous("unknown://")),
    ]
    kinds = [
        isinstance(server, dist.TCPStore),
        isinstance(space, dist.PrefixStore),
        isinstance(dist.HashStore(), dist.TCPStore),
        space.underlying_store.underlying_store == client,
        space._underlying_non_prefix_store == client,
    ]
    return counted, files, gone, errors, kinds, server.libuvBackend


@pytest.mark.slow
def test_stores_answer_as_pytorchs(tmp_path):
    outside = program(str(tmp_path / "outside"))
    run = backend.spawn(lambda *_: program(str(tmp_path / "inside")), 1)
    assert run.returns == (outside,)
    assert None not in outside[3]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["HashStore", "TCPStore"])
def test_threads_of_a_rank_wait_for_each_other_in_stores(name):
    def make():
        return dist.HashStore() if name == "HashStore" else dist.TCPStore("localhost", 0, 1, True)

    assert backend.spawn(lambda *_: workers(make), 1).returns == (workers(make),)


def test_a_server_waits_for_its_workers_and_clients_for_a_server():
    def body(rank, _size):
        address = ("127.0.0.1", "localhost")[rank % 2]  # both are this machine
        store = dist.TCPStore(address, 23457, 3, is_master=rank == 2)
        store.set(str(rank), "here")
        store.wait([str(other) for other in range(3)])
        late = timedelta(seconds=3)
        missing = error_of(lambda: dist.TCPStore("elsewhere", 1, 2, timeout=late))
        alone = error_of(lambda: dist.TCPStore("localhost", 40000 + rank, 2, True, timeout=late))
        return missing, alone, dist.HashStore().num_keys()

    for missing, alone, keys in backend.spawn(body, 3).returns:
        assert missing[0] == "DistNetworkError"
        assert "timed out after 3000ms" in missing[1]
        assert alone[0] == "DistStoreError"
        assert alone[1].endswith("waiting for clients. 1/2 clients joined.")
        assert keys == 0


def test_a_rank_polls_for_what_others_do_later():
    """Without a pause in its program, which would end on any network."""

    def body(rank, _size):
        dist.init_process_group("gloo")
        pair, store = dist.new_group([1, 2]), dist.distributed_c10d._get_default_store()
        if rank:
            dist.all_reduce(torch.ones(1000), group=pair)
            store.add("ready", 1)
            return 0
        rounds = 0
        while store.add("ready", 0) < 2:
            rounds += 1
        return rounds

    assert 0 < backend.spawn(body, 3).returns[0] < 10


def test_the_end_of_a_file_store_lets_no_other_rank_go_first(tmp_path):
    # A garbage collection may end it at any place of a run, also where a rank's thread begins.
    order = []

    def program(rank, world_size):
        store = dist.FileStore(str(tmp_path / f"store{rank}"), 1)
        order.append(f"rank {rank} has a store")
        del store
        order.append(f"rank {rank} has none")

    backend.spawn(program, 2)
    assert order == [f"rank {rank} has {what}" for rank in (0, 1) for what in ("a store", "none")]
    assert not list(tmp_path.iterdir())
