"""The table of ``simcoll perf`` as a call."""

from __future__ import annotations

from collections.abc import Sequence

from simcoll.core.reduction import parse_dtype, parse_reduction
from simcoll.errors import ConfigError, expect
from simcoll.planning.sweeps.running import SweepTable, runs
from simcoll.planning.sweeps.sweep import Sweep, prepare
from simcoll.topology import Topology
from simcoll.tuning import candidates, collective_on, default_protocols, parse_choice
from simcoll.units import parse_size

__all__ = ["perf"]


def perf(
    collective: str,
    topology: Topology,
    sizes: Sequence[int | str],
    *,
    algorithms: Sequence[str] | None = None,
    protocols: Sequence[str] | None = None,
    dtype: str = "float32",
    op: str = "sum",
    root: int | None = None,
    check: int | str = 0,
) -> SweepTable:
    """Predict a collective for some sizes, as ``simcoll perf`` does.

    The table has the best algorithm and protocol of each size, with its bound.

    Parameters
    ----------
    collective
        Its kind, or a custom one as ``module:function`` or schedule file.
    topology
        The cluster; all its ranks take part.
    sizes
        Bytes, or texts such as ``"1M"``, as nccl-tests counts them: the larger of a rank's input
        and output.
    algorithms
        Names with parameters (``ring:channels=2``), files, or ``module:function``. Default: all
        that fit the machine.
    protocols
        Default: those of NCCL where it has constants for the GPUs, else ``ideal``.
    dtype, op, root
        Element type, reduction, and root of a rooted collective.
    check
        Largest size at which every run moves real data. In any case data is checked once per
        algorithm.

    Returns
    -------
    SweepTable
        A sequence of runs, which prints as the table, is a table in notebooks, and has ``to_dict``
        and ``to_frame``.

    Raises
    ------
    ConfigError
        For what is unknown or does not fit.
    ScheduleError
        For an algorithm that does not implement the collective.

    Examples
    --------
    >>> from simcoll.topology import crossbar
    >>> table = perf("all_reduce", crossbar(4, "50 GB/s", "1 us"), ["1M"], algorithms=["ring"])
    >>> table[0].choice.algorithm, f"{table[0].result.time_us:.1f} us"
    ('ring', '37.5 us')
    """
    expect(topology, Topology, "perf takes a topology, made by load_topology(name)")
    if isinstance(sizes, (str, int)) or not sizes:
        raise ConfigError(f"sizes={sizes!r}: expected a list of sizes, such as ['1M', '64M']")
    parse_reduction(op, parse_dtype(dtype))
    request = collective_on(collective, topology.nranks, root)
    names = tuple(protocols) if protocols is not None else default_protocols(topology)[0]
    built = None
    if algorithms is None:
        fitting, _ = candidates(request, topology, names)
        choices = tuple(choice for choice, _ in fitting)
        built = [schedule for _, schedule in fitting]
    else:
        choices = tuple(parse_choice(text) for text in algorithms)
    ascending = tuple(sorted({_bytes(size) for size in sizes}))
    sweep = Sweep(collective, ascending, choices, names, dtype, op, root, _bytes(check))
    schedules = prepare(sweep, topology, built)
    rows = [row for of_size in runs(sweep, schedules, topology) for row in of_size]
    return SweepTable(sweep, topology.name, tuple(rows))


def _bytes(size: int | str) -> int:
    return parse_size(size, what="a size") if isinstance(size, str) else int(size)
