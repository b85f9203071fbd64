"""Damaged frames against every server, while other clients use it:
``python -m tests.laws.fuzz_frames [--frames 100000] [--seed 1]``.

Then clients that want much of the store: 60 wait for 65,536 keys that come and go, 50 MiB is
appended to and read twice, 50 MiB is set again and again, and 65,535 values are read at once.

Fails when another client gets a wrong answer, none, or waits for longer than a second. Time in
which a thread of ours was ready to run, but others had the processors, does not count; the kernel
measures it. A slice of it is in ``tests/laws/test_servers.py``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from tests.support.frame_fuzz import SERVERS, Watch, fuzz
from tests.support.greedy_clients import ATTACKS, attack

LONGEST_S = 1.0


def main() -> int:
    """Send the frames, and print what the other clients saw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=10, help="of each attack by clients that want much"
    )
    asked = parser.parse_args()
    print(
        "| server | damaged frames | requests of others meanwhile | failed | longest wait | but "
        "for a processor |\n"
        "|---|---:|---:|---:|---:|---:|"
    )
    count = asked.frames // len(SERVERS)
    bad = [
        _told(name, f"{count:,}", lambda name=name: fuzz(name, count, asked.seed))
        for name in SERVERS
    ]
    bad += [_told("store", name, lambda name=name: attack(name, asked.seconds)) for name in ATTACKS]
    return 1 if any(bad) else 0


def _told(name: str, what: str, watched: Callable[[], Watch]) -> bool:
    """Print a row of the table, and tell whether something was wrong."""
    begin, watch = time.monotonic(), watched()
    print(
        f"| {name} | {what} | {watch.asked:,} | {len(watch.failed)} | {watch.longest_s * 1e3:.0f} "
        f"ms | {watch.own_s * 1e3:.0f} ms |",
        flush=True,
    )
    for failure in watch.failed[:5]:
        print(f"FAILED {name}: {failure}")
    print(f"# {time.monotonic() - begin:.0f} s")
    return bool(watch.failed) or watch.own_s > LONGEST_S


if __name__ == "__main__":
    raise SystemExit(main())
