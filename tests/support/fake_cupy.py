"""A stand-in for CuPy and NCCL on numpy: it checks the order of calls and the pairing of messages
to oneself.

It says nothing about hardware.
"""

import ctypes
import sys
import types
from collections import defaultdict, deque
from weakref import WeakValueDictionary

import ml_dtypes
import numpy as np

from simcoll.core.reduction import REDUCTIONS


class Device:
    current = 0

    def __init__(self, number):
        self.id = number

    def use(self):
        Device.current = self.id

    def __enter__(self):
        self.before, Device.current = Device.current, self.id

    def __exit__(self, *_):
        Device.current = self.before


class Memory:
    def __init__(self, array):
        self.ptr = array.ctypes.data

    def copy_from_device_async(self, source, nbytes, stream):
        stream.log.append("copy")
        ctypes.memmove(self.ptr, source.ptr, nbytes)


class Array(np.ndarray):
    __array_priority__ = 1

    def __array_finalize__(self, source):
        self.on = getattr(source, "on", None)
        if self.on is None:
            self.on = Device.current

    @property
    def device(self):
        return Device(self.on)

    @property
    def data(self):
        return Memory(self)

    def set(self, values):
        self[...] = values


class Stream:
    log: list = []  # noqa: RUF012 - replaced by install
    ptr = 77

    def __init__(self, non_blocking=False):
        assert non_blocking, "the default stream would wait for everything"
        self.done = True
        self.capturing = False

    def __enter__(self):
        self.log.append("stream")
        return self

    def __exit__(self, *_):
        pass

    def synchronize(self):
        pass

    def record(self):
        return "event"

    def wait_event(self, event):
        assert event == "event"

    def begin_capture(self):
        self.log.append("begin_capture")

    def end_capture(self):
        self.log.append("end_capture")
        return types.SimpleNamespace(launch=lambda _: self.log.append("launch"))


class NcclError(RuntimeError):
    pass


class Nccl(types.ModuleType):
    """Module cupy.cuda.nccl with one process."""

    NCCL_UINT8 = 1
    available = True
    NcclError = NcclError

    def __init__(self, log):
        super().__init__("cupy.cuda.nccl")
        self.log, self.depth = log, 0
        self.sent, self.wanted = defaultdict(deque), defaultdict(deque)
        self.memory = WeakValueDictionary()  # by address
        self.failing = ""
        nccl = self

        class Communicator:
            def __init__(self, size, unique, process):
                assert (size, unique, process) == (1, b"u" * 128, 0)
                self.aborted = self.destroyed = False
                nccl.comms.append(self)

            def send(self, pointer, count, dtype, peer, stream):
                nccl.point(nccl.sent, self, pointer, count, dtype, peer, stream)

            def recv(self, pointer, count, dtype, peer, stream):
                nccl.point(nccl.wanted, self, pointer, count, dtype, peer, stream)

            def check_async_error(self):
                if nccl.failing:
                    raise NcclError(nccl.failing)

            def abort(self):
                self.aborted = True

            def destroy(self):
                self.destroyed = True

        self.NcclCommunicator, self.comms = Communicator, []

    def get_unique_id(self):
        return b"u" * 128

    def point(self, queue, comm, pointer, count, dtype, peer, stream):
        assert (dtype, peer, stream) == (self.NCCL_UINT8, 0, 77)
        assert self.depth == 1, "send and receive to oneself only work inside a group"
        assert count > 0, "NCCL does nothing for empty messages"
        first = max((address for address in self.memory if address <= pointer), default=pointer)
        held = self.memory.get(first)
        assert held is not None, "the memory of this message has been freed"
        assert pointer + count <= first + held.nbytes
        queue[comm].append((pointer, count))

    def groupStart(self):  # noqa: N802 - NCCL's name
        assert self.depth == 0
        self.depth = 1
        self.log.append("groupStart")

    def groupEnd(self):  # noqa: N802 - NCCL's name
        assert self.depth == 1
        self.depth = 0
        self.log.append("groupEnd")
        for comm, sends in self.sent.items():
            wanted = self.wanted[comm]
            if len(sends) != len(wanted):
                raise NcclError("Trying to send to self without a matching recv")
            payloads = [(ctypes.string_at(p, count), count) for p, count in sends]
            for (payload, count), (pointer, room) in zip(payloads, wanted, strict=True):
                assert count == room
                ctypes.memmove(pointer, payload, count)
            sends.clear()
            wanted.clear()


def _kernel(_inputs, _output, source, name, preamble=""):
    """What a kernel of ours means, told by its name."""
    _, op, *rest = name.split("_")

    def run(*arguments):
        target = arguments[-1]
        if rest == ["pairs"]:
            assert source == "t = table[256 * t + r];"
            source_values, table = arguments[0], arguments[1]
            target[...] = table[256 * target.astype(int) + source_values]
        elif rest in (["bfloat16"], ["float32"]):
            assert "add.rn.f32" in preamble
            kind = ml_dtypes.bfloat16 if rest == ["bfloat16"] else np.float32
            left, right = np.asarray(target).view(kind), np.asarray(arguments[0])
            if op == "divide":
                assert right.dtype == np.float32
                target[...] = (left.astype(np.float32) / right).astype(kind).view(target.dtype)
            else:
                target[...] = REDUCTIONS[op](left, right.view(kind)).view(target.dtype)
        elif rest == ["bytes"]:
            assert source == "t = table[t];"
            target[...] = arguments[0][target]
        elif op == "divide" and rest[0] in {"float16", "complex64", "complex128"}:
            assert preamble or rest == ["complex128"]
            parts = (target.real, target.imag) if rest[0].startswith("complex") else (target,)
            for part in parts:
                part[...] = part.astype(arguments[0].dtype) / arguments[0]
        elif op == "divide":
            target[...] = 0 if source == "t = 0;" else _towards_zero(target, int(rest[0]))
        else:
            REDUCTIONS[op](target, arguments[0], out=target)

    return run


def _towards_zero(values, n):
    quotient = np.abs(values.astype(object)) // n
    return (quotient * np.where(values < 0, -1, 1)).astype(values.dtype)


def alone(monkeypatch):
    """No launcher has started this process."""
    for name in (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "PMI_RANK",
        "PMI_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "SLURM_PROCID",
    ):
        monkeypatch.delenv(name, raising=False)


def install(monkeypatch, devices=1):
    """Put the stand-in where ``import cupy`` finds it; returns the NCCL module and the log of
    calls.
    """
    log = []
    cupy, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
    nccl = Nccl(log)
    cuda.nccl = nccl
    stream = type("Stream", (Stream,), {"log": log})
    cuda.Stream, cuda.Device = stream, Device
    cuda.nvrtc = types.SimpleNamespace(getVersion=lambda: (12, 9))
    Device.current = 0
    cuda.runtime = types.SimpleNamespace(
        getDeviceCount=lambda: devices,
        CUDARuntimeError=type("CUDARuntimeError", (RuntimeError,), {}),
        memcpy=lambda target, source, size, kind: (
            ctypes.memmove(target, source, size) if kind == 4 else None
        ),
        deviceSynchronize=lambda: log.append("synchronize"),
    )

    cupy.cuda, cupy.uint8 = cuda, np.uint8

    def elementwise(*arguments, **options):
        run = _kernel(*arguments, **options)

        def call(*arrays):
            log.append("kernel")
            return run(*arrays)

        return call

    cupy.ElementwiseKernel = elementwise

    def empty(count, dtype):
        made = np.empty(count, dtype).view(Array)
        nccl.memory[made.ctypes.data] = made
        return made

    cupy.empty = empty
    cupy.asarray = lambda values: np.array(values).view(Array)
    cupy.ascontiguousarray = lambda values: np.ascontiguousarray(values).view(Array)
    cupy.asnumpy = np.array

    def logged(ufunc):
        def call(left, right, out):
            log.append("kernel")
            return ufunc(left, right, out=out)

        return call

    for name in (
        "add",
        "multiply",
        "minimum",
        "maximum",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "true_divide",
    ):
        setattr(cupy, name, logged(getattr(np, name)))
    for name, module in (("cupy", cupy), ("cupy.cuda", cuda), ("cupy.cuda.nccl", nccl)):
        monkeypatch.setitem(sys.modules, name, module)
    return nccl, log
