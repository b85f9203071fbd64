"""``simcoll perf``: a collective over a range of sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from simcoll.cli.disturbance_options import Disturbed
from simcoll.command_line import VERBOSE, WHOLE
from simcoll.errors import ConfigError, blamed_on
from simcoll.terminal import say, say_text

if TYPE_CHECKING:
    from simcoll.cli.algorithm_names import Named
    from simcoll.core.schedule import Schedule
    from simcoll.libraries.prediction import Prediction
    from simcoll.planning.sweeps.running import SweepTable
    from simcoll.planning.sweeps.sweep import Sweep
    from simcoll.topology import Topology

__all__ = ["predict"]


def predict(
    collective: str | None = None,
    /,
    *,
    topology: Annotated[str, Parameter(name=["--topology", "-t"])] = "dgx-h100",
    nodes: Annotated[int | None, WHOLE] = None,
    degrade: Annotated[
        tuple[str, ...], Parameter(name="--degrade", negative=(), show_default=False)
    ] = (),
    begin: Annotated[str, Parameter(name=["--begin", "-b"])] = "8",
    end: Annotated[str, Parameter(name=["--end", "-e"])] = "128M",
    factor: Annotated[int, Parameter(name=["--factor", "-f"]), WHOLE] = 2,
    algorithm: Annotated[str | None, Parameter(name=["--algorithm", "-a"])] = None,
    protocol: Annotated[str | None, Parameter(name=["--protocol", "-p"])] = None,
    dtype: Annotated[str, Parameter(name=["--dtype", "-d"])] = "float32",
    op: Annotated[str, Parameter(name=["--op", "-o"])] = "sum",
    root: Annotated[int | None, Parameter(name=["--root", "-r"]), WHOLE] = None,
    check: Annotated[str, Parameter(name=["--check", "-c"])] = "0",
    library: str | None = None,
    env: str = "",
    calibration: Path | None = None,
    group: str | None = None,
    concurrent: bool = False,
    verbose: Annotated[bool, VERBOSE] = False,
    files: Files | None = None,
    disturbed: Disturbed = Disturbed(),  # noqa: B008
) -> None:
    """Predict a collective over a range of sizes, as nccl-tests' table with bound, headroom and
    bottleneck.

    Parameters
    ----------
    collective
        all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, ... Default: that of
        a file given as algorithm.
    topology
        A shipped topology (simcoll list topologies), a TOML file, or an NCCL topology XML dump.
    nodes
        Number of nodes. Default: the topology's.
    degrade
        A link and its remaining share of capacity, such as "box0.gpu3 <-> box0.nvswitch=17/18"; 0
        removes it. May be repeated.
    begin
        Smallest size in bytes, such as 8 or 1M.
    end
        Largest size.
    factor
        Factor between sizes.
    algorithm
        Algorithms to compare, separated by commas, with parameters after colons:
        ring:channels=4,tree. Also files, and functions of modules: plan.xml,mine.algorithms:star.
        Default: all that fit.
    protocol
        ideal, LL, LL128, Simple, separated by commas; the best of each size is shown.
        Default: LL,LL128,Simple where NCCL has constants for the GPUs, otherwise ideal.
    dtype
        Element type, such as float32, bf16 or int8.
    op
        Reduction: sum, product, min, max, band, bor, bxor, avg.
    root
        Root rank of broadcast, reduce, gather and scatter.
    check
        Largest size at which every run moves real data. In any case data is moved once through
        every algorithm.
    library
        Show only the choices of this library: nccl, rccl, or the path of a library file. Without
        --library, --algorithm and --protocol: NCCL's lines, then the best of all algorithms.
    env
        NCCL's variables for its lines, such as NCCL_ALGO=Ring,NCCL_PROTO=^LL128.
    calibration
        A file that simcoll calibrate wrote, for NCCL's lines.
    group
        Axes of a mesh of all ranks, fastest first, such as tp=8,dp=64: a table for one group of
        each axis, and files prefixed with the axis.
    concurrent
        With --group: one table of each axis, with one group alone and with all groups at once.
    verbose
        Print also every proof, why an algorithm is left out, what a library's model lacks, what
        played the runs, and their hash.
    """
    from simcoll.cli.algorithm_names import name_choices
    from simcoll.cli.sweeping import degrade_links, mesh_lines
    from simcoll.planning.sweeps.sweep import Sweep, size_ladder
    from simcoll.topology import load_topology
    from simcoll.tuning import default_protocols
    from simcoll.units import parse_size

    machine = disturbed.select_ranks(degrade_links(load_topology(topology, nodes=nodes), degrade))
    disturbance = disturbed.disturbance()
    protocols = tuple(protocol.split(",")) if protocol is not None else ()
    library_options = _LibraryOptions(library, env, calibration, verbose)
    machines = {"": machine}
    if group is not None and not concurrent:
        from simcoll.planning.sweeps.mesh_groups import machines_along

        machines = machines_along(machine, group)
    outputs = {axis: (files or Files()).along(axis) for axis in machines}
    for output in outputs.values():
        output.check(
            library_options,
            [topology, calibration, library, *(algorithm or "").split(",")],
            concurrent=concurrent,
        )
    request = name_choices("simcoll perf", collective, root, algorithm)
    checked = parse_size(check, what="-c")
    ladder = size_ladder(parse_size(begin, what="-b"), parse_size(end, what="-e"), factor)
    if disturbed.disturbs and library_options.alone:
        raise ConfigError(
            "--jitter, --straggler, --background and --fault are for algorithms, not for libraries"
        )
    if library_options.alone and (algorithm is not None or protocol is not None):
        raise ConfigError(
            "--library, --env and --calibration are for what a library chooses, -a and -p for what "
            "you choose"
        )
    unrestricted = (
        algorithm is None
        and protocol is None
        and request.root in {None, 0}
        and not disturbed.disturbs
    )
    notes: list[str] = []
    if not protocols and not library_options.alone:
        protocols, note = default_protocols(machine)
        notes += [note] if note else []
    sweep = Sweep(
        request.collective,
        ladder,
        request.choices or (),
        protocols,
        dtype,
        op,
        request.root,
        checked,
        disturbance,
    )
    if concurrent:
        if group is None:
            raise ConfigError(
                "--concurrent is about the groups of a mesh; give --group, such as tp=8,dp=64"
            )
        if env or calibration or request.programs or checked:
            raise ConfigError(
                "--concurrent is for the times of schedules, not for --env, --calibration, --check "
                "and GOAL programs"
            )
        chosen = library or ("nccl" if unrestricted else "")
        for note in () if chosen else notes:
            say(f"# {note}")
        mesh_lines(sweep, machine, group, csv=outputs[""].csv, library=chosen)
        return
    for axis, part in machines.items():
        with blamed_on(f"--group, axis {axis}" if axis else None):
            disturbance.check(part)
    for axis, part in machines.items():
        with blamed_on(f"--group, axis {axis}" if axis else None):
            _table(
                axis,
                part,
                sweep,
                request,
                library_options if unrestricted or library_options.alone else None,
                outputs[axis],
                notes,
                verbose=verbose,
            )


def _table(
    axis: str,
    machine: Topology,
    sweep: Sweep,
    request: Named,
    library: _LibraryOptions | None,
    files: Files,
    notes: Sequence[str],
    *,
    verbose: bool,
) -> None:
    """Print and write the table of a machine, or of one group along an axis; ``library``: its lines
    first, or alone.
    """
    from simcoll.cli.sweeping import print_sweep, prove_all
    from simcoll.tuning import candidates, collective_on

    title = f"{sweep.collective or 'GOAL'} on {machine.name}"
    if axis:
        title = f"{title}; one group along {axis}"
    collective = (
        collective_on(sweep.collective, machine.nranks, sweep.root) if sweep.collective else None
    )
    predictions = (
        library.show(sweep.collective, sweep.sizes, machine) if library and collective else []
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
            notes.append(f"left out, as the machine does not suit them: {names} (-v: why)")
        sweep = replace(sweep, choices=tuple(choice for choice, _ in fitting))
        built = [schedule for _, schedule in fitting]
    for note in notes:
        say(f"# {note}")
    schedules = prove_all(sweep, machine, built) if sweep.collective else []
    table, proofs, stopped = print_sweep(
        title, sweep, schedules, machine, request.programs, verbose=verbose
    )
    if predictions and not stopped:
        from simcoll.planning.measured.library_table import gain_lines

        for line in gain_lines(predictions, table.rows):
            say(line)
    if table or table.programs:
        files.write(title, table, machine, proofs)
    if stopped:
        raise KeyboardInterrupt


@Parameter(name="*")
@dataclass(frozen=True)
class Files:
    """Files for the results, written after Ctrl-C too.

    Parameters
    ----------
    json
        Results in nccl-tests' JSON (version 3), with best, bound and bottleneck; for a library, its
        choices.
    csv
        A line for every run.
    svg
        Picture of bus bandwidth and time of every algorithm, and the bound.
    trace
        Timeline of the best run at the size nearest to 1 MiB, for Perfetto (.json.gz).
    """

    json: Annotated[Path | None, Parameter(name=["--json", "-J"])] = None
    csv: Path | None = None
    svg: Path | None = None
    trace: Path | None = None

    def along(self, axis: str) -> Files:
        """The files of one group along an axis, prefixed with its name."""
        if not axis:
            return self
        paths = (self.json, self.csv, self.svg, self.trace)
        return Files(
            *(None if path is None else path.with_name(f"{axis}-{path.name}") for path in paths)
        )

    def check(
        self, library: _LibraryOptions, inputs: Iterable[str | Path | None], *, concurrent: bool
    ) -> None:
        """Refuse unwritable paths and unavailable files before computing anything."""
        if not any((self.json, self.csv, self.svg, self.trace)):
            return
        from simcoll.files.output import refuse_places

        if library.alone and any((self.csv, self.svg, self.trace)):
            raise ConfigError(
                "--csv, --svg and --trace are for the runs of algorithms; what --library, --env "
                "and --calibration give is printed, and "
                "with -J written"
            )
        if concurrent and any((self.json, self.svg, self.trace)):
            raise ConfigError(
                "--concurrent writes --csv; -J, --svg and --trace hold one group of ranks: without "
                "it"
            )
        refuse_places((self.json, self.csv, self.svg, self.trace), inputs)

    def write_predictions(self, predictions: Sequence[Prediction], machine: Topology) -> None:
        """Write a library's choices, if a file is requested."""
        if self.json is None or not predictions:
            return
        from simcoll.files.output import write_file
        from simcoll.planning.sweeps.result_files import predictions_json

        write_file(self.json, predictions_json(predictions, machine))
        say(f"# wrote {self.json}")

    def write(
        self, title: str, table: SweepTable, machine: Topology, proofs: Sequence[str]
    ) -> None:
        """Write the requested files, each with the hash of all results."""
        if not any((self.json, self.csv, self.svg, self.trace)):
            return
        from simcoll.files.output import write_file
        from simcoll.planning.sweeps.result_files import nccl_tests_json, picture, timeline
        from simcoll.planning.sweeps.sweep_report import results_csv, results_json

        _, run = results_json(title, table.sweep, machine, table.rows, proofs, table.programs)
        contents: tuple[tuple[Path | None, Callable[[], bytes]], ...] = (
            (self.json, lambda: nccl_tests_json(table, run)),
            (self.csv, lambda: results_csv(table.rows, run, table.programs)),
            (self.svg, lambda: picture(title, table, machine, run)),
            (self.trace, lambda: timeline(table, machine, 1 << 20, run)),
        )
        for path, content in contents:
            if path is not None:
                write_file(path, content())
                say(f"# wrote {path}")


@dataclass(frozen=True, slots=True)
class _LibraryOptions:
    """Options for a library's choices."""

    name: str | None
    env: str
    calibration: Path | None
    verbose: bool

    @property
    def alone(self) -> bool:
        """Whether only the library is requested."""
        return self.name is not None or bool(self.env) or self.calibration is not None

    def show(self, collective: str, sizes: Sequence[int], topology: Topology) -> list[Prediction]:
        """Print the library's lines; if they were not requested and cannot be computed, the
        reason.
        """
        from simcoll.libraries.calibration import load_calibration
        from simcoll.libraries.environment import parse_environment
        from simcoll.planning.measured.library_table import (
            library_for,
            library_lines,
            library_predictions,
        )

        environment = parse_environment(self.env)
        overlay = None if self.calibration is None else load_calibration(self.calibration)
        try:
            library = library_for(self.name, topology)
            predictions = library_predictions(
                collective, sizes, topology, library, environment, overlay
            )
        except ConfigError as error:
            if self.alone:
                raise
            say_text(f"# no line of NCCL: {error.message}")
            return []
        for line in library_lines(
            predictions, topology, library, environment, verbose=self.verbose
        ):
            say(line)
        if not self.alone:
            say()
        return predictions
