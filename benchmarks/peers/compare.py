"""The same collectives in simcoll, SimGrid SMPI and LogGOPSim: CPU time beside each other.

``python benchmarks/peers/compare.py [--ranks 64] [--limit 300] [--skewed]`` writes, for each
schedule, the messages of our plan as a time-independent trace for SMPI (``smpirun -replay``) and as
a binary GOAL file for LogGOPSim, runs those of the two that are installed, and prints CPU seconds,
the time that each model predicts, and the ratio to ours. ``apt-get install simgrid libsimgrid-dev``
is all that SMPI needs (newer Debian has both in the second). LogGOPSim (github.com/spcl/LogGOPSim)
is built from its source, which needs gengetopt and libgraphviz-dev, and found on PATH.

``--skewed`` is an all_to_all whose messages are all sent at once and follow a power law, as the
tokens of experts do (``benchmarks/all_pairs.py``): flows share links, which LogGOPSim does not
model.

64 MiB a rank, links of 50 GB/s, 1 us, one non-blocking switch. The models differ: LogGOPSim shares
no links, and SMPI is asked for its plain flow model (CM02), without the factors that it fits to
real networks. Ours is the whole call from schedule to result, every message played by the compiled
engine, once it is loaded: the fastest of five calls with the same arguments, each of which asks for
a schedule and a topology, and the first of them; the others are whole processes, the fastest of
three.
"""

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import simcoll
from simcoll.core.plan import Plan
from simcoll.emulator import emulate
from simcoll.formats.goal.goal_writer import dump_goal_binary
from simcoll.topology import crossbar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from all_pairs import power_law
from scale import cpu_name

SIZE = 64 << 20
Case = tuple[str, str, dict[str, int]]
CASES: tuple[Case, ...] = (
    ("all_reduce", "ring", {}),
    ("all_reduce", "recursive_doubling", {}),
    ("all_reduce", "hierarchical", {"box": 8}),
    ("all_to_all", "pairwise", {}),
)
SKEWED: Case = ("all_to_all", "direct", {})
MPI_BYTE = 6  # in traces of SMPI
PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="c" prefix="n" suffix="" radical="0-{last}" speed="1Gf" bw="50GBps" lat="500ns"
    sharing_policy="SPLITDUPLEX"/>
</platform>
"""
PLAIN = (
    "network/model:CM02",
    "network/TCP-gamma:0",
    "network/crosstraffic:0",
    "smpi/host-speed:1Gf",
    "smpi/os:0:0:0",
    "smpi/or:0:0:0",
    "smpi/ois:0:0:0",
    "smpi/async-small-thresh:0",
    "smpi/send-is-detached-thresh:0",
)


def timed(command: list[str], folder: Path, limit_s: float) -> tuple[float, str] | None:
    """CPU seconds of a process and its children, and what it printed; None beyond the limit."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        done.stdout + done.stderr,
    )


def write_traces(plan: Plan, folder: Path) -> None:
    """A time-independent trace of every rank: in every step its receives and sends, and a wait for
    all of them.
    """
    lines: list[list[str]] = [[f"{rank} init"] for rank in range(plan.nranks)]
    for step in plan.steps():
        begun = [0] * plan.nranks
        columns = (step.src_rank.tolist(), step.dst_rank.tolist(), step.size_bytes.tolist())
        ends = [each for each in zip(*columns, strict=True) if each[0] != each[1]]
        for call, own, other in (("irecv", 1, 0), ("isend", 0, 1)):
            for each in ends:
                lines[each[own]].append(
                    f"{each[own]} {call} {each[other]} {step.step} {each[2]} {MPI_BYTE}"
                )
                begun[each[own]] += 1
        for rank, count in enumerate(begun):
            if count:
                lines[rank].append(f"{rank} waitall {count}")
    for rank, own in enumerate(lines):
        (folder / f"trace{rank}").write_text(
            "\n".join([*own, f"{rank} finalize", ""]), encoding="ascii"
        )
    names = {"traces": "trace{}", "hosts": "n{}"}
    for name, form in names.items():
        (folder / name).write_text(
            "".join(form.format(rank) + "\n" for rank in range(plan.nranks)), encoding="ascii"
        )
    (folder / "platform.xml").write_text(PLATFORM.format(last=plan.nranks - 1), encoding="ascii")


def smpi(plan: Plan, limit_s: float) -> tuple[float, float] | None:
    """CPU seconds of SMPI and the seconds that it predicts."""
    with tempfile.TemporaryDirectory() as name:
        write_traces(plan, Path(name))
        command = [
            "smpirun",
            "-np",
            str(plan.nranks),
            "-platform",
            "platform.xml",
            "-hostfile",
            "hosts",
            "-replay",
            "traces",
        ]
        found = timed([*command, *(f"--cfg={each}" for each in PLAIN)], Path(name), limit_s)
    return found and (found[0], float(re.findall(r"Simulation time ([0-9.]+)", found[1])[-1]))


def loggopsim(plan: Plan, limit_s: float) -> tuple[float, float] | None:
    """CPU seconds of LogGOPSim and the seconds that it predicts.

    The published program takes whole numbers, so its unit of time is that of a byte at 50 GB/s,
    0.02 ns: G is 1, and L of 1 us is 50,000. No message is long enough for its rendezvous (S).
    """
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "run.goal").write_bytes(dump_goal_binary(plan.schedule, size=SIZE))
        command = [
            "LogGOPSim",
            "-f",
            "run.goal",
            "-L",
            "50000",
            "-o",
            "0",
            "-g",
            "0",
            "-G",
            "1",
            "-O",
            "0",
            "-S",
            "2000000000",
            "--batchmode",
        ]
        found = timed(command, Path(name), limit_s)
    return found and (
        found[0],
        int(re.findall(r"Maximum finishing time at host \d+: (\d+)", found[1])[-1]) * 0.02e-9,
    )


def plan_of(case: Case, nranks: int) -> Plan:
    """The plan of a case, by the same calls each time."""
    collective, algorithm, parameters = case
    reduces = collective == "all_reduce"
    schedule = simcoll.schedule(
        collective, algorithm, nranks=nranks, in_place=reduces, **parameters
    )
    if case == SKEWED:
        return simcoll.bind(schedule, power_law(nranks), dtype="uint8", unproved=True)
    return simcoll.bind(schedule, SIZE // 4 if reduces else SIZE // 4 // nranks, unproved=True)


def ours(case: Case, nranks: int) -> tuple[list[float], float, Plan]:
    """CPU seconds of five calls, the seconds predicted, and the plan."""
    seconds = []
    for _ in range(5):
        start = time.process_time()
        plan = plan_of(case, nranks)
        how = {"data": "none", "bound": False, "engine": "fast", "quotient": False}
        result = emulate(plan, crossbar(nranks, "50 GB/s", "1 us"), **how)
        seconds.append(time.process_time() - start)
    return seconds, result.time, plan


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64])
    parser.add_argument("--limit", type=float, default=300, help="seconds that a peer may take")
    parser.add_argument("--skewed", action="store_true", help="uneven messages, all at once")
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, {cpu_name()}")
    peers = {"smpirun": ("SMPI", smpi)}
    if not args.skewed:
        peers["LogGOPSim"] = "LogGOPSim", loggopsim
    cases = (SKEWED,) if args.skewed else CASES
    for program, (name, _) in peers.items():
        if shutil.which(program) is None:
            print(f"{name} is not installed: no {program} on PATH")
    for case in cases:
        ours(case, 16)  # loads the compiled loops
    for nranks in args.ranks:
        for case in cases:
            calls, predicted, plan = ours(case, nranks)
            seconds = min(calls)
            print(
                f"{case[1]} {case[0]}, {nranks} ranks: simcoll {seconds:.4f} s (the first call "
                f"{calls[0]:.4f}), predicts {predicted * 1e3:.3f} ms"
            )
            for program, (name, play) in peers.items():
                if shutil.which(program) is None:
                    continue
                runs = [run for _ in range(3) if (run := play(plan, args.limit))]
                if not runs:
                    print(f"  {name}: over the limit")
                    continue
                least, end = min(runs)
                print(
                    f"  {name}: {least:.4f} s, predicts {end * 1e3:.3f} ms, "
                    f"{least / seconds:.2f} times ours"
                )


if __name__ == "__main__":
    main()
