"""Published measurements: tables of nccl-tests, with their machines."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace

from simcoll.core.collective import KINDS
from simcoll.core.vocabulary import CollectiveKind
from simcoll.errors import InternalError
from simcoll.files.paths import data_folder
from simcoll.libraries.environment import Environment, parse_environment
from simcoll.libraries.library import shipped_libraries
from simcoll.topology import Topology, topology_of_job

__all__ = ["PublishedTable", "published_tables"]


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A published table.

    Attributes
    ----------
    name, part, system
        The table; whether it is a ``"development"`` table, was ``"added"`` after a blind
        prediction, or came ``"later"``, so that nothing was fitted to it; and its system: the
        publisher and machine.
    collective, topology, nodes, ranks
        The collective, the shipped topology with its number of nodes, and the number of ranks,
        counted from the first.
    environment
        NCCL's variables and the launcher, as text.
    library, version, dtype
        The library, its version and the element type; empty if the page does not state them.
    source
        URL of the page.
    rows
        Sizes in bytes and times in nanoseconds, in order of size.
    """

    name: str
    part: str
    system: str
    collective: CollectiveKind
    topology: str
    nodes: int
    ranks: int
    environment: str
    library: str
    version: str
    dtype: str
    source: str
    rows: tuple[tuple[int, int], ...]

    def machine(self) -> Topology:
        """The topology with the participating ranks."""
        return topology_of_job(self.topology, self.ranks, nodes=self.nodes)

    @property
    def library_file(self) -> str:
        """Name of the shipped library of the table's version; without one for it, the default of
        its library.
        """
        stem = f"{self.library}-{'.'.join(self.version.split('.')[:2])}"
        return stem if stem in shipped_libraries() else self.library

    def settings(self) -> Environment:
        """The parsed environment."""
        return replace(parse_environment(self.environment), dtype=self.dtype)


def published_tables(*, added: bool = False, later: bool = False) -> tuple[PublishedTable, ...]:
    """The development tables; ``added``: also those to which the library was fitted then;
    ``later``: only those that came later.

    >>> tables = published_tables()
    >>> len(tables), sum(len(table.rows) for table in tables)
    (77, 979)
    >>> len(published_tables(added=True)), len(published_tables(later=True))
    (417, 26)
    """
    parts = {"later"} if later else {"development", "added"} if added else {"development"}
    folder = data_folder("measurements")
    rows: dict[str, list[tuple[int, int]]] = {}
    with (folder / "rows.csv").open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            rows.setdefault(row["table"], []).append((int(row["size_bytes"]), int(row["time_ns"])))
    with (folder / "tables.csv").open(encoding="utf-8", newline="") as stream:
        return tuple(
            PublishedTable(
                about["table"],
                about["set"],
                about["system"],
                _kind(about["collective"]),
                about["topology"],
                int(about["nodes"]),
                int(about["ranks"]),
                about["environment"],
                about["library"],
                about["version"],
                about["dtype"],
                about["source"],
                tuple(sorted(rows[about["table"]])),
            )
            for about in csv.DictReader(stream)
            if about["set"] in parts
        )


def _kind(name: str) -> CollectiveKind:
    if name not in KINDS:
        raise InternalError(f"measurements/tables.csv: {name!r} is not a collective")
    return name
