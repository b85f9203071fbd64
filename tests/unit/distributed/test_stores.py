"""What every store does: the statements torch's documentation and behaviour make, on all kinds of
store.
"""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from simcoll.distributed.stores import (
    DistBackendError,
    DistError,
    DistNetworkError,
    DistStoreError,
    FileStore,
    HashStore,
    PrefixStore,
    QueueEmptyError,
    Store,
    TCPStore,
)

KINDS = ("hash", "file", "tcp", "prefix hash", "prefix file", "prefix tcp")
SHORT = timedelta(milliseconds=60)


def plain(kind, folder):
    if kind == "hash":
        return HashStore()
    if kind == "file":
        return FileStore(str(folder / "store"), 1)
    return TCPStore("127.0.0.1", 0, 1, is_master=True)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def made(kind, folder):
    below = plain(kind.removeprefix("prefix "), folder)
    yield PrefixStore("p", below) if kind.startswith("prefix") else below
    below.close()


@pytest.fixture
def store(kind, tmp_path):
    yield from made(kind, tmp_path)


@pytest.fixture(params=[kind for kind in KINDS if "file" not in kind])
def queues(request, tmp_path):
    yield from made(request.param, tmp_path)


def test_set_get_returns_bytes_and_overwrites(store):
    """ST-01 SIG-25: set then get gives bytes; set again overwrites; values are str or bytes, also
    empty.
    """
    assert store.set("k", "text") is None
    assert store.get("k") == b"text"
    store.set("k", b"\x00\xff")
    assert store.get("k") == b"\x00\xff"
    store.set("k", "")
    assert store.get("k") == b""
    store.set("schlüssel/ключ", "värde")
    assert store.get("schlüssel/ключ") == "värde".encode()
    store.set("", "empty key")
    assert store.get("") == b"empty key"


@pytest.mark.parametrize("size", [0, 1, 7, 4096, 65_537, 3_000_001])
def test_values_of_any_size(store, size):
    value = bytes(i * 31 % 251 for i in range(997)) * (size // 997 + 1)
    store.set("k", value[:size])
    assert store.get("k") == value[:size]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: s.set(3, "v"),
        lambda s: s.set("k", 3),
        lambda s: s.set("k", None),
        lambda s: s.set("k", bytearray(b"v")),
        lambda s: s.get(b"k"),
        lambda s: s.add("k", "1"),
        lambda s: s.add("k", 1.0),
        lambda s: s.add("k", True),
        lambda s: s.append("k", 1),
        lambda s: s.check("k"),
        lambda s: s.check([1]),
        lambda s: s.wait("k"),
        lambda s: s.wait(["k"], 1),
        lambda s: s.set_timeout(1),
        lambda s: s.set_timeout("1s"),
        lambda s: s.multi_get("k"),
        lambda s: s.multi_set(["k"], "v"),
        lambda s: s.multi_set(["k"], [1]),
        lambda s: s.delete_key(None),
        lambda s: s.compare_set("k", 1, "v"),
    ],
)
def test_wrong_types_are_type_errors(store, wrong):
    """ST-01: keys that are no str, values that are neither str nor bytes: TypeError."""
    with pytest.raises(TypeError):
        wrong(store)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: s.set("\ud800", "v"),
        lambda s: s.set("k", "\ud800"),
        lambda s: s.add("k", 1 << 63),
        lambda s: s.set_timeout(timedelta(seconds=-1)),
        lambda s: s.multi_set(["a", "b"], ["1"]),
        lambda s: s.multi_set([], ["1"]),
    ],
)
def test_wrong_values_are_value_errors(store, wrong):
    """ST-14: multi_set with unequal lengths is a ValueError and sets nothing."""
    with pytest.raises(ValueError):
        wrong(store)
    assert not store.check(["a"])


@pytest.mark.slow
def test_get_of_a_missing_key_times_out(store):
    """ST-02 ST-16: get, wait and multi_get of a missing key wait for the timeout, then raise
    DistStoreError.
    """
    store.set_timeout(SHORT)
    for ask in (
        lambda: store.get("nope"),
        lambda: store.wait(["nope"]),
        lambda: store.multi_get(["nope"]),
    ):
        with pytest.raises(
            DistStoreError, match=r"wait timeout after 60ms, keys: /(p/)?nope"
        ) as caught:
            ask()
        assert isinstance(caught.value, RuntimeError)
    store.set("still", "alive")
    assert store.get("still") == b"alive"


def test_a_timeout_of_zero_asks_once(store):
    store.set("here", "1")
    store.set_timeout(timedelta(0))
    assert store.get("here") == b"1"
    with pytest.raises(DistStoreError):
        store.get("nope")


def test_try_get(store):
    assert store.try_get("k") is None
    store.set("k", "")
    assert store.try_get("k") == b""


@pytest.mark.slow
@pytest.mark.parametrize("ask", ["get", "wait", "multi_get"])
def test_waiting_ends_when_another_sets(store, ask):
    """ST-03: who waits goes on as soon as another client sets the key."""
    other = store.clone()
    thread = threading.Timer(0.05, lambda: other.multi_set(["late", "later"], ["1", "2"]))
    thread.start()
    try:
        if ask == "get":
            assert store.get("late") == b"1"
        elif ask == "wait":
            assert store.wait(["late", "later"]) is None
        else:
            assert store.multi_get(["later", "late"]) == [b"2", b"1"]
    finally:
        thread.join()
        other.close()


@pytest.mark.slow
def test_wait_needs_all_keys(store):
    """ST-16: wait returns None when all keys exist; its own timeout goes before the store's."""
    store.set("a", "1")
    store.wait(["a"])
    store.wait([])
    with pytest.raises(DistStoreError):
        store.wait(["a", "b"], SHORT)
    with pytest.raises(DistStoreError):
        store.wait(["b", "a"], 0.01)


@pytest.mark.slow
def test_a_timeout_names_the_keys_that_are_missing(store):
    store.multi_set(["here", "too"], ["1", "2"])
    with pytest.raises(DistStoreError, match=r"keys: /(p/)?gone, /(p/)?lost$"):
        store.wait(["here", "gone", "too", "lost"], 0.01)
    store.set_timeout(SHORT)
    with pytest.raises(DistStoreError, match=r"keys: /(p/)?gone$"):
        store.multi_get(["here", "gone"])


def test_add_counts(store):
    """ST-04 ST-12: add makes a counter and gives the new value; after delete_key it starts at the
    amount.
    """
    assert store.add("n", 1) == 1
    assert store.add("n", 6) == 7
    assert store.get("n") == b"7"
    assert store.add("n", 0) == 7
    assert store.add("n", -10) == -3
    assert store.get("n") == b"-3"
    assert store.delete_key("n")
    assert store.add("n", 5) == 5


def test_add_on_what_set_stored(store):
    """ST-05: add on numeric text counts on; on other text it is a ValueError, and the store goes
    on.
    """
    store.set("n", "5")
    assert store.add("n", 2) == 7
    for text in ("five", "", "1.5", "5 apples", "9" * 400):
        store.set("n", text)
        with pytest.raises(ValueError, match="not a number"):
            store.add("n", 1)
        assert store.get("n") == text.encode()
    store.set("n", str((1 << 63) - 1))
    with pytest.raises(ValueError, match="64 bits"):
        store.add("n", 1)
    assert store.add("n", -1) == (1 << 63) - 2


def test_append(store):
    """ST-06: append makes the key, then appends."""
    store.append("k", "po")
    store.append("k", b"tato")
    assert store.get("k") == b"potato"


def test_check(store):
    """ST-07: check is True when all keys exist; of no keys, too."""
    store.multi_set(["a", "b"], ["1", "2"])
    assert store.check(["a"]) is True
    assert store.check(("b", "a")) is True
    assert store.check(["a", "c"]) is False
    assert store.check([]) is True


def test_compare_set(store):
    """ST-08 ST-09: compare_set sets when what is expected is there, or nothing is expected and
    there; gives what is there now.
    """
    store.set("k", "first")
    assert store.compare_set("k", "first", "second") == b"second"
    assert store.compare_set("k", "first", "third") == b"second"
    assert store.get("k") == b"second"
    # A missing key: set only when nothing is expected.
    assert store.compare_set("new", "something", "x") == b"something"
    assert not store.check(["new"])
    assert store.compare_set("new", "", "x") == b"x"
    assert store.get("new") == b"x"
    assert store.compare_set("new", "", "y") == b"x"
    store.set("empty", "")
    assert store.compare_set("empty", "", "full") == b"full"


def test_delete_key(store):
    """ST-10 ST-11: delete_key tells whether there was a key, in a file, too."""
    store.set("k", "v")
    assert store.delete_key("k") is True
    assert store.delete_key("k") is False
    assert not store.check(["k"])


def test_multi(store):
    """ST-13: multi_set and multi_get keep the order; of no keys they are []."""
    store.multi_set(["a", "b", "c"], ["1", b"2", ""])
    assert store.multi_get(["c", "a", "a"]) == [b"", b"1", b"1"]
    assert store.multi_get([]) == []
    store.multi_set([], [])
    store.multi_set(["d", "d"], ["first", "last"])
    assert store.get("d") == b"last"


def test_keys_are_counted_and_listed(store, kind):
    """ST-15: num_keys counts one key more in a file, and on a server whose workers were counted."""
    before = store.num_keys()
    assert before == (0 if "hash" in kind else 1)
    store.set("b", "1")
    store.add("a", 1)
    store.set("b", "2")
    assert store.num_keys() == before + 2
    assert store.list_keys() == ["a", "b"]


def test_timeout_property(store):
    """ST-17: 300 seconds at first; set_timeout changes it."""
    assert store.timeout == timedelta(seconds=300)
    store.set_timeout(timedelta(seconds=10))
    assert store.timeout == timedelta(seconds=10)


def test_extended_api(store, kind):
    """ST-18: HashStore and TCPStore have the extended interface, FileStore has not, PrefixStore as
    below it.
    """
    assert store.has_extended_api() is ("file" not in kind)


def test_queue_is_first_in_first_out(queues):
    """ST-19: queues are first in, first out; the length of a missing one is 0."""
    assert queues.queue_len("q") == 0
    for value in ("a", b"b", ""):
        queues.queue_push("q", value)
    assert queues.queue_len("q") == 3
    assert [queues.queue_pop("q") for _ in range(3)] == [b"a", b"b", b""]
    assert queues.queue_len("q") == 0
    assert not queues.check(["q"])


def test_pop_of_an_empty_queue(queues):
    """ST-20: QueueEmptyError at once without block, else DistStoreError after the timeout."""
    with pytest.raises(QueueEmptyError, match="queue is empty"):
        queues.queue_pop("q", block=False)
    queues.set_timeout(SHORT)
    with pytest.raises(DistStoreError, match="wait timeout"):
        queues.queue_pop("q")


def test_queues_are_seen_by_check_wait_and_delete(queues):
    """ST-21: check and wait see queues."""
    queues.queue_push("q", "v")
    assert queues.check(["q"])
    queues.wait(["q"], SHORT)
    assert queues.try_get("q") is None
    assert queues.delete_key("q") is True
    assert queues.queue_len("q") == 0


def test_pop_waits_for_a_push_and_each_value_goes_to_one(queues):
    takers = 4
    taken = []
    clones = [queues.clone() for _ in range(takers)]
    threads = [threading.Thread(target=lambda c=c: taken.append(c.queue_pop("q"))) for c in clones]
    for thread in threads:
        thread.start()
    for i in range(takers):
        queues.queue_push("q", str(i))
    for thread in threads:
        thread.join()
    for clone in clones:
        clone.close()
    assert sorted(taken) == [b"0", b"1", b"2", b"3"]


def test_files_have_no_queues(tmp_path):
    """ST-19: NotImplementedError for queues in a file."""
    store = FileStore(tmp_path / "f")
    for ask in (
        lambda: store.queue_push("q", "v"),
        lambda: store.queue_pop("q"),
        lambda: store.queue_len("q"),
    ):
        with pytest.raises(NotImplementedError, match="queue support is not implemented"):
            ask()
    store.close()


def test_clone_shares_data_and_is_of_the_same_type(store):
    """ST-22: a clone has the same data and the same type."""
    store.set("k", "v")
    store.set_timeout(timedelta(seconds=7))
    other = store.clone()
    assert type(other) is type(store)
    assert other.timeout == store.timeout
    assert other.get("k") == b"v"
    other.set("k", "w")
    assert store.get("k") == b"w"
    other.close()
    assert store.get("k") == b"w"


def test_threads_count_without_losing_any(store):
    """ST-22 ST-23: clones, and threads of this process, work at the same time."""
    threads, times = 5, 20
    clones = [store.clone() for _ in range(threads)]

    def work(own):
        for _ in range(times):
            own.add("n", 1)
            own.append("text", "x")

    running = [threading.Thread(target=work, args=(own,)) for own in clones]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    for own in clones:
        own.close()
    assert store.get("n") == str(threads * times).encode()
    assert store.get("text") == b"x" * (threads * times)


def test_one_store_may_be_used_by_many_threads(store):
    running = [
        threading.Thread(target=lambda: [store.add("n", 1) for _ in range(20)]) for _ in range(5)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert store.get("n") == b"100"


def test_closing_twice_is_harmless(store):
    store.close()
    store.close()


def test_prefixes_nest():
    """ST-31 SIG-27: key k of prefix p is p/k below; prefixes nest; underlying_store is what was
    wrapped.
    """
    whole = HashStore()
    inner = PrefixStore("outer", whole)
    both = PrefixStore("inner", inner)
    both.set("k", "v")
    assert whole.get("outer/inner/k") == b"v"
    assert both.underlying_store is inner
    assert inner.underlying_store is whole
    both.multi_set(["a", "b"], ["1", "2"])
    assert whole.multi_get(["outer/inner/a", "outer/inner/b"]) == [b"1", b"2"]
    both.queue_push("q", "v")
    assert whole.queue_pop("outer/inner/q") == b"v"
    assert both.list_keys() == ["a", "b", "k"]
    assert whole.list_keys() == ["outer/inner/a", "outer/inner/b", "outer/inner/k"]
    both.set_timeout(timedelta(seconds=5))
    assert whole.timeout == timedelta(seconds=5)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: PrefixStore(1, HashStore()),
        lambda: PrefixStore("p", {}),
        lambda: PrefixStore("p", None),
    ],
)
def test_prefix_needs_a_str_and_a_store(wrong):
    with pytest.raises(TypeError):
        wrong()


def test_the_base_class_implements_nothing():
    """ST-33: methods of Store itself raise RuntimeError."""
    for ask in (
        lambda: Store().get("k"),
        lambda: Store().set("k", "v"),
        lambda: Store().add("k", 1),
        lambda: Store().check(["k"]),
        lambda: Store().clone(),
        lambda: Store().num_keys(),
    ):
        with pytest.raises(RuntimeError, match="Not implemented"):
            ask()


def test_error_classes():
    """ST-32: the error classes and what they derive from."""
    assert issubclass(DistError, RuntimeError)
    for error in (DistBackendError, DistNetworkError, DistStoreError):
        assert error.__bases__ == (DistError,)
    assert QueueEmptyError.__bases__ == (DistStoreError,)


def test_stores_are_stores(store):
    assert isinstance(store, Store)
