"""Key-value stores, through which ranks rendezvous and coordinate.

One semantics (`store_table`), one interface (`store`), and four places for the data: this process
(HashStore), a file (FileStore), a server (TCPStore), a namespace of another store (PrefixStore).
Stores do not depend on groups, collectives or the emulator; a runtime that must not block supplies
its own `Waiter`.
"""

from __future__ import annotations

from simcoll.distributed.server.frames import Limits
from simcoll.distributed.stores import store_errors as _errors
from simcoll.distributed.stores.file_store import FileStore
from simcoll.distributed.stores.hash_store import HashStore, PrefixStore
from simcoll.distributed.stores.store import PollingWaiter, Store, ThreadWaiter, Waiter, use_waiter
from simcoll.distributed.stores.store_errors import *
from simcoll.distributed.stores.tcp.tcp_store import TCPStore

__all__ = [
    "FileStore",
    "HashStore",
    "Limits",
    "PollingWaiter",
    "PrefixStore",
    "Store",
    "TCPStore",
    "ThreadWaiter",
    "Waiter",
    "use_waiter",
]
__all__ += _errors.__all__
