"""``simcoll job``: ask about a job that runs, from traces of its ranks or its compiled program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from simcoll.command_line import WHOLE
from simcoll.errors import ConfigError, shown
from simcoll.terminal import say

if TYPE_CHECKING:
    from simcoll.jobs.job import Job
    from simcoll.jobs.what_if import JobQuestion

__all__ = ["ask_job"]


MOST_RANKS = 1 << 17
"""Limit of what a machine is made for: 5 CPU s at 131,072."""


@Parameter(name="*")
@dataclass(frozen=True)
class QuestionOptions:
    """What would change.

    Parameters
    ----------
    topology
        Another machine, whose services of collectives are predicted, or on which a compiled program
        is timed: a shipped topology, or a file.
    nodes
        Number of nodes of that machine. Default: as many as the ranks need.
    slow
        Computation of a rank takes longer: 3=1.5, for as many ranks as needed.
    beside_factor
        Predicted services beside computation take longer by this factor, such as 1.2. Default: 1.
    ranks
        Another number of ranks, for purely data-parallel jobs on --topology.
    calibration
        A calibration of that machine, which simcoll calibrate wrote.
    """

    topology: Annotated[str | None, Parameter(name=["--topology", "-t"])] = None
    nodes: Annotated[int | None, WHOLE] = None
    slow: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    beside_factor: Annotated[float | None, Parameter(name="--beside")] = None
    ranks: Annotated[int | None, WHOLE] = None
    calibration: Path | None = None

    def question(self, nranks: int) -> JobQuestion | None:
        """The question to a job of some ranks; None if nothing would change."""
        from simcoll.jobs.what_if import JobQuestion

        if self.topology is None:
            for name in ("nodes", "beside_factor", "ranks", "calibration"):
                if getattr(self, name) is not None:
                    option = name.removesuffix("_factor")
                    raise ConfigError(
                        f"--{option} is for predicted services: give --topology, the machine"
                    )
        if self.beside_factor is not None and not 1 <= self.beside_factor <= 10:
            raise ConfigError(
                f"--beside: expected a factor from 1 to 10, got {self.beside_factor:g}"
            )
        if self.ranks is not None and self.ranks < 2:
            raise ConfigError(f"--ranks: expected at least 2, got {self.ranks}")
        if self.ranks is not None and self.ranks > MOST_RANKS:
            raise ConfigError(f"--ranks {self.ranks}: expected at most {MOST_RANKS:,}")
        if self.topology is None and not self.slow:
            return None
        machine, calibration = None, None
        if self.calibration is not None:
            from simcoll.libraries.calibration import load_calibration

            calibration = load_calibration(self.calibration)
        if self.topology is not None:
            from simcoll.topology import topology_of_job

            machine = topology_of_job(self.topology, self.ranks or nranks, nodes=self.nodes)
        return JobQuestion(
            machine, _factors(self.slow), self.beside_factor or 1.0, self.ranks or 0, calibration
        )


@Parameter(name="*")
@dataclass(frozen=True)
class ProgramOptions:
    """How a compiled program is timed.

    Parameters
    ----------
    gpu
        GPU whose rates time the work of a compiled program. Default: that of --topology.
    accept_cpu
        Time a program that was compiled for CPUs, though its collectives are not those of GPUs.
    """

    gpu: str | None = None
    accept_cpu: Annotated[bool, Parameter(negative="")] = False


def _factors(texts: tuple[str, ...]) -> Mapping[int, float]:
    """Factors by rank, from texts such as ``3=1.5``."""
    factors: dict[int, float] = {}
    for text in texts:
        rank, _, factor = text.partition("=")
        try:
            value = float(factor)
        except ValueError:
            value = 0.0
        if not rank.isdecimal() or len(rank) > 7 or not 1 <= value <= 1000:
            raise ConfigError(
                f"--slow: expected a rank and a factor from 1 to 1000, such as 3=1.5, got "
                f"{shown(text)}"
            )
        if int(rank) in factors:
            raise ConfigError(f"--slow: two factors for rank {rank}")
        factors[int(rank)] = value
    return factors


def ask_job(
    *files: Path,
    what_if: QuestionOptions = QuestionOptions(),
    rows: Path | None = None,
    program: ProgramOptions = ProgramOptions(),
) -> None:
    """Say what a job is, what bounds it and what would change it, from traces of its ranks or from
    its compiled program.

    Parameters
    ----------
    files
        Traces of PyTorch's profiler, one file for each rank (.json or .json.gz), or folders of
        them; or the text of one compiled HLO module (.txt or .txt.gz), such as compiled.as_text()
        of JAX, which is timed on --topology. Or files that only list collectives: reports of NCCL's
        inspector, flight records, DeepSpeed's summaries, text workloads of ASTRA-sim and SimAI.
    rows
        File for the services of the collectives, as rows for simcoll compare and calibrate (CSV).
    """
    from simcoll.cli.job_files import list_files, refuse_special_files, trace_files
    from simcoll.files.output import refuse_places
    from simcoll.jobs.hlo_workload import is_hlo_file
    from simcoll.jobs.host_job import host_lines
    from simcoll.jobs.job import traced_job
    from simcoll.jobs.job_report import job_lines
    from simcoll.jobs.rank_trace import load_rank_trace
    from simcoll.jobs.what_if import answer_lines

    refuse_special_files(files)
    if any(is_hlo_file(file) for file in files):
        _say_program(files, what_if, rows, program)
        return
    refuse_places([rows], files)
    if lists := list_files(files):
        _say_lists(lists, what_if, rows, program)
        return
    traces, left_out = trace_files(files)
    refuse_places([rows], traces)
    if program != ProgramOptions():
        raise ConfigError(
            "--gpu and --accept-cpu are for compiled programs (HLO); traces have measured times",
            file=str(traces[0]),
        )
    for line in left_out:
        say(f"# left out: {line}")
    ranks = [load_rank_trace(trace) for trace in traces]
    if not any(rank.device_work for rank in ranks):
        lines = host_lines(ranks)
        if rows is not None or what_if != QuestionOptions():
            raise ConfigError(
                "no device work in these traces, so there are no times to write or to change",
                file=str(traces[0]),
            )
        for line in lines:
            say(line)
        return
    job = traced_job(ranks)
    question = what_if.question(job.nranks)
    for line in job_lines(job):
        say(line)
    if question is not None:
        for line in answer_lines(job, question):
            say(line)
    if rows is not None:
        _write_rows(job, rows)


def _say_program(
    files: tuple[Path, ...], what_if: QuestionOptions, rows: Path | None, program: ProgramOptions
) -> None:
    """Say what one compiled program does, and its time on a machine."""
    from simcoll.cli.hlo_job import job_lines

    if len(files) > 1:
        raise ConfigError(
            f"this is a compiled program, which all ranks share; expected it alone, got "
            f"{len(files)} files",
            file=str(files[0]),
        )
    of_traces = QuestionOptions(topology=what_if.topology, nodes=what_if.nodes)
    if rows is not None or what_if != of_traces:
        raise ConfigError(
            "--slow, --beside, --ranks, --calibration and --rows are for traces; this is a "
            "compiled program",
            file=str(files[0]),
        )
    for line in job_lines(
        files[0],
        topology=what_if.topology,
        nodes=what_if.nodes,
        gpu=program.gpu,
        cpu=program.accept_cpu,
    ):
        say(line)


def _say_lists(
    files: Sequence[Path], what_if: QuestionOptions, rows: Path | None, program: ProgramOptions
) -> None:
    """Say what is in files that only list collectives."""
    from simcoll.jobs.collective_lists import list_lines

    if what_if != QuestionOptions() or rows is not None or program != ProgramOptions():
        raise ConfigError(
            "a list of collectives has no times that could be changed or written as services; "
            "expected traces of PyTorch's profiler",
            file=str(files[0]),
        )
    for line in list_lines(files):
        say(line)


def _write_rows(job: Job, path: Path) -> None:
    from simcoll.files.output import write_file
    from simcoll.jobs.in_situ_rows import in_situ_csv
    from simcoll.units import counted

    content, number, unsized = in_situ_csv(job)
    if not number:
        raise ConfigError("no collective with a size, so there are no rows to write")
    write_file(path, content)
    omitted = f", {counted(unsized, 'collective')} without a size left out" if unsized else ""
    say(f"# wrote {path}: {counted(number, 'service')}{omitted}")
