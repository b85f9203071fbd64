"""Collectives are matched over ranks, sized, and divided into network and waiting."""

from __future__ import annotations

import dataclasses
import json

import pytest

from simcoll.errors import ConfigError
from simcoll.jobs.comm_records import (
    LIBRARY_KERNEL,
    CommRecord,
    GroupRecord,
    kind_of_kernel,
    record_of,
)
from simcoll.jobs.example_traces import DIALECTS, ExampleJob, write_example_traces
from simcoll.jobs.job import job_of_files
from simcoll.jobs.meetings import TracedCall, call_of, clock_offsets, match_calls
from simcoll.jobs.rank_trace import CommEvent, DeviceWork
from simcoll.jobs.trace_stream import Arguments
from simcoll.jobs.work_graph import CollectivePart


def job_of(folder, **changes):
    known = write_example_traces(folder, ExampleJob(**changes))
    return job_of_files(sorted(folder.glob("*.json.gz"))), known


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("changes", [{}, {"slow": {2: 1.3}}, {"clocks_us": {1: 2500.0, 3: -40.0}}])
def test_services_are_those_of_the_example(tmp_path, dialect, changes):
    job, known = job_of(tmp_path, dialect=dialect, **changes)
    tolerance_us = 1.0 if dialect == "2.1" else 0.01
    meetings = job.matching.meetings
    assert [(meeting.kind, meeting.size_bytes) for meeting in meetings] == [
        (collective.kind, collective.size_bytes) for collective in known
    ]
    for meeting, collective in zip(meetings, known, strict=True):
        assert meeting.service_ns / 1e3 == pytest.approx(collective.service_us, abs=tolerance_us)
        last_us = max(collective.arrivals_us)
        waiting_us = [last_us - arrival for arrival in collective.arrivals_us]
        assert [meeting.waiting_ns(place) / 1e3 for place in range(job.nranks)] == pytest.approx(
            waiting_us, abs=2 * tolerance_us
        )


def test_the_rank_that_came_last_is_waited_for(tmp_path):
    job, _ = job_of(tmp_path, slow={2: 1.3})
    waiting_ns = dict.fromkeys(range(4), 0)
    for meeting in job.matching.meetings:
        waiting_ns[meeting.last] += sum(map(meeting.waiting_ns, meeting.calls))
    assert waiting_ns[2] > 0.95 * sum(waiting_ns.values()) > 0


def test_clocks_of_nodes_are_corrected_and_stated(tmp_path):
    job, _ = job_of(tmp_path, clocks_us={1: 2500.0})
    assert any("rank 1 by +2.500 ms" in note for note in job.notes)


def rewritten(path, change):
    import gzip

    document = json.loads(gzip.decompress(path.read_bytes()))
    change(document)
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


def test_traces_that_begin_in_other_places_are_aligned(tmp_path):
    known = write_example_traces(tmp_path, ExampleJob(dialect="2.5", steps=3))
    files = sorted(tmp_path.glob("*.gz"))

    def without_steps(document):
        document["traceEvents"] = [
            event for event in document["traceEvents"] if "Profiler" not in event["name"]
        ]

    def cut(document):
        without_steps(document)
        first = [event for event in document["traceEvents"] if event["name"].startswith("nccl:")][1]
        document["traceEvents"] = [
            event for event in document["traceEvents"] if event["ts"] > first["ts"] + first["dur"]
        ]

    for file in files:
        rewritten(file, without_steps)
    rewritten(files[2], cut)
    job = job_of_files(files)
    meetings = job.matching.meetings
    assert len(meetings) == len(known) - 2
    for meeting, collective in zip(meetings, known[2:], strict=True):
        assert meeting.service_ns / 1e3 == pytest.approx(collective.service_us, abs=0.01)
    assert job.matching.cut == 3 * 2


NO_GROUP = GroupRecord()


def test_categories_of_old_profilers(tmp_path):
    # PyTorch before 1.13 capitalised them, and had one for operators and annotations.
    names = {
        "kernel": "Kernel", "cuda_runtime": "Runtime", "cpu_op": "Operator",
        "user_annotation": "Operator",
    }  # fmt: skip
    known = write_example_traces(tmp_path, ExampleJob(dialect="2.1"))

    def rename(document):
        for event in document["traceEvents"]:
            event["cat"] = names[event["cat"]]

    files = sorted(tmp_path.glob("*.gz"))
    for file in files:
        rewritten(file, rename)
    job = job_of_files(files)
    assert job.steps == 2
    assert [meeting.size_bytes for meeting in job.matching.meetings] == [
        collective.size_bytes for collective in known
    ]


def call(kind="all_reduce", size=8, at=0, group=NO_GROUP, sequence=-1, peers=(-1, -1)):
    return TracedCall(kind, size, "Float", group, sequence, peers, "kernel", 20, at, at + 100)


EVERYONE = GroupRecord("0", "default_pg", (0, 1), 2)


def test_messages_meet_by_their_ends():
    sends = [call("send", 64, at, EVERYONE, peers=(0, 1)) for at in (0, 1000)]
    receives = [call("recv", 64, at, EVERYONE, peers=(0, 1)) for at in (50, 1010)]
    matching = match_calls([0, 1], [sends, receives], 2)
    assert [(meeting.kind, meeting.ranks) for meeting in matching.meetings] == [
        ("send", (0, 1)),
        ("send", (0, 1)),
    ]
    assert [meeting.last for meeting in matching.meetings] == [1, 1]


def test_a_record_of_a_message_has_the_global_rank_of_the_other_end():
    group = GroupRecord("1", "pp", (2, 0), 2)
    sends = [call("send", 64, 0, group, sequence=7, peers=(-1, 0))]
    receives = [call("recv", 64, 5, group, sequence=3, peers=(2, -1))]
    (meeting,) = match_calls([0, 2], [receives, sends], 3).meetings
    assert (meeting.kind, meeting.ranks, meeting.last) == ("send", (2, 0), 0)


def test_groups_of_messages_stay_alone():
    calls = [[call("messages", -1, at, EVERYONE)] for at in (0, 10)]
    matching = match_calls([0, 1], calls, 2)
    assert matching.meetings == ()
    assert matching.alone == {0: (0,), 1: (0,)}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)", "all_gather"),
        ("ncclSymkDevKernel_ReduceScatter_LD(ncclSymkDevWorkArgs)", "reduce_scatter"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "messages"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", ""),
        ("void cutlass::Kernel2<cutlass_80_tensorop>", None),
    ],
)
def test_kernels_of_libraries_are_recognised_with_their_kind(name, kind):
    assert bool(LIBRARY_KERNEL.search(name)) == (kind is not None)
    if kind is not None:
        assert kind_of_kernel(name) == kind


def test_ranks_are_in_several_groups():
    # Two pairs of tensor parallelism and two of data parallelism on four ranks, whose groups of a
    # dimension have one name on the ranks that are in them.
    tensor = {rank: GroupRecord("1", "tp", (0, 1) if rank < 2 else (2, 3), 2) for rank in range(4)}
    data = {rank: GroupRecord("2", "dp", (rank % 2, rank % 2 + 2), 2) for rank in range(4)}
    calls = [
        [
            call("all_reduce", 8, 0 + rank, tensor[rank]),
            call("all_gather", 64, 500 - rank, data[rank]),
        ]
        for rank in range(4)
    ]
    meetings = match_calls([0, 1, 2, 3], calls, 4).meetings
    assert [(meeting.kind, meeting.ranks, meeting.last) for meeting in meetings] == [
        ("all_reduce", (0, 1), 1),
        ("all_reduce", (2, 3), 3),
        ("all_gather", (1, 3), 1),
        ("all_gather", (0, 2), 0),
    ]


def test_a_group_with_a_rank_that_was_not_traced_stays_alone():
    group = GroupRecord("0", "", (0, 1, 2), 3)
    matching = match_calls([0, 1], [[call(group=group)], [call(group=group)]], 3)
    assert matching.meetings == ()
    assert matching.alone == {0: (0,), 1: (0,)}


@pytest.mark.parametrize(
    "second", [call("broadcast", group=EVERYONE), call(size=16, group=EVERYONE)]
)
def test_other_programs_are_refused(second):
    with pytest.raises(ConfigError, match="different programs or jobs"):
        match_calls([0, 1], [[call(group=EVERYONE)], [second]], 2)


def test_a_rank_without_the_collectives_of_its_group_is_refused():
    with pytest.raises(ConfigError, match="rank 1 has no collective of group 'default_pg"):
        match_calls([0, 1], [[call(group=EVERYONE)], []], 2)


def test_numbers_of_calls_match_what_order_cannot():
    first = [
        call(at=at, group=EVERYONE, sequence=number) for number, at in enumerate((0, 500, 900))
    ]
    second = [dataclasses.replace(entry, begin_ns=entry.begin_ns + 10) for entry in first[1:]]
    matching = match_calls([0, 1], [first, second], 2)
    assert [meeting.calls for meeting in matching.meetings] == [{0: 1, 1: 0}, {0: 2, 1: 1}]
    assert matching.cut == 1


def test_clocks_without_a_constant_offset_are_refused():
    first = [call(at=at, group=EVERYONE) for at in (0, 10**7, 2 * 10**7, 3 * 10**7)]
    drifts = (0, 3 * 10**6, -4 * 10**6, 6 * 10**6)
    second = [
        dataclasses.replace(entry, begin_ns=entry.begin_ns + drift, end_ns=entry.end_ns + drift)
        for entry, drift in zip(first, drifts, strict=True)
    ]
    matching = match_calls([0, 1], [first, second], 2)
    with pytest.raises(ConfigError, match="disagree by varying times"):
        clock_offsets([0, 1], matching.meetings)


def record(**fields):
    return record_of(Arguments(**fields), "record_param_comms", {})


@pytest.mark.parametrize(
    ("fields", "size_bytes"),
    [
        ({"collective": "_allgather_base", "elements_in": 8, "elements_out": 32, "dtype": "BFloat16"}, 64),
        ({"collective": "allreduce", "elements_in": 8, "elements_out": 8, "dtype": "Float8_e4m3fn"}, 8),
        ({"collective": "allreduce", "elements_in": 8, "elements_out": 8, "dtype": "Unheard"}, -1),
        ({"collective": "allreduce", "elements_in": -8, "elements_out": None, "dtype": "Float"}, -1),
        ({"collective": "allreduce", "elements_in": 1 << 60, "elements_out": 0, "dtype": "Float"}, -1),
        ({"dimensions": [[3, 4], []], "types": ["float", ""]}, 48),
        ({"dimensions": [[], []], "types": ["Scalar", ""]}, -1),
        ({"dimensions": [[[2], [3]]], "types": ["TensorList"]}, -1),
        ({"dimensions": [[[2], [3]]], "types": ["long int"]}, 40),
        ({"dimensions": "x", "types": 4}, -1),
    ],
)  # fmt: skip
def test_sizes_are_read_and_never_guessed(fields, size_bytes):
    assert record(**fields).size_bytes == size_bytes


def test_groups_with_cut_lists_are_arithmetic():
    text = "[0, 2, 4, ...]"
    group = record(group_ranks=text, first_rank=0, rank_stride=2, group_size=40).group
    assert group.ranks == tuple(range(0, 80, 2))
    assert record(group_ranks=text, group_size=40).group.ranks == ()


def part(kernel, *events):
    work = DeviceWork(0, 100, 20, "ncclDevKernel_AllGather_RING_LL(x)", 1, kernel)
    return CollectivePart(0, 1, work, tuple(events), 0)


def host(record, parameters=True):
    return CommEvent(0, 50, 9, record, parameters)


def test_an_input_of_an_all_gather_is_a_part():
    annotation = host(CommRecord("all_gather", 64, stated=False), parameters=False)
    assert call_of(part(CommRecord(), annotation), 4, set()).size_bytes == 256
    stated = host(CommRecord("all_gather", 64, stated=True))
    assert call_of(part(CommRecord(), stated), 4, set()).size_bytes == 64


def test_a_wait_is_no_collective():
    waits = host(CommRecord("wait", 4096, stated=True))
    assert call_of(part(CommRecord(), waits), 4, set()).size_bytes == -1


def test_kernels_of_one_call_do_not_share_its_size():
    event = host(CommRecord("all_gather", 64, stated=True))
    used = set()
    sizes = [call_of(part(CommRecord(), event), 4, used).size_bytes for _ in range(2)]
    assert sizes == [64, -1]
