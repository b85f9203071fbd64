"""Run simcoll's schedules on real machines: GPUs with NCCL, any machine with MPI, or one process.

``executor`` runs a plan, ``turns`` is one process's part of it, ``transports`` move the bytes, and
``meeting`` is the rendezvous, where processes agree on plans and detect failures. CuPy and mpi4py
are imported when a transport needs them. Every name is loaded on first use, so that the command
line starts quickly.
"""

from __future__ import annotations

from simcoll.lazy import lazy_attributes

TYPE_CHECKING = False  # so that type checkers see what follows, and typing need not be imported
if TYPE_CHECKING:
    from realcoll.executor import Prepared, execute, prepare
    from realcoll.process_errors import FaultError, MissingError
    from realcoll.transports.interface import Transport
    from realcoll.transports.local import LocalTransport
    from realcoll.transports.mpi import MpiTransport
    from realcoll.transports.nccl import NcclTransport

__all__ = [
    "FaultError",
    "LocalTransport",
    "MissingError",
    "MpiTransport",
    "NcclTransport",
    "Prepared",
    "Transport",
    "execute",
    "prepare",
]

__getattr__, __dir__ = lazy_attributes(
    "realcoll",
    {
        "realcoll.process_errors": ["FaultError", "MissingError"],
        "realcoll.executor": ["Prepared", "execute", "prepare"],
        "realcoll.transports.interface": ["Transport"],
        "realcoll.transports.local": ["LocalTransport"],
        "realcoll.transports.mpi": ["MpiTransport"],
        "realcoll.transports.nccl": ["NcclTransport"],
    },
)
