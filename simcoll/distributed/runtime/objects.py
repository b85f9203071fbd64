"""Objects as bytes, for object collectives and stores: plain data, or pickle on request.

Plain data is None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set,
frozenset, range, numpy arrays and scalars (and those of ml_dtypes), nested in any way; it comes
back with the same types. The encoding is MessagePack with extension types for what MessagePack
lacks. Decoding it runs no code from the sender. Unpickling can, so both sides have to opt in.
"""

from __future__ import annotations

import enum
import math
import os
import pickle
import re
import struct
from typing import Any, cast

import msgspec
import numpy as np

from simcoll.errors import SimcollError

__all__ = ["TRUSTED_VARIABLE", "ObjectDecodingError", "ObjectEncodingError", "decode", "encode"]

TRUSTED_VARIABLE = "SIMCOLL_TRUSTED_PICKLE"
MAX_DEPTH = 64
_ATOMS = frozenset({type(None), bool, float, str, bytes})
_PLAIN, _PICKLE = b"\x00", b"\x01"
_OPT_IN = (
    f"pass trusted=True, or set {TRUSTED_VARIABLE}=1, on all ranks to use pickle (which "
    "runs "
    "code of the sender's)"
)


class ObjectEncodingError(SimcollError, TypeError):
    """An object that is not plain data, or is nested too deeply."""


class ObjectDecodingError(SimcollError, ValueError):
    """Bytes that are not an encoded object, or a pickle that is not trusted."""


class _ExtensionKind(enum.IntEnum):
    """The extension types; their data is itself encoded unless said otherwise."""

    TUPLE = 1
    SET = 2
    FROZENSET = 3
    COMPLEX = 4  # two float64
    INTEGER = 5  # outside 64 bits: two's complement
    BYTEARRAY = 6  # raw
    ARRAY = 7  # [dtype, shape, elements in C order]
    SCALAR = 8  # an ARRAY without dimensions
    RANGE = 9  # [start, stop, step]
    DICT = 10  # [keys, values], where a key is an extension type


def encode(thing: object, *, trusted: bool | None = None) -> bytes:
    """Encode an object as bytes.

    Parameters
    ----------
    thing
        Plain data; anything that can be pickled where ``trusted``.
    trusted
        Whether to use pickle; default: if the environment variable SIMCOLL_TRUSTED_PICKLE is 1.

    Raises
    ------
    ObjectEncodingError
        The object contains something other than plain data; the text says where, and how to opt in
        to pickle.
    pickle.PicklingError, AttributeError, TypeError
        ``trusted``, and the object cannot be pickled.

    Examples
    --------
    >>> decode(encode(["foo", 12, {1: 2}, (3, 4.5)]))
    ['foo', 12, {1: 2}, (3, 4.5)]
    >>> encode({"f": print})
    Traceback (most recent call last):
    simcoll.distributed.runtime.objects.ObjectEncodingError: $['f'] is a builtin_function_or...
    """
    if _is_trusted(trusted):
        return _PICKLE + pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)
    try:
        return _PLAIN + _pack(thing)
    except UnicodeEncodeError as error:
        raise ObjectEncodingError(
            f"the str {error.object[:40]!r} has no UTF-8 form; {_OPT_IN}"
        ) from error


def decode(data: bytes | bytearray | memoryview, *, trusted: bool | None = None) -> Any:
    """Decode what `encode` made; arrays are writable copies. An ObjectDecodingError for a pickle
    that is not ``trusted``.
    """
    data = bytes(data)
    how, body = data[:1], data[1:]
    if how == _PICKLE:
        if not _is_trusted(trusted):
            raise ObjectDecodingError(
                f"the sender used pickle, which this rank does not trust; {_OPT_IN}"
            )
        return pickle.loads(body)  # noqa: S301  the caller has opted in
    if how != _PLAIN:
        raise ObjectDecodingError(
            f"these {len(data)} bytes are not an encoded object: they begin with {data[:8]!r}"
        )
    try:
        return _unpack(body)
    except RecursionError as error:
        raise ObjectDecodingError("the encoded object is nested too deeply") from error
    except (ValueError, TypeError, struct.error, OverflowError, MemoryError) as error:
        raise ObjectDecodingError(
            f"these {len(data)} bytes are not an encoded object: {error}"
        ) from error


def _is_trusted(trusted: bool | None) -> bool:
    return os.environ.get(TRUSTED_VARIABLE) == "1" if trusted is None else trusted


# Encoding


# The path to an object from the outermost one: the path to its container, and its place there. Made
# into text only for an error.
_Way = tuple["_Way", str, object] | None


def _refusal(path: _Way, why: str) -> ObjectEncodingError:
    place = ""
    while path is not None:
        path, form, key = path
        place = form.format(key) + place
    place = f"${place}"
    return ObjectEncodingError(f"{place[:200]}{'...' if len(place) > 200 else ''} {why}; {_OPT_IN}")


def _pack(obj: object, path: _Way = None, depth: int = 0) -> bytes:
    return msgspec.msgpack.encode(_plain(obj, path, depth))


def _plain(obj: object, path: _Way, depth: int) -> object:
    """Convert an object to MessagePack's types. Exact types only: a subclass would come back as its
    base.
    """
    kind = type(obj)
    if kind in _ATOMS:
        return obj
    if kind is int:
        number = cast("int", obj)
        length = number.bit_length() // 8 + 1
        fits = -(1 << 63) <= number < 1 << 64
        return (
            number
            if fits
            else _ext(_ExtensionKind.INTEGER, number.to_bytes(length, "big", signed=True))
        )
    if depth > MAX_DEPTH:
        raise _refusal(path, f"is nested more than {MAX_DEPTH} deep, or contains itself")
    if isinstance(obj, (np.ndarray, np.generic)):
        return _array(obj, path)
    match obj:
        case list() if kind is list:
            return [_plain(entry, (path, "[{}]", i), depth + 1) for i, entry in enumerate(obj)]
        case dict() if kind is dict:
            keys = [_plain(key, (path, " key {!r}", key), depth + 1) for key in obj]
            values = [_plain(value, (path, "[{!r}]", key), depth + 1) for key, value in obj.items()]
            # Not a key that a MessagePack map can have.
            if any(isinstance(key, msgspec.msgpack.Ext) for key in keys):
                return _ext(_ExtensionKind.DICT, msgspec.msgpack.encode([keys, values]))
            return dict(zip(keys, values, strict=True))
        case set() | frozenset() if kind in {set, frozenset}:
            # Sorted by their bytes: the same set gives the same bytes in every process.
            items = sorted(_pack(entry, (path, " element {!r}", entry), depth + 1) for entry in obj)
            return _ext(
                _ExtensionKind.SET if kind is set else _ExtensionKind.FROZENSET,
                msgspec.msgpack.encode(items),
            )
        case tuple() if kind is tuple:
            return _ext(_ExtensionKind.TUPLE, _pack(list(obj), path, depth))
        case complex() if kind is complex:
            return _ext(_ExtensionKind.COMPLEX, struct.pack(">dd", obj.real, obj.imag))
        case bytearray() if kind is bytearray:
            return _ext(_ExtensionKind.BYTEARRAY, bytes(obj))
        case range():
            return _ext(_ExtensionKind.RANGE, _pack([obj.start, obj.stop, obj.step], path, depth))
    raise _refusal(path, f"is a {kind.__qualname__}, which is not plain data")


def _ext(kind: _ExtensionKind, data: bytes) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(int(kind), data)


def _array(array: np.ndarray[Any, Any] | np.generic, path: _Way) -> msgspec.msgpack.Ext:
    if isinstance(array, np.ndarray) and type(array) is not np.ndarray:
        raise _refusal(path, f"is a {type(array).__qualname__}, which is not a plain array")
    dtype = array.dtype
    # Types registered by other packages have codes that numpy cannot read back, such as "<f1".
    name = dtype.str if dtype.isbuiltin != 2 and _NUMPY_DTYPE.fullmatch(dtype.str) else dtype.name
    if name != dtype.str and name not in _extra_dtypes():
        raise _refusal(path, f"is an array of {dtype}, which is not plain data")
    body = msgspec.msgpack.encode([name, list(array.shape), array.tobytes()])
    return _ext(
        _ExtensionKind.ARRAY if isinstance(array, np.ndarray) else _ExtensionKind.SCALAR, body
    )


_NUMPY_DTYPE = re.compile(r"[<>|=][biufcSUmM]\d{1,6}(\[\d*[A-Za-zμ]{1,7}\])?")


def _extra_dtypes() -> dict[str, np.dtype[Any]]:
    """The types of ml_dtypes by name, such as bfloat16."""
    import ml_dtypes

    classes = (
        member for name, member in sorted(vars(ml_dtypes).items()) if isinstance(member, type)
    )
    return {name.__name__: np.dtype(name) for name in classes if issubclass(name, np.generic)}


# Decoding


def _unpack(data: bytes) -> Any:
    return msgspec.msgpack.decode(data, ext_hook=_extension)


def _extension(code: int, data: memoryview) -> object:
    match code:
        case _ExtensionKind.COMPLEX:
            return complex(*struct.unpack(">dd", data))
        case _ExtensionKind.INTEGER:
            return int.from_bytes(data, "big", signed=True)
        case _ExtensionKind.BYTEARRAY:
            return bytearray(data)
        case _ExtensionKind.ARRAY:
            return _array_of(data)
        case _ExtensionKind.SCALAR:
            return _array_of(data)[()]
    if code not in set(_ExtensionKind):
        raise ValueError(f"unknown extension type {code}")
    items = _unpack(bytes(data))
    if not isinstance(items, list):
        # Bad data, not a bad call.
        raise ValueError(f"expected a list inside, got {type(items).__name__}")  # noqa: TRY004
    match code:
        case _ExtensionKind.TUPLE:
            return tuple(items)
        case _ExtensionKind.RANGE:
            return range(*items)
        case _ExtensionKind.DICT:
            keys, values = items
            return dict(zip(keys, values, strict=True))
    elements = map(_unpack, items)
    return set(elements) if code == _ExtensionKind.SET else frozenset(elements)


def _array_of(data: memoryview) -> np.ndarray[Any, Any]:
    name, shape, elements = msgspec.msgpack.decode(data, type=tuple[str, list[int], bytes])
    dtype = np.dtype(name) if _NUMPY_DTYPE.fullmatch(name) else _extra_dtypes().get(name)
    if dtype is None:
        raise ValueError(f"unknown dtype {name!r}")
    if any(side < 0 for side in shape) or math.prod(shape) * dtype.itemsize != len(elements):
        raise ValueError(
            f"{len(elements)} bytes are not an array of {dtype} with shape {tuple(shape)}"
        )
    array = np.empty(tuple(shape), dtype)
    if elements:
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(elements, np.uint8)
    return array
