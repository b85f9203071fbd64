"""Runners: where the ranks of an implementation under test live, in threads or in processes."""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any, Protocol, Self

from simcoll.errors import ConfigError
from simcoll.testing.collective_cases import Case
from simcoll.testing.rank_calls import (
    RankOutcome,
    RankTask,
    RankWorld,
    Target,
    callers,
    join,
    leave,
    play_rank,
    refused_operations,
)

__all__ = ["ProcessRunner", "Runner", "ThreadRunner", "WorldServer"]

LAUNCHERS = {
    "mpiexec": "mpiexec -n {n}",
    "torchrun": "torchrun --nproc-per-node {n} --no-python",
}
START_S = 120
"""Time for processes to start, import and meet; PyTorch alone takes several seconds."""


LEAVE_S = 2
"""Time for processes to leave, and for launchers to end theirs."""


class Runner(Protocol):
    """Plays a case on all ranks; an outcome is ``None`` where a rank has not ended in time."""

    def play(self, target: Target, case: Case, deadline_s: float) -> Sequence[RankOutcome | None]:
        """Play a case."""


class WorldServer(Protocol):
    """What the ranks of a world share and do not start themselves, such as a store or a daemon."""

    def setup(self, nranks: int, folder: str) -> Any:
        """Start before the ranks; what it returns, such as an address, is their ``world.server``.

        Ranks in processes get a pickle of it. ``folder`` is the directory that they see.
        """

    def teardown(self) -> None:
        """End after the ranks."""


MakeServer = Callable[[], WorldServer]


class ThreadRunner:
    """Every rank is a thread of this process, which joins a new world for each case.

    A thread that hangs cannot be ended, and remains until the process ends.

    Parameters
    ----------
    server
        A class with ``setup(nranks, folder)`` and ``teardown()``, called around each case: see
        :class:`~simcoll.testing.rank_runners.WorldServer`.
    """

    def __init__(self, server: MakeServer | None = None) -> None:
        self.server = server

    def __repr__(self) -> str:
        return "<ThreadRunner: a thread for each rank>"

    def play(self, target: Target, case: Case, deadline_s: float) -> list[RankOutcome | None]:
        """Play a case; threads that have not ended after the deadline have no outcome."""
        outcomes: list[RankOutcome | None] = [None] * case.nranks
        shared: dict[Any, Any] = {}
        with (
            tempfile.TemporaryDirectory() as folder,
            _service(self.server, case.nranks, folder) as service,
        ):

            def play(rank: int) -> None:
                world = RankWorld(rank, case.nranks, folder, shared, service)
                outcomes[rank] = play_once(target, case, world)

            threads = [
                threading.Thread(target=play, args=(rank,), daemon=True)
                for rank in range(case.nranks)
            ]
            for thread in threads:
                thread.start()
            end = time.monotonic() + deadline_s
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))
        return list(outcomes)


@contextlib.contextmanager
def _service(server: MakeServer | None, nranks: int, folder: str) -> Iterator[Any]:
    """What a server has returned, while it runs; ``None`` without one."""
    if server is None:
        yield None
        return
    instance = server()
    service = instance.setup(nranks, folder)
    try:
        yield service
    finally:
        instance.teardown()


def play_once(target: Target, case: Case, world: RankWorld) -> RankOutcome:
    """Join a world, play a case, and leave."""
    instance = None
    try:
        run, instance = join(target, world)
        return play_rank(run, case, world, instance)
    except Exception as error:  # noqa: BLE001  # whatever an implementation raises is its result
        return RankOutcome(error=f"{type(error).__name__}: {error}", joined=False)
    finally:
        if instance is not None:
            leave(instance)


class ProcessRunner:
    """Every rank is a process, which stays for further cases of as many ranks.

    Processes that hang or die are ended, and started anew for the next case. Use it in a ``with``
    statement, or ``close()`` it.

    Parameters
    ----------
    launcher
        ``"mpiexec"``, ``"torchrun"``, or a command that starts ``{n}`` processes of a program, such
        as ``"srun -n {n}"``; without one, processes are started
        directly. Ranks are read from the variables of MPICH, Open MPI, PMIx and torchrun.
    quiet
        Drop what the processes print.
    server
        A class with ``setup(nranks, folder)`` and ``teardown()``, which are called before the
        processes of a world start and after they have ended: see
        :class:`~simcoll.testing.rank_runners.WorldServer`.

    Examples
    --------
    >>> ProcessRunner("mpiexec").command(4)[:3]
    ['mpiexec', '-n', '4']
    """

    def __init__(
        self,
        launcher: str | None = None,
        *,
        quiet: bool = False,
        server: MakeServer | None = None,
    ) -> None:
        if launcher is not None:
            launcher = LAUNCHERS.get(launcher, launcher)
            if "{n}" not in launcher:
                raise ConfigError(
                    f"launcher {launcher!r}: expected {{n}} in place of the number of processes, "
                    f"as in 'srun -n {{n}}', or {' or '.join(LAUNCHERS)}"
                )
        self.launcher, self.quiet, self.server = launcher, quiet, server
        self._worlds: dict[int, _LaunchedWorld] = {}

    def command(self, nranks: int) -> list[str]:
        """The command line that starts the ranks, or one rank if there is no launcher."""
        program = [sys.executable, "-m", "simcoll.testing.rank_worker"]
        if self.launcher is None:
            return program
        return [*shlex.split(self.launcher.format(n=nranks)), *program]

    def play(
        self, target: Target, case: Case | RankTask, deadline_s: float
    ) -> list[RankOutcome | None]:
        """Play a case; processes that have not ended after the deadline have no outcome."""
        request = _request(target)
        world = self._worlds.get(case.nranks)
        if world is not None and world.request != request:
            self._worlds.pop(case.nranks).close()
            world = None
        if world is None:
            name, *arguments = self.command(case.nranks)
            command = [_program_path(name), *arguments]
            world = self._worlds[case.nranks] = _LaunchedWorld(
                command,
                case.nranks,
                request,
                self.server,
                _Start(self.launcher is None, self.quiet),
            )
        outcomes = world.play(case, deadline_s)
        if world.is_over() or not _sound(case, outcomes):
            # A rank may wait for one that failed, or its connections are broken: begin afresh.
            self._worlds.pop(case.nranks).close()
        return outcomes

    def close(self) -> None:
        """End all processes."""
        while self._worlds:
            self._worlds.popitem()[1].close()

    def __repr__(self) -> str:
        started = "by this process" if self.launcher is None else f"by {self.launcher}"
        return f"<ProcessRunner: a process for each rank, started {started}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _program_path(name: str) -> str:
    """A launcher by its name: on PATH, or beside this Python, as in an environment that is not
    activated.
    """
    folder = Path(sys.executable).parent
    path = shutil.which(name) or shutil.which(name, path=str(folder))
    if path is None:
        raise ConfigError(f"launcher {name!r} is neither on PATH nor in {folder}")
    return path


def _sound(case: Case | RankTask, outcomes: Sequence[RankOutcome | None]) -> bool:
    """Whether no rank has failed, and all callers of an operation have done or refused it alike."""
    finished = [outcome for outcome in outcomes if outcome is not None and outcome.error is None]
    if len(finished) < case.nranks:
        return False
    if isinstance(case, RankTask):
        return len({outcome.unsupported is None for outcome in finished}) == 1
    refused = refused_operations(case, outcomes)
    return all(
        index in refused or rank not in callers(case.operations[index])
        for rank, outcome in enumerate(finished)
        for index in outcome.refused
    )


def _request(target: Target) -> tuple[bytes, str, str]:
    """What a process needs to find an implementation: its pickle, its module, and its file."""
    maker: Any = getattr(target, "func", target)
    try:
        image = pickle.dumps(target)
        path = inspect.getsourcefile(maker) or ""
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{target!r} cannot be sent to other processes ({error}); expected a function or class "
            f"at the top level of a module"
        ) from None
    return image, str(maker.__module__), path


@dataclass(frozen=True, slots=True)
class _Start:
    """How processes start: one for each rank without a launcher (``direct``), and ``quiet``."""

    direct: bool
    quiet: bool


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group, politely first, so that a launcher ends what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LEAVE_S)


class _LaunchedWorld:
    """Processes that have joined one world, their server, and the connections to them."""

    def __init__(
        self,
        command: list[str],
        nranks: int,
        request: tuple[bytes, str, str],
        server: MakeServer | None,
        start: _Start,
    ) -> None:
        self.request, self.nranks = request, nranks
        self.folder = tempfile.TemporaryDirectory(prefix="simcoll-kit-")
        self.meeting_place = str(Path(self.folder.name) / "world")
        Path(self.meeting_place).mkdir()
        self.serving = contextlib.ExitStack()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.connections: dict[int, Connection[Any, Any]] = {}
        self.members: set[int] = set()
        output = subprocess.DEVNULL if start.quiet else None
        key = secrets.token_bytes(16)
        address = str(Path(self.folder.name) / "meeting")
        variables = {
            "SIMCOLL_KIT_ADDRESS": address,
            "SIMCOLL_KIT_KEY": key.hex(),
            "SIMCOLL_KIT_SIZE": str(nranks),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        listener = Listener(address, "AF_UNIX", backlog=nranks, authkey=key)
        try:
            self.service = self.serving.enter_context(_service(server, nranks, self.meeting_place))
            for rank in range(nranks if start.direct else 1):
                # A launcher numbers the processes that it starts.
                number = {"SIMCOLL_KIT_RANK": str(rank)} if start.direct else {}
                environment = {**os.environ, **variables, **number}
                process = subprocess.Popen(  # noqa: S603  # what the caller wants to run
                    command,
                    env=environment,
                    start_new_session=True,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
                self.processes.append(process)
            self._meet(listener)
        except BaseException:
            self.close()
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):  # the folder is gone after a failure
                listener.close()

    def _meet(self, listener: Listener) -> None:
        """Accept every rank, and let it join."""
        socket: Any = listener._listener  # type: ignore[attr-defined]  # noqa: SLF001
        socket._socket.settimeout(1)  # noqa: SLF001  # accept() of a Listener has no timeout
        end = time.monotonic() + START_S
        while len(self.connections) < self.nranks:
            try:
                connection = listener.accept()
            except TimeoutError:
                codes = [process.poll() for process in self.processes]
                if any(codes) or time.monotonic() > end:
                    raise ConfigError(
                        f"{len(self.connections)} of {self.nranks} ranks have started within "
                        f"{START_S} s; exit statuses: {codes}; command: "
                        f"{shlex.join(self.processes[0].args)}"  # type: ignore[arg-type]
                    ) from None
                continue
            self.connections[connection.recv()] = connection
        for connection in self.connections.values():
            connection.send((self.request, self.meeting_place, self.service))
        for rank, message in self._messages(end):
            if message is not None:
                self.members.add(rank)

    def _messages(self, end: float) -> Iterator[tuple[int, Any]]:
        """The next message of each rank that comes in time; ``None`` of one that has ended."""
        pending: dict[Any, int] = {
            connection: rank for rank, connection in self.connections.items()
        }
        while pending and (wait_s := end - time.monotonic()) > 0:
            ready: list[Any] = wait(list(pending), wait_s)
            for connection in ready:
                try:
                    message = connection.recv()
                except (EOFError, OSError):
                    message = None
                yield pending.pop(connection), message

    def play(self, case: Case | RankTask, deadline_s: float) -> list[RankOutcome | None]:
        """Send a case to every rank, and wait for the outcomes."""
        absent = RankOutcome(error=f"has not joined its world within {START_S} s, or has ended")
        outcomes: list[RankOutcome | None] = [
            None if rank in self.members else absent for rank in range(self.nranks)
        ]
        if len(self.members) < self.nranks:
            return outcomes
        for connection in self.connections.values():
            with contextlib.suppress(OSError):
                connection.send(case)
        for rank, message in self._messages(time.monotonic() + deadline_s):
            outcomes[rank] = message or RankOutcome(error="the process has ended")
        return outcomes

    def is_over(self) -> bool:
        """Whether a process has ended, or has not joined."""
        codes = [process.poll() for process in self.processes]
        return len(self.members) < self.nranks or any(code is not None for code in codes)

    def close(self) -> None:
        """Ask the processes to leave, then end those that have not."""
        for connection in self.connections.values():
            with contextlib.suppress(OSError):
                connection.send(None)
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LEAVE_S)
        # Ranks end with their connections, also those that a launcher has put into other sessions.
        for connection in self.connections.values():
            connection.close()
        for process in self.processes:
            _end(process)
        try:
            self.serving.close()
        finally:
            self.folder.cleanup()
