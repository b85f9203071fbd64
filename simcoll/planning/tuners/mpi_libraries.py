"""MPI libraries (``libraries/mpi``): their algorithms that simcoll has, and their defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import msgspec

from simcoll.errors import ConfigError, nearest, shown
from simcoll.files.paths import data_folder
from simcoll.files.strict import decode_toml
from simcoll.topology import Topology

__all__ = ["MpiCollective", "MpiLibrary", "load_mpi_library", "row_for"]

Rows = Sequence[Sequence[int | str]]
"""For fewer ranks than the first entry (``"pow2"``: a power of two of them, ``"any"``: all that are
left) an algorithm, and after each number the algorithm from that many bytes on.
"""


def row_for(rows: Rows, nranks: int, size_bytes: int) -> str:
    """The algorithm that rows select for a number of ranks and bytes."""
    name, *steps = next(
        row[1:]
        for row in rows
        if row[0] == "any"
        or (nranks & (nranks - 1) == 0 if row[0] == "pow2" else nranks < int(row[0]))
    )
    for threshold, larger in zip(steps[::2], steps[1::2], strict=True):
        name = larger if size_bytes >= int(threshold) else name
    return str(name)


class MpiCollective(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A collective of an MPI library.

    Attributes
    ----------
    algorithms
        simcoll's algorithms, and the library's names for them.
    alike
        Other algorithms of the library that send the same messages as one of these.
    default
        The default; ``one_node``, ``apart`` and ``several``: the defaults on one node, with one
        rank per node, and with several ranks on several nodes, where they differ.
    few
        Replaces the default if not every rank of the largest power of two has an element.
    through_leaders
        Names of algorithms through one leader per node, and their stages, such as
        ``["between broadcast", "inside broadcast"]``.
    inside
        The algorithm inside a node as such a stage, if it differs from that on one node.
    beside
        The algorithm between nodes that overlaps another stage, ``/8192`` in pieces of that many
        bytes; elsewhere ``apart``.
    default_counts_blocks, rules_count_blocks
        Whether bytes mean one block rather than all: in the default, and in the rules of the
        library's file.
    """

    algorithms: dict[str, str]
    default: Rows
    one_node: Rows = ()
    apart: Rows = ()
    several: Rows = ()
    few: str = ""
    alike: dict[str, str] = {}
    through_leaders: dict[str, Sequence[str]] = {}
    inside: Rows = ()
    beside: Rows = ()
    default_counts_blocks: bool = False
    rules_count_blocks: bool = False

    def default_on(self, topology: Topology, size_bytes: int) -> tuple[str, str | None]:
        """The default for a size in bytes, as nccl-tests counts it: the library's name, and
        simcoll's if it has the algorithm.
        """
        n = topology.nranks
        boxes = len(set(topology.groups["box"].tolist())) if "box" in topology.groups else n
        rows = (
            self.one_node if boxes == 1 else self.apart if boxes == n else self.several
        ) or self.default
        size = size_bytes // n if self.default_counts_blocks else size_bytes
        name = row_for(rows, n, size)
        if self.few and size < 1 << n.bit_length() - 1:
            name = self.few
        return name, self.ours(name)

    def ours(self, name: str) -> str | None:
        """Return simcoll's algorithm for a name of the library, if unique."""
        matches = [
            ours
            for ours, library_name in self.algorithms.items()
            if library_name == self.alike.get(name, name)
        ]
        return matches[0] if len(matches) == 1 else None


class MpiLibrary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An MPI library.

    ``notes``: differences from the library; ``segment``: bytes per segment through the leaders, 0
    for all at once; ``components_of``: the library whose components (fixed decision, and algorithms
    through leaders) this one chooses between.
    """

    name: str
    version: str
    source: str
    collectives: Mapping[str, MpiCollective]
    notes: Sequence[str] = ()
    segment: int = 0
    components_of: str = ""


@cache
def load_mpi_library(name: str) -> MpiLibrary:
    """Load an MPI library by the name of its tuner format.

    >>> library = load_mpi_library("openmpi")
    >>> from simcoll.topology import crossbar
    >>> library.collectives["all_reduce"].default_on(crossbar(64, "10 GB/s"), 1 << 20)
    ('rabenseifner', 'rabenseifner')
    """
    shipped = {path.stem: path for path in (data_folder("libraries") / "mpi").glob("*.toml")}
    if name not in shipped:
        raise ConfigError(f"unknown MPI library {shown(name)}; {nearest(str(name), shipped)}")
    path = shipped[name]
    return decode_toml(path.read_bytes(), MpiLibrary, path.name)
