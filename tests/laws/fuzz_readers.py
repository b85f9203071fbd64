"""Every reader against damaged files:
``python -m tests.laws.fuzz_readers [--inputs 1000000] [--seed 1] [--shard 1/2] [--keep FOLDER]``.

Prints how many were accepted, refused with one clear error, and anything else, by reader; the exit
status is 1 if there is anything else. ``--shard 1/2`` and ``--shard 2/2`` together are the whole.
Findings are kept in a folder, and each is made again by
``tests.support.fuzzing.damaged(reader, seed, number)``. A slice of it is in
``tests/laws/test_readers.py``.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

from tests.support.fuzzing import READERS, Tally, fuzz

MOST_BYTES = 500 * 10**6
"""What one input may take beside what the process holds once all readers are loaded."""
BLOCK = 500


def table(tally: Tally, readers: list[str], inputs: int, seconds: float) -> str:
    """The outcome, in Markdown."""
    lines = ["| reader | inputs | accepted | refused | else |", "|---|---:|---:|---:|---:|"]
    found = {name: sum(finding.reader == name for finding in tally.findings) for name in readers}
    for name, other in found.items():
        counts = (tally.accepted[name], tally.refused[name], other)
        lines.append(
            f"| {name} | {sum(counts):,} | " + " | ".join(f"{count:,}" for count in counts) + " |"
        )
    counts = (inputs, tally.accepted.total(), tally.refused.total(), len(tally.findings))
    lines.append("| **all** | " + " | ".join(f"**{count:,}**" for count in counts) + " |")
    return "\n".join([*lines, "", f"{seconds:.0f} CPU seconds"])


def main() -> int:
    """Read what damaged files there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--readers", nargs="*", default=list(READERS), choices=list(READERS))
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    which, many = map(int, asked.shard.split("/"))
    for name in asked.readers:
        fuzz(name, range(8), asked.seed, Tally())
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (held + MOST_BYTES, hard))
    tally, done, begin = Tally(), 0, time.process_time()
    each = -(-asked.inputs // len(asked.readers))
    for first in range(0, each, BLOCK):
        if first // BLOCK % many != which - 1:
            continue
        for name in asked.readers:
            numbers = range(first, min(each, first + BLOCK))
            known = len(tally.findings)
            fuzz(name, numbers, asked.seed, tally)
            done += len(numbers)
            for finding in tally.findings[known:]:
                print(
                    f"FOUND {name}, seed {asked.seed}, number {finding.number}: {finding.what}",
                    flush=True,
                )
                if asked.keep:
                    asked.keep.mkdir(parents=True, exist_ok=True)
                    (asked.keep / f"{name}-{asked.seed}-{finding.number}").write_bytes(
                        finding.content
                    )
        if first % (4 * BLOCK) == 0:
            print(
                f"{done:,} inputs, {len(tally.findings)} findings, "
                f"{time.process_time() - begin:.0f} CPU s",
                flush=True,
            )
    print(table(tally, asked.readers, done, time.process_time() - begin))
    return 1 if tally.findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
