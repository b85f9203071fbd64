"""Every shipped topology loads, names a source for every number, routes, and carries a small
all_reduce that is right.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

import simcoll
from simcoll.topology import shipped_topologies
from simcoll.topology.machine import FABRICS, GENERATIONS, machine

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "topologies").glob("*.toml"))
NAMES = [path.stem for path in FILES]


def test_all_files_are_shipped():
    assert list(shipped_topologies()) == NAMES
    assert all(shipped_topologies().values())  # each has a description


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_machines_name_their_generation_and_fabric(path):
    topology = simcoll.load_topology(path.stem)
    if "box" in topology.groups:
        assert topology.traits["gpu"]
        assert topology.traits["cpu"] in {"intel", "amd", "arm"}
        assert topology.traits["generation"] in GENERATIONS
        assert ("$.nic.count" in topology.sources) == (topology.traits.get("fabric") in FABRICS)


def row(name):
    """A machine in the table of the page; 36 nodes are at least two domains."""
    one = simcoll.load_topology(name, nodes=1)
    network = "$.nic.count" in one.sources
    seen = machine(simcoll.load_topology(name, nodes=36 if network else 1))
    nodes = seen.domain_ranks[0] // one.nranks
    cells = [
        f"[`{name}`](#{name})",
        one.nranks,
        seen.inside or "-",
        f"{seen.gpu_uBps / 1e15:g}" if seen.inside else "-",
        nodes,
    ]
    cells += [
        f"{seen.nic_uBps / 1e15:g}" if network else "-",
        f"`{seen.fabric}`" if network else "-",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def section(path):
    """A machine's own numbers with their sources."""
    document = tomllib.loads(path.read_text())
    base = f" Extends `{document['extends']}`." if "extends" in document else ""
    lines = [f"## {path.stem}", "", f"{document['description']}.{base}", ""]
    for table, entries in document.items():
        for key, entry in entries.items() if isinstance(entries, dict) else ():
            if isinstance(entry, dict):
                value = (
                    "the list in the file" if isinstance(entry["value"], list) else entry["value"]
                )
                lines.append(f"* `{table}.{key}` {value}: {entry['source']}")
    return lines if lines[-1] else lines[:-1]


@pytest.mark.slow
def test_the_page_of_machines_is_printed_from_the_files(request):
    """``pytest --bless`` prints it anew."""
    page = ROOT / "docs" / "reference" / "machines.md"
    head = page.read_text().partition("|---|---|---|---|---|---|---|\n")
    machines = [path for path in FILES if "box" in simcoll.load_topology(path.stem).groups]
    sections = ["\n".join(section(path)) for path in machines]
    printed = (
        "".join(head[:2])
        + "\n".join(row(path.stem) for path in machines)
        + "\n\n"
        + "\n\n".join(sections)
        + "\n"
    )
    if request.config.getoption("--bless"):
        page.write_text(printed)
    assert page.read_text() == printed


@pytest.mark.parametrize("values", [FABRICS, GENERATIONS])
def test_the_page_lists_the_values_of_traits(values):
    rows = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in values.items())
    assert (
        f"|---|---|\n{rows}\n\n" in (ROOT / "docs" / "reference" / "topology-file.md").read_text()
    )


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_every_number_has_a_source(path):
    def bare(table, place):
        for key, value in table.items():
            inside = f"{place}.{key}"
            if isinstance(value, dict) and "value" not in value:
                yield from bare(value, inside)
            elif isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
                for number, entry in enumerate(value):
                    yield from bare(entry, f"{inside}[{number}]")
            elif not isinstance(value, dict) and inside not in (
                "$.nodes",
                "$.network.boxes_per_leaf",
            ):
                number = isinstance(value, int | float) and not isinstance(value, bool)
                if number or (
                    isinstance(value, str)
                    and value[:1].isdigit()
                    and not inside.startswith("$.desc")
                ):
                    yield inside
            elif isinstance(value, dict) and not str(value.get("source", "")).strip():
                yield inside

    assert list(bare(tomllib.loads(path.read_text()), "$")) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_routes_join_their_ends(name):
    """Each route is a chain of links from the source's vertex to the destination's."""
    topology = simcoll.load_topology(name)
    some = np.unique(np.linspace(0, topology.nranks - 1, 9).astype(np.int64))
    src, dst = (grid.ravel() for grid in np.meshgrid(some, some, indexing="ij"))
    routes = topology.route(src, dst)
    for row, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        links = routes.links[row][routes.links[row] >= 0]
        at = topology.rank_nodes[a]
        for link in links:
            assert topology.link_src[link] == at
            at = topology.link_dst[link]
        assert at == topology.rank_nodes[b]
        assert routes.latency_fs[row] == topology.link_latency_fs[links].sum()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_small_all_reduce(name):
    topology = simcoll.load_topology(name)
    ranks = np.unique(np.linspace(0, topology.nranks - 1, 7).astype(np.int64))
    schedule = simcoll.schedule("all_reduce", "ring", nranks=len(ranks))
    result = simcoll.emulate(simcoll.bind(schedule, 1001, "int32", ranks=ranks), topology)
    assert result.wrong == 0
    assert result.headroom is not None
    assert result.headroom >= 1
