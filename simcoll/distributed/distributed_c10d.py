"""torch's module of this name: the default group and store, and coalesced blocks, for programs that
import them from it.
"""

from __future__ import annotations

from simcoll.distributed.api.backends import (
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
    is_xccl_available,
)
from simcoll.distributed.api.coalesced import coalescing
from simcoll.distributed.api.groups import default_group, default_store

__all__ = ["is_gloo_available", "is_mpi_available", "is_nccl_available", "is_xccl_available"]

_coalescing_manager = coalescing
_get_default_group = default_group
_get_default_store = default_store
