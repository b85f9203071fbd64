"""Random operations on every store against a dict and lists: the same answers, the same errors."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.distributed.stores import DistStoreError, FileStore, HashStore, PrefixStore, TCPStore

KEYS = st.sampled_from(["a", "b", "", "ü/c"])
VALUES = st.one_of(st.binary(max_size=5), st.sampled_from([b"5", b"-12", b" 3"]))
STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("try_get"), KEYS),
    st.tuples(st.just("add"), KEYS, st.integers(-(1 << 63), (1 << 63) - 1)),
    st.tuples(st.just("append"), KEYS, VALUES),
    st.tuples(st.just("compare_set"), KEYS, VALUES, VALUES),
    st.tuples(st.just("check"), st.lists(KEYS, max_size=3)),
    st.tuples(st.just("delete_key"), KEYS),
    st.tuples(st.just("multi_set"), st.lists(KEYS, max_size=3), st.lists(VALUES, max_size=3)),
    st.tuples(st.just("multi_get"), st.lists(KEYS, max_size=3)),
    st.tuples(st.just("list_keys")),
)


class Model:
    """The definition, on a dict."""

    def __init__(self):
        self.data = {}

    def set(self, key, value):
        self.data[key] = value

    def try_get(self, key):
        return self.data.get(key)

    def add(self, key, amount):
        text = self.data.get(key, b"0")
        if text != text.rstrip() or b"_" in text:  # which int() would take
            raise ValueError
        number = int(text)
        if not -(1 << 63) <= number + amount < 1 << 63:
            raise ValueError
        self.data[key] = b"%d" % (number + amount)
        return number + amount

    def append(self, key, value):
        self.data[key] = self.data.get(key, b"") + value

    def compare_set(self, key, expected, desired):
        if key not in self.data and expected != b"":
            return expected
        if self.data.get(key, b"") == expected:
            self.data[key] = desired
        return self.data[key]

    def check(self, keys):
        return set(keys) <= set(self.data)

    def delete_key(self, key):
        return self.data.pop(key, None) is not None

    def multi_set(self, keys, values):
        if len(keys) != len(values):
            raise ValueError
        self.data.update(zip(keys, values, strict=True))

    def multi_get(self, keys):
        if not self.check(keys):
            raise DistStoreError
        return [self.data[key] for key in keys]

    def list_keys(self):
        return sorted(self.data)


def outcome(store, step):
    try:
        return getattr(store, step[0])(*step[1:])
    except (ValueError, DistStoreError) as error:
        return type(error)


def same_as_the_model(store, steps):
    store.set_timeout(timedelta(0))
    model = Model()
    for step in steps:
        assert outcome(store, step) == outcome(model, step), step
    assert {key: store.get(key) for key in store.list_keys()} == model.data


@pytest.mark.slow
@given(st.lists(STEPS, max_size=25))
@settings(max_examples=200, deadline=None)
def test_hash_store(steps):
    same_as_the_model(HashStore(), steps)


@pytest.mark.slow
@given(st.lists(STEPS, max_size=25))
@settings(max_examples=60, deadline=None)
def test_file_store_and_what_a_second_one_reads(steps):
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(Path(folder) / "f")
        same_as_the_model(store, steps)
        late = FileStore(Path(folder) / "f")
        assert {key: late.get(key) for key in late.list_keys()} == {
            key: store.get(key) for key in store.list_keys()
        }
        late.close()
        store.close()


@pytest.fixture(scope="module")
def server():
    with TCPStore("127.0.0.1", 0, is_master=True) as store:
        yield store


@pytest.mark.slow
@given(steps=st.lists(STEPS, max_size=25))
@settings(max_examples=60, deadline=None)
def test_tcp_store(server, steps):
    for key in server.list_keys():
        server.delete_key(key)
    same_as_the_model(PrefixStore("x", server), steps)
