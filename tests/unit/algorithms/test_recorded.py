"""Content hashes of the shipped schedules: what a name and parameters meant when they were
recorded, they mean today.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.core.collective import KINDS, Collective
from simcoll.errors import ConfigError
from simcoll.topology.families import crossbar, fat_tree, torus

# Every (collective, algorithm) to its parameters, as text, to a line of hashes: one for every rank
# count, in and out of place. They were taken before steps without transfers were skipped, with
# these steps left out.
RECORDED = json.loads((Path(__file__).parent / "data" / "content_hashes.json").read_text())
RANKS = (1, 2, 3, 4, 5, 7, 8, 16)
TRIED = {
    "channels": (None, 3),
    "pieces": (None, 1, 3),
    "box": (None, 1, 2, 4),
    "pod": (None, 2, 4, 8),
    "dims": (None, (4,), (2, 2), (2, 4), (4, 2), (2, 2, 2), (4, 4), (3, 1)),
    "topology": (None, "crossbar", "torus", "fat_tree"),
}


@cache
def topology_of(name, n):
    """A machine of n ranks by name; None where there is none."""
    if name == "crossbar":
        return crossbar(n, "100 GB/s")
    if name == "torus":
        dims = {4: (2, 2), 5: (5,), 8: (2, 4)}.get(n)
        return dims and torus(dims, "50 GB/s" if n == 8 else "100 GB/s")
    return fat_tree(2, n // 2, "50 GB/s", oversubscription=2) if n in {4, 8} else None


def collectives(kind, n):
    """The collective of n ranks, from some roots or for some pairs."""
    if KINDS[kind].rooted:
        return [Collective(kind, n, root=root) for root in sorted({0, n // 2, n - 1})]
    if kind == "send_recv":
        shift = tuple((r, (r + 1) % n) for r in range(n))
        return [
            Collective(kind, n, pairs=pairs)
            for pairs in (shift, tuple((r, r) for r in range(n)), ())
        ]
    return [Collective(kind, n)]


def hash_of(which, name, params):
    """The first digits of the content hash; ``-`` where the algorithm refuses."""
    given = dict(params)
    if "topology" in given:
        given["topology"] = topology_of(given["topology"], which.nranks)
        if given["topology"] is None:
            return "-"
    try:
        return simcoll.schedule(which, name, **given).content_hash()
    except ConfigError:
        return "-"


def line_of(kind, name, params):
    """One hash for each rank count, over all roots, in and out of place."""
    words = []
    for n in RANKS:
        found = [
            hash_of(replace(c, in_place=p), name, params)
            for c in collectives(kind, n)
            for p in (False, True)
        ]
        words.append(
            "-"
            if set(found) == {"-"}
            else hashlib.sha256(" ".join(found).encode()).hexdigest()[:12]
        )
    return " ".join(words)


def params_of(known):
    """All combinations of some values of the parameters."""
    names = [name for name in TRIED if name in known]
    for values in product(*(TRIED[name] for name in names)):
        yield {name: value for name, value in zip(names, values, strict=True) if value is not None}


def lines_of(found):
    """The lines of an algorithm, by parameters; nothing where all rank counts are refused."""
    lines = {
        json.dumps(params): line_of(found.collective, found.name, params)
        for params in params_of(found.params)
    }
    return {params: line for params, line in lines.items() if set(line) - set("- ")}


@pytest.mark.slow
@pytest.mark.parametrize("key", RECORDED)
def test_schedules_are_those_recorded(key):
    (found,) = [a for a in ALGORITHMS if f"{a.collective} {a.name}" == key]
    assert lines_of(found) == RECORDED[key]


def test_every_recorded_algorithm_is_shipped():
    assert set(RECORDED) <= {f"{a.collective} {a.name}" for a in ALGORITHMS}
