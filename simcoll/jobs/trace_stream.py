"""Stream the events of a trace of PyTorch's profiler, without ever holding all of its text.

A file is one JSON object with a list ``traceEvents``, of up to gigabytes. Its text is decoded in
pieces that end between two events. Whether a cut lies between two events needs no scanner: a piece
that begins at an event and is a well-formed list up to the cut cannot end inside a string or a
nested object.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from simcoll.errors import ConfigError

__all__ = ["TraceEvent", "TraceHead", "TraceStream", "is_trace_head"]

PIECE_BYTES = 4 << 20
MOST_TEXT_BYTES = 64 << 30
"""Limit of the decompressed text of a file."""
MOST_HEAD_BYTES = 64 << 20
"""Limit of what precedes the events or follows them, and of a single event."""
MOST_CUTS = 8
"""Cuts tried in a piece; only lists of objects inside arguments need more than one."""
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_CUT = re.compile(rb"\}(\s*,\s*)\{")


class Arguments(
    msgspec.Struct,
    gc=False,
    rename={
        "wait_stream": "wait_on_stream",
        "record_correlation": "wait_on_cuda_event_record_corr_id",
        "collective": "Collective name",
        "elements_in": "In msg nelems",
        "elements_out": "Out msg nelems",
        "group_size": "Group size",
        "group_name": "Process Group Name",
        "group_description": "Process Group Description",
        "group_ranks": "Process Group Ranks",
        "first_rank": "Global rank start",
        "rank_stride": "Global rank stride",
        "sequence": "Seq",
        "source_rank": "Src Rank",
        "target_rank": "Dst Rank",
        "dimensions": "Input Dims",
        "types": "Input type",
    },
):
    """The arguments of an event that are read; any of them may be absent, or of another type."""

    correlation: Any = None
    stream: Any = None
    wait_stream: Any = None
    record_correlation: Any = None
    collective: Any = None
    elements_in: Any = None
    elements_out: Any = None
    group_size: Any = None
    dtype: Any = None
    group_name: Any = None
    group_description: Any = None
    group_ranks: Any = None
    first_rank: Any = None
    rank_stride: Any = None
    sequence: Any = None
    source_rank: Any = None
    target_rank: Any = None
    dimensions: Any = None
    types: Any = None


class TraceEvent(msgspec.Struct, gc=False):
    """An event of a trace as its file has it; the arguments are decoded where they are needed."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    ts: Any = None
    dur: Any = None
    tid: Any = None
    args: msgspec.Raw = msgspec.Raw()

    def arguments(self) -> Arguments:
        """The arguments that are read."""
        if not self.args:
            return Arguments()
        try:
            return msgspec.json.decode(self.args, type=Arguments)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Arguments()


class DistributedInfo(msgspec.Struct):
    """What a process knew of its job."""

    backend: Any = None
    rank: Any = None
    world_size: Any = None
    pg_config: Any = None
    nccl_version: Any = None


class TraceHead(msgspec.Struct, rename={"base_time_ns": "baseTimeNanoseconds"}):
    """What a file says besides its events."""

    distributedInfo: DistributedInfo | None = None
    deviceProperties: Any = None
    base_time_ns: Any = None
    traceEvents: list[TraceEvent] = []


_LIST = msgspec.json.Decoder(list[TraceEvent])


def is_trace_head(start: bytes) -> bool:
    """Whether a file with this start, possibly compressed, can be a trace of a profiler.

    >>> is_trace_head(b'{"schemaVersion": 1, "traceEvents": [')
    True
    """
    if start[:2] == b"\x1f\x8b":
        try:
            start = zlib.decompressobj(31).decompress(start, 1 << 20)
        except zlib.error:
            return False
    return start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" and (
        b'"traceEvents"' in start or b'"distributedInfo"' in start or b'"deviceProperties"' in start
    )


class TraceStream:
    """The events of a file in its order; ``head`` is complete when they are exhausted.

    Attributes
    ----------
    head
        What the file says besides its events.
    repaired
        Number of pieces that were not well-formed JSON and could be read nevertheless.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = TraceHead()
        self.repaired = 0
        self._text_bytes = 0

    def __iter__(self) -> Iterator[TraceEvent]:
        """Yield the events.

        Raises
        ------
        ConfigError
            For a file that cannot be read, is truncated, or is no trace.
        """
        try:
            with self.path.open("rb") as file:
                compressed = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                stream: Any = gzip.GzipFile(fileobj=file) if compressed else file
                yield from self._events(stream)
        except EOFError:
            raise self._refusal("truncated: the compressed file ends too early") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self._refusal(f"damaged: the compressed file cannot be read: {error}") from None
        except OSError as error:
            raise self._refusal(f"cannot read: {error.strerror or error}") from None
        except ValueError as error:  # a name with a zero byte
            raise self._refusal(f"cannot read: {error}") from None

    def _refusal(self, message: str) -> ConfigError:
        return ConfigError(message, file=str(self.path))

    def _next_piece(self, stream: IO[bytes]) -> bytes:
        piece = stream.read(PIECE_BYTES)
        self._text_bytes += len(piece)
        if self._text_bytes > MOST_TEXT_BYTES:
            raise self._refusal(f"larger than {MOST_TEXT_BYTES >> 30} GiB of text")
        return piece

    def _events(self, stream: IO[bytes]) -> Iterator[TraceEvent]:
        text = self._next_piece(stream)
        while (begin := _EVENTS.search(text)) is None:
            piece = self._next_piece(stream)
            if not piece or len(text) > MOST_HEAD_BYTES:
                raise self._refusal("not a trace of a profiler: it has no list traceEvents")
            text += piece
        head, text = text[: begin.end()], text[begin.end() :]
        while True:
            piece = self._next_piece(stream)
            if not piece:
                break
            text += piece
            events, text = self._piece(text)
            yield from events
            if len(text) > MOST_HEAD_BYTES:
                raise self._refusal(
                    f"not readable: {MOST_HEAD_BYTES >> 20} MiB of text without the end of an event"
                )
        events, tail = self._last_piece(text)
        yield from events
        self._finish(head + b"]" + tail)

    def _piece(self, text: bytes) -> tuple[list[TraceEvent], bytes]:
        """The events of a text up to a cut between two of them, and the rest."""
        cuts = [cut.span(1) for cut in _CUT.finditer(text, max(0, len(text) - (1 << 16)))]
        for cut_begin, cut_end in reversed(cuts[-MOST_CUTS:]):
            events = self._decode(b"[" + text[:cut_begin] + b"]")
            if events is not None:
                return events, text[cut_end:]
        return [], text

    def _decode(self, text: bytes) -> list[TraceEvent] | None:
        """A list of events; None if the text does not end between two of them."""
        try:
            return _LIST.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        try:
            document, end = json.JSONDecoder(strict=False).raw_decode(
                text.decode("utf-8", "replace")
            )
        except json.JSONDecodeError as error:
            if error.msg.startswith("Unterminated") or error.pos >= len(error.doc) - 2:
                return None
            raise self._syntax_refusal(error, text) from None
        except RecursionError:
            raise self._refusal("not readable: an event is nested too deeply") from None
        if not isinstance(document, list) or text[end:].strip():
            return None
        self.repaired += 1
        return [_event(record) for record in document]

    def _syntax_refusal(self, error: json.JSONDecodeError, text: bytes) -> ConfigError:
        place = self._text_bytes - len(text) + error.pos
        return self._refusal(f"not readable: {error.msg} near byte {place:,} of its text")

    def _last_piece(self, text: bytes) -> tuple[list[TraceEvent], bytes]:
        """The remaining events, and what follows them."""
        letters = "[" + text.decode("utf-8", "replace")
        try:
            document, end = json.JSONDecoder(strict=False).raw_decode(letters)
        except json.JSONDecodeError as error:
            if error.msg.startswith("Unterminated") or error.pos >= len(letters.rstrip()) - 2:
                raise self._refusal("truncated: the list of events has no end") from None
            raise self._syntax_refusal(error, text) from None
        except RecursionError:
            raise self._refusal("not readable: an event is nested too deeply") from None
        return [_event(record) for record in document], letters[end:].encode()

    def _finish(self, around: bytes) -> None:
        """Read what surrounds the events."""
        try:
            self.head = msgspec.json.decode(around, type=TraceHead)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            try:
                document = json.loads(around.decode("utf-8", "replace"), strict=False)
                self.head = msgspec.convert(document, TraceHead)
            except (ValueError, msgspec.ValidationError, RecursionError):
                raise self._refusal(
                    "truncated or damaged: what surrounds its events is not JSON"
                ) from None


def _event(record: object) -> TraceEvent:
    """An event that the lenient decoder has read."""
    if not isinstance(record, dict):
        return TraceEvent()
    fields = {name: record.get(name) for name in ("ph", "cat", "name", "ts", "dur", "tid")}
    arguments = record.get("args")
    raw = json.dumps(arguments).encode() if isinstance(arguments, dict) else b""
    return TraceEvent(**fields, args=msgspec.Raw(raw))
