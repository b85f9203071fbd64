"""A backend for PyTorch: ``torch.distributed`` programs, unchanged, on the emulator.

``import simcoll.torch`` registers the backend ``"simcoll"`` of
``torch.distributed.init_process_group``, and :func:`spawn` starts a program on N ranks in this
process. Tensors become arrays on the same memory, and each collective becomes a call of
:mod:`simcoll.distributed`: a proved schedule, played by the emulator. No result or time of a
collective is computed here. No other part of simcoll imports PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simcoll.lazy import lazy_attributes
from simcoll.torch.accepted_versions import distributed as _dist  # before PyTorch's internals

if TYPE_CHECKING:
    from simcoll.distributed.start.spawning import RunResult
    from simcoll.torch.process_group import Options
    from simcoll.torch.torch_spawning import TorchSpawnParameters, compute, emulated_time, spawn

__all__ = [
    "Options",
    "RunResult",
    "TorchSpawnParameters",
    "compute",
    "emulated_time",
    "register",
    "spawn",
]


__getattr__, __dir__ = lazy_attributes(
    "simcoll.torch",
    {
        "simcoll.distributed.start.spawning": ["RunResult"],
        "simcoll.torch.process_group": ["Options"],
        "simcoll.torch.torch_spawning": [
            "TorchSpawnParameters",
            "compute",
            "emulated_time",
            "spawn",
        ],
    },
)


def _create(options: Any, pg_options: Any) -> Any:
    """Create a rank's handle of a group."""
    from simcoll.torch.process_group import create  # loaded by a run

    return create(options, pg_options)


def register() -> None:
    """Register the backend ``"simcoll"``, unless it is registered already.

    Importing :mod:`simcoll.torch` does this. From version 2.14 on, PyTorch calls it when a program
    names the backend (entry points of the group ``torch.distributed.backends``).
    """
    if "SIMCOLL" not in _dist.Backend._plugins:
        _dist.Backend.register_backend("simcoll", _create, extended_api=True, devices=["cpu"])


register()
