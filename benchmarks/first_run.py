"""Commands, the first compiled run after installation, and those that follow: CPU time and memory
of whole processes.

``python benchmarks/first_run.py`` prints the machine, two commands (the best of seven), a run with
an empty cache of machine code, and the best of three that find it filled; then the first runs of
two large schedules in a process (the best of four, after imports). Like an installed package,
simcoll is compiled to byte code first.
"""

import compileall
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from scale import cpu_name

import simcoll

RUN = """
import json, resource, sys
import simcoll
from simcoll.emulator import emulate
from simcoll.topology import crossbar
ring = simcoll.schedule("all_reduce", "ring", nranks=4, channels=int(sys.argv[1]))
plan = simcoll.bind(ring, count=8)
emulate(plan, crossbar(4, "1 GB/s"), data="none", bound=False, engine="fast", quotient=False)
used = resource.getrusage(resource.RUSAGE_SELF)
json.dump([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024], sys.stdout)
"""


LARGE = """
import json, resource, sys
from time import process_time
import simcoll
from simcoll.emulator import emulate
from simcoll.tuning import costs
algorithm, nranks, params = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
machine = simcoll.load_topology("dgx-h100", nodes=nranks // 8)
times = [process_time()]
schedule = simcoll.schedule("all_reduce", algorithm, nranks=nranks, **params)
plan = simcoll.bind(schedule, 1 << 22, protocol=costs("Simple", machine, schedule))
times.append(process_time())
for _ in range(3):
    emulate(plan, machine, data="none", bound=False)
    times.append(process_time())
    plan = simcoll.bind(schedule, 2 * plan.sizes, protocol=plan.protocol)
took = [after - before for before, after in zip(times, times[1:])]
memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
json.dump([took[0] + took[1], *took, memory_mib], sys.stdout)
"""
SCHEDULES = (("switch", 1024, {}), ("hierarchical", 512, {"box": 8, "pieces": 4}))
COMMANDS = (("--help", 0.2), ("perf all_reduce -e 1K -a ring -p ideal", 0.4))


def command(line: str) -> float:
    """CPU seconds of a command in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "simcoll", *line.split()], check=True, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(folder: str, channels: int) -> tuple[float, float]:
    """CPU seconds and peak MiB of a process that makes one small run by the compiled engine."""
    environment = os.environ | {"NUMBA_CACHE_DIR": folder}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(channels)],
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    )
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


def large() -> None:
    """The first run of large schedules, each in a process of its own with its machine code at
    hand.
    """
    for algorithm, nranks, params in SCHEDULES:
        argv = [sys.executable, "-c", LARGE, algorithm, str(nranks), json.dumps(params)]
        runs = [
            json.loads(subprocess.run(argv, capture_output=True, check=True, text=True).stdout)
            for _ in range(5)
        ]
        whole, proof, first, second, third, peak = min(runs[1:])  # the first one may have compiled
        print(
            f"{algorithm}, {nranks:,} ranks: {whole:.2f} s CPU: proof {proof:.2f} s, first run "
            f"{first:.2f} s; next sizes "
            f"{second * 1e3:.0f} and {third * 1e3:.0f} ms; {peak:.0f} MB",
            flush=True,
        )


def main() -> None:
    """Run and print."""
    print(f"{os.cpu_count()} cores, {cpu_name()}")
    compileall.compile_dir(Path(simcoll.__file__).parent, quiet=1)  # as pip does
    for line, target in COMMANDS:
        seconds = min(command(line) for _ in range(7))
        print(
            f"simcoll {line}: {seconds:.3f} s CPU, {seconds / target:.2f} of {target} s", flush=True
        )
    # Flows of one channel do not meet, and are played in lock-step; those of two share links, and
    # the loops play them.
    for way, channels in (("lock-step", 1), ("loops", 2)):
        with tempfile.TemporaryDirectory() as folder:
            for name, times, target in (("first", 1, 8.0), ("later", 3, 1.0)):
                seconds, peak = min(run(folder, channels) for _ in range(times))
                share = seconds / target
                print(
                    f"{way}, {name} run: {seconds:.2f} s CPU, {peak:.0f} MB, {share:.2f} of "
                    f"{target:.0f} s",
                    flush=True,
                )
    large()


if __name__ == "__main__":
    main()
