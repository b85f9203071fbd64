"""NCCL's environment variables, as far as they affect its choices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from simcoll.errors import ConfigError, nearest
from simcoll.libraries.formula import PROTOCOLS
from simcoll.libraries.transports import Transports, read_transports
from simcoll.libraries.variables import check_variable

__all__ = [
    "DEFAULT",
    "LAUNCHERS",
    "REDUCTIONS",
    "Environment",
    "element_names",
    "parse_environment",
]

ALGORITHMS = {
    "ring": "ring",
    "tree": "tree",
    "nvls": "nvls",
    "nvlstree": "nvls_tree",
    "collnetdirect": "collnet",
    "collnetchain": "collnet_chain",
    "pat": "pat",
}
Launcher: TypeAlias = Literal["process", "thread", "one-process", "torch", "graph"]
LAUNCHERS: tuple[Launcher, ...] = get_args(Launcher)
"""What launches the operation: a process or a thread for each GPU, one thread of one process for
all GPUs of a node, PyTorch, or a CUDA graph that was captured before.
"""
_NAMES_IN_TESTS = {"half": "float16", "float": "float32", "double": "float64"}
"""nccl-tests' names of element types."""
REDUCTIONS = ("sum", "prod", "min", "max", "avg", "premul_sum")
"""NCCL's reductions."""
_NAMES_OF_REDUCTIONS = {
    "product": "prod",
    "mul": "prod",
    "mulsum": "premul_sum",
    "mean": "avg",
    "average": "avg",
}
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
_POLICIES = ("0", "1", "2", "DEFAULT", "EFFICIENCY", "ZERO")
"""NCCL_CTA_POLICY, by number or by name."""
MOST_CHANNELS = 64
"""Highest number of channels of NCCL (MAXCHANNELS)."""
_SETTING = re.compile(r"(?:^|[,;\s])\s*([A-Za-z_][A-Za-z0-9_]*)=")
_JOINED = re.compile(r";\s*([A-Za-z_]\w*)=")
_TRANSPORTS = Transports()
MSCCLPP_BYTES = 2**20
"""RCCL's default of RCCL_MSCCLPP_THRESHOLD."""
_OURS = ("LAUNCHER", "DTYPE", "OP", "REGISTERED", "SOCKET_GBPS", "FLOW_GBPS")
"""Settings that are no variables of NCCL."""
_BARE = re.compile(r"(?:^|[,;\s])\s*([NR]CCL_\w+)\s*(?=[,;\s]|$)")


def element_names(dtype: str, op: str) -> tuple[str, str]:
    """Names of an element type and a reduction as in an :class:`Environment`, from those of
    nccl-tests; empty for single precision, a sum, and what is unknown.

    >>> element_names("float", "sum"), element_names("half", "mulsum")
    (('', ''), ('float16', 'premul_sum'))
    """
    dtype = _NAMES_IN_TESTS.get(dtype, dtype)
    op = _NAMES_OF_REDUCTIONS.get(op, op)
    is_usual = op == "sum" or op not in REDUCTIONS
    return "" if dtype == "float32" else dtype, "" if is_usual else op


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
    min_nchannels, max_nchannels, min_ctas, max_ctas
        Limits on the number of channels, by the variables of these names; 0: none. Those of CTAs
        hold for reduction in switches as well.
    nvls_channels
        Number of channels of reduction in switches; 0: NCCL's.
    threads, ll128_threads
        Most threads of a block, and under LL128; 0: NCCL's.
    thread_bytes
        ``((algorithm, protocol), bytes), ...``: the least number of bytes of a thread.
    buffer_bytes
        Size of a buffer of Simple, which limits the chunks of sends, and the rate of a channel; 0:
        NCCL's.
    collnet
        Whether switches of the network reduce (``NCCL_COLLNET_ENABLE``).
    pat
        Whether PAT may run: 0 never, 1 always, 2 with one rank per node.
    launcher
        One of :data:`LAUNCHERS`.
    dtype
        Element type, such as ``"int8"``; empty: ``float32``, as in nccl-tests.
    op
        One of :data:`REDUCTIONS`; empty: ``sum``, as in nccl-tests.
    registered
        Whether all buffers are registered as symmetric windows (nccl-tests' ``-R 2``).
    zero_ctas
        Whether NCCL avoids blocks where it can (``NCCL_CTA_POLICY=2``): copy engines then move
        registered buffers.
    msccl
        Whether RCCL may run algorithms of MSCCL (``RCCL_MSCCL_ENABLE``).
    mscclpp_bytes
        Largest size that RCCL gives to MSCCL++ (``RCCL_MSCCLPP_THRESHOLD``); 0: it is off.
    transports
        The ways that the variables leave to data.
    ignored
        Settings that change nothing here, as they were given.
    """

    algorithms: tuple[tuple[str, tuple[str, ...]], ...] = ()
    protocols: tuple[tuple[str, tuple[str, ...]], ...] = ()
    nvls: bool = True
    min_nchannels: int = 0
    max_nchannels: int = 0
    min_ctas: int = 0
    max_ctas: int = 0
    nvls_channels: int = 0
    threads: int = 0
    ll128_threads: int = 0
    thread_bytes: tuple[tuple[tuple[str, str], int], ...] = ()
    buffer_bytes: int = 0
    collnet: bool = False
    pat: int = 2
    launcher: Launcher = LAUNCHERS[0]
    dtype: str = ""
    op: str = ""
    registered: bool = False
    zero_ctas: bool = False
    msccl: bool = True
    mscclpp_bytes: int = MSCCLPP_BYTES
    transports: Transports = _TRANSPORTS
    ignored: tuple[str, ...] = ()

    @property
    def adds_launch(self) -> bool:
        """Whether the launch changes the times of the library."""
        return self.launcher not in {"process", "thread"}

    @property
    def max_channels(self) -> int:
        """The highest number of channels that both variables permit; 0: no limit."""
        limits = [limit for limit in (self.max_nchannels, self.max_ctas) if limit]
        return min(limits, default=0)

    @property
    def min_channels(self) -> int:
        """The least number of channels; 0: no limit."""
        # As NCCL, which lowers the least number of CTAs to the most.
        ctas = min(self.min_ctas, self.max_ctas or MOST_CHANNELS)
        return max(ctas, min(self.min_nchannels, MOST_CHANNELS))

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

    ``LAUNCHER`` states what launches the operation, by one of :data:`LAUNCHERS`, ``DTYPE`` the
    element type, ``OP`` the reduction, ``REGISTERED`` (1) that buffers are symmetric windows,
    ``SOCKET_GBPS`` the rate of an interface that sockets use, and ``FLOW_GBPS`` the most that the
    network gives one socket. Variables without an effect here are kept as ignored.

    Raises
    ------
    ConfigError
        For text that is not settings, and for values unknown to NCCL.

    Examples
    --------
    >>> parse_environment("NCCL_ALGO=Ring,Tree,NCCL_PROTO=^LL128").protocols
    (('', ('LL', 'Simple')),)
    >>> parse_environment("NCCL_NVLS_ENABLE=0 NCCL_IB_TIMEOUT=22").ignored
    ('NCCL_IB_TIMEOUT=22',)
    """
    matches = list(_SETTING.finditer(text))
    if (joined := _JOINED.search(text)) is not None:
        raise ConfigError(
            f"environment {text!r:.80}: ';' separates collectives within a value, such as "
            f"NCCL_ALGO=allreduce:Tree;broadcast:Ring; before {joined[1]}, write a comma or a blank"
        )
    if (bare := _BARE.search(text)) is not None:
        raise ConfigError(f"environment {text!r:.80}: {bare[1]} has no value; write {bare[1]}=...")
    if text.strip() and (not matches or text[: matches[0].start()].strip()):
        raise ConfigError(
            f"environment {text!r:.80}: expected settings such as "
            "'NCCL_ALGO=Ring,NCCL_PROTO=^LL128'"
        )
    ends = [*(match.start() for match in matches[1:]), len(text)][: len(matches)]
    settings: dict[str, str] = {}
    for match, end in zip(matches, ends, strict=True):
        name, value = match[1], text[match.end() : end].strip(" ,\t\n")
        if settings.get(name, value) != value:
            raise ConfigError(
                f"environment: {name} is given twice, as {settings[name]!r} and as {value!r}"
            )
        if name not in _OURS:
            check_variable(name)
        settings[name] = value
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
    limits = {
        name: _whole(remaining, f"NCCL_{name.upper()}", 0)
        for name in ("min_nchannels", "max_nchannels", "min_ctas", "max_ctas")
    }
    if "NCCL_MAX_NCHANNELS" in settings:
        limits["max_nchannels"] = max(1, limits["max_nchannels"])
    threads = {
        "nvls_channels": _whole(remaining, "NCCL_NVLS_NCHANNELS", 0),
        "threads": _whole(remaining, "NCCL_NTHREADS", 0),
        "ll128_threads": _whole(remaining, "NCCL_LL128_NTHREADS", 0),
        "buffer_bytes": _whole(remaining, "NCCL_BUFFSIZE", 0, digits=10),
    }
    thread_bytes = _thread_bytes(remaining.pop("NCCL_THREAD_THRESHOLDS", ""))
    pat = _whole(remaining, "NCCL_PAT_ENABLE", 2)
    collnet = _whole(remaining, "NCCL_COLLNET_ENABLE", 0) != 0
    launcher = remaining.pop("LAUNCHER", LAUNCHERS[0])
    if launcher not in LAUNCHERS:
        raise ConfigError(f"unknown LAUNCHER {launcher!r}; {nearest(launcher, LAUNCHERS)}")
    dtype = remaining.pop("DTYPE", "").lower()
    dtype = _NAMES_IN_TESTS.get(dtype, dtype)
    op = remaining.pop("OP", "").lower()
    op = _NAMES_OF_REDUCTIONS.get(op, op)
    if op and op not in REDUCTIONS:
        raise ConfigError(f"NCCL has no reduction {op!r:.80}; {nearest(op, REDUCTIONS)}")
    registered = _whole(remaining, "REGISTERED", 0) != 0
    zero_ctas = _is_zero_policy(remaining)
    msccl = _whole(remaining, "RCCL_MSCCL_ENABLE", 1) != 0
    mscclpp_bytes = _whole(remaining, "RCCL_MSCCLPP_THRESHOLD", MSCCLPP_BYTES, digits=10)
    if _whole(remaining, "RCCL_MSCCLPP_ENABLE", 1) == 0 or not msccl:
        mscclpp_bytes = 0
    transports = read_transports(remaining)
    ignored = tuple(f"{name}={value}" for name, value in remaining.items())
    return Environment(
        algorithms,
        protocols,
        nvls != 0,
        **limits,
        **threads,
        thread_bytes=thread_bytes,
        collnet=collnet,
        pat=pat,
        launcher=launcher,
        dtype=dtype,
        op="" if op == "sum" else op,
        registered=registered,
        zero_ctas=zero_ctas,
        msccl=msccl,
        mscclpp_bytes=mscclpp_bytes,
        transports=transports,
        ignored=ignored,
    )


def _is_zero_policy(settings: dict[str, str]) -> bool:
    """Whether NCCL_CTA_POLICY asks for no blocks; its other policies change nothing here."""
    words = [word.strip().upper() for word in settings.get("NCCL_CTA_POLICY", "").split("|")]
    for word in filter(None, words):
        if word not in _POLICIES:
            raise ConfigError(
                f"NCCL_CTA_POLICY: unknown value {word!r}; {nearest(word, _POLICIES)}"
            )
    if not {"2", "ZERO"} & set(words):
        return False
    del settings["NCCL_CTA_POLICY"]
    return True


def _thread_bytes(text: str) -> tuple[tuple[tuple[str, str], int], ...]:
    """NCCL_THREAD_THRESHOLDS: up to six numbers, of trees and of rings, each for LL, LL128 and
    Simple.
    """
    words = text.split()
    if len(words) > 6 or not all(word.lstrip("-").isdecimal() for word in words):
        raise ConfigError(
            "NCCL_THREAD_THRESHOLDS: expected up to six whole numbers, for LL, LL128 and Simple "
            f"of trees and of rings, got {text!r:.80}"
        )
    pairs = [(algorithm, protocol) for algorithm in ("tree", "ring") for protocol in PROTOCOLS]
    thresholds = zip(pairs, map(int, words), strict=False)
    return tuple((pair, threshold) for pair, threshold in thresholds if threshold >= 0)


def _whole(settings: dict[str, str], name: str, default: int, *, digits: int = 5) -> int:
    text = settings.pop(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= digits):
        raise ConfigError(
            f"{name}: expected a whole number from 0 to {'9' * digits}, got {text!r:.80}"
        )
    return int(text)


def _limits(
    text: str, names: Mapping[str, str], variable: str
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """NCCL's lists: ``Ring``, ``^Tree``, or ``allreduce:Tree;broadcast:Ring``."""
    limits: dict[str, tuple[str, ...]] = {}
    for position, part in enumerate(filter(None, text.split(";"))):
        prefix, colon, names_text = part.rpartition(":")
        if position and not colon:
            raise ConfigError(
                f"{variable}: {part!r} after a semicolon is for no collective: NCCL refuses all "
                "entries but the first without one; write it as in 'Ring;allreduce:Tree'"
            )
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
