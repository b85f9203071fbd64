"""Fake results from PyTorch's cache of fake operators, in less time.

Where a call's key is in the cache, PyTorch makes its results from shapes that it has kept there. It
walks through these again for every result, enters three contexts twice, and assigns some twenty
attributes one by one, most of them None. Here a kept shape is looked through once, and the
attributes are those of a fake tensor that PyTorch has made on the same device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from simcoll.errors import InternalError

__all__ = ["output_replacements"]

_CPU = torch.device("cpu")


class _ResultShape(NamedTuple):
    """What a result is made of; ``view_of`` is the position of the argument that it shows."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    requires_grad: bool
    view_of: int | None


def _shape_of(entry: Any) -> _ResultShape | None:
    """The shape in an entry of the cache; None for one that only PyTorch reads."""
    metadata = entry.metadata
    if metadata is None or entry.inplace_idx is not None:
        return None
    numbers = (
        *metadata.shape,
        *metadata.stride,
        metadata.storage_offset,
        metadata.storage_bytes or 0,
    )
    plain = metadata.layout is torch.strided and metadata.device == _CPU
    if (
        not plain
        or metadata.is_conj
        or metadata.is_neg
        or {int} != {type(number) for number in numbers}
    ):
        return None
    shape, stride = tuple(metadata.shape), tuple(metadata.stride)
    view_of = entry.view_idx
    return _ResultShape(
        shape, stride, metadata.storage_offset, metadata.dtype, metadata.requires_grad, view_of
    )


class _Outputs:
    """The results of a run's operators."""

    def __init__(self) -> None:
        self._standard = FakeTensorMode._get_output_tensor_from_cache_entry
        self._shapes: dict[int, tuple[Any, _ResultShape | None]] = {}
        self._attributes: dict[str, Any] | None = None

    def make(self, mode: Any, state: Any, entry: Any, key: Any, *arguments: Any) -> Any:
        """A result; the arguments of its operator are the last that are given."""
        entry_and_shape = self._shapes.get(id(entry))
        if entry_and_shape is None:  # which keeps the entry, and so its number
            entry_and_shape = self._shapes[id(entry)] = entry, _shape_of(entry)
        form = entry_and_shape[1]
        if (
            form is None
            or mode.shape_env is not None
            or mode.in_kernel_invocation
            or fake_tensor.FakeTensorConfig.debug
            or torch.compiler.is_exporting()
        ):
            return self._standard(mode, state, entry, key, *arguments)
        if self._attributes is None:
            result = self._standard(mode, state, entry, key, *arguments)
            self._attributes = _attributes_of(result)
            return result
        return _fake(mode, form, arguments[-1], self._attributes)


def _attributes_of(tensor: Any) -> dict[str, Any]:
    """The attributes that all fresh fake tensors of the CPU have, but their mode."""
    attributes = {name: value for name, value in vars(tensor).items() if name != "fake_mode"}
    shared = [name for name, value in attributes.items() if value is not None and value != _CPU]
    if shared:
        raise InternalError(f"fresh fake tensors have attributes of their own: {shared}")
    return attributes


def _fake(mode: Any, form: _ResultShape, args: Any, attributes: dict[str, Any]) -> Any:
    """A fake tensor, by the steps of PyTorch's own method and of ``FakeTensor.__new__``."""
    storage = None if form.view_of is None else args[form.view_of].untyped_storage()
    mode.in_kernel_invocation = True
    try:
        with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():
            torch._C._set_meta_in_tls_dispatch_include(True)
            meta = torch.empty_strided(
                form.shape if storage is None else (),
                form.stride if storage is None else (),
                dtype=form.dtype,
                device="meta",
                requires_grad=form.requires_grad,
            )
            if storage is not None:
                meta.set_(storage, form.offset, form.shape, form.stride)
    finally:
        mode.in_kernel_invocation = False
    fake: Any = torch.Tensor._make_subclass(
        FakeTensor,
        meta,
        form.requires_grad,
        dispatch_device=True,
        device_for_backend_keys=_CPU,
    )
    if mode._allow_unsafe_data_ptr_access:
        torch._C._set_warn_deprecated_on_mutable_data_ptr(fake)
    else:
        torch._C._set_throw_on_mutable_data_ptr(fake)
    fields = vars(fake)
    fields.update(attributes)
    fields["fake_mode"] = mode
    return fake


def output_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of the method that makes a result from the cache."""
    outputs = _Outputs()

    def get_output(mode: Any, *args: Any) -> Any:
        return outputs.make(mode, *args)

    return [(FakeTensorMode, "_get_output_tensor_from_cache_entry", get_output)]
