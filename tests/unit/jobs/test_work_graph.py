"""What waits for what in a rank: each case is a small trace in which a kernel becomes slower, and
the end of the job follows, or does not.
"""

from __future__ import annotations

import pytest

from simcoll.jobs.rank_trace import DeviceWork, HostCall, RankTrace, StreamWait
from simcoll.jobs.replay import JobChange, JobOrder
from simcoll.jobs.work_graph import build_work_graph

US = 1000
LAUNCH, SYNC, WAIT = "cudaLaunchKernel", "cudaStreamSynchronize", "cudaStreamWaitEvent"


def replays(calls, works, factor=2.0, waits=None):
    """The measured time and the replays of the job as it was and with slower kernels, in us.

    Calls are (begin, end, name, correlation[, thread]), works (begin, end, stream, correlation[,
    name]), in microseconds.
    """
    trace = RankTrace("trace.json", waits=waits or {})
    for begin, end, name, correlation, *thread in calls:
        place = thread[0] if thread else 1
        trace.calls.append(HostCall(begin * US, end * US, place, name, correlation))
    for begin, end, stream, correlation, *name in works:
        title = name[0] if name else "gemm"
        trace.device_work.append(DeviceWork(begin * US, end * US, stream, title, correlation))
    end_us = max(entry[1] for entry in (*calls, *works))
    graph = build_work_graph(trace, (0, end_us * US + 1))
    order = JobOrder([graph], [], {})
    slower = JobChange(device_factor=factor)
    return end_us, order.replay().time_ns / US, order.replay(slower).time_ns / US


def test_a_synchronisation_waits_for_the_kernel():
    calls = [(10, 15, LAUNCH, 1), (20, 220, SYNC, 2), (230, 235, LAUNCH, 3)]
    works = [(17, 215, 7, 1), (237, 250, 7, 3)]
    measured, same, slower = replays(calls, works)
    assert same == pytest.approx(measured, abs=3)
    assert slower == pytest.approx(measured + 198 + 13, abs=3)


def test_a_copy_to_pageable_memory_waits():
    copy = "Memcpy DtoH (Device -> Pageable)"
    calls = [(10, 15, LAUNCH, 1), (20, 320, "cudaMemcpyAsync", 2), (330, 335, LAUNCH, 3)]
    works = [(17, 310, 7, 1), (311, 315, 7, 2, copy), (337, 350, 7, 3)]
    measured, same, slower = replays(calls, works)
    assert same == pytest.approx(measured, abs=4)
    assert slower > measured + 290


def test_a_host_that_does_not_wait_hides_a_kernel():
    calls = [(10, 15, LAUNCH, 1), (1000, 1005, LAUNCH, 2)]
    works = [(17, 117, 7, 1), (1007, 1017, 7, 2)]
    measured, same, slower = replays(calls, works)
    assert same == pytest.approx(measured, abs=3)
    assert slower == pytest.approx(measured + 10, abs=3)


def test_a_wait_for_another_stream_by_position():
    calls = [(10, 15, LAUNCH, 1), (18, 19, WAIT, 2), (20, 25, LAUNCH, 3)]
    works = [(17, 217, 8, 1), (219, 319, 7, 3)]
    measured, same, slower = replays(calls, works)
    assert same == pytest.approx(measured, abs=3)
    assert slower == pytest.approx(measured + 300, abs=6)


def test_streams_without_a_wait_are_independent():
    calls = [(10, 15, LAUNCH, 1), (20, 25, LAUNCH, 3)]
    works = [(17, 217, 8, 1), (27, 327, 7, 3)]
    measured, same, slower = replays(calls, works)
    assert same == pytest.approx(measured, abs=3)
    assert slower == pytest.approx(measured + 300, abs=3)


def test_a_recorded_wait_names_its_streams():
    # Stream 7 waits for stream 8 and not for stream 9, which ends later than both begin.
    calls = [(8, 9, LAUNCH, 4), (10, 15, LAUNCH, 1), (18, 19, WAIT, 2), (20, 25, LAUNCH, 3)]
    works = [(11, 110, 9, 4), (17, 117, 8, 1), (119, 219, 7, 3)]
    measured, same, slower = replays(calls, works, waits={2: StreamWait(7, 8)})
    assert same == pytest.approx(measured, abs=3)
    assert slower == pytest.approx(measured + 200, abs=4)


def test_a_recorded_event_is_that_of_its_record():
    # The event is recorded before the second kernel of stream 8, which is not waited for.
    calls = [
        (8, 9, LAUNCH, 1), (10, 11, "cudaEventRecord", 2), (12, 13, LAUNCH, 3),
        (18, 19, WAIT, 4), (20, 25, LAUNCH, 5),
    ]  # fmt: skip
    works = [(15, 115, 8, 1), (116, 1000, 8, 3), (117, 217, 7, 5)]
    _, same, slower = replays(calls, works, waits={4: StreamWait(7, 8, 2)})
    assert same == pytest.approx(1000, abs=4)
    assert slower == pytest.approx(1000 + 100 + 884, abs=6)


def test_a_thread_that_was_idle_continues_after_a_handover():
    # The second thread is the one of the backward pass: it begins when the first has synchronised.
    calls = [(10, 15, LAUNCH, 1, 1), (20, 420, SYNC, 2, 1), (430, 435, LAUNCH, 3, 2)]
    works = [(17, 415, 7, 1), (437, 450, 7, 3)]
    measured, same, slower = replays(calls, works)
    assert same == pytest.approx(measured, abs=3)
    assert slower == pytest.approx(measured + 398 + 13, abs=3)


def test_a_launch_that_loads_a_module_delays_its_kernel():
    calls = [(10, 5010, LAUNCH, 1), (5020, 5025, LAUNCH, 2)]
    works = [(5005, 5105, 7, 1), (5106, 5206, 7, 2)]
    measured, same, slower = replays(calls, works)
    assert same == pytest.approx(measured, abs=8)
    assert slower == pytest.approx(measured + 200, abs=8)


def test_work_of_before_the_window_keeps_its_times():
    calls = [(10, 15, LAUNCH, 1)]
    works = [(1, 500, 7, 900), (501, 601, 7, 1)]
    measured, same, slower = replays(calls, works)
    assert same == pytest.approx(measured, abs=2)
    assert slower == pytest.approx(measured + 100, abs=2)
