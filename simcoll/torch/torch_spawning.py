"""Start PyTorch programs on the emulator."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import Any

import greenlet  # type: ignore[import-untyped]

from simcoll import distributed as ours
from simcoll.call_records import record_of, takes
from simcoll.distributed.runtime.device import NOTEWORTHY, SimulatedDevice
from simcoll.distributed.runtime.tasks import OF_PROGRAM, wait_until
from simcoll.distributed.runtime.turn_order import TurnOrder
from simcoll.distributed.runtime.world import current_rank
from simcoll.distributed.start.interleavings import check_interleavings, play_orders
from simcoll.distributed.start.run_parameters import RunParameters, SpawnParameters
from simcoll.distributed.start.spawning import RunResult
from simcoll.topology import Topology
from simcoll.torch.compute_time import Watched, watch_modules, watched_program
from simcoll.torch.module_scopes import ModuleScopes, watch_scopes
from simcoll.torch.own_modules import OwnModules
from simcoll.torch.rank_threads import RankThread, current_thread
from simcoll.torch.roofline import OperatorCosts, read_costs
from simcoll.torch.stream_races import StreamRaces
from simcoll.torch.thread_waits import end_threads
from simcoll.torch.torch_state import prepare_torch
from simcoll.training.gpu import load_gpu, shipped_gpus

__all__ = ["TorchSpawnParameters", "compute", "emulated_time", "spawn"]


@dataclass(frozen=True)
class TorchSpawnParameters(RunParameters):
    """Parameters of :func:`simcoll.torch.spawn`.

    Attributes
    ----------
    compute
        Time model of PyTorch's operators. ``"none"``: they take no time. ``"roofline"``:
        floating-point operations over the GPU's measured rate or bytes over its memory bandwidth,
        whichever is longer. Or a TOML file with times of operators and modules. Operators on fake
        tensors are then enqueued on streams, as on a GPU; with real tensors, the rank waits for
        every operator.
    gpu
        A shipped GPU such as ``"h100"``, or a file.
    own_modules
        Packages that each rank imports separately, for modules with per-process state; True: every
        pure-Python package that is loaded during the run. See :mod:`simcoll.torch.own_modules`.
    cuda_is_cpu
        Show the program the GPUs of its node, whose tensors are on the CPU. See
        :mod:`simcoll.torch.devices`.
    """

    _: KW_ONLY
    compute: str | Path = "none"
    gpu: str | Path | None = None
    own_modules: bool | Sequence[str] | OwnModules = False
    cuda_is_cpu: bool = False


@takes(TorchSpawnParameters)
def spawn(*arguments: Any, **keywords: Any) -> RunResult:
    """Run ``program(rank, world_size, *args)``, a PyTorch program, on every rank, under one
    simulated clock.

    All ranks run in this process, each in its own thread, one at a time, in an order that depends
    only on the program. Each has its own random number generator (a copy of the caller's), ``RANK``
    and ``LOCAL_RANK``. The program calls ``torch.distributed.init_process_group("simcoll")`` and
    continues as on any cluster. By default only :func:`compute` and communication take simulated
    time. Under ``FakeTensorMode`` tensors need no memory, and collectives take the same time.
    Objects that the program captures, such as a model, are shared by all ranks.

    Takes a :class:`TorchSpawnParameters`, or its fields as arguments.

    Returns
    -------
    RunResult
        With ``time``, ``returns``, ``records``, ``trace_hash`` and ``peak_bytes``.

    Raises
    ------
    RuntimeError
        While another run is active in this process.
    ConfigError
        For a topology, protocol or algorithm that does not exist or is too small.
    RaceError
        With ``interleavings=``, where the order of turns changes what the program does.
    Exception
        The error of the first rank that failed; a note says which.

    Examples
    --------
    >>> import torch
    >>> import torch.distributed as dist
    >>> import simcoll.torch
    >>> def program(rank, world_size):
    ...     dist.init_process_group("simcoll")
    ...     x = torch.arange(2.0) + rank
    ...     dist.all_reduce(x)
    ...     return x.tolist()
    >>> result = simcoll.torch.spawn(program, nprocs=4)
    >>> result.returns[3], result.time
    ([6.0, 10.0], 2.00032e-06)
    """
    run = record_of(TorchSpawnParameters, arguments, keywords)
    turns = run.interleavings
    if turns is not None and not isinstance(turns, TurnOrder):
        check_interleavings(run, turns, emulated=True)
        return play_orders(turns, lambda order: spawn(replace(run, interleavings=order)))
    own_modules = run.own_modules
    costs, filters = read_costs(run.compute, run.gpu), warnings.filters
    if isinstance(own_modules, OwnModules) or own_modules is False:
        modules = own_modules or None
    else:
        modules = OwnModules(None if own_modules is True else own_modules)
    cuda = _gpu_name(run.gpu, run.topology) if run.cuda_is_cpu else None
    limit_bytes = sys.maxsize if cuda is None else load_gpu(cuda).memory_bytes
    with prepare_torch(modules, cuda=cuda) as ranks:

        def body(rank: int, world_size: int) -> Any:
            thread = ranks.start(rank, _environment(rank, world_size))
            job = functools.partial(run.program, rank, world_size, *run.args, **(run.kwargs or {}))
            try:
                value = _run_program(thread, job, costs, limit_bytes)
            except greenlet.GreenletExit:
                raise
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    if thread.process.interrupts.came:
                        raise
                    setattr(error, OF_PROGRAM, True)
                end_threads(thread.process, failed=True)
                raise
            end_threads(thread.process, failed=False)
            warnings.filters = filters  # findings are warnings of the run, not of a rank
            return value

        with contextlib.ExitStack() as watching:
            if costs is not None and costs.modules:
                watching.enter_context(watch_modules())
            if run.trace or run.record:
                watching.enter_context(watch_scopes())
            shared = {field.name: getattr(run, field.name) for field in fields(RunParameters)}
            shared |= {"program": body, "args": (), "kwargs": None}
            return ours.spawn(SpawnParameters(**shared, init=False))


def _gpu_name(gpu: str | Path | None, topology: str | Path | Topology | None) -> str:
    """The GPU that a program sees: the one given, else the one in the topology's name, else an
    H100.
    """
    if gpu is not None:
        return str(gpu)
    name = str(getattr(topology, "name", topology))
    return next(
        (gpu_name for gpu_name in shipped_gpus() if gpu_name.partition("-")[0] in name), "h100"
    )


def _run_program(
    thread: RankThread, job: Callable[[], Any], costs: OperatorCosts | None, limit_bytes: int
) -> Any:
    """Run a program with its operators intercepted, and wait until its streams are idle."""
    process, me = thread.process, current_rank()
    process.device = device = None if costs is None else SimulatedDevice(me)
    process.stream_races = StreamRaces(process)
    process.watched = Watched(device, costs, flights=process.flights, races=process.stream_races)
    me.memory = process.watched.memory
    process.watched.memory.limit_bytes = limit_bytes
    history = me.world.history
    if history.timeline is not None or history.recording is not None:
        process.scopes = ModuleScopes(me)
    value = thread.serve(functools.partial(watched_program, job, process.watched))
    if costs is None or device is None:
        return value
    device.pass_time()
    wait_until(device.tail())
    device.note_launches()
    for name, count in costs.unknown.items():
        history.findings.append(
            f"operator {name} has no rule: its {count} calls were timed by their bytes"
        )
    if device.on_host_fs > NOTEWORTHY * me.world.now:
        costs.note_host()
    history.findings += costs.assumed
    costs.unknown.clear()
    costs.assumed.clear()
    return value


def _environment(rank: int, world_size: int) -> dict[str, str]:
    """The variables that torchrun would set for a rank, with each node of the topology as a
    machine.
    """
    box = current_rank().world.plans.topology.groups.get("box")
    mates = [mate for mate in range(world_size) if box is None or box[mate] == box[rank]]
    variables = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": mates.index(rank),
        "LOCAL_WORLD_SIZE": len(mates),
        "GROUP_RANK": 0
        if box is None
        else sorted({int(box[mate]) for mate in range(world_size)}).index(int(box[rank])),
        "GROUP_WORLD_SIZE": 1
        if box is None
        else len({int(box[mate]) for mate in range(world_size)}),
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RUN_ID": "simcoll",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    return {name: str(value) for name, value in variables.items()}


def compute(seconds: float | str, name: str = "compute") -> None:
    """Model computation on this rank: a number of seconds, or text such as ``"20 us"``; ``name`` is
    for the timeline.

    Raises
    ------
    ConfigError
        For a time that is negative or not finite.
    RuntimeError
        Outside rank programs.
    """
    current_thread().call(ours.compute, seconds, name)


def emulated_time() -> float:
    """Seconds on the simulated clock."""
    time: float = current_thread().call(ours.emulated_time)
    return time
