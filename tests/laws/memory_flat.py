"""Memory stays flat over many runs: ``python -m tests.laws.memory_flat [--runs 10000]``; a slice is
in ``tests/laws/test_processes.py``.

Each kind of run has a process, which plays them in ten blocks; from the third block on it may not
grow by more than :data:`MOST_KIB`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.support.memory import KINDS

ROOT = Path(__file__).resolve().parents[2]
BLOCKS, WARM = 10, 3
MOST_KIB = 2048


def grown(kind, runs):
    """KiB after each block, and by how much the last is above the third."""
    command = [sys.executable, "-m", "tests.support.memory", kind, str(runs), str(BLOCKS)]
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    sizes = list(map(int, done.stdout.split()))
    return sizes, sizes[-1] - sizes[WARM - 1]


def main() -> int:
    """Measure all kinds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    asked = parser.parse_args()
    wrong = 0
    for kind in KINDS:
        sizes, more = grown(kind, asked.runs)
        wrong += more > MOST_KIB
        shown = " ".join(f"{size / 1024:.1f}" for size in sizes)
        print(
            f"{kind}: {asked.runs:,} runs, MiB after each tenth: {shown}; {more:+} KiB from the "
            "third on",
            flush=True,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
