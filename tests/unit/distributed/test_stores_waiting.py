"""Stores in rank programs: a runtime of greenlets in one thread waits its own way, and nobody
sleeps.
"""

from __future__ import annotations

import threading
from datetime import timedelta

import greenlet
import pytest

from simcoll.distributed.stores import (
    DistStoreError,
    FileStore,
    HashStore,
    PollingWaiter,
    PrefixStore,
    TCPStore,
    ThreadWaiter,
    use_waiter,
)


class Rounds:
    """The smallest runtime: runs its programs in turn; a waiting one is resumed when a store
    changed, or when none can go on.
    """

    def __init__(self):
        self.hub = greenlet.getcurrent()
        self.parked = {}
        self.now_s = 0.0
        self.parkings = 0

    def wait(self, ready, timeout_s):
        until_s = self.now_s + timeout_s
        while not ready():
            if self.now_s >= until_s:
                return False
            self.parkings += 1
            self.parked[greenlet.getcurrent()] = until_s
            self.hub.switch()
        return True

    def notify(self):
        self.woken = True

    def run(self, *programs):
        results = {}

        def body(number, program):
            use_waiter(self)
            results[number] = program()

        tasks = [greenlet.greenlet(lambda n=n, p=p: body(n, p)) for n, p in enumerate(programs)]
        while tasks:
            self.woken = False
            for task in tasks:
                task.switch()
            tasks = [task for task in tasks if not task.dead]
            if tasks and not self.woken:
                self.now_s = min(self.parked[task] for task in tasks)
        return [results[n] for n in range(len(programs))]


@pytest.fixture(params=["hash", "prefix", "file"])
def store(request, tmp_path):
    made = FileStore(tmp_path / "f") if request.param == "file" else HashStore()
    yield PrefixStore("p", made) if request.param == "prefix" else made
    made.close()


def test_ranks_in_one_thread_wait_for_each_other(store):
    order = []

    def first():
        order.append("first asks")
        value = store.get("answer")
        order.append("first has it")
        return value

    def second():
        store.wait(["question"])
        order.append("second answers")
        store.set("answer", "42")

    def third():
        store.set("question", "?")

    assert Rounds().run(first, second, third) == [b"42", None, None]
    assert order == ["first asks", "second answers", "first has it"]


def test_a_thousand_ranks_meet_in_a_hash_store():
    store = HashStore()
    n = 1000

    def program():
        if store.add("n", 1) == n:
            store.set("all", "")
        store.wait(["all"])

    rounds = Rounds()
    assert rounds.run(*[program] * n) == [None] * n
    assert rounds.parkings == n - 1


def test_a_timeout_is_the_runtimes_time(store):
    store.set_timeout(timedelta(seconds=1000))
    rounds = Rounds()

    def program():
        with pytest.raises(DistStoreError, match="wait timeout after 1000000ms"):
            store.get("never")
        return rounds.now_s

    assert rounds.run(program, program) == [1000, 1000]


def test_queues_between_ranks():
    store = HashStore()

    def consumer():
        return [store.queue_pop("q") for _ in range(3)]

    def producer():
        for i in range(3):
            store.queue_push("q", str(i))

    assert Rounds().run(consumer, producer)[0] == [b"0", b"1", b"2"]


def test_a_server_and_its_client_in_one_thread():
    with TCPStore("127.0.0.1", 0, is_master=True) as probe:
        port = probe.port

    def worker():  # comes first, when there is no server yet
        with TCPStore("127.0.0.1", port, 2) as store:
            value = store.get("k")
            store.set("seen", "")
            return value

    def master():
        with TCPStore("127.0.0.1", port, 2, is_master=True) as store:
            store.set("k", "v")
            store.wait(["seen"])

    assert Rounds().run(worker, master)[0] == b"v"


def test_the_runtimes_way_ends_with_its_greenlets():
    store = HashStore()
    Rounds().run(lambda: store.set("k", "v"))
    thread = threading.Timer(0.02, lambda: store.set("late", "v"))
    thread.start()
    assert store.get("late") == b"v"
    assert store.waiter is None
    thread.join()


def test_one_store_can_be_given_a_waiter():
    store = HashStore()
    waiter = PollingWaiter()
    store.waiter = waiter
    assert store.clone().waiter is waiter
    assert PrefixStore("p", store).waiter is waiter
    thread = threading.Timer(0.02, lambda: store.set("late", "v"))
    thread.start()
    assert store.get("late") == b"v"
    thread.join()


@pytest.mark.parametrize("waiter", [ThreadWaiter(), PollingWaiter()])
def test_waiters_try_at_least_once(waiter):
    tries = []
    assert waiter.wait(lambda: tries.append(1) or True, 0.0) is True
    assert waiter.wait(lambda: tries.append(1) or False, 0.0) is False
    assert len(tries) >= 2
