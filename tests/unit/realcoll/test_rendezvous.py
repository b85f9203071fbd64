"""Processes that meet: in one process here, each with its own connection."""

import contextlib
import json
import socket
import threading
import time

import pytest

import simcoll
from realcoll.executor import fingerprint
from realcoll.meeting.control import join
from realcoll.meeting.host import Host
from realcoll.process_errors import FaultError
from simcoll.errors import ConfigError

TOKEN = "secret"


@pytest.fixture
def seats():
    """Three seats at one server."""
    host = Host(3, token=TOKEN)
    found = [
        join(host.address, i, 3, token=TOKEN, timeout_s=20.0, host=host if i == 0 else None)
        for i in range(3)
    ]
    yield found
    for seat in reversed(found):
        seat.close()


def together(*calls):
    """The results, or errors, of calls that run at the same time."""
    results = [None] * len(calls)

    def run(position, call):
        try:
            results[position] = call()
        except FaultError as error:
            results[position] = error

    threads = [threading.Thread(target=run, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def die(seat):
    """Break the connection as the end of a process does."""
    seat._over = True  # nobody is there to notice
    seat._channel.sock.shutdown(socket.SHUT_RDWR)


def test_everybody_gets_what_everybody_brought(seats):
    found = together(
        *(lambda seat=seat: seat.meet("a", bytes([seat.process]), 10) for seat in seats)
    )
    assert [meeting.values for meeting in found] == [{0: b"\0", 1: b"\1", 2: b"\2"}] * 3
    assert seats[1].meet("alone", b"x", 10, (1,)).values == {1: b"x"}
    pair = together(
        *(lambda seat=seat: seat.meet("b", b"", 10, (0, 2)) for seat in (seats[0], seats[2]))
    )
    assert [set(meeting.values) for meeting in pair] == [{0, 2}] * 2


@pytest.mark.slow
def test_the_process_with_the_server_is_told_last(seats, monkeypatch):
    """It may hold the interpreter from then on, as the start of MPI does, and the server could tell
    nobody else.
    """
    meetings, told = seats[0]._host._meetings, []
    tell = meetings._tell
    monkeypatch.setattr(
        meetings, "_tell", lambda process, content: (told.append(process), tell(process, content))
    )

    def after(pause_s, seat):
        time.sleep(pause_s)
        return seat.meet("start", b"", 10)

    together(*(lambda i=i, seat=seat: after(0.05 * i, seat) for i, seat in enumerate(seats)))
    assert told == [2, 1, 0]


@pytest.mark.slow
def test_who_does_not_come_is_missing_and_too_late_afterwards(seats):
    first = seats[0].meet("a", b"", 0.2)
    assert (first.missing, first.late) == ((1, 2), False)
    later = seats[1].meet("a", b"", 10)
    assert (later.late, later.values) == (True, {})


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_a_death_ends_a_meeting_at_once_and_is_named(seats, victim):
    rest = [seat for seat in seats if seat.process != victim]
    killer = threading.Timer(0.2, die, (seats[victim],))
    if victim == 0:  # the server dies with it: all connections break, and it tells nobody anything
        host, seats[0]._host, seats[0]._over = seats[0]._host, None, True
        killer = threading.Timer(0.2, host.stop)
    killer.start()
    errors = together(*(lambda control=control: control.gather("start") for control in rest))
    assert [error.ranks for error in errors] == [(victim,)] * 2
    assert all(f"rank {victim} died" in str(error) for error in errors)


@pytest.mark.slow
def test_those_who_wait_for_each_other_find_the_one_who_is_not_there(seats):
    # Rank 0 waits for 1, which waits for 2, which is busy elsewhere.
    errors = together(lambda: seats[0].stuck([1]), lambda: seats[1].stuck([2]))
    assert [error.ranks for error in errors] == [(2,)] * 2


def test_a_difference_is_blamed_on_the_minority(seats):
    offers = [{"count": "8"}, {"count": "9"}, {"count": "8"}]
    errors = together(
        *(lambda c=c, o=o: c.agree(o, (0, 1, 2)) for c, o in zip(seats, offers, strict=True))
    )
    assert [str(error) for error in errors] == [
        "ranks disagree on the count: ranks 0, 2: 8; rank 1: 9"
    ] * 3
    assert together(*(lambda c=c: c.agree({"count": "8"}, (0, 1, 2)) for c in seats)) == [None] * 3


@pytest.mark.parametrize(
    ("what", "algorithm", "dtype", "op", "ranks"),
    [
        ("algorithm", "tree", "float32", "sum", None),
        ("dtype", "ring", "float64", "sum", None),
        ("op", "ring", "float32", "max", None),
        ("ranks", "ring", "float32", "sum", [2, 1, 0]),
    ],
)
def test_what_may_differ_is_in_the_offer(what, algorithm, dtype, op, ranks):
    usual = fingerprint(
        simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=3), 8), (0, 1, 2)
    )
    plan = simcoll.bind(
        simcoll.schedule("all_reduce", algorithm, nranks=3), 8, dtype, op, ranks=ranks
    )
    other = fingerprint(plan, (0, 1, 2))
    assert next(key for key in usual if usual[key] != other[key]) == what


@pytest.mark.slow
def test_a_local_name_is_a_place_to_meet_too(tmp_path):
    address = f"\0realcoll {tmp_path}"
    host = Host(2, address)
    found = [join(address, i, 2, host=host if i == 0 else None) for i in range(2)]
    assert (
        together(*(lambda s=s: s.meet("a", b"x", 10).values for s in found))
        == [{0: b"x", 1: b"x"}] * 2
    )
    with pytest.raises(ConfigError, match="cannot listen on '@realcoll"):
        Host(2, address)
    for seat in reversed(found):
        seat.close()
    with pytest.raises(FaultError, match="rank 0 does not answer at '@realcoll"):
        join(address, 1, 2, timeout_s=0.1)


def test_those_who_failed_hear_each_other_out(seats):
    for seat in seats[:2]:
        seat.fail("rank 2 died")
    limit = time.monotonic() + 20
    while len(seats[2].gone) < 2 and time.monotonic() < limit:
        time.sleep(0.01)
    assert seats[2].gone == dict.fromkeys((0, 1), "gave up: rank 2 died")
    assert seats[2].left == set()
    die(seats[2])
    together(*(lambda seat=seat: seat.part(20.0) for seat in seats[:2]))
    assert [seat.left - {seat.process} for seat in seats[:2]] == [{1, 2}, {0, 2}]


def test_strangers_and_rubbish_are_sent_away(seats):
    _, port = seats[0]._host.address
    for rubbish in (b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 100, b"\0\0\0\1\xc1", b"\0\0\0\2\x91\x01"):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
            stranger.sendall(rubbish)
            with contextlib.suppress(ConnectionError):
                while stranger.recv(1000):
                    pass
    with pytest.raises(FaultError, match="the shared secret is missing or wrong"):
        join(("127.0.0.1", port), 1, 3, token="guess")
    # The seat of a process that sits there cannot be taken, even by one that knows the token.
    second = join(("127.0.0.1", port), 1, 3, token=TOKEN)
    assert second.meet("x", b"", 5).missing
    assert "seat of process 1 of 3 is not free" in second.gone[0]
    second.close()
    assert {
        meeting.missing for meeting in together(*(lambda s=s: s.meet("y", b"", 10) for s in seats))
    } == {()}


@pytest.mark.slow
def test_no_server_is_a_clear_error_that_names_rank_0():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            Host(2, ("127.0.0.1", port))
    with pytest.raises(
        FaultError, match=f"rank 0 does not answer at 127.0.0.1:{port} within 0.2 s"
    ):
        join(("127.0.0.1", port), 1, 2, timeout_s=0.2)


def test_a_broken_transport_stays_broken(seats):
    control = seats[1]
    control.fail("step 3: rank 2 died")
    with pytest.raises(FaultError, match=r"after an earlier failure \(step 3: rank 2 died\)"):
        control.gather("start")
    seats[0].meet("n", json.dumps(1).encode(), 0.2)
    assert "gave up: step 3" in seats[0].gone[1]
