"""Variables that decide by which links NCCL moves data: peer access, host memory, NICs, sockets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simcoll.core.vocabulary import Fabric
from simcoll.errors import ConfigError, nearest
from simcoll.libraries.path_types import PATH_TYPES

__all__ = ["Transports", "read_transports"]

_OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
"""Types of paths by the numbers that older versions of NCCL gave to levels."""
_MOST_SOCKET_THREADS = 16
_MOST_SOCKETS = 64
"""NCCL's limits for a connection (``net_socket.cc``)."""
_FASTEST_GBPS = 1600


@dataclass(frozen=True, slots=True)
class Transports:
    """The ways that NCCL's variables leave to data.

    Attributes
    ----------
    network
        ``"socket"`` or ``"ib"``, by ``NCCL_NET``; empty: the fabric's.
    verbs, plugin
        Whether InfiniBand or RoCE (not ``NCCL_IB_DISABLE``), and a plugin (not
        ``NCCL_NET_PLUGIN=none``), may be used.
    devices
        NICs in use, as in ``NCCL_IB_HCA``; empty: all.
    interfaces
        Interfaces of sockets, as in ``NCCL_SOCKET_IFNAME``; empty: those of all NICs.
    socket_threads
        Helper threads of a connection (``NCCL_SOCKET_NTHREADS``); 0: NCCL's.
    sockets_per_thread
        Sockets of each of them (``NCCL_NSOCKS_PERTHREAD``); 0: NCCL's.
    socket_Gbps
        Rate of an interface of sockets; 0: that of a NIC.
    flow_Gbps
        The most that the network gives one socket; 0: no limit.
    peer_level, nic_level
        Worst type of path, as an index into :data:`~simcoll.libraries.path_types.PATH_TYPES`, over
        which GPUs use peer access (``NCCL_P2P_LEVEL``, ``NCCL_P2P_DISABLE``) and NICs access GPUs
        (``NCCL_NET_GDR_LEVEL``); None: NCCL's own rule.
    cross_nic
        ``NCCL_CROSS_NIC``.
    shared_memory, through_gpus, network_inside
        Whether GPUs may exchange data in host memory (not ``NCCL_SHM_DISABLE``), use the NIC of
        another GPU (not ``NCCL_PXN_DISABLE``), and use NICs inside a host (not
        ``NCCL_NET_DISABLE_INTRA``).
    """

    network: str = ""
    verbs: bool = True
    plugin: bool = True
    devices: str = ""
    interfaces: str = ""
    socket_threads: int = 0
    sockets_per_thread: int = 0
    socket_Gbps: int = 0
    flow_Gbps: int = 0
    peer_level: int | None = None
    nic_level: int | None = None
    cross_nic: int = 2
    shared_memory: bool = True
    through_gpus: bool = True
    network_inside: bool = True

    @property
    def sockets(self) -> int:
        """Sockets of a connection: of all threads together, as far as NCCL opens them.

        >>> Transports(socket_threads=8, sockets_per_thread=16).sockets
        64
        """
        threads = max(1, self.socket_threads)
        return threads * min(max(1, self.sockets_per_thread), _MOST_SOCKETS // threads)

    def uses_sockets(self, fabric: Fabric | Literal[""]) -> bool:
        """Whether a network of a fabric is used by sockets.

        >>> transports = Transports(verbs=False)
        >>> transports.uses_sockets("roce"), transports.uses_sockets("efa-p5")
        (True, False)
        """
        if fabric == "socket" or self.network:
            return fabric == "socket" or self.network == "socket"
        return not (self.verbs if fabric in {"ib", "roce"} else self.plugin)


def read_transports(settings: dict[str, str]) -> Transports:
    """Take the variables of transports, ``SOCKET_GBPS`` and ``FLOW_GBPS``, from settings.

    Raises
    ------
    ConfigError
        For a value that NCCL would take no notice of.

    Examples
    --------
    >>> settings = {"NCCL_IB_HCA": "mlx5_0", "NCCL_P2P_LEVEL": "NVL", "NCCL_DEBUG": "INFO"}
    >>> transports = read_transports(settings)
    >>> transports.devices, transports.peer_level, settings
    ('mlx5_0', 1, {'NCCL_DEBUG': 'INFO'})
    """
    network = settings.get("NCCL_NET", "").lower()
    if network in {"socket", "ib"}:  # other names are those of plugins
        del settings["NCCL_NET"]
    plugin = settings.get("NCCL_NET_PLUGIN", "").lower()
    if plugin == "none":
        del settings["NCCL_NET_PLUGIN"]
    peer_level = _level(settings, "NCCL_P2P_LEVEL")
    if _flag(settings, "NCCL_P2P_DISABLE"):
        peer_level = PATH_TYPES.index("LOC")
    return Transports(
        network=network if network in {"socket", "ib"} else "",
        verbs=not _flag(settings, "NCCL_IB_DISABLE"),
        plugin=plugin != "none",
        devices=settings.pop("NCCL_IB_HCA", ""),
        interfaces=settings.pop("NCCL_SOCKET_IFNAME", ""),
        socket_threads=_number(settings, "NCCL_SOCKET_NTHREADS", 0, _MOST_SOCKET_THREADS),
        sockets_per_thread=_number(settings, "NCCL_NSOCKS_PERTHREAD", 0, _MOST_SOCKETS),
        socket_Gbps=_number(settings, "SOCKET_GBPS", 0, _FASTEST_GBPS),
        flow_Gbps=_number(settings, "FLOW_GBPS", 0, _FASTEST_GBPS),
        peer_level=peer_level,
        nic_level=_level(settings, "NCCL_NET_GDR_LEVEL"),
        cross_nic=_number(settings, "NCCL_CROSS_NIC", 2, 2),
        shared_memory=not _flag(settings, "NCCL_SHM_DISABLE"),
        through_gpus=not _flag(settings, "NCCL_PXN_DISABLE"),
        network_inside=not _flag(settings, "NCCL_NET_DISABLE_INTRA"),
    )


def _number(settings: dict[str, str], name: str, default: int, limit: int) -> int:
    text = settings.pop(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and int(text[:9]) <= limit):
        raise ConfigError(f"{name}: expected a whole number from 0 to {limit}, got {text!r:.80}")
    return int(text)


def _flag(settings: dict[str, str], name: str) -> bool:
    return bool(_number(settings, name, 0, 1))


def _level(settings: dict[str, str], name: str) -> int | None:
    """A type of path by its name or its old number."""
    text = settings.pop(name, "")
    if not text:
        return None
    if text in PATH_TYPES[:-1]:
        return PATH_TYPES.index(text)
    if text.isascii() and text.isdecimal():
        return PATH_TYPES.index(_OLD_LEVELS[min(int(text[:9]), len(_OLD_LEVELS) - 1)])
    raise ConfigError(
        f"{name}: NCCL takes no notice of {text!r:.80}; {nearest(text.upper(), PATH_TYPES[:-1])}"
    )
