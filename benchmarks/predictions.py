"""What predictions cost in one process, after the first: new sizes, a table of 30 sizes, and a size that is known.

``python benchmarks/predictions.py`` takes about half a minute. The folder of remembered predictions is an empty one.
"""

import os
import tempfile
from collections.abc import Iterable
from time import perf_counter

import simcoll


def milliseconds(topology: simcoll.types.Topology, sizes: Iterable[int]) -> list[float]:
    """Wall time of predicting an all_reduce of each size."""
    taken = []
    for size in sizes:
        began = perf_counter()
        simcoll.predict("all_reduce", size, topology)
        taken.append((perf_counter() - began) * 1000)
    return taken


def main() -> None:
    for nodes, target in ((2, 50), (128, 1000)):
        topology = simcoll.load_topology("dgx-h100", nodes=nodes)
        first = milliseconds(topology, [1000, 1 << 10, 1 << 16, 1 << 20, 1 << 28])[0]
        new = milliseconds(topology, [3000, 70_000, 1_500_000, 9_000_000, 300_000_000])
        table = sum(milliseconds(topology, [(8 << k) + 64 for k in range(30)]))
        known = milliseconds(topology, [3000])[0]
        print(
            f"{nodes} nodes: first {first:.0f} ms; a new size {min(new):.1f} to {max(new):.1f} ms (target {target}, ratio "
            f"{max(new) / target:.2f}); 30 sizes {table:.0f} ms; a known size {known:.2f} ms"
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SIMCOLL_CACHE_DIR"] = folder
        main()
