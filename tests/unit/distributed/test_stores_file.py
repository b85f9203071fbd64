"""FileStore: several processes on one file, some of which die, and files that are none of ours."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from datetime import timedelta

import msgspec
import pytest

from simcoll.distributed.stores import DistStoreError, FileStore, wire
from simcoll.distributed.stores.wire import Verb


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "store")


def python(script, *arguments):
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE)


def test_two_stores_share_data(path):
    """ST-24 SIG-27: two stores on one path share data; path tells the name."""
    one, two = FileStore(path, 2), FileStore(path, 2)
    assert one.path == path
    one.set("k", "v")
    assert two.get("k") == b"v"
    two.add("n", 3)
    assert one.add("n", 4) == 7
    one.close()
    two.close()


def test_the_counter_of_users_is_one_key_more(path):
    """ST-15: two keys after one set."""
    store = FileStore(path)
    assert store.num_keys() == 1
    store.set("first_key", "first_value")
    assert store.num_keys() == 2
    store.close()


def test_the_last_of_world_size_users_removes_the_file(path):
    """ST-24 IN-12: the file goes with the last of world_size users."""
    stores = [FileStore(path, 3) for _ in range(3)]
    for store in stores:
        assert os.path.exists(path)  # noqa: PTH110
        store.close()
    assert not os.path.exists(path)  # noqa: PTH110


def test_a_user_who_comes_later_is_waited_for(path):
    # The first is gone before the second comes; the file stays for it.
    FileStore(path, 2).close()
    second = FileStore(path, 2)
    second.close()
    assert not os.path.exists(path)  # noqa: PTH110


def test_without_a_world_size_the_file_stays(path):
    """ST-24 IN-13: without a world size the file and its keys stay."""
    store = FileStore(path)
    store.set("k", "v")
    store.close()
    again = FileStore(path)
    assert again.get("k") == b"v"
    again.close()


def test_a_dropped_store_counts_as_gone(path):
    store = FileStore(path, 1)
    del store
    assert not os.path.exists(path)  # noqa: PTH110


@pytest.mark.slow
def test_processes_count_without_losing_any(path):
    script = (
        "import sys\n"
        "from simcoll.distributed.stores import FileStore\n"
        "store = FileStore(sys.argv[1])\n"
        "for _ in range(200): store.add('n', 1)\n"
        "store.wait(['go on'])\n"
        "print(store.get('n').decode())\n"
    )
    children = [python(script, path) for _ in range(3)]
    store = FileStore(path)
    while store.add("n", 0) < 600:
        time.sleep(0.01)
    store.set("go on", "")
    assert [child.communicate()[0].split() for child in children] == [[b"600"]] * 3
    store.close()


@pytest.mark.slow
def test_the_store_survives_users_that_are_killed(path):
    script = (
        "import sys\n"
        "from simcoll.distributed.stores import FileStore\n"
        "store = FileStore(sys.argv[1], 4)\n"
        "while True: store.append('text', 'x' * 50_000) if store.add('n', 1) < 50 else "
        "store.set('full', '')\n"
    )
    store = FileStore(path, 4)
    for _ in range(3):
        child = python(script, path)
        before = store.add("n", 0)
        while store.add("n", 0) < before + 5:
            time.sleep(0.002)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        store.set("still", "alive")
        assert store.get("still") == b"alive"
        assert set(store.try_get("text") or b"x") == {ord("x")}
        assert len(store.try_get("text") or b"") % 50_000 == 0
    store.close()


@pytest.mark.parametrize("cut", [1, 5, 9, 20, 40])
def test_what_a_writer_left_half_written_is_cut_off(path, cut):
    store = FileStore(path)
    store.set("k", "v")
    whole = os.path.getsize(path)  # noqa: PTH202
    store.set("lost", "x" * 30)
    with open(path, "r+b") as file:  # noqa: PTH123
        file.truncate(os.path.getsize(path) - cut)  # noqa: PTH202
    other = FileStore(path)
    assert other.get("k") == b"v"
    assert not other.check(["lost"])
    other.set("after", "w")
    with open(path, "rb") as file:  # noqa: PTH123
        assert b"xxx" not in file.read()[whole:]
    third = FileStore(path)
    assert third.multi_get(["k", "after"]) == [b"v", b"w"]
    for each in (store, other, third):
        each.close()


def test_a_file_cut_down_to_a_part_of_its_first_line(path):
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(b"simcoll-fi")
    store = FileStore(path)
    store.set("k", "v")
    assert store.get("k") == b"v"
    store.close()


def test_an_empty_file_is_a_new_store(tmp_path):
    (tmp_path / "f").touch()
    store = FileStore(tmp_path / "f")
    store.set("k", "v")
    assert store.get("k") == b"v"
    store.close()


@pytest.mark.parametrize(
    "content", [b"x", b"hello world\n", b"\x00" * 100, b"simcoll-file-store 1\n"]
)
def test_a_file_of_something_else_is_left_alone(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(DistStoreError, match="not the file of a FileStore"):
        FileStore(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == content


def test_a_damaged_record_is_found(tmp_path):
    store = FileStore(tmp_path / "f")
    store.set("k", "value")
    store.set("l", "other")
    data = (tmp_path / "f").read_bytes()
    (tmp_path / "f").write_bytes(data.replace(b"value", b"valve"))
    with pytest.raises(DistStoreError, match=r"record at byte \d+ is damaged"):
        FileStore(tmp_path / "f")
    store.close()


def test_a_record_that_makes_no_sense_is_found(tmp_path):
    FileStore(tmp_path / "f").close()
    body = msgspec.msgpack.encode(wire.StoreRequest(Verb.COUNT, number=1, keys=("of its own",)))
    with (tmp_path / "f").open("ab") as file:
        file.write(struct.pack(">II", len(body), zlib.crc32(body)) + body)
    with pytest.raises(DistStoreError, match=r"record at byte \d+ makes no sense"):
        FileStore(tmp_path / "f")


def test_places_where_no_file_can_be(tmp_path):
    with pytest.raises(DistStoreError, match="directory does not exist"):
        FileStore(tmp_path / "missing" / "f")
    with pytest.raises(DistStoreError, match="directory"):
        FileStore(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(DistStoreError, match="not a regular file"):
        FileStore(tmp_path / "fifo")
    with pytest.raises(TypeError):
        FileStore(tmp_path / "f", "2")
    with pytest.raises(TypeError):
        FileStore(3)


def test_a_link_and_a_file_of_another_user_are_refused(tmp_path, path, monkeypatch):
    (tmp_path / "victim").touch()
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    with pytest.raises(DistStoreError, match="it is a link"):
        FileStore(str(tmp_path / "link"))
    assert (tmp_path / "victim").read_bytes() == b""
    FileStore(path).close()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(DistStoreError, match="it belongs to another user"):
        FileStore(path)


def test_a_file_removed_under_the_store(tmp_path):
    store = FileStore(tmp_path / "f", 1)
    store.set("k", "v")
    (tmp_path / "f").unlink()
    with pytest.raises(DistStoreError, match="removed while"):
        store.get("k")
    store.close()


def test_a_file_replaced_under_the_store(tmp_path):
    store, other = FileStore(tmp_path / "f"), FileStore(tmp_path / "g")
    store.set("k", "v")
    other.set("l", "w")
    (tmp_path / "g").rename(tmp_path / "f")
    assert store.get("l") == b"w"
    assert not store.check(["k"])
    store.close()


def test_only_its_owner_may_read_the_file(path):
    FileStore(path).close()
    assert os.stat(path).st_mode & 0o077 == 0  # noqa: PTH116


def test_no_file_stays_open(path):
    store = FileStore(path)
    store.set("k", "v")
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        target = f"/proc/self/fd/{name}"
        assert not (os.path.exists(target) and os.path.realpath(target) == os.path.realpath(path))  # noqa: PTH110
    store.close()


@pytest.mark.slow
def test_waiting_across_processes(path):
    script = (
        "import sys, time\n"
        "from simcoll.distributed.stores import FileStore\n"
        "store = FileStore(sys.argv[1])\n"
        "store.set('ready', '')\n"
        "print(store.get('question').decode())\n"
        "store.set('answer', '42')\n"
    )
    store = FileStore(path)
    child = python(script, path)
    store.wait(["ready"])
    store.set("question", "?")
    assert store.get("answer") == b"42"
    assert child.communicate()[0].strip() == b"?"
    store.close()


@pytest.mark.slow
def test_a_process_that_keeps_the_file_is_waited_for_until_the_timeout(path):
    import fcntl

    with FileStore(path) as store:
        store.set_timeout(timedelta(seconds=0.2))
        holder = os.open(path, os.O_RDWR)
        fcntl.flock(holder, fcntl.LOCK_EX)
        try:
            with pytest.raises(
                DistStoreError,
                match=r"another process, perhaps a stopped one, has kept it locked for 0\.2 s",
            ):
                store.set("k", "1")
        finally:
            os.close(holder)
        store.set("k", "2")
        assert store.get("k") == b"2"


def test_threads_on_one_file(path):
    stores = [FileStore(path) for _ in range(4)]
    threads = [
        threading.Thread(target=lambda s=s: [s.add("n", 1) for _ in range(50)]) for s in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].get("n") == b"200"
    stores[1].set_timeout(timedelta(milliseconds=20))
    with pytest.raises(DistStoreError, match="wait timeout after 20ms"):
        stores[1].get("nope")
    for store in stores:
        store.close()
