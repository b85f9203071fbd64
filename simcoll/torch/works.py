"""Handles of operations in flight for torch.distributed, which wait in simulated time."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from simcoll.distributed.runtime.device import SimulatedDevice
from simcoll.distributed.runtime.work import Work
from simcoll.distributed.start.spawning import compute
from simcoll.torch.rank_threads import RankThread

__all__ = ["POLL", "RankWork"]

POLL = "1 us"
"""Simulated cost of an ``is_completed()`` poll that returns False; without it a polling loop would
never advance the clock.
"""


UNKNOWN = 100
_OPERATION_TYPES = {
    "broadcast": 0,
    "all_reduce": 1,
    "all_reduce_coalesced": 2,
    "reduce": 3,
    "all_gather": 4,
    "all_gather_into_tensor": 5,
    "all_gather_coalesced": 6,
    "gather": 7,
    "scatter": 8,
    "reduce_scatter": 9,
    "all_to_all_single": 10,
    "all_to_all": 11,
    "send": 12,
    "recv": 13,
    "barrier": 15,
    "reduce_scatter_tensor": 16,
    "reduce_scatter_coalesced": 17,
}
"""PyTorch's numbers of operations (``c10d::OpType``)."""


class RankWork(dist.Work):
    """An operation of one rank, or several coalesced ones.

    Parameters
    ----------
    thread
        The rank's thread.
    parts
        The operations; empty if the call itself has waited.
    results
        The output tensors.
    device
        The device of fake tensors, with a time model: a wait then blocks its current stream, as on
        a GPU.

    Attributes
    ----------
    stacked
        Whether the program gets the output tensors as one, as NCCL gathers them.
    """

    def __init__(
        self,
        thread: RankThread,
        parts: tuple[Work, ...],
        results: list[torch.Tensor],
        device: SimulatedDevice | None = None,
    ) -> None:
        super().__init__()
        self.device = device
        self.thread = thread
        self.parts = parts
        self.results = results
        self.stacked = False
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until it has finished.

        Raises
        ------
        RuntimeError
            When it fails or times out.
        """
        if not self.parts:  # its call has waited
            return True
        for part in self.parts:
            if self.device is None:
                self.thread.call(part.wait, timeout)
            else:
                self.device.current.wait(part)
                part.rank.open_works.pop(part, None)
        self.thread.process.flights.land(self.parts)
        self.thread.process.stream_races.wait_for(self.parts)
        return True

    def synchronize(self) -> None:
        """Block until it has finished."""
        self.wait()

    def block_current_stream(self) -> None:
        """Make the current stream wait for it, as NCCL's; tensors on the CPU have no stream.

        Raises
        ------
        RuntimeError
            In a run without GPUs, where gloo has no stream to block either.
        """
        if self.device is None and self.thread.process.places is None:
            raise RuntimeError(
                "block_current_stream() blocks the stream of a GPU, and this run shows none: call "
                "wait()"
            )
        self.wait()

    def _get_duration(self) -> float:
        """Simulated milliseconds from its start to its end."""
        if not self.parts or not self._is_over():
            raise RuntimeError("the duration of an operation is known when it is over")
        spans = [part.entry for part in self.parts]
        begins = [max(entry.created_fs, entry.started_fs) for entry in spans]
        return (max(entry.completed_fs for entry in spans) - min(begins)) / 1e12

    def _get_sequence_number(self) -> int:
        """The number of the operation on its group."""
        return self.parts[0].entry.sequence if self.parts else 0

    @property
    def timeout(self) -> timedelta:
        """How long the operation may take, in simulated time."""
        if not self.parts:
            return timedelta(0)
        limit_fs = self.parts[0].deadline_fs - self.parts[0].entry.created_fs
        return timedelta(microseconds=limit_fs // 10**9)

    def _get_op_type(self) -> int:
        return _OPERATION_TYPES.get(self.parts[0].name if self.parts else "", UNKNOWN)

    def is_completed(self) -> bool:
        """Whether it has finished. If not, the poll takes a microsecond of simulated time."""
        if not self._is_over():
            self.thread.call(compute, POLL)
        ended = self._is_over()
        if ended:
            for part in self.parts:
                part.rank.open_works.pop(part, None)
            self.thread.process.flights.land(self.parts)
            self.thread.process.stream_races.end(self.parts)
        return ended

    def _is_over(self) -> bool:
        return all(part.done for part in self.parts)

    def is_success(self) -> bool:
        """Whether it has finished without an error."""
        return all(part.is_success() for part in self.parts)

    def exception(self) -> BaseException | None:
        """The error, if it failed."""
        return next((part.exception() for part in self.parts if part.error is not None), None)

    def result(self) -> list[torch.Tensor]:
        """The output tensors."""
        return [torch.stack(self.results)] if self.stacked else list(self.results)

    def source_rank(self) -> int:
        """Group rank of the sender of a receive.

        Raises
        ------
        RuntimeError
            For anything but a finished receive.
        """
        return self.parts[0].source_rank()

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the list of output tensors. Its callbacks run in the rank's thread, at the
        time of completion.
        """
        if self._future is None:
            future = self._future = torch.futures.Future()
            # Waiting for the future first waits for this, so that a hang names the missing ranks.
            future.work = self
            for part in self.parts:
                part.rank.open_works.pop(part, None)  # the program waits for the future instead
            if self._is_over():
                self._settle(future)
            else:
                self._watch(future)
            if torch._C._current_graph_task_id() == -1:  # there is no public name
                pass
            elif torch._C._current_autograd_node() is None:
                # In a callback at the end of the backward pass, which waits in C++ before any other
                # callback could: with static_graph, DistributedDataParallel starts the first
                # all-reduces there.
                self.wait()
                self._settle(future)
            else:
                # DistributedDataParallel waits in C++ at the end of the backward pass, where no
                # other thread could take the baton. So the pass waits earlier, in a callback that
                # runs before that of DistributedDataParallel.
                torch.autograd.Variable._execution_engine.queue_callback(future.wait)
        return self._future

    def _watch(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        def over() -> None:
            if self._is_over():
                self.thread.launch(lambda: self._settle(future))

        for part in self.parts:
            if not part.done:
                part.watchers.append(over)

    def _settle(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        if future.done():
            return
        future.work = None
        self.thread.process.flights.land(self.parts)
        self.thread.process.stream_races.end(self.parts)
        failure = self.exception()
        if failure is None:
            future.set_result(self.result())
        else:
            future.set_exception(failure)
