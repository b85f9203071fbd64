"""The forms in which PyTorch's methods of groups and backends take their arguments.

``allreduce([t], opts)``, ``allreduce([t], op)`` and ``allreduce(tensor=t, op=op, timeout=span)``
are overloads in C++. Here each call becomes the first form before it reaches a method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from simcoll.errors import nearest

__all__ = ["CallForm", "call_form", "first_form"]

_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}
"""Options by the parameter that stands for them in the other forms."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """The arguments of a method.

    Attributes
    ----------
    tensors
        Names of each argument before the options: those of PyTorch's forms.
    depths
        How deep lists of tensors are nested in the first form: 1 for a list, 2 for a list of lists,
        0 for anything that stays as it is.
    plain
        Parameters that stand for options, in order.
    options
        Makes the options; None for methods without them.
    required
        How many of the arguments have to be there.
    """

    tensors: tuple[tuple[str, ...], ...]
    depths: tuple[int, ...]
    plain: tuple[str, ...] = ()
    options: type[Any] | None = None
    required: int = field(default=-1)

    @property
    def count(self) -> int:
        """The number of its arguments in the first form."""
        return len(self.tensors) + (self.options is not None)


_IN_OUT = (("output_tensors",), ("input_tensors", "input_tensor"))
_COALESCED = (("outputs",), ("inputs",))
_SPLITS = (
    ("output", "output_tensor"),
    ("input", "input_tensor"),
    ("output_split_sizes",),
    ("input_split_sizes",),
)
_LIST = (("tensors", "tensor"),)
_INTO = (("output", "output_tensor"), ("input", "input_tensor"))
_SINGLE = (("outputTensor", "output"), ("inputTensor", "input"))
_SENT = (("tensors",), ("dstRank", "dst"), ("tag",))
_RECEIVED = (("tensors",), ("srcRank", "src"), ("tag",))
_SCATTERED = (("output_tensors", "output_tensor"), ("input_tensors",))
_REDUCED = (("output_tensors", "output"), ("input_tensors", "input_tensor", "input"))

_FORMS: Mapping[str, CallForm] = {
    "allreduce": CallForm(_LIST, (1,), ("op", "timeout"), c10d.AllreduceOptions),
    "allreduce_coalesced": CallForm((("tensors",),), (0,), (), c10d.AllreduceCoalescedOptions),
    "broadcast": CallForm(_LIST, (1,), ("root", "timeout"), c10d.BroadcastOptions),
    "reduce": CallForm(_LIST, (1,), ("root", "op", "timeout"), c10d.ReduceOptions),
    "allgather": CallForm(_IN_OUT, (2, 1), ("timeout",), c10d.AllgatherOptions),
    "all_gather_single": CallForm(_INTO, (0, 0), ("timeout",), c10d.AllgatherOptions),
    "all_gather_single_coalesced": CallForm(_COALESCED, (0, 0), (), c10d.AllgatherOptions),
    "allgather_coalesced": CallForm(
        (("output_lists",), ("input_list",)), (0, 0), (), c10d.AllgatherOptions
    ),
    "gather": CallForm(_IN_OUT, (2, 1), ("root", "timeout"), c10d.GatherOptions),
    "gather_single": CallForm(_INTO, (0, 0), ("root", "timeout"), c10d.GatherOptions),
    "scatter": CallForm(_SCATTERED, (1, 2), ("root", "timeout"), c10d.ScatterOptions),
    "reduce_scatter": CallForm(_REDUCED, (1, 2), ("op", "timeout"), c10d.ReduceScatterOptions),
    "reduce_scatter_single": CallForm(
        _SINGLE, (0, 0), ("op", "timeout"), c10d.ReduceScatterOptions
    ),
    "reduce_scatter_single_coalesced": CallForm(_COALESCED, (0, 0), (), c10d.ReduceScatterOptions),
    "all_to_all_single": CallForm(
        _SPLITS, (0, 0, 0, 0), ("timeout",), c10d.AllToAllOptions, required=2
    ),
    "alltoall": CallForm(
        (("output_tensors", "output_tensor"), ("input_tensors", "input_tensor")),
        (0, 0),
        ("timeout",),
        c10d.AllToAllOptions,
    ),
    "barrier": CallForm((), (), ("timeout",), c10d.BarrierOptions),
    "send": CallForm(_SENT, (1, 0, 0), required=2),
    "recv": CallForm(_RECEIVED, (1, 0, 0), required=2),
    "recv_anysource": CallForm((("tensors",), ("tag",)), (1, 0), required=1),
}


def call_form(method: str) -> CallForm:
    """The arguments of a method of groups."""
    return _FORMS[method]


def _is_options(value: Any) -> bool:
    return type(value).__name__.endswith("Options")


def first_form(
    name: str, form: CallForm, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Any]:
    """The arguments of a call in the form with lists and options."""
    function = f"ProcessGroup.{name}()"
    size = len(form.tensors)
    tensors: list[Any] = [*args[:size], *[None] * (size - len(args))]
    options = None if form.options is None else form.options()
    values = dict(kwargs)
    for position, names in enumerate(form.tensors):
        for word in names:
            if word in values:
                tensors[position] = values.pop(word)
    extra = args[size:]
    chosen = values.pop("opts", extra[0] if extra and _is_options(extra[0]) else None)
    plain = extra[1:] if extra and _is_options(extra[0]) else extra
    if len(plain) > len(form.plain) or (chosen is not None and options is None):
        raise TypeError(f"{function} got {len(args)} arguments; expected {_text(form)}")
    values |= dict(zip(form.plain, plain, strict=False))
    for word in values:
        if word not in form.plain:
            choices = [*(names[0] for names in form.tensors), *form.plain, "opts"]
            raise TypeError(f"{function} has no argument {word!r}; {nearest(word, choices)}")
    if chosen is not None:
        if type(chosen) is not type(options):
            raise TypeError(
                f"{function} got {type(chosen).__name__}; expected {type(options).__name__}"
            )
        options = chosen
    missing = [
        names[0] for names, tensor in zip(form.tensors, tensors, strict=True) if tensor is None
    ]
    if missing and (
        form.required < 0 or missing[0] in [n[0] for n in form.tensors[: form.required]]
    ):
        raise TypeError(f"{function} lacks {', '.join(missing)}; expected {_text(form)}")
    for word, value in values.items():
        if value is not None:
            setattr(options, _FIELDS[word], value)
    arguments = [
        _in_lists(tensor, depth) for tensor, depth in zip(tensors, form.depths, strict=True)
    ]
    if options is not None:
        return [*arguments, options]
    return arguments[: len(arguments) - len(missing)]


def _text(form: CallForm) -> str:
    """The arguments of the forms, as a message shows them."""
    names = ["/".join(words) for words in form.tensors]
    ends = [", ".join(form.plain)] if form.plain else []
    if form.options is not None:
        ends.insert(0, "opts")
    return f"({', '.join(names)}{', ' if names and ends else ''}{' or '.join(ends)})"


def _in_lists(value: Any, depth: int) -> Any:
    """A tensor as a list, and a list of tensors as a list of lists, where the first form has
    them.
    """
    if depth == 1 and isinstance(value, torch.Tensor):
        return [value]
    if depth == 2 and value is not None and len(value) and isinstance(value[0], torch.Tensor):
        return [list(value)]
    return value
