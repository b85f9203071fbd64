"""Every launcher against every fault of every process in every phase.

``python -m tests.laws.fault_matrix [--launchers ...] [--timeout 3]`` starts three ranks for each
cell; one of them, or the launcher, gets SIGKILL, SIGSTOP or SIGINT in a phase. All processes of the
job must have ended in the time of docs/reference/ending.md (a stopped process itself counts from
its SIGCONT on), with no name in /dev/shm and no temporary file left, and where a rank was killed or
stopped somebody must have named it. A slice is in ``tests/laws/test_faults_end.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.mpi import MPIEXEC
from tests.support.phases_of import PHASES

ROOT = Path(__file__).resolve().parents[2]
N = 3
NOT_REACHED = "the phase was not reached"
MARK = "SIMCOLL_FAULT_CELL"
START_S = 60.0
"""Patience until the phase is reached; the machine may be busy."""
LAUNCHERS = {
    "realcoll": ("mpi", [sys.executable, "-m", "realcoll", "launch", "-n", str(N)]),
    "mpiexec": ("mpi", [MPIEXEC, "-n", str(N), sys.executable]),
    "simcoll": (
        "store",
        [
            sys.executable,
            "-m",
            "simcoll.distributed.launch",
            "--standalone",
            "--use-env",
            "--nproc-per-node",
            str(N),
        ],
    ),
}
MORE_S = {"realcoll": 20.0, "mpiexec": 20.0, "simcoll": 25.0}
"""Seconds beyond the timeout after which everything has ended, as docs/reference/ending.md
states.
"""
FAULTS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT)


@dataclass(frozen=True)
class Cell:
    """A fault."""

    launcher: str
    fault: signal.Signals
    victim: str
    phase: str


@dataclass(frozen=True)
class Outcome:
    """What became of it: seconds until all had ended, and what is wrong."""

    seconds: float
    wrong: tuple[str, ...]


def cells(launchers):
    """All of them."""
    for launcher in launchers:
        for phase in PHASES[LAUNCHERS[launcher][0]]:
            for victim in (*map(str, range(N)), "launcher"):
                for fault in FAULTS:
                    yield Cell(launcher, fault, victim, phase)


def _marked(mark):
    """Living processes of a job, by number: state by process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (path / "environ").read_bytes():
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found[int(path.name)] = state
    return found


def _shared():
    return {path.name for path in Path("/dev/shm").glob("mpich_*")}


def _until(limit_s, over):
    limit = time.monotonic() + limit_s
    while not over() and time.monotonic() < limit:
        time.sleep(0.05)
    return over()


def play(cell, timeout_s):
    """Start a job, cause the fault, and look at what is left."""
    kind, command = LAUNCHERS[cell.launcher]
    mark = f"{MARK}={secrets.token_hex(8)}"
    before, wrong = _shared(), []
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as scratch,
        tempfile.TemporaryFile() as said,
    ):
        words = [
            "tests/support/phases.py",
            folder,
            kind,
            cell.victim,
            cell.phase,
            str(int(cell.fault)),
            str(timeout_s),
        ]
        path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        environment = os.environ | {
            "PYTHONPATH": path,
            "TMPDIR": scratch,
            MARK: mark.partition("=")[2],
            "OMP_NUM_THREADS": "1",
        }
        job = subprocess.Popen(
            [*command, *words], cwd=ROOT, env=environment, stdout=said, stderr=said
        )
        place, launcher = Path(folder), cell.victim == "launcher"

        def reached():
            names = [path.name.split(".")[1:] for path in place.glob("reached.*")]
            return len(names) == N if launcher else any(rank == cell.victim for rank, _ in names)

        if not _until(START_S, lambda: reached() or job.poll() is not None) or not reached():
            wrong.append(NOT_REACHED)
        begin = time.monotonic()
        if launcher:
            job.send_signal(cell.fault)
        bound_s = timeout_s + MORE_S[cell.launcher]
        stopped = (
            [int(path.name.split(".")[2]) for path in place.glob(f"reached.{cell.victim}.*")]
            if not launcher
            else [job.pid]
        )
        held = set(stopped) | {job.pid} if cell.fault == signal.SIGSTOP else set()
        ended = _until(bound_s, lambda: job.poll() is not None and not _marked(mark.encode()))
        seconds = time.monotonic() - begin
        if not ended and cell.fault == signal.SIGSTOP:
            # All but the stopped one and the launcher, which waits for it, and what waits with
            # them.
            helps = not launcher or cell.launcher == "mpiexec"
            late = {
                pid
                for pid in _marked(mark.encode())
                if pid not in held and not _waits_for(pid, stopped, helps=helps)
            }
            if late:
                wrong.append(f"{len(late)} processes still there beside the stopped one")
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            ended = _until(bound_s, lambda: job.poll() is not None and not _marked(mark.encode()))
        if not ended:
            left = _marked(mark.encode())
            wrong.append(f"not ended within {bound_s:g} s: {len(left)} processes left")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(10)
        said.seek(0)
        text = said.read().decode(errors="replace")
        _until(2.0, lambda: not _shared() - before)  # jobs of others come and go
        if left := sorted(_shared() - before):
            wrong.append(f"left in /dev/shm: {', '.join(left)}")
        if left := sorted(path.name for path in Path(scratch).rglob("*")):
            wrong.append(f"temporary files left: {', '.join(left)}")
        if _is_to_be_named(cell) and f"rank {cell.victim}" not in text:
            wrong.append("nobody names the rank")
        # In the middle of a line.
        silenced = cell.launcher == "mpiexec" and cell.fault != signal.SIGSTOP
        if (
            not silenced
            and "Traceback" in text
            and "KeyboardInterrupt" not in text
            and "Error:" not in text
        ):
            wrong.append(f"a traceback: {text.strip().splitlines()[-1]}")
    return Outcome(seconds, tuple(wrong))


def _waits_for(pid, stopped, *, helps):
    """Whether a process is an ancestor of the stopped one, or (``helps``) its child, the helper of
    a rank or of MPICH's launcher.
    """
    with contextlib.suppress(OSError):
        for child in stopped:
            parent = child
            while parent > 1:
                parent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
                if parent == pid:
                    return True
        return (
            helps
            and int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) in stopped
        )
    return False


def _is_to_be_named(cell):
    """Whether somebody must name the victim: not after the end of the common work, and MPICH's
    launcher ends all before they can speak.
    """
    silenced = cell.launcher == "mpiexec" and cell.fault != signal.SIGSTOP
    return cell.victim != "launcher" and cell.phase != "end" and not silenced


def main() -> int:
    """Play the matrix and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launchers", nargs="*", default=list(LAUNCHERS), choices=list(LAUNCHERS))
    parser.add_argument("--timeout", type=float, default=3.0)
    asked = parser.parse_args()
    worst, bad, count = dict.fromkeys(asked.launchers, 0.0), 0, 0
    for cell in cells(asked.launchers):
        outcome = play(cell, asked.timeout)
        count += 1
        bad += bool(outcome.wrong)
        worst[cell.launcher] = max(worst[cell.launcher], outcome.seconds)
        line = (
            f"{cell.launcher:<9} {cell.fault.name:<8} {cell.victim:<9} {cell.phase:<6} "
            f"{outcome.seconds:6.1f} s"
        )
        print(line, "; ".join(outcome.wrong) or "ok", flush=True)
    print(
        f"{count} cells, {bad} wrong; longest, timeout {asked.timeout:g} s:",
        ", ".join(f"{name} {s:.1f} s" for name, s in worst.items()),
    )
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
