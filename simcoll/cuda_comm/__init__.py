"""Collectives among the GPUs of one process, as in ``torch.cuda.comm``, on emulated devices.

Names, arguments, defaults, return values and errors follow the documentation of PyTorch 2.8. A
tensor on a device is a :class:`DeviceArray`; a numpy array is a tensor on the CPU. simcoll's proved
schedules move the data, executed by ``play`` (default: the emulator).

One defect of PyTorch is not reproduced: its scatter turns complex tensors into real ones with an
extra dimension.
"""

from simcoll.cuda_comm.collect import gather, reduce_add, reduce_add_coalesced
from simcoll.cuda_comm.emulated_devices import DeviceArray
from simcoll.cuda_comm.spread import broadcast, broadcast_coalesced, scatter

__all__ = [
    "DeviceArray",
    "broadcast",
    "broadcast_coalesced",
    "gather",
    "reduce_add",
    "reduce_add_coalesced",
    "scatter",
]
