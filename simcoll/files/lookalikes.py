"""Files of other tools that look like a topology and have no links."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

__all__ = ["LOOKALIKES", "LookalikeKind", "lookalike"]

MARKED = 1 << 16
"""Number of bytes at the start of a file that are examined."""
LookalikeKind: TypeAlias = Literal["hwloc", "ibstat", "slurm-topology"]
LOOKALIKES: tuple[tuple[LookalikeKind, str, re.Pattern[bytes]], ...] = (
    (
        "hwloc",
        "hwloc's description of a node (lstopo)",
        re.compile(
            rb"\A\s{0,100}(?:<\?xml[^>]{0,200}>\s{0,100})?"
            rb"(?:<!DOCTYPE topology[^>]{0,200}>\s{0,100})?<topology\b"
        ),
    ),
    (
        "ibstat",
        "the state of one node's InfiniBand adapters (ibstat, ibv_devinfo)",
        re.compile(rb"^(?:CA '[^'\n]{1,64}'|hca_id:\s)", re.MULTILINE),
    ),
    (
        "slurm-topology",
        "a topology of Slurm (topology.conf), which has switches and names of nodes only",
        re.compile(rb"^\s{0,20}(?:SwitchName|BlockName)=", re.MULTILINE | re.IGNORECASE),
    ),
)
"""Files that look like a topology and have no links: short name, description, and mark."""


def lookalike(content: bytes) -> tuple[LookalikeKind, str] | None:
    """The short name and the description of a file that looks like a topology and has no links.

    >>> lookalike(b"SwitchName=leaf0 Nodes=node[0-15]")[0]
    'slurm-topology'
    """
    head = content[:MARKED]
    return next((file[:2] for file in LOOKALIKES if file[2].search(head)), None)
