"""What a run tells of DistributedDataParallel: times of the host, and memory that nobody wrote."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.algorithms.ddp_comm_hooks import mixed_precision_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from simcoll.distributed.runtime.work import Work
from simcoll.distributed.runtime.world import current_rank
from simcoll.torch.rank_threads import RankThread
from simcoll.torch.replacing import for_ranks

__all__ = ["data_parallel_replacements"]

_NAME = "DistributedDataParallel"
_HOST_TIMES = (
    "the times that its logger prints or returns are those of this computer, not of the simulated "
    "cluster: see the table of --trace"
)

_OF_ENVIRONMENT: dict[str, dict[str, tuple[str, ...]]] = {
    "gloo": {
        "gloo_socket_ifname": ("GLOO_SOCKET_IFNAME",),
        "gloo_device_transport": ("GLOO_DEVICE_TRANSPORT",),
    },
    "nccl": {
        "nccl_socket_ifname": ("NCCL_SOCKET_IFNAME",),
        "nccl_blocking_wait": ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"),
        "nccl_async_error_handling": (
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
            "NCCL_ASYNC_ERROR_HANDLING",
        ),
        "nccl_debug": ("NCCL_DEBUG",),
        "nccl_nthreads": ("NCCL_NTHREADS",),
        "nccl_ib_timeout": ("NCCL_IB_TIMEOUT",),
    },
}
"""What the logger adds for a backend: its fields, with the variables that it reads in turn."""
_GLOO_THREADS = 2
"""The threads of a group of gloo's, unless its options say otherwise."""


@for_ranks
def _initialize(
    thread: RankThread, standard: Any, self: Any, module: Any, *args: Any, **kwargs: Any
) -> None:
    """Make a wrapper, with a finding if it prints times."""
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        thread.tell(_NAME, _HOST_TIMES)
    standard(self, module, *args, **kwargs)


@for_ranks
def _reduce_and_upcast(thread: RankThread, standard: Any, state: Any, bucket: Any) -> Any:
    """The communication hook of ``mixed_precision=``, with zeros where PyTorch sends memory that
    nothing has written.

    ``Reducer::set_mixed_precision_param_dtype`` replaces the memory of every bucket, but not the
    views that gradients are copied into, on every device; ``rebuild_buckets`` makes both anew after
    the first step.
    """
    wrapper, contents = state.ddp_weakref(), bucket.buffer()
    narrow = wrapper.mixed_precision.param_dtype not in {
        None,
        bucket.parameters()[0]._fp_param.dtype,
    }
    if narrow and not wrapper._has_rebuilt_buckets and not isinstance(contents, FakeTensor):
        contents.zero_()
        thread.tell(
            f"{_NAME}(mixed_precision=)",
            "in the first step PyTorch reduces memory that no gradient was written to, on GPUs too "
            "(Reducer::set_mixed_precision_param_dtype); it holds zeros here: use torch.autocast, "
            "or fully_shard with a MixedPrecisionPolicy",
        )
    return standard(state, bucket)


def _fields_of(backend: str) -> dict[str, str | int]:
    """What the logger adds for a backend. It asks gloo's C++ class for its threads, so that it may
    not be told the name.
    """
    fields: dict[str, str | int] = {"backend_name": backend}
    for field, names in _OF_ENVIRONMENT.get(backend, {}).items():
        fields[field] = next((os.environ[name] for name in names if name in os.environ), "N/A")
    return fields | ({"gloo_num_threads": _GLOO_THREADS} if backend == "gloo" else {})


@for_ranks
def _logging_data(thread: RankThread, standard: Any, self: Any) -> Any:
    """What DDP logs, with the program's backend and devices, and a finding, since it has host
    times.
    """
    thread.tell(_NAME, _HOST_TIMES)
    fields = standard(self) | _fields_of(dist.get_backend(self.process_group))
    if hasattr(self, "_simulated_devices"):
        numbers, output = self._simulated_devices
        fields |= {"device_ids": ", ".join(map(str, numbers)), "output_device": output}
    return fields


def _forget_works(previous: frozenset[Work]) -> None:
    """Expect no wait for the operations that the running rank has issued since."""
    open_works = current_rank().open_works
    for work in frozenset(open_works) - previous:
        del open_works[work]


@for_ranks
def _tell_joined_ranks(thread: RankThread, standard: Any, *args: Any, **kwargs: Any) -> Any:
    """Tell ranks that have no inputs left (``join``) that this one has: PyTorch itself may never
    wait for that operation, and a program has no other way to.
    """
    previous = thread.call(lambda: frozenset(current_rank().open_works))
    try:
        return standard(*args, **kwargs)
    finally:
        thread.call(_forget_works, previous)


def data_parallel_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of methods of the wrapper, and of its hook."""
    wrapper, logged = DistributedDataParallel, "_get_ddp_logging_data"
    hook, notified = "_reducer_allreduce_and_upcast_hook", "notify_join_context"
    checked = "_check_global_requires_backward_grad_sync"
    return [
        (wrapper, "__init__", _initialize(wrapper.__init__)),
        (wrapper, logged, _logging_data(getattr(wrapper, logged))),
        (wrapper, checked, _tell_joined_ranks(getattr(wrapper, checked))),
        (Join, notified, staticmethod(_tell_joined_ranks(getattr(Join, notified)))),
        (mixed_precision_hooks, hook, _reduce_and_upcast(getattr(mixed_precision_hooks, hook))),
    ]
