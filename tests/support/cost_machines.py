"""The machines to which costs of algorithms refer, and the times of algorithms on them.

Rates are such that up to sixteen messages share a port, and sizes such that pieces and shares
divide, without a remainder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import simcoll
from simcoll.algorithms import Algorithm
from simcoll.algorithms.cost import Formula, parse_cost
from simcoll.algorithms.registered import MACHINES
from simcoll.core.collective import Collective
from simcoll.core.plan import Plan
from simcoll.core.protocol import ideal
from simcoll.topology import Topology, boxes, crossbar, torus

__all__ = ["SERVED", "SITES", "Site", "cases", "coefficients", "complaints"]

EXACT = 1e-6  # for the femtosecond to which every message rounds
ATTAINED = 0.9  # of an upper bound, by the case that comes nearest
NEAR_LIMIT, MANY = 1.15, 64  # a limit is approached that far in so many pieces
RATE, SLOW_RATE = 720_720 * 10**6, 90_090 * 10**6  # bytes per second, of ports and of NICs
PER_BYTE, SLOW_PER_BYTE = Fraction(10**15, RATE), Fraction(10**15, SLOW_RATE)
REDUCED_FS = 700  # per byte
BYTES = 60 * 64 * 720_720  # per rank


@dataclass(frozen=True)
class Site:
    """A machine for any latency in femtoseconds, with the symbols that it gives a value.

    Machines are made once: those of many cases have their routes in common.
    """

    machine: Callable[[int], Topology]
    symbols: Mapping[str, Any]


def _switched(topology: Topology) -> Topology:
    return replace(topology, traits={**topology.traits, "switch_reduce": "nvlink-sharp sharp"})


def _crossbar(n: int) -> Site:
    return Site(
        cache(lambda latency: _switched(crossbar(n, f"{RATE} B/s", latency))),
        {"n": n, "b": PER_BYTE},
    )


def _torus(*dims: int) -> Site:
    n = 1
    for size in dims:
        n *= size
    symbols = {
        "n": n,
        "b": PER_BYTE,
        "dims": dims,
        "links": 2 * len(dims),
        "diameter": sum(size // 2 for size in dims),
    }
    return Site(cache(lambda latency: torus(dims, f"{RATE} B/s", latency)), symbols)


def _boxes(nodes: int, box: int) -> Site:
    @cache
    def machine(latency: int) -> Topology:
        inside, rail = f"{RATE} B/s", f"{SLOW_RATE} B/s"
        return _switched(
            boxes(nodes, box, inside, latency, nics=box, nic_bandwidth=rail, nic_latency=latency)
        )

    return Site(
        machine,
        {"n": nodes * box, "box": box, "nodes": nodes, "b_box": PER_BYTE, "b_net": SLOW_PER_BYTE},
    )


def _mesh(n: int) -> Site:
    # Tillson 1980: the directed links of a full mesh are n - 1 rings, except for 4 and 6 ranks.
    @cache
    def machine(latency: int) -> Topology:
        return boxes(1, n, f"{RATE} B/s", latency, interconnect="mesh")

    return Site(machine, {"n": n, "b": PER_BYTE, "rings": n - 1})


SITES: Mapping[str, list[Site]] = {
    "crossbar": [_crossbar(n) for n in (2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17)],
    "ring": [_torus(n) for n in (3, 4, 5, 8)],
    "torus": [_torus(*dims) for dims in ((4,), (5,), (3, 3), (4, 4), (3, 3, 3))],
    "mesh": [_mesh(n) for n in (3, 5, 7, 8)],
    "boxes": [_boxes(*sizes) for sizes in ((2, 2), (2, 4), (3, 4), (4, 2), (4, 4), (8, 2))],
    "any": [_crossbar(5), _torus(3, 3), _torus(2, 4), _boxes(2, 4)],
}
assert SITES.keys() == MACHINES.keys()

SERVED: Mapping[str, Callable[[int], bool]] = {
    "any": lambda _: True,
    "even": lambda n: n % 2 == 0,
    "power of 2": lambda n: n.bit_count() == 1,
    "multiple of box": lambda _: True,
    "up to 1024": lambda n: n <= 1024,
}
"""The numbers of ranks that the words of an algorithm mean."""


LATENCIES_FS, BYTES_FS = 10**15, 10**6
"""Latencies of a message: those of a run in which they are most of the time, and in which they are
next to nothing.
"""


def complaints(algorithm: Algorithm) -> list[str]:
    """What is wrong with the cost of an algorithm; nothing if its machines take that time."""
    cost = parse_cost(algorithm.cost)
    found = []
    if cost.formula is not None:
        formula = cost.formula
        plans = [
            (site, params, _plan(algorithm, formula, site, params))
            for site, params in cases(algorithm, 1)
        ]
        for latency_fs in (LATENCIES_FS, BYTES_FS):
            ratios = [
                (_ratio(plan, formula, site, params, latency_fs), site.symbols["n"], params)
                for site, params, plan in plans
            ]
            found += _outside(
                ratios, 1 + EXACT, ATTAINED if cost.at_most else 1 - EXACT, every=not cost.at_most
            )
    if cost.limit is not None:
        limit = cost.limit
        ratios = [
            (
                _ratio(_plan(algorithm, limit, site, params), limit, site, params, 0),
                site.symbols["n"],
                params,
            )
            for site, params in cases(algorithm, MANY)[-5:]  # the larger ones
        ]
        found += _outside(ratios, NEAR_LIMIT, 1 - EXACT, every=not cost.at_most)
    return found


def _outside(
    ratios: list[tuple[float, int, Any]], most: float, least: float, *, every: bool
) -> list[str]:
    """Ratios of times to formulas that are too large or, of every one or of all, too small."""
    assert len(ratios) >= 3, "a cost is compared on several machines"
    wrong = [row for row in ratios if row[0] > most or (every and row[0] < least)]
    if not every and max(ratios, key=lambda row: row[0])[0] < least:
        wrong = ratios
    return [
        f"n={n}, {params}: the time is {ratio:.4f} of the formula" for ratio, n, params in wrong
    ]


def cases(algorithm: Algorithm, pieces: int) -> list[tuple[Site, dict[str, Any]]]:
    """The machines of an algorithm, with several values of the parameters that its formula names,
    and others at their simplest.
    """
    cost = parse_cost(algorithm.cost)
    named = cost.formula.symbols if cost.formula is not None and pieces == 1 else frozenset()
    found = []
    sites = SITES[algorithm.machine]
    if algorithm.machine == "crossbar":
        # A cost for powers of another base than two is compared on three of them.
        bases = re.findall(r"n = ([3-9]|[1-9]\d+)\^k", " ".join(cost.conditions))
        sites = sites + [_crossbar(int(base) ** power) for base in bases for power in (1, 2, 3)]
    for site in sites:
        values: dict[str, list[Any]] = {
            "topology": [site.machine(BYTES_FS)],
            "dims": [site.symbols.get("dims")],
            "box": [site.symbols.get("box")],
            "pieces": [1, 2, 5] if "pieces" in named else [pieces],
            "radix": [2, 3, 4],
            "channels": [site.symbols["box"]] if "channels = box" in cost.conditions else [1, 2, 5],
        }
        if "channels" not in named and "channels = box" not in cost.conditions:
            values["channels"] = [1]
        names = [name for name in algorithm.params if name in values]
        for choice in product(*(values[name] for name in names)):
            params = dict(zip(names, choice, strict=True))
            if SERVED[algorithm.ranks](site.symbols["n"]) and cost.holds(
                {**site.symbols, **params}
            ):
                found.append(
                    (site, {name: value for name, value in params.items() if value is not None})
                )
    return found


def _plan(algorithm: Algorithm, formula: Formula, site: Site, params: Mapping[str, Any]) -> Plan:
    """The plan that is played on a machine.

    On a crossbar every reduction counts. Elsewhere a formula may leave them out, and then they take
    no time.
    """
    n, kind = site.symbols["n"], algorithm.collective
    per_byte = REDUCED_FS if "g" in formula.symbols or algorithm.machine == "crossbar" else 0
    pairs = tuple((rank, (rank + 1) % n) for rank in range(n)) if kind == "send_recv" else ()
    schedule = algorithm.build(Collective(kind, n, pairs=pairs), **params)
    blocks = n if kind in {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"} else 1
    size = _size_bytes(schedule.collective, site)
    return simcoll.bind(
        schedule, size // blocks, "uint8", protocol=ideal(reduce_as_per_byte=per_byte * 1000)
    )


def _size_bytes(collective: Collective, site: Site) -> int:
    """The bytes of the largest buffer of a rank; none of a barrier."""
    return 0 if collective.kind == "barrier" else site.symbols["n"] * BYTES


def _ratio(
    plan: Plan, formula: Formula, site: Site, params: Mapping[str, Any], latency_fs: int
) -> float:
    """The emulated time over that of the formula."""
    in_bound = "bound" in formula.symbols
    result = simcoll.emulate(plan, site.machine(latency_fs), data="none", bound=in_bound)
    per_byte = plan.protocol.reduce_as_per_byte // 1000
    size = _size_bytes(plan.schedule.collective, site)
    values = {**site.symbols, **params, "a": latency_fs, "g": per_byte, "s": size}
    if in_bound:
        values["bound"] = result.bound.time_fs
    expected = formula.value(values)
    return float(result.time_fs / expected) if expected else math.inf


def coefficients(algorithm: Algorithm, ranks: Iterable[int]) -> dict[int, tuple[Fraction, ...]]:
    """Of latency, bytes and reductions, by the numbers of ranks for which the cost holds."""
    cost = parse_cost(algorithm.cost)
    assert cost.formula is not None
    found = {}
    for n in ranks:
        if cost.holds({"n": n}):
            symbols = {"n": n, "s": 1, "pieces": 1, "a": 0, "b": 0, "g": 0}
            found[n] = tuple(cost.formula.value({**symbols, letter: 1}) for letter in "abg")
    return found
