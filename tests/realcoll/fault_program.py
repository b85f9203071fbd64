"""What one process of the tests of faults does: ``fault_program.py CASE FOLDER``.

Survivors write the error they see to a file: a launcher may close their output when a rank dies."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import realcoll
import simcoll

TIMEOUT_S = 3.0
VICTIM = 2


def main():
    case = sys.argv[1]
    transport = realcoll.MpiTransport(timeout_s=TIMEOUT_S)
    report = Path(sys.argv[2])
    (report / f"{os.getpid()}.pid").touch()
    me, n = transport.control.process, transport.control.size
    odd = me == VICTIM
    count, dtype, op, algorithm = 1000, "float32", "sum", "ring"
    if odd and case == "size":
        count = 1001
    if odd and case == "dtype":
        dtype = "float64"
    if odd and case == "op":
        op = "max"
    if odd and case == "algorithm":
        algorithm = "tree"
    plan = simcoll.schedule("all_reduce", algorithm, nranks=n).bind(count, dtype, op)
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
        for _ in range(3):
            prepared.run()
        (report / str(me)).write_text("[] no error")
        transport.close()
    except realcoll.FaultError as error:
        (report / str(me)).write_text(f"{list(error.ranks)} {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
