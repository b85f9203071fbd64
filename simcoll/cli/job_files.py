"""The files of a job: traces of its ranks, in folders or one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simcoll.errors import ConfigError

__all__ = ["trace_files"]


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

    traces: list[Path] = []
    left_out: list[str] = []
    for path in paths:
        if not is_folder(path):
            start = read_start(path)
            if not is_trace_head(start):
                raise ConfigError(
                    f"this is {title_of(start)}; expected a trace of PyTorch's profiler, or a "
                    "folder of the traces of a job's ranks",
                    file=str(path),
                )
            traces.append(path)
            continue
        inner = sorted(
            file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")
        )
        fitting = [file for file in inner if is_trace_head(read_start(file))]
        if not fitting:
            raise ConfigError("no trace of PyTorch's profiler in this folder", file=str(path))
        traces += fitting
        left_out += [f"{file}: no trace of a profiler" for file in inner if file not in fitting]
    return traces, left_out
