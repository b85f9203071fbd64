"""``torch.distributed.rpc`` between the ranks of a run.

PyTorch's own functions check and pickle a call, then hand it to its agent, in C++, which connects
processes. In ranks, the functions here take its place: a call is two messages of
:mod:`simcoll.torch.rpc_workers`. References (RRef) are objects of Python; their values stay until
the end of the run.
"""

from __future__ import annotations

import importlib
import re
import traceback
import warnings
from collections import ChainMap
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Generic, Self, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.rpc import WorkerInfo, api, constants, internal, rref_proxy
from torch.futures import Future

from simcoll.distributed.runtime.tasks import Waitable
from simcoll.distributed.runtime.world import current_rank
from simcoll.errors import ConfigError
from simcoll.torch.rank_threads import RankThread, current_thread
from simcoll.torch.replacing import in_ranks
from simcoll.torch.rpc_gradients import (
    gradient_replacements,
    in_context_of,
    note_arrival,
    note_departure,
)
from simcoll.torch.rpc_workers import Content, Limit, RpcNetwork, RpcWorker, pack

__all__ = ["RankRRef", "rpc_replacements"]

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9_:-]{1,127}")


def _refuse_fake(_tensor: FakeTensor) -> Any:
    raise ConfigError(
        "RPC with a fake tensor, which has no data to send: use tensors with data, or sends and "
        "collectives"
    )


_PICKLER = internal._InternalRPCPickler()
# Modules such as RemoteModule register how they are sent with PyTorch's own.
_PICKLER._class_reducer_dict = ChainMap(
    {FakeTensor: _refuse_fake}, internal._internal_rpc_pickler._class_reducer_dict
)


def _worker() -> RpcWorker:
    worker: RpcWorker | None = current_thread().process.rpc
    if worker is None:
        raise RuntimeError(
            "RPC has not been initialized. Call torch.distributed.rpc.init_rpc first."
        )
    return worker


# Start and end


def _init_rpc(
    networks: dict[int, RpcNetwork],
    name: Any,
    backend: Any,
    rank: int,
    world_size: int | None,
    options: Any,
) -> None:
    """``init_rpc``: wait for the other workers."""
    if backend is not None and not isinstance(backend, rpc.BackendType):
        raise TypeError("Argument backend must be a member of BackendType")
    if options is not None and not isinstance(options, rpc.RpcBackendOptions):
        raise TypeError("Argument rpc_backend_options must be an instance of RpcBackendOptions")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise RuntimeError(
            f"init_rpc: {name!r} is no name of a worker: letters, digits, '_', ':' and '-', at "
            "most 127"
        )
    thread = current_thread()
    process = thread.process
    if process.rpc is not None:
        raise RuntimeError("RPC is already initialized")
    size = int(process.environment["WORLD_SIZE"]) if not world_size else int(world_size)
    number = thread.number if rank < 0 else int(rank)
    if not 0 <= number < size <= int(process.environment["WORLD_SIZE"]):
        raise ConfigError(
            f"init_rpc(rank={number}, world_size={size}); expected rank 0 .. world_size - 1, and "
            f"at most the {process.environment['WORLD_SIZE']} ranks of the run"
        )
    timeout_s = constants.DEFAULT_RPC_TIMEOUT_SEC if options is None else options.rpc_timeout
    thread.call(_join, networks, thread, WorkerInfo(name, number), size, float(timeout_s))
    _worker().device_maps = getattr(options, "device_maps", {})


def _join(
    networks: dict[int, RpcNetwork],
    thread: RankThread,
    info: WorkerInfo,
    size: int,
    timeout_s: float,
) -> None:
    """Join the first network that has not been left, in the rank's task."""
    me = current_rank()
    if me.world.rank_classes is not None:
        raise ConfigError(
            "init_rpc in a run with alike=: workers call different functions, so each rank has to "
            "run its own program; leave alike out"
        )
    number = sum(
        any(worker.rank is me for worker in network.workers.values())
        for network in networks.values()
    )
    network = networks.setdefault(number, RpcNetwork(me.world, size))
    if network.size != size:
        raise RuntimeError(
            f"init_rpc: rank {me.number} expects {size} workers, and another rank {network.size}"
        )
    explicit = timeout_s != constants.DEFAULT_RPC_TIMEOUT_SEC
    worker = RpcWorker(network, info, thread.process, me, timeout_s, explicit)
    thread.process.rpc = worker
    network.join(worker)


class _Agent:
    """What PyTorch's functions ask the agent of a rank."""

    is_static_group = True

    def get_worker_info(self, worker: str | int | None = None) -> WorkerInfo:
        """The name and number of a worker; by default the caller's."""
        if worker is None:
            return _worker().info
        infos = self.get_worker_infos()
        for info in infos:
            if worker in (info.name, info.id):
                return info
        names = ", ".join(info.name for info in infos)
        raise RuntimeError(f"Unknown destination worker {worker}; the workers are {names}")

    def get_worker_infos(self) -> list[WorkerInfo]:
        """All workers."""
        workers = _worker().network.workers
        return [workers[number].info for number in sorted(workers)]

    def _get_device_map(self, worker: WorkerInfo) -> dict[torch.device, torch.device]:
        """Where tensors sent to a worker go, by where they are: as in the options, or nowhere."""
        return dict(_worker().device_maps.get(worker.name, {}))

    def get_debug_info(self) -> dict[str, str]:
        """Nothing: there are no queues."""
        return {}

    def join(self, *_: Any, **__: Any) -> None:
        """Do nothing: all workers have left."""

    def shutdown(self) -> None:
        """Leave the workers."""
        current_thread().process.rpc = None


def _wait_all_workers(timeout: float = 0) -> None:
    del timeout
    worker = _worker()
    current_thread().call(worker.network.leave, worker)


# Calls


def _limit(worker: RpcWorker, timeout_s: float) -> Limit | None:
    if timeout_s == constants.UNSET_RPC_TIMEOUT:
        timeout_s, explicit = worker.timeout_s, worker.explicit
    else:
        explicit = True
    return Limit(round(timeout_s * 1e15), explicit) if timeout_s > 0 else None


def _request(
    info: WorkerInfo, content: Content, timeout_s: float, answer: Callable[[Content, Any], None]
) -> Future[Any]:
    """Send a call; ``answer(content, reply)`` runs in a thread of the other worker."""
    thread, worker, future = current_thread(), _worker(), Future[Any]()
    peer = worker.network.workers[info.id]
    future.waits_for = f"the answer of worker {info.name}, rank {peer.rank.number}"
    answered = Waitable(f"the timeout of a call to worker {info.name}")

    def arrive(reply: Content) -> None:
        if not answered.done:
            answered.finish()
            note_arrival(reply.trail, reply.tensors)
            _settle(future, _PICKLER.deserialize(reply.pickled, reply.tensors))

    def reply(value: Any) -> None:
        message = _message(_content_of(value))
        current_thread().call(worker.network.send, peer, worker, message, arrive)

    def expire() -> None:
        answered.finish()
        milliseconds = 0 if limit is None else limit.time_fs // 10**12
        future.set_exception(
            RuntimeError(
                f"RPC ran for more than set timeout ({milliseconds} ms) and will now be marked "
                f"with an error: worker {info.name!r}, rank {peer.rank.number}, has not answered"
            )
        )

    limit = _limit(worker, timeout_s)
    thread.call(
        worker.network.send, worker, peer, _message(content), lambda call: answer(call, reply)
    )
    if limit is not None:
        thread.call(worker.network.watch, worker, answered, limit, expire)
    return future


def _message(content: Content) -> bytes:
    """A message that leaves the running thread, in its context of gradients."""
    return pack(content._replace(trail=note_departure(content.tensors)))


def _content_of(value: Any) -> Content:
    """A value to send, or the error that it cannot be sent."""
    try:
        return Content(*_PICKLER.serialize(value))
    except Exception as error:  # noqa: BLE001  # raised again where the value was asked for
        return Content(*_PICKLER.serialize(_remote_error(error)))


def _remote_error(error: Exception) -> internal.RemoteException:
    """An error to raise in the caller; one of another worker stays as it is."""
    if str(error).startswith("On WorkerInfo("):
        return internal.RemoteException(str(error), type(error))
    lines = "".join(traceback.format_exception(error))
    return internal.RemoteException(f"On {_worker().info}:\n{error!r}\n{lines}", type(error))


def _settle(future: Future[Any], value: Any) -> None:
    """Set a future's value, or the error that arrived in its place."""
    try:
        internal._handle_exception(value)
    except Exception as error:  # noqa: BLE001  # the other worker's own
        future.set_exception(error)
    else:
        future.set_result(value)


def _run(call: Content, answer: Callable[[Any], None], *, is_async: bool) -> None:
    """Run a call that has arrived, and hand over its value."""
    try:
        value = _value_of_call(call, is_async=is_async)
    except Exception as error:  # noqa: BLE001  # raised again in the caller
        answer(_remote_error(error))
        return
    if is_async:

        def settle(future: Future[Any]) -> None:
            with in_context_of(call.trail):  # it may be the thread of another call
                answer(_value_of(future))

        value.add_done_callback(settle)
    else:
        answer(value)


def _value_of_call(call: Content, *, is_async: bool) -> Any:
    """What the function of a call returns."""
    note_arrival(call.trail, call.tensors)
    function = _PICKLER.deserialize(call.pickled, call.tensors)
    if isinstance(function, AttributeError):  # PyTorch's, for a name that is not there
        raise function
    value = function.func(*function.args, **function.kwargs)
    if is_async and not isinstance(value, torch._C.Future):
        raise TypeError(
            f"a function of rpc.functions.async_execution returned {type(value).__name__}; "
            "expected a torch.futures.Future"
        )
    return value


def _value_of(future: Future[Any]) -> Any:
    try:
        return future.value()
    except Exception as error:  # noqa: BLE001  # raised again in the caller
        return _remote_error(error)


def _invoke_rpc_python_udf(
    info: WorkerInfo,
    pickled: bytes,
    tensors: list[torch.Tensor],
    timeout_s: float,
    is_async: bool = False,
) -> Future[Any]:
    return _request(
        info,
        Content(pickled, tensors),
        timeout_s,
        lambda call, reply: _run(call, reply, is_async=is_async),
    )


def _call_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[bytes, list[Any]]:
    """A call, pickled as PyTorch pickles those of Python functions."""
    pickled, tensors = _PICKLER.serialize(internal.PythonUDF(function, args, kwargs))
    return pickled, tensors


def _invoke_rpc_builtin(
    info: WorkerInfo, name: str, timeout_s: float, *args: Any, **kwargs: Any
) -> Future[Any]:
    pickled, tensors = _call_of(_run_builtin, name, *args, **kwargs)
    return _invoke_rpc_python_udf(info, pickled, tensors, timeout_s)


def _run_builtin(name: str, *args: Any, **kwargs: Any) -> Any:
    namespace, _, operator = name.partition("::")
    return getattr(getattr(torch.ops, namespace), operator)(*args, **kwargs)


def _invoke_rpc_torchscript(
    name: str, function: str, args: Any, kwargs: Any, timeout_s: float, is_async: bool = False
) -> Future[Any]:
    pickled, tensors = _call_of(_run_script, function, *args, **kwargs)
    info = _Agent().get_worker_info(name)
    return _invoke_rpc_python_udf(info, pickled, tensors, timeout_s, is_async)


def _run_script(name: str, *args: Any, **kwargs: Any) -> Any:
    return torch.jit._state._python_cu.find_function(name)(*args, **kwargs)


def _invoke_remote_python_udf(
    info: WorkerInfo,
    pickled: bytes,
    tensors: list[torch.Tensor],
    timeout_s: float,
    is_async: bool = False,
) -> RankRRef[Any]:
    reference: RankRRef[Any] = RankRRef._to(info, _worker().next_reference())

    def answer(call: Content, reply: Callable[[Any], None]) -> None:
        def keep(value: Any) -> None:
            _settle(_worker().value(reference._number), value)
            reply(value if isinstance(value, internal.RemoteException) else None)

        _run(call, keep, is_async=is_async)

    reference._confirmed = _request(info, Content(pickled, tensors), timeout_s, answer)
    return reference


def _invoke_remote_builtin(
    info: WorkerInfo, name: str, timeout_s: float, *args: Any, **kwargs: Any
) -> RankRRef[Any]:
    pickled, tensors = _call_of(_run_builtin, name, *args, **kwargs)
    return _invoke_remote_python_udf(info, pickled, tensors, timeout_s)


def _invoke_remote_torchscript(
    name: str, function: str, timeout_s: float, is_async: bool, *args: Any, **kwargs: Any
) -> RankRRef[Any]:
    pickled, tensors = _call_of(_run_script, function, *args, **kwargs)
    info = _Agent().get_worker_info(name)
    return _invoke_remote_python_udf(info, pickled, tensors, timeout_s, is_async)


# References


class RankRRef(Generic[T]):
    """``torch.distributed.rpc.RRef``: a reference to a value of a worker.

    Parameters
    ----------
    value
        A value of the calling worker, which owns it.
    type_hint
        Without effect; for TorchScript.
    """

    def __init__(self, value: Any, type_hint: Any = None) -> None:
        del type_hint
        worker = _worker()
        self._owner, self._number = worker.info, worker.next_reference()
        self._confirmed: Future[Any] | None = None
        worker.value(self._number).set_result(value)

    @classmethod
    def _to(cls, owner: WorkerInfo, number: tuple[int, int]) -> Self:
        """A reference to a value of any worker."""
        reference = cls.__new__(cls)
        reference._owner, reference._number, reference._confirmed = owner, number, None
        return reference

    def _serialize(self) -> tuple[WorkerInfo, tuple[int, int]]:
        return self._owner, self._number

    @staticmethod
    def _deserialize(parts: tuple[WorkerInfo, tuple[int, int]]) -> RankRRef[Any]:
        return RankRRef._to(*parts)

    def __reduce__(self) -> Any:
        raise RuntimeError(
            "Can not pickle rref in python pickler, rref can only be pickled when using RPC"
        )

    def owner(self) -> WorkerInfo:
        """The worker that owns the value."""
        return self._owner

    def owner_name(self) -> str:
        """The name of the worker that owns the value."""
        name: str = self._owner.name
        return name

    def is_owner(self) -> bool:
        """Whether the calling worker owns the value."""
        return bool(_worker().info.id == self._owner.id)

    def confirmed_by_owner(self) -> bool:
        """Whether the owner has the value."""
        return self._confirmed is None or bool(self._confirmed.done())

    def to_here(self, timeout: float = constants.UNSET_RPC_TIMEOUT) -> Any:
        """A copy of the value; on its owner, the value itself."""
        if self.is_owner():
            return self.local_value()
        pickled, tensors = _call_of(_future_of, self._number)
        return _invoke_rpc_python_udf(self._owner, pickled, tensors, timeout, is_async=True).wait()

    def local_value(self) -> Any:
        """The value, on its owner.

        Raises
        ------
        RuntimeError
            On another worker.
        """
        if not self.is_owner():
            raise RuntimeError(
                f"For {self!r}, can't call local_value() on user {_worker().info}. Call it on "
                f"owner {self._owner}"
            )
        return _future_of(self._number).wait()

    def _get_type(self, timeout: float = constants.UNSET_RPC_TIMEOUT, blocking: bool = True) -> Any:
        if self.is_owner():
            return api._rref_typeof_on_owner(self, blocking)
        return api._rref_typeof_on_user(self, timeout, blocking)

    def _get_future(self) -> Future[Any]:
        if self._confirmed is None:
            self._confirmed = Future()
            self._confirmed.set_result(None)
        return self._confirmed

    def rpc_sync(self, timeout: float = constants.UNSET_RPC_TIMEOUT) -> Any:
        """The value's methods, as calls of its owner."""
        return rref_proxy.RRefProxy(self, api.rpc_sync, timeout)

    def rpc_async(self, timeout: float = constants.UNSET_RPC_TIMEOUT) -> Any:
        """The value's methods, as calls of its owner that return futures."""
        return rref_proxy.RRefProxy(self, rref_proxy.rpc_async, timeout)

    def remote(self, timeout: float = constants.UNSET_RPC_TIMEOUT) -> Any:
        """The value's methods, as calls of its owner that return references."""
        return rref_proxy.RRefProxy(self, api.remote, timeout)

    def backward(self, dist_autograd_ctx_id: int = -1, retain_graph: bool = False) -> None:
        """The backward pass of a value, on its owner."""
        if not self.is_owner():
            pickled, tensors = _call_of(_go_back, self._number, dist_autograd_ctx_id, retain_graph)
            unset = constants.UNSET_RPC_TIMEOUT
            _invoke_rpc_python_udf(self._owner, pickled, tensors, unset).wait()
            return
        _go_back(self._number, dist_autograd_ctx_id, retain_graph)

    def __repr__(self) -> str:
        kind = "OwnerRRef" if self.is_owner() else "UserRRef"
        created_on, number = self._number
        return f"{kind}(created_on={created_on}, local_id={number}, owner={self._owner.name})"


def _go_back(number: tuple[int, int], context_id: int, retain_graph: bool) -> None:
    value = _future_of(number).wait()
    if context_id == -1:
        value.backward(retain_graph=retain_graph)
    else:
        dist_autograd.backward(context_id, [value], retain_graph)


def _future_of(number: tuple[int, int]) -> Future[Any]:
    return _worker().value(number)


_ENDING = (
    "_delete_all_user_and_unforked_owner_rrefs",
    "_destroy_rref_context",
    "_cleanup_python_rpc_handler",
    "_reset_current_rpc_agent",
)
"""What PyTorch calls of its agent when it shuts down."""
_INVOKING = (
    _invoke_rpc_builtin,
    _invoke_rpc_python_udf,
    _invoke_rpc_torchscript,
    _invoke_remote_builtin,
    _invoke_remote_python_udf,
    _invoke_remote_torchscript,
)


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _is_set() -> bool:
    return current_thread().process.rpc is not None


def _timeout() -> float:
    return _worker().timeout_s


def _set_timeout(rpcTimeoutSeconds: float) -> None:  # PyTorch's name
    worker = _worker()
    worker.timeout_s, worker.explicit = float(rpcTimeoutSeconds), True


def _without_scripts(undo: ExitStack) -> None:
    """Let DistributedOptimizer step with PyTorch's optimizers; those in TorchScript know only its
    own references.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is deprecated
        optimizer: Any = importlib.import_module("torch.distributed.optim.optimizer")
    if optimizer.functional_optim_map:
        undo.callback(setattr, optimizer, "functional_optim_map", optimizer.functional_optim_map)
        optimizer.functional_optim_map = {}


def rpc_replacements(undo: ExitStack) -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of functions of RPC that reach the agent; ``undo`` restores what
    the first ``init_rpc`` changes.
    """
    networks: dict[int, RpcNetwork] = {}

    def init_rpc(
        name: str,
        backend: Any = None,
        rank: int = -1,
        world_size: int | None = None,
        rpc_backend_options: Any = None,
    ) -> None:
        _without_scripts(undo)
        _init_rpc(networks, name, backend, rank, world_size, rpc_backend_options)

    replaced: list[tuple[Any, str, Any]] = [
        (rpc, "init_rpc", init_rpc),
        (rpc, "_set_rpc_timeout", _set_timeout),
        *((owner, "_is_current_rpc_agent_set", _is_set) for owner in (rpc, api)),
        *((owner, "_get_current_rpc_agent", _Agent) for owner in (rpc, api)),
        *((owner, "get_rpc_timeout", _timeout) for owner in (rpc, api)),
        *((api, name, _nothing) for name in _ENDING),
        *((api, function.__name__, function) for function in (_wait_all_workers, *_INVOKING)),
        *gradient_replacements(),
    ]
    objects: list[tuple[Any, str, Any]] = [
        *((owner, "RRef", RankRRef) for owner in (rpc, api)),
        (rpc, "PyRRef", RankRRef),
        (api, "_default_pickler", _PICKLER),
    ]
    return [
        *objects,
        *((owner, name, in_ranks(getattr(owner, name), value)) for owner, name, value in replaced),
    ]
