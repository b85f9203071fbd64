"""A job with phases, in which one of its processes meets a fault:
``phases.py FOLDER KIND VICTIM PHASE SIGNAL TIMEOUT``.

KIND is ``mpi`` (realcoll over MPI) or ``store`` (ranks that meet at a TCPStore). A rank that
reaches the phase says so in the folder; the victim, if it is a rank, then gets the signal from
itself; the others go on.
"""

import atexit
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np

FOLDER, KIND, VICTIM, PHASE, SIGNAL = (
    Path(sys.argv[1]),
    sys.argv[2],
    sys.argv[3],
    sys.argv[4],
    int(sys.argv[5]),
)
TIMEOUT_S = float(sys.argv[6])
RANK = int(os.environ.get("PMI_RANK") or os.environ["RANK"])


def reach(phase):
    """Say that a phase has been reached, and meet the fault."""
    if phase != PHASE:
        return
    (FOLDER / f"reached.{RANK}.{os.getpid()}").touch()
    if str(RANK) == VICTIM:
        os.kill(os.getpid(), SIGNAL)
    elif VICTIM == "launcher":
        time.sleep(1.0)  # so that it is met in this phase


def over_mpi():
    """An all_reduce over MPI."""
    import realcoll
    import simcoll
    from realcoll.start import mpi_start

    load = mpi_start.load_mpi
    mpi_start.load_mpi = lambda: (reach("mpi"), load())[1]
    reach("start")
    transport = realcoll.MpiTransport(timeout_s=TIMEOUT_S, start_timeout_s=TIMEOUT_S)
    atexit.register(reach, "end")
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=transport.control.size), 1000)
    reach("run")
    realcoll.execute(plan, {RANK: np.ones(1000, "float32")}, transport)
    reach("close")
    transport.close()


def over_store():
    """Ranks that wait for each other's keys."""
    from simcoll.distributed.stores.rendezvous import rendezvous

    reach("start")
    found = rendezvous("env://", timeout=timedelta(seconds=TIMEOUT_S))
    others = range(found.world_size)
    for phase in ("run", "close"):
        reach(phase)
        found.store.set(f"{phase} rank {RANK}", "")
        found.store.wait([f"{phase} rank {other}" for other in others])
    atexit.register(reach, "end")
    # The server is in rank 0, which leaves last.
    found.store.add("left", 1)
    limit = time.monotonic() + TIMEOUT_S
    while RANK == 0 and found.store.add("left", 0) < found.world_size and time.monotonic() < limit:
        time.sleep(0.01)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    {"mpi": over_mpi, "store": over_store}[KIND]()
