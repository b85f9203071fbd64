"""The messages of stores, and the bookkeeping of who waits on a server."""

from __future__ import annotations

import random
import resource
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.distributed.server.frames import (
    FrameChannel,
    MalformedError,
    body_length,
    decode,
    encode,
    proof,
)
from simcoll.distributed.stores import wire
from simcoll.distributed.stores.tcp.service import Parking, Stay
from simcoll.distributed.stores.wire import StoreRequest, Verb

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
MESSAGES = st.builds(
    wire.StoreRequest,
    st.sampled_from(wire.Verb),
    INT64,
    INT64,
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=4).map(tuple),
    st.lists(st.binary(max_size=9), max_size=4).map(tuple),
)


@pytest.mark.slow
@given(MESSAGES)
def test_a_message_comes_back(message):
    frame = encode(message)
    assert body_length(frame) == len(frame) - 4 <= message.most_bytes
    assert decode(bytes(frame[4:]), wire.REQUESTS) == message


@pytest.mark.slow
@given(MESSAGES, st.data())
def test_a_message_cut_short_is_malformed(message, data):
    body = bytes(encode(message)[4:])
    with pytest.raises(MalformedError):
        decode(body[: data.draw(st.integers(0, len(body) - 1))], wire.REQUESTS)
    with pytest.raises(MalformedError):
        decode(body + b"\0", wire.REQUESTS)


def test_random_bytes_are_malformed_or_a_message():
    chance = random.Random(7)
    good = bytes(encode(wire.StoreRequest(Verb.SET, 2, 3, ("k", "l"), (b"v",)))[4:])
    found = 0
    for i in range(20_000):
        body = bytearray(good if i % 2 else chance.randbytes(chance.randrange(1, 40)))
        body[chance.randrange(len(body))] = chance.randrange(256)
        try:
            message = decode(bytes(body), wire.REQUESTS)
        except MalformedError:
            continue
        found += 1
        assert decode(bytes(encode(message)[4:]), wire.REQUESTS) == message
    assert found > 100


@pytest.mark.slow
def test_a_frame_that_drips_has_one_deadline():
    near, far = socket.socketpair()
    over = threading.Event()

    def drip():
        far.sendall(b"\0\0\0\x64")
        while not over.wait(0.05):
            far.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    began = time.monotonic()
    with near, far:
        with pytest.raises(TimeoutError):
            FrameChannel(near).receive(wire.REQUESTS, 1000, began + 0.4)
        assert time.monotonic() - began < 3  # all of the frame would take 5
        over.set()
        thread.join()


def test_announced_gigabytes_take_no_memory():
    # Arrays, maps, strings and binaries of 2^32 - 1, where each field could begin.
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    head = bytes(encode(wire.StoreRequest(Verb.SET, 2, 3))[4:])
    for at in range(len(head)):
        for announced in (b"\xdd", b"\xdf", b"\xdb", b"\xc6"):
            with pytest.raises(MalformedError):
                decode(head[:at] + announced + b"\xff\xff\xff\xff", wire.REQUESTS)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_the_proof_depends_on_everything():
    # HMAC-SHA256 of "simcoll-store/2|client|s|c" with key "k", by openssl dgst -sha256 -hmac k.
    assert proof(b"k", wire.SERVICE, b"client", b"s", b"c").hex() == PROOF
    others = [
        proof(*x)
        for x in (
            (b"l", wire.SERVICE, b"client", b"s", b"c"),
            (b"k", wire.SERVICE, b"server", b"s", b"c"),
            (b"k", wire.SERVICE, b"client", b"s", b"d"),
            (b"k", "another", b"client", b"s", b"c"),
        )
    ]
    assert len({PROOF, *(other.hex() for other in others)}) == 5


PROOF = "93b178b3160901a367cbbb8bede2b145c163e7a10eb8decaab1831003074517c"


class Timer:
    cancelled = False

    def cancel(self):
        self.cancelled = True


def stay(keys, at=0):
    return Stay(StoreRequest(Verb.WAIT, keys=tuple(keys)), at, Timer())


def test_who_waits_for_what():
    parking = Parking()
    parking.enter("a", stay("xy"))
    parking.enter("b", stay("x"))
    parking.enter("c", last := stay("y"))
    assert parking.waiting_for("x") == ["a", "b"]
    assert parking.waiting_for("yzx") == ["c", "a", "b"]
    parking.move("a", 0)  # again the same: keeps its place
    assert parking.waiting_for("x") == ["a", "b"]
    parking.move("a", 1)
    assert parking.waiting_for("x") == ["b"]
    assert parking.waiting_for("y") == ["c", "a"]
    assert not last.timer.cancelled
    parking.leave("c")
    assert last.timer.cancelled
    parking.leave("c")
    parking.leave("b")
    parking.leave("a")
    assert parking.waiting_for("xy") == []
    assert parking == Parking()
