"""What one MPI process of the suite does: ``mpi_program.py SPLIT CASES``; prints what is wrong, one
line each, and how much was done.

CASES is a file of cases with their plans and answers, which take longer to find than all else.
SPLIT ``own``: a rank a process, against MPI's own collectives too. ``shared``: as many ranks as the
case wants on the processes there are.
"""

import pickle
import sys
import warnings
from pathlib import Path

import numpy as np

import realcoll
from realcoll.start.mpi_start import load_mpi
from realcoll.transports.vendor import mpi_collective
from tests.support.conformance_cases import RANKS, check, exact_inputs


def shared(nranks, size):
    """Process of each rank, neighbours together."""
    return [rank * size // nranks for rank in range(nranks)]


def vendor_faults(cases, transport):
    """Whether MPI's own collectives give what the definition gives, on exact data."""
    mpi, faults, done = load_mpi(), [], 0
    world = transport.comm
    comms = {
        n: world.Create_group(world.group.Incl(range(n)))
        for n in RANKS
        if world.rank < n <= world.size
    }
    for case, plan, (expected, *_) in cases:
        if case.in_place or plan.nranks > world.size or world.rank >= plan.nranks:
            continue
        rank, inputs = world.rank, exact_inputs(plan)
        source = (
            inputs[rank]
            if inputs[rank].size
            else np.zeros(max(1, plan.view(rank, 0)[2]), plan.dtype)
        )
        target = np.zeros(plan.view(rank, 1)[2], plan.dtype)
        call = mpi_collective(mpi, comms[plan.nranks], plan, source, target)
        if call is None or plan.count == 0:
            continue
        call()
        done += 1
        ours = expected[rank]
        if ours is not None and ours.size and not np.array_equal(target, ours):
            faults.append(f"{case}: MPI's own collective differs at rank {rank}")
    return faults, done


def main():
    warnings.simplefilter("error")
    split = sys.argv[1]
    cases = pickle.loads(Path(sys.argv[2]).read_bytes())
    transport = realcoll.MpiTransport(timeout_s=60)
    size = transport.control.size
    faults, vendor = [], 0
    for case, plan, wanted in cases:
        faults += check(
            case,
            plan,
            transport,
            wanted,
            placement=shared(case.nranks, size) if split == "shared" else None,
        )
    if split == "own":
        more, vendor = vendor_faults(cases, transport)
        faults += more
    everything = transport.comm.gather((faults, vendor))
    if transport.control.process == 0:
        found = sorted({fault for faults, _ in everything for fault in faults})
        print("\n".join(found[:20]))
        print(
            f"{len(cases)} cases, {len(found)} faults, {sum(done for _, done in everything)} "
            "vendor calls"
        )
    transport.close()


if __name__ == "__main__":
    main()
