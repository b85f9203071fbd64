"""The command line: ``simcoll run | perf | verify | show | list``."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from simcoll.binding import verify as prove
from simcoll.errors import ConfigError, InternalError, ScheduleError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simcoll.core.schedule import Schedule
    from simcoll.planning.sweep import Row, Sweep
    from simcoll.topology import Topology

__all__ = ["app", "main"]

app = App(
    name="simcoll",
    help="Specify a collective once, prove it, see how fast it will be on any cluster, run it unchanged on GPUs.",
    help_flags=["--help", "-h"],
    version_flags=["--version"],
)


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None] | None]:
    """A progress bar on the terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("proving", total=None)
        yield lambda done, total, next_up: bar.update(task, completed=done, total=total, description=next_up)


def _sweep(title: str, sweep: Sweep, schedules: Sequence[Schedule], topology: Topology) -> tuple[list[Row], list[str]]:
    """Run and print a prepared sweep."""
    from simcoll.planning.report import engine_lines, sweep_hash, table_lines
    from simcoll.planning.sweep import run_sweep
    from simcoll.units import printable

    print(f"# simcoll: {printable(title)}")
    print(printable(f"# topology {topology.name}: {topology.nranks} ranks. {topology.description}".rstrip()))
    proofs = [f"{printable(schedule.title)}: {prove(schedule)}" for schedule in schedules]
    for proof in proofs:
        print(f"# {proof}")
    with _progress() as progress:
        rows = run_sweep(sweep, schedules, topology, progress)
    for line in table_lines(sweep, rows):
        print(line)
    for line in engine_lines(rows):
        print(line)
    wrong = sum(row.wrong or 0 for row in rows)
    checked = sum(row.wrong is not None for row in rows)
    found = sweep_hash(rows)
    print(
        f"# {len(rows)} runs, data checked in {checked}: {wrong} wrong. {f'trace hash {found}' if found else 'no trace hash'}"
    )
    if wrong:
        raise InternalError(f"{wrong} wrong elements in a proved schedule")
    return rows, proofs


@app.command
def run(scenario: str, /, *, output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None) -> None:
    """Run a scenario: prove and emulate every algorithm, print the table, write results, picture and timeline.

    Parameters
    ----------
    scenario
        A scenario file, or the name of a shipped one (simcoll list scenarios).
    output
        Folder for results.json, results.csv, busbw.svg and trace.json.gz; default out/<scenario>.
    """
    from simcoll.planning import scenario as scenarios
    from simcoll.planning.output import open_folder
    from simcoll.planning.sweep import prepare

    content, path = scenarios.load_scenario(scenario)
    sweep = scenarios.sweep_of(content, str(path))
    with scenarios.blamed_on(str(path)):
        topology = scenarios.scenario_topology(content, path)
        schedules = prepare(sweep, topology)
    folder = output or Path("out") / path.stem
    open_folder(folder, scenarios.RESULT_FILES)
    rows, proofs = _sweep(content.title, sweep, schedules, topology)
    names = scenarios.write_results(folder, content, sweep, topology, rows, proofs)
    print(f"# wrote {', '.join(str(folder / name) for name in names)}")


@app.command
def perf(
    collective: str,
    /,
    *,
    topology: Annotated[str, Parameter(name=["--topology", "-t"])] = "dgx-h100",
    nodes: int | None = None,
    degrade: Annotated[tuple[str, ...], Parameter(name="--degrade")] = (),
    begin: Annotated[str, Parameter(name=["--begin", "-b"])] = "8",
    end: Annotated[str, Parameter(name=["--end", "-e"])] = "128M",
    factor: Annotated[str, Parameter(name=["--factor", "-f"])] = "2",
    algorithm: Annotated[str | None, Parameter(name=["--algorithm", "-a"])] = None,
    protocol: Annotated[str, Parameter(name=["--protocol", "-p"])] = "LL,LL128,Simple",
    dtype: Annotated[str, Parameter(name=["--dtype", "-d"])] = "float32",
    op: Annotated[str, Parameter(name=["--op", "-o"])] = "sum",
    root: Annotated[int | None, Parameter(name=["--root", "-r"])] = None,
    check: Annotated[str, Parameter(name=["--check", "-c"])] = "64K",
) -> None:
    """Predict a collective over a range of sizes: the nccl-tests table with bound, headroom and bottleneck.

    Parameters
    ----------
    collective
        all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, ...
    topology
        A shipped topology (simcoll list topologies), a TOML file, or an NCCL topology XML dump.
    nodes
        How many boxes.
    degrade
        A link and the share that is left of it, such as "box0.gpu3 <-> box0.nvswitch=17/18"; 0: it is lost. May be repeated.
    begin
        Smallest size in bytes, such as 8 or 1M.
    end
        Largest size.
    factor
        Factor between sizes.
    algorithm
        Algorithms to compare, separated by commas, with parameters after colons: ring:channels=4,tree.
        Default: all that fit.
    protocol
        ideal, LL, LL128, Simple, separated by commas; the best of each size is shown.
    dtype
        Element type, such as float32, bfloat16 or int8.
    op
        Reduction: sum, product, min, max, band, bor, bxor, avg.
    root
        Root rank of broadcast, reduce, gather and scatter.
    check
        Largest size for which real data moves and is compared with the definition.
    """
    from simcoll.algorithms import ALGORITHMS
    from simcoll.core.collective import Collective
    from simcoll.planning.sweep import Sweep, parse_choice, prepare, size_ladder
    from simcoll.topology import load_topology
    from simcoll.units import parse_size

    machine = _degraded(load_topology(topology, nodes=nodes), degrade)
    Collective(collective, machine.nranks, root=root)
    if not (factor.isascii() and factor.isdecimal() and len(factor) < 10):
        raise ConfigError(f"-f {factor!r}: expected a whole number, at least 2")
    ladder = size_ladder(parse_size(begin, what="-b"), parse_size(end, what="-e"), int(factor))
    names = (
        algorithm.split(",") if algorithm else [found.name for found in ALGORITHMS if found.collective == collective]
    )
    choices = tuple(parse_choice(name) for name in names)
    sweep = Sweep(
        collective, ladder, choices, tuple(protocol.split(",")), dtype, op, root, parse_size(check, what="-c")
    )
    built = None
    if algorithm is None:
        sweep, built = _fitting(sweep, machine)
    _sweep(f"{collective} on {machine.name}", sweep, prepare(sweep, machine, built), machine)


def _degraded(machine: Topology, given: Sequence[str]) -> Topology:
    for each in given:
        link, equals, share = each.rpartition("=")
        if not equals:
            raise ConfigError(f"--degrade {each!r}: expected a link and a share, such as 'gpu0 <-> gpu4=1/2'")
        machine = machine.degrade(link.strip(), share.strip())
    return machine


FEW_RANKS = 16
"""Up to here ``packed`` is made without being asked for; beyond, finding its trees takes long."""


def _fitting(sweep: Sweep, machine: Topology) -> tuple[Sweep, list[Schedule]]:
    """The sweep without the algorithms that do not serve this number of ranks, and its schedules."""
    from dataclasses import replace

    from simcoll.planning.sweep import build

    fitting = []
    for choice in sweep.choices:
        if choice.algorithm == "packed" and machine.nranks > FEW_RANKS:
            print(f"# left out packed: finding its trees takes long for {machine.nranks} ranks; -a packed does it")
            continue
        try:
            fitting.append((choice, build(sweep, choice, machine)))
        except ConfigError as error:
            print(f"# left out {choice}: {error}")
    return replace(sweep, choices=tuple(choice for choice, _ in fitting)), [schedule for _, schedule in fitting]


@app.command
def verify(file: Path, /, *, exact: bool = False) -> None:
    """Prove a schedule file (JSON) or an MSCCL XML file, or print a counter-example.

    Parameters
    ----------
    file
        The file.
    exact
        Count contributions exactly instead of by 64-bit fingerprints.
    """
    from simcoll.formats.schedule_json import MAX_BYTES, parse_schedule
    from simcoll.formats.strict import read_file
    from simcoll.units import printable

    content = read_file(file, MAX_BYTES)
    if content.lstrip()[:1] == b"<":
        from simcoll.formats.msccl_xml import load_msccl_xml
        from simcoll.proving import verify_program

        program = load_msccl_xml(file)
        print(f"{file}: {printable(str(program))}\n{verify_program(program)}")
        return

    schedule = parse_schedule(content, str(file))
    print(f"{file}: {printable(str(schedule))}\n{prove(schedule, exact=exact)}")


@app.command
def show(
    algorithm: str,
    /,
    *,
    collective: Annotated[str, Parameter(name=["--collective", "-c"])] = "all_reduce",
    nranks: Annotated[int | None, Parameter(name=["--nranks", "-n"])] = None,
    topology: Annotated[str | None, Parameter(name=["--topology", "-t"])] = None,
    degrade: Annotated[tuple[str, ...], Parameter(name="--degrade")] = (),
    root: int | None = None,
    in_place: bool = False,
    limit: int = 200,
    svg: Path | None = None,
    json: Path | None = None,
) -> None:
    """Print a schedule readably; draw it or write it as a schedule file.

    Parameters
    ----------
    algorithm
        Its name (simcoll list algorithms), with parameters after colons: ring:channels=2:pieces=4. Or a schedule file.
    collective
        What it shall do.
    nranks
        World size; default 4, or that of the topology.
    topology
        For algorithms that are made for one: a shipped topology, or a file.
    degrade
        Its degraded links, as for perf.
    root
        Root rank.
    in_place
        Let the output share memory with the input.
    limit
        Most transfers to print.
    svg
        File for a picture.
    json
        File for the schedule.
    """
    from simcoll.algorithms import find_algorithm
    from simcoll.algorithms import schedule as make
    from simcoll.core.collective import Collective
    from simcoll.formats.schedule_json import dump_schedule, load_schedule
    from simcoll.planning.drawing import schedule_lines, schedule_svg
    from simcoll.planning.output import write_files
    from simcoll.planning.sweep import parse_choice
    from simcoll.topology import load_topology

    if algorithm.endswith(".json") or Path(algorithm).is_file():
        schedule = load_schedule(algorithm)
    else:
        choice = parse_choice(algorithm)
        params: dict[str, Any] = dict(choice.params)
        machine = _degraded(load_topology(topology), degrade) if topology else None
        if nranks is None:
            nranks = machine.nranks if machine else 4
        if machine and "topology" in find_algorithm(collective, choice.algorithm).params:
            params["topology"] = machine
        pairs: tuple[tuple[int, int], ...] = ()
        if collective == "send_recv":  # the shift by one rank, as in perf
            pairs = tuple((rank, (rank + 1) % nranks) for rank in range(nranks))
        find_algorithm(collective, choice.algorithm)
        wanted = Collective(collective, nranks, root, pairs, in_place)
        schedule = make(wanted, choice.algorithm, **params)
    for line in schedule_lines(schedule, limit):
        print(line)
    if json is not None:
        write_files(json.parent, {json.name: dump_schedule(schedule)})
        print(f"wrote {json}")
    if svg is not None:
        write_files(svg.parent, {svg.name: schedule_svg(schedule).encode()})
        print(f"wrote {svg}")


@app.command(name="list")
def list_(what: str, /) -> None:
    """List what is there.

    Parameters
    ----------
    what
        topologies, algorithms, scenarios, collectives or protocols.
    """
    listings: dict[str, Callable[[], list[tuple[str, ...]]]] = {
        "topologies": _topologies,
        "algorithms": _algorithms,
        "scenarios": _scenarios,
        "collectives": _collectives,
        "protocols": _protocols,
    }
    if what not in listings:
        raise ConfigError(f"cannot list {what!r}; {nearest(what, listings)}")
    _print_columns(listings[what]())


def _topologies() -> list[tuple[str, ...]]:
    from simcoll.topology import shipped_topologies

    return list(shipped_topologies().items())


def _scenarios() -> list[tuple[str, ...]]:
    from simcoll.planning.scenario import shipped_scenarios

    return list(shipped_scenarios().items())


def _algorithms() -> list[tuple[str, ...]]:
    from simcoll.algorithms import ALGORITHMS

    cost = "time (a latency, b s/byte, g s/byte reduced, s size)"
    head = ("collective", "algorithm", "ranks", "made for", "parameters", cost)
    rows = [(a.collective, a.name, a.ranks, a.topologies, " ".join(a.params) or "-", a.cost) for a in ALGORITHMS]
    return [head, *rows]


def _collectives() -> list[tuple[str, ...]]:
    from simcoll.core.collective import KINDS

    return [(name, kind.summary) for name, kind in KINDS.items()]


def _protocols() -> list[tuple[str, ...]]:
    from simcoll.core.protocol import PROTOCOL_NAMES, protocol

    return [(name, protocol(name).summary) for name in PROTOCOL_NAMES]


def _print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns the exit status: 0 done, 1 a schedule is wrong, 2 bad input, 3 a fault of simcoll.
    """
    try:
        app(
            list(sys.argv[1:] if argv is None else argv),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
        sys.stdout.flush()  # so that a closed pipe shows here and not when Python ends
    except CycloptsError as error:
        print(f"simcoll: {error}\nsimcoll: try --help", file=sys.stderr)
        return 2
    except ScheduleError as error:
        print(f"simcoll: wrong schedule: {error}", file=sys.stderr)
        return 1
    except ConfigError as error:
        print(f"simcoll: {error}", file=sys.stderr)
        return 2
    except InternalError as error:
        print(f"simcoll: {error}", file=sys.stderr)
        return 3
    except MemoryError:
        print("simcoll: not enough memory for this many ranks, chunks or bytes", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("simcoll: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough; keep the interpreter from complaining when it closes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0
