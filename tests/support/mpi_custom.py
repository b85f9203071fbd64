"""What one MPI process does: ``mpi_custom.py CASES``; plays custom collectives of as many ranks as
there are processes, and collectives that convert on the way, on values that round, and compares the
bits with the emulator's.

CASES is a file of names, plans, inputs and the emulator's outputs, which take longer to find than
all else.
"""

import pickle
import sys
import warnings
from pathlib import Path

import realcoll


def main():
    warnings.simplefilter("error")
    transport = realcoll.MpiTransport(timeout_s=60)
    cases = pickle.loads(Path(sys.argv[1]).read_bytes())
    different = []
    for name, plan, inputs, emulated in cases:
        for rank, output in realcoll.execute(plan, inputs, transport).items():
            if output.tobytes() != emulated[rank].tobytes():
                different.append((name, rank))
    everything = transport.comm.gather(different)
    if transport.control.process == 0:
        faults = [fault for part in everything for fault in part]
        print(f"{len(cases)} schedules, different: {faults}")
    transport.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
