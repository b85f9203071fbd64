"""The programming interface: torch.distributed's names and semantics on the emulator.

Rank programs, process groups, collective calls and stores live here. The collectives themselves do
not: they are schedules, which the emulator plays. The names are loaded on first use: a process of
:mod:`realcoll` needs only the server, not the emulator.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simcoll.distributed import distributed_c10d
    from simcoll.distributed.api import (
        backends as _backends,
    )
    from simcoll.distributed.api import (
        call_options as _call_options,
    )
    from simcoll.distributed.api import (
        coalesced_calls as _coalesced_calls,
    )
    from simcoll.distributed.api import (
        collectives as _collectives,
    )
    from simcoll.distributed.api import (
        debug as _debug,
    )
    from simcoll.distributed.api import (
        device_mesh as _device_mesh,
    )
    from simcoll.distributed.api import (
        group_calls as _group_calls,
    )
    from simcoll.distributed.api import (
        groups as _groups,
    )
    from simcoll.distributed.api import (
        making_groups as _making_groups,
    )
    from simcoll.distributed.api import (
        object_collectives as _object_collectives,
    )
    from simcoll.distributed.api import (
        point_to_point as _point_to_point,
    )
    from simcoll.distributed.api import (
        reductions as _reductions,
    )
    from simcoll.distributed.api import (
        rendezvous_handlers as _rendezvous_handlers,
    )
    from simcoll.distributed.api import (
        subgroups as _subgroups,
    )
    from simcoll.distributed.api.backends import *
    from simcoll.distributed.api.call_options import *
    from simcoll.distributed.api.coalesced_calls import *
    from simcoll.distributed.api.collectives import *
    from simcoll.distributed.api.debug import *
    from simcoll.distributed.api.device_mesh import *
    from simcoll.distributed.api.group_calls import *
    from simcoll.distributed.api.groups import *
    from simcoll.distributed.api.making_groups import *
    from simcoll.distributed.api.object_collectives import *
    from simcoll.distributed.api.point_to_point import *
    from simcoll.distributed.api.reductions import *
    from simcoll.distributed.api.rendezvous_handlers import *
    from simcoll.distributed.api.subgroups import *
    from simcoll.distributed.distributed_c10d import _coalescing_manager as _coalescing_manager
    from simcoll.distributed.runtime.work import Future, Work
    from simcoll.distributed.start import spawning as _spawning
    from simcoll.distributed.start.spawning import *
    from simcoll.distributed.stores import FileStore, Store, TCPStore
    from simcoll.distributed.stores import hash_store as _memory
    from simcoll.distributed.stores import store_errors as _errors
    from simcoll.distributed.stores.hash_store import *
    from simcoll.distributed.stores.store_errors import *

    __all__ = ["FileStore", "Future", "Store", "TCPStore", "Work", "distributed_c10d"]
    __all__ += _backends.__all__
    __all__ += _call_options.__all__
    __all__ += _coalesced_calls.__all__
    __all__ += _collectives.__all__
    __all__ += _debug.__all__
    __all__ += _device_mesh.__all__
    __all__ += _groups.__all__
    __all__ += _making_groups.__all__
    __all__ += _object_collectives.__all__
    __all__ += _point_to_point.__all__
    __all__ += _group_calls.__all__
    __all__ += _reductions.__all__
    __all__ += _rendezvous_handlers.__all__
    __all__ += _subgroups.__all__
    __all__ += _spawning.__all__
    __all__ += _errors.__all__
    __all__ += _memory.__all__

else:
    _SOME = {
        "distributed_c10d": ("_coalescing_manager",),
        "runtime.work": ("Future", "Work"),
        "stores": ("FileStore", "Store", "TCPStore"),
    }
    _ALL = (
        "api.backends",
        "api.call_options",
        "api.coalesced_calls",
        "api.collectives",
        "api.debug",
        "api.device_mesh",
        "api.groups",
        "api.making_groups",
        "api.object_collectives",
        "api.point_to_point",
        "api.group_calls",
        "api.reductions",
        "api.rendezvous_handlers",
        "api.subgroups",
        "start.spawning",
        "stores.store_errors",
        "stores.hash_store",
    )

    def __getattr__(name: str) -> object:
        if "__all__" not in globals() and (name == "__all__" or name[:2] != "__"):
            names = {}
            for home in (*_SOME, *_ALL):
                module = importlib.import_module(f"simcoll.distributed.{home}")
                names |= {
                    entry: getattr(module, entry) for entry in _SOME.get(home) or module.__all__
                }
            names["__all__"] = ["distributed_c10d", *(entry for entry in names if entry[0] != "_")]
            globals().update(names | globals())  # what somebody has set stays
        if name == "reduce_op":
            text = (
                "`torch.distributed.reduce_op` is deprecated, please use "
                "`torch.distributed.ReduceOp` instead"
            )
            warnings.warn(text, FutureWarning, stacklevel=2)
            name = "ReduceOp"
        if name in globals():
            return globals()[name]
        raise AttributeError(f"module 'simcoll.distributed' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
