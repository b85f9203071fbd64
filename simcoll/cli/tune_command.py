"""``simcoll tune``: write a library's tuning file for a machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from simcoll.cli.perf_options import SizeOptions
from simcoll.command_line import WHOLE
from simcoll.errors import ConfigError
from simcoll.terminal import say

if TYPE_CHECKING:
    from simcoll.planning.tuners.fastest_choices import Picked

__all__ = ["tune_library"]


@Parameter(name="*")
@dataclass(frozen=True)
class TunedSizes(SizeOptions):
    """The sizes that are tuned."""

    begin: Annotated[str, Parameter(name=["-b", "--begin"])] = "8"
    end: Annotated[str, Parameter(name=["-e", "--end"])] = "1G"
    factor: Annotated[int, Parameter(name=["-f", "--factor"]), WHOLE] = 4


def tune_library(
    *,
    topology: Annotated[str, Parameter(name=["--topology", "-t"])],
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    format: Annotated[str, Parameter(name="--format")] = "nccl-csv",  # noqa: A002
    nodes: Annotated[int | None, WHOLE] = None,
    collectives: Annotated[str | None, Parameter(name=["--collectives", "-c"])] = None,
    tuned: TunedSizes = TunedSizes(),
    protocol: Annotated[str | None, Parameter(name=["--protocol", "-p"])] = None,
    library: str | None = None,
    calibration: Path | None = None,
) -> None:
    """Write the fastest choice for each size, and print the gain over the default.

    Parameters
    ----------
    topology
        The machine, as for simcoll perf.
    nodes
        Number of nodes. Default: the topology's.
    output
        The file to write.
    format
        nccl-csv (NCCL's tuner plugin), openmpi, openmpi-han, mpich or oneccl.
    collectives
        Names separated by commas. Default: all that the format and the models support.
    protocol
        Protocol of MPI libraries' messages. Default: ideal.
    library
        Model of NCCL for nccl-csv, as for simcoll perf. Default: nccl; rccl for AMD's GPUs.
    calibration
        A file that simcoll calibrate wrote, for nccl-csv.
    """
    from simcoll.files.output import refuse_places, write_file
    from simcoll.formats.tuners.tuner_files import tuner_format
    from simcoll.libraries.calibration import load_calibration
    from simcoll.planning.sweeps.nccl_tests_table import microseconds
    from simcoll.planning.tuners.fastest_choices import nccl_choices, played_choices, rules_of
    from simcoll.planning.tuners.mpi_libraries import load_mpi_library
    from simcoll.topology import load_topology
    from simcoll.units import counted

    chosen, of_nccl = tuner_format(format), format == "nccl-csv"
    if of_nccl and protocol is not None:
        raise ConfigError("--protocol is for MPI libraries; NCCL's protocols are among its choices")
    if not of_nccl and library is not None:
        raise ConfigError("--library is the model of NCCL, for --format nccl-csv")
    if not of_nccl and calibration is not None:
        raise ConfigError("--calibration is for the model of NCCL, for --format nccl-csv")
    refuse_places([output], [topology, library, calibration])
    overlay = load_calibration(calibration) if calibration else None
    machine = load_topology(topology, nodes=nodes)
    sizes = tuned.ladder
    of_mpi = {} if of_nccl else load_mpi_library(format).collectives
    available = tuple(of_mpi or chosen.names)
    kinds = [kind.strip() for kind in collectives.split(",")] if collectives else list(available)
    for kind in kinds:
        if kind not in available:
            raise ConfigError(
                f"format {format!r} has no {kind!r} known here; known: {', '.join(available)}"
            )
    choices = (
        nccl_choices(machine, kinds, sizes, library, overlay)
        if of_nccl
        else played_choices(machine, kinds, sizes, format, protocol or "ideal")
    )
    picked: list[Picked] = []
    width = max(
        [
            22,
            *(
                len(name)
                for collective in of_mpi.values()
                for name in collective.algorithms.values()
            ),
        ]
    )
    wide = 20 if of_nccl else width
    calibration_text = f", calibration {overlay.hash}" if overlay else ""
    say(f"# topology {machine.name}: {counted(machine.nranks, 'rank')}{calibration_text}")
    say(
        f"# collective            size  {'choice':<{width}}  time (us)  {'default':<{wide}}  time "
        "(us)    gain  error"
    )
    for row in _play_choices(choices, kinds, sizes):
        choice = (
            f"{row.algorithm} {row.protocol} {row.channels if row.channels > 0 else ''}".strip()
        )
        error = "-" if row.error is None else f"{100 * row.error:.0f} %"
        default_time = "-" if row.default_fs is None else microseconds(row.default_fs / 1e9)
        gain = "-" if row.gain is None else f"{row.gain:.2f}x"
        estimate = (
            f"  {row.estimated}: {row.estimated_fs / row.time_fs:.2f}x" if row.estimated else ""
        )
        say(
            f"  {row.collective:<14} {row.size_bytes:>11}  {choice:<{width}} "
            f"{microseconds(row.time_fs / 1e9):>10}  "
            f"{row.default:<{wide}} {default_time:>10}  {gain:>6}  "
            f"{error:>5}{' *' * row.certain}{estimate}",
            flush=True,
        )
        picked.append(row)
    blocks = [name for name, collective in of_mpi.items() if collective.rules_count_blocks]
    rules = rules_of(picked, machine, exact=of_nccl, blocks=blocks)
    write_file(output, chosen.dump(rules))
    if of_nccl:
        for remark in _remarks(picked, tuned=bool(overlay and overlay.tuning)):
            say(f"# {remark}")
    else:
        model = load_mpi_library(format)
        say(
            f"# default: of {model.name} {model.version}; '-': simcoll lacks the algorithm, so its "
            "time and the gain are unknown"
        )
        say("# error: unknown, since simcoll ships no measured tables of MPI libraries")
        for note in model.notes:
            say(f"# {model.name}: {note}")
    say(f"# wrote {output}: {counted(len(rules), 'rule')}")


def _remarks(picked: Sequence[Picked], *, tuned: bool) -> Iterator[str]:
    """Explain the columns of NCCL's choices; ``tuned``: the calibration has NCCL's own table."""
    if tuned:
        yield (
            "default: NCCL's choice by its own table in the calibration; where that has none, "
            "the fastest by the formula"
        )
    else:
        yield (
            "default: NCCL's own choice where its graphs are known; elsewhere the fastest by the "
            "formula"
        )
    yield (
        "error: half of the interval that holds 50 % of measurements; "
        "* the gain exceeds that interval"
    )
    if any(row.estimated for row in picked):
        yield "last column: what NCCL's own estimates prefer instead, and the gain over that"


def _play_choices(
    choices: Iterator[Picked], collectives: Sequence[str], sizes: Sequence[int]
) -> Iterator[Picked]:
    """Compute the choices, and show progress."""
    from simcoll.cli.progress import Progress
    from simcoll.units import format_size

    with Progress() as progress:
        for finished, (kind, size) in enumerate(product(collectives, sizes)):
            progress(finished, len(collectives) * len(sizes), f"{kind} {format_size(size)}")
            row = next(choices)
            progress.clear()
            yield row
