"""NCCL's variables that decide on its graphs, as settings of the search."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from simcoll.core.vocabulary import Fabric
from simcoll.libraries.nccl.device_paths import LOC, PathRules
from simcoll.libraries.nccl.graph_search import Settings

if TYPE_CHECKING:
    from simcoll.libraries.transports import Transports

__all__ = ["search_settings", "used_ports"]

_DEVICE = re.compile(r"(.*?)(\d+)")


def search_settings(
    transports: Transports, ports: Sequence[int], fabric: Fabric | Literal[""] = ""
) -> Settings:
    """The settings of the search under variables; ``ports`` numbers the ports of a host.

    Examples
    --------
    >>> from simcoll.libraries.transports import read_transports
    >>> search_settings(read_transports({"NCCL_IB_HCA": "^mlx5_0"}), range(3)).ports
    (1, 2)
    >>> search_settings(read_transports({"NCCL_P2P_DISABLE": "1"}), ()).rules.peer_level
    0
    """
    sockets = transports.uses_sockets(fabric)
    rules = PathRules(
        peer_level=transports.peer_level,
        # Sockets take data from host memory only.
        nic_level=LOC if sockets else transports.nic_level,
        through_gpus=transports.through_gpus,
        shared_memory=transports.shared_memory,
        network_inside=transports.network_inside,
    )
    used = used_ports(transports, ports, fabric)
    return Settings(
        rules,
        transports.cross_nic,
        None if len(used) == len(ports) else used,
        port_mbps=1000 * transports.socket_Gbps if sockets else 0,
    )


def used_ports(
    transports: Transports, ports: Sequence[int], fabric: Fabric | Literal[""] = ""
) -> tuple[int, ...]:
    """The ports that ``NCCL_IB_HCA`` leaves, ``mlx5_<number>`` each, or as many as
    ``NCCL_SOCKET_IFNAME`` names for sockets; all where that would be none.

    Names are prefixes, unless the list starts with ``=``; ``^`` excludes them. Where names have
    numbers beyond those of the ports, or begin otherwise, the host counts other devices as well;
    then their number counts.
    """
    if transports.uses_sockets(fabric):
        names = _names(transports.interfaces)
        counts = bool(names) and not transports.interfaces.startswith("^")
        return tuple(ports[: len(names)] if counts else ports)
    text = transports.devices
    excludes, text = text.startswith("^"), text.removeprefix("^")
    is_exact, text = text.startswith("="), text.removeprefix("=")
    devices = [None if name == "mlx5" else _DEVICE.fullmatch(name) for name in _names(text)]
    if not devices or None in devices:
        return tuple(ports)  # a prefix such as "mlx5" or "rdma" has all
    matches = [(device[1], int(device[2])) for device in devices if device]
    are_ports = all(prefix == "mlx5_" and number in ports for prefix, number in matches)
    if not are_ports:
        return tuple(ports if excludes else ports[: len(set(matches))])
    names = [f"{prefix}{number}" for prefix, number in matches]
    kept = []
    for port in ports:
        device_name = f"mlx5_{port}"
        is_named = any(
            device_name == name if is_exact else device_name.startswith(name) for name in names
        )
        if is_named != excludes:
            kept.append(port)
    return tuple(kept or ports)


def _names(text: str) -> list[str]:
    """The names of a list, without marks and numbers of ports."""
    return [name.partition(":")[0] for name in text.strip("^=").split(",") if name]
