"""Random rank programs with random faults on random machines, held to their promises.

``python -m tests.laws.campaign [--minutes 30] [--first 0]`` plays one seed after the other;
``--seed 17`` plays one, and ``--case '{...}'`` a case as it is printed for a failure, which is
first made as small as it can be. The exit status is 1 if a promise was broken, or if something that
must happen now and then (:data:`MUST`) never did. A slice is in ``tests/laws/test_campaign.py``;
the promises are in ``tests/support/campaign_play.py``.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from tests.support.campaign_cases import FAULTS, KINDS, drawn, from_text
from tests.support.campaign_play import broken, play, report
from tests.support.campaign_run import DOCUMENTED

EVENTFUL = ("peer stopped", "message given up", "link is down", "data of a rank that stopped")
MUST = (
    *FAULTS,
    *KINDS,
    *(
        kind
        for kind in DOCUMENTED
        if kind not in ("meeting timed out", "data of a rank that called last", *EVENTFUL)
    ),
    *(f"under events: {kind}" for kind in (*EVENTFUL, "hang", "operation timed out")),
    "programs under events",
    "later under events",
    "stopped in its program",
    "healed events, all done",
    "tie",
    "zero elements",
    "waits later",
    "lost link",
    "slow link",
    "cut off, refused",
    "healed",
    "nothing failed",
    "folded",
    "engines compared",
    "event runs compared",
    "LinkShare",
    "Background",
    "Slow",
    "Stop",
    "policy stall",
    "policy re-route",
    "policy abort",
    "cut: stuck",
    "cut: aborted",
    "gave up after retries",
    "retried and went on",
    "came to its end under events",
)
"""What must have happened for a campaign to have shown anything."""
MOST_FOUND = 20


def campaign(seeds, minutes=float("inf"), say=print):
    """Play seeds until the time is over; what was seen, the reports of failures, and how many were
    played.
    """
    seen, found, played = Counter(), [], 0
    end = time.monotonic() + 60 * minutes
    for seed in seeds:
        if time.monotonic() > end or len(found) == MOST_FOUND:
            break
        case = drawn(seed)
        try:
            play(case, seen)
        except Exception:  # noqa: BLE001
            found.append(report(seed, case))
            say(found[-1])
        played += 1
        if played % 1000 == 0:
            say(
                f"{played:,} programs, {len(found)} broken promises, {time.process_time():.0f} CPU "
                "s"
            )
    return seen, found, played


def never(seen):
    """What did not happen, though it must."""
    return [name for name in MUST if not seen[name]]


def main() -> int:
    """Play what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--case")
    asked = parser.parse_args()
    if asked.seed is not None or asked.case:
        said = broken(from_text(asked.case) if asked.case else drawn(asked.seed))
        print(said or "every promise is kept")
        return 1 if said else 0
    seen, found, played = campaign(
        iter(range(asked.first, 2**62)), asked.minutes, lambda line: print(line, flush=True)
    )
    spent = (
        f"{seen.total():,} things seen, {len(found)} broken promises, "
        f"{time.process_time():.0f} CPU s"
    )
    print(f"{played:,} programs from seed {asked.first} on, {spent}")
    print(", ".join(f"{name} {many:,}" for name, many in sorted(seen.items())))
    missing = never(seen)
    if missing:
        print(f"never happened: {', '.join(missing)}")
    return 1 if found or missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
