"""Results as messages, and messages as results."""

from __future__ import annotations

from typing import NoReturn

from simcoll.distributed.stores import wire
from simcoll.distributed.stores.errors import DistNetworkError, DistStoreError
from simcoll.distributed.stores.table import NOT_READY, Operation, Result

__all__ = ["reply_of", "result_of"]

_COUNTING = frozenset({Operation.ADD, Operation.NUM_KEYS, Operation.QUEUE_LEN, Operation.COUNT})
_SAYING = frozenset({Operation.CHECK, Operation.DELETE_KEY})
_FETCHING = frozenset({Operation.GET, Operation.COMPARE_SET, Operation.QUEUE_POP})


def reply_of(result: Result) -> wire.Message:
    """A result as a message; which of its fields counts follows from the operation."""
    if result is NOT_READY:
        return wire.Message(wire.Status.NOT_READY)
    if isinstance(result, bytes):
        return wire.Message(wire.Status.OK, values=(result,))
    if isinstance(result, list):
        keys = tuple(item for item in result if isinstance(item, str))
        return wire.Message(wire.Status.OK, keys=keys, values=tuple(item for item in result if isinstance(item, bytes)))
    return wire.Message(wire.Status.OK, number=int(result or 0))


def result_of(operation: Operation, reply: wire.Message) -> Result:
    """The result in a reply; errors are raised as in the server.

    Raises
    ------
    ValueError, DistStoreError
        The operation could not be done.
    DistNetworkError
        The answer makes no sense.
    """
    if reply.code == wire.Status.NOT_READY:
        return NOT_READY
    if reply.code != wire.Status.OK:
        _raise(reply)
    if operation in _COUNTING:
        return reply.number
    if operation in _SAYING:
        return bool(reply.number)
    if operation in _FETCHING:
        if len(reply.values) != 1:
            raise DistNetworkError(f"the store's server answered {operation.name} with {len(reply.values)} values")
        return reply.values[0]
    if operation is Operation.MULTI_GET:
        return list(reply.values)
    return list(reply.keys) if operation is Operation.LIST_KEYS else None


def _raise(reply: wire.Message) -> NoReturn:
    why = b" ".join(reply.values).decode(errors="replace")
    if reply.code == wire.Status.VALUE_ERROR:
        raise ValueError(why)
    if reply.code == wire.Status.STORE_ERROR:
        raise DistStoreError(why)
    raise DistNetworkError(f"the store's server answered with the unknown status {reply.code}")
