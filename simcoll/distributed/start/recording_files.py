"""The files of a recorded run: a workload, and Chakra traces."""

from __future__ import annotations

from pathlib import Path

from simcoll.distributed.start.results import RunResult
from simcoll.errors import ConfigError
from simcoll.files.output import write_files
from simcoll.traces.chakra_writer import dump_chakra, traces_of_workload
from simcoll.workload.workload import write_workload

__all__ = ["write_recording"]


def write_recording(path: str | Path, result: RunResult) -> None:
    """Write a recorded run: ``w.json``, a workload; ``w.et``, a Chakra trace per rank; else a
    folder with both.

    Raises
    ------
    ConfigError
        When the run was not recorded, or a file cannot be written; old files are then kept.
    """
    workload, target = result.workload, Path(path)
    if workload is None:
        raise ConfigError("this run was not recorded: call spawn with record=True or a path")
    stem = target.stem if target.suffix == ".et" else "trace"
    files = {}
    if target.suffix != ".et":
        files[target.name if target.suffix == ".json" else "workload.json"] = write_workload(
            workload
        )
    if target.suffix != ".json":
        traces = dump_chakra(traces_of_workload(workload), workload.rules)
        files |= {f"{stem}.{rank}.et": content for rank, content in enumerate(traces)}
    folder = target.parent if target.suffix in {".et", ".json"} else target
    folder.mkdir(parents=True, exist_ok=True)
    write_files(folder, files)
