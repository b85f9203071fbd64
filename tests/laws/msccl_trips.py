"""Every shipped algorithm to MSCCL XML and back: ``python -m tests.laws.msccl_trips [--ranks 16]``.

For 1 to so many ranks, out of place and in place: the file read back has the same proof and moves
the same data, bit for bit. What the format has no words for is refused by name. The first
difference is raised. A part of it is in ``tests/unit/formats/test_msccl_writer.py``.
"""

from __future__ import annotations

import argparse
import time

from tests.support.msccl_trips import trips


def main() -> int:
    """Print how many went there and back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=16)
    options = parser.parse_args()
    began = time.process_time()
    made = refused = 0
    reasons: set[str] = set()
    for nranks in range(1, options.ranks + 1):
        for in_place in (False, True):
            found = trips(nranks, in_place=in_place)
            made, refused = made + len(found.made), refused + len(found.refused)
            reasons |= {name.partition(" ")[0] for name in found.refused}
        print(
            f"n = {nranks}: {made:,} there and back, {refused:,} refused by name so far", flush=True
        )
    print(
        f"refused are some of {', '.join(sorted(reasons))}; {time.process_time() - began:.0f} CPU "
        "seconds"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
