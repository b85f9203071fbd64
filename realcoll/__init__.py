"""Run simcoll's schedules on real machines: GPUs with NCCL, any machine with MPI, or one process.

``executor`` runs a plan, ``turns`` is one process's part of it, ``transports`` move the bytes, and ``meeting`` is the rendezvous, where
processes agree on plans and detect failures. CuPy and mpi4py are imported when a transport needs them.
"""

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
