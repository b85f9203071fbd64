"""Transport over NCCL through CuPy: one process per GPU, with any number of ranks.

Ranks on one GPU communicate by NCCL's send and receive to oneself inside a group, so that one GPU
can run a schedule of many ranks. CuPy is not imported before a transport is created.
"""

from __future__ import annotations

import copy
import importlib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec
import numpy as np

from realcoll.meeting.control import Control, within
from realcoll.process_errors import FaultError, MissingError
from realcoll.start.job_environment import control_of, job_from
from realcoll.transports import kernels
from realcoll.transports.interface import Message
from realcoll.transports.vendor import nccl_collective
from simcoll.arrays import Array
from simcoll.core.plan import Plan
from simcoll.core.vocabulary import PairReduction
from simcoll.core.wire_format import WireFormat
from simcoll.errors import ConfigError

__all__ = ["NcclTransport", "gpu_is_here", "load_cupy"]

POLL_S = 2e-5
LOOK_ROUND_S = 0.05
INSTALL = "pip install 'simcoll[cuda12]' (or cuda13, after nvidia-smi's CUDA version)"


def load_cupy() -> tuple[Any, Any]:
    """Import ``cupy`` and ``cupy.cuda.nccl``.

    Raises
    ------
    MissingError
        With the packages to install.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of a missing libnccl; we say so ourselves
            cupy, nccl = importlib.import_module("cupy"), importlib.import_module("cupy.cuda.nccl")
    except ImportError as error:
        raise MissingError(f"NCCL needs CuPy: {INSTALL} ({error})") from None
    if not getattr(nccl, "available", True):
        raise MissingError(
            f"CuPy finds no libnccl: {INSTALL} brings it (package nvidia-nccl-cu12 or "
            "nvidia-nccl-cu13)"
        )
    try:
        cupy.cuda.nvrtc.getVersion()
    except (ImportError, RuntimeError):
        raise MissingError(
            f"CuPy finds no NVRTC, which compiles its kernels: {INSTALL} brings it (package "
            "nvidia-cuda-nvrtc-cu12 or nvidia-cuda-nvrtc)"
        ) from None
    try:
        devices = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise MissingError(
            f"CUDA finds no usable GPU here; NCCL needs an NVIDIA driver and a GPU ({error})"
        ) from None
    if not devices:
        raise MissingError(
            "CUDA finds no GPU here; use --transport mpi or local, or look at CUDA_VISIBLE_DEVICES"
        )
    return cupy, nccl


def gpu_is_here() -> bool:
    """Whether an :class:`NcclTransport` can be created."""
    if find_spec("cupy") is None:
        return False
    try:
        load_cupy()
    except MissingError:
        return False
    return True


class NcclTransport:
    """One process of a job, with one GPU.

    Parameters
    ----------
    device
        Number of the GPU. Default: the launcher's local rank.
    control
        Control connection to the other processes. Default: from the launcher's environment
        variables.
    channel_streams
        Whether each channel gets its own stream and communicator.
    graph
        Whether the second run of a prepared plan is captured as a CUDA graph for later runs. Must
        be equal in all processes.
    timeout_s
        Time limit for the other processes.

    Attributes
    ----------
    stream, comm
        CuPy's stream and NCCL's communicator.

    Raises
    ------
    MissingError
        Without CuPy, libnccl or a GPU, with the packages to install.
    FaultError
        When the other processes do not arrive.
    """

    name = "nccl"

    def __repr__(self) -> str:
        return f"<NcclTransport: process {self.control.process} of {self.control.size}>"

    def __init__(
        self,
        *,
        device: int | None = None,
        control: Control | None = None,
        channel_streams: bool = False,
        graph: bool = False,
        timeout_s: float = 60.0,
    ) -> None:
        self._cupy, self._nccl = load_cupy()
        job = job_from(os.environ)
        self._device = (
            job.local % self._cupy.cuda.runtime.getDeviceCount() if device is None else device
        )
        self._cupy.cuda.Device(self._device).use()
        self.control = control_of(job, timeout_s) if control is None else control
        self._channel_streams = channel_streams
        self._graph = graph
        self.stream = self._cupy.cuda.Stream(non_blocking=True)
        self.comm = self._communicator()
        self._lanes: list[NcclTransport] = []

    def _communicator(self) -> Any:
        """Create a communicator of all processes, whose ID the first process makes and the
        rendezvous distributes.
        """
        offer = b""
        if self.control.process == 0:
            identity = self._nccl.get_unique_id()  # bytes, or a tuple of numbers before CuPy 14
            offer = msgspec.msgpack.encode([isinstance(identity, bytes), list(identity)])
        raw, numbers = msgspec.msgpack.decode(self.control.gather("nccl id", offer)[0])
        unique = bytes(numbers) if raw else tuple(numbers)

        def join() -> Any:
            self._cupy.cuda.Device(self._device).use()
            return self._nccl.NcclCommunicator(self.control.size, unique, self.control.process)

        try:
            return within(self.control.timeout_s, join)  # it waits forever for missing processes
        except TimeoutError:
            reason = (
                f"NCCL did not connect {self.control.size} processes within "
                f"{self.control.timeout_s:g} s"
            )
            raise FaultError(reason) from None
        except self._nccl.NcclError as error:
            raise FaultError(f"NCCL does not connect: {error}") from None

    def alloc(self, size_bytes: int) -> Any:
        """New device memory."""
        return self._cupy.empty(max(1, size_bytes), self._cupy.uint8)

    def view(self, memory: Any, first_byte: int, elements: int, dtype: np.dtype[Any]) -> Any:
        """A CuPy view; types of ``ml_dtypes`` as integers of their size."""
        part = memory[first_byte : first_byte + elements * dtype.itemsize]
        return part.view(kernels.device_dtype(dtype))

    def wire(self, memory: Any, first_byte: int, size_bytes: int) -> tuple[int, int, Any]:
        """Address and bytes, with the memory, which no view may hold."""
        return int(memory.data.ptr) + first_byte, size_bytes, memory

    def group(self, recvs: Sequence[Message], sends: Sequence[Message]) -> Callable[[], None]:
        """A function that launches the messages on the stream, which orders later work after
        them.
        """
        nccl, comm = self._nccl, self.comm

        def begin() -> None:
            nccl.groupStart()
            for call, messages in ((comm.recv, recvs), (comm.send, sends)):
                for (address, size_bytes, _), process, _ in messages:
                    call(address, size_bytes, nccl.NCCL_UINT8, process, self.stream.ptr)
            try:
                nccl.groupEnd()
            except nccl.NcclError as error:
                raise FaultError(f"NCCL: {error}") from None

        return begin

    def is_over(self, group: None) -> bool:  # noqa: ARG002
        """Always True: the stream orders later work after the group."""
        return True

    def wait(self, groups: Sequence[None]) -> None:
        """Do nothing: the host waits only in :meth:`synchronize`."""

    def copy(self, target: Any, source: Any) -> None:
        """Copy on the stream."""
        target.data.copy_from_device_async(source.data, source.nbytes, self.stream)

    def _on_stream(self, call: Callable[..., object]) -> Callable[..., object]:
        stream = self.stream

        def run(*arguments: Any) -> object:
            with stream:
                return call(*arguments)

        return run

    def reducer(self, op: PairReduction, dtype: np.dtype[Any]) -> Callable[[Any, Any], object]:
        """A kernel on the stream."""
        return self._on_stream(kernels.reducer(self._cupy, op, dtype))

    def encoder(self, wire: WireFormat) -> Callable[[Any, Any], object]:
        """Refuse: there are no kernels that convert."""
        raise ConfigError(
            f"transport nccl has no kernels that convert messages to {wire.name}; play this "
            "schedule on transport mpi or local, or without wire formats"
        )

    def decoder(
        self,
        wire: WireFormat,
        dtype: np.dtype[Any],  # noqa: ARG002
        write: Callable[[Any, Any], object],  # noqa: ARG002
    ) -> Callable[[Any, Any], object]:
        """Refuse, as :meth:`encoder` does."""
        return self.encoder(wire)

    def finisher(self, plan: Plan) -> Callable[[Any], None] | None:
        """A kernel on the stream, behind the work of the lanes."""
        if plan.reduction.name != "avg":
            return None
        divide = self._on_stream(kernels.finisher(self._cupy, plan.dtype, plan.summands))

        def finish(values: Any) -> None:
            self._wait_for_lanes()
            divide(values)

        return finish

    def load(self, target: Any, values: Any) -> None:
        """Copy from the host, or from a CuPy array."""
        with self.stream:
            if isinstance(values, np.ndarray):
                target.set(np.ascontiguousarray(values).view(target.dtype))
            else:
                target[...] = values.view(target.dtype)
        self.stream.synchronize()

    def fetch(self, source: Any) -> Array:
        """Copy to the host."""
        with self.stream:
            return np.asarray(self._cupy.asnumpy(source))

    def lanes(self, plan: Plan, processes: int) -> Sequence[NcclTransport]:
        """Itself, or one transport with its own stream and communicator per channel.

        Channels that share chunks must keep the order of the steps. Creating communicators is
        collective over all processes, so plans of a subset use a single one.
        """
        count = plan.nchannels
        if not self._channel_streams or count == 1 or processes < self.control.size or plan.waits:
            return (self,)
        while len(self._lanes) < count:
            lane = copy.copy(self)
            lane.stream = self._cupy.cuda.Stream(non_blocking=True)
            lane.comm = self._communicator()
            self._lanes.append(lane)
        return tuple(self._lanes[:count])

    def _wait_for_lanes(self) -> None:
        for lane in self._lanes:
            self.stream.wait_event(lane.stream.record())

    def record_calls(self, play: Callable[[], None]) -> Callable[[], None]:
        """The calls between a fork to the lanes' streams and a join; on request, captured as a CUDA
        graph.
        """

        def fork_and_join() -> None:
            begin = self.stream.record() if self._lanes else None
            for lane in self._lanes:
                lane.stream.wait_event(begin)
            play()
            self._wait_for_lanes()

        if not self._graph:
            return fork_and_join
        runs = 0
        graphs: list[Any] = []

        def run() -> None:
            nonlocal runs
            runs += 1
            # Compiles kernels and lets NCCL connect, neither of which can be captured.
            if runs == 1:
                fork_and_join()
                return
            if not graphs:
                self.stream.begin_capture()
                fork_and_join()
                graphs.append(self.stream.end_capture())
            graphs[0].launch(self.stream)

        return run

    def vendor(
        self, plan: Plan, inputs: Mapping[int, Any], outputs: Mapping[int, Any]
    ) -> Callable[[], object] | None:
        """NCCL's own collective, when all processes take part and rank r is process r."""
        size, me = self.control.size, self.control.process
        if plan.nranks != size or plan.ranks.tolist() != list(range(size)):
            return None
        source, target = (views[me].data.ptr if me in views else 0 for views in (inputs, outputs))
        return nccl_collective(self._nccl, self.comm, self.stream.ptr, plan, source, target)

    def synchronize(self) -> None:
        """Wait for the stream, while checking NCCL and the other processes for failures.

        Raises
        ------
        FaultError
            When NCCL reports an error, another process fails, or the timeout expires.
        """
        begin = time.monotonic()
        look = begin + LOOK_ROUND_S
        while not self.stream.done:
            time.sleep(POLL_S)
            time_s = time.monotonic()
            if time_s >= look:
                look = time_s + LOOK_ROUND_S
                self._check(late=0 < self.control.timeout_s < time_s - begin)
        self._check(late=False)

    def _check(self, *, late: bool) -> None:
        for lane in (self, *self._lanes):
            try:
                lane.comm.check_async_error()
            except self._nccl.NcclError as error:
                raise FaultError(f"NCCL: {error}") from None
        if late or (self.control.trouble() and not self.stream.done):
            raise self.control.stuck(
                process for process in range(self.control.size) if process != self.control.process
            )

    def barrier(self) -> None:
        """Wait for the stream and for all processes."""
        self.synchronize()
        self.control.gather("barrier")

    def abort(self, reason: str) -> None:
        """Abort the communicators and notify the others."""
        if not self.control.broken:
            for lane in (*self._lanes, self):
                lane.comm.abort()
            self.control.fail(reason)

    def close(self) -> None:
        """Destroy the communicators, collectively."""
        if not self.control.broken:
            self.barrier()
            for lane in (*self._lanes, self):
                lane.comm.destroy()
        self.control.close()
