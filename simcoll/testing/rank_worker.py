"""One rank of a :class:`~simcoll.testing.rank_runners.ProcessRunner`: joins, plays the cases that
it is sent, and leaves.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import sys
from multiprocessing.connection import Client
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
    """The implementation, whose module is read from its file if it cannot be imported by name."""
    try:
        importlib.import_module(module)
    except ImportError:
        spec = importlib.util.spec_from_file_location(module, path)
        if spec is None or spec.loader is None:
            raise
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    return pickle.loads(image)  # noqa: S301  # from the parent, behind a key


def serve() -> None:
    """Play cases until the parent sends none, or is gone."""
    key = bytes.fromhex(os.environ.pop("SIMCOLL_KIT_KEY"))
    connection = Client(os.environ.pop("SIMCOLL_KIT_ADDRESS"), "AF_UNIX", authkey=key)
    rank, nranks = _rank(), int(os.environ.pop("SIMCOLL_KIT_SIZE"))
    connection.send(rank)
    request, folder, service = connection.recv()
    world = RankWorld(rank, nranks, folder, server=service)
    instance, failure = None, None
    try:
        run, instance = join(_target(*request), world)
    except Exception as error:  # noqa: BLE001  # told with the first case
        failure = RankOutcome(error=f"{type(error).__name__}: {error}")
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
