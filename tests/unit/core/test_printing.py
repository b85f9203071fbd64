"""What people print fits on a screen."""

import json
import sys
from dataclasses import asdict, replace
from functools import cache
from types import ModuleType
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import simcoll
import simcoll.distributed as dist
from simcoll.collectives import halo_exchange, scan
from simcoll.planning import Program, load_gpu, perf
from simcoll.proving import check_lowering, lower
from simcoll.topology import crossbar, from_networkx, shipped_topologies


def result(nranks, count=1 << 20, *, unproved=True, **how):
    plan = simcoll.bind(
        simcoll.schedule("all_reduce", "ring", nranks=nranks, channels=2), count, unproved=unproved
    )
    return simcoll.emulate(plan, crossbar(nranks, "50 GB/s", "1 us"), **how)


def lines(thing):
    return str(thing).splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_topologies())
def test_a_topology_fits_in_five_lines(name):
    topology = simcoll.load_topology(name)
    assert 1 < len(lines(topology)) <= 5
    assert max(map(len, lines(topology))) <= 200
    assert topology.name in lines(topology)[0]
    assert str(topology.nranks) in lines(topology)[1]
    assert len(repr(topology)) < 100


def test_a_topology_says_what_it_is_made_of():
    assert lines(simcoll.load_topology("dgx-h100", nodes=2))[1:] == [
        "ranks     16 in groups: 2 box, 8 leaf",
        "vertices  16 gpu, 16 nic, 11 switch",  # an NVSwitch a node, eight rails, the spine
        # Two nodes a rail to the spine.
        "links     32 nvlink at 450 GB/s, 32 pcie at 50 GB/s, 48 net at 50 GB/s to 100 GB/s",
    ]


@pytest.mark.parametrize(
    "how", [{}, {"data": "none"}, {"bound": False}, {"data": [np.ones(64, np.float32)] * 8}]
)
def test_a_result_fits_in_five_lines(how):
    shown = result(8, 64, **how)
    assert len(lines(shown)) <= 5
    assert len(lines(shown.plan)) == 1
    assert len(repr(shown)) < 200
    assert len(repr(shown).splitlines()) == 1


@pytest.mark.slow
def test_a_large_result_fits_as_well():
    # Without its proof the waits between its channels would be looked for.
    shown = result(1024, unproved=False, data="none", keep=True)
    assert len(lines(shown)) <= 5
    assert max(map(len, lines(shown))) <= 200
    assert "played for all" in str(shown)


def test_no_bytes_and_no_time_have_words():
    assert "busbw 0 B/s" in str(result(1, 0))
    assert "busbw 0 B/s" in str(result(1, 5, bound=False))


def test_names_cannot_steer_a_terminal_or_a_page():
    evil = replace(crossbar(4, "50 GB/s"), name="a\x1b[2J\n<script>", description="b\n" * 20)
    assert len(lines(evil)) <= 5
    assert "\x1b" not in str(evil) + repr(evil)
    shown = simcoll.emulate(simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), 8), evil)
    assert len(lines(shown)) == 5
    assert "<script>" not in shown._repr_html_()
    assert shown._repr_html_().count("<tr>") == 5


def test_any_graph_can_be_printed():
    import networkx as nx

    graph = nx.DiGraph()
    for rank in range(2):
        graph.add_node(rank, kind="gpu", rank=rank)
    graph.add_edge(0, 1, capacity_uBps=10**15)
    graph.add_edge(1, 0, capacity_uBps=2 * 10**15)
    assert lines(from_networkx(graph))[-1] == "links     2 link at 1 GB/s to 2 GB/s"


@cache
def public_objects():
    """One of every public type, each of many ranks."""
    schedule = simcoll.schedule("all_reduce", "ring", nranks=64, channels=2)
    step, repeat = list(schedule.blocks())[:2]
    plan = simcoll.bind(schedule, 1 << 16)
    machine = simcoll.load_topology("dgx-h100", nodes=8)
    run = simcoll.emulate(plan, machine)

    def program(rank, world):
        values = np.full(5, rank, np.float32)
        for _ in range(20):
            dist.all_reduce(values)
        return values

    spawned = dist.spawn(program, nprocs=64, record=True)
    small = simcoll.bind(simcoll.schedule("all_reduce", "tree", nranks=4), 100)
    things = [
        schedule,
        schedule.collective,
        scan(64),
        scan(64).definition,
        schedule.layout,
        simcoll.schedule("all_reduce", "two_shot", nranks=64).layout,
        step,
        repeat,
        plan,
        plan.proof,
        plan.protocol,
        machine,
        run,
        run.bound,
        run.bound.certificate,
        simcoll.predict("all_reduce", 1 << 20, machine),
        perf("all_reduce", crossbar(8, "50 GB/s"), ["1K", "1M"], algorithms=["ring"]),
        lower(small),
        check_lowering(small),
        simcoll.emulate([small, small], crossbar(4, "50 GB/s")),
        Program.of([small]),
        spawned,
        spawned.records[0],
        load_gpu("h100"),
        spawned.workload,
    ]
    names = [type(thing).__name__ for thing in things]
    return dict(zip([f"{n}-{i}" for i, n in enumerate(names)], things, strict=True))


NAMED = [
    "Schedule-0 Collective-1 Collective-2 Definition-3 Layout-4 Layout-5 Step-6 Repeat-7 Plan-8",
    "Proof-9 Protocol-10 Topology-11 Result-12 Bound-13 Bottleneck-14 Prediction-15 SweepTable-16",
    "RankProgram-17 ProgramProof-18 ProgramResult-19 Program-20 RunResult-21 Record-22 Gpu-23 Workload-24",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", " ".join(NAMED).split())
def test_every_public_object_prints_in_a_line_and_in_a_few(name):
    thing = public_objects()[name]
    assert len(repr(thing)) <= 240
    assert "\n" not in repr(thing)
    assert " object at 0x" not in repr(thing) + str(thing)
    assert len(lines(thing)) <= 30  # the longest, a GPU, has a line for each of its numbers
    assert max(map(len, lines(thing))) <= 250
    if hasattr(thing, "_repr_html_"):
        assert ET.fromstring(thing._repr_html_()).tag in {
            "table",
            "{http://www.w3.org/2000/svg}svg",
        }
    if hasattr(thing, "to_dict"):
        assert json.loads(json.dumps(thing.to_dict(), default=np.ndarray.tolist))


@pytest.mark.slow
def test_what_has_rows_has_frames(monkeypatch):
    frames = []

    class DataFrame:
        def __init__(self, rows):
            frames.append(rows)

    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    with pytest.raises(simcoll.ConfigError, match="pip install pandas"):
        public_objects()["Schedule-0"].to_frame()
    module = ModuleType("pandas")
    module.DataFrame = DataFrame
    monkeypatch.setitem(sys.modules, "pandas", module)
    for name in ("Schedule-0", "SweepTable-16", "RunResult-21"):
        public_objects()[name].to_frame()
    assert len(frames[0]["src_rank"]) == 64 * 2 * 127
    assert frames[1]["choice"] == ["ring", "ring"]
    assert frames[2]["rank"] == list(range(64))


@pytest.mark.slow
def test_a_result_is_a_dictionary_without_end():
    """A proof leads to its schedule's facts, which lead to the proof."""
    plain = asdict(result(4, unproved=False))
    assert plain["time_fs"] > 0
    assert result(4).to_dict()["nranks"] == 4


def drawn(schedule):
    """The arrows and dots of a picture, with their titles, and its texts."""
    space = "{http://www.w3.org/2000/svg}"
    picture = ET.fromstring(schedule._repr_html_())
    titles = [title.text for title in picture.iter(f"{space}title")]
    paths = [
        path.get("d")
        for path in picture.iter(f"{space}path")
        if path.find(f"{space}title") is not None
    ]
    return titles, paths, [text.text for text in picture.iter(f"{space}text")]


def test_a_picture_keeps_channels_apart_and_names_every_transfer():
    titles, paths, texts = drawn(simcoll.schedule("all_reduce", "ring", nranks=4, channels=2))
    assert len(titles) == 7 * 8  # six steps of arrows, and one of dots, on two channels
    assert len(set(paths)) == 6 * 8  # none lies on another
    assert titles[8] == ("step 1: rank 0 to rank 1, reduction of output chunk 0, channel 0")
    assert {"rank 0", "rank 3", "step", "copy", "reduction"} <= set(texts)


def test_a_picture_is_drawn_up_to_64_ranks_of_own_collectives_too():
    assert drawn(simcoll.schedule(halo_exchange(64), "direct"))[0]
    assert simcoll.schedule("all_reduce", "ring", nranks=65)._repr_html_().startswith("<table>")
