"""The encoding of Chakra execution traces: one rank's metadata and nodes as length-prefixed
protocol buffers.

The messages are ``GlobalMetadata``, ``Node`` and ``AttributeProto`` of MLCommons' ``et_def.proto``
(package ChakraProtoMsg). They nest only three levels deep, so the reader needs neither recursion
nor generated code; unknown fields are skipped, as the format requires.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NoReturn, TypeAlias, get_args

from simcoll.errors import ConfigError
from simcoll.files.reader_arguments import Content, content_of

Value = bool | int | float | str | bytes | tuple[bool, ...]

__all__ = ["MAX_NODES", "NODE_TYPES", "Node", "NodeType", "dump_nodes", "is_chakra", "parse_nodes"]

NodeType: TypeAlias = Literal[
    "INVALID",
    "METADATA",
    "MEM_LOAD",
    "MEM_STORE",
    "COMP",
    "COMM_SEND",
    "COMM_RECV",
    "COMM_COLL",
]
NODE_TYPES: tuple[NodeType, ...] = get_args(NodeType)
MAX_NODES = 4_000_000
MAX_ATTRIBUTES = 1000
VERSION = "0.0.4"
# Wire types of Protocol Buffers.
_VARINT, _BYTES = 0, 2
_FIXED32, _FIXED64 = 5, 1
# Fields of AttributeProto that hold one number, by what its bits mean.
_UNSIGNED, _SIGNED, _ZIGZAG = (11, 13), (7, 9), (15, 17)
_DOUBLE, _FLOAT = 3, 5
_FIXED, _SFIXED = (19, 21), (23, 25)
_INT64 = 9
_BOOL, _BOOLS = 27, 28
_STRING, _RAW = 29, 31


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a rank's graph.

    Attributes
    ----------
    number, name, kind
        Its ID, its name, and one of :data:`NODE_TYPES`.
    after
        IDs of its control and data dependencies, without duplicates.
    duration_us
        Its duration in microseconds.
    attributes
        Single values and lists of booleans by name; other lists are skipped.
    values
        The values of its inputs, as text.
    """

    number: int
    name: str
    kind: NodeType
    after: tuple[int, ...] = ()
    duration_us: int = 0
    attributes: Mapping[str, Value] = field(default_factory=dict)
    values: str = ""


class _Broken(Exception):  # noqa: N818  # what is wrong, for the caller to say where
    pass


def parse_nodes(content: Content, file: str | None = None) -> tuple[dict[str, Value], list[Node]]:
    """Parse the metadata's attributes and the nodes of one rank's file.

    Raises
    ------
    ConfigError
        With the position, for bytes that are not such messages, too many messages, duplicate IDs,
        and nodes without a type.

    Examples
    --------
    >>> parse_nodes(dump_nodes({}, [Node(0, "forward", "COMP", duration_us=3)]))[1][0].duration_us
    3
    """
    content = content_of(content, "parse_nodes")
    metadata: dict[str, Value] = {}
    nodes: list[Node] = []
    numbers: dict[int, None] = {}
    offset, count = 0, 0

    def refuse(reason: str) -> NoReturn:
        subject = "the metadata" if not count else f"node {count - 1}"
        raise ConfigError(
            f"not a Chakra execution trace: {reason}", file=file, path=f"{subject} at byte {offset}"
        )

    while offset < len(content):
        try:
            size, begin = _varint(content, offset, len(content))
            if size > len(content) - begin:
                refuse(f"a message of {size} bytes, with {len(content) - begin} left in the file")
            end = begin + size
            if count == 0:
                metadata = _metadata(content, begin, end)
            else:
                node = _node(content, begin, end)
                if node.number in numbers:
                    refuse(f"id {node.number} is a duplicate")
                numbers[node.number] = None
                nodes.append(node)
        except (_Broken, UnicodeDecodeError) as error:
            refuse(str(error))
        offset, count = end, count + 1
        if count > MAX_NODES:
            refuse(f"more than {MAX_NODES:,} nodes")
    if not count:
        refuse("the file is empty")
    return metadata, nodes


def is_chakra(content: bytes) -> bool:
    """Whether a file starts like a trace: metadata of a version and attributes, either of which may
    be missing, then a node. Only the start of a file is needed.

    >>> is_chakra(dump_nodes({}, [Node(0, "forward", "COMP")])), is_chakra(b"hello"), is_chakra(b"")
    (True, False, False)
    """
    try:
        size, begin = _varint(content, 0, len(content))
        end = begin + size
        if end > len(content) or not _is_metadata(content, begin, end):
            return False
        if end == len(content):
            return size > 0
        node_size, node_begin = _varint(content, end, len(content))
        node_end = min(node_begin + node_size, len(content))
        return node_size > 0 and _is_node(content, node_begin, node_end)
    except (_Broken, UnicodeDecodeError):
        return False


def _is_metadata(content: bytes, offset: int, end: int) -> bool:
    """Whether a message has a version and named attributes only."""
    for (number, kind), value, stop in _fields(content, offset, end):
        if kind != _BYTES or number not in {1, 2}:
            return False
        text = content[value:stop]
        if number == 2:
            (first_field, first_kind), name, name_end = next(
                _fields(content, value, stop), ((0, 0), 0, 0)
            )
            if (first_field, first_kind) != (1, _BYTES):
                return False
            text = content[name:name_end]
        if len(text) > 1000 or not text.decode().isprintable():
            return False
    return True


def _is_node(content: bytes, offset: int, end: int) -> bool:
    """Whether a message, which may be cut off, begins as a node: its number, then its name."""
    tag, offset = _varint(content, offset, end)
    if tag == 1 << 3 | _VARINT:
        _, offset = _varint(content, offset, end)
        if offset == end:
            return True
        tag, offset = _varint(content, offset, end)
    # The number 0 is not written; then a node begins with its name, type or duration.
    return tag in {2 << 3 | _BYTES, 3 << 3 | _VARINT, 7 << 3 | _VARINT}


def _varint(content: bytes, offset: int, end: int) -> tuple[int, int]:
    """Decode a number of at most 64 bits; returns the position after it too."""
    value = shift = 0
    while offset < end and shift < 70:
        byte = content[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 2**64 - 1, offset
        shift += 7
    raise _Broken(
        "a number that does not end" if offset >= end else "a number of more than 10 bytes"
    )


def _fields(content: bytes, offset: int, end: int) -> Iterator[tuple[tuple[int, int], int, int]]:
    """Yield number and wire type of every field, with its value, or the start and end of its
    bytes.
    """
    while offset < end:
        tag, offset = _varint(content, offset, end)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, offset = _varint(content, offset, end)
            yield (number, kind), value, offset
            continue
        if kind == _BYTES:
            size, offset = _varint(content, offset, end)
        elif kind in {_FIXED32, _FIXED64}:
            size = 4 if kind == _FIXED32 else 8
        else:
            raise _Broken(f"field {number} has wire type {kind}")
        if size > end - offset:
            raise _Broken(
                f"field {number} has {size} bytes, with {end - offset} left in its message"
            )
        yield (number, kind), offset, offset + size
        offset += size


def _metadata(content: bytes, offset: int, end: int) -> dict[str, Value]:
    attributes: dict[str, Value] = {}
    for (number, kind), value, stop in _fields(content, offset, end):
        if number == 2 and kind == _BYTES:
            _attribute(content, value, stop, attributes)
    return attributes


def _node(content: bytes, offset: int, end: int) -> Node:
    number = duration = kind_number = 0
    name = values = ""
    dependencies: dict[int, None] = {}
    attributes: dict[str, Value] = {}
    for (number_of_field, kind), value, stop in _fields(content, offset, end):
        if kind == _VARINT:
            if number_of_field == 1:
                number = value
            elif number_of_field == 3:
                kind_number = value
            elif number_of_field in {4, 5}:
                dependencies[value] = None
            elif number_of_field == 7:
                duration = value
        elif kind == _BYTES:
            if number_of_field == 2:
                name = content[value:stop].decode()
            elif number_of_field in {4, 5}:  # packed
                place = value
                while place < stop:
                    dependency, place = _varint(content, place, stop)
                    dependencies[dependency] = None
            elif number_of_field == 8:
                values = _text_of(content, value, stop)
            elif number_of_field == 10:
                _attribute(content, value, stop, attributes)
    if not 0 <= kind_number < len(NODE_TYPES):
        raise _Broken(f"node type {kind_number}; expected 0 to {len(NODE_TYPES) - 1}")
    return Node(
        number, name, NODE_TYPES[kind_number], tuple(dependencies), duration, attributes, values
    )


def _text_of(content: bytes, offset: int, end: int) -> str:
    """The values of an IOInfo."""
    text = ""
    for (number, kind), value, stop in _fields(content, offset, end):
        if number == 1 and kind == _BYTES:
            text = content[value:stop].decode()
    return text


def _attribute(content: bytes, offset: int, end: int, into: dict[str, Value]) -> None:
    """Add the name and the single value of an AttributeProto."""
    name = ""
    parsed: Value | None = None
    for (number, kind), value, stop in _fields(content, offset, end):
        if number == 1 and kind == _BYTES:
            name = content[value:stop].decode()
        elif kind == _VARINT:
            if number in _SIGNED:
                parsed = value - 2**64 if value >= 2**63 else value
            elif number in _ZIGZAG:
                parsed = (value >> 1) ^ -(value & 1)
            elif number in _UNSIGNED:
                parsed = value
            elif number == _BOOL:
                parsed = bool(value)
        elif kind == _BYTES and number == _BOOLS:
            parsed = _booleans(content, value, stop)
        elif kind == _BYTES and number in {_STRING, _RAW}:
            parsed = content[value:stop].decode() if number == _STRING else content[value:stop]
        elif kind in {_FIXED32, _FIXED64}:
            parsed = _fixed_number(content[value:stop], number)
    if parsed is not None and name:
        into[name] = parsed
        if len(into) > MAX_ATTRIBUTES:
            raise _Broken(f"more than {MAX_ATTRIBUTES} attributes")


def _booleans(content: bytes, offset: int, end: int) -> tuple[bool, ...]:
    """A BoolList, packed or not."""
    booleans: list[bool] = []
    for (number, kind), value, stop in _fields(content, offset, end):
        if number == 1 and kind == _VARINT:
            booleans.append(bool(value))
        elif number == 1 and kind == _BYTES:
            booleans += map(bool, content[value:stop])
    return tuple(booleans)


def _fixed_number(raw: bytes, number: int) -> float | None:
    wide = len(raw) == 8
    if number == (_DOUBLE if wide else _FLOAT):
        return float(struct.unpack("<d" if wide else "<f", raw)[0])
    if number in _FIXED or number in _SFIXED:
        return int.from_bytes(raw, "little", signed=number in _SFIXED)
    return None


# ---- writing


def dump_nodes(metadata: Mapping[str, Value], nodes: list[Node]) -> bytes:
    """The file of one rank."""
    head = _bytes(1, VERSION.encode()) + b"".join(
        _bytes(2, _attribute_bytes(*attribute)) for attribute in metadata.items()
    )
    return b"".join(_number(len(message)) + message for message in (head, *map(_node_bytes, nodes)))


def _number(value: int) -> bytes:
    parts = bytearray()
    value &= 2**64 - 1
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _whole(field_number: int, value: int) -> bytes:
    return _number(field_number << 3 | _VARINT) + _number(value)


def _bytes(field_number: int, value: bytes) -> bytes:
    return _number(field_number << 3 | _BYTES) + _number(len(value)) + value


def _attribute_bytes(name: str, value: Value) -> bytes:
    head = _bytes(1, name.encode())
    if isinstance(value, bool):
        return head + _whole(_BOOL, value)
    if isinstance(value, int):
        return head + _whole(_INT64, value)
    if isinstance(value, float):
        return head + _number(_DOUBLE << 3 | _FIXED64) + struct.pack("<d", value)
    if isinstance(value, tuple):
        return head + _bytes(_BOOLS, _bytes(1, bytes(value)))
    return head + (
        _bytes(_STRING, value.encode()) if isinstance(value, str) else _bytes(_RAW, value)
    )


def _node_bytes(node: Node) -> bytes:
    parts = [
        _whole(1, node.number),
        _bytes(2, node.name.encode()),
        _whole(3, NODE_TYPES.index(node.kind)),
    ]
    if node.after:
        parts.append(_bytes(5, b"".join(map(_number, node.after))))
    parts.append(_whole(7, node.duration_us))
    if node.values:
        parts.append(_bytes(8, _bytes(1, node.values.encode())))
    parts += [_bytes(10, _attribute_bytes(*attribute)) for attribute in node.attributes.items()]
    return b"".join(parts)
