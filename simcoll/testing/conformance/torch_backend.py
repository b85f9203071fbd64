"""Any backend of torch.distributed as an implementation under test."""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from simcoll.arrays import Array
from simcoll.testing.collective_cases import Case
from simcoll.testing.conformance.torch_objects import move_objects
from simcoll.testing.rank_calls import RankCall, RankWorld

__all__ = ["TorchBackend"]

TIMEOUT_S = 20
REFUSALS = (
    "invalid scalar type",
    "unsupported",
    "not supported",
    "does not support",
    "cannot use",
    "not implemented",
    "must be contiguous",
    "non-overlapping and dense",
    "not contiguous",
    "expected to be contiguous",
    "invalid tensor size",
    "can't be cast",
    "does not implement",
)
"""Words of errors by which a backend refuses a dtype, a reduction, a memory layout or
uneven blocks.
"""


COALESCED = {
    "all_reduce": "all_reduce_coalesced",
    "all_gather": "all_gather_into_tensor",
    "reduce_scatter": "reduce_scatter_tensor",
}
"""Collectives that torch coalesces, and their functions."""


@contextmanager
def _refusals(call: RankCall) -> Iterator[None]:
    """Tell refusals from errors, which a wrong call must raise as they are."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError) as error:
        text = str(error)
        if not call.mistake and any(words in text.lower() for words in REFUSALS):
            raise NotImplementedError(text.splitlines()[0]) from None
        raise


class _CheckedWork:
    """A work whose backend may refuse it as late as in the wait."""

    def __init__(self, call: RankCall, work: Any) -> None:
        self.call, self.work = call, work

    def wait(self) -> None:
        with _refusals(self.call):
            self.work.wait()


class _Works:
    """Several works that are waited for as one."""

    def __init__(self, works: list[Any]) -> None:
        self.works = works

    def wait(self) -> None:
        for work in self.works:
            if work is not None:
                work.wait()


class TorchBackend:
    """A rank of a backend of torch.distributed, by its name: ``TorchBackend("gloo")``."""

    def __init__(self, name: str = "gloo") -> None:
        self.name = name
        self.groups: dict[tuple[int, ...], Any] = {}

    def setup(self, world: RankWorld) -> None:
        """Initialise the default group, with a file of the world's folder as its store."""
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        warnings.simplefilter("ignore")  # of names that newer versions prefer
        self.torch, self.dist, self.world = torch, dist, world
        self.initialisations = 0
        self.initialise()

    def initialise(self, **options: Any) -> None:
        """Begin a new default group, with further options of ``init_process_group``."""
        self.initialisations += 1
        self.groups.clear()
        path = Path(self.world.folder) / f"store-{self.initialisations}"
        self.dist.init_process_group(
            self.name,
            store=self.dist.FileStore(str(path), self.world.nranks),
            rank=self.world.rank,
            world_size=self.world.nranks,
            timeout=timedelta(seconds=TIMEOUT_S),
            **options,
        )

    def teardown(self) -> None:
        """End all groups."""
        if self.dist.is_initialized():
            self.dist.destroy_process_group()

    def task(self, name: str) -> None:
        """Check a statement of the semantics on this rank."""
        from simcoll.testing.conformance.torch_session import TorchSession, checks

        try:
            checks()[name](TorchSession(self))
        except unittest.SkipTest as reason:
            raise NotImplementedError(str(reason)) from None

    def prepare(self, case: Case) -> None:
        """Make the groups of a case, on all ranks.

        Groups with ``use_local_synchronization``, which only their members make, hang where ranks
        have been in different numbers of groups before (torch 2.13).
        """
        for operation in case.operations:
            ranks = operation.ranks
            if ranks not in self.groups and ranks != tuple(range(self.world.nranks)):
                self.groups[ranks] = self.dist.new_group(list(ranks), sort_ranks=False)

    def tensor(self, values: Array | None) -> Any:
        """A tensor in the memory of an array."""
        if values is None:
            return None
        if values.size and min(values.strides) < 0:
            raise NotImplementedError("tensors have no negative strides")
        if values.dtype.type.__module__ != "numpy":  # of ml_dtypes
            bits = values.view(f"int{8 * values.itemsize}")
            return self.torch.from_numpy(bits).view(getattr(self.torch, values.dtype.name))
        return self.torch.from_numpy(values)

    def reduction(self, op: str) -> Any:
        """The reduction of a name."""
        name, _, factor = op.partition(":")
        if factor:
            if self.name != "nccl":
                raise NotImplementedError("PREMUL_SUM is for nccl")
            return self.dist._make_nccl_premul_sum(float(factor))  # noqa: SLF001  # no other name
        return getattr(self.dist.ReduceOp, name.upper())

    def run(self, call: RankCall) -> Any:
        """Call the function of torch.distributed for an operation."""
        group = self.groups.get(call.ranks)
        if call.objects and call.kind != "barrier":
            move_objects(self.dist, call, group)
            return None
        execute: Callable[..., Any] = getattr(self, f"_{call.kind}")
        tensors = self.tensor(call.input), self.tensor(call.output)
        options = {"group": group, "async_op": call.asynchronous}
        if call.operation.collective.spec.reduces:
            options["op"] = self.reduction(call.op)
        with _refusals(call):
            work = execute(call, *tensors, options)
        return None if work is None else _CheckedWork(call, work)

    def run_coalesced(self, calls: Sequence[RankCall]) -> Any:
        """One batch of messages, or collectives in torch's manager of coalesced calls."""
        kind, operation = calls[0].kind, calls[0].operation
        if calls[0].objects:
            raise NotImplementedError("torch coalesces no objects")
        if kind == "send_recv":
            return self._batch(calls)
        if kind not in COALESCED:
            raise NotImplementedError(f"torch does not coalesce {kind}")
        if not all(map(_has_equal_blocks, calls)):
            raise NotImplementedError("coalesced blocks have one size")
        group = self.groups.get(operation.ranks)
        options = {"group": group}
        if operation.collective.spec.reduces:
            options["op"] = self.reduction(operation.op)
        pairs = [(self.tensor(call.output), self.tensor(call.input)) for call in calls]
        with _refusals(calls[0]):
            if kind == "all_reduce":
                for result, source in pairs:
                    result.copy_(source)
                results = [result for result, _ in pairs]
                return self.dist.all_reduce_coalesced(results, async_op=True, **options)
            function = getattr(self.dist, COALESCED[kind])
            device = self.torch.device("cpu")
            backend = (group or self.dist.group.WORLD)._get_backend(device)  # noqa: SLF001
            # Torch leaves the group unusable where a backend refuses later.
            if not backend.supports_coalescing:
                raise NotImplementedError(f"{self.name} does not coalesce {kind}")
            with self.dist._coalescing_manager(  # noqa: SLF001  # no other name
                group=group, device=device, async_ops=True
            ) as manager:
                for result, source in pairs:
                    function(result, source, **options)
            return manager

    def _batch(self, calls: Sequence[RankCall]) -> _Works:
        """Messages that are started together."""
        messages = []
        for call in calls:
            group, tag = self.groups.get(call.ranks), call.operation.tag
            for function, peer, values in (
                (self.dist.irecv, call.source, call.output),
                (self.dist.isend, call.destination, call.input),
            ):
                if peer is not None:
                    tensor = self.tensor(values)
                    messages.append(
                        self.dist.P2POp(function, tensor, None, group, tag, group_peer=peer)
                    )
        return _Works(self.dist.batch_isend_irecv(messages) if messages else [])

    def _barrier(self, _: RankCall, __: Any, ___: Any, options: dict[str, Any]) -> Any:
        return self.dist.barrier(**options)

    def _all_reduce(self, _: RankCall, source: Any, result: Any, options: dict[str, Any]) -> Any:
        result.copy_(source)
        return self.dist.all_reduce(result, **options)

    def _reduce(self, call: RankCall, source: Any, result: Any, options: dict[str, Any]) -> Any:
        # Elsewhere than at the root the tensor may be overwritten.
        vector = source.clone() if result is None else result
        vector.copy_(source)
        return self.dist.reduce(vector, group_dst=call.root, **options)

    def _broadcast(self, call: RankCall, source: Any, result: Any, options: dict[str, Any]) -> Any:
        if source is not None:
            result.copy_(source)
        return self.dist.broadcast(result, group_src=call.root, **options)

    def _all_gather(self, call: RankCall, source: Any, result: Any, options: dict[str, Any]) -> Any:
        if call.mistake or (
            _has_equal_blocks(call) and call.operation.seed % 2 and call.nranks > 1
        ):
            return self.dist.all_gather_into_tensor(result, source, **options)
        return self.dist.all_gather(_parts(result, call.output_counts), source, **options)

    def _gather(self, call: RankCall, source: Any, result: Any, options: dict[str, Any]) -> Any:
        parts = None if result is None else _parts(result, call.output_counts)
        return self.dist.gather(source, parts, group_dst=call.root, **options)

    def _scatter(self, call: RankCall, source: Any, result: Any, options: dict[str, Any]) -> Any:
        parts = None if source is None else _parts(source, call.input_counts)
        return self.dist.scatter(result, parts, group_src=call.root, **options)

    def _reduce_scatter(
        self, call: RankCall, source: Any, result: Any, options: dict[str, Any]
    ) -> Any:
        if call.mistake or (
            _has_equal_blocks(call) and call.operation.seed % 2 and call.nranks > 1
        ):
            return self.dist.reduce_scatter_tensor(result, source, **options)
        return self.dist.reduce_scatter(result, _parts(source, call.input_counts), **options)

    def _all_to_all(self, call: RankCall, source: Any, result: Any, options: dict[str, Any]) -> Any:
        if call.operation.seed % 2 and not call.mistake:
            inputs, outputs = _parts(source, call.input_counts), _parts(result, call.output_counts)
            return self.dist.all_to_all(outputs, inputs, **options)
        return self.dist.all_to_all_single(
            result, source, call.output_counts, call.input_counts, **options
        )

    def _send_recv(self, call: RankCall, source: Any, result: Any, options: dict[str, Any]) -> Any:
        group, tag, works = options["group"], call.operation.tag, []
        if call.destination is not None:
            works.append(self.dist.isend(source, None, group, tag, group_dst=call.destination))
        if call.source is not None:
            works.append(self.dist.irecv(result, None, group, tag, group_src=call.source))
        return _Works(works)


def _has_equal_blocks(call: RankCall) -> bool:
    """Whether all blocks have one size."""
    return len({*call.input_counts, *call.output_counts}) == 1 or call.kind == "all_reduce"


def _parts(tensor: Any, counts: list[int]) -> list[Any]:
    return list(tensor.split(counts))
