"""Objects of a running program print as a short line, without an address in memory."""

import numpy as np

import realcoll
import simcoll
import simcoll.distributed as dist
from simcoll.collectives import Routing
from simcoll.testing import ProcessRunner, ThreadRunner


def program(rank, world_size):
    work = dist.all_reduce(np.ones(3), async_op=True)
    future = work.get_future()
    texts = [repr(work), repr(future)]
    work.wait()
    message = dist.P2POp(dist.isend, np.ones(2), 1 - rank, tag=7)
    prefix = dist.PrefixStore("step", dist.HashStore())
    return [*texts, repr(work), repr(future), repr(message), repr(prefix)]


def test_works_futures_messages_and_stores():
    assert dist.spawn(program, 2).returns[0] == [
        "<Work: all_reduce #0 of group 0, in flight>",
        "<Future: waiting>",
        "<Work: all_reduce #0 of group 0, done>",
        "<Future: done>",
        "<P2POp: isend to rank 1, tag 7>",
        "<PrefixStore: 'step' in <HashStore>>",
    ]


def test_stores_of_files_and_servers(tmp_path):
    path = str(tmp_path / "store")
    assert repr(dist.FileStore(path)) == f"<FileStore: {path!r}>"
    with dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) as store:
        assert repr(store) == f"<TCPStore: 127.0.0.1:{store.port}>"


def test_transports_runners_and_tables():
    plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), 1 << 16)
    prepared = repr(realcoll.prepare(plan))
    assert prepared.startswith("<Prepared: ring(channels=1, pieces=1) all_gather n=3 count=65536")
    assert prepared.endswith(", on local, ranks 0, 1, 2 here>")
    assert repr(realcoll.LocalTransport()) == "<LocalTransport: one process>"
    assert repr(ThreadRunner()) == "<ThreadRunner: a thread for each rank>"
    launched = "<ProcessRunner: a process for each rank, started by mpiexec -n {n}>"
    assert repr(ProcessRunner("mpiexec -n {n}")) == launched
    routing = Routing.drawn(64, 8, tokens=64, experts=8)
    assert repr(routing) == "<Routing: 4096 tokens of 64 ranks, 8 in a node>"
    assert "<th>chunks a block</th><td>3</td>" not in plan.schedule.layout._repr_html_()
    assert "<th>chunks a block</th><td>1</td>" in plan.schedule.layout._repr_html_()
