"""``simcoll diff``: changes between two folders of results, or two versions of NCCL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from simcoll.cli.perf_options import MachineOptions
from simcoll.command_line import COUNT, WHOLE
from simcoll.errors import ConfigError
from simcoll.terminal import say
from simcoll.units import counted, format_size, format_time

if TYPE_CHECKING:
    from simcoll.libraries.nccl.choice import NcclChoice
    from simcoll.libraries.nccl.version_difference import ChoiceChange

__all__ = ["diff_results"]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
SIZES = [2**power for power in range(3, 34)]


def diff_results(
    before: Path,
    after: Path,
    /,
    *,
    metric: Annotated[str, Parameter(name=["--metric", "-m"])] = "time_fs",
    threshold: Annotated[str, Parameter(name=["--threshold", "-t"])] = "0",
    limit: Annotated[int, COUNT] = 20,
    topology: str = "dgx-h100",
    nodes: Annotated[int | None, WHOLE] = None,
    env: str = "",
) -> int:
    """Show changes between two folders of results, or what an upgrade of NCCL changes; exit status
    1 above the threshold, or if a choice changes.

    Parameters
    ----------
    before
        A folder that simcoll run, sweep, plan or goodput wrote; or a version of NCCL, such as
        nccl-2.27 (simcoll list libraries).
    after
        A later one.
    metric
        The column to compare, a number in the rows.
    threshold
        A relative change, such as 1% or 0.01. A point that ran before and no longer does exceeds
        any threshold.
    limit
        Maximum number of lines of each kind.
    topology
        For versions of NCCL: the machine, as for simcoll perf.
    nodes
        For versions of NCCL: number of nodes. Default: the topology's.
    env
        For versions of NCCL: its variables, such as NCCL_ALGO=Ring.
    """
    if _is_version(before) and _is_version(after):
        if metric != "time_fs" or threshold != "0":
            options = f"--metric {metric}, --threshold {threshold}"
            raise ConfigError(
                f"{options}: a metric and a threshold (-t) are for folders of results; the machine "
                "of versions of NCCL is --topology"
            )
        return _diff_versions((before, after), MachineOptions(topology, nodes), env, limit)
    if topology != "dgx-h100" or nodes is not None or env:
        raise ConfigError(
            "--topology, --nodes and --env are for two versions of NCCL, such as nccl-2.27 and "
            f"nccl-2.30; got {before} and {after}"
        )
    if any(_is_version(name) or _is_of_rccl(name) for name in (before, after)):
        raise ConfigError(
            "diff compares two folders of results, or two versions of NCCL, such as nccl-2.27 and "
            f"nccl-2.30; got {before} and {after}"
        )
    from simcoll.planning.grids.difference import difference, parse_share

    allowed = parse_share(threshold)
    if limit < 0:
        raise ConfigError(f"--limit {limit}: expected 0 or more")
    comparison = difference(before, after, metric)
    beyond = comparison.beyond(allowed)
    for change in comparison.inputs[:limit]:
        say(f"# {change}")
    if len(comparison.inputs) > limit:
        say(f"# and {len(comparison.inputs) - limit:,} more inputs that differ (--limit)")
    for move in beyond[:limit]:
        old, new = _figures(metric, move.old, move.new)
        say(f"{move.change:+10.3%}  {old:>15} -> {new:>15}  {move.name}")
    if len(beyond) > limit:
        say(f"# and {len(beyond) - limit:,} more (--limit)")
    for label, names in (("gone", comparison.gone), ("new", comparison.new)):
        for name in names[:limit]:
            say(f"{label:>10}  {name}")
        if len(names) > limit:
            say(f"# and {len(names) - limit:,} more {label} (--limit)")
    still = sum(move.change == 0 for move in comparison.moves)
    say(
        f"# {metric}: {len(comparison.moves):,} points in both, {still:,} equal, {len(beyond):,} "
        f"moved by more than {100 * allowed:.6g}%; "
        f"{len(comparison.gone):,} gone, {len(comparison.new):,} new"
    )
    return int(bool(beyond or comparison.gone))


def _figures(metric: str, old: float, new: float) -> tuple[str, str]:
    """Two figures, rounded unless that hides their difference."""
    if metric.endswith("_fs"):
        texts = format_time(int(old)), format_time(int(new))
    else:
        texts = _figure_text(old), _figure_text(new)
    return texts if texts[0] != texts[1] or old == new else (f"{old:,}", f"{new:,}")


def _figure_text(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 1e5 else f"{figure:,.6g}"


def _is_version(name: Path) -> bool:
    """Whether a name is that of a version of NCCL, and not of a folder."""
    return str(name).startswith("nccl-") and not name.exists()


def _is_of_rccl(name: Path) -> bool:
    return str(name).startswith("rccl") and not name.exists()


def _diff_versions(versions: tuple[Path, Path], place: MachineOptions, env: str, limit: int) -> int:
    """Print the ranges of sizes whose choice changes between two versions of NCCL."""
    from simcoll.libraries.environment import parse_environment
    from simcoll.libraries.library import load_library
    from simcoll.libraries.nccl.version_difference import choice_changes, refusals
    from simcoll.terminal import printable

    machine = place.load()
    old, new = (load_library(str(version)) for version in versions)
    environment = parse_environment(env)
    say(printable(f"# {old} -> {new} on {machine.name}, {machine.nranks} ranks"))
    failing = refusals(machine, (old, new), COLLECTIVES, environment)
    collectives = [name for name in COLLECTIVES if name not in failing]
    changes = list(choice_changes(machine, old, new, collectives, SIZES, environment))
    for change in changes[:limit]:
        say(_change_line(change))
    if len(changes) > limit:
        say(f"# and {len(changes) - limit:,} more (--limit)")
    for name in failing:
        say(f"# {name}: the variables leave nothing to run; NCCL fails with 'invalid usage'")
    say(
        f"# {counted(len(changes), 'range')} of sizes from {format_size(SIZES[0])} to "
        f"{format_size(SIZES[-1])} with another choice; shares are of NCCL's own estimate"
    )
    return int(bool(changes))


def _change_line(change: ChoiceChange) -> str:
    """A range of sizes with its choices, and how NCCL's own estimate of the time changes."""
    sizes = [format_size(size) for size in (change.sizes_bytes[0], change.sizes_bytes[-1])]
    shares = [
        new.estimate_us / old.estimate_us - 1
        for old, new in zip(change.old_choices, change.new_choices, strict=True)
    ]
    old, new = _label(change.old_choices), _label(change.new_choices)
    return (
        f"{change.collective:15} {sizes[0]:>8} to {sizes[1]:>8}  {old:24} -> {new:24} "
        f"{min(shares):+7.1%} to {max(shares):+7.1%}"
    )


def _label(choices: tuple[NcclChoice, ...]) -> str:
    """Algorithm, protocol and the channels of a range."""
    channels = sorted({choices[0].channels, choices[-1].channels})
    count = " to ".join(str(number) for number in channels)
    return f"{choices[0].algorithm} {choices[0].protocol}, {count} ch"
