"""Traces are streamed whole or refused by name, whatever is in the file."""

from __future__ import annotations

import gzip
import json

import pytest

from simcoll.errors import ConfigError
from simcoll.jobs import trace_stream
from simcoll.jobs.rank_trace import load_rank_trace
from simcoll.jobs.trace_stream import TraceStream, is_trace_head

EVENT = {
    "ph": "X",
    "cat": "kernel",
    "name": 'gemm },{ "x" [',
    "ts": 1.5,
    "dur": 2,
    "tid": 7,
    "args": {"stream": 7, "correlation": 3, "list": [{"a": 1}, {"b": 2}]},
}


def written(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def document(events, **head):
    return {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 0, "world_size": 1},
        **head,
        "traceEvents": events,
        "traceName": "x",
    }


@pytest.mark.parametrize("piece", [64, 257, 1 << 20])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("indent", [None, 2])
def test_pieces_end_between_events(tmp_path, monkeypatch, piece, compressed, indent):
    # Names and arguments hold what a cut between two events looks like.
    monkeypatch.setattr(trace_stream, "PIECE_BYTES", piece)
    events = [{**EVENT, "ts": number} for number in range(50)]
    text = json.dumps(document(events), indent=indent).encode()
    path = written(tmp_path / "a.json", gzip.compress(text) if compressed else text)
    stream = TraceStream(path)
    assert [event.ts for event in stream] == list(range(50))
    assert stream.head.distributedInfo.world_size == 1
    assert stream.repaired == 0


def test_what_follows_the_events_is_read(tmp_path):
    text = json.dumps({"traceEvents": [EVENT], "distributedInfo": {"rank": 3, "world_size": 4}})
    assert load_rank_trace(written(tmp_path / "a.json", text)).rank == 3


def test_nearly_json_is_read(tmp_path):
    # PyTorch has written control characters in names, NaN, and bytes that are no UTF-8.
    text = json.dumps(document([{**EVENT, "name": "NAME"}])).encode()
    text = text.replace(b"NAME", b"a\tb\xff").replace(b'{"a": 1}', b'{"a": NaN}')
    trace = load_rank_trace(written(tmp_path / "a.json", text))
    assert [work.stream for work in trace.device_work] == [7]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "no list traceEvents"),
        (b"{}", "no list traceEvents"),
        (b'{"traceEvents": [{"ph": "X"}, ', "truncated: the list of events has no end"),
        (b'{"traceEvents": [{"ph": "X"}', "truncated: the list of events has no end"),
        (b'{"traceEvents": [{"ph": "X", "name": "a', "truncated: the list of events has no end"),
        (b'{"traceEvents": [{"ph": "X"}]', "what surrounds its events is not JSON"),
        (b'{"traceEvents": [{"ph": x}, {"ph": "X"}, {"ph": "X"}]}', "near byte"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-4], "truncated: the compressed file"),
        (b"\x1f\x8b" + b"a" * 50, "damaged"),
        (b'{"traceEvents": [' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_damage_is_refused_by_name(tmp_path, text, message):
    path = written(tmp_path / "a.json", text)
    with pytest.raises(ConfigError, match=message) as error:
        load_rank_trace(path)
    assert str(path) in str(error.value)


def test_a_file_without_ends_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_stream, "PIECE_BYTES", 1 << 10)
    monkeypatch.setattr(trace_stream, "MOST_HEAD_BYTES", 1 << 14)
    path = written(tmp_path / "a.json", gzip.compress(b'{"traceEvents": ["' + b"a" * (1 << 20)))
    with pytest.raises(ConfigError, match="without the end of an event"):
        list(TraceStream(path))
    monkeypatch.setattr(trace_stream, "MOST_TEXT_BYTES", 1 << 12)
    with pytest.raises(ConfigError, match="larger than"):
        list(TraceStream(path))


def test_events_that_are_no_events_are_passed_over(tmp_path):
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": ts, "dur": duration, "args": arguments}
        for ts, duration, arguments in [
            (None, 1, {}),
            (-1, 1, {}),
            (1e300, 1, {}),
            (True, 1, {}),
            ("nan", 1, {}),
            (1, [], {}),
        ]
    ]
    odd = {"ph": "X", "cat": 5, "name": ["a"], "ts": 1, "dur": 1}
    usable = {
        **EVENT,
        "ts": "1694128201429795",
        "dur": "2.5",
        "args": {"stream": [], "correlation": "x"},
    }
    path = written(tmp_path / "a.json", json.dumps(document([*events, odd, usable])))
    trace = load_rank_trace(path)
    # Nanoseconds of Unix times have more digits than a float.
    assert [(work.begin_ns, work.end_ns) for work in trace.device_work] == [
        (1694128201429795000, 1694128201429797500)
    ]


def test_heads_are_recognised():
    assert is_trace_head(gzip.compress(b'{"schemaVersion": 1, "traceEvents": ['))
    assert not is_trace_head(b'{"collectives": []}')
    assert not is_trace_head(b"\x1f\x8b nothing")
