"""MPI libraries: which of their algorithms are schedules here, and what they run when nothing is said (``libraries/mpi``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import msgspec

from simcoll.formats.strict import decode_toml
from simcoll.limits.paths import data_folder
from simcoll.topology import Topology

__all__ = ["MpiCollective", "MpiLibrary", "load_mpi_library"]

Rows = Sequence[Sequence[int | str]]
"""For fewer ranks than the first entry (``"pow2"``: a power of two of them, ``"any"``: all that are left) an algorithm, and after each
number that of so many bytes and more."""


class MpiCollective(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A collective of an MPI library.

    Attributes
    ----------
    algorithms
        Algorithms here, and what the library calls them.
    alike
        Other algorithms of the library that send the same messages as one of these.
    default
        What runs when nothing is said; ``one_node``, ``apart`` and ``several``: on one node, with every rank on a node of its own, and
        on several nodes with several ranks, where that is something else.
    few
        What runs in place of the default if not every rank of the largest power of two has an element.
    default_counts_blocks, rules_count_blocks
        Whether bytes are those of a block, not of all of them: in the default, and in the rules of the library's file.
    """

    algorithms: dict[str, str]
    default: Rows
    one_node: Rows = ()
    apart: Rows = ()
    several: Rows = ()
    few: str = ""
    alike: dict[str, str] = {}
    default_counts_blocks: bool = False
    rules_count_blocks: bool = False

    def default_on(self, topology: Topology, size_bytes: int) -> tuple[str, str | None]:
        """What runs for a size, as nccl-tests counts it, in bytes: by its own name, and by ours if it is a schedule here."""
        n = topology.nranks
        boxes = len(set(topology.groups["box"].tolist())) if "box" in topology.groups else n
        rows = (self.one_node if boxes == 1 else self.apart if boxes == n else self.several) or self.default
        name, *steps = next(
            row[1:] for row in rows if row[0] == "any" or (n & (n - 1) == 0 if row[0] == "pow2" else n < int(row[0]))
        )
        size = size_bytes // n if self.default_counts_blocks else size_bytes
        for least, larger in zip(steps[::2], steps[1::2], strict=True):
            name = larger if size >= int(least) else name
        if self.few and size < 1 << n.bit_length() - 1:
            name = self.few
        known = [ours for ours, own in self.algorithms.items() if own == self.alike.get(str(name), name)]
        return str(name), known[0] if len(known) == 1 else None


class MpiLibrary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An MPI library; ``notes``: what is not as in the library."""

    name: str
    version: str
    source: str
    collectives: Mapping[str, MpiCollective]
    notes: Sequence[str] = ()


@cache
def load_mpi_library(name: str) -> MpiLibrary:
    """An MPI library by the name of its tuner format.

    >>> library = load_mpi_library("openmpi")
    >>> from simcoll.topology import crossbar
    >>> library.collectives["all_reduce"].default_on(crossbar(64, "10 GB/s"), 1 << 20)
    ('rabenseifner', 'rabenseifner')
    """
    path = data_folder("libraries") / "mpi" / f"{name}.toml"
    return decode_toml(path.read_bytes(), MpiLibrary, path.name)
