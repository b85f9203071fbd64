"""Streams of a rank's emulated accelerator, with the semantics of CUDA streams.

A stream executes in order: operators that take time, waits for events of other streams, waits for
collectives. As with NCCL, a collective starts on a rank when the stream it was called on reaches
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from simcoll.distributed.runtime.run_timeline import RankSpan
from simcoll.distributed.runtime.tasks import Waitable
from simcoll.distributed.runtime.world import Rank

__all__ = ["DeviceStream", "SimulatedDevice", "after", "start_of_calls"]


class DeviceStream:
    """A stream of a rank.

    Attributes
    ----------
    tail
        Finishes when all enqueued work is done.
    """

    __slots__ = ("label", "name", "rank", "tail", "tail_past")

    def __init__(self, rank: Rank, label: str) -> None:
        self.rank = rank
        self.label = label
        self.name = f"{label} of rank {rank.number}"
        self.tail_past: dict[
            str, int
        ] = {}  # of recorded runs: operations that are over when the stream has come so far
        self.tail = Waitable(f"the work on {self.name}")
        self.tail.causes = {rank.number: {}}
        self.tail.finish()

    def run(self, duration_fs: int, name: str) -> None:
        """Enqueue an operator."""
        world, timeline = self.rank.world, self.rank.world.history.timeline

        def start(completion: Waitable) -> None:
            begin_fs = world.now
            if timeline is not None:
                timeline.computed.append(
                    RankSpan(self.rank.number, name, begin_fs, begin_fs + duration_fs)
                )
            world.later(begin_fs + duration_fs, completion.finish)

        recording = world.history.recording
        if recording is not None:
            self.tail_past = recording.enqueue(
                self.rank.number, self.label, duration_fs, name, self.tail_past
            )
        self._then(start)

    def wait(self, event: Waitable) -> None:
        """Make work enqueued from now on wait for something."""
        recorded = self.rank.world.history.recording is not None
        if recorded and event.causes is not None:
            self.tail_past = {**self.tail_past, **event.causes.get(self.rank.number, {})}
        if recorded or not event.done or event.error is not None:
            self._then(
                lambda completion: event.when_done(lambda: completion.finish(event.error)), event
            )

    def _then(self, start: Callable[[Waitable], None], event: Waitable | None = None) -> None:
        predecessor, completion = self.tail, _Enqueued(self, event)
        completion.causes = {self.rank.number: self.tail_past}

        def begin() -> None:
            if predecessor.error is None:
                start(completion)
            else:
                completion.finish(predecessor.error)

        self.tail = completion
        predecessor.when_done(begin)


class _Enqueued(Waitable):
    """The completion of an item on a stream."""

    __slots__ = ("event",)

    def __init__(self, stream: DeviceStream, event: Waitable | None) -> None:
        super().__init__(f"the work on {stream.name}")
        self.event = event

    def waits_for(self) -> str:
        """The stream, and what it is waiting for, if anything."""
        return (
            self.label
            if self.event is None
            else f"{self.label}, which waits for {self.event.waits_for()}"
        )


class SimulatedDevice:
    """The emulated accelerator of a rank: its streams, and the current one."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.streams: list[DeviceStream] = []
        self.default = self.current = self.stream()

    def stream(self) -> DeviceStream:
        """Make a stream."""
        stream = DeviceStream(self.rank, f"stream {len(self.streams)}")
        self.streams.append(stream)
        return stream

    def tail(self) -> Waitable:
        """Finishes when all work enqueued on any stream is done."""
        join = DeviceStream(self.rank, "all streams")
        for stream in self.streams:
            join.wait(stream.tail)
        return join.tail


start_of_calls: ContextVar[Waitable | None] = ContextVar("simcoll_start_of_calls", default=None)
"""The event that calls made now must wait for; None if they start at once."""


@contextmanager
def after(stream: DeviceStream) -> Iterator[None]:
    """Make calls inside the block start when the stream reaches them."""
    token = start_of_calls.set(stream.tail)
    try:
        yield
    finally:
        start_of_calls.reset(token)
