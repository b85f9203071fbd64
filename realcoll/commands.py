"""The commands: ``python -m realcoll perf | calibrate | launch``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from realcoll.process_errors import FaultError, MissingError
from realcoll.transports.interface import Transport
from simcoll.binding import verify
from simcoll.command_line import WHOLE, completion_script, run_app, separate_program
from simcoll.errors import ConfigError, InternalError, ScheduleError, nearest
from simcoll.help_text import PARAGRAPHS
from simcoll.terminal import say, say_text
from simcoll.topology import Topology

if TYPE_CHECKING:
    from realcoll.measure.timed_sizes import Line, TimingRequest

__all__ = ["app", "main"]

app = App(
    help_formatter=PARAGRAPHS,
    name="realcoll",
    help="Run and measure schedules on real machines.",
    help_flags=["--help", "-h"],
    version_flags=[],
    suppress_keyboard_interrupt=False,  # run_app says so
)

TRANSPORTS = ("auto", "mpi", "nccl", "local")


@contextmanager
def _open_transport(transport: str, timeout_s: float) -> Iterator[Transport]:
    """Open a transport. ``auto``: NCCL where there is a GPU, MPI under its launcher, else one
    process.
    """
    from realcoll.start.job_environment import place_from
    from realcoll.transports import LocalTransport, MpiTransport, NcclTransport, gpu_is_here

    if transport not in TRANSPORTS:
        raise ConfigError(f"unknown transport {transport!r}; {nearest(transport, TRANSPORTS)}")
    under_mpi = any(key in os.environ for key in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"))
    if transport == "auto":
        transport = "nccl" if gpu_is_here() else "mpi" if under_mpi else "local"
        place = place_from(os.environ)
        if transport == "local" and place.launcher == "torchrun" and place.size > 1:
            raise ConfigError(
                f"torchrun started {place.size} processes, and there is no GPU: "
                "start them with mpiexec or realcoll launch for --transport mpi"
            )
    transport_class = {"mpi": MpiTransport, "nccl": NcclTransport}.get(transport)
    chosen_transport: Transport = (
        LocalTransport() if transport_class is None else transport_class(timeout_s=timeout_s)
    )
    try:
        yield chosen_transport
    except (FaultError, KeyboardInterrupt, BrokenPipeError) as error:
        chosen_transport.abort(error.message if isinstance(error, FaultError) else "stopped")
        raise
    chosen_transport.close()


@Parameter(name="*")
@dataclass(frozen=True)
class JobOptions:
    """The processes that measure.

    Parameters
    ----------
    transport
        auto, mpi, nccl or local.
    timeout
        Seconds that other ranks may take for their part.
    """

    transport: Annotated[str, Parameter(name=["--transport", "-t"])] = "auto"
    predict: str | None = None
    timeout: float = 60.0


@Parameter(name="*")
@dataclass(frozen=True)
class PerfJob(JobOptions):
    """The processes that measure a collective.

    Parameters
    ----------
    predict
        A topology (simcoll list topologies, or a file) to print the emulator's predictions for.
    """

    predict: str | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class CalibrationJob(JobOptions):
    """The processes that measure messages.

    Parameters
    ----------
    predict
        The machine (simcoll list topologies, or a file) to write a calibration file for, as simcoll
        calibrate does.
    """

    predict: str | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class MeasuredSizes:
    """The measured sizes.

    Parameters
    ----------
    begin
        Smallest size, such as 8 or 1M.
    end
        Largest size.
    factor
        Factor between sizes.
    step
        Distance between sizes, in place of a factor.
    """

    begin: Annotated[str, Parameter(name=["--minbytes", "-b"])] = "32M"
    end: Annotated[str, Parameter(name=["--maxbytes", "-e"])] = "32M"
    factor: Annotated[int, Parameter(name=["--stepfactor", "-f"]), WHOLE] = 2
    step: Annotated[str | None, Parameter(name=["--stepbytes", "-i"])] = None


@Parameter(name="*")
@dataclass(frozen=True)
class Repetition:
    """The runs of a size.

    Parameters
    ----------
    ngpus
        Ranks per process, which share its GPU. Default 1 (4 with one process).
    iters
        Timed runs of each size.
    warmup
        Runs before the timed ones.
    check
        0 skips the comparison with the exact result.
    """

    ngpus: Annotated[int | None, Parameter(name=["--ngpus", "-g"]), WHOLE] = None
    iters: Annotated[int, Parameter(name=["--iters", "-n"]), WHOLE] = 20
    warmup: Annotated[int, Parameter(name=["--warmup_iters", "-w"]), WHOLE] = 1
    check: Annotated[int, Parameter(name=["--check", "-c"]), WHOLE] = 1


@Parameter(name="*")
@dataclass(frozen=True)
class Operand:
    """The elements, and their reduction.

    Parameters
    ----------
    op
        Reduction: sum, prod, min, max, avg, mulsum, band, bor, bxor; or all that nccl-tests has.
    dtype
        int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, ...; or all.
    root
        Root rank of broadcast, reduce, gather and scatter.
    """

    op: Annotated[str, Parameter(name=["--op", "-o"])] = "sum"
    dtype: Annotated[str, Parameter(name=["--datatype", "-d"])] = "float"
    root: Annotated[int | None, Parameter(name=["--root", "-r"]), WHOLE] = None


@app.command
def perf(
    collective: str,
    /,
    *,
    measured: MeasuredSizes = MeasuredSizes(),
    repetition: Repetition = Repetition(),
    operand: Operand = Operand(),
    json: Annotated[Path | None, Parameter(name=["--output_file", "-J"])] = None,
    algorithm: Annotated[str | None, Parameter(name=["--algorithm", "-a"])] = None,
    job: PerfJob = PerfJob(),
) -> None:
    """Measure a collective over a range of sizes, beside the library's own and the emulator's
    prediction.

    Parameters
    ----------
    collective
        all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, ..., or a custom one
        as module:function of the number of ranks.
    json
        File for the results in nccl-tests' JSON.
    algorithm
        With parameters after colons: ring:channels=2; or a file, or module:function. Default: the
        first of simcoll list algorithms.
    """
    from realcoll.measure.timed_sizes import TimingRequest, kinds_of_data
    from simcoll.algorithms import find_algorithm
    from simcoll.algorithms.imported import names_custom
    from simcoll.core.collective import collective_kind
    from simcoll.files.output import refuse_places
    from simcoll.planning.sweeps.sweep import counts_for
    from simcoll.topology import load_topology
    from simcoll.tuning import first_algorithm, parse_choice

    ngpus, iters, warmup = repetition.ngpus, repetition.iters, repetition.warmup
    if iters < 1 or warmup < 0 or (ngpus is not None and ngpus < 1):
        raise ConfigError(
            f"expected -n and -g of at least 1 and -w of at least 0; got -n {iters} -g {ngpus} -w "
            f"{warmup}"
        )
    choice = parse_choice(algorithm or first_algorithm(collective))
    kind = collective if names_custom(collective) else collective_kind(collective)
    find_algorithm("custom" if names_custom(collective) else kind, choice.algorithm)
    refuse_places([json])
    sizes = _sizes(measured.begin, measured.end, measured.factor, measured.step)
    data = kinds_of_data(kind, operand.dtype, operand.op)
    topology = load_topology(job.predict) if job.predict else None
    with _open_transport(job.transport, job.timeout) as link:
        nranks = link.control.size * (ngpus or (4 if link.control.size == 1 else 1))
        requests = [
            TimingRequest(
                kind,
                choice,
                element.name,
                reduction,
                operand.root,
                tuple(counts_for(kind, sizes, nranks, element.itemsize)),
                nranks,
                iters,
                warmup,
                repetition.check != 0,
            )
            for element, reduction in data
        ]
        _measure_and_show(requests, link, topology, json)


def _measure_and_show(
    requests: Sequence[TimingRequest],
    transport: Transport,
    topology: Topology | None,
    json: Path | None,
) -> None:
    """Run sweeps that differ only in their data; process 0 prints them and writes the file."""
    from realcoll.measure.nccl_tests_report import footer, header, json_document, row, write_new
    from realcoll.measure.timed_sizes import measure, schedules

    began, predicts, request = time.time(), topology is not None, requests[0]
    speaks = transport.control.process == 0
    if speaks:
        processes = transport.control.size
        ranks = f"{request.nranks} ranks in {processes} process{'es' * (processes != 1)}"
        say(f"# realcoll: {request.collective} with {request.choice} on {transport.name}: {ranks}")
        proved = next(print_line for print_line in schedules(request) if print_line is not None)
        say(f"# {verify(proved)}")
        chosen = sorted({transit.via for transit in proved.transits} - {""})
        if chosen:
            paths = ", ".join(chosen)
            say(
                f"# paths: transport {transport.name} chooses the links; via {paths} is not applied"
            )
        say(
            f"# warmup iters: {request.warmup} iters: {request.iterations} validation: "
            f"{int(request.check)}"
        )
        if topology is not None:
            say(
                f"# predictions on topology {topology.name}, protocol ideal: {topology.description}"
            )
        say_text("\n".join(header(predicts=predicts)), flush=True)

    def print_line(line: Line) -> None:
        say(row(line, predicts=predicts), flush=True)

    lines = [
        line
        for part in requests
        for line in measure(part, transport, topology, print_line if speaks else None)
    ]
    if speaks:
        say_text("\n".join(footer(lines)))
        if json is not None:
            config = {"transport": transport.name, "processes": transport.control.size}
            say(f"# wrote {write_new(json, json_document(request, lines, config, began))}")
    wrong = sum(
        m.wrong or 0 for line in lines for m in (line.out_of_place, line.in_place) if m is not None
    )
    if wrong:
        raise InternalError(f"{wrong} wrong elements from a proved schedule")


def _sizes(begin: str, end: str, factor: int, step: str | None) -> tuple[int, ...]:
    from simcoll.planning.sweeps.sweep import size_ladder
    from simcoll.units import parse_size

    smallest, largest = parse_size(begin, what="-b"), parse_size(end, what="-e")
    if step is None:
        return size_ladder(smallest, largest, factor)
    distance = parse_size(step, what="-i")
    if distance < 1 or not 1 <= smallest <= largest or (largest - smallest) // distance > 10**6:
        raise ConfigError(
            f"sizes from {begin} to {end} in steps of {step}: expected an upward range with steps "
            "of at least 1 byte"
        )
    return tuple(range(smallest, largest + 1, distance))


@app.command
def calibrate(
    output: Path,
    /,
    *,
    begin: Annotated[str, Parameter(name=["--minbytes", "-b"])] = "64",
    end: Annotated[str, Parameter(name=["--maxbytes", "-e"])] = "16M",
    factor: Annotated[int, Parameter(name=["--stepfactor", "-f"]), WHOLE] = 4,
    iters: Annotated[int, Parameter(name=["--iters", "-n"]), WHOLE] = 20,
    job: CalibrationJob = CalibrationJob(),
) -> None:
    """Measure messages between neighbours, and write a fitted topology file or a calibration of a
    known topology.

    Parameters
    ----------
    output
        The file, such as machine.toml; it must not exist.
    begin
        Smallest message.
    end
        Largest message.
    factor
        Factor between sizes.
    iters
        Timed runs of each size.
    """
    from realcoll.measure.message_fit import calibration, fit, sizes_and_times, topology_toml
    from simcoll.files.output import refuse_places, write_file
    from simcoll.files.paths import exists
    from simcoll.libraries.calibration import write_calibration
    from simcoll.topology import load_topology
    from simcoll.units import format_size

    sizes = _sizes(begin, end, factor, None)
    if exists(output):
        raise ConfigError("is already there; choose another name", file=str(output))
    refuse_places([output])
    if job.predict:
        load_topology(job.predict)
    with _open_transport(job.transport, job.timeout) as link:
        nranks = max(2, link.control.size)
        times = sizes_and_times(link, nranks, sizes, iters)
        if link.control.process == 0:
            line = fit(sizes, times)
            for size, seconds, residual in zip(
                line.sizes, line.times_s, line.residuals, strict=True
            ):
                say(f"{format_size(size):>10}  {seconds * 1e6:12.2f} us  {residual:+8.1%}")
            say(
                f"# latency {line.latency_s * 1e6:.3g} us, bandwidth {line.bandwidth / 1e9:.3g} "
                "GB/s"
            )
            if job.predict:
                fitted = calibration(sizes, times, job.predict, nranks, link.name)
                say(
                    f"# launch {fitted.launch_fs / 1e9:+.3g} us, rates x {float(fitted.rate):.3g}: "
                    f"calibration {fitted.hash}"
                )
                write_calibration(output, fitted)
            else:
                write_file(output, topology_toml(line, output.stem, nranks, link.name).encode())
            say(f"# wrote {output}")


@app.command(name="launch")
def _launch(
    *script: str, processes: Annotated[int, Parameter(name=["--nproc", "-n"]), WHOLE] = 1
) -> int:
    """Start a Python script several times on this machine, as torchrun does.

    Parameters
    ----------
    script
        The script with its arguments, or -m and a module.
    processes
        Number of processes.
    """
    from realcoll.start.local_launch import launch

    return launch(processes, script)


@app.command
def completion(shell: str, /) -> None:
    """Print a shell script that completes commands, options and shipped names.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from simcoll.planning.names import option_names

    sys.stdout.write(f"{completion_script(app, shell, option_names())}\n")


def _split(arguments: list[str]) -> list[str]:
    """Separate the options of a launched script from realcoll's."""
    if arguments[:1] != ["launch"]:
        return arguments
    # A module is part of the script.
    position = arguments.index("-m") if "-m" in arguments else len(arguments)
    return [
        "launch",
        *separate_program(arguments[1:position], ("-n", "--nproc")),
        *arguments[position:],
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns the exit status: 0 done, 1 another rank failed, 2 bad input or something is not
    installed, 3 a bug, 130 stopped.
    """
    keys = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    speaks = next((os.environ[key] for key in keys if key in os.environ), "0") == "0"
    arguments = _split(list(sys.argv[1:] if argv is None else argv))
    return run_app(
        app, arguments, statuses={FaultError: 1, MissingError: 2, ScheduleError: 2}, speaks=speaks
    )
