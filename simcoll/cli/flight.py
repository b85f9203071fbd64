"""``simcoll flight``: where the ranks of a job that hung disagree."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations

__all__ = ["read_flight"]


def read_flight(*files: Path) -> int:
    """Read flight records of PyTorch, and say where ranks differ, did not come, or did not end.

    Parameters
    ----------
    files
        One file for each rank, a pickle or JSON; the last number of a name is the rank.
    """
    from simcoll.errors import ConfigError
    from simcoll.formats.flight_record import findings, load_flight_record
    from simcoll.units import printable

    if not files:
        raise ConfigError("expected the flight records of some ranks, such as record_0 record_1")
    records = {}
    for place, file in enumerate(files):
        numbers = re.findall(r"[0-9]{1,9}", file.name)
        rank = int(numbers[-1]) if numbers and len(files) > 1 else place
        if rank in records:
            raise ConfigError(f"a second record of rank {rank}; the last number of a name is the rank", file=str(file))
        records[rank] = load_flight_record(file)
    found = findings(records)
    for line in found:
        print(printable(line))
    operations = sum(len(record.entries) for record in records.values())
    print(f"# {len(records)} ranks, {operations:,} operations: {len(found)} finding{'s' * (len(found) != 1)}")
    return 1 if found else 0
