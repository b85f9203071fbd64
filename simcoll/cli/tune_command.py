"""``simcoll tune``: write a library's tuning file for a machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from simcoll.cli.perf_options import SizeOptions
from simcoll.command_line import WHOLE
from simcoll.errors import ConfigError
from simcoll.terminal import say

if TYPE_CHECKING:
    from simcoll.formats.tuners.tuner_rules import Rule
    from simcoll.planning.tuners.fastest_choices import MpiPlayer, NcclPlayer, Picked
    from simcoll.planning.tuners.mpi_libraries import MpiLibrary
    from simcoll.topology import Topology

__all__ = ["tune_library"]


@Parameter(name="*")
@dataclass(frozen=True)
class TunedSizes(SizeOptions):
    """The sizes that are tuned."""

    begin: Annotated[str, Parameter(name=["-b", "--begin"])] = "8"
    end: Annotated[str, Parameter(name=["-e", "--end"])] = "1G"
    factor: Annotated[int, Parameter(name=["-f", "--factor"]), WHOLE] = 4


EXACT = ("nccl-csv", "ncclx", "openmpi", "openmpi-text")
"""Formats whose rules name a number of ranks."""
COVERING = ("mpich", "openmpi-han")
"""Formats whose rules must cover all sizes."""
OF_NCCL = ("nccl-csv", "ncclx")


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
    complete: bool = False,
) -> None:
    """Write rules where another choice than the library's own is faster by more than its interval.

    Rules are for sizes between those asked. Before the file is written, they are played back from 8
    B to 8 GiB: no size takes longer than with the library's own choice.

    Parameters
    ----------
    topology
        The machine, as for simcoll perf.
    nodes
        Number of nodes. Default: the topology's.
    output
        The file to write.
    format
        nccl-csv (NCCL's tuner plugin), ncclx, openmpi (JSON of Open MPI 6), openmpi-text (4 and 5),
        openmpi-han, mpich or oneccl.
    collectives
        Names separated by commas. Default: all that the format and the models support.
    protocol
        Protocol of MPI libraries' messages. Default: ideal.
    library
        Model of NCCL for nccl-csv and ncclx, as for simcoll perf. Default: nccl; rccl for AMD's
        GPUs.
    calibration
        A file that simcoll calibrate wrote, for nccl-csv and ncclx.
    complete
        For nccl-csv, add NCCL's own choices of all other sizes and collectives, which its example
        plugin would run on one channel.
    """
    from simcoll.files.output import refuse_places, write_file
    from simcoll.formats.tuners.tuner_files import tuner_format
    from simcoll.libraries.calibration import load_calibration
    from simcoll.libraries.library import library_for
    from simcoll.planning.tuners.fastest_choices import (
        OWN_TUNERS,
        MpiPlayer,
        NcclPlayer,
        nccl_choices,
        played_choices,
    )
    from simcoll.planning.tuners.mpi_libraries import load_mpi_library
    from simcoll.planning.tuners.tuning_rules import nodes_of_nccl, played_back, rules_of
    from simcoll.topology import load_topology
    from simcoll.units import counted

    chosen, of_nccl = tuner_format(format), format in OF_NCCL
    _refuse_options(
        format, protocol=protocol, library=library, calibration=calibration, complete=complete
    )
    refuse_places([output], [topology, library, calibration])
    overlay = load_calibration(calibration) if calibration else None
    machine = load_topology(topology, nodes=nodes)
    sizes = tuned.ladder
    available = tuple(chosen.names) if of_nccl else tuple(_library_of(format).collectives)
    kinds = [kind.strip() for kind in collectives.split(",")] if collectives else list(available)
    for kind in kinds:
        if kind not in available:
            raise ConfigError(
                f"format {format!r} has no {kind!r} known here; known: {', '.join(available)}"
            )
    player: NcclPlayer | MpiPlayer
    if of_nccl:
        model = library_for(library, machine)
        player = NcclPlayer(machine, model, overlay)
        choices = nccl_choices(machine, kinds, sizes, model, overlay)
        library_name = model.name.upper()
    else:
        library_name = "MPI"
        player = MpiPlayer(machine, _name_of_library(format), protocol or "ideal")
        choices = played_choices(player, kinds, sizes)
    calibration_text = f", calibration {overlay.hash}" if overlay else ""
    say(f"# topology {machine.name}: {counted(machine.nranks, 'rank')}{calibration_text}")
    picked = _print_choices(_play_choices(choices, kinds, sizes), format)
    ranks = machine.nranks if format in EXACT else -1
    hosts = nodes_of_nccl(player) if isinstance(player, NcclPlayer) else -1
    rules = played_back(rules_of(picked, ranks=ranks, nodes=hosts), player)
    tuner = OWN_TUNERS.get(machine.traits.get("fabric", "")) if of_nccl else None
    if tuner:
        rules = []
    rules_of_file = _rules_of_file(rules, format, machine, player, complete=complete)
    write_file(output, chosen.dump(rules_of_file))
    remarks = (
        _nccl_remarks(picked, tuner, tuned=bool(overlay and overlay.tuning), library=library_name)
        if of_nccl
        else _mpi_remarks(load_mpi_library(_name_of_library(format)))
    )
    for remark in (*remarks, *_rule_remarks(rules, format, machine.nranks, complete=complete)):
        say(f"# {remark}")
    added = len(rules_of_file) - len(rules)
    addition = f", and {added} of the library's own choices" if added > 0 else ""
    say(f"# wrote {output}: {counted(len(rules), 'rule')}{addition}")


def _refuse_options(
    name: str,
    *,
    protocol: str | None,
    library: str | None,
    calibration: Path | None,
    complete: bool,
) -> None:
    """Refuse options that a format does not have."""
    of_nccl = name in OF_NCCL
    if of_nccl and protocol is not None:
        raise ConfigError("--protocol is for MPI libraries; NCCL's protocols are among its choices")
    if not of_nccl and library is not None:
        raise ConfigError("--library is the model of NCCL, for --format nccl-csv and ncclx")
    if not of_nccl and calibration is not None:
        raise ConfigError("--calibration is for the model of NCCL, for --format nccl-csv and ncclx")
    if complete and name != "nccl-csv":
        raise ConfigError("--complete is for NCCL's example plugin, --format nccl-csv")


def _name_of_library(name: str) -> str:
    """The MPI library of a format."""
    return "openmpi" if name == "openmpi-text" else name


def _library_of(name: str) -> MpiLibrary:
    from simcoll.planning.tuners.mpi_libraries import load_mpi_library

    return load_mpi_library(_name_of_library(name))


def _print_choices(choices: Iterator[Picked], name: str) -> list[Picked]:
    """Print a line for each choice, and return them."""
    from simcoll.planning.sweeps.nccl_tests_table import microseconds

    width = 22
    if name not in OF_NCCL:
        for collective in _library_of(name).collectives.values():
            width = max(width, *map(len, collective.algorithms.values()))
    wide = 20 if name in OF_NCCL else width
    say(
        f"# collective            size  {'choice':<{width}}  time (us)  {'default':<{wide}}  time "
        "(us)    gain  error"
    )
    picked: list[Picked] = []
    for row in choices:
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
    return picked


def _rules_of_file(
    rules: Sequence[Rule],
    name: str,
    machine: Topology,
    player: NcclPlayer | MpiPlayer,
    *,
    complete: bool,
) -> list[Rule]:
    """The rules as a file says them."""
    from simcoll.formats.tuners.tuner_nccl import NCCL
    from simcoll.planning.tuners.fastest_choices import MpiPlayer, NcclPlayer
    from simcoll.planning.tuners.tuning_rules import (
        counting_blocks,
        cover_all,
        own_nccl_ranges,
        own_ranges,
        whole_ranks,
    )

    if name == "nccl-csv" and isinstance(player, NcclPlayer):
        # As many channels as NCCL takes itself: its plugin takes -1 for one.
        own_channels = [replace(rule, channels=0) for rule in rules]
        if not (complete and rules):
            return own_channels
        shape = own_channels[0]
        return cover_all(own_channels, NCCL, lambda kind: own_nccl_ranges(kind, player, shape))
    if name == "ncclx":
        return whole_ranks(rules, machine.nranks)
    if name in COVERING and isinstance(player, MpiPlayer) and rules:
        shape = rules[0]

        def own(kind: str) -> list[Rule]:
            selection = player.selection(kind)
            return own_ranges(
                kind, lambda size: (selection.default_on(machine, size)[0], ""), shape
            )

        rules = cover_all(rules, dict.fromkeys(rule.collective for rule in rules), own)
    of_mpi = _library_of(name).collectives
    blocks = [kind for kind, collective in of_mpi.items() if collective.rules_count_blocks]
    return counting_blocks(rules, blocks, machine.nranks)


def _nccl_remarks(
    picked: Sequence[Picked], tuner: str | None, *, tuned: bool, library: str
) -> Iterator[str]:
    """Explain the columns of the choices of a library, NCCL or RCCL; ``tuned``: the calibration has
    its own table.
    """
    if tuned:
        yield (
            f"default: {library}'s choice by its own table in the calibration; where that has "
            "none, the fastest by the formula"
        )
    elif library != "NCCL":
        yield f"default: the fastest by the formula, since {library}'s own choice is unknown"
    else:
        yield (
            "default: NCCL's own choice where its graphs are known; elsewhere the fastest by the "
            "formula"
        )
    yield (
        "error: half of the 90 % interval; *: a rule, because the gain exceeds the error of a "
        "ratio of two such times"
    )
    if any(row.estimated for row in picked):
        yield f"last column: what {library}'s own estimates prefer instead, and the gain over that"
    if tuner:
        yield (
            f"{tuner} brings a tuner of its own, which a file would replace; its choices are "
            "unknown: no rules"
        )


def _mpi_remarks(model: MpiLibrary) -> Iterator[str]:
    from simcoll.planning.tuners.fastest_choices import UNMEASURED_ERROR

    limit = (1 + UNMEASURED_ERROR) ** 2**0.5
    yield (
        f"default: of {model.name} {model.version}; '-': simcoll lacks the algorithm, so its time "
        "and the gain are unknown"
    )
    yield (
        f"error: taken as {UNMEASURED_ERROR:.0%}, since simcoll ships no measured tables of MPI "
        f"libraries; *: a rule, for a gain above {limit:.2f}x"
    )
    for note in model.notes:
        yield f"{model.name}: {note}"


def _rule_remarks(rules: Sequence[Rule], name: str, ranks: int, *, complete: bool) -> Iterator[str]:
    """Where the rules hold, and what the library does elsewhere."""
    if not rules:
        yield (
            "no choice is faster than the library's own by more than the interval: load no tuner "
            "file"
        )
        return
    yield (
        "played back at 61 sizes from 8 B to 8 GiB: no size takes longer than with the library's "
        "own choice; sizes without a rule keep it"
    )
    if name == "nccl-csv":
        scope = "of other communicators" if complete else "without a rule"
        yield (
            f"NCCL's example plugin runs everything {scope} on one channel: change its "
            "'*nChannels = 1' to 0"
            + ("" if complete else ", or write NCCL's own choices as well (--complete)")
        )
    if name not in EXACT:
        yield (
            f"the file has no number of ranks: load it for jobs of {ranks} ranks alone, on these "
            "nodes"
        )


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
