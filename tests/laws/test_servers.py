"""Every server goes on serving whatever one peer sends; a slice of
``python -m tests.laws.fuzz_frames``, and attacks on the board.
"""

import os
import socket
import time

import pytest

from realcoll.start import pmi
from tests.support.frame_fuzz import SERVERS, BoardDoor, Watch, fuzz
from tests.support.greedy_clients import ATTACKS, attack


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_damaged_frames(name):
    watch = fuzz(name, 600, 0)
    assert watch.failed == []
    assert watch.asked


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_clients_that_want_much(name):
    watch = attack(name, 1, 8 << 20)
    assert watch.failed == []
    assert watch.asked


@pytest.mark.slow
def test_the_watch_sees_a_server_that_fails():
    with Watch(lambda: False) as wrong, Watch(lambda: 1 / 0) as broken:
        time.sleep(0.05)
    with Watch(lambda: time.sleep(0.4) or True) as slow:
        time.sleep(0.05)
    assert slow.longest_s - slow.own_s < 0.4
    assert slow.longest_s >= 0.4
    assert (wrong.failed, broken.failed[0]) == (
        ["wrong answer"],
        "ZeroDivisionError('division by zero')",
    )


def answer(sock, line):
    sock.sendall(line)
    said = b""
    while not said.endswith(b"\n"):
        part = sock.recv(4096)
        if not part:
            return b""
        said += part
    return said


@pytest.fixture
def door():
    with BoardDoor() as opened:
        yield opened


@pytest.mark.parametrize(
    "data", [b"x" * (pmi.MAX_LINE + 1), b"cmd=barrier_in\n" * 2], ids=["no end", "a barrier twice"]
)
def test_a_process_that_breaks_the_rules_loses_its_seat(door, data):
    with door.opened() as sock:
        sock.settimeout(10)
        sock.sendall(data)
        assert sock.recv(100) == b""
    assert door.works()


def test_a_process_that_takes_no_answers_holds_up_nobody(door):
    with door.opened() as sock:
        sock.settimeout(2)
        with pytest.raises(OSError):
            sock.sendall(b"cmd=get_maxes\n" * 1_000_000)
        begin = time.monotonic()
        assert door.works()
        assert time.monotonic() - begin < 10


def test_the_board_has_an_end(door, monkeypatch):
    with door.opened() as sock:
        assert b"rc=-1" in answer(sock, b"cmd=put kvsname=j key=" + b"k" * 65 + b" value=v\n")
        assert b"rc=-1" in answer(sock, b"cmd=put kvsname=j key=k value=" + b"v" * 1025 + b"\n")
        monkeypatch.setattr(pmi, "MAX_BOARD_BYTES", 3000)
        replies = [
            answer(sock, b"cmd=put kvsname=j key=%d value=" % i + b"v" * 1000 + b"\n")
            for i in range(4)
        ]
        assert [b"rc=0" in reply for reply in replies] == [True, True, False, False]


def test_a_launcher_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(pmi, "NAME_S", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(TimeoutError):
            pmi.job_name(ours)
        assert os.get_blocking(ours.fileno())  # MPI uses it next
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x" * (pmi.MAX_LINE + 1))
        with pytest.raises(ValueError, match="has no end"):
            pmi.job_name(ours)
