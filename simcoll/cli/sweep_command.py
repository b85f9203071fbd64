"""``simcoll sweep``: a grid of collectives on all cores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from simcoll.cli.disturbance_options import Disturbed
from simcoll.cli.grids import GridOptions
from simcoll.terminal import say

if TYPE_CHECKING:
    from simcoll.planning.grids.grid import PointGrid

__all__ = ["sweep_all"]

FILES = ("results.csv", "sweep.svg")


def sweep_all(
    given: str,
    /,
    *,
    group: str | None = None,
    disturbed: Disturbed = Disturbed(),  # noqa: B008
    options: Annotated[GridOptions, Parameter(name="*")] = GridOptions(),  # noqa: B008
) -> None:
    """Play every combination of topologies, nodes, damage, collectives, algorithms, protocols,
    seeds and sizes.

    Parameters
    ----------
    given
        The name of a shipped file, or a sweep file in TOML.
    group
        Axes of a mesh of all ranks, fastest first, such as tp=8,dp=64: every point for one group of
        each axis.
    """
    from simcoll.cli.grids import play_grid
    from simcoll.files.output import write_files
    from simcoll.planning.sweeps.chart import NO_PICTURE, can_draw
    from simcoll.planning.sweeps.machine_table import fastest_rows, machine_lines, machines_svg
    from simcoll.planning.sweeps.scenario import file_of
    from simcoll.planning.sweeps.sweep_grid import load_sweep, sweep_csv, sweep_grid

    file = file_of("sweep", given)

    def grid() -> PointGrid:
        content = load_sweep(file)
        keys = disturbed.keys(content.jitter)
        keys |= {"group": group} if group else {}
        if "seed" in keys:
            keys["seeds"] = (keys.pop("seed"),)
        return sweep_grid(replace(content, **keys), file)

    played = play_grid(options, file, grid, FILES)
    if played is None:
        return
    (run,), folder = played
    if options.shard:
        say(
            "# one shard of the grid; when all shards are done, --resume without --shard writes "
            f"{folder / 'results.csv'}"
        )
        return
    contents = {"results.csv": sweep_csv(run.rows)}
    rows = fastest_rows(run.rows)
    for line in machine_lines(rows) if rows else ():
        say(line)
    if any(row.size_bytes for row in rows):
        if can_draw():
            contents["sweep.svg"] = machines_svg(load_sweep(file).title, rows)
        else:
            say(f"# {NO_PICTURE}")
    write_files(folder, contents)
    say(f"# wrote {', '.join(str(folder / name) for name in ('rows.jsonl', *contents))}")
