"""``simcoll diff``: changes between two folders of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from simcoll.command_line import COUNT
from simcoll.errors import ConfigError
from simcoll.terminal import say

__all__ = ["diff_results"]


def diff_results(
    before: Path,
    after: Path,
    /,
    *,
    metric: Annotated[str, Parameter(name=["--metric", "-m"])] = "time_fs",
    threshold: Annotated[str, Parameter(name=["--threshold", "-t"])] = "0",
    limit: Annotated[int, COUNT] = 20,
) -> int:
    """Show changes between two folders of results; exit status 1 above the threshold.

    Parameters
    ----------
    before
        A folder that simcoll run, sweep, plan or goodput wrote.
    after
        A later one.
    metric
        The column to compare, a number in the rows.
    threshold
        A relative change, such as 1% or 0.01. A point that ran before and no longer does exceeds
        any threshold.
    limit
        Maximum number of lines of each kind.
    """
    from simcoll.planning.grids.difference import difference, parse_share

    allowed = parse_share(threshold)
    if limit < 0:
        raise ConfigError(f"--limit {limit}: expected 0 or more")
    comparison = difference(before, after, metric)
    beyond = comparison.beyond(allowed)
    for move in beyond[:limit]:
        say(f"{move.change:+10.3%}  {move.old:>22,} -> {move.new:>22,}  {move.name}")
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
        f"moved by more than {allowed:.4%}; "
        f"{len(comparison.gone):,} gone, {len(comparison.new):,} new"
    )
    return int(bool(beyond or comparison.gone))
