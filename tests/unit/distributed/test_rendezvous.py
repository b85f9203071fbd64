"""How ranks find each other: URLs, the environment, stores, and what is said when something is
missing.
"""

from __future__ import annotations

import socket
import threading
from datetime import timedelta

import pytest

from simcoll.distributed.stores import (
    DistNetworkError,
    DistStoreError,
    FileStore,
    HashStore,
    TCPStore,
)
from simcoll.distributed.stores.rendezvous import parse_init_method, rendezvous

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in (*VARIABLES, "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def meet(n, how):
    """All ranks' rendezvous, each in its thread; checks that they share a store."""
    found = {}

    def rank_program(rank):
        found[rank] = how(rank)

    threads = [threading.Thread(target=rank_program, args=(rank,)) for rank in reversed(range(n))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(found[rank].rank, found[rank].world_size) for rank in range(n)] == [
        (rank, n) for rank in range(n)
    ]
    for rank in range(n):
        found[rank].store.set(f"rank {rank}", str(rank))
    for rank in range(n):
        assert found[rank].store.multi_get([f"rank {i}" for i in range(n)]) == [
            b"%d" % i for i in range(n)
        ]
    for rank in reversed(range(n)):
        found[rank].store.close()
    return found[0].store


@pytest.mark.parametrize("n", [1, 2, 5])
def test_tcp_with_arguments(n, port):
    """IN-03 IN-10: tcp:// with rank and world size as arguments; rank 0 waits for all."""
    store = meet(n, lambda rank: rendezvous(f"tcp://127.0.0.1:{port}", rank=rank, world_size=n))
    assert isinstance(store, TCPStore)


@pytest.mark.parametrize("n", [1, 3])
def test_tcp_with_everything_in_the_url(n, port):
    """IN-10: tcp:// with rank and world size in the URL."""
    meet(n, lambda rank: rendezvous(f"tcp://localhost:{port}?rank={rank}&world_size={n}"))


@pytest.mark.parametrize("n", [1, 3])
def test_a_file(n, tmp_path):
    """IN-11 IN-12: file:// makes the file; the last user removes it."""
    path = tmp_path / "a file"
    store = meet(n, lambda rank: rendezvous(f"file://{path}", rank=rank, world_size=n))
    assert isinstance(store, FileStore)
    assert not path.exists()


def test_a_file_with_everything_in_the_url(tmp_path):
    meet(2, lambda rank: rendezvous(f"file://{tmp_path}/f%20g?rank={rank}&world_size=2"))


def test_a_file_by_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with_store = rendezvous("file://folder/f", rank=0, world_size=2)
    assert (tmp_path / "folder" / "f").exists()
    with_store.store.close()


def test_the_environment(port, monkeypatch):
    """IN-07 IN-08: env:// is the default and reads four variables."""
    for name, value in zip(VARIABLES, ("0", "1", "127.0.0.1", str(port)), strict=True):
        monkeypatch.setenv(name, value)
    for url in (None, "env://"):
        found = rendezvous(url)
        assert (found.rank, found.world_size) == (0, 1)
        assert found.store.port == port
        found.store.close()


def test_arguments_instead_of_variables(port, monkeypatch):
    """IN-08: rank and world size may be arguments instead of variables."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    meet(2, lambda rank: rendezvous(rank=rank, world_size=2))
    monkeypatch.setenv("WORLD_SIZE", "2")
    meet(2, lambda rank: rendezvous("env://", rank=rank))
    meet(2, lambda rank: rendezvous(f"env://?rank={rank}"))


def test_variables_are_missed_in_order(monkeypatch):
    """IN-08 IN-09: a missing variable is named, in torch's order; MASTER_ADDR is needed on rank 0,
    too.
    """
    for name, value in zip(VARIABLES, ("0", "1", "127.0.0.1", "1"), strict=True):
        message = f"using env:// rendezvous: environment variable {name} expected, but not set"
        with pytest.raises(ValueError, match=message):
            rendezvous()
        with pytest.raises(ValueError, match=message):
            parse_init_method("env://")
        monkeypatch.setenv(name, value)
    assert parse_init_method("env://") == (0, 1)


def test_a_given_store():
    store = HashStore()
    found = rendezvous(store=store, rank=2, world_size=4)
    assert found.store is store
    assert (found.rank, found.world_size) == (2, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"init_method": "env://", "rank": 0, "world_size": 1},
            "Cannot specify both init_method and store",
        ),
        ({"rank": 0}, "world_size must be positive if using store"),
        ({"rank": 0, "world_size": 0}, "world_size must be positive if using store"),
        ({"world_size": 2}, "rank must be non-negative if using store"),
        ({"rank": 2, "world_size": 2}, "rank must be 0 to 1"),
    ],
)
def test_a_store_with_wrong_arguments(arguments, message):
    """IN-05 IN-06: AssertionError for a store with an init_method, or without world size or
    rank.
    """
    with pytest.raises(AssertionError, match=message):
        rendezvous(store=HashStore(), **arguments)


@pytest.mark.parametrize(
    ("url", "arguments", "error", "message"),
    [
        ("foo://x", {}, RuntimeError, "No rendezvous handler for foo://"),
        ("", {}, RuntimeError, "No rendezvous handler for ://"),
        ("tcp://127.0.0.1:1", {}, ValueError, "tcp:// rendezvous: rank parameter missing"),
        (
            "tcp://127.0.0.1:1",
            {"world_size": 2},
            ValueError,
            "tcp:// rendezvous: rank parameter missing",
        ),
        (
            "tcp://127.0.0.1:1",
            {"rank": 0},
            ValueError,
            "tcp:// rendezvous: world size parameter missing",
        ),
        ("tcp://127.0.0.1:1?rank=0", {}, ValueError, "world size parameter missing"),
        ("tcp://127.0.0.1?rank=0&world_size=1", {}, ValueError, "port number missing"),
        ("tcp://:1?rank=0&world_size=1", {}, ValueError, "host name missing"),
        ("tcp://127.0.0.1:99999?rank=0&world_size=1", {}, ValueError, "tcp:// rendezvous"),
        (
            "tcp://127.0.0.1:1?rank=zero&world_size=1",
            {},
            ValueError,
            "rank must be a number, got 'zero'",
        ),
        ("tcp://127.0.0.1:1?rank=2&world_size=2", {}, ValueError, "the rank must be 0 to 1"),
        (
            "tcp://127.0.0.1:1?rank=0",
            {"world_size": 2},
            AssertionError,
            "has node-specific arguments",
        ),
        ("file://", {"rank": 0, "world_size": 1}, ValueError, "file:// rendezvous: path missing"),
        (
            "file:///tmp/x",
            {"world_size": 1},
            ValueError,
            "file:// rendezvous: rank parameter missing",
        ),
        (
            "file:///tmp/x",
            {"rank": 0},
            ValueError,
            "file:// rendezvous: world size parameter missing",
        ),
        (3, {}, TypeError, "init_method must be a str"),
    ],
)
def test_urls_that_cannot_be(url, arguments, error, message):
    """IN-10 IN-11 IN-14: what is missing in a URL is a ValueError, an unknown scheme a
    RuntimeError.
    """
    for function in (rendezvous, parse_init_method):
        with pytest.raises(error, match=message):
            function(url, **arguments)


def test_a_file_in_a_missing_folder(tmp_path):
    """IN-11: the file's folder must exist."""
    with pytest.raises(DistStoreError, match="directory does not exist"):
        rendezvous(f"file://{tmp_path}/missing/f", rank=0, world_size=1)


@pytest.mark.parametrize("timeout", [1, 1.5, "1s"])
def test_a_timeout_is_a_timedelta(timeout):
    """IN-16: TypeError for a timeout that is no timedelta."""
    with pytest.raises(
        TypeError, match=r"Expected timeout argument to be of type datetime\.timedelta"
    ):
        rendezvous(store=HashStore(), rank=0, world_size=1, timeout=timeout)


def test_the_timeout_is_the_stores(port, tmp_path):
    """IN-15: 30 minutes by default."""
    for url in (f"tcp://127.0.0.1:{port}", f"file://{tmp_path}/f"):
        found = rendezvous(url, rank=0, world_size=1)
        assert found.store.timeout == timedelta(minutes=30)
        found.store.close()
        found = rendezvous(url, rank=0, world_size=1, timeout=timedelta(seconds=3))
        assert found.store.timeout == timedelta(seconds=3)
        found.store.close()


@pytest.mark.slow
def test_a_peer_that_does_not_come(port):
    with pytest.raises(DistStoreError, match="1/2 clients joined"):
        rendezvous(
            f"tcp://127.0.0.1:{port}", rank=0, world_size=2, timeout=timedelta(milliseconds=100)
        )
    with pytest.raises(DistNetworkError, match="timed out after 100ms"):
        rendezvous(
            f"tcp://127.0.0.1:{port}", rank=1, world_size=2, timeout=timedelta(milliseconds=100)
        )


def test_a_store_of_another_kind_at_the_address(monkeypatch, port):
    for name, value in zip(VARIABLES, ("0", "1", "127.0.0.1", str(port)), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(DistNetworkError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        rendezvous()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    rendezvous().store.close()


def test_two_rendezvous_of_one_process_share_the_server(port):
    first = rendezvous(f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    first.store.set("k", "v")
    second = rendezvous(f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    assert second.store.get("k") == b"v"
    first.store.close()
    second.store.close()
