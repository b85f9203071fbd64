"""NCCL's environment variables, as far as they affect its choices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from simcoll.errors import ConfigError, nearest
from simcoll.libraries.formula import PROTOCOLS

__all__ = ["DEFAULT", "LAUNCHERS", "Environment", "parse_environment"]

ALGORITHMS = {
    "ring": "ring",
    "tree": "tree",
    "nvls": "nvls",
    "nvlstree": "nvls_tree",
    "collnet": "collnet",
    "collnetdirect": "collnet",
    "collnetchain": "collnet_chain",
    "pat": "pat",
}
LAUNCHERS = ("process", "thread", "one-process", "torch", "graph")
"""What launches the operation: a process or a thread for each GPU, one thread of one process for
all GPUs of a node, PyTorch, or a CUDA graph that was captured before.
"""
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
MOST_CHANNELS = 64
"""Highest number of channels of NCCL (MAXCHANNELS)."""
_SETTING = re.compile(r"(?:^|[,;\s])\s*([A-Za-z_][A-Za-z0-9_]*)=")


@dataclass(frozen=True, slots=True)
class Environment:
    """The choices that the environment leaves to NCCL.

    Attributes
    ----------
    algorithms, protocols
        ``((collective, names), ...)``: the permitted names; ``""`` stands for all other
        collectives. Empty: everything.
    nvls
        Whether reduction in switches is enabled.
    min_channels, max_channels
        Limits on the number of channels (CTAs); 0: none.
    launcher
        One of :data:`LAUNCHERS`.
    ignored
        Settings without effect here, as they were given.
    """

    algorithms: tuple[tuple[str, tuple[str, ...]], ...] = ()
    protocols: tuple[tuple[str, tuple[str, ...]], ...] = ()
    nvls: bool = True
    min_channels: int = 0
    max_channels: int = 0
    launcher: str = LAUNCHERS[0]
    ignored: tuple[str, ...] = ()

    def allows(self, collective: str, algorithm: str, protocol: str) -> bool:
        """Whether NCCL may choose this algorithm and protocol for a collective.

        >>> parse_environment("NCCL_ALGO=Ring,NCCL_PROTO=^LL").allows("all_reduce", "ring", "LL128")
        True
        """
        if algorithm.startswith("nvls") and not self.nvls:
            return False
        return _allows(self.algorithms, collective, algorithm) and _allows(
            self.protocols, collective, protocol
        )

    def names_algorithms(self, collective: str) -> bool:
        """Whether the environment restricts the algorithms of a collective."""
        return bool({"", collective} & dict(self.algorithms).keys())

    def names_protocols(self, collective: str) -> bool:
        """Whether the environment restricts the protocols of a collective."""
        return bool({"", collective} & dict(self.protocols).keys())


DEFAULT = Environment()


def _allows(limits: tuple[tuple[str, tuple[str, ...]], ...], collective: str, name: str) -> bool:
    names_by_collective = dict(limits)
    names = names_by_collective.get(collective, names_by_collective.get(""))
    return names is None or name in names


def parse_environment(text: str) -> Environment:
    """Parse settings such as ``NCCL_ALGO=Ring,NCCL_PROTO=^LL128``, separated by commas or blanks.

    ``LAUNCHER`` states what launches the operation, by one of :data:`LAUNCHERS`. Other variables
    are kept as ignored.

    Raises
    ------
    ConfigError
        For text that is not settings, and for values unknown to NCCL.

    Examples
    --------
    >>> parse_environment("NCCL_ALGO=Ring,Tree,NCCL_PROTO=^LL128").protocols
    (('', ('LL', 'Simple')),)
    >>> parse_environment("NCCL_NVLS_ENABLE=0 NCCL_BUFFSIZE=4194304").ignored
    ('NCCL_BUFFSIZE=4194304',)
    """
    matches = list(_SETTING.finditer(text))
    if text.strip() and (not matches or text[: matches[0].start()].strip()):
        raise ConfigError(
            f"environment {text!r:.80}: expected settings such as "
            "'NCCL_ALGO=Ring,NCCL_PROTO=^LL128'"
        )
    ends = [*(match.start() for match in matches[1:]), len(text)][: len(matches)]
    settings = {
        match[1]: text[match.end() : end].strip(" ,;\t\n")
        for match, end in zip(matches, ends, strict=True)
    }
    return from_settings(settings)


def from_settings(settings: Mapping[str, str]) -> Environment:
    """The environment from variables and their values.

    Raises
    ------
    ConfigError
        For a value unknown to NCCL.
    """
    remaining = dict(settings)
    algorithms = _limits(remaining.pop("NCCL_ALGO", ""), ALGORITHMS, "NCCL_ALGO")
    protocol_names = {protocol.lower(): protocol for protocol in PROTOCOLS}
    protocols = _limits(remaining.pop("NCCL_PROTO", ""), protocol_names, "NCCL_PROTO")
    nvls = _whole(remaining, "NCCL_NVLS_ENABLE", 2)
    min_channels = max(
        _whole(remaining, name, 0) for name in ("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS")
    )
    maxima = [_whole(remaining, name, 0) for name in ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS")]
    max_channels = min((maximum for maximum in maxima if maximum), default=0)
    # As NCCL, which lowers a least number above the most.
    min_channels = min(min_channels, max_channels or MOST_CHANNELS)
    launcher = remaining.pop("LAUNCHER", LAUNCHERS[0])
    if launcher not in LAUNCHERS:
        raise ConfigError(f"unknown LAUNCHER {launcher!r}; {nearest(launcher, LAUNCHERS)}")
    ignored = tuple(f"{name}={value}" for name, value in remaining.items())
    return Environment(
        algorithms, protocols, nvls != 0, min_channels, max_channels, launcher, ignored
    )


def _whole(settings: dict[str, str], name: str, default: int) -> int:
    text = settings.pop(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 6):
        raise ConfigError(f"{name}: expected a whole number from 0 to 99999, got {text!r}")
    return int(text)


def _limits(
    text: str, names: Mapping[str, str], variable: str
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """NCCL's lists: ``Ring``, ``^Tree``, or ``allreduce:Tree;broadcast:Ring``."""
    limits: dict[str, tuple[str, ...]] = {}
    for part in filter(None, text.split(";")):
        prefix, colon, names_text = part.rpartition(":")
        collective = _COLLECTIVES.get(prefix.strip().lower(), "") if colon else ""
        if colon and not collective:
            raise ConfigError(
                f"{variable}: unknown collective {prefix!r}; {nearest(prefix, _COLLECTIVES)}"
            )
        names_text = names_text.strip()
        chosen = []
        for name in names_text.removeprefix("^").split(","):
            if name.strip().lower() not in names:
                raise ConfigError(
                    f"{variable}: unknown value {name.strip()!r}; "
                    f"{nearest(name.strip().lower(), names)}"
                )
            chosen.append(names[name.strip().lower()])
        every = tuple(dict.fromkeys(names.values()))
        limits[collective] = tuple(
            name for name in every if (name in chosen) != names_text.startswith("^")
        )
    return tuple(limits.items())
