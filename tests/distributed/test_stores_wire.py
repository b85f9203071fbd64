"""The messages of stores, and the bookkeeping of who waits on a server."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.distributed.stores import wire
from simcoll.distributed.stores.table import Operation, Request
from simcoll.distributed.stores.tcp.parking import Parking, Stay

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
MESSAGES = st.builds(
    wire.Message,
    st.integers(0, 255),
    INT64,
    INT64,
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=4).map(tuple),
    st.lists(st.binary(max_size=9), max_size=4).map(tuple),
)


@given(MESSAGES)
def test_a_message_comes_back(message):
    frame = wire.encode(message)
    assert wire.frame_length(frame) == len(frame) - 4 == message.size_bytes
    assert wire.decode(frame[4:]) == message


@given(MESSAGES, st.data())
def test_a_message_cut_short_is_malformed(message, data):
    body = wire.encode(message)[4:]
    cut = data.draw(st.integers(0, len(body) - 1))
    # Cut between two items it is a shorter message; else it must be found out.
    ends = {21}
    for item in (*(key.encode() for key in message.keys), *message.values):
        ends.add(max(ends) + 4 + len(item))
    if cut in ends and len([end for end in ends if end <= cut]) - 1 >= len(message.keys):
        assert wire.decode(body[:cut]).code == message.code
    else:
        with pytest.raises(wire.MalformedError):
            wire.decode(body[:cut])


def test_random_bytes_are_malformed_or_a_message():
    chance = random.Random(7)
    for _ in range(20_000):
        body = chance.randbytes(chance.randrange(17, 40))
        try:
            message = wire.decode(body)
        except wire.MalformedError:
            continue
        assert wire.encode(message)[4:] == body


def test_the_proof_depends_on_everything():
    # HMAC-SHA256 of "simcoll-store/1|client|s|c" with key "k", by openssl dgst -sha256 -hmac k.
    assert wire.proof(b"k", b"client", b"s", b"c").hex() == PROOF
    others = [
        wire.proof(*x)
        for x in ((b"l", b"client", b"s", b"c"), (b"k", b"server", b"s", b"c"), (b"k", b"client", b"s", b"d"))
    ]
    assert len({PROOF, *(other.hex() for other in others)}) == 4


PROOF = "a239901401cc915057a4d9cdec01489e597c319a70cb8ea97e0206eb4cf25827"


def stay(keys, at=0, until_s=1.0):
    return Stay(Request(Operation.WAIT, tuple(keys)), at, until_s)


def test_who_waits_for_what():
    parking = Parking()
    parking.enter("a", stay("xy"))
    parking.enter("b", stay("x"))
    parking.enter("c", stay("y", until_s=0.5))
    assert parking.waiting_for("x") == ["a", "b"]
    assert parking.waiting_for("yzx") == ["c", "a", "b"]
    parking.move("a", 0)  # again the same: keeps its place
    assert parking.waiting_for("x") == ["a", "b"]
    parking.move("a", 1)
    assert parking.waiting_for("x") == ["b"]
    assert parking.waiting_for("y") == ["c", "a"]
    assert parking.next_s() == 0.5
    assert parking.due(0.4) == []
    assert parking.due(0.5) == ["c"]
    parking.leave("c")
    parking.leave("c")
    parking.leave("b")
    parking.leave("a")
    assert parking.waiting_for("xy") == []
    assert parking.due(2.0) == []
    assert parking.next_s() == float("inf")


def test_an_old_deadline_does_not_end_a_new_wait():
    parking = Parking()
    parking.enter("a", stay("x", until_s=1.0))
    parking.leave("a")
    parking.enter("a", stay("y", until_s=9.0))
    assert parking.due(5.0) == []
    assert parking.due(9.0) == ["a"]


def test_waits_that_ended_early_take_no_memory():
    parking = Parking()
    for i in range(10_000):
        parking.enter("a", stay("x", until_s=1e6 + i))
        parking.leave("a")
    assert len(parking._deadlines) < 100
    assert parking._by_key == {}
