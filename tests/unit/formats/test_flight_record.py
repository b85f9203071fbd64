"""Flight records: read without running anything, written, and what ranks disagree about."""

import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.formats.reports.flight_findings import findings
from simcoll.formats.reports.flight_record import (
    STATES,
    FlightEntry,
    FlightRecord,
    dump_flight_record,
    parse_flight_record,
)
from tests.support.nccl_reports import call, inspector

FOUR = (((4, 2), "Float"),)
GROUPS = (("0", (0, 1, 2)), ("1", (0, 2)))


def entry(number, operation="nccl:all_reduce", state="completed", group="0", shape=FOUR, **more):
    return FlightEntry(group, number, operation, shape, shape, state, **more)


def job(**changes):
    """Three ranks that did three collectives; ``r1=[...]`` replaces what rank 1 did."""
    entries = {
        rank: changes.get(f"r{rank}", [entry(number) for number in (1, 2, 3)]) for rank in range(3)
    }
    return {rank: FlightRecord("2.4", GROUPS, tuple(each)) for rank, each in entries.items()}


def test_all_is_well():
    assert findings(job()) == []


@pytest.mark.parametrize(
    ("records", "says"),
    [
        (
            job(
                r0=[entry(1), entry(2, state="started")],
                r1=[entry(1)],
                r2=[entry(1), entry(2, state="scheduled")],
            ),
            (
                "group '0', collective 2 (nccl:all_reduce): rank 1 never came; it has done 1 of this "
                "group; waiting: ranks 0, 2"
            ),
        ),
        (
            job(r1=[entry(1), entry(2, "nccl:broadcast")]),
            (
                "group '0', collective 2: ranks run different operations: ranks 0, 2 nccl:all_reduce; "
                "rank 1 nccl:broadcast"
            ),
        ),
        (
            job(r2=[entry(1, shape=(((4, 3), "Float"),))]),
            (
                "group '0', collective 1 (nccl:all_reduce): shapes of inputs differ: "
                "ranks 0, 1 with 4x2 Float; rank 2 with 4x3 Float"
            ),
        ),
        (
            job(r2=[entry(1, shape=(((4, 2), "Half"),))]),
            (
                "group '0', collective 1 (nccl:all_reduce): types of inputs differ: ranks 0, 1 with "
                "Float; rank 2 with Half"
            ),
        ),
        (
            job(r2=[entry(1), entry(2), entry(3, state="started")]),
            "group '0', collective 3 (nccl:all_reduce): rank 2 did not end it (1 started), 2 did",
        ),
        (
            {rank: each for rank, each in job().items() if rank != 1},
            "group '0': no record of rank 1",
        ),
    ],
    ids=["absent", "different", "shapes", "types", "unfinished", "no record"],
)
def test_the_first_thing_that_is_wrong(records, says):
    assert findings(records) == [says]


def test_uneven_sizes_are_no_fault():
    records = job(r1=[entry(1, "nccl:all_to_all", shape=(((7,), "Float"),))])
    for rank in (0, 2):
        records[rank] = replace(records[rank], entries=(entry(1, "nccl:all_to_all"),))
    assert findings(records) == []


def test_a_ring_buffer_forgets():
    """Rank 0 has forgotten its first two collectives: nothing is said about them."""
    assert findings(job(r0=[entry(3)], r1=[entry(1, "nccl:broadcast"), entry(2), entry(3)])) == []


entries = st.builds(
    FlightEntry,
    st.sampled_from(["0", "1"]),
    st.integers(0, 2**40),
    st.text(max_size=9),
    *[
        st.lists(
            st.tuples(st.lists(st.integers(0, 99), max_size=3).map(tuple), st.text(max_size=5)),
            max_size=2,
        ).map(tuple)
    ]
    * 2,
    st.sampled_from(STATES),
    st.booleans(),
    st.integers(0, 2**62),
)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.lists(entries, max_size=4))
def test_there_and_back(made):
    record = FlightRecord("2.4", GROUPS, tuple(made))
    written = dump_flight_record(record)
    assert parse_flight_record(written) == record
    assert parse_flight_record(pickle.dumps(json.loads(written))) == record


class Evil:
    """Would run a command when a pickle of it is read."""

    def __reduce__(self):
        return (print, ("pwned",))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            pickle.dumps({"entries": [Evil()]}),
            "it names builtins.print; a flight record has numbers",
        ),
        (pickle.dumps({"entries": 3}), "entries: expected list, got int"),
        (b"{", "not a flight record"),
        (
            b'{"entries": [{"process_group": 3}]}',
            r"\$.entries\[0\]: process_group: expected list or tuple, got int",
        ),
        (b"\x80\x04\x95", "not a flight record"),
        (
            b'{"entries": [{"state": "lost", "collective_seq_id": 1}]}',
            r"\$.entries\[0\]: state 'lost': expected scheduled",
        ),
        (
            b'{"entries": [{"state": "started", "collective_seq_id": "1"}]}',
            "collective_seq_id: expected int, got '1'|got",
        ),
        (b'{"pg_config": {"0": {"ranks": "all"}}, "entries": []}', "ranks 'all': expected a list"),
    ],
)
def test_what_is_refused(content, says, capsys):
    with pytest.raises(ConfigError, match=says):
        parse_flight_record(content)
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.booleans(), st.data())
def test_broken_records_give_one_error(plain, data):
    content = dump_flight_record(job()[0])
    content = bytearray(content if plain else pickle.dumps(json.loads(content)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=6))
    try:
        findings({0: parse_flight_record(bytes(content))})
    except ConfigError:
        return


def test_on_the_command_line(tmp_path, capsys):
    for rank, record in job(
        r1=[entry(1)], r0=[entry(1), entry(2, state="started")], r2=[entry(1)]
    ).items():
        (tmp_path / f"record_{rank}").write_bytes(dump_flight_record(record))
    files = [str(tmp_path / f"record_{rank}") for rank in range(3)]
    assert main(["flight", *files]) == 1
    assert (
        "ranks 1, 2 never came; they have done up to 1 of this group; waiting: rank 0"
        in capsys.readouterr().out
    )
    assert main(["flight", files[0], files[0]]) == 2
    assert "a second record of rank 0" in capsys.readouterr().err
    (tmp_path / "i.json").write_bytes(inspector([call(rank, 1) for rank in range(4)]))
    main(["flight", *files, str(tmp_path / "i.json")])
    assert capsys.readouterr().out.endswith(
        "# 3 ranks, 4 operations; 4 ranks, 4 collectives: 1 finding\n"
    )


def test_a_folder_is_read(tmp_path, capsys):
    for rank, record in job(r1=[entry(1)], r0=[entry(1), entry(2, state="started")]).items():
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(dump_flight_record(record))
    (tmp_path / "notes.txt").write_text("hung again")
    assert main(["flight", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "notes.txt: this is a text of no kind known here" in lines[0]
    assert "rank 1 never came" in lines[1]
    (tmp_path / "empty").mkdir()
    assert main(["flight", str(tmp_path / "empty")]) == 2
    assert "a folder without files" in capsys.readouterr().err


def test_a_wrong_rank_in_a_name_is_noticed(tmp_path, capsys):
    """Group 1 has ranks 0 and 2: the record named 1 is another's."""
    for name in (0, 1):
        record = FlightRecord("2.4", GROUPS, (entry(1, group="1"),))
        (tmp_path / f"record_{name}").write_bytes(dump_flight_record(record))
    assert main(["flight", str(tmp_path)]) == 2
    said = (
        "not a record of rank 1, the last number of the name: it has done operations of group '1'"
    )
    assert said in capsys.readouterr().err


def test_json_of_another_kind_is_named(tmp_path, capsys):
    (tmp_path / "e.json").write_text("{}")
    assert main(["flight", str(tmp_path / "e.json")]) == 2
    assert (
        "this is a JSON file of no kind known here; expected a flight record"
        in capsys.readouterr().err
    )
