"""Commands, the first compiled run after installation, and those that follow: CPU time and memory of whole processes.

``python benchmarks/first_run.py`` prints the machine, two commands (the best of seven), a run with an empty cache of machine code, and the
best of three that find it filled.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile

from scale import cpu_name

RUN = """
import json, resource, sys
import simcoll
from simcoll.emulator import emulate
from simcoll.topology import crossbar
plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4, channels=int(sys.argv[1])), count=8)
emulate(plan, crossbar(4, "1 GB/s"), data="none", bound=False, engine="fast", quotient=False)
used = resource.getrusage(resource.RUSAGE_SELF)
json.dump([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024], sys.stdout)
"""


COMMANDS = (("--help", 0.2), ("perf all_reduce -e 1K -a ring -p ideal", 0.4))


def command(line: str) -> float:
    """CPU seconds of a command in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "simcoll", *line.split()], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(folder: str, channels: int) -> tuple[float, float]:
    """CPU seconds and peak MiB of a process that makes one small run by the compiled engine."""
    environment = os.environ | {"NUMBA_CACHE_DIR": folder}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(channels)], env=environment, capture_output=True, check=True, text=True
    )
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


def main() -> None:
    """Run and print."""
    print(f"{os.cpu_count()} cores, {cpu_name()}")
    for line, target in COMMANDS:
        seconds = min(command(line) for _ in range(7))
        print(f"simcoll {line}: {seconds:.3f} s CPU, {seconds / target:.2f} of {target} s", flush=True)
    # Flows of one channel do not meet, and are played in lock-step; those of two share links, and the loops play them.
    for way, channels in (("lock-step", 1), ("loops", 2)):
        with tempfile.TemporaryDirectory() as folder:
            for name, times, target in (("first", 1, 8.0), ("later", 3, 1.0)):
                seconds, peak = min(run(folder, channels) for _ in range(times))
                share = seconds / target
                print(
                    f"{way}, {name} run: {seconds:.2f} s CPU, {peak:.0f} MB, {share:.2f} of {target:.0f} s", flush=True
                )


if __name__ == "__main__":
    main()
