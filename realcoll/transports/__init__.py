"""Ways to move bytes between ranks: inside one process (``local``), with MPI (``mpi``), with NCCL on GPUs (``nccl``).

Each is one class that fits :class:`realcoll.transports.interface.Transport`. Nothing here knows schedules.
"""

from realcoll.transports.interface import Transport
from realcoll.transports.local import LocalTransport
from realcoll.transports.mpi import MpiTransport

__all__ = ["LocalTransport", "MpiTransport", "Transport"]
