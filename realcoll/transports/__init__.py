"""Ways to move bytes between ranks: inside one process (``local``), with MPI (``mpi``), with NCCL on GPUs (``nccl``).

Each is one class that fits :class:`realcoll.transports.interface.Transport`. Nothing here knows schedules.
"""

from realcoll.transports.interface import Transport
from realcoll.transports.local import LocalTransport
from realcoll.transports.mpi import MpiTransport
from realcoll.transports.nccl import NcclTransport, gpu_is_here

__all__ = ["LocalTransport", "MpiTransport", "NcclTransport", "Transport", "gpu_is_here"]
