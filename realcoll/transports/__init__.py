"""Transports, which move bytes between ranks: in one process (``local``), over MPI (``mpi``), over
NCCL (``nccl``).

Each is one class that implements :class:`realcoll.transports.interface.Transport`, without
knowledge of schedules.
"""

from realcoll.transports.interface import Transport
from realcoll.transports.local import LocalTransport
from realcoll.transports.mpi import MpiTransport
from realcoll.transports.nccl import NcclTransport, gpu_is_here

__all__ = ["LocalTransport", "MpiTransport", "NcclTransport", "Transport", "gpu_is_here"]
