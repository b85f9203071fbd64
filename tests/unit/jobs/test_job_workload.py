"""A traced job as a workload takes the time of its replay."""

from __future__ import annotations

import pytest

from simcoll.errors import ConfigError
from simcoll.jobs.example_traces import ExampleJob, write_example_traces
from simcoll.jobs.job import job_of_files
from simcoll.jobs.job_workload import job_workload
from simcoll.topology import topology_of_job
from simcoll.workload.playing import run_workload
from simcoll.workload.workload import CallOperation, read_workload, write_workload


def job_of(folder, places=None, **changes):
    write_example_traces(folder, ExampleJob(**changes))
    files = sorted(folder.glob("*.json.gz"))
    return job_of_files(files if places is None else [files[place] for place in places])


@pytest.mark.parametrize("changes", [{}, {"slow": {2: 1.3}}, {"dialect": "backlog"}])
def test_a_workload_with_measured_services_takes_the_measured_time(tmp_path, changes):
    job = job_of(tmp_path, **changes)
    workload, notes = job_workload(job, measured=True)
    result = run_workload(workload, topology_of_job("dgx-h100", 4), tier=1)
    assert result.time_fs / 1e6 == pytest.approx(job.measured_ns, rel=0.01)
    assert notes == []
    calls = [op for op in workload.operations if isinstance(op, CallOperation)]
    assert len(calls) == 14
    assert {call.service_fs for call in calls} == {61 * 10**9, 64 * 10**9, 19 * 10**9}


def test_collectives_with_a_size_are_left_to_be_predicted(tmp_path):
    workload, _ = job_workload(job_of(tmp_path))
    calls = [op for op in workload.operations if isinstance(op, CallOperation)]
    assert {(call.kind, call.size_bytes, call.service_fs) for call in calls} == {
        ("all_gather", 8 << 20, None),
        ("reduce_scatter", 8 << 20, None),
        ("all_reduce", 4, None),
    }
    again = read_workload(write_workload(workload))
    assert again.operations == workload.operations


def test_one_rank_keeps_its_kernels(tmp_path):
    job = job_of(tmp_path, [0])
    workload, notes = job_workload(job)
    assert notes == ["14 calls without a size or without all ranks keep their measured times"]
    result = run_workload(workload, topology_of_job("dgx-h100", 2), tier=1)
    assert result.time_fs / 1e6 == pytest.approx(job.measured_ns, rel=0.01)


def test_a_graph_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected at most 5% to ask"):
        job_workload(job_of(tmp_path, dialect="graph"))


def test_few_kernels_keep_their_names(tmp_path):
    import gzip
    import json

    write_example_traces(tmp_path, ExampleJob())
    files = sorted(tmp_path.glob("*.json.gz"))
    for file in files:
        document = json.loads(gzip.decompress(file.read_bytes()))
        for number, event in enumerate(document["traceEvents"]):
            if event["name"].startswith("gemm"):
                event["name"] = f"void lib::gemm_{number}<4, float>(int, float*)"
        file.write_bytes(gzip.compress(json.dumps(document).encode()))
    workload, _ = job_workload(job_of_files(files))
    names = {operation.name for operation in workload.operations}
    assert "other kernels" in names
    assert not any("lib::" in name or "<" in name for name in names)
    assert sum(name.startswith("gemm_") for name in names) <= 10
