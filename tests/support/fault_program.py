"""What one process of the tests of faults does: ``fault_program.py CASE FOLDER``.

Survivors write the error they see to a file: a launcher may close their output when a rank dies."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import realcoll
import simcoll
from realcoll.start import mpi_start

# Where a rank is late, the others must not be too, whatever else the machine does; all other faults
# are seen without waiting.
# One that raises waits for the others at its end.
LATE_S = dict.fromkeys(("sleeps", "absent", "raises"), 5.0)
LATE_AT_THE_START_S = 15.0
VICTIM = 1


def die():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def sockets():
    """Numbers of this process's own."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(link.readlink()))
    return {name[8:-1] for name in found if name.startswith("socket:[")}


def main():
    case = sys.argv[1]
    report = Path(sys.argv[2])
    (report / f"{os.getpid()}.pid").touch()
    process = int(os.environ["PMI_RANK"])
    if process == VICTIM and case == "killed while MPI starts":
        mpi_start.load_mpi = (
            die  # the others are in MPI_Init by now, and MPICH has made their shared memory
        )
    start_s = 60.0
    if case == "absent from the start":
        start_s = LATE_AT_THE_START_S
        if process == VICTIM:
            time.sleep(600)
    try:
        transport = realcoll.MpiTransport(
            timeout_s=LATE_S.get(case, 120.0), start_timeout_s=start_s
        )
    except realcoll.FaultError as error:
        (report / str(process)).write_text(f"{list(error.ranks)} {error}")
        sys.exit(1)
    (report / f"{process}.sockets").write_text(" ".join(sockets()))
    me, n = transport.control.process, transport.control.size
    odd = me == VICTIM
    count, dtype = 1000, "float32"
    if odd and case == "size":
        count = 1001
    if odd and case == "dtype":
        dtype = "float64"
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=n), count, dtype)
    try:
        if odd and case == "absent":
            time.sleep(600)
        if odd and case == "killed before":
            time.sleep(0.5)  # let the others begin
            os.kill(os.getpid(), signal.SIGKILL)
        prepared = realcoll.prepare(plan, transport)
        prepared.load({me: np.ones(count, dtype)})
        prepared.run()
        if odd and case == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if odd and case == "sleeps":
            time.sleep(600)
        if odd and case == "raises":
            raise SystemExit("this rank has had enough")
        for _ in range(10**9 if case == "busy" else 3):
            prepared.run()
        (report / str(me)).write_text("[] no error")
        transport.close()
    except realcoll.FaultError as error:
        (report / str(me)).write_text(f"{list(error.ranks)} {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
