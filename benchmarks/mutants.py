"""The mutation gate, whole: every mutant of every shipped schedule, n = 2..8, proved and judged. Prints the table; fails if one slips by.

Run from the repository root: ``python benchmarks/mutants.py [every] [workers]``; ``every`` takes each so many mutants only.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from multiprocessing import Pool
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "verify")]

from gate import Tally, judged  # noqa: E402
from judge import ORACLES  # noqa: E402
from mutants import SIZES, originals  # noqa: E402


def _one(task: tuple[int, int]) -> Tally:
    position, every = task
    return judged(list(originals())[position], every, offset=position * 17)


def _share(total: int, part: int) -> str:
    return f"{100 * part / total:.2f} %" if total else "-"


def table(tally: Tally, schedules: int) -> str:
    """The counts, in Markdown."""
    lines = [
        "| kind of fault | mutants | judged wrong | of these rejected | right in all orders played, rejected all the same |",
        "|---|---:|---:|---:|---:|",
    ]
    for kind in sorted(tally.mutants):
        columns = [counts[kind] for counts in (tally.mutants, tally.wrong, tally.rejected, tally.strict)]
        lines.append(f"| {kind} | " + " | ".join(f"{c:,}" for c in columns) + " |")
    wrong = tally.wrong.total()
    totals = (tally.mutants.total(), wrong, tally.rejected.total(), tally.strict.total())
    lines.append(f"| **all, of {schedules} schedules** | " + " | ".join(f"**{t:,}**" for t in totals) + " |")
    lines += ["", "| oracle | wrong mutants caught |", "|---|---:|"]
    lines += [f"| {oracle} | {_share(wrong, tally.weak[oracle])} |" for oracle in ORACLES]
    lines.append(f"| **the proof** | **{_share(wrong, tally.rejected.total())}** |")
    return "\n".join(lines)


def main() -> int:
    """Judge everything on all workers."""
    every = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    workers = int(sys.argv[2]) if len(sys.argv) > 2 else min(2, os.cpu_count() or 1)
    begin, schedules = time.perf_counter(), len(list(originals()))
    total = Tally()
    with Pool(workers) as pool:
        # The largest come last in each algorithm: taking them one by one keeps the workers busy.
        for tally in pool.imap_unordered(_one, [(position, every) for position in reversed(range(schedules))]):
            total.add(tally)
    seconds = time.perf_counter() - begin
    print(table(total, schedules))
    print(f"\nn = {SIZES[0]}..{SIZES[-1]}; {seconds:.0f} s on {workers} workers, {platform.machine()}, Python {platform.python_version()}")
    for name, kind, number in sorted(total.missed)[:50]:
        print(f"MISSED {name}: {kind}, mutant {number}")
    return 1 if total.missed else 0


if __name__ == "__main__":
    sys.exit(main())
