"""NCCL's variables that decide on its graphs, as settings of the search."""

from __future__ import annotations

from collections.abc import Sequence

from simcoll.libraries.environment import Environment
from simcoll.libraries.nccl.device_paths import PathRules
from simcoll.libraries.nccl.graph_search import Settings
from simcoll.libraries.nccl.graphs import PATH_TYPES

__all__ = ["search_settings"]

_OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
"""Types of paths by the numbers that older versions of NCCL gave to levels."""


def search_settings(environment: Environment, ports: Sequence[int]) -> Settings:
    """The settings of the search under an environment; ``ports`` numbers the ports of a host.

    As NCCL, it takes no notice of a level that it does not know.

    Examples
    --------
    >>> from simcoll.libraries.environment import parse_environment
    >>> settings = search_settings(parse_environment("NCCL_IB_HCA=^mlx5_0"), range(3))
    >>> settings.ports
    (1, 2)
    >>> search_settings(parse_environment("NCCL_P2P_DISABLE=1"), ()).rules.peer_level
    0
    """
    assignments = (setting.partition("=") for setting in environment.ignored)
    variables = {name.removeprefix("NCCL_"): value for name, _, value in assignments}
    disabled = variables.get("P2P_DISABLE") == "1"
    rules = PathRules(
        peer_level=0 if disabled else _level(variables.get("P2P_LEVEL", "")),
        nic_level=_level(variables.get("NET_GDR_LEVEL", "")),
        through_gpus=variables.get("PXN_DISABLE", "0") in {"0", ""},
        shared_memory=variables.get("SHM_DISABLE", "0") in {"0", ""},
        network_inside=variables.get("NET_DISABLE_INTRA", "0") in {"0", ""},
    )
    cross_nic = variables.get("CROSS_NIC", "2")
    return Settings(
        rules,
        int(cross_nic) if cross_nic in {"0", "1"} else 2,
        _ports(variables.get("IB_HCA", ""), ports),
    )


def _level(text: str) -> int | None:
    """A type of path by its name or its old number; None if NCCL knows none of this name."""
    if text in PATH_TYPES:
        return PATH_TYPES.index(text)
    if text.isascii() and text.isdecimal():
        return PATH_TYPES.index(_OLD_LEVELS[min(int(text), len(_OLD_LEVELS) - 1)])
    return None


def _ports(text: str, ports: Sequence[int]) -> tuple[int, ...] | None:
    """The ports that ``NCCL_IB_HCA`` leaves, ``mlx5_<number>`` each; None if it says nothing of
    them.

    Names are prefixes, unless the list starts with ``=``; ``^`` excludes them.
    """
    excludes, text = text.startswith("^"), text.removeprefix("^")
    is_exact, text = text.startswith("="), text.removeprefix("=")
    names = [name.partition(":")[0] for name in text.split(",") if name]
    if not names or not all(name.startswith("mlx5") for name in names):
        return None
    kept = []
    for port in ports:
        device = f"mlx5_{port}"
        matches = any(device == name if is_exact else device.startswith(name) for name in names)
        if matches != excludes:
            kept.append(port)
    return tuple(kept) or None
