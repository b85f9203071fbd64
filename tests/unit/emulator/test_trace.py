"""The timeline file."""

import gzip
import json
from itertools import pairwise

import pytest

import simcoll
from simcoll.emulator import Trace, emulate
from simcoll.errors import ConfigError
from simcoll.topology import crossbar


def traced(kind="all_reduce", name="ring", n=4, **trace):
    plan = simcoll.bind(
        simcoll.schedule(kind, name, nranks=n, in_place=kind == "all_reduce"), count=1000
    )
    topology = crossbar(n, "50 GB/s", "1 us")
    trace = Trace(plan, topology, **trace)
    return trace, emulate(plan, topology, observer=trace)


def spans(document):
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def test_the_file_opens_and_names_its_ranks(tmp_path):
    trace, result = traced()
    trace.write(tmp_path / "trace.json.gz", result)
    document = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    assert document == trace.document(result)
    names = {
        e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"
    }
    assert names == {rank: f"rank {rank} (gpu{rank})" for rank in range(4)} | {4: "links"}
    about = document["otherData"]
    assert (about["trace_hash"], about["time_us"]) == (result.trace_hash, result.time_us)
    assert "truncated" not in about
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"]


def test_every_message_has_a_send_and_a_receive():
    trace, result = traced()
    events = spans(trace.document(result))
    assert len(events) == 2 * result.messages == 2 * 24
    assert all(e["args"]["bytes"] == 1000 for e in events)
    first = next(e for e in events if e["ts"] == 0 and e["pid"] == 2 and e["cat"] == "send")
    assert (first["name"], first["args"]["op"]) == ("send -> 3", "reduce")
    # One message: 1 us of latency, then 1000 bytes at 50 GB/s in 0.02 us; the receive begins with
    # the flow.
    assert (first["ts"], first["dur"]) == (0, 1.02)
    receive = next(
        e
        for e in events
        if e["args"]["message"] == first["args"]["message"] and e["cat"] == "receive"
    )
    assert (receive["name"], receive["pid"], receive["ts"], receive["dur"]) == (
        "receive <- 2",
        3,
        1,
        0.02,
    )


def test_spans_of_one_track_do_not_overlap():
    trace, result = traced("all_to_all", "direct", 5)
    document = trace.document(result)
    tracks = {}
    for event in spans(document):
        tracks.setdefault((event["pid"], event["tid"]), []).append(
            (event["ts"], event["ts"] + event["dur"])
        )
    for track in tracks.values():
        track.sort()
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in pairwise(track))
    labels = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in document["traceEvents"]
        if e["name"] == "thread_name"
    }
    assert sorted(labels) == sorted(tracks)
    again = [f"channel 0 receive ({row})" for row in (2, 3, 4)]
    assert [labels[0, tid] for tid in range(5)] == ["channel 0 local", "channel 0 receive", *again]


def test_a_long_run_is_cut_and_says_so():
    trace, result = traced(max_events=11)
    document = trace.document(result)
    assert sorted({event["args"]["message"] for event in spans(document)}) == [0, 1, 2, 3, 4]
    said = document["otherData"]
    assert (
        said["truncated"]
        == f"only the first 5 of {result.messages} transfers, in schedule order, are in this file"
    )


def test_equal_runs_write_equal_bytes(tmp_path):
    for name in ("a", "b"):
        trace, result = traced()
        trace.write(tmp_path / name, result)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_place_that_cannot_be_written(tmp_path):
    trace, result = traced()
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        trace.write(tmp_path / "missing" / "trace.json.gz", result)
    with pytest.raises(ConfigError, match="max_events -1 is negative"):
        traced(max_events=-1)


def marked(kind, name, nranks, count=1000):
    machine = crossbar(nranks, "1 GB/s", "1 us")
    plan = simcoll.bind(simcoll.schedule(kind, name, nranks=nranks), count, "uint8")
    trace = Trace(plan, machine)
    result = emulate(plan, machine, observer=trace, bound=False)
    return trace.document(result), result


def test_arrows_lead_from_send_to_receive():
    document, _ = marked("all_gather", "ring", 4)
    ends = {
        phase: {e["id"]: e for e in document["traceEvents"] if e["ph"] == phase} for phase in "sf"
    }
    found = spans(document)
    for phase, category in (("s", "send"), ("f", "receive")):
        own = {span["args"]["message"]: span for span in found if span["cat"] == category}
        assert set(own) == set(ends[phase])
        for message, span in own.items():
            arrow = ends[phase][message]
            assert (arrow["pid"], arrow["tid"]) == (span["pid"], span["tid"])
            assert span["ts"] <= arrow["ts"] <= span["ts"] + span["dur"]
    assert len(ends["s"]) == 12


def test_the_critical_path_of_a_chain_is_all_of_it():
    """Four hops one after the other; of a tree of eight ranks three of seven messages."""
    document, result = marked("broadcast", "chain", 5)
    path = document["otherData"]["critical_path"]
    assert path == {
        "messages": sum(
            1 for s in spans(document) if s["cat"] != "receive" and s["args"].get("critical")
        ),
        "share": 1.0,
    }
    assert path["messages"] >= 4
    assert result.time_fs == 4 * (10**9 + 1000 * 10**6)
    document, _ = marked("broadcast", "tree", 8)
    sends = [span for span in spans(document) if span["cat"] == "send"]
    assert sum(1 for span in sends if span["args"].get("critical")) == 3
    assert all(
        (span.get("cname") == "terrible") == bool(span["args"].get("critical")) for span in sends
    )


def test_counters_show_what_links_carry():
    """Every rank of a linear gather sends 1,000 bytes to rank 0, whose link takes 1 GB/s in all."""
    document, _ = marked("gather", "linear", 4)
    counters = [event for event in document["traceEvents"] if event["ph"] == "C"]
    into = [event["args"]["GB/s"] for event in counters if event["name"].endswith("-> gpu0")]
    assert max(into) == pytest.approx(1, abs=1e-6)
    for name in {event["name"] for event in counters}:
        assert [event["args"]["GB/s"] for event in counters if event["name"] == name][-1] == 0
