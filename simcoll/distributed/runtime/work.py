"""Handles of operations in flight, futures of their results, and guards of their buffers."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from simcoll.arrays import Array
from simcoll.distributed.runtime.records import Entry
from simcoll.distributed.runtime.tasks import Owner, Task, Waitable, past_of, wait_until

__all__ = ["Future", "Work", "fill", "timeout_fs"]


def timeout_fs(timeout: Any) -> int:
    """A timedelta in femtoseconds; a TypeError for anything else."""
    if not isinstance(timeout, timedelta):
        raise TypeError(
            f"Expected timeout argument to be of type datetime.timedelta, got {timeout!r} "
            f"({type(timeout).__name__})"
        )
    return _in_femtoseconds(timeout)


@functools.lru_cache(maxsize=64)
def _in_femtoseconds(timeout: timedelta) -> int:
    return (timeout // timedelta(microseconds=1)) * 10**9


class Future:
    """The results of an operation or a callback.

    ``value()`` is the list of result tensors; ``then`` runs a callback on the same rank.
    """

    def __init__(self, rank: Owner, causes: dict[int, dict[str, int]] | None = None) -> None:
        self._rank = rank
        self._over = Waitable()
        self._over.causes = causes
        self._value: Any = None
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        state = "waiting" if not self._over.done else "failed" if self._failure else "done"
        return f"<Future: {state}>"

    def done(self) -> bool:
        """Whether the future has its value."""
        return self._over.done

    def value(self) -> Any:
        """The value; a RuntimeError before it is done. If it failed, the failure itself is
        raised.
        """
        if not self._over.done:
            raise RuntimeError("value() of a future that is not done; wait() for it")
        if self._failure is not None:
            raise self._failure
        return self._value

    def wait(self) -> Any:
        """Wait for the value."""
        wait_until(self._over)
        return self.value()

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """A future of the result of ``callback(self)``, which runs when this one is done."""
        result = Future(self._rank)

        def over(task: Task) -> None:
            result._over.causes = {self._rank.number: dict(task.past)}
            result.settle(task.value, task.failure)

        past, causes = past_of(self._rank), (self._over.causes or {}).get(self._rank.number, {})
        past |= {stream: max(number, past.get(stream, -1)) for stream, number in causes.items()}

        def launch() -> None:
            self._rank.world.tasks.launch(self._rank, lambda: callback(self), over, past)

        self._over.when_done(launch)
        return result

    def add_done_callback(self, callback: Callable[[Future], Any]) -> None:
        """Run a callback when this one is done."""
        self.then(callback)

    def settle(self, value: Any, failure: BaseException | None = None) -> None:
        """Set the value or the failure."""
        self._value, self._failure = value, failure
        self._over.finish()


def _checksum(arrays: Iterable[Array]) -> int:
    """CRC-32 of the contents."""
    value = 0
    for array in arrays:
        content: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        value = zlib.crc32(content, value)
    return value


_SIGNALING_NAN = {
    "float16": b"\xa5\x7d",
    "bfloat16": b"\xa5\x7f",
    "float32": b"\xa5\xa5\xa5\x7f",
    "float64": b"\xa5\xa5\xa5\xa5\xa5\xa5\xf5\x7f",
    "complex64": b"\xa5\xa5\xa5\x7f" * 2,
    "complex128": b"\xa5\xa5\xa5\xa5\xa5\xa5\xf5\x7f" * 2,
}
"""Little-endian bytes of a signaling NaN."""


def _poison(arrays: Iterable[Array]) -> None:
    """Fill buffers with a pattern that exposes early reads: NaN, bytes A5, or True.

    IEEE numbers get a signaling NaN: arithmetic in place makes it quiet, which changes its bits.
    """
    for array in arrays:
        pattern = _SIGNALING_NAN.get(array.dtype.name)
        if array.dtype.kind in "iu":
            pattern = b"\xa5" * array.dtype.itemsize
        if pattern is not None:
            array[...] = np.frombuffer(pattern, array.dtype)[0]
        else:
            array[...] = True if array.dtype.kind == "b" else float("nan")


def fill(targets: Sequence[Array], values: Array) -> None:
    """Fill arrays in order from a flat one, which may be shorter."""
    begin, total = 0, values.size
    for target in targets:
        size = target.size
        part = values if size == total else values[begin : begin + size]
        if part.size == size:
            target[...] = part if target.ndim == 1 else part.reshape(target.shape)
        else:
            target.reshape(-1)[: part.size] = part
        begin += size


class Work(Waitable, kw_only=True):
    """One rank's handle of an operation, as ``async_op=True``, ``isend`` and ``irecv`` return
    it.
    """

    rank: Owner
    sources: Sequence[Array]
    targets: Sequence[Array]
    entry: Entry
    deadline_fs: int
    explicit: bool
    gate: Waitable | None
    results: Sequence[Any] = ()
    sender: int | None = None
    reason: Callable[[Work], str] | None = None
    _future: Future | None = None
    _checks: tuple[int, int] | None = None
    _watched: Sequence[Array] = ()

    @property
    def name(self) -> str:
        """The function that was called."""
        return self.label

    def __repr__(self) -> str:
        state = "failed" if self.error is not None else "done" if self.done else "in flight"
        group, sequence = self.entry.group[0], self.entry.sequence
        return f"<Work: {self.name} #{sequence} of group {group}, {state}>"

    def guard(self) -> None:
        """Watch the buffers while the operation is in flight.

        Inputs get a checksum. Outputs are filled with a pattern that shows when they are read too
        early; inputs that share memory with them are copied first.
        """
        shared = [
            any(np.may_share_memory(source, target) for target in self.targets)
            for source in self.sources
        ]
        self._watched = [
            source for source, in_place in zip(self.sources, shared, strict=True) if not in_place
        ]
        self.sources = [
            source.copy() if in_place else source
            for source, in_place in zip(self.sources, shared, strict=True)
        ]
        _poison(self.targets)
        self._checks = (_checksum(self._watched), _checksum(self.targets))
        self.rank.watched_works[self] = None

    def violation(self) -> str | None:
        """The violation found in the watched buffers, if any."""
        if self._checks is None:
            return None
        checksums, watched = self._checks, self._watched
        self._unwatch()
        for side, arrays, expected in (
            ("input", watched, checksums[0]),
            ("output", self.targets, checksums[1]),
        ):
            if _checksum(arrays) != expected:
                return (
                    f"the {side} buffer of {self.name} (issued at {self.entry.site}) was changed "
                    "while the operation was in"
                    " flight; call wait() before touching it"
                )
        return None

    def _unwatch(self) -> None:
        self._checks, self._watched = None, ()
        del self.rank.watched_works[self]

    def received_beside(self, receive: Work) -> None:
        """Account for another receive into the same tensor, which is not a change by the program.

        PyTorch's pipelines receive twice into one tensor to set up connections; the last message
        stays.
        """
        if self._checks is not None and any(
            np.may_share_memory(a, b) for a in self.targets for b in receive.targets
        ):
            self._checks = self._checks[0], _checksum(self.targets)

    def fill(self, values: Array) -> None:
        """Fill the outputs in order from a flat array, which may be shorter than a receive's."""
        fill(self.targets, values)

    def over(self, error: str | None = None) -> None:
        """Finish the work, successfully or with an error."""
        if self.done:
            return
        if error is None:
            self.entry.completed_fs = self.rank.world.now
        else:
            self.entry.error = error
        self.sources = ()
        if self._checks is not None:
            self._unwatch()
        self.reason = None
        self.finish(error)

    def waits_for(self) -> str:
        """The operation, and the ranks it waits for."""
        return self.name if self.reason is None else self.reason(self)

    def timeout_message(self, waited_fs: int) -> str:
        """Torch's message for a timeout, with the missing ranks."""
        prefix = "" if self.entry.p2p else "Operation timed out! "
        return (
            f"{prefix}Timed out waiting {waited_fs // 10**12}ms for {self.name} operation to "
            f"complete: {self.waits_for()}"
        )

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the operation has finished.

        Parameters
        ----------
        timeout
            How long to wait; None or 0: as long as the group allows.

        Raises
        ------
        RuntimeError
            When it failed, or takes too long.
        """
        self.rank.open_works.pop(self, None)
        if timeout is not None and not self.done and timeout_fs(timeout) > 0:
            wait_until(self, timeout_fs(timeout), explicit=True)
        else:
            wait_until(self, explicit=self.explicit, deadline_fs=self.deadline_fs)
        return True

    def is_completed(self) -> bool:
        """Whether it has finished."""
        if not self.done:
            self.rank.world.poll()
        return self.done

    def is_success(self) -> bool:
        """Whether it has finished without an error."""
        return self.done and self.error is None

    def exception(self) -> BaseException | None:
        """The error, if it failed."""
        return RuntimeError(self.error) if self.error is not None else None

    def result(self) -> list[Any]:
        """The result tensors; a RuntimeError for point-to-point operations, as in torch."""
        if self.entry.p2p:
            raise RuntimeError("result() not implemented.")
        return list(self.results)

    def synchronize(self) -> None:
        """Wait until it has finished."""
        if not self.done:
            self.wait()

    def block_current_stream(self) -> None:
        """Make the current stream wait for it, and return at once.

        Arrays in the memory of the host have no stream, so nothing waits: call :meth:`wait` before
        the program uses them.
        """

    def source_rank(self) -> int:
        """Group rank of the sender of a receive; a RuntimeError for anything but a finished
        receive.
        """
        if self.sender is None:
            raise RuntimeError(
                "sourceRank() may only be called on work objects that correspond to a recv or "
                "recv-from-any call."
            )
        return self.sender

    def get_future(self) -> Future:
        """A future of the list of result tensors; a RuntimeError for point-to-point operations."""
        if self.entry.p2p:
            raise RuntimeError("Work::getFuture not implemented.")
        if self._future is None:
            future = self._future = Future(self.rank, self.causes)
            self.rank.open_works.pop(self, None)  # the program waits for the future instead
            self.when_done(lambda: future.settle(list(self.results), self.exception()))
        return self._future

    def get_future_result(self) -> Future:
        """Refuse: only NCCL offers it."""
        raise RuntimeError("Work::getFutureResult not implemented.")

    def boxed(self) -> Work:
        """Return itself; torch boxes handles to pass them between languages."""
        return self

    @staticmethod
    def unbox(work: Work) -> Work:
        """Return the handle that :meth:`boxed` returned."""
        return work
