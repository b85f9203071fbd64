"""TCPStore: its server over real sockets on loopback, with clients that behave and clients that do
not.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest

from simcoll.distributed.server.frames import HELLOS, Greeting, Hello, Welcome, decode, encode
from simcoll.distributed.stores import (
    DistNetworkError,
    DistStoreError,
    Limits,
    PrefixStore,
    TCPStore,
    wire,
)
from simcoll.distributed.stores.store_table import StoreTable
from simcoll.distributed.stores.wire import StoreRequest, Verb
from tests.support.hostile_doors import StoreDoor, next_body

SECOND = timedelta(seconds=1)
MIB = 1 << 20


def master(**settings):
    return TCPStore("127.0.0.1", 0, is_master=True, **settings)


def client(port, **settings):
    return TCPStore("127.0.0.1", port, **settings)


@pytest.fixture
def store():
    with master() as made:
        yield made


def open_files():
    return set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()  # noqa: PTH112, PTH208


def store_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("simcoll-store")]


# The interface


def test_one_side_sets_the_other_gets(store):
    """ST-25: one server, clients connect; set on one side, get on the other."""
    with client(store.port) as other:
        store.set("k", "v")
        assert other.get("k") == b"v"
        other.set("k", "w")
        assert store.get("k") == b"w"


def test_properties():
    """ST-26 SIG-26: port 0 picks a port and tells; host and libuvBackend."""
    with master(use_libuv=False) as store:
        assert store.host == "127.0.0.1"
        assert 0 < store.port < 65_536
        assert store.libuvBackend is False
    with TCPStore("localhost", 0, is_master=True) as store:
        assert store.libuvBackend is True
        with TCPStore("localhost", store.port) as other:
            other.set("k", "v")
            assert store.get("k") == b"v"


def test_the_server_listens_on_loopback_only(store):
    with socket.create_connection(("127.0.0.1", store.port)):
        pass
    # All of 127/8 is this machine; a server on all addresses would answer here, too.
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", store.port), 1):
        pass


def test_bind_says_otherwise():
    with (
        master(bind="0.0.0.0", secret="s") as store,
        TCPStore("127.0.0.2", store.port, secret="s") as other,
    ):
        other.set("k", "v")
        assert store.get("k") == b"v"


def test_bind_by_the_environment(monkeypatch):
    monkeypatch.setenv("SIMCOLL_STORE_BIND", "127.0.0.3")
    with TCPStore("127.0.0.1", 0, is_master=True) as store:
        monkeypatch.delenv("SIMCOLL_STORE_BIND")
        with TCPStore("127.0.0.3", store.port) as other, store.clone() as third:
            third.set("k", "v")
            assert other.get("k") == b"v"
            assert third.host == "127.0.0.1"


def test_workers_are_waited_for_and_counted():
    """ST-15 ST-27: the master waits for all workers, whose counter is a key."""
    stores = {}
    ready = threading.Event()

    def late_worker():
        ready.wait()
        time.sleep(0.05)
        stores["worker"] = client(port, world_size=2)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    thread = threading.Thread(target=late_worker)
    thread.start()
    ready.set()
    with TCPStore("127.0.0.1", port, 2, is_master=True) as store:
        thread.join()
        with stores["worker"] as worker:
            # The counter of workers counts as a key.
            assert store.num_keys() == worker.num_keys() == 1
            store.set("first_key", "first_value")
            assert worker.num_keys() == 2


@pytest.mark.slow
def test_workers_that_do_not_come():
    """ST-27: DistStoreError with how many joined; without wait_for_workers it returns at once."""
    with pytest.raises(
        DistStoreError,
        match=r"Timed out after 0\.2 seconds waiting for clients\. 1/2 clients joined\.",
    ):
        TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=timedelta(milliseconds=200))
    assert store_threads() == []
    with TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False):
        pass


def test_a_client_may_come_before_its_master():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    stores = []
    thread = threading.Thread(target=lambda: stores.append(client(port)))
    thread.start()
    time.sleep(0.05)
    with TCPStore("127.0.0.1", port, is_master=True) as store:
        thread.join()
        with stores[0] as other:
            other.set("k", "v")
            assert store.get("k") == b"v"


def test_masters_of_one_address_share_their_server():
    """ST-28: with multi_tenant, masters of one address in one process share the server."""
    first = master(multi_tenant=True)
    second = TCPStore("127.0.0.1", first.port, is_master=True, multi_tenant=True)
    first.set("k", "v")
    first.close()
    # The server stays until its last master goes.
    assert second.get("k") == b"v"
    assert len(store_threads()) == 1
    second.close()
    assert store_threads() == []


def test_masters_of_one_address_do_not_share_unasked(store):
    """ST-30: DistNetworkError with EADDRINUSE for a port in use."""
    for multi_tenant in (False, True):
        with pytest.raises(DistNetworkError, match="EADDRINUSE"):
            TCPStore("127.0.0.1", store.port, is_master=True, multi_tenant=multi_tenant)


def test_a_bound_socket_can_be_given():
    """ST-29: master_listen_fd is used."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with TCPStore("127.0.0.1", port, is_master=True, master_listen_fd=listener.detach()) as store:
        assert store.port == port
        with client(port) as other:
            other.set("k", "v")
        assert store.get("k") == b"v"


def test_no_server():
    """ST-30: DistNetworkError after the timeout when there is no server."""
    with pytest.raises(
        DistNetworkError,
        match=r"The client socket has timed out after 50ms while trying to connect to "
        r"\(127\.0\.0\.1, 1\)",
    ):
        client(1, timeout=timedelta(milliseconds=50))


def test_an_address_that_is_not_ours():
    with pytest.raises(DistNetworkError, match="pass bind="):
        TCPStore("192.0.2.1", 0, is_master=True)  # RFC 5737: nobody's


@pytest.mark.parametrize("port", [-1, 65_536, 0])
def test_ports_that_cannot_be(port):
    with pytest.raises(ValueError, match="1 to 65535"):
        client(port)


@pytest.mark.parametrize(
    "wrong", [lambda: TCPStore(None, 1), lambda: TCPStore("", 1), lambda: TCPStore("h", "1")]
)
def test_wrong_types(wrong):
    with pytest.raises(TypeError):
        wrong()


def test_something_else_answers():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def web_server():
            sock, _ = listener.accept()
            with sock:
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=web_server)
        thread.start()
        with pytest.raises(DistNetworkError, match=f"no server of {wire.SERVICE} answers"):
            client(listener.getsockname()[1], timeout=SECOND)
        thread.join()


@pytest.mark.slow
def test_nothing_is_left_behind():
    before = open_files()
    gc.freeze()  # what other tests have left is not searched five times
    for _ in range(5):
        with master() as store:
            others = [store.clone() for _ in range(5)]
            for other in others:
                other.add("n", 1)
            for other in others[:3]:
                other.close()
            del other, others
            gc.collect()
    assert store_threads() == []
    assert open_files() == before


@pytest.mark.slow
def test_a_store_that_is_dropped_is_closed():
    before = open_files()
    gc.freeze()
    store = master()
    del store
    gc.collect()
    assert store_threads() == []
    assert open_files() == before


def test_the_master_goes():
    store = master()
    other = store.clone()
    failures = []

    def wait():
        try:
            other.get("never")
        except DistNetworkError as error:
            failures.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    store.close()
    thread.join()
    assert "broke" in failures[0]
    with pytest.raises(DistNetworkError):
        other.set("k", "v")
    other.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_can_use_a_clone_and_ends_nothing(store):
    store.set("k", "v")
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            try:
                store.get("k")
            except DistNetworkError:
                with store.clone() as own:
                    own.set("child", "here")
                store.close()
                status = 0
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert store.multi_get(["k", "child"]) == [b"v", b"here"]


# Many and much


@pytest.mark.slow
def test_many_clients_at_once(store):
    clients = [store.clone() for _ in range(64)]

    def work(rank, own):
        own.set(f"rank {rank}", str(rank))
        # Everybody waits for everybody, in an order of its own.
        order = [(rank + i) % len(clients) for i in range(len(clients))]
        assert own.multi_get([f"rank {i}" for i in order]) == [str(i).encode() for i in order]
        own.add("done", 1)

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get("done") == b"64"
    for own in clients:
        own.close()


@pytest.mark.slow
def test_big_values(store):
    """ST-25: values of many megabytes."""
    value = os.urandom(20 * MIB + 7)
    with store.clone() as other:
        store.set("big", value)
        assert other.get("big") == value
        other.multi_set(["a", "b"], [value, value[: 5 * MIB]])
        assert store.multi_get(["b", "a"]) == [value[: 5 * MIB], value]


@pytest.mark.slow
def test_killed_clients_do_not_matter(store):
    script = (
        "import sys\n"
        "from simcoll.distributed.stores import TCPStore\n"
        "store = TCPStore('127.0.0.1', int(sys.argv[1]))\n"
        "store.add('here', 1)\n"
        "store.get('never')\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", script, str(store.port)]) for _ in range(3)]
    while store.add("here", 0) < 3:
        time.sleep(0.01)
    for child in children:
        child.send_signal(signal.SIGKILL)
        child.wait()
    # A value for those who waited goes nowhere, and the store works on.
    store.set("never", "now")
    with store.clone() as other:
        assert other.get("never") == b"now"


# Limits


def test_a_value_that_is_too_big():
    with master(limits=Limits(max_message_bytes=1000)) as store:
        with pytest.raises(DistStoreError, match="takes 1000"):
            store.set("k", b"x" * 1000)
        store.set("k", b"x" * 900)
        store.append("k", b"x" * 900)
        with pytest.raises(DistStoreError, match="sends at most 1000"):
            store.get("k")
        with pytest.raises(DistStoreError, match="sends at most"):
            store.multi_get(["k"] * 20)
        assert store.check(["k"])


def test_a_full_store():
    with master(limits=Limits(max_keys=3)) as store:
        store.multi_set(["a", "b"], ["1", "2"])
        with pytest.raises(DistStoreError, match="full"):
            store.multi_set(["c", "d"], ["3", "4"])
        assert store.list_keys() == ["a", "b"]
        store.queue_push("q", "1")
        for ask in (lambda: store.set("c", "3"), lambda: store.queue_push("q", "2")):
            with pytest.raises(DistStoreError, match="holds 3 keys and may hold 3"):
                ask()
        store.set("a", "over")
        assert store.delete_key("b")
        store.queue_push("q", "2")
        assert store.delete_key("q")
        store.multi_set(["b", "c"], ["2", "3"])


def test_counters_are_bounded_in_size_and_number():
    table = StoreTable(max_keys=2)

    def count(amount=0, *, keys):
        return StoreRequest(Verb.COUNT, amount, keys=keys)

    assert table.apply(count(1 << 62, keys=("rank 1",))) == 1 << 62
    with pytest.raises(ValueError, match="the counter 'rank 1' does not fit in 64 bits"):
        table.apply(count(1 << 62, keys=("rank 1",)))
    assert table.apply(count(keys=("rank 7",))) == 0
    table.apply(count(1, keys=("members",)))
    with pytest.raises(DistStoreError, match="the store is full: it has 2 counters"):
        table.apply(count(1, keys=("rank 2",)))
    assert table.apply(count(1, keys=("members",))) == 2


def test_memory_is_bounded_and_given_back():
    with master(limits=Limits(max_bytes=10_000)) as store:
        store.set("k", b"x" * 5000)
        for ask in (
            lambda: store.set("l", b"x" * 5000),
            lambda: store.append("k", b"x" * 5000),
            lambda: store.queue_push("q", b"x" * 5000),
            lambda: store.multi_set(["l", "m"], [b"x" * 3000, b"x" * 3000]),
            lambda: store.compare_set("k", b"x" * 5000, b"x" * 10_000),
        ):
            with pytest.raises(DistStoreError, match="full"):
                ask()
        assert store.get("k") == b"x" * 5000
        for _ in range(50):
            assert store.delete_key("k")
            store.queue_push("q", b"x" * 9000)
            assert len(store.queue_pop("q")) == 9000
            store.set("k", "")
            store.append("k", b"x" * 9000)


def test_keys_that_are_too_long_or_too_many(store):
    with pytest.raises(ValueError, match="a key of 4097 bytes"):
        store.set("k" * 4097, "v")
    with pytest.raises(DistStoreError, match="at most 65536"):
        store.check(["k"] * 65_537)
    assert store.check(["k"]) is False


def test_too_many_connections():
    with master(limits=Limits(max_connections=3)) as store:
        others = [store.clone(), store.clone()]
        with pytest.raises(DistNetworkError, match="closed by the other side"):
            client(store.port, timeout=SECOND)
        others[0].close()
        with client_when_there_is_room(store.port) as other:
            other.set("k", "v")
        assert store.get("k") == b"v"
        others[1].close()


@pytest.mark.parametrize(("most", "room"), [(-1, 20), (40, 20), (1000, 20), (8, 4)])
def test_the_limit_of_open_files_bounds_connections(most, room, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda _: most)  # -1: there is none
    with master() as store:
        others = [store.clone() for _ in range(room - 1)]
        if most in (8, 40):
            with pytest.raises(DistNetworkError, match="closed by the other side"):
                client(store.port, timeout=SECOND)
        for other in others:
            other.close()


def client_when_there_is_room(port):
    for _ in range(100):
        with contextlib.suppress(DistNetworkError):
            return client(port, timeout=SECOND)
        time.sleep(0.01)
    raise AssertionError("no room")


# The secret


def test_the_secret_opens(monkeypatch):
    with master(secret="open sesame") as store:
        with client(store.port, secret=b"open sesame") as other, other.clone() as third:
            third.set("k", "v")
        assert store.get("k") == b"v"
        for wrong in ("", "open sesam", "open sesame "):
            with pytest.raises(DistNetworkError, match="secret is missing or wrong"):
                client(store.port, secret=wrong)
        with pytest.raises(DistNetworkError, match="secret is missing or wrong"):
            client(store.port)
        monkeypatch.setenv("SIMCOLL_SECRET", "open sesame")
        with client(store.port) as other:
            assert other.get("k") == b"v"


def test_a_server_without_the_secret_is_not_trusted(store):
    with pytest.raises(DistNetworkError, match="secret"):
        client(store.port, secret="expected")


def test_an_impostor_cannot_show_that_it_knows_the_secret():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def impostor():
            sock, _ = listener.accept()
            with sock:
                sock.sendall(encode(Greeting(wire.SERVICE, b"n" * 32)))
                hello = decode(sock.recv(4096)[4:], HELLOS)
                # The best it can do is to send the client's own proof back.
                sock.sendall(encode(Welcome(1000, hello.proof)))

        thread = threading.Thread(target=impostor)
        thread.start()
        with pytest.raises(DistNetworkError, match="does not know the shared secret"):
            client(listener.getsockname()[1], secret="s", timeout=SECOND)
        thread.join()


# Clients that are none


def introduced(port):
    """A bare socket that has said a correct hello."""
    return StoreDoor.introduced_at(("127.0.0.1", port))


def receive(sock):
    """The next message."""
    return decode(next_body(sock), wire.ANSWERS)


def until_closed(sock, limit_s=5.0):
    """All that still comes; fails if the other side does not close."""
    sock.settimeout(limit_s)
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := sock.recv(65_536):
            data += part
    return data


LONG = encode(wire.StoreRequest(Verb.SET, keys=("k",), values=(b"long" * 20,)))


def frame(body):
    return struct.pack(">I", len(body)) + body


GOOD = encode(wire.StoreRequest(Verb.SET, keys=("k",), values=(b"v",)))
NONSENSE = {
    "an operation that is none": encode(wire.Reply(77, keys=("k",))),
    "a hello again": encode(Hello(wire.SERVICE, b"", b"")),
    "too few keys": encode(wire.StoreRequest(Verb.SET, values=(b"v",))),
    "too many values": encode(wire.StoreRequest(Verb.GET, keys=("k",), values=(b"v",))),
    "a length over the limit": struct.pack(">I", 0xFFFFFFFF),
    "an empty body": frame(b""),
    "a body cut short": frame(GOOD[4:-1]),
    "bytes left over": frame(GOOD[4:] + b"\x00"),
    "an item longer than the message": frame(GOOD[4:-3] + b"\xc6\xff\xff\xff\xff"),
    "more keys than items": frame(GOOD[4:].replace(b"\x91\xa1k", b"\xdd\xff\xff\xff\xff\xa1k")),
    "a key that is no text": frame(GOOD[4:].replace(b"k", b"\xff")),
    "a key that is bytes": frame(GOOD[4:].replace(b"\xa1k", b"\xc4\x01k")),
    "a number of more than 64 bits": frame(
        GOOD[4:].replace(b"\x01\x01\x00\x00", b"\x01\x01\xcf" + b"\xff" * 8 + b"\x00")
    ),
    "too many items": encode(wire.StoreRequest(Verb.MULTI_SET, values=(b"",) * 65_537)),
    "a list in place of a number": frame(b"\x96\x01" + b"\x91" * 5000),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_costs_the_connection_and_nothing_else(store, what):
    with introduced(store.port) as sock:
        sock.sendall(NONSENSE[what])
        assert b"malformed" in until_closed(sock)
    store.set("still", "alive")
    assert store.get("still") == b"alive"


def test_a_counter_of_its_own_is_refused(store):
    with introduced(store.port) as sock:
        sock.sendall(encode(wire.StoreRequest(Verb.COUNT, number=1, keys=("mine",))))
        assert receive(sock).code == wire.Status.VALUE_ERROR


def test_requests_may_come_in_pieces_and_in_one_piece(store):
    with introduced(store.port) as sock:
        for byte in GOOD:
            sock.sendall(bytes([byte]))
        assert receive(sock).code == wire.Status.OK
        sock.sendall(GOOD * 50)
        assert [receive(sock).code for _ in range(50)] == [wire.Status.OK] * 50


@pytest.mark.slow
def test_random_bytes(store):
    store.set("k", "v")
    chance = random.Random(20_260)
    for i in range(300):
        data = bytearray(chance.randbytes(chance.randrange(1, 200)))
        if i % 3 == 1:  # a plausible length before them
            data[:0] = struct.pack(">I", chance.randrange(len(data) + 3))
        if i % 3 == 2:  # a good request with some bytes changed
            data = bytearray(GOOD)
            for _ in range(chance.randrange(1, 4)):
                data[chance.randrange(4, len(data))] = chance.randrange(256)
        opener = introduced if i % 2 else lambda port: socket.create_connection(("127.0.0.1", port))
        with opener(store.port) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(data)
            if i % 5 == 0:
                sock.shutdown(socket.SHUT_WR)
                until_closed(sock)
    with store.clone() as other:
        other.set("after", "all")
        assert store.get("after") == b"all"
    assert len(store_threads()) == 1


def test_a_client_that_never_introduces_itself():
    with (
        master(limits=Limits(handshake_s=0.1)) as store,
        socket.create_connection(("127.0.0.1", store.port)) as sock,
    ):
        assert wire.SERVICE.encode() in until_closed(sock)
        assert store.num_keys() == 0


def test_a_long_hello_is_not_buffered(store):
    with socket.create_connection(("127.0.0.1", store.port)) as sock:
        sock.sendall(struct.pack(">I", 1 << 20) + b"x" * 1000)
        assert b"malformed" in until_closed(sock)


@pytest.mark.slow
def test_a_request_that_is_never_finished():
    with master(limits=Limits(request_s=0.2)) as store:
        with introduced(store.port) as slow, introduced(store.port) as quiet:
            began = time.monotonic()
            slow.sendall(LONG[:10])
            for byte in LONG[10:20]:
                # Dripping does not help: the request as a whole has its time.
                with contextlib.suppress(ConnectionError):
                    slow.sendall(bytes([byte]))
                time.sleep(0.03)
            until_closed(slow)
            assert time.monotonic() - began > 0.2
            # Who says nothing is left alone, and so is who waits.
            quiet.sendall(GOOD)
            assert receive(quiet).code == wire.Status.OK
        with store.clone() as other:
            thread = threading.Timer(0.6, lambda: store.set("late", "v"))
            thread.start()
            assert other.get("late") == b"v"
            thread.join()


@pytest.mark.slow
def test_a_client_that_does_not_take_its_answer():
    with master(limits=Limits(request_s=1.0)) as store:
        for _ in range(30):  # in pieces, each of which has a second to arrive
            store.append("big", b"x" * MIB)
        with introduced(store.port) as sock:
            sock.sendall(encode(wire.StoreRequest(Verb.GET, keys=("big",))))
            time.sleep(0.05)
            with store.clone() as other:  # others are served meanwhile
                other.set("k", "v")
            time.sleep(2.5)
            assert len(until_closed(sock)) < 30 * MIB


@pytest.mark.slow
def test_an_idle_client_where_that_is_limited():
    with master(limits=Limits(idle_s=0.1, request_s=0.2)) as store, introduced(store.port) as sock:
        until_closed(sock)
        assert store.port


@pytest.mark.slow
def test_what_has_arrived_is_bounded():
    limits = Limits(max_message_bytes=MIB, max_buffered_bytes=3 * MIB)
    with master(limits=limits) as store:
        socks = [introduced(store.port) for _ in range(6)]
        half = struct.pack(">I", MIB) + b"x" * (MIB - 10)
        for sock in socks:
            with contextlib.suppress(ConnectionError):
                sock.sendall(half)
        closed = 0
        for sock in socks:
            sock.settimeout(0.2)
        limit = time.monotonic() + 120  # the server may take its time to notice
        while closed == 0 and time.monotonic() < limit:
            for sock in socks:
                try:
                    closed += sock.recv(1) == b""
                except ConnectionError:
                    closed += 1
                except TimeoutError:
                    pass
        assert 1 <= closed <= 4
        store.set("k", "v")
        for sock in socks:
            sock.close()


def test_waiting_requests_are_bounded():
    with master(limits=Limits(max_buffered_bytes=MIB)) as store, introduced(store.port) as sock:
        keys = tuple(f"key {i}" for i in range(20_000))
        sock.sendall(encode(wire.StoreRequest(Verb.WAIT, wait_ms=60_000, keys=keys)))
        assert until_closed(sock) == b""
        store.set("k", "v")


@pytest.mark.slow
def test_an_old_deadline_does_not_end_a_new_wait(store):
    with introduced(store.port) as sock:
        sock.sendall(encode(wire.StoreRequest(Verb.WAIT, wait_ms=300, keys=("x",))))
        time.sleep(0.05)
        store.set("x", "v")
        assert receive(sock).code == wire.Status.OK
        began = time.monotonic()
        sock.sendall(encode(wire.StoreRequest(Verb.WAIT, wait_ms=600, keys=("y",))))
        assert receive(sock).code == wire.Status.NOT_READY
        assert time.monotonic() - began > 0.55


@pytest.mark.slow
def test_waits_that_ended_early_take_no_memory(store):
    (server,) = [
        thread
        for thread in threading.enumerate()
        if getattr(thread, "address", ("", 0))[1] == store.port
    ]
    with introduced(store.port) as sock:
        for i in range(2000):
            sock.sendall(encode(wire.StoreRequest(Verb.WAIT, wait_ms=10**6, keys=(f"k{i}",))))
            while not server.service._parking.stays:
                time.sleep(0)
            store.set(f"k{i}", "v")
            assert receive(sock).code == wire.Status.OK
    assert len(server.loop._scheduled) < 500
    assert server.service._parking._by_key == {}


@pytest.mark.slow
def test_a_deleted_key_is_waited_for_again(store):
    with store.clone() as other:
        got = []
        thread = threading.Thread(target=lambda: got.append(other.multi_get(["a", "b"])))
        thread.start()
        time.sleep(0.05)
        store.set("a", "old")
        time.sleep(0.02)
        assert store.delete_key("a")
        store.set("b", "2")
        time.sleep(0.05)
        assert got == []
        store.set("a", "new")
        thread.join()
        assert got == [[b"new", b"2"]]


def test_prefix_on_a_server(store):
    with store.clone() as other:
        PrefixStore("p", store).set("k", "v")
        assert other.get("p/k") == b"v"


def test_a_server_that_ends_after_a_timeout_does_not_hide_it(store, monkeypatch):
    """Its process may end because of the same timeout."""
    answer = TCPStore.call

    def call(self, request, timeout_s=None):
        if request.code == Verb.CHECK:
            raise DistNetworkError("closed by the other side")
        return answer(self, request, timeout_s)

    monkeypatch.setattr(TCPStore, "call", call)
    with pytest.raises(DistStoreError, match=r"wait timeout after 10ms, keys: /a, /b$") as found:
        store.wait(["a", "b"], timedelta(milliseconds=10))
    assert not isinstance(found.value, DistNetworkError)
