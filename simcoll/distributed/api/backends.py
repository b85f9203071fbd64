"""Backends: names, availability and registration."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

from simcoll.errors import nearest

__all__ = [
    "Backend",
    "get_default_backend_for_device",
    "get_node_local_rank",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
]

_DEVICES = {"cpu": "emulator", "cuda": "emulator"}


class Backend(str):
    """The name of a backend, in lower case. ``emulator`` is always available.

    >>> Backend("EMULATOR") == Backend.EMULATOR, Backend("Foo")
    (True, 'foo')
    """

    __slots__ = ()

    EMULATOR = "emulator"
    GLOO = "gloo"
    NCCL = "nccl"
    MPI = "mpi"
    UCC = "ucc"
    XCCL = "xccl"
    UNDEFINED = "undefined"

    # Other packages register their backends on import, before any world exists: this table belongs
    # to the process.
    _makers: ClassVar[dict[str, tuple[Callable[..., Any], bool]]] = {}

    def __new__(cls, name: str) -> Any:
        """The name in lower case, which must be a string; that it exists is checked when a group is
        made.
        """
        if not isinstance(name, str):
            raise ValueError(  # noqa: TRY004  # as torch
                f"Backend constructor parameter must be string-ish, got {name!r}"
            )
        return name.lower()

    @classmethod
    def register_backend(
        cls,
        name: str,
        func: Callable[..., Any],
        extended_api: bool = False,
        devices: str | list[str] | None = None,
    ) -> None:
        """Make ``init_process_group(name)`` call ``func(store, rank, world_size, timeout)``.

        ``func`` returns an object with a method ``execute(plan, rank, data)``, which plays one
        rank's part of a plan and returns its output; or None to leave execution to the emulator.

        Parameters
        ----------
        name
            Name of the backend; in upper case it becomes an attribute of this class.
        func
            Makes the backend of one rank.
        extended_api
            ``func`` takes ``(options, pg_options)``; ``options`` is a mapping with store,
            group_rank, group_size, timeout, group_id and global_ranks_in_group.
        devices
            Kinds of devices; cpu and cuda if not given, with a warning.
        """
        if devices is None:
            warnings.warn(
                f"Device capability of {name} unspecified, assuming `cpu` and `cuda`. Please "
                "specify it via the `devices` argument.",
                UserWarning,
                stacklevel=2,
            )
        setattr(cls, name.upper(), name.lower())
        cls._makers[name.lower()] = (func, extended_api)

    @classmethod
    def maker(cls, name: str) -> tuple[Callable[..., Any], bool] | None:
        """The function that makes a backend, which must be registered; None for the emulator, which
        also serves gloo and nccl.
        """
        if name in cls._makers:
            return cls._makers[name]
        if name in (cls.EMULATOR, cls.GLOO, cls.NCCL, cls.UNDEFINED) or ":" in name:
            return None
        if name in (cls.MPI, cls.UCC, cls.XCCL):
            raise RuntimeError(
                f"Distributed package doesn't have {name.upper()} built in. Register it, or use "
                "'emulator'; gloo and nccl are emulated."
            )
        raise ValueError(
            f"Unknown backend type {name}; "
            f"{nearest(name, [cls.EMULATOR, cls.GLOO, cls.NCCL, *cls._makers])}"
        )


def is_available() -> bool:
    """Whether the package works here: always True."""
    return True


is_gloo_available = is_nccl_available = is_available
"""Whether a group can be made with ``backend="gloo"`` or ``"nccl"``: always True, since they are
emulated.
"""


def is_mpi_available() -> bool:
    """Whether an MPI backend is registered."""
    return Backend.MPI in Backend._makers  # noqa: SLF001


def is_xccl_available() -> bool:
    """Whether an XCCL backend is registered."""
    return Backend.XCCL in Backend._makers  # noqa: SLF001


def is_ucc_available() -> bool:
    """Whether a UCC backend is registered."""
    return Backend.UCC in Backend._makers  # noqa: SLF001


def is_backend_available(backend: str) -> bool:
    """Whether a group can be made with a backend, or with each one of ``"cpu:gloo,cuda:nccl"``.

    >>> is_backend_available("emulator"), is_backend_available("cpu:gloo,cuda:ucc")
    (True, False)
    """
    names = [part.rpartition(":")[2].strip() for part in Backend(backend).split(",")]
    standard = {Backend.EMULATOR, Backend.GLOO, Backend.NCCL, Backend.UNDEFINED}
    return all(name in standard or name in Backend._makers for name in names)  # noqa: SLF001


def is_torchelastic_launched() -> bool:
    """Whether the environment has ``TORCHELASTIC_RUN_ID``."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def get_default_backend_for_device(device: Any) -> str:
    """The default backend for ``"cpu"`` or ``"cuda"``, with or without an index; a ValueError for
    other devices.
    """
    kind = str(device).split(":", 1)[0]
    if kind not in _DEVICES:
        raise ValueError(
            f"Default backend not registered for device : {device}; {nearest(kind, _DEVICES)}"
        )
    return _DEVICES[kind]


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Rank of this process on its machine, from the launcher's ``LOCAL_RANK``; a RuntimeError
    without that and a fallback.
    """
    local_rank = os.environ.get("LOCAL_RANK", fallback_rank)
    if local_rank is None:
        raise RuntimeError(
            "LOCAL_RANK is not in the environment. Consider passing fallback_rank to allow "
            "`get_node_local_rank` to work, "
            "assuming you are not running in an environment with multiple local ranks."
        )
    return int(local_rank)
