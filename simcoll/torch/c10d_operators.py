"""The operators ``c10d::`` of PyTorch's dispatcher, for groups written in Python.

PyTorch's C++ groups call these operators, so dispatch modes and tensor subclasses see collectives.
Their kernels ask for a backend in C++, which a group in Python has not; here they call the group.
The group itself goes through the dispatcher only where a mode or a subclass would see it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass_type,
)

from simcoll.torch.call_forms import call_form, first_form
from simcoll.torch.rank_threads import current_thread, current_thread_or_none

__all__ = ["DispatchedGroup", "add_kernels_of_groups", "as_pytorch_calls"]

_METHODS: dict[str, tuple[str, Callable[[], Any] | None]] = {
    "allreduce_": ("allreduce", c10d.AllreduceOptions),
    "allreduce_coalesced_": ("allreduce_coalesced", c10d.AllreduceCoalescedOptions),
    "broadcast_": ("broadcast", c10d.BroadcastOptions),
    "reduce_": ("reduce", c10d.ReduceOptions),
    "allgather_": ("allgather", c10d.AllgatherOptions),
    "_allgather_base_": ("_allgather_base", c10d.AllgatherOptions),
    "allgather_coalesced_": ("allgather_coalesced", c10d.AllgatherOptions),
    "allgather_into_tensor_coalesced_": (
        "allgather_into_tensor_coalesced",
        c10d.AllgatherOptions,
    ),
    "gather_": ("gather", c10d.GatherOptions),
    "scatter_": ("scatter", c10d.ScatterOptions),
    "reduce_scatter_": ("reduce_scatter", c10d.ReduceScatterOptions),
    "_reduce_scatter_base_": ("_reduce_scatter_base", c10d.ReduceScatterOptions),
    "reduce_scatter_tensor_coalesced_": (
        "reduce_scatter_tensor_coalesced",
        c10d.ReduceScatterOptions,
    ),
    "alltoall_": ("alltoall", c10d.AllToAllOptions),
    "alltoall_base_": ("alltoall_base", c10d.AllToAllOptions),
    "barrier": ("barrier", c10d.BarrierOptions),
    "send": ("send", None),
    "recv_": ("recv", None),
    "recv_any_source_": ("recv_anysource", None),
}
"""By operator: the method of a group, and the class of its options."""
_ONE_BY_ONE = {
    "allgather_into_tensor_coalesced": "_allgather_base",
    "reduce_scatter_tensor_coalesced": "_reduce_scatter_base",
}
"""Methods for several tensors that PyTorch's own backends have in C++ only, and those for one."""
_OPTIONS = {"root_rank": "rootRank", "root_tensor": "rootTensor", "async_op": "asyncOp"}
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_NO_ARGUMENTS = ("process_group", "reduce_op", "sparse_indices", "timeout", "device_ids")


@dataclass(slots=True, eq=False)
class _Passage:
    """A call on its way through the dispatcher: its options, and the Works that it has started.

    Subclasses of tensors may start several, and modes none.
    """

    options: Any
    works: list[Any] = field(default_factory=list)


class DispatchedGroup(dist.ProcessGroup):
    """A group whose methods go through the dispatcher where something would see them.

    ``native`` is a C++ group whose methods call the operators.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.native = dist.ProcessGroup(rank, size)
        self.route: _Passage | None = None
        current_thread().process.owners[self.native] = self

    def dispatch(self, method: str, args: Sequence[Any]) -> Any:
        """Call a method of the C++ group, whose operator comes back to this one."""
        self.route = route = _Passage(args[-1] if args else None)
        try:
            result = getattr(self.native, method)(*args)
        finally:
            self.route = None
        return self.join_works(route.works) if route.works else result

    def join_works(self, works: Sequence[Any]) -> Any:
        """One Work for several."""
        raise NotImplementedError


def as_pytorch_calls(
    *, observed: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a method of a group that takes its arguments in all of PyTorch's forms and, unless not
    to be ``observed``, goes through the dispatcher where something would see it.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        name = method.__name__
        form = call_form(name)
        count, kind = form.count, form.options

        @functools.wraps(method)
        def call(self: DispatchedGroup, *args: Any, **kwargs: Any) -> Any:
            # Those of PyTorch's own functions have the first form.
            plain = len(args) == count and not kwargs and type(args[-1]) is kind
            if not plain or not isinstance(args[0], list):
                args = tuple(first_form(name, form, args, kwargs))
            if not observed or self.route is not None:
                return method(self, *args)
            # That of the run itself is there; most calls have one tensor.
            beside_run = torch._C._len_torch_dispatch_stack() > 1
            of_one = count == 2 and len(args[0]) == 1 and type(args[0][0]) in _PLAIN
            if (beside_run or not of_one) and _has_observer(args, beside_run=beside_run):
                return self.dispatch(name, args)
            return method(self, *args)

        return call

    return decorate


def _has_observer(arguments: Iterable[Any], *, beside_run: bool) -> bool:
    """Whether a dispatch mode of the program, or a tensor subclass, would see a call; there may be
    modes ``beside_run``, that of the run itself.
    """
    if not beside_run and _are_plain(arguments):
        return False
    kinds: set[type[Any]] = set()
    _add_kinds(arguments, kinds)
    if any(issubclass(kind, FakeTensor) for kind in kinds):
        return False
    if any(is_traceable_wrapper_subclass_type(kind) for kind in kinds):
        return True
    if not beside_run:
        return False
    modes = _get_current_dispatch_mode_stack()
    if any(isinstance(mode, FakeTensorMode) for mode in modes):  # it would answer by shape alone
        return False
    return any(not type(mode).__module__.startswith("simcoll.") for mode in modes)


def _are_plain(values: Iterable[Any]) -> bool:
    """Whether nested lists of arguments have no tensor of a subclass."""
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            continue
        if isinstance(value, (list, tuple)):
            if not _are_plain(value):
                return False
        elif isinstance(value, torch.Tensor):
            return False
    return True


def _add_kinds(values: Iterable[Any], kinds: set[type[Any]]) -> None:
    """Add the classes of the tensors in nested lists of arguments, of which there are few."""
    for value in values:
        if isinstance(value, torch.Tensor):
            kinds.add(type(value))
        elif isinstance(value, (list, tuple)):
            _add_kinds(value, kinds)


def add_kernels_of_groups(undo: ExitStack) -> None:
    """Let the operators call groups written in Python, during a run."""
    unbox = vars(c10d.ProcessGroup)["unbox"]
    undo.callback(setattr, c10d.ProcessGroup, "unbox", unbox)
    c10d.ProcessGroup.unbox = staticmethod(_unbox_owner(c10d.ProcessGroup.unbox))
    operators = torch.library.Library("c10d", "IMPL")
    functional = torch.library.Library("_c10d_functional", "IMPL")
    undo.callback(operators._destroy)
    undo.callback(functional._destroy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the operators existed before
        for name in _METHODS:
            operators.impl(name, functools.partial(_call, name), "CPU", allow_override=True)
        functional.impl(
            "reduce_scatter_tensor_out", _reduce_scatter_out, "CPU", allow_override=True
        )


def _unbox_owner(standard: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``ProcessGroup.unbox``, by which a dispatch mode finds the group of an operator, that PyTorch
    then knows: not the C++ group that has called it.
    """

    @functools.wraps(standard)
    def unbox(boxed: Any) -> Any:
        group = standard(boxed)
        thread = current_thread_or_none()
        return group if thread is None else thread.process.owners.get(group, group)

    return unbox


def _call(operator: str, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the group that it names."""
    method, make_options = _METHODS[operator]
    schema = getattr(torch.ops.c10d, operator).default._schema
    values = {
        argument.name: args[position] if position < len(args) else kwargs.get(argument.name)
        for position, argument in enumerate(schema.arguments)
    }
    owner: Any = dist.ProcessGroup.unbox(values["process_group"])
    route = owner.route if isinstance(owner, DispatchedGroup) else None
    options = None if make_options is None else _options_of(make_options(), values, route)
    words = [
        value
        for name, value in values.items()
        if name not in _NO_ARGUMENTS and name not in _OPTIONS
    ]
    if operator == "barrier":
        words = []
    if not isinstance(owner, DispatchedGroup):
        owner = owner._get_backend(torch.device("cpu"))
    work = _call_directly(owner, method, [*words, *([] if options is None else [options])])
    if route is not None:
        route.works.append(work)
    return (words[0], _box(work)) if len(schema.returns) > 1 else _box(work)


def _options_of(options: Any, values: dict[str, Any], route: _Passage | None) -> Any:
    """The options of a call; reductions made in Python for the dispatcher are sums, and those of
    groups come with the route, as they cannot be read from the operator's argument.
    """
    for name, attribute in _OPTIONS.items():
        if values.get(name) is not None and hasattr(options, attribute):
            setattr(options, attribute, values[name])
    limit_ms = values.get("timeout")
    if isinstance(limit_ms, int) and limit_ms > 0:
        options.timeout = timedelta(milliseconds=limit_ms)
    if route is not None and hasattr(route.options, "reduceOp"):
        options.reduceOp = route.options.reduceOp
    return options


def _call_directly(owner: Any, method: str, arguments: Sequence[Any]) -> Any:
    """Call a group's method itself, past the dispatcher."""
    if not isinstance(owner, DispatchedGroup):
        if hasattr(owner, method):
            return getattr(owner, method)(*arguments)
        outputs, inputs, *options = arguments
        call = getattr(owner, _ONE_BY_ONE[method])
        return [call(*pair, *options) for pair in zip(outputs, inputs, strict=True)][-1]
    previous, owner.route = owner.route, owner.route or _Passage(None)
    try:
        return getattr(owner, method)(*arguments)
    finally:
        owner.route = previous


def _box(work: Any) -> Any:
    """Wrap a Work so that C++ can own it; the Python half of a rank's Work would be lost."""
    if current_thread_or_none() is None:
        return work.boxed()
    return c10d.PythonCallbackWork(work.wait).boxed()


def _reduce_scatter_out(
    source: torch.Tensor, reduce_op: str, group_size: int, group_name: str, *, out: torch.Tensor
) -> torch.Tensor:
    """The functional collective whose C++ would hide its reduction in an operator's argument."""
    del group_size
    options = c10d.ReduceScatterOptions()
    options.reduceOp = getattr(dist.ReduceOp, reduce_op.upper())
    group = c10d._resolve_process_group(group_name)
    work = group._reduce_scatter_base(out, source, options)
    c10d._register_work(out, c10d.PythonCallbackWork(work.wait))
    return out
