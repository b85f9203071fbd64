"""Arguments of stores: the types and exceptions of torch, with messages that quote the given value."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

__all__ = ["key_list", "key_text", "number", "seconds", "value_bytes", "value_list"]

_INT64 = 1 << 63


def key_text(key: object) -> str:
    """The key as given.

    Raises
    ------
    TypeError
        Not a str.
    ValueError
        Text that has no UTF-8 form.

    Examples
    --------
    >>> key_text(3)
    Traceback (most recent call last):
    TypeError: a store's key must be a str, got 3 of type int
    """
    if not isinstance(key, str):
        raise TypeError(f"a store's key must be a str, got {key!r} of type {type(key).__name__}")
    if not _has_utf8(key):
        raise ValueError(f"a store's key must be text that UTF-8 can hold, got {key!r}")
    return key


def _has_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def key_list(keys: object) -> tuple[str, ...]:
    """The keys as a tuple; a TypeError if they are not a list or tuple of str."""
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Sequence):
        raise TypeError(f"keys must be a list of str, got {keys!r} of type {type(keys).__name__}")
    return tuple(key_text(key) for key in keys)


def value_bytes(value: object) -> bytes:
    """The value as bytes: str in UTF-8, bytes unchanged; a TypeError for anything else."""
    if isinstance(value, str):
        return key_text(value).encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"a store's value must be str or bytes, got {value!r} of type {type(value).__name__}")


def value_list(values: object) -> tuple[bytes, ...]:
    """The values as a tuple of bytes; a TypeError if they are not a list or tuple of str or bytes."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise TypeError(f"values must be a list of str or bytes, got {values!r} of type {type(values).__name__}")
    return tuple(value_bytes(value) for value in values)


def number(amount: object) -> int:
    """The amount to add; a TypeError unless an int, a ValueError outside 64 bits."""
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise TypeError(f"the amount to add must be an int, got {amount!r} of type {type(amount).__name__}")
    if not -_INT64 <= amount < _INT64:
        raise ValueError(f"the amount to add must fit in 64 bits, got {amount}")
    return amount


def seconds(timeout: object) -> float:
    """A timeout in seconds, from a timedelta or a float of seconds (what torch's binding takes; an int it refuses).

    Raises
    ------
    TypeError
        Neither.
    ValueError
        Negative or not a number.

    Examples
    --------
    >>> seconds(timedelta(milliseconds=300))
    0.3
    """
    if isinstance(timeout, timedelta):
        length = timeout.total_seconds()
    elif isinstance(timeout, float):
        length = timeout
    else:
        raise TypeError(
            f"Expected timeout argument to be of type datetime.timedelta, got {timeout!r} of type {type(timeout).__name__}"
        )
    if not 0 <= length <= timedelta.max.total_seconds():
        raise ValueError(f"a timeout must be 0 or more seconds, got {timeout}")
    return length
