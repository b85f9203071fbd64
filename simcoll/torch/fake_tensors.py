"""Collectives of fake tensors, which take simulated time and move no data.

PyTorch passes fake tensors to a process group in ordinary collectives, but not in functional ones,
which it answers by shape alone; and the reducer of DistributedDataParallel reads memory that fake
tensors lack. Both are replaced during a run.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._guards import TracingContext
from torch._library.fake_class_registry import FakeScriptObject
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.fx.experimental import proxy_tensor
from torch.utils._python_dispatch import _disable_current_modes

from simcoll.torch.rank_threads import RankThread, current_thread_or_none
from simcoll.torch.replacing import for_ranks

Started = tuple[list[torch.Tensor], Any]

__all__ = ["change_fake_tensors"]

OPS = torch.ops._c10d_functional
_OF_OBJECTS = (
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
)


_PIPELINES = "torch.distributed.pipelining.schedules"
"""Imported by the program only, since the import takes seconds."""


class _WhenImported(MetaPathFinder):
    """Import hook that changes a module as soon as the program imports it."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self.name, self.change = name, change

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """The module's spec, whose loader then applies the change."""
        spec = PathFinder.find_spec(name, path, target) if name == self.name else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_change(module: Any) -> None:
            load(module)
            self.change(module)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


def change_fake_tensors(
    undo: ExitStack, replace: Callable[[ExitStack, Any, str, Any], None]
) -> None:
    """Time functional collectives of fake tensors, and make DistributedDataParallel run under
    FakeTensorMode.
    """
    table = fake_impls.op_implementations_dict
    changes = {getattr(OPS, name).default: _answer(start) for name, start in _STARTS.items()}
    changes[OPS.wait_tensor.default] = _wait
    for operator, answer in changes.items():
        if operator in table:
            undo.callback(table.__setitem__, operator, table[operator])
        else:
            undo.callback(table.pop, operator, None)
        table[operator] = answer

    check_shapes, rebuild = dist._verify_params_across_processes, c10d.Reducer._rebuild_buckets

    def keep_buckets(reducer: Any) -> bool:
        """Keep the initial buckets, in reverse order of parameters."""
        return False if _faking() else bool(rebuild(reducer))

    make_mesh = DeviceMesh.__init__

    @functools.wraps(make_mesh)
    def make_rank_mesh(self: DeviceMesh, *args: Any, **kwargs: Any) -> None:
        if not _faking():
            make_mesh(self, *args, **kwargs)
            return
        with _disable_current_modes():  # its ranks are the values of a tensor
            rank_map = kwargs.get("_rank_map")
            if isinstance(rank_map, FakeTensor):  # init_device_mesh numbers all ranks in order
                kwargs["_rank_map"] = torch.arange(rank_map.numel(), dtype=rank_map.dtype)
            make_mesh(self, *args, **kwargs)

    for name in _OF_OBJECTS:  # their sizes are the values of tensors
        for module in (dist, distributed_c10d):
            replace(undo, module, name, _on_real_tensors(getattr(distributed_c10d, name)))

    def pipelines(module: Any) -> None:  # their stages agree in a tensor
        schedule = module._PipelineSchedule
        for name in ("_warmup_p2p", "_initialize_pipeline_distributed_state"):  # before 2.15, since
            if hasattr(schedule, name):
                replace(undo, schedule, name, _on_real_tensors(getattr(schedule, name)))
        stage, name = module._PipelineStageBase, "_get_init_p2p_neighbors_ops"
        if hasattr(stage, name):  # before 2.15, whose stages do not meet beforehand
            replace(undo, stage, name, _with_own_buffers(getattr(stage, name)))

    if _PIPELINES in sys.modules:
        pipelines(sys.modules[_PIPELINES])
    else:
        replace(undo, sys, "meta_path", [_WhenImported(_PIPELINES, pipelines), *sys.meta_path])
    replace(undo, DeviceMesh, "__init__", make_rank_mesh)
    # It compares them in tensors.
    replace(undo, dist, "_verify_params_across_processes", _on_real_tensors(check_shapes))
    replace(undo, c10d.Reducer, "_rebuild_buckets", keep_buckets)


def _faking() -> bool:
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return mode is not None and current_thread_or_none() is not None


@for_ranks
def _with_own_buffers(_thread: RankThread, standard: Callable[..., Any], stage: Any) -> Any:
    """The messages by which a stage meets its neighbours: PyTorch receives all into one buffer,
    whose contents nobody reads.
    """
    operations = standard(stage)
    for operation in operations:
        operation.tensor = operation.tensor.clone()
    return operations


def _on_real_tensors(standard: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its internal tensors are real under FakeTensorMode."""

    @functools.wraps(standard)
    def function(*args: Any, **kwargs: Any) -> Any:
        if not _faking():
            return standard(*args, **kwargs)
        with _disable_current_modes():
            return standard(*args, **kwargs)

    return function


def _answer(start: Callable[..., Started]) -> Callable[..., Any]:
    """Make an operator's implementation: outputs of the right shapes, with the collective in flight
    in a rank's thread.
    """

    def answer(_mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        outputs, work = start(*args, **kwargs)
        thread = current_thread_or_none()
        if thread is not None:
            thread.process.functional.update(
                (output.untyped_storage()._cdata, work) for output in outputs
            )
        return outputs if func._schema.returns[0].type.kind() == "ListType" else outputs[0]

    return answer


def _wait(_mode: Any, _func: Any, tensor: torch.Tensor) -> torch.Tensor:
    thread = current_thread_or_none()
    work = (
        None
        if thread is None
        else thread.process.functional.pop(tensor.untyped_storage()._cdata, None)
    )
    if work is not None:
        work.wait()
    return tensor


def _group(group: Any) -> Any:
    """The group of an operator: named, boxed, or as the input of a graph."""
    if isinstance(group, str):
        return c10d._resolve_process_group(group)
    group = group.real_obj if type(group) is FakeScriptObject else group
    return group if isinstance(group, dist.ProcessGroup) else dist.ProcessGroup.unbox(group)


def _in_trace() -> bool:
    """Whether an operator becomes a node of a graph: in ``torch.export``, where Dynamo or
    ``make_fx`` traces, or where AOTAutograd replaces what changes tensors in place.
    """
    replaces: bool = torch._C._dispatch_tls_is_dispatch_key_included("Functionalize")
    traces = (
        TracingContext.try_get() is not None or proxy_tensor._CURRENT_MAKE_FX_TRACER is not None
    )
    return replaces or traces or torch.compiler.is_compiling()


def _in_flight(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The Work of a collective; None outside rank programs and in traces, where no time passes."""
    return None if current_thread_or_none() is None or _in_trace() else call(*args, **kwargs)


def _together(
    method: str, options: Any, op: str | None, group: Any, *tensors: Sequence[torch.Tensor]
) -> Any:
    """The Work of one coalesced call for several tensors."""
    options.asyncOp = True
    if op is not None:
        options.reduceOp = getattr(dist.ReduceOp, op.upper())
    return _in_flight(getattr(_group(group), method), *tensors, options)


def _all_reduce(tensors: list[torch.Tensor], op: str, group: Any) -> Started:
    method = "allreduce_coalesced" if len(tensors) > 1 else "allreduce"
    options = c10d.AllreduceCoalescedOptions() if len(tensors) > 1 else c10d.AllreduceOptions()
    return tensors, _together(method, options, op, group, tensors)


def _all_gather(inputs: list[torch.Tensor], outputs: list[torch.Tensor], group: Any) -> Started:
    options = c10d.AllgatherOptions()
    return outputs, _together(
        "allgather_into_tensor_coalesced", options, None, group, outputs, inputs
    )


def _reduce_scatter(
    inputs: list[torch.Tensor], outputs: list[torch.Tensor], op: str, group: Any
) -> Started:
    options = c10d.ReduceScatterOptions()
    return outputs, _together(
        "reduce_scatter_tensor_coalesced", options, op, group, outputs, inputs
    )


def _all_to_all(source: torch.Tensor, receives: list[int], sends: list[int], group: Any) -> Started:
    output = _with_rows(source, sum(receives) if receives else source.shape[0])
    return [output], _in_flight(
        dist.all_to_all_single, output, source, receives, sends, _group(group), async_op=True
    )


def _broadcast(tensor: torch.Tensor, root: int, group: Any) -> Started:
    return [tensor], _in_flight(
        dist.broadcast, tensor, group=_group(group), group_src=root, async_op=True
    )


def _with_rows(like: torch.Tensor, rows: int) -> torch.Tensor:
    return like.new_empty([rows, *like.shape[1:]])


def _gather_shapes(inputs: list[torch.Tensor], size: int) -> list[torch.Tensor]:
    return [_with_rows(tensor, tensor.shape[0] * size) for tensor in inputs]


def _scatter_shapes(inputs: list[torch.Tensor], size: int) -> list[torch.Tensor]:
    return [_with_rows(tensor, tensor.shape[0] // size) for tensor in inputs]


_STARTS: dict[str, Callable[..., Started]] = {
    "all_reduce": lambda tensor, op, group: _all_reduce([torch.empty_like(tensor)], op, group),
    "all_reduce_": lambda tensor, op, group: _all_reduce([tensor], op, group),
    "all_reduce_coalesced": lambda inputs, op, group: _all_reduce(
        list(map(torch.empty_like, inputs)), op, group
    ),
    "all_reduce_coalesced_": _all_reduce,
    "all_gather_into_tensor": lambda tensor, size, group: _all_gather(
        [tensor], _gather_shapes([tensor], size), group
    ),
    "all_gather_into_tensor_out": lambda tensor, _, group, *, out: _all_gather(
        [tensor], [out], group
    ),
    "all_gather_into_tensor_coalesced": lambda inputs, size, group: _all_gather(
        inputs, _gather_shapes(inputs, size), group
    ),
    "reduce_scatter_tensor": lambda tensor, op, size, group: _reduce_scatter(
        [tensor], _scatter_shapes([tensor], size), op, group
    ),
    "reduce_scatter_tensor_out": lambda tensor, op, _, group, *, out: _reduce_scatter(
        [tensor], [out], op, group
    ),
    "reduce_scatter_tensor_coalesced": lambda inputs, op, size, group: _reduce_scatter(
        inputs, _scatter_shapes(inputs, size), op, group
    ),
    "all_to_all_single": _all_to_all,
    "broadcast": lambda tensor, root, group: _broadcast(torch.empty_like(tensor), root, group),
    "broadcast_": _broadcast,
}
