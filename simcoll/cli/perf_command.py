"""``simcoll perf``: a collective over a range of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from simcoll.cli.disturbance_options import Disturbed
from simcoll.cli.perf_options import (
    AlgorithmOptions,
    Files,
    LibraryOptions,
    MachineOptions,
    MeshOptions,
    SizeOptions,
)
from simcoll.command_line import VERBOSE
from simcoll.errors import ConfigError, blamed_on
from simcoll.terminal import say

if TYPE_CHECKING:
    from simcoll.cli.algorithm_names import Named
    from simcoll.core.schedule import Schedule
    from simcoll.planning.sweeps.sweep import Sweep
    from simcoll.topology import Topology
    from simcoll.tuning import Choice

__all__ = ["predict"]


def _check_library_alone(runs: AlgorithmOptions, disturbed: Disturbed, check_bytes: int) -> None:
    """Refuse options that choose an algorithm, move its data or disturb it, where a library
    chooses.
    """
    if disturbed.disturbs:
        raise ConfigError(
            "--jitter, --straggler, --background and --fault are for algorithms, not for libraries"
        )
    if runs.algorithm is not None or runs.protocol is not None:
        raise ConfigError(
            "--library, --nccl-version, --env, --launcher and --calibration are for what a library "
            "chooses, -a and -p for what you choose"
        )
    if check_bytes:
        raise ConfigError(
            "-c moves data through algorithms that you choose (-a); a library's choices are timed"
        )


def predict(
    collective: str | None = None,
    /,
    *,
    place: MachineOptions = MachineOptions(),  # noqa: B008
    sizes: SizeOptions = SizeOptions(),  # noqa: B008
    runs: AlgorithmOptions = AlgorithmOptions(),  # noqa: B008
    library: LibraryOptions = LibraryOptions(),  # noqa: B008
    mesh: MeshOptions = MeshOptions(),  # noqa: B008
    verbose: Annotated[bool, VERBOSE] = False,
    files: Files | None = None,
    disturbed: Disturbed = Disturbed(),  # noqa: B008
) -> None:
    """Predict a collective over a range of sizes, as nccl-tests' table with bound, headroom and
    bottleneck.

    Parameters
    ----------
    collective
        all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, ..., or a custom one
        as module:function or file. Default: that of a file given as algorithm.
    verbose
        Print also every proof, why an algorithm is left out, what a library's model lacks, what
        played the runs, and their hash.
    """
    from simcoll.cli.algorithm_names import name_choices
    from simcoll.cli.sweeping import mesh_lines
    from simcoll.core.reduction import parse_dtype, parse_reduction
    from simcoll.planning.sweeps.sweep import Sweep
    from simcoll.topology.machine import beyond_pcie
    from simcoll.tuning import default_protocols
    from simcoll.units import parse_size

    machine = disturbed.select_ranks(place.load())
    disturbance = disturbed.disturbance()
    algorithm, protocol, root = runs.algorithm, runs.protocol, runs.data.root
    protocols = tuple(protocol.split(",")) if protocol is not None else ()
    machines = {"": machine}
    if mesh.group is not None and not mesh.concurrent:
        from simcoll.planning.sweeps.mesh_groups import machines_along

        machines = machines_along(machine, mesh.group)
    outputs = {axis: (files or Files()).along(axis) for axis in machines}
    inputs = place.topology, library.calibration, library.library, *(algorithm or "").split(",")
    for output in outputs.values():
        output.check(library, inputs, concurrent=mesh.concurrent)
    request = name_choices("simcoll perf", collective, root, algorithm)
    checked = parse_size(runs.check, what="-c")
    ladder = sizes.ladder
    if library.alone:
        _check_library_alone(runs, disturbed, checked)
    unrestricted = (
        algorithm is None
        and protocol is None
        and request.root in {None, 0}
        and not disturbed.disturbs
    )
    notes: list[str] = []
    if not protocols and not library.alone:
        protocols, note = default_protocols(machine)
        notes += [note] if note else []
    sweep = Sweep(
        request.collective,
        ladder,
        request.choices or (),
        protocols,
        runs.data.dtype,
        runs.data.op,
        request.root,
        checked,
        disturbance,
    )
    if not library.alone:  # a library names reductions in words of its own
        parse_reduction(sweep.op, parse_dtype(sweep.dtype))
    if (axes := mesh.concurrent_group) is not None:
        from simcoll.libraries.library import library_for

        if library.has_settings or request.programs or checked:
            raise ConfigError(
                "--concurrent is for the times of schedules, not for --env, --calibration, "
                "--nccl-version, --check and GOAL programs"
            )
        chosen = library.library or (str(library_for(None, machine)) if unrestricted else "")
        for note in () if chosen else notes:
            say(f"# {note}")
        mesh_lines(sweep, machine, axes, csv=outputs[""].csv, library=chosen)
        return
    for axis, part in machines.items():
        with blamed_on(f"--group, axis {axis}" if axis else None):
            disturbance.check(part)
    if slow_slots := beyond_pcie(machine):
        say(f"# {slow_slots}")
    for axis, part in machines.items():
        with blamed_on(f"--group, axis {axis}" if axis else None):
            _table(
                axis,
                part,
                sweep,
                request,
                library if unrestricted or library.alone else None,
                outputs[axis],
                notes,
                verbose=verbose,
            )


def _table(
    axis: str,
    machine: Topology,
    sweep: Sweep,
    request: Named,
    library: LibraryOptions | None,
    files: Files,
    notes: Sequence[str],
    *,
    verbose: bool,
) -> None:
    """Print and write the table of a machine, or of one group along an axis; ``library``: its lines
    first, or alone.
    """
    from simcoll.cli.sweeping import print_sweep, prove_all
    from simcoll.planning.sweeps.run_conditions import DataKeys
    from simcoll.tuning import candidates, collective_on

    title = f"{sweep.collective or 'GOAL'} on {machine.name}"
    if axis:
        title = f"{title}; one group along {axis}"
    collective = (
        collective_on(sweep.collective, machine.nranks, sweep.root) if sweep.collective else None
    )
    if library and library.alone and collective and collective.definition is not None:
        raise ConfigError(
            f"no library has {collective}, a custom collective; give -a, not a library"
        )
    elements = DataKeys(dtype=sweep.dtype, op=sweep.op, root=sweep.root)
    predictions = (
        library.show(sweep.collective, sweep.sizes, machine, data=elements, verbose=verbose)
        if library and collective and collective.definition is None
        else []
    )
    if library and library.alone:
        files.write_predictions(predictions, machine)
        return
    built: list[Schedule] | None = None
    notes = list(notes)
    if collective and request.choices is None:
        fitting, left_out = candidates(collective, machine, sweep.protocols)
        if verbose:
            notes += [f"left out {reason}" for reason in left_out]
        elif left_out:
            names = ", ".join(dict.fromkeys(reason.partition(":")[0] for reason in left_out))
            missing = any("is not installed" in reason for reason in left_out)
            cause = "" if missing else ", as the machine does not suit them"
            notes.append(f"left out{cause}: {names} (-v: why)")
        sweep = replace(sweep, choices=tuple(choice for choice, _ in fitting))
        built = [schedule for _, schedule in fitting]
    for note in notes:
        say(f"# {note}")
    refused: dict[Choice, str] | None = None if built is None else {}
    schedules = prove_all(sweep, machine, built, refused) if sweep.collective else []
    if refused:
        sweep = replace(
            sweep, choices=tuple(choice for choice in sweep.choices if choice not in refused)
        )
        if not sweep.choices:
            raise ConfigError("; ".join(dict.fromkeys(refused.values())))
        for choice, reason in refused.items():
            say(f"# left out: {choice}: {reason}")
        refused.clear()
    table, proofs, stopped = print_sweep(
        title, sweep, schedules, machine, request.programs, refused=refused, verbose=verbose
    )
    if predictions and not stopped:
        from simcoll.planning.measured.library_table import gain_lines

        for line in gain_lines(predictions, table.rows):
            say(line)
    if table or table.programs:
        files.write(title, table, machine, proofs, predictions)
    if stopped:
        raise KeyboardInterrupt
