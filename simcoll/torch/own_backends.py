"""Backends that a rank's program registers, written in Python: each rank has its own, as a process.

Every other name of a backend selects the simulated one.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from torch.distributed import Backend

from simcoll.torch.rank_threads import current_thread_or_none

__all__ = ["backend_replacements"]

_TABLES = (
    "backend_list",
    "backend_capability",
    "backend_type_map",
    "default_device_backend_map",
    "_plugins",
)


def backend_replacements(
    make_own: Callable[[type, str], bool],
) -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of the function that registers backends; ``make_own`` makes an
    attribute of a class the running rank's own, unless a shared module is being loaded.
    """
    standard = Backend.register_backend

    def register_backend(
        _cls: type,
        /,
        name: str,
        func: Any,
        extended_api: bool = False,
        devices: str | list[str] | None = None,
        **of_pytorch: Any,
    ) -> None:
        thread = current_thread_or_none()
        # From 2.14 on, PyTorch registers its own when they are first named, and gives them a type.
        if thread is not None and not of_pytorch and make_own(Backend, name.upper()):
            for table in _TABLES:
                make_own(Backend, table)
                setattr(Backend, table, copy.copy(getattr(Backend, table)))
            if inspect.isroutine(func) and not inspect.isbuiltin(func):
                thread.process.own_backends.add(name.lower())
        standard(name, func, extended_api, devices, **of_pytorch)

    return [(Backend, "register_backend", classmethod(register_backend))]
