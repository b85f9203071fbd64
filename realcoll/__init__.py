"""Run simcoll's schedules on real machines: GPUs with NCCL, any machine with MPI, or one process.

``executor`` plays a plan, ``turns`` is one process's part of it, ``transports`` move the bytes; in ``meeting`` processes meet, agree and
find out who failed. CuPy and mpi4py are imported when a transport that needs them is made.
"""

from realcoll.errors import FaultError, MissingError
from realcoll.executor import Prepared, execute, prepare
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
