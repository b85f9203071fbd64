"""Compare all engines on random runs, message by message, to the last femtosecond.

``python tests/support/run_agreement.py --cases 2000`` takes that many of each kind: ``dag``, random
steps, links, sizes and costs; ``algorithm``, registered algorithms on small machines; ``lift``,
covers of random runs, for the quotient; ``alone``, permutations on links of their own, for
lock-step; ``path``, steps that choose paths and wire formats; ``concurrent``, many messages of one
step; ``library``, calls as NCCL and RCCL play them on shipped machines; ``program``, random
operations with dependencies; ``step``, training steps; ``tree``, programs with all links and
without those that never bind; ``events``, ``dag`` and ``algorithm`` with links and ranks that
change during the run; ``path-events``, ``path`` with them; ``program-events``, ``program`` and
``step`` with them. A difference ends it with the line that repeats the case.
"""

import argparse
from collections import Counter
from itertools import count, islice

import event_cases
import program_cases
import program_event_cases
from agreement_cases import KINDS, compare, occupied

COMPARE = {
    kind: part.compare
    for part in (program_cases, event_cases, program_event_cases)
    for kind in part.KINDS
} | dict.fromkeys(KINDS, compare)


def main() -> None:
    """Run and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=tuple(COMPARE), action="append", help="default: all")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument(
        "--occupied",
        action="store_true",
        help="only cases with a FIFO and occupancy; of the first four kinds",
    )
    given = parser.parse_args()
    for kind in given.kind or COMPARE:
        took_part: Counter[str] = Counter()
        seeds = (seed for seed in count(given.first) if not given.occupied or occupied(kind, seed))
        for seed in islice(seeds, given.cases):
            took_part.update(COMPARE[kind](kind, seed))
        print(
            f"{kind}: {given.cases} cases agree; "
            + ", ".join(f"{way} {n}" for way, n in took_part.items())
        )


if __name__ == "__main__":
    main()
