"""Cost of collectives in rank programs: 1,000 all_reduces of 1 KiB at 64 ranks, and one at 1,024
ranks.

Run: ``python benchmarks/distributed.py [--calls N] [--peer]``. ``--peer`` runs the same calls as a
C program in SimGrid SMPI, with recursive doubling as here, where ``smpicc`` and ``smpirun`` are on
PATH (``apt-get install simgrid libsimgrid-dev``); both are differences of two lengths.
"""

from __future__ import annotations

import platform
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import cyclopts
import numpy as np

import simcoll.distributed as dist


def program(_rank, _world_size, calls):
    x = np.ones(256, np.float32)
    for _ in range(calls):
        x[:] = 1
        dist.all_reduce(x)
    return float(x[0])


def measure(nprocs, calls):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    result = dist.spawn(program, nprocs, args=(calls,))
    cpu = time.process_time() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert result.returns == (float(nprocs),) * nprocs
    per_call, per_message = cpu / calls * 1e3, cpu / result.messages * 1e6
    print(
        f"{nprocs:>6} {calls:>6} {result.messages:>10,} {cpu:>9.2f} {per_call:>9.2f} "
        f"{per_message:>10.1f} {grown:>9.0f}"
    )


def alike(_rank, _world_size, calls):
    """Milliseconds of a call: of so many, and of 20 times as many after 40 times as many."""
    x = dist.fake_array(256)

    def per_call(count):
        begin = time.process_time()
        for _ in range(count):
            dist.all_reduce(x)
        return (time.process_time() - begin) / count * 1e3

    per_call(3)  # played, and prepared
    first, _, later = (per_call(times * calls) for times in (1, 40, 20))
    return first, later


PEER = """
#include <mpi.h>
#include <stdlib.h>
int main(int argc, char **argv) {
  static float mine[256], sums[256];
  MPI_Init(&argc, &argv);
  for (int call = 0; call < atoi(argv[1]); call++)
    MPI_Allreduce(mine, sums, 256, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return 0;
}
"""
PLATFORM = """<?xml version="1.0"?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
<cluster id="c" prefix="h" suffix="" radical="0-{last}" speed="1Gf" bw="50GBps" lat="1us"/>
</platform>
"""
OPTIONS = "network/model:CM02", "smpi/allreduce:rdb", "smpi/simulate-computation:no"


def cpu_of_peer(nprocs, calls, folder):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["smpirun", "-np", str(nprocs), "-platform", "platform.xml", "-hostfile", "hosts"]
    options = [f"--cfg={option}" for option in OPTIONS]
    subprocess.run([*command, *options, "./peer", str(calls)], cwd=folder, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cpu_of_program(nprocs, calls, _folder):
    begin = time.process_time()
    dist.spawn(program, nprocs, args=(calls,))
    return time.process_time() - begin


def compare():
    """Print the cost of a call here and in SMPI."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "peer.c").write_text(PEER)
        subprocess.run(["smpicc", "-O2", "peer.c", "-o", "peer"], cwd=folder, check=True)
        for nprocs, calls in ((64, 1000), (256, 200), (1024, 50)):
            (folder / "platform.xml").write_text(PLATFORM.format(last=nprocs - 1))
            (folder / "hosts").write_text("\n".join(f"h{rank}" for rank in range(nprocs)))
            smpi, here = (
                (measured(nprocs, calls + 10, folder) - measured(nprocs, 10, folder)) / calls * 1e3
                for measured in (cpu_of_peer, cpu_of_program)
            )
            print(
                f"{nprocs:>6} ranks: {here:.2f} ms/call, SMPI {smpi:.2f}: {smpi / here:.1f} times"
            )


def main(*, calls: int = 1000, peer: bool = False):
    """Measure repeated calls on 64 ranks, 1 and 10 on 1,024, and those of alike ranks."""
    if peer:
        dist.spawn(program, 64, args=(2,))  # imports, and loads compiled code
        compare()
        return
    print(
        f"{platform.machine()}, Python {platform.python_version()}, all_reduce of 1 KiB, "
        f"{dist.__name__}"
    )
    print(
        f"{'ranks':>6} {'calls':>6} {'messages':>10} {'CPU s':>9} {'ms/call':>9} "
        f"{'us/message':>10} {'MB grown':>9}"
    )
    dist.spawn(program, 64, args=(2,))  # imports, and loads compiled code
    measure(64, calls)
    measure(1024, 1)
    measure(1024, 10)
    for nprocs in (64, 1024):
        options = {"args": (50,), "alike": "all", "topology": "superpod-h100"}
        first, later = dist.spawn(alike, nprocs, **options).returns[0]
        print(
            f"{nprocs:>6} ranks, fake arrays, all alike: {first:.2f} ms/call of 50, {later:.2f} of "
            "1,000 after 2,050"
        )


if __name__ == "__main__":
    cyclopts.run(main)
