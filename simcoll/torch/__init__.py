"""A backend for PyTorch: ``torch.distributed`` programs, unchanged, on the emulator.

``import simcoll.torch`` registers the backend ``"simcoll"`` of
``torch.distributed.init_process_group``, and :func:`spawn` starts a program on N ranks in this
process. Tensors become arrays on the same memory, and each collective becomes a call of
:mod:`simcoll.distributed`: a proved schedule, played by the emulator. No result or time of a
collective is computed here. No other part of simcoll imports PyTorch.
"""

from __future__ import annotations

try:
    import torch.distributed as _dist
except ImportError as _error:
    raise ImportError("simcoll.torch needs PyTorch 2.13: pip install 'simcoll[torch]'") from _error

from simcoll.distributed.start.spawning import RunResult
from simcoll.torch.process_group import Options
from simcoll.torch.process_group import create as _create
from simcoll.torch.torch_spawning import TorchSpawnParameters, compute, emulated_time, spawn

__all__ = ["Options", "RunResult", "TorchSpawnParameters", "compute", "emulated_time", "spawn"]

if "SIMCOLL" not in _dist.Backend._plugins:  # a module that is loaded again
    _dist.Backend.register_backend("simcoll", _create, extended_api=True, devices=["cpu"])
