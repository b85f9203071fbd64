"""A watchdog process that ends this one where Python cannot: MPI blocks the interpreter, without a
limit, while it starts and ends.

It also removes MPICH's shared memory if its owner is killed early.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

__all__ = ["ends_in_time", "starts_in_time"]

# Needs no module of ours, so that it is there in milliseconds. Every quarter of a second it looks
# at the states of the other processes in /proc: T is stopped, Z has ended. Its parent writes when
# it is through, and the pipe closes when it dies.
_SCRIPT = """
import os, select, signal, sys, time
_, parent, limit_s, phase, ranks, path = sys.argv
parent, limit_s, starting = int(parent), float(limit_s), phase == "start"
pids = dict(pair.split(":") for pair in ranks.split(",") if pair)
states = {"T": "is stopped", "t": "is stopped", "Z": "has ended", "": "has ended"}

def state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""

begin, held = time.monotonic(), {}
while not select.select([0], [], [], 0.25)[0]:
    now, seen = time.monotonic(), {who: states.get(state(pid)) for who, pid in pids.items()}
    held = {(who, how): held.get((who, how), now) for who, how in seen.items() if how}
    long = [now - since > limit_s for (who, how), since in held.items() if how == "is stopped"]
    if not (now - begin > limit_s if starting else any(long)):
        continue
    # Not those that their own helpers have just ended for the same reason.
    stopped = [
        f"{who} {how}"
        for (who, how), since in held.items()
        if now - since > 1 or how == "is stopped"
    ]
    stopped = stopped or [f"{who} {how} just now" for who, how in held]
    why = "; ".join(stopped) or "not all processes came so far"
    verb = "start" if starting else "end"
    os.write(2, f"realcoll: MPI did not {verb} within {limit_s:.3g} s: {why}\\n".encode())
    if os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)
    break
if path:
    try:
        os.unlink(path)
    except OSError:
        pass
"""


@contextlib.contextmanager
def starts_in_time(limit_s: float, pids: Mapping[int, int], path: str = "") -> Iterator[None]:
    """End this process if the block, which starts MPI, exceeds a limit; the message names stopped
    or dead ranks.

    Parameters
    ----------
    limit_s
        Seconds.
    pids
        Process IDs on this machine by rank, where known.
    path
        A file to remove at the end of the block, or when this process dies.
    """
    helper = _helper("start", limit_s, pids, path)
    try:
        yield
    finally:
        helper.communicate(b".")


def ends_in_time(limit_s: float, pids: Mapping[int, int]) -> None:
    """End this process, which is about to end MPI, once another process or the launcher has been
    stopped for a limit.
    """
    _, its = os.pipe()  # our end stays open until this process ends, and the helper with it
    helper = _helper("end", limit_s, pids, "", its, launcher=f",the launcher:{os.getppid()}")
    os.close(its)
    helper.returncode = 0  # no caller waits for it


def _helper(
    purpose: str,
    limit_s: float,
    pids: Mapping[int, int],
    path: str,
    source: int = subprocess.PIPE,
    launcher: str = "",
) -> subprocess.Popen[bytes]:
    ranks = ",".join(f"rank {rank}:{pid}" for rank, pid in sorted(pids.items())) + launcher
    words = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        _SCRIPT,
        str(os.getpid()),
        str(limit_s),
        purpose,
        ranks,
        path,
    ]
    # In a session of its own, it outlives a launcher's kill of this process's group for as long as
    # it takes to remove the file.
    return subprocess.Popen(  # noqa: S603
        words, stdin=source, stdout=subprocess.DEVNULL, start_new_session=True
    )
