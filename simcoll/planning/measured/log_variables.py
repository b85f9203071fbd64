"""Variables in a log that its own lines contradict: of a comment, an earlier attempt, or text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from simcoll.formats.logs.run_facts import RunFacts

__all__ = ["FALSE", "NO_PATH", "device_count", "devices_of", "effective_variables"]

FALSE = frozenset({"0", "no", "off", "false"})
NO_PATH = frozenset({"LOC", "0", "loc"})
"""Levels of paths that nothing is as near as."""


def effective_variables(
    environment: Mapping[str, str], facts: RunFacts
) -> tuple[dict[str, str], list[str]]:
    """The variables that had the effect which NCCL's lines show, and why others are left out.

    Examples
    --------
    >>> from simcoll.formats.logs.run_facts import FactReader
    >>> reader = FactReader()
    >>> reader.feed(1, "n0:7:9 [0] NCCL INFO Using network IB")
    >>> variables = {"NCCL_IB_DISABLE": "1", "NCCL_ALGO": "Ring"}
    >>> effective, notes = effective_variables(variables, reader.facts())
    >>> effective
    {'NCCL_ALGO': 'Ring'}
    >>> notes
    ["NCCL_IB_DISABLE=1 is not in the prediction: the log has 'Using network IB'"]
    """
    effective, notes = {}, []
    for name, value in environment.items():
        contradiction = _CONTRADICTIONS.get(name, _none)(value, facts)
        if contradiction:
            notes.append(f"{name}={value} is not in the prediction: the log has {contradiction}")
        else:
            effective[name] = value
    return effective, notes


def devices_of(facts: RunFacts) -> tuple[str, ...]:
    """The NICs that the log lists, each once."""
    return tuple(dict.fromkeys(" ".join(facts.values("NICs")).split()))


def device_count(value: str) -> int:
    """Number of devices that NCCL_IB_HCA names; 0 where it is a prefix or an exclusion, which may
    be of devices that are not for NCCL anyway.

    >>> device_count("=mlx5_0:1,mlx5_1:1"), device_count("^mlx5_3"), device_count("mlx5")
    (2, 0, 0)
    """
    names = [name.partition(":")[0] for name in value.lstrip("=").split(",") if name]
    # A prefix such as mlx5 stands for all devices whose names begin so.
    if value.startswith("^") or any(re.fullmatch(r"mlx[45]_?|\D*", name) for name in names):
        return 0
    return len(dict.fromkeys(names))


def _none(_value: str, _facts: RunFacts) -> str:
    return ""


def _network_is_rdma(value: str, facts: RunFacts) -> str:
    if value in FALSE or not value:
        return ""
    networks = facts.values("network")
    rdma = [name for name in networks if name.startswith("IB")]
    return f"'Using network {rdma[0]}'" if rdma and len(rdma) == len(networks) else ""


def _socket_network(value: str, facts: RunFacts) -> str:
    return _network_is_rdma(value, facts) if value.lower() == "socket" else ""


def _other_devices(value: str, facts: RunFacts) -> str:
    """NCCL takes names as prefixes, so that mlx5_1 also stands for mlx5_10."""
    listed = devices_of(facts)
    names = {name.partition(":")[0] for name in listed}
    if not listed or value.startswith("^") or device_count(value) == len(names):
        return ""
    return f"{len(names)} NICs in use: {' '.join(sorted(names))}"


def _peer_access(value: str, facts: RunFacts) -> str:
    return _all_local_by_p2p(facts) if value not in FALSE | {""} else ""


def _peer_level(value: str, facts: RunFacts) -> str:
    return _all_local_by_p2p(facts) if value in NO_PATH else ""


def _all_local_by_p2p(facts: RunFacts) -> str:
    ways = facts.values("transport")
    local = [
        transport for transport in ways if not transport.startswith(("NET", "COLLNET", "CollNet"))
    ]
    by_p2p = [transport for transport in local if transport.startswith(("P2P", "direct"))]
    return f"'via {by_p2p[0]}'" if by_p2p and len(by_p2p) == len(local) else ""


def _gpudirect(value: str, facts: RunFacts) -> str:
    over_network = [
        transport for transport in facts.values("transport") if transport.startswith("NET")
    ]
    is_used = over_network and all("GDRDMA" in transport for transport in over_network)
    return f"'via {over_network[0]}'" if value in NO_PATH | FALSE and is_used else ""


def _nvls(value: str, facts: RunFacts) -> str:
    counts = [text for text in facts.values("channels") if re.search(r"[1-9]\d* nvls", text)]
    return f"'{counts[0]}'" if value in FALSE and counts else ""


def _more_channels(value: str, facts: RunFacts) -> str:
    limit = int(value[:9]) if value.isascii() and value.isdecimal() else 0
    counts = [text for text in facts.values("channels") if int(text.split()[0]) > max(1, limit)]
    return f"'{counts[0]}'" if limit and counts else ""


_CONTRADICTIONS: Mapping[str, Callable[[str, RunFacts], str]] = {
    "NCCL_IB_DISABLE": _network_is_rdma,
    "NCCL_NET": _socket_network,
    "NCCL_IB_HCA": _other_devices,
    "NCCL_P2P_DISABLE": _peer_access,
    "NCCL_P2P_LEVEL": _peer_level,
    "NCCL_NET_GDR_LEVEL": _gpudirect,
    "NCCL_IB_GDR_LEVEL": _gpudirect,
    "NCCL_IB_CUDA_SUPPORT": _gpudirect,
    "NCCL_NVLS_ENABLE": _nvls,
    "NCCL_MAX_NCHANNELS": _more_channels,
}
"""What a log may have against a variable: the line that contradicts it, or nothing."""
