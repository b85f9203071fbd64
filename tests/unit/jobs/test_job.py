"""A job's traces are replayed with a known error, or refused by name."""

from __future__ import annotations

import gzip
import json
import os
import tarfile

import pytest

from simcoll.errors import ConfigError
from simcoll.jobs.example_traces import ExampleJob, write_example_traces
from simcoll.jobs.job import job_of_files
from simcoll.jobs.job_report import job_lines
from simcoll.jobs.replay import JobChange

PUBLIC_JOB = os.environ.get("SIMCOLL_DLRM_KINETO", "")
"""Path of facebookresearch/param's et_replay/tests/inputs/dlrm_kineto.tar.gz."""


def files_of(folder, **changes):
    write_example_traces(folder, ExampleJob(**changes))
    return sorted(folder.glob("*.json.gz"))


def rewritten(path, change):
    document = json.loads(gzip.decompress(path.read_bytes()))
    change(document)
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["2.1", "2.5", "2.13", "rocm", "coalesced", "backlog"])
@pytest.mark.parametrize("slow", [{}, {2: 1.3}, {0: 2.0, 3: 1.1}])
def test_a_replay_takes_the_measured_time(tmp_path, dialect, slow):
    job = job_of_files(files_of(tmp_path, dialect=dialect, slow=slow))
    assert abs(job.replay_error) < 0.005
    assert job.unexplained_share < 0.01


def test_a_slow_rank_in_a_replay_is_that_of_a_slow_run(tmp_path):
    # The same program run with a slow rank is the judge of the what-if.
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    job = job_of_files(files_of(fast))
    truth = job_of_files(files_of(slow, slow={2: 1.5}))
    assert job.replay_with(JobChange(slow={2: 1.5})) == pytest.approx(truth.measured_ns, rel=0.005)


def test_other_services_in_a_replay(tmp_path):
    job = job_of_files(files_of(tmp_path))
    meetings = job.matching.meetings
    longer = {number: meeting.service_ns + 10_000 for number, meeting in enumerate(meetings)}
    # Computation waits for every collective, so each one lengthens the job.
    added = job.replay_with(JobChange(services_ns=longer)) - job.baseline.time_ns
    assert added == pytest.approx(10_000 * len(meetings), rel=0.2)


def test_a_graph_is_refused_by_its_replay_error(tmp_path):
    job = job_of_files(files_of(tmp_path, dialect="graph"))
    assert job.replay_error < -0.05
    with pytest.raises(ConfigError, match=r"replayed job differs by -[0-9.]+% .*CUDA graphs"):
        job.refuse_changes()
    assert "does not describe this job" in job_lines(job)[2]


def test_the_longest_chain_is_that_of_the_slow_rank(tmp_path):
    job = job_of_files(files_of(tmp_path, slow={2: 3.0}))
    times = job.order.critical_path(job.baseline)
    assert times["computation", 2] > 0.8 * job.baseline.time_ns
    assert sum(times.values()) == pytest.approx(job.baseline.time_ns, rel=0.01)
    assert "bound by the GPU of rank 2" in "\n".join(job_lines(job))


def test_events_without_a_valid_time_are_counted(tmp_path):
    files = files_of(tmp_path)

    def damage(document):
        kernels = [event for event in document["traceEvents"] if event["cat"] == "kernel"]
        kernels[0]["dur"] = -5
        kernels[1]["ts"] = "soon"

    rewritten(files[1], damage)
    job = job_of_files(files)
    assert any(note.endswith("2 events without a valid time left out") for note in job.notes)


def test_one_rank_does_not_divide_its_communication(tmp_path):
    job = job_of_files(files_of(tmp_path)[:1])
    lines = job_lines(job)
    assert lines[0].startswith("rank 0 of 4, 2 steps")
    assert "arrival of the other ranks unknown: waiting and network not separable" in lines[1]
    assert job.matching.meetings == ()
    assert abs(job.replay_error) < 0.005


def test_a_second_file_of_a_rank_is_refused(tmp_path):
    files = files_of(tmp_path)
    with pytest.raises(ConfigError, match="a second file of rank 1"):
        job_of_files([*files, files[1]])


def test_a_missing_rank_is_stated_or_refused(tmp_path):
    files = files_of(tmp_path)
    with pytest.raises(ConfigError, match=r"3 of 4 ranks, .*rank 2 missing"):
        job_of_files([files[0], files[1], files[3]])


def test_ranks_of_two_jobs_are_refused(tmp_path):
    first = files_of(tmp_path / "a")
    second = files_of(tmp_path / "b", ranks=8)
    with pytest.raises(ConfigError, match="a trace of another job: its number of ranks is 8"):
        job_of_files([first[0], second[1]])


def test_other_programs_of_the_same_size_are_refused(tmp_path):
    first = files_of(tmp_path / "a", dialect="2.5")
    second = files_of(tmp_path / "b", dialect="2.5", layers=2)
    with pytest.raises(ConfigError, match="different programs"):
        job_of_files([first[0], first[1], second[2], first[3]])


def test_ranks_of_two_runs_of_one_program_are_refused(tmp_path):
    files = files_of(tmp_path)

    def an_hour_later(document):
        document["baseTimeNanoseconds"] += 3600 * 10**9

    for file in files[2:]:
        rewritten(file, an_hour_later)
    with pytest.raises(ConfigError, match=r"ranks 0 and 2 end 3,600\.0 s apart"):
        job_of_files(files)


def test_traces_of_other_times_are_refused(tmp_path):
    files = files_of(tmp_path)

    def later(document):
        for event in document["traceEvents"]:
            event["ts"] += 1e9

    def no_collectives(document):
        document["traceEvents"] = [
            event for event in document["traceEvents"] if "nccl" not in event["name"]
        ]

    for file in files:
        rewritten(file, no_collectives)
    rewritten(files[1], later)
    with pytest.raises(ConfigError, match="traces of different times"):
        job_of_files(files)


def test_ranks_without_common_steps_are_refused(tmp_path):
    files = files_of(tmp_path)

    def renumber(document):
        for event in document["traceEvents"]:
            event["name"] = event["name"].replace("ProfilerStep#", "ProfilerStep#9")

    rewritten(files[3], renumber)
    with pytest.raises(ConfigError, match="share no step of the profiler"):
        job_of_files(files)


def test_a_rank_is_taken_from_a_name_and_stated(tmp_path):
    files = files_of(tmp_path)

    def nameless(document):
        del document["distributedInfo"]["rank"]

    for file in files:
        rewritten(file, nameless)
    job = job_of_files(files)
    assert job.ranks == [0, 1, 2, 3]
    assert any("rank 2 by its name" in note for note in job.notes)
    unnamed = tmp_path / "some.json.gz"
    files[3].rename(unnamed)
    with pytest.raises(ConfigError, match="which rank this is"):
        job_of_files([*files[:3], unnamed])


def test_other_origins_of_times_are_joined(tmp_path):
    files = files_of(tmp_path)
    before = job_of_files(files)

    def later_origin(document):
        document["baseTimeNanoseconds"] += 10**9
        for event in document["traceEvents"]:
            event["ts"] -= 1e6

    rewritten(files[1], later_origin)
    after = job_of_files(files)
    assert after.measured_ns == before.measured_ns
    assert any("different origins" in note for note in after.notes)


def test_traces_without_device_work_are_refused(tmp_path):
    files = files_of(tmp_path)

    def host_only(document):
        document["traceEvents"] = [
            event for event in document["traceEvents"] if event["cat"] != "kernel"
        ]

    rewritten(files[1], host_only)
    with pytest.raises(ConfigError, match="no device work"):
        job_of_files(files)


@pytest.mark.slow
@pytest.mark.skipif(not PUBLIC_JOB, reason="needs the public job in SIMCOLL_DLRM_KINETO")
def test_the_public_job_of_eight_ranks(tmp_path):
    with tarfile.open(PUBLIC_JOB) as archive:
        archive.extractall(tmp_path, filter="data")
    job = job_of_files(sorted(tmp_path.rglob("*.json")))
    assert job.nranks == 8
    assert abs(job.replay_error) < 0.005
    assert len(job.matching.meetings) == 8
    # 6.07 ms a rank in kernels, of which 0.2 ms after the last arrival, by hand from the files.
    line = job_lines(job)[1]
    assert line.startswith("communication 6.07 ms a rank in kernels: 21")


def test_a_job_with_communication_of_its_own_is_refused(tmp_path):
    files = files_of(tmp_path)

    def deep_ep(document):
        for event in document["traceEvents"]:
            if event["name"].startswith("nccl"):
                event["name"] = "void deep_ep::internode::dispatch<false, 8>(int4*, float*)"

    for file in files:
        rewritten(file, deep_ep)
    with pytest.raises(ConfigError, match="no collectives known: 56 kernels communicate without"):
        job_of_files(files)


def test_a_trace_whose_steps_are_empty_is_refused(tmp_path):
    files = files_of(tmp_path)

    def elsewhere(document):
        for event in document["traceEvents"]:
            if event["name"].startswith("ProfilerStep"):
                event["ts"] += 1e9

    for file in files:
        rewritten(file, elsewhere)
    with pytest.raises(ConfigError, match="no call and no device work in its steps"):
        job_of_files(files)
