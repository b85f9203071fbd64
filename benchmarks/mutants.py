"""The whole mutation gate: every mutant of every shipped schedule, n = 2..8, proved and judged.

Prints a line for each algorithm and rank count as it is done, and the table at the end. Fails if
the proof accepts a mutant that the judge calls wrong.

Run from the repository root: ``python benchmarks/mutants.py [every] [workers] [most]``, to take one
mutant in ``every``, and only rank counts up to ``most``.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from multiprocessing import Pool
from pathlib import Path

import cyclopts

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]


from simcoll.algorithms import ALGORITHMS  # noqa: E402
from tests.support.gate import Tally, judged  # noqa: E402
from tests.support.judge import ORACLES  # noqa: E402
from tests.support.mutants import SIZES, originals  # noqa: E402


def _one(task: tuple[int, int, int]) -> tuple[str, int, Tally, float]:
    """All schedules of one algorithm for one rank count: its title, their number, the counts, and
    CPU seconds.
    """
    begin = time.process_time()
    algorithm, nranks, every = task
    tally, schedules = Tally(), 0
    for schedule in originals((nranks,), (ALGORITHMS[algorithm],)):
        tally.add(judged(schedule, every, offset=17 * (algorithm + schedules)))
        schedules += 1
    return (
        f"{ALGORITHMS[algorithm].name} {ALGORITHMS[algorithm].collective} n={nranks}",
        schedules,
        tally,
        time.process_time() - begin,
    )


def _share(total: int, part: int) -> str:
    return f"{100 * part / total:.2f} %" if total else "-"


def table(tally: Tally, schedules: int) -> str:
    """The counts, in Markdown."""
    lines = [
        (
            "| kind of fault | mutants | judged wrong | of these rejected | right in all orders "
            "played, rejected all the same |"
        ),
        "|---|---:|---:|---:|---:|",
    ]
    for kind in sorted(tally.mutants):
        columns = [
            counts[kind] for counts in (tally.mutants, tally.wrong, tally.rejected, tally.strict)
        ]
        lines.append(f"| {kind} | " + " | ".join(f"{c:,}" for c in columns) + " |")
    wrong = tally.wrong.total()
    totals = (tally.mutants.total(), wrong, tally.rejected.total(), tally.strict.total())
    lines.append(
        f"| **all, of {schedules} schedules** | " + " | ".join(f"**{t:,}**" for t in totals) + " |"
    )
    lines += ["", "| oracle | wrong mutants caught |", "|---|---:|"]
    lines += [f"| {oracle} | {_share(wrong, tally.weak[oracle])} |" for oracle in ORACLES]
    lines.append(f"| **the proof** | **{_share(wrong, tally.rejected.total())}** |")
    return "\n".join(lines)


def main(
    every: int = 1, workers: int = min(2, os.cpu_count() or 1), most_ranks: int = SIZES[-1], /
) -> int:
    """Judge one mutant in ``every`` on all workers."""
    sizes = range(SIZES[0], 1 + most_ranks)
    schedules, total, cpu = 0, Tally(), 0.0
    # The largest first, so that no worker starts one at the end.
    tasks = [(algorithm, n, every) for n in reversed(sizes) for algorithm in range(len(ALGORITHMS))]
    with Pool(workers) as pool:
        for number, (title, made, tally, spent) in enumerate(
            pool.imap_unordered(_one, tasks), start=1
        ):
            schedules += made
            cpu += spent
            total.add(tally)
            counts = f"{tally.rejected.total():,} of {tally.wrong.total():,} wrong ones rejected"
            print(
                f"{number}/{len(tasks)} {title}: {counts}, {spent:.0f} CPU s",
                file=sys.stderr,
                flush=True,
            )
    print(table(total, schedules))
    machine = f"{workers} workers, {platform.machine()}, Python {platform.python_version()}"
    print(
        f"\n{len(ALGORITHMS)} algorithms, n = {sizes[0]}..{sizes[-1]}, one mutant in {every}; "
        f"{cpu:.0f} CPU s, {machine}"
    )
    for name, kind, number in sorted(total.missed)[:50]:
        print(f"MISSED {name}: {kind}, mutant {number}")
    return 1 if total.missed else 0


if __name__ == "__main__":
    sys.exit(cyclopts.run(main))
