"""The timeline of a run, its summary and its file."""

import gzip
import json

import numpy as np
import pytest

import simcoll.distributed as dist
from simcoll.errors import ConfigError
from simcoll.topology import crossbar

US = 10**9
TWO = crossbar(2, "1 GB/s", "0 us")


def overlapping(rank, world_size):
    """A message of 40 us beside 30 us of computation, then one of 40 us alone; rank 1 is 5 us
    late.
    """
    dist.compute("5 us" if rank else 0, "load")
    x = np.zeros(40_000, np.uint8)
    call, peer = ((dist.isend, 1), (dist.irecv, 0))[rank]
    work = call(x, peer)
    dist.compute("30 us", "forward")
    work.wait()
    (dist.send, dist.recv)[rank](x, peer)


@pytest.fixture(scope="module")
def result():
    return dist.spawn(overlapping, 2, topology=TWO, trace=True)


def test_the_summary_is_that_worked_out_by_hand(result):
    assert result.time_fs == 85 * US
    sender, receiver = (result.timeline.summary(rank) for rank in (0, 1))
    assert (sender.total_fs, receiver.total_fs) == (85 * US, 85 * US)
    assert (sender.compute_fs, receiver.compute_fs) == (30 * US, 35 * US)
    # Messages fly from 5 to 45 us and from 45 to 85 us; the sender computes until 30 us, the
    # receiver from 0 to 35 us.
    assert sender.communication_fs == receiver.communication_fs == 80 * US
    assert sender.exposed_fs == {"0: default_pg": 55 * US}
    assert receiver.exposed_fs == {"0: default_pg": 50 * US}
    assert sender.idle_fs == receiver.idle_fs == 0
    assert str(receiver) == (
        "rank 1: 85 us, compute 35 us, communication 80 us (exposed: 50 us of 0: default_pg), idle "
        "0 s, memory 39.1 KiB"
    )


def test_the_table_has_a_line_for_ranks_that_print_alike(result):
    assert result.timeline.table().splitlines() == [
        "ranks  total  compute  communication  idle  memory    exposed communication",
        "0      85 us  30 us    80 us          0 s   39.1 KiB  55 us of 0: default_pg",
        "1      85 us  35 us    80 us          0 s   39.1 KiB  50 us of 0: default_pg",
    ]

    def program(rank, world_size):
        dist.compute(f"{rank % 4} us" if rank < 40 else f"{rank} us")

    lines = dist.spawn(program, 60, trace=True).timeline.table().splitlines()
    assert len(lines) == 1 + 16 + 1
    assert lines[1].split("  ")[0] == "0, 4, 8, 12, 16, 20, 24, 28, ... (10 ranks)"
    assert lines[-1] == "and 8 ranks more"


@pytest.mark.parametrize("alike", [None, "all", [range(4), range(4, 8)]])
def test_ranks_that_are_alike_have_one_summary(alike):
    def program(rank, world_size):
        dist.compute("2 us")
        dist.all_reduce(np.zeros(10))

    timeline = dist.spawn(program, 8, alike=alike, trace=True).timeline
    first, last = timeline.summary(0), timeline.summary(7)
    assert last.communication_fs == first.communication_fs == first.total_fs - 2 * US
    assert timeline.table().splitlines()[1].startswith("0-7 ")


def test_waits_name_what_they_wait_for(result):
    (first, second) = [span for span in result.timeline.waited if span.rank == 0]
    assert (first.begin_fs, first.end_fs) == (30 * US, 45 * US)
    assert "to rank 1, tag 0" in first.name
    assert (second.begin_fs, second.end_fs) == (45 * US, 85 * US)


def test_the_file_has_every_rank_and_an_arrow_for_every_message(tmp_path):
    path = tmp_path / "t.json.gz"
    once = dist.spawn(overlapping, 2, topology=TWO, trace=path)
    first = path.read_bytes()
    dist.spawn(overlapping, 2, topology=TWO, trace=path)
    assert path.read_bytes() == first
    document = json.loads(gzip.decompress(first))
    assert document["otherData"]["trace_hash"] == once.trace_hash
    events = document["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [(e["pid"], e["ts"], e["dur"]) for e in spans if e["name"] == "forward"] == [
        (0, 0, 30),
        (1, 5, 30),
    ]
    kernels = [event for event in spans if event["name"] == "ncclDevKernel_recv"]
    assert [(event["ts"], event["dur"]) for event in kernels] == [(5, 40), (45, 40)]
    assert kernels[0]["args"]["Out msg nelems"] == 40_000
    arrows = [event for event in events if event["ph"] in "sf"]
    assert [(event["ph"], event["pid"], event["ts"]) for event in arrows] == [
        ("s", 0, 5),
        ("f", 1, 45),
        ("s", 0, 45),
        ("f", 1, 85),
    ]
    counters = [event for event in events if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"link gpu0 -> switch", "link switch -> gpu1"}
    # Values hold for a thousandth of the run: the messages begin at 5 us, in the middle of one that
    # ends at 5.015 us.
    values = [
        (e["ts"], e["args"]["share in use"]) for e in counters if e["name"] == "link gpu0 -> switch"
    ]
    assert values == [(0, 0), (4.93, 0.1765), (5.015, 1), (85, 0)]


def test_the_critical_path_is_what_the_run_waited_for(tmp_path):
    """The computation of the late rank and both messages; of a collective the last rank to come
    counts.
    """

    def late(rank, world_size):
        dist.compute(f"{10 + 7 * rank} us", "load")
        dist.all_reduce(np.zeros(1000, np.uint8))
        dist.compute(f"{3 - rank} us", "after")

    for program, share, expected in (
        (overlapping, 1.0, [(0, "ncclDevKernel_send"), (0, "ncclDevKernel_send"), (1, "load")]),
        (late, 1.0, [(0, "after"), (0, "ncclDevKernel_all_reduce"), (1, "load")]),
    ):
        dist.spawn(program, 2, topology=TWO, trace=tmp_path / "t.json")
        document = json.loads((tmp_path / "t.json").read_text())
        assert document["otherData"]["critical_path"] == {"operations": 3, "share": share}
        red = [event for event in document["traceEvents"] if event.get("args", {}).get("critical")]
        assert sorted((event["pid"], event["name"]) for event in red) == expected


def test_events_of_a_track_do_not_overlap(tmp_path):
    def program(rank, world_size):
        call, peer = ((dist.isend, 1), (dist.irecv, 0))[rank]
        works = [call(np.zeros(1000), peer, tag=tag) for tag in range(4)]
        for work in works:
            work.wait()

    path = tmp_path / "t.json"
    result = dist.spawn(program, 2, topology=TWO, trace=path)
    assert result.timeline.summary(0).communication_fs == 32 * US
    spans = [
        event
        for event in json.loads(path.read_text())["traceEvents"]
        if event["ph"] == "X" and event["tid"]
    ]
    assert len({(event["pid"], event["tid"]) for event in spans}) == len(spans) == 8


def test_a_folder_has_a_file_for_each_rank(tmp_path):
    dist.spawn(overlapping, 2, topology=TWO, trace=tmp_path / "ranks")
    for rank in (0, 1):
        text = gzip.decompress((tmp_path / "ranks" / f"rank-{rank}.json.gz").read_bytes()).decode()
        assert f'"rank": {rank},' in text
        assert {event["pid"] for event in json.loads(text)["traceEvents"]} == {rank}


def test_there_is_no_timeline_unless_asked():
    assert dist.spawn(overlapping, 2, topology=TWO).timeline is None


def test_a_trace_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError):
        dist.spawn(overlapping, 2, topology=TWO, trace=tmp_path / "file" / "t.json")


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*inplace keyword"
)
def test_holistic_trace_analysis_agrees(tmp_path):
    analysis = pytest.importorskip("hta.trace_analysis")
    dist.spawn(overlapping, 2, topology=TWO, trace=tmp_path)
    table = analysis.TraceAnalysis(trace_dir=str(tmp_path)).get_temporal_breakdown(visualize=False)
    assert table["compute_time(us)"].tolist() == [30, 35]
    assert table["non_compute_time(us)"].tolist() == [55, 50]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scale", [1, 128])
def test_holistic_trace_analysis_has_our_times_of_groups(tmp_path, monkeypatch, scale):
    """Its breakdown and its overlap, where times are no whole microseconds, operations overlap, and
    ranks differ.
    """
    analysis = pytest.importorskip("hta.trace_analysis")
    if scale == 1:  # some microseconds, of which it would lose parts
        monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")

    def program(rank, world_size):
        grid = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        for step in range(3):
            message = dist.fake_array(10_007 * scale)
            works = [
                dist.all_reduce(message, group=grid.get_group(name), async_op=True) for name in "ab"
            ]
            for part in range(scale):
                dist.compute((3 + rank) * 1.01e-6, f"part {part} of step {step}")
            for work in works:
                work.wait()
            dist.compute(1.7e-6 * scale)

    timeline = dist.spawn(program, 4, topology="dgx-h100", trace=tmp_path).timeline
    ours = [timeline.summary(rank) for rank in range(4)]
    found = analysis.TraceAnalysis(trace_dir=str(tmp_path))
    table = found.get_temporal_breakdown(visualize=False)
    for name, times in {
        "compute_time(us)": [each.compute_fs for each in ours],
        "idle_time(us)": [each.idle_fs for each in ours],
        "non_compute_time(us)": [each.total_fs - each.compute_fs - each.idle_fs for each in ours],
    }.items():
        assert table[name].tolist() == pytest.approx(
            [time / US for time in times], rel=0.01, abs=1e-3
        )
    hidden = [
        1 - (each.total_fs - each.compute_fs - each.idle_fs) / each.communication_fs
        for each in ours
    ]
    shares = found.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].tolist()
    assert shares == pytest.approx([100 * share for share in hidden], rel=0.01)
