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
from simcoll.distributed.runtime.tasks import Waitable, wait_until
from simcoll.distributed.runtime.world import Rank
from simcoll.units import counted, format_time

NOTEWORTHY = 0.1
"""Least share of the time in which an accelerator waits for launches that is told."""

__all__ = ["NOTEWORTHY", "DeviceStream", "SimulatedDevice", "after", "start_of_calls"]


class DeviceStream:
    """A stream of a rank.

    Attributes
    ----------
    tail
        Finishes when all enqueued work is done.
    """

    __slots__ = ("device", "label", "name", "rank", "tail", "tail_past")

    def __init__(self, device: SimulatedDevice, label: str) -> None:
        rank = device.rank
        self.device, self.rank = device, rank
        self.label = label
        self.name = f"{label} of rank {rank.number}"
        self.tail_past: dict[
            str, int
        ] = {}  # of recorded runs: operations that are over when the stream has come so far
        self.tail = Waitable(f"the work on {self.name}")
        self.tail.causes = {rank.number: {}}
        self.tail.finish()

    def run(self, duration_fs: int, name: str, launch_fs: int = 0) -> None:
        """Enqueue an operator, which the host launches in ``launch_fs``."""
        world, timeline = self.rank.world, self.rank.world.history.timeline
        device, scope = self.device, self.rank.scope
        launched_fs = device.launch(launch_fs)
        recording = world.history.recording
        if recording is not None and launch_fs:
            launch = recording.launch(self.rank.number, launch_fs)
            self.tail_past = {**self.tail_past, **launch}
            device.launched_past = launch

        def start(completion: Waitable) -> None:
            begin_fs = max(world.now, launched_fs)
            if self is device.default:
                device.awaited_fs += begin_fs - world.now
                device.compute_time_fs += duration_fs
            if timeline is not None:
                end_fs = begin_fs + duration_fs
                timeline.computed.append(
                    RankSpan(self.rank.number, name, begin_fs, end_fs, self.label, scope)
                )
            world.later(begin_fs + duration_fs, completion.finish)

        if recording is not None:
            number = self.rank.number
            self.tail_past = recording.enqueue(
                number, self.label, duration_fs, name, self.tail_past, scope
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
        predecessor, completion = self.tail, _Enqueued(f"the work on {self.name}", event=event)
        completion.causes = {self.rank.number: self.tail_past}

        def begin() -> None:
            if predecessor.error is None:
                start(completion)
            else:
                completion.finish(predecessor.error)

        self.tail = completion
        predecessor.when_done(begin)


class _Enqueued(Waitable):
    """The completion of an item on a stream, which may wait for an event."""

    event: Waitable | None = None

    def waits_for(self) -> str:
        """The stream, and what it is waiting for, if anything."""
        return (
            self.label
            if self.event is None
            else f"{self.label}, which waits for {self.event.waits_for()}"
        )


class SimulatedDevice:
    """The emulated accelerator of a rank: its streams, and the current one.

    The host launches operators one after the other, ahead of the accelerator. Its time passes on
    the simulated clock when it waits for something, or asks for the time.

    Attributes
    ----------
    lead_fs
        The host's time since the simulated clock last moved.
    launches, compute_time_fs, awaited_fs
        Of the default stream: operators that the host has launched, their time, and the time in
        which the stream waited for the host.
    on_host_fs
        The time of operators that the host has computed.
    launched_past
        Of recorded runs: the last launch.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.lead_fs = self.launches = self.compute_time_fs = self.awaited_fs = 0
        self.on_host_fs = 0
        self.launched_past: dict[str, int] = {}
        self.streams: list[DeviceStream] = []
        self.default = self.current = self.stream()

    def stream(self) -> DeviceStream:
        """Make a stream."""
        stream = DeviceStream(self, f"stream {len(self.streams)}")
        self.streams.append(stream)
        return stream

    def tail(self) -> Waitable:
        """Finishes when all work enqueued on any stream is done."""
        join = DeviceStream(self, "all streams")
        for stream in self.streams:
            join.wait(stream.tail)
        return join.tail

    def launch(self, duration_fs: int) -> int:
        """Let the host launch an operator; returns the time at which it has."""
        if duration_fs:
            self.launches += 1
            self.lead_fs += duration_fs
        return self.rank.world.now + self.lead_fs

    def note_launches(self) -> None:
        """Note in the run's history how long the default stream has waited for the host."""
        history, total_fs = self.rank.world.history, self.rank.world.now
        share = self.awaited_fs / total_fs if total_fs else 0.0
        if share < NOTEWORTHY or share <= history.launches[0]:
            return
        waits = f"{format_time(self.awaited_fs)} of {format_time(total_fs)}"
        kind = "launch-bound" if share > 0.5 else "launches"
        sentence = (
            f"{kind}: the GPU of rank {self.rank.number} waits {waits} for the host, which "
            f"launches {counted(self.launches, 'operator')}; larger operators hide that"
        )
        history.launches = share, sentence

    def pass_time(self) -> None:
        """Block the running task, the host, while it launches the operators enqueued so far."""
        world, duration_fs = self.rank.world, self.lead_fs
        if not duration_fs:
            return
        self.lead_fs = 0
        launching = Waitable("the host, which launches operators")
        launching.causes = {self.rank.number: self.launched_past}
        world.later(world.now + duration_fs, launching.finish)
        wait_until(launching)


start_of_calls: ContextVar[Waitable | None] = ContextVar("simcoll_start_of_calls", default=None)
"""The event that calls made now must wait for; None if they start at once."""


@contextmanager
def after(event: Waitable) -> Iterator[None]:
    """Make calls inside the block start when an event is over."""
    token = start_of_calls.set(event)
    try:
        yield
    finally:
        start_of_calls.reset(token)
