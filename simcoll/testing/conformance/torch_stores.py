"""Statements on stores; they use no process group."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from simcoll.testing.conformance.torch_session import TorchSession, states

SHORT = timedelta(milliseconds=200)


@contextmanager
def _stores(s: TorchSession, *, files: bool = True) -> Iterator[list[Any]]:
    """A store of each type, of this rank alone."""
    with tempfile.TemporaryDirectory() as folder:
        stores = [s.dist.HashStore(), s.dist.TCPStore("localhost", 0, 1, is_master=True)]
        if files:
            stores.append(s.dist.FileStore(str(Path(folder) / "store"), 2))
        for store in stores:
            store.set_timeout(SHORT)
        yield [*stores, s.dist.PrefixStore("in", s.dist.HashStore())]


@states("ST-01")
def set_and_get(s: TorchSession) -> None:
    """Values are bytes, and can be set again."""
    with _stores(s) as stores:
        for store in stores:
            store.set("key", "a")
            store.set("key", "b")
            s.same(store.get("key"), b"b")


@states("ST-02", "ST-16")
def missing_keys(s: TorchSession) -> None:
    """Get and wait of a missing key raise after the timeout."""
    with _stores(s) as stores:
        for store in stores[:-1]:
            begin = time.monotonic()
            s.raises(RuntimeError, store.get, "missing")
            s.raises(RuntimeError, store.wait, ["missing"], SHORT)
            s.same(0.3 < time.monotonic() - begin < 10, True)
            store.set("key", "a")
            s.same(store.wait(["key"]), None)


@states("ST-03", "ST-23")
def keys_of_other_threads(s: TorchSession) -> None:
    """Get returns as soon as another thread sets the key."""
    store = s.dist.HashStore()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(store.get, "key")
        store.set("key", "a")
        s.same(future.result(10), b"a")


@states("ST-04", "ST-12")
def counters(s: TorchSession) -> None:
    """Counters add, and begin again when they were deleted."""
    with _stores(s) as stores:
        for store in stores:
            s.same([store.add("n", 2), store.add("n", 3), store.add("n", -4)], [2, 5, 1])
            store.delete_key("n")
            s.same(store.add("n", 7), 7)


@states("ST-06")
def appended_values(s: TorchSession) -> None:
    """Append extends a value, or sets it."""
    with _stores(s, files=False) as stores:
        for store in stores:
            store.append("key", "a")
            store.append("key", "b")
            s.same(store.get("key"), b"ab")


@states("ST-07")
def checked_keys(s: TorchSession) -> None:
    """Check tells whether all keys exist."""
    with _stores(s) as stores:
        for store in stores:
            store.set("key", "a")
            s.same((store.check(["key"]), store.check(["key", "none"])), (True, False))


@states("ST-08", "ST-09")
def compared_values(s: TorchSession) -> None:
    """compare_set sets if the value is the expected one."""
    with _stores(s) as stores:
        for store in stores:
            store.set("key", "first_value")
            s.same(store.compare_set("key", "first_value", "second_value"), b"second_value")
            s.same(store.compare_set("key", "other", "third"), b"second_value")
            s.same(store.compare_set("new", "", "value"), b"value")


@states("ST-11")
def deletes_from_a_file(s: TorchSession) -> None:
    """A key of a file store can be deleted."""
    with _stores(s) as stores:
        store = stores[2]
        store.set("key", "a")
        s.same((store.delete_key("key"), store.check(["key"])), (True, False))


@states("ST-10")
def deleted_keys(s: TorchSession) -> None:
    """delete_key tells whether there was one."""
    with _stores(s) as stores:
        for store in stores:
            store.set("key", "a")
            s.same((store.delete_key("key"), store.delete_key("key")), (True, False))


@states("ST-13")
def several_keys(s: TorchSession) -> None:
    """Several keys at once keep their order."""
    with _stores(s, files=False) as stores:
        for store in stores:
            store.multi_set(["a", "b"], ["1", "2"])
            s.same(store.multi_get(["b", "a"]), [b"2", b"1"])
            s.same(store.multi_get([]), [])


@states("ST-15")
def numbers_of_keys(s: TorchSession) -> None:
    """num_keys counts keys, and perhaps one more for the users."""
    with _stores(s) as stores:
        for store in stores[:-1]:
            initial = store.num_keys()
            store.set("a", "1")
            store.set("b", "1")
            s.same((initial in (0, 1), store.num_keys() - initial), (True, 2))


@states("ST-17")
def timeouts_of_stores(s: TorchSession) -> None:
    """300 seconds, which set_timeout changes."""
    store = s.dist.HashStore()
    s.same(store.timeout, timedelta(seconds=300))
    store.set_timeout(SHORT)
    s.same(store.timeout, SHORT)


@states("ST-18")
def extended_stores(s: TorchSession) -> None:
    """Which stores have the extended calls."""
    with _stores(s) as stores:
        s.same([store.has_extended_api() for store in stores], [True, True, False, True])


@states("ST-19", "ST-21")
def queues(s: TorchSession) -> None:
    """Queues are first in, first out."""
    with _stores(s, files=False) as stores:
        for store in stores[:-1]:
            s.same(store.queue_len("q"), 0)
            store.queue_push("q", "a")
            store.queue_push("q", "b")
            s.same((store.queue_len("q"), store.check(["q"])), (2, True))
            s.same([store.queue_pop("q"), store.queue_pop("q")], [b"a", b"b"])


@states("ST-20")
def empty_queues(s: TorchSession) -> None:
    """An empty queue raises, at once or after the timeout."""
    with _stores(s, files=False) as stores:
        for store in stores[:-1]:
            s.raises(s.dist.QueueEmptyError, store.queue_pop, "q", False)
            s.raises(RuntimeError, store.queue_pop, "q")


@states("ST-22")
def clones(s: TorchSession) -> None:
    """A clone has the same data."""
    with _stores(s) as stores:
        for store in stores[:-1]:
            store.set("key", "a")
            clone = store.clone()
            s.same((type(clone), clone.get("key")), (type(store), b"a"))


@states("ST-24")
def shared_files(s: TorchSession) -> None:
    """File stores on one path share data."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "store")
        first_store, second_store = s.dist.FileStore(path, 2), s.dist.FileStore(path, 2)
        first_store.set("key", "a")
        s.same(second_store.get("key"), b"a")
        del first_store
        s.same(Path(path).exists(), True)
        del second_store
        s.same(Path(path).exists(), False)


@states("ST-25", "ST-26")
def server_and_client(s: TorchSession) -> None:
    """A client gets what the server's process has set."""
    server = s.dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    client = s.dist.TCPStore("localhost", server.port, is_master=False)
    server.set("key", "a")
    s.same((server.port > 0, server.host, client.get("key")), (True, "localhost", b"a"))
    s.same(type(server.libuvBackend), bool)


@states("ST-27")
def workers_of_a_server(s: TorchSession) -> None:
    """The server raises when its workers do not come."""
    store = s.dist.TCPStore
    s.raises(RuntimeError, store, "localhost", 0, 2, is_master=True, timeout=SHORT)


@states("ST-28")
def several_masters(s: TorchSession) -> None:
    """Masters of one address share the server."""
    options = {"is_master": True, "wait_for_workers": False, "multi_tenant": True}
    first_store = s.dist.TCPStore("localhost", 0, 1, **options)
    second_store = s.dist.TCPStore("localhost", first_store.port, 1, **options)
    first_store.set("key", "a")
    s.same(second_store.get("key"), b"a")


@states("ST-30")
def ports_in_use(s: TorchSession) -> None:
    """A port in use, and a port without a server."""
    store = s.dist.TCPStore
    server = store("localhost", 0, is_master=True, wait_for_workers=False)
    error = s.dist.DistNetworkError
    s.raises(error, store, "localhost", server.port, is_master=True, wait_for_workers=False)
    port = server.port
    del server
    s.raises(error, store, "localhost", port, is_master=False, timeout=SHORT)


@states("ST-31")
def prefixes(s: TorchSession) -> None:
    """Prefixes nest."""
    store = s.dist.HashStore()
    s.dist.PrefixStore("a", s.dist.PrefixStore("b", store)).set("key", "x")
    s.same(store.get("b/a/key"), b"x")


@states("ST-32")
def errors_of_stores(s: TorchSession) -> None:
    """Which errors are which."""
    dist = s.dist
    s.same(issubclass(dist.DistError, RuntimeError), True)
    for name in ("Backend", "Network", "Store"):
        s.same(issubclass(getattr(dist, f"Dist{name}Error"), dist.DistError), True)
    s.same(issubclass(dist.QueueEmptyError, dist.DistStoreError), True)


@states("ST-33")
def methods_of_the_base_class(s: TorchSession) -> None:
    """Methods of the base class raise."""
    store = s.dist.Store()
    s.raises(RuntimeError, store.set, "a", "b")
    s.raises(RuntimeError, store.get, "a")
