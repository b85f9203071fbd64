"""``simcoll verify``: the proof of a file, or of an algorithm by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from simcoll.command_line import WHOLE

__all__ = ["verify_file"]


def verify_file(
    file: str,
    collective: str = "all_reduce",
    /,
    *,
    nranks: Annotated[int | None, Parameter(name=["--nranks", "-n"]), WHOLE] = None,
    topology: Annotated[str | None, Parameter(name=["--topology", "-t"])] = None,
    root: Annotated[int | None, WHOLE] = None,
    exact: bool = False,
) -> None:
    """Prove a schedule file (JSON), an MSCCL XML file or an algorithm by name, or print a counter-example.

    Parameters
    ----------
    file
        The file, or an algorithm with parameters: ring:channels=2.
    collective
        What an algorithm implements.
    nranks
        Ranks of an algorithm. Default: those of the topology, or 4.
    topology
        For algorithms that are made for one: a shipped topology, or a file.
    root
        Root rank of an algorithm.
    exact
        Count contributions exactly instead of by 64-bit fingerprints.
    """
    from simcoll.algorithms import ALGORITHMS
    from simcoll.binding import verify
    from simcoll.formats.schedule_json import MAX_BYTES, parse_schedule
    from simcoll.formats.strict import read_file
    from simcoll.units import printable

    if not Path(file).exists() and file.partition(":")[0] in {each.name for each in ALGORITHMS}:
        from simcoll.cli.show import named_schedule
        from simcoll.topology import load_topology

        named = named_schedule(file, collective, nranks, load_topology(topology) if topology else None, root)
        print(f"{printable(str(named))}\n{verify(named, exact=exact)}")
        return

    content = read_file(file, MAX_BYTES)
    if content.lstrip()[:1] == b"<":
        from simcoll.formats.msccl_xml import load_msccl_xml
        from simcoll.proving import verify_program

        program = load_msccl_xml(file)
        print(f"{file}: {printable(str(program))}\n{verify_program(program)}")
        return

    schedule = parse_schedule(content, file)
    print(f"{file}: {printable(str(schedule))}\n{verify(schedule, exact=exact)}")
