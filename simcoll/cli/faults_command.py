"""``simcoll faults``: a scenario under random faults."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter

from simcoll.command_line import WHOLE
from simcoll.errors import ConfigError, blamed_on, nearest
from simcoll.terminal import say

if TYPE_CHECKING:
    from concurrent.futures import Future

    from simcoll.core.plan import Plan
    from simcoll.planning.grids.executors import GridPool
    from simcoll.planning.reliability.faults import Chances, FaultKind, Outcome
    from simcoll.planning.sweeps.scenario import Scenario
    from simcoll.topology import Topology

__all__ = ["play_faults"]


@Parameter(name="*")
@dataclass(frozen=True)
class ChanceOptions:
    """Distributions of faults.

    Parameters
    ----------
    policy
        Treatment of bytes at a dead link: stall, stall 67ms x 7, re-route or abort.
    timeout
        Time without progress after which ranks raise.
    late
        Median delay of ranks (0: a tenth of the undisturbed time).
    sigma
        Standard deviation, up to 10, of the logarithm of delays and factors.
    jitter
        Maximum delay of a message (0: a hundredth of the undisturbed time).
    mtbf
        Mean time between failures of a link (0: one link fails once).
    mttr
        Mean time to repair (0: a tenth of the undisturbed time).
    """

    policy: str = "stall"
    timeout: str = "600s"
    late: str = "0"
    sigma: str = "1"
    jitter: str = "0"
    mtbf: str = "0"
    mttr: str = "0"

    def chances(self) -> Chances:
        """The distributions, with times in femtoseconds."""
        from simcoll.emulator.events.reading import parse_policy
        from simcoll.planning.reliability.faults import Chances
        from simcoll.topology.values import factor
        from simcoll.units import parse_time

        parse_policy(self.policy)  # refused here, where each kind would be left out for it
        times = ("timeout", "late", "jitter", "mtbf", "mttr")
        return Chances(
            sigma_ppm=int(factor(self.sigma, "--sigma") * 1_000_000),
            policy=self.policy,
            **{f"{name}_fs": parse_time(getattr(self, name), what=f"--{name}") for name in times},
        )

    @property
    def differences(self) -> dict[str, str]:
        """The options that differ from their defaults."""
        defaults = vars(type(self)())
        return {f"--{name}": value for name, value in vars(self).items() if value != defaults[name]}


@Parameter(name="*")
@dataclass(frozen=True)
class WorkerOptions:
    """What plays the seeds.

    Parameters
    ----------
    jobs
        Number of processes; default one per core, or only one for fewer than 500 seeds.
    executor
        processes, dask://host:port (a scheduler of dask.distributed), or mpi (under mpiexec).
    """

    jobs: Annotated[int | None, Parameter(name=["--jobs", "-j"]), WHOLE] = None
    executor: str = "processes"


def play_faults(
    scenario: str,
    /,
    *,
    seeds: Annotated[int, WHOLE] = 200,
    first: Annotated[int, WHOLE] = 0,
    kind: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    seed: Annotated[int | None, WHOLE] = None,
    algorithm: Annotated[str | None, Parameter(name=["--algorithm", "-a"])] = None,
    size: str | None = None,
    odds: ChanceOptions = ChanceOptions(),
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    workers: WorkerOptions = WorkerOptions(),
) -> None:
    """Play a scenario's collective under seeded random faults: how many runs finish, how late, and
    how many raise.

    Parameters
    ----------
    scenario
        A scenario file, or the name of a shipped one; its largest size, first algorithm and first
        protocol.
    seeds
        Number of faults of each kind.
    first
        The first seed.
    kind
        late, slow, jitter, rehash, traffic, flap, link, nic or stop; may be repeated. Default: all
        that apply to the machine.
    seed
        Play only this fault of one kind, and print its course and the times of re-planned
        schedules.
    algorithm
        Algorithm, instead of the scenario's first.
    size
        Size, instead of the scenario's largest.
    output
        Folder for faults.csv and faults.svg; default out/<scenario>-faults.
    """
    from simcoll.core.numbers import check_seed
    from simcoll.files.output import open_folder
    from simcoll.planning.grids.executors import open_pool
    from simcoll.planning.reliability import fault_report as report
    from simcoll.planning.reliability.faults import (
        KINDS,
        MOST_SEED,
        check_flaps,
        wrong_elements,
    )
    from simcoll.planning.sweeps import scenario as scenarios
    from simcoll.units import format_size, format_time, parse_size

    if size is not None and parse_size(size, what="--size") < 1:
        raise ConfigError(f"--size {size}: expected 1 byte or more")

    for fault in kind:
        if fault not in KINDS:
            raise ConfigError(f"--kind {fault!r}: unknown; {nearest(fault, KINDS)}")
    kinds = [word for fault in kind for word in KINDS if word == fault]
    if not 1 <= seeds <= MOST_SEEDS:
        raise ConfigError(f"--seeds {seeds}: expected 1 to {MOST_SEEDS}")
    for number in (first, first + seeds - 1, seed or 0):
        check_seed(number, MOST_SEED)
    if seed is not None and len(kinds) != 1:
        raise ConfigError(f"--seed {seed}: of which kind? Give one --kind")
    chances = odds.chances()
    content, path = scenarios.load_scenario(scenario)
    with blamed_on(str(path)):
        plan, machine, whole_fs = _calm_run(content, path, algorithm, size)
    say(f"# simcoll faults: {content.title}")
    say(
        f"# {plan.schedule.title}, {format_size(plan.total_bytes)}, {plan.protocol.name}: "
        f"{format_time(whole_fs)} undisturbed; {odds.policy}"
    )
    if disturbed := scenarios.sweep_of(content, str(path)).disturbed:
        say(f"# ignored, since faults are drawn here: {disturbed}")
    if seed is not None:
        _one(kinds[0], seed, plan, machine, whole_fs, chances)
        return
    if not kinds or "flap" in kinds:
        check_flaps(seeds, plan, machine, whole_fs, chances)
    folder = output or Path("out") / f"{path.stem}-faults"
    open_folder(folder, ("faults.csv", "faults.svg"))
    few = seeds < SEEDS_OF_ONE_PROCESS and workers == WorkerOptions()
    with open_pool(workers.executor, 1 if few else workers.jobs) as pool:
        if pool is None:
            return
        outcomes = _all(
            pool, kinds, range(first, first + seeds), _CalmRun(plan, machine, whole_fs, chances)
        )
    for line in report.fault_lines(outcomes, whole_fs):
        say(line)
    for fault in outcomes:
        seed_of_worst = report.worst(outcomes[fault]).seed
        _anew(fault, seed_of_worst, plan, machine, whole_fs, chances, reasons=False)
    checked = [
        wrong_elements(fault, range(first, first + min(seeds, MOVED)), plan, machine, chances)
        for fault in outcomes
    ]
    runs, wrong = (sum(column) for column in zip(*checked, strict=True))
    say(
        f"# data moved in {runs} finished run{'s' * (runs != 1)}: {wrong} wrong elements; the "
        "schedule is proved for every order"
    )
    title = f"{plan.schedule.title} on {machine.name}"
    paths = _write_outcomes(folder, title, outcomes, whole_fs)
    worst_runs = {fault: report.worst(runs) for fault, runs in outcomes.items()}
    last = report.worst(list(worst_runs.values()))
    kind_of_worst = next(fault for fault, run in worst_runs.items() if run is last)
    command = _command(scenario, {"-a": algorithm, "--size": size, **odds.differences})
    say(f"# replay the worst: {command} --kind {kind_of_worst} --seed {last.seed}")
    say(f"# wrote {', '.join(map(str, paths))}")


LOSSES = ("flap", "link", "nic", "stop")
"""Kinds of faults that remove part of the machine."""
MOST_SEEDS = 100_000
SEEDS_OF_ONE_PROCESS = 500
"""With fewer seeds, a run takes less time than the start of processes would save."""
SEEDS_OF_A_REQUEST = 50
MOVED = 5
"""Number of seeds of each kind that are also played with data."""


def _write_outcomes(
    folder: Path, title: str, outcomes: Mapping[FaultKind, Sequence[Outcome]], whole_fs: int
) -> list[Path]:
    """Write the table of all runs and, with Matplotlib, their picture; return both paths."""
    from simcoll.files.output import write_files
    from simcoll.planning.reliability import fault_report as report
    from simcoll.planning.sweeps.chart import NO_PICTURE, can_draw

    name = report.results_hash(outcomes, whole_fs)
    files = {"faults.csv": report.faults_csv(outcomes, whole_fs, name)}
    if can_draw():
        files["faults.svg"] = report.faults_svg(title, outcomes, whole_fs, name)
    else:
        say(f"# {NO_PICTURE}")
    write_files(folder, files)
    return [folder / filename for filename in files]


def _command(scenario: str, options: Mapping[str, str | None]) -> str:
    """The command line that plays a scenario with the same options."""
    words = ["simcoll", "faults", scenario]
    for option, value in options.items():
        if value:
            words += [option, value]
    return shlex.join(words)


def _calm_run(
    content: Scenario, path: Path, algorithm: str | None, size: str | None
) -> tuple[Plan, Topology, int]:
    """The plan of the scenario's largest size, its machine, and its time there without faults."""
    from simcoll.binding import bind
    from simcoll.cli.sweeping import prove_all
    from simcoll.core.reduction import parse_dtype
    from simcoll.emulator import emulate
    from simcoll.planning.sweeps.scenario import scenario_topology, sweep_of
    from simcoll.planning.sweeps.sweep import counts_for
    from simcoll.tuning import costs, parse_choice
    from simcoll.units import parse_size

    machine, sweep = scenario_topology(content, path), sweep_of(content, str(path))
    choice = parse_choice(algorithm) if algorithm else sweep.choices[0]
    sizes = (parse_size(size, what="--size"),) if size else sweep.sizes[-1:]
    sweep = replace(sweep, choices=(choice,), sizes=sizes)
    schedule = prove_all(sweep, machine)[0]
    count = counts_for(sweep.collective, sizes, machine.nranks, parse_dtype(sweep.dtype).itemsize)[
        0
    ]
    protocol = costs(sweep.protocols_of(schedule)[0], machine, schedule)
    plan = bind(schedule, count, sweep.dtype, sweep.op, protocol=protocol)
    return plan, machine, emulate(plan, machine, data="none", bound=False).time_fs


class _CalmRun(NamedTuple):
    """The undisturbed run that faults are drawn for, as worker processes take it."""

    plan: Plan
    machine: Topology
    whole_fs: int
    chances: Chances

    def outcomes(self, kind: FaultKind, seeds: range) -> list[Outcome]:
        from simcoll.planning.reliability.faults import outcomes

        return list(outcomes(kind, seeds, *self))


def _in_order(
    pool: GridPool, calm: _CalmRun, kind: FaultKind, parts: Sequence[range]
) -> Iterator[list[Outcome]]:
    """The outcomes of each part, asked for a few parts ahead, so that progress can be shown."""
    futures: deque[Future[list[Outcome]]] = deque()
    for part in parts:
        futures.append(pool.executor.submit(calm.outcomes, kind, part))
        if len(futures) > pool.ahead * pool.workers():
            yield futures.popleft().result()
    for future in futures:
        yield future.result()


def _all(
    pool: GridPool, kinds: Sequence[FaultKind], seeds: range, calm: _CalmRun
) -> dict[FaultKind, list[Outcome]]:
    """The outcomes of the requested kinds, or of all that apply to the machine."""
    from simcoll.cli.progress import Progress
    from simcoll.planning.reliability.faults import KINDS

    results: dict[FaultKind, list[Outcome]] = {}
    requests = kinds or tuple(KINDS)
    parts = [
        seeds[begin : begin + SEEDS_OF_A_REQUEST]
        for begin in range(0, len(seeds), SEEDS_OF_A_REQUEST)
    ]
    with Progress() as tell:
        for place, kind in enumerate(requests):
            runs: list[Outcome] = []
            try:
                for part in _in_order(pool, calm, kind, parts):
                    runs.extend(part)
                    tell(place * len(seeds) + len(runs), len(requests) * len(seeds), kind)
            except ConfigError as error:
                if kinds:
                    raise
                tell.clear()
                say(f"# no {kind}: {error.message}")
            else:
                results[kind] = runs
    return results


def _one(
    kind: FaultKind, seed: int, plan: Plan, machine: Topology, whole_fs: int, chances: Chances
) -> None:
    """Print one fault: its description, its course, and the times of re-planned schedules."""
    from simcoll.planning.reliability.faults import draw, run_fault
    from simcoll.units import format_time

    drawn = draw(kind, seed, plan, machine, whole_fs, chances)
    say(f"# {kind} {seed}: {drawn.text}")
    result = run_fault(drawn, chances)
    if result.raised:
        say(f"# {result.raised}")
        say(f"# all ranks have raised after {format_time(result.time_fs)}")
    else:
        say(
            f"# finished after {format_time(result.time_fs)}, {result.time_fs / whole_fs:.3f} "
            "times the undisturbed time"
        )
    _anew(kind, seed, plan, machine, whole_fs, chances, reasons=True)


def _anew(
    kind: FaultKind,
    seed: int,
    plan: Plan,
    machine: Topology,
    whole_fs: int,
    chances: Chances,
    *,
    reasons: bool,
) -> None:
    """Print the times of schedules re-planned for the machine that remains after a loss."""
    from simcoll.planning.reliability.fault_report import replanned_lines
    from simcoll.planning.reliability.faults import draw, replan

    if kind not in LOSSES:
        return
    try:
        drawn = draw(kind, seed, plan, machine, whole_fs, chances)
    except ConfigError as error:  # the loss cuts the machine in two
        say(f"# after {kind} {seed}: {error.message}")
        return
    for line in replanned_lines(kind, seed, list(replan(drawn)), whole_fs, reasons=reasons):
        say(line)
