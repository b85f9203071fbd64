"""What predictions cost in one process, after the first: new sizes, a table of 30 sizes, and a size
that is known.

``python benchmarks/predictions.py`` takes about half a minute, ``--machines 2`` (nodes of every
shipped machine, all collectives) minutes. All figures are CPU time, with an empty folder of
remembered predictions.
"""

import os
import sys
import tempfile
from collections.abc import Iterable
from time import process_time

import simcoll
from simcoll.errors import ConfigError
from simcoll.files.paths import shipped_files
from simcoll.libraries.library import library_for
from simcoll.libraries.prediction import COLLECTIVES

TARGETS = {2: 50, 128: 1000}
TABLE = 5000
"""Milliseconds of a new size by nodes, and of a table of 30 sizes on 2 nodes."""


def milliseconds(
    topology: simcoll.types.Topology,
    sizes: Iterable[int],
    collective: str = "all_reduce",
    library: str = "nccl",
) -> list[float]:
    """CPU time of predicting each size."""
    taken = []
    for size in sizes:
        began = process_time()
        simcoll.predict(collective, size, topology, library=library)
        taken.append((process_time() - began) * 1000)
    return taken


def one_machine() -> None:
    """DGX H100 in detail."""
    for nodes, target in TARGETS.items():
        topology = simcoll.load_topology("dgx-h100", nodes=nodes)
        first = milliseconds(topology, [1000, 1 << 10, 1 << 16, 1 << 20, 1 << 28])[0]
        new = milliseconds(topology, [3000, 70_000, 1_500_000, 9_000_000, 300_000_000])
        table = sum(milliseconds(topology, [(8 << k) + 64 for k in range(30)]))
        known = milliseconds(topology, [3000])[0]
        print(
            f"{nodes} nodes: first {first:.0f} ms; a new size {min(new):.1f} to {max(new):.1f} ms "
            f"(target {target}, ratio "
            f"{max(new) / target:.2f}); 30 sizes {table:.0f} ms; a known size {known:.2f} ms"
        )


def machines(nodes: int) -> None:
    """Every shipped machine and collective: 30 new sizes, each after a size near it has been
    predicted.
    """
    every = []
    for name in shipped_files("topologies"):
        try:
            topology = simcoll.load_topology(name, nodes=nodes)
            library = str(library_for(None, topology))
            for collective in COLLECTIVES:
                milliseconds(topology, [(10 << k) + 64 for k in range(30)], collective, library)
                new = milliseconds(
                    topology, [(10 << k) + 128 for k in range(30)], collective, library
                )
                every.append((max(new), sum(new), name, collective))
                print(
                    f"# {name} {collective}: at most {max(new):.1f} ms, 30 sizes {sum(new):.0f} ms",
                    flush=True,
                )
        except ConfigError as error:
            print(f"# {name}: {error.message[:100]}")
    target = TARGETS.get(nodes, TARGETS[128])
    for most, table, name, collective in sorted(every, reverse=True)[:12]:
        print(
            f"{name:<16} {collective:<15} a new size at most {most:6.1f} ms ({most / target:.2f}), "
            f"30 sizes {table:6.0f} ms"
        )
    beyond = sum(most > target for most, *_ in every)
    table = max(table for _, table, *_ in every)
    print(
        f"{nodes} nodes, {len(every)} machines and collectives: {beyond} have a size above "
        f"{target} ms; the median of their dearest sizes "
        f"is {sorted(every)[len(every) // 2][0]:.1f} ms; 30 sizes take at most {table:.0f} ms "
        f"(target {TABLE} on 2 nodes)"
    )


def main() -> None:
    """Measure one machine, or with ``--machines NODES`` all."""
    if sys.argv[1:2] == ["--machines"]:
        machines(int(sys.argv[2]))
    else:
        one_machine()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SIMCOLL_CACHE_DIR"] = folder
        main()
