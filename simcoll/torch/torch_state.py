"""PyTorch's per-process state, which a run changes and restores.

* ``distributed_c10d._world``, the groups of a process: one per rank;
* the C++ registry of groups: one per thread (PyTorch has a mode for it), equal in all threads of a
  rank;
* RPC (:mod:`simcoll.torch.rpc_calls`), and symmetric memory, which is refused
  (:mod:`simcoll.torch.refusals`);
* threads that a rank starts, and their waits (:mod:`simcoll.torch.thread_waits`);
* ``rendezvous``: the ranks meet in memory;
* ``BackendConfig``: every backend name selects this backend;
* the profiler: each rank has its own (:mod:`simcoll.torch.profiling`);
* ``Future.wait``: waits in simulated time in a rank's thread; ``functools.cached_property`` holds
  no lock during a wait;
* functional collectives of fake tensors, and DistributedDataParallel's reducer under
  FakeTensorMode;
* the operators of collectives, whose kernels cannot call a group written in Python
  (:mod:`simcoll.torch.c10d_operators`);
* PyTorch's default random generator: that of the running rank; other process state
  (:mod:`simcoll.torch.process_state`);
* modules and their registrations, if each rank has its own (:mod:`simcoll.torch.own_modules`), and
  CUDA devices mapped to the CPU;
* one compute thread, as torchrun sets it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import operator
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d
from torch.distributed.fsdp._debug_utils import SimpleProfiler
from torch.distributed.fsdp._flat_param import FlatParamHandle

from simcoll.distributed.api.making_groups import note_group
from simcoll.distributed.stores import HashStore
from simcoll.libraries.library import shipped_libraries
from simcoll.torch.accelerator import add_bindings
from simcoll.torch.batch_norm import add_kernels, batch_norm_replacements
from simcoll.torch.c10d_operators import add_kernels_of_groups
from simcoll.torch.clocks import clock_replacements
from simcoll.torch.compilation import compile_replacements
from simcoll.torch.compute_time import compute_replacements
from simcoll.torch.cuda_comm import comm_replacements
from simcoll.torch.data_parallel import data_parallel_replacements
from simcoll.torch.devices import CudaIsCpu, add_nccl_options, device_replacements
from simcoll.torch.dtensor_random import random_replacements
from simcoll.torch.fake_keys import key_replacements
from simcoll.torch.fake_outputs import output_replacements
from simcoll.torch.fake_tensors import change_fake_tensors
from simcoll.torch.flash_attention import add_flash_kernels, flash_replacements
from simcoll.torch.flight_dumps import dump_replacements
from simcoll.torch.gpu_kernels import allow_fake_lists, kernel_replacements
from simcoll.torch.gpu_meshes import gpu_mesh_replacements
from simcoll.torch.gpu_registers import serve_gpus
from simcoll.torch.gpu_types import add_kernels_of_types
from simcoll.torch.group_hooks import hook_replacements
from simcoll.torch.interrupts import Interrupts
from simcoll.torch.mesh_caches import separate_caches
from simcoll.torch.offloading import offload_replacements
from simcoll.torch.own_assignments import OwnAssignments
from simcoll.torch.own_backends import backend_replacements
from simcoll.torch.own_modules import OwnModules
from simcoll.torch.own_registers import register_replacements
from simcoll.torch.process_group import SimcollGroup
from simcoll.torch.process_state import OwnState, state_replacements
from simcoll.torch.profiling import profiler_replacements
from simcoll.torch.rank_stores import store_of_run, store_replacements
from simcoll.torch.rank_threads import (
    Groups,
    Process,
    RankThread,
    current_thread_or_none,
    rank_thread_of,
)
from simcoll.torch.refusals import refusals
from simcoll.torch.replacing import for_ranks, in_ranks
from simcoll.torch.rms_norms import add_kernel_of_rms_norm
from simcoll.torch.rpc_calls import rpc_replacements
from simcoll.torch.sharding_rules import add_sharding_rules
from simcoll.torch.staging import staging_replacements
from simcoll.torch.start_methods import start_replacements
from simcoll.torch.tensor_devices import add_locations
from simcoll.torch.thread_waits import OUTSIDE_MARK, replacements
from simcoll.torch.triton_kernels import triton_replacements
from simcoll.torch.unobserved_ranges import range_replacements

__all__ = ["Ranks", "prepare_torch"]

_ONE_RUN = threading.Lock()
_generator = torch.default_generator


class _WorldOfRank(threading.local):
    """A ``distributed_c10d._World`` per rank; outside ranks, the original.

    Each thread of a rank finds the groups of its process once, as PyTorch looks at three fields in
    every call: then C finds a field in a sixth of the time.
    """

    def __init__(self, fallback: Any) -> None:
        # Also while it carries out a call: a thread stays its rank's.
        thread = rank_thread_of(threading.current_thread())
        if thread is not None:
            vars(self)["groups"] = thread.process.groups
        vars(self)["outside"] = fallback

    def _here(self) -> Any:
        groups = vars(self).get("groups")
        if groups is not None:
            return groups
        refusal = getattr(threading.current_thread(), OUTSIDE_MARK, None)
        if refusal is not None:
            raise RuntimeError(refusal)
        return vars(self)["outside"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._here(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._here(), name, value)

    pg_config_info = distributed_c10d._World.pg_config_info


for _field in dataclasses.fields(Groups):
    # A thread without groups goes on to __getattr__.
    setattr(_WorldOfRank, _field.name, property(operator.attrgetter(f"groups.{_field.name}")))


_NCCL_NAMES = ("nccl", "nccl2", "nccl-legacy", "nccl-lazy")
"""NCCL's backends; those after the first from PyTorch 2.14 on."""


class _BackendConfig(distributed_c10d.BackendConfig):
    """Selects simcoll for each device in a rank's thread, except for PyTorch's ``fake`` backend,
    which waits for no process, and for those that the rank's program has written.
    """

    def get_device_backend_map(self) -> dict[str, str]:
        thread, names = current_thread_or_none(), dict.fromkeys(self.device_backend_map.values())
        unsimulated = {"fake"} if thread is None else {"fake", *thread.process.own_backends}
        if thread is not None and not unsimulated.issuperset(names):
            is_nccl = [name in _NCCL_NAMES for name in names]
            thread.process.backend = "nccl" if any(is_nccl) else "emulator"
            thread.process.nccl_only = all(is_nccl)
            return {"cpu": "simcoll"}
        backends: dict[str, str] = super().get_device_backend_map()
        return backends


class Ranks:
    """The threads of a run, and the process state swapped between ranks."""

    def __init__(
        self,
        undo: contextlib.ExitStack,
        modules: OwnModules | None,
        around: Callable[[], AbstractContextManager[Any]],
        interrupts: Interrupts,
    ) -> None:
        self._undo = undo
        self._modules = modules
        self._interrupts = interrupts
        self._assignments = OwnAssignments(undo, interrupts)
        is_own = (lambda _: False) if modules is None else modules.copies
        _replace_all(undo, self._assignments.replacements(is_own))
        _replace_all(undo, backend_replacements(self._assignments.make_own))
        self._around = around
        self._at_start = torch.get_rng_state()
        self._last: Process | None = None
        self._before = OwnState()
        self._nodes: dict[str | None, list[Process]] = {}

    def start(self, number: int, environment: dict[str, str]) -> RankThread:
        """Start the thread of a rank; it ends with the run."""
        state = self._before.of_rank(environment)
        process = Process(
            number,
            environment,
            self._at_start,
            self._take_turn,
            state,
            self._interrupts,
            around=self._around,
            mates=self._nodes.setdefault(environment.get("GROUP_RANK"), []),
        )
        process.mates.append(process)
        thread = RankThread(process)
        thread.thread.start()
        # Threads that it starts inherit this.
        thread.thread._daemonic = False  # type: ignore[attr-defined]
        self._undo.callback(_end_all, process)
        return thread

    def _take_turn(self, process: Process) -> None:
        if self._last is process:
            return
        self._interrupts.hold()
        try:
            previous = self._before
            if self._last is not None:
                self._last.rng_state = _generator.get_state()
                previous = self._last.state
                previous.leave()
            _generator.set_state(process.rng_state)
            self._assignments.switch(self._last, process)
            process.state.enter(previous)
            if self._modules is not None:
                self._modules.switch(self._last, process)
            self._last = process
        finally:
            self._interrupts.release()

    def leave(self) -> None:
        """Restore the original state, and drop the modules of the last rank."""
        if self._last is None:
            return
        self._last.state.leave()
        self._assignments.switch(self._last, None)
        self._before.enter(self._last.state)
        if self._modules is not None:
            self._modules.note_additions(self._last)
            for name in self._last.modules:
                sys.modules.pop(name, None)


def _end_all(process: Process) -> None:
    for thread in list(process.threads):
        thread.end()


@contextlib.contextmanager
def prepare_torch(modules: OwnModules | None = None, *, cuda: str | None = None) -> Iterator[Ranks]:
    """Prepare PyTorch for ranks in threads, and restore it at the end.

    Parameters
    ----------
    modules
        The modules copied per rank.
    cuda
        The GPU shown to scripts, with CUDA devices mapped to the CPU; None: no CUDA devices.

    Raises
    ------
    RuntimeError
        While another run is active.
    """
    interrupts = Interrupts()
    with contextlib.ExitStack() as undo:
        undo.enter_context(interrupts.noted())
        with interrupts.keep_until_end():
            _take_the_run(undo)
            _prepare(undo, modules, cuda)
            around = contextlib.nullcontext if cuda is None else CudaIsCpu
            ranks = Ranks(undo, modules, around, interrupts)
            undo.callback(ranks.leave)
        try:
            yield ranks
        finally:
            interrupts.hold()


def _take_the_run(undo: contextlib.ExitStack) -> None:
    if not _ONE_RUN.acquire(blocking=False):
        raise RuntimeError(
            "simcoll.torch.spawn: another run is active in this process; PyTorch allows one at a "
            "time"
        )
    undo.callback(_ONE_RUN.release)


def _prepare(undo: contextlib.ExitStack, modules: OwnModules | None, cuda: str | None) -> None:
    """Change what programs call."""
    if not _program_freezes():
        # A collection of garbage would look through all of PyTorch's modules, in 0.2 s.
        gc.freeze()
        undo.callback(gc.unfreeze)
    tempfile.gettempdir()  # finds it under a lock of its own, where no other rank could run
    undo.callback(torch.set_rng_state, torch.get_rng_state())
    for changes in (
        replacements,
        profiler_replacements,
        compute_replacements,
        compile_replacements,
        kernel_replacements,
        key_replacements,
        output_replacements,
        range_replacements,
        triton_replacements,
    ):
        _replace_all(undo, changes())
    for changes in (
        start_replacements,
        state_replacements,
        store_replacements,
        hook_replacements,
        dump_replacements,
        data_parallel_replacements,
        offload_replacements,
        refusals,
    ):
        _replace_all(undo, changes())
    _replace_all(undo, rpc_replacements(undo))
    _replace_all(undo, clock_replacements(undo))
    if cuda is not None:
        _replace_all(undo, device_replacements(cuda))
        _replace_all(undo, batch_norm_replacements())
        _replace_all(undo, gpu_mesh_replacements())
        _replace_all(undo, random_replacements())
        _replace_all(undo, staging_replacements())
        _replace_all(undo, comm_replacements())
        _replace_all(undo, flash_replacements())
        add_kernels(undo)
        add_kernel_of_rms_norm(undo)
        add_flash_kernels(undo)
        add_kernels_of_types(undo)
        add_nccl_options(undo)
        add_locations(undo)
        add_bindings(undo)
        serve_gpus(undo)
    if modules is not None:
        undo.callback(sys.modules.update, modules.hide())
        _replace_all(undo, modules.replacements())
        _replace_all(undo, register_replacements(undo, modules))
    _change_torch(undo)


@functools.cache  # asked once: to count 300,000 frozen objects takes 10 ms
def _program_freezes() -> bool:
    """Whether the program had frozen objects before its first run; the end of a run would unfreeze
    them.
    """
    return gc.get_freeze_count() > 0


def _change_torch(undo: contextlib.ExitStack) -> None:
    """Apply the changes."""
    store = HashStore()
    rendezvous_module = sys.modules["torch.distributed.rendezvous"]
    handlers = vars(rendezvous_module)["_rendezvous_handlers"]
    own_handlers: dict[int, dict[str, Any]] = {}

    @for_ranks
    def register_handler(thread: RankThread, standard: Any, scheme: str, handler: Any) -> None:
        registered = own_handlers.setdefault(thread.number, {})
        with _with_entries(handlers, registered):
            standard(scheme, handler)
            registered[scheme] = handler

    @for_ranks
    def rendezvous(
        thread: RankThread,
        standard: Any,
        url: Any,
        rank: int = -1,
        world_size: int = -1,
        **kwargs: Any,
    ) -> Iterator[tuple[Any, int, int]]:
        address = urlsplit(url) if isinstance(url, str) else None
        if address is None or address.scheme != "env" or address.query:
            with _with_entries(handlers, own_handlers.get(thread.number, {})):
                places: Iterator[tuple[Any, int, int]] = standard(url, rank, world_size, **kwargs)
            return places
        size = int(thread.process.environment["WORLD_SIZE"])
        for name in ("RANK", "WORLD_SIZE"):
            mine, run = os.environ.get(name), thread.process.environment[name]
            if mine is not None and mine != run:
                reason = (
                    f"the script has set {name}={mine}, and the run has {name}={run}, which counts "
                    "here; real processes would wait for ranks that never come"
                )
                thread.tell("init_process_group", reason)
        own_rank, own_size = (
            thread.number if rank < 0 else rank,
            size if world_size < 0 else world_size,
        )
        return iter([(store_of_run(thread, store), own_rank, own_size)])

    distributed_rendezvous = distributed_c10d.rendezvous
    make_group = distributed_c10d._new_process_group_helper
    _replace(undo, distributed_c10d, "_new_process_group_helper", _note_new_group(make_group))
    _replace(undo, distributed_c10d, "_world", _WorldOfRank(distributed_c10d._world))
    for owner in (distributed_c10d, dist, rendezvous_module):
        _replace(undo, owner, "rendezvous", rendezvous(distributed_rendezvous))
    name = "register_rendezvous_handler"
    for owner in (dist, rendezvous_module):
        _replace(undo, owner, name, register_handler(getattr(rendezvous_module, name)))
    if distributed_c10d.default_pg_nccl_timeout is None:  # PyTorch would warn
        _replace(
            undo, distributed_c10d, "default_pg_nccl_timeout", distributed_c10d.default_pg_timeout
        )
    _replace(undo, distributed_c10d, "BackendConfig", _BackendConfig)
    _change_fsdp(undo)
    _replace(undo, torch._C.Future, "wait", _wait(torch._C.Future.wait))
    counting = "_set_forward_pass_work_handle"
    _replace(undo, c10d.Reducer, counting, _count_in_join(getattr(c10d.Reducer, counting)))
    _replace(
        undo, functools.cached_property, "__get__", _without_lock(functools.cached_property.__get__)
    )
    for module in (dist, distributed_c10d):
        _replace(
            undo,
            module,
            "monitored_barrier",
            _monitored_barrier(distributed_c10d.monitored_barrier),
        )
    _replace(undo, torch.autocast, "__init__", _without_cache(torch.autocast.__init__))
    _replace(undo, torch.cuda.nccl, "version", _nccl_version(torch.cuda.nccl.version))
    _replace(undo, sys, "excepthook", sys.excepthook)  # init_process_group sets it
    undo.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)
    undo.callback(c10d._set_thread_isolation_mode, False)
    c10d._set_thread_isolation_mode(True)
    change_fake_tensors(undo, _replace)
    allow_fake_lists(undo)
    add_sharding_rules(undo)
    separate_caches(undo)
    add_kernels_of_groups(undo)


@contextlib.contextmanager
def _with_entries(table: dict[str, Any], entries: dict[str, Any]) -> Iterator[None]:
    """Add the entries of a rank to a table of the process."""
    standard = dict(table)
    table.update(entries)
    try:
        yield
    finally:
        table.clear()
        table.update(standard)


def _nccl_version(standard: Callable[[], Any]) -> Callable[[], Any]:
    """The newest NCCL version that is modelled, in forked processes too; no NCCL runs."""
    numbers = max(
        tuple(map(int, name.partition("-")[2].split(".")))
        for name in shipped_libraries()
        if name.startswith("nccl-")
    )
    version = (*numbers, 0)[:3]
    return lambda: standard() if rank_thread_of() is None else version


def _change_fsdp(undo: contextlib.ExitStack) -> None:
    """Adapt FullyShardedDataParallel: on the CPU it would free a parameter that it moves, and it
    times all ranks in one table.
    """
    standard_move = FlatParamHandle.to_cpu

    def to_cpu(handle: Any) -> Any:
        return contextlib.nullcontext() if handle.device.type == "cpu" else standard_move(handle)

    _replace(undo, FlatParamHandle, "to_cpu", to_cpu)
    _replace(
        undo,
        SimpleProfiler,
        "profile",
        in_ranks(SimpleProfiler.profile, lambda _name: contextlib.nullcontext()),
    )


@for_ranks
def _note_new_group(
    thread: RankThread,
    standard: Any,
    size: int,
    rank: int,
    members: list[int],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Create a group, and record it in the run; it gets the device that PyTorch gives to groups
    in C++ only.
    """
    if members:
        thread.call(note_group, members)
    thread.process.tagged = bool(kwargs.get("pg_tag"))
    group, store = standard(size, rank, members, *args, **kwargs)
    if isinstance(group, SimcollGroup) and kwargs.get("device_id") is not None:
        group.bind(kwargs["device_id"])
    return group, store


@for_ranks
def _wait(
    thread: RankThread, standard: Callable[..., Any], future: torch.futures.Future[Any]
) -> Any:
    """The value of a future, in simulated time."""
    if not future.done():
        thread.wait_for(future)
    return standard(future)


@for_ranks
def _monitored_barrier(
    _thread: RankThread,
    standard: Any,
    group: Any = None,
    timeout: Any = None,
    wait_all_ranks: bool = False,
) -> None:
    """PyTorch's function, without its restriction to the backend named gloo."""
    chosen_group = distributed_c10d.GroupMember.WORLD if group is None else group
    if not isinstance(chosen_group, SimcollGroup):
        standard(group, timeout, wait_all_ranks)
        return
    if timeout is not None and not isinstance(timeout, float):
        distributed_c10d._check_valid_timeout(timeout)
    chosen_group.monitored_barrier(timeout, wait_all_ranks)


@for_ranks
def _count_in_join(
    _thread: RankThread, standard: Callable[..., None], reducer: Any, work: Any, static: bool
) -> None:
    """How many ranks still have inputs, in ``Join``: the reducer would wait in C++, where no other
    rank runs.
    """
    if not static:
        future = work.get_future()
        future.wait()
        work = c10d._create_work_from_future(future)
    standard(reducer, work, static)


@for_ranks
def _without_lock(
    _thread: RankThread, standard: Callable[..., Any], self: Any, instance: Any, owner: Any = None
) -> Any:
    """A cached property without the lock that Python before 3.12 holds while computing it, when
    ranks may wait in collectives.
    """
    if instance is None:
        return standard(self, instance, owner)
    cache = vars(instance)
    if self.attrname not in cache:
        cache[self.attrname] = self.func(instance)
    return cache[self.attrname]


@for_ranks
def _without_cache(
    _thread: RankThread, standard: Callable[..., None], self: Any, *args: Any, **kwargs: Any
) -> None:
    """Disable autocast's weight cache, which is filled under a process-wide lock while a rank may
    wait for its operators.
    """
    standard(self, *args, **kwargs)
    self._cache_enabled = False


def _replace(undo: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    # A class keeps descriptors, such as static methods, from which it makes what it gives.
    is_kept = isinstance(owner, type) and name in vars(owner)
    undo.callback(setattr, owner, name, vars(owner)[name] if is_kept else getattr(owner, name))
    setattr(owner, name, value)


def _replace_all(undo: contextlib.ExitStack, changes: list[tuple[Any, str, Any]]) -> None:
    for owner, name, value in changes:
        _replace(undo, owner, name, value)
