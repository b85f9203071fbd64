"""Exceptions of stores: torch.distributed's classes, under the same names."""

from __future__ import annotations

from simcoll.errors import SimcollError

__all__ = ["DistBackendError", "DistError", "DistNetworkError", "DistStoreError", "QueueEmptyError"]


class DistError(SimcollError, RuntimeError):
    """Root of the errors of simcoll.distributed; a RuntimeError, as in torch."""


class DistBackendError(DistError):
    """A backend could not carry out an operation."""


class DistNetworkError(DistError):
    """A connection could not be made, or broke."""


class DistStoreError(DistError):
    """A store could not answer: a key that never came, a limit, a file that is not a store."""


class QueueEmptyError(DistStoreError):
    """``queue_pop(key, block=False)`` found nothing."""
