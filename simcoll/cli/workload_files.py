"""Read workloads from the commands' input files, and write them in other formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.errors import ConfigError
from simcoll.terminal import say

if TYPE_CHECKING:
    from simcoll.formats.recognise import FileKind
    from simcoll.formats.schedules.schedule_files import Algorithm
    from simcoll.topology import Topology
    from simcoll.traces.rank_traces import Traces
    from simcoll.workload.workload import Rules, Workload

__all__ = [
    "WORKLOADS",
    "convert_workload",
    "read_any_workload",
    "workload_alone",
    "workload_kind",
]

WORKLOADS: tuple[FileKind, ...] = (
    "workload",
    "operations",
    "chakra",
    "hlo",
    "astra-workload",
    "inspector",
    "flight-record",
    "pickle",
    "deepspeed-comms",
    "aicb-calls",
)
"""Formats that hold a workload."""


def workload_kind(path: Path) -> FileKind:
    """Recognise a file's format by content; ``"chakra"`` for a prefix of Chakra's files."""
    from simcoll.files.paths import exists, is_file
    from simcoll.files.strict import read_file
    from simcoll.formats.recognise import recognise
    from simcoll.jobs.hlo_workload import is_hlo_file
    from simcoll.traces.chakra import MAX_FILE_BYTES

    if exists(path) and not is_file(path):
        if path.is_dir() and any(path.glob("*.et")):
            return "chakra"
        this = (
            "a folder, and simcoll convert makes a workload of the files of all ranks"
            if path.is_dir()
            else "a pipe or device, and what is in it can be read only once"
        )
        raise ConfigError(f"this is {this}; expected a file", file=str(path))
    if not is_file(path):
        return "chakra"
    return "hlo" if is_hlo_file(path) else recognise(read_file(path, MAX_FILE_BYTES))


def workload_alone(source: str) -> str | None:
    """``"workload"`` for a file that can become nothing else."""
    from simcoll.files.paths import is_file

    if is_file(source) and workload_kind(Path(source)) == "astra-workload":
        return "workload"
    return None


def read_any_workload(
    path: Path,
    kind: FileKind,
    topology: str | None = None,
    nodes: int | None = None,
    gpu: str | None = None,
    system: Path | None = None,
    comm_groups: Path | None = None,
) -> tuple[Workload, Topology | None, Mapping[int, float]]:
    """Read a workload, its topology if given, and its slow ranks."""
    from simcoll.files.strict import read_file
    from simcoll.formats.recognise import TITLES
    from simcoll.jobs.list_workload import LISTS, list_workload
    from simcoll.topology import load_topology
    from simcoll.traces.astra_system import load_astra_system, load_comm_groups
    from simcoll.traces.chakra import MAX_FILE_BYTES, load_chakra
    from simcoll.training.gpu import load_gpu, refuse_other_gpu
    from simcoll.training.operation_list import load_operations
    from simcoll.workload.workload import read_workload

    slow: Mapping[int, float] = {}
    machine: Topology | None = None
    settings = None if system is None else load_astra_system(system)
    if gpu is not None and kind not in {"chakra", "hlo"}:
        raise ConfigError(
            f"--gpu is for Chakra traces and HLO modules; this is {TITLES[kind]}", file=str(path)
        )
    if nodes is not None and topology is None:
        raise ConfigError(f"--nodes {nodes} is for --topology, which is not given", file=str(path))
    if comm_groups is not None and kind != "chakra":
        raise ConfigError(
            f"--comm-groups is for Chakra traces; this is {TITLES[kind]}", file=str(path)
        )
    if kind == "operations":
        listed = load_operations(path)
        workload, machine, slow = listed.workload, listed.topology, listed.slow
    elif kind == "workload":
        workload = read_workload(read_file(path, MAX_FILE_BYTES), str(path))
    elif kind == "hlo":
        from simcoll.jobs.hlo_workload import gpu_of, hlo_workload, load_hlo

        place = None if topology is None else load_topology(topology, nodes=nodes)
        workload = hlo_workload(load_hlo(path), gpu_of(gpu, place, str(path)))
    elif kind == "astra-workload":
        workload = _text_workload(path, topology, nodes)
    elif kind in LISTS:
        workload, notes = list_workload([path])
        for note in notes:
            say(f"# {note}")
    else:
        roofline = None if settings is None else settings.gpu
        groups = None if comm_groups is None else load_comm_groups(comm_groups)
        workload = load_chakra(path, gpu=roofline if gpu is None else load_gpu(gpu), groups=groups)
    if settings is not None:
        workload = settings.apply_to(workload)
        if settings.left_out:
            say(f"# {system}: no counterpart here: {', '.join(settings.left_out)}")
    if topology is not None:
        slow, machine = {}, load_topology(topology, nodes=nodes)
        if nodes is None and machine.nranks < workload.nranks:
            machine = load_topology(topology, nodes=-(-workload.nranks // max(1, machine.nranks)))
        if gpu is not None:
            refuse_other_gpu(gpu, machine)
    return workload, machine, slow


def _text_workload(path: Path, topology: str | None, nodes: int | None) -> Workload:
    """The workload of a text, on the ranks that it states, or those of the machine."""
    from simcoll.files.strict import read_file
    from simcoll.formats.reports.astra_workload import MAX_BYTES, parse_astra_workload
    from simcoll.topology import load_topology
    from simcoll.traces.text_workload import text_workload

    parsed = parse_astra_workload(read_file(path, MAX_BYTES), str(path))
    machine = None if topology is None else load_topology(topology, nodes=nodes)
    workload, notes = text_workload(
        parsed,
        None if machine is None else machine.nranks,
        None if machine is None else machine.ranks_per_node,
        title=path.stem,
        file=str(path),
    )
    for note in notes:
        say(f"# {note}")
    return workload


def convert_workload(
    source: str,
    target: Path,
    name: str,
    topology: str | None,
    algorithm: Callable[[], Algorithm],
    size: str | None,
    dtype: str | None,
) -> None:
    """Write a workload, or the messages of an algorithm, in another format."""
    from simcoll.files.output import write_file, write_files
    from simcoll.files.paths import is_file
    from simcoll.formats.recognise import TITLES
    from simcoll.traces.chakra_writer import dump_chakra
    from simcoll.workload.workload import write_workload

    path = Path(source)
    kind: FileKind | None = "chakra" if is_file(f"{source}.0.et") else None
    if is_file(path):
        kind = workload_kind(path)
    rules: Rules | None = None
    subject = ""
    if kind is not None and kind in WORKLOADS:
        workload, place, _ = read_any_workload(path, kind, topology)
        if name == "workload":
            content = write_workload(workload)
            write_file(target, content)
            say(
                f"wrote {target}: {workload.nranks} ranks, {len(workload.operations)} operations, "
                f"{len(content):,} bytes"
            )
            return
        traces, rules = _traces(workload, place, messages=name == "chakra-messages"), workload.rules
    elif name == "workload":
        subject = "an algorithm is no workload" if kind is None else f"this is {TITLES[kind]}"
        subject += "; simcoll step writes its workload" if kind == "design" else ""
        raise ConfigError(
            f"{subject}; expected a list of operations, a workload, a Chakra trace, a text "
            "workload of ASTRA-sim or SimAI, or an HLO module",
            file=source,
        )
    else:
        loaded = algorithm()
        traces, subject = _messages(loaded, size, dtype), f"{loaded}, "
    stem = target.name.removesuffix(".et")
    files = {
        f"{stem}.{rank}.et": content for rank, content in enumerate(dump_chakra(traces, rules))
    }
    write_files(target.parent, files)
    steps = sum(map(len, traces))
    nbytes = sum(map(len, files.values()))
    names = f"{target.parent / stem}.0.et to {stem}.{len(files) - 1}.et"
    say(f"wrote {names}: {subject}{steps:,} nodes, {nbytes:,} bytes")


def _traces(workload: Workload, place: Topology | None, *, messages: bool) -> Traces:
    from simcoll.traces.chakra_writer import traces_of_program, traces_of_workload
    from simcoll.workload.lower import WorkloadPlans, lower
    from simcoll.workload.workload import CallOperation, ComputeOperation, operations_with_counts

    nested = any(
        operation.inside
        if isinstance(operation, ComputeOperation)
        else isinstance(operation, CallOperation) and operation.pairs
        for operation, _ in operations_with_counts(workload.operations)
    )
    if not nested and not messages:
        return traces_of_workload(workload)
    if place is None:
        raise ConfigError("what its collectives become depends on where they run: give --topology")
    return traces_of_program(
        lower(workload, WorkloadPlans(place, rules=workload.rules))[0], lowered=messages
    )


def _messages(algorithm: Algorithm, size: str | None, dtype: str | None) -> Traces:
    """The messages of a schedule bound to a size, or of a GOAL program, whose messages are marked
    unproved.
    """
    from simcoll.emulator.goal import goal_program
    from simcoll.emulator.programs import Call, Program
    from simcoll.formats.goal.goal_writer import bind_bytes
    from simcoll.formats.goal.language import Goal
    from simcoll.formats.schedules.schedule_files import schedule_of
    from simcoll.traces.chakra_writer import traces_of_program
    from simcoll.units import parse_size

    if isinstance(algorithm, Goal):
        if size or dtype:
            raise ConfigError(
                f"--size and --dtype are for schedules; {algorithm} has sizes of its own"
            )
        return [
            [replace(step, name="unproved") for step in steps]
            for steps in traces_of_program(goal_program(algorithm))
        ]
    plan = bind_bytes(schedule_of(algorithm), parse_size(size or "1M"), dtype or "float32")
    return traces_of_program(Program(plan.nranks, [Call(plan)]), lowered=True)
