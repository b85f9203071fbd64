"""``simcoll sweep``: a grid of collectives on all cores."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from simcoll.cli.grids import GridOptions

__all__ = ["sweep_all"]


def sweep_all(given: str, /, *, options: Annotated[GridOptions, Parameter(name="*")] = GridOptions()) -> None:  # noqa: B008
    """Play every combination of topologies, nodes, damage, collectives, algorithms, protocols, seeds and sizes.

    Parameters
    ----------
    given
        The name of a shipped file, or a sweep file in TOML.
    """
    from simcoll.cli.grids import play_grid
    from simcoll.formats.output import write_file
    from simcoll.planning.scenario import file_of
    from simcoll.planning.sweep_grid import load_sweep, sweep_csv, sweep_grid

    file = file_of("sweeps", given)
    played = play_grid(options, file, lambda: sweep_grid(load_sweep(file), file), ("results.csv",))
    if played is None:
        return
    (run,), folder = played
    if options.shard:
        print(f"# a part of the grid; once all are there, --resume without --shard writes {folder / 'results.csv'}")
        return
    write_file(folder / "results.csv", sweep_csv(run.rows))
    print(f"# wrote {folder / 'rows.jsonl'}, {folder / 'results.csv'}")
