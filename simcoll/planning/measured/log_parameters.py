"""How a log of measurements is read: options of commands, and parameters of what they call.

Commands read their options from this record when they start, so nothing heavy is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LogParameters"]


@dataclass(frozen=True, kw_only=True)
class LogParameters:
    """What a log does not say, or what replaces it.

    Attributes
    ----------
    nodes
        Number of nodes. Default: as in the log.
    collective
        The measured collective, for a log that does not name it, or to select one of several.
    library
        A shipped library or a library file. Default: nccl; rccl for a log of RCCL or AMD's GPUs.
    environment
        NCCL's variables, such as NCCL_ALGO=Ring,NCCL_PROTO=^LL128, instead of those printed in the
        log.
    """

    nodes: int | None = None
    collective: str | None = None
    library: str | None = None
    environment: str = ""
