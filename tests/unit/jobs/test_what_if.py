"""Changes of a job: predicted services, slow ranks, other numbers of ranks, and rows in situ."""

from __future__ import annotations

import csv
import io

import pytest

from simcoll.errors import ConfigError
from simcoll.formats.logs.in_situ import BESIDE, HEADER, IN_SITU
from simcoll.formats.logs.nccl_tests import load_log
from simcoll.jobs.example_traces import ExampleJob, write_example_traces
from simcoll.jobs.in_situ_rows import in_situ_csv
from simcoll.jobs.job import job_of_files
from simcoll.jobs.what_if import JobQuestion, answer_lines, overlaps_computation
from simcoll.libraries.prediction import formula_time, predict
from simcoll.planning.measured.calibrating import fit_calibration, gather
from simcoll.planning.measured.comparison import settings_for
from simcoll.topology import topology_of_job


def job_of(folder, places=None, **changes):
    write_example_traces(folder, ExampleJob(**changes))
    files = sorted(folder.glob("*.json.gz"))
    return job_of_files(files if places is None else [files[place] for place in places])


@pytest.fixture
def machine():
    return topology_of_job("dgx-h100", 4)


def test_predicted_services_replace_measured_ones(tmp_path, machine):
    job = job_of(tmp_path)
    lines = answer_lines(job, JobQuestion(machine))
    prediction = predict("all_gather", 8 << 20, machine)
    row = next(line for line in lines if line.startswith("all_gather"))
    assert f"{prediction.time_us:.1f} us" in row
    assert "predicted: services of 14 collectives on dgx-h100" in lines[0]
    assert "measured: computation of NVIDIA H100 80GB, hosts, order" in lines[0]
    assert "untested" in lines[-1]
    # In a step three calls each of 44.4 us instead of 61 and 64 us, and one of 9.8 instead of 19:
    # 118 us of 2.09 ms, since every one is waited for.
    answer = next(line for line in lines if line.startswith("a step"))
    assert "(-5.6" in answer


@pytest.mark.slow
def test_very_many_ranks_are_timed_by_the_formula(tmp_path):
    job = job_of(tmp_path)
    machine = topology_of_job("dgx-h100", 8192)
    lines = answer_lines(job, JobQuestion(machine, nranks=8192))
    assert "for 8,192 ranks, by the formula of the library alone" in lines[0]
    row = next(line for line in lines if line.startswith("all_reduce"))
    formula = formula_time("all_reduce", 4, machine)
    assert f"{formula.time_us:.1f} us" in row


def test_a_slow_rank_is_answered(tmp_path):
    job = job_of(tmp_path)
    lines = answer_lines(job, JobQuestion(slow={1: 2.0}))
    assert "assumed: computation of rank 1 x 2" in lines[0]
    assert "services" in lines[0]
    assert lines[1].startswith("a step: ")
    assert "%" in lines[1]


def test_effects_below_the_replay_error_are_no_results(tmp_path):
    job = job_of(tmp_path)
    lines = answer_lines(job, JobQuestion(slow={1: 1.00001}))
    assert lines[1].endswith(f"no effect above the replay error ({job.replay_error:+.2%})")


def test_a_rank_that_was_not_traced_cannot_be_slow(tmp_path):
    with pytest.raises(ConfigError, match="rank 7 not traced; traced: ranks 0, 1, 2, 3"):
        answer_lines(job_of(tmp_path), JobQuestion(slow={7: 2.0}))


def test_one_rank_has_an_interval_between_predicted_and_measured(tmp_path, machine):
    job = job_of(tmp_path, [0], slow={2: 1.3})
    answer = answer_lines(job, JobQuestion(machine))[-2]
    assert answer.startswith("a step: between ")
    assert answer.endswith("arrival of the other ranks unknown")


def test_a_graph_is_refused(tmp_path, machine):
    with pytest.raises(ConfigError, match="expected at most 5% to ask"):
        answer_lines(job_of(tmp_path, dialect="graph"), JobQuestion(machine))


def without_sizes(job):
    import dataclasses

    meetings = tuple(
        dataclasses.replace(meeting, size_bytes=-1) for meeting in job.matching.meetings
    )
    return dataclasses.replace(job, matching=dataclasses.replace(job.matching, meetings=meetings))


def test_unknown_sizes_are_refused_and_counted(tmp_path, machine):
    with pytest.raises(ConfigError, match="14 of 14 collectives have no recorded size"):
        answer_lines(without_sizes(job_of(tmp_path)), JobQuestion(machine))


def test_other_numbers_of_ranks_of_a_data_parallel_job(tmp_path):
    job = job_of(tmp_path)
    lines = answer_lines(job, JobQuestion(topology_of_job("dgx-h100", 16), nranks=16))
    assert "for 16 ranks" in lines[0]
    assert all(" 16 " in line for line in lines if line.startswith("all_gather"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "all_to_all"}, "this one has all_to_all of 4 of 4 ranks"),
        ({"ranks": (0, 1)}, "all_gather of 2 of 4 ranks"),
    ],
)
def test_other_numbers_of_ranks_of_other_jobs_are_refused(tmp_path, change, message):
    import dataclasses

    job = job_of(tmp_path)
    meetings = list(job.matching.meetings)
    meetings[0] = dataclasses.replace(meetings[0], **change)
    matching = dataclasses.replace(job.matching, meetings=tuple(meetings))
    other = dataclasses.replace(job, matching=matching)
    with pytest.raises(ConfigError, match=message):
        answer_lines(other, JobQuestion(topology_of_job("dgx-h100", 16), nranks=16))


def test_a_factor_beside_computation_lengthens_those_beside_it(tmp_path, machine):
    job = job_of(tmp_path)
    assert not any(overlaps_computation(job, job.matching.meetings))
    # A long kernel on another stream of rank 1 runs beside the first collective alone.
    graph = job.graphs[1]
    first = job.matching.meetings[0]
    graph.kinds.append(graph.kinds[-1].WORK)
    graph.lanes.append(9)
    graph.names.append("gemm")
    graph.starts_ns.append(first.arrivals_ns[first.last])
    graph.durations_ns.append(first.service_ns)
    graph.needs.append([])
    assert overlaps_computation(job, job.matching.meetings) == [True] + [False] * 13


def test_a_factor_beside_computation_leaves_calls_alone_that_are_not_beside_it(tmp_path, machine):
    # In the example computation waits for every collective, on one rank as on all.
    job = job_of(tmp_path, [0])
    plain = answer_lines(job, JobQuestion(machine))
    factor = answer_lines(job, JobQuestion(machine, beside_factor=1.2))
    assert plain[1:] == factor[1:]


def test_rows_are_services(tmp_path):
    job = job_of(tmp_path)
    content, number, unsized = in_situ_csv(job)
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert (number, unsized) == (14, 0)
    assert content.decode().splitlines()[0] == HEADER
    assert {(row["collective"], row["service_ns"]) for row in rows} == {
        ("all_gather", "61000"),
        ("reduce_scatter", "64000"),
        ("all_reduce", "19000"),
    }
    assert {row["device"] for row in rows} == {"NVIDIA H100 80GB"}


def test_rows_of_one_rank_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="services need the traces of all ranks"):
        in_situ_csv(job_of(tmp_path, [0]))


ROWS = f"""{HEADER}
all_reduce,1048576,8,40000,0,no,dp (0),NVIDIA H100 80GB
all_reduce,16777216,8,150000,0,no,dp (0),NVIDIA H100 80GB
all_reduce,16777216,8,190000,0,yes,dp (0),NVIDIA H100 80GB
"""


def test_rows_are_tables_of_their_own(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(ROWS)
    log = load_log(path)
    assert [(table.situation, len(table.rows)) for table in log.tables] == [
        (IN_SITU, 2),
        (BESIDE, 1),
    ]
    settings, notes = settings_for(log, "dgx-h100")
    assert [setting.table.nranks for setting in settings] == [8, 8]
    assert sum("without a launch" in note for note in notes) == 2


def test_rows_beside_computation_stay_out_of_a_calibration(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(ROWS)
    measurements = gather([path], "dgx-h100")
    assert [len(series.rows) for series in measurements.series] == [2]
    assert any("1 row beside computation left out" in note for note in measurements.notes)
    assert "in situ" in fit_calibration(measurements, None, "dgx-h100").sources[0]


def test_rows_in_situ_and_of_benchmarks_are_not_fitted_together(tmp_path):
    rows, log = tmp_path / "rows.csv", tmp_path / "two.log"
    rows.write_text(ROWS)
    log.write_text(
        "# nThread 1 nGpus 1\n# Using devices\n"
        + "".join(
            f"#  Rank  {rank} Group  0 Pid {100 + rank} on host0 device  {rank} [0x1b] NVIDIA H100\n"
            for rank in range(8)
        )
        + "# Collective test starting: all_reduce_perf\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
        "     1048576        262144     float     sum      -1    43.00   24.39   42.67      0\n"
        "    16777216       4194304     float     sum      -1   160.00  104.86  183.50      0\n"
    )
    with pytest.raises(ConfigError, match="not fitted together with those of a benchmark"):
        gather([log, rows], "dgx-h100")


@pytest.mark.parametrize(
    "row", ["all_reduce,1,2", "all_reduce,x,8,1,0,no,g,d", "all_reduce,1,8,-1,0,no,g,d"]
)
def test_other_rows_are_refused_by_line(tmp_path, row):
    path = tmp_path / "rows.csv"
    path.write_text(f"{ROWS}{row}\n")
    with pytest.raises(ConfigError, match="line 5: expected a row of collective,size_bytes"):
        load_log(path)
