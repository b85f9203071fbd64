"""What one MPI process does: ``mpi_custom.py``; runs every shipped custom collective of as many
ranks as there are processes, and collectives that convert on the way, on values that round, and
compares the bits with the emulator's.
"""

import sys
import warnings

import realcoll
import simcoll
from simcoll.core.reference import random_inputs
from simcoll.topology import crossbar
from tests.support.custom_cases import converting, rounding_inputs, shipped


def main():
    warnings.simplefilter("error")
    transport = realcoll.MpiTransport(timeout_s=60)
    nranks = transport.control.size
    different = []
    schedules = shipped(nranks) | converting(nranks)
    for name, schedule in schedules.items():
        plan = simcoll.bind(schedule, 1013, "float32")
        custom = plan.collective.kind == "custom"
        inputs = rounding_inputs(plan) if custom else random_inputs(plan)
        emulated = simcoll.emulate(plan, crossbar(nranks, "10 GB/s"), data=inputs).outputs
        for rank, output in realcoll.execute(plan, inputs, transport).items():
            if output.tobytes() != emulated[rank].tobytes():
                different.append((name, rank))
    everything = transport.comm.gather(different)
    if transport.control.process == 0:
        faults = [fault for part in everything for fault in part]
        print(f"{len(schedules)} schedules, different: {faults}")
    transport.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
