"""``simcoll job``: ask about a job that runs, from traces of its ranks or its compiled program."""

from __future__ import annotations

from pathlib import Path

from simcoll.terminal import say

__all__ = ["ask_job"]


def ask_job(*files: Path) -> None:
    """Say what a job is and what bounds it, from traces of PyTorch's profiler.

    Parameters
    ----------
    files
        Traces of PyTorch's profiler, one file for each rank (.json or .json.gz), or folders of
        them.
    """
    from simcoll.cli.job_files import trace_files
    from simcoll.jobs.host_job import host_lines
    from simcoll.jobs.job import traced_job
    from simcoll.jobs.job_report import job_lines
    from simcoll.jobs.rank_trace import load_rank_trace

    traces, left_out = trace_files(files)
    for line in left_out:
        say(f"# left out: {line}")
    ranks = [load_rank_trace(trace) for trace in traces]
    with_device = any(rank.device_work for rank in ranks)
    for line in job_lines(traced_job(ranks)) if with_device else host_lines(ranks):
        say(line)
