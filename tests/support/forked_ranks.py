"""``python -m tests.support.forked_ranks --backend torch:gloo ...``: the suite of conformance, whose
ranks are forked from this process.

A rank that fails ends its world, and the ranks of the next one would import PyTorch again, for two
seconds each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from unittest import mock

import torch.distributed  # noqa: F401 - for all ranks

from simcoll.testing import rank_worker
from simcoll.testing.conformance.__main__ import main


class ForkedRank:
    """As much of ``subprocess.Popen`` as a runner uses."""

    def __init__(self, command: Sequence[str], *, env: dict[str, str], **_: object) -> None:
        self.args, self._status = command, None
        self.pid = os.fork()
        if not self.pid:
            _serve(env)

    def poll(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        return status


def _serve(environment: dict[str, str]) -> None:
    """Be a rank, in a session of its own and without output, and end."""
    status = 1
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        os.environ.clear()
        os.environ |= environment
        rank_worker.serve()
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    with mock.patch("simcoll.testing.rank_runners.subprocess.Popen", ForkedRank):
        sys.exit(main())
