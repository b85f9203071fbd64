"""``simcoll verify``: prove a file, or an algorithm by name."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from simcoll.command_line import WHOLE
from simcoll.terminal import say, say_text

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
    certificate: str | None = None,
) -> None:
    """Prove an algorithm, in a file of any format or by name, or print a counter-example.

    Parameters
    ----------
    file
        The file, an algorithm with parameters, ring:channels=2, or module:function.
    collective
        Collective of a named algorithm; a custom one as module:function, of the number of ranks.
    nranks
        Number of ranks of a named algorithm. Default: the topology's, or 4.
    topology
        For topology-dependent algorithms: a shipped topology, or a file.
    root
        Root rank of a named algorithm.
    exact
        Count contributions instead of comparing fingerprints, as is done for small schedules.
    trust_relaxed
        Assume that relaxed signals of an MSCCL++ plan order data, which the memory model does not
        guarantee.
    certificate
        Also write the proof to this file, for simcoll-check; compressed if its name ends in .gz.
    """
    from simcoll.algorithms.imported import is_file_name
    from simcoll.cli.progress import Progress
    from simcoll.files.output import refuse_places

    refuse_places([certificate], [file])
    with Progress() as progress:
        progress(0, 1, f"the proof of {file}")
        if is_file_name(file):
            algorithm, proof = _file_proof(file, exact=exact, trust_relaxed=trust_relaxed)
        else:
            from simcoll.binding import verify
            from simcoll.cli.show_command import named_schedule
            from simcoll.topology import load_topology

            algorithm = named_schedule(
                file, collective, nranks, load_topology(topology) if topology else None, root
            )
            proof = verify(algorithm, exact=exact or None)
        lines = () if certificate is None else _write_certificate(algorithm, proof, certificate)
    say(f"{f'{file}: ' if is_file_name(file) else ''}{algorithm}")
    say_text(proof)
    for line in lines:
        say(line)


def _write_certificate(algorithm: Any, proof: Any, path: str) -> tuple[str, str]:
    """Write the certificate; the lines that say where it is, what it is of, and how to check it."""
    from shlex import quote

    from simcoll.core.device_program import DeviceProgram
    from simcoll.formats.schedules.certificate import write_certificate

    write_certificate(algorithm, proof, path)
    instead = ""
    if isinstance(algorithm, DeviceProgram):
        instead = ", of a schedule that gives every cell the same values: its signals are not in it"
    return (
        f"certificate written to {path}{instead}",
        f"check it without simcoll: simcoll-check {quote(path)}",
    )


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
    return algorithm, verify(algorithm, exact=exact or None) if isinstance(
        algorithm, Schedule
    ) else verify_program(algorithm)
