"""How far published tables of one call differ from each other: the floor of any prediction.

Two tables are of one call if GPUs, links, network, ranks of each domain, collective and variables
are the same; of sums, also whether they are of bytes. ``benchmarks/validation.py`` prints the two
tables of this module.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from simcoll.libraries.corrected import BYTES, VERBS
from simcoll.libraries.intervals import BANDS, METHODS, band_of
from simcoll.libraries.library import load_library
from simcoll.libraries.question import class_of
from simcoll.planning.measured.measurements import published_tables
from simcoll.topology.machine import machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from simcoll.planning.measured.accuracy import Error
    from simcoll.planning.measured.measurements import PublishedTable
    from simcoll.topology.machine import Machine

PUBLISHERS = "two publishers"
SAME_STARTS = ("LAUNCHER=process", "LAUNCHER=thread")
"""Launchers that differ by less than the tables of one do."""
AGAIN = """
### The same call, measured again

Difference of two tables of the same GPUs, links, network, ranks of each node, collective and variables: median over pairs of tables of the median over their common sizes, small / middle / large, in percent;
in brackets the p90. Pairs of one run of NVIDIA AIConfigurator are its half and int8 of an all_gather or all_to_all, which only moves bytes.

| | | pairs | difference |
|---|---|---|---|
"""
FLOOR = """
### The floor

What no prediction goes below: how far the table of another publisher is off, if it is taken for the prediction. One that knew the middle of many publishers would be off by 1/√2 of that. *Predicted*
are the uncalibrated left-out errors of the same rows. Of machines *of one publisher*, predictions know no other table.

| kind | tables | predicted | another publisher's table | the middle of many | aim |
|---|---|---|---|---|---|
"""
FLOOR_TAIL = """
Over nodes, where others have the same call, predictions are as near to a table at small and middle sizes as another publisher's table is, 16 / 11 against 20 / 13 %, and the middle of many would be off by 14 / 9 %: of
the aim, 15 / 15 %, nothing is left to gain there but small sizes over InfiniBand and RoCE. The aims are missed on machines that one publisher alone measured (28 / 25 %), three in ten of them with Slingshot. Large sizes
are not at the floor: two publishers agree within 1 to 2 %, predictions are off by 3 % in a node of 8 and by 7 % over nodes, most by Oracle's A100 with 16
ports of RoCE (10 % too slow) and ALCF's A100 with Slingshot (12 % too fast), whose rates follow from other machines when they are left out. Two GPUs of different publishers differ most at small sizes, by how they launch.
"""


def publisher_of(table: PublishedTable) -> str:
    """Who published a table."""
    return table.system.partition(",")[0]


@cache
def facts_of(table: PublishedTable) -> Machine:
    """The machine of a table."""
    return machine(table.machine())


def nodes_of(table: PublishedTable) -> str:
    """Whether a table is of one node or rack, or of several."""
    return "several nodes" if facts_of(table).domains > 1 else "one node"


def call_of(table: PublishedTable) -> tuple[object, ...]:
    """What two tables of one call share."""
    facts, library = facts_of(table), load_library(table.library_file)
    network = (facts.fabric, facts.nic_uBps) if facts.domains > 1 else ()
    words = [word for word in table.environment.split() if word not in SAME_STARTS]
    of_bytes = table.dtype in BYTES and table.collective in {"all_reduce", "reduce_scatter"}
    return (
        *(table.library, class_of(facts, library), facts.gpu_uBps, facts.inside, *network),
        *(facts.domain_ranks, table.collective, " ".join(words), of_bytes),
    )


@cache
def by_call() -> list[list[PublishedTable]]:
    """All tables, also the later ones, by call."""
    calls: dict[tuple[object, ...], list[PublishedTable]] = defaultdict(list)
    for table in (*published_tables(added=True), *published_tables(later=True)):
        calls[call_of(table)].append(table)
    return list(calls.values())


def differences(one: PublishedTable, other: PublishedTable) -> dict[str, float]:
    """By band, the median difference of two tables at the sizes of both."""
    times = dict(other.rows)
    values: dict[str, list[float]] = defaultdict(list)
    for size, time_ns in one.rows:
        if size in times:
            values[band_of(size)].append(abs(times[size] / time_ns - 1))
    return {band: float(np.median(of_band)) for band, of_band in values.items()}


def relation(one: PublishedTable, other: PublishedTable) -> str:
    """Who measured two tables."""
    if publisher_of(one) != publisher_of(other):
        return PUBLISHERS
    return f"one publisher, {'one version' if one.version == other.version else 'two versions'}"


@cache
def pairs_again() -> dict[tuple[str, str], list[dict[str, float]]]:
    """The differences of all pairs of one call, by nodes and by who measured both."""
    pairs: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for tables in by_call():
        for one, other in combinations(tables, 2):
            if found := differences(one, other):
                pairs[nodes_of(one), relation(one, other)].append(found)
    return pairs


def publishers_differ(nodes: str, band: str) -> float:
    """The median difference of two publishers in one node or over several."""
    pairs = pairs_again()[nodes, PUBLISHERS]
    return float(np.median([pair[band] for pair in pairs if band in pair]))


def again() -> Iterator[str]:
    """The table of the same calls, measured again."""
    yield AGAIN
    for (nodes, who), found in sorted(pairs_again().items()):
        cells = []
        for band in BANDS:
            values = [pair[band] for pair in found if band in pair]
            high = f"{100 * np.quantile(values, 0.9):.0f}" if values else "-"
            cells.append(f"{percent(float(np.median(values)))} ({high})" if values else "-")
        yield f"| {nodes} | {who} | {len(found)} | {' / '.join(cells)} |\n"


def percent(value: float) -> str:
    """A share in percent, as the page prints it."""
    return f"{100 * value:.1f}" if value < 0.1 else f"{100 * value:.0f}"


def network_of(table: PublishedTable) -> str:
    """The network of a table, in words; empty in a node."""
    facts = facts_of(table)
    if facts.domains == 1:
        return ""
    slingshot = "Slingshot" if facts.fabric.startswith("slingshot") else "EFA, TCPX and TCPXO"
    return "InfiniBand and RoCE" if facts.fabric in VERBS else slingshot


def floors(
    errors: Sequence[Error],
    goals: Mapping[str, str],
    group_of: Callable[[PublishedTable], str],
) -> Iterator[str]:
    """The table of floors, by kind of machine, with those of which others have the same call."""
    relative: dict[str, dict[int, float]] = defaultdict(dict)
    for error in errors:
        if error.method == METHODS[0]:
            relative[error.table.name][error.size_bytes] = abs(error.relative)
    groups: dict[str, list[PublishedTable]] = defaultdict(list)
    others_of: dict[str, list[PublishedTable]] = {}
    for tables in by_call():
        for table in tables:
            others = [other for other in tables if publisher_of(other) != publisher_of(table)]
            if table.name in relative:
                groups[group_of(table)].append(table)
                if any(differences(table, other) for other in others):
                    others_of[table.name] = others
    yield FLOOR
    for group, goal in goals.items():
        shared = [table for table in groups[group] if table.name in others_of]
        for network in sorted({"", *(network_of(table) for table in shared)}):
            tables = [table for table in shared if network in {"", network_of(table)}]
            if tables:
                off = [_against(table, others_of[table.name], relative) for table in tables]
                apart = [pair[1] for pair in off]
                middle = _cells(apart, 2**-0.5)
                title = f"{group}, {network}" if network else group
                cells = (title, str(len(tables)), _cells(pair[0] for pair in off), _cells(apart))
                yield f"| {' | '.join(cells)} | {middle} | {goal} |\n"
        alone = [table for table in groups[group] if table.name not in others_of]
        found = [_medians(_by_band(relative[table.name])) for table in alone]
        if alone:
            yield f"| {group}, of one publisher | {len(alone)} | {_cells(found)} | | | {goal} |\n"
    yield FLOOR_TAIL


def _by_band(relative: Mapping[int, float]) -> dict[str, list[float]]:
    errors: dict[str, list[float]] = defaultdict(list)
    for size, error in relative.items():
        errors[band_of(size)].append(error)
    return errors


def _against(
    table: PublishedTable,
    others: Sequence[PublishedTable],
    relative: Mapping[str, Mapping[int, float]],
) -> tuple[dict[str, float], dict[str, float]]:
    """By band, the median error of the rows of a table that others have too, and how far those of
    the others are from it.
    """
    errors: dict[str, list[float]] = defaultdict(list)
    apart: dict[str, list[float]] = defaultdict(list)
    for size, time_ns in table.rows:
        times = [dict(other.rows).get(size) for other in others]
        off = [abs(time / time_ns - 1) for time in times if time is not None]
        if off:
            errors[band_of(size)].append(relative[table.name][size])
            apart[band_of(size)].append(float(np.median(off)))
    return _medians(errors), _medians(apart)


def _medians(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {band: float(np.median(of_band)) for band, of_band in values.items()}


def _cells(found: Iterable[Mapping[str, float]], factor: float = 1.0) -> str:
    """Medians over tables, small / middle / large."""
    tables = list(found)
    values = [[table[band] for table in tables if band in table] for band in BANDS]
    return " / ".join(percent(factor * float(np.median(of))) if of else "-" for of in values)
