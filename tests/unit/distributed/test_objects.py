"""Objects as bytes: plain data comes back as it was, nothing else goes in, no bytes can do harm."""

from __future__ import annotations

import enum
import math
import os
import pickle
import random
import subprocess
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from decimal import Decimal

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.distributed.runtime.objects import (
    ObjectDecodingError,
    ObjectEncodingError,
    decode,
    encode,
)

PLAIN = [
    ["foo", 12, {1: 2}],  # the example of torch's documentation
    None,
    True,
    0,
    -1,
    (1 << 63) - 1,
    -(1 << 63),
    1 << 63,
    (1 << 64) - 1,
    1 << 64,
    -(1 << 63) - 1,
    1 << 500,
    -(1 << 500),
    0.1,
    -0.0,
    math.inf,
    5e-324,
    1 - 2.5j,
    "",
    "tschüß 🐍 \x00",
    b"\x00\xff",
    bytearray(b"ab"),
    [],
    (),
    {},
    set(),
    frozenset(),
    [[1, [2, (3, [4])]], ()],
    {"a": {"b": ({}, [])}},
    {None: 1, 1.5: 2, b"k": 3, (1, (2, "x")): 4, frozenset([1]): 5, 1 << 70: 6, 1j: 7, False: 8},
    {1, "a", (2, 3), None, b"x"},
    frozenset([frozenset([1]), 2]),
    range(5),
    range(10, -3, -2),
]


@pytest.mark.parametrize("thing", PLAIN)  # no ids of their own: a set is printed in any order
def test_plain_data_comes_back_with_its_types(thing):
    back = decode(encode(thing))
    assert back == thing
    assert type(back) is type(thing)
    if not isinstance(thing, (set, frozenset)):
        assert repr(back) == repr(thing)


def test_not_a_number():
    assert math.isnan(decode(encode(math.nan)))


def test_the_order_of_a_dict_is_kept():
    assert list(decode(encode({"z": 1, "a": 2, (1,): 3}))) == ["z", "a", (1,)]


DTYPES = [
    "?",
    "i1",
    "<i2",
    ">i4",
    "i8",
    "u1",
    "u8",
    "f2",
    "f4",
    ">f8",
    "c8",
    "c16",
    "S3",
    "U2",
    "M8[ns]",
    "m8[D]",
    "m8[25s]",
]
DTYPES += [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (2, 0, 3), (3, 5), (1, 2, 3, 4)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays(dtype, shape):
    """OB-11: arrays inside objects work."""
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    back = decode(encode(array))
    assert type(back) is np.ndarray
    assert back.dtype == array.dtype
    assert back.shape == shape
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable
    assert back.flags.owndata


def test_arrays_in_any_memory_layout():
    array = np.arange(24.0).reshape(2, 3, 4)
    for view in (
        array.T,
        array[::-1, :, ::2],
        np.asfortranarray(array),
        np.broadcast_to(np.float32(3), (2, 2)),
    ):
        assert np.array_equal(decode(encode(view)), view)


@pytest.mark.parametrize(
    "scalar",
    [np.float32(1.5), np.int64(-3), np.bool_(True), np.complex64(1j), ml_dtypes.bfloat16(2)],
)
def test_scalars(scalar):
    back = decode(encode([scalar]))[0]
    assert back == scalar
    assert type(back) is type(scalar)


@dataclass
class Record:
    x: int


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


Pair = namedtuple("Pair", "a b")  # noqa: PYI024
NOT_PLAIN = [
    Record(1),
    Colour.RED,
    Number.ONE,
    Pair(1, 2),
    OrderedDict(a=1),
    Decimal(1),
    object(),
    len,
    int,
    lambda: 0,
    memoryview(b"x"),
    type("Text", (str,), {})("x"),
    np.array([None, "x"], dtype=object),
    np.zeros(2, "i4,f8"),
    np.ma.masked_array([1, 2], [True, False]),
    np.array([(b"xx",)], dtype="V2"),
]


@pytest.mark.parametrize("thing", NOT_PLAIN, ids=lambda thing: type(thing).__name__)
def test_anything_else_is_refused_with_the_way_out(thing):
    """PP-40: what is no plain data is refused on the sender, with how to opt in to pickle."""
    with pytest.raises(
        ObjectEncodingError, match=r"trusted=True.*SIMCOLL_TRUSTED_PICKLE=1"
    ) as caught:
        encode({"deep": [1, (thing,)]})
    assert str(caught.value).startswith("$['deep'][1][0] is a")
    assert isinstance(caught.value, TypeError)


def test_odd_places():
    with pytest.raises(ObjectEncodingError, match=r"\$ key .* is a builtin"):
        encode({len: 1})
    with pytest.raises(ObjectEncodingError, match="has no UTF-8 form"):
        encode(["\ud800"])
    loop = []
    loop.append(loop)
    with pytest.raises(ObjectEncodingError, match="nested more than 64 deep"):
        encode(loop)
    deep = ()
    for _ in range(64):
        deep = (deep,)
    assert decode(encode(deep)) == deep
    with pytest.raises(ObjectEncodingError, match="nested"):
        encode((deep,))


def test_pickle_only_where_both_sides_trust(monkeypatch):
    data = encode(Record(3), trusted=True)
    assert decode(data, trusted=True) == Record(3)
    with pytest.raises(ObjectDecodingError, match=r"the sender used pickle.*trusted=True"):
        decode(data)
    monkeypatch.setenv("SIMCOLL_TRUSTED_PICKLE", "1")
    assert decode(encode(Colour.RED)) is Colour.RED
    with pytest.raises(ObjectEncodingError):
        encode(Colour.RED, trusted=False)
    with pytest.raises(ObjectDecodingError):
        decode(data, trusted=False)
    monkeypatch.setenv("SIMCOLL_TRUSTED_PICKLE", "0")
    with pytest.raises(ObjectEncodingError):
        encode(Colour.RED)


def test_trusted_objects_that_cannot_be_pickled():
    """PP-40: where pickle is trusted, what it cannot take raises what pickle raises."""
    with pytest.raises((pickle.PicklingError, AttributeError)):
        encode(lambda: 0, trusted=True)


def test_plain_data_is_read_by_those_who_trust_too():
    assert decode(encode([1, (2,)]), trusted=True) == [1, (2,)]


def test_a_bare_pickle_is_not_opened(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    harm = pickle.dumps(Trap())
    for data in (harm, b"\x00" + harm, b"\x01" + harm):
        with pytest.raises(ObjectDecodingError):
            decode(data)
    assert not (tmp_path / "sprung").exists()


def extension(code, data):
    return b"\x00" + msgspec.msgpack.encode(msgspec.msgpack.Ext(code, data))


def packed(thing):
    return msgspec.msgpack.encode(thing)


BAD = {
    "nothing": b"",
    "an unknown first byte": b"\x02abc",
    "no body": b"\x00",
    "two bodies": b"\x00\x01\x01",
    "a list that announces 4 billion entries": b"\x00\xdd\xff\xff\xff\xff",
    "bytes that announce 4 billion": b"\x00\xc6\xff\xff\xff\xff",
    "a hundred thousand lists in each other": b"\x00" + b"\x91" * 100_000 + b"\x90",
    "an extension that is none of ours": extension(77, b""),
    "a timestamp": b"\x00\xd6\xff\x00\x00\x00",
    "a tuple of no list": extension(1, packed(3)),
    "a set of lists": extension(2, packed([packed([1])])),
    "half a complex": extension(4, b"\x00" * 8),
    "a range of text": extension(9, packed(["a"])),
    "a range without steps": extension(9, packed([1, 2, 0])),
    "a dict with a value too many": extension(10, packed([[1], [2, 3]])),
    "a dict of three lists": extension(10, packed([[1], [2], [3]])),
    "a dict with a list as key": extension(10, packed([[[1]], [2]])),
    "an array of objects": extension(7, packed(["|O", [1], b"\x00" * 8])),
    "an array of records": extension(7, packed(["i4,f8", [1], b"\x00" * 12])),
    "an array that is too short": extension(7, packed(["<f8", [2], b"\x00" * 8])),
    "an array with a negative side": extension(7, packed(["<f8", [-1, -1], b"\x00" * 8])),
    "an array of 2^80 elements": extension(7, packed(["<f8", [1 << 40, 1 << 40], b""])),
    "an empty array of 2^62 rows": extension(7, packed(["<f8", [1 << 62, 1 << 62, 0], b""])),
    "an array of 100 dimensions": extension(7, packed(["<f8", [1] * 100, b"\x00" * 8])),
    "texts without length": extension(7, packed(["<U0", [1 << 40], b""])),
    "an array of a wrong unit": extension(7, packed(["<M8[parsec]", [1], b"\x00" * 8])),
    "an array of a float of 3 bytes": extension(7, packed(["<f3", [1], b"\x00" * 3])),
    "an array of an unknown type": extension(7, packed(["finfo", [1], b"\x00"])),
}


@pytest.mark.parametrize("what", BAD)
def test_bytes_that_are_no_object(what):
    with pytest.raises(ObjectDecodingError):
        decode(BAD[what])


@pytest.mark.slow
def test_changed_and_random_bytes_never_do_worse():
    chance = random.Random(31_337)
    good = [encode(thing) for thing in PLAIN] + [
        encode([np.arange(5.0), np.float32(1), {"x": np.zeros((2, 3), "M8[s]")}])
    ]
    outcomes = {"object": 0, "refused": 0}
    for i in range(20_000):
        data = bytearray(
            chance.choice(good) if i % 2 else b"\x00" + chance.randbytes(chance.randrange(30))
        )
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            decode(data)
        except ObjectDecodingError:
            outcomes["refused"] += 1
        else:
            outcomes["object"] += 1
    assert min(outcomes.values()) > 500


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(
            st.text() | st.integers() | st.tuples(st.integers(), st.text()), inner, max_size=4
        )
        | st.frozensets(st.integers() | st.text(), max_size=4)
    ),
    max_leaves=20,
)


@pytest.mark.slow
@given(ANYTHING)
@settings(max_examples=200, deadline=None)
def test_any_plain_data(thing):
    assert repr(decode(encode(thing))) == repr(thing) or decode(encode(thing)) == thing


@pytest.mark.slow
def test_sets_have_the_same_bytes_in_every_process():
    script = (
        "from simcoll.distributed.runtime.objects import encode\n"
        "print(encode([{'a', 'bc', 'def', ('x', 1)}, frozenset('hello world')]).hex())\n"
    )
    printed = {
        subprocess.check_output(
            [sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": seed}
        )
        for seed in ("1", "2")
    }
    assert len(printed) == 1
