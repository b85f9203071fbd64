"""The files of a job: traces of its ranks, in folders or one by one, or its compiled program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from simcoll.errors import ConfigError
from simcoll.terminal import say

__all__ = [
    "JobConversion",
    "convert_job",
    "is_job",
    "list_files",
    "refuse_special_files",
    "trace_files",
]


@Parameter(name="*")
@dataclass(frozen=True)
class JobConversion:
    """A job as a workload.

    Parameters
    ----------
    measured
        Keep the measured services of a job's collectives, instead of leaving them to be predicted.
    gpu
        GPU whose rates time the work of a compiled program (HLO).
    accept_cpu
        Take a program that was compiled for CPUs, whose collectives are not those of GPUs.
    """

    measured: Annotated[bool, Parameter(negative=())] = False
    gpu: str | None = None
    accept_cpu: Annotated[bool, Parameter(negative=())] = False


def trace_files(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The traces among files and in folders, and what of the folders is none.

    Raises
    ------
    ConfigError
        For a file that is no trace, and for folders without any.
    """
    from simcoll.files.paths import is_folder
    from simcoll.files.strict import read_start
    from simcoll.formats.recognise import title_of
    from simcoll.jobs.trace_stream import is_trace_head
    from simcoll.units import counted

    if not paths:
        raise ConfigError(
            "job needs files; expected the traces of one or more ranks, or a folder of them"
        )
    traces: list[Path] = []
    left_out: list[str] = []
    for path in paths:
        if not is_folder(path):
            start = read_start(path)
            if not is_trace_head(start):
                raise ConfigError(
                    f"this is {title_of(start)}; expected a trace of PyTorch's profiler, a folder "
                    "of the traces of a job's ranks, the text of a compiled program (HLO), or a "
                    "file that lists collectives",
                    file=str(path),
                )
            traces.append(path)
            continue
        inner = sorted(
            file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")
        )
        fitting = [file for file in inner if is_trace_head(read_start(file))]
        if not fitting:
            raise ConfigError(
                f"no trace of PyTorch's profiler in this folder of {counted(len(inner), 'file')}; "
                "compiled programs and lists of collectives are asked one by one",
                file=str(path),
            )
        traces += fitting
        left_out += [f"{file}: no trace of a profiler" for file in inner if file not in fitting]
    return traces, left_out


def refuse_special_files(paths: Sequence[Path]) -> None:
    """Refuse pipes and devices: a file is opened to recognise it, and again to read it."""
    from simcoll.files.paths import exists, is_file, is_folder

    for path in paths:
        if exists(path) and not is_file(path) and not is_folder(path):
            raise ConfigError(
                "this is a pipe or device, and what is in it can be read only once; expected a "
                "file or a folder",
                file=str(path),
            )


def list_files(paths: Sequence[Path]) -> list[Path]:
    """The files, if all of them are lists of collectives; else none."""
    from simcoll.files.paths import is_file, is_folder
    from simcoll.jobs.collective_lists import is_collective_list

    files: list[Path] = []
    for path in paths:
        if is_folder(path):
            files += sorted(file for file in path.iterdir() if file.is_file())
        else:
            files.append(path)
    return files if all(is_file(file) and is_collective_list(file) for file in files) else []


def is_job(source: str) -> bool:
    """Whether this is a folder, a trace of a profiler, a compiled program (HLO), or a list of
    collectives.
    """
    from simcoll.files.paths import is_file, is_folder
    from simcoll.files.strict import read_start
    from simcoll.formats.recognise import recognise
    from simcoll.jobs.hlo_workload import is_hlo_file
    from simcoll.jobs.list_workload import LISTS
    from simcoll.jobs.trace_stream import is_trace_head

    if is_folder(source):
        return True
    if not is_file(source):
        return False
    start = read_start(source)
    return is_trace_head(start) or is_hlo_file(source) or recognise(start) in LISTS


def convert_job(source: Path, target: Path, to: str | None, options: JobConversion) -> None:
    """Write a job as a workload."""
    from simcoll.files.output import refuse_places, write_file
    from simcoll.jobs.hlo_workload import gpu_of, hlo_workload, is_hlo_file, load_hlo
    from simcoll.jobs.job import job_of_files
    from simcoll.jobs.job_workload import job_workload
    from simcoll.jobs.list_workload import list_workload
    from simcoll.workload.workload import write_workload

    if to not in {None, "workload"}:
        raise ConfigError(
            f"a job becomes a workload, not format {to!r}; convert the workload then",
            file=str(source),
        )
    refuse_places([target], [source])
    if is_hlo_file(source):
        if options.gpu is None or options.measured:
            raise ConfigError(
                "a compiled program has no measured times: give --gpu, whose rates time its work, "
                "and not --measured",
                file=str(source),
            )
        gpu = gpu_of(options.gpu, None, str(source))
        workload = hlo_workload(load_hlo(source), gpu, cpu=options.accept_cpu)
    elif lists := list_files([source]):
        refuse_places([target], lists)
        if options.gpu is not None or options.accept_cpu:
            raise ConfigError(
                "--gpu and --accept-cpu are for compiled programs (HLO)", file=str(source)
            )
        workload, notes = list_workload(lists, measured=options.measured)
        for note in notes:
            say(f"# {note}")
    else:
        if options.gpu is not None or options.accept_cpu:
            raise ConfigError(
                "--gpu and --accept-cpu are for compiled programs (HLO); traces have measured "
                "times",
                file=str(source),
            )
        traces, left_out = trace_files([source])
        refuse_places([target], traces)
        job = job_of_files(traces)
        workload, notes = job_workload(job, measured=options.measured)
        notes = [*(f"left out: {line}" for line in left_out), *job.notes, *notes]
        for note in notes:
            say(f"# {note}")
    content = write_workload(workload)
    write_file(target, content)
    say(
        f"wrote {target}: {workload.nranks} ranks, {len(workload.operations)} operations, "
        f"{len(content):,} bytes"
    )
