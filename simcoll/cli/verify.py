"""``simcoll verify``: the proof of a file."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations

__all__ = ["verify_file"]


def verify_file(file: Path, /, *, exact: bool = False) -> None:
    """Prove a schedule file (JSON) or an MSCCL XML file, or print a counter-example.

    Parameters
    ----------
    file
        The file.
    exact
        Count contributions exactly instead of by 64-bit fingerprints.
    """
    from simcoll.binding import verify
    from simcoll.formats.schedule_json import MAX_BYTES, parse_schedule
    from simcoll.formats.strict import read_file
    from simcoll.units import printable

    content = read_file(file, MAX_BYTES)
    if content.lstrip()[:1] == b"<":
        from simcoll.formats.msccl_xml import load_msccl_xml
        from simcoll.proving import verify_program

        program = load_msccl_xml(file)
        print(f"{file}: {printable(str(program))}\n{verify_program(program)}")
        return

    schedule = parse_schedule(content, str(file))
    print(f"{file}: {printable(str(schedule))}\n{verify(schedule, exact=exact)}")
