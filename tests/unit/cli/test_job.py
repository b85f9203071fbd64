"""``simcoll job`` and ``simcoll convert`` on the files of a job."""

from __future__ import annotations

import gzip
import os

import pytest

from simcoll.cli import main
from simcoll.jobs.example_traces import ExampleJob, write_example_traces


@pytest.fixture
def traces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_example_traces("traces", ExampleJob(slow={2: 1.3}))
    return tmp_path / "traces"


def said(capsys, *words):
    status = main(list(words))
    output = capsys.readouterr()
    return status, output.out + output.err


def test_a_folder_and_its_files_say_the_same(traces, capsys):
    folder = said(capsys, "job", "traces")
    files = said(capsys, "job", *(str(path) for path in sorted(traces.iterdir())))
    assert folder == files
    assert folder[0] == 0


def test_what_is_no_trace_in_a_folder_is_left_out(traces, capsys):
    (traces / "truth.json").write_text('{"ranks": 4}')
    status, text = said(capsys, "job", "traces")
    assert status == 0
    assert "# left out: traces/truth.json: no trace of a profiler" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["job"], "expected the traces of one or more ranks"),
        (["job", "nothing"], "cannot read"),
        (["job", "empty"], "no trace of PyTorch's profiler in this folder of 0 files; compiled"),
        (["job", "plan.toml"], "expected a trace of PyTorch's profiler"),
        (["job", "traces", "--slow", "2"], "--slow: expected a rank and a factor"),
        (["job", "traces", "--slow", "2=0.5"], "--slow: expected a rank and a factor"),
        (
            ["job", "traces", "--slow", "2=1001"],
            "--slow: expected a rank and a factor from 1 to 1000",
        ),
        (["job", "traces", "--slow", "2=2", "--slow", "2=3"], "two factors for rank 2"),
        (["job", "traces", "--beside", "1.2"], "--beside is for predicted services"),
        (["job", "traces", "--nodes", "2"], "--nodes is for predicted services"),
        (["job", "traces", "-t", "dgx-h100", "--beside", "0.5"], "expected a factor from 1 to 10"),
        (["job", "traces", "-t", "dgx-h100", "--ranks", "1"], "--ranks: expected at least 2"),
        (["job", "traces", "-t", "dgx-h100", "--ranks", "131073"], "expected at most 131,072"),
        (["job", "traces", "-t", "dgx-h200x"], "dgx-h200"),
        (["job", "traces/rank0.json.gz", "traces/rank0.json.gz"], "a second file of rank 0"),
        (["job", "traces/rank0.json.gz", "--rows", "rows.csv"], "services need the traces"),
        (["convert", "traces", "job.json", "--to", "goal"], "a job becomes a workload"),
        (["convert", "traces", "job.json", "--gpu", "h100"], "traces have measured times"),
        (["convert", "ring", "job.json", "--measured"], "are for jobs"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(traces, tmp_path, capsys, words, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "plan.toml").write_text("a = 1\n")
    status, text = said(capsys, *words)
    assert status == 2
    assert message in text
    assert "Traceback" not in text
    assert not (tmp_path / "rows.csv").exists()
    assert not (tmp_path / "job.json").exists()


def test_a_truncated_trace_is_refused_by_name(traces, capsys):
    path = traces / "rank1.json.gz"
    path.write_bytes(path.read_bytes()[:-30])
    status, text = said(capsys, "job", "traces")
    assert (status, "rank1.json.gz: truncated" in text) == (2, True)


def test_a_pipe_is_refused_before_it_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    status, text = said(capsys, "job", "pipe")
    assert (status, "can be read only once" in text) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        ["job", "traces/rank0.json.gz", "--rows", "traces/rank0.json.gz"],
        ["job", "traces", "--rows", "traces/rank0.json.gz"],
        ["convert", "traces", "traces/rank0.json.gz"],
    ],
)
def test_nothing_is_written_over_a_trace(traces, capsys, words):
    before = (traces / "rank0.json.gz").read_bytes()
    status, text = said(capsys, *words)
    assert (status, "it is also read" in text) == (2, True)
    assert (traces / "rank0.json.gz").read_bytes() == before


def test_a_job_on_cpus_lists_collectives_without_times(tmp_path, monkeypatch, capsys):
    import json

    monkeypatch.chdir(tmp_path)
    for rank in range(2):
        events = [
            {
                "ph": "X", "cat": "user_annotation", "name": "gloo:all_gather", "tid": 5 + number,
                "ts": 10.0 * number + rank, "dur": 5.0,
                "args": {"Input Dims": [[1024]], "Input type": ["float"]},
            }
            for number in range(3)
        ]  # fmt: skip
        document = {
            "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2},
            "traceEvents": events,
        }
        (tmp_path / f"rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))
    status, text = said(capsys, "job", "rank0.json.gz", "rank1.json.gz")
    assert status == 0
    assert "3 collectives a rank by gloo, no device work" in text
    assert [line.split() for line in text.splitlines() if line.startswith("all_gather")] == [
        ["all_gather", "8", "KiB", "6", "3"]
    ]
    status, text = said(capsys, "job", "rank0.json.gz", "rank1.json.gz", "-t", "dgx-h100")
    assert status == 2
    assert "no device work in these traces" in text


@pytest.mark.slow
def test_a_converted_job_is_a_workload_for_step(traces, capsys):
    assert said(capsys, "convert", "traces", "job.json", "--measured")[0] == 0
    status, text = said(capsys, "step", "job.json", "-t", "dgx-h100", "--tier", "1", "-o", "out")
    assert status == 0
    assert "5.1" in text
