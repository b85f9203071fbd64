"""Published measurements: tables of nccl-tests, with the machine that each was made on."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from simcoll.libraries.environment import Environment, parse_environment
from simcoll.limits.paths import data_folder
from simcoll.topology import Topology, topology_of_job

__all__ = ["Table", "published_tables"]


@dataclass(frozen=True, slots=True)
class Table:
    """A published table.

    Attributes
    ----------
    name, part, system
        The table; whether it belongs to the ``"development"`` tables or was ``"added"``, after it had been predicted blind; and who
        measured on what: tables of one system share machine and publisher.
    collective, topology, nodes, ranks
        What ran, and the shipped machine: so many nodes of the topology, the first so many ranks of them.
    environment
        NCCL's variables, and who launched, as text.
    library, version
        What ran, and its version where it is known.
    source
        Address of the page.
    rows
        Sizes in bytes and times in nanoseconds, in order of size.
    """

    name: str
    part: str
    system: str
    collective: str
    topology: str
    nodes: int
    ranks: int
    environment: str
    library: str
    version: str
    source: str
    rows: tuple[tuple[int, int], ...]

    def machine(self) -> Topology:
        """The topology, with the ranks that took part."""
        return topology_of_job(self.topology, self.ranks, nodes=self.nodes)

    def settings(self) -> Environment:
        """The environment, read."""
        return parse_environment(self.environment)


def published_tables(*, added: bool = False) -> tuple[Table, ...]:
    """The development tables, and if asked those added later, too.

    >>> tables = published_tables()
    >>> len(tables), sum(len(table.rows) for table in tables)
    (77, 979)
    >>> len(published_tables(added=True))
    228
    """
    folder = data_folder("measurements")
    rows: dict[str, list[tuple[int, int]]] = {}
    with (folder / "rows.csv").open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            rows.setdefault(row["table"], []).append((int(row["size_bytes"]), int(row["time_ns"])))
    with (folder / "tables.csv").open(encoding="utf-8", newline="") as stream:
        return tuple(
            Table(
                about["table"], about["set"], about["system"], about["collective"], about["topology"], int(about["nodes"]),
                int(about["ranks"]), about["environment"], about["library"], about["version"], about["source"],
                tuple(sorted(rows[about["table"]])),
            )
            for about in csv.DictReader(stream)
            if added or about["set"] == "development"
        )  # fmt: skip
