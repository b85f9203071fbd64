"""What ``simcoll job`` prints of a compiled HLO module: what it does, and its time on a machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.errors import ConfigError, blamed_on

if TYPE_CHECKING:
    from simcoll.jobs.hlo_program import HloProgram, Step
    from simcoll.topology import Topology
    from simcoll.training.gpu import Gpu

__all__ = ["job_lines"]

_TARGETS = {"gpu": "GPUs", "tpu": "TPUs", "cpu": "CPUs", "": "an unknown device"}
_CHIPS = {"gpu": "a GPU", "tpu": "a TPU", "cpu": "a device", "": "a device"}
MOST_LOOPS = 6


def job_lines(
    path: Path,
    *,
    topology: str | None = None,
    nodes: int | None = None,
    gpu: str | None = None,
    cpu: bool = False,
) -> list[str]:
    """The lines about the HLO module in a file.

    Parameters
    ----------
    topology, nodes
        The machine, and its number of nodes: as many as the module needs without it. Without a
        machine there are no times.
    gpu
        The GPU whose rates time the work; without it that of the machine.
    cpu
        Accept a module that was compiled for CPUs.

    Raises
    ------
    ConfigError
        With the file and the line, for what cannot be read or timed.
    """
    from simcoll.jobs.hlo_workload import gpu_of, load_hlo

    program = load_hlo(path)
    chosen = None if gpu is None else gpu_of(gpu, None, str(path))
    lines = list(_program_lines(program, chosen))
    if topology is None:
        if nodes is not None:
            raise ConfigError(f"--nodes {nodes} is for --topology, which is not given")
        return [*lines, "# without --topology there are no times"]
    machine = _machine(topology, nodes, program.module.devices)
    chosen = gpu_of(gpu, machine, str(path))
    times = _time_lines(program, machine, chosen, cpu=cpu)
    return [*times, *lines, *_scope_lines(program, chosen)]


def _machine(topology: str, nodes: int | None, devices: int) -> Topology:
    """The machine, with as many nodes as the module needs unless their number is given."""
    from simcoll.topology import load_topology

    machine = load_topology(topology, nodes=nodes)
    if nodes is not None or machine.nranks >= devices:
        return machine
    try:
        return load_topology(topology, nodes=-(-devices // max(1, machine.nranks)))
    except ConfigError as error:  # about a number of nodes that the user did not give
        raise ConfigError(
            f"the module has {devices} devices and topology {topology!r} {machine.nranks} ranks; "
            f"more of it cannot be taken: {error.message}"
        ) from None


def _program_lines(program: HloProgram, gpu: Gpu | None) -> Iterator[str]:
    """What the program does on each device."""
    module = program.module
    device = _CHIPS[module.target]
    yield (f"# {module.name}: compiled for {_TARGETS[module.target]}, {module.devices} devices")
    flops = program.flops
    listed = ", ".join(f"{name} {_flops(count)}" for name, count in flops.most_common())
    yield _row("products", f"{listed} {device}" if listed else "none")
    yield _row("memory", _memory(program, gpu))
    loops = list(_loops(program.steps, 1))
    if loops:
        text = ", ".join(loops[:MOST_LOOPS])
        further = f", and {len(loops) - MOST_LOOPS} more" if len(loops) > MOST_LOOPS else ""
        yield _row("loops", f"{text}{further}")
    cycles = sum(_cycles(program))
    if cycles:
        yield _row("cycles", f"{cycles:,} of work {device}, as the compiler estimates")
    yield from _group_lines(program)
    for assumption in program.assumptions:
        yield f"# assumed: {assumption}"


def _memory(program: HloProgram, gpu: Gpu | None) -> str:
    from simcoll.jobs.hlo_memory import memory_of

    memory = memory_of(program.module)
    donated = f" ({_binary(memory.donated)} donated)" if memory.donated else ""
    parts = [
        f"about {_binary(memory.peak)} at most",
        f"arguments {_binary(memory.arguments)}{donated}",
    ]
    if memory.outputs:
        parts.append(f"outputs {_binary(memory.outputs)}")
    if memory.host:
        parts.append(f"in host memory {_binary(memory.host)}")
    if gpu is not None:
        share = memory.peak / gpu.memory_bytes
        verdict = "fits in" if share <= 1 else "more than"
        parts.append(f"{verdict} the {_binary(gpu.memory_bytes)} of {gpu.name}")
    return ", ".join(parts)


def _loops(steps: Iterable[Step], outer: int) -> Iterator[str]:
    """Loops with their counts, and how often a loop inside another begins."""
    from simcoll.jobs.hlo_program import HloLoop

    for step in steps:
        if isinstance(step, HloLoop):
            begins = f" (begun {outer} times)" if outer > 1 else ""
            yield f"{step.name} {step.count} times{begins}"
            yield from _loops(step.steps, outer * step.count)


def _cycles(program: HloProgram) -> Iterator[int]:
    from simcoll.jobs.hlo_program import HloWork, steps_with_counts

    for step, count in steps_with_counts(program.steps):
        if isinstance(step, HloWork):
            yield step.cycles * count


def _group_lines(program: HloProgram) -> Iterator[str]:
    """The collectives of each set of groups."""
    from simcoll.jobs.hlo_workload import group_names

    names = group_names(program)
    counts: dict[str, Counter[str]] = {}
    sizes: dict[str, Counter[str]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    members: dict[str, list[int]] = {}
    for collective, count in program.collectives:
        name = names(collective)
        counts.setdefault(name, Counter())[collective.kind] += count
        sizes.setdefault(name, Counter())[collective.kind] += count * collective.size_bytes
        shapes[name] = collective.groups.shape
        members[name] = collective.groups[0].tolist()
    if not counts:
        yield _row("collectives", "none")
    for name, kinds in counts.items():
        groups, ranks = shapes[name]
        listed = ", ".join(
            f"{count} {kind} of {_binary(sizes[name][kind])} in all"
            for kind, count in kinds.items()
        )
        numbers = " ".join(map(str, members[name][:4])) + (" ..." if ranks > 4 else "")
        label = f"{groups} groups of {ranks}" if groups > 1 else f"a group of {ranks}"
        yield _row(name, f"{listed}; {label}: {numbers}")


def _time_lines(program: HloProgram, machine: Topology, gpu: Gpu, *, cpu: bool) -> Iterator[str]:
    """The time of the program on a machine."""
    from simcoll.jobs.hlo_workload import hlo_workload
    from simcoll.planning.designs.step_report import workload_lines
    from simcoll.workload.playing import run_workload, tier_for

    module = program.module
    workload = hlo_workload(program, gpu, cpu=cpu)
    with blamed_on(module.file):
        result = run_workload(workload, machine, tier=tier_for(workload))
    yield from workload_lines(result)
    if result.time_fs:
        peak = gpu.peak("bf16" if "peak.bf16" in gpu.values else "fp16")
        products = sum(program.flops.values()) / result.seconds / peak
        share = result.compute_fs / result.time_fs
        yield _row(
            "use",
            f"work {100 * share:.0f} % of the step, products {100 * products:.1f} % of "
            f"{peak / 1e12:,.0f} TFLOPS ({gpu.name})",
        )


def _scope_lines(program: HloProgram, gpu: Gpu) -> Iterator[str]:
    """What the times leave out, and how far they were checked."""
    module = program.module
    if module.target != "gpu":
        yield (
            f"# compiled for {_TARGETS[module.target]}: a module for GPUs has other collectives "
            "and other times"
        )
    yield (
        f"# work is timed by the roofline of {gpu.name}, without launches and the host; partition "
        "k of the module is rank k of the machine"
    )
    yield (
        "# checked: FLOPs, bytes and groups by closed forms; times by three published steps, of "
        "Llama 2 on 8 to 128 H100: -15 % to +8 % (docs/reference/hlo.md)"
    )


def _flops(count: int) -> str:
    for unit, scale in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count:,} FLOP"


def _binary(count: int) -> str:
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count:,} B"


def _row(name: str, text: str) -> str:
    return f"{name:<11} {text}"
