"""``simcoll verify``: prove a file, or an algorithm by name."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from simcoll.command_line import WHOLE

__all__ = ["verify_file"]


def verify_file(
    file: str,
    /,
    collective: Annotated[str, Parameter(name=["--collective", "-c"])] = "all_reduce",
    *,
    nranks: Annotated[int | None, Parameter(name=["--nranks", "-n"]), WHOLE] = None,
    topology: Annotated[str | None, Parameter(name=["--topology", "-t"])] = None,
    root: Annotated[int | None, WHOLE] = None,
    exact: bool = False,
    trust_relaxed: bool = False,
) -> None:
    """Prove an algorithm, in a file of any format or by name, or print a counter-example.

    Parameters
    ----------
    file
        The file, an algorithm with parameters, ring:channels=2, or module:function.
    collective
        Collective of a named algorithm.
    nranks
        Number of ranks of a named algorithm. Default: the topology's, or 4.
    topology
        For topology-dependent algorithms: a shipped topology, or a file.
    root
        Root rank of a named algorithm.
    exact
        Count contributions exactly instead of by 64-bit fingerprints.
    trust_relaxed
        Assume that relaxed signals of an MSCCL++ plan order data, which the memory model does not guarantee.
    """
    from simcoll.algorithms.imported import is_file_name
    from simcoll.cli.progress import Progress
    from simcoll.units import printable

    with Progress() as progress:
        progress(0, 1, f"the proof of {file}")
        if is_file_name(file):
            algorithm, proof = _file_proof(file, exact=exact, trust_relaxed=trust_relaxed)
        else:
            from simcoll.binding import verify
            from simcoll.cli.show_command import named_schedule
            from simcoll.topology import load_topology

            algorithm = named_schedule(file, collective, nranks, load_topology(topology) if topology else None, root)
            proof = verify(algorithm, exact=exact)
    print(f"{f'{file}: ' if is_file_name(file) else ''}{printable(str(algorithm))}\n{proof}")


def _file_proof(file: str, *, exact: bool, trust_relaxed: bool) -> tuple[object, object]:
    """Read a file, and prove its content."""
    from simcoll.binding import verify
    from simcoll.core.device_program import DeviceProgram
    from simcoll.core.schedule import Schedule
    from simcoll.formats.goal.language import Goal
    from simcoll.formats.schedules.schedule_files import load_algorithm
    from simcoll.proving import verify_device_program, verify_program

    algorithm = load_algorithm(file)
    if isinstance(algorithm, Goal):
        matched = f"{algorithm.check():,} messages match, and no operation waits for itself"
        return algorithm, f"unproved, data unknown: {matched}"
    if isinstance(algorithm, DeviceProgram):
        return algorithm, verify_device_program(algorithm, trust_relaxed=trust_relaxed)
    return algorithm, verify(algorithm, exact=exact) if isinstance(algorithm, Schedule) else verify_program(algorithm)
