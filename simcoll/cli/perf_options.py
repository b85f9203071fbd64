"""Options of ``simcoll perf``: the machine, the sizes, the algorithms, a library, and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from simcoll.command_line import WHOLE, inherit_options
from simcoll.errors import ConfigError
from simcoll.planning.sweeps.run_conditions import DataKeys
from simcoll.terminal import say, say_text

if TYPE_CHECKING:
    from simcoll.libraries.prediction import Prediction
    from simcoll.planning.sweeps.running import SweepTable
    from simcoll.topology import Topology

__all__ = [
    "AlgorithmOptions",
    "DataOptions",
    "Files",
    "LibraryOptions",
    "MachineOptions",
    "MeshOptions",
    "SizeOptions",
]


@Parameter(name="*")
@dataclass(frozen=True)
class MachineOptions:
    """The machine.

    Parameters
    ----------
    topology
        A shipped topology (simcoll list topologies), a TOML file, or an NCCL topology XML dump.
    nodes
        Number of nodes. Default: the topology's.
    degrade
        A link and its remaining share of capacity, such as "box0.gpu3 <-> box0.nvswitch=17/18"; 0
        removes it. May be repeated.
    """

    topology: Annotated[str, Parameter(name=["--topology", "-t"])] = "dgx-h100"
    nodes: Annotated[int | None, WHOLE] = None
    degrade: Annotated[
        tuple[str, ...], Parameter(name="--degrade", negative=(), show_default=False)
    ] = ()

    def load(self) -> Topology:
        """The machine with the named links at their remaining share of capacity."""
        from simcoll.cli.sweeping import degrade_links
        from simcoll.topology import load_topology

        return degrade_links(load_topology(self.topology, nodes=self.nodes), self.degrade)


@Parameter(name="*")
@dataclass(frozen=True)
class SizeOptions:
    """The sizes.

    Parameters
    ----------
    begin
        Smallest size in bytes, such as 8 or 1M.
    end
        Largest size.
    factor
        Factor between sizes.
    """

    begin: Annotated[str, Parameter(name=["--begin", "-b"])] = "8"
    end: Annotated[str, Parameter(name=["--end", "-e"])] = "128M"
    factor: Annotated[int, Parameter(name=["--factor", "-f"]), WHOLE] = 2

    @property
    def ladder(self) -> tuple[int, ...]:
        """All sizes, in bytes."""
        from simcoll.planning.sweeps.sweep import size_ladder
        from simcoll.units import parse_size

        begin, end = parse_size(self.begin, what="-b"), parse_size(self.end, what="-e")
        return size_ladder(begin, end, self.factor)


@inherit_options(
    {
        "dtype": Parameter(name=["--dtype", "-d"]),
        "op": Parameter(name=["--op", "-o"]),
        "root": Parameter(name=["--root", "-r"], converter=WHOLE.converter),
    }
)
class DataOptions(DataKeys):
    """The elements."""


@Parameter(name="*")
@dataclass(frozen=True)
class AlgorithmOptions:
    """The runs of every size.

    Parameters
    ----------
    algorithm
        Algorithms to compare, separated by commas, with parameters after colons:
        ring:channels=4,tree. Also files, and functions of modules: plan.xml,mine.algorithms:star.
        Default: all that fit.
    protocol
        ideal, LL, LL128, Simple, separated by commas; the best of each size is shown.
        Default: LL,LL128,Simple where NCCL has constants for the GPUs, otherwise ideal.
    check
        Largest size at which every run moves real data. In any case data is moved once through
        every algorithm.
    """

    algorithm: Annotated[str | None, Parameter(name=["--algorithm", "-a"])] = None
    protocol: Annotated[str | None, Parameter(name=["--protocol", "-p"])] = None
    data: DataOptions = field(default_factory=DataOptions)
    check: Annotated[str, Parameter(name=["--check", "-c"])] = "0"


@Parameter(name="*")
@dataclass(frozen=True)
class LibraryOptions:
    """The choices of a library.

    Parameters
    ----------
    library
        Show only the choices of this library: nccl, rccl, or the path of a library file. Without
        --library, --algorithm and --protocol: NCCL's lines, then the best of all algorithms.
    env
        NCCL's variables for its lines, such as NCCL_ALGO=Ring,NCCL_PROTO=^LL128.
    calibration
        A file that simcoll calibrate wrote, for NCCL's lines.
    nccl_version
        Version of NCCL, such as 2.29, whose rules choose. Default: that to which the times were
        fitted.
    registered
        All buffers are registered as symmetric windows (-R 2 of nccl-tests), for which NCCL has
        kernels of its own inside an NVLink domain.
    launcher
        What launches the library's operations: process or thread (one for each GPU), one-process
        (one thread for all GPUs of a node), torch, or graph (a CUDA graph). Default: process.
    """

    library: str | None = None
    env: str = ""
    calibration: Path | None = None
    nccl_version: str | None = None
    registered: Annotated[bool, Parameter(negative=())] = False
    launcher: str | None = None

    @property
    def alone(self) -> bool:
        """Whether only the library is requested."""
        return self.library is not None or self.has_settings

    @property
    def has_settings(self) -> bool:
        """Whether the library is asked for with settings of its own."""
        settings = (self.env or None, self.calibration, self.nccl_version, self.launcher)
        return self.registered or any(setting is not None for setting in settings)

    def show(
        self,
        collective: str,
        sizes: Sequence[int],
        topology: Topology,
        *,
        data: DataKeys,
        verbose: bool,
    ) -> list[Prediction]:
        """Print the library's lines for the elements and their reduction; if they were not
        requested and cannot be computed, the reason.
        """
        from simcoll.libraries.calibration import load_calibration
        from simcoll.libraries.environment import parse_environment
        from simcoll.libraries.library import library_for
        from simcoll.planning.measured.library_table import (
            library_lines,
            library_predictions,
        )

        launcher = f" LAUNCHER={self.launcher}" if self.launcher is not None else ""
        registered = " REGISTERED=1" if self.registered else ""
        environment = parse_environment(self.env + launcher + registered)
        overlay = None if self.calibration is None else load_calibration(self.calibration)
        try:
            if data.dtype != "float32" and not environment.dtype:
                environment = replace(environment, dtype=data.dtype)
            if not environment.op:
                environment = replace(environment, op=parse_environment(f"OP={data.op}").op)
            library = library_for(self.library, topology, self.nccl_version)
            predictions = library_predictions(
                collective, sizes, topology, library, environment, overlay
            )
        except ConfigError as error:
            if self.alone:
                raise
            say_text(f"# no line of NCCL: {error.message}")
            return []
        for line in library_lines(predictions, topology, library, environment, verbose=verbose):
            say(line)
        if not self.alone:
            say()
        return predictions


@Parameter(name="*")
@dataclass(frozen=True)
class MeshOptions:
    """Groups of ranks.

    Parameters
    ----------
    group
        Axes of a mesh of all ranks, fastest first, such as tp=8,dp=64: a table for one group of
        each axis, and files prefixed with the axis.
    concurrent
        With --group: one table of each axis, with one group alone and with all groups at once.
    """

    group: str | None = None
    concurrent: bool = False

    @property
    def concurrent_group(self) -> str | None:
        """The axes whose groups run at once; None without --concurrent."""
        if not self.concurrent:
            return None
        if self.group is None:
            raise ConfigError(
                "--concurrent is about the groups of a mesh; give --group, such as tp=8,dp=64"
            )
        return self.group


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
        Picture of bus bandwidth and time of every algorithm, and the bound; for a library, with a
        band that holds 90 % of measurements.
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
        self, library: LibraryOptions, inputs: Iterable[str | Path | None], *, concurrent: bool
    ) -> None:
        """Refuse unwritable paths and unavailable files before computing anything."""
        if not any((self.json, self.csv, self.svg, self.trace)):
            return
        from simcoll.files.output import refuse_places

        if library.alone and any((self.csv, self.trace)):
            raise ConfigError(
                "--csv and --trace are for the runs of algorithms; what --library, "
                "--nccl-version, --env and --calibration give is printed, and "
                "with -J and --svg written"
            )
        if concurrent and any((self.json, self.svg, self.trace)):
            raise ConfigError(
                "--concurrent writes --csv; -J, --svg and --trace hold one group of ranks: without "
                "it"
            )
        refuse_places((self.json, self.csv, self.svg, self.trace), inputs)
        if self.svg is not None:
            from simcoll.planning.sweeps.chart import check_drawing

            check_drawing()

    def write_predictions(self, predictions: Sequence[Prediction], machine: Topology) -> None:
        """Write a library's choices, if a file is requested."""
        if not predictions or not (self.json or self.svg):
            return
        from simcoll.files.output import write_file
        from simcoll.planning.sweeps.result_files import predictions_json, predictions_picture

        for path, content_of in ((self.json, predictions_json), (self.svg, predictions_picture)):
            if path is not None:
                write_file(path, content_of(predictions, machine))
                say(f"# wrote {path}")

    def write(
        self,
        title: str,
        table: SweepTable,
        machine: Topology,
        proofs: Sequence[str],
        predictions: Sequence[Prediction],
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
            (self.svg, lambda: picture(title, table, machine, run, predictions)),
            (self.trace, lambda: timeline(table, machine, 1 << 20, run)),
        )
        for path, content in contents:
            if path is not None:
                write_file(path, content())
                say(f"# wrote {path}")
