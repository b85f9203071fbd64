"""Damaged frames against every server, while other clients use it: ``python -m tests.laws.fuzz_frames [--frames 100000] [--seed 1]``.

Fails when another client gets a wrong answer, none, or waits for longer than a second. Time in which a thread of ours was ready to run,
but others had the processors, does not count; the kernel measures it. A slice of it is in ``tests/laws/test_servers.py``.
"""

from __future__ import annotations

import argparse
import time

from tests.support.frame_fuzz import SERVERS, fuzz

LONGEST_S = 1.0


def main() -> int:
    """Send the frames, and print what the other clients saw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    bad = 0
    print(
        "| server | damaged frames | requests of others meanwhile | failed | longest wait | but for a processor |\n"
        "|---|---:|---:|---:|---:|---:|"
    )
    for name in SERVERS:
        begin, count = time.monotonic(), asked.frames // len(SERVERS)
        watch = fuzz(name, count, asked.seed)
        bad += bool(watch.failed) or watch.own_s > LONGEST_S
        print(
            f"| {name} | {count:,} | {watch.asked:,} | {len(watch.failed)} | {watch.longest_s * 1e3:.0f} ms | {watch.own_s * 1e3:.0f} ms |",
            flush=True,
        )
        for what in watch.failed[:5]:
            print(f"FAILED {name}: {what}")
        print(f"# {time.monotonic() - begin:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
