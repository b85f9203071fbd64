"""Who stopped first, and who waits for whom, across groups, messages and kinds of records."""

import pickle
import re

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from simcoll.formats.reports.flight_findings import findings, wrong_rank
from simcoll.formats.reports.flight_record import (
    FlightEntry,
    FlightRecord,
    GroupStatus,
    dump_flight_record,
    parse_flight_record,
)
from simcoll.formats.reports.watchdog import parse_watchdog

VECTOR = (((4,), "Float"),)
WORLD = ("0", (0, 1, 2, 3))
GRID = (WORLD, ("tp0", (0, 1)), ("tp1", (2, 3)), ("dp0", (0, 2)), ("dp1", (1, 3)))


def call(group, number, state="scheduled", operation="nccl:all_reduce", tensors=VECTOR, **fields):
    return FlightEntry(group, number, operation, tensors, tensors, state, **fields)


def send(number, peers, state="scheduled", tensors=VECTOR):
    return call("0", number, state, f"nccl:send {peers}", tensors, p2p=True)


def recv(number, peers, state="scheduled", tensors=VECTOR):
    return call("0", number, state, f"nccl:recv {peers}", tensors, p2p=True)


def job(*ranks, groups=GRID, statuses=()):
    return {
        rank: FlightRecord("2.10", groups, tuple(entries), tuple(statuses[rank : rank + 1]))
        for rank, entries in enumerate(ranks)
        if entries is not None
    }


def test_the_root_stands_before_what_follows():
    """Rank 3 stopped; 2 waits for it in tp1, 1 in dp1, and 0 for 2 in dp0."""
    records = job(
        [call("dp0", 9)],
        [call("dp1", 9)],
        [call("dp0", 8, "completed"), call("tp1", 50)],
        [call("tp1", 49, "completed"), call("dp1", 8, "completed")],
    )
    cause, consequence = findings(records)
    assert cause == (
        "group 'dp1', collective 9 (nccl:all_reduce): rank 3 never came; it has done 8 of this "
        "group; waiting: rank 1"
    )
    assert consequence.startswith("  so ranks 0, 2 wait: rank 0 for rank 2 (group 'dp0'")


def test_what_is_overwritten_is_taken_from_the_status():
    records = job(
        [call("0", 45265)],
        [],
        groups=(("0", (0, 1)),),
        statuses=[GroupStatus("0", 45265, 45264), GroupStatus("0", 45264, 45264)],
    )
    assert findings(records) == [
        (
            "group '0', collective 45265 (nccl:all_reduce): rank 1 never came; it has done 45264 of "
            "this group; waiting: rank 0"
        )
    ]


def test_a_status_alone_shows_who_waits():
    statuses = [GroupStatus("0", 8, 7), GroupStatus("0", 7, 7), GroupStatus("0", 8, 7)]
    records = job([], [], [], groups=(("0", (0, 1, 2)),), statuses=statuses)
    assert findings(records) == [
        (
            "group '0', collective 8: rank 1 never came; it has done 7 of this group; waiting: ranks "
            "0, 2"
        )
    ]


def test_a_circle_of_groups_is_named():
    """Ranks 0 and 1 call the collectives of two groups in opposite orders."""
    groups = (("a", (0, 1)), ("b", (0, 1)))
    records = job(
        [call("a", 3), call("b", 5)],
        [call("b", 5), call("a", 3)],
        groups=groups,
    )
    assert findings(records) == [
        (
            "ranks wait for each other in a circle: rank 0 for rank 1 in group 'a', collective 3 "
            "(nccl:all_reduce), rank 1 for rank 0 in group 'b', collective 5 (nccl:all_reduce)"
        )
    ]


def test_all_in_one_operation_hang_in_it():
    records = job(*([call("0", 2, "started")] for _ in range(4)))
    assert findings(records) == [
        (
            "group '0', collective 2 (nccl:all_reduce): ranks 0, 1, 2, 3 did not end it (4 started), 0 "
            "did"
        )
    ]


def test_a_rank_whose_gpu_is_behind_is_the_root():
    """All ranks have called it, and the kernel of one has not begun."""
    states = ("started", "scheduled", "started", "started")
    records = job(*([call("0", 2, state)] for state in states))
    assert findings(records) == [
        (
            "group '0', collective 2 (nccl:all_reduce): rank 1 did not start it: its GPU has not "
            "ended earlier work; waiting: ranks 0, 2, 3"
        )
    ]


def test_different_operations_come_first_and_explain_who_waits():
    records = job(
        [call("tp0", 1), call("dp0", 4)],
        [call("tp0", 1, operation="nccl:broadcast")],
        [call("dp0", 4)],
        [],
    )
    cause, *consequences = findings(records)
    assert cause == (
        "group 'tp0', collective 1: ranks run different operations: rank 0 nccl:all_reduce; rank 1 "
        "nccl:broadcast"
    )
    assert consequences == [
        "  so rank 2 waits: rank 2 for rank 0 (group 'dp0', collective 4 (nccl:all_reduce))"
    ]


def test_a_rank_without_a_record_may_be_the_one():
    records = job([call("0", 2)], [call("0", 2)], [call("0", 2)], None)
    assert findings(records) == [
        (
            "group '0', collective 2 (nccl:all_reduce): no record of rank 3, and all others are in it; "
            "waiting: ranks 0, 1, 2"
        ),
        "groups '0', 'dp1', 'tp1': no record of rank 3",
    ]


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (
            ([send(1, "0->1")], []),
            "group '0', message 1 (nccl:send 0->1): rank 1 has not received it; waiting: rank 0",
        ),
        (
            ([], [recv(1, "1<-0")]),
            "group '0', message 1 (nccl:send 0->1): rank 0 has not sent it; waiting: rank 1",
        ),
        (
            ([send(1, "0->1")], [recv(1, "1<-0", tensors=(((5,), "Float"),))]),
            "group '0', message 1 (nccl:send 0->1): rank 0 sends 4 Float, rank 1 receives 5 Float",
        ),
        (
            ([send(1, "0->1")], [send(1, "1->0")]),
            (
                "ranks wait for each other in a circle: rank 0 for rank 1 in group '0', message 1 "
                "(nccl:send 0->1), rank 1 for rank 0 in group '0', message 1 (nccl:send 1->0)"
            ),
        ),
        (
            ([send(1, "0->1")], [recv(1, "1<-0")]),
            "group '0', message 1 (nccl:send 0->1): sent and received, and not ended; ranks 0, 1",
        ),
        (
            ([call("0", 1, operation="nccl:coalesced", p2p=True)], []),
            "1 unfinished message of rank 0 not checked: the records do not name both ranks",
        ),
    ],
    ids=["no recv", "no send", "sizes", "circle", "hangs", "no peer"],
)
def test_messages_are_matched(entries, said):
    assert findings(job(*entries, groups=(("0", (0, 1)),))) == [said]


def test_messages_that_match_are_no_fault():
    exchange = (
        [send(1, "0->1", "completed"), recv(2, "0<-1", "completed")],
        [recv(1, "1<-0", "completed"), send(2, "1->0", "completed")],
    )
    assert findings(job(*exchange, groups=(("0", (0, 1)),))) == []


def test_groups_of_one_name_on_other_ranks_are_apart():
    low, high = (("1", (0, 1)),), (("1", (2, 3)),)
    ended, begun = call("1", 1, "completed"), call("1", 1, operation="nccl:broadcast")
    records = {
        rank: FlightRecord("2.4", low if rank < 2 else high, (ended if rank < 2 else begun,))
        for rank in range(4)
    }
    assert findings(records) == [
        "group '1', collective 1 (nccl:broadcast): ranks 2, 3 did not end it (2 scheduled), 0 did"
    ]


def test_what_gloo_writes_is_read():
    """It registers no ranks, and leaves what has ended in its first state."""
    content = {
        "version": "2.10",
        "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": 2,
                "last_started_collective": -1,
                "last_completed_collective": 1,
            }
        },
        "entries": [
            {
                "pg_id": 0,
                "process_group": ("0", "default_pg"),
                "collective_seq_id": number,
                "p2p_seq_id": 0,
                "profiling_name": "gloo:all_reduce",
                "state": "scheduled",
                "retired": number == 1,
                "is_p2p": False,
            }
            for number in (1, 2)
        ],
    }
    record = parse_flight_record(pickle.dumps(content))
    assert [entry.state for entry in record.entries] == ["completed", "scheduled"]
    assert record.groups == ()
    assert record.statuses == (GroupStatus("0", 2, 1),)


def test_a_status_is_written_and_read():
    (record,) = job([call("0", 7)], statuses=[GroupStatus("0", 7, 6)]).values()
    assert parse_flight_record(dump_flight_record(record)) == record


def test_a_name_with_another_rank_is_noticed():
    record = FlightRecord("2.4", (("0", (4, 5)),), (recv(1, "1<-0"),))
    assert wrong_rank(5, record) is None
    assert wrong_rank(4, record) == "nccl:recv 1<-0 of group '0' is a message of rank 5"
    assert "which has ranks 4, 5" in wrong_rank(1, record)


LINE = (
    "[rank{0}]:[E1128 12:00:00.1 ProcessGroupNCCL.cpp:1785] [PG {1} Rank {2}] Exception (either an "
    "error or timeout) detected by watchdog at work: {3}, last enqueued NCCL work: {4}, last "
    "completed NCCL work: {5}."
)


def test_the_watchdog_s_lines_show_who_is_behind():
    log = "\n".join(
        [
            (
                "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, "
                "OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600042 milliseconds"
            ),
            LINE.format(0, "ID 0 PG GUID 0(default_pg)", 0, 8, 8, 7),
            LINE.format(1, "0 (default_pg)", 1, 8, 7, 7),
            LINE.format(2, "0", 2, 8, 9, 7),
        ]
    )
    assert findings(parse_watchdog(log)) == [
        (
            "group '0', collective 8 (all_reduce): rank 1 never came; it has done 7 of this group; "
            "waiting: ranks 0, 2"
        )
    ]


def test_a_silent_rank_of_the_default_group_is_named():
    log = "\n".join(LINE.format(rank, "0 (default_pg)", rank, 8, 8, 7) for rank in (0, 2))
    assert "no record of rank 1, and all others are in it" in findings(parse_watchdog(log))[0]


def test_a_group_of_which_one_rank_speaks_is_said():
    log = LINE.format(5, "ID 2 PG GUID 9(tp)", 1, 8, 8, 7).replace("NCCL work", "work")
    assert findings(parse_watchdog(log)) == [
        (
            "group '9', collective 8: rank 5 did not end it (1 called), and nothing is known of other "
            "ranks of this group"
        )
    ]


def test_what_old_versions_write_is_read():
    """PyTorch 2.2 and 2.3 number collectives and messages together, and name no group."""

    def entries(last):
        return [
            {
                "pg_id": 0,
                "seq_id": number,
                "profiling_name": name,
                "input_sizes": [[4]],
                "output_sizes": [[4]],
                "state": "completed" if number < last else "started",
            }
            for number, name in (
                (1, "nccl:all_reduce"),
                (2, "nccl:send 0->1"),
                (3, "nccl:broadcast"),
            )
            if number <= last
        ]

    alone = parse_flight_record(pickle.dumps(entries(3)))
    assert [entry.p2p for entry in alone.entries] == [False, True, False]
    records = {
        0: alone,
        1: parse_flight_record(pickle.dumps({"version": "1.5", "entries": entries(1)[:0]})),
    }
    assert findings(records)[0].startswith(
        "group '0', collective 3 (nccl:broadcast): rank 1 never came"
    )


def test_the_rank_before_a_line_counts_where_the_line_has_that_of_a_group():
    lines = [
        f"{rank}: [E ProcessGroupNCCL.cpp:475] [PG 5 (dp) Rank {rank // 2}] Timeout at NCCL work: 8, "
        f"last enqueued NCCL work: {called}, last completed NCCL work: 7."
        for rank, called in ((1, 8), (3, 7))
    ]
    assert findings(parse_watchdog("\n".join(lines))) == [
        "group '5', collective 8: rank 3 never came; it has done 7 of this group; waiting: rank 1"
    ]


def hung(chance, tp, dp, pp, stopped, keep, with_status, ahead):
    """The records of a job in which one rank stops: all others go on until they wait; the ranks that
    wait, and those of them that wait for one that has not called the operation.

    A rank reduces over its row (tp), sends to the next stage and receives from the one before (pp),
    and reduces over its column (dp), again and again. ``keep`` is the length of the ring buffers,
    ``ahead`` how many operations a rank calls before it waits for the first.
    """
    ranks = range(tp * dp * pp)
    place = {rank: (rank % tp, rank // tp % dp, rank // tp // dp) for rank in ranks}
    group_of = {}
    for axis, name in enumerate(("tp", "dp")):
        for rank in ranks:
            others = [place[rank][other] for other in range(3) if other != axis]
            group_of[name, rank] = f"{name}{'-'.join(map(str, others))}"
    members = {}
    for (_, rank), name in group_of.items():
        members.setdefault(name, []).append(rank)
    groups = (
        *tuple((name, tuple(sorted(of))) for name, of in members.items()),
        ("0", tuple(ranks)),
    )

    def program(rank):
        steps = []
        for _ in range(3):
            steps.append(("tp", group_of["tp", rank]))
            if place[rank][2] < pp - 1:
                steps.append(("send", rank, rank + tp * dp))
            if place[rank][2] > 0:
                steps.append(("recv", rank - tp * dp, rank))
            steps.append(("dp", group_of["dp", rank]))
        return steps

    programs = {rank: program(rank) for rank in ranks}
    done = dict.fromkeys(ranks, 0)
    ends_at = chance.randrange(len(programs[stopped]))

    def at(rank):
        if done[rank] == len(programs[rank]) or (rank == stopped and done[rank] >= ends_at):
            return None
        return programs[rank][done[rank]]

    def goes_on(rank):
        """Whether all that take part are at the same step, then they all end it."""
        step = at(rank)
        if step is None:
            return False
        if step[0] in {"tp", "dp"}:
            together, peers = step, members[step[1]]
            if any(at(peer) != together for peer in peers):
                return False
        else:
            peers = step[1:]
            if at(step[1]) != ("send", *step[1:]) or at(step[2]) != ("recv", *step[1:]):
                return False
        for peer in peers:
            done[peer] += 1
        return True

    while any(goes_on(rank) for rank in chance.sample(list(ranks), len(ranks))):
        pass
    records = {}
    for rank in ranks:
        numbers, entries = {}, []
        called = programs[rank][: done[rank] + ahead * (at(rank) is not None)]
        for position, step in enumerate(called):
            is_message = step[0] in {"send", "recv"}
            group = "0" if is_message else step[1]
            key = "messages" if is_message else group
            numbers[key] = numbers.get(key, 0) + 1
            state = "completed" if position < done[rank] else "scheduled"
            arrow = f"{step[1]}->{step[2]}" if step[0] == "send" else f"{step[-1]}<-{step[-2]}"
            operation = f"nccl:{step[0]} {arrow}" if is_message else "nccl:all_reduce"
            entries.append(
                call(group, numbers[key], state, operation, created_ns=position, p2p=is_message)
            )
        statuses = []
        for name in dict.fromkeys(entry.group for entry in entries if not entry.p2p):
            own = [entry for entry in entries if entry.group == name and not entry.p2p]
            ended = sum(entry.state == "completed" for entry in own)
            statuses.append(GroupStatus(name, len(own), ended))
        records[rank] = FlightRecord(
            "2.10", groups, tuple(entries[-keep:]), tuple(statuses) if with_status else ()
        )
    waiting = [rank for rank in ranks if at(rank) is not None]

    def calls(rank, step):
        """How often a rank has called an operation, at its own end of a message."""
        called = programs[rank][: done[rank] + ahead * (at(rank) is not None)]
        return sum(entry[-2:] == step[-2:] and (len(entry) == len(step)) for entry in called)

    def is_held(rank):
        """Whether a rank waits for one that has not called the operation."""
        step = at(rank)
        number = 1 + sum(entry == step for entry in programs[rank][: done[rank]])
        peers = members[step[1]] if step[0] in {"tp", "dp"} else step[1:]
        return any(calls(peer, step) < number for peer in peers)

    return records, waiting, [rank for rank in waiting if is_held(rank)]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([4, 6, 100]),
    st.booleans(),
    st.integers(1, 4),
)
def test_the_rank_that_stopped_stands_first(chance, tp, dp, pp, keep, with_status, ahead):
    stopped = chance.randrange(tp * dp * pp)
    records, waiting, held = hung(chance, tp, dp, pp, stopped, keep, with_status, ahead)
    lines = findings(records)
    if not waiting:
        assert lines == []
        return
    event("someone waits")
    assert f"rank {stopped} never came" in lines[0] or f"rank {stopped} has not" in lines[0]
    causes = [line for line in lines if not line.startswith("  ")]
    assert len(causes) == 1
    # An operation that all its ranks have called may queue behind another; it is not said to wait.
    text = "\n".join(lines)
    named = {rank for rank in held if re.search(rf"\b{rank}\b", text)}
    if " more" in text:  # a list was cut: count what it stands for
        so_many = re.search(r"^  so ranks (.*?)(?: and (\d+) more)? wait", text, re.MULTILINE)
        assert so_many is not None
        shown = len(re.findall(r"\d+", so_many[1])) + int(so_many[2] or 0)
        assert shown + len(re.findall(r"\d+", lines[0].rpartition("waiting: ")[2])) >= len(held)
    else:
        assert named == set(held)
