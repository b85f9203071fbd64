"""One rank of a :class:`~simcoll.testing.rank_runners.ProcessRunner`: joins, plays the cases that
it is sent, and leaves.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import select
import sys
import threading
from multiprocessing.connection import Client
from types import ModuleType
from typing import Any

from simcoll.testing.rank_calls import (
    RankOutcome,
    RankTask,
    RankWorld,
    join,
    leave,
    play_rank,
    play_task,
)

RANK_VARIABLES = ("SIMCOLL_KIT_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK")


def _rank() -> int:
    """The number that the launcher has given to this process; one process alone is rank 0."""
    numbers = [os.environ[name] for name in RANK_VARIABLES if name in os.environ]
    return int(numbers[0]) if numbers else 0


def _target(image: bytes, module: str, path: str) -> Any:
    """The implementation, whose module is read from its file if it cannot be imported by name.

    A script is read as multiprocessing does it, so that what it does as a program stays undone.
    """
    if module == "__main__":
        sys.modules[module] = _load("__mp_main__", path)
        return pickle.loads(image)  # noqa: S301  # from the parent, behind a key
    try:
        importlib.import_module(module)
    except ImportError:
        if importlib.util.spec_from_file_location(module, path) is None:
            raise
        _load(module, path)
    return pickle.loads(image)  # noqa: S301  # from the parent, behind a key


def _load(name: str, path: str) -> ModuleType:
    """The module of a file, under a name."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no file of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _end_with(connection: Any) -> None:
    """End this process once the other side of a connection is closed, whatever it is doing.

    A rank may be in a call that never returns, and a launcher may have put it where no signal of
    the parent reaches it.
    """
    hangups = select.poll()
    hangups.register(connection.fileno(), select.POLLHUP | getattr(select, "POLLRDHUP", 0))
    hangups.poll()
    os._exit(1)


def serve() -> None:
    """Play cases until the parent sends none, or is gone."""
    key = bytes.fromhex(os.environ.pop("SIMCOLL_KIT_KEY"))
    connection = Client(os.environ.pop("SIMCOLL_KIT_ADDRESS"), "AF_UNIX", authkey=key)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    rank, nranks = _rank(), int(os.environ.pop("SIMCOLL_KIT_SIZE"))
    connection.send(rank)
    request, folder, service = connection.recv()
    world = RankWorld(rank, nranks, folder, server=service)
    instance, failure = None, None
    try:
        run, instance = join(_target(*request), world)
    except Exception as error:  # noqa: BLE001  # told with the first case
        failure = RankOutcome(error=f"{type(error).__name__}: {error}", joined=False)
    try:
        connection.send("joined")
        while (case := connection.recv()) is not None:
            if failure is not None:
                connection.send(failure)
            elif isinstance(case, RankTask):
                connection.send(play_task(instance, case))
            else:
                connection.send(play_rank(run, case, world, instance))
    except (EOFError, BrokenPipeError):  # the parent is gone, or has given up
        return
    leave(instance)


if __name__ == "__main__":
    serve()
