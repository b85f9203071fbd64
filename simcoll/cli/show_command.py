"""``simcoll show``: a schedule as text, as a picture, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from simcoll.command_line import COUNT, WHOLE
from simcoll.errors import ConfigError, ScheduleError
from simcoll.terminal import say, say_text

if TYPE_CHECKING:
    from simcoll.core.schedule import Schedule
    from simcoll.topology import Topology

__all__ = ["named_schedule", "show_schedule"]


def show_schedule(
    algorithm: str,
    /,
    collective: Annotated[str, Parameter(name=["--collective", "-c"])] = "all_reduce",
    *,
    nranks: Annotated[int | None, Parameter(name=["--nranks", "-n"]), WHOLE] = None,
    topology: Annotated[str | None, Parameter(name=["--topology", "-t"])] = None,
    degrade: Annotated[
        tuple[str, ...], Parameter(name="--degrade", negative=(), show_default=False)
    ] = (),
    root: Annotated[int | None, WHOLE] = None,
    in_place: bool = False,
    limit: Annotated[int, COUNT] = 200,
    svg: Path | None = None,
    json: Path | None = None,
) -> None:
    """Print a schedule readably; draw it or write it as a schedule file.

    Parameters
    ----------
    algorithm
        Its name (simcoll list algorithms), with parameters after colons: ring:channels=2:pieces=4.
        Or a file, or module:function.
    collective
        The collective that it implements.
    nranks
        World size. Default: that of the topology, or 4.
    topology
        For topology-dependent algorithms: a shipped topology, or a file.
    degrade
        Degraded links, as for perf.
    root
        Root rank.
    in_place
        Let the output share memory with the input.
    limit
        Largest number of transfers to print.
    svg
        File for a picture.
    json
        File for the schedule.
    """
    from simcoll.algorithms import ALGORITHMS
    from simcoll.algorithms.imported import file_schedule, is_file_name
    from simcoll.binding import verify
    from simcoll.cli.drawing import goal_lines, schedule_lines
    from simcoll.cli.sweeping import degrade_links
    from simcoll.core.picture import schedule_svg
    from simcoll.files.output import refuse_places, write_file
    from simcoll.formats.schedules.schedule_json import dump_schedule
    from simcoll.planning.sweeps.goal_programs import is_program, load_goal
    from simcoll.topology import load_topology
    from simcoll.tuning import parse_choice

    refuse_places([svg, json], [algorithm, topology])
    if svg is not None and svg.suffix.lower() != ".svg":
        raise ConfigError(
            f"--svg {svg}: the picture is SVG, which browsers and editors show; expected a name "
            f"that ends in .svg, such as {svg.with_suffix('.svg')}"
        )
    if is_program(algorithm):
        if svg is not None or json is not None:
            raise ConfigError(
                "--svg and --json are for schedules; a GOAL program does not say which data it "
                "moves",
                file=algorithm,
            )
        for line in goal_lines(load_goal(algorithm), limit):
            say(line)
        return
    if is_file_name(algorithm):
        schedule = file_schedule(algorithm)
    else:
        machine = degrade_links(load_topology(topology), degrade) if topology else None
        schedule = named_schedule(algorithm, collective, nranks, machine, root, in_place=in_place)
    if parse_choice(algorithm).algorithm not in {shipped.name for shipped in ALGORITHMS}:
        try:
            verify(schedule)
        except ScheduleError as error:
            if json is not None or svg is not None:
                raise
            say_text(f"# unproved: {error.message}")
    # Files come first: a reader that closes the pipe early ends the printing.
    outputs = []
    if json is not None:
        dump_schedule(schedule, json)
        outputs.append(json)
    if svg is not None:
        write_file(svg, schedule_svg(schedule).encode())
        outputs.append(svg)
    for line in schedule_lines(schedule, limit):
        say(line)
    for file in outputs:
        say(f"wrote {file}")


def named_schedule(
    text: str,
    kind: str,
    nranks: int | None = None,
    machine: Topology | None = None,
    root: int | None = None,
    *,
    in_place: bool = False,
) -> Schedule:
    """The schedule of a named algorithm; ``machine`` is used only by topology-dependent ones."""
    from simcoll.algorithms import find_algorithm
    from simcoll.algorithms.imported import names_custom
    from simcoll.core.collective import KINDS
    from simcoll.tuning import collective_on, parse_choice, schedule

    choice = parse_choice(text)
    if choice.algorithm in KINDS:  # the collective alone: its algorithms are told
        kind = choice.algorithm
    lookup = "custom" if names_custom(kind) else kind
    params: dict[str, Any] = dict(choice.params)
    if machine is not None and "topology" in find_algorithm(lookup, choice.algorithm).params:
        params["topology"] = machine
    if nranks is None:
        nranks = 4 if machine is None else machine.nranks
    find_algorithm(lookup, choice.algorithm)
    return schedule(
        collective_on(kind, nranks, root, in_place=in_place), choice.algorithm, **params
    )
