"""The state as compiled code sees it: one pointer to a table with the address and length of every
array.

For numba, a tuple of arrays is a value of several hundred numbers, which every function that takes
it copies; LLVM spent nine tenths of the compile time on removing these copies. Integers are read as
int64 whatever their storage type, so that every function is compiled only once. Indices are used as
they are, since none is negative.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.imputils import lower_builtin, lower_getattr_generic
from numba.core.typing.templates import (
    AbstractTemplate,
    AttributeTemplate,
    infer_getattr,
    infer_global,
    signature,
)
from numba.extending import NativeValue, models, register_model, typeof_impl, unbox
from numba.np.numpy_support import from_dtype

from simcoll.emulator.fast.state import DTYPES, State

__all__ = ["ColumnType", "StateType"]

_WORD = ir.IntType(64)


class StateType(types.Type):
    """The state."""

    def __init__(self) -> None:
        super().__init__(name="simcoll.State")


class ColumnType(types.Type):
    """One of the state's arrays."""

    def __init__(self, dtype: types.Type) -> None:
        self.dtype = dtype
        super().__init__(name=f"simcoll.ColumnType({dtype})")


@register_model(StateType)
@register_model(ColumnType)
class _Address(models.PrimitiveModel):
    """A pointer into the table: to its start or to a column's entry."""

    def __init__(self, manager: Any, kind: types.Type) -> None:
        super().__init__(manager, kind, _WORD.as_pointer())


@typeof_impl.register(State)
def _typeof(_state: State, _context: Any) -> StateType:
    return StateType()


@unbox(StateType)
def _unbox(_kind: StateType, state: Any, c: Any) -> NativeValue:
    table = c.pyapi.object_getattr_string(state, "table")
    kind = types.Array(types.int64, 1, "C")
    array = c.unbox(kind, table)
    c.pyapi.decref(table)  # the state keeps it alive
    struct = c.context.make_array(kind)(c.context, c.builder, value=array.value)
    return NativeValue(struct.data, is_error=array.is_error)


@infer_getattr
class _Attribute(AttributeTemplate):
    key = StateType

    # In numba it is no method.
    def generic_resolve(self, _state: Any, name: str) -> Any:  # type: ignore[override]
        return ColumnType(from_dtype(np.dtype(DTYPES[name]))) if name in DTYPES else None


@lower_getattr_generic(StateType)
def _column(_context: Any, builder: Any, _state: StateType, table: Any, name: str) -> Any:
    return builder.gep(table, [_WORD(2 * list(DTYPES).index(name))], inbounds=True)


def _word(builder: Any, column: Any, entry: int) -> Any:
    """The address (0) or the length (1) of a column."""
    word = builder.load(builder.gep(column, [_WORD(entry)], inbounds=True))
    # The table does not change while compiled code runs.
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word


def _item(context: Any, builder: Any, kind: ColumnType, column: Any, index: Any) -> Any:
    """The address of an array element."""
    pointer = context.get_data_type(kind.dtype).as_pointer()
    return builder.gep(builder.inttoptr(_word(builder, column, 0), pointer), [index], inbounds=True)


def _is_access(args: Any) -> bool:
    return isinstance(args[0], ColumnType) and isinstance(args[1], types.Integer)


@infer_global(operator.getitem)
class _Get(AbstractTemplate):
    def generic(self, args: Any, _keywords: Any) -> Any:
        if not _is_access(args):
            return None
        kind = args[0].dtype
        is_integer = isinstance(kind, types.Integer) and kind != types.uint64
        return signature(types.int64 if is_integer else kind, args[0], types.intp)


@infer_global(operator.setitem)
class _Set(AbstractTemplate):
    def generic(self, args: Any, _keywords: Any) -> Any:
        return (
            signature(types.none, args[0], types.intp, args[0].dtype) if _is_access(args) else None
        )


@infer_global(len)
class _Len(AbstractTemplate):
    def generic(self, args: Any, _keywords: Any) -> Any:
        return signature(types.intp, args[0]) if isinstance(args[0], ColumnType) else None


@lower_builtin(operator.getitem, ColumnType, types.intp)
def _get(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    element = builder.load(_item(context, builder, kinds.args[0], *values))
    return context.cast(builder, element, kinds.args[0].dtype, kinds.return_type)


@lower_builtin(operator.setitem, ColumnType, types.intp, types.Any)
def _set(context: Any, builder: Any, kinds: Any, values: Any) -> None:
    builder.store(values[2], _item(context, builder, kinds.args[0], *values[:2]))


@lower_builtin(len, ColumnType)
def _length(_context: Any, builder: Any, _kinds: Any, values: Any) -> Any:
    return _word(builder, values[0], 1)
