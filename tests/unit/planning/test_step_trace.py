"""The timeline of a step: arrows, link counters, and the critical path, against times worked out by
hand.
"""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import numpy as np
import pytest

from simcoll.planning.designs.step_trace import step_trace
from simcoll.topology import crossbar
from simcoll.workload.playing import alone_on, run_workload
from simcoll.workload.workload import CallOperation, ComputeOperation, SendOperation, Workload

US = 10**9
CLASSES = {"first": np.array([0, 1]), "second": np.array([2, 3])}
GROUPS = {"dp": np.array([[0, 1], [2, 3]])}
OPERATIONS = (
    ComputeOperation(id="f", on="first", time_fs=2 * US, name="forward"),
    ComputeOperation(id="load", on="second", time_fs=1 * US, stream="host"),
    SendOperation(id="s", source="first", target="second", size_bytes=1000, after=("f",)),
    ComputeOperation(id="g", on="second", time_fs=3 * US, after=("s",)),
    CallOperation(
        id="sum", kind="all_reduce", group="dp", on=("first",), size_bytes=2000, after=("f",)
    ),
)


@pytest.mark.parametrize(("tier", "time_us", "arrives_us"), [(1, 14, 8), (2, 15, 9)])
def test_a_step_has_arrows_counters_and_a_critical_path(tier, time_us, arrives_us):
    """2 us of work, a message of 1 us and 5 of latency, 3 us of work; in tier 2 the message shares
    a link with the all_reduce.
    """
    machine = crossbar(4, "1 GB/s", "5 us")
    workload = Workload(4, CLASSES, GROUPS, OPERATIONS)
    run = run_workload(workload, machine, tier=tier)
    # The all_reduce of two ranks alone has two steps of 5 us and 1 us, after 2 us of work.
    assert run.time_fs == time_us * US
    content = step_trace(
        workload, run.clock, "t", alone_on(machine, uniform=False, rules=workload.rules).plans
    )
    document = json.loads(gzip.decompress(content))
    assert document["otherData"]["critical_path"] == {"operations": 2, "share": 1.0}
    events = document["traceEvents"]
    red = [event["args"]["operation"] for event in events if event.get("cname")]
    assert red == ["f", "sum"]
    arrows = [(event["ph"], event["pid"], event["ts"]) for event in events if event["ph"] in "sf"]
    assert arrows == [("s", 0, 2), ("f", 1, arrives_us)]
    carried: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "C":
            carried.setdefault(event["name"], []).append((event["ts"], event["args"]["GB/s"]))
    # GB/s over microseconds are kilobytes: rank 0 sends 1,000 bytes to rank 2 and 2,000 in the
    # all_reduce.
    area = {
        name: sum(a * (end - begin) for (begin, a), (end, _) in pairwise(at))
        for name, at in carried.items()
    }
    expected = {
        "gpu0 -> switch": 3,
        "gpu1 -> switch": 3,
        "switch -> gpu0": 2,
        "switch -> gpu1": 2,
        "switch -> gpu2": 1,
        "switch -> gpu3": 1,
    }
    assert area == pytest.approx(expected, rel=1e-5)
    shorter = Workload(4, CLASSES, GROUPS, OPERATIONS[:4])
    clock = run_workload(shorter, machine, tier=tier).clock
    document = json.loads(
        gzip.decompress(step_trace(shorter, clock, "t", alone_on(machine, uniform=False).plans))
    )
    red = [
        (event["args"]["operation"], event["pid"])
        for event in document["traceEvents"]
        if event.get("cname")
    ]
    assert red == [("f", 0), ("s", 1), ("g", 1)]
    assert document["otherData"]["critical_path"] == {"operations": 3, "share": 1.0}
